"""The files of one partition, read without a broker: segments, manifest and indexes. Takes no lock, changes
nothing.

Rule: the manifest is read before the files are listed, and the log start after that. So what the manifest
describes exists, or the log start says that it was deleted; more may exist.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

import attrs

from fencepost.journal.indexes import (
    ABORTED_ENTRY,
    OFFSET_ENTRY,
    AbortedRange,
    CorruptIndex,
    OffsetIndex,
    TransactionIndex,
    decode_snapshot,
    without_preallocated,
)
from fencepost.journal.indexes import collect_aborted as collect_from
from fencepost.journal.layouts import LogLayout
from fencepost.journal.manifest import MANIFEST_FILE, Manifest, MisplacedFile, decode_manifest, misplaced
from fencepost.journal.open_transactions import OpenTransaction
from fencepost.journal.segments import INDEX, LOG, SNAPSHOT, TRANSACTION_INDEX, file_name, parse_file_name
from fencepost.journal.snapshots import open_in_snapshot
from fencepost.journal.storage import DamagedLog, MissingFile, StorageReader, directory_name, read_listed
from fencepost.protocol.batches import HEADER_SIZE, BatchHeader, read_header
from fencepost.protocol.errors import FencepostError, ProtocolViolation
from fencepost.protocol.terms import TopicPartition
from fencepost.spark_bridge.losses import Loss

Result = TypeVar("Result")

NOTED_BYTES: Final = 64 << 10  # a walk notes a batch this often; reading that much costs less than a task
SWAP_SUFFIX: Final = ".swap"


class DataLoss(FencepostError):
    """The requested offsets were deleted or never written.

    With `failOnDataLoss=false` the reader returns what exists.
    """


class CorruptLog(FencepostError):
    """Bytes below the readable end of a log differ from what was written."""


class DamagedIndex(CorruptLog):
    """A transaction index cannot be read. With `failOnDataLoss=false`, the markers are read instead."""

    def __init__(self, what: str, advice: str, *, log: PartitionFiles, segment: SegmentFile) -> None:
        self.file, self.what, self.advice = log.location(segment, TRANSACTION_INDEX), what, advice
        self._partition, self._offset = log.partition, segment.base_offset
        super().__init__(f"{self.file} {what}: {advice}")

    def as_loss(self) -> Loss:
        """What is reported where this is not an error. No record is lost."""
        return Loss(
            partition=self._partition,
            start=self._offset,
            end=self._offset,
            file=self.file,
            position=0,
            reason=f"{self.file} {self.what}: reading the markers instead",
        )


@attrs.frozen
class SegmentFile:
    """A `.log` file and its size; the last one of a partition may end in a torn batch."""

    base_offset: int
    size: int = attrs.field(kw_only=True)


class Piece(NamedTuple):
    """Part of a segment's log file: from byte `position`, where a batch begins, up to byte `stop` at most."""

    base_offset: int  # of the segment
    position: int
    stop: int


@attrs.frozen(kw_only=True)
class PartitionFiles:
    """A snapshot of a partition's directory."""

    layout: LogLayout = attrs.field(eq=False)
    home: int
    """Which of the layout's directories it is in."""
    storage: StorageReader = attrs.field(eq=False)
    partition: TopicPartition
    topic_id: str
    """Empty if it is unknown."""
    manifest: Manifest | None
    why_damaged: str
    """Why there is a manifest that cannot be read; otherwise empty."""
    high_watermark: int | None
    """Where every reader stops, None for the end of the log."""
    segments: tuple[SegmentFile, ...]
    replaced: tuple[int, ...]
    """The base offsets of segments that have lost their file, and whose replacement is not renamed into their
    place yet.
    """
    snapshots: tuple[int, ...]
    """The offsets of the producer snapshots, ascending."""
    stored_log_start: int
    """The log start of the last deletion of records; it may be newer than the manifest."""
    unindexed: frozenset[int]
    """The base offsets of segments whose transaction index is missing or empty."""
    _last_index: dict[int, OffsetIndex] = attrs.field(
        factory=dict[int, OffsetIndex], init=False, eq=False, repr=False
    )
    walked: dict[int, OffsetIndex] = attrs.field(factory=dict[int, OffsetIndex], eq=False, repr=False)
    """Offset indexes with the entries that a walk added, by base offset: a broker saves those of the segment
    that it writes to only when that is full."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read; 0 for a partition that never had a segment."""
        return max(self.deleted_to, self.segments[0].base_offset if self.segments else 0)

    @property
    def deleted_to(self) -> int:
        """The offset below which records are known to have been deleted. Kafka removes segments before it
        writes this down.
        """
        return max(self.stored_log_start, self.manifest.log_start_offset if self.manifest else 0)

    def path(self, segment: SegmentFile, kind: str = LOG) -> str:
        """The path of one of a segment's files in the storage."""
        return f"{directory_name(self.partition)}/{file_name(segment.base_offset, kind)}"

    def location(self, segment: SegmentFile, kind: str = LOG) -> str:
        """The same path with the location of the storage, for messages."""
        return f"{self.storage.location}/{self.path(segment, kind)}"

    def segment_index(self, offset: int) -> int:
        """The number of the segment for this offset: the last that starts at or before it, else 0."""
        return max(0, bisect_right(self.segments, offset, key=attrgetter("base_offset")) - 1)

    def offset_index(self, segment: SegmentFile) -> OffsetIndex:
        """The offset index of a segment; shorter if the file is missing or cut off.

        It is only a hint: callers verify the batch at the position.
        """
        known = self.walked.get(segment.base_offset) or self._last_index.get(segment.base_offset)
        if known is None:
            data = self.storage.read_file(self.path(segment, INDEX)) or b""
            whole = data[: len(data) - len(data) % OFFSET_ENTRY.size]
            known = OffsetIndex(without_preallocated(whole, OFFSET_ENTRY.size))
            self._last_index.clear()
            self._last_index[segment.base_offset] = known
        return known

    def note_batch(self, segment: SegmentFile, header: BatchHeader, position: int) -> None:
        """Adds a batch of a walk to the index of its segment, if it is far from the last entry."""
        index = self.offset_index(segment)
        if position >= (index.positions[-1] if index.positions else 0) + NOTED_BYTES:
            index.append(header.last_offset - segment.base_offset, position)
            self.walked[segment.base_offset] = index

    def header_at(self, segment: SegmentFile, position: int) -> BatchHeader | None:
        """The header of the batch at this byte, or None if no valid batch of this segment starts there."""
        if position + HEADER_SIZE > segment.size:
            return None
        with closing(self.storage.open(self.path(segment))) as file:
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

    def pieces(self, start: int, end: int) -> tuple[Piece, ...]:
        """The parts of the log files that hold the offsets [start, end)."""
        if start >= end or not self.segments:
            return ()
        first, last = self.segment_index(start), self.segment_index(end - 1)
        return tuple(
            Piece(segment.base_offset, self.position_before(segment, start), segment.size)
            for segment in self.segments[first : last + 1]
        )

    def collect_aborted(self, start: int, *, upper: int) -> list[AbortedRange]:
        """Returns the aborted transactions in the indexes that overlap [start, upper).

        An entry stands in the segment of its marker, so the search goes forward from `start`.
        """
        segments = self.segments[self.segment_index(start) :]
        return collect_from(map(self.transaction_index, segments), start, upper=upper)

    def transaction_index(self, segment: SegmentFile) -> TransactionIndex:
        """The aborted transactions whose marker is in a segment; DamagedIndex if its index is damaged."""
        data = self.storage.read_file(self.path(segment, TRANSACTION_INDEX))
        damaged = partial(DamagedIndex, advice=index_advice(self.layout), log=self, segment=segment)
        # A broker that creates a segment creates its log file first. Kafka makes an index for an entry, so
        # the scan searches the markers where there is none (markers.py).
        if data is None and (self.layout.is_sparse or not segment.size):
            return TransactionIndex()
        if data is None:
            raise damaged("is missing, and aborted records cannot be distinguished without it")
        torn = len(data) % ABORTED_ENTRY.size
        if torn and segment is not self.segments[-1]:
            raise damaged("ends inside an entry")
        index = TransactionIndex(data[: len(data) - torn])
        try:
            index.check_versions()
        except CorruptIndex as problem:
            raise damaged(f"cannot be read: {problem}") from problem
        return index

    def open_transactions_at(self, ceiling: int) -> tuple[int, list[OpenTransaction]]:
        """Returns an offset up to `ceiling`, as late as possible, and the transactions open there, from the
        producer snapshots; the start of the first segment if there is no snapshot.
        """
        for offset in reversed(self.snapshots):
            if offset > ceiling:
                continue
            data = self.storage.read_file(f"{directory_name(self.partition)}/{file_name(offset, SNAPSHOT)}")
            try:
                producers = decode_snapshot(data or b"")
            except CorruptIndex:
                continue  # torn by a loss of power, or removed meanwhile: an older one is as good
            return offset, [*open_in_snapshot(producers)]
        return (self.segments[0].base_offset if self.segments else 0), []


def index_advice(layout: LogLayout) -> str:
    """What to do about a transaction index that is damaged."""
    if layout.is_sparse:
        # Kafka rebuilds all indexes of a segment without .index (LogLoader.loadSegmentFiles), and no others.
        return "copy it again, or remove the segment's .index and start Kafka on it; it rebuilds its indexes"
    return "start the broker on this directory once; it rebuilds the index"


def with_listing(
    layout: LogLayout,
    partition: TopicPartition,
    use: Callable[[PartitionFiles], Result],
    *,
    listed: PartitionFiles | None = None,
) -> Result:
    """Lists the files of a partition and returns `use(files)`; see `read_listed`.

    Raises CorruptLog if the log start is invalid, MissingFile if files keep disappearing, and what `use`
    raises.
    """
    return read_listed(
        lambda: open_partition_files(layout, partition),
        use,
        retried=(MissingFile, DataLoss, CorruptLog),
        listed=listed,
    )


def open_partition_files(layout: LogLayout, partition: TopicPartition) -> PartitionFiles:
    """Reads the manifest and lists the segments of a partition; there are none before its first record.

    Raises CorruptLog if the log start is invalid, or if it or the manifest is of another partition.
    """
    home = layout.home(partition)
    storage = layout.storages[home]
    (manifest, why_damaged), topic_id = _read_identity(layout, storage, partition)
    high_watermark = layout.high_watermark(partition)
    sizes = storage.files(directory_name(partition))
    named = [(*parse_file_name(name), size) for name, size in sizes.items()]
    # Kafka renames the old segments away before it renames a cleaned one, `.swap`, into their place.
    bases = frozenset(base_offset for base_offset, kind, _ in named if kind == LOG)
    indexed = {base_offset for base_offset, kind, size in named if kind == TRANSACTION_INDEX and size}
    swaps = [name.removesuffix(SWAP_SUFFIX) for name in sizes if name.endswith(f".{LOG}{SWAP_SUFFIX}")]
    return PartitionFiles(
        layout=layout,
        home=home,
        storage=storage,
        partition=partition,
        topic_id=topic_id,
        manifest=manifest,
        why_damaged=why_damaged,
        high_watermark=high_watermark,
        segments=tuple(
            SegmentFile(base_offset, size=size) for base_offset, kind, size in named if kind == LOG
        ),
        replaced=tuple(parse_file_name(name)[0] for name in swaps if name not in sizes),
        snapshots=tuple(offset for offset, kind, _ in named if kind == SNAPSHOT),
        stored_log_start=_read_log_start(layout, partition),
        unindexed=bases - indexed,
    )


def _read_log_start(layout: LogLayout, partition: TopicPartition) -> int:
    try:
        return layout.log_start_offset(partition)
    except DamagedLog as problem:
        raise CorruptLog(str(problem)) from problem


def topic_id_of(layout: LogLayout, partition: TopicPartition) -> str:
    """The id of the topic that a partition's directory is of now; empty if it is unknown."""
    manifest, _ = _read_manifest(layout, layout.storages[layout.home(partition)], partition)
    return layout.topic_id(partition, manifest, refresh=True)


ReadManifest = tuple[Manifest | None, str]
"""A manifest, or why it cannot be read."""


def _read_identity(
    layout: LogLayout, storage: StorageReader, partition: TopicPartition
) -> tuple[ReadManifest, str]:
    """The manifest of a partition and the id of its topic; CorruptLog if its directory is misplaced."""
    before: tuple[ReadManifest, str] | None = None
    while True:
        found = _read_manifest(layout, storage, partition)
        topic_id = layout.topic_id(partition, found[0])
        misplacement = layout.misplacement(partition, topic_id)
        if not misplacement:
            return found, topic_id
        # The topic may have been deleted and created again between the reads of manifest and metadata.
        if before == (found, topic_id):
            raise CorruptLog(f"{storage.location}/{directory_name(partition)}: {misplacement}")
        before = found, topic_id


def _read_manifest(layout: LogLayout, storage: StorageReader, partition: TopicPartition) -> ReadManifest:
    if layout.is_sparse:
        return None, ""  # Kafka writes none, and a request to an object store takes time
    directory = directory_name(partition)
    data = storage.read_file(f"{directory}/{MANIFEST_FILE}")
    try:
        return None if data is None else decode_manifest(data, directory=directory), ""
    except MisplacedFile as problem:
        raise CorruptLog(str(misplaced(storage, directory, problem))) from problem
    except CorruptIndex as problem:
        return None, str(problem)
