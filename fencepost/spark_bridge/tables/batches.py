"""Table `batches`: one row per batch, from headers alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import attrs

from fencepost.journal.layouts import LogLayout
from fencepost.protocol.batches import BatchHeader, Marker, checksum_matches, marker_in
from fencepost.protocol.compression import compression_name
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    IsolationLevel,
    TopicPartition,
    TransactionResult,
)
from fencepost.spark_bridge.log_offsets import find_log_offsets
from fencepost.spark_bridge.losses import once
from fencepost.spark_bridge.options import ReadOptions
from fencepost.spark_bridge.partition_files import CorruptLog
from fencepost.spark_bridge.planning import ReadTask, plan
from fencepost.spark_bridge.ranges import batch_range
from fencepost.spark_bridge.scanning import LocatedBatch
from fencepost.spark_bridge.tables.headers import HeaderScan
from fencepost.spark_bridge.tables.table import Row, SourceTable, log_path, time_or_none
from fencepost.spark_bridge.topics import choose_partitions

COLUMNS: Final = {
    "topic": "string",
    "partition": "int",
    "baseOffset": "bigint",
    "lastOffset": "bigint",
    "producerId": "bigint",  # null for records of no producer
    "producerEpoch": "int",
    "baseSequence": "int",  # null in a marker
    "recordCount": "int",  # after a compaction fewer than offsets
    "baseTimestamp": "timestamp",
    "maxTimestamp": "timestamp",
    "kind": "string",  # data, commit, abort, or control for other control batches
    "transactional": "boolean",
    "state": "string",  # committed, aborted or open; none outside transactions
    "compression": "string",
    "leaderEpoch": "int",
    "coordinatorEpoch": "int",  # of a marker
    "file": "string",
    "position": "bigint",  # the byte of the file at which the batch begins
    "bytes": "int",
    "checksum": "bigint",  # CRC-32C, as the header has it
    "checksumMatches": "boolean",  # null without option verifyChecksums=true
}


def plan_headers(layout: LogLayout, options: ReadOptions) -> list[ReadTask]:
    """Returns tasks for all batches of the offsets that the options choose, beyond the last stable offset,
    too.
    """
    everything = attrs.evolve(options, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    report = once(options.report)
    return plan(
        layout,
        choose_partitions(layout.partitions(), options, layout.location),
        partial(batch_range, options=everything, report=report),
        follows_transactions=True,
        sizes=options.sizes,
        find_offsets=partial(find_log_offsets, report=report),
        report=report,
    )


def read_batches(
    layout: LogLayout, task: ReadTask, options: ReadOptions, wanted: frozenset[str]
) -> Iterator[Row]:
    """Yields a row per batch of the task, by partition and offset."""
    verifies = options.verify_checksums and "checksumMatches" in wanted
    for range_ in task.ranges:
        scan = HeaderScan(layout, range_, reads_data=verifies, report=options.report)
        for batch in scan.stored():
            yield _row(layout, scan, batch, verifies=verifies)


def _row(layout: LogLayout, scan: HeaderScan, batch: LocatedBatch, *, verifies: bool) -> Row:
    header, range_ = batch.header, scan.range
    marker = read_stored_marker(batch, range_.partition)
    return (
        range_.partition.topic,
        range_.partition.partition,
        header.base_offset,
        header.last_offset,
        None if header.producer_id == NO_PRODUCER_ID else header.producer_id,
        None if header.producer_epoch == NO_PRODUCER_EPOCH else header.producer_epoch,
        None if header.base_sequence == NO_SEQUENCE else header.base_sequence,
        header.record_count,
        # With a delete horizon, the field holds that instead.
        time_or_none(header.base_timestamp) if header.delete_horizon_ms is None else None,
        time_or_none(header.max_timestamp),
        kind_of(header, marker),
        header.is_transactional,
        scan.transaction_state(header),
        compression_name(header.compression),
        header.leader_epoch,
        None if marker is None else marker.coordinator_epoch,
        log_path(layout, range_.partition, range_.home, batch.base_offset),
        batch.position,
        header.size,
        header.crc,
        checksum_matches(batch.data, 0, header) if verifies else None,
    )


def read_stored_marker(batch: LocatedBatch, partition: TopicPartition) -> Marker | None:
    """The marker in a batch, None for other batches; CorruptLog if a control batch cannot be read."""
    if not batch.header.is_control:
        return None
    try:
        return marker_in(batch.data, batch.header)
    except ProtocolViolation as problem:
        offset = batch.header.base_offset
        raise CorruptLog(f"the control batch at offset {offset} of {partition}: {problem}") from problem


def kind_of(header: BatchHeader, marker: Marker | None) -> str:
    """What a batch is for."""
    if marker is not None:
        return "commit" if marker.result is TransactionResult.COMMIT else "abort"
    return "control" if header.is_control else "data"


BATCHES: Final = SourceTable(columns=COLUMNS, plan=plan_headers, rows=read_batches)
