"""Indexes, snapshots and checkpoints are shortcuts: lost, cut or altered, they come again from the log and
tell the same."""

from collections.abc import Callable

import pytest

from fencepost.journal.journal import Journal
from fencepost.journal.manifest import (
    CHECKPOINT_FILE,
    CLEAN_FILE,
    MANIFEST_FILE,
    ManifestState,
    SyncedSegment,
)
from fencepost.journal.memory import MemoryFile, MemoryStorage
from fencepost.journal.segments import HOP_BYTES, INDEX, LOG, TIME_INDEX, TRANSACTION_INDEX
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import DamagedLog, Storage, StorageError, StorageFile
from tests.journal.logs import (
    DIRECTORY,
    EVERYTHING,
    Writer,
    a_log,
    a_log_in_memory,
    close,
    copy_of,
    crash,
    cut,
    files_of,
    first_since,
    flip,
    open_journal,
)


def indexes(storage: Storage) -> dict[str, bytes | None]:
    return {
        path: storage.read_file(path)
        for kind in (INDEX, TIME_INDEX, TRANSACTION_INDEX)
        for path in files_of(storage, kind)
    }


def answers(journal: Journal) -> list[object]:
    """What a journal tells through its indexes."""
    end = journal.log_end_offset
    return [
        [journal.segments.read(offset, max_bytes=1, before=end) for offset in range(end)],
        [first_since(journal, timestamp) for timestamp in range(500, 4_500, 500)],
        [journal.segments.aborted_between(offset, upper=end) for offset in range(end)],
        [journal.segments.fetch_upper_bound(offset, 100) for offset in range(end)],
    ]


def test_indexes_after_a_crash_equal_those_before_it() -> None:
    storage, writer = a_log_in_memory()
    before, told = indexes(storage), answers(writer.journal)
    crash(writer)
    again = open_journal(storage)
    assert answers(again) == told
    again.write_manifest(ManifestState(last_stable_offset=0, high_watermark=0))
    rolled = [path for path in before if not path.startswith(files_of(storage, LOG)[-1][:-3])]
    assert {path: storage.read_file(path) for path in rolled} == {path: before[path] for path in rolled}


Damage = Callable[[MemoryStorage, str], None]


def lost(storage: MemoryStorage, path: str) -> None:
    storage.remove(path)


def cut_off(storage: MemoryStorage, path: str) -> None:
    cut(storage, path, max(0, storage.files(DIRECTORY)[path.rpartition("/")[2]] - 1))


def altered(storage: MemoryStorage, path: str) -> None:
    flip(storage, path, -1)


def emptied(storage: MemoryStorage, path: str) -> None:
    cut(storage, path, 0)


def overgrown(storage: MemoryStorage, path: str) -> None:
    storage.open(path).append(bytes(34 * 12 * 8))


@pytest.mark.parametrize("damage", [lost, cut_off, altered, emptied, overgrown])
@pytest.mark.parametrize("kind", [INDEX, TIME_INDEX, TRANSACTION_INDEX])
@pytest.mark.parametrize("is_closed", [True, False])
def test_damaged_indexes_are_built_again(damage: Damage, kind: str, *, is_closed: bool) -> None:
    storage, writer = a_log_in_memory()
    told = answers(writer.journal)
    close(writer) if is_closed else crash(writer)
    for at, path in enumerate(files_of(storage, kind)):
        damaged = copy_of(storage)
        if not damaged.read_file(path):
            assert (kind, at) in ((INDEX, 2), (TIME_INDEX, 2)), "only what was not saved yet may be empty"
            continue
        damage(damaged, path)
        journal = open_journal(damaged, clean_mark=writer.journal.next_clean_mark)
        assert answers(journal) == told
        assert journal.dropped is None
        close(Writer(journal))
        assert answers(open_journal(damaged, clean_mark=journal.next_clean_mark)) == told


def test_an_index_of_an_old_synced_segment_is_built_again_too() -> None:
    storage, writer = a_log_in_memory()
    told = answers(writer.journal)
    writer.journal.sync()
    crash(writer)
    storage.remove(files_of(storage, TRANSACTION_INDEX)[1])
    assert answers(open_journal(storage)) == told


def test_the_transaction_index_is_rebuilt_without_any_snapshot() -> None:
    storage, writer = a_log_in_memory()
    told = answers(writer.journal)
    crash(writer)
    for path in files_of(storage, "snapshot"):
        storage.remove(path)
    assert answers(open_journal(storage)) == told


def test_a_corrupt_snapshot_is_dropped_and_an_older_one_taken() -> None:
    storage, writer = a_log_in_memory()
    told = answers(writer.journal)
    crash(writer)
    oldest, newest = files_of(storage, "snapshot")
    flip(storage, newest, 10)
    journal = open_journal(storage)
    found = journal.newest_snapshot(at_most=EVERYTHING)
    assert found is not None
    assert found[0] == 8
    assert [producer.producer_id for producer in found[1]] == [7]
    assert answers(journal) == told
    assert files_of(storage, "snapshot") == [oldest]


def test_a_snapshot_that_a_loss_of_power_has_torn_does_not_stay() -> None:
    """Even if a newer one is whole, and no start needs it: a check would take it for damage."""
    storage = SimulatedStorage(lambda most: most)
    writer = a_log(storage)
    oldest, newest = files_of(storage, "snapshot")
    cut(storage, oldest, 10)
    writer.journal.sync()
    storage.lose_power()
    open_journal(storage)
    assert files_of(storage, "snapshot") == [newest]


class Counting(MemoryStorage):
    """Counts the bytes that are read from logs."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        file = super().open(path, create=create)
        return _CountedFile(self, file) if path.endswith(LOG) else file


class _CountedFile(MemoryFile):
    def __init__(self, storage: Counting, file: StorageFile) -> None:
        super().__init__()
        self._storage = storage
        self._file = file

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, data: bytes | bytearray | memoryview) -> None:
        self._file.append(data)

    def read(self, position: int, size: int) -> bytes:
        data = self._file.read(position, size)
        self._storage.bytes_read += len(data)
        return data


def test_a_start_reads_only_what_nobody_vouches_for() -> None:
    storage = Counting()
    writer = a_log(storage)
    sizes = [storage.files(DIRECTORY)[path.rpartition("/")[2]] for path in files_of(storage, LOG)]

    def read_by_a_start(mark: SyncedSegment | None = None) -> int:
        storage.bytes_read = 0
        journal = open_journal(storage, clean_mark=mark)
        journal.abandon()
        return storage.bytes_read

    crash(writer)
    assert read_by_a_start() >= sum(sizes)
    journal = open_journal(storage)
    journal.sync()
    journal.abandon()
    assert sizes[-1] <= read_by_a_start() < sizes[-1] + 8_192 + 1
    close(writer := Writer(open_journal(storage)))
    assert 0 < read_by_a_start(writer.journal.next_clean_mark) <= HOP_BYTES  # the last header
    assert read_by_a_start() >= sizes[-1]


@pytest.mark.parametrize("witness", [MANIFEST_FILE, CHECKPOINT_FILE, CLEAN_FILE])
def test_a_log_that_shrank_since_it_was_synced_is_refused(witness: str) -> None:
    """Each of the three files says so alone, and nothing is changed."""
    storage, writer = a_log_in_memory()
    close(writer)
    for name in {MANIFEST_FILE, CHECKPOINT_FILE} - {witness}:
        storage.remove(f"{DIRECTORY}/{name}")
    cut(storage, files_of(storage, LOG)[1], 100)
    before = storage.files(DIRECTORY)
    with pytest.raises(DamagedLog, match=r"The records at offsets 8 to \d+ are at stake"):
        open_journal(storage, clean_mark=writer.journal.next_clean_mark if witness == CLEAN_FILE else None)
    assert storage.files(DIRECTORY) == before


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_checkpoint_without_sense_is_no_checkpoint(*, is_closed: bool) -> None:
    storage, writer = a_log_in_memory()
    told = answers(writer.journal)
    close(writer)
    path = f"{DIRECTORY}/{CHECKPOINT_FILE}"
    whole = storage.read_file(path) or b""
    for data in (
        b"",
        whole[: len(whole) // 2],
        b"[]",
        b"{}",
        b'{"format": 3}',
        b'{"format": 3, "segments": [{}]}',
    ):
        storage.replace(path, data, durable=False)
        journal = open_journal(storage, clean_mark=writer.journal.next_clean_mark if is_closed else None)
        assert (answers(journal), journal.dropped) == (told, None)


def test_damage_that_nobody_looked_for_is_an_error_of_the_disk_for_whoever_reads() -> None:
    """After a clean shutdown the log is not read again, so a header may turn out to be damaged only later."""
    storage, writer = a_log_in_memory()
    close(writer)
    flip(storage, files_of(storage, LOG)[1], 16)
    journal = open_journal(storage, clean_mark=writer.journal.next_clean_mark)
    for use in (
        lambda: journal.segments.read(8, max_bytes=1, before=EVERYTHING),
        lambda: list(journal.segments.batches(0)),
        lambda: journal.segments.fetch_upper_bound(9, 1),
    ):
        with pytest.raises(StorageError, match=r"8\.log is damaged: magic byte"):
            use()
