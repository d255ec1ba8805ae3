"""The consumer: positions, fetches ahead of the reader, offset resets and read_committed, as a machine over
values.

Rule: a position advances only over records that were returned to the application or must never be returned.
"""

# Theory of operation
# -------------------
#
# Each assigned partition has a `TopicPartitionState`: its position and the batches that were fetched ahead of
# it. The next fetch starts when these are taken and no fetch is in flight: one batch of replies is processed
# while the next is on its way.
#
# Where a position comes from, in this order (ConsumerCoordinator.refreshCommittedOffsetsIfNeeded, then
# OffsetFetcher.resetPositionsIfNeeded):
#
#     seek()  ->  the group's committed offset  ->  auto_offset_reset: earliest, latest, a time, or an error
#
# OffsetFetch asks with `require_stable`, whatever the isolation level: while a transaction that moves the
# offset is undecided, the coordinator answers UNSTABLE_OFFSET_COMMIT, and the call is retried (KIP-447).
# Without that, a restarted reader would process a second time the input of a transaction that is about to
# commit.
#
# Lost records (KIP-320). After a loss of power, or when a topic was created again, the log may end before the
# position. New records then get the old offsets, and a reader that only fetches at its position skips them.
# So a position has the `leader_epoch` of the record before it. When metadata shows another leader epoch, an
# OffsetForLeaderEpoch replaces the next Fetch: it asks where the leader epoch of the position ends in the log
# of the leader (SubscriptionState.maybeCompleteValidation):
#
#     at the position or after it      fetch
#     before the position              continue there; with auto_offset_reset=none, an error
#     it is unknown                    auto_offset_reset: earliest, latest, a time, or an error
#
# A WarnProgram says what was lost. A commit has the leader epoch, too, so committed positions are checked. An
# offset that the program gives without a leader epoch is not.
#
# read_committed. The broker returns data up to the last stable offset together with the list of aborted
# transactions; `consumer_records.select` drops their batches and all control batches. A fetch that contains
# nothing else moves the position although poll() returns nothing.
#
# Groups. With subscribe() a `GroupMember` decides which partitions are assigned, and the consumer follows it
# after each input (`_step`). With assign() there is no member, and commits are not fenced.
#
# Errors that may pass are retried; `ConsumerProblems` reports those that last.

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, cast

import attrs

from fencepost.client.consumer_problems import ConsumerProblems
from fencepost.client.consumer_records import RAW, ConsumedBatch, RecordDecoder, select
from fencepost.client.effects import Effect, WarnProgram
from fencepost.client.errors import (
    CorruptRecords,
    Failure,
    OffsetOutOfRange,
    RequestFailed,
    WrongState,
    refused,
)
from fencepost.client.group_member import GroupMember, RebalanceCall
from fencepost.client.group_offsets import (
    CommittableOffset,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    commit_request,
    committed_offsets,
    with_metadata,
)
from fencepost.client.metadata import CoordinatorOf
from fencepost.client.reply_errors import remedy_of
from fencepost.client.requests import RequestMachine
from fencepost.client.retries import FinishedCall
from fencepost.client.settings import RESETS, ConsumerSettings, backoff_ms, duration_ms
from fencepost.client.topic_partition_state import TopicPartitionState
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode, Remedy
from fencepost.protocol.fork import Ignored, Ordered, Shared
from fencepost.protocol.messages import ReplyBody
from fencepost.protocol.terms import (
    LATEST_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    CoordinatorType,
    TopicPartition,
)

FETCH_BYTES_MIN: Final = 1
# A broker reads no request from a connection that has eight fetches in progress (broker/memory.py).
WAITING_FETCHES_MAX: Final = 7
IO_TICK_MS: Final = 10


@attrs.define(eq=False)
class ConsumerMachine(RequestMachine):
    """One consumer. It reads the partitions given to `assign`, or those that its group assigns to it from
    the topics given to `subscribe`. `take` returns what was fetched; a `wake` after that fetches more.
    """

    settings: Shared[ConsumerSettings]
    _decoding: Shared[RecordDecoder] = RAW
    assigned: Ordered[dict[TopicPartition, TopicPartitionState]] = attrs.field(factory=dict)
    _problems: ConsumerProblems = attrs.field(init=False)
    member: GroupMember | None = None
    _has_postponed_problem: bool = False
    """Whether `take` has returned batches although it could have raised the problem of a partition."""
    _group_metadata: ConsumerGroupMetadata | None = None
    """Of the last membership, after it has ended."""
    wall_ahead_ms: Ignored[int] = 0
    """How far the time since 1970 is ahead of the clock of the inputs, for `by_duration`."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._problems = ConsumerProblems(self.calls)

    # --- calls of the user ----------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions; those that were assigned before keep their positions."""
        if self.member is not None:
            raise WrongState("assign() is not allowed after subscribe(): call unsubscribe() first")
        wanted = list(partitions)
        self._group_metadata = None
        self._read(wanted)

    def _read(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = list(dict.fromkeys(partitions))
        for where, state in self.assigned.items():
            if where not in wanted:
                state.iterated = None
                self._forget(state)
        self.assigned = {where: self.assigned.get(where) or TopicPartitionState(where) for where in wanted}

    def state_of(self, partition: TopicPartition) -> TopicPartitionState:
        """The state of an assigned partition; WrongState for any other."""
        found = self.assigned.get(partition)
        if found is None:
            raise WrongState(f"partition {partition} is not assigned to this consumer: call assign() first")
        return found

    def seek(self, partition: TopicPartition, offset: CommittableOffset) -> None:
        """Sets the position to `offset`."""
        state = self.state_of(partition)
        self._forget(state)
        self._begin_at(state, with_metadata(offset))
        state.iterated = None  # last: if Ctrl-C ends this early, the next iteration seeks again

    def seek_to(self, partition: TopicPartition, timestamp: int) -> None:
        """Sets the position to the offset of a timestamp, or of the start or end."""
        state = self.state_of(partition)
        state.iterated = None
        self._forget(state)
        self._look_up(state, timestamp)

    def pause(self, partitions: Iterable[TopicPartition], *, is_paused: bool) -> None:
        """Stops or resumes reading these partitions; none of them changes if one is not assigned."""
        for state in [self.state_of(partition) for partition in partitions]:
            state.is_paused = is_paused

    def take(self) -> list[ConsumedBatch]:
        """Returns the fetched batches. Raises the problem of a partition if there are none, or if the last
        call has returned batches in its place: other partitions may always have some.
        """
        ready = [state for state in self.assigned.values() if state.has_result]
        failed = next((state for state in ready if state.problem and not state.fetched), None)
        if failed is not None and (self._has_postponed_problem or not any(state.fetched for state in ready)):
            self._has_postponed_problem = False
            problem, failed.problem = failed.problem, None
            assert problem is not None, "it was chosen for its problem"
            raise problem.exception()
        batches: list[ConsumedBatch] = []
        for state in ready:
            for selection in state.fetched:
                batches += selection.batches
                state.move_after(selection)
            state.fetched.clear()
        self._has_postponed_problem = failed is not None
        return batches

    @property
    def has_work(self) -> bool:
        """Whether heartbeats must be sent between calls."""
        return self.member is not None

    @property
    def io_tick_ms(self) -> int | None:
        """Heartbeats are seconds apart, but a rebalance should start within a tick."""
        return None if self.settings.group_id is None else IO_TICK_MS

    @property
    def has_result(self) -> bool:
        """Whether `take` would return or raise something."""
        return any(state.has_result for state in self.assigned.values())

    @property
    def group_id(self) -> str:
        """The group; WrongState when the consumer has none."""
        if self.settings.group_id is None:
            raise WrongState(
                "offsets belong to a group, and this consumer has no group_id: create it with one"
            )
        return self.settings.group_id

    def commit_request(self, offsets: Mapping[TopicPartition, CommittableOffset]) -> m.OffsetCommit:
        """Commits as a member, or without a subscription as a client that is not a member. Raises
        CommitFailed, RebalanceInProgress or FencedInstanceId if the member knows that the coordinator would
        reject it.
        """
        if self.member is None:
            return commit_request(ConsumerGroupMetadata(group_id=self.group_id), offsets)
        problem = self.member.commit_problem()
        if problem is not None:
            raise problem.exception()
        return commit_request(self.member.metadata, offsets)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """What the application has seen of each partition."""
        return {where: state.seen for where, state in self.assigned.items() if state.seen is not None}

    @property
    def committable(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions with their leader epochs: what to commit."""
        return {where: state.committable for where, state in self.assigned.items() if state.seen is not None}

    # --- the group ------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], now: int) -> list[Effect]:
        """Joins the group, which divides the partitions of these topics among its members; the next poll()
        starts the join.
        """
        wanted = tuple(topics)
        if not wanted or not all(wanted):
            raise ValueError("topics must be at least one topic name; unsubscribe() ends a subscription")
        if self.settings.group_id is None:
            raise WrongState(
                "subscribe() joins a group, and this consumer has no group_id: create it with one"
            )
        if self.member is None and self.assigned:
            raise WrongState(
                "subscribe() is not allowed while partitions are assigned: call assign([]) first"
            )
        if self.member is None:
            self.member = GroupMember(self.calls, self.settings, now)
        self.member.subscribe(wanted)
        return self._step(now)

    def check_has_partitions(self) -> None:
        """WrongState if nothing is subscribed or assigned."""
        if self.member is None and not self.assigned:
            raise WrongState("poll() has nothing to read: call subscribe() or assign() first")

    def poll(self, now: int) -> list[Effect]:
        """The application polls: a rebalance continues. Run `rebalance_call` before taking batches."""
        if self.member is not None:
            failure = self.member.failure
            if failure is not None:
                if not self.member.is_fenced:
                    self.member.failure = None
                raise failure.exception()
            self.member.poll(now)
        return self._step(now)

    @property
    def needs_poll(self) -> bool:
        """Whether the group waits for the application to poll."""
        return self.member is not None and self.member.needs_poll

    @property
    def rebalance_call(self) -> RebalanceCall | None:
        """The callback to run now; `returned` confirms it."""
        return None if self.member is None else self.member.call

    def returned(self, now: int) -> list[Effect]:
        """The application has returned from `rebalance_call`."""
        if self.member is not None:
            self.member.returned(now)
        return self._step(now)

    def unsubscribe(self, now: int) -> list[Effect]:
        """Leaves the group: run `rebalance_call` first, and wait until `has_left`."""
        if self.member is not None:
            self.member.leave(now)
        return self._step(now)

    def abandon(self, now: int) -> None:
        self.member = None

    @property
    def has_left(self) -> bool:
        """Whether this consumer is in no group and awaits no reply from one."""
        return self.member is None

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The membership under which the polled records may be committed. After the member has been replaced,
        it remains the last one, so that a transaction with it is rejected (KIP-447).
        """
        if self.member is not None:
            return self.member.metadata
        return self._group_metadata or ConsumerGroupMetadata(group_id=self.group_id)

    # --- what happens ---------------------------------------------------------------------------------------

    def _metadata_arrived(self, now: int) -> None:
        used = self.calls.topics.union(where.topic for where in self.assigned)
        if self.member is not None:
            if self.member.awaits_metadata:
                return
            used |= self.member.used_topics
        self.cluster.drop([topic for topic in self.cluster.wanted if topic not in used])

    def _once_answered(self, token: int, error: ErrorCode, body: ReplyBody | None, now: int) -> None:
        parts = body.partitions if isinstance(body, m.FetchReply | m.OffsetForLeaderEpochReply) else ()
        results = {(part.topic, part.partition): part for part in parts}
        for where, state in self.assigned.items():
            if state.in_flight != token:
                continue
            state.in_flight = None
            result = results.get(where)
            if body is not None:
                error = ErrorCode.UNKNOWN_SERVER_ERROR if result is None else result.error
            if error is not NO_ERROR or result is None:
                self._fetch_failed(state, error, now)
            elif isinstance(result, m.FetchedPartition):
                self._fetched(state, result)
            else:
                self._validated(state, result, now)

    def _fetched(self, state: TopicPartitionState, result: m.FetchedPartition) -> None:
        state.attempts, state.error = 0, NO_ERROR
        selection = select(
            state.partition,
            memoryview(result.records),
            position=state.fetch_offset,
            aborted=result.aborted if self.settings.filters_aborted else None,
            decoding=self._decoding,
        )
        state.is_at_end = selection.next_offset == state.fetch_offset
        state.fetch_offset = selection.next_offset
        if selection.damage is not None:  # raised when the batches before it were taken
            because = f"partition {state.partition} at offset {state.fetch_offset}: {selection.damage}"
            state.problem = Failure(CorruptRecords, because=because)
        if selection.batches or state.fetched:
            state.fetched.append(selection)
        else:
            state.move_after(selection)  # everything in it is aborted, or a marker

    def _validated(self, state: TopicPartitionState, end: m.EpochEndOffset, now: int) -> None:
        """The leader has said where the leader epoch of the position ends in its log."""
        state.attempts, state.error = 0, NO_ERROR
        position, epoch = state.fetch_offset, state.leader_epoch
        is_known = end.end_offset != NO_OFFSET and end.leader_epoch != NO_LEADER_EPOCH
        if is_known and end.end_offset >= position:
            state.valid_in_epoch = state.validation_epoch
            return
        found = f"ends at offset {end.end_offset}" if is_known else "is unknown"
        because = (
            f"partition {state.partition} has lost records before offset {position}, the position of this "
            f"consumer: leader epoch {epoch} {found}"
        )
        if is_known and self._reset_timestamp(now) is not None:
            state.begin_at(end.end_offset, end.leader_epoch, state.validation_epoch)
            self._out.append(WarnProgram(f"{because}; the consumer continues at that offset"))
            return
        self._reset(state, because, now)
        if state.problem is None:
            strategy = self.settings.auto_offset_reset
            self._out.append(WarnProgram(f"{because}; the consumer uses auto_offset_reset: {strategy}"))

    def _fetch_failed(self, state: TopicPartitionState, error: ErrorCode, now: int) -> None:
        state.attempts += 1
        state.error = error
        state.retry_at = now + backoff_ms(state.attempts)
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._reset(state, f"partition {state.partition} has no offset {state.fetch_offset}", now)
            return
        match remedy_of(m.Fetch, error):
            case Remedy.REFRESH:
                self.cluster.forget_leader(state.partition)
            case Remedy.RETRY:
                pass
            case _:
                state.problem = refused(RequestFailed, error, f"fetch from partition {state.partition}")

    def _reset_timestamp(self, now: int) -> int | None:
        strategy = self.settings.auto_offset_reset
        ago_ms = duration_ms(strategy)
        return RESETS.get(strategy) if ago_ms is None else max(0, now + self.wall_ahead_ms - ago_ms)

    def _reset(self, state: TopicPartitionState, because: str, now: int) -> None:
        timestamp = self._reset_timestamp(now)
        if timestamp is None:
            state.problem = Failure(OffsetOutOfRange, because=because, error=ErrorCode.OFFSET_OUT_OF_RANGE)
            return
        self._forget(state)
        self._look_up(state, timestamp)

    def _forget(self, state: TopicPartitionState) -> None:
        """Makes the position unknown, and cancels its lookup unless another partition waits for it."""
        number = state.lookup
        state.forget()
        if number is not None and all(other.lookup != number for other in self.assigned.values()):
            self.calls.cancel(number)

    def _finished(self, finished: FinishedCall, now: int) -> None:
        if self.member is not None:
            if self.member.finished(finished, now):
                return
            finished = self._explained(finished, self.member)
        number = finished.call.number
        asking = [state for state in self.assigned.values() if state.lookup == number]
        if not asking:
            super()._finished(finished, now)
        for state in asking:
            state.lookup = None
            if isinstance(finished.body, m.ListOffsetsReply):
                asked = cast("m.ListOffsets", finished.call.request).partitions[0]
                self._found(state, finished.body.partitions[0], asked.current_leader_epoch)
            elif isinstance(finished.body, m.OffsetFetchReply):
                self._begin_at_committed(state, finished.body, now)
            else:
                state.problem = finished.failure

    def _found(self, state: TopicPartitionState, found: m.ListedOffset, valid_in_epoch: int) -> None:
        if found.offset >= 0:
            state.begin_at(found.offset, found.leader_epoch, valid_in_epoch)
        else:  # no record is as young as that
            self._look_up(state, LATEST_TIMESTAMP)

    def _explained(self, finished: FinishedCall, member: GroupMember) -> FinishedCall:
        request = finished.call.request
        if finished.failure is None or not isinstance(request, m.OffsetCommit):
            return finished
        return finished._replace(failure=member.commit_refused(finished.failure, request.generation_id))

    def _begin_at_committed(self, state: TopicPartitionState, body: m.OffsetFetchReply, now: int) -> None:
        where = state.partition
        committed = committed_offsets(body, [where])[where]
        if committed is not None:
            self._begin_at(state, committed)
        else:
            because = f"group {self.settings.group_id!r} has no committed offset for {where}"
            self._reset(state, because, now)

    def _begin_at(self, state: TopicPartitionState, begin: OffsetAndMetadata) -> None:
        epoch = NO_LEADER_EPOCH if begin.leader_epoch is None else begin.leader_epoch
        self.cluster.learn_leader_epoch(state.partition, epoch)
        state.begin_at(begin.offset, epoch)

    # --- machinery ------------------------------------------------------------------------------------------

    def _step(self, now: int) -> list[Effect]:
        if self.member is not None:
            self.member.step(now)
            if self.member.assigned != tuple(self.assigned):
                self._read(self.member.assigned)
            if self.member.has_left:
                self._group_metadata, self.member = self.member.metadata, None
        self._find_positions(now)
        self._out += self._problems.notice(self.assigned, self.member, now)
        self._fetch(now)
        return super()._step(now)

    def _wake_at(self, now: int) -> int | None:
        times = [
            state.retry_at
            for state in self.assigned.values()
            if state.retry_at > now and state.in_flight is None
        ]
        if (at := self.calls.wake_at(now)) is not None:
            times.append(at)
        if self.member is not None and (at := self.member.wake_at()) is not None:
            times.append(at)
        return min(times, default=None)

    def _find_positions(self, now: int) -> None:
        """Looks up missing positions: the group's committed offset, else `auto_offset_reset`."""
        lost = [
            state
            for state in self.assigned.values()
            if state.position is None and state.lookup is None and not state.problem
        ]
        if not lost:
            return
        if self.settings.group_id is None:
            for state in lost:
                self._reset(state, f"partition {state.partition} has no position", now)
            return
        number = self.calls.submit(
            self.committed_request([state.partition for state in lost]),
            CoordinatorOf(CoordinatorType.GROUP, self.settings.group_id),
        )
        for state in lost:
            state.lookup = number

    def committed_request(self, partitions: Collection[TopicPartition]) -> m.OffsetFetch:
        """Requests committed offsets; the reply waits for transactions that commit them (KIP-447)."""
        return m.OffsetFetch(group_id=self.group_id, require_stable=True, partitions=tuple(partitions))

    def _look_up(self, state: TopicPartitionState, timestamp: int) -> None:
        topic, number = state.partition
        asked = m.ListOffsetsPartition(topic=topic, partition=number, timestamp=timestamp)
        request = m.ListOffsets(isolation_level=self.settings.isolation_level, partitions=(asked,))
        state.lookup = self.calls.submit(request, state.partition)

    def _fetch(self, now: int) -> None:
        """Fetches from each leader its partitions without a fetch in flight or fetched records."""
        by_node: dict[int, list[TopicPartitionState]] = {}
        to_validate: dict[int, list[TopicPartitionState]] = {}
        for state in self.assigned.values():
            if state.position is None or state.in_flight is not None or state.fetched:
                continue
            if state.retry_at > now or state.problem is not None or state.is_paused:
                continue
            leader = self.cluster.leader(state.partition)
            if leader is not None:
                states_of = to_validate if self._needs_validation(state) else by_node
                states_of.setdefault(leader, []).append(state)
        for node, states in to_validate.items():
            self._send_validation(node, states)
        for node, states in by_node.items():
            # The reader reaches the ends of partitions at different times, and a fetch waits at each. With
            # one more waiting fetch, the broker would read no further request from this connection, not even
            # one for records that are there.
            may_wait = self.calls.unanswered(node) < WAITING_FETCHES_MAX
            asked = states if may_wait else [state for state in states if not state.is_at_end]
            if asked:
                wait_ms = self.settings.fetch_max_wait_ms if may_wait else 0
                token = self.calls.once(node, self._fetch_request(asked, wait_ms))
                for state in asked:
                    state.in_flight = token

    def _needs_validation(self, state: TopicPartitionState) -> bool:
        """Whether the log of the leader may lack records before the position."""
        current = self.cluster.leader_epoch(state.partition)
        if state.fetch_offset == 0 or state.valid_in_epoch == current:
            return False
        return state.leader_epoch not in (NO_LEADER_EPOCH, current)

    def _send_validation(self, node: int, states: list[TopicPartitionState]) -> None:
        parts: list[m.LeaderEpochPartition] = []
        for state in states:
            topic, number = state.partition
            state.validation_epoch = self.cluster.leader_epoch(state.partition)
            parts.append(
                m.LeaderEpochPartition(
                    topic=topic,
                    partition=number,
                    current_leader_epoch=state.validation_epoch,
                    leader_epoch=state.leader_epoch,
                )
            )
        token = self.calls.once(node, m.OffsetForLeaderEpoch(partitions=tuple(parts)))
        for state in states:
            state.in_flight = token

    def _fetch_request(self, states: list[TopicPartitionState], max_wait_ms: int) -> m.Fetch:
        return m.Fetch(
            max_wait_ms=max_wait_ms,
            min_bytes=FETCH_BYTES_MIN,
            max_bytes=self.settings.fetch_max_bytes,
            isolation_level=self.settings.isolation_level,
            partitions=tuple(
                m.FetchPartition(
                    topic=state.partition.topic,
                    partition=state.partition.partition,
                    current_leader_epoch=self.cluster.leader_epoch(state.partition),
                    fetch_offset=state.fetch_offset,
                    # One setting for Kafka's fetch.max.bytes and max.partition.fetch.bytes.
                    max_bytes=self.settings.fetch_max_bytes,
                )
                for state in states
            ),
        )
