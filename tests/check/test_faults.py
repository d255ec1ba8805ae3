"""Every fault that the check is for, planted in a copy of a good directory, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import pytest

from fencepost.check.directory import CATALOGUE, check_directory
from fencepost.check.findings import Finding, Severity
from fencepost.check.meanings import LOST, MOVED, POWER
from fencepost.check.scan import CUT, TORN
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.indexes import ABORTED_ENTRY, OFFSET_ENTRY, TIME_ENTRY
from fencepost.journal.journal import Journal
from fencepost.journal.manifest import encode_json
from fencepost.journal.storage import DamagedLog
from fencepost.protocol.batches import HEADER_SIZE, TRANSACTIONAL_BIT, read_header
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import INT32_MAX, TransactionState
from fencepost.repair.perform import perform
from fencepost.repair.planner import make_plan
from tests.broker.requests import ORDERS
from tests.check.directories import (
    LEFT_LOG,
    METADATA_LOG,
    OFFSETS_LOG,
    ORDERS_LOG,
    PAY_LOG,
    SMALL,
    SMALL_LOG,
    Directory,
    closed,
    killed,
)
from tests.check.planting import (
    ABORT,
    COMPLETED,
    OPEN,
    OTHER_PREPARED,
    PLAIN,
    PREPARED,
    SECOND,
    THIRD,
    Fault,
    adjust,
    adjust_segment,
    all_under,
    commit_anew,
    drop,
    forget,
    mark,
    patch,
    remember,
    rename_topic,
    restate,
    rewrite,
    unknown_state,
)

SMALL_START: Final = "orders-1/log-start-offset.json"

# --- the table -------------------------------------------------------------------------------------------

BATCHES = [
    Fault("a byte of a record is flipped", lambda at: at.flip(ORDERS_LOG, 200), ORDERS_LOG, "checksum"),
    Fault("the magic byte is none", lambda at: at.flip(ORDERS_LOG, 16), ORDERS_LOG, "no batch at byte 0"),
    Fault("a closed log is cut off", lambda at: at.cut(SMALL_LOG, 7), SMALL_LOG, "not a complete batch"),
    Fault("an old segment is cut off", lambda at: at.cut(ORDERS_LOG, 7), ORDERS_LOG, "not a complete batch"),
    Fault(
        "a batch is missing",
        lambda at: at.put(SMALL_LOG, b"".join(at.batches(SMALL_LOG)[1:])),
        SMALL_LOG,
        "a batch begins at offset 1 where 0 was expected",
    ),
    Fault(
        "an offset comes twice",
        lambda at: at.change(SMALL_LOG, 1, sealed=False, base_offset=0),
        SMALL_LOG,
        "a batch begins at offset 0 where 1 was expected",
    ),
    Fault(
        "a segment is missing",
        lambda at: at.remove(f"{SECOND}.log"),
        THIRD,
        "a segment begins at offset 14 where 6 was expected",
    ),
    Fault(
        "a leader epoch falls",
        lambda at: at.change(SMALL_LOG, 2, sealed=False, leader_epoch=5),
        SMALL_LOG,
        "a batch of leader epoch 0 after one of 5",
    ),
    Fault(
        "records make no sense",
        lambda at: at.change_payload(SMALL_LOG, 0, lambda data: b"\xc1" * len(data)),
        SMALL_LOG,
        "unreadable records",
    ),
    Fault(
        "a count is wrong",
        lambda at: at.change(SMALL_LOG, 0, record_count=2),
        SMALL_LOG,
        "unreadable records",
    ),
    Fault(
        "a marker makes no sense",
        lambda at: at.change_payload(SMALL_LOG, 1, lambda data: b"\xff" * len(data)),
        SMALL_LOG,
        "unreadable marker",
    ),
]

PRODUCERS = [
    Fault(
        "a sequence is left out",
        lambda at: at.change(SMALL_LOG, PLAIN + 1, base_sequence=2),
        SMALL_LOG,
        "sequence 2 where 1 was expected",
    ),
    Fault(
        "a sequence comes twice",
        lambda at: at.change(SMALL_LOG, PLAIN + 1, base_sequence=0),
        SMALL_LOG,
        "sequence 0 where 1 was expected",
    ),
    Fault(
        "a new epoch does not begin at 0",
        lambda at: at.change(SMALL_LOG, 2, base_sequence=1),
        SMALL_LOG,
        "sequence 1 where 0 was expected",
    ),
    Fault(
        "the end is followed by no 0",
        lambda at: at.change(SMALL_LOG, PLAIN, base_sequence=INT32_MAX),
        SMALL_LOG,
        "sequence 1 where 0 was expected",
    ),
    Fault(
        "a zombie writes",
        lambda at: at.change(SMALL_LOG, 2, producer_epoch=0),
        SMALL_LOG,
        "a batch of this epoch after epoch 1",
    ),
    Fault(
        "a zombie's marker",
        lambda at: mark(at, SMALL_LOG, 3, producer_epoch=0, result=ABORT),
        SMALL_LOG,
        "a marker of this epoch after epoch 1",
    ),
    Fault(
        "a replaced coordinator's marker",
        lambda at: mark(at, SMALL_LOG, 1, coordinator_epoch=9),
        SMALL_LOG,
        "a marker of coordinator epoch 0 after one of 9",
    ),
    Fault(
        "a plain batch in a transaction",
        lambda at: at.change(
            SMALL_LOG,
            OPEN + 1,
            attributes=read_header(at.batches(SMALL_LOG)[OPEN + 1]).attributes & ~TRANSACTIONAL_BIT,
        ),
        SMALL_LOG,
        "a non-transactional batch inside its transaction, open since offset 7",
    ),
]

INDEXES = [
    Fault(
        "an offset index points elsewhere",
        rewrite(f"{SECOND}.index", patch(OFFSET_ENTRY, 1, 1, 99)),
        f"{SECOND}.index",
        "entry 1 is OffsetEntry(offset=8, position=99)",
    ),
    Fault(
        "an offset index ends early",
        lambda at: at.cut(f"{SECOND}.index", 8),
        f"{SECOND}.index",
        "1 of 5 entries are missing",
    ),
    Fault(
        "an offset index says more",
        lambda at: at.grow(f"{SECOND}.index", OFFSET_ENTRY.pack(7, 30_500)),
        f"{SECOND}.index",
        "the log gives none",
    ),
    Fault(
        "an offset index is torn",
        lambda at: at.cut(f"{SECOND}.index", 3),
        f"{SECOND}.index",
        "not a complete entry",
    ),
    Fault("an index is missing", lambda at: at.remove(f"{SECOND}.index"), f"{SECOND}.index", "missing"),
    Fault(
        "a time index lies",
        rewrite(f"{SECOND}.timeindex", patch(TIME_ENTRY, 0, 1, 3)),
        f"{SECOND}.timeindex",
        "entry 0 is TimeEntry(",
    ),
    Fault(
        "a time index ends early",
        lambda at: at.put(f"{SECOND}.timeindex", b""),
        f"{SECOND}.timeindex",
        "the newest timestamp is",
    ),
    Fault(
        "an aborted transaction is not indexed",
        lambda at: at.put(f"{THIRD}.txnindex", b""),
        f"{THIRD}.txnindex",
        "1 of 1 entries are missing",
    ),
    Fault(
        "it begins too late",
        rewrite(f"{THIRD}.txnindex", patch(ABORTED_ENTRY, 0, 2, 11)),
        f"{THIRD}.txnindex",
        "entry 0 is LoggedAbort(producer_id=0, first_offset=11",
    ),
    Fault(
        "a lookup ends too early",
        rewrite(f"{THIRD}.txnindex", patch(ABORTED_ENTRY, 0, 4, 15)),
        f"{THIRD}.txnindex",
        "last_stable_offset=15",
    ),
    Fault(
        "a commit is indexed as an abort",
        lambda at: at.put(f"{SECOND}.txnindex", ABORTED_ENTRY.pack(0, 0, 0, 8, 9)),
        f"{SECOND}.txnindex",
        "the log gives none",
    ),
    Fault(
        "an entry of another version",
        rewrite(f"{THIRD}.txnindex", patch(ABORTED_ENTRY, 0, 0, 7)),
        f"{THIRD}.txnindex",
        "version 7",
    ),
]

SNAPSHOTS = [
    Fault(
        "a snapshot is altered", lambda at: at.flip(at.last_snapshot("orders-1"), 20), ".snapshot", "checksum"
    ),
    Fault(
        "a snapshot is cut off",
        lambda at: at.put(at.last_snapshot("orders-1"), b"abc"),
        ".snapshot",
        "3 bytes are not a snapshot",
    ),
    Fault(
        "a snapshot of another version",
        lambda at: at.flip(at.last_snapshot("orders-1"), 0),
        ".snapshot",
        "only 1 is known",
    ),
    Fault("a sequence is remembered wrong", remember(0, last_sequence=77), ".snapshot", "last_sequence 77"),
    Fault(
        "an epoch is remembered wrong",
        remember(0, producer_epoch=1),
        ".snapshot",
        "producer_epoch 1 (the log says 2)",
    ),
    Fault(
        "an open transaction is forgotten",
        remember(1, first_offset=-1),
        ".snapshot",
        "first_offset -1 (the log says 7)",
    ),
    Fault(
        "a coordinator epoch is forgotten",
        remember(0, coordinator_epoch=-1),
        ".snapshot",
        "coordinator_epoch -1",
    ),
    Fault(
        "a producer is forgotten",
        lambda at: at.change_snapshot(at.last_snapshot("orders-1"), lambda producers: producers[1:]),
        ".snapshot",
        "producer 0 is missing",
        Severity.NOTE,
    ),
    Fault(
        "a producer with an open transaction is forgotten",
        lambda at: at.change_snapshot(
            at.last_snapshot("orders-1"),
            lambda producers: [each for each in producers if each.producer_id != 2],
        ),
        ".snapshot",
        "producer 2 is missing",
    ),
    Fault(
        "a producer is made up", remember(0, producer_id=9), ".snapshot", "producer 9 wrote nothing before"
    ),
    Fault(
        "a snapshot of what is not there",
        lambda at: at.put(f"orders-1/{77:020d}.snapshot", at.get(at.last_snapshot("orders-1"))),
        ".snapshot",
        "taken at offset 77, but the log ends at 9",
    ),
]

MANIFEST, CHECKPOINT = "orders-1/manifest.json", "orders-0/checkpoint.json"
CLEAN = "clean-shutdown.json"
LOG_START = "orders-1/log-start-offset.json"
SMALL_FILES = [
    Fault(
        "the last stable offset is too high",
        adjust(MANIFEST, last_stable_offset=9),
        MANIFEST,
        "its last stable offset is 9, but a full scan up to 9 gives 7",
    ),
    Fault(
        "the last stable offset is too low",
        adjust(MANIFEST, last_stable_offset=3),
        MANIFEST,
        "its last stable offset is 3, but a full scan up to 9 gives 7",
    ),
    Fault(
        "more is promised than there is", adjust(MANIFEST, high_watermark=50), MANIFEST, "the log ends at 9"
    ),
    Fault(
        "the log starts elsewhere", adjust(MANIFEST, log_start_offset=20), MANIFEST, "log start offset is 20"
    ),
    Fault(
        "an open transaction is not told",
        adjust(MANIFEST, open_transactions=[]),
        MANIFEST,
        "its open transactions are []",
    ),
    Fault("a segment's size is wrong", adjust_segment(MANIFEST, 0, bytes=4), MANIFEST, "bytes is 4"),
    Fault(
        "a segment is made up", adjust_segment(MANIFEST, 0, base_offset=4), MANIFEST, "lists a segment at 4"
    ),
    Fault(
        "the first segment is missing",
        lambda at: at.remove(ORDERS_LOG),
        "orders-0/manifest.json",
        "its log start offset is 0, but the log begins at 6",
    ),
    Fault(
        "only its index is left", lambda at: at.remove(ORDERS_LOG), "orders-0/", "an index without its log"
    ),
    Fault(
        "the last segment is missing",
        lambda at: at.remove(f"{THIRD}.log"),
        "orders-0/manifest.json",
        "its high watermark is 16, but the log ends at 14",
    ),
    Fault("a manifest is cut off", lambda at: at.cut(MANIFEST, 5), MANIFEST, "not JSON"),
    Fault(
        "a manifest is of another partition",
        lambda at: at.put(MANIFEST, at.get("orders-0/manifest.json")),
        "orders-1",
        "it holds the log of orders-0",
    ),
    Fault(
        "a manifest is nested beyond measure",
        lambda at: at.put(MANIFEST, b"[" * 100_000),
        MANIFEST,
        "not JSON",
    ),
    Fault("a manifest has a flipped bit", lambda at: at.flip(MANIFEST, 40), MANIFEST, ""),
    Fault(
        "a log start is beyond the log",
        lambda at: at.put(LOG_START, encode_json({"format": 2, "log_start_offset": 999}, place=LOG_START)),
        LOG_START,
        "it says 999, but the log ends at",
    ),
    Fault(
        "a log start is no number",
        lambda at: at.put(LOG_START, encode_json({"format": 2}, place=LOG_START)),
        LOG_START,
        "its log_start_offset is missing or malformed",
    ),
    Fault(
        "a log start is of another partition",
        lambda at: at.put(LOG_START, encode_json({"format": 2, "log_start_offset": 0}, place="elsewhere")),
        LOG_START,
        "it was written as elsewhere",
    ),
    Fault("a log start has no checksum", lambda at: at.put(LOG_START, b"{}"), LOG_START, "has no checksum"),
    Fault("a manifest is a list", lambda at: at.put(MANIFEST, b"[]"), MANIFEST, "not a JSON object"),
    Fault(
        "a manifest lacks its offsets",
        lambda at: at.change_json(MANIFEST, lambda content: content.pop("high_watermark")),
        MANIFEST,
        "its high_watermark is missing or malformed",
    ),
    Fault(
        "a checkpoint vouches for what is not so",
        adjust_segment(CHECKPOINT, 0, leader_epoch=4),
        CHECKPOINT,
        "leader_epoch is 4",
    ),
    Fault(
        "the mark of a stop vouches for what is not so",
        lambda at: at.change_json(CLEAN, lambda content: content["orders-1"].update(leader_epoch=4)),
        CLEAN,
        "orders-1, segment 0: leader_epoch is 4",
    ),
    Fault(
        "the mark of a stop makes no sense",
        lambda at: at.change_json(CLEAN, lambda content: content["orders-1"].pop("bytes")),
        CLEAN,
        "its entry of orders-1 is malformed",
    ),
    Fault(
        "the mark of a stop knows a longer log",
        lambda at: at.change_json(CLEAN, lambda content: content["orders-1"].update(base_offset=90)),
        CLEAN,
        "orders-1 ends with the segment 90",
    ),
    Fault(
        "a checkpoint makes no sense",
        adjust(CHECKPOINT, segments=[4]),
        CHECKPOINT,
        "its segments are missing or malformed",
    ),
]

TRANSACTIONS = [
    Fault(
        "a marker is missing",
        lambda at: drop(at, SMALL_LOG, 1),
        PAY_LOG,
        "'pay' completed COMMIT of producer 0 epoch 1, but its marker is missing in orders-1",
    ),
    Fault(
        "a partition has vanished",
        lambda at: at.remove_directory("orders-1"),
        "orders-1",
        "its files are gone, but catalogue.txt lists it",
    ),
    Fault("a log has vanished", lambda at: at.remove(SMALL_LOG), "orders-1", "its files are gone"),
    Fault(
        "the metadata has vanished",
        lambda at: at.remove_directory("__cluster_metadata-0"),
        "__cluster_metadata-0",
        "its files are gone",
    ),
    Fault(
        "a partition is lost",
        lambda at: at.remove_directory("orders-1"),
        PAY_LOG,
        "'pay' completed COMMIT of producer 0 epoch 1, but its marker is missing in orders-1",
    ),
    Fault(
        "a marker contradicts the decision",
        lambda at: mark(at, SMALL_LOG, 1, result=ABORT),
        SMALL_LOG,
        "ABORT of producer 0 epoch 1, but 'pay' decided COMMIT",
    ),
    Fault(
        "a commit that nobody decided",
        lambda at: mark(at, SMALL_LOG, OPEN + 1),
        SMALL_LOG,
        "COMMIT of producer 2 epoch 0, but no coordinator decided it",
    ),
    Fault(
        "an abort that nobody decided",
        lambda at: mark(at, SMALL_LOG, OPEN + 1, result=ABORT),
        SMALL_LOG,
        "ABORT of producer 2 epoch 0, but no coordinator decided it",
        Severity.NOTE,
    ),
    Fault(
        "a decision is lost",
        lambda at: drop(at, PAY_LOG, PREPARED),
        PAY_LOG,
        "'pay' is CompleteCommit after Ongoing",
    ),
    Fault(
        "a decision is turned round",
        lambda at: restate(at, PAY_LOG, COMPLETED, state=TransactionState.COMPLETE_ABORT),
        PAY_LOG,
        "'pay' is CompleteAbort after PrepareCommit",
    ),
    Fault(
        "an epoch falls",
        lambda at: restate(at, PAY_LOG, COMPLETED, producer_epoch=0),
        PAY_LOG,
        "'pay' has producer epoch 0 after 1",
    ),
    Fault(
        "a decision is not finished",
        lambda at: drop(at, PAY_LOG, OTHER_PREPARED + 1),
        PAY_LOG,
        "'other' is PrepareCommit",
        Severity.NOTE,
    ),
    Fault(
        "a log begins with an end",
        lambda at: drop(at, PAY_LOG, *range(COMPLETED)),
        PAY_LOG,
        "'pay' is CompleteCommit and was never prepared",
    ),
    Fault(
        "a transaction hangs",
        lambda at: drop(at, LEFT_LOG, 1),
        SMALL_LOG,
        "producer 2 has a transaction open since this offset, and no coordinator knows it",
    ),
    Fault(
        "it hangs elsewhere than its coordinator thinks",
        lambda at: restate(at, LEFT_LOG, 1, partitions=()),
        SMALL_LOG,
        "producer 2 has a transaction open since this offset",
    ),
]

CLUSTER = [
    Fault(
        "a group has read what is gone",
        lambda at: commit_anew(at, OFFSETS_LOG, 0, 99),
        "orders-0",
        "group 'group' has committed offset 99, but the log ends at ",
        Severity.NOTE,
    ),
    Fault(
        "an offset's record makes no sense",
        lambda at: at.change_payload(OFFSETS_LOG, 0, lambda data: b"\x7f" * len(data)),
        OFFSETS_LOG,
        "unreadable records",
    ),
    Fault(
        "a state is unknown",
        lambda at: at.change_payload(PAY_LOG, 0, unknown_state),
        PAY_LOG,
        "unreadable records",
    ),
    Fault(
        "columns where Kafka's records belong",
        lambda at: at.put_batches(OFFSETS_LOG, [bytes(build_data_batch([b"v"], base_timestamp=1))]),
        OFFSETS_LOG,
        "unreadable records",
    ),
    Fault(
        "the metadata makes no sense",
        lambda at: at.change_payload(METADATA_LOG, 0, lambda data: data[:-1] + b"\x7f"),
        METADATA_LOG,
        "unreadable records",
    ),
    Fault(
        "a topic's record is lost",
        lambda at: forget(at, "TopicCreated"),
        METADATA_LOG,
        "a topic that does not exist",
    ),
    Fault(
        "producer ids were handed out and forgotten",
        lambda at: forget(at, "ProducerIdsAllocated"),
        "orders-0",
        "but only ids below 0 were handed out",
    ),
    Fault(
        "a leader that the metadata does not know",
        lambda at: all_under(at, SMALL_LOG, 3),
        SMALL_LOG,
        "written under leader epoch 3, but the metadata knows only 0",
    ),
    Fault(
        "a directory of no topic",
        lambda at: rename_topic(at, "orders", "ordinal"),
        "orders-0",
        "the metadata has no such partition",
        Severity.NOTE,
    ),
    Fault(
        "an id in the wrong partition",
        lambda at: at.put_batches(LEFT_LOG, at.batches(PAY_LOG)),
        LEFT_LOG,
        "transactional id 'pay' belongs to partition 0",
    ),
    Fault(
        "a group in the wrong partition",
        lambda at: (
            at.make_directory("__consumer_offsets-0"),
            at.put(OFFSETS_LOG.replace("-1/", "-0/"), at.get(OFFSETS_LOG)),
        ),
        "__consumer_offsets-0",
        "group 'group' belongs to partition 1",
    ),
    Fault(
        "a coordinator's log is damaged",
        lambda at: at.flip(PAY_LOG, 80),
        "__transaction_state-0",
        "transactions were not compared",
        Severity.NOTE,
    ),
]

# What a broker that was killed leaves, or a machine that lost its power in the middle of a write.
LEFT_BEHIND = [
    Fault(
        "the last write is torn",
        lambda at: at.grow(SMALL_LOG, b"\0" * 30),
        SMALL_LOG,
        "not a complete batch",
        Severity.NOTE,
    ),
    Fault(
        "the last write is half there",
        lambda at: at.grow(SMALL_LOG, at.batches(SMALL_LOG)[0][:66]),
        SMALL_LOG,
        "not a complete batch",
        Severity.NOTE,
    ),
    Fault(
        "the last index lags",
        lambda at: at.put(f"{THIRD}.txnindex", b""),
        f"{THIRD}.txnindex",
        "missing",
        Severity.NOTE,
    ),
    Fault(
        "the last index is torn",
        lambda at: at.cut(f"{THIRD}.txnindex", 3),
        f"{THIRD}.txnindex",
        "not a complete entry",
        Severity.NOTE,
    ),
    Fault(
        "a snapshot is torn",
        lambda at: at.put(f"orders-0/{14:020d}.snapshot", b"\0"),
        ".snapshot",
        "1 bytes are not a snapshot",
        Severity.NOTE,
    ),
    Fault("a manifest is torn", lambda at: at.put(MANIFEST, b"\0" * 99), MANIFEST, "not JSON", Severity.NOTE),
    Fault(
        "an index outlived its log",
        lambda at: at.put(f"orders-1/{50:020d}.index", b""),
        "orders-1/",
        "an index without its log",
        Severity.NOTE,
    ),
]

# As a loss of power leaves them.
TORN_INDEXES = [
    Fault(
        "an entry of the last index is zeros",
        lambda at: at.put(f"{THIRD}.txnindex", bytes(ABORTED_ENTRY.size)),
        f"{THIRD}.txnindex",
        "the last 34 bytes are torn",
        Severity.NOTE,
    ),
    Fault(
        "an entry of the last index ends in zeros",
        lambda at: at.put(f"{THIRD}.txnindex", at.get(f"{THIRD}.txnindex")[:12] + bytes(22)),
        f"{THIRD}.txnindex",
        "the last 34 bytes are torn",
        Severity.NOTE,
    ),
    Fault(
        "the last time index ends in zeros",
        lambda at: at.grow(f"{THIRD}.timeindex", bytes(24)),
        f"{THIRD}.timeindex",
        "the last 24 bytes are torn",
        Severity.NOTE,
    ),
    Fault(
        "the index of a full segment that was not synced ends in zeros",
        lambda at: at.put(f"{SECOND}.index", at.get(f"{SECOND}.index")[:10] + bytes(30)),
        f"{SECOND}.index",
        "the last 32 bytes are torn",
        Severity.NOTE,
    ),
]

STRAY = Fault(
    "a write was cut short",
    lambda at: at.put("orders-1/manifest.json.tmp", b"{"),
    "manifest.json.tmp",
    "never finished",
    Severity.NOTE,
)


def found(at: Directory, fault: Fault) -> list[Finding]:
    """The findings that are this fault's."""
    return [
        finding
        for finding in check_directory(at).found
        if finding.severity is fault.severity and fault.file in finding.file and fault.says in finding.what
    ]


def plant(fault: Fault, at: Directory) -> Directory:
    """Damages a directory that says nothing of it before."""
    assert not found(at, fault), "it is there without the damage"
    fault.plant(at)
    return at


def name_of(fault: Fault) -> str:
    return fault.name


@pytest.mark.parametrize(
    "fault",
    [*BATCHES, *PRODUCERS, *INDEXES, *SNAPSHOTS, *SMALL_FILES, *TRANSACTIONS, *CLUSTER, STRAY],
    ids=name_of,
)
def test_a_fault_is_found(fault: Fault) -> None:
    assert found(plant(fault, closed()), fault), [f.what for f in check_directory(closed()).found]


def test_a_damaged_line_of_the_catalogue_is_a_note_and_a_torn_one_is_not() -> None:
    at = closed()
    at.put(CATALOGUE, b"orders-0 synced 1\ntorn")
    (note,) = check_directory(at).found
    assert (note.severity, note.file) == (Severity.NOTE, CATALOGUE)
    assert note.what == "the checksum of line 1 does not match its text"


@pytest.mark.parametrize("lines", [b"", b"orders-0 removed 1293539185\n"])
def test_a_catalogue_without_a_log_that_was_closed_is_a_note(lines: bytes) -> None:
    at = closed()
    at.put(CATALOGUE, lines)
    (note,) = check_directory(at).found
    assert (note.severity, note.file) == (Severity.NOTE, CATALOGUE)
    assert note.what == "it does not list __cluster_metadata-0, which was closed cleanly"


@pytest.mark.parametrize("good", [closed, killed])
def test_a_missing_catalogue_is_a_note_unless_there_is_no_log(good: Callable[[], Directory]) -> None:
    at = good()
    at.remove(CATALOGUE)
    (note,) = check_directory(at).found
    assert (note.severity, note.file, note.what) == (Severity.NOTE, CATALOGUE, "it is missing")
    for directory in at.directories():
        at.remove_directory(directory)
    at.remove(CLEAN)
    assert check_directory(at).found == []
    assert not make_plan(at).is_needed


def test_no_loss_of_power_tears_a_log_start() -> None:
    """It is synced before it takes its name, and the broker refuses a log with a damaged one."""
    fault = Fault("torn", lambda at: at.put(LOG_START, b"{"), LOG_START, "not JSON")
    (problem,) = found(plant(fault, killed()), fault)
    assert problem.means.startswith("the broker refuses this log")


def after_power_loss(durable_end: int = 0) -> Directory:
    """What is left of orders-1 if its last batch was never synced: the manifest knew more of the file than
    the disk kept.
    """
    at, manifest = killed(), "orders-1/manifest.json"
    kept = at.batches(SMALL_LOG)[:-1]
    end = read_header(kept[-1]).next_offset
    adjust(manifest, high_watermark=end, durable_end=end + durable_end)(at)
    at.put_batches(SMALL_LOG, kept)
    at.boot_id = "the next"
    return at


def test_an_unsynced_end_that_power_took_is_a_note() -> None:
    at = after_power_loss()
    (note,) = [each for each in check_directory(at).found if each.file == "orders-1/manifest.json"]
    assert (note.severity, note.means) == (Severity.NOTE, POWER)
    assert not [each for each in check_directory(at).found if each.severity is Severity.PROBLEM]
    Journal(at, SMALL)
    assert not at.files("orders-1").get("manifest.json"), "the start agrees"


def test_a_synced_end_that_is_gone_is_a_problem() -> None:
    at = after_power_loss(durable_end=1)
    problems = [each.what for each in check_directory(at).found if each.severity is Severity.PROBLEM]
    assert any("end_offset is" in what for what in problems)
    with pytest.raises(DamagedLog):
        Journal(at, SMALL)


def agreed(at: Directory, means: str) -> None:
    """The check has notes and no problem, a repair has nothing to do, and a start serves the log; afterwards
    the check has nothing to say of it.
    """
    findings = [each for each in check_directory(at).found if each.file.startswith(str(SMALL))]
    assert means in [each.means for each in findings]
    assert {each.severity for each in findings} == {Severity.NOTE}
    assert make_plan(at).damages == []
    DataDirectory.open(at).journal(SMALL)
    assert [each for each in check_directory(at).found if each.file.startswith(str(SMALL))] == []


def test_an_end_below_the_high_watermark_that_power_took_is_a_note() -> None:
    """With --sync none, readers may have it, although no sync had promised it."""
    at, manifest = after_power_loss(), "orders-1/manifest.json"
    end = read_header(at.batches(SMALL_LOG)[-1]).next_offset
    adjust(manifest, high_watermark=end + 1, durable_end=-1)(at)
    agreed(at, POWER)
    assert not at.files("orders-1").get("manifest.json")


def test_an_end_below_the_high_watermark_that_was_synced_is_a_problem() -> None:
    at, manifest = after_power_loss(durable_end=1), "orders-1/manifest.json"
    end = read_header(at.batches(SMALL_LOG)[-1]).next_offset
    adjust(manifest, high_watermark=end + 1)(at)
    (problem,) = [each for each in check_directory(at).found if each.severity is Severity.PROBLEM]
    assert (problem.file, problem.means) == (manifest, LOST)
    assert make_plan(at).damages
    with pytest.raises(DamagedLog):
        Journal(at, SMALL)


def test_a_log_start_beyond_an_end_that_power_took_is_a_note() -> None:
    at = after_power_loss()
    adjust("orders-1/manifest.json", durable_end=-1)(at)
    data = DataDirectory.open(before := killed())
    data.journal(SMALL).move_log_start(data.journal(SMALL).log_end_offset)
    at.put(SMALL_START, before.get(SMALL_START))
    agreed(at, MOVED)


def torn_batch(at: Directory) -> bytes:
    return at.batches(SMALL_LOG)[-1]


TAILS: dict[str, Callable[[Directory], bytes]] = {
    "zeros": lambda _: bytes(200),
    "a few zeros": lambda _: bytes(7),
    "a text": lambda _: b"no batch" * 20,
    "the beginning of a batch": lambda at: torn_batch(at)[:-1],
    "the beginning of a batch, then zeros": lambda at: torn_batch(at)[:-9] + bytes(9),
    "a header, then zeros": lambda at: torn_batch(at)[:HEADER_SIZE].ljust(len(torn_batch(at)), b"\0"),
    "a batch that is already there": torn_batch,
}


def with_tail(tail: bytes, *, is_synced: bool) -> Directory:
    """What orders-1 looks like if the machine lost its power while the last batch was written, and this is
    what the disk has in its place; `is_synced`: the batch was promised.
    """
    at = after_power_loss(durable_end=int(is_synced))
    at.grow(SMALL_LOG, tail)
    return at


@pytest.mark.parametrize("tail", TAILS)
def test_a_torn_tail_is_a_note(tail: str) -> None:
    agreed(with_tail(TAILS[tail](after_power_loss()), is_synced=False), TORN)


@pytest.mark.parametrize("tail", TAILS)
def test_a_tail_in_the_place_of_a_promised_batch_is_a_problem(tail: str) -> None:
    at = with_tail(TAILS[tail](after_power_loss()), is_synced=True)
    problems = [each for each in check_directory(at).found if each.severity is Severity.PROBLEM]
    assert [(each.file, each.means) for each in problems] == [(SMALL_LOG, CUT)]
    assert make_plan(at).damages
    with pytest.raises(DamagedLog):
        Journal(at, SMALL)


def test_a_batch_after_damage_is_no_torn_tail() -> None:
    first, last = after_power_loss().batches(SMALL_LOG)[-1], killed().batches(SMALL_LOG)[-1]
    at = with_tail(b"", is_synced=False)
    at.put(SMALL_LOG, at.get(SMALL_LOG)[: -len(first)] + bytes(len(first)) + last)
    adjust("orders-1/manifest.json", high_watermark=0, last_stable_offset=0, durable_end=-1)(at)
    problems = [each for each in check_directory(at).found if each.severity is Severity.PROBLEM]
    assert (SMALL_LOG, CUT) in [(each.file, each.means) for each in problems]
    assert make_plan(at).damages
    with pytest.raises(DamagedLog, match="and valid batches follow"):
        Journal(at, SMALL)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("garbage", [b"garbage", bytes(100)])
def test_a_batch_that_continues_the_log_after_garbage_is_no_torn_tail(count: int, garbage: bytes) -> None:
    """It may have been acknowledged."""
    at = after_power_loss()
    adjust("orders-1/manifest.json", high_watermark=0, last_stable_offset=0, durable_end=-1)(at)
    batches = at.batches(SMALL_LOG)
    end = read_header(batches[-1]).next_offset
    at.put(SMALL_LOG, b"".join([*batches[:-count], garbage, *batches[-count:]]))
    problems = [each for each in check_directory(at).found if each.severity is Severity.PROBLEM]
    assert (SMALL_LOG, CUT) in [(each.file, each.means) for each in problems]
    with pytest.raises(DamagedLog, match="and valid batches follow"):
        Journal(at, SMALL)
    plan = make_plan(at)
    (damage,) = [each for each in plan.damages if each.file == SMALL_LOG]
    assert (damage.stake, damage.saved) == ("nothing", "all batches")
    perform(at, plan)
    assert at.batches(SMALL_LOG)[: len(batches)] == batches
    assert Journal(at, SMALL).log_end_offset >= end


def test_an_end_that_is_gone_is_a_problem_while_the_machine_runs() -> None:
    at = after_power_loss()
    at.boot_id = killed().boot_id
    problems = [each.what for each in check_directory(at).found if each.severity is Severity.PROBLEM]
    assert any("end_offset is" in what for what in problems)


@pytest.mark.parametrize("fault", LEFT_BEHIND, ids=name_of)
def test_what_a_kill_leaves_is_a_note_until_somebody_says_that_it_stopped_in_order(fault: Fault) -> None:
    killed_one = plant(fault, killed())
    assert found(killed_one, fault)
    assert not [f for f in check_directory(killed_one).found if f.severity is Severity.PROBLEM]
    stopped = closed()
    fault.plant(stopped)
    assert found(stopped, attrs.evolve(fault, severity=Severity.PROBLEM))


SYNCED = (SMALL_LOG, f"{SECOND}.index", "orders-1/")  # by a clean stop, or not a matter of power
UNSYNCED = [fault for fault in [*LEFT_BEHIND, *TORN_INDEXES] if fault.file not in SYNCED]


@pytest.mark.parametrize("fault", UNSYNCED, ids=name_of)
def test_what_a_loss_of_power_tears_after_a_clean_stop_is_a_note(fault: Fault) -> None:
    """A stop syncs the log, but not the manifest, the last indexes and the snapshot: a start mends them."""
    at = closed()
    at.boot_id = "the next"
    assert found(plant(fault, at), fault)
    assert not [f for f in check_directory(at).found if f.severity is Severity.PROBLEM]
    directory = DataDirectory.open(at)
    for partition in directory.partitions():
        directory.journal(partition)
    directory.close()
    assert not found(at, fault)
    fault.plant(served_since := closed())
    served_since.boot_id = "the next"
    adjust("__cluster_metadata-0/manifest.json", boot_id="the next")(served_since)
    assert found(served_since, attrs.evolve(fault, says="", severity=Severity.PROBLEM))


@pytest.mark.parametrize("fault", TORN_INDEXES, ids=name_of)
def test_a_torn_index_is_a_note_as_long_as_the_next_start_rebuilds_it(fault: Fault) -> None:
    """It was never synced, and after a stop the mark vouches for it."""
    torn = plant(fault, killed())
    assert found(torn, fault)
    assert not [f for f in check_directory(torn).found if f.severity is Severity.PROBLEM]
    right = killed().get(fault.file)
    DataDirectory.open(torn).journal(ORDERS)
    assert torn.get(fault.file)[: len(right)] == right
    stopped = closed()
    fault.plant(stopped)
    assert found(stopped, attrs.evolve(fault, says="", severity=Severity.PROBLEM))
    DataDirectory.open(synced := killed()).journal(ORDERS).sync()
    synced.unlock()
    fault.plant(synced)
    is_full = SECOND in fault.file
    assert bool(found(synced, attrs.evolve(fault, says="", severity=Severity.PROBLEM))) == is_full


@pytest.mark.parametrize("good", [closed, killed])
def test_a_good_directory_has_nothing_to_tell(good: Callable[[], Directory]) -> None:
    findings = check_directory(good())
    assert findings.found == []
    assert (findings.partitions, findings.segments, findings.batches) == (6, 8, 48)
    assert findings.transactional_ids == 3
