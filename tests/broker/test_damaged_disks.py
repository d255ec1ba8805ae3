"""A disk that lost or altered what was promised: the broker serves none of it, and changes none of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.catalogue import CATALOGUE_FILE
from fencepost.journal.manifest import LOG_START_FILE, write_log_start
from fencepost.journal.memory import MemoryFile
from fencepost.journal.segments import LOG, file_name, walk_headers
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import StorageError, directory_name
from fencepost.protocol.batches import LENGTH_PREFIX_SIZE
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import DeleteRecords, DeleteRecordsPartition, DeleteTopics
from fencepost.protocol.terms import METADATA_PARTITION, TopicPartition, TransactionState
from fencepost.repair.perform import perform
from fencepost.repair.planner import make_plan
from tests.broker.disks import keeps_nothing
from tests.broker.requests import COMMIT, NOBODY, ORDERS, OTHERS, UNCOMMITTED, end_request, visible_values
from tests.broker.story import Memory, Story, transaction_log_of


def log_file(key: TopicPartition) -> str:
    return f"{directory_name(key)}/{file_name(0, LOG)}"


def contents(storage: Memory, key: TopicPartition) -> dict[str, bytes | None]:
    directory = directory_name(key)
    return {name: storage.read_file(f"{directory}/{name}") for name in storage.files(directory)}


def a_story() -> tuple[Story, Memory]:
    """A broker that committed records to two partitions."""
    storage = Memory()
    story = Story(storage=storage)
    me = story.identity()
    story.produce(me, "a b")
    story.produce(me, "x", key=OTHERS)
    story.ended(me, COMMIT)
    story.settle()
    return story, storage


def stopped_story() -> tuple[Story, Memory]:
    """The same, stopped."""
    story, storage = a_story()
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


@pytest.mark.parametrize("is_stopped", [True, False])
@pytest.mark.parametrize("left", [None, 1])
def test_deleted_records_do_not_come_back_with_a_log_start_that_is_missing_or_older(
    left: int | None, *, is_stopped: bool
) -> None:
    storage = Memory()
    story = Story(storage=storage)
    for value in "abcd":
        story.produce(NOBODY, value, name=None)
    trim = DeleteRecordsPartition(topic=ORDERS.topic, partition=ORDERS.partition, offset=2)
    story.ask(DeleteRecords(timeout_ms=1_000, partitions=(trim,)))
    story.host.write_manifests()
    story.host.stop() if is_stopped else story.kill()
    path = f"{directory_name(ORDERS)}/{LOG_START_FILE}"
    storage.remove(path)
    if left is not None:
        write_log_start(storage, directory_name(ORDERS), left)
    for _ in range(2):
        started(story)
        assert story.fetch(ORDERS).error is ErrorCode.KAFKA_STORAGE_ERROR
        (trouble,) = [trouble.text for trouble in story.host.troubles if "log start" in trouble.text]
        assert f"{path} says that the log starts at offset {left or 0}, but its manifest says 2" in trouble
        story.host.stop()
    perform(storage, make_plan(storage))
    started(story)
    assert story.fetch(ORDERS).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert visible_values(story.fetch(ORDERS, offset=2)) == ["c", "d"]


def test_a_leader_epoch_that_no_election_gave_is_damage() -> None:
    """No checksum covers it. Elections would reach it one by one, each with a record in the metadata."""
    story, storage = a_story()
    story.kill()
    file = storage.open(log_file(ORDERS))
    *_, (at, _) = walk_headers(file, 0, file.size)
    flip(storage, log_file(ORDERS), at + LENGTH_PREFIX_SIZE)  # the leader epoch comes after the length
    started(story)
    elections = story.host.held[METADATA_PARTITION].journal.log_end_offset
    story.wait(60_000)
    assert story.host.held[METADATA_PARTITION].journal.log_end_offset == elections
    assert story.fetch(ORDERS).error is ErrorCode.KAFKA_STORAGE_ERROR
    (trouble,) = [trouble.text for trouble in story.host.troubles if "orders-0" in trouble.text]
    assert "its last batch has leader epoch 16777216, and the newest leader has 1" in trouble
    assert "fencepost repair" in trouble
    story.host.stop()
    perform(storage, make_plan(storage))
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


def test_bytes_that_change_under_a_running_broker_are_told_to_reader_and_operator() -> None:
    storage = Memory()
    story = Story(storage=storage)
    story.produce(NOBODY, "a", name=None)
    story.produce(NOBODY, "b", name=None)
    file = storage.open(log_file(ORDERS))
    assert isinstance(file, MemoryFile)
    file.content[0] ^= 0x80  # the sign of the base offset of the first batch
    assert story.fetch(ORDERS, isolation_level=UNCOMMITTED).error is ErrorCode.KAFKA_STORAGE_ERROR
    (trouble,) = story.host.troubles
    assert "orders-0" in trouble.text
    assert "is damaged" in trouble.text
    assert story.fetch(ORDERS, offset=1, isolation_level=UNCOMMITTED).error is ErrorCode.NONE
    assert story.produce(NOBODY, "c", name=None).base_offset == 2


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


def removed(storage: Memory, key: TopicPartition) -> None:
    storage.remove_directory(directory_name(key))


def emptied(storage: Memory, key: TopicPartition) -> None:
    for name in storage.files(directory_name(key)):
        storage.remove(f"{directory_name(key)}/{name}")


@pytest.mark.parametrize("is_stopped", [True, False])
@pytest.mark.parametrize("loss", [removed, emptied])
def test_a_partition_that_vanished_is_not_an_empty_one(
    loss: Callable[[Memory, TopicPartition], None], *, is_stopped: bool
) -> None:
    story, storage = a_story()
    story.host.stop() if is_stopped else story.kill()
    saved = contents(storage, ORDERS)
    loss(storage, ORDERS)
    for _ in range(2):  # the first start forgets nothing
        started(story)
        assert story.fetch(ORDERS).error is ErrorCode.KAFKA_STORAGE_ERROR
        assert story.produce(NOBODY, "c", name=None).error is ErrorCode.KAFKA_STORAGE_ERROR
        assert story.visible(OTHERS) == "x"
        assert storage.files("orders-0") == {}
        (trouble,) = [trouble.text for trouble in story.host.troubles if "orders-0" in trouble.text]
        assert "its files are gone" in trouble
        assert "fencepost repair" in trouble
        story.kill()

    storage.make_directory(directory_name(ORDERS))
    for name, content in saved.items():  # from a copy, as the message says
        storage.replace(f"{directory_name(ORDERS)}/{name}", content or b"", durable=True)
    assert started(story).visible() == "a b"


@pytest.mark.parametrize("content", [None, b"", b"{}\n"])
def test_without_its_catalogue_a_log_that_vanished_is_a_new_one(content: bytes | None) -> None:
    story, storage = a_story()
    story.kill()
    removed(storage, ORDERS)
    if content is None:
        storage.remove(CATALOGUE_FILE)
    else:
        storage.replace(CATALOGUE_FILE, content, durable=True)
    assert started(story).produce(NOBODY, "a", name=None).base_offset == 0
    told = [trouble.text for trouble in story.host.troubles if CATALOGUE_FILE in trouble.text]
    assert bool(told) == (content != b"")  # as a loss of power leaves it


def test_a_damaged_catalogue_is_told_once() -> None:
    story, storage = a_story()
    story.kill()
    storage.replace(
        CATALOGUE_FILE, b"orders-0 synced 1\n" + (storage.read_file(CATALOGUE_FILE) or b""), durable=True
    )
    (told,) = [trouble.text for trouble in started(story).host.troubles if CATALOGUE_FILE in trouble.text]
    assert "the checksum of line 1 does not match its text" in told
    story.kill()
    assert not [trouble for trouble in started(story).host.troubles if CATALOGUE_FILE in trouble.text]


def test_a_vanished_topic_can_be_deleted_and_created() -> None:
    story, storage = a_story()
    story.kill()
    removed(storage, ORDERS)
    started(story)
    story.ask(DeleteTopics(topics=("orders",)))
    story.settle()
    story.create("orders", 2)
    story.kill()  # the new topic has no files yet, and nothing is missed
    started(story)
    assert story.produce(NOBODY, "new", name=None).base_offset == 0
    assert not [trouble for trouble in story.host.troubles if "gone" in trouble.text]


def test_a_partition_that_held_nothing_is_made_anew() -> None:
    story, storage = a_story()
    story.kill()
    assert TopicPartition("orders", 1) != ORDERS
    story.create("empty", 1)
    story.kill()
    started(story)
    assert "empty-0" not in storage.directories()
    assert story.produce(NOBODY, "a", key=TopicPartition("empty", 0), name=None).base_offset == 0


@pytest.mark.parametrize("policy", SyncPolicy)
def test_a_loss_of_power_takes_files_that_were_never_synced_and_no_others(policy: SyncPolicy) -> None:
    storage = SimulatedStorage(keeps_nothing)
    story = Story(policy=policy, storage=storage)
    me = story.identity()
    story.produce(me, "a")
    story.ended(me, COMMIT)
    storage.lose_power()
    if policy is not SyncPolicy.NONE:
        storage.remove_directory("orders-0")
    story.start()
    story.settle()
    gone = [trouble.text for trouble in story.host.troubles if "its files are gone" in trouble.text]
    assert len(gone) == (policy is not SyncPolicy.NONE)


def test_a_deleted_topic_is_not_missed_after_a_loss_of_power() -> None:
    """Deleted and created again, without a record yet: the catalogue must not remember the older one."""
    storage = SimulatedStorage(keeps_nothing)
    story = Story(policy=SyncPolicy.ALL, storage=storage)
    me = story.identity()
    story.produce(me, "a")
    story.ended(me, COMMIT)
    story.ask(DeleteTopics(topics=("orders",)))
    story.settle()
    story.create("orders", 2)
    storage.sync_directory("")  # the file system may write this earlier than asked
    storage.lose_power()
    story.start()
    story.settle()
    assert story.fetch(ORDERS).error is ErrorCode.NONE
    assert story.host.troubles == []


def test_a_transaction_ends_though_the_topic_that_it_wrote_to_was_lost() -> None:
    """A loss of power took the topic's creation, and not the decision of the transaction."""
    storage = Memory()
    story = Story(storage=storage)
    me = story.identity()
    story.produce(me, "a")
    path = log_file(METADATA_PARTITION)
    size = storage.open(path).size
    story.create("late")
    story.produce(me, "b", key=TopicPartition("late", 0))
    story.offer(end_request(me, COMMIT))
    while story.states()[-1] is not TransactionState.PREPARE_COMMIT:
        assert story.work()
    story.kill()
    storage.open(path).truncate(size)
    started(story)
    assert story.states()[-1] is TransactionState.COMPLETE_COMMIT
    assert story.visible() == "a"
    story.identity()
