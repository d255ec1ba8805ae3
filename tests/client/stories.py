"""Stories of a program and its clients, each told once for the blocking and the async clients.

Rule: a story is written for the async clients. The blocking ones look like them through `AsIfAsync`, whose
calls are done when they are awaited; so no story can depend on which clients it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from inspect import iscoroutinefunction, unwrap
from typing import Any, Final, cast

import anyio
import attrs
import pytest

from fencepost import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Broker,
    ClientError,
    ConsumedBatch,
    Consumer,
    DeliveryFailed,
    OffsetAndMetadata,
    OffsetOutOfRange,
    Producer,
    ProducerFenced,
    RebalanceListener,
    RecordMetadata,
    RequestFailed,
    RequestTimeout,
    TopicPartition,
    TransactionAborted,
    TransactionState,
    UnknownTopic,
    WrongState,
    json_deserializer,
    json_serializer,
    string_deserializer,
    string_serializer,
)
from fencepost.client.serializers import Deserializer
from fencepost.protocol.errors import ErrorCode

NO_DECODING: Final[Mapping[str, Deserializer]] = {}
HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
KINDS: Final = ("blocking", "trio", "asyncio")
PATIENCE_S: Final = 120.0  # longer than anything takes on a busy machine; only a failing test waits so long


# --- the clients of a story ---------------------------------------------------------------------------------


class AsIfAsync:
    """A blocking client, future, transaction or iterator with the face of its async twin."""

    def __init__(self, blocking: Any, twin: type[Any]) -> None:
        self._blocking, self._twin = blocking, twin

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._blocking, name)
        like: Any = getattr(self._twin, name, None)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            return AsIfAsync.of(found(*args, **kwargs))

        async def call_later(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        is_async = iscoroutinefunction(like) or iscoroutinefunction(unwrap(like))
        return call_later if is_async else call

    @staticmethod
    def of(result: Any) -> Any:
        """A result as the async client would return it: futures and transactions are wrapped, too."""
        is_wrapped = hasattr(result, "result") or hasattr(result, "gen")
        return AsIfAsync(result, object) if is_wrapped else result

    def __len__(self) -> int:
        return len(self._blocking)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._result().__await__()

    async def _result(self) -> Any:
        return self._blocking.result()

    async def __aenter__(self) -> Any:
        entered = self._blocking.__enter__()
        return self if entered is self._blocking else entered

    async def __aexit__(self, *problem: Any) -> Any:
        return self._blocking.__exit__(*problem)

    def __aiter__(self) -> AsyncIterator[Any]:
        return cast("AsyncIterator[Any]", AsIfAsync(iter(self._blocking), object))

    async def __anext__(self) -> Any:
        return next(self._blocking)


@attrs.frozen
class Clients:
    """Makes the clients of one story, of one kind, for one broker with the topic `t` of two partitions."""

    broker: Broker
    are_blocking: bool

    def _made(self, twin: type[Any], blocking: type[Any], settings: dict[str, Any]) -> Any:
        settings = {"bootstrap_servers": self.broker.address, **settings}
        return AsIfAsync(blocking(**settings), twin) if self.are_blocking else twin(**settings)

    def producer(self, **settings: Any) -> AsyncProducer:
        return self._made(AsyncProducer, Producer, settings)

    def consumer(self, **settings: Any) -> AsyncConsumer:
        return self._made(AsyncConsumer, Consumer, settings)

    def admin(self, **settings: Any) -> AsyncAdmin:
        return self._made(AsyncAdmin, Admin, settings)

    async def stored(
        self, isolation_level: str = "read_committed", decoding: Mapping[str, Deserializer] = NO_DECODING
    ) -> list[Any]:
        """The values of both partitions up to their ends, in order of partition and offset."""
        places = [HERE, THERE]
        async with (
            self.admin() as admin,
            self.consumer(isolation_level=isolation_level, **decoding) as consumer,
        ):
            ends = await admin.end_offsets(places, isolation_level)
            consumer.assign(places)
            found: list[ConsumedBatch] = []
            while any([await consumer.position(where) < end for where, end in ends.items()]):
                found += await consumer.poll()
            return [
                value
                for where in places
                for batch in found
                if batch.partition == where
                for value in batch.values
            ]


Story = Callable[[Clients], Coroutine[Any, Any, None]]
STORIES: Final[list[Story]] = []


def story(told: Story) -> Story:
    """Adds a story to the body."""
    STORIES.append(told)
    return told


def tell_blocking(told: Coroutine[Any, Any, None]) -> None:
    """Runs a story on blocking clients: it never waits for an event loop."""
    with pytest.raises(StopIteration):
        told.send(None)


def tell(told: Story, broker: Broker, kind: str) -> None:
    """Runs a story on clients of one of KINDS."""
    if kind == "blocking":
        tell_blocking(told(Clients(broker, are_blocking=True)))
    else:
        anyio.run(_limited, told, broker, backend=kind)


async def _limited(told: Story, broker: Broker) -> None:
    with anyio.fail_after(PATIENCE_S):
        await told(Clients(broker, are_blocking=False))


async def poll_until(consumer: AsyncConsumer, count: int) -> list[Any]:
    """Polls until `count` values were read."""
    values: list[Any] = []
    while len(values) < count:
        values += [value for batch in await consumer.poll() for value in batch.values]
    return values


# --- producing ----------------------------------------------------------------------------------------------


@story
async def commits_are_visible_and_aborts_are_not(clients: Clients) -> None:
    async with clients.producer(transactional_id="pay") as producer:
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send("t", b"yes", partition=0)
        with pytest.raises(KeyError, match="mine"):
            await _fail_in_a_transaction(producer)
    assert await clients.stored() == [b"yes"]
    assert await clients.stored("read_uncommitted") == [b"yes", b"no"]


async def _fail_in_a_transaction(producer: AsyncProducer) -> None:
    async with producer.transaction():
        await (await producer.send("t", b"no", partition=0))
        raise KeyError("mine")


@story
async def an_open_transaction_holds_committed_readers_back(clients: Clients) -> None:
    async with clients.producer(transactional_id="pay") as producer, clients.producer() as other:
        await producer.init_transactions()
        producer.begin_transaction()
        await (await producer.send("t", b"open", partition=0))
        await (await other.send("t", b"after", partition=0))
        assert await clients.stored() == []
        assert await clients.stored("read_uncommitted") == [b"open", b"after"]
        await producer.commit_transaction()
    assert await clients.stored() == [b"open", b"after"]


@story
async def a_zombie_is_fenced_and_told_so(clients: Clients) -> None:
    async with (
        clients.producer(transactional_id="pay") as zombie,
        clients.producer(transactional_id="pay") as heir,
    ):
        await zombie.init_transactions()
        zombie.begin_transaction()
        await (await zombie.send("t", b"zombie", partition=0))
        await heir.init_transactions()
        async with heir.transaction():
            await heir.send("t", b"heir", partition=0)
        with pytest.raises(ProducerFenced, match="the newer one continues"):
            await zombie.commit_transaction()
        with pytest.raises(ProducerFenced):
            zombie.begin_transaction()
    assert await clients.stored() == [b"heir"]


@story
async def a_zombie_learns_from_its_block_that_it_is_fenced(clients: Clients) -> None:
    """Its leader only knows that the epoch is old; its coordinator says more when the block aborts."""

    async def run(zombie: AsyncProducer, heir: AsyncProducer) -> None:
        async with zombie.transaction():
            await be_replaced(zombie, heir)

    for transaction_version in (0, 2):
        settings = {"transactional_id": "pay", "transaction_version": transaction_version}
        async with clients.producer(**settings) as zombie, clients.producer(**settings) as heir:
            await zombie.init_transactions()
            with pytest.raises(ProducerFenced, match="the newer one continues") as fenced:
                await run(zombie, heir)
            assert isinstance(fenced.value.__cause__, TransactionAborted)


@story
async def a_zombie_that_is_closed_learns_that_it_is_fenced(clients: Clients) -> None:
    async def run(heir: AsyncProducer) -> None:
        async with clients.producer(transactional_id="pay") as zombie:
            await zombie.init_transactions()
            zombie.begin_transaction()
            await be_replaced(zombie, heir)
            await zombie.commit_transaction()

    async with clients.producer(transactional_id="pay") as heir:
        with pytest.raises(ProducerFenced) as fenced:
            await run(heir)
    assert isinstance(fenced.value.__cause__, TransactionAborted)


@story
async def an_exception_of_the_program_leaves_the_block_of_a_fenced_producer(clients: Clients) -> None:
    async def run(zombie: AsyncProducer, heir: AsyncProducer) -> None:
        async with zombie.transaction():
            await be_replaced(zombie, heir)
            raise KeyError("mine")

    async with (
        clients.producer(transactional_id="pay") as zombie,
        clients.producer(transactional_id="pay") as heir,
    ):
        await zombie.init_transactions()
        with pytest.raises(KeyError) as own:
            await run(zombie, heir)
        assert "the newer one continues" in own.value.__notes__[0]
        with pytest.raises(ProducerFenced):
            zombie.begin_transaction()


async def be_replaced(zombie: AsyncProducer, heir: AsyncProducer) -> None:
    """Sends a record of the zombie before its heir takes the transactional id, and one after."""
    await (await zombie.send("t", b"zombie", partition=0))
    await heir.init_transactions()
    await zombie.send("t", b"late", partition=0)


@story
async def an_admin_learns_soon_that_a_partition_does_not_exist(clients: Clients) -> None:
    async with clients.admin() as admin:
        with pytest.raises(UnknownTopic, match="topic 'nowhere' does not exist"):
            await admin.end_offsets([HERE, TopicPartition("nowhere", 0)])
        with pytest.raises(UnknownTopic, match="there is no partition 9"):
            await admin.delete_records({TopicPartition("t", 9): 0})
        found = await admin.list_offsets([HERE, TopicPartition("t", 9)], -1)
        assert (found[HERE], type(found[TopicPartition("t", 9)])) == (0, UnknownTopic)


@story
async def a_commit_names_the_partition_whose_offset_it_waits_for(clients: Clients) -> None:
    """Kafka's client, too, waits for a topic that may be about to be created."""
    async with clients.producer(transactional_id="pay") as producer:
        await producer.init_transactions()
        reasons: list[str] = []
        for timeout_ms in (300, 3_000, 30_000):  # on a busy machine, the first reply may take longer
            producer.begin_transaction()
            producer.send_offsets_to_transaction({TopicPartition("t", 7): 1}, "g")
            with pytest.raises(TransactionAborted) as aborted:
                await producer.commit_transaction(timeout_ms)
            reasons.append(str(aborted.value))
            await producer.abort_transaction()
            if "no reply arrived" not in reasons[-1]:
                break
        assert "partition t-7 does not exist (UNKNOWN_TOPIC" in reasons[-1]


@story
async def a_commit_before_the_first_poll_says_that_the_group_is_not_joined(clients: Clients) -> None:
    async with clients.consumer(group_id="g") as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(WrongState, match=r"has not joined group 'g' yet: call poll\(\)"):
            await consumer.commit({HERE: 1})


@story
async def a_key_keeps_its_partition_and_its_order(clients: Clients) -> None:
    async with clients.producer() as producer:
        sent = [await producer.send("t", b"%d" % number, b"alice") for number in range(5)]
        places = [await each for each in sent]
    assert [place.offset for place in places] == [0, 1, 2, 3, 4]
    assert len({place.partition for place in places}) == 1
    assert await clients.stored() == [b"0", b"1", b"2", b"3", b"4"]


@story
async def a_topic_that_is_created_again_smaller_gets_every_record(clients: Clients) -> None:
    keys = [b"%d" % number for number in range(20)]
    async with clients.producer() as producer, clients.admin() as admin:
        assert {place.partition for place in await (await producer.send_many("t", keys, keys))} == {0, 1}
        await admin.delete_topic("t")
        await admin.create_topic("t", 1)
        with pytest.raises(DeliveryFailed, match=r"t-1: .* 1 partition \(0\).* Send the record again"):
            await (await producer.send("t", b"lost", partition=1))
        sent = [await producer.send("t", key, key) for key in keys] + [await producer.send("t", b"last")]
        assert [await each for each in sent] == [RecordMetadata("t", 0, offset) for offset in range(21)]


@story
async def columns_have_a_place_per_value(clients: Clients) -> None:
    async with clients.producer() as producer:
        columns = await producer.send_many("t", [b"a", None, b"c"], [b"k", b"k", b"k"], partition=1)
        assert await columns == [RecordMetadata("t", 1, offset) for offset in range(3)]
        assert len(await producer.send_many("t", [])) == 0
    assert await clients.stored() == [b"a", None, b"c"]


@story
async def headers_timestamps_and_nulls_arrive_as_they_were_sent(clients: Clients) -> None:
    headers = [("h", b"1"), ("h", None)]
    async with clients.producer() as producer:
        await producer.send("t", None, b"k", partition=0, timestamp_ms=1_700_000_000_000, headers=headers)
    async with clients.consumer() as consumer:
        consumer.assign([HERE])
        async for record in consumer:
            assert (record.key, record.value, record.timestamp) == (b"k", None, 1_700_000_000_000)
            assert record.headers == headers
            break


@story
async def objects_are_serialized_on_one_side_and_deserialized_on_the_other(clients: Clients) -> None:
    async with clients.producer(
        key_serializer=string_serializer, value_serializer=json_serializer
    ) as producer:
        await producer.send("t", {"b": 1, "a": [None, "é"]}, "schlüssel")
        await producer.send_many("t", [None], ["schlüssel"])
    decoding = {"key_deserializer": string_deserializer, "value_deserializer": json_deserializer}
    assert await clients.stored(decoding=decoding) == [{"a": [None, "é"], "b": 1}, None]


@story
async def flush_waits_for_every_record(clients: Clients) -> None:
    async with clients.producer(linger_ms=60_000) as producer:
        sent = [await producer.send("t", b"%d" % number) for number in range(10)]
        assert not any(each.done() for each in sent)
        await producer.flush()
        assert all(each.done() for each in sent)
    assert len(await clients.stored()) == 10


@story
async def a_callback_is_told_what_became_of_its_record(clients: Clients) -> None:
    told: list[tuple[ClientError | None, RecordMetadata]] = []
    async with clients.producer(transactional_id="pay", linger_ms=60_000) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            for value in (b"a", b"b"):
                await producer.send(
                    "t", value, partition=0, on_delivery=lambda error, place: told.append((error, place))
                )
        assert told == [(None, RecordMetadata("t", 0, 0)), (None, RecordMetadata("t", 0, 1))]
        producer.begin_transaction()
        await producer.send(
            "t", b"c", partition=0, on_delivery=lambda error, place: told.append((error, place))
        )
        await producer.abort_transaction()
    error, place = told[2]
    assert "was aborted before this record was stored" in str(error)
    assert place == RecordMetadata("t", 0, -1)


@story
async def a_callback_is_told_of_a_record_without_an_outcome(clients: Clients) -> None:
    told: list[tuple[ClientError | None, RecordMetadata]] = []
    clients.broker.faults.when("app sends Produce").do("hold")
    async with clients.producer(client_id="app", linger_ms=60_000) as producer:
        await producer.send(
            "t", b"x", partition=0, on_delivery=lambda error, place: told.append((error, place))
        )
        with pytest.raises(RequestTimeout):
            await producer.close(timeout_ms=100)
        ((error, place),) = told
        assert "the producer was closed before this record was stored" in str(error)
        assert place == RecordMetadata("t", 0, -1)
    assert len(told) == 1


@story
async def a_column_has_one_callback_for_all_its_records(clients: Clients) -> None:
    told: list[tuple[ClientError | None, RecordMetadata]] = []

    def tell(error: ClientError | None, place: RecordMetadata) -> None:
        told.append((error, place))

    async with clients.producer(transactional_id="pay", linger_ms=60_000, batch_size=1_000) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            values, keys = [b"%d" % i for i in range(500)], [b"%d" % (i % 7) for i in range(500)]
            sent = await producer.send_many("t", values, keys, on_delivery=tell)
            await producer.flush()
            placed = await sent
            await producer.send_many("t", [b"silent"])
        assert {error for error, _ in told} == {None}
        assert sorted(place for _, place in told) == sorted(placed)
        with pytest.raises(TypeError, match="on_delivery"):
            await producer.send_many("t", [b"x"], on_delivery=cast("Any", 7))
        told.clear()
        producer.begin_transaction()
        await producer.send_many("t", [b"a", None], on_delivery=tell)
        await producer.abort_transaction()
    assert ["was aborted before this record was stored" in str(error) for error, _ in told] == [True, True]


@story
async def an_unknown_topic_is_named(clients: Clients) -> None:
    async with clients.producer() as producer:
        with pytest.raises(UnknownTopic, match="topic 'nowhere' does not exist") as told:
            await producer.send("nowhere", b"x")
        assert told.value.__context__ is None, "a traceback shows one error"
        await (await producer.send("t", b"x"))
        with pytest.raises(UnknownTopic, match="topic 't' has 2 partitions"):
            await producer.send("t", b"x", partition=2)


@story
async def a_missing_partition_is_named(clients: Clients) -> None:
    missing = TopicPartition("few", 2)
    async with clients.admin() as admin, clients.consumer() as consumer:
        await admin.create_topic("few", 2)
        consumer.assign([TopicPartition("few", 0), missing])
        with pytest.raises(UnknownTopic, match=r"has 2 partitions \(0 to 1\); there is no partition 2"):
            await consumer.position(missing)
        with pytest.raises(UnknownTopic, match=r"add partitions with Admin.create_partitions\(\)"):
            await consumer.poll()
        await admin.create_partitions("few", 3)
        position: int | None = None
        while position is None:
            with suppress(UnknownTopic):  # until the consumer hears of the new partition
                position = await consumer.position(missing)
        assert position == 0


@story
async def a_producer_says_which_call_comes_first(clients: Clients) -> None:
    async with clients.producer(transactional_id="pay") as producer:
        with pytest.raises(WrongState, match=r"call init_transactions\(\) first"):
            producer.begin_transaction()
        await producer.init_transactions()
        with pytest.raises(WrongState, match=r"begin_transaction\(\) begins one"):
            await producer.commit_transaction()
        with pytest.raises(WrongState, match="it has been called already"):
            await producer.init_transactions()
    with pytest.raises(WrongState):
        await producer.init_transactions()


@story
async def a_block_says_that_its_transaction_was_ended_inside(clients: Clients) -> None:
    async with clients.producer(transactional_id="pay") as producer:
        await producer.init_transactions()
        with pytest.raises(WrongState, match=r"ended inside its transaction\(\) block, which commits it"):
            async with producer.transaction():
                await producer.commit_transaction()
        with pytest.raises(WrongState, match=r"leave out the call of commit_transaction\(\) or, to abort"):
            async with producer.transaction():
                await producer.abort_transaction()
        with pytest.raises(ValueError, match="of the program"):  # noqa: PT012 - the program aborts, then raises
            async with producer.transaction():
                await producer.abort_transaction()
                raise ValueError("of the program")
        async with producer.transaction():
            await producer.commit_transaction()
            producer.begin_transaction()


# --- consuming ----------------------------------------------------------------------------------------------


@story
async def offsets_move_with_their_transaction(clients: Clients) -> None:
    async with (
        clients.producer(transactional_id="pay") as producer,
        clients.consumer(group_id="g") as consumer,
    ):
        await producer.init_transactions()
        async with producer.transaction():
            noted = OffsetAndMetadata(5, "by the night shift", leader_epoch=0)
            producer.send_offsets_to_transaction({HERE: noted, THERE: 6}, "g")
        assert await consumer.committed([HERE, THERE]) == {HERE: 5, THERE: 6}
        assert await consumer.committed_metadata([HERE]) == {HERE: noted}
        producer.begin_transaction()
        producer.send_offsets_to_transaction({HERE: 9}, "g")
        await producer.abort_transaction()
        assert await consumer.committed([HERE]) == {HERE: 5}


@story
async def committed_offsets_have_a_note(clients: Clients) -> None:
    async with clients.consumer(group_id="g") as consumer:
        assert await consumer.committed_metadata([HERE]) == {HERE: None}
        await consumer.commit({HERE: OffsetAndMetadata(3, "checked"), THERE: 4})
        assert await consumer.committed([HERE, THERE]) == {HERE: 3, THERE: 4}
        assert await consumer.committed_metadata([HERE]) == {HERE: OffsetAndMetadata(3, "checked")}
    async with clients.consumer() as nobody:
        for offsets in (None, {}, {HERE: 1}):
            with pytest.raises(WrongState, match="this consumer has no group_id: create it with one"):
                await nobody.commit(offsets)


@story
async def a_paused_partition_waits(clients: Clients) -> None:
    async with clients.producer() as producer, clients.consumer() as consumer:
        consumer.assign([HERE, THERE])
        consumer.pause(HERE)
        assert consumer.paused() == [HERE]
        await producer.send_many("t", [b"here"], partition=0)
        await producer.send_many("t", [b"there"], partition=1)
        await producer.flush()
        assert await poll_until(consumer, 1) == [b"there"]
        assert await consumer.poll(timeout_ms=0) == []
        consumer.resume(HERE)
        assert await poll_until(consumer, 1) == [b"here"]
        with pytest.raises(WrongState, match="not assigned"):
            consumer.pause(TopicPartition("other", 0))


@story
async def a_loop_over_a_consumer_commits_what_it_has_seen(clients: Clients) -> None:
    async with clients.producer() as producer, clients.consumer(group_id="g") as consumer:
        await (await producer.send_many("t", [b"0", b"1", b"2", b"3"], partition=0))
        consumer.assign([HERE])
        async for record in consumer:
            if record.offset == 1:
                await consumer.commit()
                break
        assert await consumer.committed([HERE]) == {HERE: 2}
        assert await consumer.position(HERE) == 2
        values = [record.value async for record in _first(consumer, 2)]
        assert values == [b"2", b"3"]
        assert await consumer.position(HERE) == 4


async def _first(consumer: AsyncConsumer, count: int) -> AsyncIterator[Any]:
    records = aiter(consumer)
    for _ in range(count):
        yield await anext(records)


@story
async def a_seek_inside_a_loop_is_obeyed(clients: Clients) -> None:
    async with clients.producer() as producer, clients.consumer() as consumer:
        await (await producer.send_many("t", [b"0", b"1", b"2", b"3"], partition=0))
        consumer.assign([HERE])
        seen: list[int] = []
        async for record in consumer:
            seen.append(record.offset)
            if seen == [0, 1]:
                consumer.seek(HERE, 0)
            if record.offset == 3:
                break
        assert seen == [0, 1, 0, 1, 2, 3]
        consumer.seek_to_beginning()
        assert await consumer.position(HERE) == 0
        consumer.seek_to_end(HERE)
        assert await consumer.poll(50) == []
        assert await consumer.position(HERE) == 4
        consumer.seek(HERE, 2)
        assert await poll_until(consumer, 2) == [b"2", b"3"]


@story
async def a_loop_gets_every_record_while_transactions_are_aborted(clients: Clients) -> None:
    """The fetch ahead brings nothing but aborted records while the program works on what was polled."""
    async with (
        clients.producer(transactional_id="app") as producer,
        clients.consumer(group_id="g") as consumer,
    ):
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.send_many("t", [b"0", b"1", b"2", b"3"], partition=0)
        await producer.commit_transaction()
        consumer.assign([HERE])
        seen: list[bytes] = []
        async for record in consumer:
            seen.append(record.value)
            if seen == [b"0", b"1"]:
                producer.begin_transaction()
                await (await producer.send("t", b"aborted", partition=0))
                await producer.abort_transaction()
                await the_end_is_fetched(consumer)
                assert await consumer.position(HERE) == 2
                await consumer.commit()
            if record.value == b"3":
                break
        assert seen == [b"0", b"1", b"2", b"3"]
        assert await consumer.committed([HERE]) == {HERE: 2}


async def the_end_is_fetched(consumer: AsyncConsumer) -> None:
    """Waits until the fetch ahead has been answered."""
    state = consumer._calls._consumer.assigned[HERE]  # pyright: ignore[reportPrivateUsage] - no call tells
    for _ in range(1_000):
        if state.fetch_offset >= 7:
            return
        await consumer.committed([HERE])  # any call reads what has arrived
    raise AssertionError("the consumer has not fetched the aborted record and its marker")


@story
async def a_new_loop_continues_where_another_one_is(clients: Clients) -> None:
    async with clients.producer() as producer, clients.consumer(group_id="g") as consumer:
        await (await producer.send_many("t", [b"0", b"1", b"2", b"3"], partition=0))
        consumer.assign([HERE])
        first = aiter(consumer)
        assert [(await anext(first)).value for _ in range(2)] == [b"0", b"1"]
        second = aiter(consumer)
        assert [(await anext(second)).value for _ in range(2)] == [b"2", b"3"]
        await (await producer.send("t", b"4", partition=0))
        assert (await anext(first)).value == b"4"


@story
async def a_poll_inside_a_loop_takes_the_rest_of_it(clients: Clients) -> None:
    async with clients.producer() as producer, clients.consumer(group_id="g") as consumer:
        await (await producer.send_many("t", [b"0", b"1"], partition=0))
        consumer.assign([HERE])
        seen: list[bytes] = []
        async for record in consumer:
            seen.append(record.value)
            if seen == [b"0"]:
                await (await producer.send("t", b"2", partition=0))
                seen += await poll_until(consumer, 2)
                await consumer.commit()
                await (await producer.send("t", b"3", partition=0))
            if record.value == b"3":
                break
        assert seen == [b"0", b"1", b"2", b"3"]
        assert await consumer.committed([HERE]) == {HERE: 3}


@story
async def an_iterator_that_ends_changes_nothing_before_the_next_poll(clients: Clients) -> None:
    """It may end in the middle of another step of the consumer, when it is garbage."""
    async with clients.producer() as producer, clients.consumer() as consumer:
        await (await producer.send_many("t", [b"0", b"1"], partition=0))
        consumer.assign([HERE])
        records = aiter(consumer)
        assert (await anext(records)).value == b"0"
        state = consumer._calls._consumer.assigned[HERE]  # pyright: ignore[reportPrivateUsage] - no call tells
        before = attrs.asdict(state, recurse=False)
        del records
        assert attrs.asdict(state, recurse=False) == before
        assert await poll_until(consumer, 1) == [b"1"]


@story
async def a_consumer_begins_where_it_was_told(clients: Clients) -> None:
    async with clients.producer() as producer:
        await (await producer.send("t", b"old", partition=0, timestamp_ms=1_000))
        await (await producer.send("t", b"new", partition=0))
    for reset, position in {"earliest": 0, "latest": 2, "by_duration:PT1H": 1}.items():
        async with clients.consumer(auto_offset_reset=reset) as consumer:
            consumer.assign([HERE])
            assert await consumer.position(HERE) == position, reset
    async with clients.consumer(auto_offset_reset="by_duration:PT1S") as consumer:
        consumer.assign([THERE])
        assert await consumer.position(THERE) == 0, "the end, without a record of the last second"
    async with clients.consumer(auto_offset_reset="none") as consumer:
        consumer.assign([HERE])
        with pytest.raises(OffsetOutOfRange, match="seek"):
            await consumer.poll()


class Rebalances(RebalanceListener):
    """Remembers what was assigned and revoked."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        self.seen.append(("assigned", sorted(partitions)))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        self.seen.append(("revoked", sorted(partitions)))


@story
async def a_member_of_a_group_gets_its_partitions_and_returns_them(clients: Clients) -> None:
    listener = Rebalances()
    async with clients.producer() as producer, clients.consumer(group_id="g") as consumer:
        await (await producer.send_many("t", [b"x", b"y"], partition=1))
        consumer.subscribe(["t"], listener)
        assert await poll_until(consumer, 2) == [b"x", b"y"]
        assert listener.seen == [("assigned", [HERE, THERE])]
        await consumer.commit()
        assert await consumer.committed([THERE]) == {THERE: 2}
        assert consumer.group_metadata().generation_id > 0
        await consumer.unsubscribe()
        assert listener.seen[1:] == [("revoked", [HERE, THERE])]
        assert consumer.assignment() == []


@story
async def input_is_copied_exactly_once(clients: Clients) -> None:
    async with (
        clients.producer(transactional_id="copy") as producer,
        clients.consumer(group_id="g") as consumer,
    ):
        await producer.init_transactions()
        async with clients.producer() as orders:
            await (await orders.send_many("t", [b"1", b"2"], partition=0))
        consumer.subscribe(["t"])
        for crashes in (True, False):
            for batch in await _polled(consumer):
                producer.begin_transaction()
                for record in batch:
                    await producer.send("t", b"copy of " + record.value, partition=1)
                producer.send_offsets_to_transaction({HERE: batch.next_offset}, consumer.group_metadata())
                await (producer.abort_transaction() if crashes else producer.commit_transaction())
            consumer.seek(HERE, (await consumer.committed([HERE]))[HERE] or 0)
    assert await clients.stored() == [b"1", b"2", b"copy of 1", b"copy of 2"]


async def _polled(consumer: AsyncConsumer) -> list[ConsumedBatch]:
    while True:
        batches = [batch for batch in await consumer.poll() if batch.partition == HERE]
        if batches:
            return batches


# --- administration -----------------------------------------------------------------------------------------


@story
async def an_administrator_makes_grows_and_deletes_a_topic(clients: Clients) -> None:
    async with clients.admin() as admin:
        await admin.create_topic("orders", 2, {"retention.ms": "1000"})
        await admin.create_partitions("orders", 3)
        assert len((await admin.describe_topic("orders")).leaders) == 3
        await admin.delete_topic("orders")
        with pytest.raises(RequestFailed, match="topic 'orders' does not exist") as told:
            await admin.delete_topic("orders")
        assert told.value.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "create_topic" not in str(told.value)


@story
async def an_administrator_ends_a_transaction_that_nobody_ends(clients: Clients) -> None:
    async with clients.producer(transactional_id="pay") as producer, clients.admin() as admin:
        await producer.init_transactions()
        producer.begin_transaction()
        await (await producer.send("t", b"stuck", partition=0))
        (listed,) = await admin.list_transactions([TransactionState.ONGOING])
        assert listed.transactional_id == "pay"
        (writer,) = await admin.describe_producers(HERE, listed.coordinator_id)
        assert writer.producer_id == listed.producer_id
        await admin.force_terminate_transaction("pay")
        (ended,) = await admin.list_transactions(transactional_id_pattern="p.*")
        assert ended.state is not TransactionState.ONGOING
        assert (await admin.describe_transaction("pay")).state is not TransactionState.ONGOING
        assert await admin.transaction_version() == 2
        with pytest.raises(ClientError):
            await producer.commit_transaction()
    assert await clients.stored() == []


@story
async def an_administrator_controls_faults(clients: Clients) -> None:
    lost = "when shop sends CreateTopics do drop"
    async with clients.admin() as admin, clients.admin(client_id="shop") as shop:
        fault_id = await admin.add_fault(lost)
        await shop.create_topic("orders")
        (listed,) = await admin.list_faults()
        assert (listed.fault_id, listed.fault, listed.struck, listed.missing) == (fault_id, lost, 1, "")
        await admin.end_fault(fault_id)
        await admin.remove_fault(fault_id)
        assert await admin.list_faults() == []
        for call in (admin.end_fault, admin.remove_fault):
            with pytest.raises(RequestFailed, match="there is no fault 1"):
                await call(fault_id)
        with pytest.raises(RequestFailed, match='did you mean "EndTxn"') as found:
            await admin.add_fault("when shop sends EndTx do drop")
        assert found.value.error is ErrorCode.INVALID_REQUEST
