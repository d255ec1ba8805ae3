"""Many seeds, one after the other: what is kept of each, and what they add up to.

Rule: results are merged in the order of their seeds, so that the same seeds give the same result on any
number of cores.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

from fencepost.simulator.faults.random_faults import FAULT
from fencepost.simulator.fuzz.plan import Planner
from fencepost.simulator.fuzz.worlds import try_seed
from fencepost.simulator.judges.coverage import Coverage
from fencepost.simulator.judges.rules import Violation
from fencepost.simulator.run import KNOWN


@attrs.frozen(kw_only=True)
class SeedFinding:
    """A `seed` that breaks a rule, or shows a known anomaly of its transaction version. `rule`: the name of
    the rule or anomaly. `evidence`: what was seen, in a line.
    """

    seed: int
    rule: str
    evidence: str


@attrs.frozen(kw_only=True)
class Tried:
    """What is kept of one seed's trial: small enough to be handed from process to process."""

    seed: int
    digest: str
    finding: SeedFinding | None
    met: SeedFinding | None
    marks: Mapping[str, int]
    transactions: int
    events: int
    elapsed: int
    """Virtual nanoseconds."""
    coverage: Coverage = attrs.Factory(Coverage)
    seconds: float = 0.0
    """CPU time, measured by the caller."""


def try_one(seed: int, planner: Planner) -> Tried:
    result = try_seed(seed, planner)
    return Tried(
        seed=seed,
        digest=result.digest,
        finding=_finding(seed, result.violation),
        met=_finding(seed, result.known_anomaly),
        marks=dict(result.marks),
        transactions=result.transactions,
        events=result.events,
        elapsed=result.elapsed,
        coverage=result.coverage,
    )


def _finding(seed: int, breach: Violation | None) -> SeedFinding | None:
    return None if breach is None else SeedFinding(seed=seed, rule=breach.rule, evidence=breach.evidence)


@attrs.define(eq=False)
class SeedTally:
    """What seeds from `next_seed` on add up to. It accepts results in any order and counts them in the order
    of the seeds: up to the first seed that is missing, and up to the first finding unless it is to
    `keep_going`.
    """

    next_seed: int
    keep_going: bool = False
    seeds: int = 0
    transactions: int = 0
    events: int = 0
    elapsed: int = 0
    seconds: float = 0.0
    found: list[SeedFinding] = attrs.Factory(list[SeedFinding])
    met: list[SeedFinding] = attrs.Factory(list[SeedFinding])
    marks: Counter[str] = attrs.Factory(Counter[str])
    """How many seeds reached each mark."""
    coverage: Coverage = attrs.Factory(Coverage)
    _early: dict[int, Tried] = attrs.Factory(dict[int, Tried])
    _digests: hashlib.blake2b = attrs.Factory(lambda: hashlib.blake2b(digest_size=16))

    def add(self, tried: Tried) -> None:
        """Add a result; it counts as soon as the results of all earlier seeds are there."""
        self._early[tried.seed] = tried
        while not self.is_over and self.next_seed in self._early:
            self._count(self._early.pop(self.next_seed))
            self.next_seed += 1

    def _count(self, tried: Tried) -> None:
        self.seeds += 1
        self.transactions += tried.transactions
        self.events += tried.events
        self.elapsed += tried.elapsed
        self.seconds += tried.seconds
        self.marks.update(mark for mark, count in tried.marks.items() if count)
        self.coverage.merge(tried.coverage)
        self._digests.update(f"{tried.seed} {tried.digest}\n".encode())
        if tried.finding is not None:
            self.found.append(tried.finding)
        if tried.met is not None:
            self.met.append(tried.met)

    @property
    def is_over(self) -> bool:
        """Whether further seeds no longer count."""
        return bool(self.found) and not self.keep_going

    def per_core_second(self, count: int) -> float:
        """This count per second of CPU time."""
        return count / self.seconds if self.seconds else 0.0

    @property
    def digest(self) -> str:
        """A hash that is equal wherever the same seeds gave the same histories."""
        return self._digests.hexdigest()

    @property
    def faults(self) -> list[str]:
        """The kinds of fault that struck, by name."""
        return _names_of(FAULT, self.marks)

    @property
    def known(self) -> dict[str, int]:
        """The anomalies that Apache Kafka has, too, with the number of seeds in which they were seen."""
        return {name: self.marks[KNOWN + name] for name in _names_of(KNOWN, self.marks)}

    @property
    def behaviours(self) -> dict[str, list[SeedFinding]]:
        """The behaviours of old brokers that were met, by name, with the seeds in their order."""
        found: dict[str, list[SeedFinding]] = {}
        for finding in self.met:
            found.setdefault(finding.rule, []).append(finding)
        return found


def _names_of(kind: str, marks: Iterable[str]) -> list[str]:
    return sorted(mark.removeprefix(kind) for mark in marks if mark.startswith(kind))
