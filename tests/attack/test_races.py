"""The ledger of the races, fed a history with each fault that it is there to find."""

from __future__ import annotations

import pytest

from tests.attack.race_ledger import PartitionLog, RaceLedger, Write
from tests.attack.races import OLD, RACED, RENEWING
from tests.broker.requests import ABORT, COMMIT, Identity

NAME = RENEWING[0]
COMMITTED, ABORTED, UNKNOWN = (Identity(7, epoch) for epoch in (1, 2, 3))
FIRST, SECOND = RACED
Log = list[tuple[int, str]]

# a b: committed, one in each partition. c: aborted. d e: of a commit without a reply.
LOGS: tuple[Log, Log] = ([(0, "a"), (2, "c"), (4, "d")], [(0, "b"), (2, "e")])


def history(*, name: str = NAME) -> RaceLedger:
    """Two records and an offset that were committed, a record and an offset that were aborted, two that
    nobody knows of.
    """
    ledger = RaceLedger(frozenset(RENEWING))
    for value, owner, partition, offset in (
        ("a", COMMITTED, FIRST, 0),
        ("b", COMMITTED, SECOND, 0),
        ("c", ABORTED, FIRST, 2),
        ("d", UNKNOWN, FIRST, 4),
        ("e", UNKNOWN, SECOND, None),
    ):
        write = ledger.records[value] = Write(owner=owner, name=name, is_fenced=False, partition=partition)
        if offset is not None:
            ledger.acknowledge(write, offset)
    for offset, owner in ((50, COMMITTED), (60, ABORTED)):
        write = ledger.offsets[offset] = Write(owner=owner, name=name, is_fenced=False, partition=FIRST)
        ledger.acknowledge(write)
    ledger.requested |= {COMMITTED, UNKNOWN}
    ledger.end(COMMITTED, COMMIT, ledger.now())
    ledger.end(ABORTED, ABORT, ledger.now())
    return ledger


def faults(
    ledger: RaceLedger, visible: tuple[str, str], *, logs: tuple[Log, Log] = LOGS, offset: int = 50
) -> list[str]:
    """What is found if readers get these values of both partitions."""
    found = {
        key: PartitionLog(log, list(values)) for key, log, values in zip(RACED, logs, visible, strict=True)
    }
    return ledger.faults(found, {NAME: offset})


@pytest.mark.parametrize("visible", [("a", "b"), ("ad", "be")])
def test_a_commit_without_a_reply_may_have_happened_or_not(visible: tuple[str, str]) -> None:
    assert faults(history(), visible) == []


@pytest.mark.parametrize(
    ("visible", "logs", "offset", "fault"),
    [
        (("", "b"), LOGS, 50, "lost: a was committed"),
        (("a", "b"), ([(0, "a"), (2, "c")], LOGS[1]), 50, "lost: d, acknowledged"),
        (("a", "b"), ([(1, "a"), (2, "c"), (4, "d")], LOGS[1]), 50, "lost: a, acknowledged"),
        (("a", "b"), ([*LOGS[0], (5, "a")], LOGS[1]), 50, "written 2 times: a"),
        (("a", "b"), ([*LOGS[0], (5, "x")], LOGS[1]), 50, "never sent: x"),
        (("ac", "b"), LOGS, 50, "aborted: c is visible"),
        (("ad", "b"), LOGS, 50, "torn: ['d'] of ['d', 'e'] are visible"),
        (("a", "b"), LOGS, -1, "lost: offset 50 was committed"),
        (("a", "b"), LOGS, 60, "aborted: offset 60"),
    ],
)
def test_a_ledger_finds_what_contradicts_it(
    visible: tuple[str, str], logs: tuple[Log, Log], offset: int, fault: str
) -> None:
    found = faults(history(), visible, logs=logs, offset=offset)
    assert any(each.startswith(fault) for each in found), found


def test_an_old_identity_has_several_transactions() -> None:
    """A commit proves nothing of what is written after it, and some of it may be aborted."""
    assert faults(history(name=OLD), ("ad", "b")) == []


@pytest.mark.parametrize("missing", [None, "a", "c", 50])
def test_a_race_goes_on_until_something_is_committed_and_something_aborted(missing: str | int | None) -> None:
    ledger = history()
    for value in ("b", missing):  # without either of them, no record is committed
        ledger.records.pop(str(value), None)
    ledger.offsets.pop(50 if missing == 50 else -1, None)
    assert ledger.has_both_ends() == (missing is None)


def test_what_shows_at_once_is_found() -> None:
    ledger = history()
    ledger.grant(UNKNOWN)
    ledger.acknowledge(ledger.records["a"], 1)
    late = Write(owner=ABORTED, name=NAME, is_fenced=ledger.is_fenced(ABORTED), partition=FIRST)
    ledger.acknowledge(late, 5)
    ledger.note_last_stable_offset(FIRST, 4)
    ledger.note_last_stable_offset(FIRST, 2)
    expected = ["two offsets", "a fenced producer wrote", "last stable offset"]
    assert [fault.split(":")[0] for fault in ledger.told] == expected


def test_records_that_change_their_order_are_found() -> None:
    ledger = history()
    ledger.records["d"].sequence = 1
    ledger.records["f"] = Write(owner=UNKNOWN, name=NAME, is_fenced=False, partition=FIRST)
    log = ([*LOGS[0], (5, "f")], LOGS[1])
    assert [fault.split(":")[0] for fault in faults(ledger, ("a", "b"), logs=log)] == ["out of order"]


def test_a_reader_that_got_more_than_a_later_one_is_found() -> None:
    ledger = history()
    ledger.seen[FIRST] = ["a", "d"]
    assert len(faults(ledger, ("ad", "be"))) == 0
    assert len(faults(ledger, ("a", "b"))) == 1
