"""The records of one partition of `__consumer_offsets` as a fold: committed and pending offsets.

Rule: of two offsets for one partition, the one that was *written* later counts.
"""

# An offset that a transaction commits is pending until the transaction's marker. COMMIT makes it the group's
# offset, ABORT drops it. A pending offset keeps the place of its record, so its marker does not bring back an
# offset that a later plain commit replaced (GroupMetadata.completePendingTxnOffsetCommit):
#
#     offset   0                  1            2
#              pending offset 5   commit 9     COMMIT        the group continues at 9: written at 1, after 0

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from fencepost.protocol.offsets_log import OffsetKey, OffsetRecord
from fencepost.protocol.terms import TransactionResult

OffsetEntries = Iterable[tuple[OffsetKey, OffsetRecord | None]]


class WrittenOffset(NamedTuple):
    """An offset of a group, and the offset in `__consumer_offsets` of the record that says so."""

    offset: int
    written_at: int


class OffsetsModel:
    """Offsets after the batches so far. Feed every batch to `apply_offsets` or `apply_marker`, in order."""

    __slots__ = ("committed", "pending")

    def __init__(self) -> None:
        self.committed: dict[OffsetKey, WrittenOffset] = {}
        self.pending: dict[int, dict[OffsetKey, WrittenOffset]] = {}
        """By producer id."""

    def apply_offsets(
        self, entries: OffsetEntries, *, base_offset: int, producer_id: int, is_transactional: bool
    ) -> Collection[OffsetKey]:
        """Take a batch of offsets, None for a tombstone. Returns their keys."""
        keys: list[OffsetKey] = []
        for written_at, (key, record) in enumerate(entries, start=base_offset):
            keys.append(key)
            if record is None:
                self.committed.pop(key, None)
                # The transaction of a deleted offset may commit later; it must not bring the offset back.
                for pending in self.pending.values():
                    pending.pop(key, None)
            elif is_transactional:
                self.pending.setdefault(producer_id, {})[key] = WrittenOffset(record.offset, written_at)
            else:
                self._commit(key, WrittenOffset(record.offset, written_at))
        return keys

    def apply_marker(self, producer_id: int, result: TransactionResult) -> Collection[OffsetKey]:
        """Take a marker. Returns the keys of the pending offsets that it decides."""
        pending = self.pending.pop(producer_id, {})
        if result is TransactionResult.COMMIT:
            for key, written in pending.items():
                self._commit(key, written)
        return pending.keys()

    def _commit(self, key: OffsetKey, written: WrittenOffset) -> None:
        known = self.committed.get(key)
        if known is None or known.written_at < written.written_at:
            self.committed[key] = written
