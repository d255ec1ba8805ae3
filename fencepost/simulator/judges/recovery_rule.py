"""I12: a log that a new leader has read holds everything that was promised, and only what leaders decided.

Rule: the log is read again from the disk, and compared with the record of the batches that were decided.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import attrs

from fencepost.broker.contract import BecomeLeader
from fencepost.broker.host import Host
from fencepost.broker.node import Node
from fencepost.broker.partitions.partition import ProducerEntry
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.indexes import ProducerSnapshot
from fencepost.journal.storage import DamagedLog
from fencepost.protocol.batches import BatchHeader, checksum_matches
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from fencepost.simulator.judges import rules
from fencepost.simulator.judges.partition_rules import PartitionRecord
from fencepost.simulator.judges.rules import Exercised
from fencepost.simulator.world.journals import ClusterJournals

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
        is_metadata = key.topic == CLUSTER_METADATA_TOPIC  # its snapshots replace what is before them
        record.is_compacted = is_metadata or node.log_config(key.topic).is_compacted
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
        for header, batch in journal.segments.batches(journal.log_start_offset):
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
        misdirected, disk.misdirected = disk.misdirected, {}
        try:
            found = self._read(record.key, checked=False)
        except DamagedLog:
            end = self.journals.journal(record.key).log_end_offset
            return [header for header in record.headers if header.next_offset <= end]
        finally:
            disk.misdirected = misdirected
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


def _next_offset(header: BatchHeader) -> int:
    return header.next_offset


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
    return header.record_count <= last.record_count and _unchanged(header) == _unchanged(last)


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
    (by_producer,) = pending
    moved = {key.group_id for _, keys in by_producer for key, _ in keys}
    alive = moved.union(group_id for group_id, _ in committed)
    kept = tuple((name, record) for name, record in records if record is not None or name in alive)
    return (committed, pending, kept, *rest)


def _last_batch(producer: ProducerEntry) -> tuple[int, ...]:
    return producer.batches[-1][:3] if producer.batches else ()
