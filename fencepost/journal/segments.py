"""One segment: batches in a `.log` file, its indexes, and the walk over batches that everything else
uses.

Rule: bytes beyond `size` do not exist. Positions come from what was appended or recovered, never from the
file system: after a failed write the file may be longer.
"""

# Theory of operation
#
#     .log      | batch | batch | batch | batch | batch | batch |  garbage after a failed write
#               0                       ▲                       ▲
#     .index    the batch at byte 0     entry: last offset      size
#               needs no entry          of this batch, position
#
# The indexes are sparse: one entry for every 4096 bytes of log (index.interval.bytes). To find an offset,
# bisect the index in memory and walk the headers from there: at most 4 KiB and one batch. Two positions are
# remembered in addition, the batch found last and the end of the last read, because most readers continue
# where they stopped.

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Final

from fencepost.journal.indexes import (
    INDEX_INTERVAL_BYTES,
    AbortedRange,
    CorruptIndex,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from fencepost.journal.manifest import DescribedFile, SegmentSummary, SyncedSegment
from fencepost.journal.open_files import OpenFiles
from fencepost.journal.storage import DamagedLog, ReadableFile, Storage, StorageError, StorageFile
from fencepost.protocol.batches import (
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    BatchHeader,
    Buffer,
    checksum_matches,
    read_header,
)
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP

LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT = "log", "index", "timeindex", "txnindex", "snapshot"
INDEX_KINDS: Final = (INDEX, TIME_INDEX, TRANSACTION_INDEX)
WALK_BYTES: Final = 1 << 20  # read at a time for whole batches
HOP_BYTES: Final = 8192  # read at a time for headers alone: an index interval and one header fit
_LINKS: Final = struct.Struct(">qi11xi")  # base offset, batch length, last offset delta
# A larger length is damage: no frame carries such a batch, and `Journal.append` writes none.
BATCH_SIZE_MAX: Final = 1 << 27


def file_name(offset: int, kind: str) -> str:
    """`00000000000000000042.log`: Kafka's names, which sort as their offsets do."""
    return f"{offset:020d}.{kind}"


def parse_file_name(name: str) -> tuple[int, str]:
    """(offset, kind) of a file of a segment; (-1, "") of any other name."""
    digits, _, kind = name.partition(".")
    if len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        return NO_OFFSET, ""
    return (int(digits), kind) if kind in (LOG, SNAPSHOT, *INDEX_KINDS) else (NO_OFFSET, "")


def walk_batches(
    file: ReadableFile, start: int, end: int, *, chunk_bytes: int = WALK_BYTES
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of each batch between two byte positions; holds one chunk or one batch at a
    time.

    ProtocolViolation at the first batch that is cut off, invalid, or fails its checksum.
    """
    position, window, window_start = start, memoryview(b""), start
    while position < end:
        # The batch may be whole in the window, or whole in the next chunk. A batch larger than a chunk is
        # read by itself.
        at = position - window_start
        header = _header_of_whole(window, at)
        if header is None:
            window = memoryview(file.read(position, min(chunk_bytes, end - position)))
            window_start, at = position, 0
            header = _header_of_whole(window, 0)
        if header is None:
            header = read_header(window)
            if header.size > min(BATCH_SIZE_MAX, end - position):
                raise ProtocolViolation(f"a batch of {header.size} bytes is cut off after {end - position}")
            window = memoryview(file.read(position, header.size))
            if len(window) < header.size:
                raise ProtocolViolation(f"a batch of {header.size} bytes is cut off after {len(window)}")
        if not checksum_matches(window, at, header):
            raise ProtocolViolation("the checksum of a batch does not match its bytes")
        yield position, header, window[at : at + header.size]
        position += header.size


def _header_of_whole(window: memoryview, at: int) -> BatchHeader | None:
    if len(window) - at < HEADER_SIZE:
        return None
    header = read_header(window, at)
    return header if len(window) - at >= header.size else None


def walk_headers(file: ReadableFile, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch between two byte positions, reading little more than the headers."""
    position, window, window_start = start, b"", start
    while position < end:
        at = position - window_start
        if len(window) - at < HEADER_SIZE:
            window, window_start, at = file.read(position, min(HOP_BYTES, end - position)), position, 0
        # `read_header` refuses a length below that of a header, so the walk moves forward even in damaged
        # bytes.
        header = read_header(window, at)
        yield position, header
        position += header.size


def check_link(header: BatchHeader, *, offset: int | None, leader_epoch: int) -> None:
    """ProtocolViolation unless a batch begins at `offset`, where the one before it ended, and is not of an
    older leader epoch. None: any offset, for the first batch that is read.
    """
    if offset is not None and header.base_offset != offset:
        raise ProtocolViolation(f"a batch begins at offset {header.base_offset} where {offset} was expected")
    if header.leader_epoch < leader_epoch:
        raise ProtocolViolation(f"a batch of leader epoch {header.leader_epoch} after one of {leader_epoch}")


def is_other_file(file: ReadableFile, described: DescribedFile, *, start: int = 0) -> bool:
    """Whether a log file is not the one that was described: it has another intact batch in the place of the
    last one, or as many bytes but fewer offsets, or it begins at another offset. A damaged file proves
    nothing, nor does a batch of a full segment that compaction has changed since. `start` is where a batch
    begins, if the file is the right one.
    """
    summary = described.summary
    offset, last, is_elsewhere = None, None, False
    try:
        for last in walk_headers(file, start, file.size if summary.bytes else 0):
            check_link(last[1], offset=offset, leader_epoch=NO_LEADER_EPOCH)
            if offset is None and start == 0:
                is_elsewhere = last[1].base_offset != summary.base_offset
            offset = last[1].next_offset
            # No checksum covers the offset of a batch. If it is damaged, the next batch does not follow.
            if offset >= summary.end_offset and not is_elsewhere:
                break
    except ProtocolViolation:
        # The index may belong to the right file, and this may be another one, in which no batch begins there.
        return start > 0 and is_other_file(file, described)
    if last is None:
        return False
    position, header = last
    if header.next_offset < summary.end_offset and not is_elsewhere:
        is_other = file.size >= summary.bytes
    else:
        is_cleaned = described.is_full and header.is_thinned
        is_other = header.crc != summary.last_crc and not is_cleaned
    return is_other and checksum_matches(file.read(position, header.size), 0, header)


def _are_linked(data: bytes, offset: int) -> bool:
    """Whether these bytes are whole batches, the first with `offset`, each beginning where the last ended.

    The checksum that readers verify does not cover base offset and length, so they are checked here.
    """
    position, end, expected = 0, len(data) - HEADER_SIZE, None
    while position <= end:
        base_offset, length, last_offset_delta = _LINKS.unpack_from(data, position)
        next_offset = base_offset + last_offset_delta + 1
        if length < 0 or last_offset_delta < 0:
            return False
        if base_offset != expected and (expected is not None or not base_offset <= offset < next_offset):
            return False
        expected = next_offset
        position += LENGTH_PREFIX_SIZE + length
    return position == len(data)


class Segment:
    """The batches from `base_offset` to `end_offset`. Files are opened on demand; `release` closes them."""

    __slots__ = (
        "_directory",
        "_file",
        "_index_in_doubt",
        "_located",
        "_max_timestamp_offset",
        "_open_files",
        "_read_to",
        "_since_entry",
        "_storage",
        "_suffix",
        "_summary",
        "base_offset",
        "end_offset",
        "first_timestamp",
        "last_crc",
        "leader_epoch",
        "max_timestamp",
        "offset_index",
        "size",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self, storage: Storage, directory: str, base_offset: int, open_files: OpenFiles, *, suffix: str = ""
    ) -> None:
        self._storage = storage
        self._open_files = open_files
        self._directory = directory
        self._suffix = suffix  # of its files, until `take_place`
        self._file: StorageFile | None = None
        self._located = (base_offset, 0)  # the batch found last, which is often asked for again,
        self._read_to = (base_offset, 0)  # and the end of the last read, where most readers continue
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = 0
        # The largest timestamp of the first batch: what Kafka measures segment.ms from
        # (LogSegment.loadFirstBatchTimestamp).
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.leader_epoch = NO_LEADER_EPOCH  # of the last batch
        self.last_crc = 0
        self._max_timestamp_offset = base_offset
        self.offset_index = OffsetIndex()
        self.time_index = TimeIndex()
        self.transaction_index = TransactionIndex()
        self._since_entry = 0
        self._index_in_doubt = False
        self._summary: SegmentSummary | None = None

    @property
    def summary(self) -> SegmentSummary:
        """What a manifest says about this segment now: the same object, with its JSON, until it grows."""
        known = self._summary
        # Nothing but a batch changes a segment, and each batch changes the size.
        if known is None or known.bytes != self.size:
            known = self._summary = SegmentSummary(
                base_offset=self.base_offset,
                end_offset=self.end_offset,
                bytes=self.size,
                max_timestamp=self.max_timestamp,
                last_crc=self.last_crc,
            )
        return known

    @property
    def file(self) -> StorageFile:
        """The log file, opened now if it is not open."""
        if self._file is None:
            self._file = self._storage.open(self.path(LOG))
            self._open_files.opened(self.path(LOG), self.release)
        return self._file

    def path(self, kind: str) -> str:
        """The path of one of this segment's files."""
        return f"{self._directory}/{file_name(self.base_offset, kind)}{self._suffix}"

    def _damaged(self, what: object) -> DamagedLog:
        return DamagedLog(self._storage.location, f"{self.path(LOG)} is damaged: {what}")

    def create(self) -> None:
        """Create the files of a new segment. An index file that is missing later is damage, not an empty
        index.
        """
        self._file = self._storage.open(self.path(LOG), create=True)
        self._open_files.opened(self.path(LOG), self.release)
        for kind in INDEX_KINDS:
            self._storage.open(self.path(kind), create=True).close()

    def append(self, batch: Buffer, header: BatchHeader, *, last_offset: int, leader_epoch: int) -> None:
        """Write the batch, then note it in the indexes."""
        (self._file or self._opened_to_append()).append(batch)
        self.note(header, last_offset=last_offset, leader_epoch=leader_epoch)

    def _opened_to_append(self) -> StorageFile:
        if self.file.size != self.size:
            raise self._damaged(
                f"it has {self.file.size} bytes, but {self.size} were written; another program changed it"
            )
        return self.file

    def note(self, header: BatchHeader, *, last_offset: int, leader_epoch: int) -> None:
        """Account for a batch at the end of the log file: live after its write, at recovery after its
        check.
        """
        if self.size == 0:
            self.first_timestamp = header.max_timestamp
        if header.max_timestamp > self.max_timestamp and header.record_count:
            self.max_timestamp = header.max_timestamp
            self._max_timestamp_offset = last_offset
        # Before this batch is counted, as LogSegment.append does: the entry is for the first batch after the
        # interval.
        if self._since_entry > INDEX_INTERVAL_BYTES:
            self.offset_index.append(last_offset - self.base_offset, self.size)
            self.time_index.append(self.max_timestamp, self._max_timestamp_offset - self.base_offset)
            self._since_entry = 0
        size = header.size
        self._since_entry += size
        self.size += size
        self.end_offset = last_offset + 1
        self.leader_epoch = leader_epoch
        self.last_crc = header.crc

    def checkpoint_entry(self) -> SyncedSegment:
        """What a checkpoint says about this segment, once it is synced."""
        return SyncedSegment(
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            bytes=self.size,
            max_timestamp=self.max_timestamp,
            last_crc=self.last_crc,
            first_timestamp=self.first_timestamp,
            leader_epoch=self.leader_epoch,
            index=crc32c(self.offset_index.encoded()),
            time_index=crc32c(self.time_index.encoded()),
            transaction_index=crc32c(self.transaction_index.data),
        )

    def load(self, synced: SyncedSegment, files: Mapping[str, int]) -> None:
        """Take the segment as its entry describes it; CorruptIndex when an index is missing or altered.
        `files` are the names and sizes in the directory.
        """
        self.offset_index = OffsetIndex(self._checked(INDEX, synced.index, files))
        self.time_index = TimeIndex(self._checked(TIME_INDEX, synced.time_index, files))
        aborted = self._checked(TRANSACTION_INDEX, synced.transaction_index, files)
        self.transaction_index = TransactionIndex(aborted)
        self.end_offset, self.size = synced.end_offset, synced.bytes
        self.first_timestamp = synced.first_timestamp
        self.max_timestamp, self.leader_epoch = synced.max_timestamp, synced.leader_epoch
        self.last_crc = synced.last_crc
        self._max_timestamp_offset = self.base_offset + self.time_index.last_offset
        # The next entry must be where a replay of the log would put it, or the checksums of the index files
        # differ.
        self._since_entry = self.size - self.offset_index.last_position_up_to(self.size)

    def _checked(self, kind: str, checksum: int, files: Mapping[str, int]) -> bytes:
        # Most indexes of small logs are empty, and need not be opened.
        is_empty = files.get(file_name(self.base_offset, kind)) == 0
        data = b"" if is_empty else self._storage.read_file(self.path(kind))
        if data is None or crc32c(data) != checksum:
            raise CorruptIndex(f"{self.path(kind)} is {'missing' if data is None else 'altered'}")
        return data

    def write_indexes(self, files: Mapping[str, int]) -> bool:
        """Replace the index files that differ from the indexes in memory; `files` as for `load`. Returns
        whether one of them had entries that are not true of the log.
        """
        were_false = False
        for kind, data in (
            (INDEX, self.offset_index.encoded()),
            (TIME_INDEX, self.time_index.encoded()),
            (TRANSACTION_INDEX, bytes(self.transaction_index.data)),
        ):
            if files.get(file_name(self.base_offset, kind)) == len(data) == 0:
                continue
            # A recovery that changes nothing writes nothing, so it works on a full disk, too.
            found = self._storage.read_file(self.path(kind))
            if found != data:
                were_false |= not data.startswith(found or b"")
                self._storage.replace(self.path(kind), data, durable=False)
        self.offset_index.saved, self.time_index.saved = len(self.offset_index), len(self.time_index)
        return were_false

    def complete_time_index(self) -> None:
        """Add the entry of the segment's largest timestamp, when the segment is complete."""
        self.time_index.append(self.max_timestamp, self._max_timestamp_offset - self.base_offset)

    def save_indexes(self) -> None:
        """Write the entries that are only in memory. They may be lost: recovery rebuilds them."""
        for kind, index in ((INDEX, self.offset_index), (TIME_INDEX, self.time_index)):
            if self._index_in_doubt:
                self._storage.replace(self.path(kind), index.encoded(), durable=False)
            elif len(index) > index.saved:
                self._append_index(kind, index.encoded(index.saved))
            index.saved = len(index)
        self._index_in_doubt = False

    def _append_index(self, kind: str, entries: bytes) -> None:
        try:
            self._append_to(kind, entries)
        except StorageError:
            self._index_in_doubt = True  # the file may end in half an entry: replace it the next time
            raise

    def append_aborted(self, aborted: AbortedRange) -> None:
        """Add a transaction that a marker in this segment aborts to the index, in memory and on the disk."""
        # At once, unlike the other indexes: a reader of the files that sees the marker needs its entry.
        self._append_to(TRANSACTION_INDEX, self.transaction_index.append(aborted))

    def _append_to(self, kind: str, data: bytes) -> None:
        file = self._storage.open(self.path(kind), create=True)
        try:
            file.append(data)
        finally:
            file.close()

    def locate(self, offset: int) -> int:
        """The byte position of the first batch whose last offset is `offset` or more, else the segment's
        size.
        """
        if offset >= self.end_offset:
            return self.size
        if offset <= self.base_offset:
            return 0
        start = self.offset_index.position_before(max(0, offset - self.base_offset))
        for known_offset, known_position in (self._located, self._read_to):
            # Hints only shorten the walk: one beyond the offset, or before the index entry, is ignored.
            if known_offset <= offset and start < known_position:
                start = known_position
        for position, header in self.headers(start):
            if header.last_offset >= offset:
                self._located = (header.base_offset, position)
                return position
        raise self._damaged(f"it ends after offset {offset}, and no batch holds it")

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The leader epoch of the last batch up to this epoch, -1 without one, and the base offset of the
        first batch of a later epoch, which must be there.
        """
        positions = self.offset_index.positions
        # Leader epochs ascend, so a few headers are read, however large the segment is.
        at = bisect_right(positions, leader_epoch, key=self._epoch_at) - 1
        newest, later = NO_LEADER_EPOCH, None
        # No checksum covers a leader epoch, and readers go back to where one ends: what follows must not be
        # of an older one.
        for _, header in self.headers(positions[at] if at >= 0 else 0):
            if later is not None:
                return newest, self._begins(later, follows=header.leader_epoch)
            if header.leader_epoch > leader_epoch:
                later = header
            else:
                newest = header.leader_epoch
        if later is None:
            raise self._damaged(f"it has no batch after leader epoch {leader_epoch}")
        return newest, self._begins(later, follows=self.leader_epoch)

    def _begins(self, later: BatchHeader, *, follows: int) -> int:
        if later.leader_epoch > follows:
            raise self._damaged(f"a batch of leader epoch {follows} after one of {later.leader_epoch}")
        return later.base_offset

    def _epoch_at(self, position: int) -> int:
        _, header = next(self.headers(position))
        return header.leader_epoch

    def bytes_between(self, offset: int, before: int) -> int:
        """The size of the batches from the one that holds `offset` to the last one below offset `before`."""
        return max(0, self.locate(before) - self.locate(offset))

    def read(self, offset: int, *, max_bytes: int, before: int) -> bytes:
        """Whole batches from the one that holds `offset`, up to `max_bytes` but at least one, all below
        `before`.
        """
        start = self.locate(offset)
        limit = self.size if before >= self.end_offset else self.locate(before)
        if start >= limit:
            return b""
        # No header between the first batch and the last is read: the bytes go to the client as they are.
        end = limit if limit - start <= max_bytes else self._boundary(start, start + max_bytes)
        if end == self.size:
            self._read_to = (self.end_offset, end)
        data = self.file.read(start, end - start)
        if not _are_linked(data, offset):
            raise self._damaged(f"bytes {start} to {end} are not contiguous batches from offset {offset} on")
        return data

    def _boundary(self, start: int, target: int) -> int:
        """The end of the last batch that ends at or before byte `target`, or of the batch at `start`."""
        # From the index entry, since a walk from `start` would read every header of a large fetch.
        for position, header in self.headers(max(start, self.offset_index.last_position_up_to(target))):
            if position + header.size > target:
                return position if position > start else position + header.size
        return self.size

    def headers(self, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of each batch, from the start of one on; DamagedLog when the log is
        damaged.
        """
        try:
            yield from walk_headers(self.file, start, self.size)
        except ProtocolViolation as violation:
            raise self._damaged(violation) from violation

    def batches(self, from_offset: int, *, before: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """(header, bytes) of the batches from the one that holds `from_offset` to the last below `before`,
        through a file handle of its own.

        DamagedLog when a checksum does not match, or a batch does not begin where the one before it ended.
        Bytes that were verified once may have changed since.
        """
        yield from self._walk(self.locate(from_offset), self.locate(before))

    def all_batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The same for a full segment from its first batch on, in any thread."""
        yield from self._walk(0, self.size)

    def _walk(self, start: int, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        if start == end:
            return
        # The caller may release the segment in the middle of the iteration, which closes the shared handle.
        file = self._storage.open(self.path(LOG))
        try:
            expected, epoch = self.base_offset if start == 0 else None, NO_LEADER_EPOCH
            for _, header, batch in walk_batches(file, start, end):
                check_link(header, offset=expected, leader_epoch=epoch)
                expected, epoch = header.next_offset, header.leader_epoch
                yield header, batch
            if end == self.size and (expected, epoch) != (self.end_offset, self.leader_epoch):
                raise ProtocolViolation(
                    f"its batches are valid up to offset {expected} and leader epoch {epoch}, and it was "
                    f"written up to offset {self.end_offset} and leader epoch {self.leader_epoch}"
                )
        except ProtocolViolation as violation:
            raise self._damaged(violation) from violation
        finally:
            file.close()

    def batch_start(self, offset: int) -> int:
        """The first offset of the batch that holds `offset`; `offset` itself where no batch does."""
        if offset == self.base_offset:  # that begins a batch
            return offset
        holder = next(self.headers(self.locate(offset)), None)
        return offset if holder is None else min(offset, holder[1].base_offset)

    def leader_epoch_at(self, offset: int) -> int:
        """The leader epoch of the batch that holds `offset`; -1 after the last batch."""
        holder = next(self.headers(self.locate(offset)), None)
        return NO_LEADER_EPOCH if holder is None else holder[1].leader_epoch

    def batches_since(self, timestamp: int, *, from_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """The batches that claim a record at least as new as `timestamp`, and end at or after an offset."""
        start = self.locate(self.base_offset + self.time_index.offset_before(timestamp))
        for position, header in self.headers(start):
            if header.max_timestamp >= timestamp and header.last_offset >= from_offset:
                yield header, self.file.read(position, header.size)

    def sync(self, *, indexes: bool) -> None:
        """Make the log durable, and with `indexes` the index files. May run in a different thread from
        appends and `release`.
        """
        # The attribute is read once: `release` in the other thread may set it to None.
        self._sync_file(LOG, self._file)
        for kind in INDEX_KINDS if indexes else ():
            self._sync_file(kind, None)

    def _sync_file(self, kind: str, file: StorageFile | None) -> None:
        if file is not None:
            file.sync()
            return
        # A sync is of the file, so it covers what other handles wrote.
        file = self._storage.open(self.path(kind))
        try:
            file.sync()
        finally:
            file.close()

    def release(self) -> None:
        """Close the log file until it is needed again."""
        file, self._file = self._file, None
        if file is not None:
            self._open_files.closed(self.path(LOG))
            file.close()

    def take_place(self, open_files: OpenFiles) -> None:
        """Rename the files, the log first, over those of the segment that this one replaces."""
        self.release()
        written = [self.path(kind) for kind in (LOG, *INDEX_KINDS)]
        self._suffix, self._open_files = "", open_files
        for path, kind in zip(written, (LOG, *INDEX_KINDS), strict=True):
            self._storage.rename(path, self.path(kind))

    def check_place(self) -> None:
        """DamagedLog when the log file was removed, moved or replaced since it was opened: what is written to
        it is lost when it is closed.
        """
        file = self._file  # `release` in the other thread may set it to None
        if file is not None and not file.is_in_place():
            what = "was removed or replaced while the broker was writing to it"
            raise DamagedLog(
                self._storage.location, f"{self.path(LOG)} {what}: records that were acknowledged are lost"
            )

    def remove(self) -> None:
        """Delete the segment's files, the log first: the next start removes an index without a log."""
        self.release()
        for kind in (LOG, *INDEX_KINDS):
            self._storage.remove(self.path(kind))
