"""Stories that every library tells in the same words, against a broker on a real socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

import fencepost
from fencepost import TopicPartition
from tests.kafka_bridge import java
from tests.kafka_bridge.libraries import Producer, Reported, consume, poll_until, texts
from tests.kafka_bridge.story import Story

# What Apache Kafka 4.3.1 makes each library say.
ZOMBIE_COMMITS: Final = {
    "confluent-kafka": "_FENCED",
    "aiokafka": "ProducerFenced",
    "kafka-python": "ProducerFencedError",
    **dict.fromkeys(java.NAMES, "ProducerFencedException"),
}
ZOMBIE_SENDS: Final = ZOMBIE_COMMITS | {
    "kafka-python": "InvalidProducerEpochError",
    **dict.fromkeys(java.NAMES, "InvalidProducerEpochException"),
}
ZOMBIE_BEGINS: Final = ZOMBIE_COMMITS | {java.NEWEST: "InvalidProducerEpochException"}
LATE_COMMITS: Final = ZOMBIE_COMMITS | {java.NEWEST: "InvalidTxnStateException"}
TIMEOUT_TOO_LONG: Final = {
    "confluent-kafka": "INVALID_TRANSACTION_TIMEOUT",
    "aiokafka": "InvalidTransactionTimeout",
    "kafka-python": "KafkaError",
    **dict.fromkeys(java.NAMES, "KafkaException"),
}
RECORD_TOO_LARGE: Final = {
    "confluent-kafka": "MSG_SIZE_TOO_LARGE",
    "aiokafka": "MessageSizeTooLargeError",
    "kafka-python": "MessageSizeTooLargeError",
    **dict.fromkeys(java.NAMES, "RecordTooLargeException"),
}
KEY_MISSING: Final = {
    "confluent-kafka": "INVALID_RECORD",
    "aiokafka": "UnknownError",  # it does not know error 87
    "kafka-python": "InvalidRecordError",
    **dict.fromkeys(java.NAMES, "InvalidRecordException"),
}
MEMBER_GONE: Final = {
    "confluent-kafka": "UNKNOWN_MEMBER_ID",
    "kafka-python": "CommitFailedError",
    **dict.fromkeys(java.NAMES, "CommitFailedException"),
}
GENERATION_GONE: Final = MEMBER_GONE | {"confluent-kafka": "ILLEGAL_GENERATION"}
COMPRESSIONS: Final = ("gzip", "snappy", "lz4", "zstd")


def transact(story: Story, producer: Producer, *values: str, commits: bool = True) -> None:
    """One transaction with these values."""
    producer.begin()
    for value in values:
        producer.send(story.topic, value.encode())
    if commits:
        producer.commit()
    else:
        producer.flush()
        producer.abort()


def reported(story: Story, errors: Mapping[str, str], act: Callable[[], object]) -> None:
    """`act` raises the error of this library."""
    with pytest.raises(Reported) as raised:
        act()
    assert raised.value.name == errors[story.library.name], raised.value


# --- transactions


def test_committed_records_are_read(story: Story) -> None:
    producer = story.producer("p")
    transact(story, producer, "a", "b")
    transact(story, producer, "c")
    messages = story.messages()
    assert texts(messages) == ["a", "b", "c"]
    assert [message.offset for message in messages] == [0, 1, 3]  # 2 is the marker


def test_aborted_records_are_read_only_uncommitted(story: Story) -> None:
    producer = story.producer("p")
    transact(story, producer, "a")
    transact(story, producer, "never", commits=False)
    transact(story, producer, "b")
    assert story.texts() == ["a", "b"]
    assert story.texts("read_uncommitted") == ["a", "never", "b", "the end"]


def test_an_abort_discards_records_that_were_not_flushed(story: Story) -> None:
    producer = story.producer("p")
    producer.begin()
    for number in range(100):
        producer.send(story.topic, b"%d" % number)
    producer.abort()
    transact(story, producer, "after")
    assert story.texts() == ["after"]


def test_a_transaction_without_records_commits_and_aborts(story: Story) -> None:
    producer = story.producer("p")
    transact(story, producer)
    transact(story, producer, commits=False)
    transact(story, producer, "a")
    assert story.texts() == ["a"]


def test_a_transaction_spans_partitions(story: Story) -> None:
    producer = story.producer("p")
    producer.begin()
    producer.send(story.topic, b"zero", partition=0)
    producer.send(story.topic, b"one", partition=1)
    producer.commit()
    assert story.texts(partition=0) == ["zero"]
    assert story.texts(partition=1) == ["one"]


def test_a_zombie_cannot_commit(story: Story) -> None:
    zombie = story.producer("p")
    zombie.begin()
    zombie.send(story.topic, b"zombie")
    zombie.flush()
    heir = story.producer("p")
    reported(story, ZOMBIE_COMMITS, zombie.commit)
    transact(story, heir, "heir")
    assert story.texts() == ["heir"]


def test_a_zombie_cannot_send(story: Story) -> None:
    zombie = story.producer("p")
    zombie.begin()
    zombie.send(story.topic, b"zombie")
    zombie.flush()
    transact(story, story.producer("p"), "heir")

    def send() -> None:
        zombie.send(story.topic, b"zombie again")
        zombie.flush()

    reported(story, ZOMBIE_SENDS, send)
    assert story.texts() == ["heir"]


def test_a_zombie_cannot_begin(story: Story) -> None:
    zombie = story.producer("p")
    transact(story, zombie, "before")
    transact(story, story.producer("p"), "heir")
    reported(story, ZOMBIE_BEGINS, lambda: transact(story, zombie, "zombie", commits=False))
    assert story.texts() == ["before", "heir"]


def test_the_broker_aborts_a_transaction_after_its_timeout(story: Story) -> None:
    slow = story.producer("p", timeout_ms=1_000)
    slow.begin()
    slow.send(story.topic, b"slow")
    slow.flush()
    story.produced("behind it")
    reader = story.consumer("reader")
    assert texts(consume(reader, 1)) == ["behind it"]  # as soon as the transaction is aborted
    reported(story, LATE_COMMITS, slow.commit)


def test_a_timeout_beyond_the_broker_s_is_refused(story: Story) -> None:
    reported(story, TIMEOUT_TOO_LONG, lambda: story.producer("p", timeout_ms=1_000_000))


def test_read_committed_stops_at_the_last_stable_offset(story: Story) -> None:
    story.produced("a")
    producer = story.producer("p")
    producer.begin()
    producer.send(story.topic, b"b")
    producer.flush()
    story.produced("c")
    committed, uncommitted = story.consumer(), story.consumer(isolation="read_uncommitted")
    assert texts(consume(uncommitted, 3)) == ["a", "b", "c"]
    assert texts(consume(committed, 1)) == ["a"]
    assert committed.poll(1) == []
    producer.commit()
    assert texts(consume(committed, 2)) == ["b", "c"]


# --- offsets in transactions


def copy(story: Story, *, commits: bool) -> None:
    """Two records from partition 0 to partition 1, and their offsets, in one transaction."""
    producer, reader = story.producer("p"), story.consumer("copy")
    values = texts(consume(reader, 2))
    producer.begin()
    for value in values:
        producer.send(story.topic, value.upper().encode(), partition=1)
    producer.send_offsets({story.part: 2}, reader.member())
    if commits:
        producer.commit()
    else:
        producer.flush()
        producer.abort()
    reader.close()


def test_offsets_are_committed_with_their_transaction(story: Story) -> None:
    story.produced("a", "b")
    copy(story, commits=True)
    assert story.consumer("copy").committed(story.part) == 2
    assert story.texts(partition=1) == ["A", "B"]


def test_offsets_are_aborted_with_their_transaction(story: Story) -> None:
    story.produced("a", "b")
    copy(story, commits=False)
    copy(story, commits=True)  # again from the beginning
    assert story.consumer("copy").committed(story.part) == 2
    assert story.texts(partition=1) == ["A", "B"]


def send_late_offsets(story: Story, producer: Producer, member: object, errors: Mapping[str, str]) -> None:
    """Offsets of a member that was replaced are refused, where the library says whose they are (KIP-447)."""
    if story.library.name in errors:
        reported(story, errors, lambda: producer.send_offsets({story.part: 1}, member))
        producer.abort()
    else:
        producer.send_offsets({story.part: 1}, member)
        producer.commit()


def test_offsets_of_a_member_that_has_left_are_refused(story: Story) -> None:
    story.produced("a")
    producer, reader = story.producer("p"), story.consumer("copy")
    consume(reader, 1)
    member = reader.member()
    reader.close()
    story.consumer("copy").poll(1)
    producer.begin()
    send_late_offsets(story, producer, member, MEMBER_GONE)


def test_a_rebalance_inside_a_transaction_fences_the_member_of_before(story: Story) -> None:
    story.produced("a")
    producer, first = story.producer("p"), story.consumer("copy")
    assert texts(consume(first, 1)) == ["a"]
    member = first.member()
    producer.begin()
    producer.send(story.topic, b"A", partition=1)
    second = story.consumer("copy")
    poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)
    send_late_offsets(story, producer, member, GENERATION_GONE)


# --- records


def test_a_topic_is_created_by_the_first_send(story: Story) -> None:
    topic = f"{story.topic}.new"
    producer = story.producer()
    producer.send(topic, b"x")
    producer.flush()
    (message,) = consume(story.consumer(topic=topic), 1)
    assert (message.offset, message.value) == (0, b"x")


def test_headers_arrive_as_they_were_sent(story: Story) -> None:
    headers = [("trace", b"\x00\xff"), ("trace", b"again"), ("", b""), ("ünïcode", b"x" * 1_000)]
    producer = story.producer()
    producer.send(story.topic, b"v", headers=headers, timestamp_ms=1_700_000_000_123)
    producer.flush()
    (message,) = story.messages()
    assert list(message.headers) == headers
    assert message.timestamp_ms == 1_700_000_000_123


def test_nulls_are_not_empty(story: Story) -> None:
    sent = [(None, b"v"), (b"k", None), (b"", b""), (b"k", b"")]
    producer = story.producer()
    for key, value in sent:
        producer.send(story.topic, value, key=key)
    producer.flush()
    assert [(message.key, message.value) for message in story.messages()] == sent


def test_every_compression_is_read_by_both_kinds_of_clients(story: Story) -> None:
    sent: list[str] = []
    for compression in COMPRESSIONS:
        producer = story.producer(compression=compression)
        for number in range(50):
            sent.append(f"{compression} {number} {'x' * 100}")
            producer.send(story.topic, sent[-1].encode())
        producer.flush()
    assert story.texts() == sent
    with fencepost.Consumer(story.access.servers) as ours:
        ours.assign([story.part])
        ours.seek(story.part, 0)
        got: list[str] = []
        while len(got) < len(sent):
            got += [
                bytes(record.value or b"").decode() for batch in ours.poll() for record in batch.records()
            ]
    assert got[: len(sent)] == sent


def test_columns_that_decompress_to_more_than_a_fetch_takes_are_read(story: Story) -> None:
    """In parts, whose readers continue in the middle of a batch, and of an aborted transaction."""
    sizes = [1_500_000, 0, 700_000] * 4
    settings: dict[str, Any] = {"compression_type": "zstd", "batch_size": 8 << 20}
    with fencepost.Producer(story.access.servers, transactional_id=story.topic, **settings) as ours:
        ours.init_transactions()
        for byte in b"abc":
            ours.begin_transaction()
            ours.send_many(story.topic, [bytes([byte]) * size for size in sizes], partition=0)
            if byte == ord("b"):
                ours.flush()
                ours.abort_transaction()
            else:
                ours.commit_transaction()
    assert story.texts() == [letter * size for letter in "ac" for size in sizes]


def test_large_batches_pass(story: Story) -> None:
    producer = story.producer()
    producer.send(story.topic, b"x" * 900_000)
    for number in range(2_000):
        producer.send(story.topic, b"%d" % number + b"y" * 500)
    producer.flush()
    messages = story.messages()
    assert len(messages) == 2_001
    assert [message.offset for message in messages] == list(range(2_001))
    assert messages[0].value == b"x" * 900_000


def test_a_record_that_is_too_large_is_refused(story: Story) -> None:
    producer = story.producer()

    def send() -> None:
        producer.send(story.topic, b"x" * 2_000_000)
        producer.flush()

    reported(story, RECORD_TOO_LARGE, send)
    story.produced("small")
    assert story.texts() == ["small"]


def test_a_compacted_topic_needs_keys(story: Story) -> None:
    topic = f"{story.topic}.compacted"
    story.admin().create_topic(topic, configs={"cleanup.policy": "compact"})
    producer = story.producer()

    def send() -> None:
        producer.send(topic, b"no key")
        producer.flush()

    reported(story, KEY_MISSING, send)


def test_both_kinds_of_clients_share_a_topic(story: Story) -> None:
    theirs = story.producer("theirs")
    with (
        fencepost.Producer(story.access.servers, transactional_id=f"{story.topic}.ours") as ours,
        fencepost.Producer(story.access.servers) as plain,
    ):
        plain.send(story.topic, b"plain", b"k", partition=0, headers=[("h", b"1"), ("none", None)]).result()
        ours.init_transactions()
        with ours.transaction():
            ours.send(story.topic, b"ours", partition=0)
        transact(story, theirs, "theirs")
        ours.begin_transaction()
        ours.send(story.topic, b"aborted", partition=0)
        ours.flush()
        ours.abort_transaction()
    messages = story.messages()
    assert texts(messages) == ["plain", "ours", "theirs"]
    assert (messages[0].key, list(messages[0].headers)) == (b"k", [("h", b"1"), ("none", None)])
    with fencepost.Consumer(story.access.servers) as reader:
        reader.assign([story.part])
        reader.seek(story.part, 0)
        got = [record.value for batch in reader.poll(timeout_ms=1_000) for record in batch.records()]
    assert got == [b"plain", b"ours", b"theirs", b"the end"]


def test_offsets_are_found_by_time_and_at_both_ends(story: Story) -> None:
    producer = story.producer("p")
    producer.begin()
    for number in range(3):
        producer.send(story.topic, b"x", timestamp_ms=1_700_000_000_000 + number)
    producer.flush()
    committed, uncommitted = story.consumer(), story.consumer(isolation="read_uncommitted")
    assert uncommitted.end(story.part) == 3
    assert committed.end(story.part) == 0
    producer.commit()
    transact(story, producer, "next")
    poll_until(lambda: committed.end(story.part) == 6)
    assert committed.offset_at(story.part, 1_700_000_000_001) == 1


# --- groups


def test_a_group_continues_where_it_committed(story: Story) -> None:
    story.produced("a")
    first = story.consumer("g")
    assert texts(consume(first, 1)) == ["a"]
    first.commit()
    first.close()
    story.produced("b")
    second = story.consumer("g")
    assert texts(consume(second, 1)) == ["b"]
    assert second.committed(story.part) == 1


def test_members_share_the_partitions_and_inherit_them(story: Story) -> None:
    both = {story.part, story.other}
    first = story.consumer("g")
    poll_until(lambda: first.assignment() == both, first)
    second = story.consumer("g")
    poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)
    assert first.assignment() | second.assignment() == both
    first.close()
    poll_until(lambda: second.assignment() == both, second)


def test_a_static_member_returns_to_its_partitions(story: Story) -> None:
    both = {story.part, story.other}
    first = story.consumer("g", instance="one")
    poll_until(lambda: first.assignment() == both, first)
    first.close()
    with fencepost.Admin(story.access.servers) as admin:
        group = admin.describe_consumer_group(f"{story.topic}.g")
    assert [member.group_instance_id for member in group.members] == ["one"]
    again = story.consumer("g", instance="one")
    story.produced("a")
    assert texts(consume(again, 1)) == ["a"]


# --- administration


def test_topics_are_created_listed_and_deleted(story: Story) -> None:
    admin = story.admin()
    topic = f"{story.topic}.admin"
    admin.create_topic(topic, partitions=3)
    assert topic in admin.topics()
    admin.delete_topic(topic)
    assert topic not in admin.topics()


def test_groups_are_listed_and_described(story: Story) -> None:
    story.produced("a")
    group = f"{story.topic}.g"
    reader = story.consumer("g")
    assert texts(consume(reader, 1)) == ["a"]
    reader.commit()
    admin = story.admin()
    assert group in admin.groups()
    assert admin.group_state(group) == "Stable"
    with fencepost.Admin(story.access.servers) as ours:
        (member,) = ours.describe_consumer_group(group).members
    assert (member.client_id != "", member.host) == (True, "/127.0.0.1")
    assert member.member_id.startswith(f"{member.client_id}-")
    reader.close()
    assert admin.group_state(group) == "Empty"
    assert admin.offsets(group)[TopicPartition(story.topic, 0)] == 1


def test_records_are_deleted_up_to_an_offset(story: Story) -> None:
    story.produced("a", "b", "c")
    story.admin().delete_records(story.part, 2)
    assert story.texts() == ["c"]
