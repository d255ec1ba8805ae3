"""The pytest plugin: fixtures with a broker and topics, what happened in a failed test, and the sweep.

Rule: tests that do not use it pay nothing: the first fixture or mark imports the rest of fencepost.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from fencepost.broker.embedded import Broker
    from fencepost.testing.broker_process import BrokerProcess

FIXTURES = frozenset({"fencepost_broker", "fencepost_broker_process"})
SWEEP_MARK = "fencepost_sweep"
USED_FIXTURE = pytest.StashKey[str]()
"""Of a test: the fixture that gave it a broker; another fixture, or the body of the test, may have requested
it.
"""

MARKS = (
    "fencepost(partitions=1, sync='none', ...): partitions of fencepost_topic, options of fencepost.Broker",
    "fencepost_sweep(seed, points, ...): what @fencepost.sweep sets",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where artefacts go."""
    parser.getgroup("fencepost").addoption(
        "--fencepost-output",
        metavar="DIR",
        help="where to save the table, drawing and page of each failed test that uses a broker "
        "(default: pytest's cache)",
    )


def pytest_configure(config: pytest.Config) -> None:
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


# --- fixtures -----------------------------------------------------------------------------------------------


@pytest.fixture
def fencepost_broker(request: pytest.FixtureRequest) -> Generator[Broker]:
    """A fresh broker in memory, with the options of @pytest.mark.fencepost(...)."""
    from fencepost.testing import fixtures

    request.node.stash[USED_FIXTURE] = "fencepost_broker"
    with fixtures.embedded(request.node) as broker:
        yield broker


@pytest.fixture
def fencepost_broker_process(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[BrokerProcess]:
    """A fresh broker in a process of its own, in a directory made for the test."""
    from fencepost.testing import fixtures

    request.node.stash[USED_FIXTURE] = "fencepost_broker_process"
    with fixtures.process(request.node, tmp_path / "broker") as broker:
        yield broker


@pytest.fixture
def fencepost_topic_factory(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Creates topics at the broker of the test: `fencepost_topic_factory("invoices", partitions=3)`."""
    from fencepost.testing.topic import create_topic

    named = next((name for name in request.fixturenames if name in FIXTURES), "fencepost_broker")
    broker = request.getfixturevalue(request.node.stash.get(USED_FIXTURE, named))

    def create(name: str, partitions: int = 1) -> str:
        return create_topic(broker, name, partitions)

    return create


@pytest.fixture
def fencepost_topic(request: pytest.FixtureRequest, fencepost_topic_factory: Callable[..., str]) -> str:
    """A fresh topic named after the test, with the partitions of @pytest.mark.fencepost(partitions=...)."""
    from fencepost.testing import fixtures

    partitions = fixtures.options_of(request.node).get("partitions", 1)
    return fencepost_topic_factory(request.node.name, partitions)


# --- the end of a test --------------------------------------------------------------------------------------


def _uses_broker(item: pytest.Item) -> bool:
    return USED_FIXTURE in item.stash or item.get_closest_marker(SWEEP_MARK) is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A test whose fault never struck has failed; a run of a sweep ends in time."""
    if _uses_broker(item):
        from fencepost.testing import pytest_runs

        with pytest_runs.called(item):
            return (yield)
    result = yield
    if _uses_broker(item):  # asked for in the body of the test
        from fencepost.testing import pytest_runs

        pytest_runs.require_all_struck(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what happened at its brokers, and no line of Fencepost for an error of its user."""
    if call.excinfo is not None:
        from fencepost.testing import tracebacks

        tracebacks.shorten(item, call.excinfo)
    report = yield
    if report.failed and _uses_broker(item):
        from fencepost.testing import pytest_runs

        pytest_runs.show(item, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A swept test runs many times."""
    if item.get_closest_marker(SWEEP_MARK) is None:
        return None
    from fencepost.testing import pytest_runs

    pytest_runs.sweep(item, nextitem)
    return True
