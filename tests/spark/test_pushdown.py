"""Filters that the source follows: what they exclude is not read, and nothing else is missing."""

import operator
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from fencepost.journal.journal import JournalSettings
from fencepost.journal.layouts import open_layout
from fencepost.journal.memory import MemoryStorage
from fencepost.protocol.terms import TopicPartition
from fencepost.spark_bridge.options import parse_options
from fencepost.spark_bridge.pushdown import PushedFilters
from fencepost.spark_bridge.ranges import plan_batch
from fencepost.spark_bridge.session import FILTER_PUSHDOWN, register
from tests.spark.logs import COMMITTED, RememberedLog, Row, rows_of_task, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
kinds = st.sampled_from(list(COMPARISONS))
numbers = st.integers(-2, 40)


def at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)


def comparison(kind: Any, name: str, value: Any) -> Filter:
    return kind((name,), value)


def choice(name: str, values: list[int | None]) -> Filter:
    return In((name,), tuple(values))


some_partitions = st.integers(-1, 3)
filters = st.lists(
    st.one_of(
        st.builds(comparison, kinds, st.just("partition"), some_partitions),
        st.builds(comparison, kinds, st.just("offset"), numbers),
        st.builds(comparison, kinds, st.just("timestamp"), st.builds(at, numbers)),
        st.builds(choice, st.just("offset"), st.lists(st.none() | numbers, max_size=3)),
        st.builds(choice, st.just("partition"), st.lists(st.none() | some_partitions, max_size=3)),
    ),
    max_size=4,
)


def logs_in(directory: DataDirectory) -> list[RememberedLog]:
    """Two partitions whose timestamps go up and down."""
    logs = [RememberedLog(directory.journal(TopicPartition("orders", number))) for number in (0, 1)]
    for log in logs:
        for time in (10, 5, 30, 20, 25, 12):
            log.records(2, timestamp=time, producer_id=1 if time == 5 else None, size=800)
            if time == 5:
                log.abort(1, timestamp=time)
            if time == 30:
                log.roll()
    return logs


def passes(filter_: Any, partition: int, row: Row) -> bool:
    columns = {"partition": partition, "offset": row.offset, "timestamp": at(row.timestamp)}
    found = columns[filter_.attribute[0]]
    if isinstance(filter_, In):
        return found in filter_.value
    return COMPARISONS[type(filter_)](found, filter_.value)


@given(filters)
def test_what_the_filters_let_through_is_read_and_what_is_followed_needs_no_filter(
    given_: list[Filter],
) -> None:
    storage = MemoryStorage()
    logs = logs_in(DataDirectory.open(storage, settings=JournalSettings(segment_bytes=4_000)))
    wanted = PushedFilters()
    others = wanted.take(given_)
    assert all(each in given_ for each in others)
    options = parse_options({"path": "unused", "subscribe": "orders"})
    tasks = plan_batch(open_layout([storage]), options, report=None, filters=wanted)
    read = [
        (range_.partition.partition, row)
        for task in tasks
        for range_ in task.ranges
        for row in rows_of_task(storage, type(task)((range_,)), COMMITTED)
    ]
    everything = [(number, row) for number, log in enumerate(logs) for row in visible(log.entries, COMMITTED)]
    expected = [each for each in everything if all(passes(filter_, *each) for filter_ in given_)]
    assert [each for each in read if all(passes(filter_, *each) for filter_ in others)] == expected


@pytest.mark.parametrize(
    ("filter_", "is_followed"),
    [
        (EqualTo(("partition",), 1), True),
        (EqualTo(("Topic",), "orders"), True),
        (LessThan(("OFFSET",), 5), True),
        (IsNotNull(("offset",)), True),
        (IsNotNull(("key",)), False),
        (In(("offset",), (1, 5)), False),
        (GreaterThan(("timestamp",), at(5)), False),
        (EqualTo(("value",), b"v"), False),
        (Not(EqualTo(("partition",), 1)), False),
        (StringStartsWith(("topic",), "ord"), False),
        (EqualTo(("headers", "key"), "k"), False),
    ],
)
def test_only_exact_filters_are_kept_from_spark(filter_: Filter, is_followed: bool) -> None:
    assert PushedFilters().take([filter_]) == ([] if is_followed else [filter_])


@pytest.fixture
def pushing(spark: "SparkSession") -> Iterator["SparkSession"]:
    """The session, with filters pushed to the source."""
    spark.conf.set(FILTER_PUSHDOWN, "true")
    register(spark)
    yield spark
    spark.conf.unset(FILTER_PUSHDOWN)
    register(spark)


def test_spark_reads_only_what_its_filters_let_through(pushing: "SparkSession", tmp_path: Path) -> None:
    directory = DataDirectory.open(DiskStorage(tmp_path))
    logs = logs_in(directory)
    directory.abandon()
    rows = [(n, row) for n, log in enumerate(logs) for row in visible(log.entries, COMMITTED)]
    frame = pushing.read.format("fencepost").option("subscribe", "orders").load(str(tmp_path))
    narrow = frame.filter("partition = 1 AND offset > 3")
    assert narrow.count() == sum(n == 1 and row.offset > 3 for n, row in rows)
    assert not filters_of(narrow)
    late = frame.filter("timestamp >= timestamp_millis(25)")
    assert late.count() == sum(row.timestamp >= 25 for _, row in rows)
    (filter_,) = filters_of(late)
    assert "timestamp" in filter_
    assert frame.filter("partition = 7").count() == 0


def test_without_the_setting_spark_filters_alone(spark: "SparkSession", tmp_path: Path) -> None:
    directory = DataDirectory.open(DiskStorage(tmp_path))
    (log, _) = logs_in(directory)
    directory.abandon()
    frame = spark.read.format("fencepost").option("subscribe", "orders").load(str(tmp_path))
    first = frame.filter("partition = 0")
    assert first.count() == len(visible(log.entries, COMMITTED))
    assert filters_of(first)


def test_a_frame_has_several_filters(spark: "SparkSession", tmp_path: Path) -> None:
    check_filters_of_one_frame(spark, tmp_path)


@pytest.mark.xfail(
    strict=True, reason="Spark 4.3 reads all parts of the query with the filters of the last one"
)
def test_a_frame_has_several_filters_that_are_pushed(pushing: "SparkSession", tmp_path: Path) -> None:
    """Once this passes, `session` can turn the setting on."""
    check_filters_of_one_frame(pushing, tmp_path)


def check_filters_of_one_frame(spark: "SparkSession", directory: Path) -> None:
    data = DataDirectory.open(DiskStorage(directory))
    first, second = (len(visible(log.entries, COMMITTED)) for log in logs_in(data))
    data.abandon()
    frame = spark.read.format("fencepost").option("subscribe", "orders").load(str(directory))
    halves = [frame.filter(f"partition = {number}") for number in (0, 1)]
    counts = halves[0].union(halves[1]).groupBy("partition").count().collect()
    assert {row[0]: row[1] for row in counts} == {0: first, 1: second}
    assert frame.count() == first + second


def filters_of(frame: Any) -> list[str]:
    """What Spark filters itself in its plan of a query."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return [line for line in plan.splitlines() if "Filter (" in line]
