"""Files that a command writes when its work is done: whether it can is tried before.

Rule: what already lies there is overwritten by its own kind alone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import attrs

from fencepost.cli.errors import FAILED, WRONG_USAGE, CommandFailed


@attrs.frozen(kw_only=True)
class Target:
    """A file to write. `option` names it on the command line, `is_kind` knows older contents of its kind."""

    path: Path
    option: str
    kind: str
    is_kind: Callable[[str], bool]

    def prove(self) -> None:
        """CommandFailed when it cannot be written, or when something of another kind lies there.

        Nothing is changed. Devices and pipes are proven by writing alone.
        """
        try:
            old = self._old_contents()
        except OSError as problem:
            raise self._failure(problem, code=WRONG_USAGE) from None
        if old and not self.is_kind(old):
            raise CommandFailed(
                f"{self.path} is there already, and is no {self.kind}: it is not overwritten",
                then=f"name another file with {self.option}, or remove this one",
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
        """CommandFailed when it cannot be written after all."""
        try:
            self.path.write_text(text, encoding="utf-8")
        except OSError as problem:
            raise self._failure(problem) from None

    def _failure(self, problem: OSError, *, code: int = FAILED) -> CommandFailed:
        return CommandFailed(
            f"{self.path} cannot be written: {problem.strerror}",
            then=f"name a file with {self.option} whose directory is there and can be written",
            code=code,
        )
