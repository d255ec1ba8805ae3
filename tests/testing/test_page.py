"""docs/testing.md: its tests run and pass, and what it says of options is what they are."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest

from fencepost import sweep_points
from fencepost.testing.sweep import Verdict

pytest_plugins = ["pytester"]
PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


def test_the_first_tests_pass(pytester: pytest.Pytester) -> None:
    [first, second, *_] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert first.startswith("# test_shop.py")
    pytester.makepyfile(test_shop=first)
    result = pytester.runpytest("-rP")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*test_shop.py::test_no_fault_changes_anything: 13 faults: 13 passed"])
    assert "sweep_points" in second


def test_each_option_and_verdict_is_explained() -> None:
    section = PAGE.split("## The sweep")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `?([\w ]+?)`? \| ([^|]+) \|", section, re.MULTILINE))
    options = {
        name: parameter.default
        for name, parameter in signature(sweep_points).parameters.items()
        if name != "test"
    }
    assert {name for name in rows if name.isidentifier() and name in options} == {*options}
    assert {name: str(options[name]).removesuffix(".0") for name in ("seed", "down_ms", "time_limit")} == {
        name: rows[name].strip() for name in ("seed", "down_ms", "time_limit")
    }
    assert {verdict.value for verdict in Verdict} <= {*rows}
