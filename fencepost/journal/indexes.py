"""The files beside a segment, byte for byte Kafka's: its indexes of offsets, timestamps and aborted
transactions, and the snapshot of what the leader remembers of each producer.

Rule: they only save reading the log. The log is the truth, and every one of them can be rebuilt from it.
"""

# Theory of operation
#
#     .index      relative last offset (u32), byte position (u32)            of a batch, every 4096 bytes
#     .timeindex  largest timestamp so far (i64), relative offset (u32)      of the batch that has it
#     .txnindex   version, producer id, first offset, last offset, LSO       one entry per aborted transaction
#
# The offset and time index are sparse, and their entries may be missing: a search that finds no entry
# begins at the start of the segment. The transaction index must be complete, since a missing entry would
# show aborted records to a read_committed reader. So its entries are written with their marker, not later.
#
# A read_committed fetch of [from, upper) needs every aborted transaction that overlaps it. An entry is in the
# segment of its marker, which may be far after the data, so the search goes forward through later segments.
# It may stop at the first entry whose last stable offset reaches `upper`: everything before that offset was
# decided when the marker was written, so no later marker can abort records below it.

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.errors import FencepostError

INDEX_INTERVAL_BYTES: Final = 4096  # Kafka's index.interval.bytes

# Last offset of the batch, relative to the segment, and byte position of the batch.
OFFSET_ENTRY: Final = struct.Struct(">II")
# Largest timestamp so far, and the relative last offset of the batch that has it.
TIME_ENTRY: Final = struct.Struct(">qI")
# Version, producer id, first offset, last offset (the marker's), last stable offset.
ABORTED_ENTRY: Final = struct.Struct(">hqqqq")
ABORTED_ENTRY_VERSION: Final = 0


class CorruptIndex(FencepostError):
    """An index or another derived file is damaged; it is rebuilt from the log."""


def without_preallocated(data: bytes, entry_size: int) -> bytes:
    """The entries of an index file without the zeros after them: Kafka reserves room for more entries while
    it writes to a segment. No entry is all zeros, since the batch at byte 0 has none.
    """
    size = len(data.rstrip(b"\0"))
    return data[: size + -size % entry_size]


class AbortedRange(NamedTuple):
    """One aborted transaction of one producer: its records start at `first_offset`, its marker is at
    `last_offset`.

    `last_stable_offset` is that of the moment after the marker: every transaction that began before it is
    decided.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def aborted_by(marker: BatchHeader, first_offset: int, *, oldest_open: int | None) -> AbortedRange:
    """The entry of a transaction that the marker aborts, by the first offset of the oldest transaction that
    is still open. Durability does not count, as in Kafka (ProducerStateManager.lastStableOffset).
    """
    stable = marker.next_offset if oldest_open is None else oldest_open
    return AbortedRange(marker.producer_id, first_offset, marker.last_offset, stable)


class OffsetIndex:
    """Relative last offset and byte position of one batch per 4096 bytes of log; two arrays, so that bisect
    runs in C.
    """

    __slots__ = ("offsets", "positions", "saved")

    def __init__(self, data: bytes = b"") -> None:
        if len(data) % OFFSET_ENTRY.size:
            raise CorruptIndex(f"an offset index of {len(data)} bytes ends inside an entry")
        # Arrays, not lists: the index of a full segment (1 GiB) has 262,144 entries, at 4 bytes per number
        # instead of 36. The file is big-endian, like Kafka's.
        words = array("I", data)
        if sys.byteorder == "little":
            words.byteswap()
        self.offsets = words[0::2]
        self.positions = words[1::2]
        self.saved = len(self.offsets)  # how many entries are in the file

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def position_before(self, relative_offset: int) -> int:
        """The position of the last indexed batch at or before the one that holds the offset; 0 without
        one.
        """
        at = bisect_right(self.offsets, relative_offset) - 1
        return self.positions[at] if at >= 0 else 0

    def last_position_up_to(self, position: int) -> int:
        """The last indexed batch start at or before `position`; 0 without one."""
        at = bisect_right(self.positions, position) - 1
        return self.positions[at] if at >= 0 else 0

    def first_offset_from(self, position: int) -> int | None:
        """Relative last offset of the first indexed batch at or after `position`
        (OffsetIndex.fetchUpperBoundOffset)."""
        at = bisect_left(self.positions, position)
        return self.offsets[at] if at < len(self.positions) else None

    def encoded(self, from_entry: int = 0) -> bytes:
        """The bytes of the file from an entry on."""
        words = array("I", bytes(OFFSET_ENTRY.size * (len(self.offsets) - from_entry)))
        words[0::2] = self.offsets[from_entry:]
        words[1::2] = self.positions[from_entry:]
        if sys.byteorder == "little":
            words.byteswap()
        return words.tobytes()


class TimeIndex:
    """Pairs (timestamp, relative offset): records with a larger timestamp come after that offset. Both
    columns ascend.
    """

    __slots__ = ("offsets", "saved", "timestamps")

    def __init__(self, data: bytes = b"") -> None:
        if len(data) % TIME_ENTRY.size:
            raise CorruptIndex(f"a time index of {len(data)} bytes ends inside an entry")
        self.timestamps = array("q")
        self.offsets = array("I")
        for timestamp, offset in TIME_ENTRY.iter_unpack(data):
            self.timestamps.append(timestamp)
            self.offsets.append(offset)
        self.saved = len(self.offsets)  # how many entries are in the file

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry, unless its timestamp is not larger than the last one (TimeIndex.maybeAppend)."""
        # Producers choose timestamps, so they may go back. A column that ascends can be bisected.
        if timestamp >= 0 and (not self.timestamps or timestamp > self.timestamps[-1]):
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    @property
    def last_offset(self) -> int:
        """The relative last offset of the batch with the largest timestamp; 0 without an entry."""
        return self.offsets[-1] if self.offsets else 0

    def offset_before(self, timestamp: int) -> int:
        """A relative offset: no record before its batch is as new as `timestamp`. 0 if unknown."""
        entry = self.entry_before(timestamp)
        return 0 if entry is None else entry[1]

    def entry_before(self, timestamp: int) -> tuple[int, int] | None:
        """The newest entry that is not newer than `timestamp`: its timestamp and its relative offset."""
        at = bisect_right(self.timestamps, timestamp) - 1
        return None if at < 0 else (self.timestamps[at], self.offsets[at])

    def encoded(self, from_entry: int = 0) -> bytes:
        """The bytes of the file, from an entry on."""
        return b"".join(map(TIME_ENTRY.pack, self.timestamps[from_entry:], self.offsets[from_entry:]))


class TransactionIndex:
    """The aborted transactions whose marker is in this segment, in the order of the markers, as the bytes of
    the file.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes = b"") -> None:
        if len(data) % ABORTED_ENTRY.size:
            raise CorruptIndex(f"a transaction index of {len(data)} bytes ends inside an entry")
        # Kept as in the file: aborts are rare, and a fetch decodes only the entries that it compares.
        self.data = bytearray(data)

    def __len__(self) -> int:
        return len(self.data) // ABORTED_ENTRY.size

    def __getitem__(self, entry: int) -> AbortedRange:
        version, *fields = ABORTED_ENTRY.unpack_from(self.data, entry * ABORTED_ENTRY.size)
        if version != ABORTED_ENTRY_VERSION:
            raise CorruptIndex(
                f"a transaction index entry of version {version}; this version reads {ABORTED_ENTRY_VERSION}"
            )
        return AbortedRange._make(fields)

    def check_versions(self) -> None:
        """CorruptIndex if an entry has another version; a million of them take some milliseconds."""
        high, low = (self.data[byte :: ABORTED_ENTRY.size] for byte in range(2))
        if high.count(0) + low.count(ABORTED_ENTRY_VERSION) < 2 * len(self):
            for entry in range(len(self)):
                _ = self[entry]

    def append(self, aborted: AbortedRange) -> bytes:
        """Add an entry, and return its bytes for the file; CorruptIndex when its marker is not after the last
        one.
        """
        # `collect` bisects by the last offset. Kafka refuses the same (TransactionIndex.append).
        if len(self) and aborted.last_offset <= self[len(self) - 1].last_offset:
            raise CorruptIndex(f"{aborted} is not after the last entry {self[len(self) - 1]}")
        entry = ABORTED_ENTRY.pack(ABORTED_ENTRY_VERSION, *aborted)
        self.data += entry
        return entry

    def collect(self, fetch_offset: int, *, upper: int) -> tuple[list[AbortedRange], bool]:
        """The entries that overlap [fetch_offset, upper), and whether later segments need not be searched.

        Complete once an entry's last stable offset reaches `upper` (TransactionIndex.collectAbortedTxns).
        """
        found: list[AbortedRange] = []
        # A transaction that ended before the fetch offset cannot overlap the fetch.
        first = bisect_left(range(len(self)), fetch_offset, key=lambda entry: self[entry].last_offset)
        for entry in range(first, len(self)):
            aborted = self[entry]
            if aborted.first_offset < upper:
                found.append(aborted)
            if aborted.last_stable_offset >= upper:
                return found, True
        return found, False


def collect_aborted(
    indexes: Iterable[TransactionIndex], fetch_offset: int, *, upper: int
) -> list[AbortedRange]:
    """Search the indexes of consecutive segments, as far as needed; the first one is of the segment that
    holds `fetch_offset`.

    Searching that segment alone would let aborted records through, since an entry is where its marker is.
    """
    found: list[AbortedRange] = []
    for index in indexes:
        here, complete = index.collect(fetch_offset, upper=upper)
        found += here
        if complete:
            break
    return found


class AbortedRanges:
    """Looks up whether a batch belongs to an aborted transaction."""

    def __init__(self, ranges: Iterable[AbortedRange]) -> None:
        self._by_producer: dict[int, tuple[list[int], list[int]]] = {}
        for aborted in sorted(ranges):
            firsts, lasts = self._by_producer.setdefault(aborted.producer_id, ([], []))
            firsts.append(aborted.first_offset)
            lasts.append(aborted.last_offset)

    def holds(self, header: BatchHeader) -> bool:
        """Whether the transactional batch, or a marker, belongs to an aborted transaction.

        The transactions of one producer never overlap, so one bisection finds the only candidate.
        """
        found = self._by_producer.get(header.producer_id)
        if found is None:
            return False
        at = bisect_right(found[0], header.base_offset) - 1
        return at >= 0 and header.base_offset <= found[1][at]


# --- the snapshot of producers (ProducerStateManager, version 1) ----------------------------------------
#
#     version i16 | CRC-32C u32 | count i32 | per producer: id i64, epoch i16, last sequence i32,
#                                           | last offset i64, offset delta i32, timestamp i64,
#                                           | coordinator epoch i32, first offset of its transaction i64
#
# The checksum covers a file that may be torn: a snapshot is synced only when the journal is closed. One whose
# checksum is wrong is removed, and the next older one is used.

SNAPSHOT_VERSION: Final = 1
_HEAD = struct.Struct(">hI")  # version, CRC-32C of everything after it
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class ProducerSnapshot(NamedTuple):
    """One producer. Only its last batch is kept, so right after a restart only that one is recognised as a
    duplicate.

    `last_sequence` and `last_offset` are -1 when only a marker was seen; `first_offset` is -1 when no
    transaction is open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    first_offset: int


def encode_snapshot(producers: Sequence[ProducerSnapshot]) -> bytes:
    """The bytes of a snapshot file."""
    body = _COUNT.pack(len(producers)) + b"".join(_ENTRY.pack(*producer) for producer in producers)
    return _HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def snapshot_checksum(snapshot: bytes) -> int:
    """The checksum in a whole snapshot file. It distinguishes the file from other snapshots."""
    _, checksum = _HEAD.unpack_from(snapshot)
    return checksum


def decode_snapshot(data: bytes) -> list[ProducerSnapshot]:
    """The producers in a snapshot file; CorruptIndex when it is truncated, damaged or of another version."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise CorruptIndex(f"a snapshot of {len(data)} bytes is truncated")
    version, checksum = _HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptIndex(f"a snapshot of version {version}; this version reads {SNAPSHOT_VERSION}")
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body) != checksum:
        raise CorruptIndex("the checksum of a snapshot does not match its bytes")
    (count,) = _COUNT.unpack_from(body)
    entries = body[_COUNT.size :]
    if count * _ENTRY.size != len(entries):
        raise CorruptIndex(f"a snapshot announces {count} producers and holds {len(entries)} bytes of them")
    return [ProducerSnapshot._make(fields) for fields in _ENTRY.iter_unpack(entries)]
