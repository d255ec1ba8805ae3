"""Groups at work: processes that come and die, and every record exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.groups.story import RECORDS, read_by_spark, run

pytest.importorskip("pyspark", reason="the story is judged by Spark")


@pytest.mark.usefixtures("spark")
def test_a_process_is_killed_and_one_is_added(tmp_path: Path) -> None:
    told = run(tmp_path)
    assert told.shares == [2, 2]
    held = told.lines["a"][-1]["held"]
    assert held > 0
    assert any("assigned" in line and line["assigned"] for line in told.lines["c"])
    found = read_by_spark(tmp_path)
    assert (found.committed, found.distinct, found.wrong) == (RECORDS, RECORDS, 0)
    assert told.uncommitted == RECORDS + held, "what the killed process had written is there, and aborted"
