"""The white box's own record of each partition, and the rules that a partition alone can break.

The record is a log model (fencepost/log_model) fed with every batch that the partition's newest leader
decides, plus what the log alone does not say: how much of it is replicated, who leads it, and where leaders
changed.

    batches that the newest leader decided  ──▶ headers ──▶ model
    0                                               high_watermark          end_offset
    ├───────────────────────────────────────────────┼───────────────────────┤
    │ replicated: must survive, may be acknowledged │ may still get lost    │

I1 to I4 are judged when a batch enters or a bound moves, I11 when a Fetch is answered, I12 when a new leader
has read its log. A leader that was replaced may still decide; its batches never enter the record.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import attrs

from fencepost.broker.contract import BecomeLeader
from fencepost.broker.groups.state import Groups
from fencepost.broker.host import Host, SyncPolicy
from fencepost.broker.node import Node
from fencepost.broker.partitions.partition import Partition, ProducerEntry
from fencepost.journal.indexes import ProducerSnapshot
from fencepost.journal.storage import DamagedLog
from fencepost.log_model.offsets import OffsetsModel
from fencepost.log_model.partitions import LoggedAbort, LoggedMarker, PartitionModel
from fencepost.log_model.transactions import Identity
from fencepost.protocol.batches import LENGTH_PREFIX_SIZE, BatchHeader, Buffer, Marker, checksum_matches, walk
from fencepost.protocol.messages import FetchedPartition
from fencepost.protocol.offsets_log import OffsetKey, OffsetRecord
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    NO_COORDINATOR_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_TOPIC_ID,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    TransactionResult,
)
from fencepost.simulator.judges import rules
from fencepost.simulator.judges.rules import Exercised
from fencepost.simulator.world.journals import ClusterJournals

# --- the record ---------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class PartitionRecord:
    """What entered a log, as its newest leader (`host`, None when it has no leader) decided it; the tail may
    not be written yet.
    """

    key: TopicPartition
    exercised: Exercised
    host: Host | None = None
    leader_epoch: int = -1
    is_compacted: bool = False
    begun_at: int = 0  # where the log ended when this leader took it over
    taken_over_at: list[int] = attrs.Factory(list[int])  # the same of every leader but the first
    headers: list[BatchHeader] = attrs.Factory(list[BatchHeader])
    model: PartitionModel = attrs.Factory(PartitionModel)
    high_watermark: int = 0
    last_stable_offset: int = 0
    unreplicated_txns: list[LoggedMarker] = attrs.Factory(list[LoggedMarker])
    """Markers that ended a transaction and are not replicated yet: the transaction still counts as open."""

    @property
    def end_offset(self) -> int:
        """Where the next batch goes."""
        return self.model.end_offset

    def newest_epoch(self, producer_id: int) -> int:
        """The newest epoch of a producer that wrote here; NO_PRODUCER_EPOCH when none did."""
        known = self.model.producers.get(producer_id)
        return NO_PRODUCER_EPOCH if known is None else known.producer_epoch

    def coordinator_epoch(self, producer_id: int) -> int:
        """The coordinator's epoch in the producer's last marker here; NO_COORDINATOR_EPOCH without one."""
        known = self.model.producers.get(producer_id)
        return NO_COORDINATOR_EPOCH if known is None else known.coordinator_epoch

    # --- batches --------------------------------------------------------------------------------------------

    def judge_sequence(self, header: BatchHeader, *, starts_at_zero: bool) -> None:
        """I3, before a batch enters: it continues its producer's sequence in this epoch."""
        # Markers and committed offsets have none: their coordinators write them, and nobody retries a batch
        # of theirs.
        if header.base_sequence < 0:
            return
        self.exercised[rules.UNIQUE_SEQUENCE.name] += 1
        expected = self.model.expected_sequence(header.producer_id, header.producer_epoch)
        if expected is None:
            if not starts_at_zero:
                return  # since KIP-360 a producer that is unknown here may start at any sequence
            expected = 0
        if header.base_sequence != expected:
            raise rules.UNIQUE_SEQUENCE.broken(
                f"{self.key}: {_writer(header)} entered with sequence {header.base_sequence} where "
                f"{expected} was next"
            )

    def judge_after_marker(self, header: BatchHeader) -> None:
        """I4, before a batch enters: no marker of a newer epoch is here."""
        marker = self.model.last_marker(header.producer_id)
        if marker is not None and header.producer_epoch < marker.producer_epoch:
            raise rules.HANGING.broken(
                f"{self.key}: a batch of {_writer(header)} entered after the marker of epoch "
                f"{marker.producer_epoch} at offset {marker.offset}"
            )

    def enter(self, header: BatchHeader, marker: Marker | None) -> None:
        """The leader decided on a batch; `marker` is what it says if it is a control batch."""
        if header.base_offset != self.model.end_offset:
            raise rules.BOUNDS.broken(
                f"{self.key}: a batch entered at {header.base_offset}, the log ends at {self.end_offset}"
            )
        self.headers.append(header)
        logged = self.model.apply(header, marker)
        if logged is not None and logged.first_offset != NO_OFFSET:
            self.unreplicated_txns.append(logged)

    # --- bounds ---------------------------------------------------------------------------------------------

    def durable(self, offset: int) -> None:
        """The leader learned that the log is replicated up to `offset`."""
        if offset > self.model.end_offset:
            offset = self.model.end_offset
        if offset > self.high_watermark:
            self.high_watermark = offset
            # Strictly below the high watermark (ProducerStateManager.onHighWatermarkUpdated): a marker at it
            # is not replicated.
            if self.unreplicated_txns:
                self.unreplicated_txns = [ended for ended in self.unreplicated_txns if ended.offset >= offset]

    def judge_replaced(self, offset: int) -> None:
        """I15: a leader that was replaced learned that the log is replicated up to `offset`."""
        if offset > self.begun_at:
            raise rules.DURABLE_REPLIES.broken(
                f"{self.key}: a replaced leader treats its log as durable up to {offset}, but leader "
                f"{self.leader_epoch} found its end at {self.begun_at}"
            )

    def first_undecided(self) -> int:
        """Where the last stable offset must be."""
        stable = self.high_watermark
        if self.model.open:  # the first of them is the oldest: the model keeps the order of their offsets
            stable = min(stable, self.model.last_stable_offset)
        # A decided transaction counts until its marker is replicated, as for Kafka's firstUnstableOffset: a
        # marker that is lost would leave readers with records that are undecided again.
        for ended in self.unreplicated_txns:
            if ended.first_offset < stable:
                stable = ended.first_offset
        return stable

    def judge_bounds(self, state: Partition) -> None:
        """I2, and then I1, which says exactly where the LSO is, after a step that moved the partition of the
        newest leader.
        """
        self.exercised[rules.BOUNDS.name] += 1
        stable, high_watermark, end = state.last_stable_offset, state.high_watermark, state.log_end_offset
        if stable != self.last_stable_offset:
            self.exercised[rules.MONOTONE.name] += 1
            if stable < self.last_stable_offset:
                raise rules.MONOTONE.broken(
                    f"{self.key}: the LSO went back from {self.last_stable_offset} to {stable}"
                )
            self.last_stable_offset = stable
        # Retention may delete the beginning of an open transaction.
        undecided = max(self.first_undecided(), state.log_start_batch_offset)
        if (
            high_watermark != self.high_watermark
            or end != self.model.end_offset
            or stable != undecided
            or not state.log_start_offset <= stable <= high_watermark <= end
        ):
            raise rules.BOUNDS.broken(
                f"{self.key}: log start {state.log_start_offset}, LSO {stable}, high watermark "
                f"{high_watermark}, end {end}; by the log they are {undecided}, "
                f"{self.high_watermark}, {self.end_offset}"
            )

    # --- taking over ----------------------------------------------------------------------------------------

    def cut(self, count: int) -> None:
        """Only the first `count` batches are left."""
        self.headers = self.headers[:count]
        # All that is left counts as replicated for the leader that found it.
        self.model, self.unreplicated_txns = self._model_of(self.headers), []

    def as_of(self, offset: int) -> PartitionModel:
        """The model of the batches before an offset alone."""
        return self._model_of([header for header in self.headers if header.base_offset < offset])

    def _model_of(self, headers: list[BatchHeader]) -> PartitionModel:
        markers = {marker.offset: marker for marker in self.model.all_markers()}
        model = PartitionModel()
        for header in headers:
            model.apply(header, markers.get(header.base_offset))
        return model

    def batch_at(self, offset: int) -> BatchHeader:
        """The batch that holds this offset; LookupError when none does."""
        place = bisect_right(self.headers, offset, key=_base_offset) - 1
        if place < 0 or offset >= self.headers[place].next_offset:
            raise LookupError(f"{self.key} holds no offset {offset}")
        return self.headers[place]

    def taken_over(self, host: Host, leader_epoch: int, *, is_cut: bool) -> None:
        """A new leader begins; everything in the log counts as replicated for it."""
        if self.leader_epoch >= 0:
            self.taken_over_at.append(self.end_offset)
        self.host, self.leader_epoch, self.begun_at = host, leader_epoch, self.end_offset
        if is_cut:
            # What is lost may lie below the LSO, if the power was lost. Then it may go back (I2).
            self.high_watermark = self.last_stable_offset = 0
        self.durable(self.end_offset)


def judge_order(state: Partition) -> None:
    """I1 of any leader, including one that was replaced and does not know it yet."""
    stable = state.last_stable_offset
    if not state.log_start_offset <= stable <= state.high_watermark <= state.log_end_offset:
        raise rules.BOUNDS.broken(
            f"{state.key}: log start {state.log_start_offset}, LSO {stable}, high watermark "
            f"{state.high_watermark}, end {state.log_end_offset}"
        )


def _base_offset(header: BatchHeader) -> int:
    return header.base_offset


def _next_offset(header: BatchHeader) -> int:
    return header.next_offset


def _writer(header: BatchHeader) -> str:
    return f"producer {header.producer_id} epoch {header.producer_epoch}"


# --- I9: committed offsets ----------------------------------------------------------------------------------


class OffsetsBatch(NamedTuple):
    """One batch of `__consumer_offsets`: the offsets of one producer, or (with a result) its marker."""

    header: BatchHeader
    result: TransactionResult | None
    offsets: list[tuple[OffsetKey, OffsetRecord | None]]


@attrs.define(eq=False)
class OffsetsRecord:
    """One group coordinator's log: its batches, and the model of what they amount to."""

    exercised: Exercised
    batches: list[OffsetsBatch] = attrs.Factory(list[OffsetsBatch])
    model: OffsetsModel = attrs.Factory(OffsetsModel)

    def enter(self, batch: OffsetsBatch, groups: Groups) -> None:
        """The batch entered the log and the broker applied it: log and broker must agree on its offsets."""
        if batch.result is not None and batch.header.producer_id in self.model.pending:
            self.exercised[rules.OFFSETS_WITH_MARKER.name] += 1
        self.batches.append(batch)
        self._judge(self.model.apply(*batch), groups)

    def cut(self, end: int) -> None:
        """The log ends at `end`: batches after it never were there."""
        kept = [batch for batch in self.batches if batch.header.base_offset < end]
        if len(kept) < len(self.batches):
            self.batches, self.model = kept, OffsetsModel()
            for batch in kept:
                self.model.apply(*batch)

    def has(self, key: OffsetKey, offset: int, *, before: int) -> bool:
        """Whether a batch before log offset `before` commits this offset."""
        return any(
            written == key and record is not None and record.offset == offset
            for batch in reversed(self.batches)
            if batch.header.next_offset <= before
            for written, record in batch.offsets
        )

    def commits(self, key: OffsetKey, offset: int, identity: Identity) -> bool:
        """Whether a transaction of this identity wrote the offset, and the producer's next marker commits."""
        is_written = False
        for header, result, offsets in self.batches:
            if header.producer_id != identity[0]:
                continue
            if result is None:
                is_own = header.producer_epoch == identity[1]
                is_written |= is_own and any(
                    written == key and record is not None and record.offset == offset
                    for written, record in offsets
                )
            elif is_written:
                if result is TransactionResult.COMMIT:
                    return True
                is_written = False
        return False

    def judge_all(self, groups: Groups) -> None:
        """A coordinator that has just read its log knows every offset."""
        self._judge(self.model.committed, groups)

    def remembered(self, topic_ids: Mapping[str, bytes]) -> Iterator[str]:
        """I20: the committed offsets of topics that were deleted, in words."""
        records = {
            written_at: record
            for batch in self.batches
            for written_at, (_, record) in enumerate(batch.offsets, start=batch.header.base_offset)
        }
        for key, written in self.model.committed.items():
            record = records[written.written_at]
            assert record is not None, "a tombstone commits no offset"
            if record.topic_id not in (NO_TOPIC_ID, topic_ids.get(key.topic)):
                yield (
                    f"group {key.group_id} has offset {written.offset} of {key.topic}-{key.partition}, whose "
                    "topic was deleted"
                )

    def _judge(self, keys: Collection[OffsetKey], groups: Groups) -> None:
        for key in keys:
            offsets = groups.committed.get(key.group_id, {})
            known = offsets.get(TopicPartition(key.topic, key.partition))
            written = self.model.committed.get(key)
            expected = None if written is None else written.offset
            found = None if known is None else known.record.offset
            if found != expected:
                raise rules.OFFSETS_WITH_MARKER.broken(
                    f"group {key.group_id} stands at {found} in {key.topic}-{key.partition}; its log says "
                    f"{expected}"
                )


# --- I11: what a fetch holds --------------------------------------------------------------------------------

_START: Final = struct.Struct(">qi")  # base offset, batch length
_DELTA: Final = struct.Struct(">i")  # last offset delta
_DELTA_AT: Final = 23


def judge_fetched(part: FetchedPartition, record: PartitionRecord, exercised: Exercised) -> None:
    """One partition of a Fetch reply that holds records, judged as it leaves the node. The broker's index of
    aborted transactions is not asked.
    """
    # By the headers alone and without objects: this runs for each Fetch that brings records.
    begin, end = _span(part.records)
    if end > record.high_watermark:
        raise rules.DURABLE_REPLIES.broken(
            f"{record.key}: a fetch goes up to {end}, but the log is durable only up to "
            f"{record.high_watermark}"
        )
    # Null at read_uncommitted: only the high watermark bounds such a reader.
    if part.aborted is None:
        return
    exercised[rules.READ_COMMITTED.name] += 1
    if end > record.last_stable_offset:
        raise rules.READ_COMMITTED.broken(
            f"{record.key}: a fetch goes up to {end}, but the LSO is {record.last_stable_offset}"
        )
    named = {(found.producer_id, found.first_offset): None for found in part.aborted}
    aborted = record.model.aborted
    for producer_id, first, last, _ in reversed(aborted):
        # Those that overlap what was returned (TransactionIndex.collectAbortedTxns). The marker of one may
        # lie beyond it: the reader must skip its records even so.
        if last >= begin and first < end and (producer_id, first) not in named:
            if record.is_compacted and not _holds(part.records, producer_id, first, last):
                continue  # none of its records is left
            raise rules.READ_COMMITTED.broken(
                f"{record.key}: a fetch of {begin} to {end} does not name the aborted transaction of "
                f"producer {producer_id} from {first} to {last}"
            )
    if named:
        real = {(each.producer_id, each.first_offset): None for each in aborted}
        for producer_id, first in named:
            # An entry too many would make readers skip records that were committed.
            if (producer_id, first) not in real and not (
                record.is_compacted and _is_inside(aborted, producer_id, first)
            ):
                raise rules.READ_COMMITTED.broken(
                    f"{record.key}: a fetch says that producer {producer_id} aborted from {first} on"
                )


def _is_inside(aborted: list[LoggedAbort], producer_id: int, offset: int) -> bool:
    """Whether an offset is in an aborted transaction, whose first batches compaction may have removed."""
    return any(
        each.producer_id == producer_id and each.first_offset <= offset < each.last_offset for each in aborted
    )


def _holds(records: Buffer, producer_id: int, first: int, last: int) -> bool:
    """Whether records of a transaction are in this run of batches."""
    return any(
        header.producer_id == producer_id
        and header.is_transactional
        and not header.is_control
        and first <= header.base_offset < last
        and header.record_count
        for _, header in walk(records)
    )


def _span(records: Buffer) -> tuple[int, int]:
    """The first offset of a run of whole batches, and the offset after it."""
    begin, length = _START.unpack_from(records)
    at, base, size = 0, begin, len(records)
    while True:
        after = at + LENGTH_PREFIX_SIZE + length
        if after >= size:
            (delta,) = _DELTA.unpack_from(records, at + _DELTA_AT)
            return begin, base + delta + 1
        at = after
        base, length = _START.unpack_from(records, at)


# --- I12: recovery ------------------------------------------------------------------------------------------

# Under --sync commit these logs are synced batch by batch: they hold decisions.
_COORDINATION = frozenset({TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC})


@attrs.define(eq=False)
class RecoveryRule:
    """A log that was taken over is read again from the disk: all that the sync policy promised must be in it,
    and only what leaders decided.

    `remembered` is what the last leader knew of a log that holds all that it decided; `powerless` are the
    logs whose leader lost its power.
    """

    exercised: Exercised
    policy: SyncPolicy
    journals: ClusterJournals
    remembered: dict[TopicPartition, tuple[Any, ...]] = attrs.Factory(dict[TopicPartition, tuple[Any, ...]])
    powerless: set[TopicPartition] = attrs.Factory(set[TopicPartition])

    def died(self, record: PartitionRecord, host: Host, *, power_is_lost: bool) -> None:
        """The leader of this log died; its process can still be looked at."""
        if power_is_lost:
            self.powerless.add(record.key)
            self.remembered.pop(record.key, None)
        else:
            self._remember(record, host.node)

    def forget(self, key: TopicPartition) -> None:
        """The log was deleted."""
        self.remembered.pop(key, None)
        self.powerless.discard(key)

    def _remember(self, record: PartitionRecord, node: Node) -> None:
        log, journal = node.logs.get(record.key), self.journals.opened.get(record.key)
        if (
            log is not None
            and journal is not None
            and log.partition.leader_epoch == record.leader_epoch
            and log.partition.log_end_offset == journal.log_end_offset
            # A kill may come after the files moved the start, and before the leader learned of it.
            and log.partition.log_start_offset >= journal.log_start_offset
        ):
            self.remembered[record.key] = _durable_knowledge(node, record.key)

    def take_over(
        self, record: PartitionRecord, order: BecomeLeader, node: Node, *, is_untouched: bool
    ) -> int:
        """A leader has just read this log. Returns how many of the decided batches are in it."""
        key = record.key
        self.exercised[rules.RECOVERY.name] += 1
        if record.host is not None:  # the last leader lives, and may not know yet
            self._remember(record, record.host.node)
        lost_power = key in self.powerless
        self.powerless.discard(key)
        is_damaged = key in self.journals.damaged
        # Only a loss of power tears batches, so only then is each checksum worth its time.
        found = self._read_damaged(record) if is_damaged else self._read(key, checked=lost_power)
        log_start = self.journals.journal(key).log_start_offset if self.journals.has(key) else 0
        record.is_compacted = node.log_config(key.topic).is_compacted
        count = _accounted_for(found, record, log_start=log_start)
        end = found[-1].next_offset if found else log_start
        promised = self._promised(record, lost_power=lost_power)
        if end < promised:
            raise rules.RECOVERY.broken(
                f"{key}: the log ends at {end}, and everything before {promised} was promised"
            )
        if order.snapshot is not None:
            judge_snapshot(record, *order.snapshot)
        before = self.remembered.pop(key, None)
        if before is not None and is_untouched and before != _durable_knowledge(node, key):
            raise rules.RECOVERY.broken(
                f"{key}: leader {order.leader_epoch} does not know what the last one knew"
            )
        return count

    def _read(self, key: TopicPartition, *, checked: bool) -> list[BatchHeader]:
        if key not in self.journals.disks:
            return []
        journal = self.journals.journal(key)
        found: list[BatchHeader] = []
        for header, batch in journal.batches(journal.log_start_offset):
            if checked and not checksum_matches(batch, 0, header):
                raise rules.RECOVERY.broken(
                    f"{key}: the batch at {header.base_offset} is torn, but recovery kept it"
                )
            found.append(header)
        return found

    def _read_damaged(self, record: PartitionRecord) -> list[BatchHeader]:
        """Damage that the recovery did not read, since a checkpoint vouched for it, will be found by readers.
        The judge takes the damaged part as it was decided, and must not be the one to notice.
        """
        disk = self.journals.disks[record.key]
        # A misdirected read strikes the next reader, which must be the broker and not the judge.
        astray, disk.astray = disk.astray, {}
        try:
            found = self._read(record.key, checked=False)
        except DamagedLog:
            end = self.journals.journal(record.key).log_end_offset
            return [header for header in record.headers if header.next_offset <= end]
        finally:
            disk.astray = astray
        # The leader epoch is outside the checksum. Recovery compares it, and readers have no use for it.
        epochs = {header.base_offset: header.leader_epoch for header in record.headers}
        return [
            attrs.evolve(header, leader_epoch=epochs.get(header.base_offset, header.leader_epoch))
            for header in found
        ]

    def _promised(self, record: PartitionRecord, *, lost_power: bool) -> int:
        """Everything before this offset must be there."""
        # A process that dies leaves its writes with the operating system: only power takes them away.
        if not lost_power or self.policy is SyncPolicy.ALL:
            return record.high_watermark
        if self.policy is SyncPolicy.NONE:
            return 0
        all_of_it = record.key.topic in _COORDINATION
        for header in reversed(record.headers):
            if header.next_offset <= record.high_watermark and (all_of_it or header.is_transactional):
                return header.next_offset
        return 0


def _accounted_for(found: list[BatchHeader], record: PartitionRecord, *, log_start: int) -> int:
    """How many of the decided batches a log stands for. Those before its start were deleted. Compaction may
    have thinned a batch, and one empty batch may cover several.
    """
    decided = record.headers
    # The start may lie within a batch (DeleteRecords), which is then still there as a whole.
    at = bisect_right(decided, log_start, key=_next_offset)
    for header in found:
        first = at
        if header.is_covering and record.is_compacted:
            while at < len(decided) and decided[at].next_offset < header.next_offset:
                at += 1
        if at == len(decided) or not (
            header == decided[at]
            or (record.is_compacted and _stands_for(header, decided[first], decided[at]))
        ):
            raise rules.RECOVERY.broken(
                f"{record.key}: the log has an entry at {header.base_offset} that no leader decided"
            )
        at += 1
    return at


def _stands_for(header: BatchHeader, first: BatchHeader, last: BatchHeader) -> bool:
    if header.is_covering:
        return (header.base_offset, header.next_offset) == (first.base_offset, last.next_offset)
    return _is_thinned(header, last)


def _is_thinned(header: BatchHeader, whole: BatchHeader) -> bool:
    return header.record_count <= whole.record_count and _unchanged(header) == _unchanged(whole)


def _unchanged(header: BatchHeader) -> tuple[Any, ...]:
    """What compaction leaves of a batch as it was."""
    return (
        header.base_offset, header.next_offset, header.leader_epoch, header.magic, header.is_control,
        header.is_transactional, header.producer_id, header.producer_epoch, header.base_sequence,
        header.max_timestamp,
    )  # fmt: skip


def judge_snapshot(record: PartitionRecord, offset: int, entries: tuple[ProducerSnapshot, ...]) -> None:
    """The snapshot that a new leader starts from says what the log says up to there."""
    said = {
        entry.producer_id: (entry.producer_epoch, entry.first_offset, entry.last_sequence)
        for entry in entries
    }
    logged = {
        producer_id: (known.producer_epoch, known.first_offset, known.last_sequence)
        for producer_id, known in record.as_of(offset).producers.items()
    }
    # Of a producer that is in the snapshot alone, a batch that was lost would count as a duplicate.
    for producer_id in logged | said:
        found, expected = said.get(producer_id), logged.get(producer_id)
        if found != expected:
            raise rules.RECOVERY.broken(
                f"{record.key}: the snapshot at {offset} says of producer {producer_id} {found}, the log "
                f"{expected} (epoch, first open offset, last sequence)"
            )


def _durable_knowledge(node: Node, key: TopicPartition) -> tuple[Any, ...]:
    """What a log determines, less what no snapshot holds: of each producer only the last batch survives, and
    its time is that of whatever the producer wrote last.
    """
    (where, log_start, log_end, producers, opened), above = node.state_of(key)
    known = tuple((number, found._replace(batches=()), _last_batch(found)) for number, found in producers)
    if key.topic == CONSUMER_OFFSETS_TOPIC:
        above = _without_empty_groups(*above)
    return (where, log_start, log_end, known, opened, above)


def _without_empty_groups(committed: Any, pending: Any, records: Any, *rest: Any) -> tuple[Any, ...]:
    """What a coordinator knows of its groups, without those of which only aborted offsets told: compaction
    may remove these before the coordinator forgets the group, as in Kafka.
    """
    alive = {group_id for group_id, _ in committed} | {key.group_id for _, keys in pending for key, _ in keys}
    kept = tuple((name, record) for name, record in records if record is not None or name in alive)
    return (committed, pending, kept, *rest)


def _last_batch(producer: ProducerEntry) -> tuple[int, ...]:
    return producer.batches[-1][:3] if producer.batches else ()
