"""Files that users name: read before the work begins, or written when it is done.

Rule: a command overwrites an existing file only if that file is of the kind that it writes.
"""

from __future__ import annotations

import errno
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs

from fencepost.cli.errors import (
    AND_THE_RIGHTS,
    CHECK_THE_PATH,
    FAILED,
    WRONG_USAGE,
    CommandFailed,
    WrongUsage,
)
from fencepost.cli.likely_paths import did_you_mean_beside


def refuse_uri(path: Path, what: str, *, then: str) -> None:
    """WrongUsage with this next step if the path was meant as a URI: a URI "is not `what`"."""
    from fencepost.journal.disk import uri_scheme

    scheme = uri_scheme(str(path))
    if scheme is not None and not path.exists():
        raise WrongUsage(f"a URI ({scheme}:) is not {what}", then=then)


def read_text(name: str, file: Path, *, then: str) -> str:
    """The text of a file; messages call the file `name`. WrongUsage with this next step if it does not exist
    or is not text.
    """
    try:
        return file.read_text(encoding="utf-8")
    except OSError as problem:
        if isinstance(problem, PermissionError):
            then = f"{CHECK_THE_PATH}{AND_THE_RIGHTS}"
        if isinstance(problem, FileNotFoundError):
            then = did_you_mean_beside(file) or then
        raise WrongUsage(f"cannot read {name} {file}: {problem.strerror}", then=then) from problem
    except UnicodeDecodeError as problem:
        raise WrongUsage(f"{name} {file} is not a text file: {problem.reason}", then=then) from problem


def read_toml(name: str, file: Path, *, then: str) -> dict[str, Any]:
    """The same for a TOML file."""
    try:
        return tomllib.loads(read_text(name, file, then=then))
    except tomllib.TOMLDecodeError as problem:
        raise WrongUsage(f"{name} {file} is not TOML: {problem}", then=then) from problem


@attrs.frozen
class FileKind:
    """A kind of file that commands write. `suffix`: how its names end, unless users choose another ending."""

    words: str
    recognises: Callable[[str], bool]
    suffix: str


SCENARIO: Final = FileKind("a scenario", lambda text: 'name = "' in text, ".toml")
PAGE: Final = FileKind(
    "a page of a run", lambda text: text.startswith("<!doctype html>") and 'id="boot"' in text, ".html"
)
PICTURE: Final = FileKind("an SVG picture", lambda text: "<svg" in text, ".svg")
TABLE: Final = FileKind("a table of a run", lambda text: " end" in text, ".txt")
OBJECT: Final = FileKind("a JSON object", lambda text: text.startswith("{"), ".json")
REPORT: Final = FileKind("a JUnit report", lambda text: "<testsuites" in text, ".xml")
OTHER_SUFFIXES: Final = {kind.suffix for kind in (SCENARIO, PAGE, PICTURE, OBJECT, REPORT)}
"""Endings that promise one kind of file. A .txt may be any text."""


@attrs.frozen(kw_only=True)
class Target:
    """A file that a command will write when its work is done.

    `option` is the option that names it; older contents of this `kind` may be overwritten.
    """

    path: Path
    option: str
    kind: FileKind

    def check(self) -> None:
        """Raises CommandFailed before the work starts, if the file cannot be written or must not be
        overwritten.

        It changes nothing. Devices and pipes can only be tested by writing to them.
        """
        try:
            old = self._old_contents()
        except OSError as problem:
            raise self._failure(problem, code=WRONG_USAGE) from None
        if old and not self.kind.recognises(old):
            raise WrongUsage(
                f"{self.path} exists and is not {self.kind.words}; refusing to overwrite it",
                then=f"give another file with {self.option}, or remove this one",
            )
        suffix = self.path.suffix.lower()
        if suffix in OTHER_SUFFIXES - {self.kind.suffix}:
            raise WrongUsage(
                f"{self.option} writes {self.kind.words}, and {self.path} ends in {suffix}",
                then=f"give a name that ends in {self.kind.suffix}",
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
