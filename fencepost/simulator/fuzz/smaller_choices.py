"""A list of choices made small: fewer of them that are not 0, and those as low as can be.

Rule: everything is tried, nothing is assumed: a list counts only when whoever is asked says that it still
fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

Attempt = Callable[[Sequence[int]], "tuple[int, ...] | None"]
"""Runs with a list: the choices that were taken, if it still fails; else None."""

SMALLEST_CUT: Final = 64  # of the whole: finer cuts out of the middle only shift what comes behind them


def smaller(choices: Sequence[int], attempt: Attempt) -> tuple[int, ...]:
    """The smallest list that one can come to by cutting, by zeros and by lower numbers."""
    best = trimmed(choices)
    while True:
        before = best
        for reduce in (_shorter, _cut, _calmer, _lower):
            best = reduce(best, attempt)
        if best == before:
            return best


def trimmed(choices: Sequence[int]) -> tuple[int, ...]:
    """Without the zeros at the end, which go without saying."""
    end = len(choices)
    while end and not choices[end - 1]:
        end -= 1
    return tuple(choices[:end])


def _tried(choices: Sequence[int], attempt: Attempt, instead_of: tuple[int, ...]) -> tuple[int, ...] | None:
    """What was really taken, when it fails and is another and not a larger list."""
    taken = attempt(choices)
    if taken is None:
        return None
    found = trimmed(taken)
    return found if size_of(found) < size_of(instead_of) else None


def size_of(choices: Sequence[int]) -> tuple[int, int, int]:
    """What is compared: how many are not 0, how many there are, and how high they are."""
    return sum(1 for choice in choices if choice), len(choices), sum(choices)


def _shorter(best: tuple[int, ...], attempt: Attempt) -> tuple[int, ...]:
    """The end is left to calm."""
    size = len(best) // 2
    while size:
        found = _tried(best[:-size], attempt, best)
        best = best if found is None else found
        size = min(size // 2 if found is None else size, len(best) // 2)
    return best


def _cut(best: tuple[int, ...], attempt: Attempt) -> tuple[int, ...]:
    """Something out of the middle."""
    parts = 2
    while parts <= SMALLEST_CUT:
        size, at = len(best) // parts, 0
        while size and at < len(best):
            found = _tried(best[:at] + best[at + size :], attempt, best)
            if found is None:
                at += size
            else:
                best = found
        parts *= 2
    return best


def _calmer(best: tuple[int, ...], attempt: Attempt) -> tuple[int, ...]:
    """Zeros instead: of many choices at once, then of ever fewer."""
    size = len(_places(best))
    while size:
        at = 0
        while at < len(places := _places(best)):
            calmed = list(best)
            for place in places[at : at + size]:
                calmed[place] = 0
            found = _tried(calmed, attempt, best)
            if found is None:
                at += size
            else:
                best = found
        size //= 2
    return best


def _places(choices: Sequence[int]) -> list[int]:
    return [place for place, choice in enumerate(choices) if choice]


def _lower(best: tuple[int, ...], attempt: Attempt) -> tuple[int, ...]:
    """Each of what is left as low as it can be, by halves."""
    for place in _places(best):
        low = 1
        while place < len(best) and low < best[place]:
            middle = (low + best[place]) // 2
            found = _tried((*best[:place], middle, *best[place + 1 :]), attempt, best)
            if found is None:
                low = middle + 1
            else:
                best = found
    return best
