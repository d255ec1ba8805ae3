"""The partitions' logs as clients saw them: who wrote and who read what, and the order that readers must
keep.

Rule: an order holds nothing but offsets at which readers of that isolation level have read; control
markers, aborted data and whatever else they never see are squeezed out, so that neighbours in it are
neighbours to them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import attrs

from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.simulator.judges.operations import ClientOperation, OperationOutcome, Poll, Record, Write
from fencepost.simulator.judges.rules import Exercised

_READ_COMMITTED: Final = IsolationLevel.READ_COMMITTED
_FAIL: Final = OperationOutcome.FAIL
_OK: Final = OperationOutcome.OK
NOTHING_READ = -1  # below every offset
UNKNOWN_THEN_READ = "unknown-then-read"  # transactions of unknown outcome that were read
HOLES = "holes"  # places where an order squeezes offsets out: markers, aborted data


@attrs.define(eq=False)
class Readings:
    """What the readers of one isolation level saw of a partition.

    `first_readers` are positions in the history by record. `values` and `highest` are what was seen; at
    read_uncommitted that includes what readers of committed records saw. `order` are the offsets in turn,
    and `index` is the place of each in it.
    """

    first_readers: dict[Record, int] = attrs.field(factory=dict[Record, int])
    is_polled: bool = False
    values: set[bytes] = attrs.field(factory=set[bytes])
    highest: int = NOTHING_READ
    order: list[int] = attrs.field(factory=list[int])
    index: dict[int, int] = attrs.field(factory=dict[int, int])

    def settle(self, records: Collection[Record], offsets: Iterable[int]) -> None:
        """Everything is known: `records` were seen, and these readers must leave out none of `offsets`."""
        self.values = {value for _, value in records}
        self.highest = max(offset for offset, _ in records)
        self.order = sorted(set(offsets))
        self.index = {offset: index for index, offset in enumerate(self.order)}


@attrs.define(eq=False)
class ObservedLog:
    """One partition. `writes` are (position of the operation, acknowledged offset) by value; `visits` are
    polls in the order of the history, with None for records where a position was set.

    `places` and `values` are the first offset known of each value and the first value of each offset;
    `conflicts` are records that contradict them.
    """

    partition: TopicPartition
    writes: dict[bytes, tuple[int, int | None]] = attrs.field(factory=dict[bytes, tuple[int, int | None]])
    visits: list[tuple[int, tuple[Record, ...] | None]] = attrs.field(
        factory=list[tuple[int, tuple[Record, ...] | None]]
    )
    committed: Readings = attrs.field(factory=Readings)
    uncommitted: Readings = attrs.field(factory=Readings)
    places: dict[bytes, int] = attrs.field(factory=dict[bytes, int])
    values: dict[int, bytes] = attrs.field(factory=dict[int, bytes])
    conflicts: dict[Record, None] = attrs.field(factory=dict[Record, None])

    def readings(self, isolation_level: IsolationLevel) -> Readings:
        """What readers of this level saw."""
        return self.committed if isolation_level is _READ_COMMITTED else self.uncommitted


@attrs.define(eq=False)
class Observations:
    """A history taken apart. `is_committed` says by position whether an operation's writes are known to have
    happened; `mixed` are the transactions that read at read_committed and write.
    """

    operations: Sequence[ClientOperation]
    logs: dict[TopicPartition, ObservedLog]
    is_committed: list[bool]
    mixed: list[int]
    exercised: Exercised

    def happened(self, position: int, value: bytes, log: ObservedLog) -> bool:
        """Whether this write is known to be in its log for good: its operation is, or it stands alone and was
        acknowledged or read.
        """
        if self.is_committed[position]:
            return True
        operation = self.operations[position]
        alone = not operation.transactional and operation.outcome is OperationOutcome.INFO
        return alone and value in log.places


def observe(operations: Sequence[ClientOperation]) -> Observations:
    """Takes a history apart by partition; ValueError when a value was written twice to one."""
    seen = Observations(
        operations, {}, [operation.outcome is _OK for operation in operations], [], Exercised(int)
    )
    for position, operation in enumerate(operations):
        _take(seen, position, operation)
    # Two passes: what a reader saw in one partition shows that the transaction is committed in all.
    for log in seen.logs.values():
        _learn_commits(seen, log)
    for log in seen.logs.values():
        _settle(seen, log)
    return seen


def _take(seen: Observations, position: int, operation: ClientOperation) -> None:
    logs = seen.logs
    is_committed = operation.isolation_level is _READ_COMMITTED
    reads = writes = False
    for action in operation.actions:
        partition = action.partition
        log = logs.get(partition)
        if log is None:
            log = logs[partition] = ObservedLog(partition)
        if isinstance(action, Poll):
            readings = log.committed if is_committed else log.uncommitted
            readings.is_polled = True
            records = action.records
            if records:
                reads = True
                log.visits.append((position, records))
                first_readers = readings.first_readers
                for record in records:
                    if record not in first_readers:
                        first_readers[record] = position
        elif isinstance(action, Write):
            writes = True
            if action.value in log.writes:
                raise ValueError(
                    f"{action.value!r} was written twice to {partition}: the rules need unique values"
                )
            log.writes[action.value] = (position, action.offset)
        else:
            log.visits.append((position, None))
    if reads and writes and is_committed and operation.transactional:
        seen.mixed.append(position)


def _learn_commits(seen: Observations, log: ObservedLog) -> None:
    """A transaction of unknown outcome is committed when a reader sees one of its writes at
    read_committed.
    """
    operations, is_committed, writes = seen.operations, seen.is_committed, log.writes
    for _, value in log.committed.first_readers:
        write = writes.get(value)
        if write is None or is_committed[write[0]]:
            continue
        writer = operations[write[0]]
        if writer.transactional and writer.outcome is OperationOutcome.INFO:
            is_committed[write[0]] = True
            seen.exercised[UNKNOWN_THEN_READ] += 1


def _settle(seen: Observations, log: ObservedLog) -> None:
    values, places, conflicts = log.values, log.places, log.conflicts
    for record in _known(seen, log):
        offset, value = record
        there, elsewhere = values.setdefault(offset, value), places.setdefault(value, offset)
        if there != value or elsewhere != offset:
            conflicts[record] = None
    if committed := log.committed.first_readers:
        # A reader is not wrong to leave out what should not have been read.
        log.committed.settle(
            committed, [offset for offset, value in committed if _may_be_read(seen, log, value)]
        )
        order = log.committed.order
        seen.exercised[HOLES] += sum(after - before > 1 for before, after in pairwise(order))
    if log.uncommitted.first_readers:
        everything = log.committed.first_readers | log.uncommitted.first_readers
        log.uncommitted.settle(everything, [offset for offset, _ in everything])


def _known(seen: Observations, log: ObservedLog) -> Iterator[Record]:
    """Every record that was in the log for certain: what was read first, so that a value which was read and
    acknowledged at different offsets counts as standing where it was read.
    """
    yield from log.committed.first_readers
    yield from log.uncommitted.first_readers
    operations, is_committed = seen.operations, seen.is_committed
    for value, (position, offset) in log.writes.items():
        if offset is None:
            continue
        # An abort may take acknowledged offsets back with it (a leader that lost unsynced data), a commit
        # may not.
        writer = operations[position]
        if is_committed[position] or (not writer.transactional and writer.outcome is OperationOutcome.INFO):
            yield offset, value


def _may_be_read(seen: Observations, log: ObservedLog, value: bytes) -> bool:
    write = log.writes.get(value)
    return write is not None and seen.operations[write[0]].outcome is not _FAIL
