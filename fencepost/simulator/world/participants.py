"""What nodes and client processes have in common: a name, a clock that drifts and can jump, and pauses.

Rule: the world counts true nanoseconds; each participant sees only the milliseconds of its own clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from fencepost.simulator.world.events import Life, LifeChanged

if TYPE_CHECKING:
    from fencepost.simulator.world.network import Channel, Message
    from fencepost.simulator.world.world import World

NS_PER_MS = 1_000_000
MILLION = 1_000_000
BEGIN_MS = 3_600_000  # what an undisturbed clock shows when a world begins: no periodic scan is due soon


@attrs.define(eq=False)
class SimulatedClock:
    """`drift_ppm`: microseconds that it gains in a second; `offset_ns`: the sum of its jumps."""

    drift_ppm: int = 0
    offset_ns: int = BEGIN_MS * NS_PER_MS

    def ms(self, now: int) -> int:
        """What it shows at the true time `now` (nanoseconds)."""
        drift = now * self.drift_ppm // MILLION if self.drift_ppm else 0
        return (now + drift + self.offset_ns) // NS_PER_MS

    def when(self, shown_ms: int) -> int:
        """A true time at which it shows `shown_ms`, or a little more; it may be in the past."""
        # Rounded up: a nanosecond earlier the clock would not show it, and a timer would find nothing due.
        elapsed = shown_ms * NS_PER_MS - self.offset_ns
        return -(-elapsed * MILLION // (MILLION + self.drift_ppm)) if self.drift_ppm else elapsed


@attrs.define(eq=False)
class Participant:
    """A node or a client process. `backlog` is what arrived while it was paused."""

    world: World
    participant: str  # its name
    clock: SimulatedClock = attrs.field(factory=SimulatedClock, init=False)
    is_paused: bool = attrs.field(default=False, init=False)
    backlog: list[tuple[Channel, Message]] = attrs.field(factory=list, init=False)

    def pause(self) -> None:
        """It does nothing until it is resumed, and does not notice: a garbage collection, a stopped
        machine.
        """
        self.is_paused = True
        self.world.events.publish(LifeChanged(self.participant, Life.PAUSES))

    def resume(self) -> None:
        """It takes what arrived meanwhile, and continues."""
        was_paused, self.is_paused = self.is_paused, False
        self.catch_up()
        if was_paused:
            self.world.events.publish(LifeChanged(self.participant, Life.RESUMES))

    def catch_up(self) -> None:
        """Take what arrived during a pause."""
        self.world.network.resume(self)
