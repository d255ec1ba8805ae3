"""The benchmark of the PySpark source reads the same rows from every source, and compares within a round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import run
from benchmarks.report import Spread, markdown
from benchmarks.spark import (
    ALL_COLUMNS,
    COUNT,
    JSON,
    KAFKA,
    OURS,
    PARQUET,
    READY,
    SparkReport,
    SparkScale,
    spark_as_json,
    spark_grids,
    spark_results,
)
from benchmarks.spark_growth import TOPIC, LogShape, SparkGrown, spark_growth_grids, write_log
from fencepost.spark_bridge.columns import Column
from fencepost.spark_bridge.options import parse_options
from fencepost.spark_bridge.ranges import plan_batch
from fencepost.spark_bridge.worker import layout_of, read_task

SLOW_ROUND = {
    (ALL_COLUMNS, OURS): 4.0,
    (ALL_COLUMNS, PARQUET): 2.0,
    (ALL_COLUMNS, JSON): 12.0,
    (ALL_COLUMNS, KAFKA): 10.0,
    (COUNT, OURS): 2.0,
    (COUNT, PARQUET): 1.0,
    (COUNT, JSON): 4.0,
    (ALL_COLUMNS, READY): 2.5,
    (COUNT, READY): 1.6,
}


def _report(
    *rounds: dict[tuple[str, str], float], tiny: float = 10.0, partitions: int = 1_000
) -> SparkReport:
    return SparkReport(
        results=spark_results(list(rounds), rows=1_000),
        tiny=Spread.of([tiny]),
        rows=1_000,
        tiny_partitions=partitions,
        rounds=len(rounds),
    )


def test_a_ratio_of_rates_is_that_of_the_same_round() -> None:
    """The machine was slow in the first round, for all."""
    fast = {run: seconds / 4 for run, seconds in SLOW_ROUND.items()}
    results = {
        (r.comparison.query, r.comparison.ours, r.comparison.peer): r
        for r in _report(SLOW_ROUND, fast).results
    }
    found = {run: (each.ratio.middle, each.is_reached) for run, each in results.items()}
    assert found == {
        (ALL_COLUMNS, OURS, PARQUET): (0.5, False),
        (ALL_COLUMNS, OURS, JSON): (3.0, True),
        (COUNT, OURS, PARQUET): (0.5, True),
        (COUNT, OURS, JSON): (2.0, None),
        (ALL_COLUMNS, KAFKA, PARQUET): (0.2, False),
        (ALL_COLUMNS, KAFKA, JSON): (1.2, None),
        (ALL_COLUMNS, READY, PARQUET): (0.8, None),
        (COUNT, READY, PARQUET): (0.625, None),
    }
    assert results[ALL_COLUMNS, OURS, PARQUET].ours == Spread(625, 250, 1_000)


def test_the_table_says_which_goals_are_met() -> None:
    page = markdown(spark_grids(_report(SLOW_ROUND)), "")
    assert "| 7 columns | fencepost | 250 | Parquet | 500 | 0.50× | ≥ 0.6× missed |" in page
    assert "| 7 columns | fencepost | 250 | JSON | 83 | 3.00× | ≥ 3× met |" in page
    assert "| count | fencepost | 500 | JSON | 250 | 2.00× | - |" in page
    assert "| 1,000 | 10.0 s | ≤ 10 s met |" in page


@pytest.mark.parametrize(
    ("partitions", "seconds", "reached"), [(1_000, 10.1, False), (1_000, 9.9, True), (100, 0.1, None)]
)
def test_the_goal_for_partitions_is_for_a_thousand(
    partitions: int, seconds: float, reached: bool | None
) -> None:
    report = _report(SLOW_ROUND, tiny=seconds, partitions=partitions)
    assert spark_as_json(report)["tiny"]["is_reached"] is reached


def test_without_confluent_kafka_its_topic_is_left_out() -> None:
    without = {run: seconds for run, seconds in SLOW_ROUND.items() if run[1] != KAFKA}
    assert KAFKA not in {result.comparison.ours for result in _report(without).results}


@pytest.mark.parametrize(("rows", "transactions"), [(1, 40), (36_000, 40), (36_001, 80), (2_800_000, 3_120)])
def test_a_tenth_of_the_transactions_is_aborted_in_addition(rows: int, transactions: int) -> None:
    assert SparkScale(rows=rows).transactions == transactions


@pytest.mark.thorough
@pytest.mark.usefixtures("spark")
def test_every_source_reads_the_same_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """The benchmark itself fails if it counts different rows."""
    run(only="spark", quick=True, rounds=1, records=36_000, as_json_line=True)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["spark"]
    assert found["rows"] == 36_000
    queries = {each["comparison"]["query"] for each in found["comparisons"]}
    assert queries == {ALL_COLUMNS, COUNT}
    assert all(each["ratio"]["middle"] > 0 for each in found["comparisons"])
    assert found["tiny"]["partitions"] == 100


@pytest.mark.usefixtures("spark")
def test_the_growth_of_a_read_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    run(only="spark-growth", quick=True, as_json_line=True)
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["spark_growth"]
    assert [(row["what"], row["count"]) for row in rows] == [
        ("records", 10_000),
        ("records", 20_000),
        ("aborted transactions", 10),
        ("aborted transactions", 1_000),
    ]
    assert all(row["rate"] > 0 and row["plan_seconds"] > 0 for row in rows)


@pytest.mark.parametrize(
    "shape", [LogShape(rows=5_001, partitions=2), LogShape(rows=6_000, partitions=3, small_aborted=50)]
)
def test_the_log_of_a_row_is_as_large_as_it_says(tmp_path: Path, shape: LogShape) -> None:
    assert write_log(tmp_path, shape)
    options = parse_options({"path": str(tmp_path), "subscribe": TOPIC})
    layout = layout_of(options)
    tasks = plan_batch(layout, options, report=None)
    batches = [batch for task in tasks for batch in read_task(task, options, [Column("offset", "offset")])]
    assert sum(batch.num_rows for batch in batches) == shape.visible_rows == 6_000
    found = [range_ for task in tasks for range_ in task.ranges]
    assert len({range_.partition for range_ in found}) == shape.partitions


def test_a_log_that_takes_too_long_is_not_measured(tmp_path: Path) -> None:
    assert not write_log(tmp_path, LogShape(), seconds_max=0)
    page = markdown(
        spark_growth_grids([SparkGrown(what="records", count=7, missing="not written in 0 s")]), ""
    )
    assert "| 7 | not written in 0 s | - |" in page
