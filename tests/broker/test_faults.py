"""Each kind of fault on a real broker, with proof that it struck: in what clients see, and in the log."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest

import fencepost
from fencepost import Broker, Producer
from fencepost.broker import sync_threads
from fencepost.broker.fault_handles import FaultHandle
from fencepost.client.errors import CommitOutcomeUnknown, ProducerFenced, RequestTimeout, TransactionAborted
from fencepost.faults.phrases import Point, PointKind
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.journal import Journal
from fencepost.journal.memory import MemoryStorage
from fencepost.protocol.terms import TopicPartition
from fencepost.testing.topic import create_topic
from tests.broker.wire import PATIENCE_S
from tests.reading import records

T0 = TopicPartition("t", 0)


@contextmanager
def served(*faults: str, **settings: Any) -> Generator[Broker]:
    """A broker in memory with a topic; the clients of the test are not yet there."""
    with Broker(**settings) as broker:
        create_topic(broker, "t", 1)
        for fault in faults:
            broker.faults.add(fault)
        yield broker


def producer(
    broker: Broker, name: str | None = None, client_id: str = "app", transaction_timeout_ms: int = 60_000
) -> Producer:
    return Producer(
        broker.address,
        transactional_id=name,
        client_id=client_id,
        transaction_timeout_ms=transaction_timeout_ms,
    )


def write(broker: Broker, *values: bytes, client_id: str = "app") -> None:
    with producer(broker, client_id=client_id) as app:
        for value in values:
            app.send("t", value)
            app.flush(PATIENCE_S * 1000)


def commit(app: Producer, value: bytes) -> None:
    with app.transaction():
        app.send("t", value)


def stored(broker: Broker, isolation_level: str = "read_committed") -> list[bytes]:
    """All values that a reader gets up to the end of the log."""
    found = records(broker.address, [T0], isolation_level, client_id="reader")
    return [record.value or b"" for record in found]


@contextmanager
def in_background(call: Any, *args: Any) -> Generator[Future[Any]]:
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(call, *args)


def is_refused(points: list[Point]) -> bool:
    """Whether the broker has answered a producer with an error."""
    return any(point.kind is PointKind.ANSWERS and point.whom == "app" for point in points)


def only(broker: Broker) -> FaultHandle:
    (fault,) = broker.faults.list()
    return fault


# --- messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        "when app sends Produce do drop",
        "when broker receives Produce from app do drop",
        "when broker sends Produce reply to app do drop",
        "when * sends Produce reply do drop",
        "when leader of t-0 sends Produce reply to * do drop",
        "when app sends Produce to node 1 do close the connection",
        "when broker sends Produce reply do close the connection",
        "when app sends Produce do answer NOT_LEADER_OR_FOLLOWER",
        "when app sends Produce do deliver twice",
        "when app sends Produce do delay 30 ms",
        "when broker sends Produce reply do delay 30 ms",
        "when app sends Produce do delay until after 30 ms",
        "when app sends Produce do hold until after 30 ms",
        "when broker sends Produce reply do hold until after 30 ms",
    ],
)
def test_a_producer_survives_a_fault_of_a_message(fault: str) -> None:
    with served(fault) as broker:
        write(broker, b"a", b"b")
        assert only(broker).struck == 1
        assert stored(broker) == [b"a", b"b"]


def test_a_lost_request_has_not_happened_and_a_lost_reply_has() -> None:
    """Without deduplication a retry shows: it writes a second time."""
    for what, expected in (
        ("app sends Produce do drop", 1),
        ("app sends Produce do answer NOT_LEADER_OR_FOLLOWER", 1),
        ("broker sends Produce reply to app do drop", 2),
        ("app sends Produce do close the connection", 2),
        ("app sends Produce do delay until after 30 ms", 2),
        ("app sends Produce do deliver twice", 2),
    ):
        with served(f"when {what}", broken=["dedup"]) as broker:
            write(broker, b"a")
            only(broker).wait_until_struck(PATIENCE_S)
            only(broker).end()
            assert stored(broker) == [b"a"] * expected, what


def test_a_late_message_is_overtaken_by_those_of_other_connections() -> None:
    with (
        served("when late sends Produce do delay 60 min") as broker,
        producer(broker, client_id="late") as app,
    ):
        sent = app.send("t", b"late")
        only(broker).wait_until_struck(PATIENCE_S)
        write(broker, b"early")
        only(broker).end()
        sent.result(PATIENCE_S * 1000)
        assert stored(broker) == [b"early", b"late"]


def test_a_held_request_waits_for_its_end_and_so_do_those_after_it() -> None:
    with served() as broker, producer(broker, "pay") as app:
        app.init_transactions()
        fault = broker.faults.when("app sends EndTxn").do("hold")
        with in_background(commit, app, b"a") as committed:
            fault.wait_until_struck(PATIENCE_S)
            with fencepost.Admin(broker.address) as admin:
                assert admin.describe_transaction("pay").state is fencepost.TransactionState.ONGOING
            assert not committed.done()
            fault.end()
            committed.result(PATIENCE_S)
        assert stored(broker) == [b"a"]


def test_a_held_reply_leaves_when_its_point_is_reached() -> None:
    """The commit of one producer is acknowledged when the other one has committed."""
    fault = "when broker sends EndTxn reply to one do hold until coordinator of two appends COMPLETE_COMMIT"
    with served(fault) as broker:
        with producer(broker, "one", "one") as one, producer(broker, "two", "two") as two:
            one.init_transactions()
            two.init_transactions()
            with in_background(commit, one, b"1") as committed:
                only(broker).wait_until_struck(PATIENCE_S)
                assert not committed.done()
                commit(two, b"2")
                committed.result(PATIENCE_S)
        assert stored(broker) == [b"1", b"2"]


def test_a_delayed_request_of_a_replaced_producer_arrives_too_late() -> None:
    """The zombie's EndTxn arrives after its successor was admitted, and commits nothing."""
    points: list[Point] = []
    with served() as broker:
        broker.faults.watch(points.append)
        with producer(broker, "pay", "zombie") as zombie, producer(broker, "pay", "heir") as heir:
            zombie.init_transactions()
            delayed = broker.faults.add("when zombie sends EndTxn do delay")
            # The retry begins with this question, and must not overtake the successor.
            kept_back = broker.faults.add(
                "when zombie sends FindCoordinator do answer COORDINATOR_NOT_AVAILABLE every 1 times"
            )
            with in_background(commit, zombie, b"never") as committed:
                delayed.wait_until_struck(PATIENCE_S)
                heir.init_transactions()
                kept_back.remove()
                delayed.end()
                with pytest.raises(CommitOutcomeUnknown):  # its connection broke, and the retry was fenced
                    committed.result(PATIENCE_S)
            commit(heir, b"a")
        received = Point(kind=PointKind.RECEIVES, who="broker", what="EndTxn", whom="zombie")
        assert points.count(received) == 2, "the late one, and the retry"
        assert stored(broker) == [b"a"]


def test_an_error_is_answered_and_the_request_is_not_carried_out() -> None:
    with served("when app sends EndTxn do answer PRODUCER_FENCED") as broker:
        with producer(broker, "pay") as app:
            app.init_transactions()
            with pytest.raises(ProducerFenced):
                commit(app, b"a")
        with fencepost.Admin(broker.address) as admin:
            assert admin.describe_transaction("pay").state is fencepost.TransactionState.ONGOING


def test_an_error_of_a_fault_is_not_logged_as_one_of_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    with served("when app sends InitProducerId do answer PRODUCER_FENCED") as broker:
        with producer(broker, "pay") as app, pytest.raises(ProducerFenced):
            app.init_transactions()
    assert "the producer is fenced" not in caplog.text, "nobody has replaced it"


def test_a_point_may_be_an_error_that_the_broker_answers() -> None:
    with served("when broker answers PRODUCER_FENCED to zombie do drop") as broker:
        with producer(broker, "pay", "zombie") as zombie, producer(broker, "pay", "heir") as heir:
            zombie.init_transactions()
            heir.init_transactions()
            with pytest.raises((ProducerFenced, TransactionAborted)):
                commit(zombie, b"never")
        assert only(broker).struck == 1


def test_a_fault_strikes_at_one_occurrence_or_every_so_often() -> None:
    with served() as broker:
        third = broker.faults.when("app sends Produce", nth=3).do("drop")
        second = broker.faults.when("broker receives Produce", every=2).do("delay 1 ms")
        write(broker, *(b"%d" % number for number in range(6)))
        assert (third.struck, third.reached) == (1, 3)
        assert (second.struck, second.reached) == (3, 6)  # the lost one was not received, and its retry was
        assert stored(broker) == [b"%d" % number for number in range(6)]


def test_a_fault_strikes_no_more_often_than_it_should() -> None:
    with served(
        "when app sends Produce do answer NOT_LEADER_OR_FOLLOWER every 1 times at most 2 times"
    ) as broker:
        write(broker, b"a", b"b")
        assert only(broker).struck == 2
        assert stored(broker) == [b"a", b"b"]
    with served() as broker:
        fault = broker.faults.when("broker sends Produce reply", every=2, times=1).do("drop")
        assert fault.text.endswith("do drop every 2 times at most 1 times")
        write(broker, b"a", b"b", b"c", b"d")
        assert fault.struck == 1


def test_of_several_faults_the_first_decides_the_fate_of_a_message() -> None:
    point = "when broker sends Produce reply"
    with served(f"{point} do drop", f"{point} do hold", f"{point} do clock of broker +1 s") as broker:
        write(broker, b"a")
        assert [fault.struck for fault in broker.faults.list()] == [1, 0, 1]
        broker.faults.list()[1].remove()
        assert stored(broker) == [b"a"]


def test_a_client_without_a_name_is_unnamed() -> None:
    with served("when unnamed sends Produce do drop", "when * sends Produce #2 do drop") as broker:
        write(broker, b"a", b"b", client_id="")
        assert [fault.struck for fault in broker.faults.list()] == [1, 1]


# --- appends, disks, clocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    [
        "before coordinator of pay appends PREPARE_COMMIT",
        "coordinator of pay appends PREPARE",
        "coordinator of * appends COMPLETE_COMMIT",
        "t-0 appends data for pay",
        "before t-0 appends COMMIT marker",
        "t-0 appends COMMIT marker for pay",
        "* appends COMMIT marker for *",
    ],
)
def test_a_broker_pauses_around_an_append_and_goes_on(point: str) -> None:
    with served() as broker, producer(broker, "pay") as app:
        app.init_transactions()
        fault = broker.faults.when(point).do("pause broker")
        with in_background(commit, app, b"a") as committed:
            fault.wait_until_struck(PATIENCE_S)
            fault.end()
            committed.result(PATIENCE_S)
        assert stored(broker) == [b"a"]


def test_what_a_paused_broker_was_asked_waits() -> None:
    with served() as broker, producer(broker, "pay") as app:
        app.init_transactions()
        fault = broker.faults.when("before coordinator of pay appends PREPARE_COMMIT").do("pause broker")
        with in_background(commit, app, b"a") as committed:
            fault.wait_until_struck(PATIENCE_S)
            with (
                fencepost.Admin(broker.address, default_api_timeout_ms=200) as admin,
                pytest.raises(RequestTimeout),
            ):
                admin.list_topics()
            assert not committed.done()
            fault.end()
            committed.result(PATIENCE_S)


def test_a_disk_refuses_to_append_until_the_fault_ends() -> None:
    points: list[Point] = []
    with served("when at 0 ms do fail appends of t-0") as broker:
        broker.faults.watch(points.append)
        with producer(broker) as app:
            sent = app.send("t", b"a")
            only(broker).wait_until_struck(PATIENCE_S)
            only(broker).end()
            sent.result(PATIENCE_S * 1000)
        assert stored(broker) == [b"a"]
    assert is_refused(points), "the first attempt"


def test_a_disk_refuses_to_sync_until_the_fault_ends() -> None:
    points: list[Point] = []
    with served(sync="all") as broker:
        broker.faults.watch(points.append)
        fault = broker.faults.when("t-0 appends data").do("fail syncs of t-0", until="t-0 appends data #3")
        write(broker, b"a")
        assert fault.struck >= 1
        fault.end()
        assert b"a" in stored(broker)
    assert is_refused(points), "what could not be made durable"


def test_a_slow_disk_makes_syncs_take_longer(tmp_path: Path) -> None:
    fault = "when t-0 appends data do slow disk of broker 3 times"
    pauses: list[float] = []

    def pause(_ended: Event, seconds: float) -> None:
        pauses.append(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync_threads, "pause", pause)
        with served(fault, sync="all", directory=tmp_path) as broker:
            write(broker, b"a", b"b")
            assert only(broker).struck >= 1
    assert len(pauses) >= 1


@pytest.mark.parametrize("how", ["end", "remove"])
def test_a_sync_that_has_begun_is_slow_no_longer_than_its_fault(how: str, tmp_path: Path) -> None:
    with served(sync="all", directory=tmp_path) as broker:
        fault = broker.faults.when("t-0 appends data").do("slow disk of broker 999999999 times")
        with producer(broker) as app:
            sent = app.send("t", b"a")
            fault.wait_until_struck(PATIENCE_S)
            getattr(fault, how)()
            sent.result(PATIENCE_S * 1000)
        assert stored(broker) == [b"a"]


def test_the_end_of_a_slow_disk_ends_no_pause_of_another_fault(tmp_path: Path) -> None:
    pauses: SimpleQueue[Event] = SimpleQueue()

    def pause(ended: Event, _seconds: float) -> None:
        pauses.put(ended)
        ended.wait()

    with pytest.MonkeyPatch.context() as patch, served(sync="all", directory=tmp_path) as broker:
        patch.setattr(sync_threads, "pause", pause)
        when = broker.faults.when("t-0 appends data")
        one, two = (when.do(f"slow disk of broker {times} times") for times in (2, 3))
        with producer(broker) as app:
            sent = app.send("t", b"a")
            first = pauses.get(timeout=PATIENCE_S)
            two.end()
            assert not first.is_set()
            one.end()
            assert first.is_set()
            sent.result(PATIENCE_S * 1000)
        assert pauses.get(timeout=PATIENCE_S).is_set(), "the second fault ended before its pause began"


@pytest.mark.parametrize("slower", [1e12, 1e30])
def test_a_stop_does_not_wait_for_a_slow_disk(slower: float) -> None:
    """Nor for one that is slower than a thread can wait."""
    journal = DataDirectory.open(MemoryStorage()).journal(TopicPartition("t", 0))
    begun = Event()

    def sync(_journal: Journal) -> int:
        begun.set()
        return 0

    with pytest.MonkeyPatch.context() as patch, sync_threads.SyncThreads() as syncs:
        patch.setattr(Journal, "sync", sync)
        syncs.sync(journal, slower={1: slower})
        assert begun.wait(PATIENCE_S)
    assert [sync.result for sync in syncs.take()] == [0]


def test_a_disk_that_is_slow_already_is_not_slowed_down_again(tmp_path: Path) -> None:
    with served(sync="all", directory=tmp_path) as broker:
        fault = broker.faults.when("t-0 appends data", every=1).do("slow disk of broker 2 times")
        write(broker, b"a", b"b")
        assert fault.reached == 2
        fault.end()
        fault.remove()
        write(broker, b"c")
        assert stored(broker) == [b"a", b"b", b"c"]


def test_a_clock_that_jumps_times_a_transaction_out() -> None:
    with served() as broker, producer(broker, "pay", transaction_timeout_ms=60_000) as app:
        app.init_transactions()
        app.begin_transaction()
        app.send("t", b"never")
        app.flush()
        broker.faults.when("at 0 ms").do("clock of broker +2 min").wait_until_struck(PATIENCE_S)
        with pytest.raises((ProducerFenced, TransactionAborted)):
            app.commit_transaction()
        assert stored(broker) == []
