"""The PySpark source compared with files that Spark itself reads: `python -m benchmarks --only spark`.

A broker process writes the logs: transactions to four partitions, one in ten aborted, once with Fencepost's
client (columns) and, if confluent-kafka is installed, once with that client (Kafka's records, magic 2). Then
the broker stops, and Spark writes the visible rows of the first topic to Parquet and to JSON.

Rule: in each round every source answers every query, one after the other, in alternating order. Only ratios
of the same round are compared with goals.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from benchmarks.brokers import speaking
from benchmarks.load_rounds import Tell
from benchmarks.loads import KEYS, PARTITIONS, VALUE_SIZE, VALUES
from benchmarks.report import Grid, Spread, goal, spread
from fencepost import Admin, Producer
from fencepost.spark_bridge.columns import checked_columns
from fencepost.spark_bridge.options import parse_options
from fencepost.spark_bridge.ranges import plan_batch
from fencepost.spark_bridge.session import session
from fencepost.spark_bridge.worker import layout_of, read_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORES: Final = 2
RECORDS_PER_TRANSACTION: Final = 1_000
ABORTED: Final = 10  # one transaction of so many in each partition
ROWS, KAFKA_ROWS, TINY = "rows", "kafka-rows", "tiny"  # topics
# Sources. The ready one is not compared: it shows what a source in Python can reach at most.
OURS, KAFKA, READY, PARQUET, JSON = "fencepost", "fencepost, magic 2", "ready batches", "Parquet", "JSON"
TINY_GOAL: Final = 1_000, 10.0  # partitions of one record, and seconds to read them


@attrs.frozen(kw_only=True)
class SparkScale:
    """The size of the logs."""

    rows: int = 2_800_000
    tiny_partitions: int = 1_000

    @property
    def transactions(self) -> int:
        """The lowest number that makes at least so many rows visible, as many in each partition."""
        rows_of_a_turn = PARTITIONS * (ABORTED - 1) * RECORDS_PER_TRANSACTION
        return -(-self.rows // rows_of_a_turn) * PARTITIONS * ABORTED


@attrs.frozen(kw_only=True)
class Comparison:
    """A query over one of our sources beside one source of Spark, and the lowest ratio of their rates."""

    query: str
    ours: str
    peer: str
    goal: float | None


ALL_COLUMNS, COUNT = "7 columns", "count"
COMPARISONS: Final = (
    Comparison(query=ALL_COLUMNS, ours=OURS, peer=PARQUET, goal=0.6),
    Comparison(query=ALL_COLUMNS, ours=OURS, peer=JSON, goal=3.0),
    Comparison(query=COUNT, ours=OURS, peer=PARQUET, goal=0.3),
    Comparison(query=COUNT, ours=OURS, peer=JSON, goal=None),
    Comparison(query=ALL_COLUMNS, ours=KAFKA, peer=PARQUET, goal=0.3),
    Comparison(query=ALL_COLUMNS, ours=KAFKA, peer=JSON, goal=None),
    Comparison(query=ALL_COLUMNS, ours=READY, peer=PARQUET, goal=None),
    Comparison(query=COUNT, ours=READY, peer=PARQUET, goal=None),
)


@attrs.frozen(kw_only=True)
class SparkResult:
    """A comparison over all rounds, in rows per second."""

    comparison: Comparison
    ours: Spread
    peer: Spread
    ratio: Spread

    @property
    def is_reached(self) -> bool | None:
        """Whether the median ratio reaches the goal; None without a goal."""
        wanted = self.comparison.goal
        return None if wanted is None else self.ratio.middle >= wanted


@attrs.frozen(kw_only=True)
class SparkReport:
    """The results of a measurement."""

    results: list[SparkResult]
    tiny: Spread
    """Seconds to read all partitions of one record each."""
    rows: int
    tiny_partitions: int
    rounds: int

    @property
    def tiny_goal(self) -> float | None:
        """The highest number of seconds; None for another number of partitions."""
        partitions, seconds = TINY_GOAL
        return seconds if self.tiny_partitions == partitions else None

    @property
    def is_tiny_reached(self) -> bool | None:
        """Whether the median number of seconds reaches the goal; None without a goal."""
        return None if self.tiny_goal is None else self.tiny.middle <= self.tiny_goal


def measured_spark(scale: SparkScale, *, rounds: int, data: Path, tell: Tell) -> SparkReport:
    """Writes the logs and files under `data` and measures; SparkMissing or NoJava without Spark."""
    log = data / "log"
    with session("benchmarks", master=f"local[{CORES}]") as spark:
        tell("writing the logs")
        _write_logs(scale, log, data)
        frames: dict[str, Callable[[], DataFrame]] = {
            OURS: lambda: spark.read.format("fencepost").option("subscribe", ROWS).load(str(log)),
            PARQUET: lambda: spark.read.parquet(str(data / "parquet")),
            JSON: lambda: spark.read.schema(written.schema).json(str(data / "json")),
        }
        if _has_kafka_client():
            frames[KAFKA] = lambda: (
                spark.read.format("fencepost").option("subscribe", KAFKA_ROWS).load(str(log))
            )
        tell("writing the files")
        written = frames[OURS]()
        frames[READY] = _ready(spark, log, data / "ready.arrow", written)
        written.write.option("compression", "none").parquet(str(data / "parquet"))
        written.write.json(str(data / "json"))
        tiny = spark.read.format("fencepost").option("subscribe", TINY)

        def read_tiny() -> int:
            return tiny.load(str(log)).count()

        tell("warming up")
        runs = _runs(frames)
        found = {source: frame().count() for source, frame in frames.items()}
        assert len(set(found.values())) == 1, f"the sources have different rows: {found}"
        assert read_tiny() == scale.tiny_partitions, "each tiny partition has one record"
        for run in runs.values():
            run()
        seconds: list[dict[tuple[str, str], float]] = []
        tiny_seconds: list[float] = []
        for number in range(rounds):
            tell(f"round {number + 1} of {rounds}")
            order = list(runs) if number % 2 == 0 else list(reversed(runs))
            seconds.append({name: _seconds(runs[name]) for name in order})
            tiny_seconds.append(_seconds(read_tiny))
        return SparkReport(
            results=spark_results(seconds, rows=found[OURS]),
            tiny=Spread.of(tiny_seconds),
            rows=found[OURS],
            tiny_partitions=scale.tiny_partitions,
            rounds=rounds,
        )


def _ready(spark: SparkSession, log: Path, path: Path, like: DataFrame) -> Callable[[], DataFrame]:
    """A frame of as many rows, in as many tasks, that repeats the first batch of the log."""
    from benchmarks.ready_batches import NAME, register_ready_batches, write_ready_batch

    options = parse_options({"path": str(log), "subscribe": ROWS})
    tasks = plan_batch(layout_of(options), options, report=None)
    columns = checked_columns(like.schema)
    write_ready_batch(next(read_task(tasks[0], options, columns)), path)
    register_ready_batches(spark)
    described = {"path": str(path), "rows": str(like.count()), "tasks": str(like.rdd.getNumPartitions())}
    return lambda: spark.read.format(NAME).schema(like.schema).options(**described).load()


def _runs(frames: dict[str, Callable[[], DataFrame]]) -> dict[tuple[str, str], Callable[[], object]]:
    """What is timed, by query and source."""
    runs: dict[tuple[str, str], Callable[[], object]] = {}
    for comparison in COMPARISONS:
        for source in (comparison.ours, comparison.peer):
            if source in frames:
                frame = frames[source]
                runs[comparison.query, source] = _QUERIES[comparison.query](frame)
    return runs


_QUERIES: Final[dict[str, Callable[[Callable[[], DataFrame]], Callable[[], object]]]] = {
    # The sink takes every column of every row and keeps nothing.
    ALL_COLUMNS: lambda frame: lambda: frame().write.format("noop").mode("overwrite").save(),
    COUNT: lambda frame: lambda: frame().count(),
}


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def spark_results(rounds: list[dict[tuple[str, str], float]], *, rows: int) -> list[SparkResult]:
    """One result for each comparison whose sources were measured; a round has seconds by query and source."""
    results: list[SparkResult] = []
    for each in COMPARISONS:
        ours, peer = (each.query, each.ours), (each.query, each.peer)
        if ours in rounds[0]:
            results.append(
                SparkResult(
                    comparison=each,
                    ours=Spread.of([rows / measured[ours] for measured in rounds]),
                    peer=Spread.of([rows / measured[peer] for measured in rounds]),
                    ratio=Spread.of([measured[peer] / measured[ours] for measured in rounds]),
                )
            )
    return results


# --- the logs -----------------------------------------------------------------------------------------------


def _write_logs(scale: SparkScale, log: Path, data: Path) -> None:
    command = ("fencepost", "serve", str(log), "--port", "0", "--with-parent", "--sync", "none")
    with speaking(*command, data=data) as (_, ready):
        address = f"{ready['host']}:{ready['port']}"
        with Admin(address) as admin:
            admin.create_topic(ROWS, PARTITIONS)
            admin.create_topic(KAFKA_ROWS, PARTITIONS)
            admin.create_topic(TINY, scale.tiny_partitions)
        _write_columns(address, scale)
        if _has_kafka_client():
            _write_kafka_records(address, scale)
        with Producer(address) as producer:
            for partition in range(scale.tiny_partitions):
                producer.send(TINY, VALUES[0], partition=partition)


def _transactions(scale: SparkScale) -> Iterator[tuple[int, bool]]:
    """The partition of each transaction, and whether it is committed."""
    for number in range(scale.transactions):
        yield number % PARTITIONS, number // PARTITIONS % ABORTED != 0


def _write_columns(address: str, scale: SparkScale) -> None:
    keys = list(islice(cycle(KEYS), RECORDS_PER_TRANSACTION))
    values = list(islice(cycle(VALUES), RECORDS_PER_TRANSACTION))
    with Producer(address, transactional_id=ROWS) as producer:
        producer.init_transactions()
        for partition, committed in _transactions(scale):
            producer.begin_transaction()
            producer.send_many(ROWS, values, keys, partition=partition)
            producer.flush()
            (producer.commit_transaction if committed else producer.abort_transaction)()


def _has_kafka_client() -> bool:
    return find_spec("confluent_kafka") is not None


def _write_kafka_records(address: str, scale: SparkScale) -> None:
    from confluent_kafka import Producer as KafkaProducer

    producer = KafkaProducer({"bootstrap.servers": address, "transactional.id": KAFKA_ROWS, "linger.ms": 1})
    producer.init_transactions()
    for partition, committed in _transactions(scale):
        producer.begin_transaction()
        for key, value in islice(zip(cycle(KEYS), cycle(VALUES), strict=True), RECORDS_PER_TRANSACTION):
            producer.produce(KAFKA_ROWS, value, key, partition)
        producer.flush()
        (producer.commit_transaction if committed else producer.abort_transaction)()


# --- the tables ---------------------------------------------------------------------------------------------


def spark_grids(report: SparkReport) -> list[Grid]:
    """The tables of a report."""
    tiny_wanted = None if report.tiny_goal is None else f"≤ {report.tiny_goal:g} s"
    return [
        Grid(
            "PySpark source, rows/s",
            columns=("query", "source", "rows/s", "compared with", "rows/s", "ratio", "goal"),
            rows=[_row(result) for result in report.results],
        ),
        Grid(
            "Many partitions",
            columns=("partitions with one record each", "time to read all", "goal"),
            rows=[
                [
                    f"{report.tiny_partitions:,}",
                    spread(report.tiny, "{:.1f} s"),
                    goal(tiny_wanted, is_reached=report.is_tiny_reached),
                ]
            ],
        ),
    ]


def _row(result: SparkResult) -> list[str]:
    wanted = result.comparison.goal
    return [
        result.comparison.query,
        result.comparison.ours,
        spread(result.ours, "{:,.0f}"),
        result.comparison.peer,
        spread(result.peer, "{:,.0f}"),
        spread(result.ratio, "{:.2f}×"),
        goal(None if wanted is None else f"≥ {wanted:g}×", is_reached=result.is_reached),
    ]


def spark_as_json(report: SparkReport) -> dict[str, Any]:
    """The results for programs."""
    return {
        "rows": report.rows,
        "comparisons": [{**attrs.asdict(each), "is_reached": each.is_reached} for each in report.results],
        "tiny": {
            "partitions": report.tiny_partitions,
            "seconds": attrs.asdict(report.tiny),
            "goal": report.tiny_goal,
            "is_reached": report.is_tiny_reached,
        },
    }


def spark_conditions(report: SparkReport) -> str:
    """The conditions of the measurement, in one sentence."""
    return (
        f"{report.rounds} interleaved rounds, medians (minimum to maximum) · {report.rows:,} visible rows of "
        f"{VALUE_SIZE} bytes in {PARTITIONS} partitions, one transaction in {ABORTED} aborted · "
        f"local[{CORES}] · {os.cpu_count()} CPUs, {sys.platform}, Python {platform.python_version()}, "
        f"PySpark {version('pyspark')}"
    )
