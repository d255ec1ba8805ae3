"""`fencepost audit`: what it prints, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fencepost.cli.application import run
from fencepost.cli.spark_errors import reason_of
from tests.audit.directories import put_on_disk
from tests.check.directories import SMALL_LOG, closed
from tests.check.planting import PLAIN


def test_findings_and_a_summary_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = closed()
    at.change(SMALL_LOG, PLAIN + 2, base_sequence=1)
    directory = put_on_disk(at, tmp_path)
    assert run(["audit", str(directory), "--master", "local[2]", "--json"]) == 1
    finding, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert finding == {
        "severity": "problem",
        "file": SMALL_LOG,
        "offset": 6,
        "what": "producer 3 epoch 0: sequence 1 where 2 was expected",
        "means": "a duplicate: records of this producer are in the log twice",
    }
    assert summary == {"problems": 1, "notes": 0, "partitions": 6, "batches": 43, "bytes": 69_025}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--by", "key"], "--by is given, but --input, --output and --by only work together"),
        (
            ["--input", "orders", "--by", "key"],
            "--input is given, but --input, --output and --by only work together",
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
