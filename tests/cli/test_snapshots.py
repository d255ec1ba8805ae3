"""Every command prints what its snapshot shows: on a terminal of 80 columns, in a pipe, and as JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.cli.take_snapshots import SESSION, SNAPSHOTS, WORDS, Mode, Shown, Step, as_text, take

A_TIME = 1_700_000_000_000  # what a snapshot has in place of every time
AGAIN = "run `python -m tests.cli.take_snapshots` and review the difference"


@pytest.fixture(scope="module")
def taken(spark: SparkSession) -> dict[Step, dict[Mode, Shown]]:
    """Commands that start a Spark session get this one, and leave it running."""
    assert SparkSession.getActiveSession() is spark
    return take()


def name_of(step: Step) -> str:
    return step.file.stem


@pytest.mark.parametrize("step", SESSION, ids=name_of)
def test_a_command_prints_its_snapshot(step: Step, taken: dict[Step, dict[Mode, Shown]]) -> None:
    assert {shown.code for shown in taken[step].values()} == {step.code}, taken[step]
    assert step.file.exists(), AGAIN
    assert as_text(step, taken[step]) == step.file.read_text(encoding="utf-8"), AGAIN


@pytest.mark.parametrize("step", [step for step in SESSION if step.has_json], ids=name_of)
def test_json_is_one_object_per_line_with_names_of_one_style(
    step: Step, taken: dict[Step, dict[Mode, Shown]]
) -> None:
    for line in taken[step][Mode.JSON].stdout.splitlines():
        found: dict[str, Any] = json.loads(line)
        assert type(found) is dict
        for name, value in found.items():
            assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
            assert value != A_TIME or name.endswith("_ms")


def test_every_command_has_a_snapshot() -> None:
    shown = {step.words for step in SESSION if not step.file.stem.startswith("error-")}
    missing = set(WORDS) - shown
    assert not missing, f"add a Step to SESSION in tests/cli/take_snapshots.py for {missing}"


def test_every_snapshot_is_of_a_command() -> None:
    assert {path.name for path in SNAPSHOTS.iterdir()} == {step.file.name for step in SESSION}
    assert len({step.file for step in SESSION}) == len(SESSION)
