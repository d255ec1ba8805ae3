"""The audit without Spark: the same folds over the same rows, sorted here."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fencepost.audit.directory import (
    LogStart,
    comparable_partitions,
    creation_times,
    known_cluster,
    why_not_comparable,
)
from fencepost.audit.folds import Known, fold_decisions, fold_histories, fold_producers
from fencepost.audit.rows import findings_of
from fencepost.check.findings import Finding
from fencepost.journal.layouts import open_layout
from fencepost.journal.storage import StorageReader
from fencepost.protocol.terms import CLUSTER_METADATA_TOPIC, TopicPartition
from tests.spark.tables import rows_of


def milliseconds(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


def audited(storage: StorageReader) -> list[Finding]:
    """What the folds find."""
    layout = open_layout([storage])
    cluster = known_cluster(layout)
    everything = ",".join({each.topic for each in layout.partitions()} - {CLUSTER_METADATA_TOPIC})
    options = {"subscribe": everything, "failOnDataLoss": "false"}
    batches = rows_of("batches", storage, **options)
    starts = [
        LogStart(TopicPartition(row["topic"], row["partition"]), row["logStartOffset"], row["segments"] > 0)
        for row in rows_of("partitions", storage, **options)
    ]
    comparable = comparable_partitions(starts, cluster)
    known = Known(
        gaps=_gaps(batches, is_sparse=layout.is_sparse),
        comparable=frozenset() if why_not_comparable(layout, cluster, is_in_use=False) else comparable,
        created_ms=creation_times(cluster),
        is_sparse=layout.is_sparse,
    )
    coordinator = [
        {
            **row,
            "startMs": milliseconds(row["startTimestamp"]),
            "updateMs": milliseconds(row["updateTimestamp"]),
        }
        for row in rows_of("coordinator", storage)
    ]
    in_order = sorted(coordinator, key=lambda row: (row["transactionalId"], row["offset"]))
    found = [*fold_histories(in_order, known)]
    both = [
        *(fold_decisions(in_order) if known.comparable else ()),
        *(
            {**row, "maxMs": milliseconds(row["maxTimestamp"]), "result": None}
            for row in batches
            if row["producerId"] is not None
        ),
    ]
    found += fold_producers(sorted(both, key=_order), known)
    return findings_of(found)


def _order(row: dict[str, Any]) -> tuple[object, ...]:
    is_batch = row["result"] is None
    offset = row["baseOffset"] if is_batch else row["offset"]
    return row["topic"], row["partition"], row["producerId"], is_batch, offset


def _gaps(batches: list[dict[str, Any]], *, is_sparse: bool) -> dict[TopicPartition, list[tuple[int, int]]]:
    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    ends: dict[TopicPartition, Any] = {}
    for row in batches:
        partition = TopicPartition(row["topic"], row["partition"])
        end: Any = ends.get(partition, row["baseOffset"])
        if is_sparse and end < row["baseOffset"]:
            found.setdefault(partition, []).append((end, row["baseOffset"]))
        if row["kind"] == "data" and not row["recordCount"] and row["producerId"] is None:
            found.setdefault(partition, []).append((row["baseOffset"], row["lastOffset"] + 1))
        ends[partition] = row["lastOffset"] + 1
    return found
