"""The blocking producer, consumer and admin.

`python -m tools.unasync` generates this file from `aio.py`; edit that one. The drivers hold the differences
between the two; `client/calls.py` implements the calls.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from fencepost.client import admin as ask
from fencepost.client.admin import (
    AbortSpec,
    AdminRequest,
    GroupDescription,
    GroupListing,
    TopicDescription,
    TransactionListing,
)
from fencepost.client.calls import CallScript, ConsumerCalls, RequestCalls
from fencepost.client.consumer import ConsumerMachine
from fencepost.client.consumer_records import ConsumedBatch, RecordDecoder
from fencepost.client.errors import WrongState
from fencepost.client.group_member import RebalanceListener
from fencepost.client.group_offsets import ConsumerGroupMetadata
from fencepost.client.producer import ProducerMachine
from fencepost.client.requests import RequestMachine
from fencepost.client.serializers import Deserializer, Serializer
from fencepost.client.settings import (
    CLOSE_TIMEOUT_MS,
    ConsumerSettings,
    ProducerSettings,
    Reset,
    compression_named,
    isolation_named,
)
from fencepost.client.shells.sockets import Clock, monotonic_ms
from fencepost.client.shells.sync_driver import Driver, ProducerRecords, SendFuture, SendFutures
from fencepost.protocol import messages as m
from fencepost.protocol.terms import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_TIMESTAMP,
    GroupState,
    TopicPartition,
    TransactionState,
)

__all__ = ["Admin", "Consumer", "Producer", "SendFuture", "SendFutures"]

ResultT = TypeVar("ResultT")


class Producer(ProducerRecords):
    """A producer: idempotent, or transactional if it has a `transactional_id` (KIP-98).

    Parameters are named after Kafka's producer configs; times are milliseconds, sizes are bytes.

    `bootstrap_servers`: "host:port,host:port", at least one broker. `transactional_id`: the name that fences
    earlier producers with the same name. `transaction_timeout_ms`: the coordinator aborts a transaction that
    is open for longer. `batch_size`, `linger_ms`: a batch is sent when it has this size or this age.
    `buffer_memory`: the limit for records without an acknowledgement. `delivery_timeout_ms`: the limit from
    send() to the acknowledgement, retries included. `max_block_ms`: how long a call may wait.
    `compression_type`: none, gzip, lz4 or zstd. `key_serializer`, `value_serializer`: from objects to bytes.
    `transaction_version`: 2 for KIP-890, 0 for the protocol before it. `clock`: milliseconds, for tests.

    One task or thread at a time sends and controls transactions. The end of an `with` block flushes and
    closes the producer. ValueError if a setting is invalid.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        batch_size: int = 131_072,
        linger_ms: int = 5,
        buffer_memory: int = 33_554_432,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        max_in_flight_requests_per_connection: int = 5,
        max_block_ms: int = 60_000,
        compression_type: str = "none",
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
            max_in_flight_requests_per_connection=max_in_flight_requests_per_connection,
            max_block_ms=max_block_ms,
            compression_type=compression_named(compression_type),
            client_id=client_id,
            transaction_version=transaction_version,
        )
        machine = ProducerMachine(bootstrap_servers, self.settings)
        super().__init__(
            machine,
            Driver(machine, client_id=client_id, request_timeout_ms=request_timeout_ms, clock=clock),
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )

    def flush(self, timeout_ms: int | None = None) -> None:
        """Sends all records without lingering, and waits until each is stored or has failed.

        A failed record keeps its own error, which flush() does not raise. `timeout_ms`: the limit, None for
        no limit; then RequestTimeout.
        """
        self._driver.run(self._calls.flush(timeout_ms))

    def init_transactions(self) -> None:
        """Registers the transactional id; call it once, before the first transaction.

        It fences the former producer with this id and ends the transaction that it left open. RequestTimeout
        after `max_block_ms`: call it again to keep waiting. ProducerFenced or ProducerFailed end the
        producer.
        """
        self._driver.run(self._calls.init_transactions())

    def begin_transaction(self) -> None:
        """Begins a transaction: the records sent from now on belong to it. Sends nothing.

        WrongState before init_transactions() and while another transaction is open.
        """
        with self._driver.lock:
            self._calls.begin_transaction()

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int], group_metadata: ConsumerGroupMetadata | str
    ) -> None:
        """Adds a group's offsets to the transaction: they take effect when it commits. Does not wait.

        `offsets`: by partition, the offset of the next record to read. `group_metadata`: what
        `consumer.group_metadata()` returns. If another member has taken over the partitions since, the commit
        fails with TransactionAborted (KIP-447). A group name alone gives no such protection. A rejection is
        raised by commit_transaction().
        """
        self._driver.check_running()
        with self._driver.lock:
            self._calls.send_offsets_to_transaction(offsets, group_metadata)

    def commit_transaction(self, timeout_ms: int | None = None) -> None:
        """Commits: flushes all records of the transaction and makes them visible to read_committed readers.

        `timeout_ms`: the limit, None for `max_block_ms`. TransactionAborted when the transaction failed and
        must be aborted. CommitOutcomeUnknown when the commit was sent and no answer arrived in time, or the
        caller was interrupted; this error replaces the cancellation of a task, so that no caller can miss it.
        """
        self._driver.run(self._calls.commit_transaction(timeout_ms))

    def abort_transaction(self) -> None:
        """Aborts the transaction: read_committed readers never see its records. Unsent records are dropped.

        RequestTimeout after `max_block_ms`: call it again to keep waiting.
        """
        self._driver.run(self._calls.abort_transaction())

    @contextmanager
    def transaction(self) -> Generator[Producer]:
        """A transaction as a block: commits at its end, aborts when the block raises.

        An abort waits `max_block_ms`, or five seconds after Ctrl-C or a cancellation. Its own failure becomes
        a note of the exception. A commit whose outcome is unknown is never aborted.
        """
        self.begin_transaction()
        try:
            yield self
        except BaseException as problem:
            self._driver.run(self._calls.abort_after(problem))
            raise
        self._driver.run(self._calls.commit_block())

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Closes the producer: aborts an open transaction, or sends the remaining records; then disconnects.

        `timeout_ms`: the limit; then RequestTimeout, and the producer is closed nevertheless. Records without
        an acknowledgement get ClientClosed.
        """
        self._end(self._calls.close(timeout_ms))

    def __enter__(self) -> Producer:
        self._driver.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, problem: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._end(self._calls.close_after(problem))

    def _end(self, closing: CallScript[None]) -> None:
        """Runs the script that closes the producer, unless it is closed already."""
        try:
            if self._driver.is_running:
                self._driver.run(closing)
        finally:
            self._driver.stop()


class RequestClient:
    """A client that sends requests and waits for the replies: a consumer or an admin."""

    def __init__(self, driver: Driver, calls: RequestCalls) -> None:
        self._driver = driver
        self._requests = calls

    def _question(self, question: AdminRequest[ResultT]) -> ResultT:
        return self._driver.run(self._requests.answer_to(question))

    def close(self) -> None:
        """Closes the connections."""
        self._driver.stop()

    def __exit__(
        self, _kind: type[BaseException] | None, _problem: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


class Consumer(RequestClient):
    """A consumer of the partitions given to assign(), or of its group's share of the topics given to
    subscribe().

    Parameters are named after Kafka's consumer configs; times are milliseconds, sizes are bytes.

    `bootstrap_servers`: "host:port,host:port", at least one broker. `group_id`: needed to subscribe and to
    commit. `group_instance_id`: a static member, which may restart within the session timeout without a
    rebalance (KIP-345). `session_timeout_ms`, `heartbeat_interval_ms`: the group expels a member without
    heartbeats. `max_poll_interval_ms`: a member that does not poll for so long leaves its group (KIP-62).
    `partition_assignment_strategy`: "range", "cooperative-sticky", or both. `isolation_level`: read_committed
    (the default, unlike Kafka's) or read_uncommitted. `auto_offset_reset`: "earliest", "latest" or "error",
    for a partition without a valid offset. `fetch_max_bytes`, `fetch_max_wait_ms`: the limits of a fetch.
    `key_deserializer`, `value_deserializer`: from bytes to objects. `filters_aborted`: False shows the
    records that read_committed would filter out. `clock`: milliseconds, for tests.

    poll() returns batches. There is no automatic commit: call commit(), or send `group_metadata()` and the
    offsets with a transaction. ValueError if a setting is invalid.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        partition_assignment_strategy: Iterable[str] = ("range", "cooperative-sticky"),
        isolation_level: str = "read_committed",
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        fetch_max_bytes: int = 1_048_576,
        fetch_max_wait_ms: int = 500,
        auto_offset_reset: Reset = "earliest",
        metadata_max_age_ms: int = 300_000,
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 60_000,
        client_id: str = "",
        filters_aborted: bool = True,
        clock: Clock = monotonic_ms,
    ) -> None:
        self.settings = ConsumerSettings(
            group_id=group_id,
            group_instance_id=group_instance_id,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            partition_assignment_strategy=tuple(partition_assignment_strategy),
            isolation_level=isolation_named(isolation_level),
            fetch_max_bytes=fetch_max_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            auto_offset_reset=auto_offset_reset,
            metadata_max_age_ms=metadata_max_age_ms,
            request_timeout_ms=request_timeout_ms,
            default_api_timeout_ms=default_api_timeout_ms,
            client_id=client_id,
            filters_aborted=filters_aborted,
        )
        decoding = RecordDecoder(key=key_deserializer, value=value_deserializer)
        self._machine = ConsumerMachine(bootstrap_servers, self.settings, decoding)
        driver = Driver(
            self._machine, client_id=client_id, request_timeout_ms=request_timeout_ms, clock=clock
        )
        self._calls = ConsumerCalls(self._machine, driver)
        self._listener = RebalanceListener()
        self._is_calling_back = False
        super().__init__(driver, self._calls)

    # --- which partitions -----------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions, from the committed offset of the group or as `auto_offset_reset` says.

        Partitions that were assigned before keep their positions. WrongState while topics are subscribed.
        """
        with self._driver.lock:
            self._calls.assign(partitions)

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener | None = None) -> None:
        """Joins the group and reads this consumer's share of the topics; the next poll() starts it.

        `topics`: their names; a later call replaces them. `listener`: its methods run inside poll() when
        partitions are assigned or revoked. WrongState without a `group_id`, or while partitions are assigned
        by assign().
        """
        self._check_not_calling_back("subscribe")
        self._driver.check_running()
        with self._driver.lock:
            self._calls.subscribe(topics)
            self._listener = listener or RebalanceListener()

    def unsubscribe(self) -> None:
        """Leaves the group, which then assigns the partitions to other members.

        A static member (`group_instance_id`) keeps its partitions until its session times out (KIP-345). Does
        nothing without a subscription.
        """
        self._check_not_calling_back("unsubscribe")
        with self._driver.lock:
            self._calls.unsubscribe()
        try:
            self._call_back()
        finally:
            self._driver.run(self._calls.left())

    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        with self._driver.lock:
            return list(self._machine.readings)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The membership under which the polled records may be committed, for
        `send_offsets_to_transaction`.
        """
        with self._driver.lock:
            return self._machine.group_metadata()

    def _call_back(self) -> bool:
        """Runs the callback that is due; False if none is. poll() raises what the callback raises."""
        call = self._machine.rebalance_call
        if call is None:
            return False
        self._is_calling_back = True
        try:
            self._driver.call(getattr(self._listener, call.event.value), list(call.partitions))
        finally:
            self._is_calling_back = False
            with self._driver.lock:
                self._calls.returned()
        return True

    def _check_not_calling_back(self, call: str) -> None:
        if self._is_calling_back:
            raise WrongState(
                f"{call}() is not allowed inside a rebalance callback: return from the callback first"
            )

    # --- records --------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int = 1_000) -> list[ConsumedBatch]:
        """Returns the batches that are fetched, or arrive within `timeout_ms`; an empty list if there are
        none.

        It requests the next batches before it returns. A subscribed consumer joins its group here and runs
        the callbacks of its listener; it must poll at least every `max_poll_interval_ms`. Raises
        OffsetOutOfRange, CorruptRecords, UnknownTopic or RequestFailed when a partition cannot be read.
        """
        self._check_not_calling_back("poll")
        deadline = self._driver.now + timeout_ms
        batches = self._driver.run(self._calls.poll(timeout_ms))
        while self._call_back():
            batches = self._driver.run(self._calls.poll(max(0, deadline - self._driver.now)))
        return batches

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that poll() returns. RequestTimeout if it cannot be found in
        time.
        """
        return self._driver.run(self._calls.position(partition))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Sets the position of an assigned partition: the next record is the one at `offset`."""
        with self._driver.lock:
            self._calls.seek(partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Sets the position to the log start; of all assigned partitions if none is given."""
        with self._driver.lock:
            self._calls.seek_to(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Sets the position to the end: the last stable offset, or with read_uncommitted the high watermark.

        Applies to all assigned partitions if none is given.
        """
        with self._driver.lock:
            self._calls.seek_to(partitions, LATEST_TIMESTAMP)

    # --- offsets --------------------------------------------------------------------------------------------

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The committed offset of the group for each partition, or None.

        With read_committed it waits for open transactions that commit offsets of these partitions (KIP-447).
        """
        return self._driver.run(self._calls.committed(partitions))

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commits offsets outside any transaction; without `offsets`, the positions of all assigned
        partitions.

        `offsets`: by partition, the offset of the next record to read. CommitFailed when other members may
        already read the partitions; RebalanceInProgress when the group is between two generations.
        """
        self._driver.run(self._calls.commit(offsets))

    # --- life -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves the group, then closes the connections."""
        self._check_not_calling_back("close")
        try:
            if not self._machine.has_left:
                self.unsubscribe()
        finally:
            self._driver.stop()

    def __enter__(self) -> Consumer:
        self._driver.start()
        return self


class Admin(RequestClient):
    """An administrator's client: topics, offsets, transactions, producers and groups of a cluster.

    `bootstrap_servers`: "host:port,host:port". `request_timeout_ms`: the limit of one attempt.
    `default_api_timeout_ms`: the limit of a call, retries included; then RequestTimeout. Every call raises
    RequestFailed when the broker rejects the request; its `error` is Kafka's error code.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 60_000,
        client_id: str = "",
        clock: Clock = monotonic_ms,
    ) -> None:
        machine = RequestMachine(bootstrap_servers)
        driver = Driver(machine, client_id=client_id, request_timeout_ms=request_timeout_ms, clock=clock)
        super().__init__(driver, RequestCalls(machine, driver, api_timeout_ms=default_api_timeout_ms))

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Creates a topic with this number of partitions.

        `configs`: topic configs by Kafka's names; only max.message.bytes is supported. RequestFailed when the
        topic exists (TOPIC_ALREADY_EXISTS), or the name, a config or the number of partitions is invalid.
        """
        self._question(ask.create_topic(name, partitions, configs or {}))

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and its records."""
        self._question(ask.delete_topic(name))

    def list_topics(self) -> list[TopicDescription]:
        """All topics, sorted by name, including internal ones."""
        return self._question(ask.list_topics())

    def describe_topic(self, name: str) -> TopicDescription:
        """One topic. RequestFailed with UNKNOWN_TOPIC_OR_PARTITION if it does not exist."""
        return self._question(ask.describe_topic(name))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each partition."""
        return self._offsets(partitions, EARLIEST_TIMESTAMP, "read_uncommitted")

    def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation_level: str = "read_committed"
    ) -> dict[TopicPartition, int]:
        """The end offset of each partition: the last stable offset, or with "read_uncommitted" the high
        watermark.
        """
        return self._offsets(partitions, LATEST_TIMESTAMP, isolation_level)

    def offsets_for_times(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition with a timestamp of at least `timestamp_ms` (since 1970), or
        -1.
        """
        return self._offsets(partitions, timestamp_ms, "read_committed")

    def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, isolation_level: str
    ) -> dict[TopicPartition, int]:
        level = isolation_named(isolation_level)
        return {where: self._question(ask.offset_of(where, timestamp, level)) for where in partitions}

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Deletes the records before an offset of each partition; returns the new log start offsets.

        `before`: offsets by partition; HIGH_WATERMARK (-1) deletes all records. RequestFailed with
        OFFSET_OUT_OF_RANGE if an offset is above the high watermark.
        """
        return {where: self._question(ask.delete_records(where, offset)) for where, offset in before.items()}

    def list_brokers(self) -> list[int]:
        """The ids of the running brokers."""
        return self._question(ask.list_brokers())

    def list_transactions(
        self,
        states: Iterable[TransactionState] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = NO_TIMESTAMP,
        transactional_id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all coordinators (KIP-664), filtered.

        `states`, `producer_ids`: only these, or all if empty. `duration_ms`: only transactions that have been
        open for longer; ids without a transaction pass, as in Kafka (KIP-994). `transactional_id_pattern`: a
        regular expression for the whole id (KIP-1152); ValueError if it is invalid.
        """
        filters = (tuple(states), tuple(producer_ids), duration_ms, transactional_id_pattern)
        brokers = self.list_brokers()
        listed = [self._question(ask.list_transactions(broker, *filters)) for broker in brokers]
        return [listing for of_broker in listed for listing in of_broker]

    def transaction_version(self) -> int:
        """The `transaction.version` of the cluster. `newest_dialect` maps it to the version for a
        producer.
        """
        return self._question(ask.transaction_version())

    def find_coordinator(self, transactional_id: str) -> int:
        """The id of the broker that coordinates a transactional id."""
        return self._question(ask.find_coordinator(transactional_id))

    def describe_transaction(self, transactional_id: str) -> m.TransactionDescription:
        """One transactional id. RequestFailed with TRANSACTIONAL_ID_NOT_FOUND if it does not exist."""
        return self._question(ask.describe_transaction(transactional_id))

    def describe_producers(
        self, partition: TopicPartition, broker_id: int | None = None
    ) -> list[m.ProducerDescription]:
        """The producers that a partition remembers, with their open transactions (KIP-664).

        The leader answers, or the broker `broker_id`, which must be a replica of the partition.
        """
        return self._question(ask.describe_producers(partition, broker_id))

    def force_terminate_transaction(self, transactional_id: str) -> None:
        """Fences the producer with this transactional id and aborts its open transaction
        (Admin.forceTerminateTransaction).

        Creates the id if it does not exist.
        """
        self._question(ask.force_terminate_transaction(transactional_id))

    def abort_transaction(self, spec: AbortSpec) -> None:
        """Ends a hanging transaction in one partition with an ABORT marker (KIP-664).

        The coordinator is not informed. RequestFailed if the partition has seen a newer epoch of the producer
        or of the coordinator.
        """
        self._question(ask.abort_transaction(spec))

    def list_consumer_groups(self, states: Iterable[GroupState] = ()) -> list[GroupListing]:
        """The consumer groups of all coordinators, in these states, or in any state if none is given."""
        wanted = tuple(states)
        brokers = self.list_brokers()
        listed = [self._question(ask.list_groups(broker, wanted)) for broker in brokers]
        return [listing for of_broker in listed for listing in of_broker]

    def describe_consumer_group(self, group_id: str) -> GroupDescription:
        """One consumer group with its members; its state is Dead if it does not exist."""
        return self._question(ask.describe_group(group_id))

    def list_consumer_group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> dict[TopicPartition, int]:
        """All committed offsets of a group. `require_stable` waits for open transactions that commit one."""
        return self._question(ask.group_offsets(group_id, require_stable=require_stable))

    def delete_consumer_group(self, group_id: str) -> None:
        """Deletes a group and its offsets. RequestFailed with NON_EMPTY_GROUP while it has members."""
        self._question(ask.delete_group(group_id))

    def delete_consumer_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Deletes the group's offsets of these partitions.

        RequestFailed with GROUP_SUBSCRIBED_TO_TOPIC if a member reads one of the topics; the other offsets
        are deleted.
        """
        self._question(ask.delete_group_offsets(group_id, partitions))

    def __enter__(self) -> Admin:
        self._driver.start()
        return self
