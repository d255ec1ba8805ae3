"""Which known name a misspelt one was probably meant to be, for the errors that ask "did you mean ...?".

Rule: the limits are here. A caller whose names need another one gives its `likeness_min`, and says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from typing import Final

SUGGESTED_MAX: Final = 3
NAME_MIN: Final = 4  # letters; names of processes are short: nearly each of them resembles some word
LIKENESS_MIN: Final = 0.7  # of a name and its suggestion, from 0 to 1
_NUMBERS: Final = re.compile(r"\d+")


def suggestion(name: str, possible: Iterable[str], *, likeness_min: float = LIKENESS_MIN) -> str:
    """ "; did you mean ...?" with the likely names in quotes; empty without any."""
    meant = likely(name, possible, likeness_min=likeness_min)
    quoted = [f'"{each}"' for each in meant]
    return f"; did you mean {either(quoted)}?" if quoted else ""


def question(name: str, possible: Iterable[str], *, likeness_min: float = LIKENESS_MIN) -> str:
    """ "did you mean ...?" with the likely names as the user would type them; empty without any."""
    meant = likely(name, possible, likeness_min=likeness_min)
    return f"did you mean {either(meant)}?" if meant else ""


def likely(name: str, possible: Iterable[str], *, likeness_min: float = LIKENESS_MIN) -> list[str]:
    """The possible name that is nearly this one, or those that are equally near; if none is near, the
    shortest ones that contain it.
    """
    names = list(possible)
    return nearest(name, names, likeness_min=likeness_min) or _containing(name, names)


def nearest(name: str, possible: Iterable[str], *, likeness_min: float = LIKENESS_MIN) -> list[str]:
    """The possible name that is nearly this one, or those that are equally near."""
    if len(name) < NAME_MIN:
        return []
    # "node 3" is not a misspelling of "node 1", so the numbers must agree.
    numbers = _NUMBERS.findall(name)
    by_lower = {
        known.lower(): known for known in possible if not numbers or numbers == _NUMBERS.findall(known)
    }
    found = get_close_matches(name.lower(), list(by_lower), n=SUGGESTED_MAX, cutoff=likeness_min)
    return [by_lower[each] for each in found if _likeness(each, name) == _likeness(found[0], name)]


def either(names: Iterable[str]) -> str:
    """The names with "or" before the last one."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _containing(name: str, possible: list[str]) -> list[str]:
    if len(name) < NAME_MIN:
        return []
    found = [known for known in possible if name.lower() in known.lower()]
    return sorted(found, key=len)[:SUGGESTED_MAX]


def _likeness(known: str, name: str) -> float:
    return SequenceMatcher(None, known, name.lower()).ratio()
