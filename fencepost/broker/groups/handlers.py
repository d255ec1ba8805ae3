"""The handlers of a group coordinator: requests of members, deadlines, and the start of a leadership.

Rule: a reply waits until the part of the log that it depends on is durable. Requests that wait for
other members are part of the group's value.
"""

from __future__ import annotations

from fencepost.broker.contract import Received, Refused, Reply, ReplyTo
from fencepost.broker.groups import rebalance
from fencepost.broker.groups.consumer_group import ConsumerGroup, tombstones
from fencepost.broker.groups.consumer_handlers import remove_members
from fencepost.broker.groups.consumer_heartbeat import static_problem
from fencepost.broker.groups.group import Group, loaded, record_of
from fencepost.broker.groups.offsets import NO_GROUP_ID, TOO_LARGE, forget_offsets, group_log, write_entries
from fencepost.broker.groups.rebalance import Turn, refused_join, refused_sync
from fencepost.broker.groups.state import Groups, keep_live
from fencepost.broker.groups.tables import DEAD, MEMBERSHIP, GroupInput
from fencepost.broker.leader_log import GroupLog
from fencepost.broker.node import Node
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.offsets_log import GroupBatch
from fencepost.protocol.terms import NO_MEMBER, GroupState


def _carry_out(node: Node, log: GroupLog, turn: Turn) -> bool:
    """Carry out a decision, after all deadlines that are due by now: group and record now, replies when the
    record is durable. Returns False, and changes nothing, if the record is too large; only a record with
    members can be.
    """
    rebalance.expire(turn)
    group_id, record = turn.group.group_id, turn.record
    if record is not None:
        entries = GroupBatch(groups=((group_id, record),))
        if not write_entries(node, log, entries, turn.now, must=not record.members):
            return False
    if turn.group is not turn.before:
        _keep(node, log.coordinator, turn.group)
    if turn.answers:
        node.after(log, tuple(turn.answers))
    return True


def _find(node: Node, group_id: str, now: int) -> tuple[GroupLog, Group | None] | Refused:
    """The coordinator's log, and the group or None, if this node coordinates it."""
    if not group_id:
        return NO_GROUP_ID
    log = group_log(node, group_id)
    return log if isinstance(log, Refused) else (log, log.coordinator.group(group_id, now=now))


# --- members ---------------------------------------------------------------------------------------------


def join_group(node: Node, request: m.JoinGroup, arrived: Received, now: int) -> None:
    """JoinGroup. The reply waits for the other members; a new member gets its id at once."""
    found, settings, to = _find(node, request.group_id, now), node.settings, arrived.to
    shortest_ms, longest_ms = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
    if request.group_id and not shortest_ms <= request.session_timeout_ms <= longest_ms:
        found = Refused(ErrorCode.INVALID_SESSION_TIMEOUT)
    if isinstance(found, Refused):
        node.outcome.effects.append(refused_join(to, found.error, request.member_id))
        return
    log, group = found
    consumers = log.coordinator.consumers.get(request.group_id)
    # As with group.consumer.migration.policy=disabled (KIP-848): only an empty group changes its protocol.
    if consumers is not None and consumers.subscriptions:
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        node.after(log, (refused_join(to, error, request.member_id),))
        return
    if group is None and request.member_id != NO_MEMBER:
        refusal = refused_join(to, _refusal(GroupInput.REJOIN), request.member_id)
        node.after(log, (refusal,))
        return
    if consumers is not None:  # it is empty: the classic group takes its place, and its offsets
        forget_offsets(node, log, (), now, consumers=tombstones(consumers))
    turn = Turn(group or _made(request.group_id), now, settings)
    if group is None:  # as in Kafka, the group exists from now on, even if no member completes its join
        turn.record = record_of(turn.group)
    rebalance.join(turn, request, arrived, _fresh_member_id(log, request, arrived.client_id))
    if not _carry_out(node, log, turn):
        node.after(log, (refused_join(to, TOO_LARGE.error, NO_MEMBER),))
    log.coordinator.member_ids_given += request.member_id == NO_MEMBER


def _made(group_id: str) -> Group:
    state = MEMBERSHIP[DEAD][GroupInput.CREATE]
    assert isinstance(state, GroupState), "the first join makes the group"
    return Group(group_id=group_id, state=state)


def _fresh_member_id(log: GroupLog, request: m.JoinGroup, client_id: str) -> str:
    """A new member id, which begins like Kafka's. Kafka appends a UUID; cores are deterministic, and the
    leader epoch makes ids of different leaders differ.
    """
    prefix = request.group_instance_id or client_id or "member"
    return f"{prefix}-{log.partition.leader_epoch}-{log.coordinator.member_ids_given + 1}"


def sync_group(node: Node, request: m.SyncGroup, to: ReplyTo, now: int) -> None:
    """SyncGroup. The reply waits for the leader's assignment."""
    found = _find(node, request.group_id, now)
    if isinstance(found, Refused):
        node.outcome.effects.append(refused_sync(to, found.error))
        return
    log, group = found
    if group is None:
        node.after(log, (refused_sync(to, _refused_member(log, request, GroupInput.SYNC)),))
        return
    turn = Turn(group, now, node.settings)
    rebalance.sync(turn, request, to)
    if not _carry_out(node, log, turn):
        # Nothing of the decision was kept, so the group is as before: decide again, without an assignment.
        turn = Turn(group, now, node.settings)
        rebalance.refuse_assignment(turn, to, TOO_LARGE.error)
        _carry_out(node, log, turn)


def _refusal(happened: GroupInput) -> ErrorCode:
    """The error for a request about a group that does not exist."""
    cell = MEMBERSHIP[DEAD][happened]
    assert isinstance(cell, ErrorCode), "a group that does not exist refuses all but its first join"
    return cell


def _refused_member(log: GroupLog, request: m.SyncGroup | m.Heartbeat, happened: GroupInput) -> ErrorCode:
    """The error for a member of the classic protocol where no group of that protocol exists. A static member
    learns that a member of the consumer protocol has its instance id (validateConsumerGroupMember).
    """
    consumers = log.coordinator.consumers.get(request.group_id)
    if consumers is not None and request.group_instance_id is not None:
        problem = static_problem(consumers, request.member_id, request.group_instance_id)
        if problem is not None:
            return problem.error
    return _refusal(happened)


def heartbeat(node: Node, request: m.Heartbeat, to: ReplyTo, now: int) -> None:
    """Heartbeat. The reply says whether the generation still holds."""
    found = _find(node, request.group_id, now)
    if isinstance(found, Refused):
        node.reply(to, found)
        return
    log, group = found
    if group is None:
        node.after(log, (Reply(to, error=_refused_member(log, request, GroupInput.HEARTBEAT)),))
        return
    turn = Turn(group, now, node.settings)
    rebalance.heartbeat(turn, request, to)
    _carry_out(node, log, turn)


def leave_group(node: Node, request: m.LeaveGroup, to: ReplyTo, now: int) -> None:
    """LeaveGroup. Each member has its own result; in a group that does not exist all are unknown."""
    found = _find(node, request.group_id, now)
    if isinstance(found, Refused):
        node.reply(to, found)
        return
    log, group = found
    if (consumers := log.coordinator.consumers.get(request.group_id)) is not None:
        _remove_consumers(node, log, consumers, request, to, now)
        return
    turn = Turn(group or Group(group_id=request.group_id), now, node.settings)
    rebalance.leave(turn, request, to)
    _carry_out(node, log, turn)


def _remove_consumers(
    node: Node, log: GroupLog, group: ConsumerGroup, request: m.LeaveGroup, to: ReplyTo, now: int
) -> None:
    """An administrator removes members of the consumer protocol (classicGroupLeaveToConsumerGroup)."""
    leaving: set[str] = set()
    left: list[m.LeftMember] = []
    for member in request.members:
        member_id, instance_id = member.member_id, member.group_instance_id
        if instance_id is not None and member_id == NO_MEMBER:
            member_id = group.static_member(instance_id) or NO_MEMBER
        problem = None if instance_id is None else static_problem(group, member_id, instance_id)
        error = NO_ERROR if problem is None else problem.error
        if error is NO_ERROR and member_id not in group.subscriptions:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is NO_ERROR:
            leaving.add(member_id)
        left.append(m.LeftMember(member_id=member.member_id, group_instance_id=instance_id, error=error))
    if leaving:
        remove_members(node, log, group.group_id, leaving, now)
    node.after(log, (Reply(to, m.LeaveGroupReply(members=tuple(left))),))


# --- deadlines and recovery ------------------------------------------------------------------------------


def resume(node: Node, log: GroupLog, now: int) -> None:
    """Start after loading the log: every member of a stable generation gets a new session
    (GroupMetadataManager.onLoaded).
    """
    state = log.coordinator
    for group_id, record in state.records.items():
        if record is not None and record.members:
            _keep(node, state, loaded(group_id, record, now=now))


def expire(node: Node, now: int) -> None:
    """Handle the sessions, joins and syncs whose deadline has passed."""
    for log in node.coordinator_logs(Groups):
        state = log.coordinator
        for group_id in state.due_groups.due(now):
            with node.contained():
                _carry_out(node, log, Turn(state.live[group_id], now, node.settings))
        if (due_ms := state.due_groups.next_ms(now)) is not None:
            node.wake_at(due_ms)


def _keep(node: Node, state: Groups, group: Group) -> None:
    if (due_ms := keep_live(state, group)) is not None:
        node.wake_at(due_ms)
