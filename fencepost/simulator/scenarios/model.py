"""A scenario as a value: its processes, its faults with the points at which they strike, and the expected
outcome.

Rule: each class is a table of the file, and `codec.py` reads and writes it by its annotations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Annotated, Any, Final

import attrs

from fencepost.broker.kafka_fixes import FIX_NAMES, KafkaFixes
from fencepost.broker.settings import PROTECTIONS, NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS
from fencepost.client.assignors import ASSIGNORS
from fencepost.client.settings import newest_producer_version
from fencepost.faults.grammar import NUMBER_MAX
from fencepost.faults.phrases import Fault, Point, PointKind, ScriptLine
from fencepost.journal.journal import JournalSettings
from fencepost.protocol.terms import ID_LENGTH_MAX, LAST_GRANTED_EPOCH, IsolationLevel, TopicPartition
from fencepost.simulator.actors.workloads import KeyDraw, Membership
from fencepost.simulator.faults.random_faults import FaultKind
from fencepost.simulator.judges.known_anomalies import OLD_BEHAVIOURS
from fencepost.simulator.judges.rules import HISTORY_RULES, STEP_RULES
from fencepost.simulator.run import CORE_FAILED, NOT_LIVE
from fencepost.simulator.run_result import counted
from fencepost.simulator.scenarios.codec import Between, Key, Length, Lists, OneOf, Prose, Spelled
from fencepost.simulator.world.choices import PERMILLE
from fencepost.simulator.world.world import WorldSettings

# Every scenario that can be written runs in seconds, and its numbers fit into the fields of the protocol.
NODES_MAX: Final = 9  # a drawing with more is unreadable
PARTITIONS_MAX: Final = 100  # of one topic, and of __transaction_state
TRANSACTION_TIMEOUT_MAX_MS: Final = NodeSettings().transaction_max_timeout_ms
WORK_MAX: Final = 10_000  # transactions, records and strikes
RUNS_MAX: Final = 1_000  # variants, each with every combination of the points of its faults
LATENCY_MAX_US: Final = 50_000  # of a message or a sync: far below every timeout of a fuzzed world
DRIFT_MAX_PPM: Final = 500_000  # a clock runs at half to one and a half times the true speed

IsCalled = Annotated[bool, Key("starts"), Spelled({False: "at once", True: "on request"})]
Name = Annotated[str, Length(ID_LENGTH_MAX)]  # of a process, a group or a transactional id
Partitions = Annotated[int, Between(1, PARTITIONS_MAX)]
Permille = Annotated[int, Between(0, PERMILLE)]
TransactionTimeout = Annotated[int, Between(1, TRANSACTION_TIMEOUT_MAX_MS)]
Latency = Annotated[int, Between(1, LATENCY_MAX_US)]
Count = Annotated[int, Between(0, WORK_MAX)]
Work = Annotated[int, Between(1, WORK_MAX)]
Assignor = Annotated[str, OneOf(tuple(ASSIGNORS))]
Values = tuple[tuple[TopicPartition, tuple[str, ...]], ...]


# --- rules --------------------------------------------------------------------------------------------------

CONVERGES: Final = "converges"
HANGING_TRANSACTION: Final = "hanging-transaction"
EXACTLY_ONCE: Final = "exactly-once"

# The rules that exactly-once stands for.
EXACTLY_ONCE_RULES: Final = (
    "duplicate",
    "lost-write",
    "torn-transaction",
    "unseen",
    "G1a",
    "missing-output",
    "doubled-output",
    "foreign-output",
)
RULE_NAMES: Final = (
    CONVERGES,
    HANGING_TRANSACTION,
    EXACTLY_ONCE,
    *(rule.name for rule in (*HISTORY_RULES, *STEP_RULES)),
)
SEARCH_RULES: Final = (NOT_LIVE, CORE_FAILED, *RULE_NAMES, *(each.name for each in OLD_BEHAVIOURS))
"""What may end a run that a search found."""
Rules = Annotated[tuple[str, ...], OneOf(SEARCH_RULES)]


def spelled_out(names: Iterable[str]) -> tuple[str, ...]:
    """These rules, and after exactly-once those that it stands for."""
    found: list[str] = []
    for name in names:
        found += (name, *EXACTLY_ONCE_RULES) if name == EXACTLY_ONCE else (name,)
    return tuple(found)


def contradictory(holds: Iterable[str], violates: Iterable[str]) -> tuple[str, ...]:
    """The violated rules that are also expected to hold."""
    kept = spelled_out(holds)
    return tuple(name for name in violates if name in kept)


# --- the world ----------------------------------------------------------------------------------------------


DIRTY_SEGMENTS: Final = 8  # coordinators' logs are compacted when so many were written


@attrs.frozen(kw_only=True)
class Brokers:
    """What a story and a fuzzed world both say about their brokers. `coordinators` is how many partitions
    `__transaction_state` has; `broken` are protections that are turned off, `without_fixes` the fixes of
    later Kafka versions that are.
    """

    nodes: Annotated[int, Between(1, NODES_MAX)] = 1
    transaction_version: Annotated[int, OneOf(tuple(TRANSACTION_VERSIONS))] = 2
    partition_verification: bool = True
    coordinators: Partitions = 1
    timeout_scan_ms: int = 100
    sync: SyncPolicy = SyncPolicy.NONE
    segment_bytes: int = 65_536
    broken: Annotated[tuple[str, ...], OneOf(tuple(sorted(PROTECTIONS)))] = ()
    without_fixes: Annotated[tuple[str, ...], OneOf(FIX_NAMES)] = ()

    @property
    def producer_version(self) -> int:
        """The newest transaction version of clients that these brokers speak."""
        return newest_producer_version(self.transaction_version)

    def world(self, **more: Any) -> WorldSettings:
        """A world of such brokers, with short times: so much happens in a second that faults meet each other.
        `more` are settings of nodes.
        """
        return WorldSettings(
            nodes=self.nodes,
            node_settings=NodeSettings(
                transaction_version=TRANSACTION_VERSIONS[self.transaction_version],
                partition_verification=self.partition_verification,
                broken=frozenset(self.broken),
                fixes=KafkaFixes.without(self.without_fixes),
                transaction_state_log_num_partitions=self.coordinators,
                offsets_topic_num_partitions=1,
                transaction_abort_timed_out_transaction_cleanup_interval_ms=self.timeout_scan_ms,
                reelection_backoff_ms=20,
                marker_retry_backoff_ms=10,
                coordinator_logs_dirty_bytes_max=DIRTY_SEGMENTS * self.segment_bytes,
                **more,
            ),
            policy=self.sync,
            journals=JournalSettings(segment_bytes=self.segment_bytes),
        )


@attrs.frozen(kw_only=True)
class ClusterShape(Brokers):
    """The cluster of a story. `topics` are names with their number of partitions."""

    topics: tuple[tuple[str, Partitions], ...] = (("t", 2),)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Every partition of every topic, in their order."""
        return tuple(TopicPartition(topic, number) for topic, count in self.topics for number in range(count))


# --- who takes part -----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ProducerPart:
    """A process that follows a script; without a transactional id it is only idempotent."""

    name: Name
    transactional_id: Name | None = None
    is_called: IsCalled = False  # a fault starts it
    transaction_timeout_ms: TransactionTimeout = 60_000
    request_timeout_ms: int = 1_500
    delivery_timeout_ms: int = 120_000
    max_in_flight: Annotated[int, OneOf((1, 2, 3, 4, 5))] = 5
    script: tuple[ScriptLine, ...] = ()


@attrs.frozen(kw_only=True)
class ConsumerPart:
    """A process that reads until the run ends: from the beginning, or from its group's offsets."""

    name: Name
    isolation_level: Annotated[IsolationLevel, Key("isolation")] = IsolationLevel.READ_COMMITTED
    group: Name | None = None
    is_called: IsCalled = False
    reads: tuple[TopicPartition, ...] = ()


@attrs.frozen(kw_only=True)
class ProcessorPart:
    """A process that consumes, transforms (to upper case) and produces, with its offsets in the transaction,
    until everything is processed: from `reads` to the same partitions of the topic `writes`. One that
    `subscribes` to topics instead is a member of its group, which gives it partitions by `assignor`.
    """

    name: Name
    transactional_id: Name = attrs.Factory(lambda self: self.name, takes_self=True)
    group: Name = "processors"
    is_called: IsCalled = False
    assignor: Assignor = "range"
    subscribes: tuple[str, ...] = ()
    reads: tuple[TopicPartition, ...] = ()
    writes: str

    def inputs(self, cluster: ClusterShape) -> tuple[TopicPartition, ...]:
        """The partitions that it copies, alone or with the other members of its group."""
        shared = (where for where in cluster.partitions if where.topic in self.subscribes)
        return (*self.reads, *shared)


Part = ProducerPart | ConsumerPart | ProcessorPart
PARTS: Final = Lists(producer=ProducerPart, consumer=ConsumerPart, processor=ProcessorPart)


# --- what a search found ------------------------------------------------------------------------------------

GROUP: Final = "sharers"
LONG_MS: Final = 60_000
RECORDS_MAX: Final = 4
SESSIONS_MS: Final = (1_500, 600)
POLL_INTERVALS_MS: Final = (3_000, 1_000)


@attrs.frozen(kw_only=True)
class TxnWriterPlan:
    """One process that writes transactions. Two with one id fight for it."""

    name: Name
    transactional_id: Name = attrs.Factory(lambda self: self.name, takes_self=True)
    transactions: Work = 1
    transaction_timeout_ms: TransactionTimeout = LONG_MS
    records_max: Work = RECORDS_MAX  # in one transaction
    reads: bool = False  # in each transaction, what is committed where it writes


@attrs.frozen(kw_only=True)
class MemberPlan(Membership):
    """One processor that is a member of a group."""

    name: Name
    group: Name = GROUP
    assignor: Assignor = "range"
    group_instance_id: Name | None = None
    session_timeout_ms: Work = SESSIONS_MS[0]
    heartbeat_interval_ms: Work = SESSIONS_MS[0] // 6
    max_poll_interval_ms: Work = POLL_INTERVALS_MS[0]
    starts_after_ms: Count = 0
    stalls: Permille = 0
    leaves: Permille = 0


@attrs.frozen(kw_only=True)
class CompactionPlan(KeyDraw):
    """A compacted topic, to which all writers of a fuzzed world write. `tombstones` is permille of the
    records. Where retention has a limit (0: none), old segments are deleted, too.
    """

    keys: Work
    tombstones: Permille = 0
    min_cleanable_dirty_permille: Permille = 0
    min_compaction_lag_ms: Count = 0
    delete_retention_ms: Count = 0
    retention_ms: Count = 0
    retention_bytes: Count = 0
    rereaders: Count = 0  # processes that start late, and begin again


@attrs.frozen(kw_only=True)
class IdentityPlan:
    """How the identities of producers end in a fuzzed world. `epochs_left` are the epochs that the first
    producer id of each transactional id can still have; a transactional id expires when it was unused for
    `expiration_ms` (0: it does not).
    """

    epochs_left: Annotated[int, Between(0, LAST_GRANTED_EPOCH)]
    expiration_ms: Count = 0


@attrs.frozen(kw_only=True)
class FuzzPlan(Brokers):
    """One seed's world, its workload and its faults; everything random in it was decided when it was drawn.
    The default is the calmest world, without any work.
    """

    latency_us: Latency = 100
    sync_latency_us: Latency = 200
    encodes: bool = False
    own_travels: bool = False
    # How many records a plain producer writes into each partition of the input, for processors to copy.
    idempotent_writes: Count = 0
    processors: tuple[Name, ...] = ()  # names; they all share one transactional id
    epoch_bumps: Count = 0  # how often a process asks for the identity after the one that it has
    reads_uncommitted: bool = False
    strange_requests: Count = 0  # how many a process sends whose requests have an extreme meaning
    topic_deletions: Count = 0  # how often a topic is deleted and created again while it is used
    drifts_ppm: Annotated[
        tuple[Annotated[int, Between(-DRIFT_MAX_PPM, DRIFT_MAX_PPM)], ...], Key("clock_drifts_ppm")
    ] = ()  # of the nodes' clocks, in their order
    slow_participants: Count = 0  # PCT: so many times a participant becomes the slowest
    txn_writers: Annotated[tuple[TxnWriterPlan, ...], Lists(txn_writer=TxnWriterPlan)] = ()
    members: Annotated[tuple[MemberPlan, ...], Lists(member=MemberPlan)] = ()
    kinds: Annotated[tuple[FaultKind, ...], Key("kinds", within="faults")] = ()
    strikes: Annotated[Count, Key("strikes", within="faults")] = 0
    pause_ms: Annotated[int, Key("pause_ms", within="faults")] = 120  # between two strikes, about
    compaction: CompactionPlan | None = None
    identities: IdentityPlan | None = None


# --- the scenario -------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ScenarioExpectation:
    """The expected outcome. `holds` are rules that must be exercised and hold, `violates` those that must be
    violated; any other violated rule fails the scenario. `visible` is what read_committed returns at the end,
    `logs` the contents of the logs, with markers.
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
class Scenario:
    """A story. `lesson` is what it teaches; `parts` are producers, then consumers, then processors. `choices`
    are those of a run that a search found; without them every choice is 0. With a `seeded` plan, the plan
    names the participants and draws the faults, the choices decide the rest, and `faults` strike in addition.
    """

    name: str
    lesson: Annotated[str, Prose()] = ""
    choices: tuple[Annotated[int, Between(0, NUMBER_MAX)], ...] = attrs.field(
        default=(), repr=counted("choices")
    )
    cluster: ClusterShape = attrs.field(default=ClusterShape(), repr=False)
    parts: Annotated[tuple[Part, ...], PARTS] = attrs.field(default=(), repr=counted("parts"))
    faults: Annotated[tuple[Fault, ...], Lists(fault=Fault)] = attrs.field(default=(), repr=counted("faults"))
    seeded: FuzzPlan | None = attrs.field(default=None, repr=lambda plan: "<a plan>" if plan else "None")
    expect: ScenarioExpectation = attrs.field(default=ScenarioExpectation(), repr=False)
    also_with: Annotated[tuple[Variant, ...], Key("")] = attrs.field(default=(), repr=counted("variants"))

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        """Every transactional id in it, once."""
        named = (part.transactional_id for part in self.parts if not isinstance(part, ConsumerPart))
        return tuple(dict.fromkeys(name for name in named if name is not None))


@attrs.frozen(kw_only=True)
class Case:
    """One run of a scenario: one cluster, one outcome, one point per fault. `title` distinguishes it."""

    scenario: Scenario
    title: str
    cluster: ClusterShape
    faults: tuple[Fault, ...]
    expect: ScenarioExpectation

    @property
    def name(self) -> str:
        return f"{self.scenario.name} ({self.title})" if self.title else self.scenario.name


def cases(scenario: Scenario) -> Iterator[Case]:
    """Every run of a scenario: each variant with each choice of points. TypeError at once for a builder."""
    _refuse_builders(scenario)
    return _cases(scenario)


def variants(scenario: Scenario, wanted: int | str | None = None) -> list[tuple[int, Case]]:
    """The runs of a scenario with their numbers from 1: all, that of a number, or those whose names contain a
    text.
    """
    every = list(enumerate(cases(scenario), start=1))
    if wanted is None:
        return every
    text = str(wanted).casefold()
    if text.isdecimal():
        return [(number, case) for number, case in every if number == int(text)]
    return [(number, case) for number, case in every if text in case.name.casefold()]


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
