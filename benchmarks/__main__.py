"""`python -m benchmarks`: compares client and broker with confluent-kafka and librdkafka's mock cluster,
confluent-kafka on several brokers, and the simulator; on request, growth and the PySpark source. `python -m
benchmarks partitions` and `restarts` measure what takes longer.

Rule: stdout has only the results; nothing passes or fails by speed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import attrs
from cyclopts import App, Parameter
from rich.console import Console

from benchmarks import partitions, restarts
from benchmarks.brokers import System
from benchmarks.brokers_report import (
    BROKER_LOADS,
    OURS,
    PEERS,
    brokers_as_json,
    brokers_conditions,
    brokers_grid,
    brokers_results,
)
from benchmarks.growth import SECONDS_MAX, growth_as_json, growth_conditions, growth_grids, measured_growth
from benchmarks.load_rounds import Round, Tell, measure
from benchmarks.loads import Load, Scale
from benchmarks.report import (
    Grid,
    Report,
    as_json,
    conditions,
    figures_as_json,
    grids,
    import_trio,
    load_results,
    markdown,
    show,
    standing_results,
    write_section,
)
from benchmarks.simulator import (
    SimulatorReport,
    SimulatorScale,
    measured_simulator,
    simulator_as_json,
    simulator_conditions,
    simulator_grids,
)
from benchmarks.spark import (
    SparkReport,
    SparkScale,
    measured_spark,
    spark_as_json,
    spark_conditions,
    spark_grids,
)
from benchmarks.spark_growth import (
    measured_spark_growth,
    spark_growth_as_json,
    spark_growth_conditions,
    spark_growth_grids,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
FULL, QUICK = Scale(), Scale(records=100_000, transactions=200)
FULL_SIMULATOR, QUICK_SIMULATOR = SimulatorScale(), SimulatorScale(calm_worlds=1, seeds=10)
FULL_SPARK, QUICK_SPARK = SparkScale(), SparkScale(rows=180_000, tiny_partitions=100)
FULL_ROUNDS, QUICK_ROUNDS = 5, 2
SIMULATOR_ROUNDS = 3
CHOICES = {
    "produce": [Load.PRODUCE, Load.SEND_MANY],
    "fetch": [Load.FETCH, Load.FETCH_VALUES],
    "commits": [Load.COMMITS, Load.COMMITS_OF_TEN, Load.COMMITS_OF_TEN_SYNCED],
    "latency": [Load.LATENCY],
}
CLIENT_LOADS = [load for loads in CHOICES.values() for load in loads]

app = App(name="benchmarks", help_format="plaintext")


@app.default
def run(
    *,
    quick: Annotated[bool, Parameter(negative="")] = False,
    rounds: int | None = None,
    only: Literal[
        "produce", "fetch", "commits", "latency", "brokers", "simulator", "growth", "spark", "spark-growth"
    ]
    | None = None,
    records: int | None = None,
    transactions: int | None = None,
    seconds: float = SECONDS_MAX,
    as_json_line: Annotated[bool, Parameter("--json", negative="")] = False,
    write: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Measure produce, fetch and commits of Fencepost and confluent-kafka in turn and show the ratios; do the
    same for confluent-kafka on Fencepost's broker and on others, with Apache Kafka if KAFKA_JARS names the
    directory of its jars; then measure the simulator on one core.

    Parameters
    ----------
    quick
        Fewer records, worlds and rounds, for a first look.
    rounds
        Number of rounds.
    only
        Measure only this. Three are measured only if they are named: growth, which shows what slows a broker
        down; spark, which compares the PySpark source with Parquet and JSON files of the same rows; and
        spark-growth, which shows what slows that source down.
    records
        Number of records to produce and fetch, or of rows that the PySpark source reads.
    transactions
        Number of transactions to commit.
    seconds
        Seconds at most to make what a row of growth is about, and again to measure it: a million
        transactions take minutes to make.
    as_json_line
        Print the results as one JSON object in the last line, too.
    write
        Write the tables into docs/performance.md.
    """
    usual = QUICK if quick else FULL
    scale = Scale(records=records or usual.records, transactions=transactions or usual.transactions)
    rounds_of_loads = rounds or (QUICK_ROUNDS if quick else FULL_ROUNDS)
    found: dict[str, Any] = {}
    if only is None or only in CHOICES:
        report = measured_report(CHOICES.get(only or "", CLIENT_LOADS), scale, rounds=rounds_of_loads)
        _hand_out(grids(report), conditions(report), section="measured" if write else None)
        found["figures"] = figures_as_json(report.loads, report.standing)
        found |= as_json(report.loads, report.standing, report.import_trio)
    if only in (None, "brokers") and OURS.is_installed:
        results = brokers_results(
            measured_rounds([OURS, *PEERS], BROKER_LOADS, scale, rounds=rounds_of_loads)
        )
        where = brokers_conditions(scale, rounds=rounds_of_loads)
        _hand_out([brokers_grid(results)], where, section="brokers" if write else None)
        found["one_client"] = brokers_as_json(results)
    if only in (None, "simulator"):
        simulator = measured_simulator_report(quick=quick, rounds=rounds)
        tables, where = simulator_grids(simulator), simulator_conditions(simulator)
        _hand_out(tables, where, section="simulated" if write else None)
        found["simulator"] = simulator_as_json(simulator)
    if only == "growth":
        grown = measured_growth(quick=quick, seconds_max=seconds)
        where = growth_conditions(grown, seconds_max=seconds)
        _hand_out(growth_grids(grown), where, section="growth" if write else None)
        found["growth"] = growth_as_json(grown)
    if only == "spark":
        spark = measured_spark_report(records, quick=quick, rounds=rounds)
        _hand_out(spark_grids(spark), spark_conditions(spark), section="spark" if write else None)
        found["spark"] = spark_as_json(spark)
    if only == "spark-growth":
        with _measuring() as (data, tell):
            grown_reads = measured_spark_growth(quick=quick, data=data, tell=tell)
        where = spark_growth_conditions(grown_reads)
        _hand_out(spark_growth_grids(grown_reads), where, section="spark-growth" if write else None)
        found["spark_growth"] = spark_growth_as_json(grown_reads)
    if as_json_line:
        print(json.dumps(found))


@app.command(name="partitions")
def run_partitions(*counts: int, connections: int = 5_000) -> None:
    """Measure how long a broker with many partitions takes to create them, to start and to stop, and its
    memory. Print a line of JSON for each number of partitions.

    Parameters
    ----------
    counts
        Numbers of partitions, 1,000, 3,000 and 10,000 if none is given.
    connections
        Number of idle connections.
    """
    _print_each(
        counts or (1_000, 3_000, 10_000), lambda count, data: partitions.measure(count, connections, data)
    )


@app.command(name="restarts")
def run_restarts(*counts: int, ids: int = 100) -> None:
    """Measure how long a start takes after many transactions, and how large the coordinators' logs are by
    then. Print a line of JSON for each number of transactions.

    Parameters
    ----------
    counts
        Numbers of transactions, 10,000, 100,000 and 1,000,000 if none is given.
    ids
        Number of transactional ids.
    """
    _print_each(
        counts or (10_000, 100_000, 1_000_000), lambda count, data: restarts.measure(count, ids, data)
    )


def _print_each(counts: Iterable[int], measured: Callable[[int, Path], dict[str, Any]]) -> None:
    for count in counts:
        with TemporaryDirectory(prefix="fencepost-bench-") as data:
            print(json.dumps(measured(count, Path(data))), flush=True)


def _hand_out(tables: list[Grid], where: str, *, section: str | None) -> None:
    """Prints the tables and, with a section, writes them into the page."""
    show(tables, where)
    if section is not None:
        write_section(PAGE, section, markdown(tables, where))


def measured_report(loads: list[Load], scale: Scale, *, rounds: int) -> Report:
    """Measures the loads of the two clients, each on its own broker."""
    results = measured_rounds([System.OURS, System.CONFLUENT], loads, scale, rounds=rounds)
    return Report(
        loads=load_results(results),
        standing=standing_results(results),
        import_trio=import_trio(results),
        scale=scale,
        rounds=rounds,
    )


def measured_rounds(
    systems: Iterable[System], loads: Sequence[Load], scale: Scale, *, rounds: int
) -> list[Round]:
    """Measures the loads on the systems that are installed; shows the current step on a terminal."""
    installed = [system for system in systems if system.is_installed]
    with _measuring() as (data, tell):
        return measure(installed, loads, scale, rounds=rounds, data=data, tell=tell)


def measured_simulator_report(*, quick: bool, rounds: int | None) -> SimulatorReport:
    """Measures the simulator; shows the current step on a terminal."""
    scale = QUICK_SIMULATOR if quick else FULL_SIMULATOR
    rounds = rounds or (QUICK_ROUNDS if quick else SIMULATOR_ROUNDS)
    with _measuring() as (data, tell):
        return measured_simulator(scale, rounds=rounds, data=data, tell=tell)


def measured_spark_report(rows: int | None, *, quick: bool, rounds: int | None) -> SparkReport:
    """Measures the PySpark source; shows the current step on a terminal."""
    usual = QUICK_SPARK if quick else FULL_SPARK
    scale = attrs.evolve(usual, rows=rows or usual.rows)
    rounds = rounds or (QUICK_ROUNDS if quick else FULL_ROUNDS)
    with _measuring() as (data, tell):
        return measured_spark(scale, rounds=rounds, data=data, tell=tell)


@contextmanager
def _measuring() -> Generator[tuple[Path, Tell]]:
    """A temporary directory and a status line on the terminal."""
    with (
        TemporaryDirectory(prefix="fencepost-bench-") as data,
        Console(stderr=True).status("starting") as status,
    ):
        yield Path(data), status.update


if __name__ == "__main__":
    sys.exit(app())
