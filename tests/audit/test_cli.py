"""`fencepost audit`: what it prints, how it fails, and how a signal ends it."""

from __future__ import annotations

import re
import signal
import sys
import threading
from pathlib import Path

import pytest

from fencepost import Admin, Broker
from fencepost.cli.application import run
from fencepost.cli.spark_calls import YARN_NEEDS, reason_of, with_spark
from fencepost.journal.storage import foreign_advice
from fencepost.protocol.errors import FencepostError
from tests.audit.directories import put_on_disk
from tests.broker.requests import ORDERS
from tests.check.directories import SMALL, closed
from tests.cli.processes import PATIENCE_S, started


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


def test_a_terminal_shows_that_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_session(*_: object, **__: object) -> None:
        raise FencepostError("no Java")

    with Broker(tmp_path):
        pass
    monkeypatch.setattr("fencepost.cli.spark_calls.session", no_session)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(["audit", str(tmp_path)]) == 1
    erased = "\r\x1b[K"
    assert capsys.readouterr().err == f"{erased}starting Spark ...{erased}fencepost: no Java\n"


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
    unknown = "[UNRESOLVED_COLUMN] A column with name `kye` cannot be resolved. SQLSTATE: 42703; line 1 pos 0"
    assert reason_of(Exception(unknown)) == unknown.partition(" SQLSTATE")[0]
    java = (
        "An error occurred while calling o1.x.\n: org.x.Y: [TASK_FAILED] It failed. SQLSTATE: 39000\n\tat z"
    )
    assert reason_of(Exception(java)) == "[TASK_FAILED] It failed."
    bug = 'An exception was thrown: Traceback (most recent call last):\n  File "x.py"\nKeyError: 3'
    assert reason_of(Exception(f"{bug}\n\tat org.apache.spark.Task.run(Task.scala:147)")) == bug
    java = "An error occurred while calling None.Context.\n: org.apache.spark.SparkException: no\n\tat x"
    assert reason_of(Exception(java)) == "no"


@pytest.mark.parametrize(
    ("master", "told"),
    [
        ("bogus", "--master bogus is not the URL of a Spark master"),
        ("spark", "--master spark is not the URL of a Spark master"),
        (
            "yarn",
            (
                "--master yarn needs HADOOP_CONF_DIR or YARN_CONF_DIR in the environment: where Hadoop's "
                "configuration files are"
            ),
        ),
        (
            "spark://127.0.0.1:1,127.0.0.1:2",
            (
                "--master spark://127.0.0.1:1,127.0.0.1:2: cannot connect to 127.0.0.1:1: Connection "
                "refused; 127.0.0.1:2: Connection refused"
            ),
        ),
        (
            "k8s://https://127.0.0.1:1",
            "--master k8s://https://127.0.0.1:1: cannot connect to 127.0.0.1:1: Connection refused",
        ),
        ("local[x]", "Spark does not start with --master local[x]: Could not parse Master URL: 'local[x]'"),
    ],
)
def test_a_master_that_is_none_is_one_error(
    master: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in YARN_NEEDS:
        monkeypatch.delenv(name, raising=False)
    with Broker(tmp_path):
        pass
    with started("audit", str(tmp_path), "--master", master) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert re.findall("^fencepost: .*", errors, re.MULTILINE) == [f"fencepost: {told}"]
    assert "\tat " not in errors


def test_a_directory_that_holds_another_log_is_one_error_without_a_traceback(tmp_path: Path) -> None:
    at = closed()
    at.remove_directory(str(SMALL))
    at.put_directory(SMALL, at, ORDERS)
    with started("audit", str(put_on_disk(at, tmp_path)), "--master", "local[1]") as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "PythonException" not in errors
    assert "CorruptLog" not in errors
    (told,) = [line for line in errors.splitlines() if str(tmp_path) in line]
    where = f"fencepost: {tmp_path}/{SMALL}: it holds the log of {ORDERS}, so it is neither served nor read. "
    assert told == f"{where}Nothing was changed. {foreign_advice(str(tmp_path))}"


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_its_java(how: signal.Signals, code: int, tmp_path: Path) -> None:
    with started("audit", str(put_on_disk(closed(), tmp_path)), "--master", "local[1]") as process:
        assert process.stderr is not None
        assert "WARNING" in process.stderr.readline(), "Java has said its first word"
        process.send_signal(how)
        _, errors = process.communicate(timeout=PATIENCE_S)  # Java has the stream, too, as long as it lives
        assert process.returncode == code
        assert "Traceback" not in errors
        assert "Exception" not in errors


def test_a_signal_strikes_no_call_of_spark() -> None:
    """It would leave an answer unread, and the calls that clean up would get it."""
    is_struck, ended = threading.Event(), list[bool]()

    def work() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        ended.append(is_struck.wait(PATIENCE_S))

    with pytest.raises(KeyboardInterrupt):
        with_spark(work)
    is_struck.set()
    (thread,) = (each for each in threading.enumerate() if each.name == "spark")
    thread.join()
    assert ended == [True]


def test_what_spark_raises_is_raised() -> None:
    def work() -> None:
        raise LookupError("no such table")

    with pytest.raises(LookupError, match="no such table"):
        with_spark(work)
    assert with_spark(lambda: 3) == 3
