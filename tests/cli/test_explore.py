"""`fencepost explore`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess

import pytest

from fencepost.cli.application import run
from tests.cli.processes import COMMAND, PATIENCE_S

Output = pytest.CaptureFixture[str]


def test_a_finding_is_told_step_by_step(capsys: Output) -> None:
    assert run(["explore", "--transaction-version", "0", "--json"]) == 1
    said = capsys.readouterr()
    words, found = said.err.splitlines(), json.loads(said.out)
    assert found["violation"] == "G1a"
    assert found["steps"] == len(found["trace"]) == 18
    assert not found["complete"]
    assert words[0] == "   1  AddPartitionsToTxn t-0 0/0 of p0 reaches the coordinator"
    assert words[17].startswith("  18  WriteTxnMarkers t-0 COMMIT")
    assert words[18].startswith(
        "G1a after 18 steps: p0.2.0 is committed, but its client requested an abort ("
    )


def test_a_proof_says_how_many_states_it_took(capsys: Output) -> None:
    options = ["--producers", "1", "--transactions", "2", "--retries", "1", "--transaction-version", "2"]
    assert run(["explore", *options, "--json"]) == 0
    said = capsys.readouterr()
    (words, among), proof = said.err.splitlines(), json.loads(said.out)
    assert (proof["violation"], proof["steps"], proof["trace"], proof["complete"]) == (None, 0, [], True)
    assert proof["states"] > 1_000
    assert proof["states_per_second"] > 0
    assert words.startswith(f"No violation in any reachable state: {proof['states']:,} states")
    reached = proof["reached"]
    assert all(reached.values()), "a world in which nothing comes late and nothing is decided proves nothing"
    assert among == f"The transitions include {', '.join(f'{n:,} {kind}' for kind, n in reached.items())}."


def test_a_correction_that_there_is_not_is_refused(capsys: Output) -> None:
    assert run(["explore", "--without-fix", "luck"]) == 2
    assert "unknown fix luck; the fixes are group_fencing, " in capsys.readouterr().err


def test_a_search_that_is_cut_short_proves_nothing(capsys: Output) -> None:
    assert run(["explore", "--max-states", "100", "--json"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(
        "No violation so far, but the search reached --max-states before it checked all states: "
    )
    found = json.loads(said.out)
    assert (found["complete"], found["violation"]) == (False, None)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_search_that_is_ended_tells_what_there_is(how: signal.Signals, code: int) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "explore", "--transactions", "9", "--retries", "9", "--max-states", "1000000000"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        try:
            assert b"states" in os.read(ours, 1_000), "it tells from time to time how far it is"
            process.send_signal(how)
            words, _ = process.communicate(timeout=PATIENCE_S)[0].splitlines()
        finally:
            process.kill()
            os.close(ours)
    assert process.returncode == code
    assert words.startswith(
        "No violation so far, but the search was interrupted before it checked all states: "
    )
    assert words.endswith(" s."), "a limit that was not reached is no advice"
    assert int(words.partition(": ")[2].partition(" states")[0].replace(",", "")) > 1_000
