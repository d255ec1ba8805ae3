"""Settings that every test shares."""

import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

collect_ignore = ["kafka_clients"]  # unless it is named, as `make kafka-clients` does: it needs Java and jars

# Every Spark session of a test lives for seconds: most of its time would go into the compiler that pays off
# after minutes. With the quick one alone a session costs half of the processor time. A fifth of its start is
# the verification of Spark's own bytecode.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", os.environ["SPARK_SUBMIT_OPTS"])

# The configuration file of whoever runs the tests is nothing to the commands in them.
os.environ["FENCEPOST_CONFIG"] = os.devnull

# Hypothesis's default deadline of 200 ms per example fails on a busy machine. What a test asserts must not
# depend on how fast the machine is, so no example has a deadline.
settings.register_profile("fencepost", deadline=None)
settings.load_profile("fencepost")


# One process runs all of these, so that one Spark session serves them.
IN_SPARK: Final = (
    "tests/audit/test_audit.py",
    "tests/benchmarks/test_spark_benchmark.py",
    "tests/cli/test_snapshots.py",
    "tests/groups/test_processes.py",
    "tests/spark/",
)


class Scheduling(LoadFileScheduling):
    """The files of IN_SPARK count as one, which is among the first: at the end, nobody waits for it."""

    def _split_scope(self, nodeid: str) -> str:
        return "in Spark" if nodeid.startswith(IN_SPARK) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling | None:
    """With --dist loadfile, deals out the tests as Scheduling does."""
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses a file that would start a second session, in the process that it is dealt out to. What waits
    for processes comes first: at the end, it would wait alone.
    """
    items.sort(key=lambda item: not item.nodeid.startswith("tests/testing/"))
    using = {item.nodeid.partition("::")[0] for item in items if "spark" in getattr(item, "fixturenames", ())}
    if strays := sorted(file for file in using if not file.startswith(IN_SPARK)):
        raise pytest.UsageError(f"{', '.join(strays)}: name what uses the fixture `spark` in IN_SPARK")


def pytest_runtest_makereport() -> None:
    """Lets PySpark's loggers of failed queries propagate again, which they stop at the first one. pytest adds
    its handler to loggers that do not propagate, and PySpark's give each handler their own formatter: in all
    later tests of this process caplog.text would be JSON.
    """
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        if name in logging.root.manager.loggerDict:
            logging.getLogger(name).propagate = True


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """The Spark session of all tests of this process."""
    from tests.spark.one_spark import one_spark

    with one_spark() as session:
        yield session


def pytest_addoption(parser: pytest.Parser) -> None:
    """With --java, Java's clients tell the stories of tests/kafka_bridge, instead of those in Python."""
    parser.addoption("--java", action="store_true")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects the tests without garbage collections, and lets later ones skip what then exists.

    Scanning the million objects of modules and tests over and over took a fifth of the time of simulated
    worlds. Worlds are full of cycles that live as long as they do, so young objects are not scanned often,
    either.
    """
    gc.disable()
    collected = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()
    return collected


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """The interpreter changes threads as often as it can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)
