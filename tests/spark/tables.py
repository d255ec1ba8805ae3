"""Rows of tables without Spark, and the naive answer: every batch of a log, decided by the log model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from fencepost.journal.layouts import open_layout
from fencepost.journal.segments import LOG, parse_file_name, walk_batches
from fencepost.journal.storage import StorageReader
from fencepost.log_model.partitions import PartitionModel
from fencepost.protocol.batches import BatchHeader, marker_in
from fencepost.protocol.terms import TopicPartition, TransactionResult
from fencepost.spark_bridge.columns import Column
from fencepost.spark_bridge.options import parse_options
from fencepost.spark_bridge.tables.arrow import to_arrow
from fencepost.spark_bridge.tables.registry import TABLES


def rows_of(name: str, *storages: StorageReader, **options: str) -> list[dict[str, Any]]:
    """Every row of a table, in the order of tasks."""
    table, layout = TABLES[name], open_layout(storages)
    parsed = parse_options({"path": "unused", "table": name, **options}, parallelism=2)
    columns = [Column(column, column) for column in table.columns]
    wanted = frozenset(table.columns)
    return [
        row
        for task in table.plan(layout, parsed)
        for batch in to_arrow(table.rows(layout, task, parsed, wanted), table.columns, columns)
        for row in batch.to_pylist()
    ]


@attrs.frozen
class Written:
    """A batch in a log file."""

    partition: TopicPartition
    file: str
    position: int
    header: BatchHeader
    kind: str
    state: str


def written(storage: StorageReader) -> list[Written]:
    """Every batch of all topics but internal ones, by partition and offset."""
    return [
        batch
        for partition in open_layout([storage]).partitions()
        if not partition.topic.startswith("__")
        for batch in _batches(storage, partition)
    ]


def _batches(storage: StorageReader, partition: TopicPartition) -> list[Written]:
    model, found = PartitionModel(), list[Written]()
    for name, size in storage.files(str(partition)).items():
        if parse_file_name(name)[1] != LOG:
            continue
        path = f"{partition}/{name}"
        for position, header, data in walk_batches(storage.open(path), 0, size):
            marker = marker_in(bytes(data), header) if header.is_control else None
            logged = model.apply(header, marker)
            kind = logged.result.name.lower() if logged else "control" if header.is_control else "data"
            found.append(Written(partition, path, position, header, kind, "none"))
    return [
        attrs.evolve(batch, state=_decided(model, batch.header))
        if batch.kind == "data" and batch.header.is_transactional and batch.header.record_count
        else batch
        for batch in found
    ]


def _decided(model: PartitionModel, header: BatchHeader) -> str:
    results: Mapping[TransactionResult | None, str] = {
        TransactionResult.COMMIT: "committed",
        TransactionResult.ABORT: "aborted",
        None: "open",
    }
    return results[model.result_of(header.producer_id, header.base_offset)]
