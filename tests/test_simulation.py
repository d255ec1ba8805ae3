"""`fencepost.simulation`: what a test, a script or a notebook does with runs, searches and scenarios."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

import fencepost
from fencepost import simulation
from fencepost.simulation import SimulationFailed, run_scenario, scenario
from tests.lab.reading import runs_in
from tests.simulator.mutations import MUTATIONS
from tests.simulator.planting import planted
from tools.docs.pages import planted_bugs

SCREEN = 80 * 24
STORY = (
    scenario("an acknowledgement is lost")
    .producer("p", "send t-0 a", "flush", request_timeout_ms=500)
    .when("node 1 sends Produce reply to p")
    .do("drop")
    .expect(visible={"t-0": ["a"]})
    .also_with(broken=["dedup"], visible={"t-0": ["a"]})
)


NOTEBOOK_METHOD = "_repr_svg_"


def drawing(result: object) -> str | None:
    """What a notebook shows of it."""
    return getattr(result, NOTEBOOK_METHOD)()


def test_every_public_name_is_there() -> None:
    assert [name for name in simulation.__all__ if not hasattr(simulation, name)] == []
    assert fencepost.run_scenario is run_scenario
    assert fencepost.SimulationFailed is SimulationFailed


def test_a_seed_that_fails_shows_the_end_of_its_run_and_how_to_repeat_it() -> None:
    result = fencepost.simulate(8, broken=["fencing"])
    assert not result.passed
    with pytest.raises(SimulationFailed) as failed:
        result.raise_if_failed()
    message = str(failed.value)
    assert message.startswith(f"seed 8: {result.violation}\n")
    assert f"✗ {result.violation}" in message
    assert "[out-0 4-6 FEEDER" in message, "the batch of the zombie"
    assert message.splitlines()[-2:] == [
        "replay: fencepost fuzz --first-seed 8 --seeds 1 --break fencing",
        "shrink: fencepost shrink --seed 8 --break fencing",
    ]
    assert len(message.splitlines()) < 40


def test_a_planted_bug_fails_a_test_of_seeds() -> None:
    """A core that is wrong fails as the shipped protections do that --break turns off."""
    bug = next(bug for bug in planted_bugs() if bug.mutation == "the LSO is one too high")
    mutation = next(each for each in MUTATIONS if each.name == bug.mutation)
    with planted(mutation), pytest.raises(SimulationFailed, match="✗ I1 bounds"):
        fencepost.simulate(bug.seed).raise_if_failed()


def test_a_seed_that_passes_is_drawn_but_does_not_raise() -> None:
    result = fencepost.simulate(3)
    result.raise_if_failed()
    assert result.passed
    assert result.history.title == "seed 3"
    assert result.history.end == result.elapsed
    assert fromstring(drawing(result) or "").tag.endswith("svg")
    assert result == fencepost.simulate(3)


def test_many_seeds_stop_at_the_first_that_fails() -> None:
    found = simulation.fuzz(seeds=10, broken=["fencing"], workload="transactions")
    assert (found.passed, found.seeds, [each.seed for each in found.found]) == (False, 3, [2])
    with pytest.raises(SimulationFailed, match="seed 2: I4 hanging"):
        found.raise_if_failed()
    assert fromstring(drawing(found) or "").tag.endswith("svg")
    clean = simulation.fuzz(seeds=2)
    clean.raise_if_failed()
    assert (clean.passed, clean.seeds, clean.first_failure(), drawing(clean)) == (True, 2, None, None)
    with pytest.raises(ValueError, match="seeds must be"):
        simulation.fuzz(seeds=0)
    with pytest.raises(ValueError, match="workload must be one of"):
        simulation.fuzz(workload="nothing")


def test_a_scenario_runs_by_name_by_file_and_from_a_builder(tmp_path: Path) -> None:
    runs = run_scenario("late_end_txn")
    assert (runs.name, len(runs), runs.passed) == ("late EndTxn", 2, True)
    assert [run.name for run in runs] == ["late EndTxn", "late EndTxn (transaction_version 2)"]
    (second,) = run_scenario("late_end_txn", variant=2)
    assert second == runs[1]
    file = tmp_path / "story.toml"
    file.write_text(simulation.bundled_scenarios()["late_end_txn"].read_text())
    assert run_scenario(file, variant="version 2")[:] == (second,)
    assert run_scenario(STORY, variant=1).passed
    assert run_scenario(STORY.scenario(), variant=1).passed
    assert simulation.read_scenario("zombie_fencing").name == "zombie fencing"


def test_a_scenario_that_differs_from_its_expectations_fails_a_test() -> None:
    runs = run_scenario(STORY)
    assert [run.passed for run in runs] == [True, False]
    with pytest.raises(SimulationFailed) as failed:
        runs.raise_if_failed()
    message = str(failed.value)
    assert message.startswith("an acknowledgement is lost (broken dedup): violates duplicate")
    assert "shows [a, a] to read_committed, not [a]" in message
    assert "Produce t-0 a 0/0 AGAIN" in message
    run_scenario(STORY, variant=1).raise_if_failed()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: run_scenario("zombi"), FileNotFoundError, "there is no scenario 'zombi'; the bundled ones"),
        (lambda: run_scenario("late_end_txn", variant=9), ValueError, "has no variant 9"),
        (lambda: simulation.explore(without_fixes=["luck"]), ValueError, "unknown fix luck"),
    ],
)
def test_what_there_is_not_is_named(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_every_state_of_a_small_cluster() -> None:
    found = simulation.explore(transaction_version=0)
    with pytest.raises(SimulationFailed, match=r"G1a: .*, after 18 steps"):
        found.raise_if_failed()
    assert fromstring(drawing(found) or "").tag.endswith("svg")
    proof = simulation.explore(transactions=1, retries=0)
    proof.raise_if_failed()
    assert drawing(proof) is None


def test_reprs_fit_a_screen() -> None:
    runs = run_scenario("coordinator_crash_in_commit", variant=33)
    shown = [
        fencepost.simulate(0),
        fencepost.simulate(0, workload="compaction"),
        fencepost.simulate(0).history,
        simulation.fuzz(seeds=4, keep_going=True, broken=["fencing"]),
        simulation.explore(transaction_version=1),
        runs,
        runs[0],
        simulation.read_scenario("coordinator_crash_in_commit"),
        simulation.read_scenario("lost_sequence"),
        STORY,
    ]
    assert [(type(each).__name__, len(repr(each))) for each in shown if len(repr(each)) > SCREEN] == []


# --- pages --------------------------------------------------------------------------------------------------


def test_every_result_has_a_page(tmp_path: Path) -> None:
    results = [
        (fencepost.simulate(8, broken=["fencing"]), "seed 8"),
        (run_scenario("late_end_txn", variant=2), "late EndTxn (transaction_version 2)"),
        (run_scenario(STORY), "an acknowledgement is lost (broken dedup)"),  # the run that failed
        (simulation.fuzz(seeds=9, broken=["fencing"]), "seed "),
        (simulation.explore(transaction_version=0), ""),
    ]
    for number, (result, title) in enumerate(results):
        file = simulation.save_html(result, tmp_path / f"{number}.html")
        (document,) = runs_in(file)["documents"]
        assert document["title"].startswith(title)
        assert document["steps"]
        assert file.read_text("utf-8") == simulation.to_html(result)


def test_a_search_without_a_finding_has_no_page(tmp_path: Path) -> None:
    for result in (simulation.fuzz(seeds=1), simulation.explore()):
        with pytest.raises(ValueError, match="the search found no violation"):
            simulation.save_html(result, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())
