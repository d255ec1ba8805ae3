"""What can go wrong at random, under which name, and how its end is told.

Rule: the names are those of plans, of scenarios and of the coverage table.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import attrs


class FaultKind(Enum):
    """One kind of fault."""

    DROP = "drop"  # one connection breaks, with all that is on its way
    LOST_ANSWER = "lost answer"  # the same, as soon as a certain answer is on its way
    LATE_REQUEST = "late request"  # its caller gives it up, and then it arrives
    HOLD = "hold"  # what one connection carries one way stops, and goes on later
    PARTITION = "partition"  # two lanes, one way or both ways
    ISOLATION = "isolation"  # a node from everybody
    PAUSE = "pause"  # a node or a process stands still and does not know it
    CRASH = "crash"  # a node dies between two things that it does, and starts again
    POWER_LOSS = "power loss"  # the same, and what it had not synced may be gone or torn
    FAILOVER = "failover"  # a node dies, and others lead what it led
    MOVE = "move"  # a partition gets another leader while its old one lives
    CLOCK_JUMP = "clock jump"
    SLOW = "slow"  # whatever a lane sends, or a disk syncs, is late for a while
    DISK = "disk failure"  # appends or syncs of one partition fail for a while
    KILL = "kill"  # a client process dies, and another one takes its place


@attrs.frozen(kw_only=True)
class Struck:
    """One fault of a run, at a time in nanoseconds."""

    at: int
    kind: FaultKind
    whom: str


# How the end of a fault is told, in the words of scenarios; what is over at once has no end.
ENDS: Final = {
    FaultKind.LATE_REQUEST: "release",
    FaultKind.HOLD: "release",
    FaultKind.PARTITION: "healed",
    FaultKind.ISOLATION: "healed",
    FaultKind.PAUSE: "resume",
    FaultKind.CRASH: "restart",
    FaultKind.POWER_LOSS: "restart",
    FaultKind.FAILOVER: "restart",
    FaultKind.SLOW: "quick again",
    FaultKind.DISK: "mended",
    FaultKind.KILL: "replaced",
}
