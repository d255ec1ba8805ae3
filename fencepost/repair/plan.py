"""What a repair will do, from reading alone: the damage, what is at stake, and what can be saved.

Rule: nothing is written here. The same plan is the report of a dry run and the orders of `perform`.
"""

# Theory of operation
#
#     witnesses     what the small files promise: where a log starts and how far it went (witnesses.py)
#     salvage       every log, batch by batch, around its damage
#     evidence      transaction log and markers of all partitions: how transactions ended
#     settle        markers in the place of lost ones
#     check         `fencepost check` says which derived files differ from their log
#
# Order of `perform`: data first, then __consumer_offsets, __transaction_state and __cluster_metadata. An
# interrupted repair can be run again: it finds the evidence that its remaining steps need.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from fencepost.check.directory import check_logs, vanished_logs
from fencepost.check.findings import FindingKind, Findings, Severity
from fencepost.check.index_files import INDEX_SUFFIXES
from fencepost.check.records import Internals
from fencepost.check.scan import ScannedBatch, log_file, offset_of, sizes_of
from fencepost.check.sealed_files import CHECKPOINT, CLEAN_FILE, LOG_START, MANIFEST
from fencepost.check.snapshot_files import SNAPSHOT_SUFFIX
from fencepost.journal.catalogue import CATALOGUE_FILE, damaged_lines, why_incomplete
from fencepost.journal.data_directory import (
    DEFAULT_CLUSTER_ID,
    META_FILE,
    META_VERSION,
    check_data_directory,
    partitions_in,
)
from fencepost.journal.indexes import CorruptIndex
from fencepost.journal.layouts import is_kafka
from fencepost.journal.manifest import (
    SyncedSegment,
    decode_clean_mark,
    encode_json,
    why_foreign,
    why_other_topic,
)
from fencepost.journal.storage import (
    NotADataDirectory,
    StorageError,
    StorageReader,
    foreign_advice,
    parse_directory_name,
)
from fencepost.log_model.metadata import ClusterModel
from fencepost.log_model.partitions import PartitionModel
from fencepost.log_model.transactions import decisions_of
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.metadata_log import ClusterRecord, cluster_batch
from fencepost.protocol.offsets_log import read_group_batch
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    INT32_MAX,
    INTERNAL_TOPICS,
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from fencepost.protocol.transaction_log import transaction_batch
from fencepost.repair import metadata
from fencepost.repair.outcomes import Evidence, Settled, marker_of, model_of, settle_lost, settle_open
from fencepost.repair.salvage import (
    IntactBatch,
    LossKind,
    LostRange,
    SalvagedLog,
    content_of,
    is_compacted,
    last_epoch,
    mend_epochs,
    salvage,
)
from fencepost.repair.unlisted import are_own
from fencepost.repair.witnesses import Witness, kind_of, witness_of

METADATA: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
_DERIVED: Final = (*INDEX_SUFFIXES, SNAPSHOT_SUFFIX, f"/{MANIFEST}", f"/{CHECKPOINT}")
_ORDER: Final = {CONSUMER_OFFSETS_TOPIC: 1, TRANSACTION_STATE_TOPIC: 2, CLUSTER_METADATA_TOPIC: 3}


@attrs.frozen(kw_only=True)
class DamagedPlace:
    """One damaged place: where, what, what is at stake, and what the repair saves."""

    file: str
    kind: str
    because: str
    offsets: tuple[int, int] | None = None
    """First and last lost offset."""
    bytes: tuple[int, int] | None = None
    """First damaged byte, and the one after the last."""
    at_stake: str
    saved: str


@attrs.define(eq=False)
class LogPlan:
    """What is done to one partition. `appended` are batches for its end, without offsets."""

    log: SalvagedLog
    is_new: bool = False
    """Whether it begins again, in the place of one that vanished."""
    model: PartitionModel = attrs.Factory(PartitionModel)
    last_epoch: int = NO_LEADER_EPOCH
    is_compacted: bool = False
    settled: list[Settled] = attrs.Factory(list[Settled])
    appended: list[bytearray] = attrs.Factory(list[bytearray])
    derived: set[str] = attrs.Factory(set[str])
    """Derived files that are set aside and rebuilt."""
    believes_manifest: bool = True
    """False if its manifest is not that of this log, and with it what it says of other files."""
    log_start: int | None = None
    """What to write as the log start offset, None if its file is right."""
    topic_id: bytes = NO_TOPIC_ID
    """In its manifest; NO_TOPIC_ID if unknown."""

    @property
    def is_needed(self) -> bool:
        is_changed = self.is_new or self.log.is_altered or self.log_start is not None
        return bool(is_changed or self.appended or self.derived)


class MisplacedDirectories(StorageError):
    """Directories of partitions hold the logs of others: a person has to say which name is right."""

    def __init__(self, location: str, problems: Sequence[str]) -> None:
        super().__init__(
            f"{location}: {'; '.join(problems)}. Nothing was changed. {foreign_advice(location)}"
        )


@attrs.define(eq=False)
class Plan:
    """What is done to a data directory."""

    location: str
    damages: list[DamagedPlace] = attrs.Factory(list[DamagedPlace])
    notes: list[str] = attrs.Factory(list[str])
    logs: list[LogPlan] = attrs.Factory(list[LogPlan])
    aside: list[str] = attrs.Factory(list[str])
    """Directories of topics that the metadata has lost."""
    adopted: set[str] = attrs.Factory(set[str])
    """Topics that are put back into the metadata."""
    files: dict[str, bytes | None] = attrs.Factory(dict[str, bytes | None])
    """Files of the data directory itself: their new content, or None to set them aside."""

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.logs or self.aside or self.files)


def make_plan(storage: StorageReader, *, adopt: frozenset[str] = frozenset()) -> Plan:
    """Read all of a data directory; NotADataDirectory when it is none, MisplacedDirectories when logs are
    under the names of others. `adopt` are topics that the metadata lost and that are put back into it.
    """
    return _Planner(storage, adopt, Plan(storage.location)).make()


def refuse_kafka(storage: StorageReader) -> None:
    """NotADataDirectory for a log directory of Apache Kafka. Both have `__cluster_metadata`, so it could be
    taken for a data directory that lost its META_FILE.
    """
    if is_kafka(storage):
        raise NotADataDirectory(
            f"{storage.location} is a log directory of Apache Kafka, whose broker recovers it at a start; "
            "nothing was changed. `fencepost check` finds what is wrong with it"
        )


@attrs.define(eq=False)
class _Planner:
    storage: StorageReader
    adopt: frozenset[str]
    plan: Plan
    logs: dict[TopicPartition, LogPlan] = attrs.Factory(dict[TopicPartition, LogPlan])
    closed: dict[str, SyncedSegment] = attrs.Factory(dict[str, SyncedSegment])
    starts: dict[TopicPartition, int] = attrs.Factory(dict[TopicPartition, int])
    vanished: set[TopicPartition] = attrs.Factory(set[TopicPartition])
    """Those without a log that the catalogue or the mark of a clean stop lists."""
    cluster: ClusterModel = attrs.Factory(ClusterModel)
    internals: Internals = attrs.Factory(lambda: Internals(Findings()))
    evidence: Evidence = attrs.Factory(Evidence)
    stale: dict[str, TopicPartition] = attrs.Factory(dict[str, TopicPartition])
    groups: dict[TopicPartition, set[str]] = attrs.Factory(dict[TopicPartition, set[str]])
    committed: dict[TopicPartition, int] = attrs.Factory(dict[TopicPartition, int])
    adopted: list[ClusterRecord] = attrs.Factory(list[ClusterRecord])

    def make(self) -> Plan:
        present = partitions_in(self.storage)
        self._refuse_misplaced(present)
        self._check_own_files()
        self._find_vanished()
        for partition in sorted(present, key=lambda each: (each != METADATA, each)):
            self._read(partition)
        self._refuse_other_topics()
        if self.logs and METADATA not in self.logs:
            self._miss(METADATA, 0)
        self._adopt()
        self._learn()
        self._check_missing()
        for log in self.logs.values():
            self._settle(log)
        self._check_derived()
        self._renew_coordinators()
        self._renew_metadata()
        self._cut_tails()
        self.plan.logs = [
            log
            for _, log in sorted(
                self.logs.items(), key=lambda entry: (_ORDER.get(entry[0].topic, 0), entry[0])
            )
            if log.is_needed
        ]
        return self.plan

    # --- reading ------------------------------------------------------------------------------------------

    def _refuse_misplaced(self, present: Iterable[TopicPartition]) -> None:
        """Refuse to repair logs under the names of others: their records would be taken for damage."""
        misplaced = [
            f"{name}: {why}" for name in map(str, present) if (why := why_foreign(self.storage, name))
        ]
        if misplaced:
            raise MisplacedDirectories(self.storage.location, misplaced)

    def _refuse_other_topics(self) -> None:
        """Refuse to repair logs of other topics: their records would become records of this one."""
        problems: list[str] = []
        of_topic: dict[str, tuple[bytes, str]] = {}
        named = {key: plan.topic_id for key, plan in self.logs.items() if plan.topic_id != NO_TOPIC_ID}
        for key, found in sorted(named.items()):
            leadership = self.cluster.leaders.get(key)
            # Of a topic that the metadata has lost, the manifests agree; if not, any of them may be wrong.
            name = "the topic of this name"
            said = (found, f"that of {key}") if leadership is None else (leadership.topic_id, name)
            known, source = of_topic.setdefault(key.topic, said)
            if found != known:
                problems.append(f"{key}: {why_other_topic(found, known, source)}")
        if problems:
            raise MisplacedDirectories(self.storage.location, problems)

    def _check_own_files(self) -> None:
        """The files next to the partitions."""
        refuse_kafka(self.storage)
        try:
            check_data_directory(self.storage)
        except NotADataDirectory as problem:
            if METADATA not in partitions_in(self.storage):
                raise
            content = encode_json({"format": META_VERSION, "cluster_id": DEFAULT_CLUSTER_ID}, place=META_FILE)
            self.plan.files[META_FILE] = content
            stake = "the cluster id; no records"
            saved = f"it is written again, with the cluster id {DEFAULT_CLUSTER_ID!r}"
            because = "it is missing" if self.storage.read_file(META_FILE) is None else str(problem)
            self._report(META_FILE, "damaged derived file", because, stake, saved)
        self._check_catalogue()
        try:
            mark = self.storage.read_file(CLEAN_FILE)
            if mark is not None:
                self.closed = decode_clean_mark(mark)
        except CorruptIndex as problem:
            self.plan.files[CLEAN_FILE] = None
            stake, saved = "nothing: the next start reads more", "it is set aside"
            self._report(CLEAN_FILE, "damaged derived file", str(problem), stake, saved)

    def _check_catalogue(self) -> None:
        """Without damaged lines, the next start lists the logs whose files it finds."""
        found = self.storage.read_file(CATALOGUE_FILE)
        because = why_incomplete(found)
        if not because or not partitions_in(self.storage):
            return
        lines = b"" if found is None else found
        damaged = damaged_lines(lines)
        kept = [line for number, line in enumerate(lines.split(b"\n"), 1) if number not in damaged]
        self.plan.files[CATALOGUE_FILE] = b"\n".join(kept)
        stake = "no records; but if a log that it listed is gone, too, that loss may not be noticed"
        saved = "the next start adds the logs whose files exist"
        self._report(CATALOGUE_FILE, "damaged derived file", because, stake, saved)

    def _find_vanished(self) -> None:
        """The next start refuses them as well: it takes the mark as a second catalogue."""
        closed = [name for name in self.closed if not sizes_of(self.storage, name)]
        parsed = map(parse_directory_name, {*vanished_logs(self.storage), *closed})
        self.vanished = {partition for partition in parsed if partition is not None}

    def _read(self, partition: TopicPartition) -> None:
        known = self.cluster.leaders.get(partition)
        known_id = NO_TOPIC_ID if known is None else known.topic_id
        witness = witness_of(self.storage, partition, self.closed.get(str(partition)), known_id=known_id)
        log = self._salvaged(partition, witness)
        plan = self.logs[partition] = LogPlan(log, topic_id=witness.topic_id)
        unlisted = witness.bounds.unlisted(sizes_of(self.storage, str(partition)))
        if unlisted:
            witness = self._doubt_manifest(plan, witness, unlisted)
            log = plan.log
        if partition == METADATA:
            self.cluster = metadata.follow(self.storage, log)
        if partition.topic in INTERNAL_TOPICS:
            self._look_into(log)
        self._look_at_end(log)
        self.starts[partition] = witness.bounds.start
        if witness.bad_log_start is not None:
            self._renew_log_start(partition, witness.bad_log_start)
        self.evidence.learn_markers(log)
        plan.model, plan.last_epoch, plan.is_compacted = model_of(log), last_epoch(log), is_compacted(log)
        if not log.is_altered and log.torn is None:
            log.forget_batches()  # a directory may hold more than memory does

    def _salvaged(self, partition: TopicPartition, witness: Witness) -> SalvagedLog:
        log = salvage(self.storage, partition, witness.bounds, kind_of(partition, self.cluster))
        mend_epochs(self.storage, log, self._newest_epoch(partition))
        return log

    def _doubt_manifest(self, plan: LogPlan, believed: Witness, unlisted: list[int]) -> Witness:
        """Either the last segments are not of this log, or its manifest is not. Read the log without the
        manifest, and return what the other small files say, if the segments were written here.
        """
        partition = plan.log.partition
        doubting = witness_of(
            self.storage,
            partition,
            self.closed.get(str(partition)),
            known_id=plan.topic_id,
            believes_manifest=False,
        )
        log = self._salvaged(partition, doubting)
        if not are_own(self.storage, log, unlisted):
            return believed
        plan.log, plan.believes_manifest, file = log, False, f"{partition}/{MANIFEST}"
        plan.derived.add(file)
        first = log_file(str(partition), unlisted[0])
        because = f"it does not list {first}, which continues the log: it is older than the log, or of a copy"
        saved = "it is set aside, and all records are kept"
        self._report(file, "damaged derived file", because, "nothing", saved)
        return doubting

    def _newest_epoch(self, partition: TopicPartition) -> int:
        """No batch of a partition has a leader epoch above this one."""
        closed, known = self.closed.get(str(partition)), self.cluster.leaders.get(partition)
        newest = INT32_MAX if closed is None else closed.leader_epoch
        if partition != METADATA and known is not None and not self._has_lost_metadata():
            newest = min(newest, known.leader_epoch)
        return newest

    def _look_at_end(self, log: SalvagedLog) -> None:
        closed = self.closed.get(str(log.partition))
        if closed is not None and log.end_offset > closed.end_offset:
            # The batches follow each other: the log is a newer copy than the mark.
            self.plan.files[CLEAN_FILE] = None
            because = f"it says that {log.partition} ends at {closed.end_offset}, and not at {log.end_offset}"
            stake, saved = "nothing: the next start reads more", "it is set aside, and all records are kept"
            self._report(CLEAN_FILE, "damaged derived file", because, stake, saved)
        if log.torn is not None and closed is not None:
            log.segments[-1].is_altered = True
            because = "the log was closed cleanly before these bytes"
            span = (log.torn.first_byte, log.torn.end_byte)
            self._report(
                log.torn.file, "bytes after the end", because, "nothing", "they are cut off", span=span
            )

    def _look_into(self, log: SalvagedLog) -> None:
        """Read the records of an internal topic."""
        contents = self.internals.contents(log.partition)
        groups = self.groups.setdefault(log.partition, set())
        for piece in log.pieces():
            if not isinstance(piece, IntactBatch) or piece.header.is_control:
                continue
            data = content_of(self.storage, piece)
            try:
                contents(piece.batch, data)
                if log.partition.topic == CONSUMER_OFFSETS_TOPIC:
                    self._learn_offsets(piece.batch, data, groups)
            except ProtocolViolation:  # it was written this way: `check` reports it
                continue

    def _learn_offsets(self, batch: ScannedBatch, data: bytes, groups: set[str]) -> None:
        found = read_group_batch(data, batch.header)
        groups.update(name for name, _ in found.groups)
        groups.update(key.group_id for key, _ in found.consumers)
        for key, record in found.offsets:
            groups.add(key.group_id)
            partition = TopicPartition(key.topic, key.partition)
            if record is None:  # even after the deletion of its topic
                self.committed.pop(partition, None)
            else:
                self.committed[partition] = max(record.offset, self.committed.get(partition, 0))

    def _learn(self) -> None:
        """What the transaction log proves, and the ids whose last state in it may be lost."""
        lost = {str(key): plan.log.lost() for key, plan in self.logs.items()}
        homes = {str(key): key for key in self.logs}
        for name, history in self.internals.histories.items():
            last = history[-1]
            directory = last.file.rpartition("/")[0]
            ranges = lost[directory]
            if ranges and last.record is not None and last.offset < ranges[-1].start:
                self.stale[name] = homes[directory]
        self.evidence.learn_histories(self.internals.histories, set(self.stale))

    # --- deciding -----------------------------------------------------------------------------------------

    def _check_missing(self) -> None:
        """Partitions whose log is gone: something says that they had one. Others never had a record."""
        decided = decisions_of(self.internals.histories)
        for partition, leadership in sorted(self.cluster.leaders.items()):
            if sizes_of(self.storage, str(partition)):
                continue
            since = self.cluster.topics[leadership.topic_id].created_ms
            decisions = [each for here in decided.get(partition, {}).values() for each in here]
            markers = sum(each.is_complete and each.decided_ms >= since for each in decisions)
            witness = witness_of(self.storage, partition, self.closed.get(str(partition)))
            end = max(markers, witness.bounds.start, witness.bounds.promised)
            if partition in self.vanished or end:
                # At least one offset, so that the log says that something is lost.
                self._miss(partition, max(self.committed.get(partition, 0), end, 1))

    def _miss(self, partition: TopicPartition, end: int) -> None:
        log = SalvagedLog(partition)
        because = "its files are gone"
        lost = LostRange(LossKind.MISSING_PARTITION, 0, end, str(partition), 0, 0, because)
        if end:
            log.lose(lost, to=None)
        else:
            stakes = (f"all records of {partition}", "the log begins again, empty")
            self._report(str(partition), lost.kind.value, because, *_STAKES.get(partition.topic, stakes))
        known = self.logs.get(partition)
        # The journal refuses the new log as well if its log start is damaged.
        self.logs[partition] = LogPlan(log, is_new=True, log_start=None if known is None else known.log_start)

    def _settle(self, plan: LogPlan) -> None:
        log = plan.log
        if log.lost():
            if log.partition.topic == CONSUMER_OFFSETS_TOPIC or log.partition.topic not in INTERNAL_TOPICS:
                plan.settled = settle_lost(log, self.evidence)
            plan.model = model_of(log)
        for lost in log.lost():
            self._report_lost(plan, lost)
        for text in log.mended:
            self._report(
                text, "damaged header", "the checksum does not cover it", "nothing", "it is corrected"
            )
        for file in log.replaced:
            self.plan.notes.append(
                f"{file}: a cleaned segment has taken its place, and the next start removes it"
            )
        for file, because in log.strays.items():
            stake = "its batches are in another file, or are lost"
            self._report(file, "misplaced segment", because, stake, "it is set aside")
        if log.torn is not None and not log.is_altered:
            self.plan.notes.append(
                f"{log.torn.file}: bytes {log.torn.first_byte} to {log.torn.end_byte - 1} are a torn tail, "
                "as a crash leaves it; the next start cuts it off"
            )

    def _cut_tails(self) -> None:
        """Cut torn tails off. A start would do so as well, but until then `check` has a note about them."""
        is_needed = any(plan.is_needed for plan in self.logs.values())
        for plan in self.logs.values():
            if is_needed and plan.log.torn is not None:
                plan.log.segments[-1].is_altered = True

    def _report_lost(self, plan: LogPlan, lost: LostRange) -> None:
        partition = plan.log.partition
        if lost.kind is LossKind.MISSING_PARTITION:
            stake = f"all records of {partition}: at least those at offsets {lost.start} to {lost.end - 1}"
            saved = f"its next record gets offset {lost.end}"
            self._report(
                lost.file, lost.kind.value, lost.because, *_STAKES.get(partition.topic, (stake, saved))
            )
            return
        span = (lost.first_byte, lost.end_byte) if lost.end_byte > lost.first_byte else None
        if lost.end == lost.start:
            self._report(lost.file, lost.kind.value, lost.because, "nothing", "all batches", span=span)
            return
        last = lost.end - 1
        stake, saved = _STAKES.get(partition.topic, ("", ""))
        if not stake:
            where = f"offset {last}" if lost.start == last else f"offsets {lost.start} to {last}"
            stake = f"the records at {where} of {partition}"
            saved = "all other records keep their offsets; no records are left at the offsets at stake"
        if partition.topic == CONSUMER_OFFSETS_TOPIC and self.groups.get(partition):
            stake += f": {', '.join(sorted(self.groups[partition]))}"
        names = sorted(name for name, key in self.stale.items() if key == partition)
        if names:
            stake += f": {', '.join(names)}"
        self.plan.damages.append(
            DamagedPlace(
                file=lost.file, kind=lost.kind.value, because=lost.because, offsets=(lost.start, last),
                bytes=span, at_stake=stake, saved=saved,
            )
        )  # fmt: skip

    def _report(
        self,
        file: str,
        kind: str,
        because: str,
        stake: str,
        saved: str,
        *,
        span: tuple[int, int] | None = None,
    ) -> None:
        self.plan.damages.append(
            DamagedPlace(file=file, kind=kind, because=because, bytes=span, at_stake=stake, saved=saved)
        )

    def _renew_log_start(self, partition: TopicPartition, because: str) -> None:
        start = self.logs[partition].log_start = self.starts[partition]
        stake = f"records of {partition} that were deleted may be readable again"
        saved = f"the log starts at offset {start}, as its manifest and its oldest file say"
        self._report(f"{partition}/{LOG_START}", "damaged derived file", because, stake, saved)

    def _check_derived(self) -> None:
        """Files that differ from a log that has no fault itself. StorageError if one cannot be read."""
        plans = {str(key): plan for key, plan in self.logs.items()}
        findings = check_logs(self.storage)
        if findings.unread:
            raise findings.unread[0]
        for finding in findings.found:
            directory, _, name = finding.file.partition("/")
            plan = plans.get(directory)
            if plan is None or finding.severity is not Severity.PROBLEM:
                continue
            if not plan.believes_manifest and (name == LOG_START or name.endswith(SNAPSHOT_SUFFIX)):
                continue  # it may only differ from the manifest
            if name == LOG_START and plan.log_start is None and not plan.log.is_altered:
                self._renew_log_start(plan.log.partition, finding.what)
            elif finding.file.endswith(_DERIVED) and finding.file not in plan.derived:
                plan.derived.add(finding.file)
                if not plan.log.is_altered:
                    stake, saved = finding.means, "it is rebuilt from the log"
                    if finding.kind is FindingKind.PRODUCERS_FORGOTTEN:
                        saved = "all records; a producer that wrote none of them is forgotten"
                    self._report(finding.file, "damaged derived file", finding.what, stake, saved)
        for plan in self.logs.values():
            self._check_snapshots(plan)

    def _check_snapshots(self, plan: LogPlan) -> None:
        """If a log is altered, only its snapshots before the first lost offset are true."""
        if not plan.log.is_altered:
            return
        lost = plan.log.lost()
        first = lost[0].start if lost else plan.log.end_offset
        for name in self.storage.files(str(plan.log.partition)):
            taken_at = offset_of(name, SNAPSHOT_SUFFIX)
            path = f"{plan.log.partition}/{name}"
            if (taken_at is None and path.endswith(_DERIVED)) or (taken_at is not None and taken_at > first):
                plan.derived.add(path)

    def _renew_coordinators(self) -> None:
        """End the transactions that no coordinator will end, and forget transactional ids whose last state
        may be lost: their producers initialise again, under new producer ids, which fences every older one.
        """
        cut = [plan for plan in self.logs.values() if plan.log.torn is not None and plan.log.is_altered]
        if not cut and not any(plan.log.lost() for plan in self.logs.values()):
            return
        for plan in self.logs.values():
            for settled in settle_open(plan.log, plan.model, self.evidence):
                plan.appended.append(marker_of(settled, plan.model))
                plan.settled.append(settled)
            for settled in plan.settled:
                self.plan.notes.append(_in_words(settled))
        for name, partition in sorted(self.stale.items()):
            plan = self.logs[partition]
            timestamp = max(0, plan.model.newest_timestamp)
            plan.appended.append(transaction_batch(name, None, timestamp=timestamp))
            self.plan.notes.append(
                f"transactional id {name!r}: its last state may be lost, so it is forgotten; its producers "
                "have to initialise again"
            )

    # --- metadata -----------------------------------------------------------------------------------------

    def _renew_metadata(self) -> None:
        plan = self.logs.get(METADATA)
        if plan is None:
            return
        records: list[ClusterRecord] = []
        if self._has_lost_metadata():
            epochs = {key: each.last_epoch for key, each in self.logs.items() if key != METADATA}
            states = [state for history in self.internals.histories.values() for state in history]
            named = metadata.producer_ids_of(state.record for state in states)
            wrote = [producer_id for each in self.logs.values() for producer_id in each.model.producers]
            records = metadata.raised(
                self.cluster, plan.log, leader_epochs=epochs, producer_id_max=max([named, *wrote])
            )
            for topic, partitions in self._lost_topics().items():
                self._put_aside(topic, partitions)
        # Without a time: a topic counts as created before each decision about it.
        if records or self.adopted:
            plan.appended.append(cluster_batch([*self.adopted, *records], timestamp=0))

    def _has_lost_metadata(self) -> bool:
        plan = self.logs.get(METADATA)
        return plan is None or not plan.log.end_offset or bool(plan.log.lost())

    def _adopt(self) -> None:
        """Put topics back into the metadata that it has lost."""
        for topic, partitions in self._lost_topics().items():
            is_needed = topic in INTERNAL_TOPICS and self._has_lost_metadata()
            plans = [self.logs[key] for key in partitions if key in self.logs]
            # Without any directory, they may all be waiting under the names that an earlier repair gave them.
            if (topic in self.adopt and plans) or is_needed:
                numbers = [key.partition for key in partitions]
                count = metadata.partition_count(topic, numbers, self._names(topic))
                compacted = any(plan.is_compacted for plan in plans)
                epoch = max((plan.last_epoch for plan in plans), default=NO_LEADER_EPOCH)
                named = [plan.topic_id for plan in plans if plan.topic_id != NO_TOPIC_ID]
                topic_id = named[0] if named else metadata.unused_topic_id(self.cluster, topic)
                self.adopted += metadata.adopted(
                    self.cluster, topic, topic_id, count, epoch, is_compacted=compacted
                )
                self.plan.adopted.add(topic)
                self.plan.notes.append(f"topic {topic}: restored in the metadata; partitions: {count}")

    def _lost_topics(self) -> dict[str, list[TopicPartition]]:
        """The partitions, with a log or with one that vanished, that the metadata does not know."""
        found: dict[str, list[TopicPartition]] = {}
        for key in sorted({*self.logs, *self.vanished}):
            if key != METADATA and key not in self.cluster.leaders:
                found.setdefault(key.topic, []).append(key)
        return found

    def _names(self, topic: str) -> dict[int, set[str]]:
        """The transactional ids or groups in each partition of a coordinator's topic."""
        if topic == CONSUMER_OFFSETS_TOPIC:
            return {key.partition: names for key, names in self.groups.items() if key.topic == topic}
        names: dict[int, set[str]] = {}
        for name, history in self.internals.histories.items():
            number = int(history[-1].file.rpartition("/")[0].rpartition("-")[2])
            names.setdefault(number, set()).add(name)
        return names

    def _put_aside(self, topic: str, partitions: list[TopicPartition]) -> None:
        for key in partitions:
            if key not in self.logs:
                because = "its files are gone, and the metadata no longer knows it"
                stake = f"all records of {key}"
                self._report(str(key), LossKind.MISSING_PARTITION.value, because, stake, "nothing")
                continue
            end = self.logs[key].log.end_offset
            self.plan.aside.append(str(key))
            self._report(
                str(key),
                "lost topic",
                "the metadata no longer knows it",
                f"the records at offsets up to {end - 1} of {key}",
                f"its files are set aside; to get the topic back, rename the directory to {key} and run "
                f"`fencepost repair {self.storage.location} --write --adopt {topic}`",
            )
            self.logs[key] = LogPlan(SalvagedLog(key))


# What is at stake in an internal topic, and what the repair does.
_STAKES: Final = {
    CLUSTER_METADATA_TOPIC: (
        "topics that were created or deleted there, leader epochs, and blocks of producer ids",
        "ids and epochs are skipped, so none is given out twice",
    ),
    TRANSACTION_STATE_TOPIC: (
        "states and decisions of transactional ids",
        "transactions without a known outcome are aborted; ids whose last state may be lost are forgotten",
    ),
    CONSUMER_OFFSETS_TOPIC: (
        "offsets that groups committed there: the groups continue at older offsets and repeat records",
        "all other offsets and groups",
    ),
}


def _in_words(settled: Settled) -> str:
    partition, producer_id, epoch, first_offset, result, is_proven, _, name = settled
    who = (
        f"producer {producer_id}, epoch {epoch}"
        if name is None
        else f"{name!r} (producer {producer_id}, epoch {epoch})"
    )
    what = f"{partition}: the marker of a transaction of {who}, open since offset {first_offset}, is lost"
    if is_proven:
        return f"{what}; the decision was {result.name}, so this marker is written again"
    return f"{what}, and its outcome may be lost with it; the transaction is aborted"
