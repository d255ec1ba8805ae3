"""A disk that lost or altered what was promised: the broker serves none of it, and changes none of it."""

from __future__ import annotations

import pytest

from fencepost.broker.cluster.controller import METADATA_PARTITION
from fencepost.journal.segments import LOG, file_name
from fencepost.journal.storage import StorageError, directory_name
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import DeleteTopics
from fencepost.protocol.terms import TopicPartition
from tests.broker.requests import COMMIT, NOBODY, ORDERS, OTHERS, UNCOMMITTED
from tests.broker.story import Memory, Story, transaction_log_of


def log_file(key: TopicPartition) -> str:
    return f"{directory_name(key)}/{file_name(0, LOG)}"


def contents(storage: Memory, key: TopicPartition) -> dict[str, bytes | None]:
    directory = directory_name(key)
    return {name: storage.read_file(f"{directory}/{name}") for name in storage.files(directory)}


def stopped_story() -> tuple[Story, Memory]:
    """A broker that committed records to two partitions and was stopped."""
    storage = Memory()
    story = Story(storage=storage)
    me = story.identity()
    story.produce(me, "a b")
    story.produce(me, "x", key=OTHERS)
    story.ended(me, COMMIT)
    story.settle()
    story.host.stop()
    return story, storage


def flip(storage: Memory, path: str, at: int) -> None:
    data = bytearray(storage.read_file(path) or b"")
    data[at] ^= 1
    storage.replace(path, data, durable=True)


def started(story: Story) -> Story:
    story.start()
    story.settle()
    return story


def test_a_shortened_log_is_not_served_and_the_others_are() -> None:
    story, storage = stopped_story()
    whole = storage.read_file(log_file(ORDERS)) or b""
    storage.replace(log_file(ORDERS), whole[:-1], durable=True)
    before = contents(storage, ORDERS)
    started(story)
    assert story.fetch(ORDERS).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert story.produce(NOBODY, "c", name=None).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert story.visible(OTHERS) == "x"
    story.wait(60_000)
    assert contents(storage, ORDERS) == before
    assert [trouble.text.count("is damaged") for trouble in story.host.troubles] == [1]

    story.kill()
    storage.replace(log_file(ORDERS), whole, durable=True)  # from a copy, as the message says
    assert started(story).visible() == "a b"


def test_a_damaged_topic_can_be_deleted() -> None:
    story, storage = stopped_story()
    storage.remove(log_file(ORDERS))
    started(story)
    assert story.fetch(ORDERS).error is ErrorCode.KAFKA_STORAGE_ERROR
    story.ask(DeleteTopics(topics=("orders",)))
    story.settle()
    story.create("orders", 2)
    assert story.produce(NOBODY, "new", name=None).base_offset == 0
    assert story.visible(isolation_level=UNCOMMITTED) == "new"


@pytest.mark.parametrize("at", [0, 8, 12, 20, 40, -1])
def test_a_coordinator_takes_no_record_on_trust(at: int) -> None:
    """After a clean stop logs are not read for damage, but a coordinator reads its own: byte by byte."""
    story, storage = stopped_story()
    key = transaction_log_of("pay")
    flip(storage, log_file(key), at)
    before = contents(storage, key)
    started(story)
    assert story.init("pay").error is ErrorCode.NOT_COORDINATOR
    assert story.visible() == "a b"
    assert contents(storage, key) == before
    assert [trouble for trouble in story.host.troubles if str(key) in trouble.text]


@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_a_broker_does_not_start_without_its_metadata(damage: str) -> None:
    story, storage = stopped_story()
    if damage == "flip":
        flip(storage, log_file(METADATA_PARTITION), 70)
    else:
        storage.remove(log_file(METADATA_PARTITION))
    before = contents(storage, ORDERS)
    with pytest.raises(StorageError, match="__cluster_metadata"):
        story.start()
    assert contents(storage, ORDERS) == before
