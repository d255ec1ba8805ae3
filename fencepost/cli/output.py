"""What commands print: tables for people, and JSON for programs.

Rule: stdout holds only the result: text, or with --json one JSON object per line (docs/cli.md).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import TypeVar

from fencepost.cli.table import print_block, print_table

T = TypeVar("T")
Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


def print_json(value: Json) -> None:
    sys.stdout.write(as_json_line(value) + "\n")


def as_json_line(value: Json) -> str:
    """JSON without line breaks and without control characters, which a terminal would obey."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    if not text.isprintable():  # JSON escapes some control characters itself, but not all
        text = json.dumps(value, separators=(", ", ": "))
    return text


def print_progress(text: str = "") -> None:
    """Shows how far a command is, on a terminal, in place of what it showed before; "" erases that."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


Columns = Sequence[tuple[str, str, Callable[[T], Json]]]
"""The columns of a table of T: the name of each in JSON, its title for people, and its value."""


def row_of(columns: Columns[T], entry: T) -> dict[str, Json]:
    """One row as a JSON object."""
    return {name: value(entry) for name, _, value in columns}


def print_rows(columns: Columns[T], entries: Iterable[T], *, as_json: bool) -> None:
    """A table of entries, or one JSON object per entry."""
    rows = [row_of(columns, entry) for entry in entries]
    if not as_json:
        print_table([title for _, title, _ in columns], [list(row.values()) for row in rows])
        return
    for row in rows:
        print_json(row)


def print_entry(columns: Columns[T], entry: T, *, as_json: bool) -> None:
    """One entry: a line for each of its values, or a JSON object."""
    row = row_of(columns, entry)
    if as_json:
        print_json(row)
    else:
        print_block([title for _, title, _ in columns], list(row.values()))


def text_to_stderr(*, as_json: bool) -> AbstractContextManager[object]:
    """With --json, the text that is printed in the block goes to stderr, so that stdout holds only JSON."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def print_done(sentence: str, facts: Mapping[str, Json], *, as_json: bool) -> None:
    """What a command did: a sentence, or the same as a JSON object."""
    if as_json:
        print_json(facts)
    else:
        print(sentence)


def text_of(data: bytes | None) -> Json:
    """Bytes as JSON: text when they are UTF-8, else {"base64": ...}."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"base64": b64encode(data).decode()}
