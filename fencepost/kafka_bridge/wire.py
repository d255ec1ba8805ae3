"""Kafka's requests and responses as bytes, by the schemas of kio: one class for each version of a message.

Rule: nothing here knows what a message means. Bytes that are not a request raise ProtocolViolation.
"""

# Theory of operation
#
#     u32 length | i16 API key | i16 version | i32 correlation id | client id | tagged fields | request
#     u32 length | i32 correlation id | tagged fields | response
#
# kio has a class for each message and version, generated from Kafka's schemas. Versions of a message differ
# in their fields, and mostly have one meaning. So a response is described once, as a mapping that has the
# fields of all versions, and written with those that the class of one version has (response_bytes.py).
#
# Both headers have tagged fields from the message's first flexible version on, except the response to
# ApiVersions: a client that is newer than the broker must be able to read it (ApiVersionsResponse.json).

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from fencepost.kafka_bridge.counts import check_counts, skip_tagged_fields
from fencepost.kafka_bridge.response_bytes import ResponseBytes, writer
from fencepost.kafka_bridge.tagged_fields import tolerant_reader
from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.frames import CLIENT_ID_LENGTH_MAX, FRAME_SIZE_MAX, FrameTooLarge

API_VERSIONS_KEY: Final = 18
# The client id is never compact, not even in a flexible header: a broker has to read it before it knows
# whether it knows the version (RequestHeader.json).
_HEADER = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_CORRELATION_ID = struct.Struct(">i")
_LENGTH = struct.Struct(">I")
_NO_TAGGED_FIELDS: Final = b"\0"
_NULL: Final = -1
_MILLISECOND: Final = timedelta(milliseconds=1)


class RequestHeader(NamedTuple):
    """The header of a request, and where the request itself begins."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    end: int


def read_header(frame: memoryview) -> RequestHeader:
    """The header of a frame (the bytes after its length), without its tagged fields."""
    if len(frame) < _HEADER.size:
        raise ProtocolViolation(f"a Kafka request of {len(frame)} bytes is shorter than its header")
    api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
    end = _HEADER.size + max(length, 0)
    if not _NULL <= length <= CLIENT_ID_LENGTH_MAX or end > len(frame):
        raise ProtocolViolation(f"a client id of {length} bytes; the limit is {CLIENT_ID_LENGTH_MAX}")
    try:
        client_id = str(frame[_HEADER.size : end], "utf-8")
    except UnicodeDecodeError as problem:
        raise ProtocolViolation("the client id is not UTF-8") from problem
    return RequestHeader(api_key, version, correlation_id, client_id, end)


def decode_request(frame: memoryview, header: RequestHeader) -> Any:
    """The request after its header, an instance of kio's class for its version."""
    schema = _request_class(header.api_key, header.version)
    at = header.end
    if schema.__flexible__:
        at = skip_tagged_fields(frame, at)
    check_counts(schema, frame, at)
    try:
        request, size = _read(schema, frame.toreadonly(), at)
    except Exception as problem:
        # kio's readers raise errors of many types at such bytes: they are not a request.
        what = f"the bytes of {_named(header)} cannot be decoded: {problem}"
        raise ProtocolViolation(what) from problem
    # Kafka does not look at what follows a request. librdkafka sends a byte too many with some.
    if at + size > len(frame):
        raise ProtocolViolation(f"{_named(header)} ends in the middle of its tagged fields")
    return request


def _named(header: RequestHeader) -> str:
    return f"a {_request_class(header.api_key, header.version).__name__} version {header.version}"


def _read(schema: Any, frame: memoryview, at: int) -> tuple[Any, int]:
    try:
        return _reader(schema)(frame, at)
    except (KeyError, ValueError):  # an unknown tagged field; a duration of more than 2.7 million years
        return tolerant_reader(schema)(frame, at)


def encode_response(
    api_key: int, version: int, correlation_id: int, values: Mapping[str, Any]
) -> list[Buffer]:
    """The pieces of a response frame, ready for sendmsg; times in `values` are milliseconds."""
    schema = _response_class(api_key, version)
    out = ResponseBytes()
    out += _CORRELATION_ID.pack(correlation_id)
    if schema.__flexible__ and api_key != API_VERSIONS_KEY:
        out += _NO_TAGGED_FIELDS
    writer(schema)(out, values)
    return framed(*out.pieces())


def framed(*pieces: Buffer) -> list[Buffer]:
    size = sum(map(len, pieces))
    if size > FRAME_SIZE_MAX:
        raise FrameTooLarge(f"a reply of {size} bytes; the limit is {FRAME_SIZE_MAX}")
    return [_LENGTH.pack(size), *pieces]


# --- kio's classes ---------------------------------------------------------------------------------------


_request_class: Final[Callable[[int, int], Any]] = cache(load_request_schema)
_response_class: Final[Callable[[int, int], Any]] = cache(load_response_schema)
_reader: Final[Callable[[Any], Callable[[memoryview, int], tuple[Any, int]]]] = cache(entity_reader)


def milliseconds(duration: timedelta) -> int:
    """A duration in a request as milliseconds."""
    return duration // _MILLISECOND
