"""Every batch of one partition, read and checked one by one: the full scan that all else is compared with.

Rule: it shares only the batch format with the journal. Like recovery it stops at the first batch that cannot
be there, so that one fault is reported once.

If a log has no such fault, a second pass checks its producers: epochs never fall, sequences never skip. The
log model holds the state after each batch, and every batch is compared with the state before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

import attrs

from fencepost.check.findings import Findings, Location
from fencepost.journal.recovery import batch_after
from fencepost.journal.storage import ReadableFile, StorageReader
from fencepost.log_model.partitions import ModelProducer, PartitionModel
from fencepost.protocol.batches import (
    HEADER_SIZE,
    BatchHeader,
    Marker,
    checksum_matches,
    marker_in,
    read_header,
)
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import INT32_MAX, NO_OFFSET, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition

LOG_SUFFIX: Final = ".log"
OFFSET_DIGITS: Final = 20
# producer.id.expiration.ms: a partition forgets a producer that is silent for so long, and an unknown
# producer may start at any sequence.
PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000

CUT: Final = (
    "the broker refuses this log, unless these bytes are only a torn, unsynced tail; "
    "`fencepost repair` lists what can be saved"
)
TORN: Final = "a torn tail, which nothing promised to keep: the next start cuts it off"
UNSYNCED: Final = "nothing promised to keep it: the next start removes it"
KAFKA_CUT: Final = "readers stop here, and a broker that recovers this log drops what follows"
FENCED: Final = "a producer that had been fenced could write"

RecordReader = Callable[["ScannedBatch", bytes], None]
"""Looks into an intact batch, a marker's as well; ProtocolViolation when its records make no sense."""


class ScannedBatch(NamedTuple):
    """A batch and its location. `marker` is None for data, and for a control batch that is not a marker."""

    file: str
    position: int
    header: BatchHeader
    marker: Marker | None

    @property
    def location(self) -> Location:
        """Its location in findings."""
        return Location(self.file, self.header.base_offset)


@attrs.define(eq=False)
class ScannedSegment:
    """One log file: its valid batches, and how far they go. `is_final`: nothing will be appended, so its
    indexes are complete.
    """

    base_offset: int
    file: str
    is_final: bool
    end_offset: int
    size: int = 0
    max_timestamp: int = -1
    """Of the batches with records: a batch that compaction emptied keeps a timestamp that no record has."""
    is_cleaned: bool = False
    """Whether compaction has changed it: it removed batches, or records of one, or set a delete horizon. A
    repair covers what is lost in the same way.
    """
    batches: list[ScannedBatch] = attrs.Factory(list[ScannedBatch])

    def add(self, batch: ScannedBatch) -> None:
        """Add the next batch."""
        header = batch.header
        self.is_cleaned = self.is_cleaned or header.is_thinned
        self.batches.append(batch)
        self.size += header.size
        self.end_offset = header.next_offset
        if header.record_count:
            self.max_timestamp = max(self.max_timestamp, header.max_timestamp)


@attrs.define(eq=False)
class ScannedLog:
    """A partition's log. `is_whole`: no fault was found in it, so what is derived from it can be judged.

    The fields after `is_whole` are known once `follow_producers` has run; `newest_producer` is the first
    batch with data of the producer with the highest id.
    """

    partition: TopicPartition
    was_closed: bool
    is_sparse: bool = False
    """Whether Apache Kafka wrote the log. Offsets may be missing in it: Kafka's compaction leaves gaps,
    Fencepost's fills them.
    """
    promised: int = 0
    """The offset below which a start of the broker demands every byte."""
    lost_power: bool = False
    """Whether a loss of power may have taken bytes that were not synced, also from the middle of the log."""
    may_be_torn: bool = False
    """Whether a kill or a loss of power may have torn the small files that a clean stop does not sync."""
    is_cut: bool = False
    """Whether the next start cuts it off after the last of its segments."""
    segments: list[ScannedSegment] = attrs.Factory(list[ScannedSegment])
    is_whole: bool = True
    covered: list[tuple[int, int]] = attrs.Factory(list[tuple[int, int]])
    """Offsets, each from the first to before the last, that compaction or a repair left empty."""
    model: PartitionModel = attrs.Factory(
        lambda log: PartitionModel(is_sparse=log.is_sparse), takes_self=True
    )
    producers_at: dict[int, dict[int, ModelProducer]] = attrs.Factory(dict[int, dict[int, ModelProducer]])
    """By the offsets that were asked for; no entry for an offset inside a batch."""
    last: ScannedBatch | None = None
    newest_producer: ScannedBatch | None = None

    @property
    def directory(self) -> str:
        return str(self.partition)

    @property
    def start_offset(self) -> int:
        return self.segments[0].base_offset if self.segments else 0

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset if self.segments else 0

    def has_gap(self, after: int, before: int) -> bool:
        """Whether compaction or a repair left offsets between these two empty."""
        number = bisect_left(self.covered, (before, 0)) - 1
        return number >= 0 and self.covered[number][0] > after

    def is_covered(self, offset: int) -> bool:
        """Whether compaction or a repair left this offset empty."""
        number = bisect_right(self.covered, offset, key=itemgetter(0)) - 1
        return number >= 0 and offset < self.covered[number][1]

    def ends_before(self, base_offset: int) -> bool:
        """Whether the next start removes a segment with this base offset, because the log ends before it. No
        sync has promised a segment if the one before it lacks its end.
        """
        has_gap = bool(self.segments) and base_offset > self.end_offset >= self.promised and self.lost_power
        return self.is_cut or has_gap

    def location(self, offset: int) -> Location:
        """The log file that holds an offset, or the oldest one if that was deleted; and the offset."""
        at = bisect_right(self.segments, offset, key=attrgetter("base_offset")) - 1
        return Location(self.segments[max(0, at)].file, offset)

    def batches(self) -> Iterator[ScannedBatch]:
        """Every valid batch in order."""
        for segment in self.segments:
            yield from segment.batches

    def stable_at(self, high_watermark: int, *, log_start_offset: int) -> int | None:
        """The last stable offset at a high watermark; None when it is inside a batch. It is not before the
        first batch of the log: the beginning of an open transaction may have been deleted.
        """
        producers = self.producers_at.get(high_watermark)
        if producers is None:
            return None
        opened = [known.first_offset for known in producers.values() if known.first_offset != NO_OFFSET]
        first = min(opened, default=high_watermark)
        return min(high_watermark, first if first >= log_start_offset else self.batch_start(log_start_offset))

    def batch_start(self, offset: int) -> int:
        """Where the batch with an offset begins; the offset itself if no batch has it."""
        for segment in self.segments:
            if segment.base_offset <= offset < segment.end_offset:
                at = bisect_right(segment.batches, offset, key=lambda batch: batch.header.base_offset) - 1
                return segment.batches[at].header.base_offset
        return offset


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file's name, None for files of another kind."""
    digits = name.removesuffix(suffix)
    is_one = name.endswith(suffix) and len(digits) == OFFSET_DIGITS and digits.isascii() and digits.isdigit()
    return int(digits) if is_one else None


def sizes_of(storage: StorageReader, directory: str, suffix: str = LOG_SUFFIX) -> dict[int, int]:
    """The sizes of a partition's files of one kind, by the offset in their names, ascending."""
    sizes = {offset_of(name, suffix): size for name, size in storage.files(directory).items()}
    return {offset: size for offset, size in sizes.items() if offset is not None}


def log_file(directory: str, base_offset: int) -> str:
    """The path of the log file of a segment."""
    return f"{directory}/{base_offset:0{OFFSET_DIGITS}d}{LOG_SUFFIX}"


# --- batch by batch -----------------------------------------------------------------------------------------


def scan_log(
    storage: StorageReader,
    partition: TopicPartition,
    *,
    was_closed: bool,
    may_be_torn: bool,
    contents: RecordReader,
    findings: Findings,
    is_sparse: bool = False,
    promised: int = 0,
    lost_power: bool = False,
) -> ScannedLog:
    """Reads all segments of a partition. `was_closed`: its broker stopped cleanly. `may_be_torn`,
    `is_sparse`, `promised` and `lost_power`: as in ScannedLog.
    """
    log = ScannedLog(partition, was_closed, is_sparse, promised, lost_power, may_be_torn)
    sizes = sizes_of(storage, log.directory)
    scan = _Scan(storage, log, contents, findings)
    for base, size in sizes.items():
        file = log_file(log.directory, base)
        if log.ends_before(base):
            log.is_cut = True
            findings.note(
                Location(file, base), f"the log ends before it, at offset {log.end_offset}", UNSYNCED
            )
            continue
        # The newest segment is never cleaned: a file begins where a cleaned one ends.
        is_cleaned = not was_closed and (is_sparse or log.end_offset in sizes)
        if log.segments and base < log.end_offset and is_cleaned:
            what = f"a cleaned segment, which ends at offset {log.end_offset}, has taken its place"
            findings.note(Location(file, base), what, "the next start removes what a crash left")
            continue
        if log.segments and base != log.end_offset and not (is_sparse and base > log.end_offset):
            what = f"a segment begins at offset {base} where {log.end_offset} was expected"
            scan.fail(Location(file, base), what)
            break
        if log.segments and base > log.end_offset:
            log.covered.append((log.end_offset, base))
        log.segments.append(ScannedSegment(base, file, was_closed or base != max(sizes), base))
        scan.read(log.segments[-1], size)
        if not log.is_whole:
            break
    findings.partitions += 1
    findings.segments += len(sizes)
    return log


@attrs.define(eq=False)
class _Scan:
    storage: StorageReader
    log: ScannedLog
    contents: RecordReader
    findings: Findings
    leader_epoch: int = -1

    def fail(self, at: Location, what: str) -> None:
        self.log.is_whole = False
        self.findings.problem(at, what, KAFKA_CUT if self.log.is_sparse else CUT)

    def read(self, segment: ScannedSegment, size: int) -> None:
        """The valid batches of one file, up to the first that is not."""
        with closing(self.storage.open(segment.file)) as file:
            while segment.size < size:
                found = self._next(file, segment, left=size - segment.size)
                if isinstance(found, str):
                    self._stop(file, segment, size, found)
                    break
                self._add(segment, *found)
        self.findings.batches += len(segment.batches)
        self.findings.bytes += segment.size

    def _next(
        self, file: ReadableFile, segment: ScannedSegment, *, left: int
    ) -> tuple[BatchHeader, bytes] | str:
        """The next batch, or why there is none."""
        position, expected = segment.size, segment.end_offset
        try:
            header = read_header(file.read(position, HEADER_SIZE)) if left >= HEADER_SIZE else None
        except ProtocolViolation as violation:
            return f"no batch at byte {position}: {violation}"
        if header is None or header.size > left:
            return f"{left} bytes at the end are not a complete batch"
        data = file.read(position, header.size)
        if not checksum_matches(data, 0, header):
            return f"the checksum of the batch at byte {position} does not match its bytes"
        if header.base_offset != expected and not (self.log.is_sparse and header.base_offset > expected):
            return f"a batch begins at offset {header.base_offset} where {expected} was expected"
        if header.leader_epoch < self.leader_epoch:
            return f"a batch of leader epoch {header.leader_epoch} after one of {self.leader_epoch}"
        return header, data

    def _add(self, segment: ScannedSegment, header: BatchHeader, data: bytes) -> None:
        if header.base_offset > segment.end_offset:
            self.log.covered.append((segment.end_offset, header.base_offset))
        self.leader_epoch = header.leader_epoch
        if header.is_covering:
            self.log.covered.append((header.base_offset, header.next_offset))
        segment.add(self._looked_into(ScannedBatch(segment.file, segment.size, header, None), data))

    def _stop(self, file: ReadableFile, segment: ScannedSegment, size: int, what: str) -> None:
        """The log ends before its file does: at a torn tail, or at a fault."""
        end = segment.end_offset
        may_be_torn = (self.log.lost_power or not segment.is_final) and end >= self.log.promised
        # Nothing valid follows a torn tail.
        if may_be_torn and batch_after(file, segment.size, size, end=end) is None:
            self.findings.note(Location(segment.file, end), what, TORN)
            self.log.is_cut, segment.is_final = True, False
        else:
            self.fail(Location(segment.file, end), what)

    def _looked_into(self, batch: ScannedBatch, data: bytes) -> ScannedBatch:
        try:
            if batch.header.is_control:
                batch = batch._replace(marker=marker_in(data, batch.header))
            self.contents(batch, data)
        except ProtocolViolation as violation:
            what = "marker" if batch.header.is_control else "records"
            self.findings.problem(
                batch.location,
                f"unreadable {what}: {violation}",
                "the checksum matches, so it was written like this; readers will stop here",
            )
        return batch


# --- producers ----------------------------------------------------------------------------------------------


def follow_producers(log: ScannedLog, offsets: set[int], findings: Findings) -> None:
    """Judge every batch of a log by its producer, and remember the producers at these offsets."""
    model, ahead, end = log.model, sorted(offsets, reverse=True), log.start_offset
    for batch in log.batches():
        header = batch.header
        while ahead and ahead[-1] <= header.base_offset:
            offset = ahead.pop()
            if end <= offset:  # not inside a batch, nor before the log
                log.producers_at[offset] = dict(model.producers)
        end = header.next_offset
        judge(batch, log, findings)
        log.last = batch
        newest = log.newest_producer
        # A marker proves nothing: without access control anyone may send one, with any producer id.
        if not header.is_control and (newest is None or header.producer_id > newest.header.producer_id):
            log.newest_producer = batch
    for offset in ahead:
        if end <= offset <= log.end_offset:
            log.producers_at[offset] = dict(model.producers)


def judge(batch: ScannedBatch, log: ScannedLog, findings: Findings) -> None:
    """Judge one batch by what the log's model knows of its producer, and take it into the model.

    The model need have seen only the batches of this producer.
    """
    header = batch.header
    known = log.model.producers.get(header.producer_id)
    if known is not None and batch.marker is not None:
        _judge_marker(batch, batch.marker, known, findings)
    elif known is not None and header.producer_id != NO_PRODUCER_ID and not header.is_control:
        _judge_data(batch, known, log, findings)
    log.model.apply(header, batch.marker)


def _writer(batch: ScannedBatch) -> str:
    return f"producer {batch.header.producer_id} epoch {batch.header.producer_epoch}"


def _judge_data(batch: ScannedBatch, known: ModelProducer, log: ScannedLog, findings: Findings) -> None:
    header, writer = batch.header, _writer(batch)
    expected = log.model.expected_sequence(header.producer_id, header.producer_epoch)
    if header.producer_epoch < known.producer_epoch:
        what = f"{writer}: a batch of this epoch after epoch {known.producer_epoch}"
        findings.problem(batch.location, what, FENCED)
    elif header.base_sequence not in (NO_SEQUENCE, expected):
        why = _why_skipped(header, known, log)
        findings.report(
            not why,
            batch.location,
            f"{writer}: sequence {header.base_sequence} where {expected} was expected",
            why or _meaning_of_skip(header, expected),
        )
    if not header.is_transactional and known.first_offset != NO_OFFSET:
        findings.problem(
            batch.location,
            f"{writer}: a non-transactional batch inside its transaction, open since offset "
            f"{known.first_offset}",
            "read_committed readers cannot tell to which transaction it belongs",
        )


def _meaning_of_skip(header: BatchHeader, expected: int | None) -> str:
    """What an unexplained sequence means: a gap or a duplicate, compared as numbers that wrap around."""
    assert expected is not None, "an unknown producer may start anywhere"
    ahead = (header.base_sequence - expected) % (INT32_MAX + 1)
    if ahead <= INT32_MAX // 2:
        return "a gap: records of this producer were lost or reordered"
    return "a duplicate: records of this producer are in the log twice"


def _why_skipped(header: BatchHeader, known: ModelProducer, log: ScannedLog) -> str:
    """Why sequences may be missing; nothing where they must not be."""
    if header.max_timestamp - known.timestamp > PRODUCER_ID_EXPIRATION_MS:
        return "it was idle for so long that the partition may have removed its state"
    if log.has_gap(known.last_offset, header.base_offset):
        return "its batches in between were removed by compaction, or lost before a repair"
    return ""


def _judge_marker(batch: ScannedBatch, marker: Marker, known: ModelProducer, findings: Findings) -> None:
    if batch.header.producer_epoch < known.producer_epoch:
        what = f"{_writer(batch)}: a marker of this epoch after epoch {known.producer_epoch}"
        findings.problem(batch.location, what, FENCED)
    if marker.coordinator_epoch < known.coordinator_epoch:
        findings.problem(
            batch.location,
            f"{_writer(batch)}: a marker of coordinator epoch {marker.coordinator_epoch} after one of "
            f"{known.coordinator_epoch}",
            "a coordinator that had been replaced could write",
        )
