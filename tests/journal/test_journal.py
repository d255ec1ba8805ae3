"""What a journal does for a leader and for readers, told as short stories over a log in memory."""

import pytest

from fencepost.journal.indexes import AbortedRange, OffsetIndex, ProducerSnapshot, TimeIndex
from fencepost.journal.journal import SEGMENT_MS, BatchTooLarge, Journal, JournalSettings, StaleLeader
from fencepost.journal.manifest import ManifestState
from fencepost.journal.memory import MemoryFile, MemoryStorage
from fencepost.journal.segments import BATCH_SIZE_MAX, INDEX, LOG, TIME_INDEX
from fencepost.journal.storage import StorageError, StorageFile
from fencepost.protocol.batches import Buffer, build_marker, place, read_header, walk
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import TopicPartition, TransactionResult
from tests.journal.logs import (
    DIRECTORY,
    EVERYTHING,
    ORDERS,
    Writer,
    content,
    files_of,
    first_since,
    new_writer,
    offsets,
    open_journal,
)


def test_what_was_appended_is_read_and_is_there_after_a_restart() -> None:
    storage, writer = new_writer()
    for records in (3, 1, 2):
        writer.plain(records)
    assert offsets(writer.journal) == [0, 3, 4]
    assert (writer.journal.log_start_offset, writer.journal.log_end_offset) == (0, 6)
    before = content(writer.journal)
    writer.journal.abandon()
    again = open_journal(storage)
    assert (again.log_end_offset, again.dropped, content(again)) == (6, None, before)


def test_an_append_is_one_write_of_the_very_buffer() -> None:
    written: list[Buffer] = []

    class Watched(MemoryFile):
        def append(self, data: Buffer) -> None:
            written.append(data)
            super().append(data)

    class Watching(MemoryStorage):
        def open(self, path: str, *, create: bool = False) -> StorageFile:
            return Watched() if path.endswith(LOG) else super().open(path, create=create)

    journal = open_journal(Watching())
    batch = build_data_batch([b"v" * 100_000], base_timestamp=0)
    place(batch, base_offset=0, leader_epoch=0)
    received = memoryview(batch)
    journal.append(received, read_header(received), leader_epoch=0)
    assert len(written) == 1
    assert written[0] is received


@pytest.mark.parametrize(
    ("offset", "max_bytes", "before", "expected"),
    [
        (0, EVERYTHING, EVERYTHING, [0, 3, 4]),
        (2, EVERYTHING, EVERYTHING, [0, 3, 4]),  # the batch that holds offset 2 begins at 0
        (3, EVERYTHING, EVERYTHING, [3, 4]),
        (0, 1, EVERYTHING, [0]),  # at least one batch
        (0, EVERYTHING, 4, [0, 3]),
        (0, EVERYTHING, 6, [0, 3, 4]),
        (0, EVERYTHING, 5, [0, 3]),  # offset 5 lies inside the last batch, which is therefore not below it
        (3, EVERYTHING, 3, []),
        (6, EVERYTHING, EVERYTHING, []),
    ],
)
def test_a_read_gives_whole_batches_within_its_bounds(
    offset: int, max_bytes: int, before: int, expected: list[int]
) -> None:
    _, writer = new_writer()
    for records in (3, 1, 2):
        writer.plain(records)
    data = writer.journal.segments.read(offset, max_bytes=max_bytes, before=before)
    assert [header.base_offset for _, header in walk(data)] == expected


def test_a_read_is_cut_at_the_last_batch_that_fits() -> None:
    _, writer = new_writer()
    sizes = [writer.plain(size=700).size for _ in range(100)]  # 17 index entries
    for max_bytes in (sizes[0], sizes[0] * 7 + 5, sum(sizes) - 1, sum(sizes)):
        data = writer.journal.segments.read(0, max_bytes=max_bytes, before=EVERYTHING)
        assert len(data) == max_bytes // sizes[0] * sizes[0]


def test_a_read_stays_in_one_segment_and_the_next_goes_on() -> None:
    _, writer = new_writer()
    writer.plain(2)
    writer.roll()
    writer.plain(3)
    journal = writer.journal
    assert [
        header.base_offset
        for _, header in walk(journal.segments.read(0, max_bytes=EVERYTHING, before=EVERYTHING))
    ] == [0]
    assert [
        header.base_offset
        for _, header in walk(journal.segments.read(2, max_bytes=EVERYTHING, before=EVERYTHING))
    ] == [2]


@pytest.mark.parametrize(
    ("offset", "before", "batches"),
    [(0, 4, "ab"), (1, 4, "ab"), (2, 4, "b"), (4, 4, ""), (4, 9, "cd"), (6, 9, "d"), (9, 9, "")],
)
def test_the_bytes_between_two_offsets_are_those_of_whole_batches(
    offset: int, before: int, batches: str
) -> None:
    _, writer = new_writer()
    sizes = {name: writer.plain(2).size for name in "ab"}
    writer.roll()
    sizes |= {"c": writer.plain(2).size, "d": writer.plain(3).size}
    assert writer.journal.segments.bytes_between(offset, before) == sum(sizes[name] for name in batches)
    assert writer.journal.segments.bytes_between(3, 6) is None, "it is in two segments"


def test_an_older_leader_is_refused() -> None:
    _, writer = new_writer()
    writer.leader_epoch = 4
    writer.plain()
    zombie, heir = Writer(writer.journal, leader_epoch=3), Writer(writer.journal, leader_epoch=5)
    with pytest.raises(StaleLeader, match="epoch 3, but its leader epoch is now 4"):
        zombie.plain()
    heir.journal.lead(5)  # before it has written anything
    with pytest.raises(StaleLeader, match="epoch 4, but its leader epoch is now 5"):
        writer.plain()
    with pytest.raises(StaleLeader):
        writer.journal.lead(4)
    heir.plain()
    assert [header.leader_epoch for header, _ in heir.journal.segments.batches(0)] == [4, 5]


def test_what_recovery_would_take_for_damage_is_never_written() -> None:
    storage, writer = new_writer()
    writer.plain()
    batch = build_data_batch([b"v"], base_timestamp=0)
    with pytest.raises(BatchTooLarge, match="134217729 bytes for orders-0"):
        writer.append(batch + bytes(BATCH_SIZE_MAX + 1 - len(batch)))
    writer.plain()
    before = content(writer.journal)
    writer.journal.abandon()
    assert content(open_journal(storage)) == before


def test_the_newest_leader_epoch_is_known_after_a_restart() -> None:
    storage, writer = new_writer()
    writer.leader_epoch = 4
    writer.plain()
    writer.roll()
    writer.journal.close()
    for mark in (writer.journal.next_clean_mark, None):
        with pytest.raises(StaleLeader):
            Writer(open_journal(storage, clean_mark=mark), leader_epoch=3).plain()


@pytest.mark.parametrize(("base_offset", "leader_epoch"), [(0, 0), (2, 0), (1, 1)])
def test_a_batch_that_was_placed_elsewhere_is_our_bug(base_offset: int, leader_epoch: int) -> None:
    _, writer = new_writer()
    writer.plain()
    batch = build_data_batch([b"v"], base_timestamp=0)
    place(batch, base_offset=base_offset, leader_epoch=leader_epoch)
    with pytest.raises(AssertionError, match="placed the batch at another offset"):
        writer.journal.append(batch, read_header(batch), leader_epoch=0)


def test_a_segment_is_full_by_its_bytes() -> None:
    storage = MemoryStorage()
    writer = Writer(open_journal(storage, settings=JournalSettings(segment_bytes=200)))
    writer.plain()
    assert not writer.journal.is_full
    writer.plain(size=100)
    assert writer.journal.is_full
    writer.roll()
    assert not writer.journal.is_full
    writer.roll()  # nothing: the last segment is empty
    assert files_of(storage, LOG) == [f"{DIRECTORY}/{0:020d}.log", f"{DIRECTORY}/{2:020d}.log"]


def test_a_batch_more_than_seven_days_newer_opens_a_segment() -> None:
    storage, writer = new_writer()
    for timestamp in (1_000, 1_000 + SEGMENT_MS, 1_001 + SEGMENT_MS, 5, 2_000 + 2 * SEGMENT_MS):
        writer.plain(timestamp=timestamp)
    assert [path[-6:] for path in files_of(storage, LOG)] == ["00.log", "02.log", "04.log"]
    assert writer.journal.snapshot_due
    writer.journal.write_snapshot([])
    assert not writer.journal.snapshot_due


def test_the_seven_days_count_from_the_first_batch_also_after_a_restart() -> None:
    storage, writer = new_writer()
    writer.plain(timestamp=1_000)
    writer.journal.close()
    for mark in (writer.journal.next_clean_mark, None):
        again = Writer(open_journal(storage, clean_mark=mark))
        if mark is not None:
            again.plain(timestamp=1_000 + SEGMENT_MS)
            again.journal.abandon()
    again.plain(timestamp=1_001 + SEGMENT_MS)
    assert len(files_of(storage, LOG)) == 2


def test_aborted_transactions_of_the_worked_example() -> None:
    """UnifiedLogTest.testTransactionIndexUpdated: two of four transactions abort, in another order than they
    began."""
    storage, writer = new_writer()
    writer.data(1, 5)
    writer.plain(3)
    writer.data(2, 2)
    writer.data(1, 4)
    writer.data(3, 3)
    writer.plain(2)
    writer.data(1, 10)
    assert writer.abort(1).base_offset == 29
    writer.data(2, 6)
    writer.data(4, 3)
    writer.plain(10)
    writer.data(3, 9)
    writer.roll()  # the marker decides where an aborted transaction is indexed
    assert writer.commit(3).base_offset == 58
    writer.data(4, 8)
    writer.data(2, 7)
    assert writer.abort(2).base_offset == 74
    writer.plain(10)
    writer.data(4, 4)
    assert writer.commit(4).base_offset == 89
    first, second = AbortedRange(1, 0, 29, 8), AbortedRange(2, 8, 74, 36)
    assert writer.journal.segments.aborted_between(0, upper=90) == [first, second]
    assert writer.journal.segments.aborted_between(8, upper=20) == [
        first,
        second,
    ]  # found in the segment behind
    assert writer.journal.segments.aborted_between(0, upper=8) == [first]
    assert writer.journal.segments.aborted_between(30, upper=90) == [second]
    assert writer.journal.segments.aborted_between(75, upper=90) == []
    assert [storage.files(DIRECTORY)[f"{base:020d}.txnindex"] for base in (0, 58)] == [34, 34]


def test_a_marker_without_records_leaves_no_trace() -> None:
    _, writer = new_writer()
    writer.plain()
    writer.abort(7)
    writer.data(7)
    writer.abort(7)
    writer.abort(7)
    assert writer.journal.segments.aborted_between(0, upper=EVERYTHING) == [AbortedRange(7, 2, 3, 4)]


def test_an_aborted_range_ends_at_its_own_marker() -> None:
    _, writer = new_writer()
    writer.data(7)
    marker = build_marker(
        TransactionResult.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=0
    )
    place(marker, base_offset=1, leader_epoch=0)
    with pytest.raises(AssertionError, match="ends at its marker"):
        writer.journal.append(marker, read_header(marker), leader_epoch=0, aborted=AbortedRange(7, 0, 2, 3))


def test_the_upper_bound_of_a_fetch_comes_from_the_index_then_the_next_segment_then_the_end() -> None:
    _, writer = new_writer()
    batches = [writer.plain(2, size=1_000) for _ in range(6)]  # the third and the fifth are indexed
    writer.roll()
    writer.plain(2)
    journal = writer.journal
    size = batches[0].size
    assert (
        journal.segments.fetch_upper_bound(0, size) == 5 * 1
    )  # the batch at 4096 bytes or more ends at offset 5 ... see below
    assert journal.segments.fetch_upper_bound(0, 6 * size) == 12
    assert journal.segments.fetch_upper_bound(12, 10) == 14


def test_a_timestamp_is_found_at_its_first_record() -> None:
    _, writer = new_writer()
    for first in range(0, 200, 10):
        deltas = [0, 7, 3]
        writer.append(
            build_data_batch([b"v" * 500] * 3, base_timestamp=1_000 + first, timestamp_deltas=deltas)
        )
        if first == 90:
            writer.roll()
    journal = writer.journal
    assert first_since(journal, 0) == (1_000, 0, 0)
    assert first_since(journal, 1_001) == (1_007, 1, 0)
    assert first_since(journal, 1_007) == (1_007, 1, 0)
    assert first_since(journal, 1_008) == (1_010, 3, 0)
    assert first_since(journal, 1_105) == (1_107, 31, 0)
    assert first_since(journal, 1_198) is None
    writer.commit(1, timestamp=2_000)
    assert first_since(journal, 1_198) == (2_000, 60, 0)


def test_of_many_records_with_one_timestamp_the_first_is_found() -> None:
    storage, writer = new_writer()
    writer.plain(timestamp=500)
    for _ in range(20):
        writer.plain(size=2_000)
    writer.journal.close()
    assert len(TimeIndex(storage.read_file(files_of(storage, TIME_INDEX)[0]) or b"")) == 1
    journal = open_journal(storage, clean_mark=writer.journal.next_clean_mark)
    assert first_since(journal, 1_000) == (1_000, 1, 0)
    assert first_since(journal, journal.segments.max_timestamp, 0) == (1_000, 1, 0)


def test_the_index_goes_on_after_many_clean_restarts() -> None:
    """Each run adds less than an index interval; looking up an offset must not walk the whole log one day."""
    storage, mark = MemoryStorage(), None
    for _ in range(12):
        writer = Writer(open_journal(storage, clean_mark=mark))
        writer.plain(size=1_000)
        writer.journal.close()
        mark = writer.journal.next_clean_mark
    assert len(OffsetIndex(storage.read_file(files_of(storage, INDEX)[0]) or b"")) == 2


def producer(producer_id: int) -> ProducerSnapshot:
    """One of which only a marker was seen."""
    return ProducerSnapshot(producer_id, 0, -1, -1, 0, 0, 0, -1)


def test_snapshots_stay_where_segments_begin_and_at_the_newest_offset() -> None:
    storage, writer = new_writer()
    journal = writer.journal
    for offset in range(1, 6):
        writer.plain()
        if offset == 2:
            journal.roll([producer(offset)])
        else:
            journal.write_snapshot([producer(offset)])
    assert [path[-11:-9] for path in files_of(storage, "snapshot")] == ["02", "05"]
    assert journal.newest_snapshot(at_most=5) == (5, [producer(5)])
    assert journal.newest_snapshot(at_most=4) == (2, [producer(2)])
    assert journal.newest_snapshot(at_most=1) is None
    assert open_journal(storage).newest_snapshot(at_most=EVERYTHING) == (5, [producer(5)])


@pytest.mark.parametrize(
    ("sizes", "rolls", "expected"),
    [
        ([100], [], []),  # the next start reads it from its beginning
        ([5_000], [], [1]),
        ([5_000, 100], [1], [1]),  # read from the snapshot that the roll wrote
        ([100, 5_000], [1], [1, 2]),
    ],
)
def test_a_close_writes_a_snapshot_if_the_next_start_would_read_much(
    sizes: list[int], rolls: list[int], expected: list[int]
) -> None:
    storage, writer = new_writer()
    for size in sizes:
        if writer.journal.log_end_offset in rolls:
            writer.journal.roll([producer(1)])
        writer.plain(size=size)
    state = ManifestState(last_stable_offset=len(sizes), high_watermark=len(sizes))
    writer.journal.close(state, [producer(1)])
    assert [int(path[-11:-9]) for path in files_of(storage, "snapshot")] == expected


def test_a_close_writes_a_snapshot_if_there_is_none_where_the_segment_begins() -> None:
    storage, writer = new_writer()
    writer.plain(timestamp=1_000)
    writer.plain(timestamp=1_000 + 8 * 24 * 3600 * 1000)  # opens a segment without a snapshot
    assert writer.journal.snapshot_due
    writer.journal.close(ManifestState(last_stable_offset=2, high_watermark=2), [producer(1)])
    assert [path[-11:-9] for path in files_of(storage, "snapshot")] == ["02"]


def test_a_closed_journal_takes_nothing_more() -> None:
    _, writer = new_writer()
    writer.plain()
    writer.journal.close()
    with pytest.raises(StorageError, match="is closed"):
        writer.plain()
    with pytest.raises(StorageError, match="is closed"):
        writer.journal.sync()


def test_partitions_have_journals_of_their_own() -> None:
    storage = MemoryStorage()
    first, second = (Writer(Journal(storage, TopicPartition("orders", number))) for number in (0, 1))
    first.plain(2)
    second.plain(3)
    assert (first.journal.log_end_offset, second.journal.log_end_offset) == (2, 3)
    assert storage.directories() == ["orders-0", "orders-1"]
    assert first.journal.partition == ORDERS
