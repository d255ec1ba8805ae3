"""The async consumer and admin, on trio and on asyncio: the cores with sockets, and no thread.

Rule: what is fetched ahead is read while the program works on the batches it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from fencepost.client import admin as ask
from fencepost.client import group_admin as ask_groups
from fencepost.client.admin import AbortSpec, Question, TopicDescription, TransactionListing
from fencepost.client.assignment import Assigning
from fencepost.client.consumer import ConsumerMachine
from fencepost.client.consumer_records import ConsumedBatch, Decoding
from fencepost.client.errors import RequestTimeout, WrongState
from fencepost.client.group_admin import GroupDescription, GroupListing
from fencepost.client.requests import AskingMachine
from fencepost.client.retries import CoordinatorOf, Target
from fencepost.client.serializers import Deserializer
from fencepost.client.settings import ConsumerSettings, Reset, isolation_named
from fencepost.client.shells.aio_sockets import AsyncClient, AsyncWires
from fencepost.client.shells.sync_sockets import Clock, monotonic_ms
from fencepost.protocol import messages as m
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_TIMESTAMP,
    CoordinatorType,
    GroupState,
    TopicPartition,
    TransactionState,
)

ResultT = TypeVar("ResultT")


class _AsyncAsking(AsyncClient):
    """A client that asks and waits for the answer."""

    def __init__(
        self,
        machine: AskingMachine,
        *,
        client_id: str,
        request_timeout_ms: int,
        api_timeout_ms: int,
        clock: Clock,
    ) -> None:
        self._asking = machine
        self._clock = clock
        self._api_timeout_ms = api_timeout_ms
        self._wires = AsyncWires(
            machine, client_id=client_id, request_timeout_ms=request_timeout_ms, clock=clock
        )

    async def _ask(self, request: Request, target: Target) -> Any:
        """The reply, or RequestFailed, or RequestTimeout after the api timeout."""
        if not self._wires.is_running:
            raise WrongState("an async client asks inside `async with` only")
        number = self._asking.ask(request, target, deadline=self._clock() + self._api_timeout_ms)
        self._step()
        answers = self._wires.answers
        try:
            await self._wires.wait(("answer", number), lambda: number in answers)
        finally:
            self._asking.calls.cancel(number)  # whoever was cancelled does not want it any more
            answer = answers.pop(number, None)
        assert answer is not None, "every question is answered, if only by its deadline"
        if answer.failure is not None:
            raise answer.failure.exception()
        return answer.reply

    async def _question(self, question: Question[ResultT]) -> ResultT:
        return question.read(await self._ask(question.request, question.target))

    def _step(self) -> None:
        now = self._clock()
        self._wires.perform(self._asking.wake(now), now)


class AsyncConsumer(_AsyncAsking, Assigning):
    """A consumer of assigned partitions. Yields batches; records are made only when asked for."""

    def __init__(
        self,
        bootstrap: str,
        *,
        group_id: str | None = None,
        isolation_level: str = "read_committed",
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        fetch_max_bytes: int = 1_048_576,
        max_wait_ms: int = 500,
        auto_offset_reset: Reset = "earliest",
        request_timeout_ms: int = 30_000,
        api_timeout_ms: int = 60_000,
        client_id: str = "",
        filters_aborted: bool = True,
        clock: Clock = monotonic_ms,
    ) -> None:
        self.settings = ConsumerSettings(
            group_id=group_id,
            isolation_level=isolation_named(isolation_level),
            fetch_max_bytes=fetch_max_bytes,
            max_wait_ms=max_wait_ms,
            auto_offset_reset=auto_offset_reset,
            request_timeout_ms=request_timeout_ms,
            api_timeout_ms=api_timeout_ms,
            client_id=client_id,
            filters_aborted=filters_aborted,
        )
        decoding = Decoding(key=key_deserializer, value=value_deserializer)
        self._machine = ConsumerMachine(bootstrap, self.settings, decoding)
        super().__init__(
            self._machine,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            api_timeout_ms=api_timeout_ms,
            clock=clock,
        )

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that poll() gives; RequestTimeout when it cannot be found out."""
        reading = self._machine.reading(partition)
        self._step()
        found = await self._wires.wait(
            "anything",
            lambda: reading.position is not None or reading.problem is not None,
            self._api_timeout_ms,
        )
        if reading.problem is not None:
            raise reading.problem.exception()
        if not found or reading.position is None:
            raise RequestTimeout(f"the position of {partition} is not known yet")
        return reading.position

    async def poll(self, timeout_ms: int = 1_000) -> list[ConsumedBatch]:
        """The batches that come within `timeout_ms`; the next are asked for before these are read."""
        taken: list[ConsumedBatch] = []

        def is_over() -> bool:
            taken.extend(self._machine.take())
            return bool(taken)

        self._step()
        await self._wires.wait("anything", is_over, timeout_ms)
        self._step()
        return taken

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The group's committed offsets or None; read_committed waits for transactions that move them."""
        wanted = list(partitions)
        reply: m.OffsetFetchReply = await self._ask(self._machine.committed_request(wanted), self._group())
        offsets = {TopicPartition(entry.topic, entry.partition): entry.offset for entry in reply.offsets}
        return {where: offset if (offset := offsets.get(where, -1)) >= 0 else None for where in wanted}

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commits offsets outside of any transaction; without any, the positions of what was polled."""
        chosen = self._machine.positions if offsets is None else offsets
        if chosen:
            await self._ask(self._machine.commit_request(chosen), self._group())

    def _group(self) -> CoordinatorOf:
        return CoordinatorOf(CoordinatorType.GROUP, self._machine.group_id)

    async def __aenter__(self) -> AsyncConsumer:
        await self._wires.start()
        return self


class AsyncAdmin(_AsyncAsking):
    """Topics, offsets, transactions, producers and groups of a cluster, asked for and answered."""

    def __init__(
        self,
        bootstrap: str,
        *,
        request_timeout_ms: int = 30_000,
        api_timeout_ms: int = 60_000,
        client_id: str = "",
        clock: Clock = monotonic_ms,
    ) -> None:
        super().__init__(
            AskingMachine(bootstrap),
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            api_timeout_ms=api_timeout_ms,
            clock=clock,
        )

    async def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Makes a topic; of Kafka's settings `configs` may hold max.message.bytes. RequestFailed when it
        exists, or its name, a setting or the number of partitions is not allowed.
        """
        await self._question(ask.create_topic(name, partitions, configs or {}))

    async def delete_topic(self, name: str) -> None:
        """Removes a topic with its records."""
        await self._question(ask.delete_topic(name))

    async def list_topics(self) -> list[TopicDescription]:
        """Every topic by name, internal ones too."""
        return await self._question(ask.list_topics())

    async def describe_topic(self, name: str) -> TopicDescription:
        """One topic; RequestFailed with UNKNOWN_TOPIC_OR_PARTITION when there is none."""
        return await self._question(ask.describe_topic(name))

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each."""
        return await self._offsets(partitions, EARLIEST_TIMESTAMP, "read_uncommitted")

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation_level: str = "read_committed"
    ) -> dict[TopicPartition, int]:
        """The last stable offset of each, or with "read_uncommitted" the high watermark."""
        return await self._offsets(partitions, LATEST_TIMESTAMP, isolation_level)

    async def offsets_for_times(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset of each with a timestamp as late; -1 when there is none."""
        return await self._offsets(partitions, timestamp_ms, "read_committed")

    async def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, isolation_level: str
    ) -> dict[TopicPartition, int]:
        level = isolation_named(isolation_level)
        return {where: await self._question(ask.offset_of(where, timestamp, level)) for where in partitions}

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Removes what lies before an offset of each partition, or with HIGH_WATERMARK (-1) everything;
        where each log starts now. RequestFailed with OFFSET_OUT_OF_RANGE beyond the high watermark.
        """
        return {
            where: await self._question(ask.delete_records(where, offset)) for where, offset in before.items()
        }

    async def list_brokers(self) -> list[int]:
        """The ids of the brokers that are up."""
        return await self._question(ask.list_brokers())

    async def list_transactions(
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
        brokers = await self.list_brokers()
        listed = [await self._question(ask.list_transactions(broker, *filters)) for broker in brokers]
        return [listing for of_broker in listed for listing in of_broker]

    async def transaction_version(self) -> int:
        """The cluster's `transaction.version`: of a producer that shall speak like it, `newest_dialect`."""
        return await self._question(ask.transaction_version())

    async def find_coordinator(self, transactional_id: str) -> int:
        """The id of the broker that coordinates a transactional id."""
        return await self._question(ask.find_coordinator(transactional_id))

    async def describe_transaction(self, transactional_id: str) -> m.TransactionDescription:
        """One transactional id; RequestFailed with TRANSACTIONAL_ID_NOT_FOUND when there is none."""
        return await self._question(ask.describe_transaction(transactional_id))

    async def describe_producers(
        self, partition: TopicPartition, broker_id: int | None = None
    ) -> list[m.ProducerDescription]:
        """The producers that a partition remembers, with their open transactions: its leader is asked, or the
        broker named, which must have the partition.
        """
        return await self._question(ask.describe_producers(partition, broker_id))

    async def force_terminate_transaction(self, transactional_id: str) -> None:
        """Fences whoever has the id, and aborts what it has open. An id that nobody had is made by it."""
        await self._question(ask.force_terminate_transaction(transactional_id))

    async def abort_transaction(self, spec: AbortSpec) -> None:
        """Ends a hanging transaction in one partition by an ABORT marker. Its coordinator is not told;
        RequestFailed when the partition has seen a newer epoch of the producer or of its coordinator.
        """
        await self._question(ask.abort_transaction(spec))

    async def list_groups(self, states: Iterable[GroupState] = ()) -> list[GroupListing]:
        """The consumer groups that brokers coordinate, in these states or, none named, in any."""
        wanted = tuple(states)
        brokers = await self.list_brokers()
        listed = [await self._question(ask_groups.list_groups(broker, wanted)) for broker in brokers]
        return [listing for of_broker in listed for listing in of_broker]

    async def describe_group(self, group_id: str) -> GroupDescription:
        """One consumer group with its members; Dead when there is none."""
        return await self._question(ask_groups.describe_group(group_id))

    async def group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> dict[TopicPartition, int]:
        """Every offset that the group has committed; with `require_stable` waits for transactions that move
        one.
        """
        return await self._question(ask_groups.group_offsets(group_id, require_stable=require_stable))

    async def delete_group(self, group_id: str) -> None:
        """Forgets a group and its offsets; RequestFailed with NON_EMPTY_GROUP while it has members."""
        await self._question(ask_groups.delete_group(group_id))

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forgets committed offsets, of those partitions that no member reads; RequestFailed with
        GROUP_SUBSCRIBED_TO_TOPIC when a member reads one of the others.
        """
        await self._question(ask_groups.delete_group_offsets(group_id, partitions))

    async def __aenter__(self) -> AsyncAdmin:
        await self._wires.start()
        return self
