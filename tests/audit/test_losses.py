"""Losses in an audit: each is a finding, said once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.audit.audit import loss_row
from fencepost.audit.rows import findings_of
from fencepost.cli.check import in_words
from fencepost.journal.disk import DiskStorage
from fencepost.spark_bridge.partition_files import CorruptLog
from tests.audit.directories import put_on_disk
from tests.check.directories import SMALL_LOG, closed
from tests.spark.tables import rows_of

LENIENT = {"failOnDataLoss": "false", "subscribe": "orders"}
TABLES = ("batches", "partitions", "transactions")


@pytest.fixture
def damaged(tmp_path: Path) -> DiskStorage:
    """A log of this directory is gone."""
    directory = put_on_disk(closed(), tmp_path)
    (directory / SMALL_LOG).unlink()
    return DiskStorage(directory, read_only=True)


def test_a_loss_names_its_file_once(damaged: DiskStorage) -> None:
    (row,) = rows_of("losses", damaged, **LENIENT)
    (found,) = findings_of([loss_row(row)])
    assert (
        in_words(found)
        .splitlines()[0]
        .endswith(f"{SMALL_LOG} at offset 0: the log is gone, but the manifest there lists it")
    )
    assert in_words(found).count(SMALL_LOG) == 1


@pytest.mark.parametrize("table", TABLES)
def test_a_program_that_reads_the_table_of_losses_can_do_without_warnings(
    table: str, damaged: DiskStorage
) -> None:
    with pytest.warns(UserWarning, match="orders-1"):
        rows = rows_of(table, damaged, **LENIENT)
    assert rows_of(table, damaged, **LENIENT, warnOnDataLoss="false") == rows, "a warning would be an error"


def test_a_damaged_manifest_hides_no_record_of_its_log(tmp_path: Path) -> None:
    at = closed()
    directory = put_on_disk(at, tmp_path)
    disk = DiskStorage(directory, read_only=True)
    whole = {table: rows_of(table, disk, **LENIENT) for table in TABLES}
    manifest = directory / "orders-1" / "manifest.json"
    manifest.write_text("{")
    with pytest.raises(CorruptLog, match=f"{manifest}: orders-1/manifest.json is not JSON: .*: start"):
        rows_of("batches", disk, subscribe="orders")
    (row,) = rows_of("losses", disk, **LENIENT)
    (found,) = findings_of([loss_row(row)])
    place, means = in_words(found).splitlines()
    assert f"{manifest}: the manifest cannot be read: orders-1/manifest.json is not JSON" in place
    assert means.strip().startswith("every reader stops here; start the broker on this directory once")
    quiet = {**LENIENT, "warnOnDataLoss": "false"}
    assert {table: rows_of(table, disk, **quiet) for table in TABLES} == whole
