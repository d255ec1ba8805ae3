"""Producer snapshots against the producers that the log describes at their offset.

Rule: a snapshot says what a full scan up to its offset says; only a producer that was silent for longer than
producer.id.expiration.ms may be left out.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from fencepost.check.findings import Findings
from fencepost.check.producers import PRODUCER_ID_EXPIRATION_MS, Track, Tracked
from fencepost.check.scan import ScannedLog, offset_of
from fencepost.journal.storage import StorageReader
from fencepost.protocol.terms import NO_OFFSET

SUFFIX: Final = ".snapshot"
_HEAD = struct.Struct(">hIi")  # version 1, CRC-32C of all after it, number of producers
_CHECKSUM_END: Final = 6
_ENTRY = struct.Struct(">qhiqiqiq")

MISLED: Final = "after a restart this producer is judged by a wrong memory"


def snapshot_offsets(storage: StorageReader, directory: str) -> list[int]:
    """The offsets of a partition's snapshots."""
    found = (offset_of(name, SUFFIX) for name in storage.files(directory))
    return [offset for offset in found if offset is not None]


def check_snapshots(storage: StorageReader, log: ScannedLog, scanned: Track, findings: Findings) -> None:
    """Every snapshot of a log that has no fault itself."""
    for offset in snapshot_offsets(storage, log.directory):
        file = f"{log.directory}/{offset:020d}{SUFFIX}"
        if offset > log.end_offset:
            findings.tell(
                log.was_closed,
                file,
                f"taken at offset {offset}, and the log ends at {log.end_offset}",
                means="the log has lost its end since",
            )
            continue
        expected = scanned.at.get(offset)
        if expected is None:
            findings.problem(file, f"no batch begins at offset {offset}", means=MISLED)
            continue
        told = _read(storage.read_file(file) or b"", file, findings, was_closed=log.was_closed)
        if told is not None:
            _compare(file, told, expected, newest=scanned.newest_timestamp, findings=findings)


def _read(data: bytes, file: str, findings: Findings, *, was_closed: bool) -> dict[int, Tracked] | None:
    """Its producers; None when it is torn, which is what a loss of power may do to it."""
    means = "it is dropped, and the next start reads more of the log"
    if len(data) < _HEAD.size:
        findings.tell(was_closed, file, f"{len(data)} bytes are no snapshot", means=means)
        return None
    version, checksum, count = _HEAD.unpack_from(data)
    if version != 1:
        findings.tell(was_closed, file, f"version {version}, only 1 is known", means=means)
        return None
    if crc32c(data[_CHECKSUM_END:]) != checksum:
        findings.tell(was_closed, file, "its checksum does not match its bytes", means=means)
        return None
    entries = data[_HEAD.size :]
    if len(entries) != count * _ENTRY.size:
        findings.tell(was_closed, file, f"{len(entries)} bytes are not {count} producers", means=means)
        return None
    return {producer_id: Tracked(*fields) for producer_id, *fields in _ENTRY.iter_unpack(entries)}


def _compare(
    file: str, told: dict[int, Tracked], expected: dict[int, Tracked], *, newest: int, findings: Findings
) -> None:
    for producer_id in sorted(told.keys() | expected.keys()):
        says, right = told.get(producer_id), expected.get(producer_id)
        if right is None:
            findings.problem(file, f"producer {producer_id} wrote nothing before", means=MISLED)
        elif says is None:
            is_expired = newest - right.timestamp > PRODUCER_ID_EXPIRATION_MS
            findings.tell(
                not is_expired or right.first_offset != NO_OFFSET,
                file,
                f"producer {producer_id} is missing",
                means="it was silent for so long that it was forgotten" if is_expired else MISLED,
            )
        elif says != right:
            differing = ", ".join(
                f"{name} {mine} (the log says {its})"
                for name, mine, its in zip(Tracked._fields, says, right, strict=True)
                if mine != its
            )
            findings.problem(file, f"producer {producer_id}: {differing}", means=MISLED)
