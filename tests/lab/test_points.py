"""The point of a step, planted as a fault, strikes at that step: each run is run again with one fault more.

Rule: no step of these runs is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs
import pytest

from fencepost.faults.phrases import ACTIONS, POINTS, Fault
from fencepost.lab.document import RunDocument, StepEntry
from fencepost.lab.recordings import record
from fencepost.simulation import read_scenario
from fencepost.simulator.scenarios.model import Case, cases
from fencepost.simulator.scenarios.validation import check

MESSAGES = frozenset({"sent", "arrived"})
UNPOINTED = frozenset({"lost", "bounded", "truncated"})
STORIES = ("late_end_txn", "duplicate_after_lost_ack", "coordinator_crash_in_commit", "late_offsets")


def with_fault(case: Case, point: str, action: str) -> Case:
    """The same case with one fault more; BadPhrase if no file can hold it."""
    fault = Fault(when=(POINTS.read(point),), do=ACTIONS.read(action))
    story = attrs.evolve(case.scenario, faults=(*case.faults, fault), also_with=())
    check(story)
    return attrs.evolve(case, scenario=story, faults=(*case.faults, fault))


def same_until(told: RunDocument, again: RunDocument, number: int) -> bool:
    """Whether both runs have the same steps up to this one."""
    left, right = (
        [(step["at"], step["text"]) for step in each["steps"][: number + 1]] for each in (told, again)
    )
    return left == right


def pointed(told: RunDocument) -> Iterator[tuple[int, StepEntry, str]]:
    for number, step in enumerate(told["steps"]):
        if "point" in step:
            yield number, step, step["point"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", STORIES)
def test_a_message_dropped_at_the_point_of_a_step_is_dropped_there(name: str) -> None:
    case = next(cases(read_scenario(name)))
    told, struck = record(case), 0
    for number, step, point in pointed(told):
        if step["kind"] in MESSAGES and " answers " not in point:
            again = record(with_fault(case, point, "drop"))
            assert same_until(told, again, number - (step["kind"] == "arrived")), point
            strikes = [
                place
                for place, each in enumerate(again["steps"])
                if each["kind"] == "struck"
                and each["note"].startswith("drop")
                and each.get("message") == step.get("message")
            ]
            taken = again["messages"][step.get("message", 0) - 1]
            # A drop breaks a connection that is still whole: of one that is broken nothing is left to break.
            is_broken = not strikes and taken["struck"] is False
            assert strikes or is_broken, point
            struck += bool(strikes)
    assert struck > len([step for step in told["steps"] if step["kind"] in MESSAGES]) // 2


@pytest.mark.parametrize("name", STORIES)
def test_a_node_crashes_right_after_the_append_whose_point_is_given(name: str) -> None:
    case = next(cases(read_scenario(name)))
    told, looked = record(case), 0
    for number, step, point in pointed(told):
        if step["kind"] in ("appended", "coordinated"):
            again = record(with_fault(case, point, f"crash {step['lane']}"))
            assert same_until(told, again, number), point
            after = again["steps"][number + 1]
            assert (after["kind"], after["note"], after["lane"]) == ("struck", "crash", step["lane"]), point
            looked += 1
    assert looked


@pytest.mark.parametrize("name", ["processor_dies", "commit_outcome_unknown", "two_instances"])
def test_points_of_calls_and_of_lives_are_reached(name: str) -> None:
    """Where nothing can be struck on the spot: a clock that is moved shows the moment."""
    case = next(cases(read_scenario(name)))
    told, looked = record(case), 0
    for number, step, point in pointed(told):
        if step["kind"] in ("called", "struck"):
            again = record(with_fault(case, point, "clock of node 1 +1 ms"))
            assert same_until(told, again, number), point
            jumps = [each for each in again["steps"][number:] if each["note"] == "clock of node 1 +1 ms"]
            assert jumps[0]["at"] == step["at"], point
            looked += 1
    assert looked


def test_every_step_with_a_moment_of_the_protocol_has_a_point() -> None:
    for name in STORIES:
        told = record(next(cases(read_scenario(name))))
        missing = [step for step in told["steps"] if "point" not in step and step["kind"] not in UNPOINTED]
        assert all(is_pointless(step) for step in missing), [step["text"] for step in missing]
        seen = Counter(point for _, _, point in pointed(told))
        assert not [point for point, count in seen.items() if count > 1]


def is_pointless(step: StepEntry) -> bool:
    """A line of a script, a fault, and a reply that nobody waits for: the grammar has no name for them."""
    return step["kind"] in ("called", "struck") or (step["kind"] == "sent" and " answers " in step["text"])
