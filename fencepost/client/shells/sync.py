"""The blocking producer, consumer and admin. Their methods are scripts (`client/calls.py`), run by the
blocking driver.
"""

# The functions that make methods use the private parts of a client:
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from fencepost.client.accumulator import AppendedRecord
from fencepost.client.admin import AdminCalls
from fencepost.client.arguments import Milliseconds, PartitionNumber, checks_arguments
from fencepost.client.batch import Headers, OnDelivery, ProducerBatch, ProducerRecord
from fencepost.client.calls import CallScript
from fencepost.client.consumer_calls import ConsumerCalls
from fencepost.client.consumer_records import Record
from fencepost.client.errors import BufferFull, ClientError
from fencepost.client.producer_calls import ProducerCalls, TopicNotLoaded
from fencepost.client.send_future import (
    PendingColumn,
    PendingRecord,
    RecordMetadata,
    StoredRecords,
    make_record_metadata,
)
from fencepost.client.send_path import SendPath, split_by_partition
from fencepost.client.settings import CLOSE_TIMEOUT_MS
from fencepost.client.shells.clients import (
    WAIT_FOR_RECORDS_MS,
    AdminClient,
    Client,
    ConsumerClient,
    ProducerClient,
    described,
    public,
)
from fencepost.client.shells.signals import uninterrupted
from fencepost.client.shells.sync_driver import Driver

__all__ = ["Admin", "Consumer", "Producer", "SendFuture", "SendFutures"]

ResultT = TypeVar("ResultT")
CallsT = TypeVar("CallsT")
P = ParamSpec("P")


def blocking(
    script: Callable[Concatenate[CallsT, P], CallScript[ResultT]],
) -> Callable[Concatenate[Client[Driver, CallsT], P], ResultT]:
    """A method that runs the script; the calling thread waits."""
    run = checks_arguments(script)

    def method(self: Client[Driver, CallsT], *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return self._driver.run(run(self._calls, *args, **kwargs))

    return described(method, script)


def at_once(
    call: Callable[Concatenate[CallsT, P], ResultT],
) -> Callable[Concatenate[Client[Driver, CallsT], P], ResultT]:
    """A method that never waits, except for the lock."""
    run = checks_arguments(call)

    def method(self: Client[Driver, CallsT], *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return self._driver.do(partial(run, self._calls, *args, **kwargs))

    return described(method, call)


# --- the producer -------------------------------------------------------------------------------------------


class SendFuture(PendingRecord["Producer"]):
    """The future of one record; `result()` waits for its acknowledgement."""

    __slots__ = ()

    def result(self, timeout_ms: Milliseconds | None = None) -> RecordMetadata:
        """Returns the RecordMetadata of the record, or raises its error. `timeout_ms`: the limit, after which
        RequestTimeout is raised; None for no limit.
        """
        batch = self[1]
        if batch.base_offset >= 0:  # the usual case, without another call
            return make_record_metadata((batch.topic, batch.partition, batch.base_offset + self[2]))
        if not batch.is_done:
            self[0].wait_for([batch], timeout_ms)
        return self.outcome()


class SendFutures(PendingColumn["Producer"]):
    """The futures of one `send_many`; `result()` waits for the acknowledgement of all."""

    __slots__ = ()

    def result(self, timeout_ms: Milliseconds | None = None) -> StoredRecords:
        """Returns a RecordMetadata for each record, in the order of the values, or raises the first error.
        `timeout_ms`: the limit, after which RequestTimeout is raised; None for no limit.
        """
        self._owner.wait_for(self.batches, timeout_ms)
        return self.outcomes()


class Producer(ProducerClient[SendFuture, Driver]):
    """A producer: idempotent, or transactional if it has a `transactional_id` (KIP-98).

    Threads may share it. Any thread may send and flush; only one at a time may control transactions, and a
    transaction holds the records of all threads. The end of a `with` block flushes and closes the producer.

    Ctrl-C, or another exception of a signal handler, ends a call, and the producer remains usable. If it
    strikes between two calls that a `transaction()` block makes itself, the transaction stays open: abort it,
    or close the producer. A handler may call close(), but not send(); one that an `on_delivery` sets takes
    effect at the next call. A forked process needs clients of its own.
    """

    _make_driver = Driver
    _make_future = SendFuture

    overdue = at_once(ProducerCalls.overdue)
    flush = blocking(ProducerCalls.flush)
    wait_for = blocking(ProducerCalls.wait_for)
    init_transactions = blocking(ProducerCalls.init_transactions)
    begin_transaction = at_once(ProducerCalls.begin_transaction)
    send_offsets_to_transaction = at_once(ProducerCalls.send_offsets_to_transaction)
    commit_transaction = blocking(ProducerCalls.commit_transaction)
    abort_transaction = blocking(ProducerCalls.abort_transaction)

    send = public(SendPath[SendFuture].put, "send", SendFuture)

    def send_nowait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        partition: PartitionNumber | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> SendFuture:
        """Like `send`, but never waits: BufferFull without room, UnknownTopic while the topic or the
        partition is not known.
        """
        key, value = self._serialize(key, value)
        record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers, on_delivery)
        appended = self._driver.do(partial(self._calls.append_nowait, record))
        return SendFuture((self, *appended))

    @checks_arguments
    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        partition: PartitionNumber | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> SendFutures:
        """Sends columns of records to one topic, several times faster than `send`; waits as `send` does.

        `values`: one per record, for the value serializer. `keys`: as many keys, None for a record without
        one; by default no record has a key. `on_delivery`: called once for each record, like that of `send`,
        but stored once per batch. If the call is interrupted or raises an error while it waits, some of the
        records may be sent.
        """
        futures = SendFutures(self)
        if not values:
            return futures
        values, keys, is_plain = self._columns(values, keys)
        route = self._driver.run(self._calls.route(topic))
        for part in split_by_partition(
            route, values, keys, partition, is_plain=is_plain, on_delivery=on_delivery
        ):
            start = 0
            while start < len(part.values):
                run = self._put_run(topic, part, start)
                futures.add(run, part.indexes[start : start + run.length])
                start += run.length
        return futures

    def _put_slowly(self, record: ProducerRecord) -> SendFuture:
        appended = uninterrupted(partial(self._append_at_once, record))
        if appended is None:
            appended = self._driver.run(self._calls.append(record))
        return SendFuture((self, *appended))

    def _append_at_once(self, record: ProducerRecord) -> AppendedRecord | None:
        """None if the record must wait; an error of the wait is then not chained to this attempt's."""
        try:
            with self._driver.lock:
                appended = self._calls.append_nowait(record)
        except (BufferFull, TopicNotLoaded):
            return None
        # Once per batch, so that memory is freed before it runs out, and futures are done early.
        if not appended[1]:
            self._driver.read_answers()
        return appended

    def _count_of(self, batch: ProducerBatch) -> int:
        return self._driver.do(partial(super()._count_of, batch))

    @contextmanager
    def transaction(self) -> Generator[Producer]:
        """A transaction as a block: commits at its end, aborts when the block raises or the commit fails.

        An abort waits `max_block_ms`, or five seconds after Ctrl-C. If it shows that a newer producer has the
        id, the block raises ProducerFenced instead of the client's first error, and likewise with any other
        error that ends the producer. Otherwise a failure of the abort becomes a note on the exception; an
        exception of the program is never replaced. A commit whose outcome is unknown is never aborted.
        """
        try:
            self.begin_transaction()
        except ClientError:
            raise
        except BaseException as interruption:  # Ctrl-C: the transaction may have begun
            self._driver.run(self._calls.abort_after(interruption))
            raise
        try:
            yield self
        except BaseException as problem:
            self._driver.run(self._calls.abort_after(problem))
            raise
        self._driver.run(self._calls.commit_block())

    @checks_arguments
    def close(self, timeout_ms: Milliseconds = CLOSE_TIMEOUT_MS) -> None:
        """Closes the producer: aborts an open transaction, or sends the remaining records; then disconnects.

        `timeout_ms`: the limit; then RequestTimeout, and the producer is closed nevertheless. Records without
        an acknowledgement get ClientClosed.
        """
        self._driver.end(self._calls.close(timeout_ms))

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, problem: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._driver.end(self._calls.close_after(problem))


# --- consumer and admin -------------------------------------------------------------------------------------


class Consumer(ConsumerClient[Driver]):
    """A consumer of the partitions given to assign(), or of those that its group assigns to it from
    the topics given to subscribe().

    Ctrl-C, or another exception of a signal handler, ends a call, and the consumer remains usable; but a
    poll() that ends this way may have taken batches: seek() to the first record that the program has not
    handled. A handler may call close(), except while a callback of the listener runs.

    One thread polls and commits. Other threads may call close(), which ends a waiting call with
    ClientClosed, and methods that never wait, such as pause(), seek() and assignment().

    poll() returns batches. There is no automatic commit: call commit(), or send `group_metadata()` and the
    offsets with a transaction.
    """

    _make_driver = Driver

    assign = at_once(ConsumerCalls.assign)
    subscribe = at_once(ConsumerCalls.subscribe)
    unsubscribe = blocking(ConsumerCalls.unsubscribe)
    assignment = at_once(ConsumerCalls.assignment)
    group_metadata = at_once(ConsumerCalls.group_metadata)
    poll = blocking(ConsumerCalls.poll)
    position = blocking(ConsumerCalls.position)
    fetch_errors = at_once(ConsumerCalls.fetch_errors)
    pause = at_once(ConsumerCalls.pause)
    resume = at_once(ConsumerCalls.resume)
    paused = at_once(ConsumerCalls.paused)
    seek = at_once(ConsumerCalls.seek)
    seek_to_beginning = at_once(ConsumerCalls.seek_to_beginning)
    seek_to_end = at_once(ConsumerCalls.seek_to_end)
    committed = blocking(ConsumerCalls.committed)
    committed_metadata = blocking(ConsumerCalls.committed_metadata)
    commit = blocking(ConsumerCalls.commit)

    def close(self) -> None:
        """Leaves the group, then closes the connections."""
        self._calls.check_not_calling_back("close")
        self._driver.end(self._calls.close())

    def __iter__(self) -> Iterator[Record]:
        """The records one by one, without end; `poll` returns whole batches, and is several times faster."""
        while True:
            yield from self._calls.one_by_one(self.poll(WAIT_FOR_RECORDS_MS))

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class Admin(AdminClient[Driver]):
    """An administrator's client: topics, offsets, transactions, producers and groups of a cluster.

    Every call raises RequestFailed when the broker rejects the request; its `error` is Kafka's error code.
    """

    _make_driver = Driver

    create_topic = blocking(AdminCalls.create_topic)
    create_partitions = blocking(AdminCalls.create_partitions)
    delete_topic = blocking(AdminCalls.delete_topic)
    list_topics = blocking(AdminCalls.list_topics)
    describe_topic = blocking(AdminCalls.describe_topic)
    describe_topic_configs = blocking(AdminCalls.describe_topic_configs)
    alter_topic_configs = blocking(AdminCalls.alter_topic_configs)
    describe_broker_configs = blocking(AdminCalls.describe_broker_configs)
    list_brokers = blocking(AdminCalls.list_brokers)
    broker_status = blocking(AdminCalls.broker_status)
    beginning_offsets = blocking(AdminCalls.beginning_offsets)
    end_offsets = blocking(AdminCalls.end_offsets)
    offsets_for_times = blocking(AdminCalls.offsets_for_times)
    list_offsets = blocking(AdminCalls.list_offsets)
    delete_records = blocking(AdminCalls.delete_records)
    list_transactions = blocking(AdminCalls.list_transactions)
    transaction_version = blocking(AdminCalls.transaction_version)
    find_coordinator = blocking(AdminCalls.find_coordinator)
    describe_transaction = blocking(AdminCalls.describe_transaction)
    describe_producers = blocking(AdminCalls.describe_producers)
    force_terminate_transaction = blocking(AdminCalls.force_terminate_transaction)
    abort_transaction = blocking(AdminCalls.abort_transaction)
    list_consumer_groups = blocking(AdminCalls.list_consumer_groups)
    describe_consumer_group = blocking(AdminCalls.describe_consumer_group)
    list_consumer_group_offsets = blocking(AdminCalls.list_consumer_group_offsets)
    alter_consumer_group_offsets = blocking(AdminCalls.alter_consumer_group_offsets)
    delete_consumer_group = blocking(AdminCalls.delete_consumer_group)
    delete_consumer_group_offsets = blocking(AdminCalls.delete_consumer_group_offsets)
    add_fault = blocking(AdminCalls.add_fault)
    list_faults = blocking(AdminCalls.list_faults)
    end_fault = blocking(AdminCalls.end_fault)
    remove_fault = blocking(AdminCalls.remove_fault)
    follow = blocking(AdminCalls.follow)

    def close(self) -> None:
        """Closes the connections."""
        self._driver.stop()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
