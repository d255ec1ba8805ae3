"""What commands print and write: tables for people, JSON for programs, and output files.

Rule: stdout holds only the result: text, or with --json one JSON object per line (docs/cli.md). A command
overwrites an existing file only if that file is of the kind that it writes.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TypeVar

import attrs

from fencepost.cli.errors import FAILED, WRONG_USAGE, CommandFailed, WrongUsage
from fencepost.cli.table import print_block, print_table

T = TypeVar("T")
Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


def print_json(value: Json) -> None:
    """One JSON value on one line."""
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


@contextmanager
def text_beside(*, as_json: bool) -> Generator[None]:
    """With --json, the text that its body prints goes to stderr, so that stdout holds only JSON."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


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
            raise WrongUsage(
                f"{self.path} exists and is not {self.kind}; refusing to overwrite it",
                then=f"give another file with {self.option}, or remove this one",
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
