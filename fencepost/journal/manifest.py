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
