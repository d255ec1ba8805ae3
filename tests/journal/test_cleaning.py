"""Cleaned segments on a disk: when a cleaning is due, what it leaves, and crashes between its steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from fencepost.check.directory import check_logs
from fencepost.check.findings import Severity
from fencepost.journal.cleaning import Cleaning, CleaningCancelled, CleaningRules, plan_cleaning
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.manifest import ManifestState
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.open_transactions import OpenTransaction, OpenTransactions
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.snapshots import open_in_snapshot
from fencepost.journal.storage import DamagedLog, Storage, StorageError
from fencepost.protocol.batches import covering_batch, place, read_header
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import INT64_MAX, NO_OFFSET
from fencepost.protocol.thinning import keyed_records
from fencepost.repair.salvage import Bounds, salvage
from tests.journal import test_compaction as naive
from tests.journal.logs import DIRECTORY, ORDERS, Writer, files_of, flip
from tests.journal.test_compaction import ABORT, COMMIT, Log, check_same

SEGMENT_BYTES = 400
RULES = CleaningRules(
    now=5_000,
    before=1 << 40,
    producers=frozenset({1, 2}),
    min_cleanable_dirty_ratio=0.5,
    min_compaction_lag_ms=0,
    max_compaction_lag_ms=INT64_MAX,
    delete_retention_ms=1_000,
)


def opened(storage: Storage) -> Journal:
    return Journal(storage, ORDERS, settings=JournalSettings(segment_bytes=SEGMENT_BYTES))


def written(storage: Storage, *, transactions: int = 6) -> Journal:
    """A log of several full segments, with an abort in every third transaction, synced."""
    journal, log = opened(storage), Log()
    for number in range(transactions):
        producer = 1 + number % 2
        log.write(
            [(b"a", b"%d" % number), (b"b", None if number % 4 == 3 else b"%d" % number)],
            producer=producer,
            transactional=True,
        )
        log.write([(b"c", b"%d" % number)])
        log.end_transaction(producer, ABORT if number % 3 == 2 else COMMIT)
    write(journal, log)
    return journal


def write(journal: Journal, log: Log, *, manifest_at: int = NO_OFFSET) -> None:
    """Appends a log, and writes its manifest when it ends at this offset."""
    model = naive.PartitionModel()
    for header, batch in log.batches:
        marker = naive.read_marker(batch) if header.is_control else None
        count = len(model.aborted)
        model.apply(header, marker)
        aborted = naive.AbortedRange(*model.aborted[-1]) if len(model.aborted) > count else None
        journal.append(batch, header, leader_epoch=header.leader_epoch, aborted=aborted)
        if journal.is_full:
            journal.roll([])
        if model.end_offset == manifest_at:
            journal.write_manifest(state_of(model))
    journal.sync()


def state_of(model: naive.PartitionModel) -> ManifestState:
    """What the leader says of a log when all of it is durable."""
    return ManifestState(
        last_stable_offset=model.last_stable_offset,
        high_watermark=model.end_offset,
        open_transactions=tuple(
            OpenTransaction(first_offset, producer_id, 0)
            for first_offset, producer_id in model.open_transactions()
        ),
    )


def content(journal: Journal) -> Log:
    return Log(
        (header, bytes(batch)) for header, batch in journal.segments.batches(journal.segments.oldest_offset)
    )


def run(cleaning: Cleaning | None) -> None:
    assert cleaning is not None, "a cleaning is due"
    while cleaning.work():
        cleaning.finish()


def clean(journal: Journal, **rules: Any) -> None:
    """A cleaning that takes everything for dirty, as after a start."""
    journal.first_dirty_offset = 0
    run(plan_cleaning(journal, attrs.evolve(RULES, **rules)))


def test_a_cleaned_log_is_smaller_says_the_same_and_is_found_again() -> None:
    storage = MemoryStorage()
    journal = written(storage)
    before, size = content(journal), sum(storage.files(DIRECTORY).values())
    clean(journal)
    after = content(journal)
    check_same(before, after)
    assert sum(storage.files(DIRECTORY).values()) < size
    journal.sync()
    journal.abandon()
    again = opened(storage)
    assert content(again).batches == after.batches
    assert again.dropped is None
    assert again.segments.aborted_between(0, upper=before.end) == [
        naive.AbortedRange(*entry) for entry in naive.model_of(after.batches).aborted
    ]


def test_small_segments_become_one() -> None:
    storage = MemoryStorage()
    journal = written(storage, transactions=30)
    count = len(files_of(storage, "log"))
    for _ in range(5):  # markers go in the third, and then the next one finds small segments
        clean(journal, delete_retention_ms=0)
    assert count > 10
    assert len(files_of(storage, "log")) <= 4


def test_readers_go_on_across_a_cleaning_and_writers_too() -> None:
    journal = written(MemoryStorage())
    before = content(journal)
    middle = journal.segments.read(7, max_bytes=1, before=before.end)
    clean(journal)
    for offset in range(before.end):
        assert (
            naive.read_batch(journal.segments.read(offset, max_bytes=1, before=before.end)).next_offset
            > offset
        )
    assert naive.read_batch(middle).base_offset <= 7
    last = Log(content(journal).batches)
    last.write([(b"a", b"new")])
    journal.append(last.batches[-1][1], last.batches[-1][0], leader_epoch=0)
    assert naive.state(content(journal))[b"a"] == b"new"
    journal.sync()


# --- when ---------------------------------------------------------------------------------------------------


def is_due(journal: Journal, **rules: float) -> bool:
    return plan_cleaning(journal, attrs.evolve(RULES, **rules)) is not None


def test_a_log_is_cleaned_when_enough_of_it_is_dirty() -> None:
    journal = written(MemoryStorage())
    assert is_due(journal)
    clean(journal)
    assert not is_due(journal), "nothing was written since"
    log = Log(content(journal).batches)
    for number in range(8):
        log.write([(b"d", b"%d" % number)])
    new = [batch for batch in log.batches if batch[0].base_offset >= journal.log_end_offset]
    for header, batch in new:
        journal.append(batch, header, leader_epoch=0)
        if journal.is_full:
            journal.roll([])
    assert is_due(journal, min_cleanable_dirty_ratio=0.1)
    assert not is_due(journal, min_cleanable_dirty_ratio=0.9)
    assert is_due(journal, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=10)


def test_the_active_segment_young_records_and_undecided_ones_are_left_alone() -> None:
    journal = written(MemoryStorage())
    first = journal.segments.full[0]
    assert not is_due(journal, before=first.end_offset - 1)
    assert is_due(journal, before=first.end_offset)
    age = RULES.now - first.max_timestamp
    assert not is_due(journal, min_compaction_lag_ms=age + 1)
    assert is_due(journal, min_compaction_lag_ms=age)
    clean(journal, before=first.end_offset)
    assert journal.first_dirty_offset == first.end_offset


def test_a_cleaning_that_is_cancelled_or_meets_damage_changes_nothing() -> None:
    for is_damaged in (False, True):
        storage = MemoryStorage()
        journal = written(storage)
        files = storage.files(DIRECTORY)
        cleaning = plan_cleaning(journal, RULES)
        assert cleaning is not None
        if is_damaged:
            flip(storage, files_of(storage, "log")[1], 70)
        cleaning.is_cancelled = not is_damaged
        with pytest.raises(DamagedLog if is_damaged else CleaningCancelled):
            run(cleaning)
        assert storage.files(DIRECTORY) == files


def test_a_full_disk_ends_the_cleaning_and_not_the_log() -> None:
    storage = SimulatedStorage(lambda most: most)
    journal = written(storage)
    before, files = content(journal), storage.files(DIRECTORY)
    storage.breaks = lambda _operation, path: path.endswith(".cleaned")
    with pytest.raises(StorageError):
        clean(journal)
    assert journal.failed is None
    assert storage.files(DIRECTORY) == files
    storage.breaks = lambda _operation, _path: False
    clean(journal)
    check_same(before, content(journal))


# --- crashes ------------------------------------------------------------------------------------------------


class Died(Exception):
    """The process ended here."""


class Mortal(SimulatedStorage):
    """A disk whose process dies before one of its writes."""

    left = 1 << 40

    def lives(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Died

    def rename(self, path: str, new_path: str) -> None:
        self.lives()
        super().rename(path, new_path)

    def replace(self, path: str, data: naive.Buffer, *, durable: bool) -> None:
        self.lives()
        super().replace(path, data, durable=durable)

    def remove(self, path: str) -> None:
        self.lives()
        super().remove(path)

    def sync_directory(self, directory: str) -> None:
        self.lives()
        super().sync_directory(directory)


def keeps(seed: int) -> Callable[[int], int]:
    """What a loss of power leaves of unsynced writes: nothing, anything, or everything."""
    chance = random.Random(seed)

    def kept(most: int) -> int:
        return (0, chance.randint(0, most), most)[seed]

    return kept


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_step_leaves_a_log_that_says_the_same(seed: int) -> None:
    is_over, steps, damages = False, 0, list[str]()
    while not is_over:
        disk = Mortal(keeps(seed))
        disk.breaks = lambda _operation, _path: disk.lives() is not None  # noqa: B023 one disk at a time
        journal = written(disk)
        before = content(journal)
        clean(journal, before=journal.segments.full[1].end_offset)
        journal.sync()
        journal.configure(JournalSettings(segment_bytes=3 * SEGMENT_BYTES))  # the next cleaning merges some
        disk.left, steps = steps, steps + 1
        try:
            clean(journal, delete_retention_ms=0)
            journal.sync()
            is_over = True
        except Died:
            disk.kill() if seed == 2 else disk.lose_power()
        disk.left = 1 << 40
        if not is_over:
            damages += damages_in(disk)
        found = opened(disk) if not is_over else journal
        check_same(before, content(found))
        assert found.dropped is None
        clean(found, now=RULES.now * 2)
        check_same(before, content(found))
    assert steps > 30
    assert damages == [], "check and repair know what a crash leaves"


def unkeyed(storage: Storage, *, batches: int = 12) -> Journal:
    """A log of records without keys, one batch in each segment, and too large to be merged for their size."""
    journal = opened(storage)
    for number in range(batches):
        batch = build_data_batch([b"%d" % number], base_timestamp=number)
        journal.append(batch, place(batch, base_offset=number, leader_epoch=0), leader_epoch=0)
        journal.roll([])
    journal.sync()
    journal.configure(JournalSettings(segment_bytes=1))
    return journal


def test_what_a_batch_says_again_goes_up_to_this_batch_and_no_further() -> None:
    journal = unkeyed(MemoryStorage())
    before = content(journal)
    run(plan_cleaning(journal, attrs.evolve(RULES, until=7)))
    covering, *kept = content(journal).batches
    assert covering[0].is_covering
    assert kept == before.batches[7:]


@pytest.mark.parametrize("until", [12, 13])
def test_nothing_goes_if_the_batch_that_says_it_again_is_not_in_a_full_segment(until: int) -> None:
    journal = unkeyed(MemoryStorage())
    assert plan_cleaning(journal, attrs.evolve(RULES, until=until)) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_leaves_all_that_is_said_again_or_nothing_of_it(seed: int) -> None:
    outcomes, steps, is_over = set[bool](), 0, False
    while not is_over:
        disk = Mortal(keeps(seed))
        disk.breaks = lambda _operation, _path: disk.lives() is not None  # noqa: B023 one disk at a time
        journal = unkeyed(disk)
        before = content(journal).batches
        disk.left, steps = steps, steps + 1
        try:
            run(plan_cleaning(journal, attrs.evolve(RULES, until=7)))
            journal.sync()
            is_over = True
        except Died:
            disk.kill() if seed == 2 else disk.lose_power()
        disk.left = 1 << 40
        found = content(journal if is_over else opened(disk)).batches
        is_cleaned = found[0][0].is_covering
        assert (found[1:] == before[7:]) if is_cleaned else (found == before)
        outcomes.add(is_cleaned)
    assert outcomes == {False, True}
    assert steps > 20


def damages_in(disk: Storage) -> list[str]:
    """What a check of the log, and a repair, take for damage. The snapshots here were never true, and no
    coordinator decided anything.
    """
    log = salvage(disk, ORDERS, Bounds(start=0, promised=0), lambda _header, _batch: True)
    problems = [
        f"{finding.file}: {finding.what}"
        for finding in check_logs(disk).found
        if finding.severity is Severity.PROBLEM
        and finding.file.startswith(DIRECTORY)
        and not finding.file.endswith("snapshot")
        and "no coordinator" not in finding.what
    ]
    return [*problems, *log.strays, *[str(lost) for lost in log.lost()]]


def test_a_durable_record_is_not_removed_for_one_that_a_loss_of_power_takes() -> None:
    """Under `--sync commit` a plain record counts at once, and its segment may be full before any sync."""
    storage = SimulatedStorage(lambda most: 0)
    journal, log = opened(storage), Log()
    log.write([(b"a", b"committed")], producer=1, transactional=True)
    log.end_transaction(1, COMMIT)
    log.write([(b"padding", b"x" * 400)])
    write(journal, log)
    synced = len(log.batches)
    log.write([(b"a", b"newer" * 80)])
    log.write([(b"padding", b"y" * 400)])
    for header, batch in log.batches[synced:]:
        journal.append(batch, header, leader_epoch=header.leader_epoch)
        if journal.is_full:
            journal.roll([])
    cleaning = plan_cleaning(journal, RULES)
    assert cleaning is not None
    assert cleaning.work()
    cleaning.finish()
    storage.sync_directory(DIRECTORY)  # as a journaling file system may do at any time
    storage.lose_power()
    found = {
        record.key
        for header, batch in content(opened(storage)).batches
        if not header.is_control
        for record in keyed_records(batch, header)
    }
    assert b"a" in found


def test_a_marker_stays_while_the_snapshot_at_the_start_has_its_transaction_open() -> None:
    """Retention deleted the beginning of the transaction. Without its marker it would be open forever, or
    end with the producer's next marker, and an abort would take the committed records in between.
    """
    writer = Writer(opened(MemoryStorage()))
    journal = writer.journal
    writer.data(1)
    writer.roll()
    writer.commit(1)
    writer.data(1)
    writer.commit(1)
    writer.roll()
    journal.move_log_start(1)
    assert journal.remove_deleted()
    for now in (5_000, 6_000, 7_000):  # the first one sets horizons, the second one passes them
        clean(journal, now=now, delete_retention_ms=0, producers=frozenset())
    assert open_in(journal) == []


def test_a_marker_stays_while_a_snapshot_that_retention_needs_has_its_transaction_open() -> None:
    """A loss of power may take the newer snapshots. From this one on, nothing else ends the transaction, and
    the producer, which was forgotten, writes no other marker.
    """
    storage = MemoryStorage()
    writer = Writer(opened(storage))
    journal = writer.journal
    writer.append(build_data_batch([b"v" * 700], keys=[b"a"], base_timestamp=1_000))
    writer.data(1)
    writer.roll()
    start = journal.log_end_offset
    writer.commit(1)
    writer.append(build_data_batch([b"v" * 700], keys=[b"b"], base_timestamp=1_000))
    writer.roll()
    for now in (5_000, 6_000, 7_000):  # the first one sets horizons, the second one passes them
        clean(journal, now=now, delete_retention_ms=0, producers=frozenset(), is_deleted=True)
    journal.abandon()
    for path in files_of(storage, "snapshot")[1:]:
        storage.remove(path)
    found = opened(storage)
    snapshot = found.newest_snapshot(found.log_end_offset)
    assert snapshot is not None
    assert snapshot[0] == start
    transactions = open_in_snapshot(snapshot[1])
    for header, batch in found.segments.batches(start):
        transactions.update(header, batch)
    assert list(transactions) == []


def test_retention_frees_the_disk_of_a_log_that_is_cleaned() -> None:
    """Segments are deleted up to a snapshot, so a cleaning leaves those where segments begin."""
    journal, log = opened(MemoryStorage()), Log()
    for number in range(200):
        log.write([(b"%d" % number, b"x" * 40), (b"always", b"")])
        header, batch = log.batches[-1]
        journal.append(batch, header, leader_epoch=0)
        if journal.is_full:
            journal.roll([])
            journal.first_dirty_offset = 0
            run(plan_cleaning(journal, attrs.evolve(RULES, is_deleted=True)))
            end = journal.log_end_offset
            start = journal.deletable_before(now=0, retention_ms=-1, retention_bytes=2_000, before=end)
            journal.move_log_start(start)
            journal.remove_deleted()
    assert journal.log_start_offset > 300
    assert journal.segments.oldest_offset == journal.log_start_offset


@pytest.mark.parametrize(("now", "start"), [(5_999, 0), (6_001, 200)])
def test_a_segment_without_a_timestamp_is_as_old_as_the_next_one(now: int, start: int) -> None:
    """Compaction leaves such a segment when it removes all of its records."""
    journal = opened(MemoryStorage())
    empty = covering_batch(base_offset=0, next_offset=100, leader_epoch=0)
    journal.append(empty, read_header(empty), leader_epoch=0)
    journal.roll([])
    full = build_data_batch([b"x"] * 100, base_timestamp=5_000)
    journal.append(full, place(full, base_offset=100, leader_epoch=0), leader_epoch=0)
    journal.roll([])
    found = journal.deletable_before(now=now, retention_ms=1_000, retention_bytes=-1, before=200)
    assert found == start


def open_in(journal: Journal) -> list[OpenTransaction]:
    """What a new leader takes for open."""
    transactions = journal.open_at(journal.segments.oldest_offset) or OpenTransactions()
    for header, batch in journal.segments.batches(journal.segments.oldest_offset):
        transactions.update(header, batch)
    return list(transactions)


def test_files_that_an_abandoned_cleaning_left_are_not_continued() -> None:
    storage = MemoryStorage()
    journal = written(storage)
    before = content(journal)
    journal.first_dirty_offset = 0
    abandoned = plan_cleaning(journal, attrs.evolve(RULES, producers=frozenset()))
    assert abandoned is not None
    assert abandoned.work()  # and nobody calls `finish`
    clean(journal)
    journal.abandon()
    found = opened(storage)
    assert found.dropped is None
    check_same(before, content(found))
