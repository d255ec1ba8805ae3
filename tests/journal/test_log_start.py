"""Records that were deleted: not read again, also after a crash; their segments go at the next start."""

from __future__ import annotations

import pytest

from fencepost.journal.indexes import ProducerSnapshot, encode_snapshot
from fencepost.journal.journal import Journal
from fencepost.journal.manifest import LOG_START_FILE, deletable, read_log_start, write_log_start
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.segments import LOG, SNAPSHOT, file_name
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import StorageError
from tests.journal.logs import DIRECTORY, EVERYTHING, ORDERS, Writer, first_since, flip

PRODUCERS = [ProducerSnapshot(7, 0, -1, -1, 0, 1_000, -1, -1)]


def segments(storage: MemoryStorage) -> list[str]:
    return sorted(name for name in storage.files(DIRECTORY) if name.endswith(LOG))


def rolled(storage: MemoryStorage) -> Writer:
    """Three segments, at 0, 6 and 12, of batches of three records; the rolls left snapshots."""
    writer = Writer(Journal(storage, ORDERS))
    for number in range(5):
        writer.plain(3, timestamp=1_000 + number)
        if number in (1, 3):
            writer.journal.roll(PRODUCERS)
    return writer


def test_the_log_start_is_kept_after_a_crash() -> None:
    storage = MemoryStorage()
    journal = rolled(storage).journal
    journal.move_log_start(4)
    for log in (journal, Journal(storage, ORDERS)):
        assert (log.log_start_offset, log.segments.oldest_offset, log.log_end_offset) == (4, 0, 15)
        assert log.segments.batch_start(4) == 3
        assert log.segments.batch_start(15) == 15
        assert first_since(log, 0) == (1_001, 4, 0)
        assert len(log.segments.read(4, max_bytes=1, before=EVERYTHING)) > 0


def test_damage_in_deleted_records_does_not_keep_their_segments() -> None:
    """Their headers are compared with the snapshot, which a damaged one does not contradict."""
    storage = MemoryStorage()
    journal = rolled(storage).journal
    flip(storage, f"{DIRECTORY}/{file_name(6, LOG)}", 16)  # the magic of the first batch
    journal.move_log_start(12)
    assert journal.remove_deleted()
    assert segments(storage) == [file_name(12, LOG)]


@pytest.mark.parametrize(("offset", "left"), [(5, 0), (6, 6), (11, 6), (12, 12), (15, 12)])
def test_segments_wholly_below_it_go_at_the_next_start(offset: int, left: int) -> None:
    storage = MemoryStorage()
    rolled(storage).journal.move_log_start(offset)
    starts = [Journal(storage, ORDERS) for _ in range(2)]
    for journal in starts:
        assert (journal.log_start_offset, journal.segments.oldest_offset) == (offset, left)
        assert journal.log_end_offset == 15
        assert segments(storage) == [file_name(base, LOG) for base in (0, 6, 12) if base >= left]
    found = starts[-1].newest_snapshot(EVERYTHING)
    assert found is not None
    assert found[1] == PRODUCERS


def test_a_clean_start_goes_by_what_is_left_of_the_checkpoint() -> None:
    storage = MemoryStorage()
    journal = rolled(storage).journal
    journal.move_log_start(13)
    journal.close()
    for _ in range(2):
        again = Journal(storage, ORDERS, clean_mark=journal.next_clean_mark)
        assert (again.dropped, again.segments.oldest_offset, again.log_end_offset) == (None, 12, 15)
        again.close()


def test_without_its_snapshot_a_segment_needs_those_before_it() -> None:
    storage = MemoryStorage()
    rolled(storage).journal.move_log_start(14)
    storage.replace(f"{DIRECTORY}/{file_name(12, 'snapshot')}", b"damaged", durable=False)
    assert Journal(storage, ORDERS).segments.oldest_offset == 6


def test_a_start_that_finishes_a_deletion_believes_no_snapshot_of_another_log() -> None:
    storage = MemoryStorage()
    rolled(storage).journal.move_log_start(14)
    stranger = ProducerSnapshot(8, 0, 0, 11, 0, 1_000, -1, -1)
    storage.replace(f"{DIRECTORY}/{file_name(12, SNAPSHOT)}", encode_snapshot([stranger]), durable=False)
    journal = Journal(storage, ORDERS)
    assert journal.segments.oldest_offset == 6
    assert journal.newest_snapshot(EVERYTHING) == (6, PRODUCERS)
    assert "no batch of producer 8 ends at offset 11" in journal.take_removed_snapshots()[0]


def test_the_snapshot_that_stands_for_deleted_segments_survives_a_loss_of_power() -> None:
    """Nothing else says who wrote in them, or that a transaction which began there is open."""
    storage = SimulatedStorage(lambda most: 0)  # nothing that was not synced is left
    journal = rolled(storage).journal
    journal.move_log_start(12)
    assert journal.remove_deleted()
    journal.sync()
    storage.lose_power()
    found = Journal(storage, ORDERS)
    assert found.segments.oldest_offset == 12
    assert found.newest_snapshot(at_most=EVERYTHING) == (12, PRODUCERS)


def test_a_deletion_that_a_crash_interrupted_needs_no_snapshot_before_the_last_one() -> None:
    storage = MemoryStorage()
    rolled(storage).journal.move_log_start(12)
    for name in list(storage.files(DIRECTORY)):
        if name.startswith(f"{0:020d}") or name == file_name(6, SNAPSHOT):
            storage.remove(f"{DIRECTORY}/{name}")
    journal = Journal(storage, ORDERS)
    assert journal.segments.oldest_offset == 12
    assert journal.take_removed_snapshots() == []


def test_a_log_start_that_was_not_synced_is_written_again_before_it_is_acknowledged() -> None:
    broken = set[str]()
    storage = SimulatedStorage(lambda _most: 0, breaks=lambda _operation, path: path in broken)
    storage.make_directory(DIRECTORY)
    storage.sync_directory("")
    writer = rolled(storage)
    writer.journal.sync()
    broken.add(DIRECTORY)
    with pytest.raises(StorageError, match="cannot sync"):
        writer.journal.move_log_start(4)
    broken.clear()
    Journal(storage, ORDERS).move_log_start(4)
    storage.lose_power()
    assert Journal(storage, ORDERS).log_start_offset == 4


def test_which_segments_nobody_needs() -> None:
    assert deletable([0, 6, 12], 12, snapshots=[6, 12]) == [0, 6]
    assert deletable([0, 6, 12], 11, snapshots=[6, 12]) == [0]
    assert deletable([0, 6, 12], 12, snapshots=[6]) == [0]
    assert deletable([0, 6, 12], 12, snapshots=[]) == []
    assert deletable([6, 12], 99, snapshots=[7]) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 3, "log_start_offset": null}'])
def test_an_unreadable_log_start_is_an_error_and_no_guess(content: bytes) -> None:
    storage = MemoryStorage()
    rolled(storage).journal.move_log_start(12)
    storage.replace(f"{DIRECTORY}/{LOG_START_FILE}", content, durable=False)
    with pytest.raises(StorageError, match=r"is damaged .*run `fencepost repair memory`, which lists"):
        Journal(storage, ORDERS)


def test_a_flipped_bit_in_the_log_start_is_noticed_wherever_it_is() -> None:
    storage = MemoryStorage()
    rolled(storage).journal.move_log_start(12)
    path = f"{DIRECTORY}/{LOG_START_FILE}"
    content = storage.read_file(path) or b""
    for at in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[at // 8] ^= 1 << at % 8
        storage.replace(path, damaged, durable=False)
        with pytest.raises(StorageError, match="is damaged"):
            read_log_start(storage, DIRECTORY)
    storage.replace(path, content, durable=False)
    assert read_log_start(storage, DIRECTORY) == 12


def test_the_log_start_of_another_partition_is_not_taken_for_its_own() -> None:
    storage = MemoryStorage()
    storage.make_directory("other-0")
    write_log_start(storage, "other-0", 3)
    storage.make_directory(DIRECTORY)
    storage.replace(
        f"{DIRECTORY}/{LOG_START_FILE}", storage.read_file(f"other-0/{LOG_START_FILE}") or b"", durable=False
    )
    with pytest.raises(StorageError, match=f"{DIRECTORY}: it holds the log of other-0"):
        read_log_start(storage, DIRECTORY)


def test_a_log_that_lost_its_end_starts_there_at_the_latest() -> None:
    storage = MemoryStorage()
    rolled(storage).journal.move_log_start(15)
    file = storage.open(f"{DIRECTORY}/{file_name(12, LOG)}")
    file.truncate(10)
    file.close()
    journal = Journal(storage, ORDERS)
    assert (journal.log_start_offset, journal.log_end_offset) == (12, 12)
    Writer(journal).plain(2)  # acknowledged, so the next start must not take it for deleted
    assert (again := Journal(storage, ORDERS)).log_start_offset == 12
    assert again.log_end_offset == 14
