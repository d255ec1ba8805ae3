"""What comes from outside cannot command the terminal that it is printed on."""

from __future__ import annotations

import json
import sys

import pytest

from fencepost import Record
from fencepost.broker.notices import Notices
from fencepost.cli import consume
from fencepost.cli.consume import OutputOptions
from fencepost.cli.output import print_json
from fencepost.cli.table import print_table
from fencepost.protocol.terms import escaped

TITLE = "\x1b]0;owned\x07"
HOSTILE = [TITLE, "\x9b2J", "a\rb", "a\nb", "\u202eabc", "\x7f"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_terminal_would_obey_is_escaped(text: str) -> None:
    assert escaped(text).isprintable()
    assert escaped(text).encode("ascii", "replace").decode("unicode_escape") == text


def test_what_people_read_is_left_alone() -> None:
    assert escaped("Zahlung für Åsa 支払い ✓") == "Zahlung für Åsa 支払い ✓"


@pytest.mark.parametrize("text", HOSTILE)
def test_tables_and_json_are_safe(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id"], [[text]])
    print_json({"id": text})
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    assert json.loads(out.splitlines()[-1]) == {"id": text}


@pytest.mark.parametrize("text", HOSTILE)
def test_lines_of_the_broker_are_safe(text: str, caplog: pytest.LogCaptureFixture) -> None:
    Notices(lambda: 0).log("cause", f"a violation: {text}")
    assert caplog.messages
    assert all(line.isprintable() for text in caplog.messages for line in text.splitlines())


@pytest.mark.parametrize("is_terminal", [True, False])
def test_records_are_escaped_on_a_terminal_and_untouched_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], *, is_terminal: bool
) -> None:
    monkeypatch.setattr(consume, "is_terminal", lambda: is_terminal)
    record = Record(
        topic="t", partition=0, offset=5, timestamp=0, key=b"k", value=TITLE.encode() + b"\xff", headers=None
    )
    OutputOptions(places=True).writer()(record)
    sys.stdout.flush()
    out = capfdbinary.readouterr().out
    assert out == (
        b"0:5\tk\t\\x1b]0;owned\\x07\xef\xbf\xbd\n" if is_terminal else b"0:5\tk\t\x1b]0;owned\x07\xff\n"
    )
