"""Batches whose items have equal lengths need no decoding: their rows are the same, and so are refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.journal.memory import MemoryStorage
from fencepost.protocol.batches import BatchHeader, read_header
from fencepost.protocol.compression import Compression
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.records import Columns, build_data_batch, read_columns
from fencepost.protocol.terms import TopicPartition
from fencepost.spark_bridge import equal_lengths
from fencepost.spark_bridge.columns import Column
from fencepost.spark_bridge.equal_lengths import RECORDS_MIN, Grids, read_grids
from fencepost.spark_bridge.planning import PartitionRange
from fencepost.spark_bridge.rows import Rows
from tests.protocol.batches_drawn import stranger
from tests.spark.logs import COMMITTED, new_log, read, visible

COLUMNS = [Column(name, name) for name in ("offset", "key", "value", "timestamp", "headers")]
COUNT = 16  # the shortest array whose length is not in its first byte

Batch = bytes | bytearray


@pytest.fixture(autouse=True)
def few_records_suffice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(equal_lengths, "RECORDS_MIN", COUNT)
        yield


def grids_of(batch: Batch) -> Grids | None:
    return read_grids(memoryview(batch), read_header(batch))


def by_grids(batch: Batch, header: BatchHeader) -> Columns | Grids:
    return read_grids(memoryview(batch), header) or read_columns(batch, header)


def rows_of(drawn: Sequence[Batch], reader: Any, start: int = 0, end: int = 1_000) -> Any:
    """The rows by column, or why there are none. Every batch begins at offset 0."""
    range_ = PartitionRange(partition=TopicPartition("orders", 0), start=start, end=end)
    rows = Rows(COLUMNS)
    try:
        for batch in drawn:
            header = read_header(batch)
            rows.add(header, reader(batch, header), range_)
    except ProtocolViolation as problem:
        return str(problem)
    return rows.take().to_pydict()


@st.composite
def batches(draw: st.DrawFn) -> bytearray:
    """Most items of a column have one length; a column may be odd in one place."""
    count = draw(st.integers(COUNT, COUNT + 4))

    def column(length: int) -> list[bytes | None]:
        items: list[bytes | None] = [bytes([number]) * length for number in range(count)]
        if draw(st.booleans()):
            items[draw(st.integers(0, count - 1))] = draw(st.none() | st.binary(max_size=4))
        return items

    lengths = st.sampled_from([0, 1, 3, 255, 256])
    return build_data_batch(
        column(draw(lengths)),
        keys=draw(st.sampled_from([None, column(draw(lengths))])),
        timestamp_deltas=draw(st.sampled_from([None, list(range(count))])),
        headers=draw(st.sampled_from([None, [[("h", b"1")]] * count])),
        base_timestamp=1_000,
        compression=draw(st.sampled_from([Compression.NONE, Compression.ZSTD])),
    )


@given(st.lists(batches(), min_size=1, max_size=5), st.integers(0, 5), st.integers(8, 20))
def test_rows_are_the_same_both_ways(drawn: list[bytearray], start: int, end: int) -> None:
    assert rows_of(drawn, by_grids, start, end) == rows_of(drawn, read_columns, start, end)


def packed(values: object, *, keys: object = None, count: int = COUNT, after: bytes = b"") -> bytearray:
    return stranger(msgpack.packb((None, keys, values, None, None)) + after, record_count=count)


EQUAL = [b"%03d" % number for number in range(COUNT)]
STRANGE = {
    "a string among bytes": packed([*EQUAL[:-1], "abc"]),
    "strings": packed(["abc"] * COUNT),
    "strings as keys": packed(EQUAL, keys=["abc"] * COUNT),
    "numbers": packed([1] * COUNT),
    "lists": packed([[b"a"]] * COUNT),
    "a missing value": packed(EQUAL[1:]),
    "a value too many": packed([*EQUAL, b"abc"]),
    "a key too many": packed(EQUAL, keys=[*EQUAL, b"abc"]),
    "no values": packed(None),
    "bytes at the end": packed(EQUAL, after=b"\xc0\xc0"),
    "the last offset delta of other records": stranger(
        msgpack.packb((None, None, EQUAL, None, None)), record_count=COUNT, last_offset_delta=COUNT
    ),
    "nothing": stranger(b"", record_count=COUNT),
    "the beginning": stranger(b"\x95\xc0\xc0\xdc\x00\x10\xc0\xc0", record_count=COUNT),
}


@pytest.mark.parametrize("batch", STRANGE.values(), ids=STRANGE.keys())
def test_what_is_refused_is_refused_both_ways(batch: bytearray) -> None:
    refusal = rows_of([batch], read_columns)
    assert isinstance(refusal, str)
    assert rows_of([batch], by_grids) == refusal


@pytest.mark.parametrize("keys", [None, [b"k%d" % (number % 10) for number in range(COUNT)]])
def test_a_changed_byte_makes_no_difference_between_both_ways(keys: list[bytes] | None) -> None:
    payload = msgpack.packb((None, keys, EQUAL, None, None))
    for place in range(len(payload)):
        for byte in {0x00, 0x01, 0x0F, 0x90, 0xA3, 0xC0, 0xC4, 0xC5, 0xD9, 0xDC, 0xFF, payload[place] ^ 1}:
            changed = bytearray(payload)
            changed[place] = byte
            batch = stranger(bytes(changed), record_count=COUNT)
            assert rows_of([batch], by_grids) == rows_of([batch], read_columns), (place, byte)


def test_equal_lengths_are_found() -> None:
    assert grids_of(build_data_batch(EQUAL, keys=EQUAL, base_timestamp=0)) is not None
    assert grids_of(build_data_batch(EQUAL, base_timestamp=0)) is not None
    assert grids_of(build_data_batch([b""] * COUNT, base_timestamp=0)) is not None
    assert grids_of(build_data_batch([b"x" * 70_000] * COUNT, base_timestamp=0)) is not None


def test_lengths_that_differ_are_left_to_the_decoder() -> None:
    for place in range(COUNT):
        values = list(EQUAL)
        values[place] = b"longer"
        assert grids_of(build_data_batch(values, base_timestamp=0)) is None
        assert grids_of(build_data_batch(EQUAL, keys=values, base_timestamp=0)) is None
    assert grids_of(build_data_batch(EQUAL[1:], base_timestamp=0)) is None, "too few records"


def test_a_log_with_both_kinds_of_batches_is_read_in_order() -> None:
    storage = MemoryStorage()
    log = new_log(storage)
    for _ in range(3):
        log.records(RECORDS_MIN, size=40)
        log.records(RECORDS_MIN, size=300)
        log.records(RECORDS_MIN, size=40, rich=True)
        log.records(3, size=40)
        log.records(RECORDS_MIN, producer_id=1, size=40)
        log.abort(1)
    log.write_manifest()
    assert read(storage) == visible(log.entries, COMMITTED)
