"""What the tests of records share: columns of every shape, batches of strangers, what holds of all read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import pytest
from hypothesis import strategies as st

from fencepost.protocol.batches import MAGIC_COLUMNS, MAGIC_KAFKA, build_batch, read_header
from fencepost.protocol.compression import Compression
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord, encode_record
from fencepost.protocol.records import Columns, build_data_batch, read_columns
from tests.batches import read_batch
from tests.protocol.strategies import nullable_bytes, words

SPOKEN = [Compression.NONE, Compression.GZIP, Compression.LZ4, Compression.ZSTD]
times = st.integers(-(2**40), 2**40)
headers_of_a_record = st.lists(st.tuples(words, nullable_bytes), min_size=1, max_size=3)


def columns_of(values: list[bytes | None], **columns: Any) -> Columns:
    usual: dict[str, Any] = dict.fromkeys(["offset_deltas", "keys", "timestamp_deltas", "headers"])
    return Columns(values=values, **(usual | columns))


@st.composite
def column_sets(draw: st.DrawFn) -> Columns:
    values = draw(st.lists(nullable_bytes, min_size=1, max_size=20))

    def column(entries: st.SearchStrategy[Any]) -> list[Any] | None:
        return draw(st.none() | st.lists(entries, min_size=len(values), max_size=len(values)))

    gaps = column(st.integers(1, 1_000))
    offsets = None if gaps is None else [sum(gaps[: i + 1]) - 1 for i in range(len(gaps))]
    return Columns(
        offset_deltas=offsets,
        keys=column(nullable_bytes),
        values=values,
        timestamp_deltas=column(times),
        headers=column(st.none() | headers_of_a_record),
    )


def built(
    columns: Columns, compression: Compression = Compression.NONE, base_timestamp: int = 0
) -> bytearray:
    offsets = columns.offset_deltas
    return build_data_batch(
        columns.values,
        keys=columns.keys,
        timestamp_deltas=columns.timestamp_deltas,
        headers=columns.headers,
        offset_deltas=offsets,
        last_offset_delta=None if offsets is None else offsets[-1],
        base_timestamp=base_timestamp,
        compression=compression,
    )


def stranger(payload: bytes, *, record_count: int = 2, **header: int) -> bytearray:
    """A batch with the right checksum around any records: what a stranger can always send."""
    return build_batch(
        payload,
        magic=header.get("magic", MAGIC_COLUMNS),
        attributes=header.get("attributes", 0),
        record_count=record_count,
        last_offset_delta=header.get("last_offset_delta", record_count - 1),
        base_timestamp=header.get("base_timestamp", 0),
        max_timestamp=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )


def refused(batch: bytearray, because: str) -> None:
    header = read_batch(batch)
    with pytest.raises(ProtocolViolation, match=because):
        read_columns(batch, header)


def check_read(batch: bytearray, record_count: int) -> None:
    """What is read is complete and of the promised types, or it is refused."""
    try:
        columns = read_columns(batch, read_header(batch))
    except ProtocolViolation:
        return
    assert len(columns.values) == record_count
    for column in attrs.astuple(columns, recurse=False):
        assert column is None or len(column) == record_count
    assert {type(value) for value in columns.values} <= {bytes, type(None)}
    assert {type(key) for key in columns.keys or []} <= {bytes, type(None)}
    for headers in columns.headers or []:
        for name, value in headers or []:
            assert type(name) is str
            assert value is None or type(value) is bytes


def is_accepted(payload: bytes, record_count: int) -> bool:
    """Whether a reader takes these records as a whole batch."""
    batch = stranger(payload, magic=MAGIC_KAFKA, record_count=record_count)
    try:
        return read_columns(batch, read_batch(batch)).offset_deltas is None
    except ProtocolViolation:
        return False


def encode_kafka_records(records: Iterable[KafkaRecord]) -> bytes:
    """The bytes of records with offset deltas of their own."""
    return b"".join([encode_record(*record) for record in records])
