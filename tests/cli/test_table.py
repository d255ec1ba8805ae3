"""Tables on terminals of several widths: no width hides data."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.cli import table
from fencepost.cli.table import Duration, Moment, as_words, duration, print_table

TITLES = ("TransactionalId", "ProducerId", "TransactionState", "CurrentTransactionStartTime")
ROW = ("order-service-eu-central-1-0000017", 2009, "CompleteCommit", Moment(1_795_355_745_205))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Standard output is a terminal; COLUMNS says how wide it is."""
    monkeypatch.setattr(table, "is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    return monkeypatch


def test_a_narrow_terminal_gets_titles_of_several_lines(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", "90")
    print_table(TITLES, [ROW])
    *titles, row = capsys.readouterr().out.splitlines()
    assert [title.split() for title in titles] == [
        ["Current"],
        ["Transaction"],
        ["Transactional", "Producer", "Transaction", "Start"],
        ["Id", "Id", "State", "Time"],
    ]
    assert row.split() == [*map(str, ROW[:3]), "2026-11-22", "13:55:45.205Z"]


def test_a_terminal_that_is_narrower_still_gets_a_block_per_row(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", "60")
    print_table(TITLES, [ROW, ROW])
    first, second = capsys.readouterr().out.strip().split("\n\n")
    assert first == second
    assert first.splitlines()[0] == "TransactionalId:             order-service-eu-central-1-0000017"


@given(
    rows=st.lists(st.tuples(*[st.none() | st.integers() | st.text("aé 漢", max_size=40)] * 4), max_size=4),
    width=st.integers(1, 200),
)
def test_no_width_hides_a_cell(rows: list[tuple[object, ...]], width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "terminal_width", lambda: width)
        printed: list[str] = []
        patch.setattr("builtins.print", printed.append)
        print_table(TITLES, rows)
    text = "\n".join(printed)
    assert all(as_words(cell).strip() in text for row in rows for cell in row)


def test_a_pipe_is_as_wide_as_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(TITLES, [ROW])
    assert capsys.readouterr().out.splitlines()[0].split() == list(TITLES)


@pytest.mark.parametrize(
    ("environment", "is_coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_follow_the_terminal(
    terminal: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
    *,
    is_coloured: bool,
) -> None:
    for name in ("NO_COLOR", "TERM"):
        terminal.setitem(os.environ, name, environment.get(name, ""))
    print_table(("A",), [("b",)])
    text = capsys.readouterr().out
    assert ("\x1b[1m" in text) == is_coloured
    assert re.sub(r"\x1b\[\d*m", "", text) == "A\nb\n"


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (0, "0 ms"),
        (850, "850 ms"),
        (61_000, "1 min 1 s"),
        (900_000, "15 min"),
        (3_600_001, "1 h"),
        (273_600_000, "3 d 4 h"),
        (-1_500, "-1 s 500 ms"),
    ],
)
def test_durations_have_two_units(milliseconds: int, words: str) -> None:
    assert duration(milliseconds) == words
    assert as_words(Duration(milliseconds)) == words
