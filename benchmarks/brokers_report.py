"""The results of one client on several brokers: confluent-kafka on Fencepost, on librdkafka's mock cluster
and on Apache Kafka.

Rule: the client and its settings are the same on each, so a ratio is that of the brokers.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from statistics import median
from typing import Any, Final

import attrs

from benchmarks.brokers import System
from benchmarks.load_rounds import Round
from benchmarks.loads import COMMIT_LOADS, Load, Scale
from benchmarks.report import Grid, Spread, cpu, goal, spread

OURS: Final = System.CONFLUENT_ON_FENCEPOST
PEERS: Final = {System.CONFLUENT: "mock cluster", System.CONFLUENT_ON_KAFKA: "Apache Kafka"}
"""The brokers that ours is compared with, as the table names them."""

BROKER_LOADS: Final = (Load.PRODUCE, Load.FETCH, Load.COMMITS, Load.COMMITS_OF_TEN)
GOALS: Final[Mapping[System, Mapping[Load, float]]] = {
    System.CONFLUENT: {Load.PRODUCE: 0.9, Load.FETCH: 0.9, Load.COMMITS: 1.0, Load.COMMITS_OF_TEN: 1.0},
    System.CONFLUENT_ON_KAFKA: {Load.COMMITS: 2.0, Load.COMMITS_OF_TEN: 2.0},
}
"""The lowest ratio of rates, Fencepost to the peer."""


@attrs.frozen(kw_only=True)
class Comparison:
    """One load on Fencepost and on a peer: the rates of the peer, and the ratio of each round's two."""

    rates: Spread
    ratio: Spread
    goal: float | None

    @property
    def is_reached(self) -> bool | None:
        """Whether the median ratio reaches the goal; None without a goal."""
        return None if self.goal is None else self.ratio.middle >= self.goal


@attrs.frozen(kw_only=True)
class BrokersResult:
    """One load over all rounds. CPU is the broker's, in µs per operation; None if it cannot be measured."""

    load: Load
    rates: Spread
    peers: dict[System, Comparison]
    broker_cpu_us: dict[System, float | None]


def brokers_results(rounds: Sequence[Round]) -> list[BrokersResult]:
    """One result for each load, in the order of the runs."""
    return [_result(load, rounds) for load in rounds[0].samples]


def _result(load: Load, rounds: Sequence[Round]) -> BrokersResult:
    samples = [measured.samples[load] for measured in rounds]
    peers = [system for system in PEERS if system in samples[0]]

    def cpu_us(system: System) -> float | None:
        used = [sample[system].broker_cpu_seconds for sample in samples]
        known = [seconds for seconds in used if seconds is not None]
        return median(known) / samples[0][system].operations * 1_000_000 if known else None

    return BrokersResult(
        load=load,
        rates=Spread.of([sample[OURS].rate for sample in samples]),
        peers={
            peer: Comparison(
                rates=Spread.of([sample[peer].rate for sample in samples]),
                ratio=Spread.of([sample[OURS].rate / sample[peer].rate for sample in samples]),
                goal=GOALS[peer].get(load),
            )
            for peer in peers
        },
        broker_cpu_us={system: cpu_us(system) for system in (OURS, *peers)},
    )


def brokers_as_json(results: Sequence[BrokersResult]) -> list[dict[str, Any]]:
    """The results for programs."""
    return [
        {
            "load": result.load.value,
            "rates": attrs.asdict(result.rates),
            "peers": {
                peer.value: {**attrs.asdict(compared), "is_reached": compared.is_reached}
                for peer, compared in result.peers.items()
            },
            "broker_cpu_us": {system.value: used for system, used in result.broker_cpu_us.items()},
        }
        for result in results
    ]


def brokers_grid(results: Sequence[BrokersResult]) -> Grid:
    """The table: for each peer its rate, the ratio and the goal."""
    peers = list(results[0].peers)
    compared = [column for peer in peers for column in (PEERS[peer], "ratio", "goal")]
    return Grid(
        "confluent-kafka on each broker",
        columns=("load", "fencepost", *compared, "broker CPU µs/op"),
        rows=[_row(result) for result in results],
    )


def _row(result: BrokersResult) -> list[str]:
    unit = "commits/s" if result.load in COMMIT_LOADS else "records/s"
    row = [f"{result.load.value}, {unit}", spread(result.rates, "{:,.0f}")]
    for peer in result.peers.values():
        wanted = None if peer.goal is None else f"≥ {peer.goal:g}×"
        row += [
            spread(peer.rates, "{:,.0f}"),
            spread(peer.ratio, "{:.2f}×"),
            goal(wanted, is_reached=peer.is_reached),
        ]
    return [*row, " / ".join(map(cpu, result.broker_cpu_us.values()))]


def brokers_conditions(scale: Scale, *, rounds: int) -> str:
    """The conditions of the measurement, in one sentence."""
    return (
        f"{rounds} interleaved rounds, medians (minimum to maximum) · "
        f"{scale.records:,} records of 100 bytes, "
        f"{scale.transactions:,} transactions of 100 records · {os.cpu_count()} CPUs, {sys.platform}, "
        f"Python {platform.python_version()}, confluent-kafka {version('confluent-kafka')}"
    )
