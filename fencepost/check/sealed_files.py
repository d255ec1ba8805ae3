"""The small JSON files of a data directory: each is sealed by a checksum and names its own path.

The format is read here from scratch, not through the journal's functions, which wrote it.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple, cast

from fencepost.journal.storage import StorageReader
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.terms import parse_topic_id

MANIFEST: Final = "manifest.json"
LOG_START: Final = "log-start-offset.json"
CHECKPOINT: Final = "checkpoint.json"
CLEAN_FILE: Final = "clean-shutdown.json"
OFFSETS: Final = ("log_start_offset", "last_stable_offset", "high_watermark")
LISTS: Final = {
    "open_transactions": ("first_offset", "producer_id"),
    "segments": ("base_offset", "end_offset", "bytes", "max_timestamp", "last_crc"),
    "snapshots": ("offset", "checksum"),
}

Object = dict[str, Any]


class WrittenElsewhere(ValueError):
    """A file is whole, but names another path as its own."""


def sealed_object(data: bytes, path: str) -> Object:
    """The JSON object in a file; ValueError unless it ends with the CRC-32C of all before, WrittenElsewhere
    if it does not name this path.
    """
    text, mark, seal = data.rpartition(b',\n  "checksum": ')
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    if not mark:
        raise ValueError("it has no checksum: another program wrote it")
    if seal != b"%d\n}\n" % crc32c(text):
        raise ValueError("its checksum does not match: it was altered")
    fields = cast("Object", content)
    if fields.get("file") != path:
        raise WrittenElsewhere(f"it was written as {fields.get('file')}")
    return fields


def topic_id_of(content: Object) -> bytes | None:
    """The topic id in a manifest or log start, None if it is missing or malformed."""
    try:
        return parse_topic_id(content["topic_id"])
    except (KeyError, TypeError, ValueError):
        return None


def is_list_of(value: Any, fields: tuple[str, ...]) -> bool:
    """Whether it is a list of objects with these whole numbers."""
    if not isinstance(value, list):
        return False
    entries = cast("list[Any]", value)
    return all(
        isinstance(entry, dict) and all(isinstance(cast("Object", entry).get(name), int) for name in fields)
        for entry in entries
    )


class PromisedEnd(NamedTuple):
    """What a start of the broker demands of the end of a log."""

    offset: int
    """Every byte below this offset."""
    lost_power: bool
    """Whether a loss of power may have taken what was not synced: nothing says that the log was closed, or
    that the machine has kept its power.
    """


def promised_end(storage: StorageReader, directory: str, closed: Object | None) -> PromisedEnd:
    """What the manifest, the checkpoint and the mark of a clean stop (`closed` is the log's entry in it)
    promise about the end of a log. A damaged file promises nothing.
    """
    manifest = object_or_empty(storage, f"{directory}/{MANIFEST}")
    kept_power = is_of_this_boot(storage, manifest)
    promised = manifest.get("high_watermark" if kept_power else "durable_end")
    listed = object_or_empty(storage, f"{directory}/{CHECKPOINT}").get("segments")
    entries = cast("list[Object]", listed) if is_list_of(listed, ("end_offset",)) else []
    ends = [promised, (closed or {}).get("end_offset"), *[entry["end_offset"] for entry in entries]]
    offset = max([0, *[end for end in ends if isinstance(end, int)]])
    return PromisedEnd(offset, lost_power=closed is None and not kept_power)


def is_of_this_boot(storage: StorageReader, manifest: Object) -> bool:
    """Whether the machine has not lost its power since a manifest was written."""
    return manifest.get("boot_id") == storage.boot_id != ""


def object_or_empty(storage: StorageReader, path: str) -> Object:
    """The JSON object in a file; an empty one if the file is missing or damaged."""
    try:
        return sealed_object(storage.read_file(path) or b"", path)
    except ValueError:
        return {}
