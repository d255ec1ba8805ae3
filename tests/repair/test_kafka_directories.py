"""`fencepost repair` keeps away from log directories of Apache Kafka, whose broker repairs its own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.cli.application import run
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.kafka_directory import PROPERTIES_FILE
from fencepost.journal.storage import NotADataDirectory
from fencepost.repair.planner import make_plan
from tests.check.directories import closed
from tests.kafka_directories import NAMES, directory_of, unpack


@pytest.mark.parametrize("name", NAMES)
def test_a_log_directory_of_kafka_is_refused(name: str) -> None:
    with pytest.raises(NotADataDirectory, match="is a log directory of Apache Kafka"):
        make_plan(directory_of(name))


def test_nothing_is_changed_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = unpack(NAMES[0], tmp_path)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert run(["repair", str(directory), "--write"]) != 0
    assert "`fencepost check` finds what is wrong with it" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_a_stray_file_of_kafka_makes_no_data_directory_kafkas() -> None:
    """`serve`, `check` and `repair` go by the same rule: with a meta.json, it is Fencepost's."""
    disk = closed()
    disk.replace(PROPERTIES_FILE, b"version=1\ncluster.id=other\nnode.id=1\n", durable=True)
    assert not make_plan(disk).is_needed
    assert [finding for finding in check_directory(disk).found if finding.severity is Severity.PROBLEM] == []
    DataDirectory.open(disk).abandon()
