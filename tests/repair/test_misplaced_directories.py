"""Directories of partitions, and files in them, that an operator swapped or copied: no log is served under
the name of another one, whether its broker stopped or died.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.layouts import open_layout
from fencepost.journal.manifest import (
    CHECKPOINT_FILE,
    CHECKSUM,
    LOG_START_FILE,
    MANIFEST_FILE,
    WRITTEN_AS,
    encode_json,
    write_log_start,
)
from fencepost.journal.storage import DamagedLog, ForeignLog, foreign_advice
from fencepost.protocol.terms import TopicPartition
from fencepost.repair.inventory import MisplacedDirectories
from fencepost.repair.perform import perform
from fencepost.repair.planner import make_plan
from fencepost.spark_bridge.partition_files import CorruptLog, open_partition_files
from tests.broker.requests import ORDERS
from tests.check.directories import SMALL, Directory, closed, killed
from tests.journal.logs import content


def swapped(disk: Directory) -> list[TopicPartition]:
    """The directories of two partitions change their names; returns the partitions that are wrong now."""
    for name, new_name in ((str(ORDERS), "~"), (str(SMALL), str(ORDERS)), ("~", str(SMALL))):
        disk.rename_directory(name, new_name)
    return [ORDERS, SMALL]


def duplicated(disk: Directory) -> list[TopicPartition]:
    """One directory is replaced by a copy of another one."""
    disk.remove_directory(str(SMALL))
    disk.put_directory(SMALL, disk, ORDERS)
    return [SMALL]


def problems(disk: Directory) -> list[str]:
    """The files that `fencepost check` has problems with."""
    return [found.file for found in check_directory(disk).found if found.severity is Severity.PROBLEM]


def files_of(disk: Directory, partition: TopicPartition) -> dict[str, bytes]:
    return {name: disk.get(f"{partition}/{name}") for name in disk.files(str(partition))}


@pytest.mark.parametrize("made", [closed, killed])
@pytest.mark.parametrize("misplace", [swapped, duplicated])
def test_a_log_under_another_name_is_not_served(
    made: Callable[[], Directory], misplace: Callable[[Directory], list[TopicPartition]]
) -> None:
    disk = made()
    misplaced = misplace(disk)
    assert problems(disk) == [str(partition) for partition in misplaced]
    with pytest.raises(MisplacedDirectories, match=re.escape(foreign_advice(disk.location))):
        make_plan(disk)
    data = DataDirectory.open(copied := Directory(disk))
    for partition in misplaced:
        words = re.escape(f"copy/{partition}: it holds the log of {SMALL if partition == ORDERS else ORDERS}")
        with pytest.raises(ForeignLog, match=words) as refused:
            data.journal(partition)
        assert str(refused.value).endswith(foreign_advice(disk.location))
        assert "stake" not in str(refused.value)
        assert files_of(copied, partition) == files_of(disk, partition)
        with pytest.raises(CorruptLog, match=words) as unread:
            open_partition_files(open_layout([disk]), partition)
        assert str(unread.value) == str(refused.value)


@pytest.mark.parametrize("made", [closed, killed])
def test_a_repair_leaves_misplaced_directories_to_a_person(made: Callable[[], Directory]) -> None:
    disk = made()
    told = content(DataDirectory.open(Directory(disk)).journal(ORDERS))
    swapped(disk)
    words = f"{ORDERS}: it holds the log of {SMALL}; {SMALL}: it holds the log of {ORDERS}. Nothing"
    with pytest.raises(MisplacedDirectories, match=re.escape(words)):
        make_plan(disk)
    swapped(disk)
    assert not make_plan(disk).is_needed
    assert content(DataDirectory.open(disk).journal(ORDERS)) == told


def test_a_repair_goes_on_when_a_copy_is_moved_away() -> None:
    disk = killed()
    duplicated(disk)
    with pytest.raises(MisplacedDirectories, match=f"copy: {SMALL}: it holds the log of {ORDERS}. Nothing"):
        make_plan(disk)
    disk.remove_directory(str(SMALL))
    perform(disk, make_plan(disk))
    assert problems(disk) == []


@pytest.mark.parametrize("name", [MANIFEST_FILE, CHECKPOINT_FILE, LOG_START_FILE])
def test_a_file_of_another_directory_is_refused_and_repaired(name: str) -> None:
    """The other small files say that the directory is where it belongs."""
    disk = closed()
    write_log_start(disk, str(ORDERS), 0)
    told = content(DataDirectory.open(Directory(disk)).journal(ORDERS))
    mine, other = f"{ORDERS}/{name}", f"{SMALL}/{name}"
    written = json.loads(disk.get(mine))
    del written[WRITTEN_AS], written[CHECKSUM]
    disk.put(mine, encode_json(written, place=other))
    assert problems(disk) == [mine]
    with pytest.raises(DamagedLog, match=f"{mine} was written as {other}.* `fencepost repair copy`, which"):
        DataDirectory.open(Directory(disk)).journal(ORDERS)
    perform(disk, make_plan(disk))
    assert problems(disk) == []
    assert content(DataDirectory.open(disk).journal(ORDERS)) == told
