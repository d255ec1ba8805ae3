"""Values as people read them, and tables of them.

Rule: a table shows every cell whole. On a terminal that is too narrow for it, long titles take several lines;
if that is not enough, each row becomes a block of `title: value` lines. In a pipe it is as wide as needed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from types import NoneType
from typing import Final, cast

import attrs

from fencepost.protocol.terms import escaped

GAP: Final = 2  # between columns
TITLE_WORD: Final = re.compile(r"[A-Z]?[^A-Z -]+[ -]?|[A-Z]+(?:/[A-Z]+)?(?![a-z])[ -]?|\S")
"""Where a title may break: before a capital, after a dash or a space. RECORDS/S stays whole."""
NUMBERS: Final = ({int}, {float})  # the types in a column that is aligned to the right
BOLD, RED, GREEN, YELLOW = "1", "31", "32", "33"

Titles = Sequence[str]
Rows = Iterable[Sequence[object]]


class Moment(int):
    """Milliseconds since 1970: a number in JSON, a date in a table."""


class Duration(int):
    """Milliseconds: a number in JSON, `15 min` in a table."""


def is_terminal() -> bool:
    """Whether a person reads the output, not a program or a file."""
    return sys.stdout.isatty()


def terminal_width() -> int | None:
    """The columns of the terminal, or what COLUMNS says; None in a pipe, where nothing wraps."""
    return shutil.get_terminal_size().columns if is_terminal() else None


def styled(text: str, style: str) -> str:
    """The text in this style on a terminal that shows colours (NO_COLOR turns them off), else as it is."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not is_terminal():
        return text
    return f"\x1b[{style}m{text}\x1b[0m" if text else text


@attrs.frozen
class _Drawn:
    """A table with its titles broken into lines."""

    heads: list[list[str]]
    cells: list[list[str]]
    are_numbers: list[bool]

    @property
    def widths(self) -> list[int]:
        """The terminal columns that each column of the table needs."""
        texts = zip(*self.cells, strict=True) if self.cells else [()] * len(self.heads)
        heads = self.heads or [[]] * len(self.are_numbers)
        return [
            max((_columns(text) for text in (*head, *column)), default=0)
            for head, column in zip(heads, texts, strict=True)
        ]

    @property
    def width(self) -> int:
        """The terminal columns that the whole table needs."""
        return sum(self.widths) + GAP * (len(self.widths) - 1)

    def lines(self) -> list[str]:
        """The titles, then the rows."""
        height = max(map(len, self.heads), default=0)
        heads = [[""] * (height - len(head)) + head for head in self.heads]
        titles = [styled(self._line(line), BOLD) for line in zip(*heads, strict=True)]
        return [*titles, *map(self._line, self.cells)]

    def _line(self, texts: Sequence[str]) -> str:
        padded = [
            " " * (width - _columns(text)) + text if is_number else text + " " * (width - _columns(text))
            for text, width, is_number in zip(texts, self.widths, self.are_numbers, strict=True)
        ]
        return (" " * GAP).join(padded).rstrip()


def print_table(titles: Titles, rows: Rows) -> None:
    """A table. No `titles` mean a table without them."""
    entries = [list(row) for row in rows]
    cells = [[as_words(cell) for cell in row] for row in entries]
    columns = list(zip(*entries, strict=True)) or [()] * len(titles)
    are_numbers = [{type(cell) for cell in column} - {NoneType} in NUMBERS for column in columns]
    table, width = _Drawn([[title] for title in titles], cells, are_numbers), terminal_width()
    if width is not None and table.width > width:
        words = [[word.rstrip() for word in TITLE_WORD.findall(title)] for title in titles]
        table = _Drawn(words, cells, are_numbers)
    if width is None or table.width <= width or not titles:
        print("\n".join(table.lines()))
    else:
        print("\n\n".join("\n".join(_block(titles, row)) for row in cells))


def print_block(titles: Titles, row: Sequence[object]) -> None:
    """One thing: a line for each of its values."""
    print("\n".join(_block(titles, [as_words(cell) for cell in row])))


def _block(titles: Titles, row: Sequence[str]) -> list[str]:
    width = max(map(_columns, titles)) + 1
    return [
        f"{styled(f'{title}:', BOLD)}{' ' * (width - _columns(title))}{text}"
        for title, text in zip(titles, row, strict=True)
    ]


def _columns(text: str) -> int:
    """The columns of a terminal that the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def as_words(cell: object) -> str:
    """The text of one cell: a dash for None, commas between the items of a list."""
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case Moment():
            return moment(cell)
        case Duration():
            return duration(cell)
        case list():
            return ",".join(map(as_words, cast("list[object]", cell))) or "-"
        case _:
            return escaped(str(cell))


def moment(milliseconds: int) -> str:
    """A log timestamp as ISO 8601 in UTC, to the millisecond; beyond the year 9999 the bare number."""
    try:
        stamp = datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):  # producers choose timestamps: any 64-bit value is possible
        return f"{milliseconds} ms"
    return stamp.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + "Z"


UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))


def duration(milliseconds: int) -> str:
    """`850 ms`, `1 s 200 ms`, `15 min`, `3 d 4 h`: the two largest units."""
    sign, rest = "-" if milliseconds < 0 else "", abs(milliseconds)
    parts: list[str] = []
    for unit, size in UNITS:
        if count := rest // size:
            parts.append(f"{count:,} {unit}")
            rest -= count * size
        elif parts:
            break
    return sign + " ".join(parts[:2]) if parts else "0 ms"
