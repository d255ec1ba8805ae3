"""Turns options and files into tasks: offset ranges of similar size, each with its aborted transactions.

Rule: the plan reads manifests, indexes and batch headers, never records. A cut may fall inside a batch,
because readers trim by offset.
"""

# Theory of operation
#
# A read uses only files: no broker, no lock, and a broker may append meanwhile. The plan itself finds where
# each partition ends for this reader, and which transactions before that end were aborted.
#
#    segment 0         segment 700
#    0                 700             1000           1100         1180      1200
#    |-----------------|---------------|--------------|------------|---------|~~~ torn batch
#                                      |              |            |         |
#                             LSO of the manifest     |        LSO now    log end now
#                                (walk starts)   high watermark
#                                                of the manifest
#
# 1. The manifest is a lower bound. A broker replaces it every now and then, and it is read before the files
#    are listed: whatever it describes exists, and more may exist. A log that ends below the manifest's high
#    watermark has lost data (DataLoss).
# 2. The walk (partition_files.find_log_offsets) reads the batch headers from the manifest's LSO to the end of
#    the log. Every transaction that was open then begins at or after that LSO, so the walk sees the open
#    transactions from their first batch. Up to the manifest's high watermark it trusts headers; after it,
#    it verifies checksums and stops at the first torn batch. The LSO now is the first offset of the oldest
#    open transaction, or the log end if none is open: the end of the range with read_committed.
# 3. Aborted ranges come from two sources: the .txnindex files, whose entries stand in the segment of the
#    marker and are therefore searched forward from the start offset; and the markers that the walk met,
#    which may not be indexed yet. The walk starts at an indexed batch before the LSO, possibly inside a
#    transaction that ended before the LSO; so if both know a transaction, the earlier first offset is right.
# 4. A range is cut at equal byte distances, moved back to batches of the offset index: planning reads one
#    header per cut. maxRecordsPerPartition adds cuts at plain offsets. A task names the bytes to read of each
#    segment (pieces), starting with the batch that contains its first offset or an earlier one:
#
#      cuts          0            350           700                  1180
#      batches       [0..99][100..349][350.. ..699][700.. .. ..]
#      tasks         |-- task 1 --|-- task 2 --|------ task 3 ------|
#
# 5. A task carries the aborted ranges that overlap it, so a worker needs no index and no other task. A
#    retried task reads the same records: its range is fixed, and everything below the end is immutable.

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import attrs

from fencepost.journal.data_directory import check_data_directory, partitions_in
from fencepost.journal.indexes import AbortedRange
from fencepost.journal.storage import StorageReader
from fencepost.protocol.terms import INTERNAL_TOPICS, IsolationLevel, TopicPartition
from fencepost.spark_bridge.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Offsets,
    ReadOptions,
    UnusableOption,
)
from fencepost.spark_bridge.partition_files import (
    DataLoss,
    LogOffsets,
    PartitionFiles,
    SegmentFile,
    find_log_offsets,
    open_partition_files,
)

# A task costs 6 to 14 ms: those of 4 MB are 3 times slower, larger ones leave cores idle at the end.
TASK_BYTES: Final = 128 << 20


class Piece(NamedTuple):
    """Part of a segment's log file: from byte `position`, where a batch begins, up to byte `stop` at most."""

    path: str
    position: int
    stop: int


@attrs.frozen(kw_only=True)
class ReadTask:
    """The work of one Spark task: offsets [start, end) of a partition, and the aborted ranges among them."""

    partition: TopicPartition
    start: int
    end: int
    pieces: tuple[Piece, ...]
    aborted: tuple[AbortedRange, ...]
    """Sorted by producer id and first offset; empty when reading uncommitted."""


def plan(storage: StorageReader, options: ReadOptions) -> list[ReadTask]:
    """Returns the tasks of a read, ordered by partition and offset.

    Raises NotADataDirectory, UnusableOption, DataLoss or CorruptLog; each message says what to do.
    """
    check_data_directory(storage)
    chosen = choose_partitions(partitions_in(storage), options, storage.location)
    _check_named(options.starting_offsets, chosen, "startingOffsets")
    _check_named(options.ending_offsets, chosen, "endingOffsets")
    ranges = [_range(storage, partition, options) for partition in chosen]
    total = sum(range_.byte_count for range_ in ranges)
    task_bytes = (
        min(TASK_BYTES, max(1, total // options.min_partitions)) if options.min_partitions else TASK_BYTES
    )
    return [task for range_ in ranges for task in _tasks(range_, options, task_bytes)]


def choose_partitions(
    existing: Sequence[TopicPartition], options: ReadOptions, where: str
) -> list[TopicPartition]:
    """Returns the partitions that the options name, sorted; UnusableOption if one of them does not exist."""
    topics = sorted({partition.topic for partition in existing})
    if options.assign is not None:
        wanted = list(options.assign)
        missing = [str(partition) for partition in wanted if partition not in set(existing)]
    elif options.subscribe is not None:
        wanted = [partition for partition in existing if partition.topic in options.subscribe]
        missing = [topic for topic in options.subscribe if topic not in topics]
    else:
        wanted = _matching(existing, options.subscribe_pattern or "")
        missing = [] if wanted else [f"any topic matching {options.subscribe_pattern}"]
    if missing:
        raise UnusableOption(
            f"{where} does not hold {', '.join(missing)}; its topics are {', '.join(topics) or 'none yet'}"
        )
    return wanted


def _matching(existing: Iterable[TopicPartition], pattern: str) -> list[TopicPartition]:
    """As in Spark's Kafka source, the whole name must match; an internal topic must be named literally."""
    try:
        compiled = re.compile(pattern)
    except re.error as problem:
        raise UnusableOption(
            f"option subscribePattern {pattern} is not a regular expression: {problem}"
        ) from None
    return [
        p
        for p in existing
        if compiled.fullmatch(p.topic) and (p.topic not in INTERNAL_TOPICS or p.topic == pattern)
    ]


def _check_named(offsets: Offsets, chosen: Sequence[TopicPartition], name: str) -> None:
    if isinstance(offsets, str):
        return
    for partition in chosen:
        if partition not in offsets:
            raise UnusableOption(f"{name} must name every partition that is read; {partition} is missing")
    for partition in offsets:
        if partition not in chosen:
            raise UnusableOption(
                f"{name} names {partition}, which is not read: subscribe to it or remove it from {name}"
            )


@attrs.frozen(kw_only=True)
class _Range:
    """The range to read of one partition."""

    log: PartitionFiles
    start: int
    end: int
    aborted: tuple[AbortedRange, ...]
    segments: tuple[SegmentFile, ...]
    first_position: int

    @property
    def byte_count(self) -> int:
        return sum(segment.size for segment in self.segments) - self.first_position


def _range(storage: StorageReader, partition: TopicPartition, options: ReadOptions) -> _Range:
    log = open_partition_files(storage, partition, fail_on_data_loss=options.fail_on_data_loss)
    bounds = find_log_offsets(log, fail_on_data_loss=options.fail_on_data_loss)
    start, end = offset_range(partition, bounds, options)
    segments: tuple[SegmentFile, ...] = ()
    if start < end:
        segments = log.segments[log.segment_index(start) : log.segment_index(end - 1) + 1]
    committed = options.isolation_level is IsolationLevel.READ_COMMITTED
    return _Range(
        log=log,
        start=start,
        end=end,
        aborted=_aborted(log, bounds, start, end) if committed and segments else (),
        segments=segments,
        first_position=log.position_before(segments[0], start) if segments else 0,
    )


def _aborted(log: PartitionFiles, bounds: LogOffsets, start: int, end: int) -> tuple[AbortedRange, ...]:
    """Returns the aborted ranges of the index and of the walk, without duplicates.

    For a transaction that both know, the earlier first offset is right (see point 3 above).
    """
    known: dict[tuple[int, int], AbortedRange] = {}
    for aborted in (*bounds.aborted, *log.collect_aborted(start, upper=end)):
        key = aborted.producer_id, aborted.last_offset
        if key not in known or aborted.first_offset < known[key].first_offset:
            known[key] = aborted
    return tuple(
        sorted(
            range_ for range_ in known.values() if range_.last_offset >= start and range_.first_offset < end
        )
    )


def offset_range(partition: TopicPartition, bounds: LogOffsets, options: ReadOptions) -> tuple[int, int]:
    """Returns [start, end): the requested offsets, limited to those that exist.

    Raises DataLoss if a requested offset does not exist; warns instead with failOnDataLoss=false.
    """
    low = bounds.log_start_offset
    # DeleteRecords may remove the first records of an open transaction; then no offset is stable.
    high = max(low, bounds.end(options.isolation_level))
    start = _asked(options.starting_offsets, partition, low, high, usual=low)
    end = _asked(options.ending_offsets, partition, low, high, usual=high)
    for name, offset in (("startingOffsets", start), ("endingOffsets", end)):
        if not low <= offset <= high:
            _lost(partition, name, offset, bounds, options)
    start, end = max(low, start), min(high, end)
    return (start, end) if start <= end else (end, end)


def _asked(offsets: Offsets, partition: TopicPartition, low: int, high: int, *, usual: int) -> int:
    if isinstance(offsets, str):
        return usual
    offset = offsets[partition]
    return {EARLIEST_OFFSET: low, LATEST_OFFSET: high}.get(offset, offset)


def _lost(
    partition: TopicPartition, name: str, offset: int, bounds: LogOffsets, options: ReadOptions
) -> None:
    low, high = bounds.log_start_offset, bounds.end(options.isolation_level)
    told = f"{name} requests offset {offset} of {partition}, whose readable offsets are {low} to {high}"
    if offset > high and bounds.open_transactions and high < bounds.log_end_offset:
        oldest = bounds.open_transactions[0]
        told += f" (producer {oldest.producer_id} has a transaction open since offset {oldest.first_offset})"
    if options.fail_on_data_loss:
        raise DataLoss(f"{told}: request existing offsets, or set failOnDataLoss=false")
    warnings.warn(f"{told}: reading the existing offsets", stacklevel=2)


def _tasks(range_: _Range, options: ReadOptions, task_bytes: int) -> Iterator[ReadTask]:
    if not range_.segments:
        return
    cuts = [range_.start, *_byte_cuts(range_, task_bytes), range_.end]
    if options.max_records_per_partition:
        cuts = split_evenly(cuts, options.max_records_per_partition)
    for start, end in pairwise(cuts):
        yield ReadTask(
            partition=range_.log.partition,
            start=start,
            end=end,
            pieces=tuple(_pieces(range_, start, end)),
            aborted=tuple(a for a in range_.aborted if a.last_offset >= start and a.first_offset < end),
        )


def _byte_cuts(range_: _Range, task_bytes: int) -> Iterator[int]:
    """Yields offsets that cut the range into parts of about equal size, at most about `task_bytes` each.

    Each offset is the base offset of a batch in the offset index.
    """
    total = range_.byte_count
    count = -(-total // task_bytes)
    number, last, origin = 1, range_.start, -range_.first_position
    for segment in range_.segments:
        while number < count and (target := total * number // count - origin) < segment.size:
            position = range_.log.offset_index(segment).last_position_up_to(target)
            header = range_.log.header_at(segment, position)
            if header is not None and last < header.base_offset < range_.end:
                last = header.base_offset
                yield last
            number += 1
        origin += segment.size


def split_evenly(cuts: Sequence[int], longest: int) -> list[int]:
    """Returns the cuts and additional ones, so that neighbours are at most `longest` offsets apart."""
    result = [cuts[0]]
    for start, end in pairwise(cuts):
        count = -(-(end - start) // longest)
        result += [start + (end - start) * number // count for number in range(1, count + 1)]
    return result


def _pieces(range_: _Range, start: int, end: int) -> Iterator[Piece]:
    log = range_.log
    following = [segment.base_offset for segment in range_.segments[1:]]
    for segment, after in zip(range_.segments, [*following, range_.end], strict=True):
        if segment.base_offset < end and start < after:
            yield Piece(log.path(segment), log.position_before(segment, start), segment.size)
