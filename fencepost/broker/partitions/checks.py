"""Every check that a write to a partition has to pass: the Produce request, each batch in it, offsets that a
transaction commits, and a coordinator's marker.

Rule: checks run in Kafka's order, and the first whose predicate is true refuses.
"""

# Theory of operation (Kafka: UnifiedLog.analyzeAndValidateProducerState, ProducerAppendInfo)
#
#     Produce   REQUEST_CHECKS      the request as a whole
#                  |  per partition: is it of this topic, does this node lead it, is it one batch?
#               BEFORE_ASKING       before the transaction coordinator is asked to add the partition
#                  |  the coordinator answers
#               FORM_CHECKS         the batch, whatever its producer did before (batch_form.py)
#               CHECKS              the batch against what the partition knows of its producer
#     TxnOffsetCommit               BEFORE_ASKING and OFFSET_CHECKS, two rows of CHECKS
#     WriteTxnMarkers               MARKER_CHECKS
#
# A zombie is fenced here: its epoch is older than the one that the partition knows of its producer. It is
# also fenced at the transaction coordinator (`check_identity` in `transactions/state.py`, `GRANTS` in
# `init_producer_id.py`), and as a member of a group by its generation (`groups/offsets.py`).
#
# A duplicate is recognised here: its sequences equal those of one of the producer's last five batches. It is
# the first of CHECKS, so a retry that was verified, or needs no verification, succeeds even if a marker has
# ended its transaction since. A batch of an older epoch is never a duplicate.
#
# A predicate does not change anything, so the same rows serve as documentation (docs/state-machines.md), and
# a broker "without" a protection or with an older Kafka's behaviour is a table with other rows
# (NodeSettings).

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import attrs

from fencepost.broker.check_tables import Check, first_refusal
from fencepost.broker.contract import Refused
from fencepost.broker.partitions.batch_form import Parsed
from fencepost.broker.partitions.partition import UNKNOWN_PRODUCER, CachedBatch, Partition, ProducerEntry
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import Produce, TransactionMarker
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TopicPartition,
    sequence_after,
)

NO_GUARD: Final = 0
"""The guard of a write without a verification: it can only join a transaction that is open here."""

UNGUARDED: Final = -1
"""The guard of every write if verification is off (transaction.partition.verification.enable)."""

FIRST_STRICT_VERSION: Final = 2
"""The `transaction.version` from which on a marker carries the next epoch (KIP-890)."""


class TransactionalOffsets(NamedTuple):
    """What a TxnOffsetCommit is about to append: a transactional batch without sequences."""

    producer_id: int
    producer_epoch: int
    is_transactional: bool = True
    base_sequence: int = NO_SEQUENCE
    last_sequence: int = NO_SEQUENCE


Written = BatchHeader | TransactionalOffsets
"""The write that is checked."""


@attrs.frozen
class Duplicate:
    """The batch is in the log already, by the first row of CHECKS; its retry gets the offset of the first
    attempt.
    """

    base_offset: int
    refused: Refused


# --- the Produce request ---------------------------------------------------------------------------------


def _is_unreadable(request: Produce, parsed: Sequence[Parsed], placed: Sequence[Parsed]) -> bool:
    return ErrorCode.CORRUPT_MESSAGE in [found.error for found in parsed if isinstance(found, Refused)]


def _lacks_transactional_id(request: Produce, parsed: Sequence[Parsed], placed: Sequence[Parsed]) -> bool:
    return request.transactional_id is None and any(
        isinstance(found, BatchHeader) and found.is_transactional for found in parsed
    )


def _has_several_producers(request: Produce, parsed: Sequence[Parsed], placed: Sequence[Parsed]) -> bool:
    if len(placed) <= 1:
        return False
    headers = [found for found in placed if isinstance(found, BatchHeader) and found.has_transaction]
    return len({(header.producer_id, header.producer_epoch) for header in headers}) > 1


REQUEST_CHECKS: Final = (
    Check(
        "holds a batch with an unknown magic byte or an impossible length",
        ErrorCode.CORRUPT_MESSAGE,
        _is_unreadable,
        source="ProduceRequest.validateRecords",
    ),
    Check(
        "holds transactional batches and has no transactional id",
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        _lacks_transactional_id,
        source="KafkaApis.handleProduceRequest",
    ),
    Check(
        "holds transactional batches of several producers for partitions that exist",
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        _has_several_producers,
        source="ReplicaManager.handleProduceAppend",
    ),
)
"""Their arguments: the request, the headers of all batches, the headers of those for existing partitions."""


# --- a batch and what the partition knows of its producer -------------------------------------------------


def _duplicate_of(written: Written, producer: ProducerEntry) -> CachedBatch | None:
    """A batch of an older epoch is never a duplicate (ProducerStateEntry.findDuplicateBatch)."""
    if producer.producer_epoch == written.producer_epoch:
        for cached in producer.batches:
            sequences = (cached.first_sequence, cached.last_sequence)
            if sequences == (written.base_sequence, written.last_sequence):
                return cached
    return None


def _is_duplicate(partition: Partition, written: Written, producer: ProducerEntry, guard: int) -> bool:
    return _duplicate_of(written, producer) is not None


def _has_older_epoch(partition: Partition, written: Written, producer: ProducerEntry, guard: int) -> bool:
    """Whether the partition knows a newer epoch of the producer (ProducerAppendInfo.checkProducerEpoch)."""
    return written.producer_epoch < producer.producer_epoch


def _lost_its_guard(partition: Partition, written: Written, producer: ProducerEntry, guard: int) -> bool:
    """Whether a marker has removed the guard since the verification. The transaction of this write is over;
    appending it would open a transaction that no coordinator ends (partitions/produce.py).
    """
    if guard == UNGUARDED or not written.is_transactional:
        return False
    if partition.is_open(written.producer_id, written.producer_epoch):
        return False
    entry = partition.verifying.get(written.producer_id)
    return entry is None or entry.guard != guard


def _begins_late(partition: Partition, written: Written, producer: ProducerEntry, guard: int) -> bool:
    # Where the epoch belongs to one transaction, its first batch here has sequence 0, even if the partition
    # has forgotten the producer: otherwise a lost first batch would go unnoticed.
    entry = partition.verifying.get(written.producer_id)
    return entry is not None and entry.starts_at_zero and not producer.batches and written.base_sequence != 0


def _overtakes(partition: Partition, written: Written, producer: ProducerEntry, guard: int) -> bool:
    """Whether an earlier batch is still being verified (VerificationStateEntry.lowestSequence)."""
    entry = partition.verifying.get(written.producer_id)
    return entry is not None and written.base_sequence > entry.lowest_sequence


def _is_unknown(partition: Partition, written: Written, producer: ProducerEntry, guard: int) -> bool:
    # Only without KIP-360. Since then a producer that the partition has forgotten may continue at any
    # sequence.
    is_unknown_here = producer.producer_epoch == NO_PRODUCER_EPOCH != written.producer_epoch
    return is_unknown_here and written.base_sequence != 0


def _is_out_of_order(partition: Partition, written: Written, producer: ProducerEntry, guard: int) -> bool:
    # Since KIP-360 a producer that the partition has forgotten may continue anywhere; where forgetting is not
    # allowed, rows above refuse it. A batch without an epoch has nothing to continue.
    if producer.producer_epoch == NO_PRODUCER_EPOCH or written.producer_epoch == NO_PRODUCER_EPOCH:
        return False
    # Sequences restart with the epoch. A producer known by a marker alone has no batches: it starts at 0,
    # too.
    fresh = written.producer_epoch != producer.producer_epoch or not producer.batches
    expected = 0 if fresh else sequence_after(producer.last_sequence, 1)
    return written.base_sequence != expected


def _is_plain_inside(partition: Partition, written: Written, producer: ProducerEntry, guard: int) -> bool:
    return not written.is_transactional and producer.current_txn_first_offset != NO_OFFSET


WriteCheck = Check[Partition, Written, ProducerEntry, int]

_OLDER_EPOCH: Final = WriteCheck(
    "has an older epoch than the producer's newest in this partition",
    ErrorCode.INVALID_PRODUCER_EPOCH,
    _has_older_epoch,
    source="KIP-98, KIP-588",
    protection="fencing",
)
_LOST_ITS_GUARD: Final = WriteCheck(
    "lost its guard: usually, a marker was written after the coordinator verified the transaction",
    ErrorCode.INVALID_TXN_STATE,
    _lost_its_guard,
    source="KIP-890, KAFKA-14884",
    protection="fencing",
)

BEFORE_ASKING: Final = (_OLDER_EPOCH,)
"""For a transactional write, before the coordinator verifies it."""

OFFSET_CHECKS: Final = (_OLDER_EPOCH, _LOST_ITS_GUARD)
"""For a TxnOffsetCommit: a batch of the group coordinator has no sequences (AppendOrigin.COORDINATOR)."""

CHECKS: Final = (
    WriteCheck(
        "is one of the producer's last five batches, of the same epoch",
        NO_ERROR,  # no error: the retry gets the offset of the first attempt
        _is_duplicate,
        source="KIP-98",
        protection="dedup",
    ),
    _OLDER_EPOCH,
    _LOST_ITS_GUARD,
    WriteCheck(
        "begins a transaction in this partition (from Produce version 12 on), and its sequence is not 0",
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        _begins_late,
        source="KIP-890",
        protection="dedup",
    ),
    WriteCheck(
        "overtakes a batch that waits for the coordinator's reply",
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        _overtakes,
        source="KIP-890",
        protection="dedup",
    ),
    WriteCheck(
        "is from a producer that the partition does not know, and its sequence is not 0",
        ErrorCode.UNKNOWN_PRODUCER_ID,
        _is_unknown,
        source="KIP-98",
        protection="dedup",
        until="unknown_producers_start_anywhere",
    ),
    WriteCheck(
        "has a sequence that does not follow the producer's last one (in a new epoch: a sequence other "
        "than 0)",
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        _is_out_of_order,
        source="KIP-98, KIP-360",
        protection="dedup",
    ),
    WriteCheck(
        "is not transactional, while its producer has a transaction open here",
        ErrorCode.INVALID_TXN_STATE,
        _is_plain_inside,
        source="KIP-98",
        protection="fencing",
    ),
)
"""In Kafka's order (UnifiedLog.analyzeAndValidateProducerState, ProducerAppendInfo.append)."""


def judge(
    partition: Partition, written: Written, *, verification_guard: int, checks: tuple[WriteCheck, ...]
) -> Refused | Duplicate | None:
    """Whether a producer's write may be appended (None), was appended before, or is refused."""
    if written.producer_id == NO_PRODUCER_ID:
        return None  # neither idempotent nor transactional: there is nothing to compare
    producer = partition.producers.get(written.producer_id, UNKNOWN_PRODUCER)
    refused = first_refusal(checks, partition, written, producer, verification_guard)
    return refused if refused is None or refused.error else _duplicate(written, producer, refused)


def _duplicate(written: Written, producer: ProducerEntry, refused: Refused) -> Duplicate:
    cached = _duplicate_of(written, producer)
    assert cached is not None, "only a duplicate is answered without an error"
    return Duplicate(cached.first_offset, refused)


# --- a coordinator's marker ------------------------------------------------------------------------------


def has_no_transactions(key: TopicPartition) -> bool:
    """Whether the topic is internal and not `__consumer_offsets`, the only one that takes part."""
    return key.topic in INTERNAL_TOPICS and key.topic != CONSUMER_OFFSETS_TOPIC


def _has_no_producer(marker: TransactionMarker, producer: ProducerEntry) -> bool:
    return marker.producer_id < 0


def _has_no_epoch(marker: TransactionMarker, producer: ProducerEntry) -> bool:
    return marker.producer_epoch < 0


def _is_stale(marker: TransactionMarker, producer: ProducerEntry) -> bool:
    return marker.producer_epoch < producer.producer_epoch


def _is_of_an_earlier_one(marker: TransactionMarker, producer: ProducerEntry) -> bool:
    """Whether the open transaction began under the epoch of this marker. In version 2 a marker raises the
    epoch. So this one belongs to the transaction before: it is a late duplicate, and would end the next
    transaction (KAFKA-19446).
    """
    return _is_of_this_epoch(marker, producer) and producer.current_txn_first_offset != NO_OFFSET


def _is_written_already(marker: TransactionMarker, producer: ProducerEntry) -> bool:
    return _is_of_this_epoch(marker, producer) and producer.current_txn_first_offset == NO_OFFSET


def _is_of_this_epoch(marker: TransactionMarker, producer: ProducerEntry) -> bool:
    is_strict = marker.transaction_version >= FIRST_STRICT_VERSION
    return is_strict and marker.producer_epoch == producer.producer_epoch


def _is_of_an_older_coordinator(marker: TransactionMarker, producer: ProducerEntry) -> bool:
    # An equal epoch is the same coordinator, which retries.
    return marker.coordinator_epoch < producer.coordinator_epoch


MarkerCheck = Check[TransactionMarker, ProducerEntry]

MARKER_CHECKS: Final = (
    MarkerCheck(
        "has a negative producer id",
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        _has_no_producer,
        source="no producer has one; Kafka refuses only -1",
    ),
    MarkerCheck(
        "has a negative epoch",
        ErrorCode.INVALID_PRODUCER_EPOCH,
        _has_no_epoch,
        source="ProducerAppendInfo.checkProducerEpoch",
    ),
    MarkerCheck(
        "has an older epoch than the producer's newest in this partition",
        ErrorCode.INVALID_PRODUCER_EPOCH,
        _is_stale,
        source="KIP-98",
        protection="fencing",
    ),
    MarkerCheck(
        "is of version 2, and a transaction of its own epoch is open",
        ErrorCode.INVALID_PRODUCER_EPOCH,
        _is_of_an_earlier_one,
        source="KIP-1228",
        protection="fencing",
        since="strict_marker_epoch",
    ),
    MarkerCheck(
        "is of version 2, its epoch is known, and nothing is open",
        ErrorCode.INVALID_PRODUCER_EPOCH,
        _is_written_already,
        source="KIP-1228",
        protection="fencing",
        since="strict_marker_epoch",
        until="idempotent_marker_retry",
    ),
    MarkerCheck(
        "is from an older coordinator than the partition's last marker",
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        _is_of_an_older_coordinator,
        source="KIP-98",
        protection="fencing",
    ),
)
"""In Kafka's order (ProducerAppendInfo.appendEndTxnMarker), after the rows for what no coordinator sends."""


def judge_marker(
    partition: Partition, marker: TransactionMarker, *, checks: tuple[MarkerCheck, ...]
) -> Refused | None:
    """Why a coordinator's marker is refused, or None."""
    producer = partition.producers.get(marker.producer_id, UNKNOWN_PRODUCER)
    return first_refusal(checks, marker, producer)
