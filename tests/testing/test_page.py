"""The programs of docs/testing.md that stand alone run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
BLOCKS = re.findall(
    r"```python\n(import fencepost\n\nwith .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
)


@pytest.mark.parametrize("program", BLOCKS)
def test_a_program_of_the_page_runs(program: str) -> None:
    exec(compile(program, PAGE, "exec"), {})


def test_there_are_programs() -> None:
    assert len(BLOCKS) >= 2
