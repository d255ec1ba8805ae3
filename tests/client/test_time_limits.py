"""How long a producer waits for a broker that does not answer: at the end of a block, and in close().

Both shells run these scripts (`ProducerCalls`); here a driver whose time is a number runs them.
"""

from __future__ import annotations

from typing import TypeVar

import pytest

from fencepost.client.calls import CallScript, Wait
from fencepost.client.effects import CallAnswered, Effect, TransactionCall
from fencepost.client.errors import (
    ClientClosed,
    CommitOutcomeUnknown,
    Failure,
    RequestTimeout,
    TransactionAborted,
)
from fencepost.client.producer_calls import ProducerCalls
from fencepost.protocol import messages as m
from tests.client.conversation import ProducerTalk, transactional

ResultT = TypeVar("ResultT")

MAX_BLOCK_MS = 20_000


class SilentBroker:
    """A driver of a producer with an open transaction, whose broker answers nothing from now on."""

    cancelled: tuple[type[BaseException], ...] = ()
    wall_ms = 0

    def __init__(self) -> None:
        self.talk: ProducerTalk = transactional(max_block_ms=MAX_BLOCK_MS)
        self.talk.machine.begin()
        self.talk.send(b"x")
        self.calls = ProducerCalls(self.talk.machine, self)
        self.answers: dict[int, CallAnswered] = {}
        self.waits: list[Wait] = []

    @property
    def now(self) -> int:
        return self.talk.now

    @property
    def resolved(self) -> dict[TransactionCall, Failure | None]:
        return self.talk.resolved

    def perform(self, effects: list[Effect]) -> None:
        self.talk.hear(effects)

    def check_running(self) -> None:
        """It is never closed."""

    def run(self, script: CallScript[ResultT]) -> ResultT:
        """Runs a script; each of its waits lasts until the deadline."""
        while True:
            try:
                wait = next(script)
            except StopIteration as end:
                return end.value
            assert isinstance(wait, Wait)
            assert not wait.until(), "nothing is answered"
            self.waits.append(wait)
            self.talk.now = int(wait.deadline)


# An exception of the program waits max_block_ms for the abort; Ctrl-C and a cancellation wait five seconds.
@pytest.mark.parametrize(
    ("problem", "limit_ms"),
    [(KeyError("mine"), MAX_BLOCK_MS), (KeyboardInterrupt(), 5_000)],
    ids=["exception", "interruption"],
)
def test_a_block_that_raises_waits_for_its_abort(problem: BaseException, limit_ms: int) -> None:
    driver = SilentBroker()
    started = driver.now
    driver.run(driver.calls.abort_after(problem))
    assert driver.now - started == limit_ms
    assert [wait.is_shielded for wait in driver.waits] == [True], "a cancelled caller waits too"
    (note,) = problem.__notes__
    assert f"abort_transaction() did not finish within {limit_ms} ms: no reply arrived" in note


def test_closing_a_producer_raises_after_thirty_seconds() -> None:
    driver = SilentBroker()
    started = driver.now
    with pytest.raises(RequestTimeout, match=r"abort_transaction\(\) did not finish within 30000 ms"):
        driver.run(driver.calls.close())
    assert driver.now - started == 30_000
    assert driver.talk.machine.is_over
    with pytest.raises(ClientClosed):
        driver.calls.begin_transaction()


def test_a_producer_whose_block_raised_closes_within_five_seconds() -> None:
    driver = SilentBroker()
    started, problem = driver.now, KeyError("mine")
    driver.run(driver.calls.close_after(problem))
    assert driver.now - started == 5_000
    assert "close() failed too" in problem.__notes__[0]


def interrupted_commit(*, is_sent: bool) -> KeyboardInterrupt:
    """Ctrl-C while commit_transaction() waits, after or before EndTxn was sent."""
    driver = SilentBroker()
    script = driver.calls.commit_transaction()
    next(script)
    if is_sent:
        driver.talk.store()
        assert driver.talk.waiting(m.EndTxn)
    with pytest.raises(KeyboardInterrupt) as caught:
        script.throw(KeyboardInterrupt())
    return caught.value


def test_an_interrupted_commit_says_what_became_of_it() -> None:
    unsent = interrupted_commit(is_sent=False)
    assert isinstance(unsent.__cause__, TransactionAborted)
    assert "before the commit was sent" in str(unsent.__cause__)
    sent = interrupted_commit(is_sent=True)
    assert isinstance(sent.__cause__, CommitOutcomeUnknown)
    assert "interrupted before the reply arrived" in str(sent.__cause__)


def test_a_second_interruption_closes_the_producer_at_once() -> None:
    driver = SilentBroker()
    script = driver.calls.close_after(KeyboardInterrupt())
    wait = next(script)
    assert isinstance(wait, Wait)
    assert wait.is_shielded
    with pytest.raises(KeyboardInterrupt, match="the second") as caught:
        script.throw(KeyboardInterrupt("the second"))
    # The caller still holds the traceback, and with it the frames of the script.
    assert driver.talk.machine.is_over, caught.traceback


def test_an_abort_that_ended_after_its_caller_left_does_not_answer_the_next_abort() -> None:
    driver = SilentBroker()
    with pytest.raises(RequestTimeout):
        driver.run(driver.calls.abort_transaction())
    driver.talk.store()
    driver.talk.end(epoch=1)
    driver.calls.begin_transaction()
    driver.talk.send(b"y")
    with pytest.raises(RequestTimeout):
        driver.run(driver.calls.abort_transaction())
    assert driver.talk.machine.may_abort, "the second transaction is still open"
