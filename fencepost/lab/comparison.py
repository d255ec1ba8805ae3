"""Two runs side by side: the first step of each at which they differ.

Rule: times do not count. A run that is only slower has not diverged.
"""

from __future__ import annotations

from typing import TypedDict

from fencepost.lab.document import RunDocument, StepEntry


class ComparedRuns(TypedDict):
    """Two runs. `divergence`: the first step of each that differs; None if none does."""

    left: RunDocument
    right: RunDocument
    divergence: tuple[int, int] | None


def compare(left: RunDocument, right: RunDocument) -> ComparedRuns:
    """The two runs, and where they part."""
    return {"left": left, "right": right, "divergence": _divergence(left["steps"], right["steps"])}


def _divergence(left: list[StepEntry], right: list[StepEntry]) -> tuple[int, int] | None:
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        if _told(one) != _told(other):
            return number, number
    shorter = min(len(left), len(right))
    return None if len(left) == len(right) else (shorter, shorter)


def _told(step: StepEntry) -> tuple[str, str, str]:
    return step["kind"], step["lane"], step["text"]
