"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup on an existing group.

Rule: first the member check, then the generation, then the table (tables.py).
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from fencepost.broker.contract import Reply, ReplyTo
from fencepost.broker.groups.group import (
    MEMBER_BYTES,
    NO_MEMBER,
    Group,
    Member,
    check_member,
    protocols_size,
    record_of,
    select_protocol,
    supports,
    without,
)
from fencepost.broker.groups.rebalance import (
    Turn,
    joined,
    rebalance,
    refused_join,
    refused_sync,
    remove,
    synced,
)
from fencepost.broker.groups.tables import PREPARING, STABLE, GroupInput
from fencepost.broker.limits import GROUP_MEMBERS
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import GroupState

# --- joining ---------------------------------------------------------------------------------------------


class Newcomer(NamedTuple):
    """The id that a member gets if its request has none, and the client that the member belongs to."""

    member_id: str
    client_id: str
    client_host: str


def join(turn: Turn, request: m.JoinGroup, to: ReplyTo, newcomer: Newcomer) -> None:
    """Join the group. The reply waits for the other members."""
    group, member_id = turn.group, request.member_id
    if not (_has_room(group, member_id, turn.settings.group_max_size) and _has_bytes(group, request)):
        if group.is_pending(member_id):  # the group became full after it granted this id
            turn.group = without(group, member_id)
        turn.answers.append(refused_join(to, ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER))
    elif not supports(group, request):
        turn.answers.append(refused_join(to, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
    elif member_id == NO_MEMBER:
        _join_newcomer(turn, request, to, newcomer)
    elif group.is_pending(member_id):
        if request.group_instance_id is None:
            _add(turn, request, to, newcomer._replace(member_id=member_id))
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
            has_joined = sum(member.joining is not None for member in group.members)
            return (known is not None and known.joining is not None) or has_joined < max_size
        case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            return known is not None or len(group.members) < max_size


def _has_bytes(group: Group, request: m.JoinGroup) -> bool:
    """Whether the group has room for the member's metadata. A member may always send again what it has."""
    known = group.member(request.member_id) or group.static_member(request.group_instance_id)
    has = MEMBER_BYTES * group.is_pending(request.member_id) if known is None else known.size
    grows = MEMBER_BYTES + protocols_size(request.protocols) - has
    return grows <= 0 or group.size + grows <= GROUP_MEMBERS.value


def _join_newcomer(turn: Turn, request: m.JoinGroup, to: ReplyTo, newcomer: Newcomer) -> None:
    known = turn.group.static_member(request.group_instance_id)
    if known is not None:
        _return_static(turn, request, to, known, newcomer.member_id)
    elif request.group_instance_id is not None or not request.requires_member_id:
        _add(turn, request, to, newcomer)
    else:
        # KIP-394: first an id. A retried join would otherwise leave one more member that never answers.
        due_ms = turn.now + request.session_timeout_ms
        pending = (*turn.group.pending, (newcomer.member_id, due_ms))
        turn.group = attrs.evolve(turn.group, pending=pending)
        turn.answers.append(refused_join(to, ErrorCode.MEMBER_ID_REQUIRED, newcomer.member_id))


def _add(turn: Turn, request: m.JoinGroup, to: ReplyTo, newcomer: Newcomer) -> None:
    group, member_id = turn.group, newcomer.member_id
    member = Member(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=newcomer.client_id,
        client_host=newcomer.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        is_new=True,
        joining=to,
        due_ms=turn.now + turn.settings.group_new_member_join_timeout_ms,
    )
    turn.group = attrs.evolve(
        group,
        members=(*group.members, member),
        pending=tuple(entry for entry in group.pending if entry[0] != member_id),
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
    others = tuple(member for member in group.members if member is not old)
    leader = member_id if group.leader == old.member_id else group.leader
    turn.group = attrs.evolve(group, members=(*others, heir), leader=leader)
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
    unsynced = tuple(each for each in group.unsynced if each != member.member_id)
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
    for member in turn.group.members:
        member = attrs.evolve(member, assignment=parts.get(member.member_id, b""))
        if member.syncing is not None:
            turn.answers.append(synced(turn.group, member.syncing, member))
            member = turn.live_on(attrs.evolve(member, syncing=None))
        turn.keep(member)
    turn.record = record_of(turn.group)


def refuse_assignment(turn: Turn, to: ReplyTo, error: ErrorCode) -> None:
    """The leader's assignment cannot be written: members that wait for it get an error, and join again
    (GroupMetadataManager.resetAndPropagateAssignmentWithError).
    """
    turn.answers.append(refused_sync(to, error))
    for member in turn.group.members:
        if member.syncing is not None:
            turn.answers.append(refused_sync(member.syncing, error))
            turn.keep(turn.live_on(attrs.evolve(member, syncing=None)))
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
    turn.answers.append(Reply(to, error=error, body=body))


def leave(turn: Turn, request: m.LeaveGroup, to: ReplyTo) -> None:
    """Remove members, each with its own result; if one has left, the others rebalance."""
    left = tuple(_left(turn, member) for member in request.members)
    turn.answers.append(Reply(to, body=m.LeaveGroupReply(members=left)))
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
    elif group.is_pending(member_id):
        turn.group, member = without(group, member_id), None
    else:
        error = check_member(group, member_id, leaving.group_instance_id)
        member = group.member(member_id) if error is NO_ERROR else None
    if member is not None:
        remove(turn, member)
    return m.LeftMember(member_id=member_id, group_instance_id=leaving.group_instance_id, error=error)
