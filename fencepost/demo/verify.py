"""The check of the output: PySpark reads the data directory, and the result is compared with the CSV file.

Rule: the broker has stopped by then, and no counter of the pipeline is used.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from fencepost.demo.dataset import rows
from fencepost.demo.plan import DELAYS, FLIGHTS, TOTALS, say, wait_for_word
from fencepost.demo.stream import collected, result_of, sums_per_carrier
from fencepost.spark_bridge.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


DELAY_FIELDS = "id INT, delay INT"
TOTAL_FIELDS = "flights INT, cancelled INT, diverted INT, minutes INT"


def read_topic(spark: SparkSession, data: Path, topic: str, *, isolation_level: str) -> DataFrame:
    """Reads one topic of the data directory with Spark."""
    source = (
        spark.read.format("fencepost").option("subscribe", topic).option("isolation.level", isolation_level)
    )
    return source.load(str(data))


def judge(
    spark: SparkSession, data: Path, truth: ExpectedOutput, *, isolation_level: str
) -> dict[str, int | bool]:
    """Compares the records that are visible at this isolation level with the expected output.

    Returns the fields of DemoResult that Spark counts.
    """
    from pyspark.sql import functions as f

    def delays(level: str) -> DataFrame:
        text = f.col("value").cast("string")
        return read_topic(spark, data, DELAYS, isolation_level=level).select(
            f.from_json(text, DELAY_FIELDS).alias("d")
        )

    grouped = (
        delays(isolation_level)
        .groupBy("d.id")
        .agg(f.count("*").alias("copies"), f.min("d.delay").alias("delay"))
    )
    found = grouped.toArrow().to_pydict()
    copies = dict(zip(found["id"], found["copies"], strict=True))
    seen = dict(zip(found["id"], found["delay"], strict=True))
    committed = sum(copies.values())
    totals = read_totals(spark, data, isolation_level=isolation_level)
    uncommitted = committed if isolation_level == "read_uncommitted" else delays("read_uncommitted").count()
    stable = committed if isolation_level == "read_committed" else delays("read_committed").count()
    return {
        "delays_committed": committed,
        "duplicates": committed - len(copies),
        "lost": len(truth.delays.keys() - copies.keys()),
        "wrong": sum(truth.delays.get(number, "none") != delay for number, delay in seen.items()),
        "totals_match": totals == truth.totals,
        "uncommitted_visible": uncommitted - stable,
    }


def read_totals(spark: SparkSession, data: Path, *, isolation_level: str) -> dict[str, dict[str, int]]:
    """Returns the last record of each carrier."""
    from pyspark.sql import functions as f

    records = read_topic(spark, data, TOTALS, isolation_level=isolation_level)
    newest = records.groupBy(f.col("key").cast("string").alias("carrier")).agg(
        f.max_by(f.col("value").cast("string"), f.col("offset")).alias("value")
    )
    sums = newest.select("carrier", f.from_json("value", TOTAL_FIELDS).alias("total")).collect()
    return {row["carrier"]: row["total"].asDict() for row in sums}


def stream_matches(spark: SparkSession, data: Path, stream: Path) -> bool:
    """Whether the last result of the stream equals the result of a batch query over the whole topic."""
    flights = read_topic(spark, data, FLIGHTS, isolation_level="read_committed")
    return result_of(stream) == collected(sums_per_carrier(flights))


def main() -> None:
    """The process: `python -m fencepost.demo.verify DATA FILE FLIGHTS ISOLATION_LEVEL [STREAM]`."""
    data, file, flights, isolation_level, *streams = sys.argv[1:]
    truth = expected_output(rows(Path(file), limit=int(flights)))
    with session("fencepost-demo") as spark:
        wait_for_word()
        # The first query is the slowest; this one runs while the pipeline does.
        loaded = read_topic(spark, Path(data), FLIGHTS, isolation_level=isolation_level).count()
        wait_for_word()
        verdict = judge(spark, Path(data), truth, isolation_level=isolation_level)
        for stream in streams:
            verdict["stream_matches"] = stream_matches(spark, Path(data), Path(stream))
        say("verdict", **verdict, flights_loaded=loaded)


@attrs.frozen
class ExpectedOutput:
    """Delays in minutes by row number (from 1; None if the flight did not arrive), and sums per carrier."""

    delays: dict[int, int | None]
    totals: dict[str, dict[str, int]] = attrs.field(kw_only=True)


def expected_output(rows: Iterable[Mapping[str, str]]) -> ExpectedOutput:
    """Computes the expected output from the rows of the CSV file, in order."""
    delays: dict[int, int | None] = {}
    totals: defaultdict[str, dict[str, int]] = defaultdict(
        lambda: {"flights": 0, "cancelled": 0, "diverted": 0, "minutes": 0}
    )
    for number, row in enumerate(rows, start=1):
        total = totals[row["carrier"]]
        total["flights"] += 1
        delays[number] = None
        if row["dep_time"] == "NA":
            total["cancelled"] += 1
        elif row["arr_delay"] == "NA":
            total["diverted"] += 1
        else:
            delays[number] = int(row["arr_delay"])
            total["minutes"] += int(row["arr_delay"])
    return ExpectedOutput(delays, totals=dict(totals))


if __name__ == "__main__":
    main()
