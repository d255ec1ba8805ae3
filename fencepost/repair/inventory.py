"""What is left of a data directory: every log, batch by batch around its damage, and what the logs prove."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from fencepost.check.scan import log_file, sizes_of
from fencepost.journal.data_directory import partitions_in
from fencepost.journal.manifest import MANIFEST_FILE, SyncedSegment, why_foreign, why_other_topic
from fencepost.journal.storage import StorageError, StorageReader, foreign_advice
from fencepost.log_model.metadata import ClusterModel
from fencepost.protocol.terms import (
    INT32_MAX,
    INTERNAL_TOPICS,
    METADATA_PARTITION,
    NO_TOPIC_ID,
    TopicPartition,
)
from fencepost.repair import metadata
from fencepost.repair.coordinator_records import CoordinatorRecords
from fencepost.repair.directory_files import check_directory_files, distrust_clean_mark, vanished_partitions
from fencepost.repair.expected_logs import ExpectedLog, belongs_to, expected_log
from fencepost.repair.outcomes import Evidence, model_of
from fencepost.repair.plan import DamageReport, LogPlan, Plan
from fencepost.repair.salvage import SalvagedLog, correct_epochs, is_compacted, last_epoch, salvage
from fencepost.repair.unlisted import are_own


class MisplacedDirectories(StorageError):
    """Directories of partitions hold the logs of others: a person has to say which name is right."""

    def __init__(self, location: str, problems: Sequence[str]) -> None:
        super().__init__(
            f"{location}: {'; '.join(problems)}. Nothing was changed. {foreign_advice(location)}"
        )


@attrs.define(eq=False)
class Inventory:
    """All logs of a data directory, and what their intact records say."""

    closed: Mapping[str, SyncedSegment]
    """The last segment of each log, as the mark of a clean stop describes it."""
    vanished: set[TopicPartition]
    """Those without a log that the catalogue or the mark of a clean stop lists."""
    logs: dict[TopicPartition, LogPlan] = attrs.Factory(dict[TopicPartition, LogPlan])
    cluster: ClusterModel = attrs.Factory(ClusterModel)
    coordinators: CoordinatorRecords = attrs.Factory(CoordinatorRecords)
    evidence: Evidence = attrs.Factory(Evidence)
    stale_ids: dict[str, TopicPartition] = attrs.Factory(dict[str, TopicPartition])
    """The transactional ids whose last state may be lost, and the partition of each."""

    @property
    def has_lost_metadata(self) -> bool:
        """Whether the metadata log has lost records, or all of them."""
        plan = self.logs.get(METADATA_PARTITION)
        return plan is None or not plan.log.end_offset or bool(plan.log.lost())

    def lost_topics(self) -> dict[str, list[TopicPartition]]:
        """The partitions, with a log or with one that vanished, that the metadata does not know."""
        found: dict[str, list[TopicPartition]] = {}
        for key in sorted({*self.logs, *self.vanished}):
            if key != METADATA_PARTITION and key not in self.cluster.leaders:
                found.setdefault(key.topic, []).append(key)
        return found

    def newest_epoch(self, partition: TopicPartition) -> int:
        """No batch of a partition has a leader epoch above this one."""
        closed, known = self.closed.get(str(partition)), self.cluster.leaders.get(partition)
        newest = INT32_MAX if closed is None else closed.leader_epoch
        if partition != METADATA_PARTITION and known is not None and not self.has_lost_metadata:
            newest = min(newest, known.leader_epoch)
        return newest

    def learn_histories(self) -> None:
        """Learn what the transaction log proves, and which ids it may have lost the last state of."""
        self.stale_ids = self.coordinators.stale_ids(self.logs)
        self.evidence.learn_histories(self.coordinators.histories, set(self.stale_ids))


def take_inventory(storage: StorageReader, plan: Plan) -> Inventory:
    """Read all of a data directory, and report damage next to the logs. NotADataDirectory when it is none,
    MisplacedDirectories when logs are under the names of others.
    """
    present = partitions_in(storage)
    _refuse_misplaced(storage, present)
    closed = check_directory_files(storage, plan)
    inventory = Inventory(closed, vanished_partitions(storage, closed))
    reader = _LogReader(storage, plan, inventory)
    for partition in sorted(present, key=lambda each: (each != METADATA_PARTITION, each)):
        reader.read(partition)
    _refuse_other_topics(storage, inventory)
    return inventory


def _refuse_misplaced(storage: StorageReader, present: Iterable[TopicPartition]) -> None:
    """Refuse to repair logs under the names of others: their records would be taken for damage."""
    misplaced = [f"{name}: {why}" for name in map(str, present) if (why := why_foreign(storage, name))]
    if misplaced:
        raise MisplacedDirectories(storage.location, misplaced)


def _refuse_other_topics(storage: StorageReader, inventory: Inventory) -> None:
    """Refuse to repair logs of other topics: their records would become records of this one."""
    problems: list[str] = []
    of_topic: dict[str, tuple[bytes, str]] = {}
    named = {key: plan.topic_id for key, plan in inventory.logs.items() if plan.topic_id != NO_TOPIC_ID}
    for key, found in sorted(named.items()):
        leadership = inventory.cluster.leaders.get(key)
        # Of a topic that the metadata has lost, the manifests agree; if not, any of them may be wrong.
        name = "the topic of this name"
        said = (found, f"that of {key}") if leadership is None else (leadership.topic_id, name)
        known, source = of_topic.setdefault(key.topic, said)
        if found != known:
            problems.append(f"{key}: {why_other_topic(found, known, source)}")
    if problems:
        raise MisplacedDirectories(storage.location, problems)


@attrs.frozen(eq=False)
class _LogReader:
    """Reads the logs into an inventory, the metadata log first."""

    storage: StorageReader
    plan: Plan
    inventory: Inventory

    def read(self, partition: TopicPartition) -> None:
        inventory = self.inventory
        known = inventory.cluster.leaders.get(partition)
        known_id = NO_TOPIC_ID if known is None else known.topic_id
        expected = self._expected(partition, known_id=known_id)
        log = self._salvaged(partition, expected)
        plan = inventory.logs[partition] = LogPlan(log, topic_id=expected.topic_id)
        unlisted = expected.bounds.unlisted(sizes_of(self.storage, str(partition)))
        if unlisted:
            expected = self._doubt_manifest(plan, expected, unlisted)
            log = plan.log
        if partition == METADATA_PARTITION:
            inventory.cluster = metadata.follow(self.storage, log)
        if partition.topic in INTERNAL_TOPICS:
            inventory.coordinators.read(self.storage, log)
        self._check_end(log)
        plan.start_offset = expected.bounds.start
        if expected.bad_log_start is not None:
            self.plan.rewrite_log_start(plan, expected.bad_log_start)
        inventory.evidence.learn_markers(log)
        plan.model, plan.last_epoch, plan.is_compacted = model_of(log), last_epoch(log), is_compacted(log)
        if not log.is_altered and log.torn is None:
            log.forget_batches()  # a directory may hold more than memory does

    def _expected(
        self, partition: TopicPartition, *, known_id: bytes, believes_manifest: bool = True
    ) -> ExpectedLog:
        closed = self.inventory.closed.get(str(partition))
        return expected_log(
            self.storage, partition, closed, known_id=known_id, believes_manifest=believes_manifest
        )

    def _salvaged(self, partition: TopicPartition, expected: ExpectedLog) -> SalvagedLog:
        belongs = belongs_to(partition, self.inventory.cluster)
        log = salvage(self.storage, partition, expected.bounds, belongs)
        correct_epochs(self.storage, log, self.inventory.newest_epoch(partition))
        return log

    def _doubt_manifest(self, plan: LogPlan, believed: ExpectedLog, unlisted: list[int]) -> ExpectedLog:
        """Either the last segments are not of this log, or its manifest is not. Read the log without the
        manifest, and return what the other small files say, if the segments were written here.
        """
        partition = plan.log.partition
        doubting = self._expected(partition, known_id=plan.topic_id, believes_manifest=False)
        log = self._salvaged(partition, doubting)
        if not are_own(self.storage, log, unlisted):
            return believed
        plan.log, plan.believes_manifest, file = log, False, f"{partition}/{MANIFEST_FILE}"
        plan.derived.add(file)
        first = log_file(str(partition), unlisted[0])
        because = f"it does not list {first}, which continues the log: it is older than the log, or of a copy"
        saved = "it is set aside, and all records are kept"
        self.plan.report_derived(file, because, stake="nothing", saved=saved)
        return doubting

    def _check_end(self, log: SalvagedLog) -> None:
        """Compare the end of a log with the mark of a clean stop."""
        closed = self.inventory.closed.get(str(log.partition))
        if closed is not None and log.end_offset > closed.end_offset:
            # The batches follow each other: the log is a newer copy than the mark.
            because = f"it says that {log.partition} ends at {closed.end_offset}, and not at {log.end_offset}"
            distrust_clean_mark(self.plan, because, saved="it is set aside, and all records are kept")
        if log.torn is not None and closed is not None:
            log.segments[-1].is_altered = True
            self.plan.damages.append(
                DamageReport(
                    log.torn.file,
                    "bytes after the end",
                    "the log was closed cleanly before these bytes",
                    stake="nothing",
                    saved="they are cut off",
                    span=(log.torn.first_byte, log.torn.end_byte),
                )
            )
