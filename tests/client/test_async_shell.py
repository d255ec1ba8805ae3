"""The async shell against a real broker, each story on trio and on asyncio."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio
import trio.testing

from fencepost.broker.embedded import Broker
from fencepost.broker.fault_handles import FaultHandle
from fencepost.client.admin import AbortSpec
from fencepost.client.calls import CallScript, Wait
from fencepost.client.effects import TransactionCall
from fencepost.client.errors import BufferFull, ClientClosed, CommitOutcomeUnknown, RequestTimeout
from fencepost.client.network import ClientConnection, NetworkClient
from fencepost.client.requests import RequestMachine
from fencepost.client.send_future import RecordMetadata
from fencepost.client.serializers import json_deserializer, json_serializer
from fencepost.client.shells.aio import AsyncAdmin, AsyncConsumer, AsyncProducer, AsyncSendFuture
from fencepost.client.shells.aio_driver import AsyncDriver
from fencepost.client.shells.sockets import monotonic_ms
from fencepost.client.shells.sync import Consumer
from fencepost.faults.phrases import Point, PointKind
from fencepost.protocol.terms import TopicPartition, TransactionState
from fencepost.testing.proxy import Proxy as TcpProxy

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
HERE = PARTITIONS[0]

BACKENDS = ["trio", "asyncio"]
PATIENCE_S = 120.0  # longer than anything takes on a busy machine; only a failing test waits so long
Story = Callable[[str], Awaitable[None]]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(params=BACKENDS)
def tell(request: pytest.FixtureRequest, broker: Broker) -> Callable[[Story], None]:
    """Runs a story on one event loop, with a topic of four partitions and a limit to its time."""

    def run(story: Story) -> None:
        anyio.run(limited, story, broker.address, backend=request.param)

    return run


async def limited(story: Story, address: str) -> None:
    with anyio.fail_after(60):  # only a program that hangs waits so long
        async with AsyncAdmin(address) as admin:
            await admin.create_topic("t", 4)
        await story(address)


async def read(address: str, isolation_level: str = "read_committed") -> list[bytes]:
    """The values of every record up to the end, in order of partition and offset."""
    async with (
        AsyncAdmin(address) as admin,
        AsyncConsumer(address, isolation_level=isolation_level) as consumer,
    ):
        ends = await admin.end_offsets(PARTITIONS, isolation_level)
        consumer.assign(PARTITIONS)
        values: dict[tuple[int, int], bytes] = {}
        while not all([await consumer.position(where) >= end for where, end in ends.items()]):
            for batch in await consumer.poll():
                for offset, value in zip(batch.offsets, batch.values, strict=True):
                    values[batch.partition.partition, offset] = value
        return [values[place] for place in sorted(values)]


@pytest.mark.parametrize("message", ["* sends {}", "broker sends {} reply to *"])
@pytest.mark.parametrize("kind", ["Produce", "EndTxn"])
def test_a_lost_message_changes_nothing_but_the_time(
    broker: Broker, tell: Callable[[Story], None], kind: str, message: str
) -> None:
    broker.faults.when(message.format(kind)).do("drop")

    async def story(address: str) -> None:
        async with AsyncProducer(address, transactional_id="pay") as producer:
            await producer.init_transactions()
            for value in (b"1", b"2"):
                async with producer.transaction():
                    await producer.send("t", value, partition=0)
        assert await read(address) == [b"1", b"2"]

    tell(story)


def test_a_cancelled_commit_is_unknown_and_says_so(broker: Broker, tell: Callable[[Story], None]) -> None:
    held = broker.faults.when("broker sends EndTxn reply to *").do("hold")
    points: list[Point] = []
    broker.faults.watch(points.append)

    async def story(address: str) -> None:
        async with (
            AsyncProducer(address, transactional_id="pay") as producer,
            anyio.create_task_group() as tasks,
        ):
            await producer.init_transactions()
            scope = anyio.CancelScope()
            tasks.start_soon(cancel_once_held, held, scope)
            with pytest.raises(CommitOutcomeUnknown, match="interrupted before the reply arrived"), scope:
                async with producer.transaction():
                    await (await producer.send("t", b"x"))
            with pytest.raises(CommitOutcomeUnknown):
                producer.begin_transaction()
        assert await read(address) == [b"x"]

    tell(story)
    sent = [point.what for point in points if point.kind is PointKind.SENDS]
    assert sent.count("EndTxn") == 1, "an uncertain commit is never aborted"


def cancel_with_the_commit(producer: Any, cancel: Callable[[], object]) -> None:
    """Cancels in the turn of the loop in which the reply to the next commit arrives."""
    network = producer._driver.network
    notify = network.notify

    def notify_and_cancel(news: Hashable) -> None:
        notify(news)
        if news is TransactionCall.COMMIT:
            network.notify = notify
            cancel()

    network.notify = notify_and_cancel


@pytest.mark.parametrize("is_withdrawn", [True, False])
def test_a_task_that_is_cancelled_when_the_reply_to_its_commit_arrives(
    broker: Broker, *, is_withdrawn: bool
) -> None:
    """asyncio cancels a task once. It knows that it has committed, and is cancelled where it waits next,
    unless the cancellation is withdrawn before, as asyncio.timeout() does at its end.
    """

    async def work(producer: AsyncProducer, task: asyncio.Task[Any]) -> None:
        cancel_with_the_commit(producer, task.cancel)
        async with producer.transaction():
            await producer.send("t", b"1")
        assert task.cancelling() == 1
        if is_withdrawn:
            task.uncancel()
            await anyio.lowlevel.checkpoint()
        else:
            with pytest.raises(asyncio.CancelledError):
                await anyio.Event().wait()
            assert task.uncancel() == 0
        async with producer.transaction():
            await producer.send("t", b"2")

    async def story(address: str) -> None:
        async with AsyncProducer(address, transactional_id="pay") as producer:
            await producer.init_transactions()
            task = asyncio.current_task()
            assert task is not None
            await work(producer, task)
        assert sorted(await read(address)) == [b"1", b"2"]

    anyio.run(limited, story, broker.address, backend="asyncio")


def test_a_cancelled_commit_is_unknown_after_the_end_of_its_producer(broker: Broker) -> None:
    """The cancellation that it replaces does not come back in the waits of close(), and hide it."""

    async def work(address: str) -> None:
        async with AsyncProducer(address, transactional_id="pay") as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send("t", b"x")

    held = broker.faults.when("broker sends EndTxn reply to *").do("hold")

    async def story(address: str) -> None:
        task = asyncio.create_task(work(address))
        await anyio.to_thread.run_sync(held.wait_until_struck, PATIENCE_S)
        task.cancel()
        with pytest.raises(CommitOutcomeUnknown):
            await task

    anyio.run(limited, story, broker.address, backend="asyncio")


@pytest.mark.parametrize("is_withdrawn", [True, False])
def test_a_program_that_handles_the_unknown_outcome_is_cancelled_where_it_waits_next(
    broker: Broker, *, is_withdrawn: bool
) -> None:
    """As Ctrl-C cancels the main task: it would go on with the next producer for ever."""
    went_on: list[bool] = []

    async def work(address: str) -> None:
        try:
            async with AsyncProducer(address, transactional_id="pay") as producer:
                await producer.init_transactions()
                async with producer.transaction():
                    await producer.send("t", b"x")
        except CommitOutcomeUnknown:
            await anyio.lowlevel.checkpoint()  # while the error is handled, the task works
            went_on.append(True)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 1
        if is_withdrawn:
            task.uncancel()
            await anyio.lowlevel.checkpoint()
        else:
            await anyio.Event().wait()

    held = broker.faults.when("broker sends EndTxn reply to *").do("hold")

    async def story(address: str) -> None:
        task = asyncio.create_task(work(address))
        await anyio.to_thread.run_sync(held.wait_until_struck, PATIENCE_S)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() is not is_withdrawn

    anyio.run(limited, story, broker.address, backend="asyncio")
    assert went_on


def test_a_scope_that_ends_when_the_reply_to_its_commit_arrives(tell: Callable[[Story], None]) -> None:
    async def story(address: str) -> None:
        async with AsyncProducer(address, transactional_id="pay") as producer:
            await producer.init_transactions()
            scope = anyio.CancelScope()
            cancel_with_the_commit(producer, scope.cancel)
            with scope:
                async with producer.transaction():
                    await producer.send("t", b"1")
                await anyio.Event().wait()
            async with producer.transaction():
                await producer.send("t", b"2")
        assert sorted(await read(address)) == [b"1", b"2"]

    tell(story)


def test_a_commit_that_times_out_is_unknown(broker: Broker, tell: Callable[[Story], None]) -> None:
    broker.faults.when("broker sends EndTxn reply to *").do("hold")

    async def story(address: str) -> None:
        async with AsyncProducer(address, transactional_id="pay") as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await (await producer.send("t", b"x"))
            with pytest.raises(CommitOutcomeUnknown):
                await producer.commit_transaction(timeout_ms=200)

    tell(story)


def test_a_call_that_was_cancelled_is_made_again_and_finds_its_answer(
    broker: Broker, tell: Callable[[Story], None]
) -> None:
    held = broker.faults.when("broker sends InitProducerId reply to *").do("hold")

    def restart() -> None:
        broker.kill()
        broker.start()

    async def story(address: str) -> None:
        async with (
            AsyncProducer(address, transactional_id="pay") as producer,
            anyio.create_task_group() as tasks,
        ):
            with anyio.CancelScope() as scope:
                tasks.start_soon(cancel_once_held, held, scope)
                await producer.init_transactions()
            assert scope.cancelled_caught
            await anyio.to_thread.run_sync(restart)
            async with AsyncAdmin(address) as admin:  # the client sends it again, though no call waits
                while (await admin.describe_transaction("pay")).producer_epoch < 1:
                    await anyio.lowlevel.checkpoint()
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send("t", b"x")
        assert await read(address) == [b"x"]

    tell(story)


def test_an_administrator_aborts_what_is_open(tell: Callable[[Story], None]) -> None:
    """As for a transaction that hangs: the marker goes to the partition, and its coordinator is not told."""

    async def story(address: str) -> None:
        async with AsyncProducer(address, transactional_id="pay") as producer, AsyncAdmin(address) as admin:
            await producer.init_transactions()
            producer.begin_transaction()
            await (await producer.send("t", b"x", partition=0))
            (broker_id,) = await admin.list_brokers()
            assert await admin.find_coordinator("pay") == broker_id
            (listed,) = await admin.list_transactions()
            assert (listed.coordinator_id, listed.transactional_id) == (broker_id, "pay")
            (known,) = await admin.describe_producers(HERE)
            assert await admin.end_offsets([HERE]) == {HERE: 0}
            spec = AbortSpec(
                partition=HERE, producer_id=known.producer_id, producer_epoch=0, coordinator_epoch=0
            )
            await admin.abort_transaction(spec)
            assert await admin.end_offsets([HERE]) == {HERE: 2}
            await producer.abort_transaction()

    tell(story)


def test_a_cancelled_block_is_aborted(tell: Callable[[Story], None]) -> None:
    async def story(address: str) -> None:
        async with AsyncProducer(address, transactional_id="pay") as producer:
            await producer.init_transactions()
            with anyio.CancelScope() as scope:
                async with producer.transaction():
                    await (await producer.send("t", b"no"))
                    scope.cancel()
                    await anyio.sleep_forever()
            assert scope.cancelled_caught
            async with producer.transaction():
                await producer.send("t", b"yes")
        assert await read(address) == [b"yes"]

    tell(story)


def test_an_error_in_the_block_comes_out_as_it_is(tell: Callable[[Story], None]) -> None:
    async def story(address: str) -> None:
        producer = AsyncProducer(address)
        sent: list[AsyncSendFuture] = []
        with pytest.raises(ZeroDivisionError):
            await fail_after_sending(producer, sent)
        assert sent[0].outcome().offset == 0, "what was sent before the error was flushed"
        with pytest.raises(ClientClosed, match="on a closed client"):
            await producer.send("t", b"late", partition=0)

    tell(story)


async def cancel_once_held(reply: FaultHandle, scope: anyio.CancelScope) -> None:
    """Cancels a call after the broker has carried it out, and before the client has its answer."""
    await anyio.to_thread.run_sync(reply.wait_until_struck, PATIENCE_S)
    scope.cancel()


async def fail_after_sending(producer: AsyncProducer, sent: list[AsyncSendFuture]) -> None:
    async with producer:
        sent.append(await producer.send("t", b"x"))
        raise ZeroDivisionError


async def fill(producer: AsyncProducer) -> None:
    for _ in range(40):
        producer.send_nowait("t", bytes(900))


def test_a_full_buffer_is_an_error_or_a_wait(tell: Callable[[Story], None]) -> None:
    async def story(address: str) -> None:
        async with AsyncProducer(
            address, batch_size=1_000, buffer_memory=2_000, linger_ms=0, max_block_ms=20_000
        ) as producer:
            outcomes = [await producer.send("t", bytes(900), partition=i % 4) for i in range(40)]
            with pytest.raises(BufferFull, match="send"):
                await fill(producer)
            assert len({await outcome for outcome in outcomes}) == 40

    tell(story)


def test_a_record_larger_than_a_batch_waits_for_as_much_room(tell: Callable[[Story], None]) -> None:
    """There is room for a batch of the usual size, but the other tasks must run before there is more."""

    async def story(address: str) -> None:
        async with AsyncProducer(
            address, batch_size=1_000, buffer_memory=20_000, max_block_ms=20_000
        ) as producer:
            outcomes = [await producer.send("t", bytes(15_000), partition=0) for _ in range(3)]
            assert [(await outcome).offset for outcome in outcomes] == [0, 1, 2]

    tell(story)


def test_columns_and_serializers(tell: Callable[[Story], None]) -> None:
    async def story(address: str) -> None:
        async with AsyncProducer(
            address, value_serializer=json_serializer, batch_size=2_000, buffer_memory=8_000
        ) as producer:
            values = [{"n": i} for i in range(1_000)]
            places = await (await producer.send_many("t", values, [b"%d" % (i % 5) for i in range(1_000)]))
        assert len(set(places)) == 1_000
        async with AsyncConsumer(address, value_deserializer=json_deserializer) as consumer:
            consumer.assign(PARTITIONS)
            found: dict[tuple[int, int], object] = {}
            while len(found) < 1_000:
                for batch in await consumer.poll():
                    for record in batch:
                        found[record.partition, record.offset] = record.value
        assert [found[place.partition, place.offset] for place in places] == values

    tell(story)


def test_a_program_that_did_not_yield_for_long_finds_its_answers(tell: Callable[[Story], None]) -> None:
    """Time limits and answers are found at once when the tasks run again, in an order that is not ours."""

    async def story(address: str) -> None:
        async with AsyncProducer(address, linger_ms=0, request_timeout_ms=100) as producer:
            await (await producer.send("t", b"0", partition=0))

            def connections() -> list[ClientConnection]:
                return list(producer._driver.network.connections.values())  # pyright: ignore[reportPrivateUsage] - inside

            before = connections()
            for count in range(2, 8):
                outcome = await producer.send("t", b"x", partition=0)
                with Consumer(address) as blocking:  # the event loop stands still, and the time limit passes
                    blocking.assign([HERE])
                    while blocking.position(HERE) < count:
                        blocking.poll()
                    assert blocking.poll(120) == []
                await outcome
                assert connections() == before, "a connection was given up though its answer was there"

    tell(story)


def test_several_tasks_share_a_producer(tell: Callable[[Story], None]) -> None:
    async def story(address: str) -> None:
        places: set[RecordMetadata] = set()

        async def work(producer: AsyncProducer, name: int) -> None:
            for i in range(50):
                places.add(await (await producer.send("t", b"%d-%d" % (name, i), b"%d" % i)))

        async with AsyncProducer(address, linger_ms=1) as producer, anyio.create_task_group() as tasks:
            for name in range(5):
                tasks.start_soon(work, producer, name)
        assert len(places) == 250

    tell(story)


def test_a_call_ends_by_the_clock_that_its_client_was_given(tell: Callable[[Story], None]) -> None:
    """The clock is the test's: a minute goes by at once, and so do the pauses between two connections."""
    now = [0]

    def clock() -> int:
        now[0] += 1_000
        return now[0]

    async def story(_: str) -> None:
        client = AsyncProducer("127.0.0.1:9", transactional_id="pay", max_block_ms=60_000, clock=clock)
        async with client as producer:
            with pytest.raises(RequestTimeout, match="did not finish within 60000 ms"):
                await producer.init_transactions()
        assert now[0] < 200_000, "nothing goes on after the deadline"

    tell(story)


class SlowCallbacks(AsyncDriver):
    """Its program takes 300 ms for the callbacks that follow the first second."""

    def call_back(self) -> None:
        if 1.0 <= trio.current_time() < 1.3:
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, trio.testing.MockClock)
            clock.jump(0.3)
        super().call_back()


def test_a_call_ends_in_time_although_callbacks_took_long() -> None:
    """Two calls wait, and have 1,000 and 1,500 ms: when the callbacks have ended, 200 ms are left."""
    network = NetworkClient(RequestMachine("127.0.0.1:1"), client_id="", request_timeout_ms=60_000)
    ended: list[int] = []

    def now() -> int:
        return round(1_000 * trio.current_time())

    async def wait(driver: AsyncDriver, deadline: int) -> None:
        await driver.run(waiting(deadline))
        ended.append(now())

    def waiting(deadline: int) -> CallScript[None]:
        yield Wait(lambda: False, deadline=deadline)

    async def story() -> None:
        driver = SlowCallbacks(network, now)
        await driver.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, driver, 1_000)
            nursery.start_soon(wait, driver, 1_500)
        await driver.leave()

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
    assert ended == [1_300, 1_500]


def test_calls_that_were_cancelled_leave_nothing_behind(tell: Callable[[Story], None]) -> None:
    def events() -> int:
        gc.collect()
        return sum(isinstance(each, anyio.Event) for each in gc.get_objects())

    async def story(address: str) -> None:
        async with AsyncAdmin(address) as admin:
            await admin.list_topics()
            before = events()
            for _ in range(100):
                with anyio.move_on_after(0):
                    await admin.list_topics()
            await admin.list_topics()
            assert events() < before + 10

    tell(story)


def test_a_client_may_be_closed_before_its_block_ends(tell: Callable[[Story], None]) -> None:
    async def story(address: str) -> None:
        async with AsyncProducer(address) as producer:
            await producer.send("t", b"a", partition=0)
            await producer.close()
            await producer.close()
        async with AsyncConsumer(address) as consumer:
            await consumer.close()
        assert await read(address) == [b"a"]

    tell(story)


# --- the end of a client, and of its tasks ------------------------------------------------------------------


async def begin_and_stay(address: str, begun: anyio.Event) -> None:
    async with AsyncProducer(address, transactional_id="pay") as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        await (await producer.send("t", b"no"))
        begun.set()
        await anyio.sleep_forever()


async def block_and_stay(address: str, begun: anyio.Event) -> None:
    async with AsyncProducer(address, transactional_id="pay") as producer:
        await producer.init_transactions()
        async with producer.transaction():
            await (await producer.send("t", b"no"))
            begun.set()
            await anyio.sleep_forever()


async def join_and_stay(address: str, begun: anyio.Event) -> None:
    async with AsyncConsumer(address, group_id="g") as consumer:
        consumer.subscribe(["t"])
        while not consumer.assignment():
            await consumer.poll(100)
        begun.set()
        await anyio.sleep_forever()


@pytest.mark.parametrize("program", [begin_and_stay, block_and_stay, join_and_stay])
def test_a_client_that_is_cancelled_with_its_program_still_says_goodbye(
    tell: Callable[[Story], None], program: Callable[[str, anyio.Event], Coroutine[Any, Any, None]]
) -> None:
    async def story(address: str) -> None:
        begun = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(program, address, begun)
            await begun.wait()
            tasks.cancel_scope.cancel()
        async with AsyncAdmin(address) as admin:
            if program is join_and_stay:
                assert not (await admin.describe_consumer_group("g")).members, "it left the group"
            else:
                assert (await admin.describe_transaction("pay")).state is TransactionState.COMPLETE_ABORT

    tell(story)


def failing_program(error: type[BaseException]) -> Story:
    """A program whose clock fails once in a task of its client, while a record is on its way."""

    async def story(address: str) -> None:
        program = anyio.get_current_task().id
        fails = False

        def clock() -> int:
            nonlocal fails
            if fails and anyio.get_current_task().id != program:
                fails = False
                raise error
            return monotonic_ms()

        with anyio.fail_after(60):  # only a program that hangs waits so long
            async with AsyncProducer(address, transactional_id="pay", clock=clock) as producer:
                await producer.init_transactions()
                producer.begin_transaction()
                await (await producer.send("t", b"x"))
                fails = True
                await producer.send("t", b"y")  # its answer arrives in another task
                await producer.flush()

    return story


def test_an_error_in_a_task_of_the_client_ends_the_program_and_is_shown(
    tell: Callable[[Story], None],
) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        tell(failing_program(ZeroDivisionError))
    assert caught.group_contains(ZeroDivisionError)


def test_a_call_that_waits_when_a_task_of_the_client_fails_says_that_it_is_closed(
    tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async def story(address: str) -> None:
        async with AsyncAdmin(address) as admin:
            monkeypatch.setattr(NetworkClient, "received", fail)
            try:
                await admin.list_topics()
            except ClientClosed as problem:
                told.append(str(problem))

    told = list[str]()
    with pytest.raises(BaseExceptionGroup):
        tell(story)
    assert [words.partition(";")[0] for words in told] == ["the client was closed during the call"]


def test_ctrl_c_in_a_task_of_the_client_ends_the_program(tell: Callable[[Story], None]) -> None:
    with pytest.raises((BaseExceptionGroup, KeyboardInterrupt)) as caught:
        tell(failing_program(KeyboardInterrupt))
    assert isinstance(caught.value, KeyboardInterrupt) or caught.group_contains(KeyboardInterrupt)


ROUNDS = 12  # trio runs the tasks of one moment in a random order: some rounds have the one that matters


def test_a_connection_may_end_before_the_task_that_opens_it_has_its_turn(
    tell: Callable[[Story], None],
) -> None:
    """The clock is the test's: each request has timed out when the next task looks."""
    now = [0]

    def clock() -> int:
        now[0] += 1_000
        return now[0]

    async def story(_address: str) -> None:
        for _ in range(ROUNDS):
            settings: dict[str, Any] = {"request_timeout_ms": 1, "default_api_timeout_ms": 10_000}
            async with AsyncAdmin("127.0.0.1:9", clock=clock, **settings) as admin:
                with pytest.raises(RequestTimeout):
                    await admin.list_topics()

    tell(story)


async def begin_to_flush(producer: AsyncProducer) -> None:
    """Writes what the socket takes, and waits for nothing."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        await producer.flush()


def test_a_connection_may_end_before_the_task_that_writes_to_it_has_its_turn(
    tell: Callable[[Story], None], broker: Broker
) -> None:
    """The clock is the test's: the program computes for longer than the timeout of a request."""
    computed_ms = 0

    def clock() -> int:
        return monotonic_ms() + computed_ms

    async def story(address: str) -> None:
        nonlocal computed_ms
        async with AsyncAdmin(address) as admin:
            await admin.create_topic("large", 4, configs={"max.message.bytes": "8000000"})
        settings: dict[str, Any] = {"request_timeout_ms": 60_000, "linger_ms": 5, "batch_size": 7_000_000}
        with TcpProxy(broker) as proxy:
            for _ in range(ROUNDS):
                async with AsyncProducer(proxy.address, clock=clock, **settings) as producer:
                    await (await producer.send("large", b"0", partition=0))
                    with proxy.stall() as stalled:
                        sent = [producer.send_nowait("large", b"x", partition=0)]
                        await begin_to_flush(producer)  # it is on its way, and has a time limit
                        sent.append(producer.send_nowait("large", b"y", partition=0))  # sets the alarm
                        computed_ms += 61_000
                        sent += [
                            producer.send_nowait("large", bytes(6_000_000), partition=i) for i in (1, 2, 3)
                        ]
                        await begin_to_flush(producer)
                        stalled.wait_until_struck()  # what was written may still be on its way to the proxy
                    for outcome in sent:
                        await outcome

    tell(story)
