"""The sweep: a test runs once to learn its points of the protocol, then once for each fault at each of them.

Rule: the same seed and the same points give the same runs, in the same order. A fault that did not strike has
tested nothing, and is never counted as passed.
"""

# Theory of operation
#
#     learn      run the test without a fault, and note what its broker reached:
#                    shop sends InitProducerId, coordinator of app appends EMPTY, shop sends Produce, ...
#     plan       three faults per request, one per state of a transaction, in the order of their points:
#                    request lost    when shop sends EndTxn #1 do drop
#                    reply lost      when broker sends EndTxn reply to shop #1 do drop
#                    broker killed   when broker sends EndTxn reply to shop #1 do crash broker until ...
#                    broker killed   when coordinator of app appends PREPARE_COMMIT do crash broker until ...
#     run        the test, once per fault, each time with a fresh broker to which only this fault was added
#     report     a row per fault: how many times it struck, and whether the test passed all the same
#
# A test may add faults of its own. They must strike in the first run. In the others they need not, since the
# fault of the sweep may keep the test from reaching their points.
#
# Requests that only read (Fetch, Metadata, Heartbeat ...) are left out: their number depends on timing, and
# losing one only causes a delay. `only` can name them. A ConsumerGroupHeartbeat both keeps a membership and
# changes it, and its number depends on timing, except for the first of each client: this one joins the group,
# and is swept.
#
# Requests are counted by client and kind, so a test repeats itself as far as its clients do. Where a client
# puts the same records into one batch or into two, the second Produce may be missing in a run, and its fault
# does not strike. Such a run is repeated up to `TRIES` times; after that its verdict is "never struck".

from __future__ import annotations

import faulthandler
import math
import os
import random
import re
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import attrs

from fencepost.faults.grammar import quoted
from fencepost.faults.phrases import ANYONE, BROKER, Point, PointKind
from fencepost.lab.broker_recording import Recording
from fencepost.lab.hidden_clients import HIDDEN_CLIENTS
from fencepost.protocol.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.broker.embedded import Broker

MARK: Final = "fencepost_sweep"
TRIES: Final = 3
DOWN_MS: Final = 50  # long enough for clients to notice, and short for tests
TIME_LIMIT_S: Final = 60.0
RAISE_AGAIN_S: Final = 1.0
HUNG_EXIT: Final = 1
GIVE_UP_AFTER_S: Final = 5.0  # after a run should have ended
POINTS_MAX: Final = 1_000  # of a sweep without points=: each needs up to three runs, so more would take hours
ROWS_MAX: Final = 40  # of a table on a screen

_COORDINATOR: Final = "coordinator of "
_NAME: Final = re.compile(r"[^ #]+")
NOTHING: Final = (
    "There is nothing to sweep: the test sent no request to its broker that changes anything. Do its "
    "clients connect to the broker of the fixture `fencepost_broker` or `fencepost_broker_process`, or to "
    "the one that `sweep_points` passes to it?"
)
CUT: Final = (
    "The test is too long for a sweep: the recording of its broker process has lost its first events, so the "
    "points cannot be counted. Use the fixture `fencepost_broker`, which needs no recording for that, or "
    "sweep a shorter test"
)

LOOKING: Final = frozenset(
    {"ApiVersions", "ConsumerGroupDescribe", "DescribeAcls", "DescribeCluster", "DescribeConfigs"}
    | {"DescribeGroups", "DescribeProducers", "DescribeTopicPartitions", "DescribeTransactions", "Fetch"}
    | {"FindCoordinator", "Heartbeat", "ListGroups", "ListOffsets", "ListPartitionReassignments"}
    | {"ListTransactions", "Metadata"}
    | {"OffsetForLeaderEpoch", "SaslAuthenticate", "SaslHandshake"}
)
"""Requests that change nothing, and come as often as time permits."""

FIRST_ONLY: Final = frozenset({"ConsumerGroupHeartbeat"})
"""Requests of which only the first of each client is at a fixed place: it joins a group (KIP-848)."""

TestT = TypeVar("TestT", bound=Callable[..., Any])


class SweepFailed(FencepostError, AssertionError):
    """A swept test failed under a fault; the message is the table, the faults, and the first failure."""


class RunHung(BaseException):
    """A run took too long. Not an Exception: a loop that retries after any failure must not catch it."""


class RunVerdict(Enum):
    """The result of a run."""

    PASSED = "passed"
    FAILED = "FAILED"
    HUNG = "HUNG"
    NEVER_STRUCK = "never struck"


def _names(given: Iterable[str], of: str) -> frozenset[str]:
    """The names that were given; a single text would be taken for its letters."""
    if isinstance(given, str):
        raise TypeError(f"{of}={given!r} is a name and not a list of names: give [{given!r}]")
    if not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise TypeError(f"{of}={given!r} is not a list of names")
    found = list(given)
    for each in found:
        if not isinstance(each, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise TypeError(f"{of} has {each!r}, which is not a name")
    return frozenset(found)


def _is_whole(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{attribute.name}={value!r} is not a whole number")


def _is_above_zero(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{attribute.name}={value!r} is not above 0, or has no end")


def _is_number(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{attribute.name}={value!r} is not a number")


@attrs.frozen(kw_only=True)
class SweepSettings:
    """`points`: how many faults are tried, drawn at random with `seed`; None: all. `clients`, `only`: the
    client ids, and the requests and states, that are swept; empty: all. `down_ms`: how long a killed broker
    is down. `time_limit`: seconds for a run.
    """

    seed: int = attrs.field(default=0, validator=_is_whole)
    points: int | None = attrs.field(
        default=None, validator=attrs.validators.optional([_is_whole, _is_above_zero])
    )
    clients: frozenset[str] = attrs.field(default=frozenset(), converter=partial(_names, of="clients"))
    only: frozenset[str] = attrs.field(default=frozenset(), converter=partial(_names, of="only"))
    down_ms: int = attrs.field(default=DOWN_MS, validator=[_is_whole, _is_above_zero])
    time_limit: float = attrs.field(default=TIME_LIMIT_S, validator=[_is_number, _is_above_zero])

    @classmethod
    def given(cls, settings: Mapping[str, Any]) -> SweepSettings:
        """The settings of a sweep that someone wrote. TypeError or ValueError says what is wrong."""
        known = [field.name for field in attrs.fields(cls)]
        if unknown := [name for name in settings if name not in known]:
            raise TypeError(f"a sweep has no option {', '.join(unknown)}; it has {', '.join(known)}")
        return cls(**settings)


@attrs.frozen
class SweepFault:
    """One fault at one point. `point`: where it strikes. `what`: what it does, in words. `text`: the fault in
    one line, as `serve --fault` takes it.
    """

    point: str
    what: str
    text: str


@attrs.frozen(kw_only=True)
class SweepRun:
    """One run of the test. `failure`: the traceback, or "" if it passed. `struck`: how often its fault
    struck. `is_hung`: it was ended after the time limit. `recording`: what happened at the broker.
    """

    failure: str
    struck: int = 0
    is_hung: bool = False
    recording: Recording | None = None

    @property
    def verdict(self) -> RunVerdict:
        """The result of the run, in a word."""
        if self.is_hung:
            return RunVerdict.HUNG
        if self.failure:
            return RunVerdict.FAILED
        return RunVerdict.PASSED if self.struck else RunVerdict.NEVER_STRUCK


@attrs.frozen(kw_only=True)
class SweepReport:
    """What a sweep found. `title`: the test. `seed`: what drew the faults. `learned`: how many faults there
    were to choose from. `rows`: each fault with its run.
    """

    title: str
    seed: int
    learned: int
    rows: tuple[tuple[SweepFault, SweepRun], ...]

    @property
    def failures(self) -> tuple[tuple[SweepFault, SweepRun], ...]:
        """What did not pass, in the order of the protocol."""
        return tuple((fault, run) for fault, run in self.rows if run.verdict is not RunVerdict.PASSED)

    @property
    def summary(self) -> str:
        """The sweep in one line."""
        counts = Counter(run.verdict.value for _, run in self.rows)
        told = ", ".join(
            f"{counts[verdict.value]} {verdict.value}" for verdict in RunVerdict if counts[verdict.value]
        )
        chosen = "" if len(self.rows) == self.learned else f" of {self.learned}, chosen with seed {self.seed}"
        return f"{self.title}: {len(self.rows)} faults{chosen}: {told}"

    def table(self, rows_max: int | None = None) -> str:
        """A line per fault; if there are more than `rows_max`, those that did not pass come first."""
        rows = list(enumerate(self.rows, start=1))
        shown = rows
        if rows_max is not None and len(rows) > rows_max:
            ordered = sorted(rows, key=lambda row: row[1][1].verdict is RunVerdict.PASSED)
            shown = sorted(ordered[:rows_max], key=lambda row: row[0])
        cells = [("", "point", "fault", "struck", "verdict")]
        cells += [
            (str(number), fault.point, fault.what, str(run.struck), run.verdict.value)
            for number, (fault, run) in shown
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
        more = [f"... and {len(rows) - len(shown)} more that passed"] if len(shown) < len(rows) else []
        return "\n".join([*lines, *more])

    def __str__(self) -> str:
        """The summary and the table; of a failed sweep also how to repeat its runs, and the first failure."""
        lines = [self.summary, self.table(ROWS_MAX)]
        if self.failures:
            lines += ["", "To repeat a run that did not pass, add its fault with broker.faults.add(...):"]
            lines += [f"  {fault.text}" for fault, _ in self.failures[:ROWS_MAX]]
            fault, run = self.failures[0]
            lines += ["", f"The first of them ({fault.text}):", run.failure or NEVER_STRUCK]
        return "\n".join(lines)

    def raise_if_failed(self) -> None:
        """Raises SweepFailed, an AssertionError, if a run did not pass."""
        if self.failures:
            raise SweepFailed(str(self))


NEVER_STRUCK: Final = (
    f"The test passed, but the fault did not strike in {TRIES} runs, so it tested nothing. The test does not "
    "send the same requests each time, or it restarts its broker process, which then counts from 1 again: "
    "let it flush after each record, use fencepost_broker, or leave such faults out with clients= or only="
)


# --- learning -----------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class LearnedPoints:
    """The points that a run reached, in their order: from `broker.faults.watch`, or after the run from the
    recording of a broker process.
    """

    settings: SweepSettings
    reached: list[tuple[Point, int]] = attrs.Factory(list[tuple[Point, int]])
    is_cut: bool = False
    """Whether the recording has lost points."""
    _counts: Counter[tuple[str, str]] = attrs.Factory(Counter[tuple[str, str]])
    _clients: set[str] = attrs.Factory(set[str])
    _whats: set[str] = attrs.Factory(set[str])

    def add(self, point: Point) -> None:
        """Note a point that can be swept, with its number among those of its kind."""
        if point.is_before or point.kind not in (PointKind.SENDS, PointKind.DECIDES):
            return
        if point.kind is PointKind.SENDS and point.who not in HIDDEN_CLIENTS:
            self._clients.add(point.who)
        self._whats.add(point.what)
        # A name that no fault can write becomes ANYONE: then the requests of all clients count.
        kind = _COORDINATOR if point.kind is PointKind.DECIDES else ""
        anyone = attrs.evolve(point, who=kind + ANYONE)
        named = point if _NAME.fullmatch(point.who.removeprefix(kind)) else anyone
        self._counts.update({(named.who, point.what), (anyone.who, point.what)})
        number = self._counts[named.who, named.what]
        if self._is_swept(point, number):
            self.reached.append((named, number))

    def _is_swept(self, point: Point, number: int) -> bool:
        only, clients = self.settings.only, self.settings.clients
        if point.kind is PointKind.DECIDES:
            return not only or point.what in only
        is_usual = point.what not in LOOKING and (number == 1 or point.what not in FIRST_ONLY)
        is_wanted = point.what in only if only else is_usual
        return is_wanted and point.who not in HIDDEN_CLIENTS and (not clients or point.who in clients)

    def missing(self) -> str:
        """Why a sweep would test less than it was asked for, or take too long; "" if it would not."""
        if self.is_cut:
            return CUT
        for option, wanted, found in (
            ("clients", self.settings.clients, self._clients),
            ("only", self.settings.only, self._whats),
        ):
            if unknown := sorted(wanted - found):
                return f"{option}={unknown}: not in this test, which has {', '.join(sorted(found))}"
        if self.settings.points is None and len(self.reached) > POINTS_MAX:
            return (
                f"The test has {len(self.reached):,} points, which would take {len(self.faults()):,} runs. "
                f"A sweep of all points has at most {POINTS_MAX:,}: choose some of its faults with points=, "
                "or some requests with clients= or only="
            )
        return "" if self.reached else NOTHING

    def faults(self) -> list[SweepFault]:
        """What there is to try, in the order of the points."""
        crash = f"crash {BROKER} until after {self.settings.down_ms} ms"
        return [fault for point, number in self.reached for fault in _faults_at(point, number, crash)]


def _faults_at(point: Point, number: int, crash: str) -> Iterator[SweepFault]:
    nth = "" if number == 1 else f" #{number}"
    if point.kind is PointKind.DECIDES:
        shown = f"{point.who} appends {point.what}{nth}"
        yield SweepFault(shown, "broker killed", f"when {shown} do {crash}")
        return
    shown, reply = (
        f"{point.who} sends {point.what}{nth}",
        f"{BROKER} sends {point.what} reply to {point.who}{nth}",
    )
    yield SweepFault(shown, "request lost", f"when {shown} do drop")
    yield SweepFault(shown, "reply lost", f"when {reply} do drop")
    yield SweepFault(shown, "broker killed", f"when {reply} do {crash}")


def chosen(faults: Sequence[SweepFault], settings: SweepSettings) -> list[SweepFault]:
    """All of them, or as many as the settings want, drawn by their seed, in the order of the protocol."""
    if settings.points is None or settings.points >= len(faults):
        return list(faults)
    # Sorted, since two clients may take turns in another order in each first run.
    ordered = sorted(faults, key=lambda fault: fault.text)
    drawn = frozenset(random.Random(settings.seed).sample(ordered, settings.points))
    return [fault for fault in faults if fault in drawn]


# --- running ------------------------------------------------------------------------------------------------


def run_sweep(
    title: str, faults: Sequence[SweepFault], settings: SweepSettings, run: Callable[[str], SweepRun]
) -> SweepReport:
    """Runs a test once for each chosen fault; `run` does that once."""
    rows: list[tuple[SweepFault, SweepRun]] = []
    wanted = chosen(faults, settings)
    try:
        for fault in wanted:
            result, tried = run(fault.text), 1
            while result.verdict is RunVerdict.NEVER_STRUCK and tried < TRIES:
                result, tried = run(fault.text), tried + 1
            rows.append((fault, result))
    except KeyboardInterrupt as problem:  # pytest prints the first line of its text
        found = [fault.text for fault, result in rows if result.verdict is not RunVerdict.PASSED]
        what = f"{title}: {len(rows)} of {len(wanted)} faults were tried"
        raise KeyboardInterrupt(f"{what}; did not pass: {'; '.join(found) or 'none'}") from problem
    return SweepReport(title=title, seed=settings.seed, learned=len(faults), rows=tuple(rows))


@attrs.define
class TimeLimit:
    """A limit for a run, and whether the run was stopped because it took too long."""

    seconds: float
    is_over: bool = False

    @contextmanager
    def kept(self, give_up: Callable[[], object]) -> Generator[None]:
        """Raises RunHung inside the block when the time is over, and again each second after that, since
        clients turn what interrupts them into errors of their own. Only in the main thread, and where there
        are timers.

        No exception reaches a call that never returns from C. For that, `give_up` is called after a while, in
        another thread: nothing but the end of the process ends such a run.
        """
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
            yield
            return
        before = signal.signal(signal.SIGALRM, self._stop)
        signal.setitimer(signal.ITIMER_REAL, self.seconds, RAISE_AGAIN_S)
        watchdog = threading.Timer(self.seconds + GIVE_UP_AFTER_S, give_up)
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _stop(self, _signal: int, _frame: object) -> None:
        self.is_over = True
        raise RunHung(f"the run was not over after {self.seconds:g} s")


def end_process(fault: str) -> None:
    """Says where a run hangs, and ends the process: nothing else would."""
    print(
        f"\nHUNG: the run under the fault {quoted(fault)} cannot be stopped: a call of a C library does not "
        "return, whatever its own timeout is. The process ends here; this is where it hangs:",
        file=sys.stderr,
        flush=True,
    )
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(HUNG_EXIT)


# --- for users ----------------------------------------------------------------------------------------------


@overload
def sweep(test: TestT, /) -> TestT: ...
@overload
def sweep(
    *,
    seed: int = 0,
    points: int | None = None,
    clients: Iterable[str] = (),
    only: Iterable[str] = (),
    down_ms: int = DOWN_MS,
    time_limit: float = TIME_LIMIT_S,
) -> Callable[[TestT], TestT]: ...
def sweep(test: Any = None, /, **settings: Any) -> Any:
    """Decorates a pytest `test` that uses `fencepost_broker` or `fencepost_broker_process`: it runs once to
    learn its points of the protocol, then once per point with the request lost, the reply lost, or the broker
    killed there.

    `points`: how many faults are tried, drawn with `seed`; by default all, and a test with more than 1,000
    points fails. `clients`: only the requests of these client ids. `only`: only these requests and states,
    such as "EndTxn" and "PREPARE_COMMIT"; by default all that change something. `down_ms`: how long a killed
    broker is down; if it is longer than the time limits of your clients, the sweep tests their expiry, too.
    `time_limit`: seconds for a run with a fault, which counts as hung after that.
    """
    import pytest

    if test is not None and not callable(test):
        raise TypeError(f"{test!r} is not a test; options have names, such as @sweep(points=20)")
    SweepSettings.given(settings)  # so that an error is raised where the decorator is written
    mark = pytest.mark.fencepost_sweep(**settings)
    return mark if test is None else mark(test)


def sweep_points(
    test: Callable[[Broker], object],
    *,
    seed: int = 0,
    points: int | None = None,
    clients: Iterable[str] = (),
    only: Iterable[str] = (),
    down_ms: int = DOWN_MS,
    time_limit: float = TIME_LIMIT_S,
) -> SweepReport:
    """Sweeps a function that takes a broker, without pytest.

    `test`: called with a fresh broker each time; it fails by an exception. `points`: how many faults are
    tried, drawn at random with `seed`; by default all. `clients`: only the requests of these client ids.
    `only`: only these requests and states, such as "EndTxn"; by default all that change something. `down_ms`:
    how long a killed broker is down, milliseconds. `time_limit`: seconds for a run with a fault, which counts
    as hung after that.

    Raises what `test` raises without a fault of the sweep, FaultNeverStruck if a fault that `test` adds does
    not strike then, and SweepFailed if there is nothing to sweep, or without `points` more than 1,000 points.
    Call `raise_if_failed()` on the report.
    """
    from fencepost.broker.embedded import Broker

    settings = SweepSettings(
        seed=seed, points=points, clients=clients, only=only, down_ms=down_ms, time_limit=time_limit
    )
    learned_points = LearnedPoints(settings)
    with Broker() as broker:
        broker.faults.watch(learned_points.add)
        test(broker)
    if missing := learned_points.missing():
        raise SweepFailed(missing)

    def run(text: str) -> SweepRun:
        recording, limit, failure = Recording(), TimeLimit(settings.time_limit), ""
        with Broker(observer=recording) as broker:
            fault = broker.faults.add(text)
            try:
                with limit.kept(partial(end_process, text)):
                    test(broker)
            except KeyboardInterrupt:
                raise
            except BaseException as problem:  # noqa: BLE001 - whatever it is, sys.exit() too, it is the verdict
                failure = "".join(traceback.format_exception(problem))
            struck = fault.struck
            broker.faults.clear()
        return SweepRun(failure=failure, struck=struck, is_hung=limit.is_over, recording=recording)

    return run_sweep(getattr(test, "__name__", "the test"), learned_points.faults(), settings, run)
