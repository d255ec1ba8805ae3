"""The three indexes of each segment against the batches that they speak of.

Rule: offset and transaction indexes are what a full scan makes, entry for entry; a time index may hold more
entries than one scan makes (each orderly stop adds one), but every one must be true.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from fencepost.check.findings import Findings
from fencepost.check.producers import Aborted, Track
from fencepost.check.scan import LOG_SUFFIX, ScannedLog, ScannedSegment
from fencepost.journal.storage import StorageReader

INDEX_SUFFIXES: Final = (".index", ".timeindex", ".txnindex")
INTERVAL_BYTES: Final = 4096  # index.interval.bytes
_OFFSET = struct.Struct(">II")  # relative last offset of a batch, its position
_TIME = struct.Struct(">qI")  # largest timestamp so far, relative last offset of its batch
_ABORTED = struct.Struct(">hqqqq")  # version 0, producer id, first and last offset, last stable offset

SEEKS: Final = "readers that seek by it land at a wrong place"
LATER: Final = "it is built again from the log at the next start"
ABORTED: Final = "records of aborted transactions are shown, or committed ones are left out"


class OffsetEntry(NamedTuple):
    """An entry of an offset index, its offset absolute."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """An entry of a time index, its offset absolute."""

    timestamp: int
    offset: int


def check_indexes(storage: StorageReader, log: ScannedLog, scanned: Track, findings: Findings) -> None:
    """All segments of a log that has no fault itself."""
    for segment in log.segments:
        _check_offsets(storage, segment, findings)
        _check_times(storage, segment, findings)
        _check_aborted(storage, segment, scanned, findings)


def _entries(
    storage: StorageReader, segment: ScannedSegment, suffix: str, layout: struct.Struct, findings: Findings
) -> tuple[str, list[tuple[int, ...]]] | None:
    """(file, its whole entries); None when there is no such file."""
    file = segment.file.removesuffix(LOG_SUFFIX) + suffix
    data = storage.read_file(file)
    if data is None:
        findings.tell(segment.is_final, file, "the index is missing", means=LATER)
        return None
    left = len(data) % layout.size
    if left:
        findings.tell(segment.is_final, file, f"{left} bytes at the end are no whole entry", means=LATER)
    return file, list(layout.iter_unpack(data[: len(data) - left]))


def _check_offsets(storage: StorageReader, segment: ScannedSegment, findings: Findings) -> None:
    found = _entries(storage, segment, ".index", _OFFSET, findings)
    if found is None:
        return
    file, raw = found
    entries = [OffsetEntry(segment.base_offset + offset, position) for offset, position in raw]
    _compare(file, entries, _expected_offsets(segment), segment=segment, means=SEEKS, findings=findings)


def _expected_offsets(segment: ScannedSegment) -> list[OffsetEntry]:
    expected: list[OffsetEntry] = []
    since = 0
    for placed in segment.batches:
        if since > INTERVAL_BYTES:
            expected.append(OffsetEntry(placed.header.next_offset - 1, placed.position))
            since = 0
        since += placed.header.size
    return expected


def _compare(
    file: str,
    entries: Sequence[tuple[int, ...]],
    expected: Sequence[tuple[int, ...]],
    *,
    segment: ScannedSegment,
    means: str,
    findings: Findings,
) -> None:
    """The first difference alone: what follows it is of no use anyway."""
    for number, (entry, right) in enumerate(zip(entries, expected, strict=False)):
        if entry != right:
            findings.problem(file, f"entry {number} is {entry}, the log makes {right}", means=means)
            return
    if len(entries) > len(expected):
        findings.problem(
            file, f"entry {len(expected)} is {entries[len(expected)]}, the log makes none", means=means
        )
    elif len(entries) < len(expected):
        missing = f"{len(expected) - len(entries)} of {len(expected)} entries are missing"
        findings.tell(segment.is_final, file, missing, means=means if segment.is_final else LATER)


def _check_times(storage: StorageReader, segment: ScannedSegment, findings: Findings) -> None:
    found = _entries(storage, segment, ".timeindex", _TIME, findings)
    if found is None:
        return
    file, raw = found
    entries = [TimeEntry(timestamp, segment.base_offset + offset) for timestamp, offset in raw]
    true = _true_times(segment)
    last = TimeEntry(-1, -1)
    for number, entry in enumerate(entries):
        if entry not in true or entry.timestamp <= last.timestamp:
            findings.problem(
                file, f"entry {number} is {entry}, and no batch was the newest so far then", means=SEEKS
            )
            return
        last = entry
    if segment.max_timestamp > last.timestamp and segment.is_final:
        newest = f"the newest timestamp is {segment.max_timestamp}, the index ends at {last.timestamp}"
        findings.problem(file, newest, means="records are not found by their timestamp")


def _true_times(segment: ScannedSegment) -> set[TimeEntry]:
    """For each batch that was newer than all before it: its timestamp and last offset."""
    true: set[TimeEntry] = set()
    newest = -1
    for placed in segment.batches:
        if placed.header.max_timestamp > newest:
            newest = placed.header.max_timestamp
            true.add(TimeEntry(newest, placed.header.next_offset - 1))
    return true


def _check_aborted(
    storage: StorageReader, segment: ScannedSegment, scanned: Track, findings: Findings
) -> None:
    found = _entries(storage, segment, ".txnindex", _ABORTED, findings)
    if found is None:
        return
    file, raw = found
    for number, (version, *_) in enumerate(raw):
        if version != 0:
            findings.problem(file, f"entry {number} is of version {version}", means=ABORTED)
            return
    entries = [Aborted(*fields) for _, *fields in raw]
    expected = scanned.aborted.get(segment.file, [])
    _compare(file, entries, expected, segment=segment, means=ABORTED, findings=findings)
