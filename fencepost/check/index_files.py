"""The indexes next to a log, compared with what a scan of its segments makes.

How exact each must be:

    .index, .txnindex    what a full scan makes, entry for entry
    .timeindex           what a full scan makes, and true entries that clean stops added

The format is read here from scratch, not through the journal's classes, which wrote it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import attrs

from fencepost.check.findings import Findings, Location
from fencepost.check.meanings import MISFILTERED, REBUILT, SEEKS
from fencepost.check.scan import LOG_SUFFIX, ScannedLog, ScannedSegment
from fencepost.journal.indexes import without_preallocated
from fencepost.journal.storage import CLEANED_SUFFIX, StorageReader
from fencepost.log_model.partitions import LoggedAbort
from fencepost.protocol.terms import NO_OFFSET

ABORTED_SUFFIX: Final = ".txnindex"
INDEX_SUFFIXES: Final = (".index", ".timeindex", ABORTED_SUFFIX)
INTERVAL_BYTES: Final = 4096  # index.interval.bytes
OFFSET_LAYOUT: Final = struct.Struct(">II")  # relative last offset of a batch, its position
TIME_LAYOUT: Final = struct.Struct(">qI")  # largest timestamp so far, relative last offset of its batch
# Version 0, producer id, first and last offset of the transaction, last stable offset.
ABORTED_LAYOUT: Final = struct.Struct(">hqqqq")


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


Compare = Callable[[RightEntries, Location, list[tuple[Any, ...]]], None]


@attrs.frozen
class IndexFiles:
    """The indexes of a log that has no fault itself."""

    storage: StorageReader
    log: ScannedLog
    knows_beginning: bool
    """Whether the log and the snapshot where it begins cover every batch that was ever written."""
    synced_segments: Collection[int]
    """The base offsets of segments whose indexes were synced with them."""
    kept_power: bool
    """Whether the machine is known not to have lost its power since the log was written."""
    findings: Findings

    def check(self) -> None:
        for segment in self.log.segments:
            right = RightEntries(self.log, segment)
            self._check_index(right, ".index", OFFSET_LAYOUT, self._compare_offsets)
            self._check_index(right, ".timeindex", TIME_LAYOUT, self._compare_times)
            self._check_index(right, ABORTED_SUFFIX, ABORTED_LAYOUT, self._compare_aborted)

    def _check_index(self, right: RightEntries, suffix: str, layout: struct.Struct, compare: Compare) -> None:
        """Read an index, and compare its whole entries with what a scan of its segment makes."""
        segment = right.segment
        location = Location(segment.file.removesuffix(LOG_SUFFIX) + suffix)
        names = self.storage.files(self.log.directory)
        new, new_log = (file.rpartition("/")[2] + CLEANED_SUFFIX for file in (location.file, segment.file))
        is_of_kafka, is_aborted = self.log.is_sparse, suffix == ABORTED_SUFFIX
        if new in names and new_log not in names and not is_of_kafka:
            self.findings.note(
                location, "a cleaned segment has replaced the log, but not this index", REBUILT
            )
            return
        data = self.storage.read_file(location.file)
        if data is None and not (is_of_kafka and is_aborted):
            self.findings.report(self._has_final_indexes(segment), location, "the index is missing", REBUILT)
            return
        data = data or b""
        left = len(data) % layout.size
        if left:
            what = f"{left} bytes at the end are not a complete entry"
            self.findings.report(self._has_final_indexes(segment), location, what, REBUILT)
        whole = data[: len(data) - left]
        if is_of_kafka and not is_aborted:
            whole = without_preallocated(whole, layout.size)
        if not self._has_final_indexes(segment) and not is_of_kafka:
            whole = self._without_lost_end(location, whole, layout, right)
        compare(right, location, list(layout.iter_unpack(whole)))

    def _has_final_indexes(self, segment: ScannedSegment) -> bool:
        """Whether the indexes of a segment are complete, and no loss of power can have torn them."""
        log = self.log
        is_synced = not log.may_be_torn or log.is_sparse or segment.base_offset in self.synced_segments
        return segment.is_final and is_synced

    def _without_lost_end(
        self, location: Location, data: bytes, layout: struct.Struct, right: RightEntries
    ) -> bytes:
        """The entries of an index without those at its end that a loss of power explains. Either it has torn
        them: zeros, perhaps after the first bytes of a right one. Or it took their batches from the log.
        """
        kept = self._without_torn_end(location, data, layout.size, right.packed(layout))
        if self.kept_power:
            return kept
        entries = list(layout.iter_unpack(kept))
        count = len(entries)
        while count and right.last_offset(layout, entries[count - 1]) >= self.log.end_offset:
            count -= 1
        if count < len(entries):
            what = f"entry {count} is {entries[count]}, but the log ends at offset {self.log.end_offset}"
            self.findings.note(location, what, REBUILT)
        return kept[: count * layout.size]

    def _without_torn_end(self, location: Location, data: bytes, size: int, right: set[bytes]) -> bytes:
        count = len(data) // size
        while count:
            entry = data[(count - 1) * size : count * size]
            written = entry.rstrip(b"\0")
            is_torn = not written or any(each.startswith(written) for each in right)
            # The loss of power that tore an entry may also have taken the batch that it is about.
            is_lost = not self.kept_power and len(written) < size
            if entry in right or not (is_torn or is_lost):
                break
            count -= 1
        if count * size < len(data):
            what = f"the last {len(data) - count * size} bytes are torn"
            self.findings.note(location, what, REBUILT)
        return data[: count * size]

    def _compare_offsets(self, right: RightEntries, location: Location, raw: list[tuple[Any, ...]]) -> None:
        base = right.segment.base_offset
        entries = [OffsetEntry(base + offset, position) for offset, position in raw]
        self._compare_entries(right.segment, location, entries, right.offsets, SEEKS)

    def _compare_times(self, right: RightEntries, location: Location, raw: list[tuple[Any, ...]]) -> None:
        newest = max((each.timestamp for each in right.times), default=-1)
        last = TimeEntry(-1, -1)
        for number, (timestamp, offset) in enumerate(raw):
            entry = TimeEntry(timestamp, right.segment.base_offset + offset)
            if entry not in right.times or entry.timestamp <= last.timestamp:
                what = f"entry {number} is {entry}, but no batch there had the newest timestamp"
                self.findings.problem(location, what, SEEKS)
                return
            last = entry
        if newest > last.timestamp and self._has_final_indexes(right.segment):
            what = f"the newest timestamp is {newest}, but the index ends at {last.timestamp}"
            self.findings.problem(location, what, "records are not found by their timestamp")

    def _compare_aborted(self, right: RightEntries, location: Location, raw: list[tuple[Any, ...]]) -> None:
        for number, (version, *_) in enumerate(raw):
            if version != 0:
                self.findings.problem(location, f"entry {number} is of version {version}", MISFILTERED)
                return
        entries, expected = [LoggedAbort(*fields) for _, *fields in raw], right.aborted
        if self.log.is_sparse:
            entries = [*map(self._as_a_leader_writes, entries, expected), *entries[len(expected) :]]
        else:
            entries = self._without_removed(entries, expected)
        self._compare_entries(right.segment, location, entries, expected, MISFILTERED)

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
        """Whether neither the log nor a snapshot where it begins says what was at an offset."""
        is_deleted = offset < self.log.start_offset and not self.knows_beginning
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
        location: Location,
        entries: Sequence[tuple[int, ...]],
        expected: Sequence[tuple[int, ...]],
        means: str,
    ) -> None:
        """Report the first difference only: the entries after it are shifted."""
        for number, (entry, right) in enumerate(zip(entries, expected, strict=False)):
            if entry != right:
                self.findings.problem(
                    location, f"entry {number} is {entry}, but the log gives {right}", means
                )
                return
        known = len(expected)
        if len(entries) > known:
            what = f"entry {known} is {entries[known]}, but the log gives none"
            self.findings.problem(location, what, means)
        elif len(entries) < known:
            what = f"{known - len(entries)} of {known} entries are missing"
            is_final = self._has_final_indexes(segment)
            self.findings.report(is_final, location, what, means if is_final else REBUILT)
