"""The async producer, on trio and on asyncio: the cores with sockets, and no thread.

Rule: sending never waits unless there is no room, and then
says so; nothing per record awaits or is scheduled.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from fencepost.client.batch import Batch, Headers
from fencepost.client.columns import shares
from fencepost.client.effects import Effect, Operation
from fencepost.client.errors import (
    BufferFull,
    ClientError,
    CommitOutcomeUnknown,
    RequestTimeout,
    UnknownTopic,
    WrongState,
)
from fencepost.client.group_offsets import ConsumerGroupMetadata
from fencepost.client.producer import ProducerMachine
from fencepost.client.send_future import PendingColumn, PendingRecord, RecordMetadata
from fencepost.client.send_path import Sending
from fencepost.client.serializers import Serializer
from fencepost.client.settings import (
    ABORT_GRACE_MS,
    CLOSE_TIMEOUT_MS,
    UNKNOWN_TOPIC_PATIENCE_MS,
    ProducerSettings,
    compression_named,
)
from fencepost.client.shells.aio_consumer import AsyncAdmin, AsyncConsumer
from fencepost.client.shells.aio_sockets import AsyncClient, AsyncWires
from fencepost.client.shells.sync_sockets import Clock, monotonic_ms, wall_ms
from fencepost.protocol.terms import TopicPartition

__all__ = ["AsyncAdmin", "AsyncConsumer", "AsyncOutcome", "AsyncOutcomes", "AsyncProducer"]

# How long leaving `async with` waits for what is on its way, and
# how long a cancelled task waits for its abort.
# A topic that is not known yet is looked for this often; its metadata is asked for by the core.
TOPIC_LOOK_MS = 20


class AsyncOutcome(PendingRecord["AsyncProducer"]):
    """One record that was sent; awaiting it waits for its acknowledgement."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        return self._acknowledged().__await__()

    async def _acknowledged(self) -> RecordMetadata:
        if not self[1].is_done:
            await self[0].wait_for([self[1]])
        return self.outcome()


class AsyncOutcomes(PendingColumn["AsyncProducer"]):
    """The records of one `send_many`; awaiting it waits for the acknowledgement of all."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, list[RecordMetadata]]:
        return self._acknowledged().__await__()

    async def _acknowledged(self) -> list[RecordMetadata]:
        await self._owner.wait_for(self.batches)
        return self.outcomes()


class AsyncProducer(AsyncClient, Sending[AsyncOutcome]):
    """A producer for one event loop: `async with` connects it, and flushes when it is left."""

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
        self._unfinished: Operation | None = None  # timed out or cancelled for its caller, and goes on
        self._machine = ProducerMachine(bootstrap, self.settings)
        super().__init__(
            self._machine.accumulator,
            AsyncOutcome,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )
        self._wires = AsyncWires(
            self._machine, client_id=client_id, request_timeout_ms=request_timeout_ms, clock=clock
        )

    # --- records --------------------------------------------------------------------------------------------

    send_nowait = Sending[AsyncOutcome].put

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> AsyncOutcome:
        """Takes one record. Waits for room and for a topic that is new, and is no checkpoint else."""
        while True:
            try:
                return self.put(
                    topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
                )
            except (BufferFull, _NotKnownYet):
                await self._room_for(topic)

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        partition: int | None = None,
    ) -> AsyncOutcomes:
        """Takes columns of records, several times faster than `send`; waits as `send` does."""
        outcomes = AsyncOutcomes(self)
        if not values:
            return outcomes
        values, keys = self._columns(values, keys)
        while (route := self._machine.route(topic)) is None:
            await self._room_for(topic)
        for share in shares(route, values, keys, partition):
            start = 0
            while start < len(share.values):
                try:
                    run = self._put_run(topic, share, start)
                except (BufferFull, _NotKnownYet):
                    await self._room_for(topic)
                    continue
                outcomes.add(run, share.places[start : start + run.length])
                start += run.length
        return outcomes

    async def _room_for(self, topic: str) -> None:
        """Waits for a topic to be known and for room; BufferFull, RequestTimeout or UnknownTopic."""
        self._check_running()
        machine = self._machine

        def may_send() -> bool:
            return machine.is_over or machine.accumulator.has_room

        deadline = self._clock() + self.settings.max_block_ms
        patience = self._clock() + UNKNOWN_TOPIC_PATIENCE_MS
        while machine.partition_count(topic) is None:
            error = machine.cluster.topic_errors.get(topic)
            if error is not None and self._clock() >= patience:
                raise UnknownTopic(f"topic {topic!r}: {error.meaning}", error)
            if self._clock() >= deadline:
                raise RequestTimeout(f"no metadata about topic {topic!r} within max_block_ms")
            now = self._clock()
            self._wires.perform(machine.wake(now), now)
            await self._wires.wait(
                "anything", lambda: machine.partition_count(topic) is not None, TOPIC_LOOK_MS
            )
        if not await self._wires.wait("room", may_send, max(0, deadline - self._clock())):
            raise BufferFull(
                f"no room in buffer_memory within max_block_ms ({self.settings.max_block_ms} ms)"
            )

    def _put_slowly(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> AsyncOutcome:
        self._check_running()
        now = self._clock()
        try:
            place = self._machine.append(
                topic,
                value,
                key,
                partition=partition,
                timestamp_ms=timestamp_ms,
                headers=headers,
                now=now,
                wall_ms=wall_ms(),
            )
        finally:
            self._wires.perform(self._machine.wake(now), now)
        if place is None:
            raise _NotKnownYet(f"topic {topic!r} is not known yet: `await send()` waits until it is")
        return AsyncOutcome((self, *place))

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Sends all that lingers and waits until every record has its outcome; errors stay with those."""
        now = self._clock()
        self._wires.perform(self._machine.flush(now), now)
        await self.wait_for(list(self._machine.accumulator.batches.values()), timeout_ms)

    async def wait_for(self, batches: Sequence[Batch], timeout_ms: int | None = None) -> None:
        """Waits until `batches` are done; RequestTimeout when `timeout_ms` passes first."""
        self._check_running()
        with anyio.move_on_after(None if timeout_ms is None else timeout_ms / 1000) as scope:
            for batch in batches:
                await self._wires.wait(("batch", batch.number), lambda batch=batch: batch.is_done)
        if scope.cancelled_caught:
            raise RequestTimeout(f"records had no outcome within {timeout_ms} ms")

    # --- transactions ---------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Takes over the transactional id and fences a former owner. After RequestTimeout call it again."""
        await self._operate(self._machine.init_transactions, Operation.INIT_TRANSACTIONS)

    def begin_transaction(self) -> None:
        """Opens a transaction; what is sent from now on belongs to it."""
        self._machine.begin()

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int], group_metadata: ConsumerGroupMetadata | str
    ) -> None:
        """Commits a group's offsets with the transaction. Returns at once; a refusal shows at commit.

        `group_metadata` is what `consumer.group_metadata()` returns: if another consumer has the partitions
        by now, the transaction cannot commit (KIP-447). With a group name alone nothing is fenced.
        """
        self._check_running()
        now = self._clock()
        self._wires.perform(self._machine.send_offsets(offsets, group_metadata, now), now)

    async def commit_transaction(self, timeout_ms: int | None = None) -> None:
        """Commits: all of it is visible, or an error says what to do.

        CommitOutcomeUnknown when no answer came in time or the caller was cancelled while it was on its way:
        that error takes the place of the cancellation, because nobody may overlook it.
        """
        try:
            await self._operate(self._machine.commit, Operation.COMMIT, timeout_ms)
        except anyio.get_cancelled_exc_class() as cancelled:
            self._give_up_commit()
            failure = self._wires.resolved.pop(Operation.COMMIT)
            if failure is None:
                return  # its answer came in the same moment: it is done
            if failure.kind is CommitOutcomeUnknown:
                raise failure.exception() from cancelled
            raise

    async def abort_transaction(self) -> None:
        """Aborts; nothing of it will be visible. RequestTimeout after max_block_ms: call it again."""
        await self._operate(self._machine.abort, Operation.ABORT)

    async def _operate(
        self, start: Callable[[int], list[Effect]], operation: Operation, timeout_ms: int | None = None
    ) -> None:
        self._check_running()
        resolved = self._wires.resolved
        if self._unfinished is not operation:  # the same call again waits on, or finds what came meanwhile
            resolved.pop(operation, None)
            now = self._clock()
            self._wires.perform(start(now), now)
        self._unfinished = operation
        timeout_ms = self.settings.max_block_ms if timeout_ms is None else timeout_ms
        if not await self._wires.wait(operation, lambda: operation in resolved, timeout_ms):
            if operation is not Operation.COMMIT:
                raise RequestTimeout(f"{operation.value}() was not done within {timeout_ms} ms")
            self._give_up_commit()
        self._unfinished = None
        failure = resolved.pop(operation)
        if failure is not None:
            raise failure.exception()

    def _give_up_commit(self) -> None:
        self._unfinished = None
        now = self._clock()
        self._wires.perform(self._machine.give_up_commit(now), now)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncProducer]:
        """Begins; commits at the end, aborts when the block raises, never after an uncertain commit."""
        self.begin_transaction()
        try:
            yield self
        except BaseException as problem:
            await self._abort_after(problem)
            raise
        try:
            await self.commit_transaction()
        except BaseException as problem:
            await self._abort_after(problem)
            raise

    async def _abort_after(self, problem: BaseException) -> None:
        """The problem is what the caller hears of. A cancelled block still gets a moment for its abort."""
        if not self._machine.may_abort:
            return
        try:
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + ABORT_GRACE_MS / 1000):
                await self.abort_transaction()
        except ClientError as second:
            problem.add_note(f"and abort_transaction() failed: {second}")

    # --- life -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> AsyncProducer:
        await self._wires.start()
        return self

    async def _close(self, problem: BaseException | None) -> None:
        """Sends what is left, and aborts an open transaction; a block that raised is not waited for long."""
        grace_ms = CLOSE_TIMEOUT_MS if problem is None else ABORT_GRACE_MS
        try:
            with anyio.CancelScope(
                shield=problem is not None, deadline=anyio.current_time() + grace_ms / 1000
            ):
                if self._machine.may_abort:
                    await self.abort_transaction()
                elif not self._machine.is_over:
                    await self.flush()
        except ClientError as second:
            if problem is None:
                raise
            problem.add_note(f"and closing the producer failed: {second}")
        finally:
            now = self._clock()
            self._wires.perform(self._machine.close(now), now)

    def _check_running(self) -> None:
        if not self._wires.is_running:
            raise WrongState("an async producer sends inside `async with` only")


class _NotKnownYet(UnknownTopic):
    """The topic is being asked for."""
