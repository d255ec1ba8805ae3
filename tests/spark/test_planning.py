"""Tasks: how ranges are cut and packed, what each task carries, and files that change before it is read."""

import pickle
import random
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition

from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.indexes import AbortedRange
from fencepost.journal.journal import JournalSettings
from fencepost.journal.layouts import open_layout
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.open_transactions import OpenTransaction
from fencepost.journal.storage import StorageFile
from fencepost.protocol.terms import TopicPartition
from fencepost.spark_bridge import planning
from fencepost.spark_bridge.losses import Loss
from fencepost.spark_bridge.options import parse_options
from fencepost.spark_bridge.partition_files import CorruptLog, DataLoss, Piece
from fencepost.spark_bridge.planning import PlannedRange, ReadTask, sweep
from fencepost.spark_bridge.ranges import plan_batch
from fencepost.spark_bridge.scanning import RangeScan
from fencepost.spark_bridge.streaming import LogStream
from fencepost.spark_bridge.task_sizes import RANGE_BYTES, TaskSizes
from tests.journal.logs import DIRECTORY, files_of
from tests.spark.logs import (
    COMMITTED,
    UNCOMMITTED,
    RememberedLog,
    new_log,
    read,
    rows_of_task,
    tasks_of,
    visible,
)

MIB = 1 << 20


def range_with(**fields: Any) -> PlannedRange:
    """A range of one piece, and these fields."""
    usual = PlannedRange(
        partition=TopicPartition("orders", 7),
        start=10**9,
        end=10**9 + 10**6,
        topic_id="AAECAwQFBgcICQoLDA0ODw",
        home=0,
        pieces=(Piece(10**9 - 5_000, 700_000_000, 1 << 30),),
        aborted=(),
        opened=(),
        is_indexed=False,
    )
    return attrs.evolve(usual, **fields)


@pytest.mark.parametrize(
    ("sizes", "total", "ranges", "task_bytes"),
    [
        (TaskSizes(parallelism=2), 1024 * MIB, 1, 128 * MIB),
        (TaskSizes(parallelism=16), 346 * MIB, 0, -(-346 * MIB // 16)),
        (TaskSizes(parallelism=16), 10 * MIB, 1, 4 * MIB),
        (TaskSizes(parallelism=4), 0, 1_000, 1_000 * RANGE_BYTES // 4),
        (TaskSizes(parallelism=2, min_partitions=10), 10 * MIB, 1, MIB),
        (TaskSizes(parallelism=2, min_partitions=1), 1024 * MIB, 1, 128 * MIB),
    ],
)
def test_the_size_of_tasks_is_sparks_rule_for_files(
    sizes: TaskSizes, total: int, ranges: int, task_bytes: int
) -> None:
    assert sizes.task_bytes(total=total, range_count=ranges) == task_bytes


def spanning(producer_id: int, first_offset: int, length: int) -> AbortedRange:
    return AbortedRange(producer_id, first_offset, first_offset + length, 0)


aborted_ranges = st.builds(spanning, st.integers(1, 5), st.integers(0, 60), st.integers(0, 40))


@given(st.lists(aborted_ranges), st.sets(st.integers(0, 100), min_size=2))
def test_a_sweep_finds_what_a_search_of_every_range_finds(
    aborted: list[AbortedRange], offsets: set[int]
) -> None:
    cuts = sorted(offsets)
    ordered = sorted(aborted, key=lambda each: each.first_offset)
    assert [sorted(found) for found in sweep(ordered, cuts)] == [
        sorted(a for a in aborted if a.last_offset >= start and a.first_offset < end)
        for start, end in pairwise(cuts)
    ]


def many_partitions(count: int) -> tuple[MemoryStorage, dict[int, RememberedLog]]:
    storage = MemoryStorage()
    directory = DataDirectory.open(storage)
    logs = {n: RememberedLog(directory.journal(TopicPartition("orders", n))) for n in range(count)}
    for number, log in logs.items():
        log.records(1 + number % 3, rich=True)
        log.records(2, producer_id=1)
        (log.abort if number % 2 else log.commit)(1)
    return storage, logs


@pytest.mark.parametrize(
    ("options", "task_count"), [({}, 1), ({"minPartitions": "10"}, 10), ({"maxRecordsPerPartition": "60"}, 5)]
)
def test_small_partitions_share_tasks(options: dict[str, str], task_count: int) -> None:
    storage, logs = many_partitions(50)
    tasks = tasks_of(storage, options=options)
    assert task_count <= len(tasks) <= task_count + 2
    rows = [row for task in tasks for row in rows_of_task(storage, task)]
    assert rows == [row for log in logs.values() for row in visible(log.entries, COMMITTED)]


def test_more_cores_get_more_tasks() -> None:
    storage, _ = many_partitions(50)
    for parallelism, task_count in ((1, 1), (2, 2), (3, 3), (100, 4)):
        options = parse_options({"path": "unused", "subscribe": "orders"}, parallelism=parallelism)
        assert len(plan_batch(open_layout([storage]), options, report=None)) == task_count


@pytest.mark.parametrize("plans", ["a batch", "a stream"])
def test_partitions_are_planned_side_by_side(plans: str) -> None:
    """Where files are far away, planning waits for them: for those of several partitions at once."""
    storage, _ = many_partitions(2)
    layout, together = open_layout([storage]), threading.Barrier(2, timeout=60)
    list_files = storage.files

    def listed_by_both(directory: str) -> dict[str, int]:
        if directory.startswith("orders-"):
            together.wait()  # BrokenBarrierError if the other one does not come
        return list_files(directory)

    storage.files = listed_by_both
    options = parse_options({"path": "unused", "subscribe": "orders"})
    if plans == "a batch":
        assert [len(task.ranges) for task in plan_batch(layout, options, report=None)] == [2]
    else:
        assert len(LogStream(options).latest(layout)) == 2


def test_a_task_of_one_range_is_smaller_than_a_kilobyte() -> None:
    """With as many aborted transactions as it may carry, of producers that have nothing in common."""
    chance, first = random.Random(1), 10**9
    aborted: list[AbortedRange] = []
    for _ in range(planning.ABORTED_CARRIED):
        first += chance.randrange(1, 5_000)
        aborted.append(AbortedRange(chance.randrange(10**6), first, first + chance.randrange(5_000), first))
    task = ReadTask((range_with(aborted=tuple(aborted)),))
    assert len(pickle.dumps(InputPartition(task))) < 1_024
    assert len(pickle.dumps(ReadTask((range_with(),)))) < 200


def test_a_small_partition_takes_up_some_bytes_of_a_task() -> None:
    chance = random.Random(1)
    count, ranges = 1_000, list[PlannedRange]()
    for number in range(count):
        end = chance.randrange(1, 5_000)
        piece = Piece(0, 0, end * 100 + chance.randrange(500))
        partition = TopicPartition("orders", number)
        ranges.append(range_with(partition=partition, start=0, end=end, pieces=(piece,)))
    assert len(pickle.dumps(InputPartition(ReadTask(tuple(ranges))))) < 12 * count


offsets = st.integers(0, 2**63 - 1)


@given(
    st.lists(
        st.builds(
            range_with,
            partition=st.builds(TopicPartition, st.text(), st.integers(0, 2**31 - 1)),
            start=offsets,
            end=offsets,
            home=st.integers(0, 9),
            pieces=st.lists(st.builds(Piece, offsets, offsets, offsets)).map(tuple),
            aborted=st.lists(st.builds(AbortedRange, offsets, offsets, offsets, offsets)).map(tuple),
            opened=st.lists(st.builds(OpenTransaction, offsets, offsets, offsets)).map(tuple),
            is_indexed=st.booleans(),
        )
    )
)
def test_a_task_arrives_as_it_was_sent(ranges: list[PlannedRange]) -> None:
    task = ReadTask(tuple(ranges))
    assert pickle.loads(pickle.dumps(task)) == task


class TestManyAbortedTransactions:
    def log(self) -> tuple[MemoryStorage, RememberedLog]:
        storage = MemoryStorage()
        log = new_log(storage, settings=JournalSettings(segment_bytes=20_000))
        for number in range(150):
            log.records(2, producer_id=1 + number % 3)
            log.records(1)
            (log.commit if number % 5 == 0 else log.abort)(1 + number % 3)
            if log.journal.is_full:
                log.roll()
            if number == 120:
                log.write_manifest()
        return storage, log

    def test_are_found_by_the_task_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(planning, "ABORTED_CARRIED", 20)
        storage, log = self.log()
        (task,) = tasks_of(storage)
        assert task.ranges[0].is_indexed
        assert not task.ranges[0].aborted
        assert rows_of_task(storage, task) == visible(log.entries, COMMITTED)
        assert len(pickle.dumps(task)) < 1_024

    def test_are_carried_if_no_index_has_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A broker that was killed had written the markers, and not their entries."""
        monkeypatch.setattr(planning, "ABORTED_CARRIED", 20)
        storage, log = self.log()
        last = files_of(storage, "txnindex")[-1]
        storage.replace(last, (storage.read_file(last) or b"")[: -5 * 34], durable=False)
        (task,) = tasks_of(storage)
        assert task.ranges[0].is_indexed
        assert task.ranges[0].aborted
        assert rows_of_task(storage, task) == visible(log.entries, COMMITTED)


def segments(count: int) -> tuple[MemoryStorage, RememberedLog]:
    storage = MemoryStorage()
    log = new_log(storage)
    for number in range(count):
        log.records(3, rich=True)
        log.records(3, producer_id=1)
        (log.abort if number % 2 else log.commit)(1)
        log.roll()
    log.records(3)
    log.write_manifest()
    return storage, log


def read_changed(
    storage: MemoryStorage, change: Callable[[], object], *, losses: list[Loss] | None = None
) -> list[int]:
    """The offsets of a read whose files change between plan and read."""
    report = None if losses is None else losses.append
    options = parse_options({"path": "unused", "subscribe": "orders"})
    (task,) = plan_batch(open_layout([storage]), options, report=None)
    change()
    scan = RangeScan(open_layout([storage]), task.ranges[0], isolation_level=UNCOMMITTED, report=report)
    return [header.base_offset for header, _ in scan]


class TestFilesThatChangeBetweenPlanAndRead:
    def test_retention_is_a_loss_that_names_its_offsets(self) -> None:
        def retention() -> None:
            log.journal.move_log_start(9)
            storage.remove(files_of(storage, "log")[0])

        storage, log = segments(3)
        with pytest.raises(DataLoss, match=r"orders-0 has lost the offsets 0 to 9 since the read began"):
            read_changed(storage, retention)
        storage, log = segments(3)
        losses: list[Loss] = []
        assert read_changed(storage, retention, losses=losses) == [7, 10, 14, 17, 21]
        assert [(loss.start, loss.end) for loss in losses] == [(0, 9)]

    def test_a_deleted_topic_is_a_loss(self) -> None:
        storage, _ = segments(2)
        with pytest.raises(DataLoss, match="has lost the offsets 0 to 17"):
            read_changed(storage, lambda: storage.remove_directory(DIRECTORY))
        storage, _ = segments(2)
        losses: list[Loss] = []
        assert read_changed(storage, lambda: storage.remove_directory(DIRECTORY), losses=losses) == []
        assert [(loss.start, loss.end) for loss in losses] == [(0, 17)]

    def test_a_segment_that_somebody_removed_is_a_loss(self) -> None:
        storage, _ = segments(3)
        with pytest.raises(DataLoss, match=r"00000000000000000007\.log is gone"):
            read_changed(storage, lambda: storage.remove(files_of(storage, "log")[1]))
        storage, _ = segments(3)
        losses: list[Loss] = []
        found = read_changed(storage, lambda: storage.remove(files_of(storage, "log")[1]), losses=losses)
        assert found == [0, 3, 14, 17, 21]
        assert [(loss.start, loss.end) for loss in losses] == [(7, 14)]

    def test_a_segment_that_took_the_place_of_others_is_read_instead(self) -> None:
        storage, log = segments(3)

        def merge() -> None:
            first, second, *_ = files_of(storage, "log")
            whole = [storage.read_file(path) or b"" for path in (first, second)]
            storage.replace(first, b"".join(whole), durable=False)
            storage.remove(second)

        expected = [entry.base_offset for entry in log.entries if entry.rows]
        assert read_changed(storage, merge) == expected

    def test_damage_is_no_change(self) -> None:
        storage, _ = segments(2)

        def damage() -> None:
            path = files_of(storage, "log")[1]
            data = bytearray(storage.read_file(path) or b"")
            data[80] ^= 1
            storage.replace(path, data, durable=False)

        with pytest.raises(CorruptLog, match="is damaged at byte 0, at or after offset 7"):
            read_changed(storage, damage)


def test_a_partition_that_is_chosen_and_has_no_records_gives_no_rows() -> None:
    storage = MemoryStorage()
    new_log(storage)
    storage.make_directory("orders-1")
    assert read(storage) == []


def opened_by_plan(storage: MemoryStorage) -> set[str]:
    """The log files that a plan opens."""
    opened: set[str] = set()
    open_file = storage.open

    def noted(path: str, *, create: bool = False) -> StorageFile:
        opened.add(path)
        return open_file(path, create=create)

    storage.open = noted
    tasks_of(storage)
    return opened


class TestTheWalk:
    def test_begins_at_the_newest_snapshot(self) -> None:
        """A transaction that stays open holds the LSO of the manifest back, but not the planner."""
        storage = MemoryStorage()
        log = new_log(storage)
        log.records(2, producer_id=7)
        for _ in range(6):
            log.records(2, producer_id=1)
            log.abort(1)
            log.roll()
        log.records(2)
        log.write_manifest()
        logs = files_of(storage, "log")
        assert opened_by_plan(storage) == {logs[-1]}
        assert read(storage) == visible(log.entries, COMMITTED) == []
        assert read(storage, UNCOMMITTED) == visible(log.entries, UNCOMMITTED)
        log.commit(7)
        assert read(storage) == visible(log.entries, COMMITTED) != []

    def test_ignores_a_snapshot_beyond_the_high_watermark(self) -> None:
        """The log up to it may not have survived a loss of power."""
        storage = MemoryStorage()
        log = new_log(storage)
        log.records(2, producer_id=7)
        log.write_manifest()
        log.records(2)
        log.roll()
        log.records(1)
        first, _ = files_of(storage, "log")
        storage.replace(first, (storage.read_file(first) or b"")[:-3], durable=False)
        assert read(storage, UNCOMMITTED) == visible(log.entries[:1], UNCOMMITTED)

    def test_makes_the_segment_that_is_written_divisible(self) -> None:
        """A broker saves the offset index of its last segment only when that is full."""
        storage = MemoryStorage()
        log = new_log(storage)
        for _ in range(300):
            log.records(3, size=1_000)
        assert not any(storage.read_file(path) for path in files_of(storage, "index"))
        tasks = tasks_of(storage, options={"minPartitions": "4"})
        assert len(tasks) == 4
        assert [row for task in tasks for row in rows_of_task(storage, task)] == visible(
            log.entries, COMMITTED
        )
