"""What a reader of the files sees, against a naive scan: any log, any cut, any torn end. No Spark in here.

Rule: exactly the records below the last stable offset that no aborted transaction wrote, each once.
"""

import json
from typing import Any

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencepost.journal.indexes import ABORTED_ENTRY
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.storage import MissingFile, StorageFile
from fencepost.protocol.batches import place, walk
from fencepost.protocol.compression import Compression
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.spark_bridge import planning
from fencepost.spark_bridge.partition_files import CorruptLog, DataLoss
from fencepost.spark_bridge.planning import ReadTask
from tests.journal.logs import DIRECTORY, files_of
from tests.spark.logs import (
    COMMITTED,
    UNCOMMITTED,
    Entry,
    RememberedLog,
    copy_of,
    end_of,
    last_stable_offset,
    new_log,
    ranges_of,
    read,
    rows_of_task,
    tasks_of,
    visible,
)

LOSSES_ALLOWED = {"failOnDataLoss": "false"}
MANIFEST = f"{DIRECTORY}/manifest.json"


Happening = tuple[Any, ...]
producers = st.integers(1, 3)
happenings: st.SearchStrategy[Happening] = st.one_of(
    st.tuples(st.just("plain"), st.integers(1, 5), st.booleans()),
    st.tuples(st.just("data"), producers, st.integers(1, 4)),
    st.tuples(st.just("whole"), producers, st.integers(1, 4), st.booleans()),
    st.tuples(st.just("commit"), producers),
    st.tuples(st.just("abort"), producers),
    st.tuples(st.just("emptied"), st.integers(1, 3)),
    st.tuples(st.just("thinned"), st.sets(st.integers(0, 9), min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["zstd", "roll", "manifest"])),
)
histories = st.lists(happenings, max_size=40)


def perform(log: RememberedLog, happening: Happening, *, size: int = 400) -> None:
    match happening:
        case ("plain", count, rich):
            log.records(count, rich=rich, size=size)
        case ("data", producer_id, count):
            log.records(count, producer_id=producer_id, size=size)
        case ("whole", producer_id, count, commits):
            log.records(count, producer_id=producer_id, size=size)
            (log.commit if commits else log.abort)(producer_id)
        case ("commit", producer_id):
            log.commit(producer_id)
        case ("abort", producer_id):
            log.abort(producer_id)
        case ("emptied", count):
            log.emptied(count)
        case ("thinned", deltas):
            log.records(deltas=sorted(deltas), size=size)
        case ("zstd",):
            log.records(3, rich=True, size=size, compression=Compression.ZSTD)
        case ("roll",):
            log.roll()
        case _:
            log.write_manifest()


def log_of(history: list[Happening]) -> tuple[MemoryStorage, RememberedLog]:
    storage = MemoryStorage()
    log = new_log(storage)
    for happening in history:
        perform(log, happening)
    return storage, log


@given(histories, st.sampled_from([COMMITTED, UNCOMMITTED]))
@example([("data", 1, 1), ("roll",), ("plain", 1, False), ("roll",), ("abort", 1)], COMMITTED)
@example([("whole", 1, 2, False), ("whole", 1, 2, True), ("manifest",)], COMMITTED)
@settings(max_examples=300)
def test_every_log_reads_as_a_naive_scan_of_it(history: list[Happening], level: IsolationLevel) -> None:
    storage, log = log_of(history)
    assert read(storage, level) == visible(log.entries, level)


@given(histories, st.data())
def test_any_range_cut_into_any_tasks_gives_each_row_once(
    history: list[Happening], data: st.DataObject
) -> None:
    storage, log = log_of(history)
    log.write_manifest()
    level = data.draw(st.sampled_from([COMMITTED, UNCOMMITTED]))
    end = last_stable_offset(log.entries) if level is COMMITTED else end_of(log.entries)
    low = data.draw(st.integers(0, end))
    high = data.draw(st.integers(low, end))
    options = {
        "startingOffsets": json.dumps({"orders": {"0": low}}),
        "endingOffsets": json.dumps({"orders": {"0": high}}),
        "minPartitions": str(data.draw(st.integers(1, 9))),
        "maxRecordsPerPartition": str(data.draw(st.integers(1, 50))),
    }
    expected = [row for row in visible(log.entries, level) if low <= row.offset < high]
    assert read(storage, level, options) == expected
    edges = [(range_.start, range_.end) for range_ in ranges_of(storage, level, options)]
    assert all(start < stop for start, stop in edges)
    assert [start for start, _ in edges[1:]] == [stop for _, stop in edges[:-1]]
    assert (edges[0][0], edges[-1][1]) == (low, high) if edges else low == high


def below(entries: list[Entry], end: int) -> list[Entry]:
    return [entry for entry in entries if entry.next_offset <= end]


def test_a_log_torn_at_any_byte_of_its_tail_reads_as_what_is_whole() -> None:
    storage = MemoryStorage()
    log = new_log(storage)
    log.records(2)
    log.records(2, producer_id=1)
    log.write_manifest()
    promised = end_of(log.entries)
    for _ in range(2):
        log.records(2, producer_id=2)
        log.abort(1)
        log.records(1, producer_id=1)
        log.commit(2)
    path = files_of(storage, "log")[0]
    whole = storage.read_file(path) or b""
    ends = [(header.next_offset, position + header.size) for position, header in walk(whole)]
    for size in range(dict(ends)[promised], len(whole) + 1):
        torn = copy_of(storage)
        torn.replace(path, whole[:size], durable=False)
        entries = below(log.entries, max(offset for offset, stop in ends if stop <= size))
        for level in IsolationLevel:
            assert read(torn, level) == visible(entries, level), size


def test_records_past_a_damaged_byte_of_the_tail_are_not_there() -> None:
    """Recovery keeps the longest valid prefix; who reads before the broker has recovered sees the same."""
    storage = MemoryStorage()
    log = new_log(storage)
    log.write_manifest()
    for _ in range(4):
        log.records(2)
    path = files_of(storage, "log")[0]
    whole = bytearray(storage.read_file(path) or b"")
    starts = [position for position, _ in walk(whole)]
    whole[starts[2] + 70] ^= 1
    storage.replace(path, whole, durable=False)
    assert read(storage) == visible(log.entries[:2], COMMITTED)


@pytest.mark.parametrize("stale", ["an older offset", "an older leader"])
def test_a_whole_batch_that_does_not_follow_is_no_part_of_the_log(stale: str) -> None:
    """What a disk may keep of former times behind the end."""
    storage = MemoryStorage()
    log = new_log(storage)
    log.leader_epoch = 1
    log.records(2)
    log.write_manifest()
    log.records(2)
    path = files_of(storage, "log")[0]
    whole = storage.read_file(path) or b""
    batch = bytearray(whole[: len(whole) // 2])
    if stale == "an older leader":
        place(batch, base_offset=end_of(log.entries), leader_epoch=0)
    storage.replace(path, whole + batch, durable=False)
    for level in IsolationLevel:
        assert read(storage, level) == visible(log.entries, level)


@pytest.mark.parametrize("kept", [0, 1, 33])
def test_an_abort_that_did_not_reach_its_index_counts_all_the_same(kept: int) -> None:
    """The broker was killed between two writes: the marker is in the log, its index entry is torn or gone."""
    history: list[Happening] = [
        ("data", 1, 2),
        ("manifest",),
        ("whole", 2, 1, False),
        ("plain", 2, False),
        ("abort", 1),
    ]
    storage, log = log_of(history)
    path = files_of(storage, "txnindex")[0]
    index = storage.read_file(path) or b""
    assert len(index) == 2 * 34
    storage.replace(path, index[: 34 + kept], durable=False)
    assert read(storage) == visible(log.entries, COMMITTED)


@pytest.mark.parametrize("start", range(9))
@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
@pytest.mark.parametrize("decides", ["nothing", "commit", "abort"])
def test_deleted_records_are_not_read_whatever_transaction_they_were_in(
    start: int, level: IsolationLevel, decides: str
) -> None:
    storage = MemoryStorage()
    log = new_log(storage)
    log.records(3)
    log.records(3, producer_id=1)
    log.records(2)
    log.journal.move_log_start(start)
    if decides != "nothing":
        (log.commit if decides == "commit" else log.abort)(1)
    log.write_manifest()
    assert read(storage, level) == [row for row in visible(log.entries, level) if row.offset >= start]


def test_without_a_manifest_the_whole_log_is_walked() -> None:
    storage, log = log_of(
        [("data", 1, 2), ("roll",), ("plain", 2, True), ("abort", 1), ("data", 2, 1), ("plain", 1, True)]
    )
    assert storage.read_file(MANIFEST) is None
    assert read(storage) == visible(log.entries, COMMITTED) != []


def test_a_log_shorter_than_its_manifest_is_a_loss() -> None:
    storage, log = log_of([("plain", 3, False), ("plain", 3, False), ("data", 1, 2), ("manifest",)])
    path = files_of(storage, "log")[0]
    whole = storage.read_file(path) or b""
    last = [position for position, _ in walk(whole)][-2]
    for size in (last, last + 10, len(whole) - 1):
        torn = copy_of(storage)
        torn.replace(path, whole[:size], durable=False)
        with pytest.raises(DataLoss, match="were written: start the broker"):
            read(torn)
        with pytest.warns(UserWarning, match="reading what exists"):
            assert read(torn, options=LOSSES_ALLOWED) == visible(
                below(log.entries, 6 if size > last + 10 else 3), COMMITTED
            )


def test_a_missing_segment_is_a_loss() -> None:
    storage, log = log_of(
        [("plain", 3, False), ("roll",), ("plain", 3, False), ("roll",), ("plain", 3, False), ("manifest",)]
    )
    storage.remove(files_of(storage, "log")[1])
    with pytest.raises(DataLoss, match=r"00000000000000000003\.log is gone"):
        read(storage)
    assert len(visible(log.entries, COMMITTED)) == 9


def test_a_cleaned_segment_that_is_larger_than_the_first_of_those_it_replaced_is_no_loss() -> None:
    storage, log = log_of(
        [("plain", 3, False), ("roll",), ("plain", 3, False), ("roll",), ("plain", 3, False), ("manifest",)]
    )
    first, second, _ = files_of(storage, "log")
    whole = [storage.read_file(path) or b"" for path in (first, second)]
    storage.replace(first, b"".join(whole), durable=False)
    storage.remove(second)
    assert read(storage) == visible(log.entries, COMMITTED)


class TestAnAbortIndexedInALaterSegment:
    """An aborted transaction stands in the index of the segment that holds its marker."""

    def log(self) -> tuple[MemoryStorage, RememberedLog]:
        history = [
            ("data", 1, 4),
            ("plain", 2, False),
            ("roll",),
            ("plain", 2, False),
            ("roll",),
            ("abort", 1),
            ("manifest",),
        ]
        return log_of(history)

    def test_is_found_from_the_segment_of_its_records(self) -> None:
        storage, log = self.log()
        own, _, marker = files_of(storage, "txnindex")
        assert storage.read_file(own) == b"" != storage.read_file(marker)
        options = {"endingOffsets": json.dumps({"orders": {"0": 6}})}
        assert [row.offset for row in read(storage, options=options)] == [4, 5]
        assert read(storage) == visible(log.entries, COMMITTED)

    def test_a_task_that_was_not_told_refuses_at_the_marker(self) -> None:
        storage, _ = self.log()
        (task,) = tasks_of(storage)
        with pytest.raises(CorruptLog, match="producer 1 aborted a transaction at offset 8"):
            rows_of_task(storage, ReadTask((attrs.evolve(*task.ranges, aborted=()),)))

    @pytest.mark.parametrize(
        ("last", "options"),
        [(7, {}), (11, {}), (12, {}), (11, {"maxRecordsPerPartition": "1"}), (12, {"minPartitions": "9"})],
    )
    def test_an_index_of_another_partition_is_refused_at_the_marker(
        self, last: int, options: dict[str, str]
    ) -> None:
        """It would hide committed records. `last`: before the commit at offset 11, at it, and after it."""
        history: list[Happening] = [
            ("data", 1, 3),
            ("abort", 1),
            ("data", 1, 3),
            ("plain", 4, False),
            ("commit", 1),
            ("plain", 2, False),
            ("manifest",),
        ]
        storage, log = log_of(history)
        (path,) = files_of(storage, "txnindex")
        assert read(storage, options=options) == visible(log.entries, COMMITTED)
        entry = ABORTED_ENTRY.pack(0, 1, 4, last, last + 1)
        storage.replace(path, (storage.read_file(path) or b"") + entry, durable=False)
        with pytest.raises(
            CorruptLog, match=r"producer 1 committed .* at offset 11 .* lists it as aborted: start the broker"
        ):
            read(storage, options=options)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"maxRecordsPerPartition": "1"},
            {"maxRecordsPerPartition": "4"},
            {"endingOffsets": json.dumps({"orders": {"0": 5}})},
        ],
    )
    def test_an_index_without_an_abort_is_refused_by_each_task_with_its_records(
        self, options: dict[str, str]
    ) -> None:
        """It would show aborted records. `endingOffsets` ends before the marker, and a task may, too."""
        storage, log = self.log()
        log.records(2, producer_id=1)
        log.commit(1)
        log.write_manifest()
        storage.replace(files_of(storage, "txnindex")[2], b"", durable=False)
        refused = 0
        for range_ in ranges_of(storage, options=options):
            if range_.start < 4:
                refused += 1
                with pytest.raises(CorruptLog, match="producer 1 aborted a transaction at offset 8"):
                    rows_of_task(storage, ReadTask((range_,)))
            else:
                rows_of_task(storage, ReadTask((range_,)))
        assert refused

    @pytest.mark.parametrize("options", [{}, {"maxRecordsPerPartition": "3"}])
    def test_an_abort_that_only_the_walk_knows_is_refused_if_it_began_earlier(
        self, options: dict[str, str]
    ) -> None:
        """The index lacks it, and the walk to the end of the log began inside the transaction."""
        storage, _ = log_of([*[("data", 1, 1)] * 20, ("abort", 1), ("manifest",)])
        (path,) = files_of(storage, "txnindex")
        assert read(storage, options=options) == []
        storage.replace(path, b"", durable=False)
        assert 0 < ranges_of(storage)[0].aborted[0].first_offset < 20
        with pytest.raises(CorruptLog, match="producer 1 aborted a transaction"):
            read(storage, options=options)

    def test_an_index_that_aborts_the_middle_of_a_transaction_is_refused(self) -> None:
        storage, _ = log_of([*[("data", 1, 1)] * 3, ("commit", 1), ("abort", 2), ("manifest",)])
        (path,) = files_of(storage, "txnindex")
        storage.replace(path, ABORTED_ENTRY.pack(0, 1, 1, 1, 2), durable=False)
        with pytest.raises(CorruptLog, match="producer 1 committed a transaction at offset 3"):
            read(storage)

    def test_a_missing_index_is_damage(self) -> None:
        storage, _ = self.log()
        storage.remove(files_of(storage, "txnindex")[2])
        with pytest.raises(CorruptLog, match="txnindex is missing"):
            read(storage)
        assert len(read(storage, UNCOMMITTED)) == 8

    @pytest.mark.parametrize("carried", [0, 64])
    @pytest.mark.parametrize("start", [0, 1, 6])
    @pytest.mark.parametrize("most", ["1", "3", "100"])
    @pytest.mark.parametrize(
        ("entry", "says"),
        [
            (None, "is missing, and aborted records cannot be distinguished without it"),
            (b"\0" * 33, "ends inside an entry"),
            (b"\7" * 34, "cannot be read: a transaction index entry of version 1799; this version reads 0"),
        ],
    )
    def test_a_damaged_index_is_made_up_for_by_the_markers_if_damage_is_allowed(
        self,
        entry: bytes | None,
        says: str,
        most: str,
        start: int,
        carried: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(planning, "ABORTED_CARRIED", carried)
        storage, log = self.log()
        log.roll()
        log.records(2)
        log.write_manifest()
        path = files_of(storage, "txnindex")[2]
        storage.remove(path)
        if entry is not None:
            storage.replace(path, entry, durable=False)
        with pytest.raises(CorruptLog, match=f"{path} {says}: start the broker"):
            read(storage)
        options = {
            **LOSSES_ALLOWED,
            "maxRecordsPerPartition": most,
            "startingOffsets": json.dumps({"orders": {"0": start}}),
        }
        with pytest.warns(UserWarning, match=f"{path} {says}: reading the markers instead"):
            rows = read(storage, options=options)
        assert rows == [row for row in visible(log.entries, COMMITTED) if row.offset >= start]


@pytest.mark.parametrize(
    ("low", "high", "offsets"),
    [
        (2, 6, []),  # the whole range is invisible
        (2, 8, [6, 7]),  # its beginning is
        (0, 5, [0, 1]),  # its end is
        (0, 8, [0, 1, 6, 7]),  # and a gap in the middle
        (5, 6, []),  # nothing but a marker
        (3, 3, []),
    ],
)
def test_ranges_with_nothing_visible_in_them(low: int, high: int, offsets: list[int]) -> None:
    """The four corner cases of SPARK-25005: offsets that nobody will ever see are no loss."""
    storage, _ = log_of(
        [("plain", 2, False), ("data", 1, 3), ("abort", 1), ("plain", 2, False), ("manifest",)]
    )
    options = {
        "startingOffsets": json.dumps({"orders": {"0": low}}),
        "endingOffsets": json.dumps({"orders": {"0": high}}),
    }
    assert [row.offset for row in read(storage, options=options)] == offsets


def test_offsets_that_are_not_there_say_which_are() -> None:
    storage, _ = log_of([("plain", 2, False), ("data", 7, 1), ("plain", 2, False), ("manifest",)])
    beyond = json.dumps({"orders": {"0": 4}})
    told = (
        r"offset 4 of orders-0, which can be read from offset 0 up to, but not including, 2 "
        r"\(producer 7 has a transaction open"
    )
    for name in ("startingOffsets", "endingOffsets"):
        with pytest.raises(DataLoss, match=told):
            read(storage, options={name: beyond})
    with pytest.warns(UserWarning, match=told):
        assert len(read(storage, options={"endingOffsets": beyond, **LOSSES_ALLOWED})) == 2
    assert len(read(storage, UNCOMMITTED, {"endingOffsets": beyond})) == 4


class TestDamageBelowTheReadableEnd:
    """Something that was written whole and is not what it was."""

    def damaged(self, at: int) -> tuple[MemoryStorage, RememberedLog]:
        storage, log = log_of([("plain", 2, False), ("plain", 2, False), ("plain", 2, False), ("manifest",)])
        path = files_of(storage, "log")[0]
        whole = bytearray(storage.read_file(path) or b"")
        whole[[position for position, _ in walk(whole)][1] + at] ^= 1
        storage.replace(path, whole, durable=False)
        return storage, log

    def test_names_the_file_and_the_offset(self) -> None:
        storage, _ = self.damaged(at=80)
        with pytest.raises(
            CorruptLog, match=r"orders-0/0+\.log is damaged at byte \d+, at or after offset 2: the checksum"
        ) as refused:
            read(storage)
        assert f"`fencepost repair {storage.location}`" in str(refused.value)

    def test_is_read_around_when_losses_are_allowed(self) -> None:
        storage, log = self.damaged(at=80)
        with pytest.warns(UserWarning, match="that batch is missing from the result"):
            assert read(storage, options=LOSSES_ALLOWED) == visible(
                [log.entries[0], log.entries[2]], COMMITTED
            )

    def test_a_length_that_cannot_be_believed_ends_the_log(self) -> None:
        storage, log = self.damaged(at=11)
        with pytest.raises(DataLoss, match=r"\.log ends at offset \d+, but offsets up to 6 were written"):
            read(storage)
        with pytest.warns(UserWarning, match="ends at offset"):
            assert read(storage, options=LOSSES_ALLOWED) == visible(log.entries[:1], COMMITTED)

    def test_a_full_segment_that_ends_early_is_read_as_far_as_it_goes(self) -> None:
        storage, log = log_of(
            [("plain", 2, False), ("plain", 2, False), ("roll",), ("plain", 2, False), ("manifest",)]
        )
        path = files_of(storage, "log")[0]
        storage.replace(path, (storage.read_file(path) or b"")[:-5], durable=False)
        with pytest.raises(CorruptLog, match=r"a batch of \d+ bytes is cut off"):
            read(storage)
        with pytest.warns(UserWarning, match="the rest of this file is missing from the result"):
            assert read(storage, options=LOSSES_ALLOWED) == visible(
                [log.entries[0], log.entries[2]], COMMITTED
            )


def test_large_segments_are_cut_where_batches_begin() -> None:
    storage = MemoryStorage()
    log = new_log(storage, settings=JournalSettings(segment_bytes=60_000))
    for _ in range(300):
        log.records(3, size=200)
        if log.journal.is_full:
            log.roll()
    log.write_manifest()
    tasks = tasks_of(storage, options={"minPartitions": "8"})
    assert 8 <= len(tasks) <= 12
    assert all(range_.start % 3 == 0 for task in tasks for range_ in task.ranges)
    assert [row for task in tasks for row in rows_of_task(storage, task)] == visible(log.entries, COMMITTED)
    sizes = [sum(len(row.value or b"") for row in rows_of_task(storage, task)) for task in tasks]
    assert max(sizes) < 1.5 * sum(sizes) / len(sizes)


def test_an_index_that_lies_only_costs_time() -> None:
    storage = MemoryStorage()
    log = new_log(storage)
    for _ in range(200):
        log.records(3, size=200)
    log.write_manifest()
    path = files_of(storage, "index")[0]
    index = bytearray(storage.read_file(path) or b"")
    for position in range(7, len(index), 8):
        index[position] ^= 3
    storage.replace(path, index[:-3], durable=False)
    options = {"startingOffsets": json.dumps({"orders": {"0": 301}}), "minPartitions": "4"}
    assert read(storage, options=options) == visible(log.entries, COMMITTED)[301:]


class TestDeletedRecords:
    """The log start is written durably before a record is deleted, the manifest up to 200 ms later."""

    def log(self) -> tuple[MemoryStorage, RememberedLog]:
        history = [("plain", 3, False), ("roll",), ("plain", 3, False), ("roll",), ("plain", 3, False)]
        storage, log = log_of([*history, ("manifest",)])
        return storage, log

    @pytest.mark.parametrize("start", range(10))
    def test_do_not_come_back_if_the_broker_dies_before_it_writes_a_manifest(self, start: int) -> None:
        storage, log = self.log()
        log.journal.move_log_start(start)
        for level in IsolationLevel:
            assert read(storage, level) == [r for r in visible(log.entries, level) if r.offset >= start]

    def test_may_be_gone_from_the_files_while_the_manifest_still_lists_them(self) -> None:
        """A restart removes segments below the log start, and writes the manifest later."""
        storage, log = self.log()
        log.journal.move_log_start(5)
        log.journal.abandon()
        recovered = Journal(storage, TopicPartition("orders", 0))
        assert len(files_of(storage, "log")) == 2
        assert recovered.log_start_offset == 5
        assert read(storage) == visible(log.entries, COMMITTED)[5:]

    def test_may_be_deleted_while_the_files_are_listed(self) -> None:
        """The log start is read last: it explains every segment that the listing lacks."""
        storage, log = self.log()
        listed = storage.files

        def files(directory: str) -> dict[str, int]:
            if directory == DIRECTORY:
                log.journal.move_log_start(5)
                storage.remove(files_of_list(listed(directory))[0])
            return listed(directory)

        storage.files = files
        assert read(storage) == visible(log.entries, COMMITTED)[5:]

    def test_a_damaged_log_start_is_named(self) -> None:
        storage, log = self.log()
        log.journal.move_log_start(5)
        storage.replace(f"{DIRECTORY}/log-start-offset.json", b"{}", durable=False)
        with pytest.raises(CorruptLog, match=r"log-start-offset\.json is damaged"):
            read(storage)


def files_of_list(names: dict[str, int]) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in names if name.endswith(".log")]


class TestAFileThatDisappears:
    """Retention and compaction remove files between the listing and the read."""

    def log(self) -> tuple[MemoryStorage, RememberedLog]:
        history = [("plain", 3, False), ("roll",), ("plain", 3, False), ("roll",), ("plain", 3, False)]
        return log_of(history)

    def removing(self, storage: MemoryStorage, log: RememberedLog, *, times: int) -> None:
        """Moves the log start and removes the first segment when it is opened, `times` times."""
        for path in files_of(storage, "snapshot"):  # or the planner would not open the first segment
            storage.remove(path)
        opened = storage.open
        left = times

        def open_file(path: str, *, create: bool = False) -> StorageFile:
            nonlocal left
            first = files_of(storage, "log")[0]
            if left and path == first:
                left -= 1
                log.journal.move_log_start(log.journal.segments.full[times - left - 1].end_offset)
                storage.remove(first)
            return opened(path, create=create)

        storage.open = open_file

    def test_is_listed_again_by_the_planner(self) -> None:
        storage, log = self.log()
        self.removing(storage, log, times=2)
        assert read(storage) == visible(log.entries, COMMITTED)[6:]

    def test_is_listed_three_times_more_at_most(self) -> None:
        storage, log = log_of([step for _ in range(6) for step in (("plain", 3, False), ("roll",))])
        self.removing(storage, log, times=4)
        with pytest.raises(MissingFile):
            read(storage)

    def test_is_not_listed_again_if_the_files_are_as_before(self) -> None:
        storage, _ = self.log()
        opened: list[str] = []

        def open_file(path: str, *, create: bool = False) -> StorageFile:
            opened.append(path)
            raise MissingFile(f"cannot open {path}")

        storage.open = open_file
        with pytest.raises(MissingFile):
            read(storage)
        assert len(opened) == 1
