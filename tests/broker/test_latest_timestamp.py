"""Batches whose producer left the latest timestamp out of the header, as sarama does."""

from __future__ import annotations

import tracemalloc

import pytest

from fencepost.broker.partitions.batch_form import latest_timestamp
from fencepost.protocol import messages as m
from fencepost.protocol.batch_work import work_of
from fencepost.protocol.batches import LOG_APPEND_TIME_BIT, build_batch
from fencepost.protocol.compression import Compression, compress
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.kafka_records import encode_record
from fencepost.protocol.records import build_data_batch, payload_of
from fencepost.protocol.terms import NO_TIMESTAMP
from tests.batches import read_batch
from tests.broker.requests import NOON, ORDERS, UNCOMMITTED, body_of, produce_batches
from tests.broker.story import Story


def batch_of(
    deltas: list[int], compression: Compression, *, base_timestamp: int = NOON, attributes: int = 0
) -> bytearray:
    payload = b"".join(encode_record(None, b"v", (), delta, number) for number, delta in enumerate(deltas))
    return build_batch(
        compress(payload, compression) if compression else payload,
        attributes=compression | attributes,
        record_count=len(deltas),
        last_offset_delta=len(deltas) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=NO_TIMESTAMP,
    )


def write(story: Story, batch: bytearray) -> None:
    reply = body_of(story.ask(produce_batches({ORDERS: batch}, name=None)), m.ProduceReply)
    assert [part.error for part in reply.partitions] == [ErrorCode.NONE]


def found_at(story: Story, timestamp: int) -> tuple[int, int]:
    part = m.ListOffsetsPartition(topic=ORDERS.topic, partition=ORDERS.partition, timestamp=timestamp)
    request = m.ListOffsets(isolation_level=UNCOMMITTED, partitions=(part,))
    (found,) = body_of(story.ask(request), m.ListOffsetsReply).partitions
    return found.offset, found.timestamp


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_the_broker_finds_the_latest_timestamp(compression: Compression) -> None:
    story = Story()
    write(story, batch_of([0, 9, 3], compression))
    write(story, batch_of([0, 0], compression, base_timestamp=NOON + 20))
    (first, second) = (read_batch(story.fetch(offset=offset).records) for offset in (0, 3))
    assert (first.max_timestamp, second.max_timestamp) == (NOON + 9, NOON + 20)
    assert found_at(story, NOON + 5) == (1, NOON + 9)
    assert found_at(story, NOON + 10) == (3, NOON + 20)
    story.check_recovery()


def test_a_batch_without_any_timestamp_stays_without() -> None:
    story = Story()
    write(story, batch_of([0], Compression.NONE, base_timestamp=NO_TIMESTAMP))
    assert read_batch(story.fetch().records).max_timestamp == NO_TIMESTAMP


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_records_that_cost_too_much_to_look_at_have_the_time_of_the_first(compression: Compression) -> None:
    batch = batch_of([0, *[7] * 2_999], compression)
    header = read_batch(batch)
    enough = work_of(header.record_count, len(payload_of(batch, header))) + 1
    assert latest_timestamp(header, batch, work_max=enough) == (NOON + 7, enough - 1)
    assert latest_timestamp(header, batch, work_max=header.record_count) == (NOON, 0)
    if compression:
        assert latest_timestamp(header, batch, work_max=enough - 3) == (NOON, enough - 3)


def test_only_timestamps_are_read() -> None:
    """A header takes three bytes, and an object for each would take a thousand times as long."""
    headers = [("", b"")] * 200_000
    payload = encode_record(None, b"v", headers, 5, 0)
    batch = build_batch(compress(payload, Compression.ZSTD), attributes=Compression.ZSTD, base_timestamp=NOON)
    header = read_batch(batch)
    assert latest_timestamp(header, batch, work_max=len(payload)).timestamp == NOON + 5
    tracemalloc.start()
    try:
        latest_timestamp(header, batch, work_max=len(payload))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * len(payload)


def test_a_batch_of_columns_has_the_time_of_its_first_record() -> None:
    batch = build_data_batch([b"a", b"b"], timestamp_deltas=[0, 7], base_timestamp=NOON, max_timestamp=-1)
    assert latest_timestamp(read_batch(batch), batch, work_max=1_000) == (NOON, 0)


def test_a_record_too_far_ahead_is_refused_although_the_header_does_not_tell() -> None:
    story = Story()
    ahead = story.host.node.settings.log_message_timestamp_after_max_ms + 1_000_000
    sent = batch_of([0, ahead], Compression.NONE, base_timestamp=story.now)
    reply = body_of(story.ask(produce_batches({ORDERS: sent}, name=None)), m.ProduceReply)
    assert [part.error for part in reply.partitions] == [ErrorCode.INVALID_TIMESTAMP]


def test_the_time_of_the_broker_is_not_asked_of_a_batch_without_one() -> None:
    story = Story()
    sent = batch_of([0], Compression.NONE, attributes=LOG_APPEND_TIME_BIT)
    reply = body_of(story.ask(produce_batches({ORDERS: sent}, name=None)), m.ProduceReply)
    assert [part.error for part in reply.partitions] == [ErrorCode.INVALID_TIMESTAMP]


def test_records_that_cannot_be_read_have_the_time_of_the_first() -> None:
    story = Story()
    garbage = build_batch(
        compress(b"garbage", Compression.ZSTD),
        attributes=Compression.ZSTD,
        record_count=3,
        last_offset_delta=2,
        base_timestamp=NOON,
        max_timestamp=NO_TIMESTAMP,
    )
    write(story, garbage)
    assert read_batch(story.fetch().records).max_timestamp == NOON
