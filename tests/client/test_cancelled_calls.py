"""A task may be cancelled wherever it waits. At each wait of each call: the client stays usable, and nothing
is lost or stored twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import anyio
import anyio.lowlevel
import pytest
import trio

from fencepost.broker.embedded import Broker
from fencepost.client.consumer_records import ConsumedBatch
from fencepost.client.errors import CommitOutcomeUnknown
from fencepost.client.group_member import RebalanceListener
from fencepost.client.shells.aio import AsyncAdmin, AsyncConsumer, AsyncProducer, AsyncSendFuture
from fencepost.protocol.terms import GroupState, TopicPartition
from tests.client.test_async_shell import BACKENDS, HERE, PARTITIONS, limited, read

WAITS_MAX = 50  # far more than any story has


class CancelledAt(trio.abc.Instrument):
    """Cancels the call during which the task waits for the `number`th time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.waits = 0
        self._task: trio.lowlevel.Task | None = None
        self._scope: trio.CancelScope | None = None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task and self._scope is not None:
            self.waits += 1
            if self.waits == self.number:
                self._scope.cancel()

    async def finishes(self, call: Callable[[], Awaitable[object]]) -> bool:
        """Whether the call ended before it was cancelled."""
        self._task = trio.lowlevel.current_task()
        with trio.CancelScope() as self._scope:
            try:
                await call()
            finally:
                self._scope = None
            return True
        return False


class Story(Protocol):
    """What clients do with topic t of the broker at `address`, and what must be true of it."""

    async def __call__(self, address: str, cancelled: CancelledAt) -> None: ...


def at_each_wait(story: Story) -> int:
    """Tells the story to a new broker for each wait of its calls; returns how many waits it has."""

    for number in range(1, WAITS_MAX):
        cancelled = CancelledAt(number)
        with Broker(override={"group.initial.rebalance.delay.ms": 0}) as broker:
            told = partial(story, cancelled=cancelled)
            trio.run(limited, told, broker.address, instruments=[cancelled])
        if cancelled.waits < number:
            return cancelled.waits
    raise AssertionError(f"the story still waits after {WAITS_MAX} waits")


# --- the stories --------------------------------------------------------------------------------------------


async def transactions(address: str, cancelled: CancelledAt) -> None:
    """A transaction is stored whole, or not at all if it was aborted after the cancellation. If its commit
    was sent, both are possible, and the error says so.
    """
    expected = [[b"1", b"1", b"2", b"2"]]

    async def transaction(producer: AsyncProducer, value: bytes) -> None:
        producer.begin_transaction()
        for partition in (0, 1):
            await producer.send("t", value, partition=partition)
        await producer.commit_transaction()

    async with AsyncProducer(address, transactional_id="pay") as producer:
        if not await cancelled.finishes(producer.init_transactions):
            await producer.init_transactions()
        try:
            if not await cancelled.finishes(partial(transaction, producer, b"1")):
                expected = [[b"2", b"2"]]
                await producer.abort_transaction()
        except CommitOutcomeUnknown:
            expected.append([b"2", b"2"])
        else:
            producer.begin_transaction()
            await producer.send("t", b"aborted")
            if not await cancelled.finishes(producer.abort_transaction):
                await producer.abort_transaction()
    async with AsyncProducer(address, transactional_id="pay") as producer:
        await producer.init_transactions()
        await transaction(producer, b"2")
    assert sorted(await read(address)) in expected


async def sending(address: str, cancelled: CancelledAt) -> None:
    """A record whose future was returned is stored once, also if nobody waited for its acknowledgement."""
    futures: dict[bytes, AsyncSendFuture] = {}

    async def send(value: bytes) -> None:
        futures[value] = await producer.send("t", value)
        await futures[value]

    async with AsyncProducer(address, linger_ms=0) as producer:
        for value in (b"1", b"2", b"3"):
            await cancelled.finishes(partial(send, value))
        if not await cancelled.finishes(producer.flush):
            await producer.flush()
        assert all(future.done() for future in futures.values())
    assert sorted(await read(address)) == list(futures)


async def stored(address: str) -> list[bytes]:
    """Records in all partitions, as many in each; their values."""
    values = [b"%d" % number for number in range(8)]
    async with AsyncProducer(address) as producer:
        for number, value in enumerate(values):
            await producer.send("t", value, partition=number % len(PARTITIONS))
    return values


async def polling(
    address: str,
    cancelled: CancelledAt,
    poll: Callable[[AsyncConsumer], Awaitable[list[ConsumedBatch]]] = AsyncConsumer.poll,
) -> None:
    """What a cancelled poll() had taken is returned by the next one."""
    values = await stored(address)
    seen: list[bytes] = []

    async def take() -> None:
        for batch in await poll(consumer):
            seen.extend(batch.values)

    async with AsyncConsumer(address) as consumer:
        consumer.assign(PARTITIONS)
        consumer.seek_to_beginning()
        passed = 0
        while passed < len(values):
            await cancelled.finishes(take)
            passed = sum([await consumer.position(where) for where in PARTITIONS])
        assert sorted(seen) == values
        if not await cancelled.finishes(partial(consumer.position, HERE)):
            assert await consumer.position(HERE) == len(values) // len(PARTITIONS)
        await cancelled.finishes(consumer.close)


class Committing(RebalanceListener):
    """Commits what it gives up, and waits a little before it reads on."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        await self._consumer.commit()

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        await trio.lowlevel.checkpoint()


async def membership(address: str, cancelled: CancelledAt) -> None:
    """A member reads everything once, and is gone when it has left."""
    values = await stored(address)
    seen: list[bytes] = []

    async def take() -> None:
        for batch in await consumer.poll():
            seen.extend(batch.values)

    async with AsyncConsumer(address, group_id="g") as consumer:
        consumer.subscribe(["t"], Committing(consumer))
        while len(seen) < len(values):
            await cancelled.finishes(take)
        assert sorted(seen) == values
        if not await cancelled.finishes(consumer.commit):
            await consumer.commit()
        await cancelled.finishes(consumer.unsubscribe)
        assert consumer.assignment() == []
    async with AsyncAdmin(address) as admin:
        group = await admin.describe_consumer_group("g")
        assert (group.state, group.members) == (GroupState.EMPTY, ())
        assert await admin.list_consumer_group_offsets("g") == await admin.end_offsets(PARTITIONS)


async def administrating(address: str, cancelled: CancelledAt) -> None:
    """A call that was cancelled may have been carried out; the next ones get replies of their own."""
    async with AsyncAdmin(address) as admin:
        await cancelled.finishes(partial(admin.create_topic, "new", 1))
        if "new" not in [each.topic for each in await admin.list_topics()]:
            await admin.create_topic("new", 1)
        await cancelled.finishes(partial(admin.end_offsets, PARTITIONS))
        await cancelled.finishes(admin.list_transactions)
        assert sorted(each.topic for each in await admin.list_topics()) == ["new", "t"]


@pytest.mark.parametrize("story", [transactions, sending, polling, membership, administrating])
def test_a_call_may_be_cancelled_at_each_of_its_waits(story: Story) -> None:
    assert at_each_wait(story) >= 2


class Waiting(RebalanceListener):
    """A callback that waits until it may go on, and then commits."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer
        self.has_begun, self.may_go_on = anyio.Event(), anyio.Event()

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.has_begun.set()
        await self.may_go_on.wait()
        await self._consumer.commit(dict.fromkeys(partitions, 7))


async def unsubscribed_and_cancelled(
    address: str, cancel_call: Callable[[Callable[[], Awaitable[None]], Waiting], Awaitable[bool]]
) -> None:
    """`cancel_call` cancels a call whose callback runs; it returns whether the call was cancelled."""
    async with AsyncConsumer(address, group_id="g") as consumer, AsyncAdmin(address) as admin:
        listener = Waiting(consumer)
        consumer.subscribe(["t"], listener)
        while not consumer.assignment():
            await consumer.poll(100)
        assert await cancel_call(consumer.unsubscribe, listener)
        assert consumer.assignment() == []
        offsets = await admin.list_consumer_group_offsets("g")
        assert offsets == dict.fromkeys(PARTITIONS, 7)


async def turns() -> None:
    """Other tasks hear of a cancellation."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rebalance_callback_ends_although_its_call_is_cancelled(backend: str) -> None:
    async def cancel_call(call: Callable[[], Awaitable[None]], listener: Waiting) -> bool:
        async def cancel() -> None:
            await listener.has_begun.wait()
            scope.cancel()
            await turns()
            listener.may_go_on.set()

        scope = anyio.CancelScope()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel)
            with scope:
                await call()
                await anyio.lowlevel.checkpoint()
        return scope.cancelled_caught

    with Broker(override={"group.initial.rebalance.delay.ms": 0}) as broker:
        told = partial(unsubscribed_and_cancelled, cancel_call=cancel_call)
        anyio.run(limited, told, broker.address, backend=backend)


def test_a_rebalance_callback_ends_although_its_asyncio_task_is_cancelled() -> None:
    async def cancel_call(call: Callable[[], Awaitable[None]], listener: Waiting) -> bool:
        task = asyncio.ensure_future(call())
        await listener.has_begun.wait()
        for _ in range(2):
            task.cancel()
            await turns()
        listener.may_go_on.set()
        await asyncio.wait([task])
        return task.cancelled()

    with Broker(override={"group.initial.rebalance.delay.ms": 0}) as broker:
        told = partial(unsubscribed_and_cancelled, cancel_call=cancel_call)
        anyio.run(limited, told, broker.address, backend="asyncio")


def test_a_poll_that_waits_with_the_records_in_its_hands_would_lose_them() -> None:
    """A planted fault, for the harness."""

    async def poll_and_wait(consumer: AsyncConsumer) -> list[ConsumedBatch]:
        batches = await consumer.poll()
        for _ in range(10):  # more waits than a poll has
            await trio.lowlevel.checkpoint()
        return batches

    with pytest.raises(AssertionError, match=r"\[b'0'"):
        at_each_wait(partial(polling, poll=poll_and_wait))
