"""The offsets that a batch reads of each partition: what the options ask for, limited to what exists.

Rule: a read ends at the last stable offset with read_committed. Records that the caller asked for by offset,
and that are not there, are a loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from fencepost.journal.layouts import LogLayout
from fencepost.protocol.terms import TopicPartition
from fencepost.spark_bridge.log_offsets import LogOffsets, find_log_offsets
from fencepost.spark_bridge.losses import Loss, Report, once
from fencepost.spark_bridge.option_values import UnusableOption
from fencepost.spark_bridge.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Edge,
    Position,
    ReadOptions,
    Timestamps,
    check_batch,
)
from fencepost.spark_bridge.partition_files import DataLoss, PartitionFiles
from fencepost.spark_bridge.planning import PartitionRange, ReadTask, plan
from fencepost.spark_bridge.times import find_timestamp
from fencepost.spark_bridge.topics import choose_partitions


class OffsetFilter(Protocol):
    """What a query does not exclude."""

    def has(self, partition: TopicPartition) -> bool:
        """Whether a partition may have a record that is asked for."""
        ...

    def narrowed(self, log: PartitionFiles, range_: PartitionRange) -> PartitionRange:
        """The part of a range that may have a record that is asked for."""
        ...


def plan_batch(
    layout: LogLayout, options: ReadOptions, *, report: Report | None, filters: OffsetFilter | None = None
) -> list[ReadTask]:
    """Returns the tasks of a batch read; losses are reported if the options allow them.

    Raises UnusableOption, DataLoss or CorruptLog; each message says what to do.
    """
    check_batch(options)
    report = once(report)
    partitions = choose_partitions(layout.partitions(), options, layout.location)
    check_named(options.starting, partitions, "starting")
    check_named(options.ending, partitions, "ending")

    def range_of(log: PartitionFiles, bounds: LogOffsets) -> PartitionRange:
        range_ = batch_range(log, bounds, options=options, report=report)
        return range_ if filters is None else filters.narrowed(log, range_)

    return plan(
        layout,
        [partition for partition in partitions if filters is None or filters.has(partition)],
        range_of,
        follows_transactions=options.follows_transactions,
        sizes=options.sizes,
        find_offsets=partial(find_log_offsets, report=report),
        report=report,
    )


def check_named(position: Position | None, chosen: Sequence[TopicPartition], edge: str) -> None:
    """Raises UnusableOption unless a position names all partitions that are read and no others, or none."""
    name = f"{edge}Offsets"
    if isinstance(position, Timestamps):
        name, position = f"{name}ByTimestamp", position.by_partition
    if position is None or isinstance(position, str):
        return
    if missing := {*chosen} - position.keys():
        raise UnusableOption(f"{name} must name every partition that is read; {min(missing)} is missing")
    if others := position.keys() - {*chosen}:
        raise UnusableOption(
            f"{name} names {min(others)}, which is not read: subscribe to it or remove it from {name}"
        )


def batch_range(
    log: PartitionFiles, bounds: LogOffsets, *, options: ReadOptions, report: Report | None
) -> PartitionRange:
    """Returns the range of a partition: the requested offsets, limited to those that exist.

    Raises DataLoss if a requested offset does not exist; with `report` it reports that instead.
    """
    low, high = readable(bounds, options)
    start = starting_offset(log, bounds, options, default="earliest")
    end = ending_offset(log, bounds, options)
    for name, offset in (("startingOffsets", start), ("endingOffsets", end)):
        if not low <= offset <= high:
            report_loss(log, name, offset, bounds, options, report)
    start, end = max(low, start), min(high, end)
    return PartitionRange(partition=log.partition, start=min(start, end), end=end)


def starting_offset(log: PartitionFiles, bounds: LogOffsets, options: ReadOptions, *, default: Edge) -> int:
    """The offset at which a read begins; it need not exist.

    Raises UnusableOption if no record is as new as the requested time.
    """
    position = default if options.starting is None else options.starting
    if not isinstance(position, Timestamps):
        return _offset_of(position, log, bounds, options)
    offset = _offset_at(position, log, bounds, options)
    if offset is not None:
        return offset
    if options.latest_if_unmatched:
        return readable(bounds, options)[1]
    raise UnusableOption(
        f"no record of {log.partition} is as new as the starting time, {_time_of(position, log.partition)} "
        "ms; startingOffsetsByTimestampStrategy=latest begins at its end"
    )


def ending_offset(log: PartitionFiles, bounds: LogOffsets, options: ReadOptions) -> int:
    """The offset at which a batch ends; it need not exist. The end of the log if no record is that new."""
    if not isinstance(options.ending, Timestamps):
        return _offset_of(options.ending, log, bounds, options)
    offset = _offset_at(options.ending, log, bounds, options)
    return readable(bounds, options)[1] if offset is None else offset


def _offset_of(
    position: Edge | Mapping[TopicPartition, int],
    log: PartitionFiles,
    bounds: LogOffsets,
    options: ReadOptions,
) -> int:
    low, high = readable(bounds, options)
    named = {"earliest": low, "latest": high, EARLIEST_OFFSET: low, LATEST_OFFSET: high}
    offset = position if isinstance(position, str) else position[log.partition]
    return named[offset] if isinstance(offset, str) else named.get(offset, offset)


def _offset_at(
    position: Timestamps, log: PartitionFiles, bounds: LogOffsets, options: ReadOptions
) -> int | None:
    low, high = readable(bounds, options)
    return find_timestamp(log, _time_of(position, log.partition), low=low, high=high)


def _time_of(position: Timestamps, partition: TopicPartition) -> int:
    if position.everywhere is not None:
        return position.everywhere
    assert position.by_partition is not None, "a position in time has times"
    return position.by_partition[partition]


def readable(bounds: LogOffsets, options: ReadOptions) -> tuple[int, int]:
    """The first offset that can be read, and one past the last."""
    # DeleteRecords may remove the first records of an open transaction; then no offset is stable.
    low = bounds.log_start_offset
    return low, max(low, bounds.end(options.isolation_level))


def report_loss(
    log: PartitionFiles,
    name: str,
    offset: int,
    bounds: LogOffsets,
    options: ReadOptions,
    report: Report | None,
) -> None:
    """Raises DataLoss for a requested offset that cannot be read, or reports it."""
    low, high = readable(bounds, options)
    message = (
        f"{name} requests offset {offset} of {log.partition}, which can be read from offset {low} up to, "
        f"but not including, {high}"
    )
    if offset > high and bounds.open_transactions and high < bounds.log_end_offset:
        oldest = bounds.open_transactions[0]
        message += (
            f" (producer {oldest.producer_id} has a transaction open since offset {oldest.first_offset})"
        )
    if report is None:
        raise DataLoss(f"{message}: request existing offsets, or set failOnDataLoss=false")
    report(
        Loss(
            partition=log.partition,
            start=min(offset, high),
            end=max(offset, low),
            file=f"{log.storage.location}/{log.partition}",
            position=0,
            reason=f"{message}: reading the existing offsets",
        )
    )
