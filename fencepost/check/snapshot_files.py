"""Producer snapshots: whether one is whole, whether it is of this log, and what it says of producers.

A snapshot says what a full scan up to its offset says. Only a producer without an open transaction may be
missing, or have been missing for a while: the broker forgets those that are silent for
producer.id.expiration.ms by its clock, which is not in the log.

The format is read here from scratch, not through the journal's classes, which wrote it.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Final

import attrs

from fencepost.check.findings import FindingKind, Findings, Location
from fencepost.check.meanings import DROPPED, FORGOTTEN, MISLED, UNKNOWN
from fencepost.check.scan import ScannedLog, follow_producers, sizes_of
from fencepost.check.sealed_files import MANIFEST
from fencepost.journal.manifest import KnownSnapshots
from fencepost.journal.storage import StorageReader
from fencepost.log_model.partitions import ModelProducer
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.terms import NO_COORDINATOR_EPOCH, NO_OFFSET, NO_SEQUENCE

SNAPSHOT_SUFFIX: Final = ".snapshot"
_SNAPSHOT_HEAD = struct.Struct(">hIi")  # version 1, CRC-32C of all after it, number of producers
_CHECKSUM_END: Final = 6
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


def snapshot_file(directory: str, offset: int) -> str:
    """The path of a producer snapshot."""
    return f"{directory}/{offset:020d}{SNAPSHOT_SUFFIX}"


def read_producers(
    storage: StorageReader, directory: str, offset: int, known: KnownSnapshots
) -> dict[int, ModelProducer] | None:
    """The producers in a snapshot; None if there is no whole one, or not the one that was written there."""
    data = storage.read_file(snapshot_file(directory, offset))
    if data is None or why_torn(data) or why_foreign(data, offset, known):
        return None
    return producers_in(data)


def why_foreign(snapshot: bytes, offset: int, known: KnownSnapshots) -> str:
    """Why a valid snapshot is not of this log, as its content or the small files say; empty if it may be."""
    told = producers_in(snapshot).values()
    named = max((max(each.last_offset, each.first_offset) for each in told), default=NO_OFFSET)
    if named >= offset:
        return f"it names offset {named}, which is not before its own"
    return known.objection(offset, _checksum_in(snapshot))


def _checksum_in(snapshot: bytes) -> int:
    """The checksum in a valid snapshot."""
    _, checksum, _ = _SNAPSHOT_HEAD.unpack_from(snapshot)
    return checksum


def producers_in(snapshot: bytes) -> dict[int, ModelProducer]:
    """The producers in a valid snapshot."""
    entries = _SNAPSHOT_ENTRY.iter_unpack(snapshot[_SNAPSHOT_HEAD.size :])
    return {producer_id: ModelProducer(*fields) for producer_id, *fields in entries}


def is_newer(says: ModelProducer, left: ModelProducer | None) -> bool:
    """Whether a snapshot can be right although only this is left of the producer's batches before it."""
    if left is None:
        return True
    return (says.producer_epoch, says.last_offset) >= (left.producer_epoch, left.last_offset)


def why_torn(data: bytes) -> str:
    """Why these bytes are not a whole snapshot; nothing when they are."""
    if len(data) < _SNAPSHOT_HEAD.size:
        return f"{len(data)} bytes are not a snapshot"
    version, checksum, count = _SNAPSHOT_HEAD.unpack_from(data)
    size = len(data) - _SNAPSHOT_HEAD.size
    if version != 1:
        return f"version {version}, only 1 is known"
    if crc32c(data[_CHECKSUM_END:]) != checksum:
        return "its checksum does not match its bytes"
    return "" if size == count * _SNAPSHOT_ENTRY.size else f"{size} bytes are not {count} producers"


@attrs.frozen
class SnapshotFiles:
    """The producer snapshots of a log that has no fault itself."""

    storage: StorageReader
    log: ScannedLog
    known: KnownSnapshots
    """What the small files say of them."""
    findings: Findings

    @cached_property
    def offsets(self) -> list[int]:
        """Where they were taken."""
        return list(sizes_of(self.storage, self.log.directory, SNAPSHOT_SUFFIX))

    @cached_property
    def knows_beginning(self) -> bool:
        """Whether nothing was deleted before the first segment, or a snapshot says what that was. When a
        deletion of several segments is interrupted, the snapshot may be at a later one.
        """
        start = self.log.start_offset
        return not start or self._read(start) is not None

    def _read(self, offset: int) -> dict[int, ModelProducer] | None:
        return read_producers(self.storage, self.log.directory, offset, self.known)

    def follow_producers(self, *, also_at: tuple[int, ...] = ()) -> None:
        """Judge the log's producers, and remember them at the snapshots and at these offsets."""
        start = self.log.start_offset
        # Where older segments were deleted, their producers live on in the snapshot at the start.
        if start:
            self.log.model.begin_with(self._read(start) or {})
        follow_producers(self.log, {*self.offsets, *also_at}, self.findings)

    def check_beginning(self) -> None:
        """A log whose older segments were deleted needs a snapshot where it begins."""
        are_useless = (self._read(offset) is None for offset in self.offsets)
        if not self.knows_beginning and all(are_useless):
            what = "it is missing, damaged or of another log, and the log before it was deleted"
            location = self._location(self.log.start_offset)
            self.findings.problem(location, what, UNKNOWN, FindingKind.PRODUCERS_FORGOTTEN)

    def check(self) -> None:
        for offset in self.offsets:
            self._check_snapshot(offset)

    def _check_snapshot(self, offset: int) -> None:
        log, location = self.log, self._location(offset)
        if offset > log.end_offset:
            what = f"taken at offset {offset}, but the log ends at {log.end_offset}"
            means = "the end of the log was lost after this was written"
            self.findings.report(log.was_closed, location, what, means)
            return
        if offset < log.start_offset:
            what = f"taken at offset {offset}, but the log begins at {log.start_offset}"
            means = "a broker died while it deleted the beginning of the log; the next start removes this"
            self.findings.report(log.was_closed, location, what, means)
            return
        expected = log.producers_at.get(offset)
        if expected is None:
            self.findings.problem(location, f"no batch begins at offset {offset}", MISLED)
            return
        data = self.storage.read_file(location.file) or b""
        torn = why_torn(data)
        if torn:  # as a loss of power may leave it
            self.findings.report(not log.may_be_torn, location, torn, DROPPED)
            return
        if self.known.is_unlisted(offset):
            self.findings.note(location, f"{MANIFEST} does not list it yet", DROPPED)
            return
        foreign = why_foreign(data, offset, self.known)
        if foreign:
            self.findings.problem(location, f"it was not written for this log: {foreign}", DROPPED)
            return
        if not self.knows_beginning:
            return
        told = producers_in(data)
        for producer_id in sorted(told.keys() | expected.keys()):
            says, right = told.get(producer_id), expected.get(producer_id)
            # A snapshot remembers what compaction removed after it was taken.
            if not (says is not None and log.has_gap(-1, offset) and is_newer(says, right)):
                self._compare_producers(offset, producer_id, says, right)

    def _location(self, offset: int) -> Location:
        return Location(snapshot_file(self.log.directory, offset))

    def _compare_producers(
        self, offset: int, producer_id: int, says: ModelProducer | None, right: ModelProducer | None
    ) -> None:
        """Compare what the snapshot at this offset says of a producer with what is right."""
        location = self._location(offset)
        if right is None:
            self.findings.problem(location, f"producer {producer_id} wrote nothing before", MISLED)
        elif says is None:
            is_open = right.first_offset != NO_OFFSET
            self.findings.report(
                is_open, location, f"producer {producer_id} is missing", MISLED if is_open else FORGOTTEN
            )
        elif says != right:
            differing = ", ".join(
                f"{name} {mine} (the log says {its})"
                for name, mine, its in zip(ModelProducer._fields, says, right, strict=True)
                if mine != its
            )
            is_anew = says == self._begun_anew(offset, producer_id, right)
            self.findings.report(
                not is_anew,
                location,
                f"producer {producer_id}: {differing}",
                FORGOTTEN if is_anew else MISLED,
            )

    def _begun_anew(self, offset: int, producer_id: int, right: ModelProducer) -> ModelProducer:
        """What a snapshot at an offset says of a producer that was forgotten before its last data, or before
        its last marker if that came later.
        """
        markers = self.log.model.markers.get(producer_id, [])
        if any(right.last_offset < marker.offset < offset for marker in markers):
            return right._replace(last_sequence=NO_SEQUENCE, last_offset=NO_OFFSET, offset_delta=0)
        return right._replace(coordinator_epoch=NO_COORDINATOR_EPOCH)
