"""A consumer as a member of its group: how it joins, stays, adopts its assignment, and leaves.

Rule: states move by MEMBER_STATES alone. Nothing here waits: requests leave through `calls`; `call` names the
callback that the application must run, and `returned` confirms it.
"""

# Theory of operation
# -------------------
#
# The coordinator, a broker, numbers the generations of a group. In each generation every member has an
# assignment of partitions, and commits of an earlier generation are rejected. A member moves around this
# circle:
#
#     UNJOINED --poll--> REVOKING --callback returned--> JOINING --JoinGroup--> SYNCING --SyncGroup--> SYNCED
#                           ^                                                                             |
#                           |poll                                                                       poll
#                           |                                                                             v
#                       REJOINING <--------- the group rebalances --------- STABLE <--callback-- ASSIGNING
#
# * JoinGroup carries the subscription of the member. The coordinator answers when all members have joined,
#   and sends one of them, the leader, all subscriptions. The leader assigns the partitions (group_leader.py)
#   and sends all assignments in its SyncGroup; the reply to SyncGroup gives each member its own.
# * Heartbeats show that the member is alive, and their replies report a rebalance. They continue while the
#   application processes records, so they need no call by the application.
# * Everything that changes what the application reads happens inside its poll(): the member joins only there,
#   and the callbacks of REVOKING and ASSIGNING run only there. In them the application can commit what it has
#   read: no partition has a new owner before its old one has returned from `on_partitions_revoked`.
# * A member whose application does not poll for `max_poll_interval_ms` leaves the group (KIP-62), because its
#   partitions make no progress.
# * A member that was expelled (its session timed out, or it polled too late) learns of it only afterwards.
#   Other members may already read its partitions: it gets `on_partitions_lost` and must not commit.
#
# Invariant: `metadata` is the membership under which the partitions in `assigned` were given. A commit with
# it is rejected once one of them may have another owner. Without it, KIP-447 could not fence a replaced
# member.
#
# Kafka splits this between ConsumerCoordinator and AbstractCoordinator; the states are those of its
# MemberState, plus the states that wait for the application.

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from enum import Enum
from typing import Final

import attrs

from fencepost.client.assignors import ASSIGNORS, Assignor, are_cooperative
from fencepost.client.errors import (
    CommitFailed,
    Failure,
    FencedInstanceId,
    RebalanceInProgress,
    RequestFailed,
    WrongState,
    refused,
)
from fencepost.client.group_leader import GroupLeader, assign
from fencepost.client.group_offsets import ConsumerGroupMetadata
from fencepost.client.member_states import (
    CALLING,
    COMMITTING,
    HEARTBEATING,
    IN_BETWEEN,
    MEMBER_STATES,
    REFUSALS,
    MemberInput,
    MemberState,
)
from fencepost.client.metadata import CoordinatorOf
from fencepost.client.retries import CallNumber, FinishedCall, PendingCalls
from fencepost.client.settings import JOIN_GROUP_TIMEOUT_LAPSE_MS, LEAVE_TIMEOUT_MS, ConsumerSettings
from fencepost.protocol import messages as m
from fencepost.protocol.consumer_protocol import MemberSubscription, decode_assignment, encode_subscription
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.fork import Shared
from fencepost.protocol.terms import (
    CONSUMER_PROTOCOL,
    NO_GENERATION,
    NO_MEMBER,
    CoordinatorType,
    TopicPartition,
)
from fencepost.protocol.values import value

_S, _I = MemberState, MemberInput

_COMMIT_REFUSALS: Final = {
    ErrorCode.ILLEGAL_GENERATION: CommitFailed,
    ErrorCode.UNKNOWN_MEMBER_ID: CommitFailed,
    ErrorCode.REBALANCE_IN_PROGRESS: RebalanceInProgress,
    ErrorCode.FENCED_INSTANCE_ID: FencedInstanceId,
}


class RebalanceEvent(Enum):
    """The callbacks of a rebalance listener, by the names of its methods."""

    REVOKED = "on_partitions_revoked"
    ASSIGNED = "on_partitions_assigned"
    LOST = "on_partitions_lost"


@value
class RebalanceCall:
    """A callback to run inside poll(); the member continues after it has returned."""

    event: RebalanceEvent
    partitions: tuple[TopicPartition, ...]


class RebalanceListener:
    """The callbacks of subscribe(), run inside poll(). With an async consumer they may be `async def`; if its
    poll() is cancelled, they still run to their end.
    """

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These partitions move to another member when this returns: commit what was read from them."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These partitions were added; reading starts at the committed offset unless seek() is called."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These partitions may have another owner already, so nothing more can be committed for them. The
        default calls `on_partitions_revoked`, as in Kafka.
        """
        return self.on_partitions_revoked(partitions)


@attrs.define(eq=False)
class GroupMember:
    """The membership of one consumer. `assigned` are the partitions that it may read now."""

    _calls: PendingCalls
    _settings: Shared[ConsumerSettings]
    _polled_at: int
    topics: tuple[str, ...] = ()
    state: MemberState = _S.UNJOINED
    member_id: str = NO_MEMBER
    generation_id: int = NO_GENERATION
    metadata: ConsumerGroupMetadata = attrs.field(init=False)
    """The membership under which `assigned` was given; kept after it is lost."""
    assigned: tuple[TopicPartition, ...] = ()
    failure: Failure | None = None
    """The error that the next poll() raises."""
    _group_call: CallNumber | None = None
    """The JoinGroup or SyncGroup that is pending."""
    _leave_calls: set[CallNumber] = attrs.Factory(set[CallNumber])
    """The LeaveGroups that are pending; a member that polled too late may leave again before the reply."""
    _heartbeat_call: CallNumber | None = None
    _heartbeat_at: int = attrs.field(init=False)
    _joined: m.JoinGroupReply | None = None
    """The reply to JoinGroup, of a leader that waits for metadata."""
    _joined_topics: tuple[str, ...] = ()
    _assignment: tuple[TopicPartition, ...] = ()
    """The last one in a reply to SyncGroup; a poll() in SYNCED adopts it."""
    _pending: tuple[RebalanceCall, ...] = ()
    _deferred_event: MemberInput | None = None
    """An event during a callback."""
    _leader: GroupLeader | None = None
    """Of a member that has assigned the partitions of its generation."""

    def __attrs_post_init__(self) -> None:
        self.metadata = self._non_member
        self._heartbeat_at = self._polled_at

    @property
    def awaits_metadata(self) -> bool:
        """Whether it leads the group, and needs the metadata of its topics."""
        return self._joined is not None

    @property
    def used_topics(self) -> set[str]:
        """The topics of the subscription; of a leader, those of all members."""
        return {*self.topics, *(() if self._leader is None else self._leader.counts)}

    @property
    def group_id(self) -> str:
        assert self._settings.group_id is not None, "only a consumer with a group subscribes"
        return self._settings.group_id

    @property
    def _group(self) -> CoordinatorOf:
        return CoordinatorOf(CoordinatorType.GROUP, self.group_id)

    @property
    def _assignors(self) -> list[Assignor]:
        return [ASSIGNORS[name] for name in self._settings.partition_assignment_strategy]

    @property
    def _non_member(self) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata(
            group_id=self.group_id, group_instance_id=self._settings.group_instance_id
        )

    # --- calls of the application ---------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Sets the topics; a change starts a rebalance."""
        self.topics = tuple(sorted(set(topics)))
        for topic in self.topics:
            self._calls.cluster.want(topic)

    def poll(self, now: int) -> None:
        """The application polls: joins or adopts the assignment if that is due; `call` is the callback to
        run.
        """
        self._polled_at = now
        before = self.state
        self._move(_I.POLL)
        if self.state is before:
            return
        if self.state is _S.REVOKING:
            self._pending = self._calls_before_joining()
        else:
            self._adopt()
        self._go_on_if_returned(now)

    def leave(self, now: int) -> None:
        """Leaves: `call` is the callback to run first; then the coordinator reassigns the partitions."""
        if self.state in (_S.LEAVING, _S.LEFT):
            return
        can_commit = self.commit_problem() is None
        self._move(_I.LEAVE)
        event = RebalanceEvent.REVOKED if can_commit else RebalanceEvent.LOST
        self._pending = (RebalanceCall(event, self.assigned),) if self.assigned else ()
        self._go_on_if_returned(now)

    @property
    def call(self) -> RebalanceCall | None:
        """The callback to run now."""
        return self._pending[0] if self._pending else None

    def returned(self, now: int) -> None:
        """The callback has ended, normally or with an exception."""
        done = self._pending[0]
        # A member that was fenced meanwhile skips the remaining callbacks.
        self._pending = self._pending[1:] if self.state in CALLING else ()
        if self.state is not _S.ASSIGNING:
            self.assigned = tuple(where for where in self.assigned if where not in done.partitions)
        elif done.event is RebalanceEvent.REVOKED:
            self.assigned = self._assignment
        self._go_on_if_returned(now)

    def _go_on_if_returned(self, now: int) -> None:
        if self._pending or self.state not in CALLING:
            return
        if self.state is _S.REVOKING and self.generation_id == NO_GENERATION and self.assigned:
            # Expelled during the callback: others may read what it has kept.
            self._pending = (RebalanceCall(RebalanceEvent.LOST, self.assigned),)
            return
        self._move(_I.RETURNED)
        if self.state is _S.JOINING:
            self._join()
        elif self.state is _S.LEFT:
            self._send_leave(now)
        elif self._deferred_event is not None:  # STABLE, but the group has changed meanwhile
            self._apply_event(self._deferred_event)

    @property
    def needs_poll(self) -> bool:
        """Whether the next poll() would change the state or raise."""
        return self.failure is not None or MEMBER_STATES[self.state].get(_I.POLL) is not self.state

    @property
    def pending_call(self) -> int | None:
        """The JoinGroup, SyncGroup or Heartbeat that has no reply."""
        return self._heartbeat_call if self._group_call is None else self._group_call

    @property
    def is_fenced(self) -> bool:
        """Whether another consumer has this one's instance id."""
        return self.state is _S.FENCED

    @property
    def has_left(self) -> bool:
        """Whether the member has left and LeaveGroup is answered."""
        return self.state is _S.LEFT and not self._leave_calls

    def commit_problem(self) -> Failure | None:
        """Why the coordinator would reject a commit now, or None."""
        if self.state in COMMITTING and self.generation_id != NO_GENERATION:
            return None
        if self.state is _S.FENCED:
            return refused(
                FencedInstanceId, ErrorCode.FENCED_INSTANCE_ID, f"commit in group {self.group_id!r}"
            )
        if self.state in IN_BETWEEN:
            because = f"group {self.group_id!r} is between two generations"
            return Failure(RebalanceInProgress, because=because, error=ErrorCode.REBALANCE_IN_PROGRESS)
        if self.metadata.generation_id == NO_GENERATION:
            because = f"this consumer has not joined group {self.group_id!r} yet: call poll() before commit()"
            return Failure(WrongState, because=because)
        because = f"this consumer is no longer a member of group {self.group_id!r}"
        return Failure(CommitFailed, because=because, error=ErrorCode.UNKNOWN_MEMBER_ID)

    def commit_refused(self, failure: Failure, generation_id: int) -> Failure:
        """The error for a commit that the coordinator rejected. It also moves the member, unless the commit
        belongs to an earlier generation.
        """
        kind = _COMMIT_REFUSALS.get(failure.error)
        if kind is None:
            return failure
        if generation_id == self.generation_id:
            self._refused(failure)
        return attrs.evolve(failure, kind=kind)

    # --- states ---------------------------------------------------------------------------------------------

    def _move(self, event: MemberInput) -> None:
        state = MEMBER_STATES[self.state].get(event)
        assert state is not None, f"{event} cannot happen while {self.state}"
        self.state = state
        if state not in (_S.JOINING, _S.SYNCING):
            self._group_call = self._cancelled(self._group_call)
            self._joined = None
        if state not in HEARTBEATING:
            self._heartbeat_call = self._cancelled(self._heartbeat_call)

    def _cancelled(self, number: int | None) -> None:
        if number is not None:
            self._calls.cancel(number)

    def _apply_event(self, event: MemberInput) -> None:
        """Applies an event of the group; ignored in states where it cannot happen."""
        if event not in MEMBER_STATES[self.state]:
            return
        kept, self._deferred_event = self._deferred_event, None
        self._move(event)
        if self.state is _S.ASSIGNING:
            # A refused heartbeat is raised by poll(); the rebalance that waits for the callback remains.
            self._deferred_event = kept if event is _I.REFUSED else event
        if event is _I.EXPELLED:
            self.generation_id = NO_GENERATION
            self._leader = None

    # --- what happens ---------------------------------------------------------------------------------------

    def finished(self, finished: FinishedCall, now: int) -> bool:
        """Applies the end of a call; False if the call is not this member's."""
        number = finished.call.number
        if number == self._heartbeat_call:
            self._heartbeat_call = None
            if finished.failure is not None:
                self._refused(finished.failure)
        elif number == self._group_call:
            self._group_call = None
            if finished.failure is not None:
                self._refused(finished.failure, finished.body)
            elif isinstance(finished.body, m.JoinGroupReply):
                self._take_generation(finished.body, now)
            else:
                self._take_assignment(finished.body)
        elif number in self._leave_calls:
            self._leave_calls.remove(number)  # this member is gone, whatever the reply
        else:
            return False
        return True

    def _refused(self, failure: Failure, body: object = None) -> None:
        """Applies an error of the coordinator; `body` is that of a rejected JoinGroup."""
        event = REFUSALS.get(failure.error, _I.REFUSED)
        if failure.error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = NO_MEMBER
        self._apply_event(event)
        match event:
            case _I.ID_GIVEN:
                assert isinstance(body, m.JoinGroupReply), "the refusal names the id"
                self.member_id = body.member_id
                self._join()
            case _I.FENCED:
                self.failure = attrs.evolve(failure, kind=FencedInstanceId)
            case _I.REFUSED:
                self.failure = failure
            case _:
                pass

    def _fail(self, because: str) -> None:
        self._apply_event(_I.REFUSED)
        self.failure = Failure(RequestFailed, because=because)

    # --- joining --------------------------------------------------------------------------------------------

    def _calls_before_joining(self) -> tuple[RebalanceCall, ...]:
        """The partitions to give up before the next generation (ConsumerCoordinator.onJoinPrepare)."""
        event, partitions = RebalanceEvent.REVOKED, self.assigned
        if self.generation_id == NO_GENERATION:
            event = RebalanceEvent.LOST
        elif are_cooperative(self._settings.partition_assignment_strategy):
            partitions = tuple(where for where in partitions if where.topic not in self.topics)
        return (RebalanceCall(event, partitions),) if partitions else ()

    def _join(self) -> None:
        settings = self._settings
        request = m.JoinGroup(
            group_id=self.group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=settings.group_instance_id,
            protocol_type=CONSUMER_PROTOCOL,
            protocols=tuple(
                m.GroupProtocol(name=assignor.name, metadata=self._subscription(assignor))
                for assignor in self._assignors
            ),
        )
        self._joined_topics = self.topics
        self._group_call = self._submit(request)

    def _subscription(self, assignor: Assignor) -> bytes:
        generation_id = self.metadata.generation_id if self.assigned else NO_GENERATION
        return encode_subscription(
            MemberSubscription(
                topics=self.topics,
                owned=self.assigned,
                # The generation in which they were adopted, not the newest: until it is adopted, an
                # assignment owns nothing.
                generation_id=generation_id,
                user_data=assignor.user_data(generation_id),
            )
        )

    def _submit(self, request: m.JoinGroup | m.SyncGroup) -> int:
        """A request that waits at the coordinator for other members (JOIN_GROUP_TIMEOUT_LAPSE)."""
        longest_ms = self._settings.max_poll_interval_ms + JOIN_GROUP_TIMEOUT_LAPSE_MS
        timeout_ms = max(self._settings.request_timeout_ms, longest_ms)
        return self._calls.submit(request, self._group, timeout_ms=timeout_ms)

    def _take_generation(self, reply: m.JoinGroupReply, now: int) -> None:
        self.member_id, self.generation_id = reply.member_id, reply.generation_id
        self._heartbeat_at = now + self._settings.heartbeat_interval_ms
        self._move(_I.JOINED)
        self._leader = None
        self._joined = reply
        if reply.leader != reply.member_id:
            self._sync(reply, ())

    def _lead(self, reply: m.JoinGroupReply, now: int) -> None:
        """Assigns the partitions, once the metadata of all topics is known."""
        try:
            assigned = assign(reply, self._calls.cluster, self._settings, now)
        except ProtocolViolation as problem:
            self._fail(f"the subscription of a member of group {self.group_id!r} is invalid: {problem}")
            return
        if assigned is not None:
            self._leader, assignments = assigned
            self._sync(reply, assignments)

    def _sync(self, reply: m.JoinGroupReply, assignments: tuple[m.MemberAssignment, ...]) -> None:
        request = m.SyncGroup(
            group_id=self.group_id,
            generation_id=reply.generation_id,
            member_id=reply.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=reply.protocol_type,
            protocol_name=reply.protocol_name,
            assignments=assignments,
        )
        self._joined = None
        self._group_call = self._submit(request)

    # --- the assignment -------------------------------------------------------------------------------------

    def _take_assignment(self, body: object) -> None:
        assert isinstance(body, m.SyncGroupReply), "SyncGroup is answered by its reply"
        try:
            self._assignment = decode_assignment(body.assignment)
        except ProtocolViolation as problem:
            self._fail(f"the assignment by the leader of group {self.group_id!r} is invalid: {problem}")
        else:
            self._move(_I.SYNCED)

    def _adopt(self) -> None:
        """The new assignment takes effect (ConsumerCoordinator.onJoinComplete). Revoked partitions get their
        next owner only in another generation, so the member joins again (KIP-429).
        """
        self.metadata = attrs.evolve(
            self._non_member, member_id=self.member_id, generation_id=self.generation_id
        )
        revoked = tuple(where for where in self.assigned if where not in self._assignment)
        added = tuple(where for where in self._assignment if where not in self.assigned)
        calls = (RebalanceCall(RebalanceEvent.REVOKED, revoked),) if revoked else ()
        self._pending = (*calls, RebalanceCall(RebalanceEvent.ASSIGNED, added))
        if revoked:
            self._deferred_event = _I.REBALANCE
        else:
            self.assigned = self._assignment

    # --- staying and leaving --------------------------------------------------------------------------------

    def step(self, now: int) -> None:
        """Does what is due at `now` and needs no call by the application."""
        if self._joined is not None:
            self._lead(self._joined, now)
        if self.state not in HEARTBEATING:
            return
        if now >= self._polled_at + self._settings.max_poll_interval_ms:
            self._give_up_membership(now)
            return
        if self.state is _S.STABLE:
            must_reassign = self._leader is not None and self._leader.step(now)
            if must_reassign or self.topics != self._joined_topics:
                self._apply_event(_I.REBALANCE)
        if self._heartbeat_call is None and now >= self._heartbeat_at and self.generation_id != NO_GENERATION:
            self._send_heartbeat(now)

    def _send_heartbeat(self, now: int) -> None:
        self._heartbeat_at = now + self._settings.heartbeat_interval_ms
        request = m.Heartbeat(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
        )
        # After a session timeout the group has expelled this member, so the reply is of no use any more.
        timeout_ms = min(self._settings.request_timeout_ms, self._settings.session_timeout_ms)
        self._heartbeat_call = self._calls.submit(request, self._group, timeout_ms=timeout_ms)

    def _give_up_membership(self, now: int) -> None:
        """The application has not polled for too long: leaves, so that others get its partitions (KIP-62)."""
        if self.generation_id != NO_GENERATION:
            self._send_leave(now)
            self._apply_event(_I.EXPELLED)
            self.member_id = NO_MEMBER

    def _send_leave(self, now: int) -> None:
        """Sends LeaveGroup. Static members do not: they may return within their session timeout (KIP-345).
        Without a known coordinator, the session timeout ends the membership too.
        """
        is_static = self._settings.group_instance_id is not None
        is_known = self._group in self._calls.cluster.coordinators
        if is_static or not is_known or self.member_id == NO_MEMBER:
            return
        leaving = m.LeavingMember(member_id=self.member_id, group_instance_id=None)
        request = m.LeaveGroup(group_id=self.group_id, members=(leaving,))
        self._leave_calls.add(self._calls.submit(request, self._group, deadline=now + LEAVE_TIMEOUT_MS))

    # --- time -----------------------------------------------------------------------------------------------

    def wake_at(self) -> int | None:
        """When `step` has something to do, apart from replies."""
        if self.state not in HEARTBEATING or self.generation_id == NO_GENERATION:
            return None
        at = self._polled_at + self._settings.max_poll_interval_ms
        if self._heartbeat_call is None:
            at = min(at, self._heartbeat_at)
        if self._leader is not None and self.state is _S.STABLE:
            at = min(at, self._leader.wake_at)
        return at
