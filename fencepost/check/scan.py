"""Every batch of one partition, read and checked one by one: the full scan that all else is compared with.

Rule: shares with the journal nothing but the batch format. Like recovery it stops at the first batch that
cannot be there, so that one fault is reported once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import attrs

from fencepost.check.findings import Findings
from fencepost.journal.storage import StorageFile, StorageReader
from fencepost.protocol.batches import (
    HEADER_SIZE,
    BatchHeader,
    Marker,
    checksum_matches,
    read_header,
    read_marker,
)
from fencepost.protocol.errors import ProtocolViolation

LOG_SUFFIX: Final = ".log"
OFFSET_DIGITS: Final = 20
CUT: Final = "recovery would cut the log here, and lose what follows"

RecordReader = Callable[["ScannedBatch", bytes], None]
"""Looks into an intact data batch; ProtocolViolation when its records make no sense."""


class ScannedBatch(NamedTuple):
    """A batch where it lies. `marker` is None for data, and for a control batch of another kind."""

    file: str
    position: int
    header: BatchHeader
    marker: Marker | None


@attrs.frozen(kw_only=True)
class ScannedSegment:
    """One log file: its valid batches. `is_final`: nothing will be appended, so its indexes are complete."""

    base_offset: int
    file: str
    size: int
    batches: list[ScannedBatch]
    is_final: bool

    @property
    def end_offset(self) -> int:
        return self.batches[-1].header.next_offset if self.batches else self.base_offset

    @property
    def max_timestamp(self) -> int:
        return max((batch.header.max_timestamp for batch in self.batches), default=-1)


@attrs.frozen(kw_only=True)
class ScannedLog:
    """A partition's log. `is_whole`: no fault was found in it, so what is derived from it can be judged."""

    directory: str
    segments: list[ScannedSegment]
    was_closed: bool
    is_whole: bool

    @property
    def start_offset(self) -> int:
        return self.segments[0].base_offset if self.segments else 0

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset if self.segments else 0

    def batches(self) -> Iterator[ScannedBatch]:
        """Every valid batch in order."""
        for segment in self.segments:
            yield from segment.batches


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file's name, None for files of another kind."""
    digits = name.removesuffix(suffix)
    is_one = name.endswith(suffix) and len(digits) == OFFSET_DIGITS and digits.isascii() and digits.isdigit()
    return int(digits) if is_one else None


def scan_log(
    storage: StorageReader, directory: str, *, was_closed: bool, contents: RecordReader, findings: Findings
) -> ScannedLog:
    """Reads all segments of a partition. `was_closed`: its broker stopped in order, so no end may be torn."""
    sizes = {
        offset: size
        for name, size in storage.files(directory).items()
        if (offset := offset_of(name, LOG_SUFFIX)) is not None
    }
    scan = _Scan(storage, directory, contents=contents, findings=findings)
    segments: list[ScannedSegment] = []
    for base, size in sizes.items():
        is_last = base == max(sizes)
        if segments and base != segments[-1].end_offset and scan.is_whole:
            scan.fail(
                scan.name(base),
                base,
                f"a segment begins at offset {base} where {segments[-1].end_offset} was expected",
            )
        if not scan.is_whole:
            break
        segments.append(scan.segment(base, size, is_final=was_closed or not is_last))
    findings.partitions += 1
    findings.segments += len(sizes)
    return ScannedLog(directory=directory, segments=segments, was_closed=was_closed, is_whole=scan.is_whole)


class _Scan:
    def __init__(
        self, storage: StorageReader, directory: str, *, contents: RecordReader, findings: Findings
    ) -> None:
        self.storage = storage
        self.directory = directory
        self.contents = contents
        self.findings = findings
        self.is_whole = True
        self.leader_epoch = -1

    def name(self, base: int) -> str:
        return f"{self.directory}/{base:0{OFFSET_DIGITS}d}{LOG_SUFFIX}"

    def fail(self, file: str, offset: int, what: str) -> None:
        self.is_whole = False
        self.findings.problem(file, what, offset=offset, means=CUT)

    def segment(self, base: int, size: int, *, is_final: bool) -> ScannedSegment:
        """The valid batches of one file, up to the first that is not."""
        file = self.name(base)
        opened = self.storage.open(file)
        batches: list[ScannedBatch] = []
        position, expected = 0, base
        try:
            while position < size and self.is_whole:
                batch = self.batch(opened, file, position, size, expected, is_final=is_final)
                if batch is None:
                    break
                batches.append(batch)
                position, expected = position + batch.header.size, batch.header.next_offset
        finally:
            opened.close()
        self.findings.batches += len(batches)
        self.findings.bytes += position
        return ScannedSegment(base_offset=base, file=file, size=position, batches=batches, is_final=is_final)

    def batch(
        self, opened: StorageFile, file: str, position: int, size: int, expected: int, *, is_final: bool
    ) -> ScannedBatch | None:
        """The batch at a byte position; None at an end that a kill has torn, or at a fault."""
        left = size - position
        head = opened.read(position, HEADER_SIZE)
        is_cut = left < HEADER_SIZE
        try:
            header = None if is_cut else read_header(head)
        except ProtocolViolation as violation:
            self.fail(file, expected, f"no batch at byte {position}: {violation}")
            return None
        if header is None or header.size > left:
            self._torn(file, expected, left, is_final=is_final)
            return None
        data = opened.read(position, header.size)
        wrong = self._wrong(header, data, position, expected)
        if wrong is not None:
            self.fail(file, expected, wrong)
            return None
        self.leader_epoch = header.leader_epoch
        return self._looked_into(ScannedBatch(file, position, header, None), data)

    def _torn(self, file: str, offset: int, left: int, *, is_final: bool) -> None:
        what = f"{left} bytes at the end are not a complete batch"
        if is_final:
            self.fail(file, offset, what)
        else:
            self.findings.note(
                file, what, offset=offset, means="a write was cut short; the next start drops it"
            )

    def _wrong(self, header: BatchHeader, data: bytes, position: int, expected: int) -> str | None:
        if not checksum_matches(data, 0, header):
            return f"the checksum of the batch at byte {position} does not match its bytes"
        if header.base_offset != expected:
            return f"a batch begins at offset {header.base_offset} where {expected} was expected"
        if header.leader_epoch < self.leader_epoch:
            return f"a batch of leader epoch {header.leader_epoch} after one of {self.leader_epoch}"
        return None

    def _looked_into(self, batch: ScannedBatch, data: bytes) -> ScannedBatch:
        try:
            if batch.header.is_control:
                return batch._replace(marker=read_marker(data))
            self.contents(batch, data)
        except ProtocolViolation as violation:
            what = "marker" if batch.header.is_control else "records"
            self.findings.problem(
                batch.file,
                f"unreadable {what}: {violation}",
                offset=batch.header.base_offset,
                means="the checksum matches, so it was written like this; readers will stop here",
            )
        return batch
