"""`fencepost shrink`: the file it writes shows the same failure in a smaller run; what cannot be shrunk."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fencepost.cli.application import run
from fencepost.cli.fuzz import Protection, WorldOptions
from fencepost.cli.scenario_files import read
from fencepost.cli.shrink import shrink
from fencepost.simulator.fuzz.shrinking import ShrinkSearch
from tests.cli.failing_seeds import failing_with
from tests.cli.processes import COMMAND, PATIENCE_S

Output = pytest.CaptureFixture[str]
BUDGET = 40_000  # events of all attempts: a second or two
SMALL_BUDGET = 8_000  # tests/simulator/test_shrinking.py searches for longer


def last_json(capsys: Output) -> tuple[list[str], dict[str, Any]]:
    """The words, and the object behind them."""
    said = capsys.readouterr()
    return said.err.splitlines(), json.loads(said.out)


@pytest.mark.parametrize("broken", ["fencing", "dedup"])
def test_a_seed_becomes_a_small_scenario_that_breaks_the_same_rule(
    capsys: Output, tmp_path: Path, broken: Protection
) -> None:
    seed, target = failing_with(broken), tmp_path / "small.toml"
    options = ["--seed", str(seed), "--break", broken, "--output", str(target)]
    options += ["--budget", str(SMALL_BUDGET)]
    assert run(["shrink", *options, "--json"]) == 0
    words, small = last_json(capsys)
    assert words[0].startswith(f"seed {seed} violates {small['rule']}: ")
    assert f"  replay:   fencepost run {target}" in words
    assert small["file"] == str(target)
    assert small["events"] < small["events_before"]
    assert small["choices"] < small["choices_before"]
    evidence = [line for line in target.read_text().splitlines() if "✗" in line and small["rule"] in line]
    assert evidence, "the drawing ends with what was broken"

    assert run(["run", str(target), "--json"]) == 0
    (played, _) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert played["broken"] == [small["rule"]]
    assert played["events"] == small["events"]
    assert played["expected"] == [f"violates {small['rule']}"]


@pytest.mark.thorough
def test_what_an_old_generation_does_by_design_is_made_small_too(capsys: Output, tmp_path: Path) -> None:
    target = tmp_path / "late.toml"
    options = [
        "--seed",
        "258",
        "--transaction-version",
        "0",
        "--output",
        str(target),
        "--budget",
        str(BUDGET),
    ]
    assert run(["shrink", *options, "--json"]) == 0
    words, small = last_json(capsys)
    assert words[0].startswith(f"seed 258 shows {small['rule']}: payments-0: a marker of producer ")
    assert "partition_verification = false" in target.read_text()

    assert run(["run", str(target), "--json"]) == 0
    (played, _) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert played["broken"] == [small["rule"]]


@pytest.mark.thorough
def test_what_is_small_can_be_made_smaller_from_its_file(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seed = failing_with("fencing")
    assert shrink(seed=seed, options=WorldOptions(broken=("fencing",)), budget=1) == 0
    begun = Path(f"seed-{seed}.toml")
    words = capsys.readouterr().out.splitlines()
    assert shrink(str(begun), output=Path("smaller.toml"), budget=BUDGET, as_json=True) == 0
    _, small = last_json(capsys)
    assert small["events"] < small["events_before"]
    assert "  continue: with --budget 2 (the budget ran out before everything had been tried)" in words
    assert f"  replay:   fencepost run {begun}" in words
    assert read(Path("smaller.toml")).expect == read(begun).expect


@contextmanager
def long_search(seed: int, directory: Path) -> Generator[tuple[subprocess.Popen[str], int]]:
    """A search with a terminal on stderr, which we read; it has just said what is broken."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "shrink", "--seed", str(seed), "--break", "fencing", "--budget", "1000000000"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    ) as process:
        os.close(theirs)
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(f"seed {seed} violates ")
            yield process, ours
        finally:
            process.kill()
            os.close(ours)


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_search_that_is_ended_keeps_what_it_had_found(
    capsys: Output, tmp_path: Path, how: signal.Signals, code: int
) -> None:
    seed = failing_with("fencing")
    with long_search(seed, tmp_path) as (process, terminal):
        assert b"attempts" in os.read(terminal, 1_000), "it tells from time to time how far it is"
        process.send_signal(how)
        words = process.communicate(timeout=PATIENCE_S)[0].splitlines()
    assert process.returncode == code
    assert words[0].endswith(f": seed-{seed}.toml")
    more = f"fencepost shrink seed-{seed}.toml (interrupted before everything had been tried)"
    assert words[1] == f"  continue: {more}"
    assert run(["run", str(tmp_path / f"seed-{seed}.toml"), "--json"]) == 0
    (played, _) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert len(played["broken"]) == 1


def test_a_search_that_is_ended_at_once_says_that_it_wrote_nothing(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(_: ShrinkSearch) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ShrinkSearch, "run", ended)
    seed = failing_with("fencing")
    assert run(["shrink", "--seed", str(seed), "--break", "fencing", "--json"]) == 130
    words, small = last_json(capsys)
    assert words[1:] == ["Interrupted before a smaller run was found; no file was written."]
    assert small["file"] is None
    assert not list(tmp_path.iterdir())


def test_without_a_name_nothing_that_is_of_another_run_is_overwritten(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seed = failing_with("fencing")
    command = ["shrink", "--seed", str(seed), "--break", "fencing", "--budget", "1"]
    assert run(command) == run(command) == 0, "the same run again"
    mine = Path("mine.toml")
    mine.write_text(Path(f"seed-{seed}.toml").read_text())
    begun = mine.read_text()
    assert run(["shrink", "mine.toml", "--budget", "1"]) == 0
    assert (mine.read_text(), Path("mine-small.toml").is_file()) == (begun, True)
    other = begun.replace(f"# seed {seed} --break fencing, shrunk", f"# seed {seed} --break dedup, shrunk")
    assert other != begun
    Path(f"seed-{seed}.toml").write_text(other)
    capsys.readouterr()
    assert run(command) == 2
    assert f"is not a scenario shrunk from seed {seed} --break fencing; refusing" in capsys.readouterr().err
    assert Path(f"seed-{seed}.toml").read_text() == other


@pytest.mark.thorough
def test_the_same_seed_becomes_the_same_file(tmp_path: Path) -> None:
    seed, texts = failing_with("dedup"), list[str]()
    for name in ("one.toml", "two.toml"):
        shrink(seed=seed, options=WorldOptions(broken=("dedup",)), output=tmp_path / name, budget=BUDGET // 4)
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]


def test_what_cannot_be_shrunk_fails_with_two_lines(capsys: Output, tmp_path: Path) -> None:
    story = tmp_path / "story.toml"
    story.write_text('name = "s"\n[[producer]]\nname = "p"\nscript = ["send t-0 a"]\n')
    table: list[tuple[list[str], int, str]] = [
        (["--seed", "1", "--output", str(tmp_path / "none.toml")], 1, "seed 1 violates no rule"),
        ([str(story)], 2, "was written by hand"),
        ([], 2, "needs either --seed or a scenario; none was given"),
        ([str(story), "--seed", "1"], 2, "needs either --seed or a scenario; not both"),
        ([str(tmp_path / "nowhere.toml")], 2, "no such file"),
        ([str(tmp_path / "nowhere.toml")], 2, "fencepost shrink --seed"),
        (["lost_sequenze"], 2, "there is no scenario lost_sequenze"),
        (["lost_sequenze"], 2, "did you mean lost_sequence? "),
        (["lost_sequence"], 1, "lost_sequence violates no rule, so there is nothing to shrink"),
        (["zombie_fencing"], 2, "zombie_fencing was written by hand"),
        (["zombie_fencing"], 2, "fencepost run zombie_fencing --text"),
        ([str(tmp_path)], 2, "fencepost shrink --seed"),
        ([str(story), "--transaction-version", "2"], 2, "already contains the options"),
        ([str(story), "--break", "dedup"], 2, "can only be given with --seed"),
        (["--seed", "-1"], 2, "Must be >= 0"),
    ]
    for options, code, words in table:
        assert run(["shrink", *options]) == code
        told = capsys.readouterr().err
        assert words in told
        assert len(told.splitlines()) == 2
    assert not (tmp_path / "none.toml").exists()


def test_where_nothing_can_be_written_nothing_is_searched(capsys: Output, tmp_path: Path) -> None:
    story, occupied = tmp_path / "story.toml", tmp_path / "notes.txt"
    story.write_text('name = "s"\n[[producer]]\nname = "p"\nscript = ["send t-0 a"]\n')
    occupied.write_text("mine")
    seed = failing_with("dedup")
    table: list[tuple[Path, str]] = [
        (tmp_path / "nowhere" / "small.toml", "small.toml: No such file or directory"),
        (tmp_path, ": Is a directory"),
        (occupied / "small.toml", "small.toml: Not a directory"),
        (occupied, "is not a generated scenario; refusing to overwrite it"),
        (story, "is not a generated scenario; refusing to overwrite it"),
    ]
    kept = {path: path.read_bytes() for path in (story, occupied)}
    for target, words in table:
        assert run(["shrink", "--seed", str(seed), "--break", "dedup", "--output", str(target)]) == 2
        told = capsys.readouterr()
        assert words in told.err
        assert "with --output" in told.err
        assert (told.out, len(told.err.splitlines())) == ("", 2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == kept


def test_what_cannot_be_kept_is_printed(capsys: Output, tmp_path: Path) -> None:
    """/dev/full can be opened, and takes nothing."""
    seed, kept = failing_with("dedup"), tmp_path / "kept.toml"
    options = ["shrink", "--seed", str(seed), "--break", "dedup", "--budget", "1", "--output"]
    assert run([*options, "/dev/full"]) == 1
    told = capsys.readouterr()
    assert told.err.startswith("fencepost: cannot write /dev/full: No space left on device")
    kept.write_text(told.out.partition("\n")[2])
    assert run(["run", str(kept)]) == 0
    assert run([*options, str(kept)]) == 0, "what a search has found gives way to what it finds next"
