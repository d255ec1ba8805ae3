"""The consumers of a group that programs use, blocking, on trio and on asyncio, against a broker on a socket.

Each story is written once. A blocking client stands in it as `Blocking`, whose calls return before they are
awaited.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any, Final

import anyio
import pytest

from fencepost.broker.embedded import Broker
from fencepost.client.errors import CommitFailed, TransactionAborted, WrongState
from fencepost.client.group_member import RebalanceListener
from fencepost.client.shells import aio, sync
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import Heartbeat
from fencepost.protocol.terms import TopicPartition
from tests.client.proxy import Proxy

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
def address() -> Iterator[str]:
    with Broker(override=ONE_LOG) as broker:
        with sync.Admin(broker.address) as admin:
            admin.create_topic("t", len(PARTITIONS))
        yield broker.address


class Blocking:
    """A blocking client for stories that await."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        if name not in WAITING:
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            return found(*args, **kwargs)

        return call

    async def __aenter__(self) -> Blocking:
        self.client.__enter__()
        return self

    async def __aexit__(self, *problem: Any) -> None:
        self.client.__exit__(*problem)


WAITING: Final = frozenset(
    {"poll", "commit", "committed", "unsubscribe", "close", "init_transactions", "commit_transaction"}
    | {"abort_transaction", "flush", "send", "position"}
)


class World:
    """What a story makes its clients with."""

    def __init__(self, address: str, shell: Any, stack: AsyncExitStack) -> None:
        self.address, self.shell, self.stack = address, shell, stack

    def _made(self, name: str, *, address: str | None = None, **settings: Any) -> Any:
        address = address or self.address
        if self.shell is sync:
            return Blocking(getattr(sync, name)(address, **settings))
        return getattr(aio, f"Async{name}")(address, **settings)

    async def consumer(self, **settings: Any) -> Any:
        return await self.stack.enter_async_context(self._made("Consumer", **{**QUICK, **settings}))

    async def producer(self, **settings: Any) -> Any:
        return await self.stack.enter_async_context(self._made("Producer", **settings))


Story = Callable[[World], Coroutine[Any, Any, None]]


def finish(work: Coroutine[Any, Any, None]) -> None:
    """Runs what waits for nothing but sockets, so it ends at its first step."""
    with pytest.raises(StopIteration):
        work.send(None)


def run_blocking(address: str, story: Story) -> None:
    async def told() -> None:
        async with AsyncExitStack() as stack:
            await story(World(address, sync, stack))

    finish(told())


def run_on(backend: str) -> Callable[[str, Story], None]:
    def run(address: str, story: Story) -> None:
        async def told() -> None:
            with anyio.fail_after(120):
                async with AsyncExitStack() as stack:
                    await story(World(address, aio, stack))

        anyio.run(told, backend=backend)

    return run


SHELLS: Final = {"blocking": run_blocking, "trio": run_on("trio"), "asyncio": run_on("asyncio")}


class Diary(RebalanceListener):
    """What a consumer was told, as `revoked 0 1`; `then` is what its program does about it."""

    def __init__(self, world: World, then: Callable[[str], Coroutine[Any, Any, None]] | None = None) -> None:
        self.is_blocking = world.shell is sync
        self.told: list[str] = []
        self.then = then

    def _note(self, event: str, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        self.told.append(" ".join([event, *(str(where.partition) for where in partitions)]))
        if self.then is None:
            return None
        work = self.then(self.told[-1])
        return finish(work) if self.is_blocking else work

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
    machine = getattr(consumer, "client", consumer)._machine  # position() would wait
    return lambda: tuple(machine.positions.values()) == offsets


def produce(world: World) -> None:
    """A record into each partition."""
    with sync.Producer(world.address) as producer:
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
    proxy = world.stack.enter_context(Proxy(world.address))
    a, b = await world.consumer(address=proxy.address), await world.consumer()
    await share(a, b)
    before = proxy.seen(Heartbeat)
    for _ in range(TURNS_MAX):
        if proxy.seen(Heartbeat) >= before + 5:
            break
        await b.poll(POLL_MS)
    assert proxy.seen(Heartbeat) >= before + 5
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


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_groups(story: Story, shell: str, address: str) -> None:
    SHELLS[shell](address, story)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_subscription_to_a_topic_that_does_not_exist_is_logged_until_it_is_created(
    shell: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        consumer = await world.consumer()
        consumer.subscribe(["mistyped"])
        await polled(lambda: bool(caplog.records), consumer)
        with sync.Admin(address) as admin:
            admin.create_topic("mistyped", 1)
        await polled(lambda: numbers(consumer) == [0], consumer)

    SHELLS[shell](address, story)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("fencepost.client", "WARNING")
    assert record.message == (
        "group 'readers' is subscribed to a topic that it cannot read yet: topic 'mistyped' does not exist "
        "(UNKNOWN_TOPIC_OR_PARTITION). Use an existing topic, or create this one with Admin.create_topic()"
    )


@pytest.mark.parametrize("begin", ["assign", "subscribe"])
@pytest.mark.parametrize("shell", SHELLS)
def test_an_address_without_a_broker_is_logged_once(
    shell: str, begin: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    held = socket.socket()  # nothing else can listen there
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]

    async def story(world: World) -> None:
        consumer = await world.consumer(address=f"127.0.0.1:{port}")
        wanted = [TopicPartition("t", 0)] if begin == "assign" else ["t"]
        getattr(consumer, begin)(wanted)
        await polled(lambda: bool(caplog.records), consumer)
        for _ in range(5):
            await consumer.poll(POLL_MS)

    with held:
        SHELLS[shell](address, story)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("fencepost.client", "WARNING")
    assert record.message.startswith(f"no broker answered at 127.0.0.1:{port} (Connection refused); ")
