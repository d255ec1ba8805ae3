"""Spark for one command: in a thread of its own, so that a signal does not interrupt a call, and with errors
for a person at a terminal.

PySpark talks to its JVM over a socket, request by request. An exception of a signal handler between the two
leaves the response unread, and every later call, even one that only cleans up, gets the wrong response. So
the main thread, which gets the signals, only waits here. A command that is ended this way leaves Spark as it
is: the JVM ends with this process, even one that is still starting.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

from fencepost.cli.errors import CommandFailed

Result = TypeVar("Result")


def with_spark(work: Callable[[], Result]) -> Result:
    """Calls `work` in another thread; returns its result, or raises what it raised. An error of Spark is
    raised as CommandFailed.
    """
    from pyspark.errors import PySparkException

    done = Future[Result]()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as problem:  # noqa: BLE001 - the main thread raises it
            done.set_exception(problem)

    Thread(target=run, name="spark", daemon=True).start()
    try:
        return done.result()
    except PySparkException as problem:
        raise CommandFailed(reason_of(problem)) from problem


def reason_of(problem: Exception) -> str:
    """The error that a worker raised, extracted from Spark's, which is pages long: without the traceback if
    it is one of ours. If Spark's error has no traceback, its first line.
    """
    lines = [line for line in str(problem).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"fencepost[\w.]+: ", line)]
    if raised:
        return raised[-1].partition(": ")[2]
    has_traceback = any("Traceback (most recent call last)" in line for line in lines)
    return "\n".join(line for line in lines if not line.startswith("\tat ")) if has_traceback else lines[0]
