"""The consumers of a group that programs use: blocking, on trio and on asyncio, at a broker on a socket."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any, Final

import attrs
import pytest

from fencepost import AsyncConsumer, AsyncProducer, Broker, Producer
from fencepost.client.errors import CommitFailed, TransactionAborted, WrongState
from fencepost.client.group_member import RebalanceListener
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition
from tests.client.stories import KINDS, Clients, tell, tell_blocking
from tests.topics import create_topic

GROUP: Final = "readers"
TURNS_MAX: Final = 500
POLL_MS: Final = 20
PARTITIONS: Final = [TopicPartition("t", number) for number in range(4)]
ONE_LOG: Final = {
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}
QUICK: Final[dict[str, Any]] = {
    "session_timeout_ms": 60_000,
    "heartbeat_interval_ms": 50,
    "group_id": GROUP,
    "fetch_max_wait_ms": 20,
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(override=ONE_LOG) as running:
        create_topic(running.address, "t", len(PARTITIONS))
        yield running


@attrs.frozen
class World:
    """What a story makes its clients with; they end with it."""

    clients: Clients
    stack: AsyncExitStack

    async def consumer(self, **settings: Any) -> AsyncConsumer:
        return await self.stack.enter_async_context(self.clients.consumer(**{**QUICK, **settings}))

    async def producer(self, **settings: Any) -> AsyncProducer:
        return await self.stack.enter_async_context(self.clients.producer(**settings))


Story = Callable[[World], Coroutine[Any, Any, None]]


def run(story: Story, broker: Broker, kind: str) -> None:
    async def told(clients: Clients) -> None:
        async with AsyncExitStack() as stack:
            await story(World(clients, stack))

    tell(told, broker, kind)


class Diary(RebalanceListener):
    """What a consumer was told, as `revoked 0 1`; `then` is what its program does about it."""

    def __init__(self, world: World, then: Callable[[str], Coroutine[Any, Any, None]] | None = None) -> None:
        self.is_blocking = world.clients.are_blocking
        self.told: list[str] = []
        self.then = then

    def _note(self, event: str, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        self.told.append(" ".join([event, *(str(where.partition) for where in partitions)]))
        if self.then is None:
            return None
        work = self.then(self.told[-1])
        return tell_blocking(work) if self.is_blocking else work

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return self._note("revoked", partitions)

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return self._note("assigned", partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return self._note("lost", partitions)


def numbers(consumer: Any) -> list[int]:
    return [where.partition for where in consumer.assignment()]


async def polled(until: Callable[[], bool], *consumers: Any) -> list[bytes]:
    """Each polls in turn, until something is so; what they read."""
    values: list[bytes] = []
    for _ in range(TURNS_MAX):
        if until():
            return values
        for consumer in consumers:
            values += [value for batch in await consumer.poll(POLL_MS) for value in batch.values]
    raise AssertionError(f"not so after {TURNS_MAX} turns: {[numbers(each) for each in consumers]}")


def has_read(consumer: Any, *offsets: int) -> Callable[[], bool]:
    """Whether the positions of a consumer are these."""
    machine = consumer._machine  # position() would wait
    return lambda: tuple(machine.positions.values()) == offsets


def produce(world: World) -> None:
    """A record into each partition."""
    with Producer(world.clients.broker.address) as producer:
        for where in PARTITIONS:
            producer.send("t", b"%d" % where.partition, partition=where.partition)


async def share(a: Any, b: Any, listener: Diary | None = None) -> None:
    """The member that is there first gets the first partitions."""
    a.subscribe(["t"], listener)
    await polled(lambda: numbers(a) == [0, 1, 2, 3], a)
    b.subscribe(["t"])
    await polled(lambda: numbers(a) == [0, 1] and numbers(b) == [2, 3], a, b)


async def two_share_and_one_leaves(world: World) -> None:
    diary = Diary(world)
    b, a = await world.consumer(), await world.consumer()  # the last one that was entered is left first
    assert a.assignment() == []
    await share(a, b, diary)
    produce(world)
    assert sorted(await polled(has_read(a, 1, 1), a, b)) >= [b"0", b"1"]
    await a.commit()
    await a.close()
    await polled(lambda: numbers(b) == [0, 1, 2, 3], b)
    assert diary.told == ["assigned 0 1 2 3", "revoked 0 1 2 3", "assigned 0 1", "revoked 0 1"]
    assert await b.committed(PARTITIONS[:2]) == dict.fromkeys(PARTITIONS[:2], 1)
    await b.unsubscribe()
    assert b.assignment() == []


async def a_listener_commits_what_it_gives_up(world: World) -> None:
    a, b = await world.consumer(), await world.consumer()

    async def commit(told: str) -> None:
        if told.startswith("revoked"):
            await a.commit()

    a.subscribe(["t"], Diary(world, commit))
    produce(world)
    assert len(await polled(has_read(a, 1, 1, 1, 1), a)) == 4
    b.subscribe(["t"])
    assert await polled(lambda: numbers(b) == [2, 3], a, b) == []
    assert [await b.position(where) for where in PARTITIONS[2:]] == [1, 1]


async def a_listener_that_raises_is_heard_and_the_consumer_goes_on(world: World) -> None:
    a = await world.consumer()

    async def fail(told: str) -> None:
        raise KeyError(told)

    a.subscribe(["t"], Diary(world, fail))
    with pytest.raises(KeyError, match="assigned 0 1 2 3"):
        await polled(lambda: False, a)
    produce(world)
    assert len(await polled(has_read(a, 1, 1, 1, 1), a)) == 4
    with pytest.raises(KeyError, match="revoked"):
        await a.close()


async def a_listener_cannot_poll(world: World) -> None:
    a = await world.consumer()
    refused: list[str] = []

    async def misuse(told: str) -> None:
        for call in (lambda: a.poll(0), a.unsubscribe, a.close):
            with pytest.raises(WrongState, match="call it after the callback") as problem:
                await call()
            refused.append(problem.value.because.partition("(")[0])

    a.subscribe(["t"], Diary(world, misuse))
    await polled(lambda: numbers(a) == [0, 1, 2, 3], a)
    assert refused == ["poll", "unsubscribe", "close"]
    a.subscribe(["t"])


async def heartbeats_go_on_while_a_program_works(world: World) -> None:
    """A member whose heartbeats stop is expelled; those of a arrive although its program does not poll."""
    a, b = await world.consumer(client_id="a"), await world.consumer()
    await share(a, b)
    fifth = world.clients.broker.faults.when("a sends Heartbeat", nth=5).do("delay 0 ms")
    for _ in range(TURNS_MAX):
        if fifth.struck:
            break
        await b.poll(POLL_MS)
    assert fifth.struck
    await a.commit({PARTITIONS[0]: 7})
    assert numbers(b) == [2, 3]


async def a_program_that_polls_too_late_can_commit_nothing(world: World) -> None:
    """KIP-447: another member reads the partitions by now, so moving their offsets fails."""
    a, b = await world.consumer(max_poll_interval_ms=500), await world.consumer()
    producer = await world.producer(transactional_id="copy")
    diary = Diary(world)
    await share(a, b, diary)
    await producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({PARTITIONS[2]: 1}, b.group_metadata())
    await producer.commit_transaction()
    await polled(lambda: numbers(b) == [0, 1, 2, 3], b)
    producer.begin_transaction()
    producer.send_offsets_to_transaction({PARTITIONS[0]: 2}, a.group_metadata())
    with pytest.raises(TransactionAborted) as problem:
        await producer.commit_transaction()
    assert problem.value.error is ErrorCode.UNKNOWN_MEMBER_ID
    await producer.abort_transaction()
    with pytest.raises(CommitFailed, match="is no longer a member"):
        await a.commit({PARTITIONS[0]: 2})
    assert await b.committed([PARTITIONS[0], PARTITIONS[2]]) == {PARTITIONS[0]: None, PARTITIONS[2]: 1}
    diary.told.clear()
    await polled(lambda: len(numbers(a)) == len(numbers(b)) == 2, a, b)
    assert diary.told[0] == "lost 0 1"


STORIES: Final[list[Story]] = [
    two_share_and_one_leaves,
    a_listener_commits_what_it_gives_up,
    a_listener_that_raises_is_heard_and_the_consumer_goes_on,
    a_listener_cannot_poll,
    heartbeats_go_on_while_a_program_works,
    a_program_that_polls_too_late_can_commit_nothing,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_groups(story: Story, kind: str, broker: Broker) -> None:
    run(story, broker, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_subscription_to_a_topic_that_does_not_exist_is_logged_until_it_is_created(
    kind: str, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        consumer = await world.consumer()
        consumer.subscribe(["mistyped"])
        await polled(lambda: bool(caplog.records), consumer)
        create_topic(broker.address, "mistyped", 1)
        await polled(lambda: numbers(consumer) == [0], consumer)

    run(story, broker, kind)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("fencepost.client", "WARNING")
    assert record.message == (
        "group 'readers' is subscribed to a topic that it cannot read yet: topic 'mistyped' does not exist "
        "(UNKNOWN_TOPIC_OR_PARTITION). Use an existing topic, or create this one with Admin.create_topic()"
    )


@pytest.mark.parametrize("begin", ["assign", "subscribe"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_address_without_a_broker_is_logged_once(
    kind: str, begin: str, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    held = socket.socket()  # nothing else can listen there
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]

    async def story(world: World) -> None:
        consumer = await world.consumer(bootstrap_servers=f"127.0.0.1:{port}")
        wanted = [TopicPartition("t", 0)] if begin == "assign" else ["t"]
        getattr(consumer, begin)(wanted)
        await polled(lambda: bool(caplog.records), consumer)
        for _ in range(5):
            await consumer.poll(POLL_MS)

    with held:
        run(story, broker, kind)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("fencepost.client", "WARNING")
    assert record.message.startswith(f"no broker answered at 127.0.0.1:{port} (Connection refused); ")
