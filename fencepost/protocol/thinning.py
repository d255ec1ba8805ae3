"""A batch with fewer records, for compaction: what is left keeps its offsets, sequences and timestamps.

Rule: base offset, last offset and producer fields never change, so every reader continues where the whole
batch ended, and a producer's last sequence can still be read from a batch without records.
"""

# Kafka does the same in MemoryRecords.filterTo. A tombstone or a marker that may go later gets a delete
# horizon (KIP-534): the base timestamp then says when, and the timestamps of the records count from there.

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgpack

from fencepost.protocol.batches import DELETE_HORIZON_BIT, MAGIC_KAFKA, BatchHeader, Buffer, rebuild_batch
from fencepost.protocol.compression import Compression, compress
from fencepost.protocol.kafka_records import encode_kafka_records, read_kafka_records
from fencepost.protocol.records import Columns, payload_of, read_columns
from fencepost.protocol.terms import INT64_MAX


class KeyedRecord(NamedTuple):
    """What compaction looks at in a record."""

    offset: int
    key: bytes | None
    is_tombstone: bool


def keyed_records(batch: Buffer, header: BatchHeader) -> list[KeyedRecord]:
    """The records of a data batch; ProtocolViolation when they cannot be read."""
    base = header.base_offset
    if header.magic == MAGIC_KAFKA:
        records = read_kafka_records(bytes(payload_of(batch, header)), header.record_count)
        return [
            KeyedRecord(base + record.offset_delta, record.key, record.value is None) for record in records
        ]
    columns = read_columns(batch, header)
    deltas = range(header.record_count) if columns.offset_deltas is None else columns.offset_deltas
    keys = [None] * header.record_count if columns.keys is None else columns.keys
    return [
        KeyedRecord(base + delta, key, value is None)
        for delta, key, value in zip(deltas, keys, columns.values, strict=True)
    ]


def thinned(
    batch: Buffer, header: BatchHeader, kept: Sequence[int], *, delete_horizon_ms: int | None
) -> bytearray:
    """The batch with the records at these places alone, and with a delete horizon if one is given.

    Its largest timestamp stays, since it is also when its producer wrote last.
    """
    base = header.base_timestamp if delete_horizon_ms is None else delete_horizon_ms
    shift_ms = header.base_timestamp - base
    if header.magic == MAGIC_KAFKA:
        records = read_kafka_records(bytes(payload_of(batch, header)), header.record_count)
        payload: Buffer = encode_kafka_records(
            records[at]._replace(timestamp_delta=_shifted(records[at].timestamp_delta, shift_ms))
            for at in kept
        )
    else:
        payload = _encoded(read_columns(batch, header), kept, shift_ms=shift_ms)
    return _rebuilt(
        header,
        compress(payload, Compression(header.compression)),
        record_count=len(kept),
        base_timestamp=base,
        attributes=header.attributes | (0 if delete_horizon_ms is None else DELETE_HORIZON_BIT),
    )


def emptied(header: BatchHeader) -> bytearray:
    """The batch without records: it says who wrote last, when, and up to which sequence."""
    return _rebuilt(
        header,
        b"",
        record_count=0,
        base_timestamp=header.max_timestamp,
        attributes=header.attributes & ~DELETE_HORIZON_BIT,
    )


def _encoded(columns: Columns, kept: Sequence[int], *, shift_ms: int) -> bytes:
    deltas, keys = columns.offset_deltas, columns.keys
    times, headers = columns.timestamp_deltas, columns.headers
    is_dense = deltas is None and list(kept) == list(range(len(columns.values)))
    return msgpack.packb(
        (
            None if is_dense else [at if deltas is None else deltas[at] for at in kept],
            None if keys is None else [keys[at] for at in kept],
            [columns.values[at] for at in kept],
            [_shifted(times[at] if times else 0, shift_ms) for at in kept] if times or shift_ms else None,
            None if headers is None else [headers[at] for at in kept],
        )
    )


def _shifted(timestamp_delta: int, shift_ms: int) -> int:
    """A delta against another base. A time near the least that 64 bits hold would have a delta that they do
    not; the record gets the least delta instead.
    """
    return max(-INT64_MAX - 1, timestamp_delta + shift_ms)


def _rebuilt(
    header: BatchHeader, payload: Buffer, *, record_count: int, base_timestamp: int, attributes: int
) -> bytearray:
    return rebuild_batch(
        payload,
        header,
        magic=header.magic,
        attributes=attributes,
        record_count=record_count,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
    )
