"""The log of `fencepost serve`: lines of text, and JSON objects, each with its time and level."""

import json
import logging
import re
import signal
from pathlib import Path

import pytest

from fencepost.cli.log_lines import JsonLines, TextLines, writing_log
from tests.cli.processes import broker

HOSTILE = "a violation: 'a\\nb' \u202e"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def entry(text: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("fencepost.broker", logging.WARNING, "", 0, text, None, None)
    made.__dict__.update(fields)
    return made


def test_text_is_one_line() -> None:
    line = TextLines().format(entry(HOSTILE, peer="127.0.0.1:7"))
    assert re.fullmatch(rf"{TIME} WARNING fencepost\.broker: {re.escape(HOSTILE)}", line)


def test_a_log_ends_with_its_block(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("fencepost.broker")
    before = log.getEffectiveLevel()
    with writing_log("info", "text"):
        log.info("inside")
    assert log.getEffectiveLevel() == before
    log.error("outside")
    assert [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()] == ["inside"]


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
