"""What is measured of the simulator: calm worlds, fuzzed worlds, scenarios and an explored world.

Rule: every judge is on, and a run in which one of them finds something is no sample.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import attrs

from fencepost.cli.fuzz import WorldOptions
from fencepost.cli.fuzz_workers import PausedCollector, try_seeds
from fencepost.cli.run import read, shipped
from fencepost.simulator.explore import ExploreConfig, explore
from fencepost.simulator.fuzz.plan import LONG_MS, FuzzPlan, TxnWriterPlan, draw
from fencepost.simulator.fuzz.worlds import Planner
from fencepost.simulator.scenarios.model import Case, cases
from fencepost.simulator.scenarios.runner import run_case
from fencepost.simulator.world.choices import Choices

TXN_WRITERS: Final = 16
TRANSACTIONS_PER_TXN_WRITER: Final = 50
EXPLORED: Final = ExploreConfig(producers=1, transactions=2, retries=1, transaction_version=2)


class Subject(Enum):
    """One thing that the simulator does. The value is its name on the command line and in the table."""

    CALM = "calm worlds"
    FUZZ = "fuzz"
    SCENARIOS = "scenarios"
    EXPLORE = "explore"


@attrs.frozen(kw_only=True)
class SimulatorScale:
    """How much of each one run does. Scenarios and the explored world are what they are."""

    calm_worlds: int = 3
    seeds: int = 60


@attrs.frozen(kw_only=True)
class Simulated:
    """What one run did: seconds of a core, and how much of what."""

    seconds: float
    counts: Mapping[str, int]


Run = Callable[[], Simulated]


def prepared(subject: Subject, scale: SimulatorScale) -> Run:
    """The run of a subject; whatever is only done once in a process is done before it."""
    match subject:
        case Subject.CALM:
            return _worlds(scale.calm_worlds, calm_plan)
        case Subject.FUZZ:
            default = WorldOptions(transaction_version=2, broken=())
            return _worlds(scale.seeds, default.planner)
        case Subject.SCENARIOS:
            return _scenarios([case for path in shipped() for case in cases(read(path))])
        case Subject.EXPLORE:
            return _explored(EXPLORED)


def calm_plan(_choices: Choices) -> FuzzPlan:
    """One node without faults; processes that write transactions of one record, and two that read them: one
    as they come, one at the end.
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
    """As `fencepost fuzz` does it in each of its processes."""

    def run() -> Simulated:
        seconds, transactions, events = 0.0, 0, 0
        for timed in try_seeds(range(1, 1 + seeds), planner, cores=1):
            assert timed is not None, "nothing is waited for in one process"
            tried = timed.tried
            assert tried.finding is None, f"{tried.finding}"
            seconds += timed.seconds
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
