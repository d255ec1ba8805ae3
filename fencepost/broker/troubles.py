"""What a host reports to the operator.

Rule: troubles with one cause are one trouble; `notices.py` logs them once per interval.
"""

from __future__ import annotations

import traceback
from enum import Enum
from typing import NamedTuple


class TroubleKind(Enum):
    NOTE = "note"  # something that the broker has dealt with
    DISK = "disk"  # a file could not be read or written
    BUG = "bug"


class Trouble(NamedTuple):
    """Something for the operator to read; those with one cause are logged once per interval."""

    text: str
    cause: str
    kind: TroubleKind

    @classmethod
    def of(cls, text: str, kind: TroubleKind) -> Trouble:
        """Trouble that is its own cause."""
        return cls(text, text, kind)

    @classmethod
    def bug(cls, what: str, problem: Exception) -> Trouble:
        """A failure of the broker's own code, and what the broker does about it.

        The cause is the line of code that raised.
        """
        raised = traceback.extract_tb(problem.__traceback__)[-1]
        text = "".join(traceback.format_exception(problem))
        cause = f"{type(problem).__name__} at {raised.filename}:{raised.lineno}"
        return cls(f"a bug in the broker; the broker {what}\n{text}", cause, TroubleKind.BUG)
