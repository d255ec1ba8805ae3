"""Partitions whose log is gone together with something else: what the other files say of it still counts."""

from __future__ import annotations

import pytest

from fencepost.journal.manifest import LOG_START_FILE, read_log_start
from fencepost.journal.storage import StorageError
from fencepost.protocol.messages import DeleteRecords, DeleteRecordsPartition
from fencepost.repair.perform import perform
from fencepost.repair.plan import make_plan
from fencepost.repair.salvage import LossKind
from tests.broker.requests import NOBODY, ORDERS
from tests.broker.story import Memory, Story
from tests.broker.test_every_byte import DamagedStory, contents, disk_with
from tests.repair.test_transactions import log_file

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


def test_a_log_that_is_damaged_while_it_is_repaired() -> None:
    """The error does not say that nothing was changed, as it would at a start of the broker."""
    disk = disk_with(without(trimmed(), log_file(ORDERS)))
    plan = make_plan(disk)
    disk.replace(LOG_START, b"{", durable=True)
    with pytest.raises(StorageError, match=r"The start of the log is unknown, so the log is not served$"):
        perform(disk, plan)
