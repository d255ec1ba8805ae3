"""I12: whoever leads a partition next finds in its log all that was promised, and knows what its last leader
knew.

Rule: a log that was taken over is read again from the disk; what the policy promised must be in it, and all
of it must have been decided before.
"""

from __future__ import annotations

from typing import Any

import attrs

from fencepost.broker.contract import BecomeLeader
from fencepost.broker.host import Host, SyncPolicy
from fencepost.broker.node import Node
from fencepost.broker.partitions.partition import Producer
from fencepost.journal.snapshots import ProducerSnapshot
from fencepost.protocol.batches import BatchHeader, checksum_matches
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    NO_OFFSET,
    NO_SEQUENCE,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from fencepost.simulator.judges.anomalies import Looks
from fencepost.simulator.judges.partition_record import PartitionRecord
from fencepost.simulator.judges.step_rules import RECOVERY
from fencepost.simulator.judges.violation import Violation
from fencepost.simulator.world.journals import ClusterJournals

_COORDINATION = frozenset({TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC})


@attrs.define(eq=False)
class RecoveryRule:
    """`remembered` is what the last leader knew of a log that holds all that it decided; `powerless` are the
    logs whose leader lost its power.
    """

    marks: Looks
    policy: SyncPolicy
    journals: ClusterJournals
    remembered: dict[TopicPartition, tuple[Any, ...]] = attrs.Factory(dict[TopicPartition, tuple[Any, ...]])
    powerless: dict[TopicPartition, None] = attrs.Factory(dict[TopicPartition, None])

    def died(self, record: PartitionRecord, host: Host, *, power_is_lost: bool) -> None:
        """The leader of this log died; its process is still to be looked at."""
        if power_is_lost:
            self.powerless[record.key] = None
            self.remembered.pop(record.key, None)
        else:
            self._remember(record, host.node)

    def _remember(self, record: PartitionRecord, node: Node) -> None:
        log, journal = node.logs.get(record.key), self.journals.opened.get(record.key)
        if (
            log is not None
            and journal is not None
            and log.partition.leader_epoch == record.leader_epoch
            and log.partition.log_end_offset == journal.log_end_offset
        ):
            self.remembered[record.key] = _durable_knowledge(node, record.key)

    def take_over(
        self, record: PartitionRecord, order: BecomeLeader, node: Node, *, is_untouched: bool
    ) -> int:
        """A leader has just read this log. Returns how many of the decided batches are in it."""
        key = record.key
        self.marks[RECOVERY.name] += 1
        if record.host is not None:  # the last leader lives, and may not know yet
            self._remember(record, record.host.node)
        lost_power = self.powerless.pop(key, "no") is None
        found = self._read(key, checked=lost_power)
        known = record.headers[: len(found)]
        if found != known:
            at = next(
                (mine.base_offset for mine, his in zip(found, known, strict=False) if mine != his), None
            )
            raise Violation(RECOVERY.name, f"{key}: the log holds at {at} what its leaders never decided")
        end = found[-1].next_offset if found else 0
        promised = self._promised(record, lost_power=lost_power)
        if end < promised:
            raise Violation(
                RECOVERY.name, f"{key}: the log ends at {end}, and everything before {promised} was promised"
            )
        if order.snapshot is not None:
            _judge_snapshot(record, *order.snapshot)
        before = self.remembered.pop(key, None)
        if before is not None and is_untouched and before != _durable_knowledge(node, key):
            raise Violation(
                RECOVERY.name, f"{key}: leader {order.leader_epoch} does not know what the last one knew"
            )
        return len(found)

    def _read(self, key: TopicPartition, *, checked: bool) -> list[BatchHeader]:
        if key not in self.journals.disks:
            return []
        journal = self.journals.journal(key)
        found: list[BatchHeader] = []
        for header, batch in journal.batches(journal.log_start_offset):
            if checked and not checksum_matches(batch, 0, header):
                raise Violation(RECOVERY.name, f"{key}: the batch at {header.base_offset} is torn and counts")
            found.append(header)
        return found

    def _promised(self, record: PartitionRecord, *, lost_power: bool) -> int:
        """Everything before this offset must be there."""
        if not lost_power or self.policy is SyncPolicy.ALL:
            return record.high_watermark
        if self.policy is SyncPolicy.NONE:
            return 0
        all_of_it = record.key.topic in _COORDINATION
        for header in reversed(record.headers):
            if header.next_offset <= record.high_watermark and (all_of_it or header.is_transactional):
                return header.next_offset
        return 0


def _judge_snapshot(record: PartitionRecord, offset: int, entries: tuple[ProducerSnapshot, ...]) -> None:
    """What a new leader starts from is what the log said up to there."""
    log = record.as_of(offset)
    said = {
        entry.producer_id: (entry.producer_epoch, entry.first_offset, entry.last_sequence)
        for entry in entries
    }
    for producer_id, epoch in log.epochs.items():
        first = log.current_txn_first_offset.get(producer_id, NO_OFFSET)
        expected = (epoch, first, log.sequences.get((producer_id, epoch), NO_SEQUENCE))
        found = said.get(producer_id)
        if found != expected:
            raise Violation(
                RECOVERY.name,
                f"{record.key}: the snapshot at {offset} says of producer {producer_id} {found}, the log "
                f"{expected} (epoch, first open offset, last sequence)",
            )


def _durable_knowledge(node: Node, key: TopicPartition) -> tuple[Any, ...]:
    """What a log determines, less what no snapshot tells of: of each producer the last batch survives, and
    its time is that of whatever the producer wrote last.
    """
    (where, log_start, log_end, producers, opened), above = node.state_of(key)
    known = tuple((number, found._replace(batches=()), _last_batch(found)) for number, found in producers)
    return (where, log_start, log_end, known, opened, above)


def _last_batch(producer: Producer) -> tuple[int, ...]:
    return producer.batches[-1][:3] if producer.batches else ()
