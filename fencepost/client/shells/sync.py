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
from fencepost.client.calls import ConsumerCalls, RequestCalls
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
    """An idempotent producer, or with a `transactional_id` a transactional one. One task or thread at a time
    opens and ends transactions; a block `with` flushes at its end, and closes the connections.
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
        """Sends everything that lingers, and waits until every record has its outcome. Failures stay with
        their records; RequestTimeout when `timeout_ms` passes first.
        """
        self._driver.run(self._calls.flush(timeout_ms))

    def init_transactions(self) -> None:
        """Takes over the transactional id: fences its former owner and ends what that left open.
        RequestTimeout after `max_block_ms`: call it again, and it waits on.
        """
        self._driver.run(self._calls.init_transactions())

    def begin_transaction(self) -> None:
        """Opens a transaction; what is sent from now on belongs to it."""
        with self._driver.lock:
            self._calls.begin_transaction()

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int], group_metadata: ConsumerGroupMetadata | str
    ) -> None:
        """Commits a group's offsets with the transaction. Returns at once; a refusal shows at commit.

        `group_metadata` is what `consumer.group_metadata()` returns: if another consumer has the partitions
        by now, the transaction cannot commit (KIP-447). With a group name alone nothing is fenced.
        """
        self._driver.check_running()
        with self._driver.lock:
            self._calls.send_offsets_to_transaction(offsets, group_metadata)

    def commit_transaction(self, timeout_ms: int | None = None) -> None:
        """Commits: everything in the transaction is visible, or an error says what to do.

        CommitOutcomeUnknown when no answer came within `timeout_ms` (None: `max_block_ms`), or when the
        caller was interrupted after the request was sent. It replaces the cancellation of a task, so that it
        is not overlooked.
        """
        self._driver.run(self._calls.commit_transaction(timeout_ms))

    def abort_transaction(self) -> None:
        """Aborts: nothing in the transaction will be visible. RequestTimeout after `max_block_ms`: call it
        again.
        """
        self._driver.run(self._calls.abort_transaction())

    @contextmanager
    def transaction(self) -> Generator[Producer]:
        """Begins; commits at the end of the block, aborts when it raises. An uncertain commit is never
        aborted.
        """
        self.begin_transaction()
        try:
            yield self
        except BaseException as problem:
            self._driver.run(self._calls.abort_after(problem))
            raise
        self._driver.run(self._calls.commit_block())

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Aborts an open transaction or sends what is left, then closes the connections. RequestTimeout when
        that takes more than `timeout_ms`; the client is closed all the same.
        """
        try:
            self._driver.run(self._calls.close(timeout_ms))
        finally:
            self._driver.stop()

    def __enter__(self) -> Producer:
        self._driver.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, problem: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            self._driver.run(self._calls.close_after(problem))
        finally:
            self._driver.stop()


class RequestClient:
    """A client that sends requests and waits for the answers."""

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
    """A consumer of the partitions that `assign` names, or of its group's share of subscribed topics. Yields
    batches; records are made only when asked for. Nothing is committed automatically: commit() does, or a
    transaction that gets `group_metadata()`.
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
        """Reads these, from the group's committed offsets or as `auto_offset_reset` says, unless sought.
        WrongState while topics are subscribed.
        """
        with self._driver.lock:
            self._calls.assign(partitions)

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener | None = None) -> None:
        """Reads the share of these topics that the group gives to this consumer, from the next poll() on. The
        `listener` hears inside of poll() which partitions come and go. Called again, it changes the topics.
        """
        self._check_not_calling_back("subscribe")
        self._driver.check_running()
        with self._driver.lock:
            self._calls.subscribe(topics)
            self._listener = listener or RebalanceListener()

    def unsubscribe(self) -> None:
        """Leaves the group, which gives the partitions to others; a static member (`group_instance_id`) keeps
        them for its session timeout. Does nothing without a subscription.
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
        """The membership under which what was polled may be committed: for `send_offsets_to_transaction`."""
        with self._driver.lock:
            return self._machine.group_metadata()

    def _call_back(self) -> bool:
        """Runs the callback that is due; False when none is. What it raises is raised by poll()."""
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
        """The batches that were fetched or come within `timeout_ms`; the next are requested before these are
        read. A subscribed consumer also joins its group here and hears of rebalances; it must poll at least
        every `max_poll_interval_ms`, or it is out of the group.
        """
        self._check_not_calling_back("poll")
        deadline = self._driver.now + timeout_ms
        batches = self._driver.run(self._calls.poll(timeout_ms))
        while self._call_back():
            batches = self._driver.run(self._calls.poll(max(0, deadline - self._driver.now)))
        return batches

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that poll() returns; RequestTimeout when it cannot be found out."""
        return self._driver.run(self._calls.position(partition))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next record is the one at `offset`."""
        with self._driver.lock:
            self._calls.seek(partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """The next record is the first of the log; of all assigned partitions when none is named."""
        with self._driver.lock:
            self._calls.seek_to(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """The next record is one that does not exist yet: after the end that the isolation level allows."""
        with self._driver.lock:
            self._calls.seek_to(partitions, LATEST_TIMESTAMP)

    # --- offsets --------------------------------------------------------------------------------------------

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The group's committed offsets or None; read_committed waits for transactions that move them."""
        return self._driver.run(self._calls.committed(partitions))

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commits offsets outside of any transaction; without any, the positions of what was polled. A member
        of a group gets CommitFailed once others may read its partitions, RebalanceInProgress in between.
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
    """Topics, offsets, transactions, producers and groups of a cluster, asked for and answered."""

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
        """Makes a topic; of Kafka's settings `configs` may hold max.message.bytes. RequestFailed when it
        exists, or its name, a setting or the number of partitions is not allowed.
        """
        self._question(ask.create_topic(name, partitions, configs or {}))

    def delete_topic(self, name: str) -> None:
        """Removes a topic with its records."""
        self._question(ask.delete_topic(name))

    def list_topics(self) -> list[TopicDescription]:
        """Every topic by name, internal ones too."""
        return self._question(ask.list_topics())

    def describe_topic(self, name: str) -> TopicDescription:
        """One topic; RequestFailed with UNKNOWN_TOPIC_OR_PARTITION when there is none."""
        return self._question(ask.describe_topic(name))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each."""
        return self._offsets(partitions, EARLIEST_TIMESTAMP, "read_uncommitted")

    def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation_level: str = "read_committed"
    ) -> dict[TopicPartition, int]:
        """The last stable offset of each, or with "read_uncommitted" the high watermark."""
        return self._offsets(partitions, LATEST_TIMESTAMP, isolation_level)

    def offsets_for_times(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset of each with a timestamp as late; -1 when there is none."""
        return self._offsets(partitions, timestamp_ms, "read_committed")

    def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, isolation_level: str
    ) -> dict[TopicPartition, int]:
        level = isolation_named(isolation_level)
        return {where: self._question(ask.offset_of(where, timestamp, level)) for where in partitions}

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Removes what lies before an offset of each partition, or with HIGH_WATERMARK (-1) everything;
        where each log starts now. RequestFailed with OFFSET_OUT_OF_RANGE beyond the high watermark.
        """
        return {where: self._question(ask.delete_records(where, offset)) for where, offset in before.items()}

    def list_brokers(self) -> list[int]:
        """The ids of the brokers that are up."""
        return self._question(ask.list_brokers())

    def list_transactions(
        self,
        states: Iterable[TransactionState] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = NO_TIMESTAMP,
        transactional_id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids that coordinators know, filtered by state, producer id, how long at least a
        transaction has been open (ms; ids without one pass too, as in Kafka), and a regular expression for
        the whole id. ValueError when it is none.
        """
        filters = (tuple(states), tuple(producer_ids), duration_ms, transactional_id_pattern)
        brokers = self.list_brokers()
        listed = [self._question(ask.list_transactions(broker, *filters)) for broker in brokers]
        return [listing for of_broker in listed for listing in of_broker]

    def transaction_version(self) -> int:
        """The cluster's `transaction.version`: of a producer that shall speak like it, `newest_dialect`."""
        return self._question(ask.transaction_version())

    def find_coordinator(self, transactional_id: str) -> int:
        """The id of the broker that coordinates a transactional id."""
        return self._question(ask.find_coordinator(transactional_id))

    def describe_transaction(self, transactional_id: str) -> m.TransactionDescription:
        """One transactional id; RequestFailed with TRANSACTIONAL_ID_NOT_FOUND when there is none."""
        return self._question(ask.describe_transaction(transactional_id))

    def describe_producers(
        self, partition: TopicPartition, broker_id: int | None = None
    ) -> list[m.ProducerDescription]:
        """The producers that a partition remembers, with their open transactions: its leader is asked, or the
        broker named, which must have the partition.
        """
        return self._question(ask.describe_producers(partition, broker_id))

    def force_terminate_transaction(self, transactional_id: str) -> None:
        """Fences whoever has the id, and aborts what it has open. An id that nobody had is made by it."""
        self._question(ask.force_terminate_transaction(transactional_id))

    def abort_transaction(self, spec: AbortSpec) -> None:
        """Ends a hanging transaction in one partition by an ABORT marker. Its coordinator is not told;
        RequestFailed when the partition has seen a newer epoch of the producer or of its coordinator.
        """
        self._question(ask.abort_transaction(spec))

    def list_consumer_groups(self, states: Iterable[GroupState] = ()) -> list[GroupListing]:
        """The consumer groups that brokers coordinate, in these states or, none named, in any."""
        wanted = tuple(states)
        brokers = self.list_brokers()
        listed = [self._question(ask.list_groups(broker, wanted)) for broker in brokers]
        return [listing for of_broker in listed for listing in of_broker]

    def describe_consumer_group(self, group_id: str) -> GroupDescription:
        """One consumer group with its members; Dead when there is none."""
        return self._question(ask.describe_group(group_id))

    def list_consumer_group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> dict[TopicPartition, int]:
        """Every offset that the group has committed; with `require_stable` waits for transactions that move
        one.
        """
        return self._question(ask.group_offsets(group_id, require_stable=require_stable))

    def delete_consumer_group(self, group_id: str) -> None:
        """Forgets a group and its offsets; RequestFailed with NON_EMPTY_GROUP while it has members."""
        self._question(ask.delete_group(group_id))

    def delete_consumer_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forgets committed offsets, of those partitions that no member reads; RequestFailed with
        GROUP_SUBSCRIBED_TO_TOPIC when a member reads one of the others.
        """
        self._question(ask.delete_group_offsets(group_id, partitions))

    def __enter__(self) -> Admin:
        self._driver.start()
        return self
