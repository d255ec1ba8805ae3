"""`python -m benchmarks`: our client and broker beside confluent-kafka and librdkafka's mock cluster, and the
simulator.

Rule: what is said on stdout is the result alone; nothing here passes or fails by the clock.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.console import Console

from benchmarks.loads import Load, Scale
from benchmarks.pages import Report, conditions, grids
from benchmarks.results import as_json, import_trio, load_results, standing_results
from benchmarks.rounds import Tell, measure
from benchmarks.simulated import SimulatorScale
from benchmarks.simulator_pages import simulator_conditions, simulator_grids
from benchmarks.simulator_rounds import SimulatorReport, measured_simulator, simulator_as_json
from benchmarks.systems import System
from benchmarks.tables import Grid, markdown, show, write_section

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
FULL, QUICK = Scale(), Scale(records=100_000, transactions=200)
FULL_SIMULATOR, QUICK_SIMULATOR = SimulatorScale(), SimulatorScale(calm_worlds=1, seeds=10)
FULL_ROUNDS, QUICK_ROUNDS = 5, 2
SIMULATOR_ROUNDS = 3
CHOICES = {"produce": [Load.PRODUCE], "fetch": [Load.FETCH, Load.FETCH_VALUES], "commits": [Load.COMMITS]}

app = App(name="benchmarks", help_format="plaintext")


@app.default
def run(
    *,
    quick: Annotated[bool, Parameter(negative="")] = False,
    rounds: int | None = None,
    only: Literal["produce", "fetch", "commits", "simulator"] | None = None,
    records: int | None = None,
    transactions: int | None = None,
    as_json_line: Annotated[bool, Parameter("--json", negative="")] = False,
    write: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Measure produce, fetch and commits, ours and confluent-kafka's in turn, and show the ratios; then the
    simulator, on one core.

    Parameters
    ----------
    quick
        A tenth of the records, a sixth of the worlds, fewer rounds: a look, not a figure to quote.
    rounds
        How often everything is measured.
    only
        One kind of load, or the simulator.
    records
        How many records are produced and fetched.
    transactions
        How many transactions are committed.
    as_json_line
        Everything as one JSON object, too: the last line of the output.
    write
        Put the tables into docs/performance.md.
    """
    usual = QUICK if quick else FULL
    scale = Scale(records=records or usual.records, transactions=transactions or usual.transactions)
    found: dict[str, Any] = {}
    if only != "simulator":
        loads = list(Load) if only is None else CHOICES[only]
        report = measured_report(loads, scale, rounds=rounds or (QUICK_ROUNDS if quick else FULL_ROUNDS))
        _hand_out(grids(report), conditions(report), section="measured" if write else None)
        found |= as_json(report.loads, report.standing, report.import_trio)
    if only in (None, "simulator"):
        simulator = measured_simulator_report(quick=quick, rounds=rounds)
        tables, where = simulator_grids(simulator), simulator_conditions(simulator)
        _hand_out(tables, where, section="simulated" if write else None)
        found["simulator"] = simulator_as_json(simulator)
    if as_json_line:
        print(json.dumps(found))


def _hand_out(tables: list[Grid], where: str, *, section: str | None) -> None:
    """Shows what was measured and, when that was asked for, puts it into its section of the page."""
    show(tables, where, Console(highlight=False))
    if section is not None:
        write_section(PAGE, section, markdown(tables, where))


def measured_report(loads: list[Load], scale: Scale, *, rounds: int) -> Report:
    """Measures the loads, and says on a terminal what it is at."""
    systems = [system for system in System if system.is_installed]
    with _measuring() as (data, tell):
        results = measure(systems, loads, scale, rounds=rounds, data=data, tell=tell)
    return Report(
        loads=load_results(results),
        standing=standing_results(results),
        import_trio=import_trio(results),
        scale=scale,
        rounds=rounds,
    )


def measured_simulator_report(*, quick: bool, rounds: int | None) -> SimulatorReport:
    """Measures the simulator, and says on a terminal what it is at."""
    scale = QUICK_SIMULATOR if quick else FULL_SIMULATOR
    rounds = rounds or (QUICK_ROUNDS if quick else SIMULATOR_ROUNDS)
    with _measuring() as (data, tell):
        return measured_simulator(scale, rounds=rounds, data=data, tell=tell)


@contextmanager
def _measuring() -> Generator[tuple[Path, Tell]]:
    """A directory that goes again, and a line on the terminal."""
    with (
        TemporaryDirectory(prefix="fencepost-bench-") as data,
        Console(stderr=True).status("starting") as status,
    ):
        yield Path(data), status.update


if __name__ == "__main__":
    sys.exit(app())
