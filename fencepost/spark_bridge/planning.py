"""Cuts ranges of offsets into tasks of similar size, each with what it needs to read alone.

Rule: the plan reads manifests, indexes and batch headers, never records. A cut may fall inside a batch,
because readers trim by offset.
"""

# Theory of operation
#
# A read uses only files: no broker, no lock, and a broker may append meanwhile. A batch, a stream and a table
# are planned alike; they differ in which offsets they ask for (`RangeOf`) and in what they make of a batch.
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
#    are listed: whatever it describes exists, unless the log start, which is read last, says that it was
#    deleted. More may exist. A log that ends below the manifest's high watermark has lost data (DataLoss).
#    Files that disappear while a partition is planned are listed again (partition_files.with_listing).
# 2. The walk (log_offsets.find_log_offsets) reads the batch headers from the manifest's LSO to the end of
#    the log. Every transaction that was open then begins at or after that LSO, so the walk sees the open
#    transactions from their first batch. Up to the manifest's high watermark it trusts headers; after it,
#    it verifies checksums and stops at the first torn batch. The LSO now is the first offset of the oldest
#    open transaction, or the log end if none is open: the end of the range with read_committed.
# 3. Aborted ranges come from two sources: the .txnindex files, whose entries stand in the segment of the
#    marker and are therefore searched forward from the start offset; and the markers that the walk met,
#    which may not be indexed yet. The walk starts at an indexed batch before the LSO, possibly inside a
#    transaction that ended before the LSO; so if both know a transaction, the earlier first offset is right.
#    If an index cannot be read, and losses are reported instead of raised, the markers after the start offset
#    say it all: the index is made from them.
# 4. A range is cut at equal byte distances, moved back to batches of the offset index: planning reads one
#    header per cut. maxRecordsPerPartition adds cuts at plain offsets. A cut names the bytes to read of each
#    segment (pieces), starting with the batch that contains its first offset or an earlier one:
#
#      cuts          0            350           700                  1180
#      batches       [0..99][100..349][350.. ..699][700.. .. ..]
#      ranges        |-- read 1 --|-- read 2 --|------ read 3 ------|
#
# 5. A cut range carries the aborted ranges that overlap it, found in one sweep over both, so a worker needs
#    no index and no other task. More than ABORTED_CARRIED would make its task larger than a kilobyte: then
#    the worker searches the transaction indexes itself. A retried task reads the same records: its range is
#    fixed, and everything below the end is immutable. With read_uncommitted, a range carries transactions
#    only if the state of records is asked for (includeTransactions), and then the open ones, too.
# 6. The size of a task follows Spark's rule for files, min(128 MB, max(4 MB, total / cores)): large
#    partitions are cut to it, small ones share a task up to it.

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise, takewhile
from operator import attrgetter
from typing import Any, Final

import attrs
import msgpack

from fencepost.journal.indexes import AbortedRange
from fencepost.journal.layouts import LogLayout
from fencepost.journal.open_transactions import OpenTransaction
from fencepost.protocol.terms import INT64_MAX, TopicPartition
from fencepost.spark_bridge.log_offsets import LogOffsets, find_log_offsets
from fencepost.spark_bridge.losses import Report
from fencepost.spark_bridge.markers import walk_unindexed
from fencepost.spark_bridge.parallel import parallel_map
from fencepost.spark_bridge.partition_files import (
    DamagedIndex,
    PartitionFiles,
    Piece,
    SegmentFile,
    with_listing,
)
from fencepost.spark_bridge.task_sizes import RANGE_BYTES, TaskSizes

ABORTED_CARRIED: Final = 64  # aborted ranges of a cut range; each adds up to 13 bytes to its task


@attrs.frozen(kw_only=True)
class PartitionRange:
    """Offsets [start, end) of a partition."""

    partition: TopicPartition
    start: int
    end: int


@attrs.frozen(kw_only=True)
class PlannedRange(PartitionRange):
    """A range, with what a worker needs to read it."""

    topic_id: str
    """When it was planned; empty if it was unknown."""
    home: int
    """Which of the layout's directories has the pieces."""
    pieces: tuple[Piece, ...]
    aborted: tuple[AbortedRange, ...]
    """The aborted transactions that overlap it; empty if the read does not follow transactions."""
    opened: tuple[OpenTransaction, ...]
    """Those that are open and overlap it, sorted by first offset; empty for the same reason."""
    is_indexed: bool
    """Whether the worker must search the transaction indexes, too: `aborted` are those that they lack."""


@attrs.frozen
class ReadTask:
    """The work of one Spark task, ordered by partition and offset."""

    ranges: tuple[PlannedRange, ...]

    def __reduce__(self) -> tuple[Callable[[bytes], ReadTask], tuple[bytes]]:
        """Pickled as few bytes: the driver keeps every task, and sends each to a worker."""
        return _decode_task, (zlib.compress(msgpack.packb([_encode_range(each) for each in self.ranges])),)


def _encode_range(range_: PlannedRange) -> list[Any]:
    """Numbers as differences from one before them, which are small."""
    base = first = range_.start
    pieces: list[int] = []
    for piece in range_.pieces:
        pieces += piece.base_offset - base, piece.position, piece.stop - piece.position
        base = piece.base_offset
    aborted: list[int] = []
    for each in range_.aborted:
        last = each.last_offset
        aborted += each.producer_id, each.first_offset - first, last - first, each.last_stable_offset - last
        first = each.first_offset
    length = range_.end - range_.start
    return [
        *range_.partition,
        range_.start,
        length,
        range_.topic_id,
        range_.home,
        pieces,
        aborted,
        range_.opened,
        range_.is_indexed,
    ]


def _decode_task(data: bytes) -> ReadTask:
    return ReadTask(tuple(map(_decode_range, msgpack.unpackb(zlib.decompress(data)))))


def _decode_range(fields: list[Any]) -> PlannedRange:
    topic, number, start, length, topic_id, home, numbers, differences, opened, is_indexed = fields
    base = first = start
    pieces: list[Piece] = []
    for distance, position, size in zip(*[iter(numbers)] * 3, strict=True):
        base += distance
        pieces.append(Piece(base, position, position + size))
    aborted: list[AbortedRange] = []
    for producer_id, to_first, to_last, to_stable in zip(*[iter(differences)] * 4, strict=True):
        last = first + to_last
        first += to_first
        aborted.append(AbortedRange(producer_id, first, last, last + to_stable))
    return PlannedRange(
        partition=TopicPartition(topic, number),
        start=start,
        end=start + length,
        topic_id=topic_id,
        home=home,
        pieces=tuple(pieces),
        aborted=tuple(aborted),
        opened=tuple(OpenTransaction(*each) for each in opened),
        is_indexed=is_indexed,
    )


RangeOf = Callable[[PartitionFiles, LogOffsets], PartitionRange]
"""Returns the range to read, given the files of a partition and the offsets that they hold."""

FindOffsets = Callable[[PartitionFiles], LogOffsets]
"""Finds the bounds of a log in its files."""


def plan(
    layout: LogLayout,
    partitions: Iterable[TopicPartition],
    range_of: RangeOf,
    *,
    follows_transactions: bool,
    sizes: TaskSizes,
    find_offsets: FindOffsets = find_log_offsets,
    report: Report | None = None,
) -> list[ReadTask]:
    """Returns the tasks that read a range of each partition, ordered by partition and offset.

    With `follows_transactions`, tasks know which transactions were aborted and which are open. `find_offsets`
    finds the bounds of a log, and raises or reports its losses. Raises CorruptLog, and what `find_offsets`
    and `range_of` raise. With `report`, a transaction index that is damaged is reported instead.
    """
    planner = _RangePlanner(layout, range_of, follows_transactions, find_offsets, report)
    sources = [source for source in parallel_map(planner.source, tuple(partitions)) if source.pieces]
    total = sum(source.byte_count for source in sources)
    task_bytes = sizes.task_bytes(total=total, range_count=len(sources))
    cut = parallel_map(lambda source: planner.cut(source, task_bytes, sizes.max_records), sources)
    return list(_packed(list(chain.from_iterable(cut)), task_bytes, sizes))


@attrs.frozen(kw_only=True)
class _Source:
    """The range to read of one partition, before it is cut."""

    log: PartitionFiles
    range: PartitionRange
    pieces: tuple[Piece, ...]
    aborted: tuple[AbortedRange, ...]  # sorted by first offset
    not_indexed: tuple[AbortedRange, ...]  # those of them that no index has
    opened: tuple[OpenTransaction, ...]  # sorted by first offset

    @property
    def byte_count(self) -> int:
        return sum(piece.stop - piece.position for piece in self.pieces)


_Weighed = tuple[PlannedRange, int]  # with its bytes


@attrs.frozen
class _RangePlanner:
    layout: LogLayout
    range_of: RangeOf
    follows_transactions: bool
    find_offsets: FindOffsets
    report: Report | None

    def source(self, partition: TopicPartition) -> _Source:
        return with_listing(self.layout, partition, self._source)

    def _source(self, log: PartitionFiles) -> _Source:
        offsets = self.find_offsets(log)
        range_ = self.range_of(log, offsets)
        pieces = log.pieces(range_.start, range_.end)
        aborted, not_indexed, opened = (), (), ()
        if pieces and self.follows_transactions:
            aborted, not_indexed = merge_aborted(*self._aborted(log, offsets, range_), range_)
            # Sorted, so this looks at one more than it takes: none of them begins before the LSO.
            opened = tuple(takewhile(_begins_before(range_.end), offsets.open_transactions))
        return _Source(
            log=log, range=range_, pieces=pieces, aborted=aborted, not_indexed=not_indexed, opened=opened
        )

    def _aborted(
        self, log: PartitionFiles, offsets: LogOffsets, range_: PartitionRange
    ) -> tuple[Sequence[AbortedRange], Sequence[AbortedRange]]:
        """The aborted transactions that the indexes have, and those that a walk over the log found."""
        try:
            return log.collect_aborted(range_.start, upper=range_.end), offsets.aborted
        except DamagedIndex as damaged:
            if self.report is None:
                raise
            self.report(damaged.as_loss())
        unindexed = attrs.evolve(log, unindexed=frozenset(each.base_offset for each in log.segments))
        return (), walk_unindexed(unindexed, range_.start, upper=range_.end)

    def cut(self, source: _Source, task_bytes: int, max_records: int | None) -> list[_Weighed]:
        def cut_listed(log: PartitionFiles) -> list[_Weighed]:
            # After a new listing, everything that was read from the old files is read again.
            return list(_cut(source if log is source.log else self._source(log), task_bytes, max_records))

        return with_listing(self.layout, source.range.partition, cut_listed, listed=source.log)


def merge_aborted(
    indexed: Iterable[AbortedRange], walked: Iterable[AbortedRange], range_: PartitionRange
) -> tuple[tuple[AbortedRange, ...], tuple[AbortedRange, ...]]:
    """Returns the aborted ranges that overlap a range, sorted by first offset: all of them, and those that
    no index has.

    For a transaction that both know, the earlier first offset is right (see point 3 above).
    """
    known = {(aborted.producer_id, aborted.last_offset): aborted for aborted in indexed}
    not_indexed: list[AbortedRange] = []
    for aborted in walked:
        key = aborted.producer_id, aborted.last_offset
        if key not in known:
            not_indexed.append(aborted)
        elif aborted.first_offset < known[key].first_offset:
            known[key] = aborted
    return _overlapping([*known.values(), *not_indexed], range_), _overlapping(not_indexed, range_)


def _overlapping(ranges: Iterable[AbortedRange], range_: PartitionRange) -> tuple[AbortedRange, ...]:
    found = (a for a in ranges if a.last_offset >= range_.start and a.first_offset < range_.end)
    return tuple(sorted(found, key=attrgetter("first_offset")))


def _begins_before(offset: int) -> Callable[[OpenTransaction], bool]:
    return lambda each: each.first_offset < offset


def _cut(source: _Source, task_bytes: int, max_records: int | None) -> Iterator[_Weighed]:
    log, range_ = source.log, source.range
    cuts = [range_.start, *_byte_cuts(source, task_bytes), range_.end]
    if max_records:
        cuts = split_evenly(cuts, max_records)
    aborted = list(sweep(source.aborted, cuts))
    not_indexed = list(sweep(source.not_indexed, cuts))
    for number, (start, end) in enumerate(pairwise(cuts)):
        pieces = log.pieces(start, end)
        # Where no index has any of them, there is nothing to search.
        is_indexed = len(aborted[number]) > max(ABORTED_CARRIED, len(not_indexed[number]))
        planned = PlannedRange(
            partition=range_.partition,
            start=start,
            end=end,
            topic_id=log.topic_id,
            home=log.home,
            pieces=pieces,
            aborted=not_indexed[number] if is_indexed else aborted[number],
            opened=tuple(takewhile(_begins_before(end), source.opened)),
            is_indexed=is_indexed,
        )
        # Of a range that ends inside a segment, the pieces hold more than the range.
        share = source.byte_count * (end - start) // (range_.end - range_.start)
        yield planned, min(share, sum(piece.stop - piece.position for piece in pieces))


def sweep(aborted: Sequence[AbortedRange], cuts: Sequence[int]) -> Iterator[tuple[AbortedRange, ...]]:
    """Yields, for each pair of neighbouring cuts, the aborted ranges that overlap it.

    `aborted` is sorted by first offset, and `cuts` ascend. Both are passed once.
    """
    reached = 0
    current: list[AbortedRange] = []
    for start, end in pairwise(cuts):
        current = [a for a in current if a.last_offset >= start]
        while reached < len(aborted) and aborted[reached].first_offset < end:
            if aborted[reached].last_offset >= start:
                current.append(aborted[reached])
            reached += 1
        yield tuple(current)


def _byte_cuts(source: _Source, task_bytes: int) -> Iterator[int]:
    """Yields offsets that cut a range into parts of about equal size, at most about `task_bytes` each.

    Each offset is the base offset of a batch in the offset index.
    """
    log, total = source.log, source.byte_count
    count = -(-total // task_bytes)
    number, last, passed = 1, source.range.start, 0
    for piece in source.pieces:
        segment = SegmentFile(piece.base_offset, size=piece.stop)
        while number < count and (target := total * number // count - passed) < piece.stop - piece.position:
            position = log.offset_index(segment).last_position_up_to(piece.position + target)
            header = log.header_at(segment, position)
            if header is not None and last < header.base_offset < source.range.end:
                last = header.base_offset
                yield last
            number += 1
        passed += piece.stop - piece.position


def split_evenly(cuts: Sequence[int], longest: int) -> list[int]:
    """Returns the cuts and additional ones, so that neighbours are at most `longest` offsets apart."""
    result = [cuts[0]]
    for start, end in pairwise(cuts):
        count = -(-(end - start) // longest)
        result += [start + (end - start) * number // count for number in range(1, count + 1)]
    return result


def _packed(cut: Sequence[_Weighed], task_bytes: int, sizes: TaskSizes) -> Iterator[ReadTask]:
    """Puts neighbouring ranges into one task, so that tasks have similar sizes of about `task_bytes`."""
    # minPartitions asks for parallelism: then only the bytes count, however many partitions hold them.
    opening = 0 if sizes.min_partitions else RANGE_BYTES
    work = max(1, sum(size + opening for _, size in cut))
    count = -(-work // task_bytes)
    packed: list[PlannedRange] = []
    done = offsets = number = 0
    for range_, size in cut:
        length = range_.end - range_.start
        # Work is a line of `count` equal parts; a range belongs to the part in which its middle lies.
        part = (2 * done + size + opening) * count // (2 * work)
        if packed and (part > number or offsets + length > (sizes.max_records or INT64_MAX)):
            yield ReadTask(tuple(packed))
            packed, offsets = [], 0
        packed.append(range_)
        number = part
        done += size + opening
        offsets += length
    if packed:
        yield ReadTask(tuple(packed))
