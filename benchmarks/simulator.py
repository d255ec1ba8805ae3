"""The speed of the simulator: worlds without faults, fuzzed worlds, scenarios and an explored world.

Every run is a process of its own, `python -m benchmarks.simulator SUBJECT CALM_WORLDS SEEDS speed|shares`. It
prints one JSON line: counts and CPU seconds, or the samples of the profiler by part.

Rule: all judges are on, and a run with a finding is not a sample. Seconds are CPU seconds of one core, so
other work on the machine affects them little.
"""

from __future__ import annotations

import gc
import json
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.brokers import environment
from benchmarks.profiler import Part, Shares, shares
from benchmarks.report import Grid, Spread, goal, spread
from fencepost.bundled import bundled_scenarios
from fencepost.cli.fuzz import WorldOptions
from fencepost.cli.fuzz_workers import PausedCollector, try_seeds
from fencepost.cli.scenario_files import read
from fencepost.simulator.explore import ExploreConfig, explore
from fencepost.simulator.fuzz.plan import Planner, draw
from fencepost.simulator.scenarios.model import LONG_MS, Case, FuzzPlan, TxnWriterPlan, cases
from fencepost.simulator.scenarios.runner import run_case
from fencepost.simulator.world.choices import Choices

TXN_WRITERS: Final = 16
TRANSACTIONS_PER_TXN_WRITER: Final = 50
EXPLORED: Final = ExploreConfig(producers=1, transactions=2, retries=1, transaction_version=2)


class Subject(Enum):
    """A kind of run. The value is its name on the command line and in the table."""

    CALM = "worlds without faults"
    FUZZ = "fuzz"
    SCENARIOS = "scenarios"
    EXPLORE = "explore"


@attrs.frozen(kw_only=True)
class SimulatorScale:
    """The size of a run. Scenarios and the explored world have a fixed size."""

    calm_worlds: int = 3
    seeds: int = 60


@attrs.frozen(kw_only=True)
class Simulated:
    """The CPU seconds of a run and what it did in them."""

    seconds: float
    counts: Mapping[str, int]


Run = Callable[[], Simulated]


def prepared(subject: Subject, scale: SimulatorScale) -> Run:
    """Prepares a run; work that a process does only once is done before it."""
    match subject:
        case Subject.CALM:
            return _worlds(scale.calm_worlds, calm_plan)
        case Subject.FUZZ:
            default = WorldOptions(transaction_version=2, broken=())
            return _worlds(scale.seeds, default.kind.planner)
        case Subject.SCENARIOS:
            return _scenarios([case for path in bundled_scenarios().values() for case in cases(read(path))])
        case Subject.EXPLORE:
            return _explored(EXPLORED)


def calm_plan(_choices: Choices) -> FuzzPlan:
    """One node without faults: producers write transactions of one record each; one consumer reads them as
    they come, one at the end.
    """
    return attrs.evolve(
        draw(Choices()),  # the calmest
        txn_writers=tuple(
            TxnWriterPlan(
                name=f"payer-{number + 1}",
                transactional_id=f"payer-{number + 1}",
                transactions=TRANSACTIONS_PER_TXN_WRITER,
                transaction_timeout_ms=LONG_MS,
                records_max=1,
            )
            for number in range(TXN_WRITERS)
        ),
        idempotent_writes=0,
        processors=(),
        kinds=(),
        strikes=0,
        slow_participants=0,
    )


def _worlds(seeds: int, planner: Planner) -> Run:
    """Runs worlds as each process of `fencepost fuzz` does."""

    def run() -> Simulated:
        seconds, transactions, events = 0.0, 0, 0
        for tried in try_seeds(range(1, 1 + seeds), planner, cores=1):
            assert tried is not None, "a single process yields only results"
            assert tried.finding is None, f"{tried.finding}"
            seconds += tried.seconds
            transactions += tried.transactions
            events += tried.events
        counts = {"transactions": transactions, "worlds": seeds, "events": events}
        return Simulated(seconds=seconds, counts=counts)

    for _ in try_seeds(range(1), draw, cores=1):
        pass
    return run


def _scenarios(played: list[Case]) -> Run:
    def run() -> Simulated:
        began = time.process_time()
        for case in played:
            report = run_case(case)
            assert report.passed, f"{report.name}: {report.problems}"
            gc.collect()
        return Simulated(seconds=time.process_time() - began, counts={"scenarios": len(played)})

    run_case(played[0])
    return _calmly(run)


def _explored(config: ExploreConfig) -> Run:
    def run() -> Simulated:
        began = time.process_time()
        explored = explore(config)
        seconds = time.process_time() - began
        assert explored.complete, "the search was cut short"
        assert explored.violation is None, f"{explored.violation}: {explored.because}"
        return Simulated(seconds=seconds, counts={"states": explored.states})

    explore(attrs.evolve(config, transactions=1))
    return _calmly(run)


def _calmly(run: Run) -> Run:
    def calm() -> Simulated:
        with PausedCollector():
            return run()

    return calm


RUN_SECONDS_MAX: Final = 300.0
UNITS: Final[Mapping[Subject, Sequence[str]]] = {
    Subject.CALM: ("transactions", "events"),
    Subject.FUZZ: ("transactions", "worlds", "events"),
    Subject.SCENARIOS: ("scenarios",),
    Subject.EXPLORE: ("states",),
}
"""The reported counts of each subject."""
GOALS: Final = {
    (Subject.CALM, "transactions"): 2_000,
    (Subject.SCENARIOS, "scenarios"): 100,
    (Subject.EXPLORE, "states"): 10_000,
}
"""The lowest rates, per second of one core."""
SHARED: Final = (Subject.CALM, Subject.FUZZ)

Tell = Callable[[str], None]


@attrs.frozen(kw_only=True)
class Figure:
    """A rate per second of one core, over all rounds."""

    subject: Subject
    unit: str
    rate: Spread

    @property
    def goal(self) -> int | None:
        return GOALS.get((self.subject, self.unit))

    @property
    def is_reached(self) -> bool | None:
        """Whether the median reaches the goal; None without a goal."""
        return None if self.goal is None else self.rate.middle >= self.goal


@attrs.frozen(kw_only=True)
class SimulatorReport:
    """The results of a measurement; `samples` are those of the profiler, by part."""

    figures: Sequence[Figure]
    samples: Mapping[Subject, Mapping[Part, int]]
    scale: SimulatorScale
    rounds: int


def measured_simulator(scale: SimulatorScale, *, rounds: int, data: Path, tell: Tell) -> SimulatorReport:
    """Runs every round. `tell` is called with each step; processes keep bytecode under `data`."""
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
    """One figure for each reported count of each subject."""
    return [
        Figure(
            subject=subject, unit=unit, rate=Spread.of([each.counts[unit] / each.seconds for each in rounds])
        )
        for subject, rounds in runs.items()
        for unit in UNITS[subject]
    ]


def _run(subject: Subject, scale: SimulatorScale, wanted: str, data: Path) -> dict[str, Any]:
    """Starts a run in its own process and returns its output."""
    sizes = (str(scale.calm_worlds), str(scale.seeds))
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulator", subject.value, *sizes, wanted],
        stdout=subprocess.PIPE,
        env=environment(data),
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=True,
    )
    return json.loads(ended.stdout)


def simulator_as_json(report: SimulatorReport) -> dict[str, Any]:
    """The results for programs."""
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


FEW: Final = 100  # smaller figures are printed with a decimal


def simulator_grids(report: SimulatorReport) -> list[Grid]:
    """The tables of a report."""
    return [
        Grid(
            "Simulator, in a second of one core",
            columns=("simulator", "per CPU second", "goal"),
            rows=[_row(figure) for figure in report.figures],
        ),
        Grid(
            "Where its time goes",
            columns=("part", *(subject.value for subject in report.samples)),
            rows=_share_rows(report),
        ),
    ]


def _row(figure: Figure) -> list[str]:
    wanted = None if figure.goal is None else f"≥ {figure.goal:,}"
    name = figure.unit if figure.unit == figure.subject.value else f"{figure.subject.value}: {figure.unit}"
    pattern = "{:,.0f}" if figure.rate.least >= FEW else "{:.1f}"
    return [name, spread(figure.rate, pattern), goal(wanted, is_reached=figure.is_reached)]


def _share_rows(report: SimulatorReport) -> list[list[str]]:
    columns = [shares(samples) for samples in report.samples.values()]
    rows = [[part.value, *(f"{column.get(part, 0):.0%}" for column in columns)] for part in Part]
    return [*rows, ["samples", *(f"{sum(samples.values()):,}" for samples in report.samples.values())]]


def simulator_conditions(report: SimulatorReport) -> str:
    """The conditions of the measurement, in one sentence."""
    scale = report.scale
    return (
        f"{report.rounds} rounds, medians (minimum to maximum) · CPU seconds of one process · "
        f"all judges on · {scale.calm_worlds} worlds of "
        f"{TXN_WRITERS * TRANSACTIONS_PER_TXN_WRITER} transactions without faults, "
        f"{scale.seeds} fuzz seeds · "
        f"{sys.platform}, Python {platform.python_version()}"
    )


SPEED, SHARES = "speed", "shares"
RUNS_FOR_SHARES = 2  # for several hundred samples


def main(subject: str, calm_worlds: str, seeds: str, wanted: str) -> None:
    """Runs a subject and prints the result. Speed is measured without the profiler."""
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
