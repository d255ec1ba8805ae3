"""The manifest: what a reader without a broker may rely on, as JSON beside the segments.

Rule: it is replaced at once or not at all, after the bytes that it describes, so it is a lower bound;
recovery never trusts it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, cast

import attrs

from fencepost.journal.indexes import CorruptIndex
from fencepost.journal.open_transactions import OpenTransaction
from fencepost.journal.storage import Storage

MANIFEST_FILE: Final = "manifest.json"
MANIFEST_VERSION: Final = 1


@attrs.frozen
class SegmentSummary:
    """What a manifest says of one segment."""

    base_offset: int
    end_offset: int = attrs.field(kw_only=True)
    bytes: int = attrs.field(kw_only=True)
    max_timestamp: int = attrs.field(kw_only=True)


@attrs.frozen(kw_only=True)
class ManifestState:
    """What the partition leader knows and the journal does not. Everything here lies at or below the end of
    the log."""

    last_stable_offset: int
    high_watermark: int
    open_transactions: tuple[OpenTransaction, ...] = ()


@attrs.frozen(kw_only=True)
class Manifest:
    """One partition as it was when this was written. Batches may have been added since; nothing here is ever
    taken back."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    open_transactions: tuple[OpenTransaction, ...]
    segments: tuple[SegmentSummary, ...]

    @property
    def log_end_offset(self) -> int:
        return self.segments[-1].end_offset if self.segments else self.log_start_offset


def encode_manifest(
    state: ManifestState, *, log_start_offset: int, segments: Sequence[SegmentSummary]
) -> bytes:
    """The bytes of `manifest.json`."""
    return encode_json(
        {
            "format": MANIFEST_VERSION,
            "log_start_offset": log_start_offset,
            "last_stable_offset": state.last_stable_offset,
            "high_watermark": state.high_watermark,
            "open_transactions": [transaction._asdict() for transaction in state.open_transactions],
            "segments": [attrs.asdict(segment) for segment in segments],
        }
    )


def decode_manifest(data: bytes) -> Manifest:
    """What `encode_manifest` wrote; CorruptIndex when it is cut off, altered beyond sense, or of another
    version."""
    content = decode_json(data, name="manifest", version=MANIFEST_VERSION)
    try:
        return Manifest(
            log_start_offset=int(content["log_start_offset"]),
            last_stable_offset=int(content["last_stable_offset"]),
            high_watermark=int(content["high_watermark"]),
            open_transactions=tuple(
                OpenTransaction(int(t["first_offset"]), int(t["producer_id"]), int(t["producer_epoch"]))
                for t in content["open_transactions"]
            ),
            segments=tuple(_decode_summary(segment) for segment in content["segments"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndex(f"a manifest without sense: {error!r}") from error


def _decode_summary(content: dict[str, Any]) -> SegmentSummary:
    return SegmentSummary(
        int(content["base_offset"]),
        end_offset=int(content["end_offset"]),
        bytes=int(content["bytes"]),
        max_timestamp=int(content["max_timestamp"]),
    )


# --- the checkpoint of synced segments -------------------------------------------------------------------

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


# --- the log start offset --------------------------------------------------------------------------------

LOG_START_FILE: Final = "log-start-offset.json"
LOG_START_VERSION: Final = 1


def read_log_start(storage: Storage, directory: str) -> int:
    """The log start that was written last, 0 when none was or it cannot be read."""
    data = storage.read_file(f"{directory}/{LOG_START_FILE}")
    try:
        content = (
            {} if data is None else decode_json(data, name="log start offset", version=LOG_START_VERSION)
        )
        return int(content.get("log_start_offset", 0))
    except (CorruptIndex, TypeError, ValueError):
        return 0


def write_log_start(storage: Storage, directory: str, offset: int) -> None:
    """Makes a log start durable."""
    content = encode_json({"format": LOG_START_VERSION, "log_start_offset": offset})
    storage.replace(f"{directory}/{LOG_START_FILE}", content, durable=True)


def deletable(bases: Sequence[int], log_start_offset: int, *, snapshots: Sequence[int]) -> list[int]:
    """Which of the segments that begin at `bases` nobody needs: those before the last one that begins with
    a snapshot at or below the log start.
    """
    needed = max((base for base in bases if base <= log_start_offset and base in snapshots), default=0)
    return [base for base in bases if base < needed]


# --- JSON ------------------------------------------------------------------------------------------------


def encode_json(content: dict[str, Any]) -> bytes:
    """One object, one field a line at the top: people look into these files. A prefix of it never parses."""
    fields = (
        f"  {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in content.items()
    )
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def decode_json(data: bytes, *, name: str, version: int) -> dict[str, Any]:
    """The object of a file of `encode_json`; CorruptIndex when it is none or of another version."""
    try:
        content: Any = json.loads(data)
    except ValueError as error:
        raise CorruptIndex(f"a {name} that is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise CorruptIndex(f"a {name} that is no JSON object")
    fields = cast("dict[str, Any]", content)
    if fields.get("format") != version:
        raise CorruptIndex(f"a {name} of another version than {version}")
    return fields
