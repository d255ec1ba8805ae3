"""Threads that share a blocking producer: every record is stored once, with its own key, at its own place."""

from __future__ import annotations

import dis
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise, product
from typing import Any

import pytest

from fencepost import Broker, ClientError, Producer, RecordMetadata, TopicPartition, WrongState
from fencepost.client.append_lock import AppendLock
from fencepost.client.send_path import SendPath
from fencepost.client.shells.sync import SendFuture
from tests.reading import records
from tests.topics import create_topic

PARTITIONS = [TopicPartition("t", number) for number in range(2)]
THREADS = 4
PATIENCE_S = 60.0  # longer than anything takes on a busy machine; only a failing test waits so long

Place = tuple[int, int]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        create_topic(running.address, "t", len(PARTITIONS))
        yield running


def together(*works: Callable[[], object]) -> None:
    """Runs each work in a thread of its own, all from the same moment on; raises what one of them raised."""
    start = threading.Barrier(len(works))
    problems: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        start.wait()
        try:
            work()
        except BaseException as problem:  # noqa: BLE001 - raised below, in the thread of the test
            problems.append(problem)

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for problem in problems:
        raise problem


def stored(broker: Broker) -> dict[Place, tuple[bytes, bytes]]:
    """Key and value of every record, by place."""
    found = records(broker.address, PARTITIONS)
    return {(record.partition, record.offset): (record.key, record.value) for record in found}


def records_of_threads_that_collide(broker: Broker, producer: Producer, count: int) -> None:
    """Threads send by every way there is, while another one flushes; then each record is where it should."""
    sent: list[dict[bytes, SendFuture]] = [{} for _ in range(THREADS)]
    columns: list[dict[bytes, RecordMetadata]] = [{} for _ in range(THREADS)]

    def send(number: int) -> None:
        for i in range(count):
            content = b"%d-%d" % (number, i)
            headers = [("h", content)] if i % 50 == 0 else None
            sent[number][content] = producer.send("t", content, content, partition=i % 2, headers=headers)
        contents = [b"%d-column-%d" % (number, i) for i in range(count)]
        placed = producer.send_many("t", contents, contents).result()
        columns[number].update(zip(contents, placed, strict=True))

    def flush() -> None:
        for _ in range(20):
            producer.flush()

    together(*[lambda number=number: send(number) for number in range(THREADS)], flush)
    producer.flush()
    found = stored(broker)
    assert len(found) == 2 * count * THREADS
    for number in range(THREADS):
        places = {content: future.result() for content, future in sent[number].items()} | columns[number]
        assert len(places) == 2 * count
        for content, place in places.items():
            assert found[place.partition, place.offset] == (content, content)


@pytest.mark.usefixtures("hasty_threads")
def test_records_of_threads_that_collide_stay_whole(broker: Broker) -> None:
    with Producer(broker.address, linger_ms=0, batch_size=2_000, buffer_memory=20_000) as producer:
        records_of_threads_that_collide(broker, producer, 1_500)


class Interrupted(list[bytes | None]):
    """A column of keys that lets another thread send while a record is half appended."""

    def __init__(self, keys: Iterable[bytes | None], intruder: threading.Thread, patience_s: float) -> None:
        super().__init__(keys)
        self._intruder, self._patience_s = intruder, patience_s

    def append(self, key: bytes | None, /) -> None:
        super().append(key)
        if key == b"a":
            self._intruder.start()
            self._intruder.join(self._patience_s)


def send_while_a_record_is_half_appended(producer: Producer, patience_s: float) -> None:
    """Sends `a`, and `b` from another thread in the middle of that."""
    producer.send("t", b"first", b"first", partition=0)
    batch = producer._hot["t"].open[0]  # pyright: ignore[reportPrivateUsage] - the middle of an append
    assert batch.keys is not None
    intruder = threading.Thread(target=producer.send, args=["t", b"b", b"b", 0])
    batch.keys = Interrupted(batch.keys, intruder, patience_s)
    producer.send("t", b"a", b"a", partition=0)
    intruder.join(PATIENCE_S)
    producer.flush()


def test_a_record_is_appended_whole(broker: Broker) -> None:
    with Producer(broker.address, linger_ms=60_000) as producer:
        send_while_a_record_is_half_appended(producer, patience_s=0.05)  # the other thread waits for longer
    assert [*stored(broker).values()] == [(name, name) for name in (b"first", b"a", b"b")]


class NoLock(AppendLock):
    """The planted fault: every thread may append."""

    __slots__ = ()

    def __delattr__(self, name: str) -> None:
        """It says that it did."""


def test_without_the_lock_it_would_be_mixed_up_with_another(broker: Broker) -> None:
    with Producer(broker.address, linger_ms=60_000) as producer:
        producer._append_lock = producer._calls._append_lock = NoLock()  # pyright: ignore[reportPrivateUsage] - the fault
        send_while_a_record_is_half_appended(producer, PATIENCE_S)
    assert [*stored(broker).values()] == [(b"first", b"first"), (b"a", b"b"), (b"b", b"a")]


def test_every_way_to_send_waits_for_the_append_lock(broker: Broker) -> None:
    ways: list[Callable[[Producer], object]] = [
        lambda producer: producer.send("t", b"a", b"a", 0),
        lambda producer: producer.send("t", b"a", b"a", 0, headers=[("h", b"")]),
        lambda producer: producer.send_nowait("t", b"a", b"a", partition=0),
        lambda producer: producer.send_many("t", [b"a"], [b"a"], partition=0),
    ]
    with Producer(broker.address, linger_ms=60_000) as producer:
        for way in ways:
            producer.send("t", b"first", b"first", 0)
            batch = producer._hot["t"].open[0]  # pyright: ignore[reportPrivateUsage] - not yet sent
            count = len(batch.values)
            with producer._append_lock:  # pyright: ignore[reportPrivateUsage] - of this thread
                other = threading.Thread(target=way, args=[producer])
                other.start()
                other.join(0.05)
                assert other.is_alive()
                assert len(batch.values) == count
            other.join(PATIENCE_S)
            assert len(batch.values) == count + 1 or batch.is_closed
            producer.flush()
    assert [*stored(broker).values()] == [(b"first", b"first"), (b"a", b"a")] * len(ways)


# --- Ctrl-C -------------------------------------------------------------------------------------------------


class CtrlC(list[Any]):
    """A column of which an append is interrupted by Ctrl-C as soon as it is done."""

    is_armed = True

    def append(self, item: object, /) -> None:
        super().append(item)
        self._interrupt()

    def extend(self, items: Iterable[object], /) -> None:
        super().extend(items)
        self._interrupt()

    def _interrupt(self) -> None:
        if self.is_armed:
            self.is_armed = False
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("way", "column"),
    [*product(("send", "send_nowait"), ("keys", "timestamps", "headers")), ("send_many", "keys")],
)
def test_ctrl_c_leaves_no_half_record(broker: Broker, way: str, column: str) -> None:
    reports: list[str] = []

    def send(name: str, way: str = way) -> None:
        def report(error: ClientError | None, _: RecordMetadata) -> None:
            reports.append(name if error is None else f"{name} failed")

        content = name.encode()
        if way == "send_many":
            producer.send_many("t", [content], [content], partition=0, on_delivery=report)
        else:
            rich = {"timestamp_ms": 7, "headers": [(name, content)]} if column != "keys" else {}
            getattr(producer, way)("t", content, content, partition=0, on_delivery=report, **rich)

    with Producer(broker.address, linger_ms=60_000) as producer:
        send("a", "send" if way == "send_nowait" else way)  # waits for the metadata
        batch = producer._hot["t"].open[0]  # pyright: ignore[reportPrivateUsage] - the middle of an append
        setattr(batch, column, CtrlC(getattr(batch, column)))
        with pytest.raises(KeyboardInterrupt):
            send("b")
        for name in ("c", "d"):
            send(name)
        producer.flush()
    assert [*stored(broker).values()] == [(name, name) for name in (b"a", b"c", b"d")]
    assert reports == ["a", "c", "d"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the platform has no timers that send signals")
def test_ctrl_c_during_any_append_releases_the_lock(broker: Broker) -> None:
    """Interrupts hundreds of appends to open batches, each after a random time, as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    draw, sent, interrupted = random.Random(7), 0, 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Producer(broker.address, linger_ms=60_000, batch_size=1_000_000) as producer:
            lock = producer._append_lock  # pyright: ignore[reportPrivateUsage] - whether it is free
            for _ in range(300):
                producer.send("t", b"first", b"first", 0)  # opens the batch
                names = [b"%d" % number for number in range(sent, sent + 2_000)]
                try:
                    signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 5e-4))
                    for name in names:
                        producer.send("t", name, name, 0)
                except KeyboardInterrupt:
                    interrupted += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                assert lock.is_free
                sent += 2_000
                producer.flush()
    finally:
        signal.signal(signal.SIGALRM, before)
    records = stored(broker).values()
    assert interrupted > 100
    assert [key for key, _ in records] == [value for _, value in records]


@pytest.mark.parametrize(("way", "first"), [("put", "room"), ("_put_run", "fill")])
def test_no_signal_handler_runs_between_taking_the_append_lock_and_the_try(way: str, first: str) -> None:
    """Between the two, no instruction at which the interpreter looks for signals."""
    steps = {step.offset: step for step in dis.get_instructions(getattr(SendPath, way))}
    after = dict(pairwise(steps))
    (at,) = (offset for offset, step in steps.items() if step.opname == "DELETE_ATTR")
    between: list[str] = []
    while steps[at].argval != first:  # the first instruction in the `try`
        at = steps[at].argval if steps[at].opname == "JUMP_FORWARD" else after[at]
        between.append(steps[at].opname)
    assert set(between) <= {"JUMP_FORWARD", "NOP", "LOAD_FAST", "LOAD_ATTR", "LOAD_GLOBAL"}, between


# --- transactions -------------------------------------------------------------------------------------------


def test_one_thread_at_a_time_controls_transactions(broker: Broker) -> None:
    held = broker.faults.when("broker sends EndTxn reply to *").do("hold")
    with Producer(broker.address, transactional_id="pay") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"x").result()
        commit = threading.Thread(target=producer.commit_transaction)
        commit.start()
        held.wait_until_struck(PATIENCE_S)
        with pytest.raises(WrongState, match="another thread or task waits"):
            producer.commit_transaction()
        held.end()
        commit.join(PATIENCE_S)
        assert not commit.is_alive()
        with producer.transaction():
            producer.send("t", b"y")
    assert [value for _, value in stored(broker).values()].count(b"x") == 1


# --- callbacks ----------------------------------------------------------------------------------------------


class Reports:
    """Collects what callbacks are told."""

    def __init__(self) -> None:
        self.places: list[RecordMetadata] = []
        self.errors: list[ClientError] = []

    def __call__(self, error: ClientError | None, place: RecordMetadata) -> None:
        self.places.append(place)
        if error is not None:
            self.errors.append(error)


@pytest.mark.usefixtures("hasty_threads")
def test_every_callback_is_called_once_before_flush_returns(broker: Broker) -> None:
    with Producer(broker.address, linger_ms=0, batch_size=1_000) as producer:
        for _ in range(20):
            reports = [Reports() for _ in range(200)]
            sent = [producer.send("t", b"x", b"k", on_delivery=report) for report in reports]
            producer.flush()
            assert [report.places for report in reports] == [[future.result()] for future in sent]
            assert not any(report.errors for report in reports)


def test_a_callback_is_called_while_its_sender_is_away(broker: Broker) -> None:
    told = threading.Event()
    with Producer(broker.address, linger_ms=1) as producer:
        producer.send("t", b"x", on_delivery=lambda error, place: told.set())
        assert told.wait(PATIENCE_S)


def test_a_callback_may_use_the_producer_and_close_it(broker: Broker) -> None:
    closed = threading.Event()
    producer = Producer(broker.address, linger_ms=1)

    def send_the_next(_error: ClientError | None, place: RecordMetadata) -> None:
        if place.offset < 5:
            producer.send("t", b"x", partition=0, on_delivery=send_the_next)
        else:
            producer.close()
            closed.set()

    producer.send("t", b"x", partition=0, on_delivery=send_the_next)
    assert closed.wait(PATIENCE_S)
    assert len(stored(broker)) == 6


def test_a_callback_that_fails_is_logged_and_the_next_one_is_called(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    reports = Reports()
    with Producer(broker.address) as producer:
        producer.send("t", b"x", partition=0, on_delivery=lambda error, place: 1 / 0)
        producer.send("t", b"x", partition=0, on_delivery=reports)
    assert reports.places == [RecordMetadata("t", 0, 1)]
    assert "on_delivery failed for a record of partition t-0" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_after_a_callback_that_exits_the_next_one_is_called(broker: Broker) -> None:
    reports = Reports()
    with Producer(broker.address, linger_ms=60_000) as producer:
        producer.send("t", b"x", partition=0, on_delivery=lambda error, place: sys.exit(3))
        producer.send("t", b"x", partition=0, on_delivery=reports)
        with suppress(SystemExit):  # if flush() called it, and not the IO thread
            producer.flush()
        producer.flush()
        assert reports.places == [RecordMetadata("t", 0, 1)]


def test_callbacks_are_called_in_order_though_one_of_them_flushes(broker: Broker) -> None:
    reports = Reports()

    def send_and_flush(error: ClientError | None, place: RecordMetadata) -> None:
        reports(error, place)
        producer.send("t", b"x", partition=0, on_delivery=reports)
        producer.flush()

    with Producer(broker.address, linger_ms=60_000) as producer:
        producer.send("t", b"x", partition=0, on_delivery=send_and_flush)
        producer.send("t", b"x", partition=0, on_delivery=reports)
        producer.flush()
    assert [place.offset for place in reports.places] == [0, 1, 2]


def test_a_callback_that_exits_does_not_end_the_io_thread(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    called, told = threading.Event(), threading.Event()

    def leave(error: ClientError | None, place: RecordMetadata) -> None:
        called.set()
        sys.exit(3)

    with Producer(broker.address, linger_ms=1) as producer:
        producer.send("t", b"x", partition=0, on_delivery=leave)
        assert called.wait(PATIENCE_S)
        producer.send("t", b"x", partition=0, on_delivery=lambda error, place: told.set())
        assert told.wait(PATIENCE_S)
    assert "on_delivery failed for a record of partition t-0" in caplog.text
    assert "SystemExit: 3" in caplog.text


def test_a_callback_gets_the_error_of_its_record(broker: Broker) -> None:
    reports = Reports()
    with Producer(broker.address, transactional_id="pay", linger_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"x", partition=0, on_delivery=reports)
        producer.abort_transaction()
        assert reports.places == [RecordMetadata("t", 0, -1)]
        assert [str(error) for error in reports.errors] == [str(reports.errors[0])]
        assert "was aborted before this record was stored" in str(reports.errors[0])
