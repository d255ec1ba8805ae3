"""Directories in which the start of a log was deleted, also the beginning of an open transaction."""

from __future__ import annotations

import pytest

from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.journal.journal import JournalSettings
from fencepost.protocol.terms import HIGH_WATERMARK
from fencepost.repair.perform import perform
from fencepost.repair.planner import make_plan
from tests.audit.in_process import audited
from tests.broker.requests import ABORT, NOBODY, Identity
from tests.broker.story import Memory, Story
from tests.broker.test_deleting_records import low_watermark
from tests.broker.test_every_byte import contents, disk_with
from tests.check.directories import Directory
from tests.check.planting import adjust
from tests.spark.tables import rows_of

ONE_BATCH = JournalSettings(segment_bytes=1)


def directory_of(story: Story) -> Directory:
    """A copy of the broker's files, as they are now."""
    assert isinstance(story.storage, Memory)
    return Directory(story.storage)


def told(story: Story) -> list[str]:
    """The problems that tools find which read the files alone."""
    found = check_directory(story.storage).found
    problems = [f"{each.file}: {each.what}" for each in found if each.severity is Severity.PROBLEM]
    audit = [each.what for each in audited(story.storage) if each.severity is Severity.PROBLEM]
    return [*problems, *audit, *(row["reason"] for row in rows_of("losses", story.storage))]


def transactions(journal: JournalSettings | None) -> tuple[Story, Identity]:
    """An aborted transaction, plain records, and two open transactions from offsets 4 and 7 on."""
    story = Story(journal=journal)
    mine, other, third = (story.identity(name) for name in "abc")
    story.produce(mine, "a b c", name="a")
    story.ended(mine, ABORT, "a")
    story.produce(other, "d e f", name="b")
    story.produce(third, "g h", name="c")
    story.produce(NOBODY, "i j", name=None)
    return story, other


@pytest.mark.parametrize("journal", [None, ONE_BATCH], ids=["one segment", "a segment for each batch"])
@pytest.mark.parametrize("offset", [2, 3, 4, 5, 7, 8, 9, HIGH_WATERMARK])
def test_a_deleted_beginning_is_no_problem(offset: int, journal: JournalSettings | None) -> None:
    """Whenever the broker dies or stops: also before it writes a manifest that knows of the deletion."""
    story, other = transactions(journal)
    story.host.write_manifests()
    low_watermark(story, offset)
    assert told(story) == []
    story.host.write_manifests()
    assert told(story) == []
    story.restart()
    assert told(story) == []
    low_watermark(story, HIGH_WATERMARK)
    story.host.write_manifests()
    story.restart()
    assert told(story) == []
    story.host.write_manifests()
    assert told(story) == []
    story.ended(other, ABORT, "b")
    assert told(story) == []
    story.host.stop()
    assert told(story) == []


def test_a_deletion_that_a_kill_interrupts_is_no_problem() -> None:
    """The segments go first, then the snapshots before the new beginning."""
    story, _ = transactions(ONE_BATCH)
    story.host.write_manifests()
    before = directory_of(story)
    low_watermark(story, 7)
    at = directory_of(story)
    gone = [name for name in before.files("orders-0") if name not in at.files("orders-0")]
    left = [f"orders-0/{name}" for name in gone if name.endswith(".snapshot")]
    assert left
    for path in left:
        at.put(path, before.get(path))
    found = check_directory(at).found
    assert [each.file for each in found] == left
    assert {each.severity for each in found} == {Severity.NOTE}


def test_a_kill_between_the_deletions_of_two_segments_is_no_problem() -> None:
    """The snapshot of the first segment that is left was lost before, with the power."""
    story, _ = transactions(ONE_BATCH)
    story.host.write_manifests()
    before = directory_of(story)
    low_watermark(story, 9)
    after = directory_of(story)
    first = min(int(name.rpartition("/")[2][:20]) for name in after.logs("orders-0"))
    assert first > 4
    for path in before.logs("orders-0"):
        if 4 <= int(path.rpartition("/")[2][:20]) < first:
            for suffix in ("log", "index", "timeindex", "txnindex"):
                after.put(path.replace("log", suffix), before.get(path.replace("log", suffix)))
    assert check_directory(after).found == []


@pytest.mark.parametrize("is_flipped", [False, True])
@pytest.mark.parametrize("is_closed", [False, True])
def test_the_loss_of_what_is_known_of_deleted_records_is_found_and_repaired(
    is_flipped: bool, is_closed: bool
) -> None:
    """Producers of deleted records are in the snapshot where the log begins, and perhaps in newer ones."""
    story, _ = transactions(ONE_BATCH)
    low_watermark(story, 7)
    story.restart()
    story.host.write_manifests()
    if is_closed:
        story.host.stop()
    at = directory_of(story)
    snapshots = [f"orders-0/{name}" for name in at.files("orders-0") if name.endswith(".snapshot")]
    assert f"orders-0/{7:020d}.snapshot" in snapshots
    for path in snapshots:
        if is_flipped:
            at.flip(path, 9)
        else:
            at.remove(path)
    (problem,) = [each for each in check_directory(at).found if "log before it was deleted" in each.what]
    assert (problem.severity, problem.file) == (Severity.PROBLEM, f"orders-0/{7:020d}.snapshot")
    plan = make_plan(at)
    (saved,) = [each.saved for each in plan.damages if each.file == problem.file]
    assert saved == "all records; a producer that wrote none of them is forgotten"
    perform(at, plan)
    assert [each for each in check_directory(at).found if each.severity is Severity.PROBLEM] == []
    assert make_plan(at).damages == []


def test_a_repair_knows_the_transactions_that_began_in_deleted_segments() -> None:
    """Their coordinator's log is lost, so they are aborted, in the order in which they began."""
    story, _ = transactions(ONE_BATCH)
    low_watermark(story, 7)
    story.restart()
    story.produce(NOBODY, "k", name=None)
    story.host.stop()
    at = directory_of(story)
    for name in at.directories():
        for path in at.logs(name) if name.startswith("__transaction_state") else ():
            at.put(path, b"")
    plan = make_plan(at)
    assert len([note for note in plan.notes if "the transaction is aborted" in note]) == 2, plan.notes
    perform(at, plan)
    assert [each.what for each in check_directory(at).found if each.severity is Severity.PROBLEM] == []
    opened = Story.over(disk_with(contents(at)))
    assert opened.partition().open_transactions == {}
    assert opened.partition().last_stable_offset == opened.partition().log_end_offset == 14


def test_a_repaired_manifest_is_stable_up_to_the_batch_with_the_log_start() -> None:
    story, _ = transactions(None)
    low_watermark(story, 5)
    story.host.stop()
    at = directory_of(story)
    at.remove(f"orders-0/{0:020d}.index")
    perform(at, make_plan(at))
    assert [each.what for each in check_directory(at).found if each.severity is Severity.PROBLEM] == []


def test_a_hanging_transaction_whose_beginning_was_deleted_is_found() -> None:
    story, _ = transactions(ONE_BATCH)
    low_watermark(story, 7)
    at = directory_of(story)
    for name in at.directories():
        if name.startswith("__transaction_state"):
            at.remove_directory(name)
    found = [each for each in check_directory(at).found if "no coordinator knows it" in each.what]
    opened = [(each.file, each.offset) for each in found]
    assert opened == [("orders-0/00000000000000000007.log", offset) for offset in (4, 7)]


def test_a_wrong_last_stable_offset_is_found_after_a_deletion_too() -> None:
    story, _ = transactions(None)
    low_watermark(story, 5)
    story.host.write_manifests()
    for lie in (3, 5, 7, 11):
        at = directory_of(story)
        adjust("orders-0/manifest.json", last_stable_offset=lie)(at)
        says = f"its last stable offset is {lie}, but a full scan up to 11 gives 4"
        assert [each.what for each in check_directory(at).found if says == each.what]


def test_segments_that_no_deletion_explains_are_missed() -> None:
    """Without the file that says where the log starts, nobody knows that their records were deleted."""
    story, _ = transactions(ONE_BATCH)
    story.host.write_manifests()
    low_watermark(story, 7)
    at = directory_of(story)
    at.remove("orders-0/log-start-offset.json")
    what = "its log start offset is 0, but the log begins at 7"
    assert what in [each.what for each in check_directory(at).found]


def test_an_unreadable_log_start_says_nothing_of_segments() -> None:
    story, _ = transactions(ONE_BATCH)
    low_watermark(story, 7)
    at = directory_of(story)
    missed = "no file holds the offsets from 0 to 6"
    at.put("orders-0/log-start-offset.json", b"{")
    assert missed not in [each.what for each in check_directory(at).found]
    at.remove("orders-0/log-start-offset.json")
    assert missed in [each.what for each in check_directory(at).found]
