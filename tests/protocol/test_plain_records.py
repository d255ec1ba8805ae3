"""The check of Kafka's records without objects: it accepts what is usual, nothing that a reader refuses."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.protocol.batches import HEADER_SIZE, MAGIC_KAFKA, read_header
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.plain_records import PLAIN_TIME_DELTA_MAX, are_plain
from fencepost.protocol.records import check_records
from tests.protocol.batches_drawn import encode_kafka_records, is_accepted, stranger
from tests.protocol.strategies import nullable_bytes
from tests.python_calls import calls_of

plain_records = st.builds(
    KafkaRecord,
    nullable_bytes,
    st.none() | st.binary(max_size=200),
    st.lists(st.tuples(st.sampled_from(["", "trace", "ü" * 40]), nullable_bytes), max_size=3).map(tuple),
    st.integers(-PLAIN_TIME_DELTA_MAX, PLAIN_TIME_DELTA_MAX - 1),
)


@given(st.lists(plain_records, min_size=1, max_size=5), st.sampled_from([0, 60]))
@example([KafkaRecord(b"k", b"v")] * 5, 8_190)
@example([KafkaRecord(b"k", b"v", (("long", bytes(64)),))], 0)
@example([KafkaRecord(b"k", b"v", (("x", b""),) * 200)], 0)
def test_usual_records_are_plain(records: list[KafkaRecord], before: int) -> None:
    """The offset deltas from 64 on have two bytes, and from 8,192 on three."""
    every = [KafkaRecord(b"k", b"v")] * before + records
    payload = bytes(build_kafka_batch(every, timestamp=0)[HEADER_SIZE:])
    assert are_plain(payload, len(every))
    assert not are_plain(payload, len(every) + 1)
    assert not are_plain(payload, len(every) - 1)


@given(st.lists(plain_records, min_size=1, max_size=3), st.data())
def test_plain_records_are_readable_whatever_was_done_to_them(
    records: list[KafkaRecord], data: st.DataObject
) -> None:
    payload = bytearray(build_kafka_batch(records, timestamp=0)[HEADER_SIZE:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at : at + data.draw(st.integers(0, 1))] = data.draw(st.binary(min_size=1, max_size=2))
    for record_count in range(1, len(records) + 2):
        is_readable = is_accepted(bytes(payload), record_count)
        if are_plain(bytes(payload), record_count):
            assert is_readable
        assert is_checked(bytes(payload), record_count) == is_readable


def is_checked(payload: bytes, record_count: int) -> bool:
    """Whether a broker takes these records from a producer."""
    batch = stranger(payload, magic=MAGIC_KAFKA, record_count=record_count)
    try:
        check_records(batch, read_header(batch))
    except ProtocolViolation:
        return False
    return True


UNUSUAL = KafkaRecord(b"k", b"v", (("name", b"content"),) * 1_000, timestamp_delta=PLAIN_TIME_DELTA_MAX)


@pytest.mark.parametrize("record", [UNUSUAL._replace(timestamp_delta=0), UNUSUAL])
def test_the_check_of_headers_makes_no_calls(record: KafkaRecord) -> None:
    """Half a million headers fit into a megabyte."""
    batch = build_kafka_batch([record], timestamp=0)
    assert calls_of(lambda: check_records(batch, read_header(batch))) < 100


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([KafkaRecord(None, bytes(8_192))], id="a long value"),
        pytest.param([KafkaRecord(b"k", b"v", timestamp_delta=PLAIN_TIME_DELTA_MAX)], id="a far time"),
    ],
)
def test_records_with_long_numbers_are_readable_and_not_plain(records: list[KafkaRecord]) -> None:
    payload = bytes(build_kafka_batch(records, timestamp=0)[HEADER_SIZE:])
    assert not are_plain(payload, len(records))
    assert is_accepted(payload, len(records))


@pytest.mark.parametrize("deltas", [(1,), (0, 0), (1, 0), (0, 2)])
def test_records_with_other_offsets_are_not_plain(deltas: tuple[int, ...]) -> None:
    payload = encode_kafka_records([KafkaRecord(b"k", b"v", offset_delta=delta) for delta in deltas])
    assert not are_plain(payload, len(deltas))


@pytest.mark.parametrize("size", [100, 8_000])
def test_every_damaged_bit_is_noticed_as_a_reader_notices_it(size: int) -> None:
    records = [KafkaRecord(b"k" * 70, b"v" * size, (("h", b"x"),), 5), KafkaRecord(None, None, (), 300)]
    whole = bytes(build_kafka_batch(records, timestamp=0)[HEADER_SIZE:])
    assert are_plain(whole, 2)
    for at in (at for at, byte in enumerate(whole) if byte not in b"kv"):
        for bit in range(8):
            damaged = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
            if are_plain(damaged, 2):
                assert is_accepted(damaged, 2), (at, bit)


def _alike(count: int, size: int = 3, first_time: int = 0, headers: int = 0) -> list[KafkaRecord]:
    """Records of equal lengths, whose fields are read together."""
    return [
        KafkaRecord(
            b"k%05d" % number,
            bytes([number % 250]) * size,
            ((f"h{number:05}", None), ("", b"%05d" % number))[:headers],
            first_time + number,
        )
        for number in range(count)
    ]


def _payload(records: list[KafkaRecord]) -> bytes:
    return bytes(build_kafka_batch(records, timestamp=0)[HEADER_SIZE:])


@pytest.mark.parametrize("size", [3, 100, 8_000])
@pytest.mark.parametrize("first_time", [0, 60, 8_000, 1 << 20, 1 << 33, -1_000])
@pytest.mark.parametrize("headers", [0, 2])
def test_records_of_equal_lengths_are_plain(size: int, first_time: int, headers: int) -> None:
    records = _alike(300, size, first_time, headers)
    payload = _payload(records)
    assert are_plain(payload, len(records))
    assert not are_plain(payload, len(records) - 1)
    assert not are_plain(payload, len(records) + 1)
    assert not are_plain(payload[:-1], len(records))


def test_many_records_of_equal_lengths_are_plain() -> None:
    """Their offset deltas have one byte up to 63, two up to 8,191, and three after that."""
    payload = _payload(_alike(20_000))
    assert are_plain(payload, 20_000)
    assert not are_plain(payload + payload[-10:], 20_000)


@pytest.mark.parametrize(
    ("before", "size", "headers"),
    [(0, 3, 0), (0, 100, 0), (0, 3, 2), (100, 3, 0), (8_180, 3, 0), (16_380, 3, 0)],
)
def test_every_damaged_bit_of_alike_records_is_noticed(before: int, size: int, headers: int) -> None:
    whole = _payload(_alike(before + 40, size, headers=headers))
    start = len(_payload(_alike(before + 12, size, headers=headers)))
    record = (len(whole) - start) // 28
    # Of one record in the middle of a run. Any content is right; far from the start, only deltas differ.
    fields = 8 if before > 1_000 else record if headers else record - size + 1
    for at in (*range(start, start + fields), start + record - 1):
        for bit in range(8):
            damaged = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
            is_content = is_accepted(damaged, before + 40)
            assert are_plain(damaged, before + 40) == is_content, (at - start, bit)


@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.integers(0, 4), st.integers(0, 200), st.integers(0, 3)),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
def test_alike_records_are_readable_whatever_was_done_to_them(
    runs: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    records = [
        KafkaRecord(b"k" * key, b"v" * value, (("h" * key, b"x" * value),) * headers, number * value)
        for count, key, value, headers in runs
        for number in range(count)
    ]
    payload = bytearray(_payload(records))
    assert are_plain(bytes(payload), len(records))
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at : at + data.draw(st.integers(0, 1))] = data.draw(st.binary(min_size=1, max_size=2))
    if are_plain(bytes(payload), len(records)):
        assert is_accepted(bytes(payload), len(records))
