"""What a Produce may look like: the request as a whole, and each batch in it before a partition judges it.

Rule: a row is a condition and the error that it means, in Kafka's order; the first that holds counts. One
condition that all sound batches fulfil goes before the table of those that are most of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.broker.contract import Refused
from fencepost.broker.rules import Rule, first_that_holds
from fencepost.protocol.batches import (
    HEADER_SIZE,
    MAGIC_AT,
    MAGIC_KAFKA,
    BatchHeader,
    Buffer,
    checksum_matches,
    read_framing,
)
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.messages import Produce
from fencepost.protocol.terms import INTERNAL_TOPICS, NO_PRODUCER_ID, TopicPartition

ACKS: Final = (-1, 0, 1)
Parsed = BatchHeader | Refused
"""What `header_of` makes of the bytes that one partition gets."""


# --- the request -----------------------------------------------------------------------------------------


def has_transaction(header: BatchHeader) -> bool:
    """Whether a coordinator knows of it; a batch that nobody wrote belongs to none, whatever it says."""
    return header.is_transactional and header.producer_id != NO_PRODUCER_ID


def _is_unreadable(request: Produce, parsed: Sequence[Parsed], placed: Sequence[Parsed]) -> bool:
    return any(isinstance(found, Refused) and found.error is ErrorCode.CORRUPT_MESSAGE for found in parsed)


def _is_nobodys(request: Produce, parsed: Sequence[Parsed], placed: Sequence[Parsed]) -> bool:
    return request.transactional_id is None and any(
        isinstance(found, BatchHeader) and found.is_transactional for found in parsed
    )


def _is_of_several(request: Produce, parsed: Sequence[Parsed], placed: Sequence[Parsed]) -> bool:
    if len(placed) <= 1:
        return False
    headers = [found for found in placed if isinstance(found, BatchHeader) and has_transaction(found)]
    return len({(header.producer_id, header.producer_epoch) for header in headers}) > 1


REQUEST_RULES: Final = (
    Rule(
        "a batch with a magic byte or a length that nobody knows", ErrorCode.CORRUPT_MESSAGE, _is_unreadable
    ),
    Rule(
        "transactional batches without a transactional id",
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        _is_nobodys,
    ),
    Rule(
        "transactional batches of several producers for partitions that exist",
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        _is_of_several,
    ),
)


def request_problem(request: Produce, parsed: Sequence[Parsed], placed: Sequence[Parsed]) -> Refused | None:
    """Why all of a request is refused, if it is; `placed` is what of `parsed` is for existing partitions."""
    return first_that_holds(REQUEST_RULES, request, parsed, placed)


# --- its bytes -------------------------------------------------------------------------------------------


def _is_not_one_batch(header: BatchHeader, size: int) -> bool:
    return header.size != size


SHAPE_RULES: Final = (Rule("is not exactly one batch", ErrorCode.INVALID_RECORD, _is_not_one_batch),)


def header_of(records: Buffer) -> Parsed:
    """The header of the one batch that a partition's records are (ProduceRequest.validateRecords)."""
    try:
        header = read_framing(records)
    except ProtocolViolation as problem:
        # What is cut off is no batch at all, and neither are messages of before Kafka 0.11.
        is_none = len(records) < HEADER_SIZE or records[MAGIC_AT] < MAGIC_KAFKA
        return Refused(ErrorCode.INVALID_RECORD if is_none else ErrorCode.CORRUPT_MESSAGE, str(problem))
    return first_that_holds(SHAPE_RULES, header, len(records)) or header


# --- what is only looked at when it is about to be appended ----------------------------------------------


def _wants_other_acks(request: Produce, key: TopicPartition) -> bool:
    return request.acks not in ACKS


def _is_internal(request: Produce, key: TopicPartition) -> bool:
    return key.topic in INTERNAL_TOPICS


LATE_RULES: Final = (
    Rule("comes with acks that are not 0, 1 or -1", ErrorCode.INVALID_REQUIRED_ACKS, _wants_other_acks),
    Rule("is for an internal topic", ErrorCode.INVALID_TOPIC_EXCEPTION, _is_internal),
)


def late_problem(request: Produce, key: TopicPartition) -> Refused | None:
    """Why a batch is not appended, whatever is in it (ReplicaManager.appendRecords)."""
    return first_that_holds(LATE_RULES, request, key)


# --- its batch -------------------------------------------------------------------------------------------


def _is_corrupt(header: BatchHeader, records: Buffer, limit: int) -> bool:
    return not checksum_matches(records, 0, header)


def _is_too_large(header: BatchHeader, records: Buffer, limit: int) -> bool:
    return header.size > limit


def _has_no_records(header: BatchHeader, records: Buffer, limit: int) -> bool:
    return not 0 < header.record_count == header.last_offset_delta + 1


def _is_control(header: BatchHeader, records: Buffer, limit: int) -> bool:
    return header.is_control


def _has_no_sequence(header: BatchHeader, records: Buffer, limit: int) -> bool:
    return header.producer_id != NO_PRODUCER_ID and header.base_sequence < 0


# UnifiedLog.analyzeAndValidateRecords, LogValidator.validateBatch
FORM_RULES: Final = (
    Rule("is larger than its topic takes", ErrorCode.MESSAGE_TOO_LARGE, _is_too_large),
    Rule("has a checksum that does not match its bytes", ErrorCode.CORRUPT_MESSAGE, _is_corrupt),
    Rule("has no records, or not as many as offsets", ErrorCode.INVALID_RECORD, _has_no_records),
    Rule("is a control batch", ErrorCode.INVALID_RECORD, _is_control),
    Rule("has a producer id and no sequence", ErrorCode.INVALID_RECORD, _has_no_sequence),
)


def form_problem(header: BatchHeader, records: Buffer, *, limit: int) -> Refused | None:
    """Why no partition would take the batch, if that is so."""
    if _is_sound(header, records, limit):
        return None
    return first_that_holds(FORM_RULES, header, records, limit)


def _is_sound(header: BatchHeader, records: Buffer, limit: int) -> bool:
    """None of FORM_RULES holds: asked at once, for this is every batch's way."""
    return (
        header.size <= limit
        and 0 < header.record_count == header.last_offset_delta + 1
        and not header.is_control
        and (header.base_sequence >= 0 or header.producer_id == NO_PRODUCER_ID)
        and checksum_matches(records, 0, header)
    )
