"""What a search or a run leaves for CI: five files for each failure, and a report in JUnit's format.

Rule: names of files follow from the failure alone, so the same failure writes the same files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import attrs

from fencepost.cli.errors import WrongUsage
from fencepost.cli.files import OBJECT, PAGE, PICTURE, REPORT, SCENARIO, TABLE, Target
from fencepost.cli.output import Json
from fencepost.lab.document import RunDocument
from fencepost.lab.pages import file_page
from fencepost.simulator.draw.canvas import printable, tag, words
from fencepost.simulator.draw.svg import draw
from fencepost.simulator.draw.text import space_time
from fencepost.simulator.world.history import History

TEXT_WIDTH: Final = 160


KINDS: Final = {".toml": SCENARIO, ".html": PAGE, ".svg": PICTURE, ".txt": TABLE, ".json": OBJECT}


@attrs.frozen(kw_only=True)
class FailedRun:
    """A run that failed, by the `name` of its files. `scenario` is empty if no scenario can express it."""

    name: str
    scenario: str
    history: History
    document: RunDocument
    facts: dict[str, Json]


def make_directory(directory: Path | None) -> None:
    """Makes the directory of `--output` before the work begins; WrongUsage if that is impossible."""
    if directory is None:
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise WrongUsage(
            f"cannot make the directory {directory}: {problem.strerror}",
            then="give another directory with --output",
        ) from None


def save(directory: Path, failure: FailedRun) -> list[Path]:
    """Writes NAME.toml (a scenario), NAME.html, NAME.svg, NAME.txt and NAME.json; returns their paths."""
    contents = {
        ".toml": failure.scenario,
        ".html": file_page([failure.document]),
        ".svg": draw(failure.history),
        ".txt": space_time(failure.history, width=TEXT_WIDTH, folds=False),
        ".json": json.dumps(failure.facts, ensure_ascii=False, indent=2) + "\n",
    }
    written: list[Path] = []
    for suffix, text in contents.items():
        if text:
            path = directory / f"{failure.name}{suffix}"
            target = Target(path=path, option="--output", kind=KINDS[suffix])
            target.check()
            target.write(text)
            written.append(path)
    return written


def files_in(directory: Path, written: Sequence[Path]) -> str:
    """The line that names the files of a failure."""
    return f"  files:  {directory}/{{{','.join(path.name for path in written)}}}"


# --- JUnit --------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class JUnitCase:
    """One test case of the report; `failure` is the first line of what went wrong, None if nothing did."""

    suite: str
    name: str
    seconds: float
    failure: str | None = None
    details: str = ""


def junit_target(path: Path | None) -> Target | None:
    """The file of `--junit`, proved to be writable. An older report is removed, so that nobody takes it for
    the result if this command fails.
    """
    if path is None:
        return None
    target = Target(path=path, option="--junit", kind=REPORT)
    target.check()
    if path.is_file():
        path.unlink()
    return target


def junit(command: str, cases: Iterable[JUnitCase]) -> str:
    """The report, as CI systems read it: a suite for the command, a case for each run or seed."""
    found = list(cases)
    counts: dict[str, str | float] = {
        "tests": str(len(found)),
        "failures": str(sum(case.failure is not None for case in found)),
        "errors": "0",
        "skipped": "0",
        "time": f"{sum(case.seconds for case in found):.3f}",
    }
    suite = tag("testsuite", "\n", *(f"{_case(case)}\n" for case in found), name=printable(command), **counts)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tag("testsuites", suite, **counts)}\n'


def _case(case: JUnitCase) -> str:
    failed: list[str] = []
    if case.failure is not None:
        failed.append(tag("failure", words(case.details or case.failure), message=printable(case.failure)))
    return tag(
        "testcase",
        *failed,
        classname=printable(case.suite),
        name=printable(case.name),
        time=f"{case.seconds:.3f}",
    )
