"""A batch with fewer records against the records that were chosen from the whole one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.protocol.batches import BatchHeader, build_batch, read_header
from fencepost.protocol.column_entries import PIECE_MAX
from fencepost.protocol.compression import Compression, compress
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord, read_kafka_records, walk_kafka_records
from fencepost.protocol.records import Columns, has_null_key, payload_of, read_columns
from fencepost.protocol.thinning import KeyedRecord, keyed_records, thinned
from tests.batches import read_batch
from tests.protocol.batches_drawn import (
    SPOKEN,
    built,
    column_sets,
    columns_of,
    encode_kafka_records,
    stranger,
    times,
)
from tests.protocol.strategies import nullable_bytes, words

ZSTD = Compression.ZSTD

kafka_records = st.lists(
    st.builds(
        KafkaRecord,
        key=nullable_bytes,
        value=nullable_bytes,
        headers=st.lists(st.tuples(words, nullable_bytes), max_size=2).map(tuple),
        timestamp_delta=times,
    ),
    min_size=1,
    max_size=80,
)


def in_kafka_bytes(records: Sequence[KafkaRecord], compression: Compression) -> bytearray:
    payload = encode_kafka_records(
        record._replace(offset_delta=number) for number, record in enumerate(records)
    )
    return build_batch(
        compress(payload, compression),
        attributes=compression,
        record_count=len(records),
        last_offset_delta=len(records) - 1,
        base_timestamp=0,
        max_timestamp=max(record.timestamp_delta for record in records),
    )


def check_thinned(batch: bytearray, keep: Sequence[bool], horizon: int | None) -> None:
    header = read_batch(batch)
    whole, kept = read_columns(batch, header), [number for number, stays in enumerate(keep) if stays]
    offsets = whole.offset_deltas or range(header.record_count)
    keys = whole.keys or [None] * header.record_count
    assert list(keyed_records(batch, header)) == [
        KeyedRecord(offset, key, value is None)
        for offset, key, value in zip(offsets, keys, whole.values, strict=True)
    ]
    assert has_null_key(payload_of(batch, header), header) == (None in keys)
    if not kept:
        return
    made = thinned(batch, header, kept, delete_horizon_ms=horizon)
    left = read_batch(made)
    assert (left.record_count, left.delete_horizon_ms) == (len(kept), horizon)
    unchanged = ("last_offset_delta", "max_timestamp", "base_offset", "base_sequence", "compression")
    assert all(getattr(left, name) == getattr(header, name) for name in unchanged)
    assert rows(read_columns(made, left), left) == [rows(whole, header)[number] for number in kept]


def rows(columns: Columns, header: BatchHeader) -> list[tuple[object, ...]]:
    """Records with timestamps of their own."""
    count = header.record_count
    return list(
        zip(
            columns.offset_deltas or range(count),
            [header.base_timestamp + time for time in columns.timestamp_deltas or [0] * count],
            columns.keys or [None] * count,
            columns.values,
            columns.headers or [None] * count,
            strict=True,
        )
    )


@settings(max_examples=200)
@given(column_sets(), st.sampled_from(SPOKEN), st.data())
def test_columns_keep_the_chosen_records(
    columns: Columns, compression: Compression, data: st.DataObject
) -> None:
    size = len(columns.values)
    keep = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    check_thinned(built(columns, compression), keep, data.draw(st.none() | times.filter(bool)))


@settings(max_examples=200)
@given(kafka_records, st.sampled_from(SPOKEN), st.data())
def test_kafka_records_keep_the_chosen_records(
    records: list[KafkaRecord], compression: Compression, data: st.DataObject
) -> None:
    keep = data.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    check_thinned(in_kafka_bytes(records, compression), keep, data.draw(st.none() | times.filter(bool)))


@given(kafka_records, st.data())
def test_damaged_kafka_records_that_can_be_read_are_walked_over(
    records: list[KafkaRecord], data: st.DataObject
) -> None:
    payload = encode_kafka_records(records)
    at = data.draw(st.integers(0, len(payload) - 1))
    damaged = payload[:at] + bytes((data.draw(st.integers(0, 255)),)) + payload[at + 1 :]
    try:
        read = read_kafka_records(damaged, len(records))
    except ProtocolViolation:
        return
    walked = list(walk_kafka_records(damaged, len(records)))
    assert [(each.key, each.timestamp_delta) for each in walked] == [
        (record.key, record.timestamp_delta) for record in read
    ]
    header = read_header(build_batch(damaged, record_count=len(records), base_timestamp=0))
    assert has_null_key(damaged, header) == any(record.key is None for record in read)


@pytest.mark.parametrize("count", [PIECE_MAX - 1, PIECE_MAX, 2 * PIECE_MAX + 1])
def test_columns_longer_than_a_piece(count: int) -> None:
    keys = [b"%d" % number for number in range(count)]
    batch = built(columns_of([b"v"] * count, keys=keys), ZSTD)
    header = read_header(batch)
    assert [record.key for record in keyed_records(batch, header)] == keys
    assert not has_null_key(payload_of(batch, header), header)
    batch = built(columns_of([b"v"] * count, keys=[*keys[:-1], None]), ZSTD)
    header = read_header(batch)
    assert has_null_key(payload_of(batch, header), header)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x95\xc0\x92\xc4\x01k\x01\x92\xc0\xc0\xc0\xc0",  # a number as a key
        b"\x95\xc0\x92\xc4\x01k\xc4\x01k\x92\xc0\xa1v\xc0\xc0",  # text as a value
        b"\x95\x92\x01\x00\x92\xc4\x01k\xc4\x01k\x92\xc0\xc0\xc0\xc0",  # offsets that descend
        b"\x95\xc0\x91\xc4\x01k\x92\xc0\xc0\xc0\xc0",  # one key for two values
    ],
)
def test_columns_whose_offsets_keys_or_values_cannot_be_read_are_refused(payload: bytes) -> None:
    batch = stranger(payload)
    with pytest.raises(ProtocolViolation):
        list(keyed_records(batch, read_header(batch)))


def test_many_small_records_take_little_more_memory_than_their_bytes() -> None:
    count = 4 * PIECE_MAX
    column = b"\xdd" + count.to_bytes(4, "big")
    empty_header = b"\x91\x92\xa0\xc0"
    payload = b"\x95\xc0" + column + b"\xc4\x01k" * count + column + b"\xc0" * count + b"\xc0"
    payload += column + empty_header * count
    batch = stranger(bytes(compress(payload, ZSTD)), record_count=count, attributes=ZSTD)
    header = read_header(batch)
    tracemalloc.start()
    try:
        assert sum(record.is_tombstone for record in keyed_records(batch, header)) == count
        made = thinned(batch, header, [0, count - 1], delete_horizon_ms=None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read_columns(made, read_header(made)).offset_deltas == [0, count - 1]
    assert peak < 4 * len(payload), "objects of all its records would take thirty times as much"
