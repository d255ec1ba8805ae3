"""What stands beside a log, compared with the log: its indexes, producer snapshots, manifest and checkpoint.

All of these files are derived: a broker can build each of them again from the log, and readers trust them
because reading the log would take too long. How exact each must be:

    .index, .txnindex    what a full scan makes, entry for entry
    .timeindex           what a full scan makes, and true entries that orderly stops added
    .snapshot            what a full scan up to its offset says; only a producer that was silent for longer
                         than producer.id.expiration.ms may be missing
    manifest.json        a lower bound while a broker runs or after it died, exact after an orderly stop at
                         rest; its last stable offset is always what a scan up to its high watermark gives
    checkpoint.json      an entry counts only for a log file of exactly its size, and then it is true

The formats are read here from scratch, not through the journal's classes, which wrote them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from crc32c import crc32c

from fencepost.check.findings import Findings
from fencepost.check.producers import PRODUCER_ID_EXPIRATION_MS, ScannedState
from fencepost.check.scan import LOG_SUFFIX, ScannedLog, ScannedSegment, offset_of
from fencepost.journal.storage import StorageReader
from fencepost.log_model.partitions import LoggedAbort, ModelProducer
from fencepost.protocol.terms import NO_OFFSET

# --- indexes ------------------------------------------------------------------------------------------------

INDEX_SUFFIXES: Final = (".index", ".timeindex", ".txnindex")
INTERVAL_BYTES: Final = 4096  # index.interval.bytes
_OFFSET = struct.Struct(">II")  # relative last offset of a batch, its position
_TIME = struct.Struct(">qI")  # largest timestamp so far, relative last offset of its batch
_ABORTED = struct.Struct(">hqqqq")  # version 0, producer id, first and last offset, last stable offset

SEEKS: Final = "readers that seek by it start at a wrong place"
REBUILT: Final = "the next start builds it again from the log"
MISFILTERED: Final = "readers get records of aborted transactions, or miss committed ones"


class OffsetEntry(NamedTuple):
    """An entry of an offset index, its offset absolute."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """An entry of a time index, its offset absolute."""

    timestamp: int
    offset: int


def check_indexes(storage: StorageReader, log: ScannedLog, scanned: ScannedState, findings: Findings) -> None:
    """All segments of a log that has no fault itself."""
    for segment in log.segments:
        _check_offsets(storage, segment, findings)
        _check_times(storage, segment, findings)
        _check_aborted(storage, segment, scanned, findings)


def _entries(
    storage: StorageReader, segment: ScannedSegment, suffix: str, layout: struct.Struct, findings: Findings
) -> tuple[str, list[tuple[int, ...]]] | None:
    """Return (file, its whole entries), or None when there is no such file."""
    file = segment.file.removesuffix(LOG_SUFFIX) + suffix
    data = storage.read_file(file)
    if data is None:
        findings.tell(segment.is_final, file, "the index is missing", means=REBUILT)
        return None
    left = len(data) % layout.size
    if left:
        findings.tell(segment.is_final, file, f"{left} bytes at the end are not a whole entry", means=REBUILT)
    return file, list(layout.iter_unpack(data[: len(data) - left]))


def _check_offsets(storage: StorageReader, segment: ScannedSegment, findings: Findings) -> None:
    found = _entries(storage, segment, ".index", _OFFSET, findings)
    if found is None:
        return
    file, raw = found
    entries = [OffsetEntry(segment.base_offset + offset, position) for offset, position in raw]
    _compare_entries(
        file, entries, _expected_offsets(segment), segment=segment, means=SEEKS, findings=findings
    )


def _expected_offsets(segment: ScannedSegment) -> list[OffsetEntry]:
    expected: list[OffsetEntry] = []
    since = 0
    for batch in segment.batches:
        if since > INTERVAL_BYTES:
            expected.append(OffsetEntry(batch.header.next_offset - 1, batch.position))
            since = 0
        since += batch.header.size
    return expected


def _compare_entries(
    file: str,
    entries: Sequence[tuple[int, ...]],
    expected: Sequence[tuple[int, ...]],
    *,
    segment: ScannedSegment,
    means: str,
    findings: Findings,
) -> None:
    """Report the first difference only: the entries after it are shifted."""
    for number, (entry, right) in enumerate(zip(entries, expected, strict=False)):
        if entry != right:
            findings.problem(file, f"entry {number} is {entry}, but the log gives {right}", means=means)
            return
    if len(entries) > len(expected):
        findings.problem(
            file, f"entry {len(expected)} is {entries[len(expected)]}, but the log gives none", means=means
        )
    elif len(entries) < len(expected):
        missing = f"{len(expected) - len(entries)} of {len(expected)} entries are missing"
        findings.tell(segment.is_final, file, missing, means=means if segment.is_final else REBUILT)


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
                file, f"entry {number} is {entry}, but no batch there had the newest timestamp", means=SEEKS
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
    for batch in segment.batches:
        if batch.header.max_timestamp > newest:
            newest = batch.header.max_timestamp
            true.add(TimeEntry(newest, batch.header.next_offset - 1))
    return true


def _check_aborted(
    storage: StorageReader, segment: ScannedSegment, scanned: ScannedState, findings: Findings
) -> None:
    found = _entries(storage, segment, ".txnindex", _ABORTED, findings)
    if found is None:
        return
    file, raw = found
    for number, (version, *_) in enumerate(raw):
        if version != 0:
            findings.problem(file, f"entry {number} is of version {version}", means=MISFILTERED)
            return
    entries = [LoggedAbort(*fields) for _, *fields in raw]
    expected = [
        aborted
        for aborted in scanned.model.aborted
        if segment.base_offset <= aborted.last_offset < segment.end_offset
    ]
    _compare_entries(file, entries, expected, segment=segment, means=MISFILTERED, findings=findings)


# --- producer snapshots -------------------------------------------------------------------------------------

SNAPSHOT_SUFFIX: Final = ".snapshot"
_SNAPSHOT_HEAD = struct.Struct(">hIi")  # version 1, CRC-32C of all after it, number of producers
_CHECKSUM_END: Final = 6
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")

MISLED: Final = "after a restart the broker judges this producer by a wrong state"


def snapshot_offsets(storage: StorageReader, directory: str) -> list[int]:
    """The offsets of a partition's snapshots."""
    found = (offset_of(name, SNAPSHOT_SUFFIX) for name in storage.files(directory))
    return [offset for offset in found if offset is not None]


def check_snapshots(
    storage: StorageReader, log: ScannedLog, scanned: ScannedState, findings: Findings
) -> None:
    """Every snapshot of a log that has no fault itself."""
    for offset in snapshot_offsets(storage, log.directory):
        file = f"{log.directory}/{offset:020d}{SNAPSHOT_SUFFIX}"
        if offset > log.end_offset:
            findings.tell(
                log.was_closed,
                file,
                f"taken at offset {offset}, and the log ends at {log.end_offset}",
                means="the end of the log was lost after this was written",
            )
            continue
        expected = scanned.producers_at.get(offset)
        if expected is None:
            findings.problem(file, f"no batch begins at offset {offset}", means=MISLED)
            continue
        told = _read_snapshot(storage.read_file(file) or b"", file, findings, was_closed=log.was_closed)
        if told is not None:
            _compare_producers(file, told, expected, newest=scanned.model.newest_timestamp, findings=findings)


def _read_snapshot(
    data: bytes, file: str, findings: Findings, *, was_closed: bool
) -> dict[int, ModelProducer] | None:
    """Return its producers, or None when it is torn, as a loss of power may leave it."""
    means = "it is dropped, and the next start reads more of the log"
    if len(data) < _SNAPSHOT_HEAD.size:
        findings.tell(was_closed, file, f"{len(data)} bytes are not a snapshot", means=means)
        return None
    version, checksum, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != 1:
        findings.tell(was_closed, file, f"version {version}, only 1 is known", means=means)
        return None
    if crc32c(data[_CHECKSUM_END:]) != checksum:
        findings.tell(was_closed, file, "its checksum does not match its bytes", means=means)
        return None
    entries = data[_SNAPSHOT_HEAD.size :]
    if len(entries) != count * _SNAPSHOT_ENTRY.size:
        findings.tell(was_closed, file, f"{len(entries)} bytes are not {count} producers", means=means)
        return None
    return {
        producer_id: ModelProducer(*fields) for producer_id, *fields in _SNAPSHOT_ENTRY.iter_unpack(entries)
    }


def _compare_producers(
    file: str,
    told: dict[int, ModelProducer],
    expected: dict[int, ModelProducer],
    *,
    newest: int,
    findings: Findings,
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
                means="it was idle for longer than producer.id.expiration.ms" if is_expired else MISLED,
            )
        elif says != right:
            differing = ", ".join(
                f"{name} {mine} (the log says {its})"
                for name, mine, its in zip(ModelProducer._fields, says, right, strict=True)
                if mine != its
            )
            findings.problem(file, f"producer {producer_id}: {differing}", means=MISLED)


# --- manifest and checkpoint --------------------------------------------------------------------------------

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
        findings.tell(was_closed, file, f"not JSON: {error}", means=means)
        return None
    if not isinstance(content, dict):
        findings.problem(file, "not a JSON object", means=means)
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
        findings.problem(file, f"its {name} is missing or malformed", means=READERS)
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


def check_manifest(log: ScannedLog, manifest: Object, scanned: ScannedState, findings: Findings) -> None:
    """What the manifest says of offsets, open transactions and segments."""
    file = f"{log.directory}/{MANIFEST}"
    high_watermark: int = manifest["high_watermark"]
    says: int = manifest["last_stable_offset"]
    if high_watermark > log.end_offset:
        findings.problem(
            file, f"its high watermark is {high_watermark}, the log ends at {log.end_offset}", means=LOST
        )
        return
    stable = scanned.stable_at(high_watermark)
    if stable is None:
        findings.problem(file, f"its high watermark {high_watermark} is inside a batch", means=READERS)
    elif says != stable:
        findings.problem(
            file,
            f"its last stable offset is {says}, a full scan up to {high_watermark} gives {stable}",
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


def _check_closed(
    file: str, log: ScannedLog, manifest: Object, scanned: ScannedState, findings: Findings
) -> None:
    if manifest["high_watermark"] != log.end_offset:
        findings.note(
            file,
            f"its high watermark is {manifest['high_watermark']}, the log was closed at {log.end_offset}",
            means="the broker did not stop cleanly: readers of the manifest see the end after its next start",
        )
        return
    says = [(entry["first_offset"], entry["producer_id"]) for entry in manifest["open_transactions"]]
    found = scanned.model.open_transactions()
    if says != found:
        findings.problem(file, f"its open transactions are {says}, a full scan finds {found}", means=READERS)


def _facts(segment: ScannedSegment) -> dict[str, int]:
    return {
        "base_offset": segment.base_offset,
        "end_offset": segment.end_offset,
        "bytes": segment.size,
        "max_timestamp": segment.max_timestamp,
    }


def _check_segments(file: str, log: ScannedLog, manifest: Object, findings: Findings) -> None:
    """Full segments are says exactly; the last one may have grown since."""
    known = {segment.base_offset: segment for segment in log.segments}
    entries: list[Object] = manifest["segments"]
    for entry in entries:
        segment = known.get(entry["base_offset"])
        if segment is None:
            findings.problem(file, f"it lists a segment at {entry['base_offset']}", means=LOST)
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
        findings.problem(file, "its segments are missing or malformed", means=REREAD)
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
