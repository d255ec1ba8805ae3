"""What a read leaves out if `failOnDataLoss` is false, and where that is reported.

Rule: nothing is left out in silence. A reader that may lose records reports each loss once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import attrs

from fencepost.protocol.terms import TopicPartition


@attrs.frozen(kw_only=True)
class Loss:
    """Offsets [start, end) of a partition that were asked for and cannot be read."""

    partition: TopicPartition
    start: int
    end: int
    """No record before `end` can be read; equal to `start` if it is unknown how many are lost."""
    file: str
    """The file with the damage, or the directory of the partition."""
    position: int
    """The byte at which the damage begins; 0 if the file is gone."""
    reason: str

    def covers(self, other: Loss) -> bool:
        """Whether this loss includes the other one: it is the same, or it has all offsets of the other."""
        if self.partition != other.partition:
            return False
        return self == other or self.start <= other.start < other.end <= self.end


Report = Callable[[Loss], None]


def once(report: Report | None) -> Report | None:
    """Reports the losses of one read, without those that an earlier one covers. A segment that is gone is
    found by the survey of the log, and again where the read requests its offsets.
    """
    if report is None:
        return None
    reported: list[Loss] = []

    def report_once(loss: Loss) -> None:
        if not any(earlier.covers(loss) for earlier in reported):
            reported.append(loss)
            report(loss)

    return report_once


def leave_out(loss: Loss) -> None:
    """Reports nothing: the program reads the table `losses`, too."""


def warn(loss: Loss) -> None:
    """Reports a loss where nothing else does: as a warning of the process that reads."""
    warnings.warn(loss.reason, stacklevel=2)
