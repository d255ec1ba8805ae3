"""Logs whose manifest is older than their last cleaning: what tools say that read the files alone.

A broker writes a manifest up to 200 ms after a cleaning, and may die before that.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencepost.check.directory import check_logs
from fencepost.check.findings import Severity
from fencepost.journal.data_directory import META_FILE, META_VERSION, DataDirectory
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.manifest import ManifestState, encode_json
from fencepost.journal.open_transactions import OpenTransaction
from fencepost.journal.storage import Storage
from fencepost.protocol.batches import read_header
from fencepost.protocol.records import build_data_batch
from tests.check.directories import Directory
from tests.check.planting import adjust, adjust_segment
from tests.journal.logs import DIRECTORY, ORDERS, Writer
from tests.journal.test_cleaning import SEGMENT_BYTES, Died, Mortal, clean, damages_in, keeps, opened, write
from tests.journal.test_compaction import ABORT, COMMIT, Log
from tests.spark.tables import rows_of

MANIFEST = f"{DIRECTORY}/manifest.json"


def under_one_transaction() -> Log:
    """Short transactions of two producers over several segments, and a long one that ends after them."""
    log = Log()
    log.write([(b"long", b"x")], producer=3, transactional=True)
    for number in range(6):
        producer = 1 + number % 2
        log.write([(b"a", b"%d" % number), (b"b", b"%d" % number)], producer=producer, transactional=True)
        log.write([(b"c", b"%d" % number)])
        log.end_transaction(producer, ABORT if number % 3 == 2 else COMMIT)
    for value in (b"y" * 300, b"z"):
        log.write([(b"d", value)])
    log.end_transaction(3, COMMIT)
    return log


LOG = under_one_transaction()


def written(*, manifest_at: int) -> tuple[Mortal, Journal]:
    """The log on a disk, with the manifest as it was when the log ended at this offset."""
    disk = Mortal(keeps(2))
    disk.breaks = lambda _operation, _path: disk.lives() is not None
    disk.replace(
        META_FILE, encode_json({"format": META_VERSION, "cluster_id": "c"}, place=META_FILE), durable=True
    )
    journal = opened(disk)
    write(journal, LOG, manifest_at=manifest_at)
    return disk, journal


def clean_twice(journal: Journal) -> None:
    """The first cleaning thins segments, the second one merges some and removes markers."""
    clean(journal, before=journal.segments.full[1].end_offset)
    journal.configure(JournalSettings(segment_bytes=2 * SEGMENT_BYTES))
    clean(journal, delete_retention_ms=0)


def cleaned(*, manifest_at: int = LOG.end) -> Directory:
    """What a broker leaves that dies after the cleaning, and before the next manifest."""
    disk, journal = written(manifest_at=manifest_at)
    clean_twice(journal)
    return Directory(disk)


def losses(disk: Storage) -> list[str]:
    """What is told to a reader that takes what exists."""
    return [row["reason"] for row in rows_of("losses", disk)]


def missed(disk: Storage) -> list[str]:
    """What a reader of the files alone misses."""
    found, end = losses(disk), 0
    for row in rows_of("batches", disk):
        if row["baseOffset"] != end:
            found.append(f"a batch at {row['baseOffset']} after {end}")
        end = row["lastOffset"] + 1
    return found if end == LOG.end else [*found, f"it ends at {end}"]


# The last of them is inside the transaction, and after the segments that are merged.
@pytest.mark.parametrize("manifest_at", [1, 3, 8, 17, LOG.end - 1, LOG.end])
def test_a_broker_that_dies_in_a_cleaning_leaves_no_damage(manifest_at: int) -> None:
    is_over, steps, found = False, 0, list[str]()
    while not is_over:
        disk, journal = written(manifest_at=manifest_at)
        disk.left, steps = steps, steps + 1
        try:
            clean_twice(journal)
            is_over = True
        except Died:
            disk.kill()
        disk.left = 1 << 40
        found += damages_in(disk) + missed(disk)
    assert steps > 60
    assert found == []


def test_a_stop_in_the_middle_of_the_next_start_leaves_no_damage_either() -> None:
    """It closes the log whole, and leaves the manifest to the leader that the log did not have yet."""
    disk, journal = written(manifest_at=LOG.end)
    clean_twice(journal)
    disk.kill()
    directory = DataDirectory.open(disk, settings=journal.settings)
    directory.journal(ORDERS)
    directory.close()
    assert damages_in(disk) + missed(disk) == []


def test_a_cleaned_segment_may_have_the_size_of_the_first_one_that_it_replaced() -> None:
    at = cleaned()
    first, *_ = at.logs(DIRECTORY)
    adjust_segment(MANIFEST, 0, bytes=len(at.get(first)))(at)
    assert damages_in(at) + missed(at) == []


def problems(at: Directory) -> list[str]:
    return [each.what for each in check_logs(at).found if each.severity is Severity.PROBLEM]


def an_abort_across_segments() -> Directory:
    """The marker is in the second segment, which a cleaning leaves as it is, and the records, in the first,
    are gone.
    """
    log = Log()
    log.write([(b"a", b"x" * SEGMENT_BYTES)], producer=1, transactional=True)
    log.end_transaction(1, ABORT)
    log.write([(b"b", b"y" * 2 * SEGMENT_BYTES)])  # too much to be merged with the first one
    log.write([(b"c", b"z" * SEGMENT_BYTES)], producer=1)
    disk = Mortal(keeps(2))
    journal = opened(disk)
    write(journal, log)
    clean(journal)
    return Directory(disk)


def test_an_index_may_name_an_abort_whose_records_compaction_removed() -> None:
    at = an_abort_across_segments()
    first, second, *_ = at.logs(DIRECTORY)
    assert [read_header(batch).record_count for batch in at.batches(first)] == [0]
    index = second.removesuffix(".log") + ".txnindex"
    assert at.get(index)
    assert damages_in(at) == []
    damaged = bytearray(at.get(index))
    damaged[-9] ^= 1  # the last byte of the marker's offset
    at.put(index, bytes(damaged))
    assert damages_in(at) != []


def an_abort_of_deleted_records() -> Directory:
    """Its records went with the cleaning of their segment, and then that segment with retention; the segment
    of its marker was rewritten by the same cleaning.
    """
    disk = Mortal(keeps(2))
    writer = Writer(opened(disk))
    journal = writer.journal
    writer.data(1, size=2 * SEGMENT_BYTES)
    writer.append(build_data_batch([b"x" * 2 * SEGMENT_BYTES], keys=[b"a"], base_timestamp=1_000))
    writer.roll()
    for value in (b"replaced", b"y" * 2 * SEGMENT_BYTES):
        writer.append(build_data_batch([value], keys=[b"b"], base_timestamp=1_000))
    writer.abort(1)
    start = journal.segments.full[-1].end_offset
    writer.roll()
    clean(journal, producers=frozenset(), is_deleted=True)
    journal.move_log_start(start)
    assert journal.remove_deleted()
    assert journal.segments.oldest_offset == start
    return Directory(disk)


def test_an_abort_is_in_the_index_although_its_records_were_cleaned_and_deleted() -> None:
    """The snapshot where the log begins has the transaction open, so whoever reads from there sees it end."""
    at = an_abort_of_deleted_records()
    first, *_ = at.logs(DIRECTORY)
    index = first.removesuffix(".log") + ".txnindex"
    assert [each.what for each in check_logs(at).found if each.file == index] == []
    at.put(index, b"")
    missing = [each.what for each in check_logs(at).found if each.file == index]
    assert missing == ["1 of 1 entries are missing"]


def a_log_start_inside_a_removed_batch(*, is_closed: bool) -> Directory:
    """The beginning of a transaction was deleted, so its last stable offset was where the batch with the log
    start begins; that batch was at offset 2, and is now a part of an empty one from offset 1 on.
    """
    disk = Mortal(keeps(2))
    directory = DataDirectory.open(disk, settings=JournalSettings(segment_bytes=SEGMENT_BYTES))
    writer = Writer(directory.journal(ORDERS))
    journal = writer.journal
    writer.data(1)
    writer.roll()
    writer.plain()
    writer.plain(3)
    assert journal.move_log_start(3) == 2
    assert journal.remove_deleted()
    opened_at = (OpenTransaction(0, 1, 0),)
    journal.write_manifest(ManifestState(last_stable_offset=2, high_watermark=5, open_transactions=opened_at))
    writer.commit(1)
    writer.roll()
    clean(journal)
    if is_closed:
        directory.close()
    return Directory(disk)


@pytest.mark.parametrize("is_closed", [False, True])
def test_the_batch_with_the_log_start_may_have_become_part_of_an_empty_one(is_closed: bool) -> None:
    at = a_log_start_inside_a_removed_batch(is_closed=is_closed)
    first, *_ = at.logs(DIRECTORY)
    assert [read_header(batch).base_offset for batch in at.batches(first)] == [1, 5]
    assert not [what for what in problems(at) if "last stable offset" in what]
    for lie in (0, 4):
        adjust(MANIFEST, last_stable_offset=lie)(at)
        says = f"its last stable offset is {lie}, but a full scan up to 5 gives 1"
        assert says in problems(at)


@pytest.mark.parametrize("start", [0, 1])
def test_a_transaction_may_have_begun_in_a_removed_batch(start: int) -> None:
    """It begins the log, or was deleted: then the last stable offset was the log start."""
    disk = Mortal(keeps(2))
    writer = Writer(opened(disk))
    writer.data(1)
    writer.commit(2)
    writer.journal.move_log_start(start)
    state = ManifestState(
        last_stable_offset=start, high_watermark=2, open_transactions=(OpenTransaction(0, 1, 0),)
    )
    writer.journal.write_manifest(state)
    writer.abort(1)
    writer.roll()
    clean(writer.journal, producers=frozenset({2}))
    at = Directory(disk)
    first, *_ = at.logs(DIRECTORY)
    assert read_header(at.batches(first)[0]).is_covering
    assert not [what for what in problems(at) if "last stable offset" in what]
    adjust(MANIFEST, last_stable_offset=1 - start)(at)
    assert [what for what in problems(at) if "last stable offset" in what]


# --- what is damage all the same ----------------------------------------------------------------------------


def test_a_segment_that_was_lost_after_a_cleaning_is_missed() -> None:
    """The segment before it took the place of three, but not of this one."""
    at = cleaned()
    _, second, _ = at.logs(DIRECTORY)
    at.remove(second)
    assert f"{at.location}/{second} is gone, but the manifest there lists it" in losses(at)
    assert "a segment begins at offset 26 where 24 was expected" in problems(at)


@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_first_segment_that_no_deletion_explains_is_missed(with_manifest: bool) -> None:
    at = cleaned()
    first, second, _ = at.logs(DIRECTORY)
    at.remove(first)
    if not with_manifest:
        at.remove(MANIFEST)
    lost = f"no file in {at.location}/{DIRECTORY} holds the offsets from 0 to 23, and they were not deleted"
    assert losses(at) == [lost]
    assert second.endswith("24.log")
    assert "no file holds the offsets from 0 to 23" in problems(at)


def test_the_end_of_a_cleaned_segment_is_missed() -> None:
    """It must reach to the end of each segment whose place it took."""
    at = cleaned()
    first, *_ = at.logs(DIRECTORY)
    last = at.batches(first)[-1]
    at.cut(first, len(last))
    assert [row["startOffset"] for row in rows_of("losses", at) if "lists it" in row["reason"]] == [16]
    assert f"a segment begins at offset 24 where {read_header(last).base_offset} was expected" in problems(at)


def test_the_last_segments_of_a_cleaned_log_are_missed() -> None:
    at = cleaned()
    adjust(MANIFEST, high_watermark=24, last_stable_offset=24, open_transactions=[])(at)
    for path in at.logs(DIRECTORY)[1:]:
        at.remove(path)
    assert {"it lists a segment at 24", "it lists a segment at 26"} <= {*problems(at)}
    assert [row["startOffset"] for row in rows_of("losses", at)] == [24, 26]


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (adjust_segment(MANIFEST, 0, end_offset=25), "segment 0: end_offset is 25, but the log has 24"),
        (adjust_segment(MANIFEST, 3, bytes=4), "segment 24: bytes is 4, but the log has 452"),
        (adjust_segment(MANIFEST, 3, end_offset=25), "segment 24: end_offset is 25, but the log has 26"),
        (adjust_segment(MANIFEST, 4, bytes=999), "segment 26: bytes is 999, but the log has 152"),
        (adjust(MANIFEST, last_stable_offset=30), "its last stable offset is 30, but a full scan"),
        (adjust(MANIFEST, last_stable_offset=26), "its last stable offset is 26, but a full scan"),
        (adjust(MANIFEST, log_start_offset=29), "its log start offset is 29, but the log begins at 0"),
    ],
)
def test_a_wrong_manifest_of_a_cleaned_log_is_noticed(plant: Callable[[Directory], None], says: str) -> None:
    at = cleaned()
    assert damages_in(at) == []
    plant(at)
    assert [what for what in problems(at) if what.startswith(says)]
