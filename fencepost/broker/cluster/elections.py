"""Decisions about who leads: a node registers, a log is read again, a partition moves.

Rule: each election raises the leader epoch of its partition (see controller.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fencepost.broker.cluster.controller import ClusterDecision, Controller, Topic
from fencepost.broker.contract import Decision, Refused, Reply, ReplyTo
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.metadata_log import BrokerRegistered, ClusterRecord, LeaderChanged
from fencepost.protocol.terms import TopicPartition


def register(
    state: Controller, node: m.NodeAddress, *, broker_epoch: int, to: ReplyTo | None
) -> ClusterDecision:
    """Register a node that starts, and raise the leader epoch of each of its partitions, which fences its
    earlier incarnation. `to` is None for the controller's own node.
    """
    registered = BrokerRegistered(node.node_id, broker_epoch=broker_epoch, host=node.host, port=node.port)
    changes = [
        _elect(topic, number, node.node_id)
        for topic in state.topics.values()
        for number, leader in topic.leaders.items()
        if leader.node_id == node.node_id
    ]
    body = m.BrokerRegistrationReply(broker_epoch=broker_epoch)
    return Decision((registered, *changes), () if to is None else (Reply(to, body),))


def elect_again(state: Controller, request: m.ElectLeaders, *, node_id: int, to: ReplyTo) -> ClusterDecision:
    """Let a node lead again under new epochs after a storage failure, unless another node leads by now."""
    records: list[ClusterRecord] = []
    answers: list[m.PartitionError] = []
    for part in request.partitions:
        leader, error = state.leader(part), NO_ERROR
        if leader is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif leader.node_id != node_id:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            records.append(_elect(state.topics[part.topic], part.partition, node_id))
        answers.append(m.PartitionError(part.topic, part.partition, error))
    reply = Reply(to, m.ElectLeadersReply(partitions=tuple(answers)))
    return Decision(tuple(records), (reply,))


def move(state: Controller, partition: TopicPartition, *, node_id: int) -> ClusterDecision | Refused:
    """Elect a node, perhaps the present one, as leader of the partition."""
    if state.leader(partition) is None:
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition} to move")
    if node_id not in state.brokers:
        return Refused(ErrorCode.INVALID_REQUEST, f"no node {node_id} is registered to lead {partition}")
    return Decision((_elect(state.topics[partition.topic], partition.partition, node_id),))


def elect_preferred(state: Controller, request: m.ElectLeaders, *, to: ReplyTo) -> ClusterDecision:
    """Elect nobody: each partition is led by its only replica."""
    answers = tuple(
        m.PartitionError(
            topic=part.topic,
            partition=part.partition,
            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if state.leader(part) is None
            else ErrorCode.ELECTION_NOT_NEEDED,
        )
        for part in request.partitions
    )
    return Decision(effects=(Reply(to, m.ElectLeadersReply(partitions=answers)),))


def reassign(state: Controller, request: m.AlterPartitionReassignments, *, to: ReplyTo) -> ClusterDecision:
    """Elect the nodes that partitions are assigned to, where they are not the leaders already."""
    records: dict[TopicPartition, ClusterRecord] = {}
    answers: list[m.PartitionError] = []
    for wanted in request.partitions:
        part = TopicPartition(wanted.topic, wanted.partition)
        leader, error = state.leader(part), NO_ERROR
        if leader is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif wanted.node_ids is None:
            error = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        elif (problem := replicas_problem(state, [wanted.node_ids])) is not None:
            error = problem.error
        elif wanted.node_ids[0] != leader.node_id:
            records[part] = _elect(state.topics[part.topic], part.partition, wanted.node_ids[0])
        answers.append(m.PartitionError(part.topic, part.partition, error))
    reply = Reply(to, m.AlterPartitionReassignmentsReply(partitions=tuple(answers)))
    return Decision(tuple(records.values()), (reply,))


def _elect(topic: Topic, number: int, node_id: int) -> LeaderChanged:
    return LeaderChanged(
        topic_id=topic.topic_id,
        partition=number,
        leader_id=node_id,
        leader_epoch=topic.leaders[number].leader_epoch + 1,
    )


def replicas_problem(state: Controller, assignments: Iterable[Sequence[int]]) -> Refused | None:
    """Why partitions cannot have these replicas."""
    for node_ids in assignments:
        for node_id in node_ids:
            if node_id not in state.brokers:
                return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"there is no broker {node_id}")
        if len(node_ids) != 1:
            because = f"a partition has one replica here, and {len(node_ids):,} are assigned"
            return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, because)
    return None
