"""Which records compaction and retention may remove from a log, by Kafka's rules.

Rule: the model knows records and times, not segments. It says what may be missing, never what must be.
"""

# Theory of operation
#
# A reader that passes the offset of a committed record without getting it needs a reason, at the time of the
# read:
#
#     replaced     a newer record of the key is committed, and older than min.compaction.lag.ms
#     expired      it is a tombstone, and was committed at least delete.retention.ms ago
#     retention    retention deletes old segments, and the record is older than retention.ms, or more than
#                  retention.bytes follow it
#
# A reason that holds once holds forever. So it does not matter that a reader got its records some time
# before the read. All times are the earliest possible ones, and so are the reasons: a broker sets the delete
# horizon of a tombstone at its first cleaning, which comes after the commit.

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple

import attrs

NEVER: Final = 1 << 62


class Removal(Enum):
    """Why a record may be missing."""

    REPLACED = "replaced"
    EXPIRED = "expired"
    RETENTION = "retention"


@attrs.frozen(kw_only=True)
class CleanupRules:
    """The settings of a compacted topic, in ms and bytes. None for a retention setting: no limit."""

    min_compaction_lag_ms: int = 0
    delete_retention_ms: int = 0
    retention_ms: int | None = None
    retention_bytes: int | None = None
    offset_bytes_max: int = 0
    """The most bytes that one offset takes: how much of a log lies between two offsets, at most."""


class CommittedRecord(NamedTuple):
    """A record that is committed, or may be. Times are ms."""

    offset: int
    key: bytes
    is_tombstone: bool
    written_at: int
    committed_at: int
    """Both as early as possible."""


class CompactedLog:
    """The records of one partition. Those with an unknown `offset` go in `unplaced`: they may have replaced
    any other.
    """

    def __init__(
        self,
        records: Iterable[CommittedRecord],
        rules: CleanupRules,
        *,
        unplaced: Iterable[CommittedRecord] = (),
    ) -> None:
        self.records = {record.offset: record for record in sorted(records)}
        self._rules = rules
        self._end_offset = max(self.records, default=-1) + 1
        self._unplaced: dict[bytes, int] = {}
        for record in unplaced:
            earliest = self._unplaced.get(record.key, NEVER)
            self._unplaced[record.key] = min(earliest, self._may_replace_at(record))
        by_key: dict[bytes, list[CommittedRecord]] = {}
        for record in self.records.values():
            by_key.setdefault(record.key, []).append(record)
        # By key: offsets, and when the first of all records from there on may replace an older one.
        self._replacements = {
            key: ([record.offset for record in found], self._earliest(found)) for key, found in by_key.items()
        }

    def removal(self, offset: int, at: int) -> Removal | None:
        """Why the record at this offset may be missing for a reader at a time (ms); None if it must be
        there.
        """
        record, rules = self.records[offset], self._rules
        if self._replaced_at(record) <= at:
            return Removal.REPLACED
        if record.is_tombstone and record.committed_at + rules.delete_retention_ms <= at:
            return Removal.EXPIRED
        return Removal.RETENTION if self.is_deletable(offset, at) else None

    def is_deletable(self, offset: int, at: int) -> bool:
        """Whether retention may have deleted the segment of this record at a time (ms)."""
        rules = self._rules
        written_at, follows = self.records[offset].written_at, self._end_offset - offset
        if rules.retention_ms is not None and written_at + rules.retention_ms <= at:
            return True
        return rules.retention_bytes is not None and follows * rules.offset_bytes_max >= rules.retention_bytes

    def _replaced_at(self, record: CommittedRecord) -> int:
        offsets, earliest = self._replacements[record.key]
        newer = bisect_right(offsets, record.offset)
        known = earliest[newer] if newer < len(earliest) else NEVER
        return min(known, self._unplaced.get(record.key, NEVER))

    def _may_replace_at(self, record: CommittedRecord) -> int:
        return max(record.committed_at, record.written_at + self._rules.min_compaction_lag_ms)

    def _earliest(self, records: list[CommittedRecord]) -> list[int]:
        """For each record, when it or one after it may replace older ones, at the earliest."""
        return list(accumulate(map(self._may_replace_at, reversed(records)), min))[::-1]

    def latest(self) -> dict[bytes, CommittedRecord]:
        """The last record of each key of which all records have a known offset."""
        last = {record.key: record for record in self.records.values()}
        return {key: record for key, record in last.items() if key not in self._unplaced}
