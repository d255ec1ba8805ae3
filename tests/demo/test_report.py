"""The table of the demonstration says what was counted, also of a run with a protection turned off."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from rich.console import Console

from fencepost.check.findings import Finding, Severity
from fencepost.demo.report import DemoResult, StoryLog
from fencepost.demo.run import tell_problems


@pytest.mark.parametrize(
    ("broken", "label"),
    [
        (None, "visible in `delays` with read_committed"),
        ("fencing", "visible in `delays` with read_committed"),
        ("isolation", "visible in `delays` with read_uncommitted"),
    ],
)
def test_the_table_names_the_isolation_that_was_read_under(broken: str | None, label: str) -> None:
    counts: dict[str, Any] = {field.name: 0 for field in attrs.fields(DemoResult)}
    counts["broken"] = broken
    console = Console(width=150)
    with console.capture() as said:
        console.print(DemoResult(**counts).to_table())
    assert label in said.get()


def test_no_line_of_the_table_ends_in_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    """As of other commands in a pipe."""
    counts: dict[str, Any] = {field.name: 0 for field in attrs.fields(DemoResult)}
    StoryLog().show(DemoResult(**counts).to_table())
    said = capsys.readouterr().out.splitlines()
    assert any(line.startswith(" lost ") for line in said)
    assert [line for line in said if line != line.rstrip()] == []


@pytest.mark.parametrize(
    ("count", "more"), [(0, ""), (5, ""), (6, "and 1 more problem: "), (17, "and 12 more problems: ")]
)
def test_problems_that_are_not_shown_are_counted(
    count: int, more: str, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = Finding(
        severity=Severity.PROBLEM, file="t-0/0.log", offset=None, what="a gap", means="records are missing"
    )
    note = attrs.evolve(problem, severity=Severity.NOTE)
    assert tell_problems([note, *[problem] * count], StoryLog()) == count
    said = capsys.readouterr().out
    assert said.count("t-0/0.log: a gap\n") == min(count, 5)
    assert (more in said) if more else ("more" not in said)
