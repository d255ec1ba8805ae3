"""Choices that remember what each of them decided, for readers of a run that a search found.

Rule: it looks and never touches; the choices are those that they would have been.
"""

from __future__ import annotations

from inspect import currentframe
from types import FrameType
from typing import Protocol

import attrs

from fencepost.simulator.world import choices as plain
from fencepost.simulator.world.choices import Choices


class Timekeeper(Protocol):
    """A source of the time, in nanoseconds."""

    now: int


@attrs.frozen(kw_only=True)
class Note:
    """One choice that was not the calmest: when, what it decided, and what was chosen."""

    at: int
    about: str
    chosen: int


class NotedChoices(Choices):
    """`notes` are by place in the list, of those that are not 0."""

    __slots__ = ("clock", "notes")

    def __init__(self, recorded: tuple[int, ...]) -> None:
        super().__init__(recorded=recorded)
        self.notes: dict[int, Note] = {}
        self.clock: Timekeeper | None = None

    def below(self, count: int) -> int:
        """As ever, with a note."""
        place = len(self.taken)
        chosen = super().below(count)
        if chosen:
            at = 0 if self.clock is None else self.clock.now
            self.notes[place] = Note(at=at, about=_asker(currentframe()), chosen=chosen)
        return chosen


def _asker(frame: FrameType | None) -> str:
    """The function that had to choose, by its name: what is chosen is what it is about."""
    while frame is not None:
        code = frame.f_code
        is_plain = code.co_filename in (__file__, plain.__file__)
        if not is_plain and not code.co_name.startswith("<"):
            words = code.co_name.strip("_").replace("_", " ")
            source = frame.f_locals.get("source")
            return f"{words} of {source}" if isinstance(source, str) else words
        frame = frame.f_back
    return "?"
