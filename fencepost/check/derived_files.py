"""The files next to a log, compared with the log: its indexes, producer snapshots, manifest and checkpoint.

All of these files are derived: a broker can build each of them again from the log, and readers trust them
because reading the log would take too long. How exact each must be:

    .index, .txnindex    what a full scan makes, entry for entry
    .timeindex           what a full scan makes, and true entries that clean stops added
    .snapshot            what a full scan up to its offset says; only a producer without an open transaction
                         may be missing, or have been missing for a while: the broker forgets those that are
                         silent for producer.id.expiration.ms by its clock, which the log does not tell
    manifest.json        a lower bound: the log may have grown since, and segments may have been deleted or
                         cleaned. If it reaches the end of a log that was closed, its open transactions are
                         exact; its last stable offset is always what a scan up to its high watermark gives
    checkpoint.json      an entry counts only for a log file of exactly its size, and then it is true
    clean-shutdown.json  exact

The formats are read here from scratch, not through the journal's classes, which wrote them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any, Final, NamedTuple, cast

import attrs

from fencepost.check.findings import FindingKind, Findings, Place
from fencepost.check.scan import LOG_SUFFIX, ScannedLog, ScannedSegment, follow_producers, offset_of, sizes_of
from fencepost.check.sealed_files import (
    CHECKPOINT,
    CLEAN_FILE,
    LISTS,
    LOG_START,
    MANIFEST,
    OFFSETS,
    Object,
    WrittenElsewhere,
    is_list_of,
    sealed_object,
    topic_id_of,
)
from fencepost.check.snapshot_files import (
    SNAPSHOT_SUFFIX,
    is_newer,
    producers_in,
    read_producers,
    snapshot_file,
    why_foreign,
    why_torn,
)
from fencepost.journal.indexes import without_preallocated
from fencepost.journal.manifest import KnownSnapshots, SegmentSummary, lost_segments
from fencepost.journal.storage import CLEANED_SUFFIX, TEMPORARY_SUFFIX, StorageReader
from fencepost.log_model.partitions import LoggedAbort, ModelProducer
from fencepost.protocol.terms import NO_COORDINATOR_EPOCH, NO_OFFSET, NO_SEQUENCE, NO_TOPIC_ID

ABORTED_SUFFIX: Final = ".txnindex"
INDEX_SUFFIXES: Final = (".index", ".timeindex", ABORTED_SUFFIX)
INTERVAL_BYTES: Final = 4096  # index.interval.bytes
OFFSET_LAYOUT: Final = struct.Struct(">II")  # relative last offset of a batch, its position
TIME_LAYOUT: Final = struct.Struct(">qI")  # largest timestamp so far, relative last offset of its batch
ABORTED_LAYOUT: Final = struct.Struct(
    ">hqqqq"
)  # version 0, producer id, first and last offset, last stable offset

# What findings mean.
SEEKS: Final = "readers that seek with it start at the wrong place"
REBUILT: Final = "the next start rebuilds it from the log"
MISFILTERED: Final = "readers get records of aborted transactions, or miss committed ones"
MISLED: Final = "after a restart the broker checks this producer's batches against a wrong state"
FORGOTTEN: Final = "the broker forgets a producer that is silent for producer.id.expiration.ms by its clock"
UNKNOWN: Final = (
    "the producers of deleted records are forgotten; a batch that one of them retries is stored again"
)
DROPPED: Final = "it is dropped, and the next start reads more of the log"
READERS: Final = "readers without a broker see too much or too little"
LOST: Final = "readers were promised records that are not there"
POWER: Final = "a loss of power took what was not synced; the next start removes this file"
MOVED: Final = "a loss of power took the end of the deleted records; the next start moves the log start there"
DELETED: Final = "records that were deleted are readable again, or live ones are not"
REREAD: Final = "the next start reads all of the log"
TRUSTED: Final = "the next start does not scan the segment and trusts these wrong values"
RENAMED: Final = "the broker refuses this log; `fencepost repair` mends it"
REPLACED: Final = "the broker refuses this log; put the right file back, if there is a copy"
REFUSED: Final = "the broker refuses this log; `fencepost repair` lists what can be saved"


class OffsetEntry(NamedTuple):
    """An entry of an offset index, its offset absolute."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """An entry of a time index, its offset absolute."""

    timestamp: int
    offset: int


@attrs.frozen
class RightEntries:
    """The entries of the indexes of a segment, as a scan makes them."""

    log: ScannedLog
    segment: ScannedSegment

    @cached_property
    def offsets(self) -> list[OffsetEntry]:
        """Those of a full offset index."""
        found: list[OffsetEntry] = []
        since = 0
        for batch in self.segment.batches:
            if since > INTERVAL_BYTES:
                found.append(OffsetEntry(batch.header.next_offset - 1, batch.position))
                since = 0
            since += batch.header.size
        return found

    @cached_property
    def times(self) -> set[TimeEntry]:
        """One for each batch that was newer than all before it; a time index has some of them."""
        found: set[TimeEntry] = set()
        newest = -1
        for batch in self.segment.batches:
            if batch.header.record_count and batch.header.max_timestamp > newest:
                newest = batch.header.max_timestamp
                found.add(TimeEntry(newest, batch.header.next_offset - 1))
        return found

    @cached_property
    def aborted(self) -> list[LoggedAbort]:
        """Those of the aborted transactions with their markers in the segment."""
        first, end = self.segment.base_offset, self.segment.end_offset
        return [aborted for aborted in self.log.model.aborted if first <= aborted.last_offset < end]

    def packed(self, layout: struct.Struct) -> set[bytes]:
        """The entries of one index as they are in its file."""
        base = self.segment.base_offset
        if layout is ABORTED_LAYOUT:
            return {layout.pack(0, *aborted) for aborted in self.aborted}
        if layout is OFFSET_LAYOUT:
            return {layout.pack(each.offset - base, each.position) for each in self.offsets}
        return {layout.pack(each.timestamp, each.offset - base) for each in self.times}

    def last_offset(self, layout: struct.Struct, entry: tuple[int, ...]) -> int:
        """The last offset of the batch that an entry is about; NO_OFFSET if it cannot be read."""
        if layout is ABORTED_LAYOUT:
            version, last_offset = entry[0], entry[3]
            return last_offset if version == 0 else NO_OFFSET
        return self.segment.base_offset + entry[0 if layout is OFFSET_LAYOUT else 1]


Compare = Callable[[RightEntries, Place, list[tuple[Any, ...]]], None]


@attrs.frozen
class DerivedFiles:
    """The files next to a log that has no fault itself."""

    storage: StorageReader
    log: ScannedLog
    closed: Object | None
    """What clean-shutdown.json says of the last segment."""
    findings: Findings

    def check(self) -> None:
        """Compare all of them with the log, and judge the log's producers on the way."""
        self._check_strays()
        manifest = self._manifest
        snapshots = self._snapshot_offsets()
        spoken_of = {*snapshots} if manifest is None else {*snapshots, manifest["high_watermark"]}
        self._begin_with_snapshot()
        follow_producers(self.log, spoken_of, self.findings)
        self._check_indexes()
        are_useless = (self._read_producers(offset) is None for offset in snapshots)
        if not self._knows_its_beginning and all(are_useless):
            what = "it is missing, damaged or of another log, and the log before it was deleted"
            place = self._snapshot(self.log.start_offset)
            self.findings.problem(place, what, UNKNOWN, FindingKind.PRODUCERS_FORGOTTEN)
        for offset in snapshots:
            self._check_snapshot(offset)
        stored_log_start = self._check_log_start(manifest)
        if manifest is not None:
            self._check_manifest(manifest, stored_log_start)
        self._check_checkpoint()
        self._check_closed()

    def _snapshot_offsets(self) -> list[int]:
        return list(sizes_of(self.storage, self.log.directory, SNAPSHOT_SUFFIX))

    def _check_strays(self) -> None:
        """Files that the next start removes: half-written ones, and indexes whose log is missing."""
        bases = {segment.base_offset for segment in self.log.segments}
        for name in self.storage.files(self.log.directory):
            place = Place(f"{self.log.directory}/{name}")
            based = [offset for suffix in INDEX_SUFFIXES if (offset := offset_of(name, suffix)) is not None]
            if name.endswith((TEMPORARY_SUFFIX, CLEANED_SUFFIX)):
                self.findings.note(place, "a file that was never finished", "the next start removes it")
            elif based and based[0] not in bases:
                means = "a segment is missing, or was removed when a broker died"
                self.findings.tell(self.log.was_closed, place, "an index without its log", means)

    # --- indexes --------------------------------------------------------------------------------------------

    def _check_indexes(self) -> None:
        for segment in self.log.segments:
            right = RightEntries(self.log, segment)
            self._check_index(right, ".index", OFFSET_LAYOUT, self._compare_offsets)
            self._check_index(right, ".timeindex", TIME_LAYOUT, self._compare_times)
            self._check_index(right, ABORTED_SUFFIX, ABORTED_LAYOUT, self._compare_aborted)

    def _check_index(self, right: RightEntries, suffix: str, layout: struct.Struct, compare: Compare) -> None:
        """Read an index, and compare its whole entries with what a scan of its segment makes."""
        segment = right.segment
        place = Place(segment.file.removesuffix(LOG_SUFFIX) + suffix)
        names = self.storage.files(self.log.directory)
        new, new_log = (file.rpartition("/")[2] + CLEANED_SUFFIX for file in (place.file, segment.file))
        is_of_kafka, is_aborted = self.log.is_sparse, suffix == ABORTED_SUFFIX
        if new in names and new_log not in names and not is_of_kafka:
            self.findings.note(place, "a cleaned segment has replaced the log, but not this index", REBUILT)
            return
        data = self.storage.read_file(place.file)
        if data is None and not (is_of_kafka and is_aborted):
            self.findings.tell(self._has_final_indexes(segment), place, "the index is missing", REBUILT)
            return
        data = data or b""
        left = len(data) % layout.size
        if left:
            what = f"{left} bytes at the end are not a complete entry"
            self.findings.tell(self._has_final_indexes(segment), place, what, REBUILT)
        whole = data[: len(data) - left]
        if is_of_kafka and not is_aborted:
            whole = without_preallocated(whole, layout.size)
        if not self._has_final_indexes(segment) and not is_of_kafka:
            whole = self._without_lost_end(place, whole, layout, right)
        compare(right, place, list(layout.iter_unpack(whole)))

    @cached_property
    def _synced_bases(self) -> set[int]:
        """The segments that the checkpoint lists: their indexes were synced with them."""
        try:
            place = f"{self.log.directory}/{CHECKPOINT}"
            content = sealed_object(self.storage.read_file(place) or b"", place)
        except ValueError:
            return set()
        if not is_list_of(content.get("segments"), ("base_offset",)):
            return set()
        return {entry["base_offset"] for entry in cast("list[Object]", content["segments"])}

    def _has_final_indexes(self, segment: ScannedSegment) -> bool:
        """Whether the indexes of a segment are complete, and no loss of power can have torn them."""
        log = self.log
        is_synced = log.was_closed or log.is_sparse or segment.base_offset in self._synced_bases
        return segment.is_final and is_synced

    def _without_lost_end(
        self, place: Place, data: bytes, layout: struct.Struct, right: RightEntries
    ) -> bytes:
        """The entries of an index without those at its end that a loss of power explains. Either it has torn
        them: zeros, perhaps after the first bytes of a right one. Or it took their batches from the log.
        """
        kept = self._without_torn_end(place, data, layout.size, right.packed(layout))
        if self._manifest is not None and self._is_of_this_boot(self._manifest):
            return kept
        entries = list(layout.iter_unpack(kept))
        count = len(entries)
        while count and right.last_offset(layout, entries[count - 1]) >= self.log.end_offset:
            count -= 1
        if count < len(entries):
            what = f"entry {count} is {entries[count]}, but the log ends at offset {self.log.end_offset}"
            self.findings.note(place, what, REBUILT)
        return kept[: count * layout.size]

    def _without_torn_end(self, place: Place, data: bytes, size: int, right: set[bytes]) -> bytes:
        count = len(data) // size
        while count:
            entry = data[(count - 1) * size : count * size]
            written = entry.rstrip(b"\0")
            if entry in right or (written and not any(each.startswith(written) for each in right)):
                break
            count -= 1
        if count * size < len(data):
            what = f"the last {len(data) - count * size} bytes are torn"
            self.findings.note(place, what, REBUILT)
        return data[: count * size]

    def _compare_offsets(self, right: RightEntries, place: Place, raw: list[tuple[Any, ...]]) -> None:
        base = right.segment.base_offset
        entries = [OffsetEntry(base + offset, position) for offset, position in raw]
        self._compare_entries(right.segment, place, entries, right.offsets, SEEKS)

    def _compare_times(self, right: RightEntries, place: Place, raw: list[tuple[Any, ...]]) -> None:
        newest = max((each.timestamp for each in right.times), default=-1)
        last = TimeEntry(-1, -1)
        for number, (timestamp, offset) in enumerate(raw):
            entry = TimeEntry(timestamp, right.segment.base_offset + offset)
            if entry not in right.times or entry.timestamp <= last.timestamp:
                what = f"entry {number} is {entry}, but no batch there had the newest timestamp"
                self.findings.problem(place, what, SEEKS)
                return
            last = entry
        if newest > last.timestamp and self._has_final_indexes(right.segment):
            what = f"the newest timestamp is {newest}, but the index ends at {last.timestamp}"
            self.findings.problem(place, what, "records are not found by their timestamp")

    def _compare_aborted(self, right: RightEntries, place: Place, raw: list[tuple[Any, ...]]) -> None:
        for number, (version, *_) in enumerate(raw):
            if version != 0:
                self.findings.problem(place, f"entry {number} is of version {version}", MISFILTERED)
                return
        entries, expected = [LoggedAbort(*fields) for _, *fields in raw], right.aborted
        if self.log.is_sparse:
            entries = [*map(self._as_a_leader_writes, entries, expected), *entries[len(expected) :]]
        else:
            entries = self._without_removed(entries, expected)
        self._compare_entries(right.segment, place, entries, expected, MISFILTERED)

    def _without_removed(
        self, entries: Sequence[LoggedAbort], expected: Sequence[LoggedAbort]
    ) -> list[LoggedAbort]:
        """The entries as they would be without the batches that compaction has removed from older segments,
        or that were deleted with the snapshot: a segment that was left as it was, or not reached, has the
        entries that were written with its markers. Readers miss nothing, since no other transaction of the
        producer was before its marker.
        """
        log, right = self.log, {aborted.last_offset: aborted for aborted in expected}
        found: list[LoggedAbort] = []
        for entry in entries:
            true = right.get(entry.last_offset)
            is_removed = self._is_removed(entry.first_offset)
            if true is None:
                markers = log.model.markers.get(entry.producer_id, [])
                if is_removed and any(marker.offset == entry.last_offset for marker in markers):
                    continue
            elif entry.producer_id == true.producer_id:
                first, stable = entry.first_offset, entry.last_stable_offset
                if is_removed and first < true.first_offset:
                    first = true.first_offset
                if self._is_removed(stable) and stable < true.last_stable_offset:
                    stable = true.last_stable_offset
                entry = entry._replace(first_offset=first, last_stable_offset=stable)
            found.append(entry)
        return found

    def _is_removed(self, offset: int) -> bool:
        """Whether nothing in the log, nor a snapshot where it begins, tells what was at an offset."""
        is_deleted = offset < self.log.start_offset and not self._knows_its_beginning
        return is_deleted or self.log.is_covered(offset)

    def _as_a_leader_writes(self, entry: LoggedAbort, right: LoggedAbort) -> LoggedAbort:
        """A follower of Apache Kafka appends several batches at once, and writes the index when it has seen
        them all (UnifiedLog.append). So the last stable offset in an entry may be the first offset of a
        transaction that began after the marker; readers that stop there miss nothing.
        """
        is_later = right.last_stable_offset < entry.last_stable_offset <= self.log.end_offset
        return entry._replace(last_stable_offset=right.last_stable_offset) if is_later else entry

    def _compare_entries(
        self,
        segment: ScannedSegment,
        place: Place,
        entries: Sequence[tuple[int, ...]],
        expected: Sequence[tuple[int, ...]],
        means: str,
    ) -> None:
        """Report the first difference only: the entries after it are shifted."""
        for number, (entry, right) in enumerate(zip(entries, expected, strict=False)):
            if entry != right:
                self.findings.problem(place, f"entry {number} is {entry}, but the log gives {right}", means)
                return
        known = len(expected)
        if len(entries) > known:
            what = f"entry {known} is {entries[known]}, but the log gives none"
            self.findings.problem(place, what, means)
        elif len(entries) < known:
            what = f"{known - len(entries)} of {known} entries are missing"
            is_final = self._has_final_indexes(segment)
            self.findings.tell(is_final, place, what, means if is_final else REBUILT)

    # --- producer snapshots ---------------------------------------------------------------------------------

    @cached_property
    def _knows_its_beginning(self) -> bool:
        """Whether nothing was deleted before the first segment, or a snapshot says what that was. When a
        deletion of several segments is interrupted, the snapshot may be at a later one.
        """
        start = self.log.start_offset
        return not start or self._read_producers(start) is not None

    def _read_producers(self, offset: int) -> dict[int, ModelProducer] | None:
        return read_producers(self.storage, self.log.directory, offset, self._known_snapshots)

    @cached_property
    def _known_snapshots(self) -> KnownSnapshots:
        """What the small files say of the snapshots, if they describe the last state of the log."""
        manifest, closed = self._manifest, self.closed
        checksums, end = dict[int, int](), None
        is_of_boot = manifest is not None and self._is_of_this_boot(manifest)
        if manifest is not None and (closed is not None or is_of_boot):
            checksums = {entry["offset"]: entry["checksum"] for entry in manifest["snapshots"]}
        if manifest is not None and is_of_boot and manifest["segments"]:
            end = manifest["segments"][-1]["end_offset"]
        if closed is not None and is_list_of([closed], ("end_offset", "snapshot")):
            checksums[closed["end_offset"]] = closed["snapshot"]
        return KnownSnapshots(checksums, end)

    def _begin_with_snapshot(self) -> None:
        """Where older segments were deleted, their producers live on in the snapshot at the start."""
        start = self.log.start_offset
        if start:
            self.log.model.begin_with(self._read_producers(start) or {})

    def _check_snapshot(self, offset: int) -> None:
        log, place = self.log, self._snapshot(offset)
        if offset > log.end_offset:
            what = f"taken at offset {offset}, but the log ends at {log.end_offset}"
            means = "the end of the log was lost after this was written"
            self.findings.tell(log.was_closed, place, what, means)
            return
        if offset < log.start_offset:
            what = f"taken at offset {offset}, but the log begins at {log.start_offset}"
            means = "a broker died while it deleted the beginning of the log; the next start removes this"
            self.findings.tell(log.was_closed, place, what, means)
            return
        expected = log.producers_at.get(offset)
        if expected is None:
            self.findings.problem(place, f"no batch begins at offset {offset}", MISLED)
            return
        data = self.storage.read_file(place.file) or b""
        torn = why_torn(data)
        if torn:  # as a loss of power may leave it
            self.findings.tell(log.was_closed, place, torn, DROPPED)
            return
        if self._known_snapshots.is_unlisted(offset):
            self.findings.note(place, f"{MANIFEST} does not list it yet", DROPPED)
            return
        foreign = why_foreign(data, offset, self._known_snapshots)
        if foreign:
            self.findings.problem(place, f"it was not written for this log: {foreign}", DROPPED)
            return
        if not self._knows_its_beginning:
            return
        told = producers_in(data)
        for producer_id in sorted(told.keys() | expected.keys()):
            says, right = told.get(producer_id), expected.get(producer_id)
            # A snapshot remembers what compaction removed after it was taken.
            if not (says is not None and log.has_gap(-1, offset) and is_newer(says, right)):
                self._compare_producers(offset, producer_id, says, right)

    def _snapshot(self, offset: int) -> Place:
        return Place(snapshot_file(self.log.directory, offset))

    def _compare_producers(
        self, offset: int, producer_id: int, says: ModelProducer | None, right: ModelProducer | None
    ) -> None:
        """Compare what the snapshot at this offset says of a producer with what is right."""
        place = self._snapshot(offset)
        if right is None:
            self.findings.problem(place, f"producer {producer_id} wrote nothing before", MISLED)
        elif says is None:
            is_open = right.first_offset != NO_OFFSET
            self.findings.tell(
                is_open, place, f"producer {producer_id} is missing", MISLED if is_open else FORGOTTEN
            )
        elif says != right:
            differing = ", ".join(
                f"{name} {mine} (the log says {its})"
                for name, mine, its in zip(ModelProducer._fields, says, right, strict=True)
                if mine != its
            )
            is_anew = says == self._begun_anew(offset, producer_id, right)
            self.findings.tell(
                not is_anew, place, f"producer {producer_id}: {differing}", FORGOTTEN if is_anew else MISLED
            )

    def _begun_anew(self, offset: int, producer_id: int, right: ModelProducer) -> ModelProducer:
        """What a snapshot at an offset says of a producer that was forgotten before its last data, or before
        its last marker if that came later.
        """
        markers = self.log.model.markers.get(producer_id, [])
        if any(right.last_offset < marker.offset < offset for marker in markers):
            return right._replace(last_sequence=NO_SEQUENCE, last_offset=NO_OFFSET, offset_delta=0)
        return right._replace(coordinator_epoch=NO_COORDINATOR_EPOCH)

    # --- manifest and checkpoint ----------------------------------------------------------------------------

    def _read_object(self, place: Place, means: str, *, is_synced: bool = False) -> Object | None:
        """A JSON file's object; None when it is missing, or torn, as a loss of power may leave it unless it
        `is_synced` before it takes its name.
        """
        data = self.storage.read_file(place.file)
        if data is None:
            return None
        try:
            return sealed_object(data, place.file)
        except WrittenElsewhere as error:
            self.findings.problem(place, str(error), RENAMED)
            return None
        except ValueError as error:
            self.findings.tell(self.log.was_closed or is_synced, place, str(error), means)
            return None

    @cached_property
    def _manifest(self) -> Object | None:
        """The manifest with the fields that matter, all whole numbers."""
        place = Place(f"{self.log.directory}/{MANIFEST}")
        content = self._read_object(place, READERS)
        if content is None:
            return None
        lacks = ["topic_id"] if topic_id_of(content) is None else []
        lacks += [name for name in OFFSETS if not isinstance(content.get(name), int)]
        lacks += [name for name, fields in LISTS.items() if not is_list_of(content.get(name), fields)]
        for name in lacks:
            self.findings.problem(place, f"its {name} is missing or malformed", READERS)
        return None if lacks else content

    def _check_manifest(self, manifest: Object, stored_log_start: int) -> None:
        """What the manifest says of its topic, offsets, open transactions and segments."""
        log, place = self.log, Place(f"{self.log.directory}/{MANIFEST}")
        start, _, high_watermark = (manifest[name] for name in OFFSETS)
        if high_watermark > log.end_offset:
            what = f"its high watermark is {high_watermark}, but the log ends at {log.end_offset}"
            is_lost = not self._is_of_lost_power(manifest)
            self.findings.tell(is_lost, place, what, LOST if is_lost else POWER)
            return
        is_exact = log.was_closed and high_watermark == log.end_offset
        # Segments may have been deleted since.
        if not start < log.start_offset <= stored_log_start:
            self._check_stable(place, manifest, is_exact=is_exact)
            if not log.start_offset <= start <= high_watermark:
                what = f"its log start offset is {start}, but the log begins at {log.start_offset}"
                self.findings.problem(place, what, READERS)
        if is_exact:
            opened = [
                (entry["first_offset"], entry["producer_id"]) for entry in manifest["open_transactions"]
            ]
            found = log.model.open_transactions()
            if opened != found and self._knows_its_beginning:
                what = f"its open transactions are {opened}, but a full scan finds {found}"
                self.findings.problem(place, what, READERS)
        elif log.was_closed:
            self.findings.note(
                place,
                f"its high watermark is {high_watermark}, but the log was closed at {log.end_offset}",
                "the broker did not stop cleanly: readers of the manifest see the end after its next start",
            )
        entries = manifest["segments"]
        if self._is_shortened_by_power(manifest):
            what = f"its segments end at {entries[-1]['end_offset']}, but the log ends at {log.end_offset}"
            self.findings.note(place, what, POWER)
            entries = [entry for entry in entries if entry["end_offset"] <= log.end_offset]
        self._check_segments(place, entries, max(start, stored_log_start), is_exact=is_exact)
        if manifest["segments"] and self._is_of_this_boot(manifest):
            self._check_written(place, manifest["segments"][-1])

    def _is_of_this_boot(self, manifest: Object) -> bool:
        """Whether the machine has had power since the manifest was written."""
        return manifest.get("boot_id") == self.storage.boot_id != ""

    def _is_shortened_by_power(self, manifest: Object) -> bool:
        """Whether the log ends before the manifest says, and a loss of power explains it."""
        is_shorter = any(listed["end_offset"] > self.log.end_offset for listed in manifest["segments"])
        return is_shorter and self._is_of_lost_power(manifest)

    def _is_of_lost_power(self, manifest: Object) -> bool:
        """Whether a loss of power since the manifest was written explains what the log lacks: all of it that
        was synced is there.
        """
        log = self.log
        is_enough = log.promised <= log.end_offset
        return is_enough and not log.was_closed and not self._is_of_this_boot(manifest)

    def _check_written(self, place: Place, listed: Object) -> None:
        """The last segment in the manifest, if nothing was lost since: the broker lists a new segment before
        its file exists.
        """
        for segment in self.log.segments:
            if segment.base_offset == listed["base_offset"]:
                self._check_file(place, segment, listed)
            elif segment.base_offset > listed["base_offset"]:
                self.findings.problem(Place(segment.file), f"{MANIFEST} does not list it", REFUSED)

    def _check_file(self, place: Place, segment: ScannedSegment, entry: Object) -> None:
        """Whether the last batch that an entry names is still in its place."""
        is_reached = entry["bytes"] <= segment.size or entry["end_offset"] <= segment.end_offset
        if not is_reached or _is_described(segment, entry):
            return
        closed = self.closed or {}
        if (
            place.file != CLEAN_FILE
            and closed.get("bytes") == segment.size
            and _is_described(segment, closed)
        ):
            # The mark of a clean stop knows the file, so the manifest is older, or that of another log.
            self.findings.problem(
                place, f"it does not describe {segment.file}, which was closed here", READERS
            )
            return
        self.findings.problem(
            Place(segment.file), f"it is not the file that {place.file} describes", REPLACED
        )

    def _check_stable(self, place: Place, manifest: Object, *, is_exact: bool) -> None:
        """The last stable offset is what a scan up to the high watermark gives."""
        log = self.log
        if not self._knows_its_beginning:
            return
        start, says, high_watermark = (manifest[name] for name in OFFSETS)
        stable = log.stable_at(high_watermark, log_start_offset=start)
        if stable is None:
            if is_exact or not log.is_covered(high_watermark):
                what = f"its high watermark {high_watermark} is inside a batch"
                self.findings.problem(place, what, READERS)
        elif says != stable and not self._is_explained(says, stable, start=start, is_exact=is_exact):
            what = f"its last stable offset is {says}, but a full scan up to {high_watermark} gives {stable}"
            self.findings.problem(place, what, READERS)

    def _is_explained(self, says: int, stable: int, *, start: int, is_exact: bool) -> bool:
        """Whether compaction explains the difference. After a kill, it may have removed batches since,
        including those with which a transaction began that was open then. The batch with the log start may
        have become part of an empty one, which begins earlier.
        """
        log, first = self.log, self.log.batch_start(start)
        if says > stable:
            return says <= start and log.is_covered(says)
        is_removed = log.is_covered(says) or (says == first and log.has_gap(-1, start))
        return not is_exact and says >= first and is_removed

    def _check_segments(
        self, place: Place, entries: list[Object], log_start_offset: int, *, is_exact: bool
    ) -> None:
        """Full segments are as the manifest says exactly, one after the other; the last one may have grown
        since. Segments may also have been deleted since, or cleaned, which changes their sizes and
        timestamps, even if the log was closed: a start that is stopped leaves the manifest as it is.
        """
        known = {segment.base_offset: segment for segment in self.log.segments}
        listed = [SegmentSummary(**{name: entry[name] for name in LISTS["segments"]}) for entry in entries]
        missing = [summary for summary in listed if summary.base_offset not in known]
        lost = lost_segments(
            missing,
            list(known),
            log_start_offset=log_start_offset,
            end_of=lambda base_offset: known[base_offset].end_offset,
        )
        ends = [max([min(known, default=0), log_start_offset]), *[summary.end_offset for summary in listed]]
        after_gap = [summary for summary, end in zip(listed, ends, strict=False) if summary.base_offset > end]
        for summary in dict.fromkeys([*lost, *after_gap]):
            self.findings.problem(place, f"it lists a segment at {summary.base_offset}", LOST)
        for entry, following in zip_longest(entries, entries[1:]):
            segment = known.get(entry["base_offset"])
            if segment is None:
                continue
            is_merged = following is not None and following["base_offset"] not in known
            if segment.is_cleaned or is_merged:
                facts = {"end_offset": segment.end_offset}
                self._compare_facts(place, segment, entry, facts, READERS, may_grow=True)
            else:
                may_grow = following is None and not is_exact
                if following is not None:
                    self._check_file(place, segment, entry)
                self._compare_facts(place, segment, entry, _facts(segment), READERS, may_grow=may_grow)

    def _check_checkpoint(self) -> None:
        """An entry counts only for a log file of exactly its size: then all that it says must be true."""
        place = Place(f"{self.log.directory}/{CHECKPOINT}")
        content = self._read_object(place, REREAD)
        if content is None:
            return
        if not is_list_of(content.get("segments"), (*LISTS["segments"], "leader_epoch")):
            self.findings.problem(place, "its segments are missing or malformed", REREAD)
            return
        known = {segment.base_offset: segment for segment in self.log.segments}
        for entry in cast("list[Object]", content["segments"]):
            segment = known.get(entry["base_offset"])
            if segment is not None and segment.batches and entry["bytes"] == segment.size:
                self._compare_facts(place, segment, entry, _facts_with_epoch(segment), TRUSTED)

    def _check_closed(self) -> None:
        """Nothing was written since the clean stop, so what it recorded must match the files."""
        if self.closed is None:
            return
        place = Place(CLEAN_FILE)
        if not is_list_of([self.closed], (*LISTS["segments"], "leader_epoch")):
            self.findings.problem(place, f"its entry of {self.log.directory} is malformed", REREAD)
        elif not self.log.segments or self.log.segments[-1].base_offset != self.closed["base_offset"]:
            what = f"it says that {self.log.directory} ends with the segment {self.closed['base_offset']}"
            self.findings.problem(place, what, LOST)
        else:
            segment = self.log.segments[-1]
            self._check_file(place, segment, self.closed)
            facts = _facts_with_epoch(segment) if segment.batches else _facts(segment)
            if self.closed["bytes"] == segment.size:
                self._compare_facts(place, segment, self.closed, facts, TRUSTED)
            elif self.closed["end_offset"] != segment.end_offset:
                self._compare_facts(place, segment, self.closed, {"end_offset": segment.end_offset}, REFUSED)
            else:
                self._compare_facts(place, segment, self.closed, {"bytes": segment.size}, REREAD)

    def _check_log_start(self, manifest: Object | None) -> int:
        """The offset from which records are readable; returns it. The manifest is written after this file."""
        place = Place(f"{self.log.directory}/{LOG_START}")
        content = self._read_object(place, REFUSED, is_synced=True)
        start = 0 if content is None else content.get("log_start_offset")
        if not isinstance(start, int):
            self.findings.problem(place, "its log_start_offset is missing or malformed", DELETED)
            return 0
        ids = {topic_id_of(each) for each in (content, manifest) if each is not None} - {None, NO_TOPIC_ID}
        if len(ids) > 1:
            self.findings.problem(place, "its topic id is not that of the manifest", REFUSED)
            return 0
        if start > self.log.end_offset:
            what = f"it says {start}, but the log ends at {self.log.end_offset}"
            is_lost = self.log.was_closed or self.log.promised > self.log.end_offset
            self.findings.tell(is_lost, place, what, LOST if is_lost else MOVED)
        elif manifest is not None and manifest["log_start_offset"] > max(start, self.log.start_offset):
            what = f"it says {start}, but the manifest says {manifest['log_start_offset']}"
            self.findings.problem(place, what, DELETED)
        is_known = content is not None or self.storage.read_file(place.file) is None
        if is_known and self.log.segments and self.log.start_offset > start:
            what = f"no file holds the offsets from {start} to {self.log.start_offset - 1}"
            self.findings.problem(Place(self.log.directory), what, LOST)
        return start

    def _compare_facts(
        self,
        place: Place,
        segment: ScannedSegment,
        entry: Object,
        facts: dict[str, int],
        means: str,
        *,
        may_grow: bool = False,
    ) -> None:
        for name, value in facts.items():
            if entry[name] > value or (entry[name] < value and not may_grow):
                what = f"segment {segment.base_offset}: {name} is {entry[name]}, but the log has {value}"
                if place.file == CLEAN_FILE:  # it is about all partitions
                    what = f"{self.log.directory}, {what}"
                self.findings.problem(place, what, means)


def _is_described(segment: ScannedSegment, entry: Object) -> bool:
    """Whether a segment has the batch that an entry names as the last one."""
    ends = {batch.position + batch.header.size: batch.header.crc for batch in segment.batches}
    is_same = entry.get("base_offset") == segment.base_offset
    return is_same and ends.get(entry.get("bytes", 0), 0) == entry.get("last_crc")


def _facts_with_epoch(segment: ScannedSegment) -> dict[str, int]:
    return {**_facts(segment), "leader_epoch": segment.batches[-1].header.leader_epoch}


def _facts(segment: ScannedSegment) -> dict[str, int]:
    return {
        "base_offset": segment.base_offset,
        "end_offset": segment.end_offset,
        "bytes": segment.size,
        "max_timestamp": segment.max_timestamp,
    }
