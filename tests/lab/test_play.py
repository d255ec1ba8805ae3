"""What if: faults added to scenarios, protections switched off, and what is saved of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from fencepost.bundled import bundled_scenarios
from fencepost.cli.application import run
from fencepost.lab.play import (
    BadRequest,
    PlayArguments,
    arguments_of,
    case_of,
    changes,
    play,
    play_both,
    save,
)
from fencepost.lab.recordings import record
from fencepost.simulator.scenarios.codec import BadScenario
from fencepost.simulator.scenarios.files import scenario_of
from fencepost.simulator.scenarios.model import variants

ACKNOWLEDGEMENT = "when node 1 sends Produce reply to p #3 do drop"  # of b; the scenario drops that of a


def text_of(name: str) -> str:
    return bundled_scenarios()[name].read_text(encoding="utf-8")


def asked(name: str = "duplicate_after_lost_ack", **more: Any) -> PlayArguments:
    return PlayArguments(scenario=name, text=text_of(name), **more)


def changed_by(arguments: PlayArguments) -> dict[str, Any]:
    plain = PlayArguments(scenario=arguments.scenario, text=arguments.text, variant=arguments.variant)
    found: dict[str, Any] = play_both(plain, arguments)["changes"]
    return found


# --- what if ------------------------------------------------------------------------------------------------


def test_a_lost_acknowledgement_leaves_no_duplicate() -> None:
    assert changed_by(asked(faults=(ACKNOWLEDGEMENT,))) == {
        "visible": [],
        "now_broken": [],
        "no_longer_broken": [],
        "still_broken": [],
    }


def test_without_dedup_it_leaves_a_duplicate() -> None:
    found = changed_by(asked(faults=(ACKNOWLEDGEMENT,), broken=("dedup",)))
    assert found["visible"] == [{"partition": "t-0", "before": ["a", "b"], "after": ["a", "a", "b", "b"]}]
    assert [each["rule"] for each in found["now_broken"]] == ["duplicate", "I3 unique sequence"]
    assert '"a" is at t-0 offsets 0 and 1' in found["now_broken"][0]["text"]


def test_with_dedup_on_again_the_duplicate_of_a_variant_is_gone() -> None:
    found = changed_by(asked(variant=2, broken=()))
    assert [each["rule"] for each in found["no_longer_broken"]] == ["duplicate", "I3 unique sequence"]
    assert found["visible"] == [{"partition": "t-0", "before": ["a", "a", "b"], "after": ["a", "b"]}]


def test_another_transaction_version_is_another_outcome() -> None:
    older = asked("late_end_txn", variant=1)
    newer = attrs.evolve(older, transaction_version=2 if settings(older)["transaction_version"] == 0 else 0)
    found = play_both(older, newer)
    assert settings(newer)["transaction_version"] != settings(older)["transaction_version"]
    assert found["divergence"] is not None
    assert found["changes"]["now_broken"] or found["changes"]["no_longer_broken"]


def settings(arguments: PlayArguments) -> dict[str, Any]:
    found: dict[str, Any] = play(arguments)["document"]["settings"]
    return found


ACTIONS = [
    "drop",
    "delay 300 ms",
    "hold until node 1 receives Produce from p",
    "deliver twice",
    "crash node 1 until after 300 ms",
    "cut power of node 1 until after 300 ms",
    "pause node 1 until after 300 ms",
    "isolate node 1 until after 300 ms",
    "pause p until after 300 ms",
    "isolate p until after 300 ms",
    "kill p until after 300 ms",
]


@pytest.mark.parametrize("action", ACTIONS)
def test_every_choice_of_the_menu_strikes(action: str) -> None:
    """A menu of the page writes these lines."""
    document = play(asked(faults=(f"when p sends Produce to node 1 #2 do {action}",)))["document"]
    struck = [step for step in document["steps"] if step["kind"] == "struck"]
    assert len(struck) > 1, "besides the fault of the scenario"
    assert not [text for text in document["problems"] if "fault struck" in text]


def test_every_point_of_a_run_can_be_struck() -> None:
    """Where the page offers a point, a fault strikes: else its menu would lie."""
    document = play(asked())["document"]
    points = [step["point"] for step in document["steps"] if "point" in step]
    assert len(points) > 10
    for point in points:
        again = play(asked(faults=(f"when {point} do pause p until after 1 ms",)))["document"]
        missed = [text for text in again["problems"] if "struck 0 of 1" in text]
        assert not missed or "ends" in point, missed


def test_the_same_question_has_the_same_answer() -> None:
    arguments = asked("lost_sequence", faults=("when payer-1 sends EndTxn do drop",))
    assert play(arguments) == play(arguments)


def test_what_is_not_changed_is_the_scenario_itself() -> None:
    """Also if the page says again what the scenario says, in whatever order."""
    ((_, case),) = variants(scenario_of(text_of("duplicate_after_lost_ack")), 2)
    assert case_of(asked(variant=2)) == case
    assert case_of(asked(variant=2, broken=("dedup", "dedup"), transaction_version=2)) == case


def test_values_that_are_read_by_nobody_are_not_visible() -> None:
    run_of = record(case_of(asked("zombie_fencing")))
    assert changes(run_of, run_of)["visible"] == []


# --- errors -------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"faults": ["when p sends Produze do drop"]}, 'is not a REQUEST; did you mean "Produce"?'),
    ({"faults": ["when q sends Produce do drop"]}, '"when q sends Produce do drop": there is no "q"'),
    ({"faults": ["when p ends do drop"]}, '"drop" needs a message'),
    ({"faults": ["drop"]}, '"drop" is not a fault'),
    ({"faults": ["when p ends do crash node 2"]}, 'there is no "node 2" (possible: node 1; broker)'),
    ({"faults": ["when p sends Produce do drop every 3 times"]}, "add a fault for each moment"),
    ({"faults": [1]}, "faults must be a list of texts"),
    ({"faults": ["x"] * 51}, "51 faults are too many"),
    ({"broken": ["sleep"]}, "broken: there is no 'sleep' (possible: dedup, fencing)"),
    ({"without_fixes": ["x"]}, "without_fixes: there is no 'x' (possible: group_fencing"),
    ({"transaction_version": 7}, "transaction_version: there is no 7 (possible: 0, 1, 2)"),
    ({"transaction_version": True}, "transaction_version is True, but must be a whole number"),
    ({"variant": 9}, "has no variant 9: its variants are 1 to 2"),
    ({"variant": 0}, "has no variant 0"),
    ({"fault": []}, "fault: not a key here; the keys are scenario, text, variant, faults"),
    ({"text": 3}, "text is 3, but must be text"),
    ({"text": "x = ["}, "duplicate_after_lost_ack is not TOML"),
]


@pytest.mark.parametrize(("given", "words"), WRONG, ids=[row[1] for row in WRONG])
def test_what_cannot_be_played_is_refused_in_words(given: dict[str, Any], words: str) -> None:
    raw = {"scenario": "duplicate_after_lost_ack", "text": text_of("duplicate_after_lost_ack"), **given}
    with pytest.raises((BadRequest, BadScenario)) as refused:
        play(arguments_of(raw))
    assert words in str(refused.value)


# --- saved scenarios ----------------------------------------------------------------------------------------


def kept(arguments: PlayArguments, directory: Path) -> str:
    """The text of a saved run, which `fencepost run` has played."""
    saved = save(arguments)
    path = directory / saved["name"]
    path.write_text(saved["text"], encoding="utf-8")
    assert run(["run", str(path)]) == 0
    return saved["text"]


def test_what_is_saved_says_what_happened(tmp_path: Path) -> None:
    text = kept(asked(faults=(ACKNOWLEDGEMENT,), broken=("dedup",)), tmp_path)
    assert 'violates = ["duplicate", "I3 unique sequence"]' in text
    assert '"t-0" = ["a", "a", "b", "b"]' in text
    assert "What if: when node 1 sends Produce reply to p #3 do drop. Switched off: dedup." in text


@pytest.mark.parametrize("name", list(bundled_scenarios()))
def test_every_bundled_scenario_can_be_changed_and_kept(name: str, tmp_path: Path) -> None:
    """The fault strikes where the first request of a client leaves, if there is one."""
    document = play(asked(name))["document"]
    point = next(step["point"] for step in document["steps"] if step["kind"] == "sent" and "point" in step)
    text = kept(asked(name, faults=(f"when {point} do delay 50 ms",)), tmp_path)
    assert 'do = "delay 50 ms"' in text


def test_a_found_run_is_kept_with_its_fault(tmp_path: Path) -> None:
    text = kept(asked("lost_sequence", faults=("when payer-1 sends EndTxn do drop",)), tmp_path)
    assert "[seeded]" in text
    assert "[[fault]]" in text


def test_a_fault_that_does_not_strike_cannot_be_kept() -> None:
    with pytest.raises(BadScenario, match="cannot be kept as a scenario: fault struck 0 of 1 times"):
        save(asked(faults=("when p sends Produce #99 do drop",)))
