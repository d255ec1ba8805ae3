"""The columns of `includeTransactions`: who wrote a record, as which one, and how its transaction ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.journal.layouts import open_layout
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.storage import StorageReader
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import INT32_MAX, IsolationLevel
from fencepost.spark_bridge.columns import TRANSACTIONS, Column
from fencepost.spark_bridge.options import parse_options
from fencepost.spark_bridge.partition_files import CorruptLog
from fencepost.spark_bridge.ranges import plan_batch
from fencepost.spark_bridge.rows import record_batches
from fencepost.spark_bridge.scanning import RangeScan
from tests.check.directories import closed
from tests.journal.logs import files_of
from tests.kafka_directories import NAMES, directory_of
from tests.spark.logs import COMMITTED, UNCOMMITTED, new_log
from tests.spark.tables import Written, written
from tests.spark.test_tables import log_of, steps

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

COLUMNS = [Column(name, name) for name in ("topic", "partition", "offset", *TRANSACTIONS)]


def rows_of(storage: StorageReader, level: IsolationLevel, **options: str) -> list[dict[str, Any]]:
    """Every record that a read with includeTransactions has, in the order of tasks."""
    named = {"path": "unused", "subscribePattern": ".*", "isolation.level": level.name.lower(), **options}
    parsed, layout = parse_options({**named, "includeTransactions": "true"}), open_layout([storage])
    return [
        row
        for task in plan_batch(layout, parsed, report=None)
        for batch in record_batches(
            (RangeScan(layout, range_, isolation_level=level) for range_ in task.ranges), COLUMNS
        )
        for row in batch.to_pylist()
    ]


def batch_of(row: dict[str, Any], batches: list[Written]) -> Written:
    """The batch in which a record lies."""
    return next(
        batch
        for batch in batches
        if batch.partition == (row["topic"], row["partition"])
        and batch.header.base_offset <= row["offset"] < batch.header.next_offset
    )


def assert_told(rows: list[dict[str, Any]], storage: StorageReader) -> None:
    """Each record says what its batch and the log model say."""
    batches = written(storage)
    for row in rows:
        batch = batch_of(row, batches)
        header = batch.header
        number = None
        if header.base_sequence >= 0:
            number = (header.base_sequence + row["offset"] - header.base_offset) % (INT32_MAX + 1)
        has_producer = header.producer_id >= 0
        assert row["producerId"] == (header.producer_id if has_producer else None)
        assert row["producerEpoch"] == (header.producer_epoch if has_producer else None)
        assert (row["sequence"], row["transactionState"]) == (number, batch.state)


@settings(max_examples=60)
@given(steps, st.integers(1, 30))
def test_every_record_says_how_its_transaction_ended_in_any_cut(
    content: list[tuple[str, int, int]], longest: int
) -> None:
    storage, _ = log_of(content)
    for level in IsolationLevel:
        for options in ({}, {"maxRecordsPerPartition": str(longest)}):
            assert_told(rows_of(storage, level, **options), storage)


@pytest.mark.parametrize("name", NAMES)
def test_of_apache_kafka(name: str) -> None:
    storage = directory_of(name)
    rows = rows_of(storage, UNCOMMITTED)
    assert_told(rows, storage)
    if name == "02-transactions":
        assert {row["transactionState"] for row in rows} == {"committed", "aborted", "open", "none"}
        assert {row["transactionState"] for row in rows_of(storage, COMMITTED)} == {"committed", "none"}


def test_every_record_has_a_sequence_of_its_own() -> None:
    rows = [row for row in rows_of(closed(), COMMITTED) if row["topic"] == "orders"]
    assert_told(rows, closed())
    assert {row["sequence"] for row in rows} > {0, 1}


def test_sequences_begin_again_after_the_last_one() -> None:
    storage = MemoryStorage()
    log = new_log(storage)
    log.append(
        build_data_batch(
            [b"a"] * 4, base_timestamp=1, producer_id=7, producer_epoch=2, base_sequence=INT32_MAX - 1
        )
    )
    rows = rows_of(storage, COMMITTED)
    assert [row["sequence"] for row in rows] == [INT32_MAX - 1, INT32_MAX, 0, 1]
    assert {(row["producerId"], row["producerEpoch"], row["transactionState"]) for row in rows} == {
        (7, 2, "none")
    }


def test_a_transactional_batch_without_a_producer_id_is_in_no_transaction() -> None:
    """Kafka appends one, and no marker ever ends it."""
    storage = MemoryStorage()
    new_log(storage).append(build_data_batch([b"a"], base_timestamp=1, transactional=True))
    for level in IsolationLevel:
        assert [row["transactionState"] for row in rows_of(storage, level)] == ["none"]


def test_an_index_that_lacks_an_abort_is_refused_and_an_open_transaction_is_not() -> None:
    storage = MemoryStorage()
    log = new_log(storage)
    log.records(3, producer_id=1)
    log.records(2, producer_id=2)
    log.abort(1)
    log.records(1)
    log.write_manifest()
    path = files_of(storage, "txnindex")[0]
    options = {"endingOffsets": '{"orders":{"0":5}}', "subscribePattern": "orders"}
    states = [row["transactionState"] for row in rows_of(storage, UNCOMMITTED, **options)]
    assert states == ["aborted"] * 3 + ["open"] * 2
    log.commit(2)
    log.roll()
    log.records(1)
    log.write_manifest()
    storage.replace(path, b"", durable=False)
    for level in IsolationLevel:
        with pytest.raises(CorruptLog, match="producer 1 aborted a transaction at offset 5"):
            rows_of(storage, level, **options)


def test_spark_has_them_on_request_or_by_a_schema(spark: SparkSession, tmp_path: Path) -> None:
    from fencepost.journal.disk import DiskStorage

    log = new_log(DiskStorage(tmp_path / "data"))
    log.records(2, producer_id=1)
    log.abort(1)
    log.records(1)
    log.records(1, producer_id=2)
    reader = spark.read.format("fencepost").option("subscribe", "orders")
    reader = reader.option("isolation.level", "read_uncommitted")
    kinds = dict(reader.option("includeTransactions", "true").load(str(tmp_path / "data")).dtypes)
    assert [kinds[name] for name in TRANSACTIONS] == ["bigint", "int", "int", "string"]
    frame = reader.option("includeTransactions", "false")
    assert "producerId" not in frame.load(str(tmp_path / "data")).columns
    rows: list[Any] = (
        frame.schema("offset bigint, transactionState string").load(str(tmp_path / "data")).collect()
    )
    assert {row[0]: row[1] for row in rows} == {0: "aborted", 1: "aborted", 3: "none", 4: "open"}
