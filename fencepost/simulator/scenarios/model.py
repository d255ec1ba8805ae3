"""A scenario as a value: who takes part, which faults happen at which point, and what must come of it.

Rule: a value holds nothing that a file could not say; reading what was written gives the same value.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import attrs

from fencepost.broker.host import SyncPolicy
from fencepost.client.transaction_versions import newest_dialect
from fencepost.faults.phrases import Fault, Point, PointKind
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.simulator.fuzz.plan import FuzzPlan
from fencepost.simulator.scenarios.scripts import ScriptLine


@attrs.frozen(kw_only=True)
class ClusterShape:
    """The shape of the world. `topics` are names with their number of partitions; `coordinators` is how many
    partitions `__transaction_state` has; `broken` are protections that are turned off, `without_fixes`
    Kafka's later corrections that the brokers do without.
    """

    nodes: int = 1
    topics: tuple[tuple[str, int], ...] = (("t", 2),)
    transaction_version: int = 2
    partition_verification: bool = True
    coordinators: int = 1
    timeout_scan_ms: int = 100
    sync: SyncPolicy = SyncPolicy.NONE
    segment_bytes: int = 65_536
    broken: tuple[str, ...] = ()
    without_fixes: tuple[str, ...] = ()

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Every partition of every topic, in their order."""
        return tuple(TopicPartition(topic, number) for topic, count in self.topics for number in range(count))

    @property
    def dialect(self) -> int:
        """The newest generation of clients that this cluster speaks."""
        return newest_dialect(self.transaction_version)


@attrs.frozen(kw_only=True)
class ProducerPart:
    """A process that follows a script; without a transactional id it is idempotent alone."""

    name: str
    transactional_id: str | None = None
    script: tuple[ScriptLine, ...] = ()
    is_called: bool = False  # starts on request, by a fault
    transaction_timeout_ms: int = 60_000
    request_timeout_ms: int = 1_500
    delivery_timeout_ms: int = 120_000
    max_in_flight: int = 5


@attrs.frozen(kw_only=True)
class ConsumerPart:
    """A process that reads from the beginning, or from where its group stands, as long as the run lasts."""

    name: str
    reads: tuple[TopicPartition, ...] = ()
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    group: str | None = None
    is_called: bool = False


@attrs.frozen(kw_only=True)
class ProcessorPart:
    """A process that consumes, transforms (to upper case) and produces, with its offsets in the transaction,
    until everything is copied: from `reads` to the same partitions of the topic `writes`.
    """

    name: str
    transactional_id: str
    reads: tuple[TopicPartition, ...]
    writes: str
    group: str
    is_called: bool = False


Part = ProducerPart | ConsumerPart | ProcessorPart


@attrs.frozen(kw_only=True)
class Expectation:
    """What must come of a run. `holds` are rules that were put to the test and kept, `violates` those that
    must be broken; any other that is broken fails the scenario. `visible` is what read_committed sees at the
    end, `logs` what stands in the logs, with markers.
    """

    holds: tuple[str, ...] = ()
    violates: tuple[str, ...] = ()
    reaches: tuple[Point, ...] = ()
    visible: tuple[tuple[TopicPartition, tuple[str, ...]], ...] = ()
    logs: tuple[tuple[TopicPartition, tuple[str, ...]], ...] = ()


@attrs.frozen(kw_only=True)
class Variant:
    """The same story in another cluster, with another outcome."""

    cluster: ClusterShape
    expect: Expectation


@attrs.frozen(kw_only=True)
class SeededRun:
    """A world that a search found: it takes its processes and faults from a plan, and its chances from the
    scenario's choices.
    """

    plan: FuzzPlan


@attrs.frozen(kw_only=True)
class Scenario:
    """A story. `lesson` is what it teaches, `parts` are producers, then consumers, then processors; `choices`
    are those of a run that was found by a search, and without any it is the calmest run.
    """

    name: str
    lesson: str = ""
    cluster: ClusterShape = ClusterShape()
    parts: tuple[Part, ...] = ()
    faults: tuple[Fault, ...] = ()
    expect: Expectation = Expectation()
    also_with: tuple[Variant, ...] = ()
    choices: tuple[int, ...] = ()
    seeded: SeededRun | None = None

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        """Every transactional id in it, once."""
        named = (part.transactional_id for part in self.parts if not isinstance(part, ConsumerPart))
        return tuple(dict.fromkeys(name for name in named if name is not None))


@attrs.frozen(kw_only=True)
class Case:
    """One run of a scenario: one cluster, one outcome, one point per fault. `title` tells it from the
    others.
    """

    scenario: Scenario
    title: str
    cluster: ClusterShape
    faults: tuple[Fault, ...]
    expect: Expectation

    @property
    def name(self) -> str:
        return f"{self.scenario.name} ({self.title})" if self.title else self.scenario.name


def cases(scenario: Scenario) -> Iterator[Case]:
    """Every run that a scenario asks for: each variant with each choice of points. TypeError at once for what
    is no scenario yet.
    """
    _refuse_builders(scenario)
    return _cases(scenario)


def _refuse_builders(found: object) -> None:
    if not isinstance(found, Scenario):
        raise TypeError(f"a {type(found).__name__} is no scenario; a builder becomes one by .scenario()")


def _cases(scenario: Scenario) -> Iterator[Case]:
    variants = (Variant(cluster=scenario.cluster, expect=scenario.expect), *scenario.also_with)
    ways = list(product(*([(fault, point) for point in fault.when] for fault in scenario.faults)))
    for variant in variants:
        for way in ways:
            yield Case(
                scenario=scenario,
                title=", ".join((*_difference(scenario.cluster, variant.cluster), *_chosen(way))),
                cluster=variant.cluster,
                faults=tuple(attrs.evolve(fault, when=(point,)) for fault, point in way),
                expect=variant.expect,
            )


def _difference(usual: ClusterShape, other: ClusterShape) -> Iterator[str]:
    for field in attrs.fields(ClusterShape):
        value = getattr(other, field.name)
        if value != getattr(usual, field.name):
            yield f"{field.name} {_shown(value)}"


def _shown(value: bool | int | SyncPolicy | tuple[object, ...]) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case SyncPolicy():
            return value.value
        case tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def _chosen(way: tuple[tuple[Fault, Point], ...]) -> Iterator[str]:
    for fault, point in way:
        if len(fault.when) > 1:
            is_plain = point.is_before or point.kind is PointKind.AT
            yield str(point) if is_plain else f"when {point}"
