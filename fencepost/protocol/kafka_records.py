"""Kafka's own records inside a batch (magic 2): zig-zag varints, one record after the other.

Rule: control batches and internal topics are always these, for Kafka's tools to read (DefaultRecord.java).
"""

#     length | attributes u8 | timestamp delta | offset delta | key length, key | value length, value
#            | header count | name length, name | value length, value | ...
#
# Every number but the attributes is a zig-zag varint, and a length of -1 stands for null. Deltas are against
# the header of the batch, which makes most of them a byte. The price is a loop in Python over each field of
# each record, so our client's data is stored in columns instead (records.py). Batches of Kafka's producers
# must be checked record by record: plain_records.py does so for nearly all of them without making a record.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from fencepost.protocol.batches import TRANSACTIONAL_BIT, Buffer, build_batch
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.primitives import read_varint, read_varlong, varint
from fencepost.protocol.terms import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

Header = tuple[str, bytes | None]
RecordHeaders = Sequence[tuple[str, Buffer | None]]

RECORD_SIZE_MIN: Final = 7  # length, attributes, two deltas, two null lengths, no headers
_NULL: Final = -1
NULL_LENGTH: Final = 1  # zig-zagged
_NO_ATTRIBUTES: Final = b"\0"  # none are defined
_NO_TIMESTAMP_DELTA: Final = b"\0\0"  # and no attributes
_RECORD_START: Final = b"\0\0\0"  # no attributes, and deltas of 0
_NULL_SIZE: Final = varint(_NULL)
_NO_HEADERS: Final = b"\0"
_NO_VARINT: Final = b"\x80" * 11  # one ends within ten bytes


class KafkaRecord(NamedTuple):
    """One record; deltas are against the batch's base timestamp (ms) and base offset."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp_delta: int = 0
    offset_delta: int = 0


def build_kafka_batch(
    records: Sequence[KafkaRecord],
    *,
    timestamp: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    transactional: bool = False,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """An uncompressed batch with dense offsets; the records' own `offset_delta` is ignored."""
    payload = b"".join(
        [
            encode_record(key, value, headers, timestamp_delta, offset_delta)
            for offset_delta, (key, value, headers, timestamp_delta, _) in enumerate(records)
        ]
    )
    record_count = len(records)
    return build_batch(
        payload,
        attributes=TRANSACTIONAL_BIT if transactional else 0,
        record_count=record_count,
        last_offset_delta=record_count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp + max((record.timestamp_delta for record in records), default=0),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def build_state_batch(key: bytes, value: bytes | None, *, timestamp: int) -> bytearray:
    """A batch of one record without headers: how a coordinator writes its state."""
    sized = _NULL_SIZE if value is None else varint(len(value)) + value
    record = _RECORD_START + _sized_key(key) + sized + _NO_HEADERS
    return build_batch(varint(len(record)) + record, base_timestamp=timestamp)


def encode_record(
    key: Buffer | None,
    value: Buffer | None,
    headers: RecordHeaders | None,
    timestamp_delta: int,
    offset_delta: int,
) -> bytes:
    """The bytes of one record. Key, value and headers are copied once only: a record may be large."""
    key_size = _NULL_SIZE if key is None else varint(len(key))
    start = _NO_ATTRIBUTES + varint(timestamp_delta) + varint(offset_delta) + key_size
    value_size = _NULL_SIZE if value is None else varint(len(value))
    key, value = key or b"", value or b""
    size = len(start) + len(key) + len(value_size) + len(value)
    if not headers:
        return b"".join((varint(size + len(_NO_HEADERS)), start, key, value_size, value, _NO_HEADERS))
    end = _header_parts(headers)
    return b"".join((varint(size + sum(map(len, end))), start, key, value_size, value, *end))


def _header_parts(headers: RecordHeaders) -> list[Buffer]:
    parts: list[Buffer] = [varint(len(headers))]
    for name, content in headers:
        encoded = name.encode()
        parts += (varint(len(encoded)), encoded)
        parts += (_NULL_SIZE,) if content is None else (varint(len(content)), content)
    return parts


def _sized(data: bytes | None) -> bytes:
    return varint(_NULL) if data is None else varint(len(data)) + data


_sized_key = lru_cache(1024)(_sized)  # a coordinator writes few keys, each of them often


def read_kafka_records(payload: bytes, record_count: int) -> list[KafkaRecord]:
    """The `record_count` records that fill `payload` (uncompressed) exactly; else ProtocolViolation."""
    # The header's count is not trusted: a wrong one would otherwise cost a loop of two billion steps.
    if record_count * RECORD_SIZE_MIN > len(payload):
        raise ProtocolViolation(f"{record_count} records do not fit into {len(payload)} bytes")
    if record_count == 1 and (only := only_record(payload)) is not None:
        return [KafkaRecord(*only)]
    records: list[KafkaRecord] = []
    at = 0
    for _ in range(record_count):
        size, at = read_varint(payload, at)
        end = at + size
        if size < 0 or end > len(payload):
            raise ProtocolViolation(f"a record announces {size} bytes, but {len(payload) - at} are left")
        record, at = _read_record(payload, at)
        # A record says its length twice, once in total and once by its fields. Readers must not differ.
        if at != end:
            raise ProtocolViolation("the length of a record differs from its content")
        records.append(record)
    if at != len(payload):
        raise ProtocolViolation(f"{len(payload) - at} bytes follow the last record")
    return records


class PlacedRecord(NamedTuple):
    """Where the parts of an encoded record are, and what compaction looks at. Its headers are not read."""

    start: int
    offset_delta_at: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


def walk_kafka_records(payload: bytes, record_count: int) -> Iterator[PlacedRecord]:
    """The records that fill `payload`, one after another, without making a list of them; ProtocolViolation
    when they do not fill it.
    """
    end, size_max = 0, len(payload)
    for _ in range(record_count):
        start = end
        size, at = read_varint(payload, start)
        end = at + size
        if size < 0 or end > size_max:
            raise ProtocolViolation(f"a record announces {size} bytes, but {size_max - at} are left")
        if payload.startswith(_NO_TIMESTAMP_DELTA, at):
            timestamp_delta, offset_delta_at = 0, at + len(_NO_TIMESTAMP_DELTA)
        else:
            timestamp_delta, offset_delta_at = read_varlong(payload, at + 1)
        offset_delta, at = read_varint(payload, offset_delta_at)
        key, at = _bytes(payload, at)
        value_size, at = read_varint(payload, at)
        if value_size < _NULL or at + max(0, value_size) >= end:  # the number of headers follows
            raise ProtocolViolation("the length of a record differs from its content")
        is_tombstone = value_size == _NULL
        yield PlacedRecord(start, offset_delta_at, end, timestamp_delta, offset_delta, key, is_tombstone)
    if end != size_max:
        raise ProtocolViolation(f"{size_max - end} bytes follow the last record")


def has_null_key(payload: bytes, record_count: int) -> bool:
    """Whether one of the records that fill `payload` has no key; ProtocolViolation when they do not fill it.
    Nothing else of a record is read, since a leader has to look at each one that is produced.
    """
    end = 0
    try:
        for _ in range(record_count):
            # `size` is kept as it stands in the bytes, doubled by zig-zag; the shift below halves it.
            size, at = payload[end], end + 1
            if size > 0x7F:
                size, at = read_varint(payload, end)
                size <<= 1
            end, at = at + (size >> 1), at + 1
            for _ in range(2):  # both deltas
                while payload[at] > 0x7F:
                    at += 1
                at += 1
            if payload[at] & 0x7F == NULL_LENGTH and read_varint(payload, at)[0] == _NULL:
                return True
            if at >= end:
                raise ProtocolViolation("the length of a record differs from its content")
    except IndexError:
        end = _NULL
    if end != len(payload):
        raise ProtocolViolation(f"{record_count} records do not fill {len(payload)} bytes")
    return False


def latest_timestamp_delta(payload: bytes, record_count: int) -> int:
    """The largest timestamp delta of the records that fill `payload`; ProtocolViolation when they do not fill
    it. Nothing else of a record is read.
    """
    end = latest = 0
    for number in range(record_count):
        size, at = read_varint(payload, end)
        end = at + size
        if size < 1 or end > len(payload):
            raise ProtocolViolation(f"a record announces {size} bytes, but {len(payload) - at} are left")
        delta = 0 if payload[at + 1 : at + 2] == b"\0" else read_varlong(payload, at + 1)[0]
        latest = delta if number == 0 else max(latest, delta)
    if end != len(payload):
        raise ProtocolViolation(f"{len(payload) - end} bytes follow the last record")
    return latest


def with_timestamp_delta(payload: bytes, record: PlacedRecord, timestamp_delta: int) -> bytes:
    start = _NO_ATTRIBUTES + varint(timestamp_delta)
    rest = payload[record.offset_delta_at : record.end]
    return b"".join((varint(len(start) + len(rest)), start, rest))


@lru_cache(1024)
def _length_in(size: int) -> bytes:
    """The length varint of a record that takes `size` bytes together with it; bytes that are not a varint if
    there is none, as for 65 bytes.
    """
    for width in range(1, len(_NO_VARINT)):
        length = varint(size - width)
        if len(length) == width and size >= width:
            return length
    return _NO_VARINT


def only_record(payload: bytes) -> tuple[bytes, bytes] | None:
    """Key and value of the record that fills `payload`, if it has the form that `build_state_batch` writes.
    None for any other bytes, which the loop over fields reads or refuses in several times as many steps.
    """
    size = len(payload)
    start = _length_in(size) + _RECORD_START
    if size < RECORD_SIZE_MIN or not (payload.startswith(start) and payload.endswith(_NO_HEADERS)):
        return None
    key_at = len(start) + 1
    doubled = payload[key_at - 1]  # the length of the key: zig-zag doubles what is not negative
    key_end = key_at + (doubled >> 1)
    value_length = _length_in(size - 1 - key_end)
    if doubled & 0x81 or not payload.startswith(value_length, key_end):
        return None
    return payload[key_at:key_end], payload[key_end + len(value_length) : -1]


def _read_record(payload: bytes, at: int) -> tuple[KafkaRecord, int]:
    timestamp_delta = offset_delta = 0
    if payload.startswith(_RECORD_START, at):
        at += len(_RECORD_START)
    else:
        # at + 1: the attributes of a record have no meaning yet, and Kafka's readers skip them as well.
        timestamp_delta, at = read_varlong(payload, at + 1)
        offset_delta, at = read_varint(payload, at)
    key, at = _bytes(payload, at)
    value, at = _bytes(payload, at)
    if payload.startswith(_NO_HEADERS, at):
        return KafkaRecord(key, value, (), timestamp_delta, offset_delta), at + len(_NO_HEADERS)
    headers, at = read_headers(payload, at)
    return KafkaRecord(key, value, tuple(headers), timestamp_delta, offset_delta), at


def read_headers(payload: bytes, at: int) -> tuple[list[Header], int]:
    """The headers of the record, whose count is at byte `at`, and the position after them;
    ProtocolViolation when they are malformed.
    """
    header_count, at = read_varint(payload, at)
    # Each header takes a byte at least, so the bytes that are left bound the loop.
    if not 0 <= header_count <= len(payload) - at:
        raise ProtocolViolation(f"a record announces {header_count} headers in {len(payload) - at} bytes")
    headers: list[Header] = []
    for _ in range(header_count):
        name, at = _bytes(payload, at)
        content, at = _bytes(payload, at)
        headers.append((_header_name(name), content))
    return headers, at


def _header_name(name: bytes | None) -> str:
    if name is None:
        raise ProtocolViolation("a header has no name")
    return str(name, "utf-8", "replace")  # Kafka reads any bytes this way (Utils.utf8)


def _bytes(payload: bytes, at: int) -> tuple[bytes | None, int]:
    if at < len(payload) and (first := payload[at]) < 0x80:  # as in read_varint, without the call
        size, at = (first >> 1) ^ -(first & 1), at + 1
    else:
        size, at = read_varint(payload, at)
    if size == _NULL:
        return None, at
    end = at + size
    if size < 0 or end > len(payload):
        raise ProtocolViolation(f"{size} bytes are announced and {len(payload) - at} are left")
    return payload[at:end], end
