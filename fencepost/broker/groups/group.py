"""A consumer group and its members, as frozen values.

Rule: a decision makes the next value of the group (rebalance.py); its GroupRecord is what the log keeps.
"""

# Theory of operation (Kafka: GroupMetadataManager, ClassicGroup, ClassicGroupMember)
#
# A group divides partitions among its members. The broker only settles who the members are; one of them, the
# leader, computes the assignment. Each settlement is a *generation*, and a rebalance makes the next one:
#
#     member A (leader)  member B           coordinator
#     JoinGroup -------------------------->  PREPARING_REBALANCE: the join barrier
#                        JoinGroup ------->  everybody has joined, or rebalance_timeout_ms is over
#       <-- generation 5, all members -----  COMPLETING_REBALANCE: the sync barrier
#                          <-- generation 5
#                        SyncGroup ------->
#     SyncGroup(assignment) -------------->  STABLE; the record is durable before the replies leave
#       <-- part of A ---  <-- part of B
#     Heartbeat 5 ------------------------>  NONE; REBALANCE_IN_PROGRESS calls everybody back to the barrier
#
# At the join barrier `joining` holds each member's unanswered request, at the sync barrier `syncing`. A
# member that misses the join barrier leaves the group; a static one (KIP-345) may stay until its session
# ends.
#
# The generation fences. A member that slept through a rebalance still believes that it owns its partitions,
# but its commits carry the old generation and get ILLEGAL_GENERATION; KIP-447 extends this to
# TxnOffsetCommit.
#
# Only generations are in the log. Barriers, sessions and deadlines are notes: a new coordinator finds the
# last stable generation and gives every member a whole session to show that it lives.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import attrs

from fencepost.broker.contract import ReplyTo
from fencepost.protocol.consumer_protocol import subscribed_topics
from fencepost.protocol.errors import NO_ERROR, ErrorCode, ProtocolViolation
from fencepost.protocol.messages import GroupProtocol, JoinedMember, JoinGroup
from fencepost.protocol.offsets_log import GroupRecord, MemberRecord
from fencepost.protocol.terms import CONSUMER_PROTOCOL, NO_TIMESTAMP, GroupState

MEMBER_BYTES: Final = 1_024  # of memory, for a member or for an id that was granted, besides protocols
PROTOCOL_BYTES: Final = 128  # besides name and metadata
CHARACTER_BYTES_MAX: Final = 4


@attrs.frozen(kw_only=True)
class Member:
    """One member. `joining` and `syncing` are its unanswered requests; at `due_ms` its session ends."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = attrs.field(default=b"", repr=False)
    is_new: bool = False
    """Its first join is not answered yet, so it cannot send heartbeats; a longer timeout applies."""
    joining: ReplyTo | None = None
    syncing: ReplyTo | None = None
    due_ms: int | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it waits for the coordinator, so that its silence means nothing (hasSatisfiedHeartbeat)."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    @property
    def size(self) -> int:
        """The bytes of memory that it takes, apart from its assignment."""
        return MEMBER_BYTES + protocols_size(self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Its metadata for this protocol, such as its subscription."""
        return next((each.metadata for each in self.protocols if each.name == protocol_name), b"")


@attrs.frozen(kw_only=True)
class FirstRebalance:
    """The first rebalance of an empty group: it waits `delay_ms` for more members, and again while members
    keep coming, for at most `remaining_ms` more (group.initial.rebalance.delay.ms).
    """

    delay_ms: int
    remaining_ms: int
    has_grown: bool = False


@attrs.frozen(kw_only=True)
class Group:
    """One group of the classic protocol. Deadlines are in milliseconds; None means no deadline.

    `pending`: ids that were granted and have not joined yet (KIP-394), with deadlines. `unsynced`: members
    that have joined but not synced. `subscribed`: the topics of this generation, None if members do not tell.
    """

    group_id: str
    state: GroupState = GroupState.EMPTY
    state_since_ms: int = NO_TIMESTAMP
    generation_id: int = 0
    protocol_type: str = ""
    protocol_name: str | None = None
    leader: str | None = None
    members: tuple[Member, ...] = ()
    pending: tuple[tuple[str, int], ...] = ()
    unsynced: tuple[str, ...] = ()
    subscribed: tuple[str, ...] | None = None
    first: FirstRebalance | None = None
    join_due_ms: int | None = None
    sync_due_ms: int | None = None

    def member(self, member_id: str) -> Member | None:
        return next((member for member in self.members if member.member_id == member_id), None)

    def static_member(self, instance_id: str | None) -> Member | None:
        if instance_id is None:
            return None
        return next((member for member in self.members if member.instance_id == instance_id), None)

    def is_pending(self, member_id: str) -> bool:
        return any(found == member_id for found, _ in self.pending)

    @property
    def has_all_joined(self) -> bool:
        return not self.pending and all(member.joining is not None for member in self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members), default=0)

    @property
    def joined_members(self) -> tuple[JoinedMember, ...]:
        """All members, as the leader receives them."""
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members
        )

    @property
    def size(self) -> int:
        """The bytes of memory that its members take, those that have not joined yet included."""
        return sum(member.size for member in self.members) + MEMBER_BYTES * len(self.pending)

    @property
    def next_due_ms(self) -> int | None:
        """The first deadline of the group and its members."""
        granted = (due_ms for _, due_ms in self.pending)
        sessions = (member.due_ms for member in self.members)
        due = (self.join_due_ms, self.sync_due_ms, *granted, *sessions)
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def waiting(self) -> Iterator[ReplyTo]:
        """The joins and syncs without a reply yet."""
        for member in self.members:
            yield from (to for to in (member.joining, member.syncing) if to is not None)


def with_member(group: Group, member: Member) -> Group:
    """The group with this member in place of its former value."""
    members = tuple(member if each.member_id == member.member_id else each for each in group.members)
    return attrs.evolve(group, members=members)


def without(group: Group, member_id: str) -> Group:
    """The group without this member; if it was the leader, the next member becomes the leader."""
    members = tuple(member for member in group.members if member.member_id != member_id)
    leader = group.leader
    if leader == member_id:
        leader = members[0].member_id if members else None
    return attrs.evolve(
        group,
        members=members,
        leader=leader,
        pending=tuple(entry for entry in group.pending if entry[0] != member_id),
        unsynced=tuple(each for each in group.unsynced if each != member_id),
    )


def check_member(group: Group, member_id: str, instance_id: str | None) -> ErrorCode:
    """The error if this is not a member, or not the present owner of its instance id (validateMember)."""
    if instance_id is not None:
        known = group.static_member(instance_id)
        if known is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if known.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return NO_ERROR if group.member(member_id) is not None else ErrorCode.UNKNOWN_MEMBER_ID


# --- protocols ------------------------------------------------------------------------------------------


def protocols_size(protocols: tuple[GroupProtocol, ...]) -> int:
    """The bytes of memory that a member's protocols take."""
    return sum(
        PROTOCOL_BYTES + CHARACTER_BYTES_MAX * len(protocol.name) + len(protocol.metadata)
        for protocol in protocols
    )


def supports(group: Group, request: JoinGroup) -> bool:
    """Whether the member shares an assignment protocol with all others (supportsProtocols)."""
    if group.state is GroupState.EMPTY:
        return bool(request.protocol_type and request.protocols)
    if request.protocol_type != group.protocol_type:
        return False
    common = _common_protocols(group)
    return not group.members or any(protocol.name in common for protocol in request.protocols)


def select_protocol(group: Group) -> str:
    """Each member votes for its first protocol that all support; in a tie the earlier vote wins."""
    common = _common_protocols(group)
    votes = Counter(
        next(protocol.name for protocol in member.protocols if protocol.name in common)
        for member in group.members
    )
    return votes.most_common(1)[0][0]


def _common_protocols(group: Group) -> set[str]:
    names = [{protocol.name for protocol in member.protocols} for member in group.members]
    return set[str]().union(*names).intersection(*names)


def is_subscribed(group: Group, topic: str) -> bool:
    """Whether a member reads the topic. Consumers with unreadable metadata count as readers of every topic
    (isSubscribedToTopic).
    """
    if group.subscribed is None:
        return group.protocol_type == CONSUMER_PROTOCOL
    return topic in group.subscribed


def with_subscription(group: Group) -> Group:
    """The group with the topics of its new generation (computeSubscribedTopics)."""
    try:
        parts = [subscribed_topics(member.metadata(group.protocol_name)) for member in group.members]
    except ProtocolViolation:
        return attrs.evolve(group, subscribed=None)
    return attrs.evolve(group, subscribed=tuple(sorted(set[str]().union(*parts))))


# --- the log ----------------------------------------------------------------------------------------------


def record_of(group: Group) -> GroupRecord:
    """The group as its log keeps it (GroupMetadataValue)."""
    return GroupRecord(
        protocol_type=group.protocol_type,
        generation_id=group.generation_id,
        protocol_name=group.protocol_name,
        leader=group.leader,
        state_since_ms=group.state_since_ms,
        members=tuple(
            MemberRecord(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name),
                assignment=member.assignment,
            )
            for member in group.members
        ),
    )


def loaded(group_id: str, record: GroupRecord | None, *, now: int) -> Group:
    """The group as a new coordinator loads it, with a new session for each member. A record of None means a
    group that has only committed offsets.
    """
    if record is None:
        return Group(group_id=group_id)
    # Of each member's protocols the log keeps the one that was chosen; its next join brings the others.
    members = tuple(
        Member(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=member.session_timeout_ms,
            protocols=(GroupProtocol(name=record.protocol_name or "", metadata=member.subscription),),
            assignment=member.assignment,
            due_ms=now + member.session_timeout_ms,
        )
        for member in record.members
    )
    group = Group(
        group_id=group_id,
        # Nothing is written during a rebalance: a record with members is that of a generation with
        # assignments.
        state=GroupState.STABLE if members else GroupState.EMPTY,
        state_since_ms=record.state_since_ms,
        generation_id=record.generation_id,
        protocol_type=record.protocol_type,
        protocol_name=record.protocol_name,
        leader=record.leader,
        members=members,
    )
    return with_subscription(group)
