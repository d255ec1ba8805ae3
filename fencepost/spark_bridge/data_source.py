"""`format("fencepost")`: a Spark data source over the files of a broker.

Rule: the driver plans, workers read. Spark sends workers only options and tasks, so a retried task reads the
same records.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import attrs
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from fencepost.spark_bridge.columns import TRANSACTION_STATE, Column, checked_columns, default_schema
from fencepost.spark_bridge.filesystems import absolute
from fencepost.spark_bridge.option_values import UnusableOption
from fencepost.spark_bridge.options import RECORDS, ReadOptions, check_stream, parse_options
from fencepost.spark_bridge.pushdown import PushedFilters
from fencepost.spark_bridge.ranges import plan_batch
from fencepost.spark_bridge.streaming import LogStreamReader
from fencepost.spark_bridge.tables.registry import TABLES
from fencepost.spark_bridge.worker import layout_of, read_task

if TYPE_CHECKING:
    import pyarrow as pa


class FencepostDataSource(DataSource):
    """The data directory of a Fencepost broker as a table, with the columns and options of Spark's Kafka
    source.
    """

    parallelism: ClassVar[int] = 0
    """How many tasks run at the same time; 0: as many as the driver has cores. `register` sets it."""
    takes_filters: ClassVar[bool] = False
    """Whether Spark offers filters; `register` sets it. If not, Spark refuses a reader that would
    take them.
    """

    @classmethod
    def name(cls) -> str:
        return "fencepost"

    def schema(self) -> str:
        options = self._options()
        layout_of(options)  # so that a wrong path is refused by load(), not by the first action
        if options.table == RECORDS:
            return default_schema(
                include_headers=options.include_headers, include_transactions=options.include_transactions
            )
        return ", ".join(f"{name} {kind}" for name, kind in TABLES[options.table].columns.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options()
        if options.table == RECORDS:
            reader = FilteringReader if self.takes_filters else LogReader
            columns = checked_columns(schema)
            return reader(_with_transactions(options, columns), columns)
        return TableReader(options, checked_columns(schema, TABLES[options.table].columns))

    def streamReader(self, schema: StructType) -> LogStreamReader:
        options = self._options()
        check_stream(options)
        columns = checked_columns(schema)
        return LogStreamReader(_with_transactions(options, columns), columns)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        _refuse_writing()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        _refuse_writing()

    def _options(self) -> ReadOptions:
        options = parse_options(self.options, parallelism=self.parallelism or os.cpu_count() or 1)
        # A worker may have another working directory than the driver.
        return attrs.evolve(options, paths=tuple(map(absolute, options.paths)))


def _with_transactions(options: ReadOptions, columns: Sequence[Column]) -> ReadOptions:
    """The options of a read with these columns: a schema may ask for the state of transactions, too."""
    asks = any(column.name == TRANSACTION_STATE for column in columns)
    return attrs.evolve(options, include_transactions=asks)


def _refuse_writing() -> NoReturn:
    raise UnusableOption(
        'format("fencepost") reads only: write with a transactional producer in foreachBatch or '
        "foreachPartition, because Spark's tasks cannot share a transaction"
    )


def warn_of_ignored(options: ReadOptions) -> None:
    """Warns once of the options that have no effect here."""
    if options.ignored:
        warnings.warn(
            f"without effect: {', '.join(options.ignored)}; the log is read from files, not from a broker",
            stacklevel=2,
        )


class LogReader(DataSourceReader):
    """Plans on the driver and reads on the workers. Small, because Spark sends it with every task."""

    def __init__(self, options: ReadOptions, columns: tuple[Column, ...]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        return self._planned(None)

    def _planned(self, filters: PushedFilters | None) -> list[InputPartition]:
        warn_of_ignored(self.options)
        layout, report = layout_of(self.options), self.options.report
        tasks = plan_batch(layout, self.options, report=report, filters=filters)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: Any = partition.value
        if task is None:  # Spark calls read(None) if partitions() is empty
            return iter(())
        return read_task(task, self.options, self.columns)


class FilteringReader(LogReader):
    """A reader that follows the filters of a query where they exclude partitions, offsets or times."""

    def __init__(self, options: ReadOptions, columns: tuple[Column, ...]) -> None:
        super().__init__(options, columns)
        self._pushed: PushedFilters | None = None

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._pushed = PushedFilters()
        return self._pushed.take(filters)

    def partitions(self) -> list[InputPartition]:
        filters, self._pushed = self._pushed, None  # workers get the reader, and need no filters
        return self._planned(filters)


class TableReader(LogReader):
    """The same for a table other than records."""

    def partitions(self) -> list[InputPartition]:
        warn_of_ignored(self.options)
        tasks = TABLES[self.options.table].plan(layout_of(self.options), self.options)
        return [InputPartition(task) for task in tasks]
