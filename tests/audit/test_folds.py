"""Every fault of producers and coordinators that the audit is for, planted in a good directory; what holds
readers back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.audit.stalled_readers import ABORT_INTERVAL_MS, STANDSTILL_MS, PartitionEnd, judge_open
from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.check.meanings import MISFILTERED
from fencepost.protocol.batches import read_header
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import TransactionState
from tests.audit.in_process import audited
from tests.check.directories import PAY_LOG, SMALL_LOG, Directory, closed, killed
from tests.check.planting import ABORT, COMPLETED, OPEN, PLAIN, PREPARED, SECOND, THIRD, Fault, mark, restate
from tests.kafka_directories import NAMES, directory_of


def plain_instead(at: Directory, path: str, number: int) -> None:
    """A record of no producer in the place of a batch."""
    batches = at.batches(path)
    batches[number] = bytes(
        build_data_batch([b"plain"], base_timestamp=read_header(batches[number]).max_timestamp)
    )
    at.put_batches(path, batches)


FAULTS = [
    Fault(
        "records are missing",
        lambda at: at.change(SMALL_LOG, PLAIN + 1, base_sequence=2),
        SMALL_LOG,
        "a gap: records of this producer were lost or reordered",
    ),
    Fault(
        "records are there twice",
        lambda at: at.change(SMALL_LOG, PLAIN + 1, base_sequence=0),
        SMALL_LOG,
        "a duplicate: records of this producer are in the log twice",
    ),
    Fault(
        "a new epoch does not begin at 0",
        lambda at: at.change(SMALL_LOG, 2, base_sequence=1),
        SMALL_LOG,
        "sequence 1 where 0 was expected",
    ),
    Fault(
        "a producer that was fenced writes",
        lambda at: at.change(SMALL_LOG, 2, producer_epoch=0),
        SMALL_LOG,
        "a batch of this epoch after epoch 1",
    ),
    Fault(
        "a marker of an old epoch",
        lambda at: at.change(SMALL_LOG, 3, producer_epoch=0),
        SMALL_LOG,
        "a marker of this epoch after epoch 1",
    ),
    Fault(
        "a marker of a coordinator that was replaced",
        lambda at: mark(at, SMALL_LOG, 1, coordinator_epoch=7),
        SMALL_LOG,
        "a marker of coordinator epoch 0 after one of 7",
    ),
    Fault(
        "plain records in a transaction",
        lambda at: at.change(SMALL_LOG, OPEN + 1, attributes=0),
        SMALL_LOG,
        "a non-transactional batch inside its transaction",
    ),
    Fault(
        "committed here, aborted there",
        lambda at: mark(at, SMALL_LOG, 1, result=ABORT),
        SMALL_LOG,
        "ABORT of producer 0 epoch 1, but 'pay' decided COMMIT",
    ),
    Fault(
        "a marker is missing",
        lambda at: plain_instead(at, SMALL_LOG, 1),
        PAY_LOG,
        "but its marker is missing in orders-1",
    ),
    Fault(
        "a commit that nobody decided",
        lambda at: mark(at, SMALL_LOG, 1, producer_id=99),
        SMALL_LOG,
        "COMMIT of producer 99 epoch 1, but no coordinator decided it",
    ),
    Fault(
        "a decision is undone",
        lambda at: restate(at, PAY_LOG, COMPLETED, state=TransactionState.COMPLETE_ABORT),
        PAY_LOG,
        "'pay' is CompleteAbort after PrepareCommit",
    ),
    Fault(
        "a decision is lost",
        lambda at: restate(at, PAY_LOG, PREPARED, partitions=()),
        SMALL_LOG,
        "but no coordinator decided it",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Fault) -> None:
    directory = closed()
    fault.plant(directory)
    found = audited(directory)
    assert [
        each
        for each in found
        if each.file == fault.file
        and fault.says in f"{each.what}: {each.means}"
        and each.severity is fault.severity
        and each.offset is not None
    ], found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_it_is_what_the_check_finds(fault: Fault) -> None:
    """The check says more, about the files that follow from the log; in the log both see the same. An index
    is judged by what readers get with it, which the check says in other words.
    """
    directory = closed()
    fault.plant(directory)
    checked = {(each.file, each.offset, each.what) for each in check_directory(directory).found}
    found = [each for each in audited(directory) if each.means != MISFILTERED]
    assert {(each.file, each.offset, each.what) for each in found} <= checked


@pytest.mark.parametrize(
    ("entry", "file", "offset", "says"),
    [
        (
            b"",
            THIRD,
            14,
            "ABORT of producer 0 epoch 2, but by the index, its batch at offset 10 is committed",
        ),
        (
            struct.pack(">hqqqq", 0, 0, 0, 8, 9),
            SECOND,
            8,
            "COMMIT of producer 0 epoch 1, but by the index, its batch at offset 0 is aborted",
        ),
    ],
)
def test_an_index_that_contradicts_a_marker(entry: bytes, file: str, offset: int, says: str) -> None:
    at = closed()
    at.put(f"{file}.txnindex", entry)
    assert [(each.file, each.offset, each.what) for each in audited(at)] == [
        (f"{file}.txnindex", offset, says)
    ]


@pytest.mark.parametrize("make", [closed, killed])
def test_a_good_directory_has_no_findings(make: Callable[[], Directory]) -> None:
    assert audited(make()) == []


@pytest.mark.parametrize("name", NAMES)
def test_directories_of_apache_kafka_have_no_findings(name: str) -> None:
    assert [each for each in audited(directory_of(name)) if each.severity is Severity.PROBLEM] == []


# --- what holds readers back --------------------------------------------------------------------------------

NOON = 1_700_000_000_000
END = {("orders", 0): PartitionEnd(last_stable_offset=7, high_watermark=12, newest_ms=NOON)}


def judged(*, now_ms: int = NOON, **values: Any) -> list[str]:
    """The findings for one open transaction."""
    row = {
        "topic": "orders", "partition": 0, "producerId": 2, "transactionalId": "pay", "firstOffset": 7,
        "file": "orders-0/x.log", "hanging": False, "coordinatorState": "Ongoing",
        "coordinatorStartMs": NOON, "startMs": NOON, "timeoutMs": 60_000, **values,
    }  # fmt: skip
    found = judge_open([row], END, now_ms=now_ms, is_one_moment=True).found
    assert {(each.file, each.offset) for each in found} <= {("orders-0/x.log", 7)}
    return [each.what for each in found]


def test_an_open_transaction_is_no_finding_until_its_timeout() -> None:
    late = NOON + 60_000 + ABORT_INTERVAL_MS
    assert judged() == judged(now_ms=late) == []
    assert judged(now_ms=late + 1) == [
        "the transaction of 'pay', open since this offset, is 10 s over its timeout of 60 s"
    ]
    # Its coordinator has decided: it is sending markers.
    assert judged(now_ms=late + 1, coordinatorState="PrepareCommit") == []


def test_a_transaction_that_no_coordinator_knows_hangs() -> None:
    (what,) = judged(hanging=True)
    assert "producer 2 has a transaction open since this offset, and no coordinator knows it" in what


def test_readers_that_stand_still_for_longer_than_any_transaction_may_take() -> None:
    assert judged(now_ms=NOON + STANDSTILL_MS, timeoutMs=10**9) == []
    (what,) = judged(now_ms=NOON + STANDSTILL_MS + 1, timeoutMs=10**9)
    assert (
        what
        == "the last stable offset has been here for 15 min of the log's time, and 5 offsets wait after it"
    )
    # Without a coordinator, only the clock of the data tells.
    hanging: dict[str, Any] = {"hanging": True, "coordinatorState": None, "coordinatorStartMs": None}
    assert len(judged(startMs=NOON - STANDSTILL_MS, **hanging)) == 1
    assert len(judged(startMs=NOON - STANDSTILL_MS - 1, **hanging)) == 2
