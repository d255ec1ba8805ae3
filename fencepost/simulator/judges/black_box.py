"""The black-box judge: a history of client operations against Jepsen's rules for Kafka, with ours for
transactions.

It knows only what clients saw. `observe` takes the history apart by partition (who wrote which value, who
read it where); then each group of rules looks at the same observations:

    dependencies      no cycle of reads; no transaction reads its own writes
    single records    no failed or unwritten value is read; one value per offset, one offset per value
    order             no reader skips or goes back, no writer's offsets fall
    missing records   half of a transaction, an acknowledged write that readers passed, an unread end
    end to end        the output holds what the inputs produce, each as often as it should

A run is reported by the first rule that it breaks, so the order matters: a fault that breaks one of these
rules often breaks a later one, too, and seldom an earlier one.

It judges every run of a search, so it is linear in the number of writes and reads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final, NamedTuple

import attrs

from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.simulator.judges import rules
from fencepost.simulator.judges.observations import Observations, ObservedLog, Readings, observe
from fencepost.simulator.judges.operations import ClientOperation, OperationOutcome, Poll, Record, Write
from fencepost.simulator.judges.rules import Anomaly, HistoryVerdict, Rule, shown


def check(
    operations: Sequence[ClientOperation],
    *,
    finally_read: Collection[TopicPartition] = (),
    compacted: Collection[TopicPartition] = (),
) -> HistoryVerdict:
    """Judge a whole history, in the order in which its operations ended; ValueError for values that are
    not unique.

    `finally_read` are the partitions that were read to their end when everything else was over: only of
    those can it be said that a record will never be seen. Of `compacted` partitions records may be missing:
    which ones is for `compaction.check_compacted` to judge.
    """
    seen = observe(operations)
    anomalies = [*judge_mixed(seen)]
    for log in seen.logs.values():
        for isolation_level in IsolationLevel:
            anomalies += judge_reads(seen, log, isolation_level)
        anomalies += judge_places(seen, log)
        anomalies += judge_polls(seen, log, may_skip=log.partition in compacted)
        anomalies += judge_sends(seen, log)
    anomalies += judge_missing(seen, frozenset(finally_read), frozenset(compacted))
    return HistoryVerdict(tuple(anomalies), exercised=seen.exercised)


# --- single records -----------------------------------------------------------------------------------------

_FAIL: Final = OperationOutcome.FAIL


def judge_places(seen: Observations, log: ObservedLog) -> Iterator[Anomaly]:
    """One value per offset, one offset per value."""
    seen.exercised[rules.INCONSISTENT_OFFSETS.name] += len(log.values)
    seen.exercised[rules.DUPLICATE.name] += len(log.places)
    for offset, value in log.conflicts:
        there, elsewhere = log.values[offset], log.places[value]
        if there != value:
            yield Anomaly(
                rules.INCONSISTENT_OFFSETS,
                text=f"{log.partition} offset {offset} holds {shown(there)} and {shown(value)}",
                partition=log.partition,
                records=((offset, there), (offset, value)),
            )
        if elsewhere != offset:
            write = log.writes.get(value)
            yield Anomaly(
                rules.DUPLICATE,
                text=f"{shown(value)} is at {log.partition} offsets {elsewhere} and {offset}",
                partition=log.partition,
                operations=() if write is None else (seen.operations[write[0]],),
                records=((elsewhere, value), (offset, value)),
            )


def judge_reads(seen: Observations, log: ObservedLog, isolation_level: IsolationLevel) -> Iterator[Anomaly]:
    """Whether what this level's readers saw was written, had not failed, and could be decided by then.

    Each record is judged by its first reader, which saw it earliest.
    """
    operations, writes = seen.operations, log.writes
    filtered = isolation_level is IsolationLevel.READ_COMMITTED
    first_readers = log.readings(isolation_level).first_readers
    seen.exercised[rules.PHANTOM.name] += len(first_readers)
    for record, position in first_readers.items():
        write = writes.get(record[1])
        if write is None:
            yield _read(rules.PHANTOM, log, record, reader=operations[position])
            continue
        writer = operations[write[0]]
        if position == write[0]:
            continue  # what a transaction reads of itself has a rule of its own
        if writer.outcome is _FAIL:
            # At read_uncommitted, aborted records are there for everybody to read.
            if filtered or not writer.transactional:
                yield _read(rules.ABORTED_READ, log, record, reader=operations[position], writer=writer)
        elif filtered and writer.commit_asked_at is not None:
            seen.exercised[rules.UNDECIDED_READ.name] += 1
            # Only then is it certain: a read that ended later may have seen the commit.
            if operations[position].completed_at < writer.commit_asked_at:
                yield _read(rules.UNDECIDED_READ, log, record, reader=operations[position], writer=writer)


_OF_THE_WRITER = {
    rules.PHANTOM: "which no client wrote there",
    rules.ABORTED_READ: "whose write had failed",
    rules.UNDECIDED_READ: "before its commit was asked for",
}


def _read(
    rule: Rule,
    log: ObservedLog,
    record: Record,
    *,
    reader: ClientOperation,
    writer: ClientOperation | None = None,
) -> Anomaly:
    offset, value = record
    by = "" if writer is None else f" of {writer}"
    return Anomaly(
        rule,
        text=f"{reader} read {shown(value)}{by} at {log.partition} offset {offset}, {_OF_THE_WRITER[rule]}",
        partition=log.partition,
        operations=(reader,) if writer is None else (reader, writer),
        records=(record,),
    )


# --- missing records ----------------------------------------------------------------------------------------


class Missed(NamedTuple):
    """A write that its readers did not read; `because` is rules.LOST_WRITE or rules.UNSEEN."""

    because: Rule
    partition: TopicPartition
    value: bytes
    offset: int | None


@attrs.define(eq=False)
class _Count:
    """For one operation: how many values it wrote, how many were read at read_committed, which are missed."""

    written: int = 0
    read: int = 0
    missed: list[Missed] = attrs.field(factory=list[Missed])


def judge_missing(
    seen: Observations, finally_read: Collection[TopicPartition], compacted: Collection[TopicPartition]
) -> Iterator[Anomaly]:
    """Lost writes, unseen writes and torn transactions of the whole history."""
    counts: dict[int, _Count] = {}
    for log in (log for log in seen.logs.values() if log.partition not in compacted):
        _count(seen, log, counts, finally_read=log.partition in finally_read)
    for position, count in counts.items():
        writer = seen.operations[position]
        if writer.transactional and count.written > 1 and count.read:
            seen.exercised[rules.TORN_TRANSACTION.name] += 1
        if not count.missed:
            continue
        if writer.transactional and count.read:
            yield _torn(seen, position, count)
        # No client was told that a transaction of unknown outcome is committed: only its other half says so.
        if writer.outcome is OperationOutcome.OK or not writer.transactional:
            yield from (_missing(seen, position, missed) for missed in count.missed)


def _count(seen: Observations, log: ObservedLog, counts: dict[int, _Count], *, finally_read: bool) -> None:
    """Goes through the writes of one partition."""
    operations, exercised = seen.operations, seen.exercised
    # Readers passed everything below the highest offset that they read: one that began further up went on
    # from others.
    levels = [level for level in (log.committed, log.uncommitted) if level.first_readers]
    highest = log.committed.highest
    # A value has arrived when readers of committed records saw it, where there are such readers.
    arrived = log.committed.values if log.committed.is_polled else log.uncommitted.values
    for value, (position, acknowledged) in log.writes.items():
        count = counts.get(position)
        if count is None:
            count = counts[position] = _Count()
        count.written += 1
        # Only these show that its transaction committed: at read_uncommitted, all writes are read.
        count.read += value in log.committed.values
        offset = log.places.get(value, acknowledged)
        if not seen.happened(position, value, log):
            if (
                offset is not None
                and offset <= highest
                and operations[position].outcome is OperationOutcome.FAIL
            ):
                exercised[rules.ABORTED_READ.name] += 1
            continue
        # Whether a reader passed a write is known only if the offset of the write is. It may still be unseen.
        met = [] if offset is None else [level for level in levels if offset <= level.highest]
        exercised[rules.LOST_WRITE.name] += bool(met)
        exercised[rules.UNSEEN.name] += finally_read
        if any(value not in level.values for level in met):
            count.missed.append(Missed(rules.LOST_WRITE, log.partition, value, offset))
        elif finally_read and value not in arrived:
            count.missed.append(Missed(rules.UNSEEN, log.partition, value, offset))


def _missing(seen: Observations, position: int, missed: Missed) -> Anomaly:
    writer = seen.operations[position]
    where = missed.partition if missed.offset is None else f"{missed.partition} offset {missed.offset}"
    fate = "readers passed it" if missed.because is rules.LOST_WRITE else "the partition was read to its end"
    return Anomaly(
        missed.because,
        text=f"{shown(missed.value)} of {writer} at {where} was never read, though {fate}",
        partition=missed.partition,
        operations=(writer,),
        records=_records([missed]),
    )


def _torn(seen: Observations, position: int, count: _Count) -> Anomaly:
    writer = seen.operations[position]
    lacking = ", ".join(f"{shown(missed.value)} of {missed.partition}" for missed in count.missed)
    return Anomaly(
        rules.TORN_TRANSACTION,
        text=f"{count.read} of {count.written} writes of {writer} were read, but not {lacking}",
        operations=(writer,),
        records=_records(count.missed),
    )


def _records(missed: list[Missed]) -> tuple[Record, ...]:
    return tuple((write.offset, write.value) for write in missed if write.offset is not None)


# --- order --------------------------------------------------------------------------------------------------

_SKIPS: Final = (rules.POLL_SKIP, rules.INTERNAL_POLL_SKIP)


def judge_polls(seen: Observations, log: ObservedLog, *, may_skip: bool) -> Iterator[Anomaly]:
    """Skips and steps back, within an operation and from one to the next of its process."""
    last: dict[str, tuple[int, int]] = {}  # position in the history and offset, by process
    within = across = 0
    for position, records in log.visits:
        operation = seen.operations[position]
        before = last.get(operation.process)
        if records is None:
            last.pop(operation.process, None)
            continue
        offsets = [offset for offset, _ in records]
        readings = log.readings(operation.isolation_level)
        within += len(offsets) - 1
        if before is not None:
            within += before[0] == position
            across += before[0] != position
            offsets.insert(0, before[1])
        last[operation.process] = (position, offsets[-1])
        # Nearly every poll is a run of neighbours, which one comparison shows; the others go step by step.
        start = readings.index.get(offsets[0])
        if start is None or readings.order[start : start + len(offsets)] != offsets:
            since = position if before is None else before[0]
            for anomaly in _judge_steps(seen, log, readings, offsets, since=since, position=position):
                if not (may_skip and anomaly.rule in _SKIPS):
                    yield anomaly
    seen.exercised[rules.INTERNAL_POLL_SKIP.name] += 0 if may_skip else within
    seen.exercised[rules.INTERNAL_NONMONOTONIC_POLL.name] += within
    seen.exercised[rules.POLL_SKIP.name] += 0 if may_skip else across
    seen.exercised[rules.NONMONOTONIC_POLL.name] += across


def _judge_steps(
    seen: Observations, log: ObservedLog, readings: Readings, offsets: list[int], *, since: int, position: int
) -> Iterator[Anomaly]:
    """Step by step through offsets that are not in order; the first of them was read by
    the operation at `since`, the others by the one at `position`.
    """
    operation = seen.operations[position]
    for before, after in pairwise(offsets):
        order = readings.order
        skipped = order[bisect_right(order, before) : bisect_left(order, after)]
        is_internal = since == position
        if after <= before:
            rule = rules.INTERNAL_NONMONOTONIC_POLL if is_internal else rules.NONMONOTONIC_POLL
            what = f"went back from {log.partition} offset {before} to {after}"
        elif skipped:
            rule = rules.INTERNAL_POLL_SKIP if is_internal else rules.POLL_SKIP
            what = f"went from {log.partition} offset {before} to {after} and left out {skipped[0]}"
        else:
            rule, what = None, ""
        if rule is not None:
            yield Anomaly(
                rule,
                text=f"{operation} {what}" + (f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""),
                partition=log.partition,
                operations=(operation,) if is_internal else (seen.operations[since], operation),
                records=tuple((offset, log.values[offset]) for offset in [before, *skipped, after]),
            )
        since = position


def judge_sends(seen: Observations, log: ObservedLog) -> Iterator[Anomaly]:
    """Whether the acknowledged offsets of each process's writes grow in the order in which it sent them."""
    last: dict[str, tuple[int, int, bytes]] = {}  # position in the history, offset and value, by process
    within = across = 0
    for value, (position, offset) in log.writes.items():
        # Only what is there for certain has a place: a leader that lost its power may take the others with
        # it.
        if offset is None or not seen.is_committed[position]:
            continue
        operation = seen.operations[position]
        before = last.get(operation.process)
        last[operation.process] = (position, offset, value)
        if before is None:
            continue
        is_internal = before[0] == position
        within += is_internal
        across += not is_internal
        if offset < before[1]:
            since = seen.operations[before[0]]
            yield Anomaly(
                rules.INTERNAL_NONMONOTONIC_SEND if is_internal else rules.NONMONOTONIC_SEND,
                text=f"{operation} wrote {shown(value)} at {log.partition} offset {offset},"
                f" after {shown(before[2])} of {since} at {before[1]}",
                partition=log.partition,
                operations=(operation,) if is_internal else (since, operation),
                records=((before[1], before[2]), (offset, value)),
            )
    seen.exercised[rules.INTERNAL_NONMONOTONIC_SEND.name] += within
    seen.exercised[rules.NONMONOTONIC_SEND.name] += across


# --- dependencies between transactions ----------------------------------------------------------------------

Edges = dict[int, dict[int, tuple[ObservedLog, Record]]]
"""From each transaction to those that read what it wrote, with the first record that shows it."""

SHOWN_MAX = 8  # edges of a cycle that its text names; all of them are in its records


def judge_mixed(seen: Observations) -> Iterator[Anomaly]:
    """Transactions that read and write: their own writes are not theirs to read, nor may they read in a
    cycle. A cycle of writes (Jepsen's G0) is allowed: records of open transactions are interleaved in a log.
    """
    edges: Edges = {position: {} for position in seen.mixed if seen.is_committed[position]}
    own: list[Anomaly] = []
    for position in seen.mixed:
        operation = seen.operations[position]
        polls = [action for action in operation.actions if isinstance(action, Poll)]
        written = {action.partition for action in operation.actions if isinstance(action, Write)}
        seen.exercised[rules.PRECOMMITTED_READ.name] += any(poll.partition in written for poll in polls)
        for poll in polls:
            log = seen.logs[poll.partition]
            for record in poll.records:
                writer, _ = log.writes.get(record[1], (position, None))
                if writer != position:
                    if writer in edges and position in edges:
                        edges[writer].setdefault(position, (log, record))
                elif record[1] in log.writes:
                    own.append(_own_read(operation, log, record))
    seen.exercised[rules.CIRCULAR_READS.name] += sum(map(len, edges.values()))
    yield from _cycle(seen, edges)
    yield from own


def _own_read(operation: ClientOperation, log: ObservedLog, record: Record) -> Anomaly:
    offset, value = record
    return Anomaly(
        rules.PRECOMMITTED_READ,
        text=f"{operation} read its own {shown(value)} at {log.partition} offset {offset}",
        partition=log.partition,
        operations=(operation,),
        records=(record,),
    )


def _cycle(seen: Observations, edges: Edges) -> Iterator[Anomaly]:
    # One cycle is enough to break the rule, and this finds one in linear time.
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for writer, readers in edges.items():
        for reader in readers:
            sorter.add(reader, writer)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle: list[int] = error.args[1]  # the first one again at its end
        steps = [(position, *edges[position][after]) for position, after in pairwise(cycle)]
        told = [
            f"{seen.operations[position]} -> ({shown(record[1])} of {log.partition})"
            for position, log, record in steps[:SHOWN_MAX]
        ]
        left_out = f" -> {len(steps) - SHOWN_MAX} more" if len(steps) > SHOWN_MAX else ""
        yield Anomaly(
            rules.CIRCULAR_READS,
            text=f"{' -> '.join(told)}{left_out} -> {seen.operations[cycle[0]]}",
            operations=tuple(seen.operations[position] for position, _, _ in steps),
            records=tuple(record for _, _, record in steps),
        )


# --- exactly once from end to end ---------------------------------------------------------------------------

Values = Mapping[TopicPartition, Iterable[bytes]]
Transform = Callable[[TopicPartition, bytes], Iterable[tuple[TopicPartition, bytes]]]


def exactly_once(inputs: Values, outputs: Values, transform: Transform) -> HistoryVerdict:
    """Compare what was read at read_committed, by partition, with what `transform` makes of every input.

    Results need not be unique. Where a retry marks its values to keep them unique, the mark must be off by
    here.
    """
    due = Counter(
        result
        for partition, values in inputs.items()
        for value in values
        for result in transform(partition, value)
    )
    found = Counter((partition, value) for partition, values in outputs.items() for value in values)
    exercised = {
        rules.MISSING_OUTPUT.name: due.total(),
        rules.DOUBLED_OUTPUT.name: due.total(),
        rules.FOREIGN_OUTPUT.name: found.total(),
    }
    return HistoryVerdict(tuple(_differences(due, found)), exercised=exercised)


def _differences(
    due: Counter[tuple[TopicPartition, bytes]], found: Counter[tuple[TopicPartition, bytes]]
) -> Iterator[Anomaly]:
    for (partition, value), count in due.items():
        there = found[partition, value]
        if there != count:
            rule: Rule = rules.MISSING_OUTPUT if there < count else rules.DOUBLED_OUTPUT
            text = f"{shown(value)} is {there} times in {partition}, not {count}"
            yield Anomaly(rule, text=text, partition=partition)
    for partition, value in found:
        if (partition, value) not in due:
            text = f"{shown(value)} is in {partition}, and no input produces it"
            yield Anomaly(rules.FOREIGN_OUTPUT, text=text, partition=partition)
