"""Messages in words, as the steps of a trace and the arrows of a picture name them.

Rule: short, with what decides: whose transaction, which values, which end, which epoch.
"""

from __future__ import annotations

from fencepost.protocol.batches import read_header
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    AddPartitionsToTxn,
    AddPartitionsToTxnReply,
    EndTxn,
    EndTxnReply,
    InitProducerId,
    InitProducerIdReply,
    Produce,
    ProduceReply,
    ReplyBody,
    Request,
    WriteTxnMarkers,
    WriteTxnMarkersReply,
)
from fencepost.protocol.records import read_columns

COORDINATED = (AddPartitionsToTxn, EndTxn, InitProducerId)


def request_words(request: Request) -> str:
    """`EndTxn commit (epoch 0)`, `Produce p0.1.0 to t-0`."""
    match request:
        case EndTxn():
            return f"EndTxn {request.result.name.lower()} (epoch {request.producer_epoch})"
        case Produce():
            parts = (
                f"{_values(part.records)} to {part.topic}-{part.partition}" for part in request.partitions
            )
            return f"Produce {', '.join(parts)}"
        case AddPartitionsToTxn():
            places = ", ".join(f"{part.topic}-{part.partition}" for part in request.partitions)
            return f"AddPartitionsToTxn {places}{' (verify only)' if request.verify_only else ''}"
        case WriteTxnMarkers():
            ends = (
                f"{marker.result.name.lower()} to {part.topic}-{part.partition}"
                for marker in request.markers
                for part in marker.partitions
            )
            return f"WriteTxnMarkers {', '.join(ends)}"
        case _:
            return type(request).__name__


def _values(batch: bytes | bytearray | memoryview) -> str:
    values = read_columns(batch, read_header(batch)).values
    return " ".join("-" if value is None else bytes(value).decode() for value in values)


def answer_words(error: ErrorCode, body: ReplyBody | None) -> str:
    """The error, and the identity where the answer gives one."""
    match body:
        case EndTxnReply() | InitProducerIdReply():
            return f"{error.name} {body.producer_id}/{body.producer_epoch}"
        case ProduceReply() | AddPartitionsToTxnReply():
            return _worst(error, [part.error for part in body.partitions])
        case WriteTxnMarkersReply():
            return _worst(error, [part.error for marker in body.markers for part in marker.partitions])
        case _:
            return error.name


def _worst(error: ErrorCode, errors: list[ErrorCode]) -> str:
    return next((found.name for found in (error, *errors) if found), ErrorCode.NONE.name)


def role_of(request: Request) -> str:
    """The part of the broker that a request is for."""
    match request:
        case Produce():
            part = request.partitions[0]
            return f"the leader of {part.topic}-{part.partition}"
        case WriteTxnMarkers():
            part = request.markers[0].partitions[0]
            return f"the leader of {part.topic}-{part.partition}"
        case _:
            return "the coordinator" if isinstance(request, COORDINATED) else "the broker"
