"""The manifest and the checkpoint of a partition against its log.

Rule: the manifest is a lower bound while a broker runs or after it died, and exact after an orderly stop at
rest; its last stable offset is at all times what a scan up to its high watermark gives.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

from fencepost.check.findings import Findings
from fencepost.check.producers import Track, opened
from fencepost.check.scan import ScannedLog, ScannedSegment
from fencepost.journal.storage import StorageReader

MANIFEST: Final = "manifest.json"
CHECKPOINT: Final = "checkpoint.json"

READERS: Final = "readers without a broker see too much or too little"
LOST: Final = "readers were promised records that are not there"
REREAD: Final = "the next start reads all of the log"
TRUSTED: Final = "the next start would take the segment for what it is not"

Object = dict[str, Any]

OFFSETS: Final = ("log_start_offset", "last_stable_offset", "high_watermark")
LISTS: Final = {
    "open_transactions": ("first_offset", "producer_id"),
    "segments": ("base_offset", "end_offset", "bytes", "max_timestamp"),
}


def read_object(
    storage: StorageReader, file: str, findings: Findings, *, was_closed: bool, means: str
) -> Object | None:
    """A JSON file's object; None when it is missing, or torn as a loss of power may leave it."""
    data = storage.read_file(file)
    if data is None:
        return None
    try:
        content: Any = json.loads(data)
    except ValueError as error:
        findings.tell(was_closed, file, f"no JSON: {error}", means=means)
        return None
    if not isinstance(content, dict):
        findings.problem(file, "no JSON object", means=means)
        return None
    return cast("Object", content)


def manifest_of(storage: StorageReader, log: ScannedLog, findings: Findings) -> Object | None:
    """The manifest of a partition with the fields that matter, all whole numbers."""
    file = f"{log.directory}/{MANIFEST}"
    content = read_object(storage, file, findings, was_closed=log.was_closed, means=READERS)
    if content is None:
        return None
    lacks = [name for name in OFFSETS if not isinstance(content.get(name), int)]
    lacks += [name for name, fields in LISTS.items() if not _is_list_of(content.get(name), fields)]
    for name in lacks:
        findings.problem(file, f"it has no {name} that make sense", means=READERS)
    return None if lacks else content


def _is_list_of(value: Any, fields: tuple[str, ...]) -> bool:
    """Whether it is a list of objects with these whole numbers."""
    if not isinstance(value, list):
        return False
    entries = cast("list[Any]", value)
    return all(
        isinstance(entry, dict) and all(isinstance(cast("Object", entry).get(name), int) for name in fields)
        for entry in entries
    )


def check_manifest(log: ScannedLog, manifest: Object, scanned: Track, findings: Findings) -> None:
    """What the manifest says of offsets, open transactions and segments."""
    file = f"{log.directory}/{MANIFEST}"
    high_watermark: int = manifest["high_watermark"]
    told: int = manifest["last_stable_offset"]
    if high_watermark > log.end_offset:
        findings.problem(
            file, f"its high watermark is {high_watermark}, the log ends at {log.end_offset}", means=LOST
        )
        return
    stable = scanned.stable_at(high_watermark)
    if stable is None:
        findings.problem(file, f"its high watermark {high_watermark} is inside a batch", means=READERS)
    elif told != stable:
        findings.problem(
            file,
            f"its last stable offset is {told}, a full scan up to {high_watermark} gives {stable}",
            means=READERS,
        )
    start: int = manifest["log_start_offset"]
    if not log.start_offset <= start <= high_watermark:
        findings.problem(
            file, f"its log start offset is {start}, the log begins at {log.start_offset}", means=READERS
        )
    if log.was_closed:
        _check_closed(file, log, manifest, scanned, findings)
    _check_segments(file, log, manifest, findings)


def _check_closed(file: str, log: ScannedLog, manifest: Object, scanned: Track, findings: Findings) -> None:
    if manifest["high_watermark"] != log.end_offset:
        findings.note(
            file,
            f"its high watermark is {manifest['high_watermark']}, the log was closed at {log.end_offset}",
            means="the broker stopped in the middle of things: readers without one see the end after a start",
        )
        return
    told = [(entry["first_offset"], entry["producer_id"]) for entry in manifest["open_transactions"]]
    found = opened(scanned.final)
    if told != found:
        findings.problem(file, f"its open transactions are {told}, a full scan finds {found}", means=READERS)


def _facts(segment: ScannedSegment) -> dict[str, int]:
    return {
        "base_offset": segment.base_offset,
        "end_offset": segment.end_offset,
        "bytes": segment.size,
        "max_timestamp": segment.max_timestamp,
    }


def _check_segments(file: str, log: ScannedLog, manifest: Object, findings: Findings) -> None:
    """Full segments are told exactly; the last one may have grown since."""
    known = {segment.base_offset: segment for segment in log.segments}
    entries: list[Object] = manifest["segments"]
    for entry in entries:
        segment = known.get(entry["base_offset"])
        if segment is None:
            findings.problem(file, f"it tells of a segment at {entry['base_offset']}", means=LOST)
            continue
        facts = _facts(segment)
        grown = entry is entries[-1] and not log.was_closed
        wrong = [
            name for name, value in facts.items() if (entry[name] > value if grown else entry[name] != value)
        ]
        for name in wrong:
            findings.problem(
                file,
                f"segment {segment.base_offset}: {name} is {entry[name]}, the log has {facts[name]}",
                means=READERS,
            )


def check_checkpoint(storage: StorageReader, log: ScannedLog, findings: Findings) -> None:
    """An entry counts only for a log file of exactly its size: then all that it says must be true."""
    file = f"{log.directory}/{CHECKPOINT}"
    content = read_object(storage, file, findings, was_closed=log.was_closed, means=REREAD)
    known = {segment.base_offset: segment for segment in log.segments}
    if content is None:
        return
    if not _is_list_of(content.get("segments"), (*LISTS["segments"], "leader_epoch")):
        findings.problem(file, "it has no segments that make sense", means=REREAD)
        return
    for entry in cast("list[Object]", content["segments"]):
        segment = known.get(entry["base_offset"])
        if segment is None or not segment.batches or entry["bytes"] != segment.size:
            continue
        facts = {**_facts(segment), "leader_epoch": segment.batches[-1].header.leader_epoch}
        for name, value in facts.items():
            if entry[name] != value:
                findings.problem(
                    file,
                    f"segment {segment.base_offset}: {name} is {entry[name]}, the log has {value}",
                    means=TRUSTED,
                )
