"""`fencepost dump` and `fencepost check` on log directories of Apache Kafka."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fencepost.cli.application import run
from tests.kafka_directories import NAMES, consumed, unpack
from tests.spark.logs import UNCOMMITTED

Output = pytest.CaptureFixture[str]


def facts(capsys: Output, *arguments: str) -> list[dict[str, Any]]:
    assert run(["dump", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_read(tmp_path: Path, capsys: Output, name: str) -> None:
    found = facts(capsys, str(unpack(name, tmp_path)), "--records", "--indexes")
    assert "damage" not in {fact["kind"] for fact in found}
    records = Counter(fact["log"] for fact in found if fact["kind"] == "record")
    assert records == {
        str(partition): len(rows)
        for partition, rows in consumed(name, UNCOMMITTED).items()
        if not partition.topic.startswith("__")
    }


def test_control_records_of_a_quorum_are_named(tmp_path: Path, capsys: Output) -> None:
    log = unpack("01-plain", tmp_path) / "__cluster_metadata-0"
    (control,) = [fact for fact in facts(capsys, str(log)) if fact["kind"] == "control"]
    assert (control["offset"], control["what"]) == (0, "leader change")
    assert run(["dump", str(log)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "0 leader change, " in said
    assert "PartitionRecord: version 2, topic_id " in said
    assert "NoOpRecord: version 0" in said


def test_room_that_is_reserved_in_an_index_is_not_shown(tmp_path: Path, capsys: Output) -> None:
    log = unpack("01-plain", tmp_path) / "codecs-0"
    for kind in ("index", "timeindex"):
        file = log / f"{0:020d}.{kind}"
        before = facts(capsys, str(file))
        file.write_bytes(file.read_bytes() + bytes(12_000))
        assert facts(capsys, str(file)) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_good_directory_has_no_problem(tmp_path: Path, capsys: Output, name: str) -> None:
    directory = str(unpack(name, tmp_path))
    assert run(["check", directory]) == 0
    assert capsys.readouterr().out.endswith(": 0 problems, 0 notes.\n")
