"""From options and files to tasks: which offsets, cut into pieces of similar size, with the aborted
transactions of each.

Rule: the plan reads manifests, indexes and headers, never records; a cut may fall inside a batch, since
readers trim by offset.
"""

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
    """What one Spark task reads: offsets [start, end) of a partition, and the ranges of them that were
    aborted.
    """

    partition: TopicPartition
    start: int
    end: int
    pieces: tuple[Piece, ...]
    aborted: tuple[AbortedRange, ...]
    """Sorted by producer id and first offset; empty when reading uncommitted."""


def plan(storage: StorageReader, options: ReadOptions) -> list[ReadTask]:
    """The tasks of a read in the order of partitions and offsets.

    NotADataDirectory, UnusableOption, DataLoss and CorruptLog say what is amiss and what to do.
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
    """The partitions that the options name, sorted; UnusableOption when one of them does not exist."""
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
    """As in Spark's Kafka source the whole name must match, and internal topics only when it names them."""
    try:
        compiled = re.compile(pattern)
    except re.error as problem:
        raise UnusableOption(
            f"option subscribePattern {pattern} is no regular expression: {problem}"
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
                f"{name} names {partition}, which is not read: subscribe to it or leave it out"
            )


@attrs.frozen(kw_only=True)
class _Range:
    """What is to be read of one partition."""

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
    """Indexed transactions and those that the walk met.

    The index knows where one began that was open at the manifest.
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
    """[start, end) as asked for and as is there.

    DataLoss when the two differ, with failOnDataLoss=false a warning.
    """
    low = bounds.log_start_offset
    # Of a transaction whose first records were deleted the rest is undecided, too, and nothing is stable.
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
    told = f"{name} asks for offset {offset} of {partition}, which can be read from {low} to {high}"
    if offset > high and bounds.open_transactions and high < bounds.log_end_offset:
        oldest = bounds.open_transactions[0]
        told += f" (producer {oldest.producer_id} has a transaction open since offset {oldest.first_offset})"
    if options.fail_on_data_loss:
        raise DataLoss(f"{told}: ask for what is there, or set failOnDataLoss=false")
    warnings.warn(f"{told}: reading what is there", stacklevel=2)


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
    """Offsets that cut the range into pieces of similar size, at most about `task_bytes`: at batches that
    an index knows.
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
    """The same cuts and more between them, so that no two are more than `longest` apart."""
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
