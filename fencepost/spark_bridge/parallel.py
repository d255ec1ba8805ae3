"""Calls for many partitions in parallel threads, because their files may be on a remote store.

Rule: the results come in the order of the partitions, and the first error in that order is raised, as if the
partitions had been read one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Final, TypeVar

from fencepost.journal.layouts import LogLayout
from fencepost.protocol.terms import TopicPartition
from fencepost.spark_bridge.partition_files import PartitionFiles, with_listing

Item = TypeVar("Item")
Result = TypeVar("Result")

# They overlap the waits for a network; for files in memory they make no difference. On an object store with
# 30 ms per request, 100 partitions are planned in 68 s by one thread, in 9 s by 8 and in 4 s by 24. pyarrow's
# client of S3 has 25 connections.
THREADS: Final = 24


def parallel_map(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Returns the result for each item; raises what `work` raises."""
    count = min(THREADS, len(items))
    if count < 2:
        return [work(item) for item in items]

    def work_on_part(number: int) -> list[Result]:
        return [work(item) for item in items[bounds[number] : bounds[number + 1]]]

    # A part for each thread: with a future for each item, planning 1,000 partitions in memory took at least
    # 0.15 s of CPU time, instead of 0.12 s.
    bounds = [len(items) * number // count for number in range(count + 1)]
    with ThreadPoolExecutor(count) as pool:
        return list(chain.from_iterable(pool.map(work_on_part, range(count))))


def for_each_log(
    layout: LogLayout, partitions: Sequence[TopicPartition], use: Callable[[PartitionFiles], Result]
) -> dict[TopicPartition, Result]:
    """Returns `use(files)` for the files of each partition; raises what `with_listing` raises."""
    found = parallel_map(lambda partition: with_listing(layout, partition, use), partitions)
    return dict(zip(partitions, found, strict=True))
