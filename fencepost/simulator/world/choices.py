"""Every chance of a run as one recorded sequence of small numbers.

Rule: 0 is always the calmest choice, so that a sequence with zeros in it, or one that ends early, is a
calmer run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import TypeVar

Thing = TypeVar("Thing")
PERMILLE = 1_000


class Choices:
    """Replays `recorded`, then goes on with what `seed` says, or with zeros when there is no seed. `taken`
    is all.
    """

    __slots__ = ("_random", "_recorded", "taken")

    def __init__(self, seed: int | None = None, *, recorded: Sequence[int] = ()) -> None:
        self._random = None if seed is None else Random(seed).random
        self._recorded = deque(recorded)
        self.taken: list[int] = []

    def below(self, count: int) -> int:
        """A number from 0 up to `count`, exclusive."""
        if self._recorded:
            chosen = min(self._recorded.popleft(), count - 1)
        elif self._random is None:
            chosen = 0
        else:
            chosen = int(self._random() * count)
        self.taken.append(chosen)
        return chosen

    def one_of(self, things: Sequence[Thing]) -> Thing:
        """One of these; the first is the calmest."""
        return things[self.below(len(things))]

    def happens(self, permille: int) -> bool:
        """Whether something happens that does `permille` times in a thousand; the calm answer is no."""
        return self.below(PERMILLE) >= PERMILLE - permille

    def some_of(self, things: Sequence[Thing]) -> tuple[Thing, ...]:
        """Any of these, each with an even chance, in their order: the calmest is none."""
        return tuple(thing for thing in things if self.below(2))
