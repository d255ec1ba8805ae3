"""A Spark data source that hands over Arrow batches that are ready: what any source in Python can reach.

Every task repeats the batch in a file. Nothing is read, decoded or filtered, so the time of a query is that
of Spark, which takes the batches over a socket and makes rows of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "ready"


class ReadyBatches(DataSource):
    """Options: `path` of a file with one record batch, the number of `rows`, and that of `tasks`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(
            self.options["path"], rows=int(self.options["rows"]), tasks=int(self.options["tasks"])
        )


class ReadyReader(DataSourceReader):
    """Each task yields an equal part of the rows."""

    def __init__(self, path: str, *, rows: int, tasks: int) -> None:
        self.path = path
        self.rows = rows
        self.tasks = tasks

    def partitions(self) -> list[InputPartition]:
        ends = [self.rows * (number + 1) // self.tasks for number in range(self.tasks)]
        return [InputPartition(end - start) for start, end in zip([0, *ends], ends, strict=False)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        left: Any = partition.value
        with pa.memory_map(self.path) as file, pa.ipc.open_file(file) as batches:
            batch = batches.get_batch(0)
            while left > 0:
                yield batch.slice(0, left)
                left -= min(left, batch.num_rows)


def register_ready_batches(spark: SparkSession) -> None:
    """Makes `format("ready")` known; workers cannot import the benchmarks, so they are sent the classes."""
    pickler: Any = cloudpickle
    pickler.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(ReadyBatches)


def write_ready_batch(batch: pa.RecordBatch, path: Path) -> None:
    """Writes the batch that tasks repeat."""
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as file:
        writer: Any = pa.ipc.new_file(file, batch.schema)
        writer.write(batch)
        writer.close()
