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

import attrs

from fencepost.broker.contract import ReplyTo
from fencepost.broker.groups.members import MEMBER_BYTES, NO_MEMBERS, Member, Members, in_order, without_ids
from fencepost.protocol.consumer_protocol import subscribed_topics
from fencepost.protocol.errors import NO_ERROR, ErrorCode, ProtocolViolation
from fencepost.protocol.fork import Ordered
from fencepost.protocol.messages import GroupProtocol, JoinedMember, JoinGroup
from fencepost.protocol.offsets_log import GroupRecord, MemberRecord
from fencepost.protocol.terms import CONSUMER_PROTOCOL, NO_TIMESTAMP, GroupState


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
    members: Members = NO_MEMBERS
    pending: Ordered[dict[str, int]] = attrs.field(factory=dict[str, int], eq=in_order)
    unsynced: frozenset[str] = frozenset()
    subscribed: tuple[str, ...] | None = None
    first: FirstRebalance | None = None
    join_due_ms: int | None = None
    sync_due_ms: int | None = None

    def member(self, member_id: str) -> Member | None:
        return self.members.get(member_id)

    def static_member(self, instance_id: str | None) -> Member | None:
        return None if instance_id is None else self.members.static(instance_id)

    @property
    def has_all_joined(self) -> bool:
        return not self.pending and self.members.joined == len(self.members)

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
        return self.members.size + MEMBER_BYTES * len(self.pending)

    @property
    def next_due_ms(self) -> int | None:
        """The first deadline of the group and its members."""
        granted_ms = min(self.pending.values(), default=None)
        due = (self.join_due_ms, self.sync_due_ms, granted_ms, self.members.due_ms)
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def waiting(self) -> Iterator[ReplyTo]:
        """The joins and syncs without a reply yet."""
        for member in self.members:
            yield from (to for to in (member.joining, member.syncing) if to is not None)


def without(group: Group, *member_ids: str) -> Group:
    """The group without these members; if the leader was among them, the next member becomes the leader."""
    members = group.members.without(member_ids)
    leader = group.leader
    if leader in member_ids:
        leader = next((member.member_id for member in members), None)
    return attrs.evolve(
        group,
        members=members,
        leader=leader,
        pending=without_ids(group.pending, member_ids),
        unsynced=group.unsynced.difference(member_ids),
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


def supports(group: Group, request: JoinGroup) -> bool:
    """Whether the member shares an assignment protocol with all others (supportsProtocols)."""
    if group.state is GroupState.EMPTY:
        return bool(request.protocol_type and request.protocols)
    if request.protocol_type != group.protocol_type:
        return False
    members = group.members
    return not members or any(members.all_support(protocol.name) for protocol in request.protocols)


def select_protocol(group: Group) -> str:
    """Each member votes for its first protocol that all support; in a tie the earlier vote wins."""
    members = group.members
    votes = Counter(
        next(protocol.name for protocol in member.protocols if members.all_support(protocol.name))
        for member in members
    )
    return votes.most_common(1)[0][0]


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
    members = Members.of(
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
