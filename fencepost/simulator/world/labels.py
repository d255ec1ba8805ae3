"""Messages in a few words: "Produce t-0 a 5/0", "EndTxn COMMIT 5/0", "WriteTxnMarkers t-0 COMMIT".

Rule: equal messages have equal words, and two that differ in what they do have different ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from fencepost.broker.faults import every_error
from fencepost.protocol.batches import BatchHeader, Buffer, read_header, walk
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.errors import NO_ERROR, ErrorCode, ProtocolViolation
from fencepost.protocol.messages import (
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    Api,
    EndTxn,
    EndTxnReply,
    InitProducerId,
    InitProducerIdReply,
    OffsetFetch,
    OffsetFetchReply,
    Produce,
    ProduceReply,
    ReplyBody,
    Request,
    TxnOffsetCommit,
    WriteTxnMarkers,
)
from fencepost.protocol.offsets_log import read_offsets
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import CONSUMER_OFFSETS_TOPIC, NO_OFFSET, NO_PRODUCER_ID, TopicPartition

UNTOLD: Final = frozenset(
    {"Fetch", "Metadata", "ListOffsets", "ApiVersions", "FindCoordinator", "CreateTopics"}
    | {"BrokerRegistration", "AllocateProducerIds", "ElectLeaders"}
)
"""Requests by which clients and nodes find and follow each other: in a picture they only get in the way."""


VALUE_BYTES_MAX: Final = 500  # a value stands in a message, a step, a batch and in what readers see
LINE_MAX: Final = 1_000
VALUES_MAX: Final = 50  # more are unreadable, and decoding a million of them takes long


def request_label(request: Request) -> str:
    """A request in a few words."""
    return " ".join(filter(None, (type(request).__name__, *_of_request(request))))


def reply_label(api: Api, error: ErrorCode, body: ReplyBody | None) -> str:
    """A reply in a few words: its error, or what it grants."""
    if error is not NO_ERROR:
        return f"{api.name} {error.name}"
    return " ".join(filter(None, (api.name, *_of_reply(body))))


def batch_label(partition: TopicPartition, header: BatchHeader, batch: Buffer) -> str:
    """What is in a batch, for people: the values, or the offsets of groups; nothing for a marker."""
    if header.is_control:
        return ""
    if partition.topic == CONSUMER_OFFSETS_TOPIC:
        found = read_offsets(batch, header)
        return " ".join(
            f"{key.group_id} {key.topic}-{key.partition}@{'-' if record is None else record.offset}"
            for key, record in found
        )
    return values_of(batch)


def values_of(batch: Buffer) -> str:
    """The values of a data batch, as people read them; only their number, if they are many."""
    header = read_header(batch)
    if header.record_count > VALUES_MAX:
        return f"{header.record_count} records"
    try:
        return " ".join(value_text(value) for value in read_columns(batch, header).values)
    except ProtocolViolation:  # a stranger's: a broker does not open compressed records
        return f"{header.record_count} unreadable records"


def value_text(value: Buffer | None) -> str:
    """A value as people read it. Of a long one the beginning, its size and its checksum, so that values that
    differ have different words.
    """
    if value is None:
        return "null"
    if len(value) <= VALUE_BYTES_MAX:
        return bytes(value).decode("utf-8", "replace")
    start = bytes(value[:VALUE_BYTES_MAX]).decode("utf-8", "replace")
    return f"{start}… ({len(value):,} bytes, checksum {crc32c(value):08x})"


def line_text(line: str) -> str:
    """A line of a script, or what a consumer read; of a long one the beginning and its length."""
    if len(line) <= LINE_MAX:
        return line
    return f"{line[:LINE_MAX]}… ({len(line):,} characters)"


class _OfProducer(Protocol):
    """A request, a reply, a batch header or a record of a transaction."""

    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...


def producer(of: _OfProducer) -> str:
    """A producer's id and epoch: "7/0"; "" where there is no producer."""
    return "" if of.producer_id == NO_PRODUCER_ID else f"{of.producer_id}/{of.producer_epoch}"


def _of_request(request: Request) -> Iterator[str]:
    match request:
        case Produce():
            for part in request.partitions:
                where = f"{part.topic}-{part.partition}"
                try:
                    for at, header in walk(part.records):
                        batch = memoryview(part.records)[at : at + header.size]
                        yield f"{where} {values_of(batch)} {producer(header)}".rstrip()
                except ProtocolViolation:
                    yield f"{where} no batch"
        case InitProducerId():
            yield request.transactional_id or ""
            yield producer(request)
        case AddPartitionsToTxn():
            yield "verify" if request.verify_only else ""
            yield from map(str, request.partitions)
            yield producer(request)
        case EndTxn():
            yield request.result.name
            yield producer(request)
        case WriteTxnMarkers():
            for marker in request.markers:
                yield from map(str, marker.partitions)
                yield f"{marker.result.name} {producer(marker)}"
        case TxnOffsetCommit():
            yield request.group_id
            yield from (f"{part.topic}-{part.partition}@{part.offset}" for part in request.offsets)
        case AddOffsetsToTxn() | OffsetFetch():
            yield request.group_id
        case _:
            pass


def _of_reply(body: ReplyBody | None) -> Iterator[str]:
    match body:
        case ProduceReply():
            for part in body.partitions:
                yield (
                    part.error.name
                    if part.base_offset == NO_OFFSET
                    else f"{part.error.name} @{part.base_offset}"
                )
        case InitProducerIdReply() | EndTxnReply():
            yield f"NONE {producer(body)}".rstrip()
        case _:
            # Every error once, whichever part of the reply has it.
            yield " ".join(error.name for error in every_error(NO_ERROR, body)) or NO_ERROR.name
    if isinstance(body, OffsetFetchReply):
        yield from (f"{part.topic}-{part.partition}@{part.offset}" for part in body.offsets)
