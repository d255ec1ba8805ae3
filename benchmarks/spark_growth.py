"""What slows a read with Spark down: records, partitions, aborted transactions.
`python -m benchmarks --only spark-growth`.

The logs are written without a broker, straight through the journal: transactions of 1,000 records, one in ten
aborted. Each row plans the read of its log in this process, then Spark reads all rows and 7 columns into a
sink that keeps nothing.

Rule: one thing grows at a time. What would take longer than the time of a row is not measured, and the table
says so.
"""

from __future__ import annotations

import os
import pickle
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import attrs

from benchmarks.load_rounds import Tell
from benchmarks.loads import KEYS, PARTITIONS, VALUE_SIZE, VALUES
from benchmarks.report import Grid
from benchmarks.spark import ABORTED, CORES, RECORDS_PER_TRANSACTION
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from fencepost.journal.journal import Journal
from fencepost.journal.manifest import ManifestState
from fencepost.journal.open_transactions import OpenTransactions
from fencepost.protocol.batches import build_marker, place, read_header
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import TopicPartition, TransactionResult
from fencepost.spark_bridge.options import parse_options
from fencepost.spark_bridge.ranges import plan_batch
from fencepost.spark_bridge.session import session
from fencepost.spark_bridge.worker import layout_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC: Final = "grown"
SECONDS_MAX: Final = 900.0  # to write the log of a row, and again to read it
PRODUCER, ABORTING = 1, 2  # ids
TIME: Final = 1_700_000_000_000  # of all records, in ms
BYTES_PER_ROW: Final = 2 * VALUE_SIZE  # on the disk, at most; the disk is asked before a log is written
ABORTED_BYTES: Final = 1_000  # of one aborted transaction of one record, with its index, at most


@attrs.frozen(kw_only=True)
class LogShape:
    """The size of a log."""

    rows: int = 1_000_000
    """Visible ones, at least."""
    partitions: int = PARTITIONS
    small_aborted: int = 0
    """Aborted transactions of one record, beside those of 1,000."""

    @property
    def committed(self) -> int:
        """The committed transactions of each partition."""
        return -(-self.rows // (RECORDS_PER_TRANSACTION * self.partitions))

    @property
    def visible_rows(self) -> int:
        """The rows that a reader sees at read_committed."""
        return self.committed * self.partitions * RECORDS_PER_TRANSACTION


@attrs.frozen(kw_only=True)
class SparkGrown:
    """A row of a table."""

    what: str
    count: int
    missing: str = ""
    """Why there are no figures."""
    rows: int = 0
    plan_seconds: float = 0.0
    tasks: int = 0
    task_bytes: int = 0
    """Of the largest task, pickled."""
    read_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Rows per second, with the planning."""
        return self.rows / self.read_seconds


Shapes = Sequence[tuple[str, Sequence[tuple[int, LogShape]]]]
TABLES: Final[Shapes] = (
    ("records", [(rows, LogShape(rows=rows)) for rows in (1_000_000, 10_000_000, 100_000_000)]),
    ("partitions", [(count, LogShape(partitions=count)) for count in (1, 10, 100, 1_000)]),
    (
        "aborted transactions",
        [(count, LogShape(small_aborted=count)) for count in (100, 1_000, 10_000, 100_000, 1_000_000)],
    ),
)
QUICK_TABLES: Final[Shapes] = (
    ("records", [(rows, LogShape(rows=rows)) for rows in (10_000, 20_000)]),
    ("aborted transactions", [(count, LogShape(rows=10_000, small_aborted=count)) for count in (10, 1_000)]),
)


def measured_spark_growth(
    *, quick: bool, data: Path, tell: Tell, seconds_max: float = SECONDS_MAX
) -> list[SparkGrown]:
    """Every row; SparkMissing or NoJava without Spark."""
    grown: list[SparkGrown] = []
    with session("benchmarks", master=f"local[{CORES}]") as spark:
        with TemporaryDirectory(prefix="fencepost-growth-", dir=data) as log:
            # The first read of a session starts its workers.
            _measured(spark, "", 0, LogShape(rows=RECORDS_PER_TRANSACTION), log, seconds_max)
        for what, shapes in QUICK_TABLES if quick else TABLES:
            for count, shape in shapes:
                tell(f"{count:,} {what}")
                with TemporaryDirectory(prefix="fencepost-growth-", dir=data) as log:
                    grown.append(_measured(spark, what, count, shape, log, seconds_max))
    return grown


def _measured(
    spark: SparkSession, what: str, count: int, shape: LogShape, log: str, seconds_max: float
) -> SparkGrown:
    needed = shape.rows * BYTES_PER_ROW + shape.small_aborted * ABORTED_BYTES
    if disk_usage(log).free < needed:
        return SparkGrown(what=what, count=count, missing=f"needs {needed >> 30} GiB of disk")
    if not write_log(Path(log), shape, seconds_max=seconds_max):
        return SparkGrown(what=what, count=count, missing=f"not written in {seconds_max:.0f} s")
    frame = spark.read.format("fencepost").option("subscribe", TOPIC).load(log)
    began = time.perf_counter()
    options = parse_options({"path": log, "subscribe": TOPIC}, parallelism=CORES)
    tasks = plan_batch(layout_of(options), options, report=None)
    planned = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return SparkGrown(
        what=what,
        count=count,
        rows=shape.visible_rows,
        plan_seconds=planned - began,
        tasks=len(tasks),
        task_bytes=max(len(pickle.dumps(task)) for task in tasks),
        read_seconds=time.perf_counter() - planned,
    )


# --- the logs -----------------------------------------------------------------------------------------------


class LogWriter:
    """Appends to a log what a broker would."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.transactions = OpenTransactions()

    def append(self, batch: bytearray) -> None:
        """Append a batch, whose offset and leader epoch are written into it."""
        journal = self.journal
        if journal.is_full and self.transactions.first_offset is None:
            journal.roll([])
        place(batch, base_offset=journal.log_end_offset, leader_epoch=0)
        header = read_header(batch)
        journal.append(batch, header, leader_epoch=0, aborted=self.transactions.update(header, batch))

    def finish(self) -> None:
        """Write what a broker writes when it stops."""
        end = self.journal.log_end_offset
        self.journal.write_manifest(ManifestState(last_stable_offset=end, high_watermark=end))
        self.journal.close()


def _batch(count: int, producer_id: int) -> bytearray:
    return build_data_batch(
        list(islice(cycle(VALUES), count)),
        keys=list(islice(cycle(KEYS), count)),
        base_timestamp=TIME,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def _marker(result: TransactionResult, producer_id: int) -> bytearray:
    return build_marker(
        result, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=TIME
    )


def write_log(directory: Path, shape: LogShape, *, seconds_max: float = SECONDS_MAX) -> bool:
    """Writes a log into an empty directory; False if the time was over before."""
    data = DataDirectory.open(DiskStorage(directory))
    began = time.perf_counter()
    try:
        for number in range(shape.partitions):
            writer = LogWriter(data.journal(TopicPartition(TOPIC, number)))
            for batch in _batches(shape, number):
                writer.append(batch)
                if time.perf_counter() - began > seconds_max:
                    return False
            writer.finish()
    finally:
        data.abandon()
    return True


def _batches(shape: LogShape, partition: int) -> Iterator[bytearray]:
    """The batches of a partition, the same few again and again."""
    commit, abort = (
        _marker(result, PRODUCER) for result in (TransactionResult.COMMIT, TransactionResult.ABORT)
    )
    batch, single = _batch(RECORDS_PER_TRANSACTION, PRODUCER), _batch(1, ABORTING)
    abort_single = _marker(TransactionResult.ABORT, ABORTING)
    small = shape.small_aborted // shape.partitions + (partition < shape.small_aborted % shape.partitions)
    for number in range(shape.committed):
        yield batch
        yield commit
        if (number + 1) % (ABORTED - 1) == 0:
            yield batch
            yield abort
        for _ in range(small * (number + 1) // shape.committed - small * number // shape.committed):
            yield single
            yield abort_single


# --- the tables ---------------------------------------------------------------------------------------------


def spark_growth_grids(grown: Sequence[SparkGrown]) -> list[Grid]:
    """A table for each thing that grows."""
    grids: list[Grid] = []
    for what in dict.fromkeys(row.what for row in grown):
        of_it = [row for row in grown if row.what == what]
        columns = (what, "rows", "rows/s", "relative to the first", "planning", "tasks", "largest task")
        grids.append(
            Grid(
                f"PySpark source with more {what}",
                columns=columns,
                rows=[_row(row, of_it[0]) for row in of_it],
            )
        )
    return grids


def _row(row: SparkGrown, first: SparkGrown) -> list[str]:
    if row.missing:
        return [f"{row.count:,}", row.missing, *["-"] * 5]
    beside = "-" if first.missing else f"{row.rate / first.rate:.2f}×"
    return [
        f"{row.count:,}",
        f"{row.rows:,}",
        f"{row.rate:,.0f}",
        beside,
        f"{row.plan_seconds:.2f} s",
        f"{row.tasks:,}",
        f"{row.task_bytes:,} bytes",
    ]


def spark_growth_as_json(grown: Sequence[SparkGrown]) -> list[dict[str, Any]]:
    """The rows for programs."""
    return [{**attrs.asdict(row), "rate": None if row.missing else row.rate} for row in grown]


def spark_growth_conditions(grown: Sequence[SparkGrown]) -> str:
    """The conditions of the measurement, in one sentence."""
    return (
        f"{len(grown)} rows, one run each · records of {VALUE_SIZE} bytes in transactions of "
        f"{RECORDS_PER_TRANSACTION:,}, one in {ABORTED} aborted; 1,000,000 rows in {PARTITIONS} "
        f"partitions unless the table says otherwise · local[{CORES}] · {os.cpu_count()} CPUs, "
        f"{sys.platform}, Python {platform.python_version()}, PySpark {version('pyspark')}"
    )
