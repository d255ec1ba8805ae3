"""One partition as its leader sees it: producers, open transactions, and the offsets that bound readers.

Rule: `judge` and the plans decide and change nothing; `apply` is the only way the log changes the state,
live and at recovery.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

import attrs
from sortedcontainers import SortedDict

from fencepost.journal.indexes import AbortedRange
from fencepost.journal.snapshots import ProducerSnapshot
from fencepost.protocol.batches import BatchHeader, Buffer, Marker, marker_of
from fencepost.protocol.states import Ignored, LastLogged, Note, Rank, Scope
from fencepost.protocol.terms import (
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    IsolationLevel,
    TopicPartition,
    TransactionResult,
    sequence_after,
)

# A producer has at most five requests in flight, so a repeated batch is one of the last five
# (ProducerStateEntry).
CACHED_BATCHES_MAX: Final = 5

READ_COMMITTED: Final = IsolationLevel.READ_COMMITTED

Guard = Annotated[int, Rank("guard", scoped=True)]
GUARD_BITS: Final = 32  # of a guard count the questions of one leadership; above them is its epoch


class CachedBatch(NamedTuple):
    """What is remembered of a producer's recent batch, so that its repetition is recognised."""

    last_sequence: int
    last_offset: int
    offset_delta: int

    @property
    def first_sequence(self) -> int:
        return sequence_after(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry(NamedTuple):
    """A producer as this partition knows it (ProducerStateEntry); `open_since` is its open transaction's
    first offset here.
    """

    producer_epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = -1
    last_timestamp: int = NO_TIMESTAMP
    current_txn_first_offset: int = NO_OFFSET
    batches: LastLogged[tuple[CachedBatch, ...]] = ()
    """A restart finds the last one in the log, and forgets those before it."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


UNKNOWN_PRODUCER: Final = ProducerEntry()


class Verification(NamedTuple):
    """The coordinator is being asked whether this producer may write here (KIP-890's
    VerificationStateEntry).
    """

    guard: Guard
    producer_epoch: int
    lowest_sequence: int
    starts_at_zero: bool
    """Whether the client's epoch is that of its transaction alone, so that its first sequence here is 0."""
    asked_ms: int


class UnreplicatedTxn(NamedTuple):
    """A transaction whose marker is in the log but not yet below the high watermark."""

    first_offset: int
    marker_offset: int


@attrs.define(eq=False)
class Partition:
    """State of one led partition. Everything but the high watermark, `undurable` and `verifying` comes from
    the log alone.
    """

    key: Scope[TopicPartition]
    leader_epoch: Note[int] = 0
    log_start_offset: int = 0
    log_start_batch: Ignored[int] = 0  # where the batch begins that holds the log start
    log_end_offset: int = 0
    high_watermark: Note[int] = 0
    producers: dict[int, ProducerEntry] = attrs.Factory(dict[int, ProducerEntry])
    open_transactions: SortedDict[int, int] = attrs.Factory(SortedDict[int, int])
    unreplicated_txns: Note[list[UnreplicatedTxn]] = attrs.Factory(list[UnreplicatedTxn])
    verifying: Note[dict[int, Verification]] = attrs.Factory(dict[int, Verification])
    guards_given: Ignored[int] = 0

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open, or decided but not yet durably so."""
        oldest = self.open_transactions.peekitem(0)[0] if self.open_transactions else None
        if not self.unreplicated_txns:
            return oldest
        decided = min(ended.first_offset for ended in self.unreplicated_txns)
        return decided if oldest is None else min(decided, oldest)

    @property
    def first_unstable_batch(self) -> int | None:
        """The same, or where the log's first batch begins if that is later: it may lie below the log start
        (UnifiedLog.maybeUpdateFirstUnstableOffset).
        """
        first = self.first_unstable_offset
        return first if first is None or first >= self.log_start_offset else self.log_start_batch

    @property
    def last_stable_offset(self) -> int:
        """Everything before it is decided and durable (UnifiedLog.fetchLastStableOffset)."""
        if not self.open_transactions and not self.unreplicated_txns:
            return self.high_watermark
        first = self.first_unstable_batch
        return self.high_watermark if first is None else min(first, self.high_watermark)

    def end_for(self, isolation_level: IsolationLevel) -> int:
        """The offset that a reader of this isolation level may not reach."""
        if isolation_level is READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether this very identity has a transaction open here; an older epoch's open one does not count
        (KIP-890 part 2).
        """
        producer = self.producers.get(producer_id, UNKNOWN_PRODUCER)
        return producer.current_txn_first_offset != NO_OFFSET and producer.producer_epoch == producer_epoch

    def issued(self, guard: int) -> bool:
        """Whether the question with this guard was asked under this leadership, not under an earlier one."""
        return guard >> GUARD_BITS == self.leader_epoch


# --- Changing state --------------------------------------------------------------------------------------


def start_verification(
    partition: Partition,
    producer_id: int,
    *,
    producer_epoch: int,
    sequence: int,
    starts_at_zero: bool,
    now: int,
) -> int:
    """Note: the coordinator is asked about this producer. Returns the guard that the append must show."""
    known = partition.verifying.get(producer_id)
    if known is not None and known.producer_epoch >= producer_epoch:
        lowest = known.lowest_sequence
        if known.producer_epoch == producer_epoch:
            lowest = min(lowest, sequence)
        partition.verifying[producer_id] = known._replace(lowest_sequence=lowest)
        return known.guard
    partition.guards_given += 1
    partition.verifying[producer_id] = Verification(
        partition.guards_given, producer_epoch, sequence, starts_at_zero, now
    )
    return partition.guards_given


def apply(partition: Partition, header: BatchHeader, batch: Buffer) -> AbortedRange | None:
    """The batch has entered the log. Returns the index entry when it is the marker of a non-empty aborted
    transaction.
    """
    assert header.base_offset >= partition.log_end_offset, (
        f"{partition.key}: a batch entered below the log end"
    )
    aborted = None
    if header.is_control:
        aborted = _apply_marker(partition, header, marker_of(batch, 0, header))
    elif header.producer_id != NO_PRODUCER_ID:
        _apply_data(partition, header)
    partition.log_end_offset = header.next_offset
    return aborted


def _apply_data(partition: Partition, header: BatchHeader) -> None:
    producer = partition.producers.get(header.producer_id, UNKNOWN_PRODUCER)
    cached = CachedBatch(header.last_sequence, header.last_offset, header.last_offset_delta)
    recent = producer.batches if producer.producer_epoch == header.producer_epoch else ()
    current_txn_first_offset = producer.current_txn_first_offset
    if header.is_transactional:
        partition.verifying.pop(header.producer_id, None)
        if current_txn_first_offset == NO_OFFSET:
            current_txn_first_offset = header.base_offset
            partition.open_transactions[current_txn_first_offset] = header.producer_id
    partition.producers[header.producer_id] = ProducerEntry(
        header.producer_epoch,
        producer.coordinator_epoch,
        header.max_timestamp,
        current_txn_first_offset,
        (*recent, cached)[-CACHED_BATCHES_MAX:],
    )


def _apply_marker(partition: Partition, header: BatchHeader, marker: Marker) -> AbortedRange | None:
    producer = partition.producers.get(header.producer_id, UNKNOWN_PRODUCER)
    recent = producer.batches if producer.producer_epoch == header.producer_epoch else ()
    partition.verifying.pop(header.producer_id, None)
    partition.producers[header.producer_id] = ProducerEntry(
        header.producer_epoch, marker.coordinator_epoch, header.max_timestamp, NO_OFFSET, recent
    )
    if producer.current_txn_first_offset == NO_OFFSET:
        return None  # an empty transaction leaves no trace in index or LSO (KAFKA-10702)
    del partition.open_transactions[producer.current_txn_first_offset]
    partition.unreplicated_txns.append(UnreplicatedTxn(producer.current_txn_first_offset, header.base_offset))
    if marker.result is TransactionResult.COMMIT:
        return None
    others = partition.open_transactions
    stable = others.peekitem(0)[0] if others else header.next_offset
    return AbortedRange(header.producer_id, producer.current_txn_first_offset, header.base_offset, stable)


def oldest_open_timestamp(partition: Partition) -> int:
    """When the producer of the oldest open transaction last wrote; NO_TIMESTAMP when none is open."""
    if not partition.open_transactions:
        return NO_TIMESTAMP
    return partition.producers[partition.open_transactions.peekitem(0)[1]].last_timestamp


def advance_high_watermark(partition: Partition, offset: int) -> None:
    """Note: the log is durable up to `offset`; transactions whose marker is below it become stable."""
    assert partition.high_watermark <= offset <= partition.log_end_offset, (
        f"{partition.key}: high watermark to {offset}"
    )
    partition.high_watermark = offset
    if partition.unreplicated_txns:
        partition.unreplicated_txns = [
            ended for ended in partition.unreplicated_txns if ended.marker_offset >= offset
        ]


def forget_expired(partition: Partition, *, before_ms: int) -> None:
    """Producers that wrote nothing since `before_ms`, by the timestamps of their batches, are unknown again;
    one with a transaction open never is (ProducerStateManager.removeExpiredProducers).
    """
    for producer_id, producer in list(partition.producers.items()):
        if producer.last_timestamp <= before_ms and producer.current_txn_first_offset == NO_OFFSET:
            del partition.producers[producer_id]
    for producer_id, entry in list(partition.verifying.items()):
        if entry.asked_ms <= before_ms:
            del partition.verifying[producer_id]


def move_log_start(partition: Partition, offset: int, *, batch_start: int) -> None:
    """The journal starts at `offset` now, inside the batch that begins at `batch_start`."""
    if offset > partition.log_start_offset:
        partition.log_start_offset, partition.log_start_batch = offset, batch_start


# --- Recovery --------------------------------------------------------------------------------------------


def snapshot(partition: Partition) -> list[ProducerSnapshot]:
    """The producers as Kafka's `.snapshot` holds them: only the last batch of each survives."""
    return [
        _snapshot_entry(producer_id, producer)
        for producer_id, producer in sorted(partition.producers.items())
    ]


def _snapshot_entry(producer_id: int, producer: ProducerEntry) -> ProducerSnapshot:
    last = producer.batches[-1] if producer.batches else CachedBatch(NO_SEQUENCE, NO_OFFSET, 0)
    return ProducerSnapshot(
        producer_id=producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=last.last_sequence,
        last_offset=last.last_offset,
        offset_delta=last.offset_delta,
        timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        first_offset=producer.current_txn_first_offset,
    )


def restore(partition: Partition, entries: Iterable[ProducerSnapshot], *, at_offset: int) -> None:
    """The state that a snapshot at this offset describes; batches from there on are then applied."""
    for entry in entries:
        cached = CachedBatch(entry.last_sequence, entry.last_offset, entry.offset_delta)
        partition.producers[entry.producer_id] = ProducerEntry(
            entry.producer_epoch,
            entry.coordinator_epoch,
            entry.timestamp,
            entry.first_offset,
            (cached,) if entry.last_offset != NO_OFFSET else (),
        )
        if entry.first_offset != NO_OFFSET:
            partition.open_transactions[entry.first_offset] = entry.producer_id
    partition.log_end_offset = at_offset


def keep_last_batches(partition: Partition) -> None:
    """A leader that comes back recovers its log, takes a snapshot at the end, and begins with what that
    tells (LogLoader, UnifiedLog.rebuildProducerState): of each producer the last batch is known.
    """
    for producer_id, producer in partition.producers.items():
        if len(producer.batches) > 1:
            partition.producers[producer_id] = producer._replace(batches=producer.batches[-1:])
