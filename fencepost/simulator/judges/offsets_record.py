"""The judge's own record of one group coordinator's log: which offsets are committed, which are pending (I9).

Rule: a transaction's offsets count from its commit marker on; what stands later in the log wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import attrs

from fencepost.broker.groups.state import Groups
from fencepost.protocol.offsets_log import OffsetKey, OffsetRecord
from fencepost.protocol.terms import TopicPartition, TransactionResult
from fencepost.simulator.judges.anomalies import Looks
from fencepost.simulator.judges.step_rules import OFFSETS_WITH_MARKER
from fencepost.simulator.judges.violation import Violation


class OffsetsEntry(NamedTuple):
    """One batch: offsets of one producer, or (with a result) its marker."""

    base_offset: int
    producer_id: int
    is_transactional: bool
    result: TransactionResult | None
    offsets: tuple[tuple[OffsetKey, OffsetRecord | None], ...]


@attrs.define(eq=False)
class OffsetsRecord:
    """All batches, and what they amount to: the offset and where it was written, by key."""

    marks: Looks
    entries: list[OffsetsEntry] = attrs.Factory(list[OffsetsEntry])
    committed: dict[OffsetKey, tuple[int, int]] = attrs.Factory(dict[OffsetKey, tuple[int, int]])
    pending: dict[int, dict[OffsetKey, tuple[int, int]]] = attrs.Factory(
        dict[int, dict[OffsetKey, tuple[int, int]]]
    )

    def enter(self, entry: OffsetsEntry, groups: Groups) -> None:
        """The batch entered the log, and the broker took it in: both must come to the same."""
        if entry.result is not None and entry.producer_id in self.pending:
            self.marks[OFFSETS_WITH_MARKER.name] += 1
        self._judge(self._note(entry), groups)

    def cut(self, end: int) -> None:
        """What was behind `end` never was there."""
        kept = [entry for entry in self.entries if entry.base_offset < end]
        if len(kept) < len(self.entries):
            self.entries, self.committed, self.pending = [], {}, {}
            for entry in kept:
                self._note(entry)

    def judge_all(self, groups: Groups) -> None:
        """A coordinator that has just read its log knows every offset."""
        self._judge(self.committed, groups)

    def _note(self, entry: OffsetsEntry) -> Iterable[OffsetKey]:
        self.entries.append(entry)
        if entry.result is not None:
            pending = self.pending.pop(entry.producer_id, {})
            if entry.result is TransactionResult.COMMIT:
                for key, found in pending.items():
                    self._settle(key, found)
            return pending
        for delta, (key, record) in enumerate(entry.offsets):
            if record is None:
                self.committed.pop(key, None)
                for pending in self.pending.values():
                    pending.pop(key, None)
            elif entry.is_transactional:
                pending = self.pending.setdefault(entry.producer_id, {})
                pending[key] = (record.offset, entry.base_offset + delta)
            else:
                self._settle(key, (record.offset, entry.base_offset + delta))
        return [key for key, _ in entry.offsets]

    def _settle(self, key: OffsetKey, found: tuple[int, int]) -> None:
        known = self.committed.get(key)
        if known is None or known[1] < found[1]:
            self.committed[key] = found

    def _judge(self, keys: Iterable[OffsetKey], groups: Groups) -> None:
        for key in keys:
            offsets = groups.committed.get(key.group_id, {})
            known = offsets.get(TopicPartition(key.topic, key.partition))
            expected = self.committed.get(key, (None, 0))[0]
            found = None if known is None else known.record.offset
            if found != expected:
                raise Violation(
                    OFFSETS_WITH_MARKER.name,
                    f"group {key.group_id} stands at {found} in {key.topic}-{key.partition}; its log says "
                    f"{expected}",
                )
