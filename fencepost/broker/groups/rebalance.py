"""Rebalances of a group, and its deadlines: the classic group protocol (GroupMetadataManager).

Rule: a decision changes no state. It builds a Turn: the next value of the group, the replies, and the record
that must be durable before they leave.
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
# A decision changes `turn.group` step by step. Nobody sees it before `carry_out` in handlers.py has made sure
# that its record can be written.

from __future__ import annotations

from typing import Final

import attrs

from fencepost.broker.contract import Decision, Reply, ReplyTo
from fencepost.broker.groups.group import (
    NO_GENERATION,
    NO_MEMBER,
    FirstRebalance,
    Group,
    Member,
    check_member,
    record_of,
    select_protocol,
    with_member,
    with_subscription,
    without,
)
from fencepost.broker.groups.tables import COMPLETING, MEMBERSHIP, PREPARING, STABLE, GroupInput
from fencepost.broker.settings import NodeSettings
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import JoinedMember, JoinGroupReply, SyncGroupReply
from fencepost.protocol.offsets_log import GroupEntry, GroupRecord
from fencepost.protocol.terms import GroupState

# A join phase without any join is repeated; with a rebalance timeout of 0 it would be repeated without a
# pause.
PATIENCE_MS_MIN: Final = 100


def _group_of(turn: Turn) -> Group:
    return turn.group


GroupDecision = Decision[GroupEntry]
"""Its note is the next value of the group, or None if nothing changes."""


@attrs.define
class Turn:
    """A decision under construction: the next value of the group, its replies and its record."""

    group: Group
    now: int
    settings: NodeSettings
    before: Group = attrs.field(init=False, default=attrs.Factory(_group_of, takes_self=True))
    answers: list[Reply] = attrs.Factory(list[Reply])
    record: GroupRecord | None = None

    def decision(self) -> GroupDecision:
        """The finished decision, after all deadlines that are due by now."""
        expire(self)
        return Decision(
            entries=() if self.record is None else ((self.group.group_id, self.record),),
            note=None if self.group is self.before else self.group,
            effects=tuple(self.answers),
        )

    def keep(self, member: Member) -> None:
        """Put this value of a member into the group."""
        self.group = with_member(self.group, member)

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
    body = JoinGroupReply(
        generation_id=NO_GENERATION, protocol_type=None, protocol_name=None, leader=NO_MEMBER,
        skip_assignment=False, member_id=member_id, members=(),
    )  # fmt: skip
    return Reply(to, error=error, body=body)


def joined(group: Group, to: ReplyTo, member_id: str, *, skip_assignment: bool = False) -> Reply:
    """The reply to a join: the generation, and for the leader all members."""
    members: tuple[JoinedMember, ...] = group.joined_members if member_id == group.leader else ()
    body = JoinGroupReply(
        generation_id=group.generation_id, protocol_type=group.protocol_type,
        protocol_name=group.protocol_name, leader=group.leader or NO_MEMBER,
        skip_assignment=skip_assignment, member_id=member_id, members=members,
    )  # fmt: skip
    return Reply(to, body=body)


def refused_sync(to: ReplyTo, error: ErrorCode) -> Reply:
    body = SyncGroupReply(protocol_type=None, protocol_name=None, assignment=b"")
    return Reply(to, error=error, body=body)


def synced(group: Group, to: ReplyTo, member: Member) -> Reply:
    """The reply to a sync: the member's part of the assignment."""
    body = SyncGroupReply(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )
    return Reply(to, body=body)


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
        for member in group.members:
            if member.syncing is not None:
                turn.answers.append(refused_sync(member.syncing, ErrorCode.REBALANCE_IN_PROGRESS))
                member = turn.live_on(attrs.evolve(member, syncing=None))
            turn.keep(attrs.evolve(member, assignment=b""))
    was_empty = group.state is GroupState.EMPTY
    turn.enter(because)
    turn.group = attrs.evolve(turn.group, unsynced=(), sync_due_ms=None)
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
    turn.group = attrs.evolve(turn.group, join_due_ms=None)
    for member in turn.group.members:
        if member.joining is None and member.instance_id is None:
            turn.group = without(turn.group, member.member_id)
    group = turn.group
    leader = _elected_leader(group)
    if leader is None and group.members:
        # Only absent static members are left: extend the phase until one joins or their sessions end.
        patience_ms = max(group.rebalance_timeout_ms, PATIENCE_MS_MIN)
        turn.group = attrs.evolve(group, join_due_ms=turn.now + patience_ms)
        return
    turn.group = attrs.evolve(
        group,
        generation_id=group.generation_id + 1,
        leader=leader,
        protocol_name=select_protocol(group) if group.members else None,
        unsynced=tuple(member.member_id for member in group.members),
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
        turn.keep(turn.live_on(attrs.evolve(member, joining=None, is_new=False)))


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
    while (due_ms := min(turn.group.deadlines(), default=None)) is not None and due_ms <= turn.now:
        group = turn.group
        if group.join_due_ms == due_ms:
            end_join_phase(turn)
        elif group.sync_due_ms == due_ms:
            _end_sync_phase(turn)
        else:
            _end_session(turn, due_ms)


def _end_sync_phase(turn: Turn) -> None:
    late = turn.group.unsynced
    turn.group = attrs.evolve(turn.group, sync_due_ms=None)
    for member_id in late:
        turn.group = without(turn.group, member_id)
    if late:
        _prepare(turn, GroupInput.SYNC_TIMEOUT)


def _end_session(turn: Turn, due_ms: int) -> None:
    member = next((member for member in turn.group.members if member.due_ms == due_ms), None)
    if member is None:
        member_id = next(member_id for member_id, at_ms in turn.group.pending if at_ms == due_ms)
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
