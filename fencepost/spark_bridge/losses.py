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
    """No record before `end` can be read; equal to `start` if nobody can say how many are lost."""
    file: str
    """The file with the damage, or the directory of the partition."""
    position: int
    """The byte at which the damage begins; 0 if the file is gone."""
    reason: str


Report = Callable[[Loss], None]


def warn(loss: Loss) -> None:
    """Tells of a loss where nothing else does: a warning of the process that reads."""
    warnings.warn(loss.reason, stacklevel=2)
