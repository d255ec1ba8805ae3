"""What commands print and write: tables for people, JSON for programs, and output files.

Rule: stdout holds only the answer, with the same words on a terminal and in a pipe; colour and lines appear
only on a terminal. A command overwrites an existing file only if that file is of the kind that it writes.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar, cast

import attrs

from fencepost.cli.errors import FAILED, WRONG_USAGE, CommandFailed
from fencepost.protocol.terms import escaped

T = TypeVar("T")
Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


def print_json(value: Json) -> None:
    """One JSON value on one line."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    if not text.isprintable():  # JSON escapes some control characters itself, but not all
        text = json.dumps(value, separators=(", ", ": "))
    sys.stdout.write(text + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; in a pipe without lines and as wide as needed. No `columns` mean no titles."""
    cells = [[as_words(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        lines = [list(columns), *cells] if columns else cells
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_header=bool(columns))
    for row in cells:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)


Columns = Sequence[tuple[str, str, Callable[[T], Json]]]
"""The columns of a table of T: each one's name in JSON, its title for people, and its value."""


def row_of(columns: Columns[T], entry: T) -> dict[str, Json]:
    """One row as a JSON object."""
    return {name: value(entry) for name, _, value in columns}


def print_rows(columns: Columns[T], entries: Iterable[T], *, as_json: bool) -> None:
    """A table of entries, or one JSON list of objects."""
    rows = [row_of(columns, entry) for entry in entries]
    if as_json:
        print_json(rows)
    else:
        print_table([title for _, title, _ in columns], [list(row.values()) for row in rows])


def counted(number: int, what: str) -> str:
    """`1 batch`, `2,000 batches`."""
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{ending}"


def as_words(cell: object) -> str:
    """The text of one cell: a dash for None, commas between the items of a list."""
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case list():
            return ",".join(map(as_words, cast("list[object]", cell)))
        case _:
            return escaped(str(cell))


def moment(milliseconds: int) -> str:
    """A log timestamp as ISO 8601 in UTC, to the millisecond; beyond the year 9999 the bare number."""
    try:
        stamp = datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):  # producers choose timestamps: any 64-bit value is possible
        return f"{milliseconds} ms"
    return stamp.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + "Z"


def text_of(data: bytes | None) -> Json:
    """Bytes as JSON: text when they are UTF-8, else {"base64": ...}."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"base64": b64encode(data).decode()}


@attrs.frozen(kw_only=True)
class Target:
    """A file that a command will write when its work is done.

    `option` is the option that names it, `kind` describes its contents, and `is_kind` recognises older
    contents that may be overwritten.
    """

    path: Path
    option: str
    kind: str
    is_kind: Callable[[str], bool]

    def prove(self) -> None:
        """Raises CommandFailed before the work starts, if the file cannot be written or must not be
        overwritten.

        It changes nothing. Devices and pipes can only be tested by writing to them.
        """
        try:
            old = self._old_contents()
        except OSError as problem:
            raise self._failure(problem, code=WRONG_USAGE) from None
        if old and not self.is_kind(old):
            raise CommandFailed(
                f"{self.path} exists and is not {self.kind}; refusing to overwrite it",
                then=f"give another file with {self.option}, or remove this one",
                code=WRONG_USAGE,
            )

    def _old_contents(self) -> str:
        if self.path.is_file():
            with self.path.open("r+", encoding="utf-8", errors="replace") as file:
                return file.read()
        if self.path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not self.path.exists():
            self.path.touch(exist_ok=False)
            self.path.unlink()
        return ""

    def write(self, text: str) -> None:
        """Writes the file; CommandFailed if the disk refuses."""
        try:
            self.path.write_text(text, encoding="utf-8")
        except OSError as problem:
            raise self._failure(problem) from None

    def _failure(self, problem: OSError, *, code: int = FAILED) -> CommandFailed:
        return CommandFailed(
            f"cannot write {self.path}: {problem.strerror}",
            then=f"give a file in an existing, writable directory with {self.option}",
            code=code,
        )
