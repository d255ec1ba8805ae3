"""`readStream.format("fencepost")`: a stream of micro-batches over the files of a log.

Rule: a micro-batch is a pair of offsets per partition, and its end is at most the last stable offset. What is
below that is decided for good, so a micro-batch that is repeated has the same rows.
"""

# Theory of operation
#
# Spark writes the end of each micro-batch to its checkpoint before it reads the micro-batch, and a second
# entry when the sink is done. After a crash it asks for the same pair of offsets again. So the sink gets each
# row once if it is idempotent per micro-batch (files, or foreachBatch with the number of the batch), and if a
# pair of offsets always means the same rows:
#
#     committed below the LSO      stays: batches are immutable, and transactions are decided once
#     aborted below the LSO        stays hidden: its marker is below the LSO, too
#     at the LSO or after it       not read
#     deleted records              lost: failOnDataLoss says whether that is an error
#     a partition that is new      enters the offsets at its log start, with an empty range. The next
#                                  micro-batch reads from there; a log start that moves changes no range
#
# A trigger costs one listing per partition. Only what was added since the last one is walked
# (offsets_cache.py).
#
#     offsets   0        100        160        200
#               |--------|----------|----------|~~~~~~~~~ open transaction
#               start    end of     end of     LSO
#                        trigger 1  trigger 2

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from fencepost.journal.layouts import LogLayout
from fencepost.protocol.terms import TopicPartition
from fencepost.spark_bridge.columns import Column
from fencepost.spark_bridge.filesystems import shown
from fencepost.spark_bridge.log_offsets import LogOffsets
from fencepost.spark_bridge.losses import Loss
from fencepost.spark_bridge.offsets_cache import LogOffsetsCache
from fencepost.spark_bridge.options import ReadOptions
from fencepost.spark_bridge.parallel import for_each_log
from fencepost.spark_bridge.partition_files import DataLoss, PartitionFiles
from fencepost.spark_bridge.planning import PartitionRange, ReadTask, plan
from fencepost.spark_bridge.ranges import check_named, readable, report_loss, starting_offset
from fencepost.spark_bridge.stream_offsets import (
    CLUSTER,
    TOPICS,
    Offsets,
    decode_offsets,
    encode_offsets,
    limited,
)
from fencepost.spark_bridge.topic_ids import find_topic_ids
from fencepost.spark_bridge.topics import choose_partitions
from fencepost.spark_bridge.worker import layout_of, read_task

if TYPE_CHECKING:
    import pyarrow as pa


class LogStream:
    """Decides which offsets a micro-batch has, and cuts them into tasks."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._offsets_cache = LogOffsetsCache(options.report)

    def initial(self, layout: LogLayout) -> dict[TopicPartition, int]:
        """The offsets at which a new query begins; without startingOffsets at the end, as in Spark.

        Raises UnusableOption or DataLoss for offsets that do not exist.
        """
        partitions = self._partitions(layout)
        check_named(self._options.starting, partitions, "starting")
        return for_each_log(layout, partitions, self._initial)

    def _initial(self, log: PartitionFiles) -> int:
        bounds = self._offsets_cache.find(log)
        low, high = readable(bounds, self._options)
        offset = starting_offset(log, bounds, self._options, default="latest")
        if not low <= offset <= high:
            report_loss(log, "startingOffsets", offset, bounds, self._options, self._options.report)
        return min(high, max(low, offset))

    def latest(self, layout: LogLayout) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset that can be read now and one past the last, per partition."""
        return for_each_log(layout, self._partitions(layout), self._readable)

    def _readable(self, log: PartitionFiles) -> tuple[int, int]:
        return readable(self._offsets_cache.find(log), self._options)

    def next_end(
        self, start: Offsets, available: Mapping[TopicPartition, tuple[int, int]], most: int | None
    ) -> dict[TopicPartition, int]:
        """The end of the micro-batch that begins at `start`, with about `most` offsets.

        A partition that is not in `start` enters at its log start, with nothing to read yet. Raises DataLoss
        if a partition is gone, or ends before its start. With failOnDataLoss=false, a partition that is gone
        is left out, and one that ends early stays at its start.
        """
        starts: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        for partition, offset in start.items():
            if partition not in available:
                self._report_loss(partition, offset, offset, f"{partition} is gone")
                continue
            low, high = available[partition]
            if high < offset:
                message = f"{partition} ends at offset {high}, but the stream has read up to {offset}"
                self._report_loss(partition, offset, offset, f"{message}: its records were replaced")
            starts[partition] = max(offset, low)
            ends[partition] = max(starts[partition], high)
        if most is not None:
            ends = limited(starts, ends, most)
        return {**{partition: low for partition, (low, _) in available.items()}, **ends}

    def tasks(self, layout: LogLayout, start: Offsets, end: Offsets) -> list[ReadTask]:
        """The tasks that read from `start` to `end`; DataLoss for what cannot be read any more."""
        partitions = [each for each in sorted(end) if start.get(each, end[each]) < end[each]]
        existing = set(layout.partitions())
        for partition in partitions:
            if partition not in existing:
                self._report_loss(partition, start[partition], end[partition], f"{partition} is gone")
        return plan(
            layout,
            [partition for partition in partitions if partition in existing],
            partial(self._range, start, end),
            follows_transactions=self._options.follows_transactions,
            sizes=self._options.sizes,
            find_offsets=self._offsets_cache.find,
            report=self._options.report,
        )

    def _range(self, start: Offsets, end: Offsets, log: PartitionFiles, bounds: LogOffsets) -> PartitionRange:
        low, high = readable(bounds, self._options)
        first, last = start[log.partition], end[log.partition]
        if first < low:
            self._report_loss(
                log.partition,
                first,
                min(low, last),
                f"the stream is at offset {first} of {log.partition}, whose log begins at {low} now",
            )
        if last > high:
            self._report_loss(
                log.partition,
                max(first, high),
                last,
                f"the stream was at offset {last} of {log.partition}, which ends at {high} now",
            )
        first, last = max(first, low), min(last, high)
        return PartitionRange(partition=log.partition, start=min(first, last), end=last)

    def _partitions(self, layout: LogLayout) -> list[TopicPartition]:
        return choose_partitions(layout.partitions(), self._options, layout.location)

    def _report_loss(self, partition: TopicPartition, start: int, end: int, message: str) -> None:
        if self._options.report is None:
            raise DataLoss(f"{message}. failOnDataLoss=false continues with what exists")
        place = ", ".join(map(shown, self._options.paths))
        self._options.report(
            Loss(partition=partition, start=start, end=end, file=place, position=0, reason=message)
        )


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark asks of a stream. One instance lives on the driver as long as the query; copies of it read
    in workers.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[Column]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._stream = LogStream(options)
        self._target: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        layout = layout_of(self._options)
        return self._encoded(layout, self._stream.initial(layout))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        layout = layout_of(self._options)
        self._target = {partition: high for partition, (_, high) in self._stream.latest(layout).items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        layout = self._layout_of_stream(start)
        available = self._stream.latest(layout)
        reached = decode_offsets(start)
        if self._target is not None:
            # A new query may begin after the target: Spark asks for the target first.
            last = {
                each: max(self._target.get(each, 0), reached.get(each, 0))
                for each in {**self._target, **reached}
            }
            available = {
                partition: (low, max(low, min(high, last[partition])))
                for partition, (low, high) in available.items()
                if partition in last
            }
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = self._stream.next_end(reached, available, most)
        # The metadata no longer has the id of a topic whose deletion has begun.
        return self._encoded(layout, end, start.get(TOPICS, {}))

    def reportLatestOffset(self) -> dict[str, Any]:
        """Where the log ends for this stream: Spark's progress shows it beside the end of the micro-batch."""
        layout = layout_of(self._options)
        ends = {partition: high for partition, (_, high) in self._stream.latest(layout).items()}
        return self._encoded(layout, ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        # A topic may have been created again while `end` was determined: then only `start` has its old id.
        layout = self._layout_of_stream(start, end)
        tasks = self._stream.tasks(layout, decode_offsets(start), decode_offsets(end))
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: Any = partition.value
        return read_task(task, self._options, self._columns)

    def _encoded(
        self, layout: LogLayout, offsets: Offsets, known_ids: Mapping[str, str] = {}
    ) -> dict[str, Any]:
        topic_ids = {**known_ids, **find_topic_ids(layout, offsets)}
        return encode_offsets(offsets, cluster_id=layout.cluster_id, topic_ids=topic_ids)

    def _layout_of_stream(self, *several: Mapping[str, Any]) -> LogLayout:
        """The directories, opened anew; DataLoss if they or a topic are not those of the offsets."""
        layout = layout_of(self._options)
        for offsets in several:
            if offsets.get(CLUSTER, layout.cluster_id) != layout.cluster_id:
                raise DataLoss(
                    f"the checkpoint has offsets of cluster {offsets[CLUSTER]}, but {layout.location} "
                    f"belongs to cluster {layout.cluster_id}: the directory was replaced; begin with a new "
                    "checkpoint"
                )
        topic_ids = find_topic_ids(layout, [key for offsets in several for key in decode_offsets(offsets)])
        for topic, before in [item for offsets in several for item in offsets.get(TOPICS, {}).items()]:
            if topic_ids.get(topic, before) != before:
                raise DataLoss(
                    f"topic {topic} in {layout.location} is not that of the checkpoint: it was deleted and "
                    "created again, or the directory was replaced; begin with a new checkpoint"
                )
        return layout
