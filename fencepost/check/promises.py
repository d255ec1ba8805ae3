"""What the small JSON files of a log promise, compared with the log.

How exact each must be:

    manifest.json        a lower bound: the log may have grown since, and segments may have been deleted or
                         cleaned. If it reaches the end of a log that was closed, its open transactions are
                         exact; its last stable offset is always what a scan up to its high watermark gives
    checkpoint.json      an entry counts only for a log file of exactly its size, and then it is true
    clean-shutdown.json  exact
"""

from __future__ import annotations

from functools import cached_property
from itertools import zip_longest
from typing import cast

import attrs

from fencepost.check.findings import Findings, Location
from fencepost.check.meanings import (
    DELETED,
    LOST,
    MOVED,
    POWER,
    READERS,
    REFUSED,
    RENAMED,
    REPLACED,
    REREAD,
    TRUSTED,
)
from fencepost.check.scan import ScannedLog, ScannedSegment
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
    is_of_this_boot,
    object_or_empty,
    sealed_object,
    topic_id_of,
)
from fencepost.journal.manifest import KnownSnapshots, SegmentSummary, lost_segments
from fencepost.journal.storage import StorageReader
from fencepost.protocol.terms import NO_TOPIC_ID


@attrs.frozen
class Promises:
    """The manifest, checkpoint, log start and mark of a clean stop of a log that has no fault itself."""

    storage: StorageReader
    log: ScannedLog
    closed: Object | None
    """What clean-shutdown.json says of the last segment."""
    findings: Findings

    def check(self, *, knows_beginning: bool) -> None:
        """Compare them with the log. `knows_beginning` is as in IndexFiles."""
        manifest = self.manifest
        stored_log_start = self._check_log_start(manifest)
        if manifest is not None:
            self._check_manifest(manifest, stored_log_start, knows_beginning=knows_beginning)
        elif self.closed is None and self.log.promised > self.log.end_offset:
            what = f"the log ends at offset {self.log.end_offset}, but it went on to {self.log.promised}"
            self.findings.problem(Location(f"{self.log.directory}/{CHECKPOINT}"), what, REFUSED)
        self._check_checkpoint()
        self._check_closed()

    # --- what the checks of the other files ask

    @cached_property
    def manifest(self) -> Object | None:
        """The manifest with the fields that matter, all whole numbers."""
        location = Location(f"{self.log.directory}/{MANIFEST}")
        content = self._read_object(location, READERS)
        if content is None:
            return None
        lacks = ["topic_id"] if topic_id_of(content) is None else []
        lacks += [name for name in OFFSETS if not isinstance(content.get(name), int)]
        lacks += [name for name, fields in LISTS.items() if not is_list_of(content.get(name), fields)]
        for name in lacks:
            self.findings.problem(location, f"its {name} is missing or malformed", READERS)
        return None if lacks else content

    @cached_property
    def known_snapshots(self) -> KnownSnapshots:
        """What the small files say of the snapshots, if they describe the last state of the log."""
        manifest, closed = self.manifest, self.closed
        checksums, end = dict[int, int](), None
        if manifest is not None and (closed is not None or self.kept_power):
            checksums = {entry["offset"]: entry["checksum"] for entry in manifest["snapshots"]}
        if manifest is not None and self.kept_power and manifest["segments"]:
            end = manifest["segments"][-1]["end_offset"]
        if closed is not None and is_list_of([closed], ("end_offset", "snapshot")):
            checksums[closed["end_offset"]] = closed["snapshot"]
        return KnownSnapshots(checksums, end)

    @cached_property
    def synced_segments(self) -> set[int]:
        """The segments that the checkpoint lists: their indexes were synced with them."""
        listed = object_or_empty(self.storage, f"{self.log.directory}/{CHECKPOINT}").get("segments")
        if not is_list_of(listed, ("base_offset",)):
            return set()
        return {entry["base_offset"] for entry in cast("list[Object]", listed)}

    @property
    def kept_power(self) -> bool:
        """Whether the manifest says that the machine has not lost its power since the log was written."""
        return self.manifest is not None and is_of_this_boot(self.storage, self.manifest)

    # --- the checks

    def _read_object(self, location: Location, means: str, *, is_synced: bool = False) -> Object | None:
        """A JSON file's object; None when it is missing, or torn, as a loss of power may leave it unless it
        `is_synced` before it takes its name.
        """
        data = self.storage.read_file(location.file)
        if data is None:
            return None
        try:
            return sealed_object(data, location.file)
        except WrittenElsewhere as error:
            self.findings.problem(location, str(error), RENAMED)
            return None
        except ValueError as error:
            self.findings.report(not self.log.may_be_torn or is_synced, location, str(error), means)
            return None

    def _check_manifest(self, manifest: Object, stored_log_start: int, *, knows_beginning: bool) -> None:
        """What the manifest says of its topic, offsets, open transactions and segments."""
        log, location = self.log, Location(f"{self.log.directory}/{MANIFEST}")
        start, _, high_watermark = (manifest[name] for name in OFFSETS)
        if high_watermark > log.end_offset:
            what = f"its high watermark is {high_watermark}, but the log ends at {log.end_offset}"
            is_lost = not self._power_explains_loss
            self.findings.report(is_lost, location, what, LOST if is_lost else POWER)
            return
        is_exact = log.was_closed and high_watermark == log.end_offset
        # Segments may have been deleted since.
        if not start < log.start_offset <= stored_log_start:
            if knows_beginning:
                self._check_stable(location, manifest, is_exact=is_exact)
            if not log.start_offset <= start <= high_watermark:
                what = f"its log start offset is {start}, but the log begins at {log.start_offset}"
                self.findings.problem(location, what, READERS)
        if is_exact:
            opened = [
                (entry["first_offset"], entry["producer_id"]) for entry in manifest["open_transactions"]
            ]
            found = log.model.open_transactions()
            if opened != found and knows_beginning:
                what = f"its open transactions are {opened}, but a full scan finds {found}"
                self.findings.problem(location, what, READERS)
        elif log.was_closed:
            self.findings.note(
                location,
                f"its high watermark is {high_watermark}, but the log was closed at {log.end_offset}",
                "the broker did not stop cleanly: readers of the manifest see the end after its next start",
            )
        entries = manifest["segments"]
        if self._is_shortened_by_power(manifest):
            what = f"its segments end at {entries[-1]['end_offset']}, but the log ends at {log.end_offset}"
            self.findings.note(location, what, POWER)
            entries = [entry for entry in entries if entry["end_offset"] <= log.end_offset]
        self._check_segments(location, entries, max(start, stored_log_start), is_exact=is_exact)
        if manifest["segments"] and self.kept_power:
            self._check_written(location, manifest["segments"][-1])

    def _is_shortened_by_power(self, manifest: Object) -> bool:
        """Whether the log ends before the manifest says, and a loss of power explains it."""
        is_shorter = any(listed["end_offset"] > self.log.end_offset for listed in manifest["segments"])
        return is_shorter and self._power_explains_loss

    @property
    def _power_explains_loss(self) -> bool:
        """Whether a loss of power since the manifest was written explains what the log lacks: all of it that
        was synced is there.
        """
        log = self.log
        is_enough = log.promised <= log.end_offset
        return is_enough and not log.was_closed and not self.kept_power

    def _check_written(self, location: Location, listed: Object) -> None:
        """The last segment in the manifest, if nothing was lost since: the broker lists a new segment before
        its file exists.
        """
        for segment in self.log.segments:
            if segment.base_offset == listed["base_offset"]:
                self._check_file(location, segment, listed)
            elif segment.base_offset > listed["base_offset"]:
                self.findings.problem(Location(segment.file), f"{MANIFEST} does not list it", REFUSED)

    def _check_file(self, location: Location, segment: ScannedSegment, entry: Object) -> None:
        """Whether the last batch that an entry names is still in its place."""
        is_reached = entry["bytes"] <= segment.size or entry["end_offset"] <= segment.end_offset
        if not is_reached or _is_described(segment, entry):
            return
        closed = self.closed or {}
        if (
            location.file != CLEAN_FILE
            and closed.get("bytes") == segment.size
            and _is_described(segment, closed)
        ):
            # The mark of a clean stop knows the file, so the manifest is older, or that of another log.
            self.findings.problem(
                location, f"it does not describe {segment.file}, which was closed here", READERS
            )
            return
        self.findings.problem(
            Location(segment.file), f"it is not the file that {location.file} describes", REPLACED
        )

    def _check_stable(self, location: Location, manifest: Object, *, is_exact: bool) -> None:
        """The last stable offset is what a scan up to the high watermark gives."""
        log = self.log
        start, says, high_watermark = (manifest[name] for name in OFFSETS)
        stable = log.stable_at(high_watermark, log_start_offset=start)
        if stable is None:
            if is_exact or not log.is_covered(high_watermark):
                what = f"its high watermark {high_watermark} is inside a batch"
                self.findings.problem(location, what, READERS)
        elif says != stable and not self._is_explained(says, stable, start=start, is_exact=is_exact):
            what = f"its last stable offset is {says}, but a full scan up to {high_watermark} gives {stable}"
            self.findings.problem(location, what, READERS)

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
        self, location: Location, entries: list[Object], log_start_offset: int, *, is_exact: bool
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
            self.findings.problem(location, f"it lists a segment at {summary.base_offset}", LOST)
        for entry, following in zip_longest(entries, entries[1:]):
            segment = known.get(entry["base_offset"])
            if segment is None:
                continue
            is_merged = following is not None and following["base_offset"] not in known
            if segment.is_cleaned or is_merged:
                facts = {"end_offset": segment.end_offset}
                self._compare_facts(location, segment, entry, facts, READERS, may_grow=True)
            else:
                may_grow = following is None and not is_exact
                if following is not None:
                    self._check_file(location, segment, entry)
                self._compare_facts(location, segment, entry, _facts(segment), READERS, may_grow=may_grow)

    def _check_checkpoint(self) -> None:
        """An entry counts only for a log file of exactly its size: then all that it says must be true."""
        location = Location(f"{self.log.directory}/{CHECKPOINT}")
        content = self._read_object(location, REREAD)
        if content is None:
            return
        if not is_list_of(content.get("segments"), (*LISTS["segments"], "leader_epoch")):
            self.findings.problem(location, "its segments are missing or malformed", REREAD)
            return
        known = {segment.base_offset: segment for segment in self.log.segments}
        for entry in cast("list[Object]", content["segments"]):
            segment = known.get(entry["base_offset"])
            if segment is not None and segment.batches and entry["bytes"] == segment.size:
                self._compare_facts(location, segment, entry, _facts_with_epoch(segment), TRUSTED)

    def _check_closed(self) -> None:
        """Nothing was written since the clean stop, so what it recorded must match the files."""
        if self.closed is None:
            return
        location = Location(CLEAN_FILE)
        if not is_list_of([self.closed], (*LISTS["segments"], "leader_epoch")):
            self.findings.problem(location, f"its entry of {self.log.directory} is malformed", REREAD)
        elif not self.log.segments or self.log.segments[-1].base_offset != self.closed["base_offset"]:
            what = f"it says that {self.log.directory} ends with the segment {self.closed['base_offset']}"
            self.findings.problem(location, what, LOST)
        else:
            segment = self.log.segments[-1]
            self._check_file(location, segment, self.closed)
            facts = _facts_with_epoch(segment) if segment.batches else _facts(segment)
            if self.closed["bytes"] == segment.size:
                self._compare_facts(location, segment, self.closed, facts, TRUSTED)
            elif self.closed["end_offset"] != segment.end_offset:
                self._compare_facts(
                    location, segment, self.closed, {"end_offset": segment.end_offset}, REFUSED
                )
            else:
                self._compare_facts(location, segment, self.closed, {"bytes": segment.size}, REREAD)

    def _check_log_start(self, manifest: Object | None) -> int:
        """The offset from which records are readable; returns it. The manifest is written after this file."""
        location = Location(f"{self.log.directory}/{LOG_START}")
        content = self._read_object(location, REFUSED, is_synced=True)
        start = 0 if content is None else content.get("log_start_offset")
        if not isinstance(start, int):
            self.findings.problem(location, "its log_start_offset is missing or malformed", DELETED)
            return 0
        ids = {topic_id_of(each) for each in (content, manifest) if each is not None} - {None, NO_TOPIC_ID}
        if len(ids) > 1:
            self.findings.problem(location, "its topic id is not that of the manifest", REFUSED)
            return 0
        if start > self.log.end_offset:
            what = f"it says {start}, but the log ends at {self.log.end_offset}"
            is_lost = self.log.was_closed or self.log.promised > self.log.end_offset
            self.findings.report(is_lost, location, what, LOST if is_lost else MOVED)
        elif manifest is not None and manifest["log_start_offset"] > max(start, self.log.start_offset):
            what = f"it says {start}, but the manifest says {manifest['log_start_offset']}"
            self.findings.problem(location, what, DELETED)
        is_known = content is not None or self.storage.read_file(location.file) is None
        if is_known and self.log.segments and self.log.start_offset > start:
            what = f"no file holds the offsets from {start} to {self.log.start_offset - 1}"
            self.findings.problem(Location(self.log.directory), what, LOST)
        return start

    def _compare_facts(
        self,
        location: Location,
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
                if location.file == CLEAN_FILE:  # it is about all partitions
                    what = f"{self.log.directory}, {what}"
                self.findings.problem(location, what, means)


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
