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
#               FORM_CHECKS         the batch, whatever its producer did before
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
from fencepost.broker.partitions.partition import UNKNOWN_PRODUCER, CachedBatch, Partition, ProducerEntry
from fencepost.protocol.batch_work import COMPRESSED_RECORDS_MAX, size_within, work_of
from fencepost.protocol.batches import (
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    MAGIC_AT,
    MAGIC_KAFKA,
    BatchHeader,
    Buffer,
    checksum_matches,
    read_framing,
)
from fencepost.protocol.compression import DECOMPRESSED_SIZE_MAX, Compression, DecompressedTooLarge
from fencepost.protocol.errors import NO_ERROR, ErrorCode, ProtocolViolation
from fencepost.protocol.kafka_records import latest_timestamp_delta
from fencepost.protocol.messages import Produce, TransactionMarker
from fencepost.protocol.records import check_records, has_null_key, payload_of
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
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

ACKS: Final = (-1, 0, 1)

Parsed = BatchHeader | Refused
"""The result of `header_of`: the header of a batch, or why there is none."""


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


_FRAMING_SOURCE: Final = "ProduceRequest.validateRecords"


def header_of(records: Buffer, *, knows_zstd: bool) -> Parsed:
    """The header of a partition's records, which must be one batch (ProduceRequest.validateRecords)."""
    try:
        header = read_framing(records)
    except ProtocolViolation as problem:
        # In Kafka a truncated batch and message formats before 0.11 are INVALID_RECORD, all else is corrupt.
        is_invalid = len(records) < HEADER_SIZE or records[MAGIC_AT] < MAGIC_KAFKA
        error = ErrorCode.INVALID_RECORD if is_invalid else ErrorCode.CORRUPT_MESSAGE
        return Refused(error, str(problem), source=_FRAMING_SOURCE)
    if header.compression == Compression.ZSTD and not knows_zstd:
        because = "is compressed with zstd in a version that does not know it (KIP-110)"
        return Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, because, source=_FRAMING_SOURCE)
    if header.size != len(records):
        return Refused(ErrorCode.INVALID_RECORD, "is not exactly one batch", source=_FRAMING_SOURCE)
    return header


# --- a batch by itself -----------------------------------------------------------------------------------


class FormCheck(NamedTuple):
    """One row; its condition has the same place in `refused_form`. The last three are those of the records
    (`check_records`, `check_keys`).
    """

    name: str
    error: ErrorCode
    source: str


# After the coordinator's reply, as in Kafka: a refusal of the producer takes precedence over a bad batch.
FORM_CHECKS: Final = (
    FormCheck(
        "comes in a request with acks other than 0, 1 or -1",
        ErrorCode.INVALID_REQUIRED_ACKS,
        source="ReplicaManager.appendRecords",
    ),
    FormCheck(
        "is for an internal topic", ErrorCode.INVALID_TOPIC_EXCEPTION, source="ReplicaManager.appendRecords"
    ),
    FormCheck(
        "is larger than max.message.bytes of its topic",
        ErrorCode.MESSAGE_TOO_LARGE,
        source="UnifiedLog.analyzeAndValidateRecords",
    ),
    FormCheck(
        f"has more than {COMPRESSED_RECORDS_MAX:,} records, and is compressed",
        ErrorCode.MESSAGE_TOO_LARGE,
        source="COMPRESSED_RECORDS_MAX; Kafka's clients send a tenth of that",
    ),
    FormCheck(
        "has a checksum that does not match its bytes",
        ErrorCode.CORRUPT_MESSAGE,
        source="UnifiedLog.analyzeAndValidateRecords",
    ),
    FormCheck(
        "has no records, or a record count that does not match its offsets",
        ErrorCode.INVALID_RECORD,
        source="LogValidator.validateBatch",
    ),
    FormCheck("is a control batch", ErrorCode.INVALID_RECORD, source="LogValidator.validateBatch"),
    FormCheck(
        "has a delete horizon, which only compaction sets",
        ErrorCode.INVALID_RECORD,
        source="KIP-534; Kafka accepts it",
    ),
    FormCheck(
        "has a producer id and no sequence", ErrorCode.INVALID_RECORD, source="LogValidator.validateBatch"
    ),
    FormCheck(
        "has a timestamp further from the broker's time than log.message.timestamp.after.max.ms or "
        "log.message.timestamp.before.max.ms allows",
        ErrorCode.INVALID_TIMESTAMP,
        source="LogValidator.validateTimestamp",
    ),
    FormCheck(
        "holds more or fewer records than it says, or records that cannot be read",
        ErrorCode.INVALID_RECORD,
        source="LogValidator.validateRecord",
    ),
    FormCheck(
        "is compressed and for a compacted topic, and exceeds what is left of the request's limit on "
        "decompression",
        ErrorCode.MESSAGE_TOO_LARGE,
        source="REQUEST_WORK_MAX; Kafka decompresses all of them",
    ),
    FormCheck(
        "holds a record without a key, in a compacted topic",
        ErrorCode.INVALID_RECORD,
        source="LogValidator.validateRecord",
    ),
)
_TIMESTAMP, _UNREADABLE, _TOO_COSTLY, _NO_KEY = FORM_CHECKS[-4:]


def _of_form(check: FormCheck, problem: object = None) -> Refused:
    text = check.name if problem is None else str(problem)
    return Refused(check.error, text, source=check.source, table="FORM_CHECKS")


class FormRules(NamedTuple):
    """What a partition accepts: max.message.bytes, and the timestamps (ms) between which a batch must lie."""

    size_max: int
    earliest: int
    latest: int


def refused_form(
    header: BatchHeader, records: Buffer, *, key: TopicPartition, acks: int, rules: FormRules
) -> Refused | None:
    """Why a client's batch is refused, regardless of its producer, or None."""
    is_wrong = (
        acks not in ACKS,
        key.topic in INTERNAL_TOPICS,
        header.size > rules.size_max,
        header.record_count > COMPRESSED_RECORDS_MAX and header.compression != 0,
        not checksum_matches(records, 0, header),
        not 0 < header.record_count == header.last_offset_delta + 1,
        header.is_control,
        header.attributes & DELETE_HORIZON_BIT != 0,
        header.producer_id != NO_PRODUCER_ID and header.base_sequence < 0,
        # The times of the header stand for those of all records, which Kafka compares one by one: compressed
        # records are not opened here.
        header.max_timestamp > rules.latest
        or header.base_timestamp > rules.latest
        or (header.base_timestamp < rules.earliest and header.base_timestamp != NO_TIMESTAMP)
        or (header.attributes & LOG_APPEND_TIME_BIT and header.max_timestamp < header.base_timestamp),
    )
    if True in is_wrong:
        return _of_form(FORM_CHECKS[is_wrong.index(True)])
    try:
        check_records(records, header)
    except ProtocolViolation as problem:
        return _of_form(_UNREADABLE, problem)
    return None


def too_late() -> Refused:
    """The refusal of a batch whose latest timestamp is too far ahead, which only its records show."""
    return _of_form(_TIMESTAMP)


# --- the keys of a compacted topic --------------------------------------------------------------------------


class KeyCheck(NamedTuple):
    """Why a batch is refused, or None; and the work of looking at it (batch_work.py)."""

    refused: Refused | None
    work: int = 0


def check_keys(header: BatchHeader, records: Buffer, *, work_max: int) -> KeyCheck:
    """Look for a record without a key. Only compressed records count as work: the size of the request bounds
    the others.
    """
    work = size_max = 0
    if header.compression:
        work, size_max = header.record_count, size_within(work_max, header.record_count)
        if size_max <= 0:
            return KeyCheck(_of_form(_TOO_COSTLY))
    try:
        payload = payload_of(records, header, limit=min(size_max, DECOMPRESSED_SIZE_MAX))
        if header.compression:
            work = work_of(header.record_count, len(payload))
        return KeyCheck(_of_form(_NO_KEY) if has_null_key(payload, header) else None, work)
    except DecompressedTooLarge:
        return KeyCheck(_of_form(_TOO_COSTLY), work_max)
    except ProtocolViolation as problem:
        return KeyCheck(_of_form(_UNREADABLE, problem), work_max if header.compression else 0)


# --- the latest timestamp of a batch without one ------------------------------------------------------------


class LatestTimestamp(NamedTuple):
    """The latest timestamp (ms) of a batch's records, and the work of looking for it (batch_work.py)."""

    timestamp: int
    work: int


def latest_timestamp(header: BatchHeader, records: Buffer, *, work_max: int) -> LatestTimestamp:
    """Look for it in the records, if that costs no more than `work_max`; otherwise, take the base timestamp,
    which is that of the first record. A batch of columns comes from a client that fills its header in.
    """
    least = header.base_timestamp
    limit = min(size_within(work_max, header.record_count), DECOMPRESSED_SIZE_MAX)
    if limit <= 0 or header.magic != MAGIC_KAFKA:
        return LatestTimestamp(least, 0)
    try:
        payload = bytes(payload_of(records, header, limit=limit))
        delta = latest_timestamp_delta(payload, header.record_count)
    except ProtocolViolation:  # too large, or its readers learn of it
        return LatestTimestamp(least, work_max)
    return LatestTimestamp(least + max(delta, 0), work_of(header.record_count, len(payload)))


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
