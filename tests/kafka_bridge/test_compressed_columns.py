"""Columns that take more bytes for a Kafka client than in the log: their readers make progress, and a Fetch
costs no more than its limits say.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgpack
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from fencepost.broker.memory import MEBIBYTE
from fencepost.broker.server import Server
from fencepost.kafka_bridge import column_batches
from fencepost.kafka_bridge.column_batches import (
    HEADER_COUNT_MAX,
    LAST_PARTS_MAX,
    LastParts,
    decompressed,
    encode_part,
    encode_whole,
    headers_size,
)
from fencepost.kafka_bridge.records import KafkaEncoding, RecentBatches
from fencepost.protocol import column_entries
from fencepost.protocol import messages as m
from fencepost.protocol.batches import COMPRESSION_MASK, BatchHeader, Buffer, check, place, read_header, walk
from fencepost.protocol.compression import DECOMPRESSED_SIZE_MAX, Compression, compress
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch, read_kafka_records
from fencepost.protocol.records import Columns, build_data_batch, payload_of
from fencepost.protocol.terms import NO_TOPIC_ID, IsolationLevel, TopicPartition
from tests.broker.wire import until
from tests.kafka_bridge.test_connection import KafkaWire, kafka_client
from tests.protocol.batches_drawn import built, column_sets, stranger

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
FETCHES: Final = 100  # more than any of these stories needs
LISTS_IN_BATCH: Final = 4 * MEBIBYTE
ZSTD: Final = Compression.ZSTD


def packed(*sizes: int, compression: Compression = ZSTD) -> bytearray:
    """A batch with zeros for values."""
    return build_data_batch(list(map(bytes, sizes)), base_timestamp=1, compression=compression)


def produce(records: Buffer, key: TopicPartition = FIRST) -> m.Produce:
    part = m.ProducePartition(topic=key.topic, topic_id=NO_TOPIC_ID, partition=key.partition, records=records)
    return m.Produce(transactional_id=None, acks=1, timeout_ms=1_000, partitions=(part,))


def fetch(offsets: dict[TopicPartition, int], *, max_bytes: int, wait_ms: int = 0) -> m.Fetch:
    parts = (
        m.FetchPartition(topic=key.topic, partition=key.partition, fetch_offset=offset, max_bytes=max_bytes)
        for key, offset in offsets.items()
    )
    level = IsolationLevel.READ_UNCOMMITTED
    return m.Fetch(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=max_bytes, isolation_level=level, partitions=tuple(parts)
    )


def records_in(batches: Buffer) -> list[tuple[int, KafkaRecord]]:
    """The records of a response, with their offsets, as a Kafka client reads them."""
    found: list[tuple[int, KafkaRecord]] = []
    for at, header in walk(batches):
        check(batches, at, header)
        assert not header.attributes & COMPRESSION_MASK
        records = read_kafka_records(bytes(payload_of(batches, header, at)), header.record_count)
        found += [(header.base_offset + record.offset_delta, record) for record in records]
    return found


def sizes_in(batches: Buffer) -> list[int]:
    """The sizes of the values."""
    return [len(record.value or b"") for _, record in records_in(batches)]


def next_offset(batches: Buffer) -> int:
    *_, (_, last) = walk(batches)
    return last.next_offset


async def read_all(wire: KafkaWire, count: int, *, max_bytes: int) -> list[Sequence[int]]:
    """The sizes of the values of each response, up to this number of records; each is there once."""
    offset, responses = 0, list[Sequence[int]]()
    for _ in range(FETCHES):
        if offset == count:
            return responses
        (part,) = (await wire.ask(fetch({FIRST: offset}, max_bytes=max_bytes))).body.partitions
        assert part.error is ErrorCode.NONE
        offsets = [each for each, _ in records_in(part.records)]
        assert offsets == list(range(offset, offset + len(offsets)))
        responses.append(sizes_in(part.records))
        offset = next_offset(part.records)
    raise AssertionError(f"the reader is at offset {offset} of {count}")


# --- readers make progress -------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_response_has_whole_batches_up_to_the_limit() -> None:
    async with kafka_client() as (_, wire):
        for _ in range(40):
            await wire.ask(produce(packed(100_000, 100_000)))
        sizes = await read_all(wire, 80, max_bytes=1_000_000)
        assert sizes == [[100_000] * 8] * 10  # each batch has a header


@pytest.mark.trio
async def test_a_batch_larger_than_the_limit_comes_alone() -> None:
    async with kafka_client() as (_, wire):
        for _ in range(3):
            await wire.ask(produce(packed(300_000, 300_000)))
        assert await read_all(wire, 6, max_bytes=1_000) == [[300_000] * 2] * 3


@pytest.mark.trio
@pytest.mark.parametrize("max_bytes", [1_000, 7_000_000])
async def test_a_large_batch_comes_in_parts(max_bytes: int) -> None:
    async with kafka_client() as (_, wire):
        await wire.ask(produce(packed(*[2_000_000] * 10)))
        await wire.ask(produce(packed(5)))
        parts = await read_all(wire, 11, max_bytes=max_bytes)
        assert parts[0] == [2_000_000] * max(1, max_bytes // 2_000_000)
        assert sum(map(len, parts)) == 11


@pytest.mark.trio
async def test_nothing_follows_a_part() -> None:
    async with kafka_client() as (_, wire):
        await wire.ask(produce(packed(*[2_000_000] * 3)))
        await wire.ask(produce(build_kafka_batch([KafkaRecord(None, b"v")], timestamp=1)))
        assert await read_all(wire, 4, max_bytes=5_000_000) == [[2_000_000] * 2, [2_000_000], [1]]


@pytest.mark.trio
async def test_what_does_not_fit_beside_another_partition_is_the_first_of_the_next_response() -> None:
    async with kafka_client() as (_, wire):
        for key in (FIRST, SECOND):
            await wire.ask(produce(packed(600_000), key))
        reply = await wire.ask(fetch({FIRST: 0, SECOND: 0}, max_bytes=1_000_000))
        assert [sizes_in(part.records) for part in reply.body.partitions] == [[600_000], []]
        assert [part.error for part in reply.body.partitions] == [ErrorCode.NONE] * 2
        reply = await wire.ask(fetch({SECOND: 0, FIRST: 1}, max_bytes=1_000_000))
        assert sizes_in(reply.body.partitions[0].records) == [600_000]


@pytest.mark.trio
async def test_a_batch_that_cannot_be_read_stops_only_its_partition() -> None:
    broken = stranger(bytes(compress(b"\x95\xc0", ZSTD)), attributes=ZSTD)
    async with kafka_client() as (_, wire):
        for records in (packed(5), broken):
            await wire.ask(produce(records))
        await wire.ask(produce(packed(5), SECOND))
        (part,) = (await wire.ask(fetch({FIRST: 0}, max_bytes=1_000))).body.partitions
        assert (part.error, next_offset(part.records)) == (ErrorCode.NONE, 1)
        parts = (await wire.ask(fetch({FIRST: 1, SECOND: 0}, max_bytes=1_000))).body.partitions
        assert [part.error for part in parts] == [ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE]
        assert sizes_in(parts[1].records) == [5]


# --- and leave room and time for others ------------------------------------------------------------------


@pytest.mark.trio
async def test_a_response_waits_for_room_for_what_it_takes() -> None:
    async with kafka_client() as (server, wire):
        await wire.ask(produce(packed(500_000)))
        pool = server.connections.answers
        taken = pool.limit - 100_000
        pool.take(taken)
        await wire.send(fetch({FIRST: 0}, max_bytes=1_000_000))
        await until(lambda: pool.is_wanted)
        pool.give(taken)
        (reply,) = await wire.answers(1)
        assert sizes_in(reply.body.partitions[0].records) == [500_000]
        await until(lambda: pool.taken == 0)


@asynccontextmanager
async def waiting_readers(server: Server, count: int) -> AsyncGenerator[list[KafkaWire]]:
    """Kafka clients that wait for data in the first partition."""
    streams = [await trio.open_tcp_stream(*server.listener.getsockname()) for _ in range(count)]
    wires = list(map(KafkaWire, streams))
    for wire in wires:
        await wire.send(fetch({FIRST: 0}, max_bytes=1_000, wait_ms=60_000))
    await until(lambda: len(server.host.node.fetches) == count)
    yield wires
    for stream in streams:
        await stream.aclose()


@pytest.mark.trio
async def test_readers_that_wake_together_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kafka_client() as (server, wire), waiting_readers(server, 5) as readers:
        encode, put_off = KafkaEncoding.encode, list[int]()

        def counted(self: KafkaEncoding, *arguments: Any, **options: Any) -> Buffer:
            put_off.append(len(server.host.reads.put_off))
            return encode(self, *arguments, **options)

        monkeypatch.setattr(KafkaEncoding, "encode", counted)
        await wire.ask(produce(packed(2_000_000, 2_000_000)))  # large: each is the work of a round
        replies = [(await reader.answers(1))[0] for reader in readers]
        assert [sizes_in(reply.body.partitions[0].records) for reply in replies] == [[2_000_000]] * 5
        assert put_off == [0, 3, 2, 1, 0]
        assert not server.host.reads.put_off


@pytest.mark.trio
async def test_a_reader_that_leaves_before_its_turn_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kafka_client() as (server, wire), waiting_readers(server, 3) as readers:
        encode, encoded = KafkaEncoding.encode, list[int]()

        def then_all_leave(self: KafkaEncoding, *arguments: Any, **options: Any) -> Buffer:
            encoded.append(1)
            for number in sorted(server.connections.opened)[-2:]:
                server.connections.opened[number].close()
            return encode(self, *arguments, **options)

        monkeypatch.setattr(KafkaEncoding, "encode", then_all_leave)
        await wire.ask(produce(packed(2_000_000)))
        await readers[0].answers(1)
        await until(lambda: len(server.connections.opened) == 2)
        await until(lambda: not server.host.reads.put_off)
        node = server.host.node
        assert (encoded, node.fetches, node.fetches_of, node.readers) == ([1], {}, {}, {})
        assert server.connections.answers.taken == 0


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that Python had for it at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.LZ4, ZSTD])
def test_one_batch_is_decompressed_for_a_response(compression: Compression) -> None:
    batch = bytes(packed(60 * MEBIBYTE, compression=compression))

    def encode() -> None:
        encoded = KafkaEncoding().encode(batch * 20, FIRST, offset=0, max_bytes=50 * MEBIBYTE, is_first=True)
        assert next_offset(encoded) == 1

    assert peak_of(encode) < 2.5 * DECOMPRESSED_SIZE_MAX


def test_a_batch_is_not_decompressed_beyond_what_is_left() -> None:
    stored = bytes(packed(1_000)) + bytes(packed(1_000_000))

    def encode() -> None:
        encoded = KafkaEncoding().encode(stored, FIRST, offset=0, max_bytes=20_000, is_first=True)
        assert next_offset(encoded) == 1

    assert peak_of(encode) < 200_000


@pytest.mark.parametrize("is_nested", [False, True])
def test_what_decompresses_to_many_objects_makes_none_of_them(is_nested: bool) -> None:
    values = b"\xdd" + LISTS_IN_BATCH.to_bytes(4, "big") + b"\x90" * LISTS_IN_BATCH
    count = LISTS_IN_BATCH
    if is_nested:
        values, count = b"\x91" + values, 1
    payload = compress(b"\x95" + b"\xc0" * 2 + values + b"\xc0" * 2, ZSTD)
    batch = bytes(stranger(bytes(payload), attributes=ZSTD, record_count=count))

    def encode() -> None:
        with pytest.raises(ProtocolViolation, match="another type"):
            KafkaEncoding().encode(batch, FIRST, offset=0, max_bytes=1_000, is_first=True)

    assert peak_of(encode) < 8 * LISTS_IN_BATCH


def test_the_work_of_a_fetch_is_bounded() -> None:
    stored = b""
    for number in range(10):
        batch = build_data_batch([b""] * 40_000, base_timestamp=1)
        place(batch, base_offset=number * 40_000, leader_epoch=0)
        stored += batch
    encoding = KafkaEncoding()
    encoded = encoding.encode(stored, FIRST, offset=0, max_bytes=50 * MEBIBYTE, is_first=True)
    assert next_offset(encoded) == 80_000
    assert encoding.encode(bytes(packed(1)), FIRST, offset=0, max_bytes=50 * MEBIBYTE, is_first=False) == b""


def test_headers_are_work() -> None:
    stored = b""
    for number in range(3):
        batch = build_data_batch([b""], headers=[[("", None)] * 300_000], base_timestamp=1)
        place(batch, base_offset=number, leader_epoch=0)
        stored += batch
    encoded = KafkaEncoding().encode(stored, FIRST, offset=0, max_bytes=50 * MEBIBYTE, is_first=True)
    assert next_offset(encoded) == 1


@pytest.mark.trio
@pytest.mark.parametrize(
    ("value", "tries"),
    [
        pytest.param("x" * (2 * MEBIBYTE), 2, id="large"),  # as a whole, then in parts
        pytest.param(["x"] * (MEBIBYTE // 2 - 100), 1, id="small"),
    ],
)
async def test_what_cannot_be_encoded_is_tried_once_for_a_response(
    value: Any, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a batch may cost as much as all that a response may cost; the client asks for the others again."""
    tried: list[BatchHeader] = []

    def payload_seen(batch: Buffer, header: BatchHeader, **limits: Any) -> Buffer:
        tried.append(header)
        return payload_of(batch, header, **limits)

    monkeypatch.setattr(column_batches, "payload_of", payload_seen)
    payload = bytes(compress(msgpack.packb((None, None, [value], None, None)), ZSTD))
    async with kafka_client() as (_, wire):
        for key in (FIRST, SECOND):
            await wire.ask(produce(stranger(payload, attributes=ZSTD, record_count=1, base_timestamp=1), key))
        reply = await wire.ask(fetch({FIRST: 0, SECOND: 0}, max_bytes=50 * MEBIBYTE))
        assert [part.error for part in reply.body.partitions] == [ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE]
        assert len(tried) == tries


def test_recent_batches_are_bounded_by_their_bytes() -> None:
    recent = RecentBatches(100)
    for number in range(5):
        recent.put(b"%d" % number, bytes(24))
    assert [recent.get(b"%d" % number) for number in range(5)] == [None, *[bytes(24)] * 4]
    assert recent.get(b"1") is not None  # now 2 was not used for the longest time
    recent.put(b"5", bytes(24))
    assert (recent.get(b"1"), recent.get(b"2")) == (bytes(24), None)
    recent.put(b"6", bytes(1_000))
    assert (recent.held, recent.get(b"6")) == (0, None)


# --- and get the same records ----------------------------------------------------------------------------


def kafka_records_of(columns: Columns) -> list[KafkaRecord]:
    count = len(columns.values)
    rows = zip(
        columns.keys or [None] * count,
        columns.values,
        columns.headers or [None] * count,
        columns.timestamp_deltas or [0] * count,
        columns.offset_deltas or range(count),
        strict=True,
    )
    return [
        KafkaRecord(key, value, tuple(named or ()), time, delta) for key, value, named, time, delta in rows
    ]


def encoded_whole(batch: Buffer, header: BatchHeader) -> bytearray:
    payload = decompressed(batch, header, limit=DECOMPRESSED_SIZE_MAX)
    assert headers_size(payload, header) < len(payload)
    return encode_whole(payload, header)


@given(columns=column_sets(), compression=st.sampled_from(Compression), part_size=st.integers(1, 200))
def test_the_parts_of_a_batch_have_its_records(
    columns: Columns, compression: Compression, part_size: int
) -> None:
    batch = built(columns, compression)
    header = place(batch, base_offset=1_000, leader_epoch=7)
    expected = [(1_000 + record.offset_delta, record) for record in kafka_records_of(columns)]
    whole = encoded_whole(batch, header)
    assert records_in(whole) == expected
    assert read_header(whole).next_offset == header.next_offset
    for offset in range(1_000, header.next_offset, 1 + (header.next_offset - 1_000) // 10):
        at, found = offset, list[tuple[int, KafkaRecord]]()
        while at < header.next_offset:
            part = encode_part(batch, header, FIRST, offset=at, size=part_size)
            assert read_header(part).base_offset == 1_000
            found += records_in(part)
            assert next_offset(part) > at
            at = next_offset(part)
        assert found == [each for each in expected if each[0] >= offset]


def test_a_part_behind_the_last_record_is_empty() -> None:
    batch = build_data_batch([b"a", b"b"], offset_deltas=[0, 5], last_offset_delta=9, base_timestamp=1)
    part = encode_part(batch, read_header(batch), FIRST, offset=6, size=1_000)
    assert (records_in(part), next_offset(part)) == ([], 10)


def test_many_records_are_found_by_their_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_batches, "SMALL_COUNT_MAX", 10)
    monkeypatch.setattr(column_entries, "PIECE_MAX", 10)
    deltas = list(range(0, 300, 3))
    values = [b"%d" % delta for delta in deltas]
    batch = build_data_batch(values, offset_deltas=deltas, last_offset_delta=299, base_timestamp=1)
    for offset in range(300):
        found = records_in(encode_part(batch, read_header(batch), FIRST, offset=offset, size=1_000))
        assert [delta for delta, _ in found] == [delta for delta in deltas if delta >= offset][:10]


def test_the_next_part_is_found_from_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[int] = []

    def entry_seen(payload: memoryview, place: int, number: int) -> int:
        walked.append(number)
        return column_entries.entry_at(payload, place, number)

    monkeypatch.setattr(column_batches, "SMALL_COUNT_MAX", 10)
    monkeypatch.setattr(column_entries, "PIECE_MAX", 10)
    monkeypatch.setattr(column_batches, "entry_at", entry_seen)
    for deltas in (None, list(range(0, 3_000, 3))):
        walked.clear()
        batch = build_data_batch(
            [b"%d" % number for number in range(1_000)],
            keys=[b"k%d" % number for number in range(1_000)],
            offset_deltas=deltas,
            last_offset_delta=None if deltas is None else 2_999,
            base_timestamp=2,
            compression=ZSTD,
        )
        header, at, found = read_header(batch), 0, list[bytes | None]()
        while at < header.next_offset:
            part = encode_part(batch, header, FIRST, offset=at, size=1_000)
            found += [record.value for _, record in records_in(part)]
            at = next_offset(part)
        assert found == [b"%d" % number for number in range(1_000)]
        assert max(walked) <= 10
        for offset in (500, 20, 501, 0):  # a reader that seeks
            (first, *_) = records_in(encode_part(batch, header, FIRST, offset=offset, size=1_000))
            assert first[0] == (offset if deltas is None else -(-offset // 3) * 3)


def test_last_parts_are_bounded() -> None:
    known = LastParts()
    start = column_batches._Start(0, ())  # pyright: ignore[reportPrivateUsage] - only its place is looked at
    for number in range(LAST_PARTS_MAX + 1):
        known.put(number, start, start)
    assert known.get(0) is None
    assert known.get(1) is not None
    assert known.get(LAST_PARTS_MAX) is not None


def test_headers_that_are_too_large_for_a_part_end_it() -> None:
    large = [("name", bytes(600_000))]
    batch = build_data_batch([b""] * 3, headers=[large] * 3, base_timestamp=1, compression=ZSTD)
    header = read_header(batch)
    for offset in range(3):
        part = encode_part(batch, header, FIRST, offset=offset, size=10 * MEBIBYTE)
        assert [(delta, record.headers) for delta, record in records_in(part)] == [(offset, tuple(large))]


def test_a_record_may_have_headers_of_any_size() -> None:
    large: list[Any] = [
        ("name", bytes(1_100_000)),
        ("n" * 40, None),
        ("n" * 300, b""),
        ("é" * 40_000, b"x" * 70_000),
    ]
    large += [(str(number), b"y" * 300) for number in range(20)]
    for headers in (large[:1], large[:2], large):
        batch = build_data_batch(
            [b"a", b"b", b"c"], headers=[None, headers, [("small", b"")]], base_timestamp=1, compression=ZSTD
        )
        header = read_header(batch)
        expected = [(0, ()), (1, tuple(headers)), (2, (("small", b""),))]
        for offset in range(3):
            part = encode_part(batch, header, FIRST, offset=offset, size=10 * MEBIBYTE)
            assert [(delta, record.headers) for delta, record in records_in(part)] == expected[
                offset : offset + 1
            ]


def test_a_record_with_a_megabyte_of_small_headers_is_refused() -> None:
    headers: list[tuple[str, Any]] = [("large", bytes(MEBIBYTE))]
    headers += [("", None)] * (HEADER_COUNT_MAX + 1)
    batch = build_data_batch([b""], headers=[headers], base_timestamp=1, compression=ZSTD)
    with pytest.raises(ProtocolViolation, match="a record with 65538 headers"):
        encode_part(batch, read_header(batch), FIRST, offset=0, size=10 * MEBIBYTE)


@pytest.mark.parametrize("pair", [["name", b"", b""], "text", [1, b""], ["name", "text"], [b"name", b""]])
def test_what_is_no_header_is_refused_in_large_ones_too(pair: Any) -> None:
    payload = bytes(
        compress(msgpack.packb((None, None, [b""], None, [[["large", bytes(MEBIBYTE)], pair]])), ZSTD)
    )
    batch = stranger(payload, attributes=ZSTD, record_count=1, base_timestamp=1)
    with pytest.raises(ProtocolViolation):
        encode_part(batch, read_header(batch), FIRST, offset=0, size=1_000)


@pytest.mark.parametrize("encode", [encoded_whole, encode_part], ids=["whole", "part"])
@pytest.mark.parametrize(
    "columns",
    [
        (None, None, ["text"], None, None),
        (None, [1], [b""], None, None),
        ([b""], None, [b""], None, None),
        ([[0]], None, [b""], None, None),
        ([1], None, [b""], None, None),
        (None, None, [b""], [2**63], None),
        (None, None, [b""], None, [[["name", 1]]]),
        (None, None, [b""], None, [dict[str, int]()]),
        (None, None, [b"", b""], None, None),
        (None, None, None, None, None),
    ],
)
def test_what_is_not_a_batch_is_refused(encode: Any, columns: tuple[Any, ...]) -> None:
    payload = bytes(compress(msgpack.packb(columns), ZSTD))
    batch = stranger(payload, attributes=ZSTD, record_count=1, base_timestamp=1)
    options = {} if encode is encoded_whole else {"partition": FIRST, "offset": 0, "size": 1_000}
    with pytest.raises(ProtocolViolation):
        encode(batch, read_header(batch), **options)


@pytest.mark.parametrize("value_size", [10, 2 * MEBIBYTE])
def test_damage_is_not_hidden_by_another_checksum(value_size: int) -> None:
    good, batch = bytes(packed(1)), packed(value_size, compression=Compression.NONE)
    batch[-5] ^= 1
    with pytest.raises(ProtocolViolation, match="checksum"):
        KafkaEncoding().encode(bytes(batch), FIRST, offset=0, max_bytes=1_000, is_first=True)
    found = KafkaEncoding().encode(good + batch, FIRST, offset=0, max_bytes=10 * MEBIBYTE, is_first=True)
    assert next_offset(found) == 1


def test_batches_of_kafkas_clients_leave_as_they_are_stored() -> None:
    kafka, ours = bytes(build_kafka_batch([KafkaRecord(None, b"v")], timestamp=1)), bytes(packed(9))
    assert KafkaEncoding().encode(kafka * 3, FIRST, offset=0, max_bytes=1, is_first=True) == kafka * 3
    mixed = kafka + ours + kafka
    assert sizes_in(KafkaEncoding().encode(mixed, FIRST, offset=0, max_bytes=1_000, is_first=True)) == [
        1,
        9,
        1,
    ]
    limit = 2 * len(kafka) + 20
    assert sizes_in(KafkaEncoding().encode(mixed, FIRST, offset=0, max_bytes=limit, is_first=True)) == [1, 9]
