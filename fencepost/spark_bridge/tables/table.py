"""What a table is, and what several of them share: places of files, and tasks of whole partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from fencepost.journal.layouts import LogLayout
from fencepost.journal.segments import LOG, file_name
from fencepost.journal.storage import directory_name
from fencepost.protocol.terms import NO_TIMESTAMP, TopicPartition
from fencepost.spark_bridge.log_offsets import LogOffsets
from fencepost.spark_bridge.options import ReadOptions
from fencepost.spark_bridge.partition_files import PartitionFiles
from fencepost.spark_bridge.planning import PlannedRange
from fencepost.spark_bridge.topics import choose_partitions

Row = tuple[object, ...]
"""The values of all columns, in order; a timestamp is in milliseconds."""


@attrs.frozen(kw_only=True)
class SourceTable:
    """A table of the source. What `plan` returns, Spark sends to workers one by one."""

    columns: Mapping[str, str]
    """Types by names, as in Spark's DDL."""
    plan: Callable[[LogLayout, ReadOptions], Sequence[Any]]
    rows: Callable[[LogLayout, Any, ReadOptions, frozenset[str]], Iterator[Row]]
    """The rows of a task. Columns that are not in the set need not be computed."""


def plan_partitions(layout: LogLayout, options: ReadOptions) -> list[tuple[TopicPartition, ...]]:
    """Distributes the partitions that the options choose over as many tasks as run at the same time, or over
    minPartitions.
    """
    partitions = choose_partitions(layout.partitions(), options, layout.location)
    count = max(options.sizes.parallelism, options.sizes.min_partitions or 1)
    dealt = [tuple(partitions[number::count]) for number in range(count)]
    return [some for some in dealt if some]


def whole_range(log: PartitionFiles, offsets: LogOffsets) -> PlannedRange:
    """All offsets of a partition, without what is known of its transactions."""
    start, end = offsets.log_start_offset, offsets.log_end_offset
    return PlannedRange(
        partition=log.partition,
        start=start,
        end=end,
        topic_id=log.topic_id,
        home=log.home,
        pieces=log.pieces(start, end),
        aborted=(),
        opened=(),
        is_indexed=False,
    )


def log_path(layout: LogLayout, partition: TopicPartition, home: int, base_offset: int) -> str:
    """The path of a log file in its data directory; with several directories, the whole path."""
    path = f"{directory_name(partition)}/{file_name(base_offset, LOG)}"
    return path if len(layout.storages) == 1 else f"{layout.storages[home].location}/{path}"


def time_or_none(timestamp: int) -> int | None:
    """A timestamp in ms; None for "no timestamp"."""
    return None if timestamp == NO_TIMESTAMP else timestamp
