"""The model of a compacted log: which records may be missing, when, and why."""

from __future__ import annotations

import pytest

from fencepost.log_model.compaction import CleanupRules, CommittedRecord, CompactedLog, Removal

A, B = b"a", b"b"


def put(offset: int, key: bytes = A, *, at: int, committed: int | None = None) -> CommittedRecord:
    return CommittedRecord(offset, key, False, at, at if committed is None else committed)


def delete(offset: int, key: bytes = A, *, at: int) -> CommittedRecord:
    return CommittedRecord(offset, key, True, at, at)


LOG = (put(0, at=10), put(1, B, at=20), put(2, at=30, committed=50), delete(3, B, at=60))

MISSING = {
    "a value, before a newer one is committed": (CleanupRules(), 0, 49, None),
    "a value, after a newer one is committed": (CleanupRules(), 0, 50, Removal.REPLACED),
    "a value, while the newer one is young": (CleanupRules(min_compaction_lag_ms=30), 0, 59, None),
    "a value, after the newer one has aged": (
        CleanupRules(min_compaction_lag_ms=30),
        0,
        60,
        Removal.REPLACED,
    ),
    "the latest value": (CleanupRules(), 2, 10_000, None),
    "a value, replaced by a tombstone": (CleanupRules(delete_retention_ms=100), 1, 60, Removal.REPLACED),
    "a tombstone, in its time": (CleanupRules(delete_retention_ms=100), 3, 159, None),
    "a tombstone, after its time": (CleanupRules(delete_retention_ms=100), 3, 160, Removal.EXPIRED),
    "a young record, with retention by time": (CleanupRules(retention_ms=100), 2, 129, None),
    "an old record, with retention by time": (CleanupRules(retention_ms=100), 2, 130, Removal.RETENTION),
    "a record in the last bytes": (CleanupRules(retention_bytes=30, offset_bytes_max=10), 2, 60, None),
    "a record before the last bytes": (
        CleanupRules(retention_bytes=20, offset_bytes_max=10),
        2,
        60,
        Removal.RETENTION,
    ),
}


@pytest.mark.parametrize("what", MISSING)
def test_a_record_may_be_missing_with_a_reason(what: str) -> None:
    rules, offset, at, removal = MISSING[what]
    assert CompactedLog(LOG, rules).removal(offset, at) is removal


def test_a_record_with_an_unknown_offset_may_have_replaced_any_other() -> None:
    log = CompactedLog(LOG, CleanupRules(), unplaced=[put(0, at=100)])
    assert log.removal(2, 99) is None
    assert log.removal(2, 100) is Removal.REPLACED
    assert set(log.latest()) == {B}


def test_the_last_record_of_each_key_is_its_value() -> None:
    assert {key: record.offset for key, record in CompactedLog(LOG, CleanupRules()).latest().items()} == {
        A: 2,
        B: 3,
    }
