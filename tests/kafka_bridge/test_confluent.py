"""Applications of the C client against a broker on a real socket, beside clients of our own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import fencepost
from fencepost.broker.settings import NodeSettings

TOPIC = "orders"
POLLS_MAX = 200  # of a tenth of a second


@pytest.fixture
def address() -> Iterator[str]:
    node = NodeSettings(group_initial_rebalance_delay_ms=0)
    with fencepost.Broker(node=node) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        for created in admin.create_topics([NewTopic(TOPIC, 2, 1)]).values():  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] the package names no types
            assert created.result(10) is None
        yield broker.address


def transact(producer: Producer, values: list[str], *, commits: bool) -> None:
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(TOPIC, value, partition=number % 2, headers={"number": str(number).encode()})
    if commits:
        producer.commit_transaction()
    else:
        producer.flush()
        producer.abort_transaction()


def consumed(address: str, group: str, count: int, *, level: str = "read_committed") -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": level,
        }
    )
    consumer.subscribe([TOPIC])
    values: list[str] = []
    try:
        for _ in range(POLLS_MAX):
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None
                values.append((message.value() or b"").decode())
            if len(values) >= count:
                break
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values


def test_committed_records_are_read_and_aborted_ones_are_not(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "transactional.id": "payments"})
    producer.init_transactions(10)
    transact(producer, ["a", "b", "c"], commits=True)
    transact(producer, ["never", "ever"], commits=False)
    transact(producer, ["d"], commits=True)
    assert sorted(consumed(address, "committed", 4)) == ["a", "b", "c", "d"]
    everything = consumed(address, "everything", 6, level="read_uncommitted")
    assert sorted(everything) == ["a", "b", "c", "d", "ever", "never"]


def test_a_group_continues_where_it_committed(address: str) -> None:
    producer = Producer({"bootstrap.servers": address})
    producer.produce(TOPIC, "first", partition=0)
    assert producer.flush(10) == 0
    assert consumed(address, "group", 1) == ["first"]
    producer.produce(TOPIC, "second", partition=0)
    assert producer.flush(10) == 0
    assert consumed(address, "group", 1) == ["second"]
    with fencepost.Admin(address) as admin:
        committed = admin.list_consumer_group_offsets("group")
    assert committed[fencepost.TopicPartition(TOPIC, 0)] == 2


def test_both_kinds_of_clients_read_what_the_other_wrote(address: str) -> None:
    with fencepost.Producer(address) as producer:
        producer.send(TOPIC, b"ours", key=b"k", partition=0)
    theirs = Producer({"bootstrap.servers": address})
    theirs.produce(TOPIC, "theirs", partition=0)
    assert theirs.flush(10) == 0
    assert consumed(address, "both", 2) == ["ours", "theirs"]
    with fencepost.Consumer(address) as consumer:
        consumer.assign([fencepost.TopicPartition(TOPIC, 0)])
        consumer.seek(fencepost.TopicPartition(TOPIC, 0), 0)
        values = [record.value for batch in consumer.poll(timeout_ms=1_000) for record in batch.records()]
    assert values == [b"ours", b"theirs"]


def test_the_newer_producer_fences_the_older_one(address: str) -> None:
    settings = {"bootstrap.servers": address, "transactional.id": "payments"}
    zombie, heir = Producer(settings), Producer(settings)
    zombie.init_transactions(10)
    zombie.begin_transaction()
    zombie.produce(TOPIC, "zombie", partition=0)
    zombie.flush()
    heir.init_transactions(10)
    with pytest.raises(Exception, match="fenced"):
        zombie.commit_transaction()
    transact(heir, ["heir"], commits=True)
    assert consumed(address, "after", 1) == ["heir"]


def test_a_topic_is_created_by_the_first_send(address: str) -> None:
    producer = Producer({"bootstrap.servers": address})
    producer.produce("new", "x")
    assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g"})
    assert consumer.get_watermark_offsets(TopicPartition("new", 0), timeout=10) == (0, 1)
    consumer.close()


def test_metadata_lists_all_topics(address: str) -> None:
    """The C client sends a tagged field that no schema has, and a stray byte."""
    listed = AdminClient({"bootstrap.servers": address}).list_topics(timeout=10)
    assert {name: len(topic.partitions) for name, topic in listed.topics.items()} == {TOPIC: 2}
