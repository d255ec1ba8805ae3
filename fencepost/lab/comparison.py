"""Two runs side by side, and where they diverge.

Rule: two steps are the same if the same happens at the same participant, whenever that is. A message reads
the same until the fault that hits it strikes (`sentence`).
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TypedDict

from fencepost.lab.document import RunDocument, StepEntry


class ComparedRuns(TypedDict):
    """Two runs. `divergence`: the first step of each that the other one does not have; None if none."""

    left: RunDocument
    right: RunDocument
    divergence: tuple[int, int] | None


def compare(left: RunDocument, right: RunDocument) -> ComparedRuns:
    """Both runs, and where they diverge. A run that ends before the other one diverges at its last step."""
    return {"left": left, "right": right, "divergence": _divergence(left["steps"], right["steps"])}


def _divergence(left: list[StepEntry], right: list[StepEntry]) -> tuple[int, int] | None:
    for number, (one, other) in enumerate(zip_longest(left, right)):
        if one is None or other is None or _key(one) != _key(other):
            return max(min(number, len(left) - 1), 0), max(min(number, len(right) - 1), 0)
    return None


def _key(step: StepEntry) -> tuple[str, str, str]:
    return step["kind"], step["lane"], step["text"]
