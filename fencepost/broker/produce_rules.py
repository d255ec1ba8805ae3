"""What a Produce may look like: the request as a whole, and each batch in it before a partition judges it.

Rule: a row is a condition and the error that it means, in Kafka's order; the first that holds counts. One
condition that all sound batches fulfil goes before the table of those that are most of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from fencepost.broker.words import Refused
from fencepost.protocol.batches import BatchHeader, Buffer, checksum_matches, read_header
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.messages import Produce
from fencepost.protocol.terms import NO_PRODUCER_ID

ACKS: Final = (-1, 0, 1)


class RequestRule(NamedTuple):
    """One rule for a request and the headers of its transactional batches."""

    name: str
    error: ErrorCode
    holds: Callable[[Produce, Sequence[BatchHeader]], bool]


class ShapeRule(NamedTuple):
    """One rule for the bytes that one partition gets: `size` of them, with this header in front."""

    name: str
    error: ErrorCode
    holds: Callable[[BatchHeader, int], bool]


class FormRule(NamedTuple):
    """One rule for a batch: its header, its bytes, and how many bytes its topic takes."""

    name: str
    error: ErrorCode
    holds: Callable[[BatchHeader, Buffer, int], bool]


# --- the request -----------------------------------------------------------------------------------------


def _is_nobodys(request: Produce, transactional: Sequence[BatchHeader]) -> bool:
    return bool(transactional) and not request.transactional_id


def _wants_other_acks(request: Produce, transactional: Sequence[BatchHeader]) -> bool:
    return request.acks not in ACKS


def _is_of_several(request: Produce, transactional: Sequence[BatchHeader]) -> bool:
    return len({(header.producer_id, header.producer_epoch) for header in transactional}) > 1


REQUEST_RULES: Final = (
    RequestRule(
        "transactional batches without a transactional id",
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        _is_nobodys,
    ),
    RequestRule("acks is not 0, 1 or -1", ErrorCode.INVALID_REQUIRED_ACKS, _wants_other_acks),
    RequestRule(
        "transactional batches of several producers", ErrorCode.INVALID_PRODUCER_ID_MAPPING, _is_of_several
    ),
)


def request_problem(request: Produce, transactional: Sequence[BatchHeader]) -> Refused | None:
    """Why all of a request is refused, if it is."""
    for rule in REQUEST_RULES:
        if rule.holds(request, transactional):
            return Refused(rule.error, rule.name)
    return None


# --- its bytes -------------------------------------------------------------------------------------------


def _is_not_one_batch(header: BatchHeader, size: int) -> bool:
    return header.size != size or header.record_count == 0


def _has_holes(header: BatchHeader, size: int) -> bool:
    return header.last_offset_delta != header.record_count - 1


SHAPE_RULES: Final = (
    ShapeRule("is not exactly one batch with records", ErrorCode.INVALID_RECORD, _is_not_one_batch),
    ShapeRule("has more offsets than records", ErrorCode.INVALID_RECORD, _has_holes),
)


def header_of(records: Buffer) -> BatchHeader | Refused:
    """The header of the one batch that a partition's records are."""
    try:
        header = read_header(records)
    except ProtocolViolation as problem:
        return Refused(ErrorCode.INVALID_RECORD, str(problem))
    for rule in SHAPE_RULES:
        if rule.holds(header, len(records)):
            return Refused(rule.error, rule.name)
    return header


# --- its batch -------------------------------------------------------------------------------------------


def _is_corrupt(header: BatchHeader, records: Buffer, limit: int) -> bool:
    return not checksum_matches(records, 0, header)


def _is_too_large(header: BatchHeader, records: Buffer, limit: int) -> bool:
    return header.size > limit


def _is_control(header: BatchHeader, records: Buffer, limit: int) -> bool:
    return header.is_control


def _has_no_sequence(header: BatchHeader, records: Buffer, limit: int) -> bool:
    return header.producer_id != NO_PRODUCER_ID and header.base_sequence < 0


def _has_no_producer(header: BatchHeader, records: Buffer, limit: int) -> bool:
    return header.producer_id == NO_PRODUCER_ID and header.is_transactional


FORM_RULES: Final = (
    FormRule("its checksum does not match its bytes", ErrorCode.CORRUPT_MESSAGE, _is_corrupt),
    FormRule("is larger than its topic takes", ErrorCode.MESSAGE_TOO_LARGE, _is_too_large),
    FormRule("is a control batch", ErrorCode.INVALID_RECORD, _is_control),
    FormRule("has a producer id and no sequence", ErrorCode.INVALID_RECORD, _has_no_sequence),
    FormRule("is transactional and has no producer id", ErrorCode.INVALID_RECORD, _has_no_producer),
)


def form_problem(header: BatchHeader, records: Buffer, *, limit: int) -> Refused | None:
    """Why no partition would take the batch, if that is so."""
    if _is_sound(header, records, limit):
        return None
    rule = next(rule for rule in FORM_RULES if rule.holds(header, records, limit))
    return Refused(rule.error, rule.name)


def _is_sound(header: BatchHeader, records: Buffer, limit: int) -> bool:
    """None of FORM_RULES holds: asked at once, for this is every batch's way."""
    has_producer = header.producer_id != NO_PRODUCER_ID
    return (
        header.size <= limit
        and not header.is_control
        and (header.base_sequence >= 0 if has_producer else not header.is_transactional)
        and checksum_matches(records, 0, header)
    )
