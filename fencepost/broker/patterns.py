"""Regular expressions that clients send.

Rule: only RE2 matches them, as in Kafka: its time is linear in the text, and its memory is bounded. An evil
expression would keep Python's own matcher busy for longer than the broker lives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fencepost.protocol.errors import FencepostError

PATTERN_MEMORY_MAX: Final = 1 << 20  # bytes, of one compiled expression


class BadPattern(FencepostError):
    """The text is not a regular expression of RE2, or its program is too large."""


def whole_match(pattern: str) -> Callable[[str], bool]:
    """Whether the expression matches a whole text. Raises BadPattern."""
    import re2  # few clients send one, and a broker should start fast

    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_MAX
    options.log_errors = False  # they are the client's, not the broker's
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as problem:
        raise BadPattern(f"{pattern!r} is not a regular expression that RE2 accepts: {problem}") from problem
    return lambda text: compiled.fullmatch(text) is not None
