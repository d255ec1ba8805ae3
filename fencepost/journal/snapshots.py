"""The `.snapshot` file: what a partition leader remembers of each producer, in Kafka's layout
(ProducerStateManager, version 1).

Rule: a snapshot only saves reading the log. One whose checksum is wrong is removed, and the next older one is
used.
"""

#     version i16 | CRC-32C u32 | count i32 | per producer: id i64, epoch i16, last sequence i32,
#                                           | last offset i64, offset delta i32, timestamp i64,
#                                           | coordinator epoch i32, first offset of its transaction i64
#
# The checksum covers a file that may be torn: a snapshot is synced only when the journal is closed.

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from fencepost.journal.indexes import CorruptIndex

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


def decode_snapshot(data: bytes) -> list[ProducerSnapshot]:
    """The producers in a snapshot file; CorruptIndex when it is truncated, damaged or of another version."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise CorruptIndex(f"a snapshot of {len(data)} bytes is truncated")
    version, checksum = _HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptIndex(f"a snapshot of version {version}; this build reads {SNAPSHOT_VERSION}")
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body) != checksum:
        raise CorruptIndex("the checksum of a snapshot does not match its bytes")
    (count,) = _COUNT.unpack_from(body)
    entries = body[_COUNT.size :]
    if count * _ENTRY.size != len(entries):
        raise CorruptIndex(f"a snapshot announces {count} producers and holds {len(entries)} bytes of them")
    return [ProducerSnapshot._make(fields) for fields in _ENTRY.iter_unpack(entries)]
