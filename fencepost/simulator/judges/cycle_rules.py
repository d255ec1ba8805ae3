"""The rules about who depends on whom: what a transaction reads of itself, and cycles of reads or of
writes.

Rule: an edge of reading leads from one transaction to another only at read_committed: its writer was
decided before its reader polled, and the reader is decided later, so that no cycle can be. Plain writes
are seen at once: no edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from fencepost.simulator.judges.anomalies import (
    CIRCULAR_READS,
    CIRCULAR_WRITES,
    PRECOMMITTED_READ,
    Anomaly,
    Rule,
)
from fencepost.simulator.judges.cycles import components, shortest_cycle
from fencepost.simulator.judges.log_order import Observations, PartitionLog
from fencepost.simulator.judges.operations import Poll, Record, Write

# from writer to the one after it, and what shows it
SHOWN_MAX = 8  # edges of a cycle that its text names; all of them are in its records

Edges = dict[int, dict[int, tuple[PartitionLog, Record]]]


def judge_mixed(seen: Observations) -> Iterator[Anomaly]:
    """Transactions that read and write: their own writes are not theirs to read, nor may they read in a
    cycle.
    """
    edges: Edges = {position: {} for position in seen.mixed if seen.is_committed[position]}
    for position in seen.mixed:
        actions = seen.operations[position].actions
        polls = [action for action in actions if isinstance(action, Poll)]
        written = {action.partition for action in actions if isinstance(action, Write)}
        seen.sometimes[PRECOMMITTED_READ.name] += any(poll.partition in written for poll in polls)
        for poll in polls:
            log = seen.logs[poll.partition]
            for record in poll.records:
                writer, _ = log.writes.get(record[1], (position, None))
                if writer != position:
                    if writer in edges and position in edges:
                        edges[writer].setdefault(position, (log, record))
                elif record[1] in log.writes:
                    yield _own(seen, log, position, record)
    seen.sometimes[CIRCULAR_READS.name] += sum(map(len, edges.values()))
    yield from _cycles(CIRCULAR_READS, seen, edges)


def judge_writes(seen: Observations) -> Iterator[Anomaly]:
    """Cycles of transactions that wrote before each other; only neighbours in a log need an edge."""
    edges: Edges = {}
    for log in seen.logs.values():
        before: int | None = None
        for offset in sorted(log.values):
            value = log.values[offset]
            write = log.writes.get(value)
            if (
                write is None
                or not seen.is_committed[write[0]]
                or not seen.operations[write[0]].transactional
            ):
                continue
            if before is not None and before != write[0]:
                edges.setdefault(before, {}).setdefault(write[0], (log, (offset, value)))
            before = write[0]
    seen.sometimes[CIRCULAR_WRITES.name] += sum(map(len, edges.values()))
    yield from _cycles(CIRCULAR_WRITES, seen, edges)


def _own(seen: Observations, log: PartitionLog, position: int, record: Record) -> Anomaly:
    operation = seen.operations[position]
    return Anomaly(
        PRECOMMITTED_READ,
        text=f"{operation} read its own {record[1]!r} at {log.partition} offset {record[0]}",
        partition=log.partition,
        operations=(operation,),
        records=(record,),
    )


def _cycles(rule: Rule, seen: Observations, edges: Edges) -> Iterator[Anomaly]:
    if not any(edges.values()):
        return
    graph = {position: tuple(after) for position, after in edges.items()}
    for component in components(graph):
        cycle = shortest_cycle(graph, component)
        steps = [(position, *edges[position][after]) for position, after in pairwise([*cycle, cycle[0]])]
        shown = [
            f"{seen.operations[position]} -> ({record[1]!r} of {log.partition})"
            for position, log, record in steps[:SHOWN_MAX]
        ]
        left_out = f" -> {len(cycle) - SHOWN_MAX} more" if len(cycle) > SHOWN_MAX else ""
        yield Anomaly(
            rule,
            text=f"{' -> '.join(shown)}{left_out} -> {seen.operations[cycle[0]]}, of {len(component)} in all",
            operations=tuple(seen.operations[position] for position in cycle),
            records=tuple(record for _, _, record in steps),
        )
