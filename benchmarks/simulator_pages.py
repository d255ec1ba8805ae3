"""The simulator's tables: how fast it is on one core, and where the time goes.

Rule: goals stand beside the figures; a share says out of how many samples.
"""

from __future__ import annotations

import platform
import sys
from typing import Final

from benchmarks.shares import Part, shares
from benchmarks.simulated import TRANSACTIONS_PER_TXN_WRITER, TXN_WRITERS
from benchmarks.simulator_rounds import Figure, SimulatorReport
from benchmarks.tables import Grid, goal, spread

FEW: Final = 100  # below it a figure has a decimal


def simulator_grids(report: SimulatorReport) -> list[Grid]:
    """The tables of a report."""
    return [
        Grid(
            "Simulator, in a second of one core",
            columns=("simulator", "per core and second", "goal"),
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
    """Where and how it was measured, in one sentence."""
    scale = report.scale
    return (
        f"{report.rounds} rounds, medians (least to most) · CPU seconds of one process · every judge on · "
        f"{scale.calm_worlds} calm worlds of {TXN_WRITERS * TRANSACTIONS_PER_TXN_WRITER} transactions, "
        f"{scale.seeds} seeds of fuzz · {sys.platform}, Python {platform.python_version()}"
    )
