"""What is measured of the simulator runs clean and is counted right, and its time goes to whom it belongs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from inspect import currentframe
from itertools import repeat
from pathlib import Path
from types import FunctionType

import attrs
import pytest

from benchmarks import simulator
from benchmarks.profiler import Part, Shares, part_of, shares
from benchmarks.report import Spread, markdown
from benchmarks.simulator import (
    UNITS,
    Figure,
    Simulated,
    SimulatorReport,
    SimulatorScale,
    Subject,
    calm_plan,
    figures,
    prepared,
    simulator_as_json,
    simulator_conditions,
    simulator_grids,
)
from fencepost.bundled import bundled_scenarios
from fencepost.cli.scenario_files import read
from fencepost.simulator.fuzz.worlds import try_seed
from fencepost.simulator.scenarios.model import cases

ROOT = Path(__file__).resolve().parent.parent.parent
TINY = SimulatorScale(calm_worlds=1, seeds=2)
SPINS_MAX = 200_000_000  # some seconds: far more than the samples need

# --- shares -------------------------------------------------------------------------------------------------


def _planted(module: str, code: Callable[..., None]) -> Callable[..., None]:
    """The same function, as if it stood in that module."""
    assert isinstance(code, FunctionType)
    return FunctionType(code.__code__, {**code.__globals__, "__name__": module})


def _spin(profiler: Shares, samples: int) -> None:
    """Burns the processor until there are so many samples more."""
    enough = profiler.samples.total() + samples
    for _ in repeat(None, SPINS_MAX):
        if profiler.samples.total() >= enough:
            return


def test_who_is_busy_has_the_samples() -> None:
    with Shares() as profiler:
        _planted("fencepost.broker.planted", _spin)(profiler, 30)
        _planted("fencepost.simulator.judges.planted", _spin)(profiler, 10)
        _spin(profiler, 5)
    found = shares(profiler.samples)
    total = profiler.samples.total()
    assert total >= 45
    # One sample may fall between two of them.
    assert found[Part.BROKER] == pytest.approx(30 / total, abs=2 / total)
    assert found[Part.JUDGES] == pytest.approx(10 / total, abs=2 / total)
    assert found[Part.OTHER] == pytest.approx(5 / total, abs=2 / total)
    assert sum(found.values()) == pytest.approx(1)


def test_nothing_is_sampled_afterwards() -> None:
    with Shares() as profiler:
        _spin(profiler, 1)
    before = profiler.samples.total()
    with Shares() as another:
        _spin(another, 3)
    assert profiler.samples.total() == before


def _seen_by(found: list[Part], *, modules: tuple[str, ...]) -> None:
    """Calls itself through every module, outermost first; the innermost looks at who it is."""
    if modules:
        _planted(modules[0], _seen_by)(found, modules=modules[1:])
    else:
        found.append(part_of(currentframe()))


@pytest.mark.parametrize(
    ("modules", "part"),
    [
        (("fencepost.simulator.world.world", "fencepost.broker.node"), Part.BROKER),
        (("fencepost.broker.node", "fencepost.protocol.batches", "msgpack"), Part.BROKER),
        (("fencepost.simulator.judges.white_box", "fencepost.protocol.batches"), Part.JUDGES),
        (("fencepost.simulator.judges",), Part.JUDGES),
        (("fencepost.simulator.judgings",), Part.WORLD),
        (("fencepost.simulator.world.world", ""), Part.WORLD),  # what attrs generates has no module
        (("fencepost.journal.journal", "fencepost.client.producer"), Part.CLIENT),
        (("fencepost.broker.host", "fencepost.journal.journal"), Part.JOURNAL),
        (("fencepost.cli.fuzz_workers", "gc"), Part.OTHER),
    ],
)
def test_the_innermost_known_part_counts(modules: tuple[str, ...], part: Part) -> None:
    found: list[Part] = []
    _seen_by(found, modules=modules)
    assert found == [part]


def test_without_samples_there_are_no_shares() -> None:
    assert shares({}) == {}


# --- what is run --------------------------------------------------------------------------------------------


def test_a_calm_world_runs_clean_and_all_is_committed_or_aborted() -> None:
    trial = try_seed(1, calm_plan)
    assert trial.violation is None
    assert trial.transactions == 800
    assert not [mark for mark in trial.marks if mark.startswith("fault: ")]


@pytest.mark.parametrize(
    ("subject", "least"),
    [
        (Subject.CALM, {"transactions": 800, "worlds": 1, "events": 1_000}),
        (Subject.FUZZ, {"transactions": 2, "worlds": 2, "events": 100}),
        (Subject.EXPLORE, {"states": 1_000}),
    ],
)
def test_every_subject_does_its_work(subject: Subject, least: dict[str, int]) -> None:
    done = prepared(subject, TINY)()
    assert done.counts.keys() == least.keys()
    assert all(done.counts[unit] >= count for unit, count in least.items())


def test_the_cases_of_all_bundled_scenarios_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, which say for all how they are chosen; tests/simulator/test_scenarios.py plays all of them."""
    bundled = bundled_scenarios()
    assert len(bundled) >= 17
    few = {name: bundled[name] for name in sorted(bundled)[:2]}
    monkeypatch.setattr(simulator, "bundled_scenarios", lambda: few)
    played = [case for path in few.values() for case in cases(read(path))]
    assert prepared(Subject.SCENARIOS, TINY)().counts == {"scenarios": len(played)}


# --- what is told -------------------------------------------------------------------------------------------


def _runs(subject: Subject, *seconds: float) -> dict[Subject, list[Simulated]]:
    counts = dict.fromkeys(UNITS[subject], 1_000)
    return {subject: [Simulated(seconds=each, counts=counts) for each in seconds]}


@pytest.mark.parametrize(
    ("subject", "unit", "seconds", "reached"),
    [
        (Subject.CALM, "transactions", 0.5, True),
        (Subject.CALM, "transactions", 0.51, False),
        (Subject.CALM, "events", 5, None),
        (Subject.FUZZ, "transactions", 5, None),
        (Subject.SCENARIOS, "scenarios", 10, True),
        (Subject.SCENARIOS, "scenarios", 10.1, False),
        (Subject.EXPLORE, "states", 0.1, True),
        (Subject.EXPLORE, "states", 0.11, False),
    ],
)
def test_a_goal_is_reached_by_the_median(
    subject: Subject, unit: str, seconds: float, reached: bool | None
) -> None:
    found = {figure.unit: figure for figure in figures(_runs(subject, seconds, 100, 0.001))}
    assert found[unit].is_reached is reached


def _report() -> SimulatorReport:
    calm = Figure(subject=Subject.CALM, unit="transactions", rate=Spread(1_500, 1_400, 2_600))
    fuzz = Figure(subject=Subject.FUZZ, unit="worlds", rate=Spread(15.34, 15.34, 15.34))
    return SimulatorReport(
        figures=[calm, fuzz],
        samples={Subject.CALM: Counter({Part.BROKER: 300, Part.JUDGES: 100})},
        scale=TINY,
        rounds=3,
    )


def test_the_tables_have_goals_and_shares() -> None:
    report = _report()
    page = markdown(simulator_grids(report), simulator_conditions(report))
    assert "| worlds without faults: transactions | 1,500 (1,400 to 2,600) | ≥ 2,000 missed |" in page
    assert "| fuzz: worlds | 15.3 | - |" in page
    assert "| broker cores | 75% |" in page
    assert "| judges | 25% |" in page
    assert "| journal | 0% |" in page
    assert "| samples | 400 |" in page


def test_the_json_has_the_same() -> None:
    found = simulator_as_json(_report())
    assert found["figures"][0] == {
        "subject": "worlds without faults",
        "unit": "transactions",
        "rate": attrs.asdict(Spread(1_500, 1_400, 2_600)),
        "goal": 2_000,
        "is_reached": False,
    }
    assert found["shares"]["worlds without faults"]["broker cores"] == pytest.approx(0.75)


@pytest.mark.parametrize("wanted", ["speed", "shares"])
def test_a_run_in_its_own_process_says_one_line(wanted: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulator", "fuzz", "1", "2", wanted],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    if wanted == "speed":
        assert found["counts"]["worlds"] == 2
        assert found["seconds"] > 0
    else:
        assert found.keys() <= {part.value for part in Part}
        assert sum(found.values()) > 0
