"""Signal handlers that raise, or close the client, in the main thread: no call hangs, and no record is lost,
doubled or stored in halves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fencepost import Broker, Producer
from fencepost.client.shells.signals import interruptions, noting_interruptions, uninterrupted
from tests.client.interrupted import CALLS, interrupt
from tests.topics import create_topic

ROUNDS = {"poll(1000)": 10, "poll of a member": 5}  # these take seconds

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that send signals")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        create_topic(running.address, "t")
        yield running


@pytest.fixture
def address(broker: Broker) -> str:
    return broker.address


def run(call: str, story: str, rounds: int, address: str, *, ctrl_c: str = "python") -> None:
    """Runs the program, which ends itself when it hangs."""
    command = [sys.executable, "-m", "tests.client.interrupted", call, story, str(rounds), address, ctrl_c]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("ctrl_c", ["python", "program"])
@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_at_any_moment_leaves_a_client_that_works(address: str, call: str, ctrl_c: str) -> None:
    run(call, "interrupt", ROUNDS.get(call, 200), address, ctrl_c=ctrl_c)


@pytest.mark.thorough
@pytest.mark.parametrize("call", CALLS)
def test_a_signal_handler_may_close_the_client_that_it_interrupts(address: str, call: str) -> None:
    run(call, "close", ROUNDS.get(call, 80), address)


@pytest.mark.parametrize(("ctrl_c", "rounds"), [("python", 3), ("program", 1)])
@pytest.mark.parametrize(
    ("story", "call"), [("transactions", ""), ("sends", ""), ("reads", "poll"), ("reads", "for")]
)
def test_ctrl_c_at_every_instruction_keeps_every_promise(
    story: str, call: str, ctrl_c: str, rounds: int
) -> None:
    with Broker() as broker:
        create_topic(broker.address, "t")
        run(call, story, rounds, broker.address, ctrl_c=ctrl_c)


@pytest.fixture(autouse=True)
def pythons_ctrl_c() -> Iterator[None]:
    """Spark sets a handler of its own, which stays when the context has stopped."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def program_handler() -> Iterator[None]:
    """A signal with a handler of the program, which could raise or close a client."""
    before = signal.signal(signal.SIGUSR1, print)
    yield
    signal.signal(signal.SIGUSR1, before)


# --- the main thread itself ---------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN, signal.SIG_DFL])
def test_without_handlers_of_the_program_the_main_thread_works_itself(handler: Any) -> None:
    signal.signal(signal.SIGINT, handler)
    assert uninterrupted(threading.get_ident) == threading.get_ident()
    assert signal.getsignal(signal.SIGINT) is handler


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)
    done.append(True)


done: list[bool] = []


def test_ctrl_c_is_raised_when_the_work_is_done() -> None:
    done.clear()
    with pytest.raises(KeyboardInterrupt) as caught:
        uninterrupted(ctrl_c)
    assert done
    assert caught.value.__notes__ == ["Before this interruption, the call had ended"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_work_may_take_ctrl_c() -> None:
    interruptions: list[BaseException] = []

    def work() -> BaseException:
        ctrl_c()
        return interruptions.pop()

    assert type(uninterrupted(work, interruptions)) is KeyboardInterrupt


def test_in_the_work_another_call_leaves_ctrl_c_to_the_one_around_it() -> None:
    done.clear()
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(lambda: uninterrupted(ctrl_c))
    assert done


def test_a_handler_that_a_callback_sets_does_not_part_its_calls_from_the_call_around_it() -> None:
    """A worker would wait for locks that this thread holds."""

    def callback() -> int:
        signal.signal(signal.SIGUSR1, print)
        return uninterrupted(threading.get_ident)

    before = signal.getsignal(signal.SIGUSR1)
    try:
        assert uninterrupted(callback) == threading.get_ident()
        assert uninterrupted(threading.get_ident) != threading.get_ident()
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def ctrl_c_after(*seconds: float) -> Generator[None]:
    """Ctrl-C at these times, in seconds from now."""
    timers = [threading.Timer(each, os.kill, (os.getpid(), signal.SIGINT)) for each in seconds]
    for timer in timers:
        timer.start()
    yield
    for timer in timers:
        timer.join()


@pytest.fixture(params=["python", "program"])
def any_ctrl_c(request: pytest.FixtureRequest) -> None:
    """Ctrl-C with the handler of Python, or with one of the program."""
    if request.param == "program":
        signal.signal(signal.SIGINT, interrupt)


def test_ctrl_c_ends_a_call_of_a_callback_that_waits_in_the_main_thread(
    broker: Broker, any_ctrl_c: None
) -> None:
    """The program waits for a full buffer, and its callback for the same broker."""
    held = broker.faults.when("broker sends Produce reply to *", nth=2).do("hold")
    producer = Producer(broker.address, linger_ms=60_000)
    threads: list[threading.Thread] = []

    def on_delivery(_error: object, _place: object) -> None:
        threads.append(threading.current_thread())
        producer.send("t", b"2")
        producer.flush()

    producer.send("t", b"1", on_delivery=on_delivery)
    with ctrl_c_after(0.5), pytest.raises(KeyboardInterrupt):
        producer.flush()
    assert len(threads) == 1
    held.end()
    producer.close()


def test_ctrl_c_ends_a_call_that_waits_for_a_callback_in_another_thread(
    address: str, any_ctrl_c: None
) -> None:
    may_go_on, has_begun = threading.Event(), threading.Event()

    def on_delivery(_error: object, _place: object) -> None:
        has_begun.set()
        may_go_on.wait()

    producer = Producer(address, linger_ms=0)
    producer.send("t", b"1", on_delivery=on_delivery)
    assert has_begun.wait(60), "the IO thread calls it"
    with ctrl_c_after(0.3), pytest.raises(KeyboardInterrupt):
        producer.flush()
    with ctrl_c_after(0.3, 0.9), pytest.raises(KeyboardInterrupt):
        producer.close()
    may_go_on.set()


def test_ctrl_c_ends_a_send_that_waits_for_room_and_a_flush_that_waits_for_a_broker(
    broker: Broker, any_ctrl_c: None
) -> None:
    held = broker.faults.when("broker sends Produce reply to *").do("hold")
    producer = Producer(broker.address, batch_size=100, buffer_memory=100)
    producer.send("t", b"1" * 80, partition=0)
    with ctrl_c_after(0.3), pytest.raises(KeyboardInterrupt):
        producer.send("t", b"2" * 80, partition=0)
    with ctrl_c_after(0.3), pytest.raises(KeyboardInterrupt):
        producer.flush()
    held.end()
    producer.close()


# --- where a block is interrupted ---------------------------------------------------------------------------


def test_a_block_is_interrupted_where_it_checks() -> None:
    found: list[BaseException] = []

    def run() -> None:
        with noting_interruptions(found):
            ctrl_c()
            (noted,) = found
            uninterrupted(ctrl_c)
            assert found == [noted]
            raise found.pop(0)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_block_that_checks_nothing_is_interrupted_at_its_end() -> None:
    done.clear()
    with pytest.raises(KeyboardInterrupt), noting_interruptions([]):
        ctrl_c()
    assert done


def test_a_block_that_waits_for_something_is_interrupted_soon() -> None:
    read_end = os.pipe()[0]

    def run() -> None:
        with noting_interruptions([]):
            ctrl_c()
            os.read(read_end, 1)  # nobody writes

    with pytest.raises(KeyboardInterrupt):
        run()


def test_a_client_works_in_the_thread_of_a_block_and_is_interrupted_where_it_waits(address: str) -> None:
    found: list[BaseException] = []
    threads: list[int] = []
    with noting_interruptions(found), Producer(address) as producer:
        threads.append(uninterrupted(threading.get_ident))
        assert uninterrupted(lambda: signal.raise_signal(signal.SIGINT) or interruptions() is found)
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
        assert not found
    assert threads == [threading.get_ident()]


def test_where_python_sets_no_handlers_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter within another one takes any thread for its main thread."""
    found: list[int] = []

    def run_as_main() -> None:
        monkeypatch.setattr("fencepost.client.shells.signals._main_thread", threading.get_ident())
        found.append(uninterrupted(threading.get_ident))

    thread = threading.Thread(target=run_as_main)
    thread.start()
    thread.join()
    assert found == [thread.ident]


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    done.clear()
    uninterrupted(ctrl_c)
    assert done


def test_a_process_that_another_thread_forks_during_a_call_heeds_ctrl_c() -> None:
    found: list[int] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                os._exit(uninterrupted(lambda: 7))
            os._exit(1)
        found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def work() -> None:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()

    uninterrupted(work)
    assert found == [7]


def test_a_debugger_in_a_callback_may_bring_the_handler_of_the_call_back() -> None:
    kept: list[Any] = []

    def callback() -> None:
        kept.append(signal.signal(signal.SIGINT, signal.default_int_handler))

    uninterrupted(callback)
    signal.signal(signal.SIGINT, kept[0])
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_handler_that_the_work_sets_stays() -> None:
    uninterrupted(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


# --- workers ------------------------------------------------------------------------------------------------


def test_other_threads_do_their_work_themselves() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(uninterrupted(threading.get_ident)))
    thread.start()
    thread.join()
    assert found == [thread.ident]


def test_with_a_handler_of_the_program_a_worker_does_the_work(program_handler: None) -> None:
    assert uninterrupted(threading.get_ident) != threading.get_ident()


def test_a_handler_need_not_be_hashable(program_handler: None) -> None:
    class Handler(list[int]):
        def __call__(self, *_: object) -> None:
            raise AssertionError("no signal is sent")

    signal.signal(signal.SIGUSR1, Handler())
    assert uninterrupted(threading.get_ident) != threading.get_ident()


def test_an_interruption_is_raised_when_the_work_is_done() -> None:
    def work() -> None:
        started.set()
        signal.raise_signal(signal.SIGALRM)  # the handler runs in the main thread
        assert interrupted.wait(60)
        done.append(True)

    def interrupt(*_: object) -> None:
        assert started.is_set()
        interrupted.set()
        raise TimeoutError("the handler's")

    started, interrupted, done = threading.Event(), threading.Event(), list[bool]()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(TimeoutError, match="the handler's") as caught:
            uninterrupted(work)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert done
    assert caught.value.__notes__ == ["Before this interruption, the call had ended"]


@pytest.mark.parametrize("handler", [signal.SIG_DFL, print])
def test_an_interruption_has_the_error_of_the_work_as_its_cause(handler: Any) -> None:
    interruption, error = KeyboardInterrupt(), ValueError("the work's")

    def work() -> None:
        raise error

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            uninterrupted(work, [interruption])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught.value is interruption
    assert caught.value.__cause__ is error


def test_work_is_done_in_a_forked_process_which_has_no_workers_yet(program_handler: None) -> None:
    uninterrupted(int)
    child = os.fork()
    if not child:
        os._exit(uninterrupted(lambda: 7))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_without_threads_the_main_thread_works_itself(
    monkeypatch: pytest.MonkeyPatch, program_handler: None
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("fencepost.client.shells.signals._idle", [])
    monkeypatch.setattr(threading.Thread, "start", start)
    assert uninterrupted(threading.get_ident) == threading.get_ident()
