"""Kafka's records are read by position: their rows are those of the decoder, and so are refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.journal.memory import MemoryStorage
from fencepost.protocol.batches import MAGIC_KAFKA, BatchHeader, read_header
from fencepost.protocol.compression import Compression, compress
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord
from fencepost.protocol.primitives import varint
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import INT64_MAX, TopicPartition
from fencepost.spark_bridge import kafka_positions
from fencepost.spark_bridge.columns import Column
from fencepost.spark_bridge.kafka_positions import RUN_MAX, Spans, find_spans, read_spans
from fencepost.spark_bridge.partition_files import CorruptLog
from fencepost.spark_bridge.planning import PartitionRange
from fencepost.spark_bridge.rows import Rows
from tests.protocol.batches_drawn import encode_kafka_records, stranger
from tests.spark.logs import COMMITTED, new_log, read, visible

COLUMNS = [Column(name, name) for name in ("offset", "key", "value", "timestamp", "headers")]
APPEND_TIME = 0x08

Batch = bytes | bytearray


@pytest.fixture(autouse=True)
def few_records_suffice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(kafka_positions, "RECORDS_MIN", 1)
        yield


def batch_of(
    records: Sequence[KafkaRecord], *, compression: Compression = Compression.NONE, **header: int
) -> bytearray:
    return stranger(
        bytes(compress(encode_kafka_records(records), compression)),
        record_count=len(records),
        magic=MAGIC_KAFKA,
        **header | {"attributes": header.get("attributes", 0) | compression},
    )


def numbered(*records: KafkaRecord) -> list[KafkaRecord]:
    return [record._replace(offset_delta=number) for number, record in enumerate(records)]


def spans_of(batch: Batch) -> Spans | None:
    return find_spans(memoryview(batch), read_header(batch))


def by_position(batch: Batch, header: BatchHeader) -> Any:
    return find_spans(memoryview(batch), header) or read_columns(batch, header)


def rows_of(drawn: Sequence[Batch], reader: Any, start: int = 0, end: int = 1_000_000) -> Any:
    """The rows, or why there are none. Every batch begins at offset 0."""
    range_ = PartitionRange(partition=TopicPartition("orders", 0), start=start, end=end)
    rows = Rows(COLUMNS)
    try:
        for batch in drawn:
            header = read_header(batch)
            rows.add(header, reader(batch, header), range_)
        return rows.take()
    except ProtocolViolation as problem:
        return str(problem)
    except CorruptLog as problem:
        return str(problem.__cause__)


nullable = (
    st.none() | st.binary(max_size=4) | st.sampled_from([b"x" * size for size in (50, 63, 64, 8_180, 9_000)])
)
deltas = st.sampled_from([0, 1, 63, 64, -1, -64, -65, 1 << 20, (1 << 34) - 1, -(1 << 34), 1 << 34, 1 << 40])
usual_records = st.builds(KafkaRecord, key=nullable, value=nullable, timestamp_delta=deltas)
headers = st.lists(st.tuples(st.sampled_from(["", "name"]), nullable), max_size=2).map(tuple)


@st.composite
def batches(draw: st.DrawFn) -> bytearray:
    """Most records are like the first; now and then one has headers, or an offset that is not the next."""
    records = [draw(usual_records)] * draw(st.integers(7, 70))
    for _ in range(draw(st.integers(0, 3))):
        records[draw(st.integers(0, len(records) - 1))] = draw(usual_records)
    records = numbered(*records)
    if draw(st.integers(0, 9)) == 0:
        place = draw(st.integers(0, len(records) - 1))
        records[place] = records[place]._replace(headers=draw(headers), offset_delta=draw(st.integers(0, 70)))
    return batch_of(
        records,
        compression=draw(st.sampled_from([Compression.NONE, Compression.ZSTD])),
        attributes=draw(st.sampled_from([0, APPEND_TIME])),
        base_timestamp=draw(st.sampled_from([0, 1_000, INT64_MAX, -INT64_MAX])),
    )


@given(st.lists(batches(), min_size=1, max_size=5), st.integers(0, 5), st.integers(6, 80))
def test_rows_are_the_same_both_ways(drawn: list[bytearray], start: int, end: int) -> None:
    found, expected = (rows_of(drawn, reader, start, end) for reader in (by_position, read_columns))
    if isinstance(expected, str):  # if several batches are invalid, either may be found first
        assert isinstance(found, str)
    else:
        assert found == expected


def test_a_changed_byte_makes_no_difference_between_both_ways() -> None:
    records = numbered(KafkaRecord(b"k", b"v" * 70), KafkaRecord(None, b""), KafkaRecord(b"", None, (), 300))
    payload = encode_kafka_records(records)
    whole = batch_of(records)
    for place in range(len(payload)):
        for byte in {0x00, 0x01, 0x02, 0x7E, 0x7F, 0x80, 0x81, 0xFF, payload[place] ^ 1, payload[place] ^ 2}:
            changed = bytearray(payload)
            changed[place] = byte
            drawn = [whole, stranger(bytes(changed), record_count=len(records), magic=MAGIC_KAFKA), whole]
            assert rows_of(drawn, by_position) == rows_of(drawn, read_columns), (place, byte)


RECORD = KafkaRecord(b"key", b"value")
ENCODED = encode_kafka_records([RECORD])
STRANGE = {
    "a record is cut off": ENCODED[:-1],
    "bytes follow the last record": ENCODED + b"\0",
    "a record is missing": b"",
    "a length that never ends": b"\xff" * 20,
    "a record longer than its fields": varint(len(ENCODED)) + ENCODED[1:] + b"\0",
    "a record shorter than its fields": varint(len(ENCODED) - 2) + ENCODED[1:],
    "a negative length": ENCODED.replace(varint(3) + b"key", varint(-2) + b"key"),
    "a negative size": varint(-1) + ENCODED[1:],
    "a key beyond the end": ENCODED.replace(varint(3) + b"key", varint(60) + b"key"),
    "another offset": ENCODED[:3] + varint(1) + ENCODED[4:],
}


@pytest.mark.parametrize("payload", STRANGE.values(), ids=STRANGE.keys())
def test_what_is_refused_is_refused_both_ways(payload: bytes) -> None:
    batch = stranger(payload, record_count=1, magic=MAGIC_KAFKA)
    refusal = rows_of([batch], read_columns)
    assert isinstance(refusal, str)
    assert rows_of([batch], by_position) == refusal
    assert rows_of([batch_of([RECORD]), batch], by_position) == refusal


def test_a_strange_record_outside_the_range_is_refused_as_well() -> None:
    payload = encode_kafka_records(numbered(RECORD, RECORD))[:-1] + b"\1"
    batch = stranger(payload, record_count=2, magic=MAGIC_KAFKA)
    assert rows_of([batch], by_position, end=1) == rows_of([batch], read_columns, end=1)
    assert isinstance(rows_of([batch], by_position, end=1), str)


@pytest.mark.parametrize("count", [1, 2, RUN_MAX - 1, RUN_MAX, RUN_MAX + 1, 3 * RUN_MAX])
def test_runs_of_one_length_end_where_the_length_changes(count: int) -> None:
    records = numbered(*[RECORD] * count, RECORD._replace(value=b"longer"), *[RECORD] * count)
    spans = spans_of(batch_of(records))
    assert spans is not None
    sizes = [len(encode_kafka_records([record])) for record in records]
    assert spans.edges == [sum(sizes[:number]) for number in range(len(sizes) + 1)]


def test_usual_records_are_read_by_position() -> None:
    records = numbered(RECORD, KafkaRecord(None, b""), KafkaRecord(b"", None, (), -5), RECORD)
    spans = spans_of(batch_of(records, compression=Compression.GZIP))
    assert spans is not None
    positioned = read_spans([spans, spans])
    assert positioned is not None
    assert positioned.keys.to_pylist() == [record.key for record in records] * 2
    assert positioned.values.to_pylist() == [record.value for record in records] * 2
    assert positioned.timestamp_deltas.tolist() == [0, 0, -5, 0] * 2


UNUSUAL = {
    "headers": [RECORD._replace(headers=(("name", b"1"),))],
    "8 KiB": [RECORD._replace(value=b"x" * 8_192)],
    "a later offset": [RECORD._replace(offset_delta=1)],
    "a time that takes six bytes": [RECORD._replace(timestamp_delta=1 << 34)],
}


@pytest.mark.parametrize("records", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_unusual_records_are_left_to_the_decoder(records: list[KafkaRecord]) -> None:
    spans = spans_of(batch_of(records))
    assert spans is None or read_spans([spans]) is None


def test_few_records_are_left_to_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = spans_of(batch_of(numbered(*[RECORD] * 5)))
    assert spans is not None
    monkeypatch.setattr(kafka_positions, "RECORDS_MIN", 11)
    assert read_spans([spans, spans]) is None
    assert read_spans([spans, spans, spans]) is not None


def test_a_log_with_records_of_both_magics_is_read_in_order() -> None:
    storage = MemoryStorage()
    log = new_log(storage)
    for _ in range(3):
        log.records(70, size=40)
        log.records(70, size=300, rich=True)
        log.records(70, size=40, magic=MAGIC_KAFKA)
        log.records(3, size=300, magic=MAGIC_KAFKA)
        log.records(70, producer_id=1, size=40, magic=MAGIC_KAFKA)
        log.records(7, rich=True, magic=MAGIC_KAFKA)
        log.abort(1)
    log.write_manifest()
    assert read(storage) == visible(log.entries, COMMITTED)
