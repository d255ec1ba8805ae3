"""Producer snapshots: whether one is whole, whether it is of this log, and what it says of producers.

The format is read here from scratch, not through the journal's classes, which wrote it.
"""

from __future__ import annotations

import struct
from typing import Final

from fencepost.journal.manifest import KnownSnapshots
from fencepost.journal.storage import StorageReader
from fencepost.log_model.partitions import ModelProducer
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.terms import NO_OFFSET

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
