"""The rules about order: a reader goes through its partition without gaps and never back, a writer's
offsets grow.

Rule: between two records of one reader nothing is wrong but what others have read there; holes are no
records.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise

from fencepost.simulator.judges.anomalies import (
    INTERNAL_NONMONOTONIC_POLL,
    INTERNAL_NONMONOTONIC_SEND,
    INTERNAL_POLL_SKIP,
    NONMONOTONIC_POLL,
    NONMONOTONIC_SEND,
    POLL_SKIP,
    Anomaly,
)
from fencepost.simulator.judges.log_order import Observations, PartitionLog, Readings


def judge_polls(seen: Observations, log: PartitionLog) -> Iterator[Anomaly]:
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
        start = readings.index.get(offsets[0])
        if start is None or readings.order[start : start + len(offsets)] != offsets:
            since = position if before is None else before[0]
            yield from _judge_steps(seen, log, readings, offsets, since=since, position=position)
    seen.sometimes[INTERNAL_POLL_SKIP.name] += within
    seen.sometimes[INTERNAL_NONMONOTONIC_POLL.name] += within
    seen.sometimes[POLL_SKIP.name] += across
    seen.sometimes[NONMONOTONIC_POLL.name] += across


def _judge_steps(
    seen: Observations,
    log: PartitionLog,
    readings: Readings,
    offsets: list[int],
    *,
    since: int,
    position: int,
) -> Iterator[Anomaly]:
    """Step by step through offsets that are no part of the order as they stand; the first of them was read by
    the operation at `since`, the others by the one at `position`.
    """
    operation = seen.operations[position]
    for before, after in pairwise(offsets):
        order = readings.order
        skipped = order[bisect_right(order, before) : bisect_left(order, after)]
        is_internal = since == position
        if after <= before:
            rule = INTERNAL_NONMONOTONIC_POLL if is_internal else NONMONOTONIC_POLL
            what = f"went back from {log.partition} offset {before} to {after}"
        elif skipped:
            rule = INTERNAL_POLL_SKIP if is_internal else POLL_SKIP
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


def judge_sends(seen: Observations, log: PartitionLog) -> Iterator[Anomaly]:
    """Whether the acknowledged offsets of each process's writes grow in the order in which it sent them."""
    last: dict[str, tuple[int, int, bytes]] = {}  # position in the history, offset and value, by process
    within = across = 0
    for value, (position, offset) in log.writes.items():
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
                INTERNAL_NONMONOTONIC_SEND if is_internal else NONMONOTONIC_SEND,
                text=f"{operation} wrote {value!r} at {log.partition} offset {offset},"
                f" after {before[2]!r} of {since} at {before[1]}",
                partition=log.partition,
                operations=(operation,) if is_internal else (since, operation),
                records=((before[1], before[2]), (offset, value)),
            )
    seen.sometimes[INTERNAL_NONMONOTONIC_SEND.name] += within
    seen.sometimes[NONMONOTONIC_SEND.name] += across
