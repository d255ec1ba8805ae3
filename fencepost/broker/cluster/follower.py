"""How a node follows the controller: it registers, fetches the metadata log, and obeys the records.

Rule: a node acts only on durable records, and only on those after its own registration.
"""

# Theory of operation (Kafka: BrokerLifecycleManager, KafkaRaftClient as an observer, BrokerMetadataPublisher)
#
#     node                          controller's node
#     BrokerRegistration ---------> BrokerRegistered, LeaderChanged(epoch + 1) for each partition of the node
#       <-- broker_epoch ---------- = the offset of this batch in the metadata log
#     Fetch(offset 0) ------------> durable records, as for any consumer; the Fetch waits for more
#       apply all of them to `node.cluster`
#       act on those from broker_epoch on: Assign -> lead, Remove -> drop, Configure
#     Fetch(next offset) ---------> ...
#
# There is no push and no other channel: leadership, topics and addresses reach a node as records, in one
# order. So two nodes that have read up to the same offset agree on everything.
#
# Records before `broker_epoch` were addressed to an earlier incarnation of this node. Acting on them would
# make it lead under an old leader epoch, which the journal refuses. The registration raised all epochs for
# this purpose.
#
# A controller that loses the end of its log in a power failure answers OFFSET_OUT_OF_RANGE. The node then
# knows records that no longer exist, so it forgets the cluster and registers again. So does a node that comes
# too late for records after its registration: snapshots have replaced them, and do not say what changed.

from __future__ import annotations

from typing import Final

from fencepost.broker.cluster import controller
from fencepost.broker.cluster.controller import Controller, Leader
from fencepost.broker.contract import Answered, Assign, Configure, Remove, Warn
from fencepost.broker.groups import offsets
from fencepost.broker.groups.state import Groups
from fencepost.broker.node import Node
from fencepost.broker.purgatory import (
    Following,
    InFlightElection,
    InFlightMetadataFetch,
    InFlightRegistration,
)
from fencepost.protocol import messages as m
from fencepost.protocol.batches import check, walk
from fencepost.protocol.errors import NO_ERROR, ErrorCode, ProtocolViolation
from fencepost.protocol.metadata_log import read_cluster_records
from fencepost.protocol.terms import METADATA_PARTITION, NO_OFFSET, IsolationLevel, TopicPartition

METADATA_BYTES_MAX: Final = 8 * 1024 * 1024  # KafkaRaftClient.MAX_FETCH_SIZE_BYTES

# After these errors a retry is pointless: the election took place, or the partition is no longer ours.
_NO_ELECTION: Final = frozenset(
    {NO_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}
)


# --- from the controller's log ---------------------------------------------------------------------------


def register(node: Node) -> None:
    """Register with the controller, which gives this node's partitions new leader epochs."""
    settings = node.settings
    request = m.BrokerRegistration(node_id=settings.node_id, host=settings.host, port=settings.port)
    node.ask(settings.controller_id, request, InFlightRegistration())


def answer_registration(node: Node, in_flight: InFlightRegistration, answer: Answered, now: int) -> None:
    """Begin to fetch the metadata log once the registration is accepted."""
    if isinstance(answer.body, m.BrokerRegistrationReply):
        node.following.broker_epoch = answer.body.broker_epoch
        _fetch_metadata(node)
    else:
        _ask_later(node, now)


def _fetch_metadata(node: Node) -> None:
    part = m.FetchPartition(
        topic=METADATA_PARTITION.topic,
        partition=METADATA_PARTITION.partition,
        fetch_offset=node.following.offset,
        max_bytes=METADATA_BYTES_MAX,
    )
    request = m.Fetch(
        max_wait_ms=node.settings.metadata_max_wait_ms,
        min_bytes=1,
        max_bytes=METADATA_BYTES_MAX,
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        partitions=(part,),
    )
    node.ask(node.settings.controller_id, request, InFlightMetadataFetch())


def answer_metadata_fetch(node: Node, in_flight: InFlightMetadataFetch, answer: Answered, now: int) -> None:
    """Apply fetched records; `act_on_changes` handles this node's own partitions as the step ends."""
    found = answer.body.partitions[0] if isinstance(answer.body, m.FetchReply) else None
    if found is not None and found.error is NO_ERROR:
        try:
            is_complete = _learn(node, found)
        except ProtocolViolation as problem:
            at = f"offset {node.following.offset}: {problem}"
            because = f"a damaged batch of {METADATA_PARTITION} at {at}; this node knows nothing newer"
            node.outcome.effects.append(Warn(because))
            _ask_later(node, now)
        else:
            if is_complete:
                _fetch_metadata(node)
            else:
                _start_over(node)
    elif found is not None and found.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        # The controller lost the end of its log, so this node may know records that no longer exist.
        _start_over(node)
    else:
        _ask_later(node, now)


def _start_over(node: Node) -> None:
    """Lead nothing, forget the cluster, and register again: the topics of these logs may be gone."""
    for log in list(node.logs.values()):
        node.drop(log, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    node.cluster, node.following = Controller(), Following()
    register(node)


def _learn(node: Node, found: m.FetchedPartition) -> bool:
    """Apply records. Returns False if some that this node had to act on are gone. ProtocolViolation at a
    damaged batch: what came before it was applied.
    """
    following = node.following
    for at, header in walk(found.records):
        if header.is_covering and header.next_offset > following.broker_epoch:
            return False
        check(found.records, at, header)  # the controller's disk may have changed what it once verified
        batch = memoryview(found.records)[at : at + header.size]
        changes = controller.apply(node.cluster, read_cluster_records(batch, header))
        if header.base_offset >= following.broker_epoch:
            node.metadata_changes.extend(changes)
        following.offset = header.next_offset
    return True


def _ask_later(node: Node, now: int) -> None:
    node.following.due_ms = now + node.settings.controller_quorum_retry_backoff_ms
    node.wake_at(node.following.due_ms)


def ask_again_if_due(node: Node, now: int) -> None:
    """Retry a registration or a fetch that failed. There is no limit: a node is useless without metadata."""
    following = node.following
    if following.due_ms is None:
        return
    if following.due_ms > now:
        node.wake_at(following.due_ms)
        return
    following.due_ms = None
    if following.broker_epoch == NO_OFFSET:
        register(node)
    else:
        _fetch_metadata(node)


# --- obeying the controller ------------------------------------------------------------------------------


def act_on_changes(node: Node, now: int) -> None:
    """Lead the partitions that this node has been assigned, and drop those that it has lost."""
    changes, node.metadata_changes = node.metadata_changes, []
    gone: set[str] = set()
    for change in changes:
        log = node.logs.get(change.partition)
        match change:
            case Assign():
                # An assignment to another node, too, ends this leadership: its writes must not reach the log
                # any more.
                if log is not None and log.partition.leader_epoch < change.leader_epoch:
                    node.drop(log, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                node.damaged.discard(change.partition)  # its new leader reads the disk again
                _lead_if_mine(node, change)
            case Remove():
                if log is not None:
                    node.drop(log, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                # The nodes of a simulated cluster share a directory: one of them, the controller's, deletes
                # the files.
                if METADATA_PARTITION in node.logs:
                    node.outcome.effects.append(change)
                node.damaged.discard(change.partition)
                gone.add(change.partition.topic)
            case Configure() if log is not None:
                node.outcome.effects.append(change)
            case Configure():
                pass
    if gone:
        for log in node.coordinator_logs(Groups):
            offsets.forget_topics(node, log, gone, now)


def _lead_if_mine(node: Node, change: Assign) -> None:
    """Ask the host to load the log, unless a later record has already changed the leader or its epoch."""
    newest = Leader(change.leader_id, change.leader_epoch)
    if change.leader_id == node.settings.node_id and node.cluster.leader(change.partition) == newest:
        node.outcome.effects.append(change)


# --- leading again after a storage failure ---------------------------------------------------------------


def reelect_due(node: Node, now: int) -> None:
    """Request an election for partitions that were given up after a storage failure."""
    due = tuple(sorted(key for key, due_ms in node.reelections.items() if due_ms <= now))
    # A new epoch, not the old one: requests to the lost leadership must not reach the log once it is reread.
    for key in due:
        del node.reelections[key]
    if due:
        node.ask(node.settings.controller_id, m.ElectLeaders(partitions=due), InFlightElection(due))


def answer_election(node: Node, in_flight: InFlightElection, answer: Answered, now: int) -> None:
    """Retry elections that failed. A successful one arrives as a LeaderChanged record."""
    errors = dict.fromkeys(in_flight.partitions, answer.error)
    if isinstance(answer.body, m.ElectLeadersReply):
        errors = {TopicPartition(part.topic, part.partition): part.error for part in answer.body.partitions}
    for key in [
        key for key in in_flight.partitions if errors[key] not in _NO_ELECTION and key not in node.logs
    ]:
        node.reelections[key] = due_ms = now + node.settings.reelection_backoff_ms
        node.wake_at(due_ms)
