"""What a check finds: where, what, and what it means for the data.

A problem is a promise that the files break. A note is what a killed broker leaves and repairs at its next
start, or what an administrator did.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

import attrs

from fencepost.journal.storage import StorageError


def counted(number: int, what: str) -> str:
    """`1 batch`, `2,000 batches`."""
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{ending}"


class Severity(Enum):
    """How bad a finding is."""

    PROBLEM = "problem"
    NOTE = "note"


class FindingKind(Enum):
    """What a repair has to know of a finding, apart from its words."""

    OTHER = "other"
    PRODUCERS_FORGOTTEN = "the producers of deleted records are forgotten"


class Location(NamedTuple):
    """A batch of a file, by its offset (None: the whole file)."""

    file: str
    offset: int | None = None


@attrs.frozen(kw_only=True)
class Finding:
    """One thing found. `offset` is the batch's that it is about, None when it is about the whole file."""

    severity: Severity
    file: str
    offset: int | None
    what: str
    means: str
    kind: FindingKind = FindingKind.OTHER


@attrs.define(eq=False)
class Findings:
    """All that was found so far, in the order in which it was found, and how much was looked at."""

    found: list[Finding] = attrs.Factory(list[Finding])
    unread: list[StorageError] = attrs.Factory(list[StorageError])
    """Why directories could not be read to their end."""
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    bytes: int = 0
    transactional_ids: int = 0

    def problem(self, at: Location, what: str, means: str, kind: FindingKind = FindingKind.OTHER) -> None:
        """Something is wrong."""
        self.report(True, at, what, means, kind)

    def note(self, at: Location, what: str, means: str) -> None:
        """Something is worth knowing."""
        self.report(False, at, what, means)

    def report(
        self, is_problem: bool, at: Location, what: str, means: str, kind: FindingKind = FindingKind.OTHER
    ) -> None:
        """A problem, or a note where a kill explains it."""
        severity = Severity.PROBLEM if is_problem else Severity.NOTE
        self.found.append(
            Finding(severity=severity, file=at.file, offset=at.offset, what=what, means=means, kind=kind)
        )

    @contextmanager
    def reading(self, directory: str) -> Generator[None]:
        """If the block cannot read a directory, reports that, so that the check can go on with the others."""
        try:
            yield
        except StorageError as problem:
            self.unread.append(problem)
            self.problem(Location(directory), str(problem), "the rest of it was not checked")

    def count(self, severity: Severity) -> int:
        """How many findings have this severity."""
        return sum(finding.severity is severity for finding in self.found)
