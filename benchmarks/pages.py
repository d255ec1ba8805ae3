"""How the results look: tables on a terminal, and the same as Markdown in a marked section of a page.

Rule: what is between the marks belongs to the program, everything else on the page to people.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import attrs
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.loads import Scale
from benchmarks.results import LoadResult, Spread, StandingResult
from benchmarks.systems import System

BEGIN: Final = "<!-- measured: begin -->"
END: Final = "<!-- measured: end -->"
OURS, PEER = System.OURS, System.CONFLUENT
MEBIBYTE: Final = 1 << 20


@attrs.frozen(kw_only=True)
class Report:
    """Everything that is shown about one measurement."""

    loads: Sequence[LoadResult]
    standing: Sequence[StandingResult]
    import_trio: Spread
    scale: Scale
    rounds: int


@attrs.frozen
class Grid:
    """A table as words."""

    title: str
    columns: Sequence[str] = attrs.field(kw_only=True)
    rows: Sequence[Sequence[str]] = attrs.field(kw_only=True)


def grids(report: Report) -> list[Grid]:
    """The tables of a report."""
    return [
        Grid(
            "Loads",
            columns=(
                "load",
                "fencepost",
                "confluent-kafka",
                "ratio",
                "goal",
                "client CPU µs/op",
                "broker CPU µs/op",
                "client MiB",
            ),
            rows=[_load_row(result) for result in report.loads],
        ),
        Grid(
            "Brokers",
            columns=("broker", "first answer after", "idle MiB", "peak MiB"),
            rows=[
                *(_standing_row(result) for result in report.standing),
                ["a Python that only imports trio", _milliseconds(report.import_trio), "-", "-"],
            ],
        ),
    ]


def _load_row(result: LoadResult) -> list[str]:
    unit = "commits/s" if result.load.name == "COMMITS" else "records/s"
    goal = "-" if result.goal is None else f"≥ {result.goal:g}×"
    mark = {None: "", True: " reached", False: " missed"}[result.is_reached]
    return [
        f"{result.load.value}, {unit}",
        _rate(result.rates.get(OURS)),
        _rate(result.rates.get(PEER)),
        "-" if result.ratio is None else _spread(result.ratio, "{:.2f}×"),
        goal + mark,
        _beside(result.client_cpu_us, "{:.3g}"),
        _beside(result.broker_cpu_us, "{:.3g}"),
        _beside(result.client_bytes, "{:.0f}", unit=MEBIBYTE),
    ]


def _standing_row(result: StandingResult) -> list[str]:
    name = "mock cluster of librdkafka" if result.system is PEER else result.system.value
    return [
        name,
        _milliseconds(result.start_seconds),
        _number(result.idle_bytes, "{:.0f}", unit=MEBIBYTE),
        _number(result.peak_bytes, "{:.0f}", unit=MEBIBYTE),
    ]


def _milliseconds(seconds: Spread) -> str:
    return _spread(Spread(*(1000 * figure for figure in attrs.astuple(seconds))), "{:.0f} ms")


def _rate(spread: Spread | None) -> str:
    return "-" if spread is None else _spread(spread, "{:,.0f}")


def _spread(spread: Spread, pattern: str) -> str:
    """The median, and the range behind it when there is one."""
    middle = pattern.format(spread.middle)
    if spread.least == spread.most:
        return middle
    return f"{middle} ({pattern.format(spread.least)} to {pattern.format(spread.most)})"


def _beside(figures: Mapping[System, float | None], pattern: str, *, unit: float = 1) -> str:
    """Ours / the peer's."""
    return " / ".join(_number(figures.get(system), pattern, unit=unit) for system in (OURS, PEER))


def _number(figure: float | None, pattern: str, *, unit: float = 1) -> str:
    return "-" if figure is None else pattern.format(figure / unit)


def conditions(report: Report) -> str:
    """Where and how it was measured, in one sentence."""
    peer = f", confluent-kafka {version('confluent-kafka')}" if PEER.is_installed else ""
    scale = report.scale
    return (
        f"{report.rounds} interleaved rounds, medians (least to most) · "
        f"{scale.records:,} records of 100 bytes, {scale.transactions:,} transactions of 100 records · "
        f"{os.cpu_count()} CPUs, {sys.platform}, Python {platform.python_version()}{peer}"
    )


def show(report: Report, console: Console) -> None:
    """The tables on a terminal."""
    for grid in grids(report):
        table = Table(*grid.columns, title=grid.title, title_justify="left", box=box.SIMPLE_HEAD)
        for row in grid.rows:
            table.add_row(*row)
        console.print(table)
    console.print(conditions(report))


def markdown(report: Report) -> str:
    """The tables as Markdown."""
    return "\n\n".join([conditions(report) + ".", *(_markdown_table(grid) for grid in grids(report))])


def _markdown_table(grid: Grid) -> str:
    lines = [grid.columns, ["---"] * len(grid.columns), *grid.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_into(page: Path, report: Report) -> None:
    """Replaces what is between the marks; ValueError when the page has none."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no section between {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{markdown(report)}\n{END}{after}", encoding="utf-8")
