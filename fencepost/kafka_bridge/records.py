"""Record batches for Kafka's clients, which read Kafka's own encoding (magic 2) alone.

Rule: a batch that Kafka's clients can read leaves as it is stored. A batch of columns is encoded again, with
the same offsets, timestamps, headers and producer fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import repeat
from typing import Final

from fencepost.protocol.batches import (
    COMPRESSION_MASK,
    MAGIC_AT,
    MAGIC_COLUMNS,
    BatchHeader,
    Buffer,
    build_batch,
    read_header,
    walk,
)
from fencepost.protocol.compression import Compression
from fencepost.protocol.kafka_records import KafkaRecord, encode_kafka_records
from fencepost.protocol.records import read_columns

BATCHES_KEPT: Final = 64  # encoded lately: several readers follow the end of a log


def for_kafka(records: Buffer) -> Buffer:
    """The same batches, in the encoding that Kafka's clients read."""
    view = memoryview(records)
    batches = list(walk(view))
    if all(view[at + MAGIC_AT] != MAGIC_COLUMNS for at, _ in batches):
        return records
    return b"".join(
        _encoded_again(bytes(batch)) if header.magic == MAGIC_COLUMNS else batch
        for at, header in batches
        for batch in (view[at : at + header.size],)
    )


def uses_zstd(records: Buffer) -> bool:
    """Whether a batch is compressed with zstd, which clients of old versions cannot read (KIP-110)."""
    return any(header.compression == Compression.ZSTD for _, header in walk(records))


@lru_cache(BATCHES_KEPT)
def _encoded_again(batch: bytes) -> bytearray:
    header = read_header(batch)
    return build_batch(
        encode_kafka_records(_records(batch, header)),
        # Not compressed: the broker would spend its time on it, and what it stores stays as it is.
        attributes=header.attributes & ~COMPRESSION_MASK,
        record_count=header.record_count,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
    )


def _records(batch: bytes, header: BatchHeader) -> Iterator[KafkaRecord]:
    columns = read_columns(batch, header)
    count = header.record_count
    deltas = range(count) if columns.offset_deltas is None else columns.offset_deltas
    keys = repeat(None, count) if columns.keys is None else columns.keys
    times = repeat(0, count) if columns.timestamp_deltas is None else columns.timestamp_deltas
    headers = repeat(None, count) if columns.headers is None else columns.headers
    for delta, key, value, time, named in zip(deltas, keys, columns.values, times, headers, strict=True):
        yield KafkaRecord(key, value, tuple(named or ()), timestamp_delta=time, offset_delta=delta)
