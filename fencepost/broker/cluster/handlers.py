"""The handlers of the controller: requests of clients and nodes that change topics, nodes or leaders.

Rule: each is one decision and one batch of the metadata log; a node without that log refuses.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import attrs

from fencepost.broker.cluster import config_changes, controller, elections, topics
from fencepost.broker.cluster.controller import ClusterDecision
from fencepost.broker.cluster.describe_configs import of_another_node
from fencepost.broker.contract import (
    Assign,
    CleanLog,
    Reassign,
    Received,
    Refused,
    Remove,
    Reply,
    ReplyTo,
    Warn,
)
from fencepost.broker.leader_log import LeaderLog
from fencepost.broker.node import Node
from fencepost.broker.purgatory import InFlightElection
from fencepost.journal.cleaning import CleaningRules
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.metadata_log import cluster_batch
from fencepost.protocol.terms import BROKERS_DEFAULT, METADATA_PARTITION, NO_OFFSET, TopicPartition

# --- from clients ----------------------------------------------------------------------------------------


def create_topics(node: Node, request: m.CreateTopics, to: ReplyTo, now: int) -> None:
    """CreateTopics from a client, which may not choose internal names."""
    _create(node, request, to, now, internal=False)


def delete_topics(node: Node, request: m.DeleteTopics, to: ReplyTo, now: int) -> None:
    if (log := _controllers_log(node, to)) is not None:
        _write(node, log, topics.delete_topics(node.cluster, request, to=to), now)


def create_partitions(node: Node, request: m.CreatePartitions, to: ReplyTo, now: int) -> None:
    if (log := _controllers_log(node, to)) is not None:
        _write(node, log, topics.create_partitions(node.cluster, request, to=to), now)


def alter_configs(node: Node, request: m.IncrementalAlterConfigs, to: ReplyTo, now: int) -> None:
    """IncrementalAlterConfigs. What may change is only the settings of topics."""
    if (refused := of_another_node(node, request.node_id)) is not None:
        node.reply(to, refused)
    elif (log := _controllers_log(node, to)) is not None:
        _write(node, log, config_changes.alter_configs(node.cluster, request, to=to), now)


def elect_preferred_leaders(node: Node, request: m.ElectLeaders, to: ReplyTo, now: int) -> None:
    """ElectLeaders from a client."""
    if (log := _controllers_log(node, to)) is not None:
        _write(node, log, elections.elect_preferred(node.cluster, request, to=to), now)


def reassign(node: Node, request: m.AlterPartitionReassignments, to: ReplyTo, now: int) -> None:
    if (log := _controllers_log(node, to)) is not None:
        _write(node, log, elections.reassign(node.cluster, request, to=to), now)


def list_reassignments(node: Node, request: m.ListPartitionReassignments, to: ReplyTo, now: int) -> None:
    node.outcome.effects.append(Reply(to, m.ListPartitionReassignmentsReply()))


def refuse_client(
    node: Node, request: m.BrokerRegistration | m.AllocateProducerIds, to: ReplyTo, now: int
) -> None:
    """Refuse a client that sends a request meant for nodes: it could take partitions away from a node, and
    use up producer ids. Kafka's clients do not reach its controller either.
    """
    node.reply(to, Refused(ErrorCode.INVALID_REQUEST, "only nodes of the cluster may send this request"))


# --- from nodes ------------------------------------------------------------------------------------------


def create_any_topics(node: Node, request: m.CreateTopics, arrived: Received, now: int) -> None:
    """CreateTopics from a node, which creates internal topics for FindCoordinator."""
    _create(node, request, arrived.to, now, internal=True)


def allocate_producer_ids(node: Node, request: m.AllocateProducerIds, arrived: Received, now: int) -> None:
    if (log := _controllers_log(node, arrived.to)) is not None:
        decision = controller.allocate_producer_ids(node.cluster, node_id=request.node_id, to=arrived.to)
        _write(node, log, decision, now)


def register(node: Node, request: m.BrokerRegistration, arrived: Received, now: int) -> None:
    if (log := _controllers_log(node, arrived.to)) is not None:
        address = m.NodeAddress(node_id=request.node_id, host=request.host, port=request.port)
        _register(node, log, address, arrived.to, now)


def elect_leaders(node: Node, request: m.ElectLeaders, arrived: Received, now: int) -> None:
    """ElectLeaders from a node that lost logs in a storage failure."""
    assert arrived.from_node is not None, "dispatch.py has another table for clients"
    if (log := _controllers_log(node, arrived.to)) is not None:
        decision = elections.elect_again(node.cluster, request, node_id=arrived.from_node, to=arrived.to)
        _write(node, log, decision, now)


# --- from its own shell ----------------------------------------------------------------------------------


def start(node: Node, now: int) -> None:
    """Register the controller's own node, as the first one."""
    settings = node.settings
    address = m.NodeAddress(node_id=settings.node_id, host=settings.host, port=settings.port)
    log = node.logs[METADATA_PARTITION]
    shorten_log(node, now)
    node.following.broker_epoch = _register(node, log, address, None, now)


def shorten_log(node: Node, now: int) -> None:
    """Write a snapshot if one is due, and let the host remove what is before the last but one."""
    log = node.logs.get(METADATA_PARTITION)
    if log is None:
        return
    state, start = node.cluster, log.partition.log_end_offset
    is_due = controller.snapshot_is_due(
        state, log_end_offset=start, records_between=node.settings.metadata_records_between_snapshots
    )
    if not is_due or _leaving(node, log):
        return
    entries = controller.snapshot_of(state, offset=start, node_id=node.settings.node_id)
    before = state.snapshot.offset
    # It fits into a batch: limits.py bounds the partitions of a cluster and the settings of its topics.
    node.append(log, cluster_batch(entries, timestamp=now), entries)
    if before:
        node.after(log, (_order_to_shorten(log, before, now),))


def _order_to_shorten(log: LeaderLog, before: int, now: int) -> CleanLog:
    rules = CleaningRules(
        now=now,
        before=log.partition.log_end_offset,
        until=before,
        producers=frozenset(),
        min_cleanable_dirty_ratio=0,
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=0,
        delete_retention_ms=0,
    )
    return CleanLog(partition=METADATA_PARTITION, active_bytes_max=0, rules=rules)


def resume(node: Node) -> None:
    """Issue again what was lost when a bug made the controller read its log again: changes whose records are
    in the log, and which waited in the old state until these were durable.
    """
    if node.following.broker_epoch == NO_OFFSET:
        return  # The process starts, and `start` will raise the leader epochs of all these changes.
    # Assignments that this node obeyed before it lost the logs: these are led again after an election.
    waiting = [why.partitions for why in node.in_flight.values() if isinstance(why, InFlightElection)]
    obeyed = node.damaged.union(node.reelections, *waiting)
    node.metadata_changes.extend(
        change
        for change in controller.present_changes(node.cluster)
        if not isinstance(change, Assign) or _is_lost(node, change, obeyed)
    )


def _is_lost(node: Node, assign: Assign, obeyed: Collection[TopicPartition]) -> bool:
    """Whether this node has not obeyed the assignment."""
    log = node.logs.get(assign.partition)
    if log is None:
        return assign.partition not in obeyed
    return log.partition.leader_epoch < assign.leader_epoch


def move(node: Node, arrived: Reassign, now: int) -> None:
    """Move a partition to another leader; there is no client, so a refusal is a warning."""
    log = node.logs.get(METADATA_PARTITION)
    decided = elections.move(node.cluster, arrived.partition, node_id=arrived.node_id)
    if log is None:
        node.outcome.effects.append(Warn("only the controller moves partitions"))
    elif isinstance(decided, Refused):
        node.outcome.effects.append(Warn(decided.because))
    else:
        _write(node, log, decided, now)


def _register(node: Node, log: LeaderLog, address: m.NodeAddress, to: ReplyTo | None, now: int) -> int:
    """Register a node. Returns its broker epoch."""
    broker_epoch = log.partition.log_end_offset
    decision = elections.register(node.cluster, address, broker_epoch=broker_epoch, to=to)
    _write(node, log, decision, now)
    return broker_epoch


NOT_CONTROLLER: Final = Refused(
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    "this node is not the controller",
    source="QuorumController, ControllerExceptions.newWrongControllerException",
)


def _create(node: Node, request: m.CreateTopics, to: ReplyTo, now: int, *, internal: bool) -> None:
    if (log := _controllers_log(node, to)) is not None:
        request = _with_default_counts(request, node.settings.num_partitions)
        leaving = _leaving(node, log)
        decision = topics.create_topics(
            node.cluster, request, to=to, now=now, internal=internal, leaving=leaving
        )
        _write(node, log, decision, now)


def _leaving(node: Node, log: LeaderLog) -> set[str]:
    """The deleted topics whose names are still needed: their deletion is not durable, or not over. Once it is
    durable, the files are deleted before the next request, or this node knows that they could not be. A new
    topic of the name must not be in the log before that: after a kill, the next start would take the old
    files for its own.
    """
    waiting = (effect for _, effects in log.waiting for effect in effects)
    return node.undeleted | {effect.partition.topic for effect in waiting if isinstance(effect, Remove)}


def _with_default_counts(request: m.CreateTopics, count: int) -> m.CreateTopics:
    counted = tuple(
        attrs.evolve(topic, partition_count=count)
        if topic.partition_count == BROKERS_DEFAULT and not topic.assignments
        else topic
        for topic in request.topics
    )
    return attrs.evolve(request, topics=counted)


def _controllers_log(node: Node, to: ReplyTo) -> LeaderLog | None:
    """The metadata log. On a node that is not the controller: None, and the request is refused."""
    log = node.logs.get(METADATA_PARTITION)
    if log is None:
        node.reply(to, NOT_CONTROLLER)
    return log


def _write(node: Node, log: LeaderLog, decision: ClusterDecision, now: int) -> None:
    """Append the decision's records. The nodes' changes are released before the decision's own effects."""
    if decision.entries:
        node.append(log, cluster_batch(decision.entries, timestamp=now), decision.entries)
    node.after(log, decision.effects)
