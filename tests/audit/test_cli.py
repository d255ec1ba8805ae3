"""`fencepost audit`: what it prints, and how it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost import Admin, Broker
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


def test_a_topic_that_does_not_exist_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Broker(tmp_path) as broker, Admin(broker.address) as admin:
        admin.create_topic("orders")
    assert run(["audit", str(tmp_path), "--input", "orders", "--output", "total", "--by", "key"]) == 2
    told = capsys.readouterr().err
    assert f"--output total: there is no such topic in {tmp_path}" in told
    assert "the topics are: __cluster_metadata, orders" in told


def test_a_uri_of_an_unknown_file_system_says_which_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "ftp://host/data"]) == 1
    assert "cannot read ftp://host/data: ftp is not one of abfs, " in capsys.readouterr().err


def test_of_a_failed_task_only_the_error_is_shown() -> None:
    report = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "x.py", line 1\nfencepost.spark_bridge.partition_files.CorruptLog: x is missing\n STATE'
    )
    assert reason_of(Exception(report)) == "x is missing"
    assert reason_of(Exception("[PARSE_SYNTAX_ERROR] Syntax error at 'key +'\n== SQL ==")) == (
        "[PARSE_SYNTAX_ERROR] Syntax error at 'key +'"
    )
