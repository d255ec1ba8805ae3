"""Recovery keeps the longest valid prefix, whatever is torn, altered or missing, and what it builds again
equals what was there."""

from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from fencepost.journal.checkpoint import CHECKPOINT_FILE
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from fencepost.journal.journal import Journal
from fencepost.journal.manifest import MANIFEST_FILE, ManifestState
from fencepost.journal.memory import MemoryFile, MemoryStorage
from fencepost.journal.segments import INDEX, LOG, TIME_INDEX, TRANSACTION_INDEX, walk_batches
from fencepost.journal.storage import Storage
from fencepost.protocol.batches import build_marker, place
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import TransactionResult
from tests.journal.logs import (
    DIRECTORY,
    EVERYTHING,
    ORDERS,
    Writer,
    content,
    copy_of,
    cut,
    files_of,
    flip,
    new_writer,
    offsets,
    open_journal,
)

FIRST_LOG = f"{DIRECTORY}/{0:020d}.{LOG}"


def a_log(storage: Storage) -> Writer:
    return a_log_of(open_journal(storage))


def a_log_of(journal: Journal) -> Writer:
    """Three segments; one transaction aborts across two of them, one is open at the end. Not closed."""
    writer = Writer(journal)
    writer.plain(2, size=3_000, timestamp=1_000)
    writer.data(7, 3, size=3_000, timestamp=2_000)
    writer.data(8, 1)
    writer.abort(8)
    writer.plain(1, size=3_000, timestamp=3_000)
    writer.roll()
    writer.plain(2, size=5_000, timestamp=2_500)
    writer.abort(7)
    writer.data(9, 1)
    writer.roll()
    writer.plain(2, size=5_000, timestamp=4_000)
    writer.data(10, 2)
    writer.abort(9)
    return writer


def a_log_in_memory() -> tuple[MemoryStorage, Writer]:
    storage = MemoryStorage()
    return storage, a_log(storage)


def crash(writer: Writer) -> None:
    writer.journal.abandon()


def close(writer: Writer) -> None:
    end = writer.journal.log_end_offset
    state = ManifestState(
        last_stable_offset=0, high_watermark=end, open_transactions=tuple(writer.transactions)
    )
    writer.journal.close(state, writer.producers())


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
        [journal.read(offset, max_bytes=1, before=end) for offset in range(end)],
        [journal.offset_for_timestamp(timestamp) for timestamp in range(500, 4_500, 500)],
        [journal.aborted_between(offset, upper=end) for offset in range(end)],
        [journal.fetch_upper_bound(offset, 100) for offset in range(end)],
    ]


def test_a_torn_log_loses_only_what_was_torn_at_every_byte_of_its_last_two_batches() -> None:
    storage, writer = a_log_in_memory()
    crash(writer)
    whole = content(writer.journal)
    path = files_of(storage, LOG)[-1]
    file = storage.open(path)
    starts = [position for position, _, _ in walk_batches(file, 0, file.size)]
    ends = dict(zip([*starts, file.size], offsets_from(writer, path), strict=True))
    for size in range(starts[-2], file.size + 1):
        torn = copy_of(storage)
        cut(torn, path, size)
        journal = open_journal(torn)
        kept = max(start for start in ends if start <= size)
        assert journal.log_end_offset == ends[kept]
        assert whole.startswith(content(journal))
        assert len(content(journal)) == len(whole) - (file.size - kept)
        assert (journal.dropped is None) == (size == kept)
        assert torn.files(DIRECTORY)[path.rpartition("/")[2]] == kept


def offsets_from(writer: Writer, path: str) -> list[int]:
    base = int(path[-24:-4])
    return [offset for offset in offsets(writer.journal) if offset >= base] + [writer.journal.log_end_offset]


def test_no_altered_byte_of_a_batch_becomes_visible() -> None:
    """Also not in the two fields outside the checksum: base offset and leader epoch have rules of their
    own."""
    storage, writer = new_writer()
    writer.leader_epoch = 1
    writer.plain(2)
    second = writer.data(7, 3)
    writer.plain(2)
    crash(writer)
    whole = content(writer.journal)
    start = whole.index(second.crc.to_bytes(4, "big")) - 17
    for at in range(start, start + second.size):
        altered = copy_of(storage)
        flip(altered, FIRST_LOG, at)
        journal = open_journal(altered)
        newer_leader = start + 12 < at < start + 16  # that is legal; then the next batch is older
        assert journal.log_end_offset == (5 if newer_leader else 2)
        assert journal.dropped is not None
        assert f"from offset {journal.log_end_offset} on" in journal.dropped


def test_what_comes_after_a_torn_batch_is_dropped_with_it() -> None:
    storage, writer = a_log_in_memory()
    crash(writer)
    flip(storage, FIRST_LOG, 100)
    dropped = sum(storage.files(DIRECTORY)[path.rpartition("/")[2]] for path in files_of(storage, LOG))
    journal = open_journal(storage)
    assert journal.log_end_offset == 0
    why = "the checksum of a batch does not match its bytes"
    assert journal.dropped == f"orders-0: dropped {dropped} bytes from offset 0 on: {why}"
    assert files_of(storage, LOG) == [FIRST_LOG]
    assert files_of(storage, "snapshot") == []
    Writer(journal).plain()
    assert open_journal(storage).log_end_offset == 1


def test_a_tail_of_zeros_is_no_batch() -> None:
    storage, writer = a_log_in_memory()
    end = writer.journal.log_end_offset
    crash(writer)
    storage.open(files_of(storage, LOG)[-1]).append(bytes(5_000))
    journal = open_journal(storage)
    assert journal.log_end_offset == end
    assert journal.dropped is not None


def test_a_hole_ends_the_log() -> None:
    storage, writer = a_log_in_memory()
    crash(writer)
    whole = content(writer.journal)
    logs = files_of(storage, LOG)
    storage.remove(logs[1])
    journal = open_journal(storage)
    assert journal.dropped is not None
    assert "where 8 was expected" in journal.dropped
    assert whole.startswith(content(journal))
    assert journal.log_end_offset == 8
    assert files_of(storage, LOG) == logs[:1]
    assert files_of(storage, INDEX) == [FIRST_LOG.replace(LOG, INDEX)]


@pytest.mark.parametrize(
    ("base_offset", "leader_epoch", "why"),
    [
        (3, 1, "a batch begins at offset 3 where 2 was expected"),
        (1, 1, "a batch begins at offset 1 where 2 was expected"),
        (2, 0, "a batch of leader epoch 0 after one of 1"),
    ],
)
def test_batches_must_follow_each_other(base_offset: int, leader_epoch: int, why: str) -> None:
    storage, writer = new_writer()
    writer.leader_epoch = 1
    writer.plain(2)
    crash(writer)
    batch = build_data_batch([b"v"], base_timestamp=0)
    place(batch, base_offset=base_offset, leader_epoch=leader_epoch)
    storage.open(FIRST_LOG).append(batch)
    journal = open_journal(storage)
    assert journal.log_end_offset == 2
    assert journal.dropped is not None
    assert journal.dropped.endswith(why)


def test_an_older_leader_epoch_is_found_across_segments() -> None:
    storage, writer = new_writer()
    writer.leader_epoch = 1
    writer.plain()
    writer.roll()
    crash(writer)
    batch = build_data_batch([b"v"], base_timestamp=0)
    place(batch, base_offset=1, leader_epoch=0)
    storage.open(files_of(storage, LOG)[-1]).append(batch)
    for sync_first in (False, True):
        journal = open_journal(storage)
        assert (journal.log_end_offset, journal.dropped is None) == (1, sync_first)
        journal.sync()  # the second time, a checkpoint stands for the first segment
        journal.abandon()


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
@pytest.mark.parametrize("trusted_clean", [True, False])
def test_damaged_indexes_are_built_again(damage: Damage, kind: str, *, trusted_clean: bool) -> None:
    storage, writer = a_log_in_memory()
    told = answers(writer.journal)
    close(writer) if trusted_clean else crash(writer)
    for at, path in enumerate(files_of(storage, kind)):
        damaged = copy_of(storage)
        if not damaged.read_file(path):
            assert (kind, at) in ((INDEX, 2), (TIME_INDEX, 2)), "only what was not saved yet may be empty"
            continue
        damage(damaged, path)
        journal = open_journal(damaged, trusted_clean=trusted_clean)
        assert answers(journal) == told
        assert journal.dropped is None
        close(Writer(journal))
        assert answers(open_journal(damaged, trusted_clean=True)) == told


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


class Counting(MemoryStorage):
    """Counts the bytes that are read from logs."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        file = super().open(path, create=create)
        return _CountedFile(self, file) if path.endswith(LOG) else file


class _CountedFile(MemoryFile):
    def __init__(self, storage: Counting, file: MemoryFile) -> None:
        super().__init__(bytearray())
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

    def read_by_a_start(*, trusted_clean: bool) -> int:
        storage.bytes_read = 0
        journal = open_journal(storage, trusted_clean=trusted_clean)
        journal.abandon()
        return storage.bytes_read

    crash(writer)
    assert read_by_a_start(trusted_clean=False) >= sum(sizes)
    journal = open_journal(storage)
    journal.sync(rolled_only=True)
    journal.abandon()
    assert sizes[-1] <= read_by_a_start(trusted_clean=False) < sizes[-1] + 8_192 + 1
    close(Writer(open_journal(storage)))
    assert read_by_a_start(trusted_clean=True) <= 8_192
    assert read_by_a_start(trusted_clean=False) >= sizes[-1]


def test_a_checkpoint_speaks_only_for_files_of_its_size() -> None:
    """A log that shrank since it was synced is read again, and a checkpoint that says too much is
    corrected."""
    storage, writer = a_log_in_memory()
    close(writer)
    logs = files_of(storage, LOG)
    cut(storage, logs[1], 100)
    journal = open_journal(storage, trusted_clean=True)
    assert journal.log_end_offset == 8
    assert journal.dropped is not None
    assert storage.read_file(f"{DIRECTORY}/{MANIFEST_FILE}") is None, "it promised more than there is"
    checkpoint = storage.read_file(f"{DIRECTORY}/{CHECKPOINT_FILE}") or b""
    assert checkpoint.count(b"base_offset") == 1


@pytest.mark.parametrize("trusted_clean", [True, False])
def test_a_checkpoint_without_sense_is_no_checkpoint(*, trusted_clean: bool) -> None:
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
        b'{"format": 1}',
        b'{"format": 1, "segments": [{}]}',
    ):
        storage.replace(path, data, durable=False)
        journal = open_journal(storage, trusted_clean=trusted_clean)
        assert (answers(journal), journal.dropped) == (told, None)


def test_what_a_crash_left_half_done_is_swept_up() -> None:
    storage, writer = a_log_in_memory()
    crash(writer)
    leftovers = [f"{MANIFEST_FILE}.tmp", f"{0:020d}.{INDEX}.tmp", f"{99:020d}.{TRANSACTION_INDEX}"]
    for name in [*leftovers, "notes.txt"]:
        storage.replace(f"{DIRECTORY}/{name}", b"?", durable=False)
    open_journal(storage)
    left = storage.files(DIRECTORY)
    assert not set(leftovers) & set(left)
    assert "notes.txt" in left, "not ours"


def test_a_batch_larger_than_what_is_read_at_a_time_is_recovered() -> None:
    storage, writer = new_writer()
    writer.plain()
    writer.plain(size=3 << 20)
    writer.plain()
    crash(writer)
    assert open_journal(storage).log_end_offset == 3
    cut(storage, FIRST_LOG, 2 << 20)
    assert open_journal(storage).log_end_offset == 1


def test_a_control_batch_of_another_kind_ends_no_transaction() -> None:
    storage, writer = new_writer()
    writer.data(7)
    marker = build_marker(
        TransactionResult.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=0
    )
    marker[69] = 9  # a control record of type 9
    place(marker, base_offset=1, leader_epoch=0)
    marker[17:21] = crc32c(bytes(marker[21:])).to_bytes(4, "big")
    writer.append(marker)
    crash(writer)
    journal = open_journal(storage)
    assert journal.log_end_offset == 2
    assert journal.aborted_between(0, upper=2) == []


@pytest.mark.parametrize("cut_bytes", [1, 60, 61, 79, 200])
def test_a_torn_log_on_the_real_disk(tmp_path: Path, cut_bytes: int) -> None:
    data = DataDirectory.open(DiskStorage(tmp_path / "data"))
    writer = a_log_of(data.journal(ORDERS))
    end, whole = writer.journal.log_end_offset, content(writer.journal)
    data.abandon()
    log = max((tmp_path / "data" / DIRECTORY).glob("*.log"))
    log.write_bytes(log.read_bytes()[:-cut_bytes])
    data = DataDirectory.open(DiskStorage(tmp_path / "data"))
    journal = data.journal(ORDERS)
    kept = journal.log_end_offset
    assert kept < end
    assert journal.dropped is not None
    assert whole.startswith(content(journal))
    Writer(journal).plain()
    data.close()
    data = DataDirectory.open(DiskStorage(tmp_path / "data"))
    assert data.journal(ORDERS).log_end_offset == kept + 1
    data.close()
