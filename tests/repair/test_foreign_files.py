"""Log files that an operator put in by mistake: the broker refuses the log and removes nothing, `check` has a
problem, and a repair sets them aside.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencepost.check.directory import check_directory
from fencepost.check.findings import FindingKind, Severity
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.indexes import decode_snapshot, encode_snapshot
from fencepost.journal.manifest import CHECKPOINT_FILE, CLEAN_FILE, MANIFEST_FILE, decode_clean_mark
from fencepost.journal.storage import DamagedLog, ReplacedFile
from fencepost.log_model.partitions import ModelProducer
from fencepost.protocol.batches import read_header
from fencepost.protocol.records import build_data_batch
from fencepost.repair.expected_logs import expected_log
from fencepost.repair.perform import perform
from fencepost.repair.planner import make_plan
from fencepost.repair.salvage import salvage
from tests.broker.requests import ORDERS
from tests.check.directories import (
    OFFSETS_LOG,
    ORDERS_LOG,
    PAY_LOG,
    SMALL,
    Directory,
    altered,
    closed,
    killed,
)
from tests.journal.logs import content

FIRST_KEPT = 14  # where the last segment of orders-0 begins


def batches(disk: Directory) -> list[bytes]:
    return [batch for path in disk.logs(str(ORDERS)) for batch in disk.batches(path)]


def longer_first_segment(disk: Directory) -> None:
    """It holds the offsets of all others, and goes beyond them."""
    found = batches(disk)
    disk.put_batches(ORDERS_LOG, [*found, *found[:3]])


def segment_after_the_end(disk: Directory) -> None:
    """It begins where the log ends."""
    found = batches(disk)
    disk.put_batches(f"{ORDERS}/{read_header(found[-1]).next_offset:020d}.log", found[:3])


def segment_after_a_gap(disk: Directory) -> None:
    """It begins long after the end of the log."""
    disk.put_batches(f"{ORDERS}/{500:020d}.log", batches(disk)[:3])


@pytest.mark.parametrize(
    ("made", "misplace"),
    [
        (closed, longer_first_segment),
        (killed, longer_first_segment),
        (closed, segment_after_the_end),
        (closed, segment_after_a_gap),
    ],
)
def test_a_log_with_a_foreign_file_is_refused_and_repaired(
    made: Callable[[], Directory], misplace: Callable[[Directory], None]
) -> None:
    disk = made()
    whole = b"".join(batches(disk))
    misplace(disk)
    assert any(
        finding.severity is Severity.PROBLEM and finding.file.startswith(f"{ORDERS}/")
        for finding in check_directory(disk).found
    )
    data, before = DataDirectory.open(copied := Directory(disk)), disk.logs(str(ORDERS))
    with pytest.raises(DamagedLog):
        data.journal(ORDERS)
    assert [copied.get(path) for path in copied.logs(str(ORDERS))] == [disk.get(path) for path in before]
    perform(disk, make_plan(disk))
    assert [finding for finding in check_directory(disk).found if finding.severity is Severity.PROBLEM] == []
    assert content(DataDirectory.open(disk).journal(ORDERS)) == whole


def test_a_log_that_goes_beyond_its_mark_is_kept() -> None:
    """A newer copy of a log, under an older mark of a clean stop."""
    disk = closed()
    path = disk.logs(str(SMALL))[-1]
    *kept, last = disk.batches(path)
    end = read_header(last).base_offset

    def made_older(mark: dict[str, dict[str, int]]) -> None:
        older = {"end_offset": end, "bytes": len(b"".join(kept)), "last_crc": read_header(kept[-1]).crc}
        mark[str(SMALL)].update(older)

    disk.change_json(CLEAN_FILE, made_older)
    with pytest.raises(DamagedLog, match=f"but it was closed at offset {end}"):
        DataDirectory.open(Directory(disk)).journal(SMALL)
    plan = make_plan(disk)
    assert [(damage.file, damage.kind) for damage in plan.damages] == [(CLEAN_FILE, "damaged derived file")]
    perform(disk, plan)
    assert make_plan(disk).damages == []
    assert content(DataDirectory.open(disk).journal(SMALL)) == b"".join([*kept, last])


def test_offsets_of_a_transaction_are_no_records_of_the_transaction_log() -> None:
    """Their keys are of another kind, which a reader of the transaction log skips. A marker for them would be
    a record that no coordinator can read.
    """
    at = closed()
    batches = at.batches(OFFSETS_LOG)
    assert read_header(batches[0]).is_transactional
    at.put_batches(PAY_LOG, [*batches[:1], *at.batches(PAY_LOG)[1:]])
    at.remove(CLEAN_FILE)
    at.change_json(f"{PAY_LOG.partition('/')[0]}/manifest.json", lambda content: content.update(segments=[]))
    plan = make_plan(at)
    assert [(each.kind, each.offsets) for each in plan.damages] == [("misplaced batch", (0, 0))]
    perform(at, plan)
    assert not any(read_header(batch).is_control for batch in at.batches(PAY_LOG))


def trimmed() -> Directory:
    """A log whose first segments were deleted: the producers in them live on in a snapshot."""
    disk = closed()
    data = DataDirectory.open(disk)
    journal = data.journal(ORDERS)
    journal.move_log_start(FIRST_KEPT)
    assert journal.remove_deleted()
    data.close()
    return disk


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_foreign_snapshot_where_a_log_begins_is_not_believed(*, is_killed: bool) -> None:
    disk, place = trimmed(), f"{ORDERS}/{FIRST_KEPT:020d}.snapshot"
    if is_killed:
        disk.remove(CLEAN_FILE)
    assert check_directory(disk).found == []
    assert salvaged_producers(disk)
    stranger, *_ = decode_snapshot(disk.get(place))
    stranger = stranger._replace(producer_id=999, first_offset=1)
    disk.put(place, encode_snapshot([stranger]))
    problems = [(each.file, each.kind) for each in check_directory(disk).found]
    assert problems[0] == (place, FindingKind.PRODUCERS_FORGOTTEN)
    assert {file for file, _ in problems} == {place}
    assert not salvaged_producers(disk)
    data = DataDirectory.open(copied := Directory(disk))
    journal = data.journal(ORDERS)
    found = journal.newest_snapshot(journal.log_end_offset)
    assert found is None or 999 not in [each.producer_id for each in found[1]]
    assert place.rpartition("/")[2] not in copied.files(str(ORDERS))
    plan = make_plan(disk)
    (damage,) = plan.damages
    assert (damage.file, damage.saved) == (
        place,
        "all records; a producer that wrote none of them is forgotten",
    )
    perform(disk, plan)
    assert check_directory(disk).count(Severity.PROBLEM) == 0
    assert make_plan(disk).damages == []


SECOND = f"{ORDERS}/{6:020d}.log"  # a full segment, in which each batch has one record


def records_of_another_log(disk: Directory, sizes: list[int]) -> None:
    """A file with fewer offsets, in the place of a full segment."""
    batches = [bytes(build_data_batch([b"A" * size], base_timestamp=1)) for size in sizes]
    epoch = read_header(disk.batches(SECOND)[0]).leader_epoch
    disk.put_batches(SECOND, [altered(each, sealed=False, leader_epoch=epoch) for each in batches])


@pytest.mark.parametrize("made", [closed, killed])
@pytest.mark.parametrize(
    ("sizes", "witness"),
    [
        ([8_000] * 4, MANIFEST_FILE),  # more bytes than the right one has
        ([4_000] * 6, CHECKPOINT_FILE),  # its batches begin elsewhere than the index says
        ([4_000, 100, 4_000], CHECKPOINT_FILE),
    ],
)
def test_a_file_with_fewer_offsets_in_the_place_of_a_full_segment_is_refused(
    made: Callable[[], Directory], sizes: list[int], witness: str
) -> None:
    disk = synced(made)
    records_of_another_log(disk, sizes)
    with pytest.raises(DamagedLog):
        DataDirectory.open(Directory(disk)).journal(ORDERS)
    with pytest.raises(ReplacedFile, match=f"{SECOND} is not the file that {ORDERS}/{witness} describes"):
        make_plan(disk)


@pytest.mark.parametrize("made", [closed, killed])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_a_file_from_another_offset_on_in_the_place_of_a_segment_is_refused(
    made: Callable[[], Directory], count: int
) -> None:
    """Some of its batches have offsets of the right file, and would be taken into the log."""
    disk = made()
    batches = [bytes(build_data_batch([b"A" * 100] * 2, base_timestamp=1)) for _ in range(count)]
    disk.put_batches(f"{ORDERS}/{4:020d}.log", batches)
    disk.put(SECOND, disk.get(f"{ORDERS}/{4:020d}.log"))
    disk.remove(f"{ORDERS}/{4:020d}.log")
    with pytest.raises(
        ReplacedFile, match=f"{SECOND} is not the file that {ORDERS}/{MANIFEST_FILE} describes"
    ):
        make_plan(disk)


def synced(made: Callable[[], Directory]) -> Directory:
    """With a checkpoint, which has the checksums of the indexes."""
    disk = made()
    if made is killed:
        DataDirectory.open(disk).journal(ORDERS).sync()
        disk.unlock()
    return disk


@pytest.mark.parametrize("made", [closed, killed])
@pytest.mark.parametrize("is_own", [True, False])
def test_a_file_that_ends_between_two_batches_is_doubted(
    made: Callable[[], Directory], *, is_own: bool
) -> None:
    """It is too short for the index to tell whether it is a part of the right one."""
    disk = synced(made)
    if is_own:
        disk.put(SECOND, b"".join(disk.batches(SECOND)[:5]))
    else:
        records_of_another_log(disk, [100] * 5)
    (damage,) = make_plan(disk).damages
    assert (damage.kind, damage.offsets) == ("missing segment", (11, 13))
    assert (
        f"{SECOND} ends at offset 11, but 14 was written: it was cut off between two batches"
        in damage.because
    )
    assert "or it is not the file that was written here" in damage.because
    perform(disk, make_plan(disk))
    assert make_plan(disk).damages == []


def test_the_end_of_a_log_is_doubted_as_well() -> None:
    disk = killed()
    last = f"{ORDERS}/{14:020d}.log"
    disk.put(last, b"".join(disk.batches(last)[:1]))
    (damage,) = make_plan(disk).damages
    assert f"{last} ends at offset 15, but 16 was written: it was cut off" in damage.because
    disk.put(last, b"")
    (damage,) = make_plan(disk).damages
    assert "cut off" not in damage.because  # there is nothing to doubt


def test_a_manifest_of_another_log_under_the_mark_of_a_clean_stop_is_set_aside() -> None:
    """The mark knows the log, so a start serves it. The manifest is the foreign file, and not the log."""
    disk, path = closed(), f"{ORDERS}/{MANIFEST_FILE}"
    disk.change_json(path, lambda content: content["segments"][-1].update(last_crc=7))
    found = [each.file for each in check_directory(disk).found if each.severity is Severity.PROBLEM]
    assert found == [path]
    assert content(DataDirectory.open(Directory(disk)).journal(ORDERS)) == b"".join(batches(disk))
    assert [each.file for each in make_plan(disk).damages] == [path]
    perform(disk, make_plan(disk))
    assert check_directory(disk).count(Severity.PROBLEM) == 0


@pytest.mark.parametrize("made", [closed, killed])
@pytest.mark.parametrize("has_witness", [True, False])
@pytest.mark.parametrize("is_trimmed", [True, False])
def test_two_swapped_snapshots_of_one_log_are_set_aside(
    made: Callable[[], Directory], *, has_witness: bool, is_trimmed: bool
) -> None:
    disk = made()
    if is_trimmed:
        data = DataDirectory.open(disk)
        data.journal(ORDERS).move_log_start(6)
        assert data.journal(ORDERS).remove_deleted()
        data.close() if made is closed else data.abandon()
    if not has_witness:
        disk.remove(f"{ORDERS}/{MANIFEST_FILE}")
        disk.remove(CLEAN_FILE)
    older, newer = (f"{ORDERS}/{offset:020d}.snapshot" for offset in (6, 14))
    content_of_older = disk.get(older)
    disk.put(older, disk.get(newer))
    disk.put(newer, content_of_older)
    found = {each.file for each in check_directory(disk).found if each.severity is Severity.PROBLEM}
    # Without a witness, the deleted records are needed to judge the newer one.
    assert found == {older, newer} if has_witness or not is_trimmed else {older}
    perform(disk, make_plan(disk))
    assert check_directory(disk).count(Severity.PROBLEM) == 0
    assert make_plan(disk).damages == []


def salvaged_producers(disk: Directory) -> dict[int, ModelProducer]:
    mark = decode_clean_mark(disk.get(CLEAN_FILE)) if disk.read_file(CLEAN_FILE) else {}
    witness = expected_log(disk, ORDERS, mark.get(str(ORDERS)))
    return salvage(disk, ORDERS, witness.bounds, lambda _header, _batch: True).producers
