"""The calls of a consumer: which partitions it reads, polling, positions, and offsets of its group.

Rule: as in `calls`; and everything that changes what the program reads happens inside its poll().
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from fencepost.client.arguments import Milliseconds
from fencepost.client.calls import ANYTHING, Callback, CallDriver, CallScript, RequestCalls, Wait
from fencepost.client.consumer import ConsumerMachine
from fencepost.client.consumer_records import ConsumedBatch, Record
from fencepost.client.errors import RequestTimeout, WrongState
from fencepost.client.group_member import RebalanceListener
from fencepost.client.group_offsets import (
    CommittableOffset,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    committed_offsets,
)
from fencepost.client.metadata import CoordinatorOf
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, CoordinatorType, TopicPartition


class ConsumerCalls(RequestCalls):
    __slots__ = ("_consumer", "_is_calling_back", "_is_iterating", "_listener")

    def __init__(self, machine: ConsumerMachine, driver: CallDriver) -> None:
        super().__init__(machine, driver, api_timeout_ms=machine.settings.default_api_timeout_ms)
        self._consumer = machine
        self._listener = RebalanceListener()
        self._is_calling_back = False
        self._is_iterating = False  # or has left a loop over records

    # --- which partitions -----------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions, from the committed offset of the group or as `auto_offset_reset` says.

        Partitions that were assigned before keep their positions. WrongState while topics are subscribed.
        """
        self._consumer.assign(partitions)

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener | None = None) -> None:
        """Joins the group, which divides the partitions of the topics among its members; the next poll()
        starts the join.

        `topics`: their names; a later call replaces them. `listener`: its methods run inside poll() when
        partitions are assigned or revoked. WrongState without a `group_id`, or while partitions are assigned
        by assign().

        If a topic does not exist, the logger `fencepost.client` gets one warning, and the topic is read as
        soon as it exists. If its name is invalid, or ACLs forbid reading it, poll() raises UnknownTopic or
        AuthorizationFailed once.
        """
        self.check_not_calling_back("subscribe")
        self._driver.check_running()
        self._driver.perform(self._consumer.subscribe(topics, self._driver.now))
        self._listener = listener or RebalanceListener()

    def unsubscribe(self) -> CallScript[None]:
        """Leaves the group, which then assigns the partitions to other members.

        A static member (`group_instance_id`) keeps its partitions until its session times out (KIP-345). Does
        nothing without a subscription.
        """
        consumer = self._consumer
        self.check_not_calling_back("unsubscribe")
        self._driver.perform(consumer.unsubscribe(self._driver.now))
        try:
            yield from self._call_back()
        finally:
            # LEAVE_TIMEOUT_MS at most: the session of the member times out anyway.
            yield Wait(lambda: consumer.has_left, ANYTHING, is_shielded=True)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return list(self._consumer.assigned)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The membership under which the polled records may be committed, for
        `send_offsets_to_transaction`.
        """
        return self._consumer.group_metadata()

    def _call_back(self) -> CallScript[bool]:
        """Runs the callback that is due; False if none is. poll() raises what the callback raises."""
        call = self._consumer.rebalance_call
        if call is None:
            return False
        self._is_calling_back = True
        try:
            yield Callback(getattr(self._listener, call.event.value), list(call.partitions))
        finally:
            self._is_calling_back = False
            self._driver.perform(self._consumer.returned(self._driver.now))
        return True

    def check_not_calling_back(self, call: str) -> None:
        """Raises WrongState while a callback of a rebalance runs."""
        if self._is_calling_back:
            raise WrongState(
                f"{call}() is not allowed while a rebalance callback runs: call it after the callback"
            )

    # --- records --------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: Milliseconds = 1_000) -> CallScript[list[ConsumedBatch]]:
        """Returns the batches that are fetched, or arrive within `timeout_ms`; an empty list if there are
        none.

        It requests the next batches before it returns. A subscribed consumer joins its group here and runs
        the callbacks of its listener; it must poll at least every `max_poll_interval_ms`. Raises
        OffsetOutOfRange, CorruptRecords, UnknownTopic or RequestFailed when a partition cannot be read, and
        WrongState when nothing is subscribed or assigned.
        """
        self.check_not_calling_back("poll")
        consumer, driver = self._consumer, self._driver
        driver.check_running()
        consumer.check_has_partitions()
        deadline = driver.now + timeout_ms
        # A program that waits here counts as polling, however long its timeout is.
        interval_ms = inf if consumer.member is None else consumer.settings.max_poll_interval_ms // 2
        if self._is_iterating:
            self._end_iteration()
        while True:
            driver.perform(consumer.poll(driver.now))
            if (yield from self._call_back()):
                continue
            limit = min(deadline, driver.now + interval_ms)
            yield Wait(lambda: consumer.has_result or consumer.needs_poll, ANYTHING, limit)
            if consumer.has_result or driver.now >= deadline:
                break
        batches = consumer.take()
        self._wake()
        return batches

    def one_by_one(self, batches: Sequence[ConsumedBatch]) -> Iterator[Record]:
        """The records of polled batches. Only a record that this iterator has returned counts as seen, so
        commit() does not cover the later ones. The next poll() returns the remaining records again; a loop
        that continues after that poll(), or after a seek, skips them.
        """
        self._is_iterating, consumer = True, self._consumer
        seen = {batch.partition: batch.base_offset for batch in reversed(batches)}
        for batch in reversed(batches):
            state = consumer.assigned.get(batch.partition)
            if state is not None:
                state.iterated, state.iterated_epoch = batch.base_offset, batch.leader_epoch
        for batch in batches:
            where = batch.partition
            state = consumer.assigned.get(where)
            if state is not None and state.iterated == seen[where]:
                state.iterated_epoch = batch.leader_epoch
            for record in [*batch, None]:
                state = consumer.assigned.get(where)
                if state is None or state.iterated != seen[where]:
                    break  # the program has called seek() or poll(), or no longer reads the partition
                state.iterated = seen[where] = batch.next_offset if record is None else record.offset + 1
                if record is not None:
                    yield record
        for where, offset in seen.items():
            state = consumer.assigned.get(where)
            if state is not None and state.iterated == offset:
                state.iterated = None

    def _end_iteration(self) -> None:
        """Seeks back to the records that an iteration has not returned. poll() does this, not the end of the
        iterator: that may come in any thread, and even in the middle of another step, when the iterator is
        garbage-collected.
        """
        for where, state in self._consumer.assigned.items():
            if state.iterated is not None:
                self._consumer.seek(where, state.committable)
        self._is_iterating = False

    def pause(self, *partitions: TopicPartition) -> None:
        """Stops reading assigned partitions: poll() returns nothing from them until resume().

        The consumer stays in its group, and positions stay. A rebalance that takes a partition away forgets
        that it was paused. WrongState if one is not assigned.
        """
        self._consumer.pause(partitions, is_paused=True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Reads paused partitions again; the others are not changed. WrongState if one is not assigned."""
        self._consumer.pause(partitions, is_paused=False)
        self._wake()

    def paused(self) -> list[TopicPartition]:
        """The assigned partitions that are paused."""
        return [where for where, state in self._consumer.assigned.items() if state.is_paused]

    def position(self, partition: TopicPartition) -> CallScript[int]:
        """The offset of the next record that poll() returns. RequestTimeout if it cannot be found in
        time; errors as for poll().
        """
        state = self._consumer.state_of(partition)
        deadline = self._driver.now + self._api_timeout_ms
        self._wake()
        if state.problem is not None:  # a reply that has arrived may end it
            yield Wait(lambda: False, ANYTHING, self._driver.now)
        yield Wait(lambda: state.seen is not None or state.problem is not None, ANYTHING, deadline)
        if state.seen is not None:  # a problem is raised by poll(), after the records before it
            return state.seen
        if state.problem is not None:
            raise state.problem.exception()
        raise RequestTimeout(f"the position of {partition} was not found within {self._api_timeout_ms} ms")

    def fetch_errors(self) -> dict[TopicPartition, ErrorCode]:
        """The assigned partitions whose last fetch failed, each with its error. The consumer retries them."""
        states = self._consumer.assigned
        return {where: each.error for where, each in states.items() if each.error is not NO_ERROR}

    def seek(self, partition: TopicPartition, offset: CommittableOffset) -> None:
        """Sets the position of an assigned partition: the next record is the one at `offset`.

        With an OffsetAndMetadata whose leader epoch is known, the consumer first checks that the log still
        has the records before the offset, as for a committed one.
        """
        self._consumer.seek(partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Sets the position to the log start, for all assigned partitions if none is given."""
        self._seek_to(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Sets the position to the end: the last stable offset, or with read_uncommitted the high watermark.

        Applies to all assigned partitions if none is given.
        """
        self._seek_to(partitions, LATEST_TIMESTAMP)

    def _seek_to(self, partitions: Iterable[TopicPartition], timestamp: int) -> None:
        for partition in list(partitions) or list(self._consumer.assigned):
            self._consumer.seek_to(partition, timestamp)

    # --- offsets --------------------------------------------------------------------------------------------

    def committed(self, partitions: Iterable[TopicPartition]) -> CallScript[dict[TopicPartition, int | None]]:
        """The committed offset of the group for each partition, or None.

        It waits for open transactions that commit offsets of these partitions (KIP-447), whatever the
        isolation level.
        """
        found = yield from self.committed_metadata(partitions)
        return {where: None if each is None else each.offset for where, each in found.items()}

    def committed_metadata(
        self, partitions: Iterable[TopicPartition]
    ) -> CallScript[dict[TopicPartition, OffsetAndMetadata | None]]:
        """Like committed(), with the metadata and the leader epoch that were committed with each offset."""
        wanted = list(partitions)
        reply: m.OffsetFetchReply = yield from self.ask(self._consumer.committed_request(wanted), self._group)
        return committed_offsets(reply, wanted)

    def commit(self, offsets: Mapping[TopicPartition, CommittableOffset] | None = None) -> CallScript[None]:
        """Commits offsets outside any transaction; without `offsets`, the positions of all assigned
        partitions, with their leader epochs.

        `offsets`: by partition, the offset of the next record to read, or an OffsetAndMetadata. CommitFailed
        when other members may already read the partitions; RebalanceInProgress when the group is between two
        generations. WrongState when the consumer has no group.
        """
        group = self._group  # looked up first: without one, nothing to commit is an error, too
        chosen = self._consumer.committable if offsets is None else offsets
        if chosen:
            yield from self.ask(self._consumer.commit_request(chosen), group)

    @property
    def _group(self) -> CoordinatorOf:
        return CoordinatorOf(CoordinatorType.GROUP, self._consumer.group_id)

    def close(self) -> CallScript[None]:
        """Leaves the group."""
        if not self._consumer.has_left:
            yield from self.unsubscribe()
