"""Which acknowledged records are missing: compares a list of acknowledgements with the log.

Rule: a record counts as acknowledged when its producer could rely on it: outside transactions with its
acknowledgement, in a transaction with the success of the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.audit.audit import FINDINGS_MAX, load
from fencepost.audit.rows import Row
from fencepost.check.findings import Findings, Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ACK_SCHEMA: Final = "topic string, partition int, offset bigint, key string, broken string"

_MARKERS: Final = {"commit": "a commit marker", "abort": "an abort marker"}
MISSING: Final = "the producer got an acknowledgement of this record"
REPLACED: Final = "the acknowledged record was lost, and its offset was given to another"
TWICE: Final = "all but one of them were lost, or the file has a line twice"


def missing_acks(spark: SparkSession, paths: Sequence[str], acks: Path) -> Findings:
    """Compares a file of JSON lines with `topic`, `partition`, `offset` and perhaps `key` with the log."""
    findings = Findings()
    acknowledged = (
        spark.read.schema(ACK_SCHEMA).option("columnNameOfCorruptRecord", "broken").json(str(acks)).cache()
    )
    unread = acknowledged.where("topic IS NULL OR partition IS NULL OR offset IS NULL").count()
    if unread:
        what = f"{unread} {'line has' if unread == 1 else 'lines have'} no topic, no partition or no offset"
        findings.problem(Location(str(acks)), what, "they were not compared")
    acknowledged = acknowledged.where(
        "topic IS NOT NULL AND partition IS NOT NULL AND offset IS NOT NULL"
    ).drop("broken")
    topics = sorted(row["topic"] for row in acknowledged.select("topic").distinct().collect())
    if not topics:
        if not unread:
            findings.note(Location(str(acks)), "it is empty", "no record was compared")
        return findings
    counts = acknowledged.groupBy("topic", "partition", "offset").count().where("count > 1")
    repeated = counts.orderBy("topic", "partition", "offset").limit(FINDINGS_MAX).collect()
    acknowledged = acknowledged.distinct()
    subscribe = ",".join(topics)
    records = load(spark, paths, "records", subscribe=subscribe).selectExpr(
        "topic", "partition", "offset", "CAST(key AS string) AS foundKey", "true AS found"
    )
    joined = acknowledged.join(records, ["topic", "partition", "offset"], "left")
    wrong = joined.where("found IS NULL OR (key IS NOT NULL AND NOT key <=> foundKey)")
    count = wrong.count()
    some = wrong.orderBy("topic", "partition", "offset").limit(FINDINGS_MAX)
    for row in _explained(spark, paths, some, subscribe):
        _report_missing(row, findings)
    if count > FINDINGS_MAX:
        what = f"{count - FINDINGS_MAX} more acknowledged records are missing"
        findings.problem(Location(str(acks)), what, MISSING)
    for row in repeated:
        location = Location(f"{row['topic']}-{row['partition']}", row["offset"])
        findings.problem(location, f"{row['count']} records were acknowledged at this offset", TWICE)
    return findings


def _explained(spark: SparkSession, paths: Sequence[str], wrong: DataFrame, subscribe: str) -> list[Row]:
    """The missing records, with the batch at their offset and the bounds of their partition."""
    batches = load(spark, paths, "batches", subscribe=subscribe).selectExpr(
        "topic", "partition", "baseOffset", "lastOffset", "kind", "state", "file"
    )
    bounds = load(spark, paths, "partitions", subscribe=subscribe).select(
        "topic", "partition", "logStartOffset", "logEndOffset"
    )
    some = wrong.hint("broadcast").alias("wrong")
    at = (
        (batches["topic"] == some["topic"])
        & (batches["partition"] == some["partition"])
        & (some["offset"].between(batches["baseOffset"], batches["lastOffset"]))
    )
    found = batches.join(some, at, "right").select("wrong.*", "kind", "state", "file")
    explained = found.join(bounds, ["topic", "partition"], "left").orderBy("topic", "partition", "offset")
    return [row.asDict() for row in explained.collect()]


def _report_missing(row: Row, findings: Findings) -> None:
    location = Location(row["file"] or f"{row['topic']}-{row['partition']}", row["offset"])
    record = "the acknowledged record" + (f" with key {row['key']!r}" if row["key"] is not None else "")
    if row["found"]:
        findings.problem(location, f"{record} is not here, but one with key {row['foundKey']!r}", REPLACED)
    elif row["logStartOffset"] is None:
        findings.problem(location, f"{record} is missing: there is no such partition", MISSING)
    elif row["offset"] < row["logStartOffset"]:
        findings.note(location, f"{record} was deleted", "retention or delete-records removed it")
    elif row["offset"] >= row["logEndOffset"]:
        end = row["logEndOffset"]
        findings.problem(location, f"{record} is missing: the log ends at offset {end}", MISSING)
    elif row["state"] == "aborted":
        findings.problem(location, f"{record} was aborted", MISSING)
    elif row["state"] == "open":
        findings.note(location, f"the transaction of {record} is open", "it is not decided yet")
    elif row["kind"] in ("commit", "abort"):
        findings.problem(location, f"{record} is missing: {_MARKERS[row['kind']]} is at its offset", MISSING)
    elif row["kind"] is None:
        findings.problem(location, f"{record} is missing: no batch has its offset", MISSING)
    else:
        what = f"{record} is missing in the batch that has its offset"
        findings.note(location, what, "compaction removed it, or the transaction before it is open")
