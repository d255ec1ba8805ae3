"""What a check finds: where, what, and what it means for the data.

A problem is a promise that the files break. A note is what a killed broker leaves and repairs at its next
start, or what an administrator did.
"""

from __future__ import annotations

from enum import Enum

import attrs


class Severity(Enum):
    """How bad a finding is."""

    PROBLEM = "problem"
    NOTE = "note"


@attrs.frozen(kw_only=True)
class Finding:
    """One thing found. `offset` is the batch's that it is about, None when it is about the whole file."""

    severity: Severity
    file: str
    offset: int | None
    what: str
    means: str


@attrs.define(eq=False)
class Findings:
    """All that was found so far, in the order in which it was found, and how much was looked at."""

    found: list[Finding] = attrs.Factory(list[Finding])
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    bytes: int = 0
    transactional_ids: int = 0

    def problem(self, file: str, what: str, *, means: str, offset: int | None = None) -> None:
        """Something is wrong."""
        self.found.append(
            Finding(severity=Severity.PROBLEM, file=file, offset=offset, what=what, means=means)
        )

    def note(self, file: str, what: str, *, means: str, offset: int | None = None) -> None:
        """Something is worth knowing."""
        self.found.append(Finding(severity=Severity.NOTE, file=file, offset=offset, what=what, means=means))

    def tell(self, is_problem: bool, file: str, what: str, *, means: str, offset: int | None = None) -> None:
        """A problem, or a note where a kill explains it."""
        (self.problem if is_problem else self.note)(file, what, means=means, offset=offset)

    def count(self, severity: Severity) -> int:
        """How many findings are as bad as that."""
        return sum(finding.severity is severity for finding in self.found)
