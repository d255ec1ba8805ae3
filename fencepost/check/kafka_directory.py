"""`fencepost check` on a log directory of Apache Kafka: the same scan of every batch, by the rules of Kafka's
files.

    a gap in the offsets        compaction removed the batches; the cleaner fills nothing
    .index, .timeindex          each entry is true; which batches have one depends on the broker's settings
    .txnindex                   what a full scan makes; missing where no aborted transaction ended. After a
                                cleaning it may know transactions of which no record is left
    .snapshot                   what a full scan up to its offset says; producers may be missing that were
                                silent for producer.id.expiration.ms by the clock
    checkpoints of offsets      no offset is beyond the end of a log; which proves something only after a
                                clean stop, since they are written at other moments than logs
    leader-epoch-checkpoint     the leader epoch of every batch

What one log says of another is compared only after a clean stop: the files of a running broker, and a copy
of them, are of different moments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from fencepost.check.derived_files import (
    MISFILTERED,
    REBUILT,
    SEEKS,
    DerivedFiles,
    OffsetEntry,
    RightEntries,
    TimeEntry,
)
from fencepost.check.findings import Findings, Place
from fencepost.check.records import Internals, reading_order
from fencepost.check.scan import ScannedLog, follow_producers, scan_log
from fencepost.check.txn_consistency import check_histories, check_markers, check_open
from fencepost.journal.kafka_directory import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARKS_FILE,
    LOG_STARTS_FILE,
    MISPLACED,
    KafkaDirectory,
    misplacement,
    read_checkpoint,
    read_topic_id,
)
from fencepost.journal.storage import directory_name
from fencepost.log_model.partitions import LoggedAbort, ModelProducer
from fencepost.protocol.kraft_log import KraftCluster
from fencepost.protocol.terms import NO_OFFSET, TRANSACTION_STATE_TOPIC, TopicPartition

EPOCHS_FILE: Final = "leader-epoch-checkpoint"
RECOVERY_POINTS_FILE: Final = "recovery-point-offset-checkpoint"
MISLED_FOLLOWERS: Final = "a follower may cut its log at the wrong place when the leader changes"
LOST: Final = "the end of the log was lost, or the files are of different moments"
RUNNING: Final = (
    "the broker is running or was killed, or the files were copied while it ran: its logs "
    "may end at different "
    "moments, so transactions were not compared with markers"
)


def check_kafka_directory(directory: KafkaDirectory) -> Findings:
    """Everything that is wrong with a log directory of Apache Kafka."""
    findings = Findings()
    internals = Internals(findings, is_kafka=True)
    whole: list[ScannedLog] = []
    was_closed = directory.was_closed
    for partition in sorted(directory.partitions, key=reading_order):
        with findings.reading(directory_name(partition)):
            log = scan_log(
                directory.storage,
                partition,
                was_closed=was_closed,
                contents=internals.contents(partition),
                findings=findings,
                is_sparse=True,
            )
            if log.is_whole:
                KafkaFiles(directory.storage, log, None, findings).check()
                whole.append(log)
            for segment in log.segments:
                segment.batches.clear()  # the other checks need only the state after them
            _check_place(directory, partition, internals.cluster, findings)
    _check_checkpoints(directory, whole, findings)
    findings.transactional_ids = len(internals.histories)
    if not was_closed:
        findings.note(Place(CLEAN_SHUTDOWN_FILE), "this file is missing", RUNNING)
    elif _has_every_coordinator(directory, whole, internals):
        check_histories(internals.histories, whole, findings)
        check_markers(internals.histories, whole, set(), internals.cluster, findings)
        check_open(internals.histories, whole, findings)
    return findings


def _has_every_coordinator(
    directory: KafkaDirectory, logs: Sequence[ScannedLog], internals: Internals
) -> bool:
    """Whether every coordinator's log is here and whole: with several brokers, or several log directories,
    others have the rest of them.
    """
    wanted = {
        partition
        for partition in internals.cluster.partitions()
        if partition.topic == TRANSACTION_STATE_TOPIC
    }
    here = {log.partition for log in logs if log.partition.topic == TRANSACTION_STATE_TOPIC}
    # A partition of its own directory is made for each when the topic is created.
    return internals.cluster.is_known and wanted == here


def _check_place(
    directory: KafkaDirectory, partition: TopicPartition, cluster: KraftCluster, findings: Findings
) -> None:
    """The directory was not renamed, nor copied under another name. The metadata was read first."""
    known = cluster.topic_ids().get(partition.topic)
    if known is not None:
        found = read_topic_id(directory.storage, partition)
        what = misplacement(partition, found, known=known, numbers=cluster.topics[known].partitions)
        if what:
            place = Place(directory_name(partition))
            findings.tell(directory.was_closed, place, what, f"{MISPLACED}: Spark refuses to read it")


def _check_checkpoints(directory: KafkaDirectory, logs: Sequence[ScannedLog], findings: Findings) -> None:
    """No offset that the broker wrote down may be beyond the end of its log."""
    ends = {log.partition: log.end_offset for log in logs}
    for name in (HIGH_WATERMARKS_FILE, LOG_STARTS_FILE, RECOVERY_POINTS_FILE):
        for partition, offset in (read_checkpoint(directory.storage, name) or {}).items():
            end = ends.get(partition)
            if end is not None and offset > end:
                what = f"it says {offset} of {partition}, whose log ends at {end}"
                findings.tell(directory.was_closed, Place(name), what, LOST)


class KafkaFiles(DerivedFiles):
    """The files next to a log of Kafka that has no fault itself."""

    def check(self) -> None:
        self._check_strays()
        snapshots = self._snapshot_offsets()
        self._begin_with_snapshot()
        follow_producers(self.log, {*snapshots}, self.findings)
        self._check_indexes()
        for offset in snapshots:
            self._check_snapshot(offset)
        self._check_epochs()

    def _compare_offsets(self, right: RightEntries, place: Place, raw: list[tuple[Any, ...]]) -> None:
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
                self.findings.problem(place, what, SEEKS)
                return
            before = entry

    def _compare_times(self, right: RightEntries, place: Place, raw: list[tuple[Any, ...]]) -> None:
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
                self.findings.problem(place, what, SEEKS)
                return
            before = entry
        # An entry of timestamp 0 and relative offset 0 looks the same as preallocated space.
        if newest and newest[-1] > max(before.timestamp, 0) and segment.is_final:
            what = f"the newest timestamp is {newest[-1]}, but the index ends at {before.timestamp}"
            self.findings.problem(place, what, "records are not found by their timestamp")

    def _compare_aborted(self, right: RightEntries, place: Place, raw: list[tuple[Any, ...]]) -> None:
        log, segment = self.log, right.segment
        if not segment.is_final:
            raw = [entry for entry in raw if entry[3] < segment.end_offset]
        if self._knows_its_beginning and not log.has_gap(-1, segment.end_offset):
            super()._compare_aborted(right, place, raw)
            return
        # Compaction keeps entries of transactions of which no record is left, and first offsets of those that
        # lost their first records. A segment that it writes has no entry of a transaction without a batch.
        indexed = {(producer_id, last_offset) for _, producer_id, _, last_offset, _ in raw}
        for aborted in log.model.aborted:
            is_here = segment.base_offset <= aborted.last_offset < segment.end_offset
            is_missing = is_here and (aborted.producer_id, aborted.last_offset) not in indexed
            if is_missing and self._has_batch(aborted):
                self.findings.problem(place, f"{aborted} is missing", MISFILTERED)
                return

    def _has_batch(self, aborted: LoggedAbort) -> bool:
        """Whether the log has a batch of the transaction, and not only a snapshot that has it open."""
        return aborted.first_offset >= self.log.start_offset or any(
            batch.header.producer_id == aborted.producer_id and not batch.header.is_control
            for batch in self.log.batches()
            if batch.header.base_offset < aborted.last_offset
        )

    def _compare_producers(
        self, offset: int, producer_id: int, says: ModelProducer | None, right: ModelProducer | None
    ) -> None:
        # A broker forgets a producer that is silent for long by its clock, which the log does not tell.
        if says is not None or right is None or right.first_offset != NO_OFFSET:
            super()._compare_producers(offset, producer_id, says, right)

    def _check_epochs(self) -> None:
        """The file with the offset at which each leader epoch began; followers use it to find where they
        differ from the leader.
        """
        place = Place(f"{self.log.directory}/{EPOCHS_FILE}")
        data = self.storage.read_file(place.file)
        if data is None:
            return
        try:
            _version, _count, *lines = data.decode("ascii").splitlines()
            entries = sorted((int(start), int(epoch)) for epoch, start in (line.split(" ") for line in lines))
        except ValueError as problem:
            self.findings.problem(place, f"it is malformed: {problem}", REBUILT)
            return
        starts = [start for start, _ in entries]
        for batch in self.log.batches():
            at = bisect_right(starts, batch.header.base_offset) - 1
            if at >= 0 and entries[at][1] != batch.header.leader_epoch:
                what = (
                    f"it says leader epoch {entries[at][1]} at offset {batch.header.base_offset}, but the "
                    f"batch there has {batch.header.leader_epoch}"
                )
                self.findings.tell(self.log.was_closed, place, what, MISLED_FOLLOWERS)
                return
