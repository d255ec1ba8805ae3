"""A clock of one node or one process: it drifts, and it can jump.

Rule: the world counts true nanoseconds; each participant sees only the milliseconds of its own clock.
"""

from __future__ import annotations

import attrs

NS_PER_MS = 1_000_000
MILLION = 1_000_000
BEGIN_MS = 1_000_000  # what an undisturbed clock shows when a world begins


@attrs.define(eq=False)
class SimulatedClock:
    """`drift_ppm`: microseconds that it gains in a second; `offset_ns`: the sum of its jumps."""

    drift_ppm: int = 0
    offset_ns: int = BEGIN_MS * NS_PER_MS

    def ms(self, now: int) -> int:
        """What it shows at the true time `now` (nanoseconds)."""
        return (now + now * self.drift_ppm // MILLION + self.offset_ns) // NS_PER_MS

    def when(self, shown_ms: int) -> int:
        """A true time at which it shows `shown_ms`, or a little more; it may be in the past."""
        elapsed = shown_ms * NS_PER_MS - self.offset_ns
        return -(-elapsed * MILLION // (MILLION + self.drift_ppm)) if self.drift_ppm else elapsed
