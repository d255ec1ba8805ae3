"""What commands print: tables for people, JSON for programs.

Rule: stdout holds the answer alone; colour and lines only on a terminal, the same words in a pipe.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


def print_json(value: Json) -> None:
    """One JSON value on one line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; in a pipe without lines and as wide as needed. `columns` is empty if they need no names."""
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


def counted(number: int, what: str) -> str:
    """`1 batch`, `2,000 batches`."""
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{ending}"


def as_words(cell: object) -> str:
    """One cell: nothing is a dash."""
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case _:
            return str(cell)


def moment(milliseconds: int) -> str:
    """A timestamp of the log as ISO 8601 in UTC, to the millisecond; beyond the calendar the bare number."""
    try:
        stamp = datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):  # producers choose timestamps: any 64 bits may stand there
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
