"""One partition as its leader sees it: producers, open transactions, and the offsets that bound readers.

Rule: `apply` is the only way in which the log changes the state. Checks of batches are in checks.py.
"""

# Theory of operation (Kafka: ProducerStateManager, UnifiedLog)
#
# A partition remembers three things of its log, and nothing of the records themselves:
#
#     producers           producer id -> epoch, last batches, first offset of the open transaction
#     open_transactions   first offset -> producer id, sorted: the oldest bounds the LSO
#     unreplicated_txns   transactions with a marker in the log that is not durable yet
#
# A transaction opens in a partition with its first transactional batch and ends with a marker, a control
# batch of one record. No request opens it here; the coordinator merely knows that it may.
#
#     offset   0    1    2    3    4    5    6    7    8    9
#     log     [A1  A2] [B1] [p] [A3] [mA] [C1  C2] [B2] [mB]
#     A        |<------ open ------>|committed
#     B                 |<----------------- open --------->|aborted
#     C                                   |<--- open ---------->
#
#     log end 10, high watermark 9 (offset 9 is written but not durable):
#     open_transactions {6: C}     unreplicated_txns [B: 2..9]     LSO = min(6, 2, 9) = 2
#     Durable(10): high watermark 10, B is stable, LSO = min(6, 10) = 6
#
# The last stable offset (LSO) is the first offset of the oldest transaction that is undecided, or the high
# watermark if there is none. A reader at read_committed stops there: everything before it is decided, and the
# index of aborted transactions says which records to skip. If a marker counted before it is durable, a loss
# of power could take it away, and a reader would have seen records that end up aborted. This is why a decided
# transaction stays in `unreplicated_txns` until its marker is below the high watermark.
#
# Sequence numbers count a producer's records per partition and restart at 0 with every epoch. An idempotent
# producer sends at most five batches without waiting for replies, so a retry can only repeat one of the last
# five: these are cached, with their offsets, and a retry gets the offset of the first attempt. Fewer would
# turn retries into OUT_OF_ORDER_SEQUENCE_NUMBER; more would never be looked up. Kafka's snapshots contain
# only the last of them, so a restarted leader recognises only this one (`keep_last_batches`).
#
# Epochs fence: a batch or a marker with a newer epoch raises the producer's epoch and empties its cache. From
# then on, writes of an older epoch are refused (partitions/checks.py).
#
# `verifying` belongs to KIP-890 and is explained in partitions/produce.py. It, the high watermark and
# `unreplicated_txns` are notes: they are lost with the process, as the leader epoch is. Everything else
# follows from the log and its stored start.

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

import attrs

from fencepost.journal.indexes import AbortedRange, ProducerSnapshot, aborted_by
from fencepost.protocol.batches import BatchHeader, Buffer, Marker, marker_of
from fencepost.protocol.fork import Ignored, LastLogged, Note, Rank, Scope
from fencepost.protocol.terms import (
    NO_COORDINATOR_EPOCH,
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

# max.in.flight.requests.per.connection of an idempotent producer (ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
CACHED_BATCHES_MAX: Final = 5

READ_COMMITTED: Final = IsolationLevel.READ_COMMITTED

VerificationGuard = Annotated[int, Rank("guard", scoped=True)]
GUARD_BITS: Final = 32  # the lower bits count verifications, the upper ones are the leader epoch


class CachedBatch(NamedTuple):
    """A recent batch of a producer, kept to recognise its retry."""

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
    """A producer as this partition knows it (ProducerStateEntry)."""

    producer_epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    current_txn_first_offset: int = NO_OFFSET
    batches: LastLogged[tuple[CachedBatch, ...]] = ()
    """At most five, oldest first; only the last one survives a restart."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


UNKNOWN_PRODUCER: Final = ProducerEntry()


class Verification(NamedTuple):
    """A verification that the coordinator has not answered yet (KIP-890, VerificationStateEntry)."""

    guard: VerificationGuard
    producer_epoch: int
    lowest_sequence: int
    starts_at_zero: bool
    """Whether the epoch belongs to one transaction only, so that the first sequence here must be 0."""
    asked_ms: int


class UnreplicatedTxn(NamedTuple):
    """A transaction whose marker is in the log but not yet below the high watermark."""

    first_offset: int
    marker_offset: int


@attrs.define(eq=False)
class Partition:
    """State of one led partition. The fields that are not notes follow from the log alone."""

    key: Scope[TopicPartition]
    leader_epoch: Note[int] = 0
    log_start_offset: int = 0
    log_start_batch_offset: Ignored[int] = 0  # base offset of the batch that contains the log start
    log_end_offset: int = 0
    high_watermark: Note[int] = 0
    producers: dict[int, ProducerEntry] = attrs.Factory(dict[int, ProducerEntry])
    # First offset and producer id. Offsets only grow, so the oldest transaction is the first entry.
    open_transactions: dict[int, int] = attrs.Factory(dict[int, int])
    unreplicated_txns: Note[list[UnreplicatedTxn]] = attrs.Factory(list[UnreplicatedTxn])
    verifying: Note[dict[int, Verification]] = attrs.Factory(dict[int, Verification])
    guards_issued: Ignored[int] = 0

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open, or decided but not yet durably so."""
        oldest = next(iter(self.open_transactions), None)
        if not self.unreplicated_txns:
            return oldest
        # They are in the order of their markers, so any of them may have begun first.
        decided = min(ended.first_offset for ended in self.unreplicated_txns)
        return decided if oldest is None else min(decided, oldest)

    @property
    def first_unstable_in_log(self) -> int | None:
        """The first unstable offset, but not before the first batch of the log: DeleteRecords may have
        removed the beginning of an open transaction (UnifiedLog.maybeIncrementFirstUnstableOffset).
        """
        first = self.first_unstable_offset
        return first if first is None or first >= self.log_start_offset else self.log_start_batch_offset

    @property
    def last_stable_offset(self) -> int:
        """Every transaction before it is decided, durably so (UnifiedLog.lastStableOffset)."""
        if not self.open_transactions and not self.unreplicated_txns:
            return self.high_watermark
        first = self.first_unstable_in_log
        return self.high_watermark if first is None else min(first, self.high_watermark)

    def end_for(self, isolation_level: IsolationLevel) -> int:
        """The exclusive upper bound for readers of this isolation level."""
        if isolation_level is READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transaction of exactly this producer id and epoch is open here. One of an older epoch
        belongs to an earlier transaction, whose marker is still on its way (KIP-890 part 2).
        """
        producer = self.producers.get(producer_id, UNKNOWN_PRODUCER)
        return producer.current_txn_first_offset != NO_OFFSET and producer.producer_epoch == producer_epoch

    def issued(self, verification_guard: int) -> bool:
        """Whether this leadership issued the guard, not an earlier one."""
        return verification_guard >> GUARD_BITS == self.leader_epoch


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
    """Note that a verification begins. Returns the guard that the append must present."""
    known = partition.verifying.get(producer_id)
    # Batches in flight share one entry and its guard, so that one marker invalidates them all; the lowest
    # sequence keeps a later batch from being appended before an earlier one that is still being verified. A
    # newer epoch takes the entry over.
    if known is not None:
        if known.producer_epoch == producer_epoch:
            known = known._replace(lowest_sequence=min(known.lowest_sequence, sequence))
        elif known.producer_epoch < producer_epoch:
            known = known._replace(producer_epoch=producer_epoch, lowest_sequence=sequence)
        partition.verifying[producer_id] = known
        return known.guard
    # The first guard is 1: 0 is NO_GUARD.
    partition.guards_issued += 1
    partition.verifying[producer_id] = Verification(
        partition.guards_issued, producer_epoch, sequence, starts_at_zero, now
    )
    return partition.guards_issued


def apply(partition: Partition, header: BatchHeader, batch: Buffer) -> AbortedRange | None:
    """Apply a batch that the log now holds, live or at recovery. Returns the entry for the index of aborted
    transactions if the batch aborts a transaction that has records here.
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
    # Sequences restart with the epoch, so batches of the old epoch must not be taken for duplicates.
    recent = producer.batches if producer.producer_epoch == header.producer_epoch else ()
    current_txn_first_offset = producer.current_txn_first_offset
    if header.is_transactional:
        # Verified and appended: from now on the open transaction itself admits further batches.
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
    verification = partition.verifying.get(header.producer_id)
    if verification is not None and not _is_of_next_transaction(verification, header):
        # KIP-890's protection: a batch that was verified before the marker loses its guard here, and cannot
        # reopen the transaction that the marker has just ended (KAFKA-14884).
        del partition.verifying[header.producer_id]
    # The time of the marker counts as the producer's last. Otherwise its entry could expire soon after a long
    # transaction, and the epochs that fence with it (KAFKA-9144).
    # A marker for an unknown producer creates its entry, so the marker's epoch fences from now on.
    partition.producers[header.producer_id] = ProducerEntry(
        header.producer_epoch, marker.coordinator_epoch, header.max_timestamp, NO_OFFSET, recent
    )
    if producer.current_txn_first_offset == NO_OFFSET:
        return None  # an empty transaction changes neither the index nor the LSO (KAFKA-10702)
    del partition.open_transactions[producer.current_txn_first_offset]
    partition.unreplicated_txns.append(UnreplicatedTxn(producer.current_txn_first_offset, header.base_offset))
    if marker.result is TransactionResult.COMMIT:
        return None
    oldest_open = next(iter(partition.open_transactions), None)
    return aborted_by(header, producer.current_txn_first_offset, oldest_open=oldest_open)


def _is_of_next_transaction(verification: Verification, marker: BatchHeader) -> bool:
    """Whether the verification belongs to the transaction after the one that the marker ends: in version 2 an
    end raises the epoch, and the next transaction may begin before the marker arrives here.
    """
    return verification.starts_at_zero and verification.producer_epoch == marker.producer_epoch


def oldest_open_timestamp(partition: Partition) -> int:
    """The last timestamp of the producer of the oldest open transaction, or NO_TIMESTAMP."""
    for producer_id in partition.open_transactions.values():
        return partition.producers[producer_id].last_timestamp
    return NO_TIMESTAMP


def advance_high_watermark(partition: Partition, offset: int) -> None:
    """Note that the log is durable up to `offset`; transactions with a marker below it become stable."""
    assert partition.high_watermark <= offset <= partition.log_end_offset, (
        f"{partition.key}: high watermark to {offset}"
    )
    partition.high_watermark = offset
    if partition.unreplicated_txns:
        partition.unreplicated_txns = [
            ended for ended in partition.unreplicated_txns if ended.marker_offset >= offset
        ]


def forget_expired(partition: Partition, *, before_ms: int) -> None:
    """Forget producers whose last batch has a timestamp of at most `before_ms`, except those with an open
    transaction (ProducerStateManager.removeExpiredProducers).
    """
    for producer_id, producer in list(partition.producers.items()):
        if producer.last_timestamp <= before_ms and producer.current_txn_first_offset == NO_OFFSET:
            del partition.producers[producer_id]
    # A refused verification leaves its entry, and its transaction may never get a marker here.
    for producer_id, entry in list(partition.verifying.items()):
        if entry.asked_ms <= before_ms:
            del partition.verifying[producer_id]


def move_log_start(partition: Partition, offset: int, *, batch_start: int) -> None:
    """Set the log start to `offset`, which is in the batch that begins at `batch_start`."""
    if offset > partition.log_start_offset:
        partition.log_start_offset, partition.log_start_batch_offset = offset, batch_start


# --- Recovery --------------------------------------------------------------------------------------------


def snapshot(partition: Partition) -> list[ProducerSnapshot]:
    """The producers in the form of Kafka's `.snapshot` file, each with its last batch only."""
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
    """Restore the state that a snapshot at this offset describes. The caller then applies later batches."""
    opened: dict[int, int] = {}
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
            opened[entry.first_offset] = entry.producer_id
    partition.open_transactions.update(sorted(opened.items()))  # a snapshot is in the order of producer ids
    partition.log_end_offset = at_offset


def keep_last_batches(partition: Partition) -> None:
    """Forget all cached batches but the last one of each producer, as a restart of Kafka does.

    Kafka's leader takes a snapshot at the end of recovery and loads it (UnifiedLog.rebuildProducerState).
    """
    for producer_id, producer in partition.producers.items():
        if len(producer.batches) > 1:
            partition.producers[producer_id] = producer._replace(batches=producer.batches[-1:])
