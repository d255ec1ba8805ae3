"""Every chance of a run as one recorded sequence of small numbers.

Rule: 0 is always the calmest choice, so that a sequence with zeros in it, or one that ends early, is a
calmer run. `NotedChoices` remember what each choice decided, and change none of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from inspect import currentframe
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import attrs

if TYPE_CHECKING:
    from fencepost.simulator.world.world import World

Thing = TypeVar("Thing")
PERMILLE = 1_000


class Choices:
    """Replays `recorded`, then draws from `seed`, or takes zeros without one. `taken` holds all choices."""

    __slots__ = ("_random", "_recorded", "taken")

    def __init__(self, seed: int | None = None, *, recorded: Sequence[int] = ()) -> None:
        self._random = None if seed is None else Random(seed).random
        self._recorded = deque(recorded)
        self.taken: list[int] = []

    def below(self, count: int) -> int:
        """A number from 0 up to `count`, exclusive."""
        if self._recorded:
            # A shrunk list is played under other plans, where there may be less to choose from.
            chosen = min(self._recorded.popleft(), count - 1)
        elif self._random is None:
            chosen = 0
        else:
            # Python promises the same numbers from `random()` in all its versions, and from no other method.
            chosen = int(self._random() * count)
        self.taken.append(chosen)
        return chosen

    def one_of(self, things: Sequence[Thing]) -> Thing:
        """One of these; the first is the calmest."""
        return things[self.below(len(things))]

    def happens(self, permille: int) -> bool:
        """Whether something happens that does `permille` times in a thousand; the calmest choice is no."""
        # The largest numbers mean yes, since 0 has to mean no.
        return self.below(PERMILLE) >= PERMILLE - permille

    def some_of(self, things: Sequence[Thing]) -> tuple[Thing, ...]:
        """Any of these, each with an even chance, in their order: the calmest is none."""
        return tuple(thing for thing in things if self.below(2))


# --- for readers of a run that a search found ---------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Note:
    """One choice that was not the calmest: when it was made, and what it decided."""

    at: int
    about: str


class NotedChoices(Choices):
    """`notes` are by place in the list, of those that are not 0. They have the time of the `world`."""

    __slots__ = ("notes", "world")

    def __init__(self, recorded: tuple[int, ...]) -> None:
        super().__init__(recorded=recorded)
        self.notes: dict[int, Note] = {}
        self.world: World | None = None

    def below(self, count: int) -> int:
        """The same number as without notes, and a note of it."""
        place = len(self.taken)
        chosen = super().below(count)
        if chosen:
            at = 0 if self.world is None else self.world.now
            self.notes[place] = Note(at=at, about=_asker(currentframe()))
        return chosen


def _asker(frame: FrameType | None) -> str:
    """The function that had to choose, by its name: what is chosen is what it is about."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename != __file__ and not code.co_name.startswith("<"):
            words = code.co_name.strip("_").replace("_", " ")
            source = frame.f_locals.get("source")
            return f"{words} of {source}" if isinstance(source, str) else words
        frame = frame.f_back
    return "?"
