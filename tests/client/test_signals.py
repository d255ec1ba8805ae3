"""Signal handlers that raise, or close the client, in the main thread: no call hangs, and no record is lost,
doubled or stored in halves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator

import pytest

from fencepost import Admin, Broker
from fencepost.client.shells.deputies import undisturbed
from tests.client.interrupted import CALLS

ROUNDS = {"poll(1000)": 10, "poll of a member": 5}  # these take seconds

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that send signals")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Broker() as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("t")
        yield broker.address


def run(call: str, handler: str, rounds: int, address: str) -> None:
    """Runs the program, which ends itself when it hangs."""
    command = [sys.executable, "-m", "tests.client.interrupted", call, handler, str(rounds), address]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_at_any_moment_leaves_a_client_that_works(address: str, call: str) -> None:
    run(call, "raise", ROUNDS.get(call, 300), address)


@pytest.mark.parametrize("call", CALLS)
def test_a_signal_handler_may_close_the_client_that_it_interrupts(address: str, call: str) -> None:
    run(call, "close", ROUNDS.get(call, 80), address)


@pytest.mark.parametrize(
    ("story", "call"), [("transactions", ""), ("sends", ""), ("reads", "poll"), ("reads", "for")]
)
def test_ctrl_c_at_every_instruction_keeps_every_promise(story: str, call: str) -> None:
    with Broker() as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("t")
        run(call, story, 1, broker.address)


# --- deputies -----------------------------------------------------------------------------------------------


def test_other_threads_do_their_work_themselves() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(undisturbed(threading.get_ident)))
    thread.start()
    thread.join()
    assert found == [thread.ident]
    assert undisturbed(threading.get_ident) != threading.get_ident()


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
            undisturbed(work)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert done
    assert caught.value.__notes__ == ["Before this interruption, the call had ended"]


def test_an_interruption_has_the_error_of_the_work_as_its_cause() -> None:
    interruption, error = KeyboardInterrupt(), ValueError("the work's")

    def work() -> None:
        raise error

    with pytest.raises(KeyboardInterrupt) as caught:
        undisturbed(work, deque([interruption]))
    assert caught.value is interruption
    assert caught.value.__cause__ is error


def test_work_is_done_in_a_forked_process_which_has_no_deputies_yet() -> None:
    undisturbed(int)
    child = os.fork()
    if not child:
        os._exit(undisturbed(lambda: 7))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_without_threads_the_main_thread_works_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("fencepost.client.shells.deputies._free", [])
    monkeypatch.setattr(threading.Thread, "start", start)
    assert undisturbed(threading.get_ident) == threading.get_ident()
