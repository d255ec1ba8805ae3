"""The measurement of starts, on few transactions: the log of the coordinator does not grow with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import restarts
from fencepost.broker.settings import NodeSettings

DIRTY_BYTES = NodeSettings().coordinator_logs_dirty_bytes_max
IDS, COUNT = 2, 4_000
RECORD_BYTES = 300  # of a transaction, at least


def test_the_log_of_the_coordinator_is_smaller_than_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "SAMPLES", 2)
    monkeypatch.setattr(restarts, "SAMPLE_EVERY", 50)
    measured = restarts.measure(COUNT, IDS, tmp_path)
    assert max(measured["transaction_state_bytes"]) < DIRTY_BYTES < COUNT * RECORD_BYTES
    assert len(measured["start_after_kill_s"]) == len(measured["start_after_stop_s"]) == 2
