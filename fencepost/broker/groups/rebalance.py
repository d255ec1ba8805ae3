"""The classic group protocol (GroupMetadataManager): rebalances and deadlines of a group, and the requests of
its members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the check of a commit.

Rule: a decision changes no state. It builds a Turn: the next value of the group, the replies, and the record
that must be durable before they leave. A request passes first the member check, then the generation, then the
table (tables.py).
"""

# Theory of operation. A group has four kinds of deadlines; nothing else in it depends on time. `expire`
# handles those that are due, the earliest first, in a Tick and at the end of each request's decision:
#
#     deadline         runs                                        when it passes
#     join_due_ms      while the join barrier is up                members that have not joined leave
#     sync_due_ms      while the sync barrier is up                members that have not synced leave: again
#     Member.due_ms    from a member's last request or reply       it leaves, unless it waits at a barrier
#     pending          from the grant of a member id (KIP-394)     the id is forgotten
#
# A decision changes `turn.group` step by step. Nobody sees it before `_carry_out` in handlers.py has made
# sure that its record can be written.

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from fencepost.broker.contract import Received, Reply, ReplyTo
from fencepost.broker.groups.group import (
    FirstRebalance,
    Group,
    check_member,
    record_of,
    select_protocol,
    supports,
    with_subscription,
    without,
)
from fencepost.broker.groups.members import MEMBER_BYTES, Member, Members, protocols_size, without_ids
from fencepost.broker.groups.tables import COMPLETING, MEMBERSHIP, PREPARING, STABLE, GroupInput
from fencepost.broker.limits import GROUP_MEMBERS
from fencepost.broker.settings import NodeSettings
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.offsets_log import GroupRecord
from fencepost.protocol.terms import NO_GENERATION, NO_MEMBER, GroupState

# A join phase that nobody joins is extended by the rebalance timeout; if that is 0, `expire` would never end.
JOIN_PHASE_MS_MIN: Final = 100


@attrs.define
class Turn:
    """A decision under construction: the next value of the group, its replies and its record."""

    group: Group
    now: int
    settings: NodeSettings
    before: Group = attrs.field(init=False, default=attrs.Factory(lambda turn: turn.group, takes_self=True))
    answers: list[Reply] = attrs.Factory(list[Reply])
    record: GroupRecord | None = None

    def keep(self, member: Member) -> None:
        """Put this value of a member into the group."""
        self.group = attrs.evolve(self.group, members=self.group.members.with_member(member))

    def keep_all(self, members: Iterable[Member]) -> None:
        """Make these the members of the group."""
        self.group = attrs.evolve(self.group, members=Members.of(members))

    def cell(self, happened: GroupInput) -> GroupState | ErrorCode:
        """The cell of the table for the group's state."""
        return MEMBERSHIP[self.group.state][happened]

    def enter(self, happened: GroupInput) -> None:
        """Enter the state that the table names."""
        target = self.cell(happened)
        assert isinstance(target, GroupState), "refusals were answered before"
        self.group = attrs.evolve(self.group, state=target, state_since_ms=self.now)

    def live_on(self, member: Member) -> Member:
        """The member with a new session deadline."""
        return attrs.evolve(member, due_ms=self.now + member.session_timeout_ms)


# --- replies ---------------------------------------------------------------------------------------------


def refused_join(to: ReplyTo, error: ErrorCode, member_id: str) -> Reply:
    """The reply to a refused join; it may contain a new member id (KIP-394)."""
    body = m.JoinGroupReply(
        generation_id=NO_GENERATION, protocol_type=None, protocol_name=None, leader=NO_MEMBER,
        skip_assignment=False, member_id=member_id, members=(),
    )  # fmt: skip
    return Reply(to, body, error=error)


def joined(group: Group, to: ReplyTo, member_id: str, *, skip_assignment: bool = False) -> Reply:
    """The reply to a join: the generation, and for the leader all members."""
    members: tuple[m.JoinedMember, ...] = group.joined_members if member_id == group.leader else ()
    body = m.JoinGroupReply(
        generation_id=group.generation_id, protocol_type=group.protocol_type,
        protocol_name=group.protocol_name, leader=group.leader or NO_MEMBER,
        skip_assignment=skip_assignment, member_id=member_id, members=members,
    )  # fmt: skip
    return Reply(to, body)


def refused_sync(to: ReplyTo, error: ErrorCode) -> Reply:
    body = m.SyncGroupReply(protocol_type=None, protocol_name=None, assignment=b"")
    return Reply(to, body, error=error)


def synced(group: Group, to: ReplyTo, member: Member) -> Reply:
    """The reply to a sync: the member's part of the assignment."""
    body = m.SyncGroupReply(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )
    return Reply(to, body)


# --- rebalancing -----------------------------------------------------------------------------------------


def rebalance(turn: Turn, because: GroupInput) -> None:
    """Begin a rebalance, or continue the present one."""
    if turn.cell(because) is turn.group.state:
        complete_if_all_joined(turn)
    else:
        _prepare(turn, because)


def _prepare(turn: Turn, because: GroupInput) -> None:
    group = turn.group
    if group.state is COMPLETING:
        members = _refuse_syncs(turn, ErrorCode.REBALANCE_IN_PROGRESS)
        turn.keep_all(attrs.evolve(member, assignment=b"") for member in members)
    was_empty = group.state is GroupState.EMPTY
    turn.enter(because)
    turn.group = attrs.evolve(turn.group, unsynced=frozenset(), sync_due_ms=None)
    if was_empty:
        # The members of a new group start at about the same time; one rebalance is cheaper than one for each.
        delay_ms = turn.settings.group_initial_rebalance_delay_ms
        remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        first = FirstRebalance(delay_ms=delay_ms, remaining_ms=remaining_ms)
        turn.group = attrs.evolve(turn.group, first=first, join_due_ms=turn.now + delay_ms)
    elif turn.group.has_all_joined:
        complete_join(turn)
    else:
        due_ms = turn.now + turn.group.rebalance_timeout_ms
        turn.group = attrs.evolve(turn.group, join_due_ms=due_ms)


def _refuse_syncs(turn: Turn, error: ErrorCode) -> list[Member]:
    """Answer the members that wait for their assignment with this error; returns all members, none of which
    waits any longer.
    """
    members: list[Member] = []
    for member in turn.group.members:
        if member.syncing is not None:
            turn.answers.append(refused_sync(member.syncing, error))
            member = turn.live_on(attrs.evolve(member, syncing=None))
        members.append(member)
    return members


def complete_if_all_joined(turn: Turn) -> None:
    """Complete the join phase if all members have joined; a first rebalance waits for its delay."""
    group = turn.group
    if group.state is PREPARING and group.first is None and group.has_all_joined:
        complete_join(turn)


def end_join_phase(turn: Turn) -> None:
    """End the join phase at its deadline, or extend a first rebalance that new members have joined, up to the
    rebalance timeout (InitialDelayedJoin).
    """
    first = turn.group.first
    if first is None or not first.has_grown or first.remaining_ms == 0:
        complete_join(turn)
        return
    delay_ms = min(turn.settings.group_initial_rebalance_delay_ms, first.remaining_ms)
    longer = FirstRebalance(delay_ms=delay_ms, remaining_ms=max(first.remaining_ms - first.delay_ms, 0))
    turn.group = attrs.evolve(turn.group, first=longer, join_due_ms=turn.now + delay_ms)


def complete_join(turn: Turn) -> None:
    """Make the next generation from the members that have joined. Static members stay until their session
    ends (KIP-345).
    """
    absent = [
        member.member_id
        for member in turn.group.members
        if member.joining is None and member.instance_id is None
    ]
    turn.group = group = attrs.evolve(without(turn.group, *absent), join_due_ms=None)
    leader = _elected_leader(group)
    if leader is None and group.members:
        # Only absent static members are left: extend the phase until one joins or their sessions end.
        longer_ms = max(group.rebalance_timeout_ms, JOIN_PHASE_MS_MIN)
        turn.group = attrs.evolve(group, join_due_ms=turn.now + longer_ms)
        return
    turn.group = attrs.evolve(
        group,
        generation_id=group.generation_id + 1,
        leader=leader,
        protocol_name=select_protocol(group) if group.members else None,
        unsynced=frozenset(member.member_id for member in group.members),
        first=None,
    )
    turn.group = with_subscription(turn.group)
    turn.enter(GroupInput.JOINED if group.members else GroupInput.ABANDONED)
    if not group.members:
        # Otherwise a new coordinator would find the members of the last generation, and wait for them.
        turn.record = record_of(turn.group)
        return
    turn.group = attrs.evolve(turn.group, sync_due_ms=turn.now + group.rebalance_timeout_ms)
    # The generation is not in the log before its assignment is. If the coordinator fails now, the next one
    # knows an earlier generation: the members' syncs are refused, and they join again.
    for member in group.members:
        if member.joining is not None:
            turn.answers.append(joined(turn.group, member.joining, member.member_id))
    turn.keep_all(turn.live_on(attrs.evolve(each, joining=None, is_new=False)) for each in group.members)


def _elected_leader(group: Group) -> str | None:
    """The previous leader if it has joined, otherwise the first member that has."""
    has_joined = [member.member_id for member in group.members if member.joining is not None]
    return group.leader if group.leader in has_joined else next(iter(has_joined), None)


# --- departures -------------------------------------------------------------------------------------------


def remove(turn: Turn, member: Member) -> None:
    """Remove a member, and refuse its waiting requests, so that it joins again as a new one."""
    if member.joining is not None:
        turn.answers.append(refused_join(member.joining, ErrorCode.UNKNOWN_MEMBER_ID, NO_MEMBER))
    if member.syncing is not None:
        turn.answers.append(refused_sync(member.syncing, ErrorCode.UNKNOWN_MEMBER_ID))
    turn.group = without(turn.group, member.member_id)


def expire(turn: Turn) -> None:
    """Handle all deadlines that are due, the earliest first."""
    while (due_ms := turn.group.next_due_ms) is not None and due_ms <= turn.now:
        group = turn.group
        if group.join_due_ms == due_ms:
            end_join_phase(turn)
        elif group.sync_due_ms == due_ms:
            _end_sync_phase(turn)
        else:
            _end_session(turn, due_ms)


def _end_sync_phase(turn: Turn) -> None:
    late = turn.group.unsynced
    turn.group = attrs.evolve(without(turn.group, *late), sync_due_ms=None)
    if late:
        _prepare(turn, GroupInput.SYNC_TIMEOUT)


def _end_session(turn: Turn, due_ms: int) -> None:
    member = next((member for member in turn.group.members if member.due_ms == due_ms), None)
    if member is None:
        member_id = next(member_id for member_id, at_ms in turn.group.pending.items() if at_ms == due_ms)
        turn.group = without(turn.group, member_id)
    elif member.is_kept:
        # It waits at a barrier: `joined` or `synced` will start its next session.
        turn.keep(attrs.evolve(member, due_ms=None))
        return
    else:
        remove(turn, member)
        if turn.group.state in {STABLE, COMPLETING}:
            rebalance(turn, GroupInput.GONE)
            return
    if turn.group.state is PREPARING and turn.group.has_all_joined:
        complete_join(turn)


# --- joining ---------------------------------------------------------------------------------------------


def join(turn: Turn, request: m.JoinGroup, arrived: Received, fresh_id: str) -> None:
    """Join the group. The reply waits for the other members. A member without an id gets the fresh one."""
    group, member_id, to = turn.group, request.member_id, arrived.to
    if not (_has_room(group, member_id, turn.settings.group_max_size) and _has_bytes(group, request)):
        if member_id in group.pending:  # the group became full after it granted this id
            turn.group = without(group, member_id)
        turn.answers.append(refused_join(to, ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER))
    elif not supports(group, request):
        turn.answers.append(refused_join(to, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
    elif member_id == NO_MEMBER:
        _join_newcomer(turn, request, arrived, fresh_id)
    elif member_id in group.pending:
        if request.group_instance_id is None:
            _add(turn, request, arrived, member_id)
        else:  # only dynamic members get an id before they join
            turn.answers.append(refused_join(to, ErrorCode.UNKNOWN_SERVER_ERROR, NO_MEMBER))
    elif problem := check_member(group, member_id, request.group_instance_id):
        turn.answers.append(refused_join(to, problem, member_id))
    else:
        _join_again(turn, request, to)


def _has_room(group: Group, member_id: str, max_size: int) -> bool:
    """Whether the group accepts this member: known members always, new ones below group.max.size. During the
    join phase only those that have joined count (acceptJoiningMember).
    """
    known = group.member(member_id)
    match group.state:
        case GroupState.EMPTY | GroupState.DEAD | GroupState.ASSIGNING | GroupState.RECONCILING:
            return True  # the last two belong to the consumer protocol
        case GroupState.PREPARING_REBALANCE:
            return (known is not None and known.joining is not None) or group.members.joined < max_size
        case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            return known is not None or len(group.members) < max_size


def _has_bytes(group: Group, request: m.JoinGroup) -> bool:
    """Whether the group has room for the member's metadata. A member may always send again what it has."""
    known = group.member(request.member_id) or group.static_member(request.group_instance_id)
    has = MEMBER_BYTES * (request.member_id in group.pending) if known is None else known.size
    grows = MEMBER_BYTES + protocols_size(request.protocols) - has
    return grows <= 0 or group.size + grows <= GROUP_MEMBERS.value


def _join_newcomer(turn: Turn, request: m.JoinGroup, arrived: Received, fresh_id: str) -> None:
    known = turn.group.static_member(request.group_instance_id)
    if known is not None:
        _return_static(turn, request, arrived.to, known, fresh_id)
    elif request.group_instance_id is not None or not request.requires_member_id:
        _add(turn, request, arrived, fresh_id)
    else:
        # KIP-394: first an id. A retried join would otherwise leave one more member that never answers.
        due_ms = turn.now + request.session_timeout_ms
        turn.group = attrs.evolve(turn.group, pending={**turn.group.pending, fresh_id: due_ms})
        turn.answers.append(refused_join(arrived.to, ErrorCode.MEMBER_ID_REQUIRED, fresh_id))


def _add(turn: Turn, request: m.JoinGroup, arrived: Received, member_id: str) -> None:
    group = turn.group
    member = Member(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=arrived.client_id,
        client_host=arrived.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        is_new=True,
        joining=arrived.to,
        due_ms=turn.now + turn.settings.group_new_member_join_timeout_ms,
    )
    turn.group = attrs.evolve(
        group,
        members=group.members.with_member(member),
        pending=without_ids(group.pending, (member_id,)),
        protocol_type=group.protocol_type if group.members else request.protocol_type,
        leader=group.leader or member_id,
        first=group.first and attrs.evolve(group.first, has_grown=True),
    )
    rebalance(turn, GroupInput.JOIN)


def _join_again(turn: Turn, request: m.JoinGroup, to: ReplyTo) -> None:
    group, member = turn.group, turn.group.member(request.member_id)
    assert member is not None, "the member was found by check_member"
    happened = GroupInput.REJOIN
    if member.protocols != request.protocols:
        happened = GroupInput.CHANGED_REJOIN
    elif group.leader == member.member_id:
        happened = GroupInput.LEADER_REJOIN
    cell = turn.cell(happened)
    if isinstance(cell, ErrorCode):
        turn.answers.append(refused_join(to, cell, request.member_id))
    elif cell is not PREPARING:
        turn.answers.append(joined(group, to, member.member_id))
    else:
        turn.keep(_updated(member, request, to))
        rebalance(turn, happened)


def _updated(member: Member, request: m.JoinGroup, to: ReplyTo) -> Member:
    return attrs.evolve(
        member,
        protocols=request.protocols,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        joining=to,
    )


def _return_static(turn: Turn, request: m.JoinGroup, to: ReplyTo, old: Member, member_id: str) -> None:
    """A static member returns with a new id: fence the old one, and keep the generation if possible."""
    group = turn.group
    if old.joining is not None:
        turn.answers.append(refused_join(old.joining, ErrorCode.FENCED_INSTANCE_ID, old.member_id))
    if old.syncing is not None:
        turn.answers.append(refused_sync(old.syncing, ErrorCode.FENCED_INSTANCE_ID))
    heir = turn.live_on(attrs.evolve(old, member_id=member_id, syncing=None, is_new=False))
    heir = _updated(heir, request, to)
    members = group.members.without((old.member_id,)).with_member(heir)
    leader = member_id if group.leader == old.member_id else group.leader
    turn.group = attrs.evolve(group, members=members, leader=leader)
    changes_protocol = group.state is STABLE and select_protocol(turn.group) != group.protocol_name
    happened = GroupInput.CHANGED_REJOIN if changes_protocol else GroupInput.STATIC_RETURN
    if turn.cell(happened) is not STABLE:
        rebalance(turn, happened)
    else:
        turn.keep(attrs.evolve(heir, joining=None))
        turn.record = record_of(turn.group)
        leads = leader == member_id and request.can_skip_assignment
        # An older leader would assign the partitions anew: it is told that its former self leads.
        told = turn.group if request.can_skip_assignment else attrs.evolve(turn.group, leader=group.leader)
        turn.answers.append(joined(told, to, member_id, skip_assignment=leads))


# --- syncing ---------------------------------------------------------------------------------------------


def sync(turn: Turn, request: m.SyncGroup, to: ReplyTo) -> None:
    """Wait for the leader's assignment, or return the member's part of it."""
    group = turn.group
    problem = _sync_problem(group, request)
    if problem:
        turn.answers.append(refused_sync(to, problem))
        return
    leads = group.leader == request.member_id
    cell = turn.cell(GroupInput.LEADER_SYNC if leads else GroupInput.SYNC)
    member = group.member(request.member_id)
    assert member is not None, "the member was found by check_member"
    if isinstance(cell, ErrorCode):
        turn.answers.append(refused_sync(to, cell))
        return
    unsynced = group.unsynced - {member.member_id}
    sync_due_ms = group.sync_due_ms if unsynced else None
    turn.group = attrs.evolve(group, unsynced=unsynced, sync_due_ms=sync_due_ms)
    # Every member's part is known by now: one that syncs late, or again, need not wait.
    if group.state is STABLE:
        turn.answers.append(synced(group, to, member))
        return
    turn.keep(attrs.evolve(member, syncing=to))
    if leads:
        _assign(turn, request)


def _sync_problem(group: Group, request: m.SyncGroup) -> ErrorCode:
    if problem := check_member(group, request.member_id, request.group_instance_id):
        return problem
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    # Clients before SyncGroup 5 do not say which protocol they mean (KIP-559).
    said = ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol_name))
    if any(asked is not None and known is not None and asked != known for asked, known in said):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return NO_ERROR


def _assign(turn: Turn, request: m.SyncGroup) -> None:
    parts = {each.member_id: each.assignment for each in request.assignments}
    turn.enter(GroupInput.LEADER_SYNC)
    members: list[Member] = []
    for member in turn.group.members:
        member = attrs.evolve(member, assignment=parts.get(member.member_id, b""))
        if member.syncing is not None:
            turn.answers.append(synced(turn.group, member.syncing, member))
            member = turn.live_on(attrs.evolve(member, syncing=None))
        members.append(member)
    turn.keep_all(members)
    turn.record = record_of(turn.group)


def refuse_assignment(turn: Turn, to: ReplyTo, error: ErrorCode) -> None:
    """The leader's assignment cannot be written: members that wait for it get an error, and join again
    (GroupMetadataManager.resetAndPropagateAssignmentWithError).
    """
    turn.answers.append(refused_sync(to, error))
    turn.keep_all(_refuse_syncs(turn, error))
    rebalance(turn, GroupInput.SYNC_TIMEOUT)  # there is no assignment, as when the leader is late


# --- heartbeats and departures ---------------------------------------------------------------------------


def heartbeat(turn: Turn, request: m.Heartbeat, to: ReplyTo) -> None:
    """Extend the member's session, even when the reply is REBALANCE_IN_PROGRESS."""
    group = turn.group
    error = check_member(group, request.member_id, request.group_instance_id)
    if error is NO_ERROR and request.generation_id != group.generation_id:
        error = ErrorCode.ILLEGAL_GENERATION
    member = group.member(request.member_id)
    if error is NO_ERROR and member is not None:
        cell = turn.cell(GroupInput.HEARTBEAT)
        error = cell if isinstance(cell, ErrorCode) else NO_ERROR
        turn.keep(turn.live_on(member))
    body = m.HeartbeatReply() if error is NO_ERROR else None
    turn.answers.append(Reply(to, body, error=error))


def leave(turn: Turn, request: m.LeaveGroup, to: ReplyTo) -> None:
    """Remove members, each with its own result; if one has left, the others rebalance."""
    left = tuple(_left(turn, member) for member in request.members)
    turn.answers.append(Reply(to, m.LeaveGroupReply(members=left)))
    # If the group has no members, only a pending id can have left, and that needs no rebalance.
    has_members = turn.group.state is not GroupState.EMPTY
    if has_members and any(member.error is NO_ERROR for member in left):
        rebalance(turn, GroupInput.GONE)


def _left(turn: Turn, leaving: m.LeavingMember) -> m.LeftMember:
    group, member_id = turn.group, leaving.member_id
    error = NO_ERROR
    if member_id == NO_MEMBER:
        # An administrator removes a static member by its instance id alone (KIP-345).
        member = group.static_member(leaving.group_instance_id)
        error = ErrorCode.UNKNOWN_MEMBER_ID if member is None else NO_ERROR
    elif member_id in group.pending:
        turn.group, member = without(group, member_id), None
    else:
        error = check_member(group, member_id, leaving.group_instance_id)
        member = group.member(member_id) if error is NO_ERROR else None
    if member is not None:
        remove(turn, member)
    return m.LeftMember(member_id=member_id, group_instance_id=leaving.group_instance_id, error=error)


# --- commits ---------------------------------------------------------------------------------------------


def check_commit(
    group: Group | None, generation_id: int, member_id: str, instance_id: str | None, *, in_transaction: bool
) -> ErrorCode:
    """Why the offsets are refused, or NONE (ClassicGroup.validateOffsetCommit, KIP-447)."""
    simple, member = GroupInput.SIMPLE_COMMIT, GroupInput.COMMIT
    if in_transaction:
        simple, member = GroupInput.SIMPLE_TXN_COMMIT, GroupInput.TXN_COMMIT
    state = GroupState.DEAD if group is None else group.state
    has_identity = generation_id >= 0 or member_id != NO_MEMBER or instance_id is not None
    # In a group without members a negative generation is enough, whatever member is named, as in Kafka.
    is_simple = generation_id < 0 and (state in {GroupState.EMPTY, GroupState.DEAD} or not has_identity)
    if group is not None and not is_simple:
        if problem := check_member(group, member_id, instance_id):
            return problem
        if generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
    cell = MEMBERSHIP[state][simple if is_simple else member]
    return cell if isinstance(cell, ErrorCode) else NO_ERROR


def touch(turn: Turn, member_id: str) -> None:
    """A member's commit extends its session (OffsetMetadataManager.commitOffset)."""
    member = turn.group.member(member_id)
    if member is not None and turn.group.state in {STABLE, PREPARING}:
        turn.keep(turn.live_on(member))
