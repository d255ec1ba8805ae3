"""A directory of the same name, from another cluster or from a topic that was deleted: its records never
become records of the topic that has the name now.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fencepost import Admin, Broker, Consumer, Producer
from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.journal.catalogue import CATALOGUE_FILE
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.layouts import open_layout
from fencepost.journal.manifest import (
    CHECKSUM,
    MANIFEST_FILE,
    WRITTEN_AS,
    decode_manifest,
    encode_json,
    write_log_start,
)
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import StorageError, foreign_advice
from fencepost.protocol.messages import DeleteTopics
from fencepost.protocol.terms import METADATA_PARTITION, NO_TOPIC_ID, spell_topic_id
from fencepost.repair.inventory import MisplacedDirectories
from fencepost.repair.perform import perform
from fencepost.repair.planner import make_plan
from fencepost.spark_bridge.partition_files import CorruptLog, open_partition_files
from tests.broker.disks import keeps_nothing
from tests.broker.requests import ORDERS
from tests.broker.story import Story
from tests.broker.test_every_byte import DamagedStory, contents, disk_with, fill
from tests.check.directories import ORDERS_LOG, SMALL, SMALL_LOG, Directory, closed, killed
from tests.repair.test_transactions import Dying

OTHER_ID = spell_topic_id(bytes(range(16)))
MANIFEST = f"{ORDERS}/{MANIFEST_FILE}"


def topic_id_of(storage: Directory) -> str:
    return spell_topic_id(decode_manifest(storage.get(MANIFEST), directory=str(ORDERS)).topic_id)


def started(disk: Directory) -> DamagedStory:
    """A broker on a copy of these files."""
    return DamagedStory.over(disk_with(contents(disk)))


def of_another_topic(storage: Directory) -> Directory:
    storage.change_json(MANIFEST, lambda content: content.update(topic_id=OTHER_ID))
    return storage


def of_another_directory(storage: Directory) -> Directory:
    content = json.loads(storage.get(MANIFEST))
    del content[WRITTEN_AS], content[CHECKSUM]
    storage.put(MANIFEST, encode_json(content, place=f"payments-0/{MANIFEST_FILE}"))
    return storage


@pytest.mark.parametrize("made", [closed, killed])
def test_the_log_of_another_topic_is_refused_and_left_as_it_is(made: Callable[[], Directory]) -> None:
    known = topic_id_of(made())
    disk = of_another_topic(made())
    story = started(disk)
    (trouble,) = [each.text for each in story.host.troubles if str(ORDERS) in each.text]
    words = (
        f"{ORDERS}: it holds the log of a topic with id {OTHER_ID}, but the topic of this name has id {known}"
    )
    assert words in trouble
    assert trouble.endswith(foreign_advice(story.storage.location))
    assert "stake" not in trouble
    assert ORDERS not in story.host.node.logs
    for name in disk.files(str(ORDERS)):
        assert story.storage.read_file(f"{ORDERS}/{name}") == disk.get(f"{ORDERS}/{name}")


@pytest.mark.parametrize("made", [closed, killed])
def test_check_repair_and_spark_name_the_log_of_another_topic(made: Callable[[], Directory]) -> None:
    known = topic_id_of(made())
    disk = of_another_topic(made())
    told = [each for each in check_directory(disk).found if each.severity is Severity.PROBLEM]
    words = f"it holds the log of a topic with id {OTHER_ID}, but the topic of this name has id {known}"
    advice = foreign_advice(disk.location)
    assert [(each.file, each.what) for each in told] == [(str(ORDERS), words)]
    assert told[0].means == f"the broker refuses it. {advice}"
    with pytest.raises(
        MisplacedDirectories, match=re.escape(f"{ORDERS}: {words}. Nothing was changed. {advice}")
    ):
        make_plan(disk)
    with pytest.raises(CorruptLog, match=re.escape(f"{ORDERS}: {words}. {advice}")):
        open_partition_files(open_layout([disk]), ORDERS)


def test_a_manifest_without_a_topic_id_is_malformed() -> None:
    disk = killed()
    disk.change_json(MANIFEST, lambda content: content.pop("topic_id"))
    told = [each.what for each in check_directory(disk).found if each.file == MANIFEST]
    assert told == ["its topic_id is missing or malformed"]


def test_a_topic_that_is_put_back_into_the_metadata_keeps_its_id_and_what_its_groups_committed() -> None:
    disk = killed()
    before = started(disk).offset("group")
    known = topic_id_of(disk)
    disk.remove_directory(str(METADATA_PARTITION))
    perform(disk, make_plan(disk, adopt=frozenset({"orders"})))
    story = started(disk)
    assert story.host.node.topic_id("orders") is not None
    assert spell_topic_id(story.host.node.topic_id("orders") or b"") == known
    assert story.offset("group") == before
    assert before.offset == 3


def test_a_topic_that_is_put_back_without_manifests_has_the_id_of_its_log_start() -> None:
    disk = killed()
    known = decode_manifest(disk.get(MANIFEST), directory=str(ORDERS)).topic_id
    write_log_start(disk, str(ORDERS), 0, known)
    for path in (MANIFEST, f"{SMALL}/{MANIFEST_FILE}"):
        disk.remove(path)
    disk.remove_directory(str(METADATA_PARTITION))
    perform(disk, make_plan(disk, adopt=frozenset({"orders"})))
    story = started(disk)
    assert story.host.node.topic_id("orders") == known
    assert ORDERS in story.host.node.logs


def test_a_repair_that_puts_a_topic_back_and_is_interrupted_keeps_its_id() -> None:
    """Killed at each of its writes, while all logs of the topic are damaged."""
    files = killed()
    known = topic_id_of(files)
    files.remove_directory(str(METADATA_PARTITION))
    for log in (ORDERS_LOG, SMALL_LOG):
        files.flip(log, 200)
    adopt = frozenset({"orders"})
    for number in range(1_000):
        disk = Dying()
        fill(disk, contents(files))
        disk.writes_left = number
        try:
            perform(disk, make_plan(disk, adopt=adopt))
        except StorageError:
            disk.writes_left = 10_000
            perform(disk, make_plan(disk, adopt=adopt))
            assert check_directory(disk).count(Severity.PROBLEM) == 0, number
            story = DamagedStory.over(disk)
            assert spell_topic_id(story.host.node.topic_id("orders") or b"") == known, number
            assert story.offset("group").offset == 3, number
            continue
        assert number > 50
        return
    raise AssertionError("the repair never ends")


def test_directories_of_two_topics_are_not_put_back_as_one() -> None:
    disk = of_another_topic(killed())
    disk.remove_directory(str(METADATA_PARTITION))
    # Nothing says which of the two is right.
    words = f"orders-1: it holds the log of a topic with id .*, but that of orders-0 has id {OTHER_ID}"
    with pytest.raises(MisplacedDirectories, match=words):
        make_plan(disk, adopt=frozenset({"orders"}))


def test_a_topic_whose_creation_the_metadata_has_lost_is_saved() -> None:
    """As `docs/repair.md` says: the metadata knows an earlier topic of the name, which is deleted."""
    disk = of_another_topic(killed())
    kept = Directory(disk)
    for partition in (ORDERS, SMALL):
        disk.remove_directory(str(partition))
    perform(disk, make_plan(disk))
    story = started(disk)
    story.ask(DeleteTopics(topics=("orders",)))
    story.settle()
    story.host.stop()
    disk = Directory(disk_with(contents(story.storage)))
    disk.put_directory(ORDERS, kept, ORDERS)
    perform(disk, make_plan(disk, adopt=frozenset({"orders"})))
    story = started(disk)
    assert spell_topic_id(story.host.node.topic_id("orders") or b"") == OTHER_ID
    assert ORDERS in story.host.node.logs


@pytest.mark.parametrize("foreign", [of_another_topic, of_another_directory])
def test_a_deletion_does_not_take_the_files_of_another_topic(
    foreign: Callable[[Directory], Directory],
) -> None:
    story = started(foreign(killed()))
    before = story.storage.read_file(MANIFEST)
    story.ask(DeleteTopics(topics=("orders",)))
    story.settle()
    assert str(ORDERS) not in story.storage.directories()
    assert story.storage.read_file(f"{ORDERS}~1/{MANIFEST_FILE}") == before
    moved = f"{ORDERS}: found files of another topic than the deleted one; moved them to {ORDERS}~1"
    assert moved in [each.text for each in story.host.troubles]


def test_a_start_that_finishes_a_deletion_does_not_take_the_files_of_another_topic() -> None:
    story = started(killed())
    story.ask(DeleteTopics(topics=("orders",)))
    story.settle()
    story.host.stop()
    disk = Directory(disk_with(contents(story.storage)))
    kept = of_another_topic(killed())
    for partition in (ORDERS, SMALL):
        disk.put_directory(partition, kept, partition)
    story = started(disk)
    assert story.storage.read_file(f"{ORDERS}~1/{MANIFEST_FILE}") == kept.get(MANIFEST)
    assert not {str(ORDERS), str(SMALL), f"{SMALL}~1"} & {*story.storage.directories()}


def test_without_syncs_too_a_loss_of_power_does_not_take_the_record_of_a_deletion_alone() -> None:
    storage = SimulatedStorage(keeps_nothing)
    story = Story(storage=storage)
    story.host.directory.journal(METADATA_PARTITION).sync()
    story.ask(DeleteTopics(topics=("orders",)))
    story.settle()
    storage.lose_power()
    assert DamagedStory.over(storage).host.node.topic_id("orders") is None


def test_a_deleted_topic_does_not_come_back_after_a_loss_of_power() -> None:
    storage = SimulatedStorage(keeps_nothing)
    data = DataDirectory.open(storage)
    data.journal(ORDERS).sync()
    storage.sync_directory("")
    data.delete(ORDERS, NO_TOPIC_ID)
    data.finish_deleting()
    storage.lose_power()
    assert str(ORDERS) not in storage.directories()


def test_a_directory_that_was_set_aside_does_not_come_back_after_a_loss_of_power() -> None:
    storage = SimulatedStorage(keeps_nothing)
    data = DataDirectory.open(storage)
    data.journal(ORDERS).sync()
    data.set_aside(ORDERS)
    storage.lose_power()
    assert str(ORDERS) not in storage.directories()


def test_a_refused_log_that_is_deleted_does_not_come_back_after_a_loss_of_power() -> None:
    """The catalogue does not list it: it was never opened."""
    storage = SimulatedStorage(keeps_nothing)
    data = DataDirectory.open(storage)
    storage.make_directory(str(ORDERS))
    storage.sync_directory("")
    data.delete(ORDERS, NO_TOPIC_ID)
    data.finish_deleting()
    storage.lose_power()
    assert str(ORDERS) not in storage.directories()


@pytest.mark.parametrize("broken", ["", CATALOGUE_FILE])
def test_a_deletion_that_is_not_synced_leaves_no_log_that_looks_damaged(broken: str) -> None:
    """The catalogue forgets a log before its directory is gone for good."""
    breaks: set[str] = set()
    storage = SimulatedStorage(keeps_nothing, breaks=lambda _operation, path: path in breaks)
    data = DataDirectory.open(storage)
    data.journal(ORDERS).sync()
    data.delete(ORDERS, NO_TOPIC_ID)
    breaks.add(broken)
    with pytest.raises(StorageError):
        data.finish_deleting()
    breaks.clear()
    storage.lose_power()
    assert DataDirectory.open(storage).journal(ORDERS).log_end_offset == 0


class CreatedAgain(Directory):
    """A directory whose topic is deleted and created again as soon as its manifest was read."""

    def __init__(self, good: Directory, earlier: bytes) -> None:
        super().__init__(good)
        self.earlier: bytes | None = earlier

    def read_file(self, path: str) -> bytes | None:
        if path == MANIFEST and self.earlier is not None:
            data, self.earlier = self.earlier, None
            return data
        return super().read_file(path)


def test_spark_reads_a_topic_that_is_created_again_while_its_files_are_listed() -> None:
    earlier = of_another_topic(killed()).get(MANIFEST)
    files = open_partition_files(open_layout([CreatedAgain(killed(), earlier)]), ORDERS)
    assert files.manifest == decode_manifest(killed().get(MANIFEST), directory=str(ORDERS))


def filled(where: Path, value: bytes, *earlier: str) -> Path:
    """The data directory of a broker that stopped, with one record."""
    with Broker(where) as broker:
        with Admin(broker.address) as admin:
            for topic in (*earlier, "orders"):
                admin.create_topic(topic)
        with Producer(broker.address) as producer:
            producer.send("orders", value).result()
    return where


def read(where: Path) -> list[bytes | None]:
    with Broker(where) as broker, Consumer(broker.address) as consumer:
        consumer.assign([ORDERS])
        return [record.value for batch in consumer.poll(1_000) for record in batch]


def test_a_directory_that_was_copied_from_another_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine, theirs = filled(tmp_path / "mine", b"mine"), filled(tmp_path / "theirs", b"theirs", "earlier")
    shutil.move(mine / "orders-0", tmp_path / "original")
    shutil.copytree(theirs / "orders-0", mine / "orders-0")
    assert read(mine) == []
    assert f"{ORDERS}: {mine}/{ORDERS}: it holds the log of a topic with id" in caplog.text
    shutil.rmtree(mine / "orders-0")
    shutil.move(tmp_path / "original", mine / "orders-0")
    assert read(mine) == [b"mine"]
