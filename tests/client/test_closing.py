"""Clients that are closed while a call of another thread or task waits: the call ends with an error that
programs know.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.to_thread
import pytest

from fencepost import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Broker,
    ClientClosed,
    CommitOutcomeUnknown,
    Consumer,
    Producer,
    TopicPartition,
)
from fencepost.client.group_member import RebalanceListener
from fencepost.client.shells.sockets import monotonic_ms
from tests.topics import create_topic

PATIENCE_S = 60.0  # longer than anything takes on a busy machine; only a failing test waits so long
HERE = TopicPartition("t", 0)
BACKENDS = ["trio", "asyncio"]


class Silence:
    """A broker that hears requests and answers none."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_S)
        self._links: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def hear(self) -> None:
        """Returns once a client has sent the beginning of a request."""
        link, _ = self._listener.accept()
        link.settimeout(PATIENCE_S)
        self._links.append(link)
        assert link.recv(1)

    def hear_the_end(self) -> None:
        """Returns once the client has closed every connection."""
        for link in self._links:
            while link.recv(4_096):
                pass

    def close(self) -> None:
        for each in (self._listener, *self._links):
            each.close()


@pytest.fixture
def silence() -> Iterator[Silence]:
    broker = Silence()
    yield broker
    broker.close()


def init_transactions(client: Any) -> Any:
    return client.init_transactions()


def wait_for_a_topic(client: Any) -> Any:
    return client.send("t", b"x")


def poll(client: Any) -> Any:
    client.assign([HERE])
    return client.poll(PATIENCE_S * 1_000)


def poll_as_a_member(client: Any) -> Any:
    client.subscribe(["t"])
    return client.poll(PATIENCE_S * 1_000)


def find_the_position(client: Any) -> Any:
    client.assign([HERE])
    return client.position(HERE)


def list_topics(client: Any) -> Any:
    return client.list_topics()


CALLS: list[tuple[Callable[[Any], Any], str, dict[str, Any]]] = [
    (list_topics, "Admin", {}),
    (init_transactions, "Producer", {"transactional_id": "pay"}),
    (wait_for_a_topic, "Producer", {}),
    (poll, "Consumer", {}),
    (poll_as_a_member, "Consumer", {"group_id": "g"}),
    (find_the_position, "Consumer", {}),
]
BLOCKING: dict[str, Any] = {"Admin": Admin, "Producer": Producer, "Consumer": Consumer}
ASYNC: dict[str, Any] = {"Admin": AsyncAdmin, "Producer": AsyncProducer, "Consumer": AsyncConsumer}

every_call = pytest.mark.parametrize(("call", "kind", "settings"), CALLS)


@every_call
def test_a_thread_that_waits_is_told_that_the_client_was_closed(
    silence: Silence, call: Callable[[Any], Any], kind: str, settings: dict[str, Any]
) -> None:
    client = BLOCKING[kind](silence.address, **settings)
    problems: list[BaseException] = []

    def wait() -> None:
        try:
            call(client)
        except BaseException as problem:  # noqa: BLE001 - the test looks at it
            problems.append(problem)

    waits = threading.Thread(target=wait, daemon=True)
    waits.start()
    silence.hear()
    client.close()
    waits.join(PATIENCE_S)
    (problem,) = problems
    assert isinstance(problem, ClientClosed)
    silence.hear_the_end()


@pytest.mark.parametrize("backend", BACKENDS)
@every_call
def test_a_task_that_waits_is_told_that_the_client_was_closed(
    silence: Silence, backend: str, call: Callable[[Any], Awaitable[Any]], kind: str, settings: dict[str, Any]
) -> None:
    async def wait(client: Any) -> None:
        with pytest.raises(ClientClosed):
            await call(client)

    async def story() -> None:
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                async with ASYNC[kind](silence.address, **settings) as client:
                    tasks.start_soon(wait, client)
                    await anyio.to_thread.run_sync(silence.hear)

    anyio.run(story, backend=backend)
    silence.hear_the_end()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", sorted(ASYNC))
@pytest.mark.parametrize("where", ["in a scope", "in a task group", "in another task", "twice", "cancelled"])
def test_any_task_may_close_a_client_in_any_scope(
    silence: Silence, backend: str, kind: str, where: str
) -> None:
    async def story() -> None:
        call, _, settings = next(each for each in CALLS if each[1] == kind)
        async with ASYNC[kind](silence.address, **settings) as client:
            match where:
                case "in a scope":
                    with anyio.fail_after(PATIENCE_S):
                        await client.close()
                case "cancelled":
                    with anyio.CancelScope() as scope:
                        scope.cancel()
                        await client.close()
                case _:
                    async with anyio.create_task_group() as tasks:
                        for _ in range(2 if where == "twice" else 1):
                            tasks.start_soon(client.close)
                        if where == "in a task group":
                            await client.close()
            with pytest.raises(ClientClosed, match="on a closed client"):
                await call(client)

    anyio.run(story, backend=backend)


def test_a_client_may_be_closed_in_the_middle_of_its_own_round(silence: Silence) -> None:
    """The clock is the test's: it closes the client after select(), where a signal handler might."""

    def clock() -> int:
        if selecting.is_set():
            selecting.clear()
            admin.close()
        return monotonic_ms()

    class Selector(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            found = super().select(timeout)
            if found:
                selecting.set()
            return found

    selecting = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selectors, "DefaultSelector", Selector)
        admin = Admin(silence.address, clock=clock)
    with pytest.raises(ClientClosed, match="closed during the call"):
        admin.list_topics()


# --- a commit whose request was sent ------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[Broker]:
    """It carries out the first EndTxn, and its answer never comes."""
    with Broker() as running:
        create_topic(running.address, "t")
        running.faults.when("broker sends EndTxn reply to *").do("hold")
        yield running


def wait_for_the_end(broker: Broker) -> None:
    """Returns once the broker has carried out the EndTxn."""
    broker.faults.list()[0].wait_until_struck(PATIENCE_S)


def test_a_commit_that_was_sent_is_unknown_when_another_thread_closes_the_producer(broker: Broker) -> None:
    producer = Producer(broker.address, transactional_id="pay")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"x").result()
    problems: list[BaseException] = []

    def commit() -> None:
        try:
            producer.commit_transaction()
        except BaseException as problem:  # noqa: BLE001 - the test looks at it
            problems.append(problem)

    waits = threading.Thread(target=commit, daemon=True)
    waits.start()
    wait_for_the_end(broker)
    producer.close()
    waits.join(PATIENCE_S)
    (problem,) = problems
    assert isinstance(problem, CommitOutcomeUnknown)
    assert "the producer was closed before the reply arrived" in str(problem)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_commit_that_was_sent_is_unknown_when_another_task_closes_the_producer(
    broker: Broker, backend: str
) -> None:
    async def commit(producer: AsyncProducer) -> None:
        with pytest.raises(CommitOutcomeUnknown, match="the producer was closed before the reply arrived"):
            await producer.commit_transaction()

    async def story() -> None:
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                async with AsyncProducer(broker.address, transactional_id="pay") as producer:
                    await producer.init_transactions()
                    producer.begin_transaction()
                    await (await producer.send("t", b"x"))
                    tasks.start_soon(commit, producer)
                    await anyio.to_thread.run_sync(wait_for_the_end, broker)

    anyio.run(story, backend=backend)


def test_a_forked_process_takes_nothing_from_the_clients_of_its_parent() -> None:
    with Broker() as broker:
        create_topic(broker.address, "t")
        # From Python 3.12 on, it warns of forks of programs with threads, as the clients have.
        quiet = ["-W", "ignore::DeprecationWarning"]
        command = [sys.executable, *quiet, "-m", "tests.client.forked", broker.address]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (0, "")


class Forking(RebalanceListener):
    """Forks within a call of the consumer."""

    def __init__(self) -> None:
        self.child: int | None = None

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.child = os.fork()


def test_a_call_whose_callback_forks_is_refused_in_the_child() -> None:
    with Broker() as broker, Consumer(broker.address, group_id="g") as consumer:
        create_topic(broker.address, "t")
        listener = Forking()
        consumer.subscribe(["t"], listener)
        refusal = ""
        try:
            while listener.child is None:
                consumer.poll(1_000)
        except ClientClosed as problem:
            refusal = str(problem)
        finally:
            if listener.child == 0:  # whatever has happened, the child must not go on with the tests
                os._exit(7 if "belongs to the parent of this forked process" in refusal else 1)
        assert refusal == ""
        assert listener.child is not None
        _, status = os.waitpid(listener.child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_other_threads_may_control_a_consumer_that_polls() -> None:
    with Broker() as broker, Admin(broker.address) as admin:
        admin.create_topic("t")
        consumer = Consumer(broker.address, client_id="reader")
        consumer.assign([HERE])
        asks = broker.faults.when("reader sends Fetch").do("deliver twice")
        with ThreadPoolExecutor(1) as threads:
            polled = threads.submit(consumer.poll, PATIENCE_S * 1_000)
            asks.wait_until_struck(PATIENCE_S)
            consumer.pause(HERE)
            consumer.seek(HERE, 0)
            assigned = consumer.assignment()
            consumer.close()
            assert list(assigned) == [HERE]
            with pytest.raises(ClientClosed):
                polled.result(PATIENCE_S)


def test_a_loop_over_records_whose_partition_is_taken_away_before_the_first_one_is_empty() -> None:
    """As close() in another thread does, between the poll() of a loop and its first record."""
    with Broker() as broker, Admin(broker.address) as admin, Consumer(broker.address) as consumer:
        admin.create_topic("t")
        with Producer(broker.address) as producer:
            producer.send("t", b"x")
        consumer.assign([HERE])
        batches = consumer.poll(PATIENCE_S * 1_000)
        assert batches
        consumer.assign([])
        calls: Any = vars(consumer)["_calls"]
        assert list(calls.one_by_one(batches)) == []


def test_a_producer_may_be_closed_while_another_thread_aborts(broker: Broker) -> None:
    """Nobody may control a transaction in two threads at once, but anybody may close the client."""
    with ThreadPoolExecutor(1) as threads:
        producer = Producer(broker.address, transactional_id="pay")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"x").result()
        aborted = threads.submit(producer.abort_transaction)
        wait_for_the_end(broker)
        producer.close()
        with pytest.raises(ClientClosed):
            aborted.result(PATIENCE_S)
