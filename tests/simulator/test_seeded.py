"""Worlds that a search found, as scenarios: what may be expected of them, and how they read."""

from __future__ import annotations

from functools import partial

import attrs

from fencepost.faults.phrases import FAULTS, Fault
from fencepost.simulator.faults.random_faults import FaultKind
from fencepost.simulator.fuzz.plan import draw, draw_groups, draw_identities
from fencepost.simulator.fuzz.shrinking import failing_seed
from fencepost.simulator.scenarios.files import scenario_of
from fencepost.simulator.scenarios.found import seeded_text
from fencepost.simulator.scenarios.model import FuzzPlan, Scenario, ScenarioExpectation, TxnWriterPlan, cases
from fencepost.simulator.scenarios.runner import record_case, run, run_case
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.history import Appended

SEED = 3


def found(expect: ScenarioExpectation) -> Scenario:
    """A seed's world, with one kind of fault and the choices of another seed."""
    return Scenario(
        name="found",
        lesson="what it teaches",
        expect=expect,
        seeded=attrs.evolve(draw(Choices(SEED)), kinds=(FaultKind.CLOCK_JUMP,), strikes=8),
        choices=tuple(draw_many(SEED + 1)),
    )


def draw_many(seed: int) -> list[int]:
    choices = Choices(seed)
    return [choices.below(40) for _ in range(200)]


def problems_of(plan: FuzzPlan, *, holds: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Of the calmest run of a plan."""
    (report,) = run(Scenario(name="calm", expect=ScenarioExpectation(holds=holds), seeded=plan))
    return report.problems


def problems(expect: ScenarioExpectation) -> tuple[str, ...]:
    (report,) = run(found(expect))
    return report.problems


def test_what_is_expected_to_hold_was_put_to_the_test() -> None:
    assert problems(ScenarioExpectation(holds=("I3 unique sequence", "liveness", "unseen"))) == ()
    assert problems(ScenarioExpectation(holds=("precommitted-read",))) == (
        "never exercises precommitted-read",
    )


def test_what_is_expected_to_break_and_keeps_is_told() -> None:
    assert problems(ScenarioExpectation(violates=("G1a",))) == ("was expected to violate G1a, but G1a holds",)


def test_a_fault_that_never_struck_is_told() -> None:
    plan = attrs.evolve(draw(Choices(SEED)), kinds=(FaultKind.HOLD, FaultKind.DROP), strikes=0)
    assert problems_of(plan) == ("fault never struck: hold", "fault never struck: drop")


def test_where_nobody_works_nothing_is_put_to_the_test() -> None:
    assert problems_of(FuzzPlan(), holds=("liveness", "a core failed")) == (
        "never exercises liveness",
        "never exercises a core failed",
    )


def test_what_is_written_is_read_as_the_same() -> None:
    scenario = found(ScenarioExpectation(holds=("G1a", "liveness")))
    text = seeded_text(scenario, found="seed 3")
    assert 'holds = ["G1a", "liveness"]' in text
    assert scenario_of(text, "found.toml") == scenario


def test_members_of_a_group_are_written_too() -> None:
    plan = draw_groups(Choices(SEED))
    text = seeded_text(Scenario(name="group", seeded=plan))
    assert text.count("[[seeded.member]]") == len(plan.members) > 1
    assert scenario_of(text, "group.toml").seeded == plan


def test_the_ends_of_identities_are_written_too() -> None:
    plan = draw_identities(Choices(SEED))
    text = seeded_text(Scenario(name="identities", seeded=plan))
    assert "[seeded.identities]" in text
    assert scenario_of(text, "identities.toml").seeded == plan


def test_what_a_world_does_without_is_written_too() -> None:
    plan = draw(Choices(SEED), broken=("dedup",), without_fixes=("fences_once",))
    text = seeded_text(Scenario(name="older", seeded=plan))
    assert 'without_fixes = ["fences_once"]' in text
    assert scenario_of(text, "older.toml").seeded == plan


def calm_with(*faults: str) -> Scenario:
    """Two writers without random faults, and with these in one line each."""
    plan = FuzzPlan(txn_writers=(TxnWriterPlan(name="p", transactions=3), TxnWriterPlan(name="q")))
    lines = [FAULTS.read(text) for text in faults]
    return Scenario(
        name="calm", seeded=plan, faults=tuple(Fault(when=(line.when,), do=line.do) for line in lines)
    )


def test_faults_may_be_added_to_a_plan() -> None:
    scenario = calm_with("when p sends EndTxn do drop", "when at 1 ms do pause node 1")
    text = seeded_text(scenario)
    assert text.count("[[fault]]") == 2
    assert scenario_of(text, "calm.toml") == scenario
    (report,) = run(scenario)
    assert report.problems == ()
    assert report.struck == ("drop (p sends EndTxn)", "pause node 1 (at 1 ms)")
    (calm,) = run(calm_with())
    assert calm.digest != report.digest


def test_an_added_fault_that_never_struck_is_told_and_does_not_stop_the_run() -> None:
    (report,) = run(calm_with("when p sends EndTxn #1000 do drop"))
    assert report.problems == ("fault struck 0 of 1 times: drop (p sends EndTxn #1000)",)
    assert report.violation is None


def test_an_added_fault_that_would_last_for_ever_is_healed() -> None:
    line = FAULTS.read("when p sends EndTxn do pause p until q gets PRODUCER_FENCED #99")
    fault = Fault(when=(line.when,), do=line.do, until=line.until)
    (report,) = run(attrs.evolve(calm_with(), faults=(fault,)))
    assert report.problems == (
        "fault never ended: pause p (p sends EndTxn) until q gets PRODUCER_FENCED #99",
    )
    assert report.violation is None


def test_what_broke_a_rule_is_drawn_though_the_world_was_stopped_there() -> None:
    """A batch that must not enter a log ends the run before it is there; it is drawn last."""
    planner = partial(draw, broken=("dedup", "fencing"))
    failed = next(filter(None, (failing_seed(seed, planner) for seed in range(40))))
    assert "entered" in failed.violation.evidence
    story = Scenario(
        name="stopped",
        expect=ScenarioExpectation(violates=(failed.violation.rule,)),
        seeded=failed.plan,
        choices=failed.choices,
    )
    (case,) = cases(story)
    recorded = record_case(case)
    report, fixes = recorded.result, recorded.history
    assert report.evidence == fixes.broken == (str(failed.violation),)
    appended = [event for event in fixes.events if isinstance(event, Appended)]
    assert fixes.events.index(appended[-1]) >= len(fixes.events) - 2, "its answer may stand below"
    last_step = [event for event in appended if event.at == appended[-1].at]  # one Produce, maybe two batches
    assert any(str(event.partition) in failed.violation.evidence for event in last_step)
    assert report.digest == run_case(case).digest
