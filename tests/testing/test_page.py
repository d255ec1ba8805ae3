"""The programs of docs/testing.md run as they are printed, and the sweep prints the table that is shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(import fencepost\n\nwith .*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("program", BLOCKS)
def test_a_program_of_the_page_runs(program: str) -> None:
    exec(compile(program, PAGE, "exec"), {})


def test_there_are_programs() -> None:
    assert len(BLOCKS) >= 2


def printed(directory: Path, *command: str) -> str:
    run = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, cwd=directory, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_the_sweep_of_the_page_prints_its_table(tmp_path: Path) -> None:
    (tests,) = re.findall(r"```python\n(# test_shop.py\n.*?)```", TEXT, re.DOTALL)
    (table,) = re.findall(r"```\n(test_shop.py::.*?)\n\.\.\.\n```", TEXT, re.DOTALL)
    (points,) = re.findall(r"```python\n(import fencepost\nfrom test_shop .*?)```", TEXT, re.DOTALL)
    (tmp_path / "test_shop.py").write_text(tests, encoding="utf-8")
    assert table in printed(tmp_path, "-m", "pytest", "-rP", "-p", "no:cacheprovider", "test_shop.py")
    (tmp_path / "points.py").write_text(points, encoding="utf-8")
    assert printed(tmp_path, "points.py").count(" passed") == 5
