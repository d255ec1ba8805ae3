"""What a sync promises, what it costs, and what a journal does with a disk that fails."""

import threading
from pathlib import Path

import pytest

from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from fencepost.journal.manifest import ManifestState
from fencepost.journal.simulated import APPEND, SYNC, SimulatedStorage
from fencepost.journal.storage import StorageError
from tests.journal.logs import DIRECTORY, ORDERS, Writer, content, first_since, offsets, open_journal


class Breaking:
    """A simulated disk with switches, which notes what it was asked to do."""

    def __init__(self) -> None:
        self.broken: set[str] = set()  # operations, or "operation suffix of the path"
        self.keeps = False
        self.asked: list[tuple[str, str]] = []
        self.storage = SimulatedStorage(lambda most: most if self.keeps else 0, breaks=self._breaks)
        self.writer = Writer(open_journal(self.storage))

    def _breaks(self, operation: str, path: str) -> bool:
        self.asked.append((operation, path))
        return operation in self.broken or f"{operation} {path.rpartition('.')[2]}" in self.broken

    def synced(self) -> list[str]:
        """Which paths were synced since the last call."""
        paths = [path.removeprefix(f"{DIRECTORY}/") for operation, path in self.asked if operation == SYNC]
        self.asked.clear()
        return paths

    def after_losing_power(self) -> list[int]:
        self.broken.clear()
        self.storage.lose_power()
        return offsets(open_journal(self.storage))


def test_what_was_synced_survives_and_the_rest_need_not() -> None:
    disk = Breaking()
    disk.writer.plain(2)
    assert disk.writer.journal.sync() == 2
    disk.writer.plain()
    assert disk.after_losing_power() == [0]


def test_nothing_survives_without_a_sync() -> None:
    disk = Breaking()
    disk.writer.plain(2)
    assert disk.after_losing_power() == []


def test_what_is_added_after_a_clean_start_is_synced_also_when_its_segment_rolls() -> None:
    disk = Breaking()
    disk.writer.plain()
    disk.writer.journal.close()
    writer = Writer(open_journal(disk.storage, clean_mark=disk.writer.journal.next_clean_mark))
    writer.plain()
    writer.roll()
    writer.plain()
    assert writer.journal.sync() == 3
    assert disk.after_losing_power() == [0, 1, 2]


def test_a_sync_touches_only_what_changed() -> None:
    disk = Breaking()
    log, second = f"{0:020d}.log", f"{1:020d}.log"
    disk.writer.plain()
    disk.synced()
    disk.writer.journal.sync()
    assert disk.synced() == [log, DIRECTORY, ""]
    disk.writer.journal.sync()
    assert disk.synced() == []
    disk.writer.plain()
    disk.writer.journal.sync()
    assert disk.synced() == [log]
    disk.writer.roll()
    disk.writer.plain()
    disk.writer.journal.sync()
    synced = disk.synced()
    assert synced[:5] == [
        log,
        *(f"{0:020d}.{kind}" for kind in ("index", "timeindex", "txnindex")),
        f"{2:020d}.log",
    ]
    assert "checkpoint.json" in synced
    assert second not in synced


@pytest.mark.parametrize("operation", [f"{SYNC} log", SYNC])
def test_after_a_failed_sync_a_journal_takes_nothing_more(operation: str) -> None:
    disk = Breaking()
    disk.writer.plain(2)
    disk.writer.journal.sync()
    disk.writer.plain()
    disk.broken.add(operation)
    with pytest.raises(StorageError, match="cannot sync"):
        disk.writer.journal.sync()
    disk.broken.clear()  # the disk is fine again, but nobody knows what it forgot
    journal = disk.writer.journal
    for use in (
        journal.sync,
        disk.writer.plain,
        disk.writer.roll,
        lambda: journal.write_snapshot([]),
        lambda: journal.write_manifest(ManifestState(last_stable_offset=0, high_watermark=0)),
    ):
        with pytest.raises(StorageError, match="orders-0 refuses writes until it is recovered: cannot sync"):
            use()
    journal.close()
    assert journal.next_clean_mark is None
    assert disk.after_losing_power() == [0]


@pytest.mark.parametrize("operation", [f"{APPEND} log", f"{APPEND} txnindex"])
def test_after_a_failed_write_a_journal_takes_nothing_more_and_shows_nothing_of_it(operation: str) -> None:
    disk = Breaking()
    disk.keeps = True  # even the bytes of the write that failed are there
    disk.writer.data(7)
    disk.broken.add(operation)
    with pytest.raises(StorageError, match="cannot write"):
        disk.writer.abort(7)
    disk.broken.clear()
    journal = disk.writer.journal
    assert (journal.log_end_offset, offsets(journal), journal.failed is None) == (1, [0], False)
    with pytest.raises(StorageError, match="refuses writes until it is recovered"):
        disk.writer.plain()
    disk.storage.kill()
    again = open_journal(disk.storage)
    assert offsets(again) == [0, 1]
    assert len(again.segments.aborted_between(0, upper=9)) == 1, "the index was built again from the log"


def test_a_directory_whose_journal_failed_is_not_marked_clean() -> None:
    broken: set[str] = set()
    storage = SimulatedStorage(
        lambda most: most, breaks=lambda operation, path: f"{operation} {path[-3:]}" in broken
    )
    data = DataDirectory.open(storage)
    data.journal(ORDERS)
    data.close()
    assert b"orders" in (storage.read_file("clean-shutdown.json") or b"")
    data = DataDirectory.open(storage)
    writer = Writer(data.journal(ORDERS))
    writer.plain()
    broken.add("sync log")
    with pytest.raises(StorageError):
        writer.journal.sync()
    data.close()
    assert b"orders" not in (storage.read_file("clean-shutdown.json") or b"orders")


def test_a_failure_while_closing_leaves_no_mark_and_no_lock() -> None:
    broken: set[str] = set()
    storage = SimulatedStorage(lambda most: most, breaks=lambda operation, _path: operation in broken)
    data = DataDirectory.open(storage)
    Writer(data.journal(ORDERS)).plain()
    broken.add(SYNC)
    with pytest.raises(StorageError):
        data.close()
    broken.clear()
    assert storage.read_file("clean-shutdown.json") is None
    DataDirectory.open(storage).close()


def test_syncs_in_a_worker_while_the_leader_appends_and_rolls(tmp_path: Path) -> None:
    """Each answer of the worker is an offset that was there when it asked; files that rolled away meanwhile
    are no failure."""
    data = DataDirectory.open(DiskStorage(tmp_path))
    writer = Writer(data.journal(ORDERS))
    promised: list[int] = []
    failures: list[StorageError] = []
    done = threading.Event()

    def sync_often() -> None:
        try:
            while not done.is_set():
                promised.append(writer.journal.sync())
        except StorageError as error:
            failures.append(error)

    worker = threading.Thread(target=sync_often)
    worker.start()
    for turn in range(1_000):
        writer.plain(size=500)
        if turn % 20 == 19:
            writer.roll()
        if turn % 7 == 0:
            writer.journal.segments.read(turn // 2, max_bytes=10_000, before=turn)
    done.set()
    worker.join()
    assert failures == []
    assert promised == sorted(promised)
    assert writer.journal.sync() == 1_000
    whole = content(writer.journal)
    data.abandon()
    data = DataDirectory.open(DiskStorage(tmp_path))
    assert content(data.journal(ORDERS)) == whole
    assert data.journal(ORDERS).dropped is None
    data.close()


def test_a_long_log_holds_two_descriptors(tmp_path: Path) -> None:
    data = DataDirectory.open(DiskStorage(tmp_path))
    writer = Writer(data.journal(ORDERS))

    def descriptors() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    writer.plain()
    before = descriptors()
    for _ in range(30):
        writer.plain()
        writer.roll()
    for offset in (3, 20, 5, 30, 1):
        writer.journal.segments.read(offset, max_bytes=100, before=31)
        first_since(writer.journal, 0)
    assert descriptors() <= before + 1
    data.close()
    assert descriptors() < before
