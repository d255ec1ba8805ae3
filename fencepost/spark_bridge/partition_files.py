"""The files of one partition, read without a broker: segments, manifest and indexes. Takes no lock, changes
nothing.

Rule: the manifest is read before the files are listed, so everything it describes exists; more may exist.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from fencepost.journal.indexes import (
    ABORTED_ENTRY,
    OFFSET_ENTRY,
    AbortedRange,
    CorruptIndex,
    OffsetIndex,
    TransactionIndex,
)
from fencepost.journal.indexes import collect_aborted as collect_from
from fencepost.journal.manifest import MANIFEST_FILE, Manifest, decode_manifest
from fencepost.journal.open_transactions import OpenTransaction, OpenTransactions
from fencepost.journal.segments import (
    INDEX,
    LOG,
    TRANSACTION_INDEX,
    file_name,
    parse_file_name,
    walk_batches,
    walk_headers,
)
from fencepost.journal.storage import StorageFile, StorageReader, directory_name
from fencepost.protocol.batches import HEADER_SIZE, BatchHeader, Buffer, read_header
from fencepost.protocol.errors import FencepostError, ProtocolViolation
from fencepost.protocol.terms import NO_LEADER_EPOCH, IsolationLevel, TopicPartition


class DataLoss(FencepostError):
    """The requested offsets were deleted or never written.

    With `failOnDataLoss=false` the reader returns what exists.
    """


class CorruptLog(FencepostError):
    """Bytes below the readable end of a log differ from what was written."""


@attrs.frozen
class SegmentFile:
    """A `.log` file and its size; the last one of a partition may end in a torn batch."""

    base_offset: int
    size: int = attrs.field(kw_only=True)


@attrs.frozen(kw_only=True)
class PartitionFiles:
    """A snapshot of a partition's directory."""

    storage: StorageReader
    partition: TopicPartition
    manifest: Manifest | None
    segments: tuple[SegmentFile, ...]
    _last_index: dict[int, OffsetIndex] = attrs.field(
        factory=dict[int, OffsetIndex], init=False, eq=False, repr=False
    )

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read; 0 for a partition that never had a segment."""
        known = self.manifest.log_start_offset if self.manifest else 0
        return max(known, self.segments[0].base_offset) if self.segments else known

    def path(self, segment: SegmentFile, kind: str = LOG) -> str:
        """The path of one of a segment's files in the storage."""
        return f"{directory_name(self.partition)}/{file_name(segment.base_offset, kind)}"

    def location(self, segment: SegmentFile, kind: str = LOG) -> str:
        """The same path with the location of the storage, for messages."""
        return f"{self.storage.location}/{self.path(segment, kind)}"

    def segment_index(self, offset: int) -> int:
        """The number of the segment for this offset: the last that starts at or before it, else 0."""
        later = (number for number, segment in enumerate(self.segments) if segment.base_offset > offset)
        return max(0, next(later, len(self.segments)) - 1)

    def offset_index(self, segment: SegmentFile) -> OffsetIndex:
        """The offset index of a segment; shorter if the file is missing or cut off.

        It is only a hint: callers verify the batch at the position.
        """
        known = self._last_index.get(segment.base_offset)
        if known is None:
            data = self.storage.read_file(self.path(segment, INDEX)) or b""
            known = OffsetIndex(data[: len(data) - len(data) % OFFSET_ENTRY.size])
            self._last_index.clear()
            self._last_index[segment.base_offset] = known
        return known

    def header_at(self, segment: SegmentFile, position: int) -> BatchHeader | None:
        """The header of the batch at this byte, or None if no valid batch of this segment starts there."""
        if position + HEADER_SIZE > segment.size:
            return None
        with opened(self.storage, self.path(segment)) as file:
            try:
                header = read_header(file.read(position, HEADER_SIZE))
            except ProtocolViolation:
                return None
        fits = header.base_offset >= segment.base_offset and position + header.size <= segment.size
        return header if fits else None

    def position_before(self, segment: SegmentFile, offset: int) -> int:
        """The start of a batch at or before the offset; 0 if the index has none."""
        if offset <= segment.base_offset:
            return 0
        position = self.offset_index(segment).position_before(offset - segment.base_offset)
        header = self.header_at(segment, position) if position else None
        return position if header is not None and header.base_offset <= offset else 0

    def collect_aborted(self, start: int, *, upper: int) -> list[AbortedRange]:
        """Returns the aborted transactions in the indexes that overlap [start, upper).

        An entry stands in the segment of its marker, so the search goes forward from `start`.
        """
        segments = self.segments[self.segment_index(start) :]
        return collect_from(map(self._transaction_index, segments), start, upper=upper)

    def _transaction_index(self, segment: SegmentFile) -> TransactionIndex:
        data = self.storage.read_file(self.path(segment, TRANSACTION_INDEX))
        where = self.location(segment, TRANSACTION_INDEX)
        advice = "start the broker on this directory once; it rebuilds the index"
        if data is None and not segment.size:
            return TransactionIndex()  # the broker is creating this segment; it creates the log file first
        if data is None:
            raise CorruptLog(
                f"{where} is missing, and aborted records cannot be distinguished without it: {advice}"
            )
        torn = len(data) % ABORTED_ENTRY.size
        if torn and segment is not self.segments[-1]:
            raise CorruptLog(f"{where} ends inside an entry: {advice}")
        index = TransactionIndex(data[: len(data) - torn])
        try:
            for entry in range(len(index)):
                _ = index[entry]
        except CorruptIndex as problem:
            raise CorruptLog(f"{where}: {problem}: {advice}") from problem
        return index


@contextmanager
def opened(storage: StorageReader, path: str) -> Generator[StorageFile]:
    """Opens a file and closes it at the end of the block."""
    file = storage.open(path)
    try:
        yield file
    finally:
        file.close()


def open_partition_files(
    storage: StorageReader, partition: TopicPartition, *, fail_on_data_loss: bool = True
) -> PartitionFiles:
    """Reads the manifest and lists the segments of a partition.

    Raises CorruptLog if the manifest is invalid, DataLoss if a segment that it lists is missing.
    """
    manifest = _read_manifest(storage, partition)
    sizes = storage.files(directory_name(partition))
    named = ((*parse_file_name(name), size) for name, size in sizes.items())
    segments = tuple(SegmentFile(base_offset, size=size) for base_offset, kind, size in named if kind == LOG)
    if manifest and fail_on_data_loss:
        _check_against(manifest, segments, f"{storage.location}/{partition}")
    return PartitionFiles(storage=storage, partition=partition, manifest=manifest, segments=segments)


def _read_manifest(storage: StorageReader, partition: TopicPartition) -> Manifest | None:
    data = storage.read_file(f"{directory_name(partition)}/{MANIFEST_FILE}")
    try:
        return None if data is None else decode_manifest(data, directory=directory_name(partition))
    except CorruptIndex as problem:
        where = f"{storage.location}/{partition}/{MANIFEST_FILE}"
        raise CorruptLog(
            f"{where}: {problem}: start the broker on this directory once; it writes a new manifest"
        ) from problem


def _check_against(manifest: Manifest, segments: tuple[SegmentFile, ...], where: str) -> None:
    found = {segment.base_offset: segment.size for segment in segments}
    is_replaced = False
    for summary in manifest.segments:
        # A cleaned segment takes the place of several, and has the name of the first (journal/cleaning.py).
        # The others are gone a moment before the manifest says so. It is smaller than all of them together,
        # and may be larger than the first.
        if summary.base_offset in found:
            is_replaced = found[summary.base_offset] != summary.bytes
        elif summary.bytes and not is_replaced:
            raise DataLoss(
                f"{where}/{file_name(summary.base_offset, LOG)} is gone, but the manifest there lists it"
            )


_RECOVER: Final = (
    "start the broker on this directory once to recover it, or set failOnDataLoss=false to read what exists"
)


@attrs.frozen(kw_only=True)
class LogOffsets:
    """The readable offsets of a partition.

    `aborted` are the transactions whose abort marker the walk met, whether the index has them or not.
    """

    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    open_transactions: tuple[OpenTransaction, ...] = ()
    aborted: tuple[AbortedRange, ...] = ()

    def end(self, isolation_level: IsolationLevel) -> int:
        """One past the last offset that a reader of this isolation level may see."""
        committed = isolation_level is IsolationLevel.READ_COMMITTED
        return self.last_stable_offset if committed else self.log_end_offset


def find_log_offsets(log: PartitionFiles, *, fail_on_data_loss: bool = True) -> LogOffsets:
    """Finds the bounds of the log in its files; a torn tail does not count.

    Raises DataLoss if the log ends before the high watermark of its manifest.
    """
    manifest = log.manifest
    start = max(log.log_start_offset, manifest.last_stable_offset if manifest else 0)
    # Without a manifest, all segments but the last are assumed complete: only the last is written to.
    promised = manifest.high_watermark if manifest else log.segments[-1].base_offset if log.segments else 0
    walk = _TailWalk(log, start, promised)
    if walk.end < promised:
        told = f"{walk.where} ends at offset {walk.end}, but offsets up to {promised} were written"
        if fail_on_data_loss:
            raise DataLoss(f"{told}: {_RECOVER}")
        warnings.warn(f"{told}: reading what exists", stacklevel=2)
        walk = _TailWalk(log, log.log_start_offset, 0)
    oldest = walk.transactions.first_offset
    return LogOffsets(
        log_start_offset=log.log_start_offset,
        last_stable_offset=walk.end if oldest is None else oldest,
        log_end_offset=walk.end,
        open_transactions=tuple(walk.transactions),
        aborted=tuple(walk.aborted),
    )


class _TailWalk:
    """One pass over the batches from offset `start` to the end of the log.

    It trusts headers below offset `promised` and verifies the checksum of every batch from there on.
    """

    def __init__(self, log: PartitionFiles, start: int, promised: int) -> None:
        self.log = log
        self.start = start
        self.promised = promised
        self.end = log.log_start_offset  # one past the last batch seen
        self.leader_epoch = NO_LEADER_EPOCH
        self.transactions = OpenTransactions()
        self.aborted: list[AbortedRange] = []
        self.where = f"{log.storage.location}/{log.partition}"
        self._run()

    def _run(self) -> None:
        """Stops at the first segment that is damaged."""
        log = self.log
        for number, segment in enumerate(log.segments[log.segment_index(self.start) :]):
            self.where = log.location(segment)
            position = log.position_before(segment, self.start)
            if number == 0:
                first = log.header_at(segment, position)
                self.end = first.base_offset if first else segment.base_offset
            try:
                with opened(log.storage, log.path(segment)) as file:
                    for header, batch in self._batches(segment, file, position):
                        self._see(header, batch)
            except ProtocolViolation:
                return

    def _batches(
        self, segment: SegmentFile, file: StorageFile, position: int
    ) -> Iterator[tuple[BatchHeader, Buffer]]:
        """Yields the batches of one segment; of markers also the bytes.

        Raises ProtocolViolation at the first batch that is damaged or cut off.
        """
        if segment.base_offset < self.promised:
            for at, header in walk_headers(file, position, segment.size):
                if header.base_offset >= self.promised:
                    break
                if at + header.size > segment.size:
                    raise ProtocolViolation("the last batch is cut off")
                yield header, file.read(at, header.size) if header.is_control else b""
                position = at + header.size
        for _, header, batch in walk_batches(file, position, segment.size):
            yield header, batch

    def _see(self, header: BatchHeader, batch: Buffer) -> None:
        """Accepts a batch as the next one of the log, by the rules of recovery."""
        if header.base_offset != self.end or header.leader_epoch < self.leader_epoch:
            raise ProtocolViolation(f"offset {header.base_offset} after {self.end}")
        self.leader_epoch = header.leader_epoch
        self.end = header.next_offset
        ended = self.transactions.see(header, batch)
        if ended is not None:
            self.aborted.append(ended)
