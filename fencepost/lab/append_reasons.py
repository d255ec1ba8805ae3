"""Why a node appended what it appended: the rows that a batch or a marker passed, and the cell of the
coordinator's table that led from one state to the next.

Rule: each sentence is made from what the partition or the coordinator knew before the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from fencepost.broker.check_tables import in_force
from fencepost.broker.contract import Append, Input, Received, ReplyTo, Tick
from fencepost.broker.groups.tables import GroupInput
from fencepost.broker.kafka_fixes import ALL_FIXES
from fencepost.broker.node import Node
from fencepost.broker.partitions.checks import CHECKS, NO_GUARD, Duplicate, judge
from fencepost.broker.partitions.partition import UNKNOWN_PRODUCER, Partition, ProducerEntry, Verification
from fencepost.broker.transactions.init_producer_id import GRANT_SOURCE, Grant
from fencepost.broker.transactions.tables import (
    MOVE_SOURCE,
    NEWEST,
    CoordinatorInput,
    EndInput,
    client_version_of,
)
from fencepost.lab.node_state import LedLog
from fencepost.lab.rules import GROUP_SOURCE, Reason
from fencepost.protocol import messages as m
from fencepost.protocol.batches import BatchHeader, read_marker
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    NO_OFFSET,
    NO_PRODUCER_ID,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    TransactionState,
)
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions
from fencepost.simulator.judges.coverage import end_input

LOGS = Mapping[TopicPartition, LedLog]
"""The logs of a node as they were before its step."""


# --- appends ------------------------------------------------------------------------------------------------


@attrs.frozen
class AppendReasons:
    """Explains the appends of one step of a node. `replies` are the reasons of replies that the same decision
    made.
    """

    name: str
    node: Node
    arrived: Input
    before: LOGS
    replies: dict[ReplyTo, Reason] = attrs.Factory(dict[ReplyTo, Reason])
    written: dict[tuple[TopicPartition, int], ProducerEntry] = attrs.Factory(
        dict[tuple[TopicPartition, int], ProducerEntry]
    )
    """Producers as this step has left them so far."""

    def explain(self, append: Append) -> Reason | None:
        """The reason of one append; call this for each, in their order. None for one that is not shown."""
        where, header = append.partition, append.header
        if where.topic == CLUSTER_METADATA_TOPIC:
            return None
        if where.topic == TRANSACTION_STATE_TOPIC:
            return next(self._states(append), None)
        led = self.before.get(where)
        known = (UNKNOWN_PRODUCER, None)
        if led is not None:
            known = led.producers.get(header.producer_id, known)
        entry = self.written.get((where, header.producer_id), known[0])
        if where in self.node.logs and header.producer_id != NO_PRODUCER_ID:
            after = self.node.logs[where].partition.producers.get(header.producer_id)
            if after is not None:
                self.written[where, header.producer_id] = after
        if header.is_control:
            return self._marker(append, entry)
        if where.topic == CONSUMER_OFFSETS_TOPIC:
            return self._offsets(append)
        return self._data(append, entry, known[1])

    # --- partitions

    def _data(self, append: Append, entry: ProducerEntry, verified: Verification | None) -> Reason:
        where, header = append.partition, append.header
        if header.producer_id == NO_PRODUCER_ID:
            return Reason(
                text=f"{self.name} appends to {where} without a check of sequences, because the batch has no "
                "producer id: a retry would be appended again.",
                rule="has no producer id, so there is nothing to compare",
                table="CHECKS",
                source="KIP-98, UnifiedLog.analyzeAndValidateProducerState",
            )
        missing = self._missing_protection(append, entry, verified)
        if missing is not None:
            return missing
        rule, first = _sequence_rule(header, entry)
        parts, source = [first], "KIP-98, ProducerAppendInfo.append"
        if header.is_transactional:
            if entry.current_txn_first_offset != NO_OFFSET:
                parts.append(f"its transaction is open here since offset {entry.current_txn_first_offset}")
            elif verified is not None:
                parts.append(f"the coordinator admitted {where}, and no marker came since, so it opens here")
                source = "KIP-890, UnifiedLog.analyzeAndValidateProducerState"
            else:
                parts.append("it opens its transaction here, and no one asked the coordinator")
        return Reason(
            text=f"{self.name} appends to {where}, because the batch passes every check: {'; '.join(parts)}.",
            rule=rule,
            table="CHECKS",
            source=source,
        )

    def _missing_protection(
        self, append: Append, entry: ProducerEntry, verified: Verification | None
    ) -> Reason | None:
        """The reason, if only a protection or a fix that is switched off would have refused the batch; else
        None.
        """
        where, header = append.partition, append.header
        if self.node.settings.batch_checks == _ALL_CHECKS:
            return None
        known = Partition(where, producers={header.producer_id: entry})
        if verified is not None:
            known.verifying[header.producer_id] = verified
        guard = NO_GUARD if verified is None else verified.guard
        verdict = judge(known, header, verification_guard=guard, checks=_ALL_CHECKS)
        if verdict is None or not (self.node.settings.broken or self.node.settings.fixes.off):
            return None
        refused = verdict.refused if isinstance(verdict, Duplicate) else verdict
        row = next(check for check in CHECKS if check.name == refused.because)
        if row in self.node.settings.batch_checks:
            return None
        off = row.protection if row.protection in self.node.settings.broken else "a fix"
        return Reason(
            text=f"{self.name} appends to {where} although the batch {refused.because}, because {off} is "
            "switched off.",
            rule=refused.because,
            table="CHECKS",
            source=row.source,
        )

    def _marker(self, append: Append, entry: ProducerEntry) -> Reason:
        where, header = append.partition, append.header
        marker, since = read_marker(append.batch), entry.current_txn_first_offset
        does, rule = "no transaction of this producer is open here, so it decides nothing", "nothing is open"
        if since != NO_OFFSET:
            ends = "commits" if marker.result else "aborts"
            does = f"it {ends} the transaction that is open since offset {since}"
            rule = "ends the open transaction of its producer"
        raised = header.producer_epoch > entry.producer_epoch
        fences = f"; from now on older epochs than {header.producer_epoch} are fenced here" if raised else ""
        return Reason(
            text=f"{self.name} writes the {marker.result.name} marker to {where}, because it passes every "
            f"check: {does}{fences}.",
            rule=rule,
            table="MARKER_CHECKS",
            source="KIP-98, ProducerAppendInfo.appendEndTxnMarker",
        )

    def _offsets(self, append: Append) -> Reason:
        request = self.arrived.request if isinstance(self.arrived, Received) else None
        if append.header.is_transactional:
            return Reason(
                text=f"{self.name} writes the offsets as part of the transaction, because producer and "
                "member pass every check; they count when its marker commits them.",
                rule="has the producer's newest epoch, and comes from a member of the generation",
                table="OFFSET_CHECKS",
                source="KIP-98, KIP-447, OffsetMetadataManager.commitTransactionalOffset",
            )
        if isinstance(request, m.OffsetCommit):
            return Reason(
                text=f"{self.name} writes the offsets, because the committing member belongs to the group's "
                "generation; outside of a transaction they count at once.",
                rule=f"{GroupInput.COMMIT.value} is accepted",
                table="MEMBERSHIP",
                source="OffsetMetadataManager.commitOffset",
            )
        given = GROUP_INPUTS.get(type(request), "a deadline passed")
        return Reason(
            text=f"{self.name} writes the group's new state, because {given}.",
            rule=given,
            table="MEMBERSHIP",
            source=GROUP_SOURCE,
        )

    # --- the coordinator

    def _states(self, append: Append) -> Iterator[Reason]:
        led = self.before.get(append.partition)
        for name, record in read_transactions(append.batch, append.header):
            known = None if led is None else led.transactions.get(name)
            if record is None:
                yield _expired(self.name, name)
                continue
            reason = self._state(name, None if known is None else known[0], record)
            if isinstance(self.arrived, Received) and isinstance(self.arrived.request, m.InitProducerId):
                self._aborts_first(record, reason)
            yield reason

    def _aborts_first(self, record: TransactionRecord, reason: Reason) -> None:
        """A new owner that finds an open transaction gets an error, and retries."""
        if record.state.is_prepared and isinstance(self.arrived, Received):
            busy = attrs.evolve(reason, error=ErrorCode.CONCURRENT_TRANSACTIONS.name)
            self.replies[self.arrived.to] = busy

    def _state(self, name: str, before: TransactionRecord | None, after: TransactionRecord) -> Reason:
        arrived = self.arrived
        request = arrived.request if isinstance(arrived, Received) else None
        if isinstance(request, m.InitProducerId):
            return _granted(self.name, name, request, before, after)
        assert before is not None, "only InitProducerId begins an id"
        if isinstance(request, m.EndTxn) and isinstance(arrived, Received):
            return self._ended(name, request, arrived.version, before, after)
        if isinstance(arrived, Tick) and after.state.is_prepared:
            return _moved(
                before,
                CoordinatorInput.TIMEOUT,
                after,
                text=f"{self.name} aborts the transaction of {name}, because it is open for longer than its "
                f"timeout of {before.timeout_ms} ms; the epoch rises to {after.producer_epoch}, which fences "
                "its producer.",
                source="KIP-98, TransactionCoordinator.abortTimedOutTransactions",
            )
        if after.state.is_complete:
            return _moved(
                before,
                CoordinatorInput.MARKERS_WRITTEN,
                after,
                text=f"{self.name} completes the transaction of {name}, because every partition of it has "
                "written its marker.",
                source="KIP-98, TransactionCoordinator.completeTransaction",
            )
        new = [str(where) for where in after.partitions if where not in before.partitions]
        does = "this opens" if before.state is not TransactionState.ONGOING else "is open already"
        implicit = after.client_version == NEWEST.client_version
        return _moved(
            before,
            CoordinatorInput.ADD,
            after,
            text=f"{self.name} adds {', '.join(new)} to the transaction of {name}, which {does}, because its "
            f"producer is the owner {before.producer_id}/{before.producer_epoch}.",
            source="KIP-890, AddPartitionsToTxnManager" if implicit else MOVE_SOURCE,
        )

    def _ended(
        self, name: str, request: m.EndTxn, version: int, before: TransactionRecord, after: TransactionRecord
    ) -> Reason:
        generation = client_version_of(m.EndTxn, version).transaction_version
        given = end_input(before, request, generation) or EndInput[request.result.name]
        raised = after.producer_epoch > before.producer_epoch
        epoch = (
            f", and the epoch rises to {after.producer_epoch}"
            if raised
            else ", using an epoch that all transactions of this owner share"
        )
        return Reason(
            text=f"{self.name} decides that the transaction of {name} ends with {request.result.name}, "
            f"because it is {before.state.title} and its owner requested this{epoch}; once this record is "
            "durable, no crash can change the decision.",
            rule=f"{before.state.title} x {given.value} -> {after.state.title}",
            table=generation.end.name,
            source=generation.end.source,
        )


_ALL_CHECKS: Final = in_force(CHECKS, broken=frozenset(), fixes=ALL_FIXES)

GROUP_INPUTS: Final[dict[type, str]] = {
    m.JoinGroup: "a member joins",
    m.SyncGroup: "the leader's assignment makes the new generation stable",
    m.LeaveGroup: "a member leaves",
    m.ConsumerGroupHeartbeat: "a member's heartbeat changes its subscription or its assignment",
    m.DeleteGroups: "an administrator deletes the group",
    m.OffsetDelete: "an administrator deletes offsets",
}


def _sequence_rule(header: BatchHeader, entry: ProducerEntry) -> tuple[str, str]:
    """The rule that the sequences of a batch follow, and the same in numbers."""
    first, epoch, who = header.base_sequence, header.producer_epoch, f"producer {header.producer_id}"
    if entry is UNKNOWN_PRODUCER:
        rule = "is the first of a producer that the partition does not know"
        return rule, f"it is the first of {who} here, with sequence {first}"
    if epoch > entry.producer_epoch:
        rule = "begins a new epoch with sequence 0"
        return rule, f"epoch {epoch} of {who} is newer than {entry.producer_epoch}, and begins at 0"
    if not entry.batches:
        rule = "is the first of its epoch here"
        return rule, f"it is the first of {who} in epoch {epoch}, with sequence {first}"
    return "follows the producer's last one", f"sequence {first} of {who} follows {entry.last_sequence}"


def _moved(
    before: TransactionRecord, given: CoordinatorInput, after: TransactionRecord, *, text: str, source: str
) -> Reason:
    rule = f"{before.state.title} x {given.value} -> {after.state.title}"
    return Reason(text=text, rule=rule, table="MOVES", source=source)


def _expired(node: str, name: str) -> Reason:
    return Reason(
        text=f"{node} forgets {name}, because it was not used for transactional.id.expiration.ms.",
        rule="the id expired",
        source="TransactionStateManager.removeExpiredTransactionalIds",
    )


def _granted(
    node: str,
    name: str,
    request: m.InitProducerId,
    before: TransactionRecord | None,
    after: TransactionRecord,
) -> Reason:
    identity = f"{after.producer_id}/{after.producer_epoch}"
    if before is None:
        text = f"{node} makes {identity} the owner of {name}, because nobody owns it yet."
        rule = f"unknown id -> {Grant.FIRST_EPOCH.value}"
    elif after.state.is_prepared:
        text = (
            f"{node} aborts the open transaction of {name} before it admits a new owner, and fences "
            f"{before.producer_id}/{before.producer_epoch}; the caller has to retry."
        )
        rule = f"a transaction is open -> {Grant.ABORT_FIRST.value}"
    elif (after.producer_id, after.producer_epoch) == (before.producer_id, before.producer_epoch):
        text = f"{node} grants {identity} again, because the caller lost the reply that granted it."
        rule = f"the previous identity -> {Grant.SAME_AGAIN.value}"
    elif after.producer_id != before.producer_id:
        text = f"{node} makes {identity} the owner of {name}, because the epochs of its old id are used up."
        rule = f"the epochs are used up -> {Grant.FIRST_EPOCH.value}"
    else:
        asks = "a new instance begins" if request.producer_id == NO_PRODUCER_ID else "its owner recovers"
        text = (
            f"{node} grants {identity} for {name}, because {asks}; the new epoch fences every older instance."
        )
        rule = f"nothing is open -> {Grant.NEXT_EPOCH.value}"
    return Reason(text=text, rule=rule, table="GRANTS", source=GRANT_SOURCE)


# --- bounds -------------------------------------------------------------------------------------------------

_BOUND_SOURCE: Final = "KIP-98, UnifiedLog.fetchLastStableOffset"


def bound_reason(partition: Partition) -> Reason:
    """Why the last stable offset of a partition is where it is."""
    stable, high, where = partition.last_stable_offset, partition.high_watermark, partition.key
    oldest = next(iter(partition.open_transactions), None)
    decided = min((ended.first_offset for ended in partition.unreplicated_txns), default=None)
    if stable == high and (oldest is None or oldest >= high):
        return Reason(
            text=f"Readers of {where} at read_committed get up to offset {stable}, the high watermark, "
            "because no transaction before it is undecided.",
            rule="no open transaction: LSO = high watermark",
            source=_BOUND_SOURCE,
        )
    if oldest is not None and (decided is None or oldest <= decided):
        owner = partition.open_transactions[oldest]
        return Reason(
            text=f"Readers of {where} at read_committed stop at offset {stable}, because the transaction of "
            f"producer {owner} is open since offset {oldest}.",
            rule="LSO = first offset of the oldest undecided transaction",
            source=_BOUND_SOURCE,
        )
    return Reason(
        text=f"Readers of {where} at read_committed stop at offset {stable}, because the marker that ends "
        "the transaction there is not durable yet.",
        rule="LSO = first offset of a transaction whose marker is not durable",
        source="KIP-98, ProducerStateManager.firstUnstableOffset",
    )


def truncation_reason(node: str, partition: str, next_offset: int) -> Reason:
    """Why a log came back shorter."""
    return Reason(
        text=f"{node} reads the log of {partition} again and finds it whole up to offset {next_offset}, "
        "because what came after that was not synced when the power was lost, or is damaged.",
        rule="recovery keeps the longest valid prefix",
        source="UnifiedLog, LogLoader.recoverLog",
    )
