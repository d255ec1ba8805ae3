"""Words of scenarios that cannot be understood, times, and what was probably meant.

Rule: who wrote something wrong is told what it is, what was perhaps meant, and what is possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from fencepost.simulator.scenarios.limits import NUMBER_MAX

_TIME: Final = re.compile(r"(?P<sign>[+-]?)(?P<count>\d+) ?(?P<unit>ms|s|min)")
_NUMBERS: Final = re.compile(r"\d+")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "min": 60_000}


class BadWords(ValueError):
    """A phrase that means nothing; `possible` is what may stand there."""

    def __init__(self, what: str, *, possible: Iterable[str] = ()) -> None:
        super().__init__(what)
        self.possible = tuple(possible)


def quoted(text: str) -> str:
    """As it stands in a TOML file."""
    return f'"{text}"'


def suggestion(name: str, possible: Sequence[str]) -> str:
    """ "; did you mean ...?" with the possible name that is nearly this one; empty without any."""
    return _asked(_nearest(name, possible))


def phrase_suggestion(text: str, vocabulary: Sequence[str], read: Callable[[str], object]) -> str:
    """The same of a phrase, word by word; what `read` would not understand either is not suggested."""
    words = text.split(" ")
    better = " ".join(word if word in vocabulary else _nearest(word, vocabulary) or word for word in words)
    if better == text:
        return ""
    try:
        read(better)
    except BadWords:
        return ""
    return _asked(better)


def _asked(better: str | None) -> str:
    return "" if better is None else f"; did you mean {quoted(better)}?"


def _nearest(name: str, possible: Sequence[str]) -> str | None:
    if len(name) < 4:  # names of people in a story are short: nearly every one resembles some word
        return None
    numbers = _NUMBERS.findall(name)  # "node 3" is another one than "node 1", and not a misspelling of it
    by_lower = {
        known.lower(): known for known in possible if not numbers or numbers == _NUMBERS.findall(known)
    }
    found = get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.7)
    return by_lower[found[0]] if found else None


def milliseconds(text: str) -> int:
    """A time such as "300 ms", "3 s", "-20 ms" or "2 min"."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise BadWords(f"{quoted(text)} is no time", possible=["300 ms", "3 s", "2 min"])
    digits = match["count"]
    count = int(digits) * _UNITS_MS[match["unit"]] if len(digits) <= len(str(NUMBER_MAX)) else NUMBER_MAX + 1
    if count > NUMBER_MAX:
        raise BadWords(f"{quoted(text)} is too long a time: {NUMBER_MAX} ms is the most")
    return -count if match["sign"] == "-" else count


def time_text(count_ms: int) -> str:
    """The same in the largest unit that is exact."""
    for unit in ("min", "s"):
        if count_ms and count_ms % _UNITS_MS[unit] == 0:
            return f"{count_ms // _UNITS_MS[unit]} {unit}"
    return f"{count_ms} ms"
