"""Calls of functions in the thread of a trio loop, from any other thread, even while the loop is ending.

Rule: the function is called exactly once, and its result or its exception is that of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future as Result
from concurrent.futures import TimeoutError as NotYet
from contextlib import AbstractContextManager, suppress
from typing import Final, TypeVar

import attrs
import trio

ResultT = TypeVar("ResultT")
LOOK_EVERY_S: Final = 0.1  # to see whether the thread of the loop is still alive


@attrs.frozen
class LoopCalls:
    """Where a loop runs. `token` gives the token of the loop, and `is_alive` whether that may still be
    running; `changes` is held while it starts or ends.
    """

    token: Callable[[], trio.lowlevel.TrioToken | None]
    is_alive: Callable[[], bool]
    changes: AbstractContextManager[object]

    def call(self, do: Callable[[], ResultT]) -> ResultT:
        """Call a function in the thread of the loop; in this one if the loop does not run."""
        token, result = self.token(), Result[ResultT]()
        if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is token:
            return do()  # the call comes from the loop itself

        def call() -> None:
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(do())
                except Exception as problem:  # noqa: BLE001 - it is raised in the thread that asked
                    result.set_exception(problem)

        if token is not None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(call)
                # The loop may end before it comes to this call.
                while self.is_alive() or not result.cancel():
                    with suppress(NotYet):
                        return result.result(LOOK_EVERY_S)
        with self.changes:  # the loop cannot start meanwhile, and only one thread at a time is here
            if self.token() is token:
                return do()
        return self.call(do)
