"""The form of a batch: the checks that need to know nothing of its producer and of the log before it.

Rule: what a check may cost is bounded (batch_work.py), whatever a batch says of itself.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fencepost.broker.contract import Refused
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
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.kafka_records import latest_timestamp_delta
from fencepost.protocol.records import check_records, has_null_key, payload_of
from fencepost.protocol.terms import INTERNAL_TOPICS, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

_ACKS: Final = (-1, 0, 1)

Parsed = BatchHeader | Refused
"""The result of `header_of`: the header of a batch, or why there is none."""

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
        acks not in _ACKS,
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
    """Look in the records for the latest timestamp, if that costs no more than `work_max`; otherwise, take
    the base timestamp, which is that of the first record. Batches of columns are not opened: only Fencepost's
    own client sends them, and it fills in the header.
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
