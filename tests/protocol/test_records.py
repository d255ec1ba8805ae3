"""Columns: there and back, Kafka's records beside ours, and everything a stranger may put into a batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.protocol.batches import HEADER_SIZE, MAGIC_COLUMNS, MAGIC_KAFKA, place, read_header
from fencepost.protocol.compression import Compression
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.records import Columns, build_data_batch, read_columns
from fencepost.protocol.terms import INT64_MAX
from tests.batches import read_batch
from tests.protocol import kafka_bytes
from tests.protocol.batches_drawn import (
    SPOKEN,
    built,
    check_read,
    column_sets,
    columns_of,
    refused,
    stranger,
    times,
)
from tests.protocol.strategies import words


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


@pytest.mark.parametrize(
    "columns",
    [
        {"timestamp_deltas": [0.5]},
        {"timestamp_deltas": [True]},
        {"offset_deltas": [None]},
        {"headers": [[("name", 1)]]},
        {"headers": [[(b"name", b"value")]]},
        {"headers": [[("name", b"value", b"more")]]},
        {"headers": [["nv"]]},
        {"headers": [{"name": b"value"}]},
    ],
)
def test_headers_and_deltas_of_another_type_are_refused_at_once(columns: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"header|integers"):
        build_data_batch([b"v"], base_timestamp=0, **columns)


@pytest.mark.parametrize(("base", "delta"), [(INT64_MAX, 1), (-INT64_MAX - 1, -1), (0, 2**63)])
def test_times_beyond_64_bits_are_refused_at_once(base: int, delta: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        build_data_batch([b"v"], base_timestamp=base, timestamp_deltas=[delta])


def test_headers_may_come_as_any_sequences() -> None:
    batch = build_data_batch([b"a", b"b"], headers=((("h", bytearray(b"v")),), None), base_timestamp=0)
    assert read_columns(batch, read_batch(batch)).headers == [[("h", b"v")], None]


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
        with pytest.raises(ValueError, match="for 2 values"):
            build_data_batch([b"a", b"b"], base_timestamp=0, **columns)


def test_a_batch_that_compaction_emptied_has_no_records_and_keeps_its_place() -> None:
    for magic in (MAGIC_COLUMNS, MAGIC_KAFKA):
        batch = stranger(b"", magic=magic, record_count=0, last_offset_delta=9)
        place(batch, base_offset=100, leader_epoch=0)
        header = read_batch(batch)
        assert read_columns(batch, header) == columns_of([])
        assert header.next_offset == 110


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
    refused(stranger(packed, attributes=5), "compression 5 is not supported")
    far = msgpack.packb([None, None, V, [0, 1], None])
    refused(stranger(far, base_timestamp=INT64_MAX), "64 bits")


def test_a_batch_cut_off_behind_its_header_is_refused() -> None:
    batch = build_data_batch([b"value"], base_timestamp=0)
    header = read_header(batch)
    with pytest.raises(ProtocolViolation, match="cut off"):
        read_columns(batch[:-1], header)


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


# --- the buffer that batches are packed in ------------------------------------------------------------------


@pytest.mark.parametrize("compression", SPOKEN)
def test_a_batch_keeps_its_bytes_when_the_next_one_is_packed(compression: Compression) -> None:
    # Of different sizes, and one that is larger than a buffer that is kept.
    sizes = (10, 3 << 20, 100_000, 1)
    batches = [
        build_data_batch([bytes([65 + at]) * size], base_timestamp=0, compression=compression)
        for at, size in enumerate(sizes)
    ]
    for at, (batch, size) in enumerate(zip(batches, sizes, strict=True)):
        assert read_columns(batch, read_batch(batch)).values == [bytes([65 + at]) * size]


def test_records_that_cannot_be_packed_leave_nothing_for_the_next_batch() -> None:
    unpacked: Any = [b"first", object()]
    with pytest.raises(TypeError, match="serialize"):
        build_data_batch(unpacked, base_timestamp=0, checked=True)
    batch = build_data_batch([b"v"], base_timestamp=0)
    assert read_columns(batch, read_batch(batch)).values == [b"v"]


def test_threads_pack_at_the_same_time() -> None:
    def packs(letter: bytes) -> set[bytes]:
        return {bytes(build_data_batch([letter * 50_000] * 20, base_timestamp=0)) for _ in range(50)}

    letters = [b"a", b"b", b"c"]
    with ThreadPoolExecutor(len(letters)) as pool:
        for letter, found in zip(letters, pool.map(packs, letters), strict=True):
            assert found == packs(letter)
            assert len(found) == 1
