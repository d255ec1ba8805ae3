"""One run of the simulator in a process of its own:
`python -m benchmarks.one_simulation SUBJECT CALM_WORLDS SEEDS speed|shares`.

Rule: prints one JSON line: how much was done in how many seconds, or how many samples fell into each part.
"""

from __future__ import annotations

import json
import sys

import attrs

from benchmarks.shares import Shares
from benchmarks.simulated import SimulatorScale, Subject, prepared

SPEED, SHARES = "speed", "shares"
RUNS_FOR_SHARES = 2  # so that a share is out of many hundred samples


def main(subject: str, calm_worlds: str, seeds: str, wanted: str) -> None:
    """Runs it and says how it went. Speed is measured without the profiler."""
    scale = SimulatorScale(calm_worlds=int(calm_worlds), seeds=int(seeds))
    run = prepared(Subject(subject), scale)
    if wanted == SPEED:
        print(json.dumps(attrs.asdict(run())))
        return
    with Shares() as shares:
        for _ in range(RUNS_FOR_SHARES):
            run()
    print(json.dumps({part.value: count for part, count in shares.samples.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
