"""`fencepost fuzz`: what it says, that cores change nothing about it, that it leaves no process behind."""

from __future__ import annotations

import gc
import json
import os
import pty
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from fencepost.cli.application import run
from fencepost.cli.errors import CommandFailed
from fencepost.cli.fuzz import WorldOptions
from fencepost.cli.fuzz_workers import PausedCollector, try_seeds
from fencepost.simulator.fuzz import shrinking
from fencepost.simulator.fuzz.plan import FuzzPlan, draw
from fencepost.simulator.fuzz.seeds import SeedTally, try_one
from fencepost.simulator.fuzz.worlds import WorldKind
from fencepost.simulator.judges.rare_states import RARE_STATES
from fencepost.simulator.world.choices import Choices
from tests.cli.processes import COMMAND, PATIENCE_S

Output = pytest.CaptureFixture[str]

DEADLY_SEED = 6
DEADLY_CODE = 7


def fuzz(capsys: Output, *options: str, code: int = 0) -> tuple[list[str], dict[str, Any]]:
    """The words, and the object behind them."""
    assert run(["fuzz", *options, "--json"]) == code
    said = capsys.readouterr()
    return said.err.splitlines(), json.loads(said.out)


def test_the_last_line_counts_what_was_tried(capsys: Output) -> None:
    words, counted = fuzz(capsys, "--seeds", "5", "--cores", "1")
    assert (counted["seeds"], counted["violations"], counted["found"]) == (5, 0, [])
    assert counted["transactions"] > 5
    assert counted["transactions_per_core_second"] > 0
    assert counted["transaction_version"] == 2
    assert words[-1].startswith("5 seeds, no violation, in ")
    assert f"{counted['transactions']:,} transactions and {counted['events']:,} events in" in words[-1]


def test_seeds_follow_the_first_one(capsys: Output) -> None:
    tally = SeedTally(41)
    for seed in (41, 42, 43):
        tally.add(try_one(seed, draw))
    _, counted = fuzz(capsys, "--first-seed", "41", "--seeds", "3", "--cores", "1")
    assert (counted["digest"], counted["events"]) == (tally.digest, tally.events)


def test_two_cores_come_to_the_same_as_one(capsys: Output) -> None:
    alone, together = (fuzz(capsys, "--seeds", "6", "--cores", cores)[1] for cores in ("1", "2"))
    for counted in (alone, together):
        for name in (
            "cores",
            "seconds",
            "core_seconds",
            "transactions_per_core_second",
            "seeds_per_core_second",
        ):
            del counted[name]
    assert alone == together
    assert alone["coverage"]["cells"]


@pytest.mark.parametrize("broken", ["fencing", "dedup"])
def test_the_first_seed_that_breaks_a_rule_ends_the_search(capsys: Output, broken: str) -> None:
    words, counted = fuzz(capsys, "--seeds", "60", "--cores", "1", "--break", broken, code=1)
    (found,) = counted["found"]
    seed = found["seed"]
    assert counted["seeds"] == seed + 1 <= 60
    assert words[:3] == [
        f"Seed {seed} violates {found['rule']}: {found['evidence']}",
        f"  replay: fencepost fuzz --first-seed {seed} --seeds 1 --break {broken}",
        f"  shrink: fencepost shrink --seed {seed} --break {broken}",
    ]
    again = words[1].split("fencepost fuzz ")[1].split()
    assert fuzz(capsys, *again, code=1)[1]["found"] == counted["found"]


def test_what_the_brokers_do_without_goes_with_the_next_command(capsys: Output) -> None:
    options = WorldOptions(
        workload="groups",
        transaction_version=0,
        without_fixes=("fences_once", "require_stable"),
        broken=("dedup",),
    )
    said = str(options)
    assert (
        said
        == " --workload groups --transaction-version 0 --without-fix fences_once --without-fix require_stable"
        " --break dedup"
    )
    assert fuzz(capsys, "--seeds", "1", "--cores", "1", *said.split()[:-2])[1]["seeds"] == 1


def test_many_cores_stop_at_the_same_seed_as_one(capsys: Output) -> None:
    options = ("--seeds", "60", "--break", "dedup", "--first-seed", "20")
    alone, together = (fuzz(capsys, *options, "--cores", cores, code=1)[1] for cores in ("1", "2"))
    assert (alone["found"], alone["digest"]) == (together["found"], together["digest"])


def test_whoever_wants_all_findings_keeps_going(capsys: Output) -> None:
    options = ("--seeds", "12", "--cores", "1", "--break", "dedup")
    words, counted = fuzz(capsys, *options, "--keep-going", code=1)
    assert counted["seeds"] == 12
    assert counted["violations"] == len(counted["found"]) > 1
    assert f"12 seeds, {counted['violations']} violations, in" in words[-1]


def test_what_an_old_generation_does_by_design_is_told_and_no_violation(capsys: Output) -> None:
    options = ("--seeds", "1", "--cores", "1", "--transaction-version", "0")
    words, counted = fuzz(capsys, "--first-seed", "258", *options)
    (met,) = counted["met"]
    assert (counted["violations"], counted["partition_verification"]) == (0, False)
    assert (met["seeds"], met["first"]["seed"], met["ended_by"]) == (1, 258, "KIP-890 part 2, KIP-1228")
    assert words[0].startswith("Not counted as violations: known anomalies")
    assert words[2].split("  ")[0] == met["behaviour"] == met["first"]["rule"]
    assert words[3] == "  shrink: fencepost shrink --seed 258 --transaction-version 0"
    _, verified = fuzz(capsys, "--first-seed", "258", *options, "--partition-verification")
    assert verified["partition_verification"] is True
    assert verified["digest"] != counted["digest"]


def test_what_was_come_through_is_told(capsys: Output) -> None:
    words, counted = fuzz(capsys, "--seeds", "10", "--cores", "1", "--coverage")
    covered = counted["coverage"]
    cells = {(cell["state"], cell["input"]): cell for cell in covered["cells"]}
    commit = cells["Ongoing", "commit"]
    assert commit["times"] >= max(commit["faults"].values()) > 0
    assert not [cell for cell in covered["missed"] if tuple(cell) in cells]
    assert len(cells) + len(covered["missed"]) == covered["reachable"]
    title = next(at for at, line in enumerate(words) if line.startswith("state "))
    table = words[title + 1 : title + 1 + covered["reachable"] + len(covered["unreachable"])]
    assert any(line.split()[:3] == ["Ongoing", "commit", str(commit["times"])] for line in table)
    assert all(any(line.endswith(reason) for line in table) for _, _, reason in covered["unreachable"])
    assert words[-2].startswith(f"Coverage: {len(cells)} of {covered['reachable']} cells")
    assert all(f"{state} x {given}" in words[-2] for state, given in covered["missed"][:4])


def test_a_workload_tells_the_rare_states_that_it_is_for(capsys: Output) -> None:
    options = ("--workload", "identities", "--seeds", "4", "--cores", "1")
    words, counted = fuzz(capsys, *options, "--coverage")
    rare_states: dict[str, int] = counted["coverage"]["rare_states"]
    assert tuple(rare_states) == RARE_STATES["identities"]
    reached = [name for name, count in rare_states.items() if count]
    assert all(any(line.split("  ")[0] == name for line in words) for name in rare_states)
    assert words[-2].startswith(f"Rare states: {len(reached)} of {len(rare_states)} of this workload")
    assert all(name in words[-2] for name in rare_states if name not in reached)
    shorter, _ = fuzz(capsys, *options)
    assert shorter[-2] == words[-2]
    assert not [line for line in shorter if line.split("  ")[0] in rare_states]


# --- what is left for CI ------------------------------------------------------------------------------------


def test_a_search_ends_with_its_time_and_counts_what_it_tried(capsys: Output) -> None:
    words, counted = fuzz(capsys, "--for", "0s", "--first-seed", "3", "--cores", "1")
    assert counted["seeds"] == 1, "a search that tried nothing would say nothing"
    assert words[-1].startswith("1 seed, no violation, in ")
    _, counted = fuzz(capsys, "--for", "10h", "--seeds", "2", "--cores", "9")
    assert (counted["seeds"], counted["cores"]) == (2, 2)  # no more cores than seeds
    words, counted = fuzz(capsys, "--for", "10h", "--break", "fencing", "--cores", "1", code=1)
    assert words[-1].startswith(f"{counted['seeds']} seeds, one violation, in ")


def test_a_seed_that_fails_leaves_its_files_and_a_report(capsys: Output, tmp_path: Path) -> None:
    place, report = tmp_path / "found", tmp_path / "report.xml"
    options = ("--cores", "1", "--break", "fencing", "--output", str(place), "--junit", str(report))
    words, counted = fuzz(capsys, *options, code=1)
    (found,) = counted["found"]
    name = f"seed-{found['seed']}"
    files = ",".join(f"{name}.{kind}" for kind in ("toml", "html", "svg", "txt", "json"))
    assert f"  files:  {place}/{{{files}}}" in words
    facts = json.loads((place / f"{name}.json").read_text())
    assert (facts["rule"], facts["evidence"]) == (found["rule"], found["evidence"])
    assert facts["replay"] == f"fencepost fuzz --first-seed {found['seed']} --seeds 1 --break fencing"
    assert fromstring((place / f"{name}.svg").read_text()).tag.endswith("svg")
    assert f"✗ {found['rule']}" in (place / f"{name}.txt").read_text()
    assert run(["run", str(place / f"{name}.toml")]) == 0, "it violates what it says"
    suites = fromstring(report.read_text())
    assert (suites.get("tests"), suites.get("failures")) == ("2", "1")
    failed, clean = suites.iter("testcase")
    assert failed.get("name") == f"seed {found['seed']}"
    assert failed[0].get("message") == f"{found['rule']}: {found['evidence']}"
    assert facts["replay"] in (failed[0].text or "")
    clean_seeds = "1 seed" if found["seed"] == 1 else f"{found['seed']} seeds"
    assert clean.get("name") == f"{clean_seeds} of 0 to {found['seed']}"


@pytest.mark.thorough
def test_a_seed_that_fails_is_shrunk_at_once(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shrinking, "BUDGET", 40_000)  # events of all attempts: a second or two
    words, counted = fuzz(capsys, "--cores", "1", "--break", "fencing", "--shrink", code=1)
    (found,) = counted["found"]
    file = f"seed-{found['seed']}.toml"
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert any(line.endswith(f" s: {file}") for line in words)
    assert not any("fencepost shrink --seed" in line for line in words), "it was shrunk already"
    assert run(["run", file]) == 0
    assert f"violates {found['rule']}" in capsys.readouterr().out


def test_a_clean_search_leaves_a_report_and_no_files(capsys: Output, tmp_path: Path) -> None:
    place, report = tmp_path / "found", tmp_path / "report.xml"
    fuzz(capsys, "--seeds", "2", "--cores", "1", "--output", str(place), "--junit", str(report))
    assert list(place.iterdir()) == []
    (case,) = fromstring(report.read_text()).iter("testcase")
    assert (case.get("name"), list(case)) == ("2 seeds of 0 to 1", [])


@pytest.mark.parametrize(
    "options", [("--seeds", "0"), ("--first-seed", "-1"), ("--break", "luck"), ("--without-fix", "luck")]
)
def test_what_cannot_be_tried(capsys: Output, options: tuple[str, ...]) -> None:
    assert run(["fuzz", *options]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_an_option_that_there_is_not_names_all_that_hold_its_word(capsys: Output) -> None:
    assert run(["fuzz", "--seed", "3"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "fencepost: fuzz has no option --seed; did you mean --seeds or --first-seed?"
    assert len(told) == 2


# --- processes ----------------------------------------------------------------------------------------------


def dying(choices: Choices) -> FuzzPlan:
    """Draws worlds, and takes its process along at one seed."""
    plan = draw(choices)
    if draw(Choices(DEADLY_SEED)) == plan:
        os._exit(DEADLY_CODE)
    return plan


def test_a_worker_that_dies_is_told_with_its_seed() -> None:
    with pytest.raises(
        CommandFailed, match=f"died with exit code {DEADLY_CODE} while it ran seed {DEADLY_SEED}"
    ) as told:
        list(try_seeds(range(1, 9), dying, cores=2))
    assert told.value.then.endswith(f"the same options and `--first-seed {DEADLY_SEED} --seeds 1 --cores 1`")


def test_a_search_that_fails_leaves_no_older_report(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.xml"
    fuzz(capsys, "--seeds", "2", "--cores", "1", "--junit", str(report))
    monkeypatch.setattr(WorldKind, "planner", staticmethod(dying))
    assert run(["fuzz", "--seeds", "9", "--cores", "2", "--junit", str(report)]) == 1
    assert "died with exit code" in capsys.readouterr().err
    assert not report.exists()


@contextmanager
def endless_search() -> Generator[subprocess.Popen[str]]:
    """Two workers with a terminal on stderr, after their first results."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "fuzz", "--seeds", "1000000", "--cores", "2"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            drawn = b""
            while b"transactions/s" not in drawn:
                drawn += os.read(ours, 10_000)
            yield process
        finally:
            os.close(ours)
            process.kill()


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_however_it_ends_no_process_stays(how: signal.Signals, code: int) -> None:
    with endless_search() as process:
        if how is signal.SIGINT:
            os.killpg(process.pid, how)  # as a terminal does: to everybody
        else:
            process.send_signal(how)
        # Every process has inherited this pipe: its end is read when the last of them is gone.
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code
        assert ("of 1,000,000 seeds, no violation" in said) is (how is not signal.SIGKILL)


def test_what_a_caller_has_frozen_stays_frozen() -> None:
    gc.freeze()
    with PausedCollector():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count()
