"""Table `losses`: what a read of records with failOnDataLoss=false leaves out, one row per loss.

Rule: it plans and scans as that read does, and keeps what is reported instead of the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from fencepost.journal.layouts import LogLayout
from fencepost.spark_bridge.losses import Loss
from fencepost.spark_bridge.options import ReadOptions
from fencepost.spark_bridge.planning import PlannedRange
from fencepost.spark_bridge.ranges import plan_batch
from fencepost.spark_bridge.scanning import RangeScan
from fencepost.spark_bridge.tables.table import Row, SourceTable
from fencepost.spark_bridge.topics import missing_from

COLUMNS: Final = {
    "topic": "string",
    "partition": "int",  # null, with the offsets, if the whole topic is gone
    "startOffset": "bigint",
    "endOffset": "bigint",  # exclusive; equal to startOffset if it is unknown how many are lost
    "file": "string",  # with the damage, or the directory
    "position": "bigint",  # the byte at which the damage begins; 0 if the file is gone
    "reason": "string",
}


@attrs.frozen(kw_only=True)
class LossTask:
    """Ranges to scan for losses; what the planner found in their partitions; rows that are known already."""

    ranges: tuple[PlannedRange, ...] = ()
    known: frozenset[Loss] = frozenset()
    rows: tuple[Row, ...] = ()


def plan_losses(layout: LogLayout, options: ReadOptions) -> list[LossTask]:
    """Returns a task with what the planner finds, and tasks that scan."""
    existing = layout.partitions()
    gone = missing_from(existing, options)
    lenient = attrs.evolve(
        options,
        fail_on_data_loss=False,
        subscribe=options.subscribe and tuple(name for name in options.subscribe if name not in gone),
        assign=options.assign and tuple(sorted({*options.assign} & {*existing})),
    )
    found: list[Loss] = []
    tasks = plan_batch(layout, lenient, report=found.append)
    rows = [
        (name, None, None, None, layout.location, None, f"{layout.location} does not hold {name}")
        for name in gone
    ]
    first = LossTask(rows=(*rows, *map(_row, found)))
    return [first] * bool(first.rows) + [
        LossTask(
            ranges=task.ranges,
            known=frozenset(
                loss for loss in found if any(loss.partition == each.partition for each in task.ranges)
            ),
        )
        for task in tasks
    ]


def read_losses(
    layout: LogLayout, task: LossTask, options: ReadOptions, wanted: frozenset[str]
) -> Iterator[Row]:
    """Yields the losses of a task, in the order in which a read would report them."""
    del wanted  # all of them cost the same
    yield from task.rows
    for range_ in task.ranges:
        found: list[Loss] = []
        scan = RangeScan(layout, range_, isolation_level=options.isolation_level, report=found.append)
        for _ in scan:
            yield from _new(found, task)
        yield from _new(found, task)


def _new(found: list[Loss], task: LossTask) -> Iterator[Row]:
    yield from (_row(loss) for loss in found if not any(known.covers(loss) for known in task.known))
    found.clear()


def _row(loss: Loss) -> Row:
    topic, partition = loss.partition
    return topic, partition, loss.start, loss.end, loss.file, loss.position, loss.reason


LOSSES: Final = SourceTable(columns=COLUMNS, plan=plan_losses, rows=read_losses)
