"""What the rounds come to: medians, ratios, and whether a goal was reached.

Rule: figures of one machine at one time; only ratios of the same rounds are compared with goals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from statistics import median
from typing import Any, Final

import attrs

from benchmarks.loads import Load, Sample, Standing
from benchmarks.rounds import Round
from benchmarks.systems import System

GOALS: Final = {Load.PRODUCE: 1.5, Load.COMMITS: 3.0}
"""The least ratio of rates, ours to confluent-kafka's."""


@attrs.frozen
class Spread:
    """The median of a figure over all rounds, its least and its largest."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        return cls(median(figures), min(figures), max(figures))


@attrs.frozen(kw_only=True)
class LoadResult:
    """One load over all rounds; a figure is None where a system or the machine gives none."""

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
        """Whether the median ratio is as high as the goal; None without either."""
        if self.ratio is None or self.goal is None:
            return None
        return self.ratio.middle >= self.goal


@attrs.frozen(kw_only=True)
class StandingResult:
    """What a broker costs by standing there: medians over all rounds."""

    system: System
    start_seconds: Spread
    idle_bytes: float | None
    peak_bytes: float | None


def load_results(rounds: Sequence[Round]) -> list[LoadResult]:
    """One result per load, in the order in which they ran."""
    return [_load_result(load, [measured.samples[load] for measured in rounds]) for load in rounds[0].samples]


def _load_result(load: Load, samples: Sequence[Mapping[System, Sample]]) -> LoadResult:
    systems = [system for system in System if system in samples[0]]

    def figure(system: System, of: Callable[[Sample], float | None]) -> float | None:
        return _median_of([of(sample[system]) for sample in samples])

    return LoadResult(
        load=load,
        rates={system: Spread.of([sample[system].rate for sample in samples]) for system in systems},
        ratio=Spread.of([s[System.OURS].rate / s[System.CONFLUENT].rate for s in samples])
        if len(systems) > 1
        else None,
        client_cpu_us={s: figure(s, lambda run: _us(run, run.client_cpu_seconds)) for s in systems},
        broker_cpu_us={s: figure(s, lambda run: _us(run, run.broker_cpu_seconds)) for s in systems},
        client_bytes={s: figure(s, lambda run: run.client_bytes) for s in systems},
    )


def standing_results(rounds: Sequence[Round]) -> list[StandingResult]:
    """One result per broker."""
    return [
        _standing_result(system, [measured.standing[system] for measured in rounds])
        for system in System
        if system in rounds[0].standing
    ]


def _standing_result(system: System, standing: Sequence[Standing]) -> StandingResult:
    return StandingResult(
        system=system,
        start_seconds=Spread.of([each.start_seconds for each in standing]),
        idle_bytes=_median_of([each.idle_bytes for each in standing]),
        peak_bytes=_median_of([each.peak_bytes for each in standing]),
    )


def _us(sample: Sample, seconds: float | None) -> float | None:
    return None if seconds is None else seconds / sample.operations * 1_000_000


def _median_of(figures: Sequence[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return median(known) if len(known) == len(figures) else None


def import_trio(rounds: Sequence[Round]) -> Spread:
    """Seconds of a Python that only imports trio."""
    return Spread.of([measured.import_trio_seconds for measured in rounds])


def as_json(loads: Sequence[LoadResult], standing: Sequence[StandingResult], trio: Spread) -> dict[str, Any]:
    """The same for machines."""
    return {
        "import_trio_seconds": attrs.asdict(trio),
        "loads": [{**_plain(each), "goal": each.goal, "is_reached": each.is_reached} for each in loads],
        "brokers": [_plain(each) for each in standing],
    }


def _plain(result: LoadResult | StandingResult) -> dict[str, Any]:
    return attrs.asdict(
        result,
        value_serializer=lambda _owner, _field, value: value.value if isinstance(value, Enum) else value,
    )
