"""What a canary was told and what it read, and whether the two agree.

Rule: only the client's side counts. A transaction is committed if the commit was acknowledged, and an answer
that never came is unknown, whatever the broker thinks of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from statistics import quantiles

import attrs

PARTITIONS = (0, 1)
RECORDS = ((0, 0), (0, 1), (1, 0))
"""(partition, index) of the records of each transaction: it spans both partitions."""


class Fate(Enum):
    """What the client knows of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


def value_of(number: int, index: int) -> str:
    """The value of a record: its transaction, and its index in the partition."""
    return f"{number}.{index}"


def expected_of(number: int) -> set[tuple[int, str]]:
    """Partition and value of each record of a transaction."""
    return {(partition, value_of(number, index)) for partition, index in RECORDS}


@attrs.define
class Ledger:
    """The transactions of one canary by number, what its reader saw, and how long its answers took."""

    fates: dict[int, Fate] = attrs.Factory(dict[int, Fate])
    read: dict[int, list[str]] = attrs.field(factory=lambda: {partition: [] for partition in PARTITIONS})
    positions: dict[int, int] = attrs.field(factory=lambda: dict.fromkeys(PARTITIONS, 0))
    answers_ms: list[float] = attrs.Factory(list[float])

    def count(self, fate: Fate) -> int:
        """How many transactions ended so."""
        return sum(each is fate for each in self.fates.values())

    def faults(self, read: Mapping[int, list[str]]) -> list[str]:
        """Every way in which what a read_committed reader saw contradicts what the producer was told."""
        seen = Counter((partition, value) for partition, values in read.items() for value in values)
        faults = [f"read {times} times: {value}" for (_, value), times in seen.items() if times > 1]
        known = {place for number in self.fates for place in expected_of(number)}
        faults += [
            f"never sent: {value} in partition {partition}"
            for partition, value in seen
            if (partition, value) not in known
        ]
        for number, fate in self.fates.items():
            faults += _faults_of(number, fate, sum(place in seen for place in expected_of(number)))
        for partition, values in read.items():
            faults += _out_of_order(partition, values)
        return faults


def _faults_of(number: int, fate: Fate, count: int) -> Iterable[str]:
    of = f"{count} of {len(RECORDS)} records of transaction {number}"
    if fate is Fate.COMMITTED and count < len(RECORDS):
        yield f"lost: {of}, which was acknowledged, are there"
    elif fate is Fate.ABORTED and count:
        yield f"aborted: {of} are visible"
    elif fate is Fate.UNKNOWN and 0 < count < len(RECORDS):
        yield f"torn: {of} are visible"


def _out_of_order(partition: int, values: list[str]) -> Iterable[str]:
    order = [tuple(map(int, value.split("."))) for value in values if value.replace(".", "", 1).isdecimal()]
    if order != sorted(order):
        yield f"out of order: partition {partition}"


@attrs.frozen(kw_only=True)
class Latency:
    """How long answers took, in milliseconds; 0 without answers."""

    count: int
    p50: float
    p99: float
    max: float

    @staticmethod
    def of(answers_ms: list[float]) -> Latency:
        """The figures of some answers."""
        if len(answers_ms) < 2:
            only = max(answers_ms, default=0.0)
            return Latency(count=len(answers_ms), p50=only, p99=only, max=only)
        cuts = quantiles(answers_ms, n=100, method="inclusive")
        return Latency(count=len(answers_ms), p50=cuts[49], p99=cuts[98], max=max(answers_ms))
