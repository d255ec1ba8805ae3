"""The blocking shell, for notebooks and scripts: the cores with
sockets, a clock and a lock, and no event loop.

Rule: whoever calls does the input and output of all. Nothing that was sent waits for the next call: while the
caller is away, a keeper thread sends what lingers, reads answers and retries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fencepost.client.accumulator import Route
from fencepost.client.batch import Batch, Headers
from fencepost.client.columns import shares
from fencepost.client.effects import Effect, Operation, Resolve
from fencepost.client.errors import (
    BufferFull,
    ClientError,
    Failure,
    RequestTimeout,
    TransactionAborted,
    UnknownTopic,
)
from fencepost.client.group_offsets import ConsumerGroupMetadata
from fencepost.client.producer import ProducerMachine
from fencepost.client.send_future import PendingColumn, PendingRecord, RecordMetadata, make_record_metadata
from fencepost.client.send_path import Sending
from fencepost.client.serializers import Serializer
from fencepost.client.session import Session
from fencepost.client.settings import (
    ABORT_GRACE_MS,
    CLOSE_TIMEOUT_MS,
    UNKNOWN_TOPIC_PATIENCE_MS,
    ProducerSettings,
    compression_named,
)
from fencepost.client.shells.sync_consumer import Admin, Consumer
from fencepost.client.shells.sync_sockets import ROUND_MS, Clock, Keeper, Wires, monotonic_ms, wall_ms
from fencepost.protocol.terms import TopicPartition

__all__ = ["Admin", "Consumer", "Outcome", "Outcomes", "Producer"]

ResultT = TypeVar("ResultT")


class Outcome(PendingRecord["Producer"]):
    """One record that was sent; `result()` waits for its acknowledgement."""

    __slots__ = ()

    def result(self, timeout_ms: int | None = None) -> RecordMetadata:
        """Where the record lies, or raises what it ended in; RequestTimeout after `timeout_ms`."""
        batch = self[1]
        if batch.base_offset >= 0:  # the usual end, a call shorter
            return make_record_metadata((batch.topic, batch.partition, batch.base_offset + self[2]))
        if not batch.is_done:
            self[0].wait_for([batch], timeout_ms)
        return self.outcome()


class Outcomes(PendingColumn["Producer"]):
    """The records of one `send_many`; `result()` waits for the acknowledgement of all."""

    __slots__ = ()

    def result(self, timeout_ms: int | None = None) -> list[RecordMetadata]:
        """Where each lies, in the order given, or raises the first error; RequestTimeout if it takes long."""
        self._owner.wait_for(self.batches, timeout_ms)
        return self.outcomes()


class Producer(Sending[Outcome]):
    """A producer that blocks. Not for several threads at once: give each its own, or guard it by a lock."""

    def __init__(
        self,
        bootstrap: str,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        batch_size: int = 131_072,
        linger_ms: int = 5,
        buffer_memory: int = 33_554_432,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        max_in_flight: int = 5,
        max_block_ms: int = 60_000,
        compression: str = "none",
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        client_id: str = "",
        transaction_version: int = 2,
        clock: Clock = monotonic_ms,
    ) -> None:
        self.settings = ProducerSettings(
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            batch_size=batch_size,
            linger_ms=linger_ms,
            buffer_memory=buffer_memory,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            max_in_flight=max_in_flight,
            max_block_ms=max_block_ms,
            compression=compression_named(compression),
            client_id=client_id,
            transaction_version=transaction_version,
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._machine = ProducerMachine(bootstrap, self.settings)
        super().__init__(
            self._machine.accumulator,
            Outcome,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )
        self._session = Session(self._machine, client_id=client_id, request_timeout_ms=request_timeout_ms)
        self._wires = Wires(self._session, lock=self._lock, clock=clock)
        self._resolved: dict[Operation, Failure | None] = {}
        self._unfinished: Operation | None = None  # timed out for its caller, and goes on
        self._keeper = Keeper(self._wires, self._has_work, tick_ms=linger_ms)

    # --- records --------------------------------------------------------------------------------------------

    send = Sending["Outcome"].put

    def send_nowait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Outcome:
        """As `send`, but never waits: BufferFull without room, UnknownTopic while the topic is not known."""
        key, value = self._serialize(key, value)
        with self._lock:
            try:
                place = self._add(topic, value, key, partition, timestamp_ms, headers)
            finally:
                self._push(self._clock())
        if place is None:
            raise UnknownTopic(f"topic {topic!r} is not known yet: send() waits until it is")
        return Outcome((self, *place))

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        partition: int | None = None,
    ) -> Outcomes:
        """Takes columns of records, several times faster than `send`; waits as `send` does."""
        outcomes = Outcomes(self)
        if not values:
            return outcomes
        values, keys = self._columns(values, keys)
        for share in shares(self._route(topic), values, keys, partition):
            start = 0
            while start < len(share.values):
                run = self._put_run(topic, share, start)
                outcomes.add(run, share.places[start : start + run.length])
                start += run.length
        return outcomes

    def _route(self, topic: str) -> Route:
        """Where the topic's records go; waits until the topic is known."""
        return self._when_known(topic, lambda: self._machine.route(topic))

    def _count_of(self, batch: Batch) -> int:
        with self._lock:
            return super()._count_of(batch)

    def _put_slowly(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> Outcome:
        place = self._when_known(
            topic, lambda: self._add(topic, value, key, partition, timestamp_ms, headers)
        )
        return Outcome((self, *place))

    def _when_known(self, topic: str, attempt: Callable[[], ResultT | None]) -> ResultT:
        """Tries until the topic is known and there is room: else BufferFull, RequestTimeout, UnknownTopic."""
        deadline = self._clock() + self.settings.max_block_ms
        patience = self._clock() + UNKNOWN_TOPIC_PATIENCE_MS
        while True:
            full: BufferFull | None = None
            with self._lock:
                try:
                    found = attempt()
                except BufferFull as problem:
                    found, full = None, problem
                now = self._clock()
                self._push(now)
                error = self._machine.cluster.topic_errors.get(topic)
            if found is not None:
                self._read_answers()
                return found
            if error is not None and now >= patience:
                raise UnknownTopic(f"topic {topic!r}: {error.meaning}", error)
            if now >= deadline:
                raise full or RequestTimeout(f"no metadata about topic {topic!r} within max_block_ms")
            self._wires.round(min(patience if error else deadline, deadline, now + ROUND_MS) - now)

    def _read_answers(self) -> None:
        """Takes what has come, once per batch: memory is free before it is full, and outcomes are early."""
        if self._session.is_waiting:
            self._wires.round(0, wait_for_turn=False)

    def _push(self, now: int) -> None:
        """Sends what became full; the lock is held."""
        self._perform(self._machine.wake(now), now)
        self._wires.push()
        self._keeper.want()

    def _add(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> tuple[Batch, int] | None:
        """One record the long way; None while the topic is not known. The lock is held."""
        return self._machine.append(
            topic,
            value,
            key,
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=headers,
            now=self._clock(),
            wall_ms=wall_ms(),
        )

    def flush(self, timeout_ms: int | None = None) -> None:
        """Sends all that lingers and waits until every record has its outcome; errors stay with those."""
        with self._lock:
            now = self._clock()
            self._perform(self._machine.flush(now), now)
            batches = list(self._machine.accumulator.batches.values())
        self.wait_for(batches, timeout_ms)

    def wait_for(self, batches: Sequence[Batch], timeout_ms: int | None = None) -> None:
        """Does rounds until `batches` are done; RequestTimeout when `timeout_ms` passes first."""
        if not self._rounds_until(lambda: all(batch.is_done for batch in batches), timeout_ms):
            raise RequestTimeout(f"records had no outcome within {timeout_ms} ms")

    def _rounds_until(self, is_over: Callable[[], bool], timeout_ms: int | None) -> bool:
        deadline = None if timeout_ms is None else self._clock() + timeout_ms
        while not self._look(is_over):
            left = ROUND_MS if deadline is None else min(ROUND_MS, deadline - self._clock())
            if left <= 0:
                return False
            self._wires.round(left)
        return True

    def _look(self, is_over: Callable[[], bool]) -> bool:
        with self._lock:
            for effect in self._session.outcomes:
                if isinstance(effect, Resolve):
                    self._resolved[effect.operation] = effect.failure
            self._session.outcomes.clear()
            return is_over()

    # --- transactions ---------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Takes over the transactional id and fences a former owner. After RequestTimeout call it again."""
        self._operate(self._machine.init_transactions, Operation.INIT_TRANSACTIONS)

    def begin_transaction(self) -> None:
        """Opens a transaction; what is sent from now on belongs to it."""
        with self._lock:
            self._machine.begin()

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int], group_metadata: ConsumerGroupMetadata | str
    ) -> None:
        """Commits a group's offsets with the transaction. Returns at once; a refusal shows at commit.

        `group_metadata` is what `consumer.group_metadata()` returns: if another consumer has the partitions
        by now, the transaction cannot commit (KIP-447). With a group name alone nothing is fenced.
        """
        with self._lock:
            now = self._clock()
            self._perform(self._machine.send_offsets(offsets, group_metadata, now), now)
            self._wires.push()
            self._keeper.want()

    def commit_transaction(self, timeout_ms: int | None = None) -> None:
        """Commits: all is visible, or an error says what to do: CommitOutcomeUnknown without an answer."""
        try:
            self._operate(self._machine.commit, Operation.COMMIT, timeout_ms)
        except BaseException:
            # Also Ctrl-C: whoever does not wait for the answer cannot know it.
            self._unfinished = None
            with self._lock:
                now = self._clock()
                self._perform(self._machine.give_up_commit(now), now)
            raise

    def abort_transaction(self) -> None:
        """Aborts; nothing of it will be visible. RequestTimeout after max_block_ms: call it again."""
        self._abort(None)

    def _abort(self, timeout_ms: int | None) -> None:
        self._operate(self._machine.abort, Operation.ABORT, timeout_ms)

    def _operate(
        self, start: Callable[[int], list[Effect]], operation: Operation, timeout_ms: int | None = None
    ) -> None:
        if self._unfinished is not operation:  # the same call again waits on, or finds what came meanwhile
            self._look(lambda: self._resolved.pop(operation, None) is None)
            with self._lock:
                now = self._clock()
                self._perform(start(now), now)
        self._unfinished = operation
        timeout_ms = self.settings.max_block_ms if timeout_ms is None else timeout_ms
        if not self._rounds_until(lambda: operation in self._resolved, timeout_ms):
            self._time_out(operation, timeout_ms)
        self._unfinished = None
        failure = self._resolved.pop(operation)
        if failure is not None:
            raise failure.exception()

    def _time_out(self, operation: Operation, timeout_ms: int) -> None:
        """A commit that timed out is given up and fails with what is known; other calls can be made again."""
        if operation is not Operation.COMMIT:
            raise RequestTimeout(f"{operation.value}() was not done within {timeout_ms} ms")
        with self._lock:
            now = self._clock()
            self._perform(self._machine.give_up_commit(now), now)
        self._look(lambda: True)

    @contextmanager
    def transaction(self) -> Generator[Producer]:
        """Begins; commits at the end, aborts when the block raises, never after an uncertain commit."""
        self.begin_transaction()
        try:
            yield self
        except BaseException as problem:
            self._abort_after(problem)
            raise
        try:
            self.commit_transaction()
        except TransactionAborted as problem:
            self._abort_after(problem)
            raise

    def _abort_after(self, problem: BaseException) -> None:
        """The problem is what the caller hears of; that the abort failed too is a note on it."""
        if not self._machine.may_abort:
            return
        try:
            # Whoever pressed Ctrl-C does not want to wait for a broker that is gone.
            self._abort(None if isinstance(problem, Exception) else ABORT_GRACE_MS)
        except ClientError as second:
            problem.add_note(f"and abort_transaction() failed: {second}")

    # --- machinery ------------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect], now: int) -> None:
        self._session.perform(effects, now)

    def _has_work(self) -> bool:
        return bool(self._machine.accumulator.batches) or self._machine.is_waiting

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Sends what is left, aborts an open transaction, closes. Records without an outcome get none."""
        try:
            if self._machine.may_abort:
                self._abort(timeout_ms)
            elif not self._machine.is_over:
                self.flush(timeout_ms)
        finally:
            self._keeper.stop()
            with self._lock:
                now = self._clock()
                self._perform(self._machine.close(now), now)
            self._wires.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, _kind: object, problem: BaseException | None, _trace: object) -> None:
        if problem is None:
            self.close()
            return
        try:
            self.close(ABORT_GRACE_MS)
        except ClientError as second:
            problem.add_note(f"and closing the producer failed: {second}")
