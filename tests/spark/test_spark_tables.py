"""Tables inside Spark: schemas, columns of the user's choice, filters, and joins between them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.spark_bridge.option_values import UnusableOption
from fencepost.spark_bridge.options import RECORDS, TABLE_NAMES
from fencepost.spark_bridge.tables.registry import TABLES
from tests.kafka_directories import directory_of, unpack
from tests.spark.tables import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "02-transactions"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(NAME, tmp_path_factory.mktemp("kafka"))


def load(spark: SparkSession, directory: Path, table: str, **options: str) -> DataFrame:
    return spark.read.format("fencepost").option("table", table).options(**options).load(str(directory))


def test_every_table_has_the_schema_that_its_file_names() -> None:
    assert {RECORDS, *TABLES} == set(TABLE_NAMES)


@pytest.mark.parametrize("name", list(TABLES))
def test_rows_arrive_as_they_are_read_without_spark(spark: SparkSession, directory: Path, name: str) -> None:
    frame = load(spark, directory, name)
    assert dict(frame.dtypes) == dict(TABLES[name].columns)
    found = frame.drop(*(column for column, kind in frame.dtypes if kind == "timestamp")).collect()
    expected = [
        {column: value for column, value in row.items() if column in frame.columns}
        for row in rows_of(name, directory_of(NAME))
    ]
    times = {column for column, kind in frame.dtypes if kind == "timestamp"}
    plain = [{key: value for key, value in row.items() if key not in times} for row in expected]
    assert sorted((row.asDict() for row in found), key=str) == sorted(plain, key=str)


def test_a_schema_chooses_columns_and_tables_join(spark: SparkSession, directory: Path) -> None:
    batches = (
        spark.read.format("fencepost")
        .option("table", "batches")
        .schema("Topic string, partition int, recordCount int, state string")
        .load(str(directory))
    )
    still_open = batches.filter("state = 'open'").groupBy("Topic", "partition").sum("recordCount")
    transactions = load(spark, directory, "transactions").filter("state = 'open'")
    joined = still_open.join(
        transactions,
        (still_open["Topic"] == transactions["topic"])
        & (still_open["partition"] == transactions["partition"]),
    )
    assert joined.filter("`sum(recordCount)` = records").count() == transactions.count() == 4


def test_an_unknown_table_is_refused(spark: SparkSession, directory: Path) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as refused:
        load(spark, directory, "batch").count()
    assert "option table must be records or batches or transactions" in str(refused.value)


def test_a_stream_of_another_table_is_refused(directory: Path) -> None:
    from pyspark.sql.types import StructType

    from fencepost.spark_bridge.data_source import FencepostDataSource

    source = FencepostDataSource({"path": str(directory), "table": "batches"})
    with pytest.raises(UnusableOption, match="a stream reads records: read table batches"):
        source.streamReader(StructType())
