"""The log of `fencepost serve`: lines of text, and JSON objects, each with its time and level."""

import io
import json
import logging
import os
import re
import select
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from fencepost.cli.log_lines import JsonLines, TextLines, writing_log
from tests.cli.processes import COMMAND, PATIENCE_S, broker, fencepost, read_ready

HOSTILE = "a violation: 'a\\nb' \u202e"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def entry(text: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("fencepost.broker", logging.WARNING, "", 0, text, None, None)
    made.__dict__.update(fields)
    return made


def test_text_is_one_line() -> None:
    line = TextLines().format(entry(HOSTILE, peer="127.0.0.1:7"))
    assert re.fullmatch(rf"{TIME} WARNING fencepost\.broker: {re.escape(HOSTILE)}", line)


def test_a_log_ends_with_its_block(capfd: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("fencepost.broker")
    before = log.getEffectiveLevel()
    with writing_log("info", "text"):
        log.info("inside")
    assert log.getEffectiveLevel() == before
    log.error("outside")
    assert [line.rpartition(" ")[2] for line in capfd.readouterr().err.splitlines()] == ["inside"]


def full_pipe() -> tuple[int, int]:
    """Both ends of a pipe, of which nobody has read."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"." * select.PIPE_BUF)
    os.set_blocking(writing, True)
    return reading, writing


def read_all(reading: int) -> str:
    """What is in a pipe at the moment."""
    data = b""
    while select.select([reading], [], [], 0)[0]:
        data += os.read(reading, 1 << 20)
    return data.decode().lstrip(".")


def test_a_log_that_nobody_reads_leaves_lines_out(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = full_pipe()
    log = logging.getLogger("fencepost.broker")
    stderr = os.fdopen(writing, "w")
    monkeypatch.setattr("sys.stderr", stderr)
    with stderr, writing_log("info", "text"):
        log.info("first")
        log.info("second")
        os.read(reading, select.PIPE_BUF)
        log.info("%s", "x" * select.PIPE_BUF * 2)  # its beginning has room
        said = read_all(reading)
        gap = rf"{TIME} WARNING fencepost\.broker: lines left out because stderr was full or closed"
        assert re.fullmatch(rf"{gap}: 2\n{TIME} INFO fencepost\.broker: x+", said)
        log.info("last")
        assert re.fullmatch(rf"\n{gap}: 3\n{TIME} INFO fencepost\.broker: last\n", read_all(reading))
        os.close(reading)
        log.info("no reader is left")  # not an error


def test_an_object_in_the_place_of_stderr_gets_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", stderr := io.StringIO())
    with writing_log("info", "text"):
        logging.getLogger("fencepost.broker").info("a line")
    assert stderr.getvalue().endswith(": a line\n")


def test_a_broker_whose_log_nobody_reads_serves(tmp_path: Path) -> None:
    reading, writing = full_pipe()
    process = subprocess.Popen(
        [*COMMAND, "serve", str(tmp_path / "data"), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=writing,
        text=True,
    )
    os.close(writing)
    try:
        ready = read_ready(process)
        assert fencepost("topic", "list", "--bootstrap-server", f"127.0.0.1:{ready['port']}").returncode == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(reading)


def test_json_is_one_line_with_the_fields_that_are_known() -> None:
    line = JsonLines().format(entry("two\nlines", peer="127.0.0.1:7", transactional_id=None, color="red"))
    assert len(line.splitlines()) == 1
    found = json.loads(line)
    assert re.fullmatch(TIME, found.pop("time"))
    assert found == {
        "level": "warning",
        "logger": "fencepost.broker",
        "message": "two\nlines",
        "peer": "127.0.0.1:7",
    }


@pytest.mark.parametrize("form", [TextLines(), JsonLines()])
def test_an_exception_is_told_whole(form: logging.Formatter) -> None:
    made = entry("a bug")
    try:
        raise ValueError("planted")
    except ValueError as problem:
        made.exc_info = (ValueError, problem, problem.__traceback__)
    assert "ValueError: planted" in form.format(made)


def test_serve_logs_its_start_and_stop(tmp_path: Path) -> None:
    with broker(tmp_path, "--log-format", "json") as (process, address):
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
    entries = [json.loads(line) for line in said.splitlines()]
    assert [found["level"] for found in entries] == ["info"] * 4
    assert f"is ready on {address}" in entries[0]["message"]
    assert [found["message"] for found in entries[1:]] == ["caught SIGTERM", "stopping", "stopped"]


def test_a_higher_level_leaves_them_out(tmp_path: Path) -> None:
    with broker(tmp_path, "--log-level", "warning") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.communicate()[1] == ""
