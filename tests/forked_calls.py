"""What a forked process is told when it uses an object of its parent."""

from __future__ import annotations

from collections.abc import Callable

from fencepost.protocol.errors import FencepostError


def refusals(kind: type[FencepostError], words: str, *calls: Callable[[], object]) -> int:
    """How many of these calls raise an error of this kind with these words in it."""
    count = 0
    for call in calls:
        try:
            call()
        except kind as problem:
            count += words in str(problem)
    return count
