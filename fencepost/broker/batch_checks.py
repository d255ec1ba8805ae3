"""May a client's batch, or a coordinator's marker, enter a partition's log? The rules, in Kafka's order.

Rule: each check decides and changes nothing; which protection it is part of stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import attrs

from fencepost.broker.partition import UNKNOWN_PRODUCER, Partition, Producer
from fencepost.broker.words import Refused
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import NO_OFFSET, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, sequence_after

NO_GUARD: Final = 0
"""What a batch shows whose producer nobody asked the coordinator about."""

UNGUARDED: Final = -1
"""What a batch shows where nobody ever asks (transaction.partition.verification.enable off)."""


@attrs.frozen
class Duplicate:
    """The batch is already in the log: it is answered with the offset that it was given then."""

    base_offset: int


Verdict = Refused | Duplicate | None


def _check_duplicate(partition: Partition, header: BatchHeader, producer: Producer, guard: int) -> Verdict:
    """Comes before fencing: a batch of an older epoch is never a duplicate
    (ProducerStateEntry.findDuplicateBatch).
    """
    if producer.producer_epoch != header.producer_epoch:
        return None
    for cached in producer.batches:
        if cached.last_sequence == header.last_sequence and cached.first_sequence == header.base_sequence:
            return Duplicate(cached.first_offset)
    return None


def _check_epoch(partition: Partition, header: BatchHeader, producer: Producer, guard: int) -> Verdict:
    if header.producer_epoch < producer.producer_epoch:
        return Refused(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"epoch {header.producer_epoch} is older than {producer.producer_epoch} in {partition.key}",
        )
    return None


def _check_guard(partition: Partition, header: BatchHeader, producer: Producer, guard: int) -> Verdict:
    """A marker between the coordinator's yes and this append removed the guard: the batch belongs to the
    past (KAFKA-14884).
    """
    if guard == UNGUARDED or not header.is_transactional:
        return None
    if partition.is_open(header.producer_id, header.producer_epoch):
        return None
    entry = partition.verifying.get(header.producer_id)
    if entry is None or entry.guard != guard:
        return Refused(
            ErrorCode.INVALID_TXN_STATE, "the transaction ended while the coordinator was being asked"
        )
    return None


def _check_sequence(partition: Partition, header: BatchHeader, producer: Producer, guard: int) -> Verdict:
    """ProducerAppendInfo.checkSequence, with Produce 12's rule that a transaction's first batch here starts
    at 0.
    """
    entry = partition.verifying.get(header.producer_id)
    if entry is not None and entry.starts_at_zero and not producer.batches and header.base_sequence != 0:
        return _out_of_order(header, expected=0)
    if entry is not None and header.base_sequence > entry.lowest_sequence:
        return _out_of_order(header, expected=entry.lowest_sequence)
    if producer.producer_epoch == NO_PRODUCER_EPOCH or header.producer_epoch == NO_PRODUCER_EPOCH:
        return None  # since KIP-360 a producer that is unknown here may start anywhere
    fresh = header.producer_epoch != producer.producer_epoch or not producer.batches
    expected = 0 if fresh else sequence_after(producer.last_sequence, 1)
    return None if header.base_sequence == expected else _out_of_order(header, expected=expected)


def _out_of_order(header: BatchHeader, *, expected: int) -> Refused:
    return Refused(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence}, {expected} was expected",
    )


def _check_plain(partition: Partition, header: BatchHeader, producer: Producer, guard: int) -> Verdict:
    if not header.is_transactional and producer.open_since != NO_OFFSET:
        return Refused(
            ErrorCode.INVALID_TXN_STATE, "a plain batch inside the producer's own open transaction"
        )
    return None


class Check(NamedTuple):
    """One rule for a client's batch, and the protection that it is part of."""

    protection: str
    refuses: Callable[[Partition, BatchHeader, Producer, int], Verdict]


# In Kafka's order (UnifiedLog.analyzeAndValidateProducerState, ProducerAppendInfo.append): the first
# verdict counts.
CHECKS: Final = (
    Check("dedup", _check_duplicate),
    Check("fencing", _check_epoch),
    Check("fencing", _check_guard),
    Check("dedup", _check_sequence),
    Check("fencing", _check_plain),
)


def judge(
    partition: Partition, header: BatchHeader, *, guard: int, broken: frozenset[str] = frozenset()
) -> Verdict:
    """Whether a client's batch may be appended (None), was appended before, or is refused."""
    if header.producer_id == NO_PRODUCER_ID:
        return None
    producer = partition.producers.get(header.producer_id, UNKNOWN_PRODUCER)
    for check in CHECKS:
        if (
            check.protection not in broken
            and (verdict := check.refuses(partition, header, producer, guard)) is not None
        ):
            return verdict
    return None


def judge_marker(
    partition: Partition,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    transaction_version: int,
) -> Refused | None:
    """Whether a coordinator's marker may be appended (KIP-98; stricter since KIP-1228 and KAFKA-19999)."""
    producer = partition.producers.get(producer_id, UNKNOWN_PRODUCER)
    # Since version 2 a marker carries the next epoch. An equal one with nothing open is the repetition of
    # one that was written.
    stale = producer_epoch < producer.producer_epoch or (
        transaction_version >= 2
        and producer_epoch == producer.producer_epoch
        and producer.open_since != NO_OFFSET
    )
    if stale:
        return Refused(
            ErrorCode.INVALID_PRODUCER_EPOCH, f"{partition.key} has seen epoch {producer.producer_epoch}"
        )
    if coordinator_epoch < producer.coordinator_epoch:
        return Refused(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"coordinator epoch {producer.coordinator_epoch} was here",
        )
    return None
