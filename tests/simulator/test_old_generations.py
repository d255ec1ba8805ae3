"""What brokers without an epoch per transaction do by design ends a run and has a name; a mistake in such a
broker is found in spite of it.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from fencepost.simulator.fuzz.worlds import simulate
from fencepost.simulator.judges.known_anomalies import (
    LATE_END,
    LATE_MARKER,
    LATE_WRITE,
    LATE_WRITE_ALONE,
    OLD_BEHAVIOURS,
    KnownAnomaly,
    LateMessages,
    OldBehaviour,
)
from fencepost.simulator.run import Run
from fencepost.simulator.scenarios.files import scenario_of
from fencepost.simulator.scenarios.model import Case, cases
from fencepost.simulator.scenarios.runner import stage
from tests.simulator.find_mutations import SEEDS_MAX
from tests.simulator.old_mutations import OLD_MUTATIONS, OldMutation
from tests.simulator.planting import Edit, Mutation, planted

STORIES: Final = Path(__file__).resolve().parent.parent.parent / "scenarios"

NOTHING_IS_KNOWN: Final = Mutation(
    "nothing is known of old generations",
    breaks="What they do by design is judged as in the newest one.",
    edits=(
        Edit("simulator.judges.known_anomalies:OldBehaviour.is_of", {"return is_let_in": "return False"}),
    ),
)

# Where the fuzz meets each: the generation, the first seed there, and which rule is broken if it goes on.
MET: Final = (
    (LATE_END, 0, False, 542, "unseen"),
    (LATE_END, 1, True, 895, "G1a"),
    (LATE_MARKER, 0, False, 495, "I4 hanging"),
    (LATE_MARKER, 1, True, 340, "G1a"),
    (LATE_WRITE_ALONE, 0, False, 264, "I6 durable decision"),
)
# The batch was for a topic that was deleted, and the new one knows nothing of the transaction.
MET_IN_A_NEW_TOPIC: Final = ((990_012, "I13 fenced"), (990_107, "I4 hanging"))


@pytest.mark.parametrize(("behaviour", "version", "verified", "seed", "rule"), MET)
def test_a_seed_that_meets_what_its_brokers_do_breaks_no_rule(
    behaviour: OldBehaviour, version: int, verified: bool, seed: int, rule: str
) -> None:
    judge_seed(behaviour, seed, rule, version=version, verified=verified)


@pytest.mark.parametrize(("seed", "rule"), MET_IN_A_NEW_TOPIC)
def test_a_topic_that_was_created_again_has_no_marker_of_what_ended_before(seed: int, rule: str) -> None:
    judge_seed(LATE_WRITE_ALONE, seed, rule, version=0, verified=False, workload="topics")


def judge_seed(
    behaviour: OldBehaviour,
    seed: int,
    rule: str,
    *,
    version: int,
    verified: bool,
    workload: str = "transactions",
) -> None:
    simulated = partial(
        simulate, seed, workload=workload, transaction_version=version, partition_verification=verified
    )
    trial = simulated()
    assert (trial.violation, trial.known_anomaly and trial.known_anomaly.rule) == (None, behaviour.name)
    assert trial.breach is trial.known_anomaly
    with planted(NOTHING_IS_KNOWN):
        judged = simulated()
    assert judged.known_anomaly is None
    assert judged.violation is not None
    assert judged.violation.rule == rule


# --- stories ------------------------------------------------------------------------------------------------

TOLD: Final = {
    "late_end_txn": LATE_END,
    "late_marker": LATE_MARKER,
    "late_offsets": LATE_WRITE,
    "late_record": LATE_WRITE_ALONE,
    "hanging_transaction": LATE_WRITE_ALONE,
}
"""What the first run of each story meets; in its other runs newer brokers do not do it any more."""


def runs_of(story: str) -> tuple[Case, ...]:
    return tuple(cases(scenario_of((STORIES / f"{story}.toml").read_text(), story)))


def play_with_lateness(case: Case) -> None:
    def watch(run: Run) -> None:
        LateMessages(run.world, run.invariants.transactions, run.invariants.partitions).attach()

    stage(case, watch).play()


@pytest.mark.parametrize("story", TOLD)
def test_a_story_meets_it_in_old_brokers_and_in_no_newer_one(story: str) -> None:
    old, *newer = runs_of(story)
    with pytest.raises(KnownAnomaly) as met:
        play_with_lateness(old)
    assert met.value.rule == TOLD[story].name
    assert " left at " in met.value.evidence
    assert newer
    for case in newer:
        play_with_lateness(case)


def test_every_behaviour_has_its_story() -> None:
    assert {behaviour.name for behaviour in TOLD.values()} == {each.name for each in OLD_BEHAVIOURS}


@pytest.mark.parametrize("story", ["marker_twice", "duplicate_after_lost_ack", "zombie_coordinator"])
def test_what_is_only_repeated_is_not_late(story: str) -> None:
    for case in runs_of(story):
        play_with_lateness(case)


# --- planted bugs -------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("old", OLD_MUTATIONS, ids=lambda old: old.mutation.name)
def test_a_planted_bug_is_found_though_much_is_known(old: OldMutation) -> None:
    def broken_rule(seed: int) -> str | None:
        trial = simulate(
            seed,
            transaction_version=old.transaction_version,
            partition_verification=old.partition_verification,
        )
        return None if trial.violation is None else trial.violation.rule

    # The recorded seed is where the search begins: a change of the cores may move what a seed draws.
    with planted(old.mutation):
        seeds = chain((old.seed,), range(SEEDS_MAX))
        found = next((seed for seed in seeds if broken_rule(seed) == old.rule), None)
    assert found is not None, f"{old.rule} was never broken in {SEEDS_MAX} seeds"
    assert broken_rule(found) is None
