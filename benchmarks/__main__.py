"""`python -m benchmarks`: our client and broker beside confluent-kafka and librdkafka's mock cluster.

Rule: what is said on stdout is the result alone; nothing here passes or fails by the clock.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Console

from benchmarks.loads import Load, Scale
from benchmarks.pages import Report, show, write_into
from benchmarks.results import as_json, import_trio, load_results, standing_results
from benchmarks.rounds import measure
from benchmarks.systems import System

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
FULL, QUICK = Scale(), Scale(records=100_000, transactions=200)
FULL_ROUNDS, QUICK_ROUNDS = 5, 2
CHOICES = {"produce": [Load.PRODUCE], "fetch": [Load.FETCH, Load.FETCH_VALUES], "commits": [Load.COMMITS]}

app = App(name="benchmarks", help_format="plaintext")


@app.default
def run(
    *,
    quick: Annotated[bool, Parameter(negative="")] = False,
    rounds: int | None = None,
    only: Literal["produce", "fetch", "commits"] | None = None,
    records: int | None = None,
    transactions: int | None = None,
    as_json_line: Annotated[bool, Parameter("--json", negative="")] = False,
    write: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Measure produce, fetch and commits, ours and confluent-kafka's in turn, and show the ratios.

    Parameters
    ----------
    quick
        A tenth of the records and two rounds: a look, not a figure to quote.
    rounds
        How often everything is measured.
    only
        One kind of load.
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
    rounds = rounds or (QUICK_ROUNDS if quick else FULL_ROUNDS)
    loads = list(Load) if only is None else CHOICES[only]
    report = measured_report(loads, scale, rounds=rounds)
    show(report, Console(highlight=False))
    if write:
        write_into(PAGE, report)
    if as_json_line:
        print(json.dumps(as_json(report.loads, report.standing, report.import_trio)))


def measured_report(loads: list[Load], scale: Scale, *, rounds: int) -> Report:
    """Measures, and says on a terminal what it is at."""
    systems = [system for system in System if system.is_installed]
    with (
        TemporaryDirectory(prefix="fencepost-bench-") as data,
        Console(stderr=True).status("starting") as status,
    ):
        results = measure(systems, loads, scale, rounds=rounds, data=Path(data), tell=status.update)
    return Report(
        loads=load_results(results),
        standing=standing_results(results),
        import_trio=import_trio(results),
        scale=scale,
        rounds=rounds,
    )


if __name__ == "__main__":
    sys.exit(app())
