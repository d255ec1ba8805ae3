"""May a client's batch, or a coordinator's marker, enter a partition's log? The rules, in Kafka's order.

Rule: a row is a condition and the error that it means; the first that holds counts. Which protection a row
is part of, and which correction of Kafka's brought it or took it away, stands in the row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import attrs

from fencepost.broker.contract import Refused
from fencepost.broker.kafka_fixes import KafkaFixes
from fencepost.broker.partitions.partition import UNKNOWN_PRODUCER, CachedBatch, Partition, Producer
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import TransactionMarker
from fencepost.protocol.terms import NO_OFFSET, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, sequence_after

NO_GUARD: Final = 0
"""What a batch shows whose producer nobody asked the coordinator about."""

UNGUARDED: Final = -1
"""What a batch shows where nobody ever asks (transaction.partition.verification.enable off)."""

FIRST_STRICT_VERSION: Final = 2
"""The `transaction.version` from which on a marker carries the next epoch (KIP-890)."""


@attrs.frozen
class Duplicate:
    """The batch is already in the log: it is answered with the offset that it was given then."""

    base_offset: int


Verdict = Refused | Duplicate | None


class Check(NamedTuple):
    """One rule for a client's batch: what `holds` of a batch that gets `error`."""

    name: str
    error: ErrorCode
    """NONE: the batch is in the log already."""
    holds: Callable[[Partition, BatchHeader, Producer, int], bool]
    protection: str
    source: str
    until: str | None = None
    """The knob of History that ended it."""


class MarkerCheck(NamedTuple):
    """One rule for a coordinator's marker."""

    name: str
    error: ErrorCode
    holds: Callable[[TransactionMarker, Producer], bool]
    source: str
    since: str | None = None
    """The knob of History that brought it."""
    until: str | None = None
    """The knob that ended it."""


# --- a client's batch ------------------------------------------------------------------------------------


def _repeated(header: BatchHeader, producer: Producer) -> CachedBatch | None:
    """A batch of an older epoch is never a repetition (ProducerStateEntry.findDuplicateBatch)."""
    if producer.producer_epoch == header.producer_epoch:
        for cached in producer.batches:
            if cached.last_sequence == header.last_sequence and cached.first_sequence == header.base_sequence:
                return cached
    return None


def _is_repeated(partition: Partition, header: BatchHeader, producer: Producer, guard: int) -> bool:
    return _repeated(header, producer) is not None


def _has_older_epoch(partition: Partition, header: BatchHeader, producer: Producer, guard: int) -> bool:
    """Somebody newer has been here (ProducerAppendInfo.checkProducerEpoch)."""
    return header.producer_epoch < producer.producer_epoch


def _is_overtaken(partition: Partition, header: BatchHeader, producer: Producer, guard: int) -> bool:
    """A marker between the coordinator's yes and this append removed the guard: the batch belongs to the
    past.
    """
    if guard == UNGUARDED or not header.is_transactional:
        return False
    if partition.is_open(header.producer_id, header.producer_epoch):
        return False
    entry = partition.verifying.get(header.producer_id)
    return entry is None or entry.guard != guard


def _begins_late(partition: Partition, header: BatchHeader, producer: Producer, guard: int) -> bool:
    entry = partition.verifying.get(header.producer_id)
    return entry is not None and entry.starts_at_zero and not producer.batches and header.base_sequence != 0


def _overtakes(partition: Partition, header: BatchHeader, producer: Producer, guard: int) -> bool:
    """An earlier batch waits for the coordinator's answer (VerificationStateEntry.lowestSequence)."""
    entry = partition.verifying.get(header.producer_id)
    return entry is not None and header.base_sequence > entry.lowest_sequence


def _is_unknown(partition: Partition, header: BatchHeader, producer: Producer, guard: int) -> bool:
    is_foreign = producer.producer_epoch == NO_PRODUCER_EPOCH != header.producer_epoch
    return is_foreign and header.base_sequence != 0


def _is_out_of_order(partition: Partition, header: BatchHeader, producer: Producer, guard: int) -> bool:
    if producer.producer_epoch == NO_PRODUCER_EPOCH or header.producer_epoch == NO_PRODUCER_EPOCH:
        return False
    fresh = header.producer_epoch != producer.producer_epoch or not producer.batches
    expected = 0 if fresh else sequence_after(producer.last_sequence, 1)
    return header.base_sequence != expected


def _is_plain_inside(partition: Partition, header: BatchHeader, producer: Producer, guard: int) -> bool:
    return not header.is_transactional and producer.current_txn_first_offset != NO_OFFSET


_OLDER_EPOCH: Final = Check(
    "has an older epoch than the partition knows of the producer",
    ErrorCode.INVALID_PRODUCER_EPOCH,
    _has_older_epoch,
    protection="fencing",
    source="KIP-98, KIP-588",
)

BEFORE_ASKING: Final = (_OLDER_EPOCH,)
"""What is held against a transactional batch before the coordinator is asked about it."""

CHECKS: Final = (
    Check(
        "is one of the producer's last five batches",
        ErrorCode.NONE,
        _is_repeated,
        protection="dedup",
        source="KIP-98; before fencing",
    ),
    _OLDER_EPOCH,
    Check(
        "comes behind a marker that came behind the coordinator's yes",
        ErrorCode.INVALID_TXN_STATE,
        _is_overtaken,
        protection="fencing",
        source="KIP-890, KAFKA-14884",
    ),
    Check(
        "is the first of a Produce 12 transaction here, and its sequence is not 0",
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        _begins_late,
        protection="dedup",
        source="KIP-890",
    ),
    Check(
        "overtakes a batch for which the coordinator is being asked",
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        _overtakes,
        protection="dedup",
        source="KIP-890",
    ),
    Check(
        "is of a producer that the partition does not know, and its sequence is not 0",
        ErrorCode.UNKNOWN_PRODUCER_ID,
        _is_unknown,
        protection="dedup",
        source="KIP-98",
        until="unknown_producers_start_anywhere",
    ),
    Check(
        "does not follow the producer's last one (0 in a new epoch)",
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        _is_out_of_order,
        protection="dedup",
        source="KIP-98, KIP-360",
    ),
    Check(
        "is plain, while its producer has a transaction open here",
        ErrorCode.INVALID_TXN_STATE,
        _is_plain_inside,
        protection="fencing",
        source="KIP-98",
    ),
)
"""In Kafka's order (UnifiedLog.analyzeAndValidateProducerState, ProducerAppendInfo.append)."""


def checks_for(rows: tuple[Check, ...], *, broken: frozenset[str], fixes: KafkaFixes) -> tuple[Check, ...]:
    """The rows that count in a broker without these protections and with these corrections."""
    return tuple(
        check
        for check in rows
        if check.protection not in broken and not (check.until and fixes.has(check.until))
    )


def judge(partition: Partition, header: BatchHeader, *, guard: int, checks: tuple[Check, ...]) -> Verdict:
    """Whether a client's batch may be appended (None), was appended before, or is refused."""
    if header.producer_id == NO_PRODUCER_ID:
        return None
    producer = partition.producers.get(header.producer_id, UNKNOWN_PRODUCER)
    for check in checks:
        if check.holds(partition, header, producer, guard):
            return Refused(check.error, check.name) if check.error else _duplicate(header, producer)
    return None


def _duplicate(header: BatchHeader, producer: Producer) -> Duplicate:
    cached = _repeated(header, producer)
    assert cached is not None, "only a repeated batch is answered without an error"
    return Duplicate(cached.first_offset)


# --- a coordinator's marker ------------------------------------------------------------------------------


def _is_stale(marker: TransactionMarker, producer: Producer) -> bool:
    return marker.producer_epoch < producer.producer_epoch


def _is_of_an_earlier_one(marker: TransactionMarker, producer: Producer) -> bool:
    """The open transaction began under the epoch that this marker brought: it ended the one before."""
    return _is_of_this_epoch(marker, producer) and producer.current_txn_first_offset != NO_OFFSET


def _is_written_already(marker: TransactionMarker, producer: Producer) -> bool:
    return _is_of_this_epoch(marker, producer) and producer.current_txn_first_offset == NO_OFFSET


def _is_of_this_epoch(marker: TransactionMarker, producer: Producer) -> bool:
    is_strict = marker.transaction_version >= FIRST_STRICT_VERSION
    return is_strict and marker.producer_epoch == producer.producer_epoch


def _is_of_an_older_coordinator(marker: TransactionMarker, producer: Producer) -> bool:
    return marker.coordinator_epoch < producer.coordinator_epoch


MARKER_CHECKS: Final = (
    MarkerCheck(
        "has an older epoch than the partition knows of the producer",
        ErrorCode.INVALID_PRODUCER_EPOCH,
        _is_stale,
        source="KIP-98",
    ),
    MarkerCheck(
        "is of version 2, and a transaction of its own epoch is open",
        ErrorCode.INVALID_PRODUCER_EPOCH,
        _is_of_an_earlier_one,
        source="KIP-1228",
        since="strict_marker_epoch",
    ),
    MarkerCheck(
        "is of version 2, its epoch is known, and nothing is open",
        ErrorCode.INVALID_PRODUCER_EPOCH,
        _is_written_already,
        source="KIP-1228",
        since="strict_marker_epoch",
        until="idempotent_marker_retry",
    ),
    MarkerCheck(
        "is from an older coordinator than the partition's last marker",
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        _is_of_an_older_coordinator,
        source="KIP-98",
    ),
)
"""In Kafka's order (ProducerAppendInfo.appendEndTxnMarker)."""


def marker_checks_for(*, broken: frozenset[str], fixes: KafkaFixes) -> tuple[MarkerCheck, ...]:
    """The rows that count in a broker without these protections and with these corrections."""
    if "fencing" in broken:
        return ()
    return tuple(
        check
        for check in MARKER_CHECKS
        if (check.since is None or fixes.has(check.since))
        and (check.until is None or not fixes.has(check.until))
    )


def judge_marker(
    partition: Partition, marker: TransactionMarker, *, checks: tuple[MarkerCheck, ...]
) -> Refused | None:
    """Whether a coordinator's marker may be appended."""
    producer = partition.producers.get(marker.producer_id, UNKNOWN_PRODUCER)
    for check in checks:
        if check.holds(marker, producer):
            return Refused(check.error, check.name)
    return None
