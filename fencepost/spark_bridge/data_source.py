"""`format("fencepost")`: a Spark data source over the files of a broker.

Rule: the driver plans, workers read. Spark sends workers only options and tasks, so a retried task reads the
same records.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fencepost.journal.disk import DiskStorage
from fencepost.protocol.errors import FencepostError
from fencepost.spark_bridge.options import ReadOptions, checked_names, default_schema, parse_options
from fencepost.spark_bridge.planning import plan
from fencepost.spark_bridge.scanning import TaskScan

if TYPE_CHECKING:
    import pyarrow as pa


class UnfitWorker(FencepostError):
    """The Python of a Spark worker lacks a package that the reader needs."""


class FencepostDataSource(DataSource):
    """The data directory of a Fencepost broker as a table, with the columns and options of Spark's Kafka
    source.
    """

    @classmethod
    def name(cls) -> str:
        return "fencepost"

    def schema(self) -> str:
        return default_schema(include_headers=parse_options(self.options).include_headers)

    def reader(self, schema: StructType) -> LogReader:
        options = parse_options(self.options)
        # A worker may have another working directory than the driver.
        return LogReader(attrs.evolve(options, path=os.path.abspath(options.path)), checked_names(schema))


class LogReader(DataSourceReader):
    """Plans on the driver and reads on the workers. Small, because Spark sends it with every task."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self.options = options
        self.names = names

    def partitions(self) -> list[InputPartition]:
        storage = DiskStorage(self.options.path, read_only=True)
        return [InputPartition(task) for task in plan(storage, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: Any = partition.value
        if task is None:  # Spark calls read(None) if partitions() is empty
            return iter(())
        try:
            from fencepost.spark_bridge.rows import record_batches
        except ImportError as missing:
            raise UnfitWorker(
                f"a Spark worker ({sys.executable}) cannot import {missing.name}: install fencepost[spark] "
                "for it, or point PYSPARK_PYTHON to a Python that has it"
            ) from missing
        scan = TaskScan(
            DiskStorage(self.options.path, read_only=True),
            task,
            isolation_level=self.options.isolation_level,
            fail_on_data_loss=self.options.fail_on_data_loss,
        )
        return record_batches(scan, task, self.names)
