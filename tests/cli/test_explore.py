"""`fencepost explore`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from xml.etree.ElementTree import fromstring

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


def test_a_finding_is_drawn_and_saved_as_a_scenario(capsys: Output, tmp_path: Path) -> None:
    place, report, picture = tmp_path / "found", tmp_path / "report.xml", tmp_path / "trace.svg"
    shown = ["--output", str(place), "--junit", str(report), "--svg", str(picture), "--text"]
    assert run(["explore", "--transaction-version", "0", *shown]) == 1
    out = capsys.readouterr().out
    assert "LATE (after its retry 6) 5 EndTxn COMMIT 0/0" in out
    assert fromstring(picture.read_text()).tag.endswith("svg")
    names = sorted(path.name for path in place.iterdir())
    assert names == [f"explored-G1a.{kind}" for kind in ("html", "json", "svg", "toml", "txt")]
    assert json.loads((place / "explored-G1a.json").read_text())["violation"] == "G1a"
    assert f"  replay: fencepost run {place}/explored-G1a.toml" in out
    assert run(["run", str(place / "explored-G1a.toml"), "--json"]) == 0
    played = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (played["broken"], played["struck"]) == (["G1a"], ["delay (p0 sends EndTxn to node 1)"])
    (case,) = fromstring(report.read_text()).iter("testcase")
    assert case.get("name") == "fencepost explore --transaction-version 0"
    assert (case[0].get("message") or "").startswith("G1a after 18 steps: ")


def test_a_proof_leaves_a_report_that_passes(capsys: Output, tmp_path: Path) -> None:
    report, picture = tmp_path / "report.xml", tmp_path / "trace.svg"
    options = ["--transactions", "1", "--retries", "0", "--junit", str(report), "--svg", str(picture)]
    assert run(["explore", *options]) == 0
    (case,) = fromstring(report.read_text()).iter("testcase")
    assert list(case) == []
    assert not picture.exists(), "there is nothing to draw"
    assert "No violation in any reachable state" in capsys.readouterr().out


def test_a_search_whose_time_is_over_proves_nothing(capsys: Output) -> None:
    assert run(["explore", "--for", "0s"]) == 1
    assert "No violation so far, but the time limit of --for was reached before it" in capsys.readouterr().out


def test_a_search_stops_at_the_number_of_states_that_was_given(capsys: Output) -> None:
    for most in (1, 100):
        assert run(["explore", "--max-states", str(most)]) == 1
        said = capsys.readouterr().out
        assert "the search reached --max-states before it checked all states" in said
        assert f": {most} state{'s' if most > 1 else ''} and " in said


def test_the_progress_is_erased() -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run([*COMMAND, "explore"], stdout=subprocess.PIPE, stderr=theirs, text=True)
    shown = os.read(ours, 10_000)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0
    assert b"states checked" in shown
    assert shown.endswith(b"\r\x1b[K")


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
