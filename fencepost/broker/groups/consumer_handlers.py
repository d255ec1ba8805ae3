"""The handlers of a group coordinator for the consumer protocol: heartbeats, deadlines, descriptions.

Rule: what a decision changed is written as records, and the state follows from them; replies wait until the
records are durable.
"""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.broker.check_tables import first_refusal
from fencepost.broker.contract import Received, Refused, Reply, ReplyTo
from fencepost.broker.groups import consumer_heartbeat
from fencepost.broker.groups.consumer_group import ConsumerGroup, changes
from fencepost.broker.groups.consumer_heartbeat import HEARTBEAT_CHECKS, Beat, ConsumerTurn, assignor_of
from fencepost.broker.groups.offsets import NO_GROUP_ID, TOO_LARGE, group_log, write_entries
from fencepost.broker.groups.state import (
    Groups,
    MemberDeadlines,
    forget_deadlines,
    forget_live,
    keep_deadlines,
)
from fencepost.broker.leader_log import GroupLog
from fencepost.broker.node import Node
from fencepost.protocol import messages as m
from fencepost.protocol.consumer_group_log import (
    JOINING_EPOCH,
    LEFT_EPOCH,
    AssignmentState,
    TopicIdPartition,
    by_topic_id,
)
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.offsets_log import GroupBatch
from fencepost.protocol.terms import GroupState

NO_GROUP = ErrorCode.GROUP_ID_NOT_FOUND


def _turn(node: Node, group: ConsumerGroup, now: int) -> ConsumerTurn:
    return ConsumerTurn(group, now=now, topics=node.cluster, settings=node.settings)


def _carry_out(node: Node, log: GroupLog, turn: ConsumerTurn, *, must: bool = False) -> bool:
    """Write what the decision changed. Returns False, and changes nothing, if it is too large, unless it
    `must` be written.
    """
    group_id, state = turn.group.group_id, log.coordinator
    entries = changes(state.consumers.get(group_id), turn.group)
    if not entries:
        return True
    # A classic group of this name is empty, and goes; its offsets stay.
    replaced = ((group_id, None),) if state.records.get(group_id) is not None else ()
    if not write_entries(node, log, GroupBatch(groups=replaced, consumers=entries), turn.now, must=must):
        return False
    # The empty classic group may also be in memory.
    forget_live(state, group_id)
    return True


# --- heartbeats ------------------------------------------------------------------------------------------


def heartbeat(node: Node, request: m.ConsumerGroupHeartbeat, arrived: Received, now: int) -> None:
    """ConsumerGroupHeartbeat: join, stay or leave."""
    to = arrived.to
    log = first_refusal(HEARTBEAT_CHECKS, request) or group_log(node, request.group_id)
    if isinstance(log, Refused):
        node.reply(to, log)
        return
    state = log.coordinator
    before = state.consumers.get(request.group_id)
    if before is None:
        classic = state.group(request.group_id, now=now)
        is_free = classic is None or classic.state is GroupState.EMPTY
        if request.member_epoch != JOINING_EPOCH or not is_free:
            node.after(log, (Reply(to, error=NO_GROUP),))
            return
    turn = _turn(node, before or ConsumerGroup(group_id=request.group_id), now)
    if request.member_epoch < JOINING_EPOCH:
        found = _leave(node, log, turn, request)
    else:
        found = _beat(node, log, turn, request, arrived)
    if isinstance(found, Refused):
        node.after(log, (Reply(to, error=found.error),))
    else:
        node.after(log, (Reply(to, found),))


def _leave(
    node: Node, log: GroupLog, turn: ConsumerTurn, request: m.ConsumerGroupHeartbeat
) -> m.ConsumerGroupHeartbeatReply | Refused:
    if refused := consumer_heartbeat.leave(turn, request):
        return refused
    if not _carry_out(node, log, turn):
        return TOO_LARGE
    # A static member that is away keeps its session. When that ends, others get its partitions (`expire`).
    if request.member_epoch == LEFT_EPOCH:
        _end_sessions(log, request.group_id, (request.member_id,))
    return m.ConsumerGroupHeartbeatReply(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        heartbeat_interval_ms=0,
        assignment=None,
    )


def _beat(
    node: Node, log: GroupLog, turn: ConsumerTurn, request: m.ConsumerGroupHeartbeat, arrived: Received
) -> m.ConsumerGroupHeartbeatReply | Refused:
    state = log.coordinator
    # Kafka generates a UUID if the member sends none (version 0); cores are deterministic.
    member_id = request.member_id or f"member-{log.partition.leader_epoch}-{state.member_ids_given + 1}"
    predecessor = None if request.instance_id is None else turn.group.static_member(request.instance_id)
    beat = consumer_heartbeat.heartbeat(turn, request, member_id, arrived)
    if isinstance(beat, Refused):
        return beat
    if not _carry_out(node, log, turn):
        return TOO_LARGE
    state.member_ids_given += not request.member_id
    if predecessor is not None and predecessor != member_id:
        _end_sessions(log, request.group_id, (predecessor,))
    _keep_session(node, log, turn, member_id, beat)
    # The assignment is repeated only for a member that may lack it: one that joins, or one that sends all of
    # its fields because a reply was lost (KIP-848). Other heartbeats stay small.
    is_full = (
        request.rebalance_timeout_ms != consumer_heartbeat.NO_REBALANCE_TIMEOUT
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )
    tells = request.member_epoch == JOINING_EPOCH or is_full
    tells = tells or beat.before.assigned.keys() != beat.after.assigned.keys()
    return m.ConsumerGroupHeartbeatReply(
        member_id=member_id,
        member_epoch=beat.after.epoch,
        heartbeat_interval_ms=turn.settings.group_consumer_heartbeat_interval_ms,
        assignment=_assigned(beat.after.assigned) if tells else None,
    )


def _assigned(partitions: Iterable[TopicIdPartition]) -> tuple[m.AssignedTopic, ...]:
    return tuple(
        m.AssignedTopic(topic_id=topic_id, partitions=numbers)
        for topic_id, numbers in by_topic_id(partitions).items()
    )


# --- deadlines -------------------------------------------------------------------------------------------


def _keep_session(node: Node, log: GroupLog, turn: ConsumerTurn, member_id: str, beat: Beat) -> None:
    """Extend the member's session, and give it its rebalance timeout to revoke what it must."""
    state, key = log.coordinator, (turn.group.group_id, member_id)
    known = state.deadlines.get(key)
    revoke_ms = None
    if beat.after.state is AssignmentState.UNREVOKED_PARTITIONS:
        # The time to revoke runs from when the member was first asked to; heartbeats do not extend it.
        is_same = beat.after == beat.before and known is not None and known.revoke_ms is not None
        timeout_ms = turn.group.subscriptions[member_id].rebalance_timeout_ms
        revoke_ms = known.revoke_ms if known is not None and is_same else turn.now + timeout_ms
    session_ms = turn.now + turn.settings.group_consumer_session_timeout_ms
    _keep(node, state, key, MemberDeadlines(session_ms, revoke_ms))


def _end_sessions(log: GroupLog, group_id: str, member_ids: Iterable[str]) -> None:
    for member_id in member_ids:
        forget_deadlines(log.coordinator, (group_id, member_id))


def resume(node: Node, log: GroupLog, now: int) -> None:
    """Start after loading the log: every member gets a new session (GroupMetadataManager.onLoaded)."""
    state, session_ms = log.coordinator, node.settings.group_consumer_session_timeout_ms
    for group in state.consumers.values():
        for member_id, subscription in group.subscriptions.items():
            is_revoking = group.current(member_id).state is AssignmentState.UNREVOKED_PARTITIONS
            revoke_ms = now + subscription.rebalance_timeout_ms if is_revoking else None
            key = (group.group_id, member_id)
            _keep(node, state, key, MemberDeadlines(now + session_ms, revoke_ms))


def expire(node: Node, now: int) -> None:
    """Remove the members whose session, or whose time to revoke, has passed."""
    for log in node.coordinator_logs(Groups):
        state = log.coordinator
        late: dict[str, set[str]] = {}
        for group_id, member_id in state.due_members.due(now):
            late.setdefault(group_id, set()).add(member_id)
        for group_id, member_ids in late.items():
            with node.contained():
                remove_members(node, log, group_id, member_ids, now)
        if (due_ms := state.due_members.next_ms(now)) is not None:
            node.wake_at(due_ms)


def _keep(node: Node, state: Groups, key: tuple[str, str], deadlines: MemberDeadlines) -> None:
    keep_deadlines(state, key, deadlines)
    node.wake_at(deadlines.next_ms)


def remove_members(node: Node, log: GroupLog, group_id: str, member_ids: set[str], now: int) -> None:
    """Remove members from a group of the consumer protocol (consumerGroupFenceMembers): in several batches
    if one would be too large. The tombstones of one member are small, and written whatever message.max.bytes
    is now: otherwise it would own its partitions forever.
    """
    turn = _turn(node, log.coordinator.consumers[group_id], now)
    consumer_heartbeat.remove(turn, member_ids)
    if _carry_out(node, log, turn, must=len(member_ids) == 1):
        _end_sessions(log, group_id, member_ids)
        return
    names = sorted(member_ids)
    middle = len(names) // 2
    for part in (names[:middle], names[middle:]):
        remove_members(node, log, group_id, set(part), now)


# --- descriptions ----------------------------------------------------------------------------------------


def describe(node: Node, request: m.ConsumerGroupDescribe, to: ReplyTo, now: int) -> None:
    found = tuple(_described(node, group_id) for group_id in dict.fromkeys(request.groups))
    node.after_coordinators(Groups, Reply(to, m.ConsumerGroupDescribeReply(groups=found)))


def _described(node: Node, group_id: str) -> m.DescribedConsumerGroup:
    log = group_log(node, group_id) if group_id else NO_GROUP_ID
    group = None if isinstance(log, Refused) else log.coordinator.consumers.get(group_id)
    if group is None:
        error = log.error if isinstance(log, Refused) else NO_GROUP
        return m.DescribedConsumerGroup(group_id=group_id, error=error)
    return m.DescribedConsumerGroup(
        group_id=group_id,
        error=NO_ERROR,
        state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch.epoch,
        assignor_name=assignor_of(group),
        members=tuple(_described_member(node, group, member_id) for member_id in sorted(group.subscriptions)),
    )


def _described_member(node: Node, group: ConsumerGroup, member_id: str) -> m.DescribedConsumer:
    subscription, current = group.subscriptions[member_id], group.current(member_id)
    return m.DescribedConsumer(
        member_id=member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=current.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=subscription.topics,
        subscribed_topic_regex=subscription.regex,
        assignment=_named(node, (*current.assigned, *current.revoking)),
        target_assignment=_named(node, group.target(member_id)),
    )


def _named(node: Node, partitions: Iterable[TopicIdPartition]) -> tuple[m.NamedTopic, ...]:
    """Partitions with the names of their topics; those of topics that are gone are left out, as in Kafka."""
    return tuple(
        m.NamedTopic(topic_id=topic_id, topic=name, partitions=numbers)
        for topic_id, numbers in by_topic_id(partitions).items()
        if (name := node.cluster.names.get(topic_id)) is not None
    )
