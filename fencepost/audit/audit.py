"""The audit of a directory: Spark distributes the tables to the folds and collects what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from fencepost.audit.directory import (
    INCOMPLETE,
    LogBounds,
    bounds_of,
    comparable_partitions,
    creation_times,
    find_damaged_indexes,
    known_cluster,
    unknown_topics,
    why_not_comparable,
)
from fencepost.audit.folds import (
    BATCH_COLUMNS,
    DECISION_SCHEMA,
    Known,
    fold_decisions,
    fold_histories,
    fold_producers,
)
from fencepost.audit.rows import FINDING_SCHEMA, Row, findings_of
from fencepost.audit.stalled_readers import PartitionEnd, judge_open
from fencepost.check.directory import ADOPTED, UNSERVED
from fencepost.check.findings import Findings, Location
from fencepost.journal.layouts import LogLayout
from fencepost.journal.manifest import MANIFEST_FILE
from fencepost.protocol.terms import CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.spark_bridge.arrow_types import ARROW_TYPES, ROWS_PER_BATCH
from fencepost.spark_bridge.log_offsets import MANIFEST_ADVICE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOST = (
    "every reader stops here, or leaves these records out with failOnDataLoss=false; see `fencepost repair`"
)
FINDINGS_MAX: Final = 1_000  # of one kind, in the reports of acks.py and compare.py; the rest is counted
TORN = "the transaction is committed in some partitions and not in others"


def load(spark: SparkSession, paths: Sequence[str], table: str, **options: str) -> DataFrame:
    """A table of the directories; damage is left out of it, and found in the table `losses`."""
    reader = spark.read.format("fencepost").option("table", table)
    return reader.options(failOnDataLoss="false", warnOnDataLoss="false", **options).load(list(paths))


def audit(
    spark: SparkSession, layout: LogLayout, paths: Sequence[str], *, is_in_use: bool = False
) -> Findings:
    """Audits the directories `paths`, whose files `layout` finds; `is_in_use`: a broker is running on
    them.
    """
    cluster, findings = known_cluster(layout), Findings()
    # Of a running broker, a topic may be newer than the metadata that was read.
    unknown = set[str]() if is_in_use else unknown_topics(layout, cluster)
    for topic in sorted(unknown):
        means = f"it was not audited; {UNSERVED}, {ADOPTED}"
        findings.note(Location(topic), "the metadata has no such topic", means)
    left_out = {CLUSTER_METADATA_TOPIC, *unknown}
    partitions = [each for each in layout.partitions() if each.topic not in left_out]
    if not partitions:
        return findings
    is_foreign = TRANSACTION_STATE_TOPIC in unknown
    why_not = INCOMPLETE if is_foreign else why_not_comparable(layout, cluster, is_in_use=is_in_use)
    if why_not:
        findings.note(Location(layout.location), "transactions were not compared with markers", why_not)
    find_damaged_indexes(layout, partitions, findings)
    bounds = bounds_of(layout, partitions)
    subscribe = ",".join(sorted({each.topic for each in partitions}))
    load_all = partial(load, spark, paths, subscribe=subscribe)
    batches = load_all("batches").withColumn("maxMs", _ms("maxTimestamp")).cache()
    coordinator = load(spark, paths, "coordinator").where("false" if is_foreign else "true").cache()
    try:
        sums = _sums(batches, is_sparse=layout.is_sparse)
        starts = [each.start for each in bounds.values()]
        known = Known(
            gaps={each: list(map(tuple, row["gaps"])) for each, row in sums.items() if row["gaps"]},
            comparable=frozenset() if why_not else comparable_partitions(starts, cluster),
            created_ms=creation_times(cluster),
            is_sparse=layout.is_sparse,
        )
        _judge(load_all, batches, coordinator, bounds, sums, known, findings, is_one_moment=not why_not)
    finally:
        batches.unpersist()
        coordinator.unpersist()
    findings.partitions = sum(each.has_files for each in starts)
    findings.batches = sum(row["batches"] for row in sums.values())
    findings.bytes = sum(row["bytes"] for row in sums.values())
    return findings


def _judge(
    load_all: Callable[..., DataFrame],
    batches: DataFrame,
    coordinator: DataFrame,
    bounds: Mapping[TopicPartition, LogBounds],
    sums: Mapping[TopicPartition, Row],
    known: Known,
    findings: Findings,
    *,
    is_one_moment: bool,
) -> None:
    """Runs every audit, and gathers what they find."""
    coordinator = coordinator.withColumns(
        {"startMs": _ms("startTimestamp"), "updateMs": _ms("updateTimestamp")}
    )
    if any(each.offsets.open_transactions for each in bounds.values()):
        transactions = load_all("transactions")
        findings.found += _open(transactions, bounds, sums, coordinator, is_one_moment=is_one_moment).found
    if not is_one_moment or not known.has_every_decision:
        _torn(load_all("transactions"), findings)
    findings.found += findings_of(
        [
            *_collect(_by_id(coordinator, partial(fold_histories, known=known), FINDING_SCHEMA)),
            *_collect(_producers(batches, coordinator, known)),
            # An incomplete index cannot tell whether records are aborted; what is lost is the same at both
            # levels.
            *map(loss_row, _collect(load_all("losses", **{"isolation.level": "read_uncommitted"}))),
        ]
    )


def _ms(column: str) -> Any:
    from pyspark.sql import functions

    return functions.unix_millis(column)


def _collect(frame: DataFrame) -> list[Row]:
    return [row.asDict() for row in frame.collect()]


def _sums(batches: DataFrame, *, is_sparse: bool) -> dict[TopicPartition, Row]:
    """What follows from all batches of a partition, for each that has one. `gaps` are the offsets that
    compaction or a repair left empty.
    """
    from pyspark.sql import functions

    if is_sparse:
        before = "lag(lastOffset) OVER (PARTITION BY topic, partition ORDER BY baseOffset)"
        start, end = f"{before} + 1", "baseOffset"
    else:
        covers = "kind = 'data' AND recordCount = 0 AND producerId IS NULL"
        start, end = f"IF({covers}, baseOffset, NULL)", "lastOffset + 1"
    spaced = batches.selectExpr("*", f"{start} AS start", f"{end} AS end")
    sums = spaced.groupBy("topic", "partition").agg(
        functions.expr("count(1) AS batches"),
        functions.expr("sum(bytes) AS bytes"),
        functions.expr("max(maxMs) FILTER (WHERE kind = 'data') AS newestMs"),
        functions.expr("max(maxMs) FILTER (WHERE kind IN ('commit', 'abort')) AS newestMarkerMs"),
        functions.expr("sort_array(collect_list((start, end)) FILTER (WHERE start < end)) AS gaps"),
    )
    return {TopicPartition(row["topic"], row["partition"]): row for row in _collect(sums)}


def _by_id(
    coordinator: DataFrame, fold: Callable[[Iterable[Row]], Iterator[Mapping[str, Any]]], schema: str
) -> DataFrame:
    """The rows that a fold makes of the histories of transactional ids."""
    dealt = coordinator.drop("startTimestamp", "updateTimestamp").repartition("transactionalId")
    ordered = dealt.sortWithinPartitions("transactionalId", "offset")
    return ordered.mapInArrow(_in_arrow(fold, schema), schema)


def _producers(batches: DataFrame, coordinator: DataFrame, known: Known) -> DataFrame:
    """The findings in the batches of each producer of each partition."""
    from pyspark.sql import functions

    of_producers = batches.where("producerId IS NOT NULL").select(*BATCH_COLUMNS)
    both = of_producers.withColumn("order", functions.col("baseOffset")).withColumn(
        "result", functions.lit(None).cast("string")
    )
    if known.comparable:
        decisions = _by_id(coordinator, fold_decisions, DECISION_SCHEMA)
        decisions = decisions.withColumn("order", functions.col("offset"))
        both = both.unionByName(decisions, allowMissingColumns=True)
    keys = ("topic", "partition", "producerId")
    ordered = both.repartition(*keys).sortWithinPartitions(*keys, functions.col("result").isNull(), "order")
    fold = _in_arrow(partial(fold_producers, known=known), FINDING_SCHEMA)
    return ordered.mapInArrow(fold, FINDING_SCHEMA)


def _in_arrow(
    fold: Callable[[Iterable[Row]], Iterator[Mapping[str, Any]]], schema: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Turns a function of rows into one of Arrow record batches, which runs in workers."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fields = [field.split() for field in schema.split(", ")]
        made = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in fields])
        folded = fold(chain.from_iterable(cast("list[Row]", batch.to_pylist()) for batch in batches))
        while chunk := [dict(row) for row in islice(folded, ROWS_PER_BATCH)]:
            yield pa.RecordBatch.from_pylist(chunk, schema=made)

    return run


def loss_row(loss: Row) -> Row:
    """A row of the table `losses` as a finding, which names the file before its reason."""
    is_manifest = loss["file"].endswith(f"/{MANIFEST_FILE}")
    return {
        "severity": "problem",
        "file": loss["file"],
        "offset": None if is_manifest else loss["startOffset"],
        "what": loss["reason"].replace(loss["file"], "the manifest" if is_manifest else "the log", 1),
        "means": f"every reader stops here; {MANIFEST_ADVICE}" if is_manifest else LOST,
    }


def _open(
    transactions: DataFrame,
    bounds: Mapping[TopicPartition, LogBounds],
    sums: Mapping[TopicPartition, Row],
    coordinator: DataFrame,
    *,
    is_one_moment: bool,
) -> Findings:
    """What holds readers back."""
    still_open = transactions.where("state = 'open'").withColumns(
        {"startMs": _ms("startTimestamp"), "coordinatorStartMs": _ms("coordinatorStart")}
    )
    rows = sorted(_collect(still_open), key=itemgetter("topic", "partition", "firstOffset"))
    ends = {
        (each.topic, each.partition): PartitionEnd(
            offsets.last_stable_offset, offsets.log_end_offset, sums.get(each, {}).get("newestMs") or 0
        )
        for each, (_, offsets) in bounds.items()
    }
    # Markers and the transaction log have the brokers' clocks.
    clocks = [row["newestMarkerMs"] for row in sums.values()]
    clocks.append(coordinator.agg({"updateMs": "max"}).collect()[0][0])
    now_ms = max((clock for clock in clocks if clock is not None), default=0)
    return judge_open(rows, ends, now_ms=now_ms, is_one_moment=is_one_moment)


def _torn(transactions: DataFrame, findings: Findings) -> None:
    """Markers that contradict each other, for a directory without all decisions.

    With an epoch per transaction (KIP-890), a marker has the epoch after its data's, and all markers of that
    epoch have one result.
    """
    ended = transactions.where("markerEpoch = producerEpoch + 1")
    least = "min(state) OVER (PARTITION BY producerId, markerEpoch) AS least"
    split = _collect(ended.selectExpr("*", least).where("state != least"))
    for row in sorted(split, key=itemgetter("producerId", "markerEpoch", "topic", "partition")):
        what = (
            f"producer {row['producerId']} epoch {row['markerEpoch']} {row['state']} here, and "
            f"{row['least']} in another partition"
        )
        findings.problem(Location(row["file"], row["firstOffset"]), what, TORN)
