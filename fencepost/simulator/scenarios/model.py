"""A scenario as a value: who takes part, which faults happen at which point, and what must come of it.

Rule: each class is a table of the file. Its annotations say what a file may hold (`codec.py` reads and writes
by them), so a value holds nothing that a file could not say.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Annotated, Final

import attrs

from fencepost.broker.host import SyncPolicy
from fencepost.broker.kafka_fixes import FIX_NAMES
from fencepost.broker.settings import PROTECTIONS, NodeSettings
from fencepost.client.assignors import ASSIGNORS
from fencepost.client.settings import newest_dialect
from fencepost.faults.grammar import NUMBER_MAX
from fencepost.faults.phrases import Fault, Point, PointKind
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.simulator.fuzz.plan import FuzzPlan
from fencepost.simulator.scenarios.codec import Between, Key, OneOf, Prose, Spelled
from fencepost.simulator.scenarios.rule_names import RULE_NAMES
from fencepost.simulator.scenarios.scripts import ScriptLine

# What can be written can be run: in seconds, and with numbers for which the protocol has room.
NODES_MAX: Final = 9  # with more, nobody can follow the drawing
PARTITIONS_MAX: Final = 100  # of one topic, and of __transaction_state
TRANSACTION_TIMEOUT_MAX_MS: Final = NodeSettings().transaction_max_timeout_ms

IsCalled = Annotated[bool, Key("starts"), Spelled({False: "at once", True: "on request"})]
Nodes = Annotated[int, Between(1, NODES_MAX)]
Partitions = Annotated[int, Between(1, PARTITIONS_MAX)]
TransactionTimeout = Annotated[int, Between(1, TRANSACTION_TIMEOUT_MAX_MS)]
TransactionVersion = Annotated[int, OneOf((0, 1, 2))]
Protections = Annotated[tuple[str, ...], OneOf(tuple(sorted(PROTECTIONS)))]
Fixes = Annotated[tuple[str, ...], OneOf(FIX_NAMES)]
Rules = Annotated[tuple[str, ...], OneOf(RULE_NAMES)]
Values = tuple[tuple[TopicPartition, tuple[str, ...]], ...]


@attrs.frozen(kw_only=True)
class ClusterShape:
    """The shape of the world. `topics` are names with their number of partitions; `coordinators` is how many
    partitions `__transaction_state` has; `broken` are protections that are turned off, `without_fixes` the
    fixes of later Kafka versions that are.
    """

    nodes: Nodes = 1
    topics: tuple[tuple[str, Partitions], ...] = (("t", 2),)
    transaction_version: TransactionVersion = 2
    partition_verification: bool = True
    coordinators: Partitions = 1
    timeout_scan_ms: int = 100
    sync: SyncPolicy = SyncPolicy.NONE
    segment_bytes: int = 65_536
    broken: Protections = ()
    without_fixes: Fixes = ()

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Every partition of every topic, in their order."""
        return tuple(TopicPartition(topic, number) for topic, count in self.topics for number in range(count))

    @property
    def dialect(self) -> int:
        """The newest transaction version of clients that this cluster speaks."""
        return newest_dialect(self.transaction_version)


@attrs.frozen(kw_only=True)
class ProducerPart:
    """A process that follows a script; without a transactional id it is only idempotent."""

    name: str
    transactional_id: str | None = None
    is_called: IsCalled = False  # a fault starts it
    transaction_timeout_ms: TransactionTimeout = 60_000
    request_timeout_ms: int = 1_500
    delivery_timeout_ms: int = 120_000
    max_in_flight: Annotated[int, OneOf((1, 2, 3, 4, 5))] = 5
    script: tuple[ScriptLine, ...] = ()


@attrs.frozen(kw_only=True)
class ConsumerPart:
    """A process that reads as long as the run lasts: from the beginning, or from its group's offsets."""

    name: str
    isolation_level: Annotated[IsolationLevel, Key("isolation")] = IsolationLevel.READ_COMMITTED
    group: str | None = None
    is_called: IsCalled = False
    reads: tuple[TopicPartition, ...] = ()


@attrs.frozen(kw_only=True)
class ProcessorPart:
    """A process that consumes, transforms (to upper case) and produces, with its offsets in the transaction,
    until everything is processed: from `reads` to the same partitions of the topic `writes`. One that
    `subscribes` to topics instead is a member of its group, which gives it partitions by `assignor`.
    """

    name: str
    transactional_id: str = attrs.Factory(lambda self: self.name, takes_self=True)
    group: str = "processors"
    is_called: IsCalled = False
    assignor: Annotated[str, OneOf(tuple(ASSIGNORS))] = "range"
    subscribes: tuple[str, ...] = ()
    reads: tuple[TopicPartition, ...] = ()
    writes: str

    def inputs(self, cluster: ClusterShape) -> tuple[TopicPartition, ...]:
        """What it copies, alone or with the other members of its group."""
        shared = (where for where in cluster.partitions if where.topic in self.subscribes)
        return (*self.reads, *shared)


Part = ProducerPart | ConsumerPart | ProcessorPart
PARTS: Final = {"producer": ProducerPart, "consumer": ConsumerPart, "processor": ProcessorPart}
"""The tables of parts, in the order in which a scenario has them."""


@attrs.frozen(kw_only=True)
class ScenarioExpectation:
    """What must come of a run. `holds` are rules that were put to the test and kept, `violates` those that
    must be broken; any other broken rule fails the scenario. `visible` is what read_committed returns at
    the end, `logs` the contents of the logs, with markers.
    """

    holds: Rules = ()
    violates: Rules = ()
    reaches: tuple[Point, ...] = ()
    visible: Values = ()
    logs: Values = ()


@attrs.frozen(kw_only=True)
class Variant:
    """The same story in another cluster, with another outcome."""

    cluster: ClusterShape
    expect: ScenarioExpectation


@attrs.frozen(kw_only=True)
class SeededRun:
    """A world that a search found: a plan draws its processes and faults, the scenario's choices decide the
    rest.
    """

    plan: FuzzPlan


@attrs.frozen(kw_only=True)
class Scenario:
    """A story. `lesson` is what it teaches, `parts` are producers, then consumers, then processors; `choices`
    are those of a run that was found by a search; without any it is the calmest run.
    """

    name: str
    lesson: Annotated[str, Prose()] = ""
    choices: tuple[Annotated[int, Between(0, NUMBER_MAX)], ...] = ()
    cluster: Annotated[ClusterShape, Key("")] = ClusterShape()
    parts: Annotated[tuple[Part, ...], Key("")] = ()
    faults: Annotated[tuple[Fault, ...], Key("")] = ()
    expect: Annotated[ScenarioExpectation, Key("")] = ScenarioExpectation()
    also_with: Annotated[tuple[Variant, ...], Key("")] = ()
    seeded: Annotated[SeededRun | None, Key("")] = None

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
    expect: ScenarioExpectation

    @property
    def name(self) -> str:
        return f"{self.scenario.name} ({self.title})" if self.title else self.scenario.name


def cases(scenario: Scenario) -> Iterator[Case]:
    """Every run that a scenario asks for: each variant with each choice of points. TypeError at once for a
    builder.
    """
    _refuse_builders(scenario)
    return _cases(scenario)


def _refuse_builders(found: object) -> None:
    if not isinstance(found, Scenario):
        raise TypeError(f"a {type(found).__name__} is not a scenario: call its .scenario() first")


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
