"""The audit inside Spark: both brokers, all kinds of findings, acknowledgements, two topics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.audit.acks import missing_acks
from fencepost.audit.audit import TORN, audit
from fencepost.audit.compare import compare
from fencepost.check.directory import ADOPTED, UNSERVED
from fencepost.check.findings import Finding, Findings, Severity
from fencepost.cli.application import run
from fencepost.cli.errors import WRONG_USAGE
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from fencepost.journal.layouts import open_layout
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import TopicPartition, TransactionState
from tests.audit.directories import put_on_disk
from tests.check.directories import LEFT_LOG, OFFSETS_LOG, ORDERS_LOG, SMALL_LOG, closed
from tests.check.planting import ABORT, PLAIN, mark, rename_topic, restate
from tests.journal.logs import Writer
from tests.kafka_directories import unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def audited(spark: SparkSession, directory: Path) -> Findings:
    layout = open_layout([DiskStorage(directory, read_only=True)])
    return audit(spark, layout, [str(directory)])


def problems(found: list[Finding]) -> list[tuple[str, int | None, str]]:
    return [(each.file, each.offset, each.what) for each in found if each.severity is Severity.PROBLEM]


@pytest.mark.thorough
def test_faults_of_every_kind_in_one_directory(spark: SparkSession, tmp_path: Path) -> None:
    at = closed()
    at.change(SMALL_LOG, PLAIN + 1, base_sequence=0)
    mark(at, SMALL_LOG, 1, result=ABORT)
    restate(at, LEFT_LOG, 1, state=TransactionState.COMPLETE_ABORT, partitions=())
    at.flip(ORDERS_LOG, 6_000)
    result = audited(spark, put_on_disk(at, tmp_path))
    told = "\n".join(f"{file}@{offset}: {what}" for file, offset, what in problems(list(result.found)))
    for says in (
        f"{SMALL_LOG}@5: producer 3 epoch 0: sequence 0 where 1 was expected",
        f"{SMALL_LOG}@1: ABORT of producer 0 epoch 1, but 'pay' decided COMMIT",
        f"{SMALL_LOG}@7: producer 2 has a transaction open since this offset, and no coordinator knows it",
        f"{LEFT_LOG}@1: 'left' is CompleteAbort after Empty",
        f"{tmp_path}/{ORDERS_LOG}@1: the log is damaged at byte 5070",
    ):
        assert says in told, told
    assert result.partitions == 5, "those that have files"


def test_a_transaction_index_that_cannot_be_read_is_a_finding(spark: SparkSession, tmp_path: Path) -> None:
    at = closed()
    at.change(SMALL_LOG, PLAIN + 1, base_sequence=0)
    index = f"{SMALL_LOG.removesuffix('.log')}.txnindex"
    at.remove(index)
    assert problems(list(audited(spark, put_on_disk(at, tmp_path)).found)) == [
        (
            f"{tmp_path}/{index}",
            None,
            "the transaction index is missing, and aborted records cannot be distinguished without it",
        ),
        (SMALL_LOG, 5, "producer 3 epoch 0: sequence 0 where 1 was expected"),
        (SMALL_LOG, 6, "producer 3 epoch 0: sequence 2 where 1 was expected"),
    ]


def test_a_directory_of_apache_kafka_has_no_findings(spark: SparkSession, tmp_path: Path) -> None:
    directory = unpack("02-transactions", tmp_path)
    result = audited(spark, directory)
    assert (list(result.found), result.partitions) == ([], 8)
    # Without the file of a clean stop, its logs may be of different moments.
    (directory / ".kafka_cleanshutdown").unlink()
    (note,) = audited(spark, directory).found
    assert (note.severity, note.what) == (Severity.NOTE, "transactions were not compared with markers")


def test_without_a_coordinator_markers_contradict_each_other(spark: SparkSession, tmp_path: Path) -> None:
    at = closed()
    mark(at, SMALL_LOG, 1, result=ABORT)
    directory = put_on_disk(at, tmp_path)
    layout = open_layout([DiskStorage(directory, read_only=True)])
    found = audit(spark, layout, [str(directory)], is_in_use=True).found
    assert problems([each for each in found if each.means == TORN]) == [
        (file, 0, "producer 0 epoch 1 committed here, and aborted in another partition")
        for file in (OFFSETS_LOG, ORDERS_LOG)
    ]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic `orders` holds 1 to 6, topic `totals` 1, 2, 2, 4, 5 and 9, and an aborted 3."""
    directory = tmp_path_factory.mktemp("pipeline")
    data = DataDirectory.open(DiskStorage(directory))
    source = Writer(data.journal(TopicPartition("orders", 0)))
    for number in range(1, 7):
        source.append(_record(number))
    target = Writer(data.journal(TopicPartition("totals", 0)))
    for number in (1, 2, 2, 4, 5, 9):
        target.append(_record(number))
    target.data(7)
    target.abort(7)
    Writer(data.journal(TopicPartition("deleted", 0))).append(_with_value(None))
    Writer(data.journal(TopicPartition("null", 0))).append(_with_value(b"null"))
    data.journal(TopicPartition("empty", 0))
    data.abandon()
    return directory


def _with_value(value: bytes | None) -> bytearray:
    return build_data_batch([value], keys=[b"key"], base_timestamp=1_000)


def _record(number: int) -> bytearray:
    value = json.dumps({"id": number}).encode()
    return build_data_batch([value], keys=[f"key {number}".encode()], base_timestamp=1_000)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("valu", "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name"),
        ("key +", "[PARSE_SYNTAX_ERROR] Syntax error at or near end of input"),
    ],
)
def test_an_expression_that_spark_refuses_is_one_error(
    expression: str, told: str, pipeline: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compared = ("--input", "orders", "--output", "totals", "--by", expression)
    assert run(["audit", str(pipeline), "--master", "local[2]", *compared]) == WRONG_USAGE
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith(f"fencepost: --by {expression}: {told}")
    assert "SQLSTATE" not in first
    assert second == "  give a Spark SQL expression over key, value and headers, such as key"


def test_an_output_is_compared_with_its_input(spark: SparkSession, pipeline: Path) -> None:
    layout = open_layout([DiskStorage(pipeline, read_only=True)])
    by = "get_json_object(value, '$.id')"
    found = compare(spark, layout, [str(pipeline)], source="orders", target="totals", by=by).found
    name = "0/00000000000000000000.log"
    assert problems(found) == [
        (f"totals-{name}", 2, "'2' occurs once in orders and twice in totals: duplicated"),
        (f"orders-{name}", 2, "'3' occurs once in orders and not in totals: lost"),
        (f"orders-{name}", 5, "'6' occurs once in orders and not in totals: lost"),
        (f"totals-{name}", 5, "'9' occurs once in totals and not in orders"),
    ]
    same = compare(spark, layout, [str(pipeline)], source="orders", target="orders", by="key").found
    assert same == []
    (nothing,) = compare(spark, layout, [str(pipeline)], source="empty", target="empty", by="key").found
    assert (nothing.severity, nothing.what) == (Severity.NOTE, "empty and empty have no committed records")


def test_records_that_the_expression_does_not_tell_apart(spark: SparkSession, pipeline: Path) -> None:
    layout = open_layout([DiskStorage(pipeline, read_only=True)])
    by = "get_json_object(value, '$.nr')"
    found = compare(spark, layout, [str(pipeline)], source="orders", target="totals", by=by).found
    name = "0/00000000000000000000.log"
    assert problems(found) == [
        (f"orders-{name}", 0, "get_json_object(value, '$.nr') is null for 6 records of orders"),
        (f"totals-{name}", 0, "get_json_object(value, '$.nr') is null for 6 records of totals"),
    ]


def test_a_tombstone_is_not_the_text_null(spark: SparkSession, pipeline: Path) -> None:
    layout = open_layout([DiskStorage(pipeline, read_only=True)])
    found = compare(spark, layout, [str(pipeline)], source="deleted", target="null", by="value").found
    assert [what for _, _, what in problems(found)] == [
        "null occurs once in deleted and not in null: lost",
        "'null' occurs once in null and not in deleted",
    ]


def test_acknowledged_records_that_are_missing(spark: SparkSession, pipeline: Path, tmp_path: Path) -> None:
    acks = tmp_path / "acks.jsonl"
    lines = [
        {"topic": "orders", "partition": 0, "offset": 0},
        {"topic": "orders", "partition": 0, "offset": 1, "key": "key 2"},
        {"topic": "orders", "partition": 0, "offset": 2, "key": "key 7"},
        {"topic": "orders", "partition": 0, "offset": 6},
        {"topic": "totals", "partition": 0, "offset": 6},
        {"topic": "totals", "partition": 0, "offset": 7},
        {"topic": "gone", "partition": 0, "offset": 0},
        {"topic": "orders", "partition": 0, "offset": 4},
        {"topic": "orders", "partition": 0, "offset": 4},
    ]
    acks.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "nonsense\n")
    found = problems(missing_acks(spark, [str(pipeline)], acks).found)
    name = "0/00000000000000000000.log"
    assert found == [
        (str(acks), None, "1 line has no topic, no partition or no offset"),
        ("gone-0", 0, "the acknowledged record is missing: there is no such partition"),
        (
            f"orders-{name}",
            2,
            "the acknowledged record with key 'key 7' is not here, but one with key 'key 3'",
        ),
        ("orders-0", 6, "the acknowledged record is missing: the log ends at offset 6"),
        (f"totals-{name}", 6, "the acknowledged record was aborted"),
        (f"totals-{name}", 7, "the acknowledged record is missing: an abort marker is at its offset"),
        ("orders-0", 4, "2 records were acknowledged at this offset"),
    ]


def test_an_empty_file_of_acknowledgements_is_a_note(
    spark: SparkSession, pipeline: Path, tmp_path: Path
) -> None:
    acks = tmp_path / "acks.jsonl"
    acks.touch()
    (note,) = missing_acks(spark, [str(pipeline)], acks).found
    assert (note.severity, note.what) == (Severity.NOTE, "it is empty")
    assert note.means == "no record was compared"


def test_a_topic_that_the_metadata_does_not_know_is_a_note(spark: SparkSession, tmp_path: Path) -> None:
    at = closed()
    rename_topic(at, "orders", "orderz")
    (note,) = audited(spark, put_on_disk(at, tmp_path)).found
    assert (note.severity, note.file) == (Severity.NOTE, "orders")
    assert note.means == f"it was not audited; {UNSERVED}, {ADOPTED}"


def test_a_coordinators_log_of_another_cluster_decides_nothing(spark: SparkSession, tmp_path: Path) -> None:
    at = closed()
    rename_topic(at, "__transaction_state", "__transaction_stat2")
    found = audited(spark, put_on_disk(at, tmp_path)).found
    assert {each.severity for each in found} == {Severity.NOTE}
    assert "transactions were not compared with markers" in {each.what for each in found}
