"""Partitions whose log is gone together with something else: what the other files say of it still counts."""

from __future__ import annotations

import pytest

from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.journal.catalogue import CATALOGUE_FILE
from fencepost.journal.manifest import CLEAN_FILE, LOG_START_FILE, read_log_start
from fencepost.journal.storage import StorageError
from fencepost.protocol.batches import walk
from fencepost.protocol.messages import DeleteRecords, DeleteRecordsPartition
from fencepost.protocol.terms import METADATA_PARTITION, TopicPartition
from fencepost.repair.perform import perform
from fencepost.repair.planner import make_plan
from fencepost.repair.salvage import LossKind
from tests.broker.requests import NOBODY, ORDERS, OTHERS
from tests.broker.story import Memory, Story, transaction_log_of
from tests.broker.test_every_byte import DamagedStory, contents, disk_with, fill
from tests.repair.judging import ADOPTED, repaired
from tests.repair.sweep import whole, whole_files
from tests.repair.test_transactions import Dying, log_file

LOG_START = f"{ORDERS}/{LOG_START_FILE}"
MISSING = LossKind.MISSING_PARTITION.value


def trimmed() -> dict[str, bytes]:
    """The files of a stopped broker with ten records in orders-0, of which the first four are deleted."""
    storage = Memory()
    story = Story(storage=storage)
    for number in range(10):
        story.produce(NOBODY, str(number), name=None)
    trim = DeleteRecordsPartition(topic=ORDERS.topic, partition=ORDERS.partition, offset=4)
    story.ask(DeleteRecords(timeout_ms=1_000, partitions=(trim,)))
    story.settle()
    story.host.stop()
    return contents(storage)


def without(files: dict[str, bytes], *paths: str) -> dict[str, bytes]:
    """The files without these, and without those in these directories."""
    return {path: data for path, data in files.items() if not path.startswith(paths)}


def test_a_damaged_log_start_of_a_missing_log_is_written_again() -> None:
    disk = disk_with(without({**trimmed(), LOG_START: b"{"}, log_file(ORDERS)))
    plan = make_plan(disk)
    assert {(damage.file, damage.kind) for damage in plan.damages} == {
        (LOG_START, "damaged derived file"),
        (str(ORDERS), MISSING),
    }
    perform(disk, plan)
    assert read_log_start(disk, str(ORDERS)) == 4
    assert make_plan(disk).damages == []
    story = DamagedStory.over(disk)
    assert story.produce(NOBODY, "new", name=None).base_offset == 10


def test_a_repair_of_a_missing_log_that_is_interrupted_is_started_again() -> None:
    """Killed at each of its writes: the log start is not lost, whatever was written before."""
    files = without({**trimmed(), LOG_START: b"{"}, log_file(ORDERS))
    for number in range(100):
        disk = Dying()
        fill(disk, files)
        disk.writes_left = number
        try:
            perform(disk, make_plan(disk))
        except StorageError:
            disk.writes_left = 10_000
            perform(disk, make_plan(disk))
            assert read_log_start(disk, str(ORDERS)) == 4, number
            assert check_directory(disk).count(Severity.PROBLEM) == 0, number
            continue
        assert number > 5
        return
    raise AssertionError("the repair never ends")


def test_a_log_that_is_damaged_while_it_is_repaired() -> None:
    """The error does not say that nothing was changed, as it would at a start of the broker."""
    disk = disk_with(without(trimmed(), log_file(ORDERS)))
    plan = make_plan(disk)
    disk.replace(LOG_START, b"{", durable=True)
    with pytest.raises(StorageError, match=r"The start of the log is unknown, so the log is not served$"):
        perform(disk, plan)


def test_a_missing_log_ends_where_its_small_files_say() -> None:
    """Without the mark of a stop, the manifest and the log start say how far it went."""
    files = without(trimmed(), CLEAN_FILE, log_file(ORDERS))
    for left, end in ((files, 10), (without(files, f"{ORDERS}/manifest.json"), 4)):
        disk = disk_with(left)
        perform(disk, make_plan(disk))
        assert make_plan(disk).damages == []
        story = DamagedStory.over(disk)
        assert story.produce(NOBODY, "new", name=None).base_offset == end


@pytest.mark.parametrize("key", [ORDERS, OTHERS, transaction_log_of("pay")])
def test_a_second_repair_knows_what_the_first_has_kept(key: TopicPartition) -> None:
    """No broker has opened the directory in between, so only the first repair can say where the log ends."""
    path, files = log_file(key), whole_files()
    flipped = bytearray(files[path])
    flipped[-1] ^= 1
    disk = disk_with({**files, path: bytes(flipped)})
    perform(disk, make_plan(disk, adopt=ADOPTED))
    kept = contents(disk)
    *_, (last, header) = walk(kept[path])
    (told,) = make_plan(disk_with({**kept, path: kept[path][:last]}), adopt=ADOPTED).damages
    assert (told.file, told.kind) == (path, LossKind.CUT_OFF.value)
    assert told.offsets == (header.base_offset, header.next_offset - 1)
    gone = disk_with(without(kept, f"{key}/"))
    assert [(each.file, each.kind) for each in make_plan(gone, adopt=ADOPTED).damages] == [
        (str(key), MISSING)
    ]
    perform(gone, make_plan(gone, adopt=ADOPTED))
    *_, (_, covering) = walk(contents(gone)[path])
    assert covering.next_offset >= header.next_offset


@pytest.mark.parametrize("starts", [1, 2])
def test_a_missing_log_ends_where_it_ended_before_later_starts(starts: int) -> None:
    """The mark of a stop is the last file that knows its end, and each start removes it."""
    disk = disk_with(without(trimmed(), f"{ORDERS}/"))
    for _ in range(starts):
        DamagedStory.over(disk).host.stop()
    perform(disk, make_plan(disk))
    assert make_plan(disk).damages == []
    story = DamagedStory.over(disk)
    assert story.produce(NOBODY, "new", name=None).base_offset == 10


@pytest.mark.parametrize("key", [ORDERS, OTHERS, transaction_log_of("pay")])
def test_the_mark_of_a_stop_knows_a_log_that_the_catalogue_does_not(key: TopicPartition) -> None:
    result = repaired(disk_with(without(whole_files(), CATALOGUE_FILE, f"{key}/")), whole())
    assert (str(key), MISSING) in [(damage.file, damage.kind) for damage in result.plan.damages]
    assert result.complaints == []


@pytest.mark.parametrize("key", [ORDERS, OTHERS, transaction_log_of("pay")])
def test_a_log_that_is_gone_with_the_metadata_is_missed(key: TopicPartition) -> None:
    """The catalogue still knows it."""
    result = repaired(disk_with(without(whole_files(), f"{METADATA_PARTITION}/", f"{key}/")), whole())
    assert (str(key), MISSING) in [(damage.file, damage.kind) for damage in result.plan.damages]
    assert result.complaints == []


def test_a_lost_topic_is_not_adopted_from_the_catalogue_alone() -> None:
    """Its directories may be waiting under the names that a repair gave them."""
    disk = disk_with(without(whole_files(), f"{METADATA_PARTITION}/", "orders-"))
    plan = make_plan(disk, adopt=frozenset({"orders"}))
    assert plan.adopted.isdisjoint({"orders"})
    perform(disk, plan)
    told = [damage.file for damage in plan.damages if damage.kind == MISSING]
    assert [name for name in told if name.startswith("orders-")] == [str(ORDERS), str(OTHERS)]
    assert check_directory(disk).count(Severity.PROBLEM) == 0
    assert list(DamagedStory.over(disk).host.troubles) == []
