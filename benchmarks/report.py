"""The results of all rounds: medians, ratios, goals, and their tables for a terminal and for the docs.

Rule: the figures belong to one machine at one time; only ratios of the same round are compared with goals. In
docs/performance.md, the program writes only between the marks of a section.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final

import attrs

from benchmarks.brokers import System
from benchmarks.load_rounds import Round
from benchmarks.loads import COMMIT_LOADS, Load, Sample, Scale, Standing
from fencepost.cli.table import BOLD, print_table, styled

GOALS: Final = {
    Load.PRODUCE: 1.5,
    Load.SEND_MANY: 6.0,
    Load.FETCH: 3.0,
    Load.FETCH_VALUES: 8.0,
    Load.COMMITS: 3.0,
    Load.COMMITS_OF_TEN: 1.2,
    Load.COMMITS_OF_TEN_SYNCED: 0.3,
    Load.LATENCY: 1.8,
}
"""The lowest ratio of rates, Fencepost to confluent-kafka; of latencies the highest."""
READY_GOAL_MS: Final = 250
UNITS: Final = {Load.LATENCY: "µs", **dict.fromkeys(COMMIT_LOADS, "commits/s")}
"""The unit of a load's figure, unless it is records/s."""


@attrs.frozen
class Spread:
    """The median, minimum and maximum of a figure over all rounds."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        return cls(median(figures), min(figures), max(figures))


@attrs.frozen(kw_only=True)
class LoadResult:
    """One load over all rounds; a figure is None if it cannot be measured here."""

    load: Load
    rates: dict[System, Spread]
    ratio: Spread | None
    client_cpu_us: dict[System, float | None]
    broker_cpu_us: dict[System, float | None]
    client_bytes: dict[System, float | None]

    @property
    def goal(self) -> float | None:
        return GOALS.get(self.load)

    @property
    def is_reached(self) -> bool | None:
        """Whether the median ratio reaches the goal; None without a ratio or a goal."""
        if self.ratio is None or self.goal is None:
            return None
        ratio = self.ratio.middle
        return ratio <= self.goal if self.load is Load.LATENCY else ratio >= self.goal


@attrs.frozen(kw_only=True)
class StandingResult:
    """Start time and memory of a broker: medians over all rounds."""

    system: System
    start_seconds: Spread
    ready_seconds: float | None
    idle_bytes: float | None
    peak_bytes: float | None


def load_results(rounds: Sequence[Round]) -> list[LoadResult]:
    """One result for each load, in the order of the runs."""
    return [_load_result(load, [measured.samples[load] for measured in rounds]) for load in rounds[0].samples]


def _load_result(load: Load, samples: Sequence[Mapping[System, Sample]]) -> LoadResult:
    systems = [system for system in System if system in samples[0]]

    def figure(system: System, of: Callable[[Sample], float | None]) -> float | None:
        return _median_of([of(sample[system]) for sample in samples])

    return LoadResult(
        load=load,
        rates={system: Spread.of([_figure(sample[system]) for sample in samples]) for system in systems},
        ratio=Spread.of([_figure(s[System.OURS]) / _figure(s[System.CONFLUENT]) for s in samples])
        if len(systems) > 1
        else None,
        client_cpu_us={s: figure(s, lambda run: _us(run, run.client_cpu_seconds)) for s in systems},
        broker_cpu_us={s: figure(s, lambda run: _us(run, run.broker_cpu_seconds)) for s in systems},
        client_bytes={s: figure(s, lambda run: run.client_bytes) for s in systems},
    )


def _figure(sample: Sample) -> float:
    """Operations per second, or the median µs of one where each was timed."""
    return sample.rate if sample.median_seconds is None else sample.median_seconds * 1_000_000


def standing_results(rounds: Sequence[Round]) -> list[StandingResult]:
    """One result for each broker."""
    return [
        _standing_result(system, [measured.standing[system] for measured in rounds])
        for system in System
        if system in rounds[0].standing
    ]


def _standing_result(system: System, standing: Sequence[Standing]) -> StandingResult:
    return StandingResult(
        system=system,
        start_seconds=Spread.of([each.start_seconds for each in standing]),
        ready_seconds=_median_of([each.ready_seconds for each in standing]),
        idle_bytes=_median_of([each.idle_bytes for each in standing]),
        peak_bytes=_median_of([each.peak_bytes for each in standing]),
    )


def _us(sample: Sample, seconds: float | None) -> float | None:
    return None if seconds is None else seconds / sample.operations * 1_000_000


def _median_of(figures: Sequence[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return median(known) if len(known) == len(figures) else None


def import_trio(rounds: Sequence[Round]) -> Spread:
    """Seconds of a Python process that only imports trio."""
    return Spread.of([measured.import_trio_seconds for measured in rounds])


def as_json(loads: Sequence[LoadResult], standing: Sequence[StandingResult], trio: Spread) -> dict[str, Any]:
    """The results for programs."""
    return {
        "import_trio_seconds": attrs.asdict(trio),
        "loads": [{**_plain(each), "goal": each.goal, "is_reached": each.is_reached} for each in loads],
        "brokers": [_plain(each) for each in standing],
    }


def figures_as_json(
    loads: Sequence[LoadResult], standing: Sequence[StandingResult]
) -> dict[str, dict[str, float | bool | None]]:
    """Each figure that has a goal: ours, the peer's, their ratio, the goal, and whether it is met. Rates per
    second; latencies in µs, and the time to the ready line in ms, are better if they are lower.
    """
    found: dict[str, dict[str, float | bool | None]] = {}
    for each in loads:
        peer = each.rates.get(System.CONFLUENT)
        found[each.load.value] = {
            "ours": each.rates[System.OURS].middle,
            "peer": None if peer is None else peer.middle,
            "ratio": None if each.ratio is None else each.ratio.middle,
            "goal": each.goal,
            "met": each.is_reached,
        }
    for broker in standing:
        if broker.ready_seconds is not None:
            ready_ms = broker.ready_seconds * 1000
            met = ready_ms <= READY_GOAL_MS
            found["ready"] = {
                "ours": ready_ms,
                "peer": None,
                "ratio": None,
                "goal": READY_GOAL_MS,
                "met": met,
            }
    return found


def _plain(result: LoadResult | StandingResult) -> dict[str, Any]:
    return attrs.asdict(
        result,
        value_serializer=lambda _owner, _field, value: value.value if isinstance(value, Enum) else value,
    )


@attrs.frozen
class Grid:
    """A table of strings."""

    title: str
    columns: Sequence[str] = attrs.field(kw_only=True)
    rows: Sequence[Sequence[str]] = attrs.field(kw_only=True)


def spread(figures: Spread, pattern: str) -> str:
    """The median, followed by the range unless it is empty."""
    middle = pattern.format(figures.middle)
    if figures.least == figures.most:
        return middle
    return f"{middle} ({pattern.format(figures.least)} to {pattern.format(figures.most)})"


def goal(words: str | None, *, is_reached: bool | None) -> str:
    """A goal and whether it was reached; a dash without a goal."""
    if words is None:
        return "-"
    return words + {None: "", True: " met", False: " missed"}[is_reached]


def show(grids: Sequence[Grid], conditions: str) -> None:
    """Prints the tables and the conditions of the measurement."""
    for grid in grids:
        print(f"{styled(grid.title, BOLD)}\n")
        print_table([column.upper() for column in grid.columns], grid.rows)
        print()
    print(conditions, flush=True)


def markdown(grids: Sequence[Grid], conditions: str) -> str:
    """The tables and conditions as Markdown."""
    return "\n\n".join([conditions + ".", *(_markdown_table(grid) for grid in grids)])


def _markdown_table(grid: Grid) -> str:
    lines = [grid.columns, ["---"] * len(grid.columns), *grid.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_section(page: Path, name: str, text: str) -> None:
    """Replaces the text between the marks of a section; ValueError if the page lacks them."""
    before_mark, after_mark = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, begin, rest = page.read_text(encoding="utf-8").partition(before_mark)
    _, end, after = rest.partition(after_mark)
    if not begin or not end:
        raise ValueError(f"{page} has no section between {before_mark} and {after_mark}")
    page.write_text(f"{before}{before_mark}\n{text}\n{after_mark}{after}", encoding="utf-8")


OURS, PEER = System.OURS, System.CONFLUENT
MEBIBYTE: Final = 1 << 20


@attrs.frozen(kw_only=True)
class Report:
    """The results of a measurement."""

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
            columns=("broker", "time to ready line", "goal", "time to first reply", "idle MiB", "peak MiB"),
            rows=[
                *(_standing_row(result) for result in report.standing),
                [
                    "a Python process that only imports trio",
                    "-",
                    "-",
                    _milliseconds(report.import_trio),
                    "-",
                    "-",
                ],
            ],
        ),
    ]


def _load_row(result: LoadResult) -> list[str]:
    sign = "≤" if result.load is Load.LATENCY else "≥"
    ratio_wanted = None if result.goal is None else f"{sign} {result.goal:g}×"
    return [
        f"{result.load.value}, {UNITS.get(result.load, 'records/s')}",
        _rate(result.rates.get(OURS)),
        _rate(result.rates.get(PEER)),
        "-" if result.ratio is None else spread(result.ratio, "{:.2f}×"),
        goal(ratio_wanted, is_reached=result.is_reached),
        _beside(result.client_cpu_us, cpu),
        _beside(result.broker_cpu_us, cpu),
        _beside(result.client_bytes, _mebibytes),
    ]


def _standing_row(result: StandingResult) -> list[str]:
    name = "librdkafka's mock cluster" if result.system is PEER else result.system.value
    ready_ms = None if result.ready_seconds is None else result.ready_seconds * 1000
    wanted = None if ready_ms is None else f"≤ {READY_GOAL_MS} ms"
    return [
        name,
        "-" if ready_ms is None else f"{ready_ms:.0f} ms",
        goal(wanted, is_reached=None if ready_ms is None else ready_ms <= READY_GOAL_MS),
        _milliseconds(result.start_seconds),
        _mebibytes(result.idle_bytes),
        _mebibytes(result.peak_bytes),
    ]


def _milliseconds(seconds: Spread) -> str:
    return spread(Spread(*(1000 * figure for figure in attrs.astuple(seconds))), "{:.0f} ms")


def _rate(rates: Spread | None) -> str:
    return "-" if rates is None else spread(rates, "{:,.0f}")


def _beside(figures: Mapping[System, float | None], shown: Callable[[float | None], str]) -> str:
    """Fencepost / peer."""
    return " / ".join(shown(figures.get(system)) for system in (OURS, PEER))


def cpu(us: float | None) -> str:
    """CPU time of an operation, in µs."""
    if us is None:
        return "-"
    return f"{us:.3g}" if us < 1_000 else f"{us:,.0f}"


def _mebibytes(size: float | None) -> str:
    return "-" if size is None else f"{size / MEBIBYTE:.0f}"


def conditions(report: Report) -> str:
    """The conditions of the measurement, in one sentence."""
    peer = f", confluent-kafka {version('confluent-kafka')}" if PEER.is_installed else ""
    scale = report.scale
    return (
        f"{report.rounds} interleaved rounds, medians (minimum to maximum) · "
        f"{scale.records:,} records of 100 bytes, {scale.transactions:,} transactions of 100 records · "
        f"{os.cpu_count()} CPUs, {sys.platform}, Python {platform.python_version()}{peer}"
    )
