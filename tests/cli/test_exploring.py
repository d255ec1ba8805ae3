"""`fencepost explore`: what it prints, and its exit codes."""

from __future__ import annotations

import json

import pytest

from fencepost.cli.application import run

Output = pytest.CaptureFixture[str]


def test_a_finding_is_told_step_by_step(capsys: Output) -> None:
    assert run(["explore", "--transaction-version", "0", "--json"]) == 1
    *words, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert found["violation"] == "G1a"
    assert found["steps"] == len(found["trace"]) == 18
    assert not found["complete"]
    assert words[0] == "   1  AddPartitionsToTxn t-0 of p0 reaches the coordinator"
    assert words[17].startswith("  18  WriteTxnMarkers commit")
    assert words[18].startswith("G1a after 18 steps: p0.2.0 is visible, and its client aborts it (")


def test_a_proof_says_how_many_states_it_took(capsys: Output) -> None:
    options = ["--producers", "1", "--transactions", "2", "--retries", "1", "--transaction-version", "2"]
    assert run(["explore", *options, "--json"]) == 0
    words, last = capsys.readouterr().out.splitlines()
    proof = json.loads(last)
    assert (proof["violation"], proof["steps"], proof["trace"], proof["complete"]) == (None, 0, [], True)
    assert proof["states"] > 1_000
    assert proof["states_per_second"] > 0
    assert words.startswith(f"Nothing wrong in any state of this world: {proof['states']:,} states")


def test_a_search_that_is_cut_short_says_so(capsys: Output) -> None:
    assert run(["explore", "--max-states", "100"]) == 0
    assert capsys.readouterr().out.startswith("Nothing found, and not all looked at")
