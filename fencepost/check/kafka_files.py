"""The files next to a log of Apache Kafka, compared with the log: indexes, producer snapshots, leader epochs.

Kafka's indexes are sparse: an entry must be true, and which batches have one is up to the broker.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any, Final

from fencepost.check.derived_files import check_strays
from fencepost.check.findings import Findings, Location
from fencepost.check.index_files import IndexFiles, OffsetEntry, RightEntries, TimeEntry
from fencepost.check.meanings import MISFILTERED, REBUILT, SEEKS
from fencepost.check.scan import ScannedLog
from fencepost.check.snapshot_files import SnapshotFiles
from fencepost.journal.manifest import KnownSnapshots
from fencepost.journal.storage import StorageReader
from fencepost.log_model.partitions import LoggedAbort, ModelProducer
from fencepost.protocol.terms import NO_OFFSET

EPOCHS_FILE: Final = "leader-epoch-checkpoint"
MISLED_FOLLOWERS: Final = "a follower may cut its log at the wrong place when the leader changes"


def check_kafka_files(storage: StorageReader, log: ScannedLog, findings: Findings) -> None:
    """Compare all of them with a log that has no fault itself, and judge the log's producers on the way."""
    check_strays(storage, log, findings)
    snapshots = KafkaSnapshots(storage, log, KnownSnapshots({}), findings)
    snapshots.follow_producers()
    KafkaIndexes(
        storage,
        log,
        knows_beginning=snapshots.knows_beginning,
        synced_segments=(),
        kept_power=False,
        findings=findings,
    ).check()
    snapshots.check()
    _check_epochs(storage, log, findings)


class KafkaIndexes(IndexFiles):
    """The indexes of a log of Kafka."""

    def _compare_offsets(self, right: RightEntries, location: Location, raw: list[tuple[Any, ...]]) -> None:
        segment = right.segment
        number_at = {batch.position: number for number, batch in enumerate(segment.batches)}
        number_of = {batch.header.last_offset: number for number, batch in enumerate(segment.batches)}
        before = OffsetEntry(-1, -1)
        for number, (relative, position) in enumerate(raw):
            entry = OffsetEntry(segment.base_offset + relative, position)
            if entry.offset >= segment.end_offset and not segment.is_final:
                return  # of a batch that was not copied, or torn
            first, last = number_at.get(position), number_of.get(entry.offset)
            # Before 4.0 one entry could be about several batches that came together: where the first of them
            # begins, and where the last one ends.
            if first is None or last is None or last < first or not before < entry:
                what = f"entry {number} is {entry}, but no batch there ends with this offset"
                self.findings.problem(location, what, SEEKS)
                return
            before = entry

    def _compare_times(self, right: RightEntries, location: Location, raw: list[tuple[Any, ...]]) -> None:
        segment = right.segment
        filled = [batch.header for batch in segment.batches if batch.header.record_count]
        bases = [header.base_offset for header in filled]
        newest = list(accumulate((header.max_timestamp for header in filled), max))
        before = TimeEntry(-1, -1)
        for number, (timestamp, relative) in enumerate(raw):
            entry = TimeEntry(timestamp, segment.base_offset + relative)
            if entry.offset >= segment.end_offset and not segment.is_final:
                return
            at = bisect_right(bases, entry.offset) - 1
            is_true = at >= 0 and filled[at].max_timestamp == timestamp == newest[at]
            if not is_true or entry.offset > filled[at].last_offset or timestamp <= before.timestamp:
                what = f"entry {number} is {entry}, but no batch there had the newest timestamp"
                self.findings.problem(location, what, SEEKS)
                return
            before = entry
        # An entry of timestamp 0 and relative offset 0 looks the same as preallocated space.
        if newest and newest[-1] > max(before.timestamp, 0) and segment.is_final:
            what = f"the newest timestamp is {newest[-1]}, but the index ends at {before.timestamp}"
            self.findings.problem(location, what, "records are not found by their timestamp")

    def _compare_aborted(self, right: RightEntries, location: Location, raw: list[tuple[Any, ...]]) -> None:
        segment = right.segment
        if not segment.is_final:
            raw = [entry for entry in raw if entry[3] < segment.end_offset]
        if self.knows_beginning and not self.log.has_gap(-1, segment.end_offset):
            super()._compare_aborted(right, location, raw)
            return
        # Compaction keeps entries of transactions of which no record is left, and first offsets of those that
        # lost their first records. A segment that it writes has no entry of a transaction without a batch.
        indexed = {(producer_id, last_offset) for _, producer_id, _, last_offset, _ in raw}
        for aborted in right.aborted:
            is_missing = (aborted.producer_id, aborted.last_offset) not in indexed
            if is_missing and self._has_batch(aborted):
                self.findings.problem(location, f"{aborted} is missing", MISFILTERED)
                return

    def _has_batch(self, aborted: LoggedAbort) -> bool:
        """Whether the log has a batch of the transaction, and not only a snapshot that has it open."""
        return aborted.first_offset >= self.log.start_offset or any(
            batch.header.producer_id == aborted.producer_id and not batch.header.is_control
            for batch in self.log.batches()
            if batch.header.base_offset < aborted.last_offset
        )


class KafkaSnapshots(SnapshotFiles):
    """The producer snapshots of a log of Kafka."""

    def _compare_producers(
        self, offset: int, producer_id: int, says: ModelProducer | None, right: ModelProducer | None
    ) -> None:
        # A broker forgets a producer that is silent for long by its clock, which is not in the log.
        if says is not None or right is None or right.first_offset != NO_OFFSET:
            super()._compare_producers(offset, producer_id, says, right)


def _check_epochs(storage: StorageReader, log: ScannedLog, findings: Findings) -> None:
    """The file with the offset at which each leader epoch began; followers use it to find where they
    differ from the leader.
    """
    location = Location(f"{log.directory}/{EPOCHS_FILE}")
    data = storage.read_file(location.file)
    if data is None:
        return
    try:
        _version, _count, *lines = data.decode("ascii").splitlines()
        entries = sorted((int(start), int(epoch)) for epoch, start in (line.split(" ") for line in lines))
    except ValueError as problem:
        findings.problem(location, f"it is malformed: {problem}", REBUILT)
        return
    starts = [start for start, _ in entries]
    for batch in log.batches():
        at = bisect_right(starts, batch.header.base_offset) - 1
        if at >= 0 and entries[at][1] != batch.header.leader_epoch:
            what = (
                f"it says leader epoch {entries[at][1]} at offset {batch.header.base_offset}, but the "
                f"batch there has {batch.header.leader_epoch}"
            )
            findings.report(log.was_closed, location, what, MISLED_FOLLOWERS)
            return
