"""One log around its damage: the batches that are intact, and the offsets that are lost.

Rule: a batch counts only at its own offset, with its own checksum. No offset moves: a lost range keeps its
place, so every record that is left has the offset that its readers know.
"""

# Theory of operation
#
#     bytes     | 0..2 | 3..3 | ~~~~ damaged ~~~~ | 9..9 | 10..12 |        (offsets of each batch)
#     pieces      intact intact LostRange(4, 9)     intact intact
#     repaired  | 0..2 | 3..3 | ABORT 4 | cover 5..8 | 9..9 | 10..12 |
#
# The broker's recovery stops at the first invalid byte. This reader continues: it looks for the next byte
# where an intact batch begins, one that links to what follows it, and calls all offsets in between lost. It
# shares only the batch format with the journal.
#
# Records may contain the bytes of batches, and a damaged length may hide where a batch ends. So a batch that
# is found after damage must link to the next one or end the file. If only the length of a batch is damaged,
# its checksum proves where it ends, and nothing is lost.
#
# A batch with a wrong base offset has a right checksum, because the offset is outside it. A bit may have
# flipped, or the bytes may belong elsewhere. The two cannot be distinguished, so the batch is lost.

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from enum import Enum
from typing import Final, NamedTuple

import attrs

from fencepost.check.scan import ScannedBatch, log_file, sizes_of
from fencepost.check.snapshot_files import read_producers
from fencepost.journal.manifest import MANIFEST_FILE, KnownSnapshots
from fencepost.journal.segments import BATCH_SIZE_MAX
from fencepost.journal.storage import StorageReader
from fencepost.log_model.partitions import ModelProducer
from fencepost.protocol.batches import (
    CONTROL_BATCH_SIZE,
    CONTROL_BATCH_SIZE_MAX,
    HEADER_SIZE,
    MAGIC_AT,
    BatchHeader,
    Buffer,
    checksum_matches,
    covering_batch,
    place,
    read_header,
    read_marker,
    walk,
)
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import INT32_MAX, NO_LEADER_EPOCH, TopicPartition

_PLACE: Final = struct.Struct(">qii")  # base offset, batch length, leader epoch
_MAGIC: Final = re.compile(rb"[\x02m]")  # a header has one of them as its 17th byte


class LossKind(Enum):
    """How offsets were lost."""

    DAMAGED = "damaged bytes"
    MISPLACED = "misplaced batch"
    CUT_OFF = "missing end"
    MISSING_SEGMENT = "missing segment"
    MISSING_PARTITION = "missing partition directory"


class IntactBatch(NamedTuple):
    """An intact batch. `data` is None when it stays byte for byte as it is in its file."""

    batch: ScannedBatch
    data: bytes | None = None

    @property
    def header(self) -> BatchHeader:
        return self.batch.header


@attrs.define(eq=False)
class LostRange:
    """The offsets from `start` to before `end`, and the bytes of a file that are in their place."""

    kind: LossKind
    start: int
    end: int
    file: str
    first_byte: int
    end_byte: int
    because: str
    may_hold_markers: bool = True
    """False if the damage certainly hit one batch, and that batch is not a marker."""
    markers: list[bytearray] = attrs.Factory(list[bytearray])
    """What is written in the place of lost markers, one per offset from `start` on."""


Piece = IntactBatch | LostRange


@attrs.define(eq=False)
class SalvagedSegment:
    """A log file as it will be: its pieces in order. An unaltered one is not written."""

    file: str
    base_offset: int
    end_offset: int
    pieces: list[Piece] = attrs.Factory(list[Piece])
    is_altered: bool = False

    @property
    def is_intact(self) -> bool:
        """Whether nothing of the file is lost."""
        return not self.is_altered and all(isinstance(piece, IntactBatch) for piece in self.pieces)


class TornTail(NamedTuple):
    """Bytes at the end of a log that were never promised: the next start cuts them off."""

    file: str
    first_byte: int
    end_byte: int


@attrs.define(eq=False)
class SalvagedLog:
    """What is left of one partition."""

    partition: TopicPartition
    segments: list[SalvagedSegment] = attrs.Factory(list[SalvagedSegment])
    strays: dict[str, str] = attrs.Factory(dict[str, str])
    """Log files of which nothing is used, and why: they lie inside another one's offsets, or after the end of
    a log that was closed.
    """
    replaced: list[str] = attrs.Factory(list[str])
    """Those whose place a cleaned segment has taken: the next start removes them."""
    corrected: list[str] = attrs.Factory(list[str])
    """What was corrected without any loss."""
    torn: TornTail | None = None
    unsynced: list[str] = attrs.Factory(list[str])
    """Those after the end that a loss of power has left: the next start removes them."""
    producers: dict[int, ModelProducer] = attrs.Factory(dict[int, ModelProducer])
    """Those in the snapshot where the log begins, if older segments were deleted."""
    left_open: set[int] = attrs.Factory(set[int])
    """Producers whose last transaction is ended at the end of the log: it may have ended in a lost range."""

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset if self.segments else 0

    def pieces(self) -> Iterator[Piece]:
        """All pieces in the order of their offsets."""
        for segment in self.segments:
            yield from segment.pieces

    def lost(self) -> list[LostRange]:
        """The ranges without an intact batch."""
        return [piece for piece in self.pieces() if isinstance(piece, LostRange)]

    @property
    def is_altered(self) -> bool:
        return bool(self.strays) or any(segment.is_altered for segment in self.segments)

    def forget_batches(self) -> None:
        """Keep only where the segments of a whole log begin and end."""
        assert not self.is_altered, "an altered log is written from its pieces"
        for segment in self.segments:
            segment.pieces.clear()

    def lose(self, lost: LostRange, *, to: SalvagedSegment | None) -> None:
        """Put a lost range at the present end: into this segment, or into one of its own."""
        if to is None:
            path = log_file(str(self.partition), lost.start)
            to = SalvagedSegment(path, lost.start, lost.start)
            self.segments.append(to)
        to.pieces.append(lost)
        to.end_offset = lost.end
        to.is_altered = True


Belongs = Callable[[BatchHeader, bytes], bool]
"""Whether the records of an intact batch are of the kind that its log holds."""


@attrs.frozen(kw_only=True)
class Bounds:
    """What the small files say of a log: where it starts, the end that the next start demands, its snapshots
    and, if it was closed in order, its exact end.
    """

    start: int
    promised: int
    closed_at: int | None = None
    lost_power: bool = False
    """Whether a loss of power may have taken what was not synced, also from the middle of the log."""
    last_base: int | None = None
    """The last segment that was begun, unless a loss of power may have taken later ones from the manifest."""
    ends: Mapping[int, int] = attrs.Factory(dict[int, int])
    """Where segments ended, by their base offsets."""
    snapshots: KnownSnapshots = attrs.Factory(lambda: KnownSnapshots({}))

    def unlisted(self, bases: Iterable[int]) -> list[int]:
        """Those of the base offsets that come after the last segment that was begun."""
        return [] if self.last_base is None else [base for base in bases if base > self.last_base]


def salvage(
    storage: StorageReader, partition: TopicPartition, bounds: Bounds, belongs: Belongs
) -> SalvagedLog:
    """Read a whole log."""
    log = SalvagedLog(partition)
    sizes = sizes_of(storage, str(partition))
    if bounds.closed_at is not None:
        for base in _after(bounds.closed_at, sizes):
            del sizes[base]
            file = log_file(str(partition), base)
            log.strays[file] = f"the log was closed at offset {bounds.closed_at}, without this segment"
    for base in bounds.unlisted(sizes):
        del sizes[base]
        log.strays[log_file(str(partition), base)] = f"{MANIFEST_FILE} does not list it"
    expected, bases, promised = min([bounds.start, *sizes]), sorted(sizes), bounds.promised
    cleaned_end = 0
    for number, base in enumerate(bases):
        file = log_file(str(partition), base)
        if _ends_before(log, base, bounds):
            log.unsynced.append(file)
            continue
        if base < expected:
            if base < cleaned_end:
                log.replaced.append(file)
            else:
                log.strays[file] = "other files hold its offsets"
            continue
        if base > expected:
            _lose_before(log, expected, base, bounds)
        reader = _Reader(storage, log, file, base, bases[number + 1 :], bounds, belongs)
        expected = reader.read(sizes[base])
        cleaned_end = expected if reader.is_cleaned else 0
    if promised > expected:
        last = log.segments[-1] if log.segments else None
        size = 0 if last is None else storage.files(str(partition)).get(last.file.rpartition("/")[2], 0)
        file = str(partition) if last is None else last.file
        because = f"the log ends there, and {promised} was promised{_doubt(log, bounds)}"
        log.lose(LostRange(LossKind.CUT_OFF, expected, promised, file, size, size, because), to=last)
    first = log.segments[0].base_offset if log.segments else 0
    if first:
        log.producers = read_producers(storage, str(partition), first, bounds.snapshots) or {}
    return log


def _ends_before(log: SalvagedLog, base: int, bounds: Bounds) -> bool:
    """Whether the next start removes a segment, because the log ends before it and nothing promised more."""
    has_gap = bool(log.segments) and base > log.end_offset >= bounds.promised
    return (has_gap and _may_be_cut(log, bounds)) or bool(log.unsynced) or log.torn is not None


def _may_be_cut(log: SalvagedLog, bounds: Bounds) -> bool:
    """Whether a start may remove later segments. It refuses a log that is damaged before them, so there they
    are saved.
    """
    return bounds.lost_power and not log.is_altered


def _after(closed_at: int, sizes: Mapping[int, int]) -> list[int]:
    """The segments after the end of a log that was closed. The last one of the log may begin there, empty."""
    return [base for base, size in sizes.items() if base > closed_at or (base == closed_at and size)]


def _lose_before(log: SalvagedLog, expected: int, base: int, bounds: Bounds) -> None:
    """No file holds the offsets up to the next segment."""
    file = log_file(str(log.partition), expected)
    because = f"no file holds these offsets{_doubt(log, bounds)}"
    lost = LostRange(LossKind.MISSING_SEGMENT, expected, base, file, 0, 0, because)
    last = log.segments[-1] if log.segments else None
    # A segment without a batch begins where the lost one does, so a segment of its own would have the same
    # name.
    log.lose(lost, to=last if last is not None and last.base_offset == expected else None)


def _doubt(log: SalvagedLog, bounds: Bounds) -> str:
    """What to add about a file whose batches are whole, but end before those that were written to it: it may
    be a part of that file, or an older or another one.
    """
    last = log.segments[-1] if log.segments else None
    end = 0 if last is None else bounds.ends.get(last.base_offset, 0)
    if last is None or not last.pieces or isinstance(last.pieces[-1], LostRange) or end <= last.end_offset:
        return ""
    return (
        f"; {last.file} ends at offset {last.end_offset}, but {end} was written: it was cut off between two "
        "batches, or it is not the file that was written here, and then none of its records is right"
    )


@attrs.define(eq=False)
class _Reader:
    """Reads one log file. `later` are the base offsets of those after it."""

    storage: StorageReader
    log: SalvagedLog
    file: str
    base: int
    later: list[int]
    bounds: Bounds
    belongs: Belongs
    data: bytes = b""
    is_cleaned: bool = False
    """Whether it takes the place of later ones that a crash left."""
    unconfirmed_end: int = 0
    """The end of intact batches in damaged bytes that no neighbour confirms: they may belong elsewhere."""

    def read(self, size: int) -> int:
        """Add the segment to the log; return the offset at its end."""
        segment = SalvagedSegment(self.file, self.base, self.base)
        self.log.segments.append(segment)
        at = 0
        with closing(self.storage.open(self.file)) as file:
            while at < size:
                data = self.data[at : at + HEADER_SIZE] if self.data else file.read(at, HEADER_SIZE)
                header = self._header(data, segment.end_offset, left=size - at)
                batch = file.read(at, header.size) if header is not None else b""
                if header is None or not self._is_intact(batch, header):
                    self.data = self.data or file.read(0, size)
                    if not self._takes_places(at, segment.end_offset):
                        at = self._skip(segment, at)
                    continue
                segment.pieces.append(IntactBatch(_scanned(self.file, at, header, batch)))
                segment.end_offset = header.next_offset
                at += header.size
        return segment.end_offset

    @property
    def limit(self) -> int | None:
        """Where the next file begins; None in the last one."""
        return self.later[0] if self.later else None

    def _takes_places(self, at: int, offset: int) -> bool:
        """Whether the rest of the file is intact and ends where a file after the next one begins: a crash
        came between the rename of a cleaned segment and the removal of those that it replaces. `later` is
        without them then.
        """
        try:
            for position, header in walk(memoryview(self.data)[at:]):
                batch = self.data[at + position : at + position + header.size]
                if header.base_offset != offset or not self._is_intact(batch, header):
                    return False
                offset = header.next_offset
        except ProtocolViolation:
            return False
        if offset not in self.later[1:]:
            return False
        self.later = self.later[self.later.index(offset) :]
        self.is_cleaned = True
        return True

    def _header(self, data: Buffer, expected: int, *, left: int) -> BatchHeader | None:
        """The header in these bytes, if a whole batch can begin with it at this offset."""
        try:
            header = read_header(data)
        except ProtocolViolation:
            return None
        highest = self.base + INT32_MAX if self.limit is None else self.limit
        fits = header.size <= min(left, BATCH_SIZE_MAX) and header.next_offset <= highest
        return header if fits and header.base_offset == expected else None

    def _is_intact(self, batch: bytes, header: BatchHeader) -> bool:
        return checksum_matches(batch, 0, header) and self.belongs(header, batch)

    @property
    def _offset_max(self) -> int:
        """No batch after damage reaches beyond this offset."""
        end = self.bounds.closed_at if self.limit is None else self.limit
        return self.base + INT32_MAX if end is None else end

    def _skip(self, segment: SalvagedSegment, at: int) -> int:
        """Note what is lost from byte `at` on; return the byte where an intact batch begins, or the end."""
        data, expected = self.data, segment.end_offset
        found = self._next_intact(at, expected)
        following, end = (len(data), None) if found is None else (found[0], found[1].base_offset)
        if self._correct_length(segment, at, following, end):
            return following
        kind, because = self._why(at, expected)
        if end is None:
            least = max(expected, self.bounds.promised, self.unconfirmed_end)
            may_end = self.limit is None or _may_be_cut(self.log, self.bounds)
            if least == expected and may_end:
                self.log.torn = TornTail(self.file, at, len(data))
                return following
            end = least if self.limit is None else self.limit
        lost = LostRange(kind, expected, end, self.file, at, following, because)
        lost.may_hold_markers = not self._is_one_data_batch(at, following, expected, end)
        self.log.lose(lost, to=segment)
        return following

    def _next_intact(self, at: int, expected: int) -> tuple[int, BatchHeader] | None:
        """The first intact batch after byte `at` whose offset a neighbour confirms."""
        for found in _MAGIC.finditer(self.data, at + 1 + MAGIC_AT):
            position = found.start() - MAGIC_AT
            header = self._intact(position, lowest=expected)
            if header is None:
                continue
            if self._leads_on(position, header, expected) or self._follows(at, position, header):
                return position, header
            self.unconfirmed_end = max(self.unconfirmed_end, header.next_offset)
        return None

    def _leads_on(self, position: int, header: BatchHeader, expected: int) -> bool:
        """Whether the next batch continues this one, or the file ends with it as it should."""
        following = position + header.size
        if following < len(self.data):
            after = self._intact(following, lowest=header.next_offset)
            return after is not None and after.base_offset == header.next_offset
        if self.limit is not None:
            return header.next_offset == self.limit
        # Nothing is lost before a batch with the expected offset: the batch before confirms it.
        return header.next_offset == self.bounds.promised or header.base_offset == expected

    def _follows(self, at: int, position: int, header: BatchHeader) -> bool:
        """Whether the damaged batch at byte `at` says that the next one begins there, with this offset."""
        try:
            damaged = read_header(self.data, at)
        except ProtocolViolation:
            return False
        return (at + damaged.size, damaged.next_offset) == (position, header.base_offset)

    def _intact(self, position: int, *, lowest: int) -> BatchHeader | None:
        """The intact batch at a byte, at this offset or, where it is unknown, at a later one."""
        try:
            header = read_header(self.data, position)
        except ProtocolViolation:
            return None
        fits = header.size <= len(self.data) - position and header.next_offset <= self._offset_max
        if not fits or header.base_offset < lowest:
            return None
        is_intact = self._is_intact(self.data[position : position + header.size], header)
        return header if is_intact else None

    def _correct_length(self, segment: SalvagedSegment, at: int, following: int, end: int | None) -> bool:
        """Whether the batch at byte `at` has only a wrong length: its checksum proves that it ends here."""
        if following - at < HEADER_SIZE:
            return False
        batch = bytearray(self.data[at:following])
        base_offset, _, leader_epoch = _PLACE.unpack_from(batch)
        place(batch, base_offset=base_offset, leader_epoch=leader_epoch)  # with the length that it has
        try:
            header = read_header(batch)
        except ProtocolViolation:
            return False
        is_whole = header.base_offset == segment.end_offset and self._is_intact(bytes(batch), header)
        if not is_whole or end not in (None, header.next_offset):
            return False
        segment.pieces.append(IntactBatch(_scanned(self.file, at, header, batch), bytes(batch)))
        segment.end_offset, segment.is_altered = header.next_offset, True
        self.log.corrected.append(f"{self.file}, byte {at}: the length of a batch; its checksum proves it")
        return True

    def _why(self, at: int, expected: int) -> tuple[LossKind, str]:
        try:
            header = read_header(self.data, at)
        except ProtocolViolation as violation:
            return LossKind.DAMAGED, str(violation)
        if header.size > len(self.data) - at:
            return LossKind.DAMAGED, f"a batch of {header.size:,} bytes is cut off"
        if not checksum_matches(self.data, at, header):
            return LossKind.DAMAGED, "the checksum of a batch does not match its bytes"
        if header.base_offset == expected:
            return LossKind.MISPLACED, "its records are not of the kind that this log holds"
        return LossKind.MISPLACED, f"a batch says offset {header.base_offset} where {expected} was expected"

    def _is_one_data_batch(self, at: int, following: int, expected: int, end: int) -> bool:
        """Whether length and offsets in a damaged header agree with all its neighbours, and a marker has
        another size.
        """
        try:
            header = read_header(self.data, at)
        except ProtocolViolation:
            return False
        is_one = at + header.size == following and (header.base_offset, header.next_offset) == (expected, end)
        return is_one and not CONTROL_BATCH_SIZE <= header.size <= CONTROL_BATCH_SIZE_MAX


def _scanned(file: str, position: int, header: BatchHeader, batch: Buffer) -> ScannedBatch:
    try:
        marker = read_marker(batch) if header.is_control else None
    except ProtocolViolation:  # of another kind, or written this way: `check` reports it
        marker = None
    return ScannedBatch(file, position, header, marker)


def correct_epochs(storage: StorageReader, log: SalvagedLog, newest: int) -> None:
    """Correct the leader epochs that break the order: they never fall, and none is above `newest`.

    No checksum covers them. As few as possible are changed, each to the epoch of the batch before it; nothing
    but the order of the log depends on them.
    """
    kept = [
        (segment, number, piece)
        for segment in log.segments
        for number, piece in enumerate(segment.pieces)
        if isinstance(piece, IntactBatch)
    ]
    right = _longest_rise([piece.header.leader_epoch for _, _, piece in kept], newest)
    epoch = kept[min(right)][2].header.leader_epoch if right else max(0, newest)
    for index, (segment, number, piece) in enumerate(kept):
        if index in right:
            epoch = piece.header.leader_epoch
            continue
        segment.pieces[number] = _with_epoch(storage, piece, epoch)
        segment.is_altered = True
        where = f"{segment.file}, byte {piece.batch.position}"
        log.corrected.append(f"{where}: leader epoch {piece.header.leader_epoch} instead of {epoch}")


def _longest_rise(epochs: list[int], newest: int) -> set[int]:
    """The indexes of a longest subsequence that never falls, of the epochs from 0 to `newest`."""
    ends: list[int] = []  # the lowest last epoch of a rise, by its length
    lasts: list[int] = []  # the index of that epoch
    before: dict[int, int] = {}
    for index, epoch in enumerate(epochs):
        if not 0 <= epoch <= newest:
            continue
        length = bisect_right(ends, epoch)
        before[index] = lasts[length - 1] if length else -1
        ends[length : length + 1] = [epoch]
        lasts[length : length + 1] = [index]
    found: set[int] = set()
    index = lasts[-1] if lasts else -1
    while index >= 0:
        found.add(index)
        index = before[index]
    return found


def _with_epoch(storage: StorageReader, piece: IntactBatch, leader_epoch: int) -> IntactBatch:
    batch = bytearray(content_of(storage, piece))
    header = place(batch, base_offset=piece.header.base_offset, leader_epoch=leader_epoch)
    return IntactBatch(piece.batch._replace(header=header), bytes(batch))


# --- the repaired bytes -----------------------------------------------------------------------------------


def content_of(storage: StorageReader, piece: IntactBatch) -> bytes:
    """The bytes of a batch."""
    if piece.data is not None:
        return piece.data
    with closing(storage.open(piece.batch.file)) as file:
        return file.read(piece.batch.position, piece.header.size)


def repaired_bytes(storage: StorageReader, segment: SalvagedSegment, leader_epoch: int) -> bytes:
    """The log file with its lost ranges covered; `leader_epoch` is that of the batch before it."""
    out = bytearray()
    original = b"" if not segment.pieces else storage.read_file(segment.file) or b""
    for piece in segment.pieces:
        if isinstance(piece, IntactBatch):
            leader_epoch = piece.header.leader_epoch
            at = piece.batch.position
            out += original[at : at + piece.header.size] if piece.data is None else piece.data
            continue
        leader_epoch, offset = max(leader_epoch, 0), piece.start
        for marker in piece.markers:
            offset = place(marker, base_offset=offset, leader_epoch=leader_epoch).next_offset
            out += marker
        while offset < piece.end:
            following = min(piece.end, offset + INT32_MAX)
            out += covering_batch(base_offset=offset, next_offset=following, leader_epoch=leader_epoch)
            offset = following
    return bytes(out)


def is_compacted(log: SalvagedLog) -> bool:
    """Whether a batch of a log shows that compaction was here. Only compaction sets a delete horizon, and
    only it removes records from a batch.
    """
    headers = (piece.header for piece in log.pieces() if isinstance(piece, IntactBatch))
    return any(
        header.delete_horizon_ms is not None
        or (header.record_count <= header.last_offset_delta and not header.is_covering)
        for header in headers
    )


def last_epoch(log: SalvagedLog) -> int:
    """The newest leader epoch of a log, -1 without a batch."""
    epochs = (piece.header.leader_epoch for piece in log.pieces() if isinstance(piece, IntactBatch))
    return max(epochs, default=NO_LEADER_EPOCH)


def epoch_before(log: SalvagedLog, segment: SalvagedSegment) -> int:
    """The leader epoch of the last batch before a segment."""
    epoch = NO_LEADER_EPOCH
    for piece in log.pieces():
        if isinstance(piece, IntactBatch) and piece.header.base_offset < segment.base_offset:
            epoch = piece.header.leader_epoch
    return epoch
