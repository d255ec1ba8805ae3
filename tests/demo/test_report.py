"""The table of the demonstration says what was counted, also of a run with a protection turned off."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from rich.console import Console

from fencepost.demo.report import DemoResult


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
