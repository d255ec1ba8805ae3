"""The black-box judge of a compacted topic: what its readers may miss, and what they must learn.

Rule: it knows what clients wrote and read, and when. The log model (log_model/compaction.py) says which
records Kafka's rules may have removed by then.
"""

# Theory of operation
#
# The rules of black_box.py about single records hold for a compacted topic, too: what is read was written
# there and did not fail, at one offset, and no reader goes back. As no compaction moves a record, no reader
# gets a value after a newer one of its key. What does not hold is that every reader gets every record. So
# each reader is followed from its beginning:
#
#     offsets        0      1      2      3      4      5      6
#     committed      a=1    b=1    a=2    c=1    b~     a=3
#     a reader got   a=1                  c=1           a=3
#                           └ passed ─┘          └ passed: a tombstone
#
# Each committed record that a reader passed without getting it needs a reason at that time. `b=1` and `a=2`
# were replaced. `b~` must be there until delete.retention.ms after its commit.
#
# The last reader begins when all work is over and no cleaning is under way. It goes to the end, and then it
# must know the last value of each key, or, after a tombstone, none.

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import attrs

from fencepost.log_model.compaction import CleanupRules, CommittedRecord, CompactedLog, Removal
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.judges import rules
from fencepost.simulator.judges.observations import Observations, ObservedLog, observe
from fencepost.simulator.judges.operations import ClientOperation, OperationOutcome, Record, key_of
from fencepost.simulator.judges.rules import Anomaly, HistoryVerdict
from fencepost.simulator.world.participants import NS_PER_MS

UNLIMITED: Final = 1 << 62  # an offset after every other
PASSED_OVER: Final = {removal: f"read across a hole: {removal.value}" for removal in Removal}
"""Counted in addition to the rules: records that a reader missed with a reason."""


@attrs.frozen(kw_only=True)
class LastReader:
    """The process that read the partitions `to_the_end`, from `begun_at` to `ended_at` (nanoseconds)."""

    name: str
    to_the_end: Collection[TopicPartition]
    begun_at: int
    ended_at: int


def check_compacted(
    operations: Sequence[ClientOperation],
    cleanup: CleanupRules,
    partitions: Collection[TopicPartition],
    last: LastReader,
) -> HistoryVerdict:
    """Judge what readers of compacted `partitions` missed."""
    seen = observe(operations)
    anomalies: list[Anomaly] = []
    for log in seen.logs.values():
        if log.partition in partitions:
            passages = _Passages(seen, log, _compacted(seen, log, cleanup))
            anomalies += passages.judge(last)
            anomalies += _judge_values(passages, last, cleanup)
    return HistoryVerdict(tuple(anomalies), exercised=seen.exercised)


# --- what was written ---------------------------------------------------------------------------------------


class _Written(NamedTuple):
    """The records that are in a log for certain, by offset, and what compaction may do to them."""

    values: dict[int, bytes]
    model: CompactedLog


def _compacted(seen: Observations, log: ObservedLog, cleanup: CleanupRules) -> _Written:
    certain: dict[int, bytes] = {}
    records: list[CommittedRecord] = []
    unplaced: list[CommittedRecord] = []
    twice: dict[bytes, list[int]] = {}  # a duplicate is a record like any other, and the other rules judge it
    for offset, value in log.conflicts:
        twice.setdefault(value, []).append(offset)
    for value, (position, acknowledged) in log.writes.items():
        operation = seen.operations[position]
        if operation.outcome is OperationOutcome.FAIL:
            continue
        record = _keyed(operation, value)
        offset = log.places.get(value, acknowledged)
        if offset is not None and seen.happened(position, value, log):
            places = dict.fromkeys((offset, *twice.get(value, ())))
            certain.update(dict.fromkeys(places, value))
            records += (record._replace(offset=place) for place in places)
        else:
            unplaced.append(record)  # it may have replaced others without having been read
    return _Written(certain, CompactedLog(records, cleanup, unplaced=unplaced))


def _keyed(operation: ClientOperation, value: bytes) -> CommittedRecord:
    key, is_tombstone = key_of(value)
    asked_at = operation.commit_asked_at
    committed_at = operation.invoked_at if asked_at is None else asked_at
    return CommittedRecord(
        UNLIMITED, key, is_tombstone, operation.invoked_at // NS_PER_MS, committed_at // NS_PER_MS
    )


def _shown(at: int) -> int:
    """The latest time that an undisturbed clock can show then, in whole milliseconds."""
    return at // NS_PER_MS + 1


# --- what was missed ----------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Passages:
    """Follows the readers of one partition. `got` are the offsets that the last reader got."""

    seen: Observations
    log: ObservedLog
    written: _Written
    offsets: list[int] = attrs.field(init=False)
    got: dict[int, int] = attrs.Factory(dict[int, int])

    def __attrs_post_init__(self) -> None:
        self.offsets = sorted(self.written.values)

    def judge(self, last: LastReader) -> Iterator[Anomaly]:
        """Every record that a reader passed without a reason to miss it."""
        positions: dict[str, int] = {}
        for number, records in self.log.visits:
            operation = self.seen.operations[number]
            if records is None:
                positions[operation.process] = 0
                continue
            yield from self._judge_poll(operation, records, positions)
            if operation.process == last.name:
                self.got.update((offset, operation.completed_at) for offset, _ in records)
        if self.log.partition in last.to_the_end:
            begin = positions.get(last.name, 0)
            yield from self._passed(last.name, begin, UNLIMITED, at=last.ended_at)

    def _judge_poll(
        self, operation: ClientOperation, records: tuple[Record, ...], positions: dict[str, int]
    ) -> Iterator[Anomaly]:
        at = positions.get(operation.process, 0)
        for offset, _ in records:
            yield from self._passed(str(operation), at, offset, at=operation.completed_at)
            self._count(offset, operation)
            at = offset + 1
        positions[operation.process] = at

    def _count(self, offset: int, operation: ClientOperation) -> None:
        """A record was read that had to be there."""
        value = self.written.values.get(offset)
        if value is not None and self._removal(offset, operation.completed_at) is None:
            _, is_tombstone = key_of(value)
            rule = rules.EARLY_TOMBSTONE if is_tombstone else rules.LOST_LATEST
            self.seen.exercised[rule.name] += 1

    def _removal(self, offset: int, at: int) -> Removal | None:
        return self.written.model.removal(offset, _shown(at))

    def _passed(self, reader: str, begin: int, end: int, *, at: int) -> Iterator[Anomaly]:
        """A reader went from one offset to another and got nothing between them."""
        offsets = self.offsets
        for offset in offsets[bisect_left(offsets, begin) : bisect_left(offsets, end)]:
            removal = self._removal(offset, at)
            if removal is not None:
                self.seen.exercised[PASSED_OVER[removal]] += 1
                continue
            value = self.written.values[offset]
            _, is_tombstone = key_of(value)
            rule = rules.EARLY_TOMBSTONE if is_tombstone else rules.LOST_LATEST
            yield Anomaly(
                rule,
                text=f"{reader} passed {self.log.partition} offset {offset} at {at // NS_PER_MS} ms and did "
                f"not get {rules.shown(value)}, which nothing had replaced",
                partition=self.log.partition,
                records=((offset, value),),
            )


# --- what the last reader learned ---------------------------------------------------------------------------


def _judge_values(passages: _Passages, last: LastReader, cleanup: CleanupRules) -> Iterator[Anomaly]:
    """The last reader knows the last value of each key."""
    if passages.log.partition not in last.to_the_end:
        return
    known: dict[bytes, int] = {}
    for offset in sorted(passages.got):
        value = passages.written.values.get(offset)
        if value is not None:
            known[key_of(value)[0]] = offset
    for key, latest in passages.written.model.latest().items():
        offset = known.get(key)
        # Between the old value and the tombstone the reader may be slower than the tombstone lives. It began
        # before the cleaning that removed the old value.
        is_slow = last.ended_at - last.begun_at >= cleanup.delete_retention_ms * NS_PER_MS
        # The same holds for a segment that retention deletes before the reader gets there.
        is_slow |= passages.written.model.is_deletable(latest.offset, _shown(last.ended_at))
        if offset is None or (latest.offset not in passages.got and is_slow):
            continue  # whether it had to be there was judged where the reader passed it
        passages.seen.exercised[rules.STALE_VALUE.name] += 1
        if offset < latest.offset:
            value = passages.written.values[offset]
            yield Anomaly(
                rules.STALE_VALUE,
                text=f"{last.name} read {passages.log.partition} to its end and ends with {value!r} of "
                f"offset {offset}, but its key was written again at {latest.offset}",
                partition=passages.log.partition,
                records=((offset, value),),
            )
