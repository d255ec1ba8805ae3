"""Does an output topic have each input exactly once? Both are counted by one expression, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fencepost.audit.audit import FINDINGS_MAX, load
from fencepost.audit.rows import Row
from fencepost.check.findings import Findings, Location, counted
from fencepost.journal.layouts import LogLayout
from fencepost.journal.segments import LOG, file_name
from fencepost.journal.storage import directory_name
from fencepost.protocol.terms import TopicPartition
from fencepost.spark_bridge.partition_files import open_partition_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ONCE: Final = "the output does not have each input exactly once"
ANONYMOUS: Final = "they cannot be told from each other, and were not compared"
TOMBSTONES_BY: Final = "value"
"""The one expression for which null identifies a record as well as any other value does."""


def compare(
    spark: SparkSession, layout: LogLayout, paths: Sequence[str], *, source: str, target: str, by: str
) -> Findings:
    """Compares the committed records of two topics. `by` is a Spark SQL expression over `key` and `value` (as
    strings) and `headers`; records with equal values correspond to each other.
    """
    came, went = _counted(spark, paths, source, by, "in"), _counted(spark, paths, target, by, "out")
    joined = came.join(went, came["inBy"].eqNullSafe(went["outBy"]), "full_outer")
    compared = joined.selectExpr("coalesce(inBy, outBy) AS by", "*").cache()
    findings = Findings()
    if compared.isEmpty():
        what = f"{source} and {target} have no committed records"
        findings.note(Location(layout.location), what, "nothing was compared")
    wrong = compared.where("NOT in <=> out")
    if by.strip() != TOMBSTONES_BY:
        for row in compared.where("by IS NULL").collect():
            for topic, side in ((source, "in"), (target, "out")):
                if row[side]:
                    what = f"{by} is null for {counted(row[side], 'record')} of {topic}"
                    findings.problem(_location(layout, topic, row[f"{side}First"]), what, ANONYMOUS)
        wrong = wrong.where("by IS NOT NULL")
    count = wrong.count()
    for row in wrong.orderBy("by").limit(FINDINGS_MAX).collect():
        _report_difference(row.asDict(recursive=True), source, target, layout, findings)
    if count > FINDINGS_MAX:
        what = f"{count - FINDINGS_MAX} more values differ"
        findings.problem(Location(layout.location), what, ONCE)
    compared.unpersist()
    return findings


def check_expression(spark: SparkSession, paths: Sequence[str], *, topic: str, by: str) -> None:
    """Raises Spark's AnalysisException if `by` is not an expression for records; reads none."""
    _expressed(spark, paths, topic, by, "in")


def _counted(spark: SparkSession, paths: Sequence[str], topic: str, by: str, side: str) -> DataFrame:
    """How many records have each value of the expression, and where the first of them is."""
    return _expressed(spark, paths, topic, by, side).groupBy(f"{side}By").agg(*_aggregates(side))


def _expressed(spark: SparkSession, paths: Sequence[str], topic: str, by: str, side: str) -> DataFrame:
    """The value of the expression for each record, and where the record is."""
    from pyspark.sql import functions

    records = load(spark, paths, "records", subscribe=topic, includeHeaders="true").selectExpr(
        "CAST(key AS string) AS key", "CAST(value AS string) AS value", "headers", "partition", "offset"
    )
    return records.select(functions.expr(by).cast("string").alias(f"{side}By"), "partition", "offset")


def _aggregates(side: str) -> list[Column]:
    from pyspark.sql import functions

    first = functions.min(functions.struct("partition", "offset"))
    last = functions.max(functions.struct("partition", "offset"))
    return [functions.count("*").alias(side), first.alias(f"{side}First"), last.alias(f"{side}Last")]


def _report_difference(row: Row, source: str, target: str, layout: LogLayout, findings: Findings) -> None:
    came, went, by = row["in"] or 0, row["out"] or 0, "null" if row["by"] is None else repr(row["by"])
    if not came:
        what = f"{by} occurs {_times(went)} in {target} and not in {source}"
        findings.problem(_location(layout, target, row["outFirst"]), what, ONCE)
    elif went < came:
        what = f"{by} occurs {_times(came)} in {source} and {_times(went)} in {target}: lost"
        findings.problem(_location(layout, source, row["inLast"]), what, ONCE)
    else:
        what = f"{by} occurs {_times(came)} in {source} and {_times(went)} in {target}: duplicated"
        findings.problem(_location(layout, target, row["outLast"]), what, ONCE)


def _times(count: int) -> str:
    return {0: "not", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _location(layout: LogLayout, topic: str, at: Row) -> Location:
    """The log file that holds an offset, and the offset."""
    log = open_partition_files(layout, TopicPartition(topic, at["partition"]))
    base_offset = log.segments[log.segment_index(at["offset"])].base_offset
    return Location(f"{directory_name(log.partition)}/{file_name(base_offset, LOG)}", at["offset"])
