"""Kafka's own records: written as Kafka writes them, read in any compression, refused when malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol.batches import HEADER_SIZE, MAGIC_KAFKA, place
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_columns import KafkaColumns, read_kafka_columns
from fencepost.protocol.kafka_records import (
    KafkaRecord,
    build_kafka_batch,
    build_state_batch,
    read_kafka_records,
)
from fencepost.protocol.primitives import varint
from fencepost.protocol.records import read_columns, read_keys_and_values
from tests.batches import read_batch
from tests.protocol import kafka_bytes
from tests.protocol.batches_drawn import (
    built,
    columns_of,
    encode_kafka_records,
    headers_of_a_record,
    is_accepted,
    refused,
    stranger,
    times,
)
from tests.protocol.strategies import nullable_bytes

KAFKA_RECORDS = [
    KafkaRecord(b"k1", b"v1", (("trace", b"x"), ("none", None)), 0, 0),
    KafkaRecord(None, bytes(300), (), 250, 1),
    KafkaRecord(b"k3", None, (), -1, 2),
]
KAFKA_COLUMNS = columns_of(
    [b"v1", bytes(300), None],
    keys=[b"k1", None, b"k3"],
    timestamp_deltas=[0, 250, -1],
    headers=[[("trace", b"x"), ("none", None)], None, None],
)


def test_a_batch_of_kafka_records_is_written_as_kafka_writes_it() -> None:
    batch = build_kafka_batch(
        KAFKA_RECORDS,
        timestamp=1_700_000_000_000,
        producer_id=4711,
        producer_epoch=7,
        transactional=True,
        base_sequence=11,
    )
    place(batch, base_offset=77, leader_epoch=6)
    assert bytes(batch) == kafka_bytes.BATCH


@pytest.mark.parametrize("name", ["BATCH", "BATCH_GZIP", "BATCH_SNAPPY", "BATCH_LZ4", "BATCH_ZSTD"])
def test_what_kafka_writes_is_read_whatever_its_compression(name: str) -> None:
    batch: bytes = getattr(kafka_bytes, name)
    header = read_batch(batch)
    assert (header.base_offset, header.leader_epoch, header.last_sequence) == (77, 6, 13)
    assert read_columns(batch, header) == KAFKA_COLUMNS


def test_markers_have_columns_too() -> None:
    columns = read_columns(kafka_bytes.COMMIT_MARKER, read_batch(kafka_bytes.COMMIT_MARKER))
    assert columns == columns_of([bytes.fromhex("000000000009")], keys=[bytes.fromhex("00000001")])


kafka_record_lists = st.lists(
    st.builds(
        KafkaRecord,
        nullable_bytes,
        nullable_bytes,
        headers_of_a_record.map(tuple),
        times,
        offset_delta=st.just(0),
    ),
    min_size=1,
    max_size=8,
)


@given(kafka_record_lists, times)
def test_both_layouts_say_the_same(records: list[KafkaRecord], timestamp: int) -> None:
    batch = build_kafka_batch(records, timestamp=timestamp)
    columns = read_columns(batch, read_batch(batch))
    ours = built(columns, base_timestamp=timestamp)
    assert read_columns(ours, read_batch(ours)) == columns
    assert columns.values == [record.value for record in records]
    assert columns.keys or [None] * len(records) == [record.key for record in records]


def test_the_name_of_a_header_may_be_any_bytes() -> None:
    """Kafka's clients that are not in Java send what the application gives them."""
    payload = bytes.fromhex("18 00 00 00 01 01 02 06 61ff62 02 78".replace(" ", ""))
    (record,) = read_kafka_records(payload, 1)
    assert record.headers == (("a\ufffdb", b"x"),)


def test_kafka_records_that_compaction_thinned_keep_their_offsets() -> None:
    payload = bytes(build_kafka_batch([KafkaRecord(b"k", b"v")], timestamp=0)[HEADER_SIZE:])
    moved = payload[:3] + b"\x08" + payload[4:]  # offset delta 4
    batch = stranger(moved, magic=MAGIC_KAFKA, record_count=1, last_offset_delta=6)
    assert read_columns(batch, read_batch(batch)) == columns_of([b"v"], keys=[b"k"], offset_deltas=[4])
    refused(stranger(moved, magic=MAGIC_KAFKA, record_count=1, last_offset_delta=3), "ascend")


@pytest.mark.parametrize(
    ("payload", "because"),
    [
        pytest.param("0e 00 00 00 01 01 00", "announces 7 bytes", id="longer than what is left"),
        pytest.param("0a 00 00 00 01 01 00", "differs", id="shorter than its content"),
        pytest.param("0c 00 00 00 01 01 00 00", "follow", id="a byte behind the last"),
        pytest.param("01 00 00 00 01 01 00", "announces -1 bytes", id="a negative length"),
        pytest.param("0c 00 00 00 03 01 00", "-2 bytes are announced", id="a key of -2 bytes"),
        pytest.param("0c 00 00 00 7e 01 00", "63 bytes are announced", id="a key beyond the end"),
        pytest.param("0c 00 00 00 01 01 7e", "63 headers", id="more headers than bytes"),
        pytest.param("0c 00 00 00 01 01 01", "-1 headers", id="fewer headers than none"),
        pytest.param("10 00 00 00 01 01 02 01 01", "has no name", id="a header without name"),
        pytest.param("80 80 80 80 80 80 80 80 80 80 80", "does not end", id="an endless varint"),
        pytest.param("0a 00 00 00 01", "do not fit", id="less than a record"),
    ],
)
def test_kafka_records_of_the_wrong_shape_are_refused(payload: str, because: str) -> None:
    refused(stranger(bytes.fromhex(payload), magic=MAGIC_KAFKA, record_count=1), because)


@pytest.mark.parametrize("payload", [b"", b"\0", b"\6\0\0\0", b"\x08\0\0\0\0", b"\x0a\0\0\0\0\0"])
def test_less_than_a_record_is_none(payload: bytes) -> None:
    batch = stranger(payload, magic=MAGIC_KAFKA, record_count=1)
    with pytest.raises(ProtocolViolation, match="do not fit"):
        read_keys_and_values(batch, read_batch(batch))


@pytest.mark.parametrize("key_size", [0, 1, 63, 64])
@pytest.mark.parametrize("value_size", [0, 1, 50, 54, 55, 63, 64, 8_120, 8_180, 8_191, 8_192])
def test_a_record_alone_is_read_as_one_among_others(key_size: int, value_size: int) -> None:
    batch = build_state_batch(b"k" * key_size, b"v" * value_size, timestamp=0)
    whole = bytes(batch[HEADER_SIZE:])
    assert read_kafka_records(whole, 1) == [KafkaRecord(b"k" * key_size, b"v" * value_size)]
    structure = [at for at, byte in enumerate(whole) if byte not in b"kv"]
    for at in structure:
        for bit in range(8):
            damaged = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
            try:
                alone = read_kafka_records(damaged, 1)
            except ProtocolViolation:
                continue
            assert read_kafka_records(damaged * 2, 2) == alone * 2


LONG_ZERO = b"\x80\x80\x80\x80\x80\0"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\0\0" + LONG_ZERO + b"\1\1\0", id="the offset delta"),
        pytest.param(b"\0\0\0" + LONG_ZERO + b"\1\0", id="the length of the key"),
        pytest.param(b"\0\0\0\1" + LONG_ZERO + b"\0", id="the length of the value"),
        pytest.param(b"\0\0\0\1\1" + LONG_ZERO, id="the count of headers"),
        pytest.param(b"\0\0\0\1\1\2" + LONG_ZERO + b"\1", id="the length of a name"),
    ],
)
def test_a_number_of_six_bytes_is_refused_where_kafka_reads_five(body: bytes) -> None:
    """Only timestamp deltas have 64 bits: Kafka's readers stop at any other varint that is longer."""
    refused(stranger(varint(len(body)) + body, magic=MAGIC_KAFKA, record_count=1), "within 5 bytes")


def test_a_length_of_six_bytes_is_refused_and_a_time_of_ten_is_read() -> None:
    record = b"\0\0\0\1\1\0"
    length = b"\x8c\x80\x80\x80\x80\0"  # 6
    refused(stranger(length + record, magic=MAGIC_KAFKA, record_count=1), "within 5 bytes")
    late = b"\0" + b"\x80" * 9 + b"\0" + b"\0\1\1\0"
    assert is_accepted(varint(len(late)) + late, 1)


def _in_columns(payload: bytes, record_count: int) -> object:
    """What the fast reader says, or that it refuses."""
    try:
        return read_kafka_columns(payload, record_count)
    except ProtocolViolation as violation:
        return str(violation)


def _one_by_one(payload: bytes, record_count: int) -> object:
    """The same from the reader of single records."""
    try:
        records = read_kafka_records(payload, record_count)
    except ProtocolViolation as violation:
        return str(violation)
    offsets = [record.offset_delta for record in records]
    times = [record.timestamp_delta for record in records]
    headers = [list(record.headers) or None for record in records]
    return KafkaColumns(
        [record.key for record in records],
        [record.value for record in records],
        times if any(times) else None,
        None if offsets == list(range(len(records))) else offsets,
        headers if any(headers) else None,
    )


@given(kafka_record_lists, st.data())
def test_columns_are_read_as_records_are_whatever_was_done_to_them(
    records: list[KafkaRecord], data: st.DataObject
) -> None:
    payload = encode_kafka_records(records)
    assert _in_columns(payload, len(records)) == _one_by_one(payload, len(records))
    at = data.draw(st.integers(0, len(payload) - 1))
    byte = data.draw(st.integers(0, 255))
    for damaged in (
        payload[:at] + bytes((byte,)) + payload[at + 1 :],
        payload[:at],
        payload[:at] + bytes((byte,)) + payload[at:],
    ):
        assert _in_columns(damaged, len(records)) == _one_by_one(damaged, len(records))


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 100, 8_100, 8_191, 8_192, 20_000])
@pytest.mark.parametrize("count", [1, 2, 64, 65, 100])
def test_columns_of_every_length(size: int, count: int) -> None:
    records = [KafkaRecord(b"k" * (number % 70), b"v" * size, (), -number * 100) for number in range(count)]
    payload = bytes(build_kafka_batch(records, timestamp=0)[HEADER_SIZE:])
    assert _in_columns(payload, count) == _one_by_one(payload, count)
    assert isinstance(_in_columns(payload, count), KafkaColumns)


def test_columns_of_very_many_records() -> None:
    records = [KafkaRecord(None, None, (), 1 << 40)] * 9_000
    payload = bytes(build_kafka_batch(records, timestamp=0)[HEADER_SIZE:])
    assert _in_columns(payload, len(records)) == _one_by_one(payload, len(records))


def test_every_damaged_bit_says_the_same_in_columns() -> None:
    records = [KafkaRecord(b"k" * 70, b"v" * 100, (("h", b"x"),), 5), KafkaRecord(None, None, (), 300)]
    whole = bytes(build_kafka_batch(records, timestamp=0)[HEADER_SIZE:])
    for at in (at for at, byte in enumerate(whole) if byte not in b"kv"):
        for bit in range(8):
            damaged = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
            assert _in_columns(damaged, 2) == _one_by_one(damaged, 2), (at, bit)
