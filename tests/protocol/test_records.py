"""Columns: there and back, Kafka's records beside ours, and everything a stranger may put into a batch."""

from __future__ import annotations

from typing import Any

import attrs
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.protocol.batches import (
    HEADER_SIZE,
    MAGIC_COLUMNS,
    MAGIC_KAFKA,
    build_batch,
    place,
    read_batch,
    read_header,
)
from fencepost.protocol.compression import Compression
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.records import Columns, build_data_batch, read_columns
from fencepost.protocol.terms import INT64_MAX
from tests.protocol import kafka_bytes
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


@settings(max_examples=200)
@given(columns=column_sets(), compression=st.sampled_from(SPOKEN), base_timestamp=times)
def test_columns_come_back_as_they_were_written(
    columns: Columns, compression: Compression, base_timestamp: int
) -> None:
    batch = built(columns, compression, base_timestamp)
    header = read_batch(batch)
    assert read_columns(batch, header) == columns
    assert header.compression == compression
    assert header.max_timestamp == base_timestamp + max(columns.timestamp_deltas or [0])
    shifted = b"before" + batch + b"after"
    assert read_columns(memoryview(shifted), header, 6) == columns


def test_a_batch_carries_the_identity_of_its_producer() -> None:
    batch = build_data_batch(
        [b"v"],
        base_timestamp=5,
        max_timestamp=9,
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
        transactional=True,
        compression=Compression.ZSTD,
    )
    header = read_batch(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1, 2, 3)
    assert (header.base_timestamp, header.max_timestamp) == (5, 9)
    assert header.is_transactional
    assert header.compression == 4
    plain = read_batch(build_data_batch([b"v"], base_timestamp=5))
    assert (plain.producer_id, plain.producer_epoch, plain.base_sequence) == (-1, -1, -1)
    assert not plain.is_transactional


def test_the_layout_is_the_documented_one() -> None:
    batch = build_data_batch([b"v", None], keys=[b"k", None], base_timestamp=0)
    assert bytes(batch[HEADER_SIZE:]) == bytes.fromhex("95 c0 92c4016bc0 92c40176c0 c0 c0")


def test_no_headers_read_as_none_however_they_were_given() -> None:
    batch = build_data_batch([b"a", b"b"], headers=[[], [("h", None)]], base_timestamp=0)
    assert read_columns(batch, read_batch(batch)).headers == [None, [("h", None)]]


def test_bytes_of_any_kind_may_be_sent_and_come_back_as_bytes() -> None:
    batch = build_data_batch([bytearray(b"a"), memoryview(b"b"), b"c", None], base_timestamp=0)
    assert read_columns(batch, read_batch(batch)).values == [b"a", b"b", b"c", None]


@pytest.mark.parametrize("wrong", ["text", 1, ["list"], 1.5])
def test_what_no_reader_could_read_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(TypeError, match="bytes or None"):
        build_data_batch([b"fine", wrong], base_timestamp=0)
    with pytest.raises(TypeError, match="bytes or None"):
        build_data_batch([b"fine"], keys=[wrong], base_timestamp=0)


def test_columns_of_different_lengths_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_data_batch([], base_timestamp=0)
    wrong: list[dict[str, Any]] = [
        {"keys": [b"k"]},
        {"timestamp_deltas": [1, 2, 3]},
        {"headers": [None]},
        {"offset_deltas": [0]},
    ]
    for columns in wrong:
        with pytest.raises(ValueError, match="beside 2 values"):
            build_data_batch([b"a", b"b"], base_timestamp=0, **columns)


def test_a_batch_that_compaction_emptied_has_no_records_and_keeps_its_place() -> None:
    for magic in (MAGIC_COLUMNS, MAGIC_KAFKA):
        batch = stranger(b"", magic=magic, record_count=0, last_offset_delta=9)
        place(batch, base_offset=100, leader_epoch=0)
        header = read_batch(batch)
        assert read_columns(batch, header) == columns_of([])
        assert header.next_offset == 110


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


V = [b"a", b"b"]
A_MAP: dict[str, int] = {}


@pytest.mark.parametrize(
    ("columns", "because"),
    [
        pytest.param(7 * [None], "not 5 columns", id="seven columns"),
        pytest.param([None, None, V, None], "not 5 columns", id="four columns"),
        pytest.param({"values": V}, "not msgpack", id="a map"),
        pytest.param([None, None, None, None, None], "values of a batch are missing", id="no values"),
        pytest.param([None, None, [b"a"], None, None], "values .* 2 entries", id="a value too few"),
        pytest.param([None, None, [b"a", "b"], None, None], "values .* another type", id="a string as value"),
        pytest.param(
            [None, None, [b"a", [b"b"]], None, None], "values .* another type", id="a list as value"
        ),
        pytest.param([None, None, b"ab", None, None], "values .* 2 entries", id="bytes as column"),
        pytest.param([None, [b"a"], V, None, None], "keys .* 2 entries", id="a key too few"),
        pytest.param([None, [b"a", 1], V, None, None], "keys .* another type", id="a number as key"),
        pytest.param([[0], None, V, None, None], "offset deltas .* 2 entries", id="an offset too few"),
        pytest.param([[0, None], None, V, None, None], "offset deltas .* another", id="a null offset"),
        pytest.param([[False, True], None, V, None, None], "offset deltas .* another", id="true as offset"),
        pytest.param([[1, 0], None, V, None, None], "ascend", id="offsets that descend"),
        pytest.param([[0, 0], None, V, None, None], "ascend", id="an offset twice"),
        pytest.param([[-1, 1], None, V, None, None], "ascend", id="an offset before the batch"),
        pytest.param([[0, 2], None, V, None, None], "ascend", id="an offset behind the batch"),
        pytest.param([None, None, V, [0.0, 1.0], None], "timestamp deltas .* another", id="times as floats"),
        pytest.param([None, None, V, [0, 2**63], None], "64 bits", id="a time beyond 64 bits"),
        pytest.param([None, None, V, None, [None]], "headers .* 2 entries", id="headers too few"),
        pytest.param([None, None, V, None, [None, A_MAP]], "not msgpack|another type", id="headers as map"),
        pytest.param([None, None, V, None, [None, [b"h"]]], "a name and a value", id="a header of bytes"),
        pytest.param([None, None, V, None, [None, [["h"]]]], "a name and a value", id="a header of one"),
        pytest.param([None, None, V, None, [None, [[b"h", b"v"]]]], "a string and", id="a name of bytes"),
        pytest.param([None, None, V, None, [None, [["h", "v"]]]], "bytes or null", id="a value of text"),
    ],
)
def test_columns_of_the_wrong_shape_are_refused(columns: Any, because: str) -> None:
    refused(stranger(msgpack.packb(columns)), because)


def test_bytes_that_are_no_columns_are_refused() -> None:
    whole = msgpack.packb([None, None, V, None, None])
    refused(stranger(whole[:-1]), "not msgpack")
    refused(stranger(whole + b"\xc0"), "not msgpack")
    refused(stranger(b"\xc1"), "do not fit|not msgpack")
    refused(stranger(b"\xdd\xff\xff\xff\xff" * 1000), "not msgpack")
    refused(stranger(b"\x91" * 1020 + b"\xc0"), "not 5 columns|not msgpack")
    refused(stranger(b"\x95\xc0\xc0\x92\xa2\xff\xfe\xc0\xc0\xc0"), "not msgpack")


def test_counts_of_the_header_bind_the_records() -> None:
    packed = msgpack.packb([None, None, V, None, None])
    refused(stranger(packed, record_count=2**31 - 1), "do not fit")
    refused(stranger(packed, record_count=3), "values .* 3 entries")
    refused(stranger(packed, last_offset_delta=5), "last delta 5")
    refused(stranger(packed, record_count=0, last_offset_delta=1), "0 entries")
    refused(stranger(packed, attributes=2), "snappy")
    refused(stranger(packed, attributes=4), "zstd")
    far = msgpack.packb([None, None, V, [0, 1], None])
    refused(stranger(far, base_timestamp=INT64_MAX), "64 bits")


def test_a_batch_cut_off_behind_its_header_is_refused() -> None:
    batch = build_data_batch([b"value"], base_timestamp=0)
    header = read_header(batch)
    with pytest.raises(ProtocolViolation, match="cut off"):
        read_columns(batch[:-1], header)


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


@pytest.mark.parametrize("name", ["BATCH", "BATCH_GZIP", "BATCH_LZ4", "BATCH_ZSTD"])
def test_what_kafka_writes_is_read_whatever_its_compression(name: str) -> None:
    batch: bytes = getattr(kafka_bytes, name)
    header = read_batch(batch)
    assert (header.base_offset, header.leader_epoch, header.last_sequence) == (77, 6, 13)
    assert read_columns(batch, header) == KAFKA_COLUMNS


def test_snappy_of_kafka_is_refused_with_advice() -> None:
    batch = kafka_bytes.BATCH_SNAPPY
    with pytest.raises(ProtocolViolation, match="snappy is not supported; use"):
        read_columns(batch, read_batch(batch))


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


def test_kafka_records_that_compaction_thinned_keep_their_offsets() -> None:
    payload = bytes(build_kafka_batch([KafkaRecord(b"k", b"v")], timestamp=0)[HEADER_SIZE:])
    moved = payload[:3] + b"\x08" + payload[4:]  # offset delta 4
    batch = stranger(moved, magic=MAGIC_KAFKA, record_count=1, last_offset_delta=6)
    assert read_columns(batch, read_batch(batch)) == columns_of([b"v"], keys=[b"k"], offset_deltas=[4])
    refused(stranger(moved, magic=MAGIC_KAFKA, record_count=1, last_offset_delta=3), "ascend")


@pytest.mark.parametrize(
    ("payload", "because"),
    [
        pytest.param("0e 00 00 00 01 01 00", "a record of 7", id="longer than what is left"),
        pytest.param("0a 00 00 00 01 01 00", "differs", id="shorter than its content"),
        pytest.param("0c 00 00 00 01 01 00 00", "follow", id="a byte behind the last"),
        pytest.param("01 00 00 00 01 01 00", "a record of -1", id="a negative length"),
        pytest.param("0c 00 00 00 03 01 00", "-2 bytes are announced", id="a key of -2 bytes"),
        pytest.param("0c 00 00 00 7e 01 00", "63 bytes are announced", id="a key beyond the end"),
        pytest.param("0c 00 00 00 01 01 7e", "63 headers", id="more headers than bytes"),
        pytest.param("0c 00 00 00 01 01 01", "-1 headers", id="fewer headers than none"),
        pytest.param("10 00 00 00 01 01 02 01 01", "without a name", id="a header without name"),
        pytest.param("12 00 00 00 01 01 02 02 ff 01", "UTF-8", id="a name that is not UTF-8"),
        pytest.param("80 80 80 80 80 80 80 80 80 80 80", "does not end", id="an endless varint"),
        pytest.param("0a 00 00 00 01", "do not fit", id="less than a record"),
    ],
)
def test_kafka_records_of_the_wrong_shape_are_refused(payload: str, because: str) -> None:
    refused(stranger(bytes.fromhex(payload), magic=MAGIC_KAFKA, record_count=1), because)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | words
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=15,
)
counts = st.integers(0, 4)


@given(st.lists(anything, min_size=5, max_size=5), counts, counts, st.integers(0, 7))
def test_any_columns_are_records_or_a_violation(
    columns: list[Any], record_count: int, last_offset_delta: int, attributes: int
) -> None:
    header = {"last_offset_delta": last_offset_delta, "attributes": attributes}
    batch = stranger(msgpack.packb(columns), record_count=record_count, **header)
    check_read(batch, record_count)


@given(
    st.binary(max_size=80), counts, counts, st.integers(0, 7), st.sampled_from([MAGIC_COLUMNS, MAGIC_KAFKA])
)
def test_any_payload_is_records_or_a_violation(
    payload: bytes, record_count: int, last_offset_delta: int, attributes: int, magic: int
) -> None:
    header = {"last_offset_delta": last_offset_delta, "attributes": attributes, "magic": magic}
    check_read(stranger(payload, record_count=record_count, **header), record_count)


@given(
    st.data(), st.sampled_from(["ours", "BATCH", "BATCH_GZIP", "BATCH_LZ4", "BATCH_ZSTD", "COMMIT_MARKER"])
)
def test_records_with_a_byte_changed_are_records_or_a_violation(data: st.DataObject, name: str) -> None:
    original = built(data.draw(column_sets())) if name == "ours" else bytearray(getattr(kafka_bytes, name))
    at = data.draw(st.integers(HEADER_SIZE, len(original) - 1))
    original[at] ^= data.draw(st.integers(1, 255))
    check_read(original, read_header(original).record_count)


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
