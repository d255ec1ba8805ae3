"""A sampling profiler that attributes CPU time to the parts of the simulator.

Rule: a sample belongs to the innermost frame in a known part, so the codec and libraries count for their
caller.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from functools import cache
from types import FrameType
from typing import Final

INTERVAL_SECONDS: Final = 0.001  # of CPU; the kernel rounds it up to its tick, often 4 ms


class Part(Enum):
    """A part of the simulator. The value is its name in the table."""

    BROKER = "broker cores"
    CLIENT = "client cores"
    JOURNAL = "journal"
    JUDGES = "judges"
    WORLD = "network and world"
    OTHER = "other"


_PARTS: Final[Mapping[str, Part]] = {
    "fencepost.broker": Part.BROKER,
    "fencepost.client": Part.CLIENT,
    "fencepost.journal": Part.JOURNAL,
    "fencepost.simulator": Part.WORLD,
    "fencepost.simulator.judges": Part.JUDGES,
}


class Shares:
    """Samples the process during a `with` block; `samples` counts the samples by part.

    Only one at a time, in the main thread: a process has one such timer (ITIMER_PROF).
    """

    def __init__(self) -> None:
        self.samples: Counter[Part] = Counter()

    def __enter__(self) -> Shares:
        self._before = signal.signal(signal.SIGPROF, self._sampled)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def _sampled(self, _signal: int, frame: FrameType | None) -> None:
        self.samples[part_of(frame)] += 1


def part_of(frame: FrameType | None) -> Part:
    """The part of the innermost frame that belongs to one."""
    while frame is not None:
        part = _part_of_module(frame.f_globals.get("__name__", ""))
        if part is not None:
            return part
        frame = frame.f_back
    return Part.OTHER


@cache
def _part_of_module(name: str) -> Part | None:
    """Looks up the longest known package: judges are a part inside the simulator."""
    while name:
        if name in _PARTS:
            return _PARTS[name]
        name = name.rpartition(".")[0]
    return None


def shares(samples: Mapping[Part, int]) -> dict[Part, float]:
    """The share of each part in all samples; empty without samples."""
    whole = sum(samples.values())
    return {part: samples.get(part, 0) / whole for part in Part} if whole else {}
