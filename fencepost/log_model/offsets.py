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
from itertools import count
from typing import NamedTuple

from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.offsets_log import OffsetKey, OffsetRecord
from fencepost.protocol.terms import NO_TOPIC_ID, TransactionResult

OffsetEntries = Iterable[tuple[OffsetKey, OffsetRecord | None]]


class WrittenOffset(NamedTuple):
    """An offset of a group, the offset in `__consumer_offsets` of the record that says so, and the id of the
    topic that the record names.
    """

    offset: int
    written_at: int
    topic_id: bytes = NO_TOPIC_ID


class OffsetsModel:
    """Offsets after the batches so far. Feed every batch to `apply`, in order."""

    __slots__ = ("_pending_in", "committed", "pending")

    def __init__(self) -> None:
        self.committed: dict[OffsetKey, WrittenOffset] = {}
        self.pending: dict[int, dict[OffsetKey, WrittenOffset]] = {}
        """By producer id."""
        self._pending_in: dict[OffsetKey, set[int]] = {}
        """The producer ids that have an offset of the key pending: a tombstone visits these alone."""

    def apply(
        self,
        header: BatchHeader,
        result: TransactionResult | None,
        entries: OffsetEntries,
        deltas: Iterable[int] = (),
    ) -> Collection[OffsetKey]:
        """Take the next batch: a marker's `result`, or offsets, None for a tombstone. `deltas` are their
        places in a batch that compaction has thinned. Returns their keys.
        """
        if result is not None:
            return self._apply_marker(header.producer_id, result)
        keys: list[OffsetKey] = []
        for delta, (key, record) in zip(deltas or count(), entries, strict=False):
            keys.append(key)
            if record is None:
                self.committed.pop(key, None)
                # The transaction of a deleted offset may commit later; it must not bring the offset back.
                for producer_id in self._pending_in.pop(key, ()):
                    del self.pending[producer_id][key]
                continue
            written = WrittenOffset(record.offset, header.base_offset + delta, record.topic_id)
            if header.is_transactional:
                self.pending.setdefault(header.producer_id, {})[key] = written
                self._pending_in.setdefault(key, set()).add(header.producer_id)
            else:
                self._commit(key, written)
        return keys

    def _apply_marker(self, producer_id: int, result: TransactionResult) -> Collection[OffsetKey]:
        pending = self.pending.pop(producer_id, {})
        for key in pending:
            producers = self._pending_in[key]
            producers.remove(producer_id)
            if not producers:
                del self._pending_in[key]
        if result is TransactionResult.COMMIT:
            for key, written in pending.items():
                self._commit(key, written)
        return pending.keys()

    def _commit(self, key: OffsetKey, written: WrittenOffset) -> None:
        known = self.committed.get(key)
        if known is None or known.written_at < written.written_at:
            self.committed[key] = written
