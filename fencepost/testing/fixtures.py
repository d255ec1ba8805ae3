"""The brokers of one test: made with the options of its marks, recorded, and asked at its end whether each
fault has struck.

Rule: what a test used is in its stash, so that its report and the sweep find it after the fixtures are gone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import attrs
import pytest

from fencepost.broker.embedded import Broker
from fencepost.lab.broker_recording import Recording
from fencepost.protocol.suggestions import suggestion
from fencepost.testing.sweep import LearnedPoints

if TYPE_CHECKING:
    from pathlib import Path

    from fencepost.broker.fault_handles import FaultHandle
    from fencepost.testing.broker_process import BrokerProcess

MARK: Final = "fencepost"
MadeT = TypeVar("MadeT")
_OF_TOPICS: Final = frozenset({"partitions"})


@attrs.define(eq=False)
class Swept:
    """The run of a sweep that a test is in: it learns, or it has one fault."""

    learned_points: LearnedPoints
    time_limit: float
    text: str | None = None
    fault: FaultHandle | None = None
    struck: int = 0
    is_hung: bool = False


@attrs.define(eq=False)
class TestBrokers:
    """What the fixtures of one test made."""

    __test__ = False  # tells pytest that this is not a test

    brokers: list[Broker | BrokerProcess] = attrs.Factory(list["Broker | BrokerProcess"])
    recording: Recording | None = None
    is_over: bool = False

    def require_all_struck(self) -> None:
        """Raises FaultNeverStruck if a fault has not struck."""
        for broker in self.brokers:
            broker.faults.require_all_struck()


USED: Final = pytest.StashKey[TestBrokers]()
TEST_OVERRIDES: Final[dict[str, object]] = {"group.initial.rebalance.delay.ms": 0}
"""No test should wait three seconds for members that never come; each run of a sweep would."""
SWEPT: Final = pytest.StashKey[Swept]()


def _misused(because: str) -> NoReturn:
    """A mark is wrong: one line in the report, without a traceback of our own code."""
    pytest.fail(f"@pytest.mark.{MARK}: {because}", pytrace=False)


def options_of(item: pytest.Item) -> dict[str, Any]:
    """What the marks of a test say; those of the function win over those of its class and module."""
    marks = list(item.iter_markers(MARK))
    if any(mark.args for mark in marks):
        _misused("options have names, such as sync='commit'")
    return {name: value for mark in reversed(marks) for name, value in mark.kwargs.items()}


def _for(item: pytest.Item, made: Callable[..., object]) -> dict[str, Any]:
    """The options for this kind of broker. An unknown one is an error."""
    options = {name: value for name, value in options_of(item).items() if name not in _OF_TOPICS}
    known = [*inspect.signature(made).parameters, *_OF_TOPICS]
    for name in options:
        if name not in known:
            meant = suggestion(name, known) or f": it has {', '.join(known)}"
            _misused(f"{getattr(made, '__name__', 'a broker')} has no option {name}{meant}")
    if "node" not in options:
        options["override"] = TEST_OVERRIDES | options.get("override", {})
    return options


def _made(item: pytest.Item, made: Callable[..., MadeT], *args: object, **more: object) -> MadeT:
    """A broker with the options of the marks."""
    options = _for(item, made)
    try:
        return made(*args, **more, **options)
    except (TypeError, ValueError) as problem:
        because = str(problem)
    _misused(because)  # after the handler: pytest would print the error a second time as its context


@contextmanager
def _used(item: pytest.Item) -> Generator[TestBrokers]:
    """What this run of a test uses; a test may run more than once."""
    used = item.stash.get(USED, None)
    if used is None or used.is_over:
        used = item.stash[USED] = TestBrokers()
    yield used
    used.is_over = True


@contextmanager
def _faulty(broker: Broker | BrokerProcess, swept: Swept | None) -> Generator[None]:
    """The broker has the fault of the sweep that its test is in, if there is one."""
    if swept is not None and swept.text is not None:
        swept.fault = broker.faults.add(swept.text)
    yield
    if swept is not None and swept.fault is not None:
        swept.struck = swept.fault.struck
    broker.faults.clear()  # whether they struck was asked when the test ended


@contextmanager
def embedded(item: pytest.Item) -> Generator[Broker]:
    """A broker for this test, with the fault of the sweep that it is in."""
    recording = Recording()
    with _used(item) as used, _made(item, Broker, observer=recording) as broker:
        used.brokers.append(broker)
        used.recording = recording
        swept = item.stash.get(SWEPT, None)
        if swept is not None and swept.text is None:
            broker.faults.watch(swept.learned_points.add)
        with _faulty(broker, swept):
            yield broker


@contextmanager
def process(item: pytest.Item, directory: Path) -> Generator[BrokerProcess]:
    """A broker process for this test, with the fault of the sweep that it is in."""
    from fencepost.testing.broker_process import BrokerProcess

    with _used(item) as used, _made(item, BrokerProcess, str(directory), record=True) as broker:
        used.brokers.append(broker)
        used.recording = used.recording or broker.recording
        swept = item.stash.get(SWEPT, None)
        with _faulty(broker, swept):
            yield broker
        if swept is not None and swept.text is None and broker.recording is not None:
            for point in broker.recording.points():
                swept.learned_points.add(point)
            swept.learned_points.is_cut = broker.recording.is_cut
