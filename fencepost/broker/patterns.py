"""Regular expressions that clients send.

Rule: only RE2 matches them, as in Kafka: its time is linear in the text, and its memory is bounded. An evil
expression would keep Python's own matcher busy for longer than the broker lives. Linear is not enough where a
short expression becomes a long program and there are many names, so their product is limited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fencepost.protocol.errors import FencepostError

PATTERN_MEMORY_MAX: Final = 1 << 20  # bytes, of one compiled expression
# Instructions times characters. At worst RE2 runs every instruction for every character, in about 5 ns.
PATTERN_STEPS_MAX: Final = 200_000_000


class BadPattern(FencepostError):
    """The text is not a regular expression of RE2, or its program is too large for what it must match."""


def whole_match(pattern: str, *, characters: int) -> Callable[[str], bool]:
    """Whether the expression matches a whole text, for texts of this many characters altogether. Raises
    BadPattern.
    """
    import re2  # few clients send one, and a broker should start fast

    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_MAX
    options.log_errors = False  # they are the client's, not the broker's
    options.never_capture = True  # to remember what each group matched takes several times as long
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as problem:
        raise BadPattern(f"{pattern!r} is not a regular expression that RE2 accepts: {problem}") from problem
    if compiled.programsize * characters > PATTERN_STEPS_MAX:
        raise BadPattern(f"{pattern!r} takes too long to match with {characters} characters of names")
    return lambda text: compiled.fullmatch(text) is not None
