"""Settings that every test shares."""

import gc
import os
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

collect_ignore = ["kafka_clients"]  # unless it is named, as `make kafka-clients` does: it needs Java and jars

# Every Spark session of a test lives for seconds: most of its time would go into the compiler that pays off
# after minutes. With the quick one alone a session costs half of the processor time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ.setdefault("SPARK_LAUNCHER_OPTS", os.environ["SPARK_SUBMIT_OPTS"])

# The configuration file of whoever runs the tests is nothing to the commands in them.
os.environ["FENCEPOST_CONFIG"] = os.devnull

# Hypothesis's default deadline of 200 ms per example fails on a busy machine. What a test asserts must not
# depend on how fast the machine is, so no example has a deadline.
settings.register_profile("fencepost", deadline=None)
settings.load_profile("fencepost")


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
