"""`fencepost audit`: what it prints, and how it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.cli.application import run
from fencepost.cli.spark_errors import reason_of


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--by", "key"], "--by is given, but --input, --output and --by must be given together"),
        (
            ["--input", "orders", "--by", "key"],
            "--input is given, but --input, --output and --by must be given together",
        ),
        (["--acks", "nowhere.jsonl"], "nowhere.jsonl is not a file"),
    ],
)
def test_wrong_usage_starts_no_spark(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", str(tmp_path), *words]) == 2
    assert told in capsys.readouterr().err


def test_of_a_failed_task_only_the_error_is_shown() -> None:
    report = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "x.py", line 1\nfencepost.spark_bridge.partition_files.CorruptLog: x is missing\n STATE'
    )
    assert reason_of(Exception(report)) == "x is missing"
    assert reason_of(Exception("[PARSE_SYNTAX_ERROR] Syntax error at 'key +'\n== SQL ==")) == (
        "[PARSE_SYNTAX_ERROR] Syntax error at 'key +'"
    )
