"""Recovery keeps the longest valid prefix, whatever is torn, altered or missing, and what it builds again
equals what was there."""

from pathlib import Path

import pytest

from fencepost.check.directory import check_logs
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from fencepost.journal.manifest import CHECKPOINT_FILE, MANIFEST_FILE, ManifestState, SyncedSegment
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.segments import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    file_name,
    walk_batches,
)
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import DamagedLog
from fencepost.protocol.batches import build_marker, covering_batch, place
from fencepost.protocol.checksum import crc32c
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import TransactionResult
from tests.journal.logs import (
    DIRECTORY,
    ORDERS,
    Writer,
    a_log_in_memory,
    a_log_of,
    content,
    copy_of,
    crash,
    cut,
    files_of,
    flip,
    new_writer,
    offsets,
    open_journal,
)

FIRST_LOG = f"{DIRECTORY}/{0:020d}.{LOG}"


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
        newer_leader = start + 12 < at < start + 16  # that is legal; then the next batch is older
        if newer_leader:
            assert open_journal(altered).log_end_offset == 5
        else:
            with pytest.raises(DamagedLog, match=r"valid batches follow\. The records at offsets 2 to 4 "):
                open_journal(altered)


def test_a_batch_that_is_torn_at_the_end_of_the_log_is_dropped() -> None:
    storage, writer = new_writer()
    writer.plain(2)
    writer.plain(1)
    crash(writer)
    path = files_of(storage, LOG)[-1]
    flip(storage, path, -1)
    journal = open_journal(storage)
    assert journal.log_end_offset == 2
    assert journal.dropped is not None
    assert journal.dropped.endswith("from offset 2 on: the checksum of a batch does not match its bytes")
    Writer(journal).plain()
    assert open_journal(storage).log_end_offset == 3


def test_a_log_that_is_damaged_in_its_middle_is_refused_and_not_changed() -> None:
    storage, writer = a_log_in_memory()
    crash(writer)
    flip(storage, FIRST_LOG, 100)
    before = copy_of(storage)
    with pytest.raises(DamagedLog, match=r"byte 0 is damaged .*, and valid batches follow"):
        open_journal(storage)
    for name in storage.files(DIRECTORY):
        path = f"{DIRECTORY}/{name}"
        assert storage.read_file(path) == before.read_file(path)


@pytest.mark.parametrize("damage", ["flip the last byte", "lose the last segment", "lose every segment"])
def test_what_the_manifest_promised_is_not_cut_off(damage: str) -> None:
    storage, writer = a_log_in_memory()
    end = writer.journal.log_end_offset
    writer.journal.write_manifest(ManifestState(last_stable_offset=end, high_watermark=end))
    crash(writer)
    logs = files_of(storage, LOG)
    if damage == "flip the last byte":
        flip(storage, logs[-1], -1)
    else:
        for path in logs if damage == "lose every segment" else logs[-1:]:
            storage.remove(path)
    with pytest.raises(DamagedLog, match=rf"(to|at offset) {end - 1} (are|is) at stake"):
        open_journal(storage)


def test_a_machine_that_restarted_may_have_lost_what_was_never_synced() -> None:
    storage, writer = a_log_in_memory()
    end = writer.journal.log_end_offset
    writer.journal.write_manifest(ManifestState(last_stable_offset=end, high_watermark=end))
    crash(writer)
    flip(storage, files_of(storage, LOG)[-1], -1)
    storage.boot_id = "another"
    assert open_journal(storage).log_end_offset < end


def test_a_machine_that_restarted_has_not_lost_what_was_synced() -> None:
    storage, writer = a_log_in_memory()
    end = writer.journal.sync()
    writer.journal.write_manifest(ManifestState(last_stable_offset=end, high_watermark=end))
    crash(writer)
    flip(storage, files_of(storage, LOG)[-1], -1)
    storage.boot_id = "another"
    with pytest.raises(DamagedLog, match=rf"(to|at offset) {end - 1} (are|is) at stake"):
        open_journal(storage)


def test_a_missing_first_segment_is_damage() -> None:
    storage, writer = a_log_in_memory()
    crash(writer)
    storage.remove(FIRST_LOG)
    with pytest.raises(DamagedLog, match="no file holds the offsets from 0 on"):
        open_journal(storage)


def test_a_tail_of_zeros_is_no_batch() -> None:
    storage, writer = a_log_in_memory()
    end = writer.journal.log_end_offset
    crash(writer)
    storage.open(files_of(storage, LOG)[-1]).append(bytes(5_000))
    journal = open_journal(storage)
    assert journal.log_end_offset == end
    assert journal.dropped is not None


def test_a_segment_that_a_start_removed_does_not_come_back_with_a_loss_of_power() -> None:
    """It lay after a hole, and what takes its place has other batches."""
    storage = SimulatedStorage(lambda _most: 0)
    writer = Writer(open_journal(storage))
    writer.plain(2)
    writer.roll()
    writer.plain(2)
    storage.sync_directory(DIRECTORY)
    storage.sync_directory("")
    first, second = (f"{DIRECTORY}/{file_name(base, LOG)}" for base in (0, 2))
    storage.open(second).sync()
    storage.lose_power()
    writer = Writer(open_journal(storage))
    assert writer.journal.log_end_offset == 0
    writer.plain(3)
    storage.open(first).sync()
    storage.lose_power()
    assert storage.read_file(second) is None
    assert open_journal(storage).log_end_offset == 3


def test_a_snapshot_of_a_lost_end_does_not_come_back_with_a_loss_of_power() -> None:
    """It could agree with the batches that took the places of the lost ones, and lack their producers."""
    storage = SimulatedStorage(lambda _most: 0)
    writer = Writer(open_journal(storage))
    writer.plain(2)
    writer.journal.sync()
    storage.sync_directory("")
    writer.journal.write_manifest(ManifestState(last_stable_offset=2, high_watermark=2))
    storage.open(f"{DIRECTORY}/{MANIFEST_FILE}").sync()
    writer.plain(2)
    writer.journal.write_snapshot([])
    snapshot = file_name(4, SNAPSHOT)
    storage.open(f"{DIRECTORY}/{snapshot}").sync()
    storage.sync_directory(DIRECTORY)
    storage.lose_power()
    writer = Writer(open_journal(storage))
    assert writer.journal.log_end_offset == 2
    writer.plain(2)
    writer.journal.sync()
    storage.lose_power()
    assert snapshot not in storage.files(DIRECTORY)


def lost_twice(kind: str, *, names_lost_end: bool, tail: bytes = b"") -> SimulatedStorage:
    """Power is lost, the log grows again with other batches, and power is lost again. A manifest and the
    files of this kind were on the disk by the first time, and what was done to them since is lost.
    `names_lost_end`: the manifest is not one from before.
    """
    storage = SimulatedStorage(lambda _most: 0)
    writer = Writer(open_journal(storage))
    writer.plain(1, size=5_000)
    end = writer.journal.sync()
    storage.sync_directory("")
    writer.journal.write_manifest(ManifestState(last_stable_offset=end, high_watermark=end))
    storage.open(f"{DIRECTORY}/{MANIFEST_FILE}").sync()
    storage.sync_directory(DIRECTORY)
    for producer_id in (7, 8):
        writer.data(producer_id, 2, size=5_000, timestamp=2_000)
        writer.abort(producer_id)
    lost_end = writer.journal.log_end_offset
    if names_lost_end:
        writer.journal.write_manifest(ManifestState(last_stable_offset=lost_end, high_watermark=lost_end))
    for name in storage.files(DIRECTORY):
        if name.endswith((MANIFEST_FILE, f".{kind}")):
            storage.open(f"{DIRECTORY}/{name}").sync()
    storage.sync_directory(DIRECTORY)
    storage.lose_power()
    storage.open(FIRST_LOG).append(tail)
    writer = Writer(open_journal(storage))
    assert writer.journal.log_end_offset == end
    writer.data(9, 9, size=1_000)
    writer.plain(1)
    assert writer.journal.sync() > lost_end
    storage.lose_power()
    return storage


@pytest.mark.parametrize("tail", [b"", b"torn"])
def test_the_manifest_of_a_lost_end_does_not_come_back_with_a_loss_of_power(tail: bytes) -> None:
    """Readers without a broker would take its offsets for those of the batches in their place: here they
    would get records of an open transaction.
    """
    storage = lost_twice(MANIFEST_FILE, names_lost_end=True, tail=tail)
    assert MANIFEST_FILE not in storage.files(DIRECTORY)


@pytest.mark.parametrize(
    ("kind", "names_lost_end"),
    [
        (INDEX, True),
        (TIME_INDEX, True),
        (TRANSACTION_INDEX, True),
        (TRANSACTION_INDEX, False),  # it is written before the manifest
    ],
)
def test_the_index_of_a_lost_end_does_not_come_back_with_a_loss_of_power(
    kind: str, *, names_lost_end: bool
) -> None:
    storage = lost_twice(kind, names_lost_end=names_lost_end)
    path = FIRST_LOG.removesuffix(LOG) + kind
    left = storage.read_file(path) or b""
    open_journal(storage)
    assert (storage.read_file(path) or b"").startswith(left), "what it says is true of the log"


def test_a_torn_tail_does_not_come_back_after_a_clean_stop() -> None:
    """The mark of the stop names the size of the file, and a log that was closed has no torn tail."""
    kept = [1]  # of the changes that are not synced
    storage = SimulatedStorage(lambda most: most * kept[0])
    data = DataDirectory.open(storage)
    journal = data.journal(ORDERS)
    Writer(journal).plain(2)
    journal.sync()
    journal.write_manifest(ManifestState(last_stable_offset=2, high_watermark=2))
    storage.open(f"{DIRECTORY}/{MANIFEST_FILE}").sync()
    storage.open(FIRST_LOG).append(b"torn")
    storage.lose_power()
    kept[0] = 0
    data = DataDirectory.open(storage)
    assert data.journal(ORDERS).dropped is not None
    data.close()
    storage.lose_power()
    assert [each.what for each in check_logs(storage).found if each.file == FIRST_LOG] == []
    assert DataDirectory.open(storage).journal(ORDERS).dropped is None


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


def refused_and_unchanged(
    storage: MemoryStorage, why: str, *, clean_mark: SyncedSegment | None = None
) -> None:
    before = copy_of(storage)
    with pytest.raises(DamagedLog, match=why):
        open_journal(storage, clean_mark=clean_mark)
    for name in before.files(DIRECTORY):
        path = f"{DIRECTORY}/{name}"
        assert storage.read_file(path) == before.read_file(path)


@pytest.mark.parametrize("at", [7, 12])
def test_a_longer_first_segment_of_another_log_does_not_replace_the_others(at: int) -> None:
    """Nor does one that ends within a later segment."""
    storage, writer = a_log_in_memory()
    crash(writer)
    other, longer = new_writer()
    longer.plain(at)
    longer.plain(at)
    crash(longer)
    storage.replace(FIRST_LOG, other.read_file(FIRST_LOG) or b"", durable=True)
    refused_and_unchanged(storage, f"{FIRST_LOG} ends at offset {2 * at}, where no other file begins")


def test_a_loss_of_power_may_strike_a_cleaning_and_the_end_of_the_log() -> None:
    """A replaced file is there again, and a later segment, which was never synced, is torn."""
    storage, writer = new_writer()
    for _ in range(4):
        writer.plain(2)
        writer.roll()
    crash(writer)
    first, second, third, *_ = logs = files_of(storage, LOG)
    cleaned = b"".join(storage.read_file(path) or b"" for path in (first, second))
    storage.replace(first, cleaned, durable=True)
    cut(storage, third, 10)
    journal = open_journal(storage)
    assert (journal.segments.oldest_offset, journal.log_end_offset) == (0, 4)
    assert files_of(storage, LOG) == [logs[0], logs[2]]


@pytest.mark.parametrize("was_closed", [True, False])
def test_an_older_copy_of_the_first_segment_does_not_cost_the_later_ones(*, was_closed: bool) -> None:
    """Segment, manifest and mark come from a backup that was copied over a newer directory."""
    storage, writer = new_writer()
    writer.plain(2)
    writer.journal.write_manifest(ManifestState(last_stable_offset=2, high_watermark=2))
    if was_closed:
        writer.journal.close()
    clean_mark = writer.journal.next_clean_mark if was_closed else None
    backup = copy_of(storage)
    writer = Writer(open_journal(storage))
    writer.plain(2)
    writer.roll()
    writer.plain(2)
    crash(writer)
    for name in backup.files(DIRECTORY):
        path = f"{DIRECTORY}/{name}"
        storage.replace(path, backup.read_file(path) or b"", durable=True)
    why = r"where 2 was expected\), and no loss of power explains it. The records from offset 2 on "
    refused_and_unchanged(storage, why, clean_mark=clean_mark)


def test_a_file_of_the_same_size_that_ends_earlier_is_not_taken_unread() -> None:
    """The checkpoint vouches for the size of a file and for its indexes, which are the same here."""
    storage, writer = new_writer()
    sizes = [writer.plain(size=100).size, writer.plain(size=100).size]
    writer.roll()
    writer.plain()
    end = writer.journal.log_end_offset
    writer.journal.close(ManifestState(last_stable_offset=end, high_watermark=end), [])
    other, shorter = new_writer()
    shorter.plain(size=99 + sizes[1])  # its length takes a byte more
    crash(shorter)
    file = other.read_file(FIRST_LOG) or b""
    assert len(file) == sum(sizes)
    storage.replace(FIRST_LOG, file, durable=True)
    why = f"{FIRST_LOG} is not the file that {DIRECTORY}/{MANIFEST_FILE} describes"
    refused_and_unchanged(storage, why, clean_mark=writer.journal.next_clean_mark)


def test_the_last_segment_is_never_compacted() -> None:
    """So an empty batch in the place of its last one is of another log."""
    storage, writer = new_writer()
    writer.plain(2)
    writer.journal.write_manifest(ManifestState(last_stable_offset=2, high_watermark=2))
    crash(writer)
    other = covering_batch(base_offset=0, next_offset=5, leader_epoch=0)
    storage.replace(FIRST_LOG, bytes(other), durable=True)
    refused_and_unchanged(storage, f"{FIRST_LOG} is not the file that {DIRECTORY}/{MANIFEST_FILE} describes")


def test_records_after_the_end_of_a_log_that_was_closed_are_not_served() -> None:
    storage, writer = new_writer()
    writer.plain(2)
    writer.journal.close()
    clean_mark = writer.journal.next_clean_mark
    other, longer = new_writer()
    longer.plain(2)
    longer.roll()
    longer.plain(3)
    crash(longer)
    path = files_of(other, LOG)[1]
    storage.replace(path, other.read_file(path) or b"", durable=True)
    why = r"ends at offset 5, but it was closed at offset 2\. The records at offsets 2 to 4 "
    refused_and_unchanged(storage, why, clean_mark=clean_mark)


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


@pytest.mark.parametrize("name", [MANIFEST_FILE, CHECKPOINT_FILE])
def test_a_small_file_that_is_torn_does_not_outlive_a_start(name: str) -> None:
    """Without the state of a leader, a stop does not replace it: it would look as if the stop had torn it."""
    storage, writer = new_writer()
    writer.plain(2)
    crash(writer)
    storage.replace(f"{DIRECTORY}/{name}", b"{", durable=True)
    open_journal(storage).close()
    assert name not in storage.files(DIRECTORY)


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
    assert journal.segments.aborted_between(0, upper=2) == []


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
