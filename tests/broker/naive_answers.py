"""What a partition leader should answer, said as plainly as the facts about Kafka say it, from logs alone.

Rule: as in `naive_log.py`. Beside the logs only the questions count that leaders asked coordinators since
they lead (KIP-890's verification entries): no log tells of them.
"""

from __future__ import annotations

from typing import Final

import attrs

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition, TransactionState
from fencepost.protocol.transaction_log import TransactionRecord
from tests.broker.naive_log import NONE, SEQUENCES, Forgotten, Known, Line
from tests.broker.requests import Identity

PREPARED: Final = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

Answer = int | ErrorCode
"""The offset where the batch lies, or why it is refused."""


@attrs.frozen(kw_only=True)
class Batch:
    """What a client sends to one partition; `adds` when its version has leaders add partitions."""

    who: Identity
    first: int
    count: int
    is_transactional: bool
    adds: bool

    @property
    def last(self) -> int:
        return (self.first + self.count - 1) % SEQUENCES


@attrs.frozen(kw_only=True)
class Question:
    """A leader asked the coordinator about a producer, when its log ended at `asked_at`."""

    epoch: int
    lowest: int
    from_zero: bool
    asked_ms: int
    asked_at: int

    def stands(self, log: list[Line], producer: int, scans: tuple[Forgotten, ...]) -> bool:
        """Until something transactional of the producer enters the log, or it is too old. The end of the
        transaction before this one, which has the same epoch since KIP-890, is no answer.
        """
        later = (line for line in log if line.offset >= self.asked_at and line.producer == producer)
        is_answered = any(
            line.is_transactional if line.is_data else not (self.from_zero and line.epoch == self.epoch)
            for line in later
        )
        return not is_answered and all(scan.before_ms < self.asked_ms for scan in scans)


def asked(known: Question | None, batch: Batch, *, now: int, end: int) -> Question:
    """The question that stands once this batch is asked about."""
    fresh = Question(
        epoch=batch.who.producer_epoch, lowest=batch.first, from_zero=batch.adds, asked_ms=now, asked_at=end
    )
    if known is None:
        return fresh
    if known.epoch < fresh.epoch:
        return attrs.evolve(known, epoch=fresh.epoch, lowest=fresh.lowest, asked_at=end)
    lowest = min(known.lowest, fresh.lowest) if known.epoch == fresh.epoch else known.lowest
    return attrs.evolve(known, lowest=lowest)


def needs_coordinator(known: Known, who: Identity) -> bool:
    """A transactional batch goes in unasked where this very identity has a transaction open."""
    return known.current_txn_first_offset == NONE or known.epoch != who.producer_epoch


def of_coordinator(
    record: TransactionRecord | None,
    who: Identity,
    key: TopicPartition,
    *,
    adds: bool,
    can_add: bool = True,
    is_busy: bool = False,
) -> ErrorCode:
    """May the producer's batch enter this partition? `can_add`: the cluster is new enough."""
    if record is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    is_ending = record.state in PREPARED
    if adds and (is_ending or is_busy):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if who.producer_id != record.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if who.producer_epoch != record.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if is_ending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if record.state is TransactionState.ONGOING and key in record.partitions:
        return ErrorCode.NONE
    if adds:
        return ErrorCode.NONE if can_add else ErrorCode.UNSUPPORTED_VERSION
    return ErrorCode.TRANSACTION_ABORTABLE


def of_produce(known: Known, question: Question | None, batch: Batch, *, end: int) -> Answer:
    """Of a batch that no coordinator refuses, or that needs none."""
    epoch = batch.who.producer_epoch
    if batch.who.producer_id == NONE:
        return end
    for cached in known.cached:
        if (cached.epoch, cached.first, cached.last) == (epoch, batch.first, batch.last):
            return cached.offset
    if epoch < known.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if question is not None and (
        (question.from_zero and not known.cached and batch.first != 0) or batch.first > question.lowest
    ):
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if known.epoch != NONE and batch.first != next_sequence(known, epoch):
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if not batch.is_transactional and known.current_txn_first_offset != NONE:
        return ErrorCode.INVALID_TXN_STATE
    return end


def next_sequence(known: Known, epoch: int) -> int:
    """Where a producer goes on that lost no batch."""
    return (known.last_sequence + 1) % SEQUENCES if known.cached and known.epoch == epoch else 0


def of_marker(known: Known, epoch: int, coordinator_epoch: int, *, version: int) -> ErrorCode:
    """Since version 2 a marker has the epoch after the batches'; with nothing open it may come twice."""
    if epoch < known.epoch or (
        version >= 2 and epoch == known.epoch and known.current_txn_first_offset != NONE
    ):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if coordinator_epoch < known.coordinator_epoch:
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED
    return ErrorCode.NONE


def of_delete(log_start: int, high_watermark: int, offset: int) -> Answer:
    """Where the log starts after DeleteRecords up to `offset`, -1 for all."""
    wanted = high_watermark if offset == NONE else offset
    return max(log_start, wanted) if 0 <= wanted <= high_watermark else ErrorCode.OFFSET_OUT_OF_RANGE
