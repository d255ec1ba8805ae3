"""Calls into a loop from other threads: the result and the exception are the caller's, also at the end."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import trio

from fencepost.broker.loop_calls import LoopCalls


class NotPossible(Exception):
    """What a function raises."""


def refuse() -> None:
    raise NotPossible("of the loop")


@contextmanager
def running_loop() -> Generator[LoopCalls]:
    """A loop in a thread of its own, which ends with the block."""
    tokens: list[trio.lowlevel.TrioToken] = []
    is_running, stop = threading.Event(), trio.Event()

    async def serve() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        is_running.set()
        await stop.wait()

    thread = threading.Thread(target=trio.run, args=(serve,), daemon=True)
    thread.start()
    is_running.wait()
    try:
        yield LoopCalls(lambda: tokens[0], thread.is_alive, threading.Lock())
    finally:
        tokens[0].run_sync_soon(stop.set)
        thread.join()


def test_the_result_comes_from_the_thread_of_the_loop() -> None:
    with running_loop() as loop:
        assert loop.call(threading.get_ident) != threading.get_ident()


def test_an_exception_is_raised_where_the_call_was_made() -> None:
    with running_loop() as loop:
        with pytest.raises(NotPossible, match="of the loop"):
            loop.call(refuse)
        assert loop.call(lambda: 1) == 1, "the loop has survived it"


def test_a_call_from_the_loop_itself_does_not_wait_for_the_loop() -> None:
    with running_loop() as loop:
        assert loop.call(lambda: loop.call(lambda: 1)) == 1


def test_when_the_loop_has_ended_the_caller_calls_it_once() -> None:
    with running_loop() as loop:
        pass
    called: list[int] = []
    loop.call(lambda: called.append(threading.get_ident()))
    assert called == [threading.get_ident()]
    with pytest.raises(NotPossible, match="of the loop"):
        loop.call(refuse)
