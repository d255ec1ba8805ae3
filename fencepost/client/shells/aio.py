"""The async producer, consumer and admin, on trio and on asyncio. Their methods are scripts
(`client/calls.py`), run by the async driver.

A client works inside its `async with` block. Several clients must be exited in the reverse of the order in
which they were entered, as nested blocks do, because the tasks of each belong to a task group.
"""

# The functions that make methods use the private parts of a client:
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from fencepost.client.admin import AdminCalls
from fencepost.client.arguments import Milliseconds, PartitionNumber, checks_arguments
from fencepost.client.batch import Headers, OnDelivery, ProducerRecord
from fencepost.client.calls import CallScript
from fencepost.client.consumer_calls import ConsumerCalls
from fencepost.client.consumer_records import Record
from fencepost.client.errors import BufferFull
from fencepost.client.producer_calls import ProducerCalls, TopicNotLoaded
from fencepost.client.send_future import BatchRun, PendingColumn, PendingRecord, RecordMetadata, StoredRecords
from fencepost.client.send_path import SendPath, split_by_partition
from fencepost.client.settings import CLOSE_TIMEOUT_MS
from fencepost.client.shells.aio_driver import AsyncDriver
from fencepost.client.shells.clients import (
    WAIT_FOR_RECORDS_MS,
    AdminClient,
    Client,
    ConsumerClient,
    ProducerClient,
    described,
    public,
)

__all__ = ["AsyncAdmin", "AsyncConsumer", "AsyncProducer", "AsyncSendFuture", "AsyncSendFutures"]

ResultT = TypeVar("ResultT")
CallsT = TypeVar("CallsT")
P = ParamSpec("P")


def awaited(
    script: Callable[Concatenate[CallsT, P], CallScript[ResultT]],
) -> Callable[Concatenate[Client[AsyncDriver, CallsT], P], Coroutine[Any, Any, ResultT]]:
    """A method that runs the script; the calling task waits."""
    run = checks_arguments(script)

    async def method(self: Client[AsyncDriver, CallsT], *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return await self._driver.run(run(self._calls, *args, **kwargs))

    return described(method, script)


def at_once(
    call: Callable[Concatenate[CallsT, P], ResultT],
) -> Callable[Concatenate[Client[AsyncDriver, CallsT], P], ResultT]:
    """A method that never waits. It needs no lock: a task is not interrupted between two awaits."""
    run = checks_arguments(call)

    def method(self: Client[AsyncDriver, CallsT], *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return run(self._calls, *args, **kwargs)

    return described(method, call)


# --- the producer -------------------------------------------------------------------------------------------


class AsyncSendFuture(PendingRecord["AsyncProducer"]):
    """The future of one record; awaiting it returns its RecordMetadata or raises its error."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        return self._acknowledged().__await__()

    async def _acknowledged(self) -> RecordMetadata:
        if not self[1].is_done:
            await self[0].wait_for([self[1]])
        return self.outcome()


class AsyncSendFutures(PendingColumn["AsyncProducer"]):
    """The futures of one `send_many`; awaiting them returns all RecordMetadata or raises the first error."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, StoredRecords]:
        return self._acknowledged().__await__()

    async def _acknowledged(self) -> StoredRecords:
        await self._owner.wait_for(self.batches)
        return self.outcomes()


class AsyncProducer(ProducerClient[AsyncSendFuture, AsyncDriver]):
    """A producer: idempotent, or transactional if it has a `transactional_id` (KIP-98).

    One task at a time sends and controls transactions. The end of the `async with` block flushes and closes
    the producer. Leave clients in the reverse order of entering them, as nested blocks do.
    """

    _make_driver = AsyncDriver
    _make_future = AsyncSendFuture

    overdue = at_once(ProducerCalls.overdue)
    flush = awaited(ProducerCalls.flush)
    wait_for = awaited(ProducerCalls.wait_for)
    init_transactions = awaited(ProducerCalls.init_transactions)
    begin_transaction = at_once(ProducerCalls.begin_transaction)
    send_offsets_to_transaction = at_once(ProducerCalls.send_offsets_to_transaction)
    commit_transaction = awaited(ProducerCalls.commit_transaction)
    abort_transaction = awaited(ProducerCalls.abort_transaction)

    send_nowait = public(SendPath[AsyncSendFuture].put, "send_nowait", AsyncSendFuture)

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        partition: PartitionNumber | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> AsyncSendFuture:
        """Sends one record. Waits only while the buffer is full or the topic is unknown, up to
        `max_block_ms`; otherwise it is not a checkpoint. Errors as for `put`.
        """
        try:
            future = self.put(topic, value, key, partition, timestamp_ms, headers, on_delivery)
        except (BufferFull, TopicNotLoaded):
            future = None  # an error of the wait does not show this one as its context
        if future is None:
            key, value = self._serialize(key, value)
            record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers, on_delivery)
            future = AsyncSendFuture((self, *await self._driver.run(self._calls.append(record))))
        return future

    @checks_arguments
    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        partition: PartitionNumber | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> AsyncSendFutures:
        """Sends columns of records to one topic, several times faster than `send`; waits as `send` does.

        `values`: one per record, for the value serializer. `keys`: as many keys, None for a record without
        one; by default no record has a key. `on_delivery`: called once for each record, like that of `send`,
        but stored once per batch. If the call is interrupted or raises an error while it waits, some of the
        records may be sent.
        """
        futures = AsyncSendFutures(self)
        if not values:
            return futures
        values, keys, is_plain = self._columns(values, keys)
        route = await self._driver.run(self._calls.route(topic))
        for part in split_by_partition(
            route, values, keys, partition, is_plain=is_plain, on_delivery=on_delivery
        ):
            start = 0
            while start < len(part.values):
                try:
                    run = self._put_run(topic, part, start)
                except (BufferFull, TopicNotLoaded):
                    run = None
                if run is None:
                    record = part.record(topic, start)
                    run = BatchRun(*await self._driver.run(self._calls.append(record)), 1)
                futures.add(run, part.indexes[start : start + run.length])
                start += run.length
        return futures

    def _put_slowly(self, record: ProducerRecord) -> AsyncSendFuture:
        self._driver.check_running()
        return AsyncSendFuture((self, *self._calls.append_nowait(record)))

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncProducer]:
        """A transaction as a block: commits at its end, aborts when the block raises or the commit fails.

        An abort waits `max_block_ms`, or five seconds after Ctrl-C or a cancellation. If it shows that a
        newer producer has the id, the block raises ProducerFenced instead of the client's first error, and
        likewise with any other error that ends the producer. Otherwise a failure of the abort becomes a note
        on the exception; an exception of the program is never replaced. A commit whose outcome is unknown is
        never aborted.
        """
        self.begin_transaction()
        try:
            yield self
        except BaseException as problem:
            await self._driver.run(self._calls.abort_after(problem))
            raise
        await self._driver.run(self._calls.commit_block())

    @checks_arguments
    async def close(self, timeout_ms: Milliseconds = CLOSE_TIMEOUT_MS) -> None:
        """Closes the producer: aborts an open transaction, or sends the remaining records; then disconnects.

        `timeout_ms`: the limit; then RequestTimeout, and the producer is closed nevertheless. Records without
        an acknowledgement get ClientClosed.
        """
        await self._driver.end(self._calls.close(timeout_ms))

    async def __aenter__(self) -> AsyncProducer:
        await self._driver.start()
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, problem: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            await self._driver.end(self._calls.close_after(problem))
        finally:
            await self._driver.leave()


# --- consumer and admin -------------------------------------------------------------------------------------


class AsyncRecords(AsyncIterator[Record]):
    """The records of a consumer one by one. Not a generator, because a loop may end without closing it."""

    def __init__(self, consumer: AsyncConsumer, calls: ConsumerCalls) -> None:
        self._consumer = consumer
        self._calls = calls
        self._polled: Iterator[Record] = iter(())

    async def __anext__(self) -> Record:
        while (record := next(self._polled, None)) is None:
            self._polled = self._calls.one_by_one(await self._consumer.poll(WAIT_FOR_RECORDS_MS))
        return record


class AsyncConsumer(ConsumerClient[AsyncDriver]):
    """A consumer of the partitions given to assign(), or of those that its group assigns to it from
    the topics given to subscribe().

    poll() returns batches. There is no automatic commit: call commit(), or send `group_metadata()` and the
    offsets with a transaction.
    """

    _make_driver = AsyncDriver

    assign = at_once(ConsumerCalls.assign)
    subscribe = at_once(ConsumerCalls.subscribe)
    unsubscribe = awaited(ConsumerCalls.unsubscribe)
    assignment = at_once(ConsumerCalls.assignment)
    group_metadata = at_once(ConsumerCalls.group_metadata)
    poll = awaited(ConsumerCalls.poll)
    position = awaited(ConsumerCalls.position)
    fetch_errors = at_once(ConsumerCalls.fetch_errors)
    pause = at_once(ConsumerCalls.pause)
    resume = at_once(ConsumerCalls.resume)
    paused = at_once(ConsumerCalls.paused)
    seek = at_once(ConsumerCalls.seek)
    seek_to_beginning = at_once(ConsumerCalls.seek_to_beginning)
    seek_to_end = at_once(ConsumerCalls.seek_to_end)
    committed = awaited(ConsumerCalls.committed)
    committed_metadata = awaited(ConsumerCalls.committed_metadata)
    commit = awaited(ConsumerCalls.commit)

    async def close(self) -> None:
        """Leaves the group, then closes the connections."""
        self._calls.check_not_calling_back("close")
        await self._driver.end(self._calls.close())

    def __aiter__(self) -> AsyncIterator[Record]:
        """The records one by one, without end; `poll` returns whole batches, and is several times faster."""
        return AsyncRecords(self, self._calls)

    async def __aenter__(self) -> AsyncConsumer:
        await self._driver.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        try:
            await self.close()
        finally:
            await self._driver.leave()


class AsyncAdmin(AdminClient[AsyncDriver]):
    """An administrator's client: topics, offsets, transactions, producers and groups of a cluster.

    Every call raises RequestFailed when the broker rejects the request; its `error` is Kafka's error code.
    """

    _make_driver = AsyncDriver

    create_topic = awaited(AdminCalls.create_topic)
    create_partitions = awaited(AdminCalls.create_partitions)
    delete_topic = awaited(AdminCalls.delete_topic)
    list_topics = awaited(AdminCalls.list_topics)
    describe_topic = awaited(AdminCalls.describe_topic)
    describe_topic_configs = awaited(AdminCalls.describe_topic_configs)
    alter_topic_configs = awaited(AdminCalls.alter_topic_configs)
    describe_broker_configs = awaited(AdminCalls.describe_broker_configs)
    list_brokers = awaited(AdminCalls.list_brokers)
    broker_status = awaited(AdminCalls.broker_status)
    beginning_offsets = awaited(AdminCalls.beginning_offsets)
    end_offsets = awaited(AdminCalls.end_offsets)
    offsets_for_times = awaited(AdminCalls.offsets_for_times)
    list_offsets = awaited(AdminCalls.list_offsets)
    delete_records = awaited(AdminCalls.delete_records)
    list_transactions = awaited(AdminCalls.list_transactions)
    transaction_version = awaited(AdminCalls.transaction_version)
    find_coordinator = awaited(AdminCalls.find_coordinator)
    describe_transaction = awaited(AdminCalls.describe_transaction)
    describe_producers = awaited(AdminCalls.describe_producers)
    force_terminate_transaction = awaited(AdminCalls.force_terminate_transaction)
    abort_transaction = awaited(AdminCalls.abort_transaction)
    list_consumer_groups = awaited(AdminCalls.list_consumer_groups)
    describe_consumer_group = awaited(AdminCalls.describe_consumer_group)
    list_consumer_group_offsets = awaited(AdminCalls.list_consumer_group_offsets)
    alter_consumer_group_offsets = awaited(AdminCalls.alter_consumer_group_offsets)
    delete_consumer_group = awaited(AdminCalls.delete_consumer_group)
    delete_consumer_group_offsets = awaited(AdminCalls.delete_consumer_group_offsets)
    add_fault = awaited(AdminCalls.add_fault)
    list_faults = awaited(AdminCalls.list_faults)
    end_fault = awaited(AdminCalls.end_fault)
    remove_fault = awaited(AdminCalls.remove_fault)
    follow = awaited(AdminCalls.follow)

    async def close(self) -> None:
        """Closes the connections."""
        await self._driver.stop()

    async def __aenter__(self) -> AsyncAdmin:
        await self._driver.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._driver.leave()
