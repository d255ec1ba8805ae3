"""The files of one partition, read without a broker: segments, manifest and indexes. Takes no lock, changes
nothing.

Rule: the manifest is read before the files are listed, and the log start after that. So what the manifest
describes exists, or the log start says that it was deleted; more may exist.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
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
from fencepost.journal.manifest import (
    MANIFEST_FILE,
    Manifest,
    MisplacedFile,
    decode_manifest,
    lost_segments,
    misplaced,
)
from fencepost.journal.open_transactions import OpenTransaction, OpenTransactions
from fencepost.journal.segments import (
    INDEX,
    LOG,
    SNAPSHOT,
    TRANSACTION_INDEX,
    file_name,
    parse_file_name,
    walk_batches,
    walk_headers,
)
from fencepost.journal.storage import DamagedLog, MissingFile, ReadableFile, StorageReader, directory_name
from fencepost.protocol.batches import HEADER_SIZE, BatchHeader, Buffer, read_header
from fencepost.protocol.errors import FencepostError, ProtocolViolation
from fencepost.protocol.terms import INT64_MAX, NO_LEADER_EPOCH, NO_OFFSET, IsolationLevel, TopicPartition
from fencepost.spark_bridge.losses import Loss, Report

Result = TypeVar("Result")

NOTED_BYTES: Final = 64 << 10  # a walk notes a batch this often; reading that much costs less than a task
SWAP_SUFFIX: Final = ".swap"
RELISTINGS: Final = 3  # a restart or a cleaning changes the files of a partition no more often


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
        """The aborted transactions whose marker is in a segment; CorruptLog if its index is damaged."""
        data = self.storage.read_file(self.path(segment, TRANSACTION_INDEX))
        where = self.location(segment, TRANSACTION_INDEX)
        advice = index_advice(self.layout)
        # A broker that creates a segment creates its log file first. Kafka makes an index for an entry, so
        # the scan searches the markers where there is none (markers.py).
        if data is None and (self.layout.is_sparse or not segment.size):
            return TransactionIndex()
        if data is None:
            raise CorruptLog(
                f"{where} is missing, and aborted records cannot be distinguished without it: {advice}"
            )
        torn = len(data) % ABORTED_ENTRY.size
        if torn and segment is not self.segments[-1]:
            raise CorruptLog(f"{where} ends inside an entry: {advice}")
        index = TransactionIndex(data[: len(data) - torn])
        try:
            index.check_versions()
        except CorruptIndex as problem:
            raise CorruptLog(f"{where}: {problem}: {advice}") from problem
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
            return offset, [
                OpenTransaction(producer.first_offset, producer.producer_id, producer.producer_epoch)
                for producer in producers
                if producer.first_offset != NO_OFFSET
            ]
        return (self.segments[0].base_offset if self.segments else 0), []


def index_advice(layout: LogLayout) -> str:
    """What to do about a transaction index that is damaged."""
    if layout.is_sparse:
        # Kafka rebuilds all indexes of a segment without .index (LogLoader.loadSegmentFiles), and no others.
        return "copy it again, or remove the segment's .index and start Kafka on it; it rebuilds its indexes"
    return "start the broker on this directory once; it rebuilds the index"


@contextmanager
def opened(storage: StorageReader, path: str) -> Generator[ReadableFile]:
    """Opens a file and closes it at the end of the block."""
    file = storage.open(path)
    try:
        yield file
    finally:
        file.close()


def with_listing(
    layout: LogLayout,
    partition: TopicPartition,
    use: Callable[[PartitionFiles], Result],
    *,
    listed: PartitionFiles | None = None,
) -> Result:
    """Lists the files of a partition and returns `use(files)`.

    If `use` fails and the files have changed meanwhile, they are listed again, up to RELISTINGS times:
    retention and compaction remove files at any moment. `listed` is an earlier listing, to begin with.
    Raises CorruptLog if the manifest or the log start is invalid, MissingFile if files keep disappearing, and
    what `use` raises.
    """
    log = listed or open_partition_files(layout, partition)
    for _ in range(RELISTINGS):
        try:
            return use(log)
        except (MissingFile, DataLoss, CorruptLog):
            before, log = log, open_partition_files(layout, partition)
            if log == before:
                raise
    return use(log)


def open_partition_files(layout: LogLayout, partition: TopicPartition) -> PartitionFiles:
    """Reads the manifest and lists the segments of a partition; there are none before its first record.

    Raises CorruptLog if the manifest or the log start is invalid, or if they are of another partition.
    """
    home = layout.home(partition)
    storage = layout.storages[home]
    manifest, topic_id = _read_identity(layout, storage, partition)
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
    manifest = _read_manifest(layout, layout.storages[layout.home(partition)], partition)
    return layout.topic_id(partition, manifest, anew=True)


def _read_identity(
    layout: LogLayout, storage: StorageReader, partition: TopicPartition
) -> tuple[Manifest | None, str]:
    """The manifest of a partition and the id of its topic; CorruptLog if its directory is misplaced."""
    before: tuple[Manifest | None, str] | None = None
    while True:
        manifest = _read_manifest(layout, storage, partition)
        topic_id = layout.topic_id(partition, manifest)
        misplacement = layout.misplacement(partition, topic_id)
        if not misplacement:
            return manifest, topic_id
        # The topic may have been deleted and created again between the reads of manifest and metadata.
        if before == (manifest, topic_id):
            raise CorruptLog(f"{storage.location}/{directory_name(partition)}: {misplacement}")
        before = manifest, topic_id


def _read_manifest(layout: LogLayout, storage: StorageReader, partition: TopicPartition) -> Manifest | None:
    if layout.is_sparse:
        return None  # Kafka writes none, and a request to an object store takes time
    directory = directory_name(partition)
    data = storage.read_file(f"{directory}/{MANIFEST_FILE}")
    try:
        return None if data is None else decode_manifest(data, directory=directory)
    except MisplacedFile as problem:
        raise CorruptLog(str(misplaced(storage, directory, problem))) from problem
    except CorruptIndex as problem:
        where = f"{storage.location}/{partition}/{MANIFEST_FILE}"
        raise CorruptLog(
            f"{where}: {problem}: start the broker on this directory once; it writes a new manifest"
        ) from problem


def _lose_missing_segments(log: PartitionFiles, report: Report | None) -> None:
    """Reports the segments that are lost: the first ones, others that the manifest lists, and those that
    Kafka's compaction was about to replace.
    """
    start, end = log.deleted_to, log.log_start_offset
    if start < end and not log.layout.is_sparse:
        where = f"{log.storage.location}/{directory_name(log.partition)}"
        reason = f"no file in {where} holds the offsets from {start} to {end - 1}, and they were not deleted"
        _lose(log, start=start, end=end, file=where, reason=reason, report=report)
    for base_offset in log.replaced:
        file = log.location(SegmentFile(base_offset, size=0))
        following = [segment.base_offset for segment in log.segments if segment.base_offset > base_offset]
        _lose(
            log,
            start=base_offset,
            end=min(following, default=base_offset + 1),
            file=file,
            reason=f"{file} is gone, and {SWAP_SUFFIX} was not renamed: the files were copied while a broker "
            "compacted them, so copy them again",
            report=report,
        )
    lost = lost_segments(
        log.manifest.segments if log.manifest else (),
        [segment.base_offset for segment in log.segments],
        log_start_offset=log.log_start_offset,
        end_of=cache(partial(_end_of, log)),
    )
    for summary in lost:
        file = log.location(SegmentFile(summary.base_offset, size=0))
        _lose(
            log,
            start=summary.base_offset,
            end=summary.end_offset,
            file=file,
            reason=f"{file} is gone, but the manifest there lists it",
            report=report,
        )


def _end_of(log: PartitionFiles, base_offset: int) -> int:
    """Where the batches of the segment that begins at an offset end."""
    end = base_offset
    with opened(log.storage, log.path(SegmentFile(base_offset, size=0))) as file:
        try:
            # A cleaned segment may have taken its place since the files were listed, so its size counts now.
            for _, header in walk_headers(file, 0, file.size):
                if header.base_offset != end:
                    break
                end = header.next_offset
        except ProtocolViolation:
            pass
    return end


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


def find_log_offsets(
    log: PartitionFiles, *, since: LogOffsets | None = None, report: Report | None = None
) -> LogOffsets:
    """Finds the bounds of the log in its files; a torn tail does not count.

    `since` are the bounds that were found before more batches were added: the walk begins at their end.
    Raises DataLoss if a segment is missing, or if the log ends before the high watermark of its manifest.
    With `report` it reports these losses instead, and finds the bounds of what exists.
    """
    _lose_missing_segments(log, report)
    manifest = log.manifest
    ceiling = INT64_MAX if log.high_watermark is None else log.high_watermark
    # Without a manifest, all segments but the last are assumed complete: only the last is written to.
    written = manifest.high_watermark if manifest else log.segments[-1].base_offset if log.segments else 0
    # An older copy of a log has an older manifest, but the mark of a clean stop lies outside of it.
    closed_end = log.layout.closed_end(log.partition)
    promised = min(max(written, closed_end), ceiling)
    start, opened_before = log.open_transactions_at(ceiling if log.layout.is_sparse else promised)
    stable = max(log.log_start_offset, manifest.last_stable_offset if manifest else 0)
    # An open transaction holds the LSO of the manifest back, and a snapshot lists it. Of two starts the
    # later one is right: both know what is open, and compaction may have removed records of it.
    if stable > start and not log.layout.is_sparse:
        start, opened_before = stable, None
    if since is not None and since.log_end_offset > start:
        start, opened_before = since.log_end_offset, since.open_transactions
    walk = _TailWalk(log, start, promised, ceiling=ceiling, opened_before=opened_before)
    if written <= walk.end < closed_end:  # a broker may have started since, for a new topic of this name
        promised = min(max(written, log.layout.closed_end(log.partition, anew=True)), ceiling)
    if walk.end < promised and not walk.is_at_ceiling:
        told = f"{walk.where} ends at offset {walk.end}, but offsets up to {promised} were written"
        told += f": {_RECOVER}" if report is None else ": reading what exists"
        _lose(log, start=walk.end, end=promised, file=walk.where, reason=told, report=report)
        walk = _TailWalk(log, min(start, log.log_start_offset), 0, ceiling=ceiling, opened_before=None)
    oldest = walk.transactions.first_offset
    return LogOffsets(
        # A loss of power may take the end of the log below its start; recovery moves the start, too.
        log_start_offset=min(log.log_start_offset, walk.end),
        last_stable_offset=walk.end if oldest is None else oldest,
        log_end_offset=walk.end,
        open_transactions=tuple(walk.transactions),
        aborted=(*(_not_indexed(log, since.aborted) if since else ()), *walk.aborted),
    )


def _not_indexed(log: PartitionFiles, aborted: Sequence[AbortedRange]) -> Sequence[AbortedRange]:
    """Those of the aborted ranges, in the order of their markers, that no transaction index has."""
    if not aborted:
        return ()
    first = log.segment_index(aborted[0].last_offset)
    for segment in reversed(log.segments[first:]):
        index = log.transaction_index(segment)
        if len(index):
            # Entries are written in the order of the markers, each right after its own.
            return [each for each in aborted if each.last_offset > index[len(index) - 1].last_offset]
    return aborted


def _lose(
    log: PartitionFiles, *, start: int, end: int, file: str, reason: str, report: Report | None
) -> None:
    if report is None:
        raise DataLoss(reason)
    report(Loss(partition=log.partition, start=start, end=end, file=file, position=0, reason=reason))


class _TailWalk:
    """One pass over the batches from offset `start` to the end of the log, or to offset `ceiling`.

    It trusts headers below offset `promised` and verifies the checksum of every batch from there on.
    `opened_before` are the transactions that are open at `start`; without them, those that the walk meets
    count from the batch where it begins, which may be an earlier one.
    """

    def __init__(
        self,
        log: PartitionFiles,
        start: int,
        promised: int,
        *,
        ceiling: int,
        opened_before: Sequence[OpenTransaction] | None,
    ) -> None:
        self.log = log
        self.start = start
        self.promised = promised
        self.ceiling = ceiling
        self.is_at_ceiling = False
        self.known_before = NO_OFFSET if opened_before is None else start
        self.end = log.log_start_offset  # one past the last batch seen
        self.leader_epoch = NO_LEADER_EPOCH
        self.transactions = OpenTransactions(opened_before or (), is_sparse=log.layout.is_sparse)
        self.aborted: list[AbortedRange] = []
        self.where = f"{log.storage.location}/{log.partition}"
        self._run()

    def _run(self) -> None:
        """Stops at the first segment that is damaged, and at the ceiling."""
        log = self.log
        for number, segment in enumerate(log.segments[log.segment_index(self.start) :]):
            if number and segment.base_offset < self.end and not log.layout.is_sparse:
                continue  # a cleaned segment has taken its place, and its file is about to be removed
            self.where = log.location(segment)
            position = log.position_before(segment, self.start)
            if number == 0:
                first = log.header_at(segment, position)
                self.end = first.base_offset if first else segment.base_offset
            try:
                with opened(log.storage, log.path(segment)) as file:
                    for at, header, batch in self._batches(segment, file, position):
                        if header.next_offset > self.ceiling:
                            self.end = min(header.base_offset, self.ceiling)
                            self.is_at_ceiling = True
                            return
                        self._see(header, batch)
                        log.note_batch(segment, header, at)
            except ProtocolViolation:
                return
        if log.layout.is_sparse and log.segments:
            # Compaction may have removed the last batches before a segment that has no batch yet.
            self.end = max(self.end, min(log.segments[-1].base_offset, self.ceiling))

    def _batches(
        self, segment: SegmentFile, file: ReadableFile, position: int
    ) -> Iterator[tuple[int, BatchHeader, Buffer]]:
        """Yields position and header of the batches of one segment; of markers also the bytes.

        Raises ProtocolViolation at the first batch that is damaged or cut off.
        """
        if segment.base_offset < self.promised:
            for at, header in walk_headers(file, position, segment.size):
                if header.base_offset >= self.promised:
                    break
                if at + header.size > segment.size:
                    raise ProtocolViolation("the last batch is cut off")
                yield at, header, file.read(at, header.size) if header.is_control else b""
                position = at + header.size
        yield from walk_batches(file, position, segment.size)

    def _see(self, header: BatchHeader, batch: Buffer) -> None:
        """Accepts a batch as the next one of the log, by the rules of recovery."""
        is_next = header.base_offset == self.end and header.leader_epoch >= self.leader_epoch
        if not is_next and not (self.log.layout.is_sparse and header.base_offset > self.end):
            raise ProtocolViolation(f"offset {header.base_offset} after {self.end}")
        self.leader_epoch = header.leader_epoch
        self.end = header.next_offset
        if header.next_offset <= self.known_before:
            return
        ended = self.transactions.see(header, batch)
        if ended is not None:
            self.aborted.append(ended)
