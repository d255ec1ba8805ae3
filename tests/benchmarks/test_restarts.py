"""The measurement of starts, on few transactions: the log of the coordinator does not grow with them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.restarts import measure
from fencepost.broker.settings import NodeSettings

SEGMENT_BYTES = NodeSettings().transaction_state_log_segment_bytes
IDS, COUNT = 2, 600
RECORD_BYTES = 300  # of a transaction, at least


def test_the_log_of_the_coordinator_is_smaller_than_what_was_written(tmp_path: Path) -> None:
    measured = measure(COUNT, IDS, tmp_path / "data")
    assert measured["transaction_state_bytes"] <= 2 * IDS * SEGMENT_BYTES < COUNT * RECORD_BYTES
    assert min(measured["start_after_kill_s"], measured["start_after_stop_s"]) > 0
