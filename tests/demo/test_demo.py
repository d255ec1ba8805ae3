"""The demonstration itself, with real processes and kills: right, and caught when one protection is off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fencepost.cli.application import run
from fencepost.demo.histories import count_finished_after_restart, count_states, read_histories
from fencepost.protocol.terms import TransactionState
from tests.cli.processes import COMMAND, started

PATIENCE_S = 600.0  # a bound on a hang
FLIGHTS = 2_000
KILLS = 5

NUMBERS = {
    "flights", "delays_committed", "duplicates", "lost", "worker_kills", "worker_kills_in_transaction",
    "broker_kills", "broker_kills_between_prepare_and_complete", "aborted_transactions",
    "uncommitted_visible", "totals_match", "ok",
}  # fmt: skip


def demo(directory: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """One small run: (exit code, its JSON, all that it printed)."""
    size = ["--flights", str(FLIGHTS), "--kills", str(KILLS), "--directory", str(directory), "--json"]
    done = subprocess.run(
        [*COMMAND, "demo", *size, *options], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def processes_in(directory: Path) -> list[str]:
    """Command lines of running processes that mention the directory."""
    listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if str(directory) in line and sys.executable in line]


@pytest.mark.parametrize("seed", [1])
def test_every_flight_once_whatever_was_killed(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said, words = demo(tmp_path, "--seed", str(seed))
    assert code == 0, words
    assert said.keys() >= NUMBERS
    assert said["ok"] is True
    assert (said["flights"], said["delays_committed"]) == (FLIGHTS, FLIGHTS)
    assert said["worker_kills"] + said["broker_kills"] == KILLS
    assert 2 * said["worker_kills_in_transaction"] >= said["worker_kills"]
    assert said["broker_kills_between_prepare_and_complete"] >= 1
    assert said["zombies"] == said["zombies_fenced"] >= 1
    assert (said["stream_kills"], said["stream_matches"]) == (1, True)
    assert said["stream_batches"] > 3
    assert said["uncommitted_visible"] > 0, "without aborted records in the log, read_committed was not tried"
    assert "Exactly once" in words
    assert processes_in(tmp_path) == []
    the_log_tells_the_same_story(tmp_path / "data", said, capsys)


def the_log_tells_the_same_story(
    data: Path, said: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The directory that the run left: BEGIN, PREPARE, COMPLETE and markers agree, and dump shows them."""
    assert run(["check", str(data)]) == 0
    capsys.readouterr()
    histories = read_histories(data)
    assert count_states(histories, TransactionState.COMPLETE_ABORT) == said["aborted_transactions"]
    assert count_finished_after_restart(histories) == said["broker_kills_between_prepare_and_complete"]
    assert run(["dump", str(data), "--topic", "__transaction_state", "--topic", "delays", "--json"]) == 0
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    states = [fact["state"] for fact in facts if fact["kind"] == "transaction"]
    assert {"Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "PrepareAbort", "CompleteAbort"} == set(
        states
    )
    assert states.count("PrepareCommit") == states.count("CompleteCommit")
    assert {fact["result"] for fact in facts if fact["kind"] == "marker"} == {"COMMIT", "ABORT"}
    assert not [fact for fact in facts if fact["kind"] == "damage"]


@pytest.mark.thorough
@pytest.mark.parametrize("broken", ["fencing", "dedup", "isolation"])
def test_without_one_protection_the_damage_is_seen(tmp_path: Path, broken: str) -> None:
    code, said, words = demo(tmp_path, "--break", broken)
    assert code == 1, words
    assert said["ok"] is False
    assert said["broken"] == broken
    assert said["duplicates"] > 0
    assert not (said["totals_match"] and broken == "isolation")
    assert "NOT exactly once" in words


def test_it_cleans_up_when_it_is_interrupted(tmp_path: Path) -> None:
    with started("demo", "--flights", "10000", "--directory", str(tmp_path)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "become delays" in line:
                break
        assert processes_in(tmp_path)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (130, "")
    assert processes_in(tmp_path) == []


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("dear")
    assert run(["demo", "--directory", str(tmp_path)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]
