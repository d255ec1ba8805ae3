"""Scenarios from TOML.

Rule: what is read is what was written, or an error that names the place, the key and what is possible
there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from fencepost.broker.host import SyncPolicy
from fencepost.broker.kafka_fixes import FIX_NAMES
from fencepost.broker.settings import PROTECTIONS
from fencepost.faults.grammar import BadPhrase
from fencepost.faults.phrases import ACTIONS, POINTS, Fault, NoPartition, partition_named
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.simulator.scenarios.limits import NODES_MAX, PARTITIONS_MAX, TRANSACTION_TIMEOUT_MAX_MS
from fencepost.simulator.scenarios.model import (
    ClusterShape,
    ConsumerPart,
    Expectation,
    Part,
    ProcessorPart,
    ProducerPart,
    Scenario,
    Variant,
)
from fencepost.simulator.scenarios.rule_names import RULE_NAMES
from fencepost.simulator.scenarios.scripts import LINES, ScriptLine
from fencepost.simulator.scenarios.seeded import seeded_scenario
from fencepost.simulator.scenarios.tables import TOP, BadScenario, Read, Table, Thing
from fencepost.simulator.scenarios.validation import Inconsistent, check

TRANSACTION_VERSIONS: Final = (0, 1, 2)
AT_ONCE: Final = "at once"
ON_REQUEST: Final = "on request"


def scenario_of(text: str, source: str = "scenario") -> Scenario:
    """The scenario that a TOML text says; `source` is its name in errors. BadScenario when it says none."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise BadScenario(f"{source} is not TOML: {problem}") from None
    return scenario_in(values, source, text.splitlines())


def scenario_in(values: dict[str, Any], source: str, lines: Sequence[str] = ()) -> Scenario:
    """The same, of tables that were read already, or never written; `lines` are those of the text."""
    top = Table(TOP, values, source, lines)
    if top.has("seeded"):
        return seeded_scenario(top)
    cluster = _cluster(top.table("cluster"), ClusterShape())
    expect_table = top.table("expect")
    scenario = Scenario(
        name=top.text("name"),
        lesson=" ".join(top.text("lesson", "").split()),
        cluster=cluster,
        parts=tuple(_parts(top, cluster)),
        faults=tuple(_fault(table) for table in top.tables("fault")),
        expect=_expectation(expect_table, Expectation(), cluster),
        also_with=tuple(_variants(top, expect_table, cluster)),
        choices=top.counts("choices"),
    )
    expect_table.finish()
    top.finish()
    try:
        check(scenario)
    except Inconsistent as problem:
        place = Table(problem.place, {}, source, top.lines)
        raise place.wrong(problem.key, str(problem), problem.possible) from None
    return scenario


# --- the cluster --------------------------------------------------------------------------------------------


def _cluster(table: Table, usual: ClusterShape) -> ClusterShape:
    """What a table says of a cluster, over what it is without that."""
    made = _cluster_keys(table, usual)
    table.finish()
    return made


def _cluster_keys(table: Table, usual: ClusterShape) -> ClusterShape:
    broken = table.texts("broken") if table.has("broken") else usual.broken
    table.named("broken", broken, sorted(PROTECTIONS))
    without = table.texts("without_fixes") if table.has("without_fixes") else usual.without_fixes
    table.named("without_fixes", without, FIX_NAMES)
    policies = {policy.value: policy for policy in SyncPolicy}
    return ClusterShape(
        nodes=table.positive("nodes", usual.nodes, most=NODES_MAX),
        topics=_topics(table) if table.has("topics") else usual.topics,
        transaction_version=table.one_of(
            "transaction_version", TRANSACTION_VERSIONS, usual.transaction_version
        ),
        partition_verification=table.flag("partition_verification", usual.partition_verification),
        coordinators=table.positive("coordinators", usual.coordinators, most=PARTITIONS_MAX),
        timeout_scan_ms=table.positive("timeout_scan_ms", usual.timeout_scan_ms),
        sync=policies[table.one_of("sync", list(policies), usual.sync.value)],
        segment_bytes=table.positive("segment_bytes", usual.segment_bytes),
        broken=broken,
        without_fixes=without,
    )


def _topics(table: Table) -> tuple[tuple[str, int], ...]:
    topics = table.table("topics", f"{table.name} topics")
    return tuple((name, topics.positive(name, 1, most=PARTITIONS_MAX)) for name in topics.values)


def _among(cluster: ClusterShape, read: Read[Thing]) -> Read[Thing]:
    """The same words, understood among the partitions of this cluster."""

    def understood(text: str) -> Thing:
        try:
            return read(text)
        except NoPartition as problem:
            raise BadPhrase(str(problem), possible=map(str, cluster.partitions)) from None

    return understood


# --- people -------------------------------------------------------------------------------------------------


def _parts(top: Table, cluster: ClusterShape) -> Iterator[Part]:
    partition = _among(cluster, partition_named)
    for table in top.tables("producer"):
        yield _producer(table, _among(cluster, LINES.read))
    for table in top.tables("consumer"):
        yield _consumer(table, partition)
    for table in top.tables("processor"):
        yield _processor(table, partition)


def _is_called(table: Table) -> bool:
    return table.one_of("starts", (AT_ONCE, ON_REQUEST), AT_ONCE) == ON_REQUEST


def _optional(table: Table, key: str) -> str | None:
    return table.text(key) if table.has(key) else None


def _producer(table: Table, line: Read[ScriptLine]) -> ProducerPart:
    usual = ProducerPart(name="")
    made = ProducerPart(
        name=table.text("name"),
        transactional_id=_optional(table, "transactional_id"),
        script=table.words("script", line),
        is_called=_is_called(table),
        transaction_timeout_ms=table.positive(
            "transaction_timeout_ms", usual.transaction_timeout_ms, most=TRANSACTION_TIMEOUT_MAX_MS
        ),
        request_timeout_ms=table.positive("request_timeout_ms", usual.request_timeout_ms),
        delivery_timeout_ms=table.positive("delivery_timeout_ms", usual.delivery_timeout_ms),
        max_in_flight=table.one_of("max_in_flight", (1, 2, 3, 4, 5), usual.max_in_flight),
    )
    table.finish()
    return made


def _consumer(table: Table, partition: Read[TopicPartition]) -> ConsumerPart:
    levels = {level.name.lower(): level for level in IsolationLevel}
    made = ConsumerPart(
        name=table.text("name"),
        reads=table.words("reads", partition),
        isolation_level=levels[table.one_of("isolation", list(levels), "read_committed")],
        group=_optional(table, "group"),
        is_called=_is_called(table),
    )
    table.finish()
    return made


def _processor(table: Table, partition: Read[TopicPartition]) -> ProcessorPart:
    name = table.text("name")
    made = ProcessorPart(
        name=name,
        transactional_id=table.text("transactional_id", name),
        reads=table.words("reads", partition),
        writes=table.text("writes"),
        group=table.text("group", "processors"),
        is_called=_is_called(table),
    )
    table.finish()
    return made


# --- faults and expectations --------------------------------------------------------------------------------


def _fault(table: Table) -> Fault:
    if not table.has("when"):
        raise table.wrong("when", "is missing; it is a protocol point, or a list of them")
    made = Fault(
        when=table.words("when", POINTS.read),
        do=table.phrase("do", ACTIONS.read),
        until=table.phrase("until", POINTS.read) if table.has("until") else None,
        times=table.positive("times", 1),
    )
    table.finish()
    return made


def _expectation(table: Table, usual: Expectation, cluster: ClusterShape) -> Expectation:
    """What a table expects, over what is expected anyway; who says what is broken says what is kept, too."""
    judged = table.has("holds") or table.has("violates")
    holds, violates = table.texts("holds"), table.texts("violates")
    table.named("holds", holds, RULE_NAMES)
    table.named("violates", violates, RULE_NAMES)
    return Expectation(
        holds=holds if judged else usual.holds,
        violates=violates if judged else usual.violates,
        reaches=table.words("reaches", POINTS.read) if table.has("reaches") else usual.reaches,
        visible=_values(table, "visible", cluster) if table.has("visible") else usual.visible,
        logs=_values(table, "logs", cluster) if table.has("logs") else usual.logs,
    )


def _values(
    table: Table, key: str, cluster: ClusterShape
) -> tuple[tuple[TopicPartition, tuple[str, ...]], ...]:
    inner = table.table(key, f"{table.name} {key}")
    partition = _among(cluster, partition_named)
    return tuple((table.understood(key, name, partition), inner.texts(name)) for name in inner.values)


def _variants(top: Table, expect: Table, cluster: ClusterShape) -> Iterator[Variant]:
    """Rows of `also_with`: keys of a cluster and of an expectation side by side."""
    usual = _expectation(expect, Expectation(), cluster)
    for row in expect.tables("also_with", "[expect] also_with"):
        made = Variant(cluster=_cluster_keys(row, cluster), expect=_expectation(row, usual, cluster))
        row.finish()
        yield made
