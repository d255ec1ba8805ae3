"""The simulator's rounds: each subject in turn, every run in a fresh process; then the shares, by
themselves.

Rule: seconds are those of one core, so that what the machine does meanwhile counts as little as it can.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.one_simulation import SHARES, SPEED
from benchmarks.results import Spread
from benchmarks.shares import Part, shares
from benchmarks.simulated import Simulated, SimulatorScale, Subject
from benchmarks.systems import environment

RUN_SECONDS_MAX: Final = 300.0
UNITS: Final[Mapping[Subject, Sequence[str]]] = {
    Subject.CALM: ("transactions", "events"),
    Subject.FUZZ: ("transactions", "worlds", "events"),
    Subject.SCENARIOS: ("scenarios",),
    Subject.EXPLORE: ("states",),
}
"""What is told of each, of all that is counted."""
GOALS: Final = {
    (Subject.CALM, "transactions"): 2_000,
    (Subject.SCENARIOS, "scenarios"): 100,
    (Subject.EXPLORE, "states"): 10_000,
}
"""The least that one core should do in a second."""
SHARED: Final = (Subject.CALM, Subject.FUZZ)

Tell = Callable[[str], None]


@attrs.frozen(kw_only=True)
class Figure:
    """So much of one thing in a second of one core, over all rounds."""

    subject: Subject
    unit: str
    rate: Spread

    @property
    def goal(self) -> int | None:
        return GOALS.get((self.subject, self.unit))

    @property
    def is_reached(self) -> bool | None:
        """Whether the median is as high as the goal; None without one."""
        return None if self.goal is None else self.rate.middle >= self.goal


@attrs.frozen(kw_only=True)
class SimulatorReport:
    """Everything that is shown about the simulator; `samples` are those of the profiler, by part."""

    figures: Sequence[Figure]
    samples: Mapping[Subject, Mapping[Part, int]]
    scale: SimulatorScale
    rounds: int


def measured_simulator(scale: SimulatorScale, *, rounds: int, data: Path, tell: Tell) -> SimulatorReport:
    """Runs every round. `tell` hears what is being done; bytecode lies under `data`."""
    runs: dict[Subject, list[Simulated]] = {subject: [] for subject in Subject}
    for number in range(rounds):
        for subject in Subject:
            tell(f"round {number + 1} of {rounds}: {subject.value}")
            runs[subject].append(Simulated(**_run(subject, scale, SPEED, data)))
    samples: dict[Subject, Counter[Part]] = {}
    for subject in SHARED:
        tell(f"where the time goes: {subject.value}")
        counted = _run(subject, scale, SHARES, data)
        samples[subject] = Counter({Part(name): count for name, count in counted.items()})
    return SimulatorReport(figures=figures(runs), samples=samples, scale=scale, rounds=rounds)


def figures(runs: Mapping[Subject, Sequence[Simulated]]) -> list[Figure]:
    """One figure for every unit of every subject that ran."""
    return [
        Figure(
            subject=subject, unit=unit, rate=Spread.of([each.counts[unit] / each.seconds for each in rounds])
        )
        for subject, rounds in runs.items()
        for unit in UNITS[subject]
    ]


def _run(subject: Subject, scale: SimulatorScale, wanted: str, data: Path) -> dict[str, Any]:
    """What one process printed."""
    sizes = (str(scale.calm_worlds), str(scale.seeds))
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.one_simulation", subject.value, *sizes, wanted],
        stdout=subprocess.PIPE,
        env=environment(data),
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=True,
    )
    return json.loads(ended.stdout)


def simulator_as_json(report: SimulatorReport) -> dict[str, Any]:
    """The same for machines."""
    return {
        "figures": [
            {
                "subject": figure.subject.value,
                "unit": figure.unit,
                "rate": attrs.asdict(figure.rate),
                "goal": figure.goal,
                "is_reached": figure.is_reached,
            }
            for figure in report.figures
        ],
        "shares": {
            subject.value: {part.value: round(share, 4) for part, share in shares(samples).items()}
            for subject, samples in report.samples.items()
        },
    }
