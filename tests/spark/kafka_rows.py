"""What the reader makes of log directories of Apache Kafka, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fencepost.journal.layouts import open_layout
from fencepost.journal.storage import StorageReader
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.spark_bridge.columns import Column
from fencepost.spark_bridge.options import parse_options
from fencepost.spark_bridge.planning import ReadTask
from fencepost.spark_bridge.ranges import plan_batch
from fencepost.spark_bridge.rows import record_batches
from fencepost.spark_bridge.scanning import RangeScan
from tests.kafka_directories import Consumed
from tests.spark.logs import COMMITTED

COLUMNS = [
    Column(name, name)
    for name in ("topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers")
]


def read(
    *storages: StorageReader, level: IsolationLevel = COMMITTED, **options: str
) -> dict[TopicPartition, list[Consumed]]:
    """Every row of the topics that were consumed, by partition, in the order of tasks."""
    return rows_of(storages, tasks_of(storages, level, options), level)


def tasks_of(
    storages: Sequence[StorageReader], level: IsolationLevel, options: dict[str, str]
) -> list[ReadTask]:
    layout = open_layout(storages)
    if not {"subscribe", "assign"} & options.keys():
        topics = {partition.topic for partition in layout.partitions()}
        options["subscribe"] = ",".join(topics - {"__cluster_metadata"})
    parsed = parse_options({"path": "unused", "isolation.level": level.name.lower(), **options})
    return plan_batch(layout, parsed, report=None)


def rows_of(
    storages: Sequence[StorageReader], tasks: Sequence[ReadTask], level: IsolationLevel
) -> dict[TopicPartition, list[Consumed]]:
    """What workers make of tasks."""
    layout = open_layout(storages)
    found: dict[TopicPartition, list[Consumed]] = {}
    for task in tasks:
        scans = (RangeScan(layout, range_, isolation_level=level) for range_ in task.ranges)
        for batch in record_batches(scans, COLUMNS):
            for row in batch.to_pylist():
                partition = TopicPartition(row["topic"], row["partition"])
                found.setdefault(partition, []).append(_as_consumed(row))
    return found


def _as_consumed(row: Mapping[str, Any]) -> Consumed:
    return Consumed(
        row["offset"],
        row["key"],
        row["value"],
        round(row["timestamp"].timestamp() * 1000),
        row["timestampType"],
        tuple((header["key"], header["value"]) for header in row["headers"] or ()),
    )
