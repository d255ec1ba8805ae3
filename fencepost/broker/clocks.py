"""The two clocks of a broker process.

Rule: what is stored or compared between processes takes `now_ms`; an interval takes `monotonic_ms`, which no
one can set.
"""

from __future__ import annotations

import time


def now_ms() -> int:
    """The time of records and deadlines: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds that never go back, for intervals."""
    return time.monotonic_ns() // 1_000_000
