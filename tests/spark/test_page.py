"""The programs of docs/spark.md run in order, from an empty directory, and print what the page shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.programs import ROOT

pytestmark = pytest.mark.thorough

TEXT = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
ELSEWHERE = ("s3://", "/backup/")  # a bucket, and directories of Kafka, of the reader's own
PROGRAMS = [
    block
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    if not any(place in block for place in ELSEWHERE)
]


def test_the_programs_of_the_page_run_one_after_the_other(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(PROGRAMS)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    shown = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    assert ran.stdout.startswith(shown[0])
    hanging = [table for table in shown if "oldestOpenOffset" in table or "coordinatorState" in table]
    assert len(hanging) == 2
    assert all(table in ran.stdout for table in hanging)
    (count,) = re.findall(r"print\(replay.count\(\)\)  # (\d+):", TEXT)
    assert f"\n{count}\n" in ran.stdout
    (acknowledged,) = map(json.loads, (tmp_path / "acks.jsonl").read_text().splitlines())
    assert acknowledged == {"topic": "orders", "partition": 0, "offset": 40}
    assert {path.name for path in tmp_path.iterdir()} == {"acks.jsonl", "checkpoint", "data", "hung", "out"}
