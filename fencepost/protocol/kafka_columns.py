"""Kafka's own records as columns, for readers of many: one loop over the bytes of a batch.

Rule: what the loop returns is what `read_kafka_records` would, and what the loop does not understand it
leaves to that function. The loop takes a fifth of the time.
"""

# Nearly every varint of a record is one byte or two. The loop reads only those, in place, and gives up at a
# record of 8 KiB or more, where the cost of a record does not matter. Within a record that is smaller, a
# length that goes on after two bytes cannot be misread: it would miss the end of its record. Timestamp and
# offset deltas may be longer; a function call reads those.
#
# Numbers stay zig-zag encoded, 2n for n, until the loop is over, and whole columns are compared or decoded.

from __future__ import annotations

from typing import Final, NamedTuple

from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import (
    NULL_LENGTH,
    RECORD_SIZE_MIN,
    Header,
    KafkaRecord,
    read_headers,
    read_kafka_records,
)
from fencepost.protocol.primitives import read_varint, read_varlong

_SHORT_SIZE_MAX: Final = 0x3FFF  # what two bytes of a varint hold


class KafkaColumns(NamedTuple):
    """The fields of the records of a batch, with an entry per record in each list."""

    keys: list[bytes | None]
    values: list[bytes | None]
    timestamp_deltas: list[int] | None
    """None: all 0."""
    offset_deltas: list[int] | None
    """None: 0, 1, 2 ..."""
    headers: list[list[Header] | None] | None
    """None: no record has any."""


def read_kafka_columns(payload: bytes, record_count: int) -> KafkaColumns:
    """The `record_count` records that fill `payload` (uncompressed) exactly; else ProtocolViolation."""
    if record_count * RECORD_SIZE_MIN <= len(payload):
        scan = _RecordScan(payload)
        try:
            if scan.run(record_count) and scan.at == len(payload):
                return scan.columns(record_count)
        except (IndexError, ProtocolViolation):  # it is cut off, or was not understood
            pass
    return _transposed(read_kafka_records(payload, record_count))


class _RecordScan:
    __slots__ = ("at", "headers", "keys", "offsets", "payload", "times", "values")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.at = 0
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.times: list[int] = []
        self.offsets: list[int] = []
        self.headers: dict[int, list[Header]] = {}

    def run(self, record_count: int) -> bool:
        """Whether all records are short and well-formed. IndexError if they are cut off."""
        payload, at = self.payload, 0
        add_key, add_value = self.keys.append, self.values.append
        add_time, add_offset = self.times.append, self.offsets.append
        for number in range(record_count):
            size, at = payload[at], at + 1
            if size > 0x7F:
                size, at = size + (payload[at] << 7) - 0x80, at + 1
            end = at + (size >> 1)
            # The attributes of a record have no meaning yet.
            time, at = payload[at + 1], at + 2
            if time > 0x7F:
                time, at = _doubled(read_varlong(payload, at - 1))
            add_time(time)
            offset, at = payload[at], at + 1
            if offset > 0x7F:
                if payload[at] > 0x7F:  # in a batch of more than 8,192 records
                    offset, at = _doubled(read_varint(payload, at - 1))
                else:
                    offset, at = offset + (payload[at] << 7) - 0x80, at + 1
            add_offset(offset)
            key_size, at = payload[at], at + 1
            if key_size > 0x7F:
                key_size, at = key_size + (payload[at] << 7) - 0x80, at + 1
            start, at = at, at + (key_size >> 1)
            add_key(None if key_size & 1 else payload[start:at])
            value_size, at = payload[at], at + 1
            if value_size > 0x7F:
                value_size, at = value_size + (payload[at] << 7) - 0x80, at + 1
            start, at = at, at + (value_size >> 1)
            add_value(None if value_size & 1 else payload[start:at])
            if payload[at]:
                self.headers[number], at = read_headers(payload, at)
            else:
                at += 1
            if at != end or size > _SHORT_SIZE_MAX or size & 1:
                return False
            if (key_size & 1 and key_size != NULL_LENGTH) or (value_size & 1 and value_size != NULL_LENGTH):
                return False
        self.at = at
        return True

    def columns(self, record_count: int) -> KafkaColumns:
        """What was read."""
        is_dense = self.offsets == list(range(0, 2 * record_count, 2))
        headers = self.headers
        return KafkaColumns(
            self.keys,
            self.values,
            _plain(self.times) if any(self.times) else None,
            None if is_dense else _plain(self.offsets),
            [headers.get(number) or None for number in range(record_count)] if headers else None,
        )


def _doubled(read: tuple[int, int]) -> tuple[int, int]:
    """A number as it is encoded, and the position after it."""
    number, at = read
    return (number << 1 if number >= 0 else ~number << 1 | 1), at


def _plain(doubled: list[int]) -> list[int]:
    return [(number >> 1) ^ -(number & 1) for number in doubled]


def _transposed(records: list[KafkaRecord]) -> KafkaColumns:
    offset_deltas = [record.offset_delta for record in records]
    timestamp_deltas = [record.timestamp_delta for record in records]
    headers = [list(record.headers) or None for record in records]
    return KafkaColumns(
        [record.key for record in records],
        [record.value for record in records],
        timestamp_deltas if any(timestamp_deltas) else None,
        None if offset_deltas == list(range(len(records))) else offset_deltas,
        headers if any(headers) else None,
    )
