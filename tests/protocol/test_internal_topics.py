"""The internal topics, byte for byte as Apache Kafka's own classes write them, and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.protocol.batches import read_header
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.metadata_log import (
    BrokerRegistered,
    ClusterRecord,
    ClusterSnapshot,
    LeaderChanged,
    PartitionCreated,
    ProducerIdsAllocated,
    TopicConfigured,
    TopicCreated,
    TopicRemoved,
    cluster_batch,
    new_topic_id,
    read_cluster_records,
    topic_number,
)
from fencepost.protocol.offsets_log import GroupBatch, OffsetKey, OffsetRecord, group_batch, read_offsets
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import TopicPartition, TransactionState
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions, transaction_batch
from tests.batches import read_batch
from tests.protocol import kafka_bytes
from tests.protocol.strategies import int16s, int32s, int64s, topic_partitions, transaction_states, words

STARTED, UPDATED = 1_700_000_000_000, 1_700_000_000_123
TRANSACTIONAL_ID = "pay-表1"
TOPIC_ID = bytes(range(16))

ONGOING = TransactionRecord(
    producer_id=4711,
    previous_producer_id=-1,
    next_producer_id=-1,
    producer_epoch=7,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=(
        TopicPartition("__consumer_offsets", 49),
        TopicPartition("orders", 0),
        TopicPartition("orders", 2),
        TopicPartition("orders", 300),
    ),
    update_ms=UPDATED,
    start_ms=STARTED,
    client_version=0,
)
PREPARE_COMMIT = ONGOING._replace(
    state=TransactionState.PREPARE_COMMIT, previous_producer_id=4710, next_producer_id=5000, client_version=2
)
EMPTY = ONGOING._replace(
    state=TransactionState.EMPTY, producer_epoch=0, partitions=(), start_ms=-1, client_version=2
)
COMPLETE_COMMIT = EMPTY._replace(state=TransactionState.COMPLETE_COMMIT)

TRANSACTIONS = [
    pytest.param(ONGOING, kafka_bytes.ONGOING, id="ongoing"),
    pytest.param(PREPARE_COMMIT, kafka_bytes.PREPARE_COMMIT_WITH_TAGS, id="prepare commit, all tags"),
    pytest.param(EMPTY, kafka_bytes.EMPTY, id="empty"),
    pytest.param(COMPLETE_COMMIT, kafka_bytes.COMPLETE_COMMIT, id="complete commit"),
]

ORDERS_3 = OffsetKey("group0323", "orders", 3)
OFFSET = OffsetRecord(
    987654321012, leader_epoch=4, metadata="né", commit_ms=UPDATED, topic_id=bytes(range(16))
)
OFFSET_WITHOUT_EPOCH = OffsetRecord(1, leader_epoch=-1, metadata="", commit_ms=UPDATED)
OFFSET_WITH_EXPIRY = OffsetRecord(
    987654321012, leader_epoch=-1, metadata="né", commit_ms=UPDATED, expire_ms=UPDATED + 60_000
)

NODE_1 = BrokerRegistered(1, broker_epoch=7, host="node", port=9092)
CLUSTER = [
    pytest.param(
        TopicCreated("orders", topic_id=TOPIC_ID, created_ms=UPDATED), kafka_bytes.TOPIC, id="topic"
    ),
    pytest.param(
        TopicConfigured("orders", name="max.message.bytes", value="1000"),
        kafka_bytes.TOPIC_CONFIG,
        id="config",
    ),
    pytest.param(TopicRemoved(TOPIC_ID), kafka_bytes.REMOVE_TOPIC, id="removed topic"),
    pytest.param(
        PartitionCreated(TOPIC_ID, partition=3, leader_id=1, leader_epoch=4),
        kafka_bytes.PARTITION,
        id="partition",
    ),
    pytest.param(
        LeaderChanged(TOPIC_ID, partition=3, leader_id=1, leader_epoch=5),
        kafka_bytes.PARTITION_CHANGE_WITH_EPOCH,
        id="leader",
    ),
    pytest.param(
        ProducerIdsAllocated(1, next_producer_id=8_000), kafka_bytes.PRODUCER_IDS, id="producer ids"
    ),
    pytest.param(NODE_1, kafka_bytes.REGISTER_BROKER, id="node"),
]


def only_record(batch: bytearray) -> tuple[bytes | None, bytes | None]:
    """Key and value of the one record in a batch, by the general reader."""
    columns = read_columns(batch, read_batch(batch))
    [value] = columns.values
    return columns.keys[0] if columns.keys else None, value


def transactions_in(
    *records: tuple[bytes | None, bytes | None],
) -> list[tuple[str, TransactionRecord | None]]:
    batch = build_kafka_batch([KafkaRecord(key, value) for key, value in records], timestamp=0)
    return read_transactions(batch, read_batch(batch))


def offsets_in(*records: tuple[bytes | None, bytes | None]) -> list[tuple[OffsetKey, OffsetRecord | None]]:
    batch = build_kafka_batch([KafkaRecord(key, value) for key, value in records], timestamp=0)
    return read_offsets(batch, read_batch(batch))


def cluster_records_in(*values: bytes | None) -> list[ClusterRecord]:
    batch = build_kafka_batch([KafkaRecord(None, value) for value in values], timestamp=UPDATED)
    return read_cluster_records(batch, read_batch(batch))


@pytest.mark.parametrize(("record", "written"), TRANSACTIONS)
def test_transactions_are_stored_as_kafka_stores_them(record: TransactionRecord, written: bytes) -> None:
    batch = transaction_batch(TRANSACTIONAL_ID, record, timestamp=UPDATED)
    assert only_record(batch) == (kafka_bytes.TRANSACTION_KEY, written)
    assert transactions_in((kafka_bytes.TRANSACTION_KEY, written)) == [(TRANSACTIONAL_ID, record)]
    header = read_batch(batch)
    assert (header.base_timestamp, header.producer_id, header.base_sequence) == (UPDATED, -1, -1)


def test_transactions_of_older_and_newer_brokers_are_read() -> None:
    key = kafka_bytes.TRANSACTION_KEY
    empty = EMPTY._replace(client_version=0)
    for value, record in [
        (kafka_bytes.ONGOING_VERSION_0, ONGOING),
        (kafka_bytes.EMPTY_VERSION_0, empty),
        (kafka_bytes.PREPARE_COMMIT_WITH_AN_UNKNOWN_TAG, PREPARE_COMMIT),
    ]:
        assert transactions_in((key, value)) == [(TRANSACTIONAL_ID, record)]


def test_partitions_are_stored_and_read_in_order_whatever_order_they_come_in() -> None:
    shuffled = ONGOING._replace(partitions=ONGOING.partitions[::-1])
    assert only_record(transaction_batch("t", shuffled, timestamp=0))[1] == kafka_bytes.ONGOING


@pytest.mark.parametrize(("topic", "count"), [("a" * 200, 1), ("a", 200), ("a" * 126, 2), ("a" * 127, 126)])
def test_partitions_whose_lengths_take_two_bytes_come_back(topic: str, count: int) -> None:
    long = tuple(TopicPartition(topic, number) for number in range(count))
    record = ONGOING._replace(partitions=(*long, TopicPartition("b", 0)))
    batch = transaction_batch(TRANSACTIONAL_ID, record, timestamp=0)
    assert read_transactions(batch, read_batch(batch)) == [(TRANSACTIONAL_ID, record)]


def test_an_id_is_forgotten_by_a_tombstone() -> None:
    batch = transaction_batch(TRANSACTIONAL_ID, None, timestamp=0)
    assert only_record(batch) == (kafka_bytes.TRANSACTION_KEY, None)
    assert read_transactions(batch, read_batch(batch)) == [(TRANSACTIONAL_ID, None)]


transaction_records = st.builds(
    TransactionRecord,
    producer_id=int64s,
    previous_producer_id=int64s,
    next_producer_id=int64s,
    producer_epoch=int16s,
    timeout_ms=int32s,
    state=transaction_states,
    partitions=st.sets(topic_partitions, max_size=5).map(lambda partitions: tuple(sorted(partitions))),
    update_ms=int64s,
    start_ms=int64s,
    client_version=int16s,
).map(lambda r: r._replace(partitions=()) if r.state is TransactionState.EMPTY else r)


@given(words, st.none() | transaction_records, int64s)
def test_any_transaction_comes_back(
    transactional_id: str, record: TransactionRecord | None, timestamp: int
) -> None:
    batch = transaction_batch(transactional_id, record, timestamp=timestamp)
    assert read_transactions(batch, read_batch(batch)) == [(transactional_id, record)]


def test_an_empty_transaction_with_partitions_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="no partitions"):
        transaction_batch("t", ONGOING._replace(state=TransactionState.EMPTY), timestamp=0)


def test_offsets_are_stored_as_kafka_stores_them() -> None:
    for record, written in [
        (OFFSET, kafka_bytes.OFFSET),
        (OFFSET_WITHOUT_EPOCH, kafka_bytes.OFFSET_WITHOUT_EPOCH),
        (OFFSET_WITH_EXPIRY, kafka_bytes.OFFSET_WITH_EXPIRY),
    ]:
        batch = group_batch(GroupBatch(((ORDERS_3, record),)), timestamp=UPDATED)
        assert only_record(batch) == (kafka_bytes.OFFSET_KEY, written)
        assert offsets_in((kafka_bytes.OFFSET_KEY, written)) == [(ORDERS_3, record)]


def test_transactional_offsets_carry_their_producer_and_no_sequence() -> None:
    entries = GroupBatch(((ORDERS_3, OFFSET),))
    batch = group_batch(entries, timestamp=1, producer_id=9, producer_epoch=2, transactional=True)
    header = read_batch(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, -1)
    assert header.is_transactional
    assert not read_batch(group_batch(entries, timestamp=1)).is_transactional


offset_entries = st.tuples(
    st.builds(OffsetKey, words, words, int32s),
    st.none()
    | st.builds(
        OffsetRecord,
        int64s,
        leader_epoch=int32s,
        metadata=words,
        commit_ms=int64s,
        topic_id=st.binary(min_size=16, max_size=16),
    ),
)


@given(st.lists(offset_entries, min_size=1, max_size=5), int64s)
def test_any_offsets_come_back(entries: list[tuple[OffsetKey, OffsetRecord | None]], timestamp: int) -> None:
    batch = group_batch(GroupBatch(tuple(entries)), timestamp=timestamp)
    assert read_offsets(batch, read_batch(batch)) == entries


def test_records_of_the_groups_themselves_are_passed_over() -> None:
    group_key = bytes.fromhex("0002 0005") + b"group"
    assert offsets_in((group_key, b"whatever"), (kafka_bytes.OFFSET_KEY, None)) == [(ORDERS_3, None)]
    unknown_key = bytes.fromhex("0009") + b"?"
    assert transactions_in((unknown_key, b"whatever"), (kafka_bytes.TRANSACTION_KEY, None)) == [
        (TRANSACTIONAL_ID, None)
    ]


@pytest.mark.parametrize(("record", "written"), CLUSTER)
def test_cluster_metadata_is_stored_as_kafka_stores_it(record: ClusterRecord, written: bytes) -> None:
    assert only_record(cluster_batch([record], timestamp=UPDATED)) == (None, written)
    assert cluster_records_in(written) == [record]


def test_kinds_of_records_that_are_not_kept_are_passed_over() -> None:
    assert cluster_records_in(kafka_bytes.NO_OP, kafka_bytes.REMOVE_TOPIC) == [TopicRemoved(TOPIC_ID)]


def test_what_kafka_says_of_a_broker_beyond_its_first_address_is_passed_over() -> None:
    assert cluster_records_in(kafka_bytes.REGISTER_BROKER_OF_KAFKA) == [NODE_1]


topic_ids = st.binary(min_size=16, max_size=16)
times = st.integers(0, 2**62)
leaderships: dict[str, st.SearchStrategy[int]] = {
    "partition": int32s,
    "leader_id": int32s,
    "leader_epoch": int32s,
}
leaders_changed = st.builds(
    LeaderChanged, topic_ids, **leaderships | {"leader_id": st.integers(-1, 2**31 - 1)}
)
cluster_records = st.one_of(
    st.builds(TopicCreated, words, topic_id=topic_ids, created_ms=times),
    st.builds(TopicRemoved, topic_ids),
    st.builds(TopicConfigured, words, name=words, value=st.none() | words),
    st.builds(PartitionCreated, topic_ids, **leaderships),
    leaders_changed,
    st.builds(ProducerIdsAllocated, int32s, next_producer_id=int64s),
    st.builds(BrokerRegistered, int32s, broker_epoch=int64s, host=words, port=st.integers(0, 65_535)),
    st.builds(ClusterSnapshot, int64s, leader_epoch=int32s, topic_number=int64s),
)


@given(st.lists(cluster_records, min_size=1, max_size=6), times)
def test_any_cluster_records_come_back(records: list[ClusterRecord], timestamp: int) -> None:
    batch = cluster_batch(records, timestamp=timestamp)
    assert read_cluster_records(batch, read_batch(batch)) == records


def test_topics_of_clusters_at_one_address_differ_in_their_ids() -> None:
    ids = {
        new_topic_id(name, number=number, created_ms=created_ms)
        for name in ("a", "b")
        for number in (1, 2**40)
        for created_ms in (0, 1)
    }
    assert len(ids) == 8
    assert {topic_number(each) for each in ids} == {1, 2**40}
    assert all(each[0] < 0x80 for each in ids)


def test_a_topic_id_has_sixteen_bytes() -> None:
    with pytest.raises(AssertionError, match="16 bytes"):
        TopicRemoved(b"short")
    with pytest.raises(AssertionError, match="16 bytes"):
        TopicCreated("t", topic_id=bytes(17), created_ms=0)


def replaced(data: bytes, at: int, raw: str) -> bytes:
    patch = bytes.fromhex(raw)
    return data[:at] + patch + data[at + len(patch) :]


@pytest.mark.parametrize(
    ("key", "value", "because"),
    [
        pytest.param(None, b"", "transaction log key", id="no key"),
        pytest.param(b"", None, "announced", id="an empty key"),
        pytest.param(kafka_bytes.TRANSACTION_KEY + b"x", None, "too many", id="a key too long"),
        pytest.param(kafka_bytes.TRANSACTION_KEY[:-1], None, "announced", id="a key cut off"),
        pytest.param(bytes.fromhex("0000ffff"), None, "announced", id="a null id"),
        pytest.param(bytes.fromhex("00000001ff"), None, "UTF-8", id="an id that is not UTF-8"),
        pytest.param(kafka_bytes.TRANSACTION_KEY, b"", "announced", id="an empty value"),
        pytest.param(
            kafka_bytes.TRANSACTION_KEY, replaced(kafka_bytes.ONGOING, 0, "0002"), "version 2", id="version 2"
        ),
        pytest.param(
            kafka_bytes.TRANSACTION_KEY,
            replaced(kafka_bytes.ONGOING, 16, "07"),
            "state 7",
            id="an unknown state",
        ),
        pytest.param(
            kafka_bytes.TRANSACTION_KEY,
            replaced(kafka_bytes.ONGOING, 16, "00"),
            "Empty",
            id="partitions in Empty",
        ),
        pytest.param(
            kafka_bytes.TRANSACTION_KEY,
            replaced(kafka_bytes.EMPTY, 16, "04"),
            "Empty",
            id="null outside Empty",
        ),
        pytest.param(
            kafka_bytes.TRANSACTION_KEY,
            replaced(kafka_bytes.ONGOING, 17, "7f"),
            "126 entries",
            id="many topics",
        ),
        pytest.param(
            kafka_bytes.TRANSACTION_KEY,
            kafka_bytes.EMPTY[:-5] + bytes.fromhex("01020100"),
            "tag 2",
            id="a tag of 1",
        ),
        pytest.param(
            kafka_bytes.TRANSACTION_KEY,
            kafka_bytes.EMPTY[:-5] + bytes.fromhex("0202020002 02020002"),
            "ascending",
            id="a tag twice",
        ),
    ],
)
def test_malformed_transactions_are_refused(key: bytes | None, value: bytes | None, because: str) -> None:
    with pytest.raises(ProtocolViolation, match=because):
        transactions_in((key, value))


def test_malformed_offsets_and_metadata_are_refused() -> None:
    for key, value in [
        (None, kafka_bytes.OFFSET),
        (kafka_bytes.OFFSET_KEY[:-1], None),
        (kafka_bytes.OFFSET_KEY + b"x", None),
        (kafka_bytes.OFFSET_KEY, replaced(kafka_bytes.OFFSET, 0, "0003")),
        (kafka_bytes.OFFSET_KEY, kafka_bytes.OFFSET[:-1]),
        (kafka_bytes.OFFSET_KEY, kafka_bytes.OFFSET + b"x"),
        (kafka_bytes.OFFSET_KEY, replaced(kafka_bytes.OFFSET, 28, "0f")[:-1]),  # an id of 15 bytes
    ]:
        with pytest.raises(ProtocolViolation):
            offsets_in((key, value))
    for value in (
        None,
        b"",
        replaced(kafka_bytes.TOPIC, 0, "02"),  # frame version
        replaced(kafka_bytes.TOPIC, 2, "01"),  # record version
        kafka_bytes.TOPIC[:-1],
        kafka_bytes.TOPIC + b"x",
        kafka_bytes.PARTITION_CHANGE,  # names no epoch: a single record would not say it all
    ):
        with pytest.raises(ProtocolViolation):
            cluster_records_in(value)


ALL_KEYS = [kafka_bytes.TRANSACTION_KEY, kafka_bytes.OFFSET_KEY]
ALL_VALUES = [
    getattr(kafka_bytes, name) for name in dir(kafka_bytes) if name.isupper() and not name.startswith("BATCH")
]


@given(
    st.none() | st.binary(max_size=20) | st.sampled_from(ALL_KEYS),
    st.none() | st.binary(max_size=60) | st.sampled_from(ALL_VALUES),
    st.integers(0, 200),
    st.integers(0, 255),
)
@example(None, b"\1\4\0\2\2a\2b\2\x80\0", 0, 0)  # the value of a setting is not UTF-8
def test_any_record_is_understood_or_a_violation(
    key: bytes | None, value: bytes | None, at: int, flip: int
) -> None:
    if value:
        damaged = bytearray(value)
        damaged[at % len(value)] ^= flip
        value = bytes(damaged)
    batch = build_kafka_batch([KafkaRecord(key, value)], timestamp=0)
    header = read_header(batch)
    readers: list[Any] = [read_transactions, read_offsets, read_cluster_records]
    for read in readers:
        try:
            assert len(read(batch, header)) <= 1
        except ProtocolViolation:
            continue
