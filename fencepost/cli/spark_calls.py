"""Spark for one command: in a thread of its own, so that a signal does not interrupt a call.

PySpark talks to its JVM over a socket, request by request. An exception of a signal handler between the two
leaves the response unread, and every later call, even one that only cleans up, gets the wrong response. So
the main thread, which gets the signals, only waits here. A command that is ended this way leaves Spark as it
is: the JVM ends with this process, even one that is still starting.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def with_spark(work: Callable[[], Result]) -> Result:
    """Calls `work` in another thread; returns its result, or raises what it raised."""
    done = Future[Result]()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as problem:  # noqa: BLE001 - the main thread raises it
            done.set_exception(problem)

    Thread(target=run, name="spark", daemon=True).start()
    return done.result()
