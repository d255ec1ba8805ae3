"""The rules about single records: where they stand, and whether they may have been read.

Rule: a breach is told with the operations and records that show it; a record is judged by its value, which
is unique.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fencepost.protocol.terms import IsolationLevel
from fencepost.simulator.judges.anomalies import (
    ABORTED_READ,
    DUPLICATE,
    INCONSISTENT_OFFSETS,
    PHANTOM,
    UNDECIDED_READ,
    Anomaly,
    Rule,
)
from fencepost.simulator.judges.log_order import Observations, PartitionLog
from fencepost.simulator.judges.operations import ClientOperation, OperationOutcome, Record

_FAIL: Final = OperationOutcome.FAIL


def judge_places(seen: Observations, log: PartitionLog) -> Iterator[Anomaly]:
    """One value per offset, one offset per value."""
    seen.sometimes[INCONSISTENT_OFFSETS.name] += len(log.values)
    seen.sometimes[DUPLICATE.name] += len(log.places)
    for offset, value in log.conflicts:
        there, elsewhere = log.values[offset], log.places[value]
        if there != value:
            yield Anomaly(
                INCONSISTENT_OFFSETS,
                text=f"{log.partition} offset {offset} holds {there!r} and {value!r}",
                partition=log.partition,
                records=((offset, there), (offset, value)),
            )
        if elsewhere != offset:
            write = log.writes.get(value)
            yield Anomaly(
                DUPLICATE,
                text=f"{value!r} stands at {log.partition} offsets {elsewhere} and {offset}",
                partition=log.partition,
                operations=() if write is None else (seen.operations[write[0]],),
                records=((elsewhere, value), (offset, value)),
            )


def judge_reads(seen: Observations, log: PartitionLog, isolation_level: IsolationLevel) -> Iterator[Anomaly]:
    """Whether what this level's readers saw was written, had not failed, and could be decided by then.

    Each record goes by its first reader, who saw it earliest.
    """
    operations, writes = seen.operations, log.writes
    filtered = isolation_level is IsolationLevel.READ_COMMITTED
    first_readers = log.readings(isolation_level).first_readers
    seen.sometimes[PHANTOM.name] += len(first_readers)
    for record, position in first_readers.items():
        write = writes.get(record[1])
        if write is None:
            yield _read(PHANTOM, log, record, reader=operations[position])
            continue
        writer = operations[write[0]]
        if position == write[0]:
            continue  # what a transaction reads of itself has a rule of its own
        if writer.outcome is _FAIL:
            if filtered or not writer.transactional:
                yield _read(ABORTED_READ, log, record, reader=operations[position], writer=writer)
        elif filtered and writer.commit_asked_at is not None:
            seen.sometimes[UNDECIDED_READ.name] += 1
            if operations[position].completed_at < writer.commit_asked_at:
                yield _read(UNDECIDED_READ, log, record, reader=operations[position], writer=writer)


_OF_THE_WRITER = {
    PHANTOM: "which nobody wrote there",
    ABORTED_READ: "whose write had failed",
    UNDECIDED_READ: "before its commit was asked for",
}


def _read(
    rule: Rule,
    log: PartitionLog,
    record: Record,
    *,
    reader: ClientOperation,
    writer: ClientOperation | None = None,
) -> Anomaly:
    offset, value = record
    by = "" if writer is None else f" of {writer}"
    return Anomaly(
        rule,
        text=f"{reader} read {value!r}{by} at {log.partition} offset {offset}, {_OF_THE_WRITER[rule]}",
        partition=log.partition,
        operations=(reader,) if writer is None else (reader, writer),
        records=(record,),
    )
