"""The loads' tables: ours and the peer's, side by side.

Rule: what a system or the machine does not give is a dash.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final

import attrs

from benchmarks.loads import Scale
from benchmarks.results import LoadResult, Spread, StandingResult
from benchmarks.systems import System
from benchmarks.tables import Grid, goal, spread

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
    ratio_wanted = None if result.goal is None else f"≥ {result.goal:g}×"
    return [
        f"{result.load.value}, {unit}",
        _rate(result.rates.get(OURS)),
        _rate(result.rates.get(PEER)),
        "-" if result.ratio is None else spread(result.ratio, "{:.2f}×"),
        goal(ratio_wanted, is_reached=result.is_reached),
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
    return spread(Spread(*(1000 * figure for figure in attrs.astuple(seconds))), "{:.0f} ms")


def _rate(rates: Spread | None) -> str:
    return "-" if rates is None else spread(rates, "{:,.0f}")


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
