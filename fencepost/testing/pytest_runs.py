"""Runs of pytest: the end of a test with a broker, what its report shows and saves, and a swept test.

Rule: pytest itself makes every run of a sweep, so fixtures, async tests and other plugins work in each.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from _pytest.runner import runtestprotocol

from fencepost.broker.faults import FaultNeverStruck
from fencepost.testing.fixtures import SWEPT, USED, Swept
from fencepost.testing.sweep import (
    MARK,
    LearnedPoints,
    SweepReport,
    SweepRun,
    SweepSettings,
    TimeLimit,
    end_process,
    run_sweep,
)

if TYPE_CHECKING:
    from fencepost.lab.broker_recording import Recording

EVENTS_SHOWN: Final = 60  # the last ones; the drawing has all of them
WIDTH_MIN, WIDTH_MAX = 100, 160
NAME_MAX: Final = 150
SECTION: Final = "fencepost: what happened"
OUTPUT: Final = "fencepost: output of the broker process"
LINES_SHOWN: Final = 30
TABLE: Final = "fencepost: sweep"
NO_MESSAGE: Final = "it failed without a message, as pytest.fail() does if it is given no reason"


@contextmanager
def called(item: pytest.Item) -> Generator[None]:
    """Around the call of a test with a broker."""
    swept = item.stash.get(SWEPT, None)
    if swept is None or swept.text is None:
        yield
        require_all_struck(item)
        return
    limit = TimeLimit(swept.time_limit)
    try:
        with limit.kept(partial(_give_up, item, swept.text)):
            yield
    finally:
        swept.is_hung = limit.is_over


def require_all_struck(item: pytest.Item) -> None:
    """Fails the test if one of its faults has not struck. The report shows no line: none is at fault."""
    used = item.stash.get(USED, None)
    if used is None or used.is_over:
        return
    missing = None
    try:
        used.require_all_struck()
    except FaultNeverStruck as problem:
        missing = f"{FaultNeverStruck.__name__}: {problem}"
    if missing is not None:  # outside of `except`: pytest would show the first error, too
        pytest.fail(missing, pytrace=False)


def _give_up(item: pytest.Item, fault: str) -> None:
    capture: Any = item.config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.suspend_global_capture()  # otherwise pytest would capture it
    print(f"\n{item.nodeid}", file=sys.stderr)
    end_process(fault)


# --- reports ------------------------------------------------------------------------------------------------


def show(item: pytest.Item, report: pytest.TestReport) -> None:
    """Adds what happened to the report of a failed test, and saves it; a sweep does so for all its runs."""
    used = item.stash.get(USED, None)
    if used is None or SWEPT in item.stash:
        return
    if used.recording is not None:
        _add(item, report, used.recording, item.nodeid, {})
    for broker in used.brokers:
        if (output := getattr(broker, "output", None)) is not None:
            report.sections.append((OUTPUT, "\n".join(output.splitlines()[-LINES_SHOWN:])))


def _add(
    item: pytest.Item, report: pytest.TestReport, recording: Recording, title: str, texts: Mapping[str, str]
) -> None:
    """Saves the table, the drawing, the page and these texts, and shows the end of the table."""
    files = {
        **texts,
        "table.txt": recording.table(title, width=WIDTH_MAX),
        "drawing.svg": recording.svg(title),
        "page.html": recording.html(title),
    }
    directory = _directory(item)
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    width = min(max(shutil.get_terminal_size().columns, WIDTH_MIN), WIDTH_MAX)
    shown = recording.table(title, width=width, events_max=EVENTS_SHOWN)
    report.sections.append((SECTION, f"{shown}\nsaved in {directory}: {', '.join(files)}"))


def _directory(item: pytest.Item) -> Path:
    """Where the artefacts of a test go."""
    chosen: str | None = item.config.getoption("--fencepost-output")
    if chosen is not None:
        base = Path(chosen)
    elif item.config.pluginmanager.has_plugin("cacheprovider"):
        base = item.config.cache.mkdir("fencepost")
    else:
        base = Path(tempfile.mkdtemp(prefix="fencepost-"))
    directory = base / re.sub(r"[^\w.-]+", "-", item.nodeid)[-NAME_MAX:].strip("-")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


# --- a swept test -------------------------------------------------------------------------------------------


def sweep(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Runs a swept test to the end, and reports it as one test."""
    mark = item.get_closest_marker(MARK)
    assert mark is not None, "the plugin looked"
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    try:
        if mark.args:
            raise TypeError("a sweep takes options by name, such as points=20")
        settings = SweepSettings.given(mark.kwargs)
    except (TypeError, ValueError) as problem:
        reports = [_misused(item, f"@pytest.mark.{MARK}: {problem}")]
    else:
        reports = _swept(item, settings)
    for report in [*reports, *_torn_down(item, nextitem)]:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _misused(item: pytest.Item, because: str) -> pytest.TestReport:
    """The report of a test whose mark is wrong."""
    call = pytest.CallInfo[None].from_call(lambda: pytest.fail(because, pytrace=False), when="setup")
    return item.ihook.pytest_runtest_makereport(item=item, call=call)


def _swept(item: pytest.Item, settings: SweepSettings) -> list[pytest.TestReport]:
    """The reports of the first run, with the results of the others."""
    learned_points = LearnedPoints(settings)
    reports, learned = _run(item, Swept(learned_points, settings.time_limit))
    if not all(report.passed for report in reports):
        failed = next((report for report in reports if report.failed), None)
        if failed is not None:
            failed.sections.append((TABLE, "the run without a fault failed, so no fault was tried"))
            if learned.recording is not None:
                _add(item, failed, learned.recording, item.nodeid, {})
        return reports
    call = next((report for report in reports if report.when == "call"), None)
    if call is None:  # --setup-only
        return reports
    if missing := learned_points.missing():
        call.outcome, call.longrepr = "failed", missing
        return reports
    found = run_sweep(
        item.nodeid,
        learned_points.faults(),
        settings,
        lambda text: _run(item, Swept(learned_points, settings.time_limit, text))[1],
    )
    _add_result(item, call, found)
    return reports


def _add_result(item: pytest.Item, call: pytest.TestReport, found: SweepReport) -> None:
    call.user_properties.append(("fencepost_sweep", found.summary))
    if not found.failures:
        call.sections.append((TABLE, f"{found.summary}\n{found.table()}"))
        return
    call.outcome, call.longrepr = "failed", str(found)
    fault, first = found.failures[0]
    call.sections.clear()  # of the run without a fault
    if first.recording is not None:
        title, all_of_it = f"{item.nodeid}, {fault.text}", f"{found.summary}\n{found.table()}\n"
        _add(item, call, first.recording, title, {"sweep.txt": all_of_it})


def _run(item: pytest.Item, swept: Swept) -> tuple[list[pytest.TestReport], SweepRun]:
    """One run of the test. Fixtures of modules and classes stay until the last."""
    item.stash[SWEPT] = swept
    try:
        # What stays set up is what the next test needs; the item's parent needs all but its own fixtures.
        reports = runtestprotocol(item, log=False, nextitem=cast(Any, item.parent))
    finally:
        del item.stash[SWEPT]
    failed = next((report for report in reports if not report.passed), None)
    failure = "" if failed is None else failed.longreprtext or NO_MESSAGE
    used = item.stash.get(USED, None)
    recording = None if used is None else used.recording
    run = SweepRun(failure=failure, struck=swept.struck, is_hung=swept.is_hung, recording=recording)
    return reports, run


def _torn_down(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Tears down what the next test does not need; the report, if that failed."""
    state = item.session._setupstate  # pyright: ignore[reportPrivateUsage] - pytest has no other way
    call = pytest.CallInfo[None].from_call(lambda: state.teardown_exact(nextitem), when="teardown")
    return [] if call.excinfo is None else [item.ihook.pytest_runtest_makereport(item=item, call=call)]
