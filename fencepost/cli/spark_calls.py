"""Spark for one command: in a thread of its own, so that a signal does not interrupt a call, and with errors
for a person at a terminal.

PySpark talks to its JVM over a socket, request by request. An exception of a signal handler between the two
leaves the response unread, and every later call, even one that only cleans up, gets the wrong response. So
the main thread, which gets the signals, only waits here. A command that is ended this way leaves Spark as it
is: the JVM ends with this process, even one that is still starting.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVar

from fencepost.cli.errors import CommandFailed, WrongUsage
from fencepost.cli.options import is_address, problems_of
from fencepost.cli.output import print_progress
from fencepost.spark_bridge.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
MASTER: Final = re.compile(r"yarn$|local|(?:spark|k8s)://(?:https?://)?(?P<hosts>[^/]+)")
"""What the URLs of Spark masters begin with (SparkSubmit.prepareSubmitEnvironment)."""
YARN_NEEDS: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def with_spark(work: Callable[[], Result]) -> Result:
    """Calls `work` in another thread; returns its result, or raises what it raised. An error of Spark is
    raised as CommandFailed. In the end, the progress that `work` has shown is erased.
    """
    done = Future[Result]()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as problem:  # noqa: BLE001 - the main thread raises it
            done.set_exception(problem)

    Thread(target=run, name="spark", daemon=True).start()
    try:
        return done.result()
    except spark_errors() as problem:
        raise CommandFailed(reason_of(problem)) from problem
    finally:
        print_progress()


def start_spark(app_name: str, master: str, settings: dict[str, str] | None = None) -> SparkSession:
    """A session; WrongUsage if Spark does not start with this master."""
    then = "give local[*] or local[2] for this machine, or the URL of a running Spark cluster"
    if problem := _problem_of(master):
        raise WrongUsage(f"--master {master}{problem}", then=then)
    _silence_error_logs()
    try:
        return session(app_name, master=master, settings=settings)
    except spark_errors() as problem:
        what = f"Spark does not start with --master {master}: {reason_of(problem)}"
        raise WrongUsage(what, then=then) from problem


def _silence_error_logs() -> None:
    """PySpark writes each error of a query to stderr, with the stack trace of Java, before it raises it."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _problem_of(master: str) -> str:
    """What is wrong with the URL of a master, or with the machine that it names: Java would print a stack
    trace, or try to connect for a minute and a half.
    """
    found = MASTER.match(master)
    if found is None:
        return " is not the URL of a Spark master"
    if master == "yarn" and not any(os.environ.get(name) for name in YARN_NEEDS):
        return f" needs {' or '.join(YARN_NEEDS)} in the environment: where Hadoop's configuration files are"
    addresses = (found["hosts"] or "").split(",")
    reasons = problems_of(addresses) if all(map(is_address, addresses)) else ""
    return reasons and f": cannot connect to {reasons}"


def spark_errors() -> tuple[type[Exception], ...]:
    """What PySpark raises: errors of its own, and those of Java that it does not translate."""
    from pyspark.errors import PySparkException

    return PySparkException, import_module("py4j.protocol").Py4JError


def reason_of(problem: Exception) -> str:
    """The error that a worker raised, extracted from Spark's, which is pages long: without the traceback if
    it is one of ours. If Spark's error has no traceback, its first line; if Java raised it, its message.
    Both end before the SQLSTATE that Spark appends.
    """
    lines = [line for line in str(problem).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"fencepost[\w.]+: ", line)]
    if raised:
        return raised[-1].partition(": ")[2]
    if any("Traceback (most recent call last)" in line for line in lines):
        return "\n".join(line for line in lines if not line.startswith("\tat "))
    java = re.search(r"^: (?:[\w.$]+: )?(.+)", str(problem), re.MULTILINE)
    return (java[1] if java else lines[0]).partition(" SQLSTATE: ")[0]
