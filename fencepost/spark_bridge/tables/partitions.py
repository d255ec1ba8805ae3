"""Table `partitions`: one row per partition, with what bounds its readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from fencepost.journal.layouts import LogLayout
from fencepost.protocol.terms import TopicPartition
from fencepost.spark_bridge.log_offsets import LogOffsets, find_log_offsets
from fencepost.spark_bridge.options import ReadOptions
from fencepost.spark_bridge.partition_files import PartitionFiles, with_listing
from fencepost.spark_bridge.tables.headers import HeaderScan
from fencepost.spark_bridge.tables.table import Row, SourceTable, plan_partitions, time_or_none, whole_range

COLUMNS: Final = {
    "topic": "string",
    "partition": "int",
    "logStartOffset": "bigint",
    "lastStableOffset": "bigint",  # where read_committed stops
    "highWatermark": "bigint",  # where read_uncommitted stops
    "logEndOffset": "bigint",  # beyond the high watermark only where replicas lag
    "openTransactions": "int",
    "oldestOpenOffset": "bigint",  # the first offset of the oldest open transaction
    "oldestOpenProducerId": "bigint",
    "oldestOpenProducerEpoch": "int",
    "oldestOpenSince": "timestamp",  # of its first record; null if that was deleted
    "segments": "int",
    "bytes": "bigint",
}


def read_partitions(
    layout: LogLayout, partitions: tuple[TopicPartition, ...], options: ReadOptions, wanted: frozenset[str]
) -> Iterator[Row]:
    """Yields a row per partition, in the order given."""
    for partition in partitions:
        yield with_listing(layout, partition, lambda log: _row(layout, log, options, wanted))


def _row(layout: LogLayout, log: PartitionFiles, options: ReadOptions, wanted: frozenset[str]) -> Row:
    offsets = find_log_offsets(log, report=options.report)
    oldest = offsets.open_transactions[0] if offsets.open_transactions else None
    end = offsets.log_end_offset
    if log.high_watermark is not None:
        end = find_log_offsets(attrs.evolve(log, high_watermark=None), report=options.report).log_end_offset
    return (
        log.partition.topic,
        log.partition.partition,
        offsets.log_start_offset,
        offsets.last_stable_offset,
        offsets.log_end_offset,
        end,
        len(offsets.open_transactions),
        None if oldest is None else oldest.first_offset,
        None if oldest is None else oldest.producer_id,
        None if oldest is None else oldest.producer_epoch,
        None if oldest is None or "oldestOpenSince" not in wanted else _begun(layout, log, offsets, options),
        len(log.segments),
        sum(segment.size for segment in log.segments),
    )


def _begun(layout: LogLayout, log: PartitionFiles, offsets: LogOffsets, options: ReadOptions) -> int | None:
    """When the first batch of the oldest open transaction was written, in ms, by the producer's clock."""
    start, end = offsets.open_transactions[0].first_offset, offsets.log_end_offset
    only = attrs.evolve(whole_range(log, offsets), start=start, pieces=log.pieces(start, end))
    first = next(HeaderScan(layout, only, report=options.report).stored(), None)
    if first is None or first.header.base_offset > start:
        return None
    return time_or_none(first.header.base_timestamp)


PARTITIONS: Final = SourceTable(columns=COLUMNS, plan=plan_partitions, rows=read_partitions)
