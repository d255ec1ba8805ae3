"""What the explorer finds, drawn and told again: every message leaves before it comes, and scenarios show the
same violation.
"""

from __future__ import annotations

from collections import Counter

import pytest

from fencepost.simulator.draw.fates import follow
from fencepost.simulator.explore import ExploreConfig, Explored, explore
from fencepost.simulator.failure import SimulationFailed
from fencepost.simulator.scenarios.files import scenario_of, text_of
from fencepost.simulator.scenarios.model import cases
from fencepost.simulator.scenarios.runner import run_case
from fencepost.simulator.world.history import Appended, Arrived, Called, Coordinated, Lost, Sent, Struck

WORLDS = [
    ExploreConfig(transaction_version=0),
    ExploreConfig(transaction_version=1),
    ExploreConfig(transaction_version=1, partitions=2),
    ExploreConfig(transaction_version=0, producers=2),
    ExploreConfig(broken=frozenset({"dedup"})),
]


@pytest.fixture(scope="module", params=WORLDS, ids=str)
def found(request: pytest.FixtureRequest) -> Explored:
    return explore(request.param)


def test_a_trace_is_a_history_in_which_every_message_leaves_once_and_comes_once(found: Explored) -> None:
    assert found.history is not None
    events = found.history.events
    left = [event.number for event in events if isinstance(event, Sent)]
    ended = Counter(event.number for event in events if isinstance(event, Arrived | Lost))
    assert left == list(range(1, len(left) + 1))
    assert set(ended) <= set(left)
    assert set(ended.values()) == {1}
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert any(message.is_late for message in follow(events).values())
    assert any(isinstance(event, Appended) for event in events)
    assert found.history.broken == (f"{found.violation}: {found.because}",)
    told = "\n".join(found.trace)
    for event in events:
        if isinstance(event, Called) and ":" in event.label:
            assert event.label in told


def test_a_trace_becomes_a_scenario_that_violates_the_same_rule(found: Explored) -> None:
    scenario = found.scenario()
    assert scenario is not None
    assert scenario_of(text_of(scenario)) == scenario
    (case,) = cases(scenario)
    report = run_case(case)
    assert report.passed
    assert found.violation in report.broken or "I3 unique sequence" in report.broken
    assert found.command in scenario.lesson


def test_a_state_of_a_transaction_is_told_once() -> None:
    history = explore(WORLDS[0]).history
    assert history is not None
    states = [event.record.state.name for event in history.events if isinstance(event, Coordinated)]
    assert states == ["ONGOING", "PREPARE_COMMIT", "COMPLETE_COMMIT", "ONGOING", "PREPARE_COMMIT"]


def test_a_trace_that_faults_cannot_bring_about_has_no_scenario() -> None:
    """Two requests of one producer come late, and the broker delays its questions to itself."""
    found = explore(ExploreConfig(broken=frozenset({"fencing"})))
    assert found.history is not None
    assert found.scenario() is None


def test_a_proof_has_neither_history_nor_scenario() -> None:
    proof = explore(ExploreConfig(transactions=1, retries=0))
    assert (proof.history, proof.scenario()) == (None, None)
    proof.raise_if_failed()


def test_a_violation_and_a_search_that_was_cut_short_fail_a_test() -> None:
    with pytest.raises(SimulationFailed, match=r"LATE .* EndTxn COMMIT") as failed:
        explore(WORLDS[0]).raise_if_failed()
    assert "replay: fencepost explore --transaction-version 0 --text" in str(failed.value)
    with pytest.raises(SimulationFailed, match="the search ended before it checked all"):
        explore(ExploreConfig(max_states=50)).raise_if_failed()


def test_a_crash_is_drawn_with_what_it_lost() -> None:
    """In version 0 without retries only a crash brings a request back."""
    found = explore(ExploreConfig(transaction_version=0, crashes=1, broken=frozenset({"dedup"})))
    assert found.history is not None
    struck = [event.label for event in found.history.events if isinstance(event, Struck)]
    assert struck in ([], ["crash", "restart"])


def test_several_producers_and_crashes_together() -> None:
    """A broker that recovers sends in the order of its logs, in which producers are not alike."""
    searched = explore(ExploreConfig(producers=2, transactions=1, crashes=1, max_states=8_000))
    assert searched.violation is None
