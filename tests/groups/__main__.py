"""Tells the story and what Spark finds: `python -m tests.groups`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.groups.story import RECORDS, read_by_spark, run

with tempfile.TemporaryDirectory() as name:
    told = run(Path(name))
    for process, lines in told.lines.items():
        copied = sum(line.get("copied", 0) for line in lines)
        events = [line for line in lines if "copied" not in line]
        print(f"{process}: copied {copied} records;", *events)
    found = read_by_spark(Path(name))
    print(f"Spark: {found.committed} of {RECORDS} records, {found.distinct} distinct, {found.wrong} wrong;")
    print(
        f"       {told.uncommitted - found.committed} more were in the killed transaction, and do not count"
    )
