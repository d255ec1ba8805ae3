"""The checkpoint: segments that were synced, with the checksums of their indexes, so that a start need not
read them again.

Rule: an entry speaks for a log file of exactly its size and indexes of exactly its checksums; whatever
differs is read from the log.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from fencepost.journal.indexes import CorruptIndex
from fencepost.journal.manifest import decode_json, encode_json

CHECKPOINT_FILE: Final = "checkpoint.json"
CHECKPOINT_VERSION: Final = 1


@attrs.frozen(kw_only=True)
class SyncedSegment:
    """A segment as it was when its last byte was synced. Checksums are CRC-32C of the whole index file."""

    base_offset: int
    end_offset: int
    bytes: int
    max_timestamp: int
    leader_epoch: int
    index: int
    time_index: int
    transaction_index: int


_FIELDS: Final = tuple(field.name for field in attrs.fields(SyncedSegment))


def encode_checkpoint(segments: list[SyncedSegment]) -> bytes:
    """The bytes of `checkpoint.json`."""
    return encode_json(
        {"format": CHECKPOINT_VERSION, "segments": [attrs.asdict(segment) for segment in segments]}
    )


def decode_checkpoint(data: bytes) -> list[SyncedSegment]:
    """What `encode_checkpoint` wrote; CorruptIndex when it makes no sense."""
    content = decode_json(data, name="checkpoint", version=CHECKPOINT_VERSION)
    try:
        return [_segment(entry) for entry in content["segments"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndex(f"a checkpoint without sense: {error!r}") from error


def _segment(entry: dict[str, Any]) -> SyncedSegment:
    return SyncedSegment(**{name: int(entry[name]) for name in _FIELDS})
