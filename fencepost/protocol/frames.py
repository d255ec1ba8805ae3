"""Frames: the messages on a connection.

Rule: the size of a frame is checked before it is read. Bytes that are not a message raise ProtocolViolation,
never another exception.
"""

# Theory of operation
#
#     u32 length | u32 header length | msgpack array                          | record batches
#                |                   | [key, version, correlation, client, body] of a request
#                |                   | [correlation, error, body]              of a reply
#
# The body is an array of the message's fields in the order of its class (codec.py). A field of record batches
# holds only their length. The batches themselves follow the header in the order of those lengths: neither
# side copies records into msgpack, and the pieces of a frame go to sendmsg as they are.
#
# Kafka's API keys, versions and error codes are kept, its encoding is not: a broker in Python spends most of
# its time in encoding, and msgpack does that in C. The correlation id says which request a reply answers; a
# fetch that waits for data does not hold up later replies.
#
# A broken frame closes its connection and nothing else, since there is no way to find the start of the next
# one. An unsupported version is different: the frame is intact, so it gets a reply (UNSUPPORTED_VERSION).

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import msgpack

from fencepost.protocol.batches import Buffer
from fencepost.protocol.codec import ARRAY_LENGTH_MAX, Payload, decode, encode
from fencepost.protocol.errors import NO_ERROR, ErrorCode, FencepostError, ProtocolViolation
from fencepost.protocol.messages import API_BY_KEY, API_BY_REQUEST, Api, ReplyBody, Request
from fencepost.protocol.secure import ALERT_RECORD, HANDSHAKE_RECORD
from fencepost.protocol.terms import NEWEST_VERSION
from fencepost.protocol.values import value

# Kafka's socket.request.max.bytes: large enough for a fetch of many partitions, small enough for a laptop.
FRAME_SIZE_MAX: Final = 100 * 1024 * 1024
# Records do not count here, only what msgpack must decode: objects cost up to 70 times their bytes in memory.
REQUEST_HEADER_MAX: Final = 1024 * 1024
# Beyond this an array is not decoded. Entries become objects, and a request of 1 MiB could have 350,000. A
# list that is a little too long gets a reply (broker/limits.py).
REQUEST_ARRAY_LENGTH_MAX: Final = 32_768
REQUEST_ARRAYS_MAX: Final = 65_536  # in one request: the entries of a list, and a list in each
_FEW_BYTES: Final = REQUEST_ARRAYS_MAX  # a header of this many bytes cannot have more arrays
CLIENT_ID_LENGTH_MAX: Final = 255

_PREFIX = struct.Struct(">II")
_LENGTH_SIZE = 4


@value
class RequestFrame:
    """A request, and what its reply needs: the correlation id to repeat, and the version to answer in."""

    request: Request
    correlation_id: int
    version: int
    client_id: str


@value
class ReplyFrame:
    """A reply: an error for the whole request, or a body."""

    correlation_id: int
    error: ErrorCode
    body: ReplyBody | None


class UnsupportedVersion(ProtocolViolation):
    """A well-formed request in an unsupported version; it gets a reply, and the connection stays open."""

    def __init__(self, api_key: int, version: int, correlation_id: int) -> None:
        super().__init__(
            f"API {api_key} version {version} is not supported: ask ApiVersions for the supported range"
        )
        self.correlation_id = correlation_id


class PeerSpeaksTls(ProtocolViolation):
    """The first bytes of a connection are TLS, and this side expected frames."""


class FrameTooLarge(FencepostError):
    """A message is larger than a frame may be; nothing was sent."""


def encode_request(
    request: Request, *, correlation_id: int, client_id: str = "", version: int = NEWEST_VERSION
) -> list[Buffer]:
    """The pieces of a request frame, ready for sendmsg; record batches are not copied. Raises
    FrameTooLarge.
    """
    api = API_BY_REQUEST[type(request)]
    payload: list[Buffer] = []
    body = encode(request, payload)
    header = [api.key, min(version, api.maximum), correlation_id, client_id, body]
    return _frame(header, payload, header_max=REQUEST_HEADER_MAX)


def encode_reply(reply: ReplyFrame) -> list[Buffer]:
    """The pieces of a reply frame, ready for sendmsg; record batches are not copied. Raises FrameTooLarge."""
    payload: list[Buffer] = []
    body = None if reply.body is None else encode(reply.body, payload)
    return _frame([reply.correlation_id, int(reply.error), body], payload, header_max=FRAME_SIZE_MAX)


def _frame(header: list[Any], payload: list[Buffer], *, header_max: int) -> list[Buffer]:
    packed = msgpack.packb(header)
    if len(packed) > header_max:
        raise FrameTooLarge(
            f"a message of {len(packed)} bytes, records not counted; the limit is {header_max}: "
            "name fewer things in one request"
        )
    length = _LENGTH_SIZE + len(packed) + sum(map(len, payload))
    if length > FRAME_SIZE_MAX:
        raise FrameTooLarge(f"a message of {length} bytes; the limit is {FRAME_SIZE_MAX}: send it in parts")
    return [_PREFIX.pack(length, len(packed)) + packed, *payload]


def decode_request(frame: Buffer) -> RequestFrame:
    """The request in a frame (the bytes after the length); else ProtocolViolation. Records are views of
    `frame`.
    """
    fields, payload = _open(
        frame, field_count=5, header_max=REQUEST_HEADER_MAX, array_max=REQUEST_ARRAY_LENGTH_MAX
    )
    api_key, version, correlation_id, client_id, body = fields
    _check_correlation_id(correlation_id)
    if type(client_id) is not str or len(client_id) > CLIENT_ID_LENGTH_MAX:
        raise ProtocolViolation(f"a client id is a string of at most {CLIENT_ID_LENGTH_MAX} characters")
    if type(api_key) is not int or type(version) is not int:
        raise ProtocolViolation("API key and version are integers")
    api = API_BY_KEY.get(api_key)
    # Before the body is decoded: another version may have other fields.
    if api is None or not api.minimum <= version <= api.maximum:
        raise UnsupportedVersion(api_key, version, correlation_id)
    request = decode(api.request, body, payload)
    payload.finish()
    return RequestFrame(request, correlation_id, version, client_id)


def decode_reply(frame: Buffer, api: Api) -> ReplyFrame:
    """The reply in a frame (the bytes after the length) to a request of `api`; else ProtocolViolation."""
    return decode_reply_of(frame, lambda _: api)


def decode_reply_of(frame: Buffer, api_of: Callable[[int], Api]) -> ReplyFrame:
    """The same, where `api_of` names the API for a correlation id; it may raise ProtocolViolation."""
    fields, payload = _open(frame, field_count=3)
    correlation_id, error, body = fields
    _check_correlation_id(correlation_id)
    api = api_of(correlation_id)
    code = decode(ErrorCode, error, payload)
    decoded = None if body is None else decode(api.reply, body, payload)
    if decoded is None and code is NO_ERROR:
        raise ProtocolViolation("a reply has neither an error nor a body")
    payload.finish()
    return ReplyFrame(correlation_id, code, decoded)


def _check_correlation_id(value: Any) -> None:
    if type(value) is not int or not 0 <= value < 2**31:
        raise ProtocolViolation(f"correlation id {value!r} is not a 31-bit number")


def _counter() -> Callable[[list[Any]], list[Any]]:
    """Stops the decoding of a header that consists of arrays: a million of them take 70 MB and a second."""
    arrays = 0

    def count(array: list[Any]) -> list[Any]:
        nonlocal arrays
        arrays += 1
        if arrays > REQUEST_ARRAYS_MAX:
            raise ValueError(f"more than {REQUEST_ARRAYS_MAX} arrays")
        return array

    return count


def _open(
    frame: Buffer, *, field_count: int, header_max: int = FRAME_SIZE_MAX, array_max: int = ARRAY_LENGTH_MAX
) -> tuple[list[Any], Payload]:
    """The fields of the header, and the record bytes after it."""
    view = memoryview(frame)
    if len(view) < _LENGTH_SIZE:
        raise ProtocolViolation("the frame is too short to hold its header length")
    header_end = _LENGTH_SIZE + int.from_bytes(view[:_LENGTH_SIZE], "big")
    if header_end > len(view):
        raise ProtocolViolation(f"a header of {header_end} bytes in a frame of {len(view)}")
    if header_end > _LENGTH_SIZE + header_max:
        raise _header_too_large(header_end - _LENGTH_SIZE, header_max)
    header = view[_LENGTH_SIZE:header_end]
    try:
        # Messages hold no maps, and an array cannot have more entries than there are bytes.
        entries_max = min(len(header), array_max)
        fields: list[Any] = msgpack.unpackb(
            header,
            max_array_len=entries_max,
            max_map_len=0,
            max_ext_len=0,
            list_hook=_counter() if len(header) > _FEW_BYTES and array_max < ARRAY_LENGTH_MAX else None,
        )
    except (ValueError, msgpack.UnpackException) as problem:
        raise ProtocolViolation(f"the header is not msgpack: {problem}") from None
    if type(fields) is not list or len(fields) != field_count:
        raise ProtocolViolation(f"the header is not an array of {field_count}")
    return fields, Payload(view[header_end:])


def _header_too_large(size: int, size_max: int) -> ProtocolViolation:
    return ProtocolViolation(f"a header of {size} bytes; the limit is {size_max}, records not counted")


class FrameReader:
    """Takes bytes and returns whole frames; one per connection. The caller may reuse a chunk at once."""

    __slots__ = ("_at", "_buffer", "arrived", "frame_size_max")

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._buffer = bytearray()
        self._at = 0  # where the next frame begins
        self.arrived = 0
        """Bytes that have arrived of the next frame, and of those after it."""
        self.frame_size_max = frame_size_max

    def feed(self, chunk: Buffer) -> list[memoryview]:
        """The frames that `chunk` completes (bytes after the length); ProtocolViolation for one too large."""
        self.add(chunk)
        frames: list[memoryview] = []
        while self.arrived and (frame := self.take()) is not None:
            frames.append(frame)
        return frames

    def add(self, chunk: Buffer) -> None:
        """Append bytes. Frames that were taken stay valid."""
        if self._at:
            # Frames are views of the buffer, so records are not copied; the reader continues with a new one.
            self._buffer, self._at = self._buffer[self._at :], 0
        self._buffer += chunk
        self.arrived = len(self._buffer)

    def take(self) -> memoryview | None:
        """The next whole frame (the bytes after the length), or None. ProtocolViolation for one too large."""
        data, at = self._buffer, self._at
        if self.arrived < _LENGTH_SIZE:
            return None
        length = int.from_bytes(data[at : at + _LENGTH_SIZE], "big")
        self.check_length(length)
        size = _LENGTH_SIZE + length
        return self.take_whole(size) if self.arrived >= size else None

    def take_whole(self, size: int) -> memoryview:
        """The next frame, whose `size` bytes, with its length, have all arrived."""
        at = self._at
        self._at = end = at + size
        self.arrived -= size
        return memoryview(self._buffer)[at + _LENGTH_SIZE : end]

    def announced(self) -> tuple[int, int] | None:
        """The sizes of the next frame and of its header, in bytes; None before its first 8 bytes are there.

        ProtocolViolation if one of them is larger than a request may be.
        """
        data, at = self._buffer, self._at
        if self.arrived < _PREFIX.size:
            if self.arrived >= _LENGTH_SIZE:
                self.check_length(int.from_bytes(data[at : at + _LENGTH_SIZE], "big"))
            return None
        length, header_size = _PREFIX.unpack_from(data, at)
        self.check_length(length)
        if header_size > REQUEST_HEADER_MAX:
            raise _header_too_large(header_size, REQUEST_HEADER_MAX)
        return _LENGTH_SIZE + length, header_size

    def peek(self, size: int) -> bytes:
        """The first bytes of the next frame, as many of `size` as have arrived."""
        return bytes(self._buffer[self._at : self._at + size])

    def check_length(self, length: int) -> None:
        """ProtocolViolation for a length that no frame has."""
        # Before its bytes arrive: a wrong length must not make anybody wait for 4 GiB.
        if not _LENGTH_SIZE <= length <= self.frame_size_max:
            if length >> 16 in (HANDSHAKE_RECORD << 8 | 3, ALERT_RECORD << 8 | 3):
                raise PeerSpeaksTls("the other side speaks TLS, and this side does not")
            raise ProtocolViolation(f"a frame of {length} bytes; the limit is {self.frame_size_max}")
