"""Small batches that decompress to many records: what looking into them may cost a request, and a round."""

from __future__ import annotations

import msgpack
import pytest

from fencepost.protocol import messages as m
from fencepost.protocol.batch_work import COMPRESSED_RECORDS_MAX, REQUEST_WORK_MAX, ROUND_WORK_MAX
from fencepost.protocol.batches import MAGIC_COLUMNS, MAGIC_KAFKA, build_batch
from fencepost.protocol.compression import DECOMPRESSED_SIZE_MAX, Compression, compress
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.kafka_records import encode_record
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import EARLIEST_TIMESTAMP, MAX_TIMESTAMP, NO_OFFSET, TopicPartition
from tests.broker.requests import NOON, ORDERS, UNCOMMITTED, body_of, produce_batches, produced
from tests.broker.story import Story

ZSTD = Compression.ZSTD
MANY = REQUEST_WORK_MAX * 2 // 5  # records; three times as many cost more than a request may
KEYED = [TopicPartition("keyed", number) for number in range(3)]


def batch_around(
    payload: bytes, record_count: int, *, magic: int = MAGIC_COLUMNS, late: int = 0
) -> bytearray:
    return build_batch(
        compress(payload, ZSTD),
        magic=magic,
        attributes=ZSTD,
        record_count=record_count,
        last_offset_delta=record_count - 1,
        base_timestamp=NOON,
        max_timestamp=NOON + late,
    )


def column(count: int, entry: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + entry * count


def columns(count: int, *, keys: bytes = b"\xc4\x01k", late: int = 0) -> bytearray:
    """Compressed records of the same key, without values; their timestamps are NOON, `late` or not."""
    return batch_around(
        b"\x95\xc0" + column(count, keys) + column(count, b"\xc0") + b"\xc0\xc0", count, late=late
    )


def with_compacted_topic() -> Story:
    story = Story()
    compacted = (m.TopicConfig(name="cleanup.policy", value="compact"),)
    wanted = m.CreateTopic(topic="keyed", partition_count=len(KEYED), configs=compacted)
    (answer,) = body_of(story.ask(m.CreateTopics(topics=(wanted,))), m.CreateTopicsReply).topics
    assert answer.error is ErrorCode.NONE
    return story


def errors(story: Story, *batches: bytearray) -> list[ErrorCode]:
    """The error of each partition, of which the first gets the first batch."""
    asked = produce_batches(dict(zip(KEYED, batches, strict=False)), name=None)
    return [part.error for part in produced(story.ask(asked)).values()]


def test_a_compressed_batch_has_a_limited_number_of_records() -> None:
    story = Story()
    for count, error in (
        (COMPRESSED_RECORDS_MAX, ErrorCode.NONE),
        (COMPRESSED_RECORDS_MAX + 1, ErrorCode.MESSAGE_TOO_LARGE),
    ):
        asked = produce_batches({ORDERS: columns(count)}, name=None)
        assert produced(story.ask(asked))[ORDERS].error is error


def test_a_request_looks_into_so_many_compressed_records_of_compacted_topics() -> None:
    story = with_compacted_topic()
    none, large = ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE
    assert errors(story, columns(MANY), columns(MANY), columns(MANY)) == [none, none, large]
    assert errors(story, columns(MANY), columns(MANY), columns(10)) == [none, none, none]
    assert errors(story, columns(COMPRESSED_RECORDS_MAX)) == [none]


def test_decompressed_bytes_cost_work_too() -> None:
    story = with_compacted_topic()
    value = msgpack.packb([bytes(DECOMPRESSED_SIZE_MAX - 1_000)])
    assert value is not None
    large = batch_around(b"\x95\xc0\x91\xc4\x01k" + value + b"\xc0\xc0", 1)
    found = errors(story, bytearray(large), bytearray(large), columns(COMPRESSED_RECORDS_MAX))
    assert found == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE]


def test_a_damaged_batch_costs_what_decompressing_it_may_have_cost() -> None:
    story = with_compacted_topic()
    damaged = columns(10)
    batch = build_batch(
        bytes(damaged[61:])[:-1], magic=MAGIC_COLUMNS, attributes=ZSTD, record_count=10,
        last_offset_delta=9, base_timestamp=NOON,
    )  # fmt: skip
    assert errors(story, batch, columns(10)) == [ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE]


@pytest.mark.parametrize("missing", [0, 5, 9])
def test_a_compressed_record_without_a_key_is_found(missing: int) -> None:
    story = with_compacted_topic()
    keys = [None if number == missing else b"k" for number in range(10)]
    packed = msgpack.packb((None, keys, [b"v"] * 10, None, None))
    assert packed is not None
    kafka = b"".join(encode_record(key, b"v", (), 0, number) for number, key in enumerate(keys))
    refused = [
        batch_around(packed, 10),
        batch_around(kafka, 10, magic=MAGIC_KAFKA),
        batch_around(kafka[:-1], 10, magic=MAGIC_KAFKA),
    ]
    assert errors(story, *refused) == [ErrorCode.INVALID_RECORD] * 3


def test_kafka_records_with_keys_are_accepted() -> None:
    story = with_compacted_topic()
    kafka = b"".join(encode_record(b"key", bytes(200), (), 5, number) for number in range(1_000))
    assert errors(story, batch_around(kafka, 1_000, magic=MAGIC_KAFKA)) == [ErrorCode.NONE]


# --- ListOffsets by timestamp -----------------------------------------------------------------------------


def listing(*timestamps: int) -> m.ListOffsets:
    parts = (
        m.ListOffsetsPartition(topic=ORDERS.topic, partition=ORDERS.partition, timestamp=timestamp)
        for timestamp in timestamps
    )
    return m.ListOffsets(isolation_level=UNCOMMITTED, partitions=tuple(parts))


def rounds_of(story: Story, request: m.ListOffsets) -> tuple[int, list[int]]:
    """How many rounds of a server a request takes, and the offsets of its answer."""
    story.host.reads.begin_round()
    to, rounds = story.offer(request), 1
    story.settle()
    while to not in story.replies:
        assert story.host.reads.put_off, "it waits for nothing else"
        assert story.host.reads.time_lookups
        assert rounds < 100
        rounds += 1
        story.host.reads.begin_round()
        while story.host.reads.offer_put_off():
            story.settle()
    assert not story.host.reads.time_lookups
    parts = body_of(story.replies.pop(to), m.ListOffsetsReply).partitions
    assert all(part.error is ErrorCode.NONE for part in parts)
    return rounds, [part.offset for part in parts]


def with_late_batches(count: int) -> Story:
    """Batches of the work of a round say to have a later record, and have none; then there is one."""
    story = Story()
    for _ in range(count):
        asked = produce_batches({ORDERS: columns(ROUND_WORK_MAX, late=5)}, name=None)
        assert produced(story.ask(asked))[ORDERS].error is ErrorCode.NONE
    story.ask(
        produce_batches({ORDERS: bytearray(build_data_batch([b"v"], base_timestamp=NOON + 5))}, name=None)
    )
    return story


def test_lookups_by_time_open_batches_in_several_rounds() -> None:
    story = with_late_batches(5)
    end = 5 * ROUND_WORK_MAX
    assert rounds_of(story, listing(NOON)) == (1, [0])
    assert rounds_of(story, listing(NOON + 5)) == (6, [end])
    assert rounds_of(story, listing(NOON + 5, NOON, MAX_TIMESTAMP)) == (12, [end, 0, end])
    assert rounds_of(story, listing(NOON + 6, EARLIEST_TIMESTAMP)) == (1, [NO_OFFSET, 0])


def test_a_lookup_of_a_connection_that_is_gone_is_forgotten() -> None:
    story = with_late_batches(3)
    story.host.reads.begin_round()
    story.offer(listing(NOON + 5))
    story.settle()
    assert story.host.reads.put_off
    assert story.host.reads.time_lookups
    story.host.reads.is_open = lambda connection: False
    story.host.reads.begin_round()
    assert not story.host.reads.offer_put_off()
    assert not story.host.reads.put_off
    assert not story.host.reads.time_lookups


def test_without_rounds_a_lookup_is_answered_at_once() -> None:
    story = with_late_batches(3)
    parts = body_of(story.ask(listing(NOON + 5)), m.ListOffsetsReply).partitions
    assert [part.offset for part in parts] == [3 * ROUND_WORK_MAX]
