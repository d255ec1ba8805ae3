"""The rules about records that should have been read and were not: lost, torn off their transaction, or
unseen.

Rule: a write is only missed when it is known to have happened, and when readers who would have met it went
past it or, at last, to the end of its partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import attrs

from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.judges.anomalies import (
    ABORTED_READ,
    LOST_WRITE,
    TORN_TRANSACTION,
    UNSEEN,
    Anomaly,
    Rule,
)
from fencepost.simulator.judges.log_order import Observations, PartitionLog
from fencepost.simulator.judges.operations import OperationOutcome, Record


class Missed(NamedTuple):
    """A write that nobody read who should have; `because` is LOST_WRITE or UNSEEN."""

    because: Rule
    partition: TopicPartition
    value: bytes
    offset: int | None


@attrs.define(eq=False)
class _Count:
    """Of one operation: how many values it wrote, how many were read at read_committed, what is missed."""

    written: int = 0
    read: int = 0
    missed: list[Missed] = attrs.field(factory=list[Missed])


def judge_missing(seen: Observations, finally_read: Collection[TopicPartition]) -> Iterator[Anomaly]:
    """Lost writes, unseen writes and torn transactions of the whole history."""
    counts: dict[int, _Count] = {}
    for log in seen.logs.values():
        _count(seen, log, counts, finally_read=log.partition in finally_read)
    for position, count in counts.items():
        writer = seen.operations[position]
        if writer.transactional and count.written > 1 and count.read:
            seen.sometimes[TORN_TRANSACTION.name] += 1
        if not count.missed:
            continue
        # Nobody was told that a transaction of unknown outcome is committed: only its other half says so.
        if writer.outcome is OperationOutcome.OK or not writer.transactional:
            yield from (_missing(seen, position, missed) for missed in count.missed)
        if writer.transactional and count.read:
            yield _torn(seen, position, count)


def _count(seen: Observations, log: PartitionLog, counts: dict[int, _Count], *, finally_read: bool) -> None:
    """Goes through the writes of one partition."""
    operations, sometimes = seen.operations, seen.sometimes
    passages = _passages(seen, log)
    highest = log.committed.highest
    # At read_committed where anybody reads so: who is shown less decides whether it has arrived.
    arrived = log.committed.values if log.committed.is_polled else log.uncommitted.values
    for value, (position, acknowledged) in log.writes.items():
        count = counts.get(position)
        if count is None:
            count = counts[position] = _Count()
        count.written += 1
        count.read += value in log.committed.values
        offset = log.places.get(value, acknowledged)
        if not seen.happened(position, value, log):
            if (
                offset is not None
                and offset <= highest
                and operations[position].outcome is OperationOutcome.FAIL
            ):
                sometimes[ABORTED_READ.name] += 1
            continue
        met = (
            []
            if offset is None
            else [passage for passage in passages if passage.low <= offset <= passage.high]
        )
        sometimes[LOST_WRITE.name] += bool(met)
        sometimes[UNSEEN.name] += finally_read
        if any(value not in passage.values for passage in met):
            count.missed.append(Missed(LOST_WRITE, log.partition, value, offset))
        elif finally_read and value not in arrived:
            count.missed.append(Missed(UNSEEN, log.partition, value, offset))


class Passage(NamedTuple):
    """A stretch of offsets that readers of one isolation level went through, and the values they saw in
    all.
    """

    low: int
    high: int
    values: Collection[bytes]


def _passages(seen: Observations, log: PartitionLog) -> list[Passage]:
    """What readers went past: everything below the highest offset that was read, since whoever began
    further up went on from others; or, where some left records unread on purpose, no more than what each
    went through.
    """
    if log.leaves_unread:
        return _stretches(seen, log)
    levels = (log.committed, log.uncommitted)
    return [Passage(0, level.highest, level.values) for level in levels if level.first_readers]


def _stretches(seen: Observations, log: PartitionLog) -> list[Passage]:
    ended: list[Passage] = []
    open_stretches: dict[str, Passage] = {}
    for position, records in log.visits:
        operation = seen.operations[position]
        before = open_stretches.pop(operation.process, None)
        if records is None:
            ended += [] if before is None else [before]
            continue
        low = records[0][0] if before is None else before.low
        values = log.readings(operation.isolation_level).values
        open_stretches[operation.process] = Passage(low, records[-1][0], values)
    return ended + list(open_stretches.values())


def _missing(seen: Observations, position: int, missed: Missed) -> Anomaly:
    writer = seen.operations[position]
    where = missed.partition if missed.offset is None else f"{missed.partition} offset {missed.offset}"
    fate = "readers went past it" if missed.because is LOST_WRITE else "the partition was read to its end"
    return Anomaly(
        missed.because,
        text=f"{missed.value!r} of {writer} at {where} was never read, though {fate}",
        partition=missed.partition,
        operations=(writer,),
        records=_records([missed]),
    )


def _torn(seen: Observations, position: int, count: _Count) -> Anomaly:
    writer = seen.operations[position]
    lacking = ", ".join(f"{missed.value!r} of {missed.partition}" for missed in count.missed)
    return Anomaly(
        TORN_TRANSACTION,
        text=f"{count.read} of {count.written} writes of {writer} were read, but not {lacking}",
        operations=(writer,),
        records=_records(count.missed),
    )


def _records(missed: list[Missed]) -> tuple[Record, ...]:
    return tuple((write.offset, write.value) for write in missed if write.offset is not None)
