"""Spark for one command: in a thread of its own, so that a signal does not strike in the middle of a call.

PySpark talks to its JVM over a socket, request by request. An exception of a signal handler between the two
leaves the answer unread, and every later call, even one that only cleans up, gets the wrong answer. So the
main thread, which gets the signals, only waits here. A command that is ended this way leaves Spark as it is:
the JVM ends with this process, even one that is still starting.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def with_spark(work: Callable[[], Result]) -> Result:
    """Calls `work` in another thread, and returns or raises what it does."""
    done = Future[Result]()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as problem:  # noqa: BLE001 - the main thread raises it
            done.set_exception(problem)

    Thread(target=run, name="spark", daemon=True).start()
    return done.result()
