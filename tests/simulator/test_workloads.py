"""What clients of fuzzed worlds come through: without it a judge of theirs would have nothing to look at."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from fencepost.client.group_member import RebalanceEvent
from fencepost.simulator.actors.clients import MID_BATCH
from fencepost.simulator.actors.processors import REBALANCED, TAKEN_BACK
from fencepost.simulator.actors.workloads import REFUSED_MEMBER
from fencepost.simulator.faults.random_faults import DAMAGES, FaultKind
from fencepost.simulator.fuzz.plan import (
    ASSIGNORS,
    PROCESSORS,
    FuzzPlan,
    draw,
    draw_damage,
    draw_groups,
    draw_requests,
    draw_topics,
)
from fencepost.simulator.fuzz.worlds import try_choices, try_seed
from fencepost.simulator.judges.damage import DETECTED, HARMLESS
from fencepost.simulator.judges.rules import (
    CIRCULAR_READS,
    DOUBLED_OUTPUT,
    FORGOTTEN_OFFSETS,
    ONE_OWNER,
    PRECOMMITTED_READ,
)
from fencepost.simulator.run import Run
from fencepost.simulator.world.choices import Choices
from tests.simulator.planting import Edit, Mutation, planted

SEEDS = 40
GROUP_SEEDS = 20
DAMAGED_SEEDS = 16
STRANGE_SEEDS = 4
TOPIC_SEEDS = 16


def test_seeds_come_to_the_middles_of_batches_to_fights_for_an_id_and_to_readers_that_write() -> None:
    marks = Counter[str]()
    for seed in range(SEEDS):
        trial = try_seed(seed)
        assert trial.violation is None, f"seed {seed}"
        marks.update(mark for mark, count in trial.marks.items() if count)
    for reached in (
        MID_BATCH,
        TAKEN_BACK,
        f"exercised: {CIRCULAR_READS.name}",
        f"exercised: {PRECOMMITTED_READ.name}",
    ):
        assert marks[reached] > 2, reached


def test_groups_rebalance_in_transactions_and_refuse_members_that_were_replaced() -> None:
    marks = Counter[str]()
    for seed in range(GROUP_SEEDS):
        trial = try_seed(seed, draw_groups)
        assert trial.violation is None, f"seed {seed}"
        marks.update(mark for mark, count in trial.marks.items() if count)
    for reached in (
        REBALANCED,
        REFUSED_MEMBER,
        *(event.value for event in RebalanceEvent),
        f"exercised: {DOUBLED_OUTPUT.name}",
        f"exercised: {ONE_OWNER.name}",
    ):
        assert marks[reached] > 2, reached


def test_every_way_to_be_a_member_is_drawn() -> None:
    members = [each for seed in range(SEEDS) for each in draw_groups(Choices(seed)).members]
    assert {each.assignor for each in members} == set(ASSIGNORS)
    assert {each.group_instance_id is None for each in members} == {True, False}
    assert all(
        any(getattr(each, name) for each in members) for name in ("starts_after_ms", "stalls", "leaves")
    )


def test_damage_is_detected_or_harmless() -> None:
    marks = Counter[str]()
    for seed in range(DAMAGED_SEEDS):
        trial = try_seed(seed, draw_damage)
        assert trial.violation is None, f"seed {seed}"
        marks.update(mark for mark, count in trial.marks.items() if count)
    for reached in (DETECTED, HARMLESS, *(f"fault: {kind.value}" for kind in DAMAGES)):
        assert marks[reached], reached


def test_other_clients_notice_nothing_of_extreme_requests() -> None:
    marks = Counter[str]()
    for seed in range(STRANGE_SEEDS):
        trial = try_seed(seed, draw_requests)
        assert trial.violation is None, f"seed {seed}"
        marks.update(trial.marks)
    assert marks["strange request: answered"] > 20
    assert marks["strange request: RequestFailed"] > 20


def deadly(choices: Choices) -> FuzzPlan:
    """Two processors, and processes that die or stand still."""
    kinds = (FaultKind.KILL, FaultKind.PAUSE)
    plan = attrs.evolve(draw(choices), idempotent_writes=12, processors=PROCESSORS[-1])
    return attrs.evolve(plan, kinds=kinds, strikes=8)


def test_processors_die_while_they_copy() -> None:
    struck = Counter[FaultKind]()
    for seed in range(12):
        begun: list[Run] = []
        assert try_choices(Choices(seed), deadly, begun.append).violation is None, f"seed {seed}"
        struck.update(strike.kind for strike in begun[0].random_faults.struck if "copier" in strike.what)
    assert struck[FaultKind.KILL] > 12
    assert struck[FaultKind.PAUSE] > 12


def test_a_processor_that_forgets_its_offsets_copies_twice() -> None:
    forgotten = Mutation(
        "a program does not commit its offsets",
        breaks="Who comes next begins again.",
        edits=(
            Edit(
                "simulator.actors.clients:Sender.send_offsets",
                {"self.calls.send_offsets_to_transaction(offsets, group)": "return"},
            ),
        ),
    )
    with planted(forgotten):
        broken = {
            trial.violation.rule
            for seed in range(4)
            if (trial := try_choices(Choices(seed), deadly)).violation
        }
    assert broken == {DOUBLED_OUTPUT.name}


def test_topics_with_committed_offsets_are_deleted_and_created_again() -> None:
    runs: list[Run] = []
    forgotten = 0
    for seed in range(TOPIC_SEEDS):
        trial = try_choices(Choices(seed), draw_topics, runs.append)
        assert trial.violation is None, f"seed {seed}"
        forgotten += trial.marks[f"exercised: {FORGOTTEN_OFFSETS.name}"] > 0
    assert sum(len(run.recreations) for run in runs) > TOPIC_SEEDS
    assert forgotten > 2


# What a judge once took for a violation: a coordinator's log that was read again, into other objects (1130);
# a group that only aborted offsets told of, until compaction removed them (1872); a record for the old topic,
# acknowledged by a node that had not learned of the deletion (777035); the directory of an old topic whose
# manifest was damaged, too (777137); such a directory again, which the harness had opened (178); a last
# reader that began before the new topic existed (295).
@pytest.mark.parametrize("seed", [178, 295, 1130, 1872, 777_035, 777_137])
def test_a_cluster_that_was_once_accused_of_a_violation_has_none(seed: int) -> None:
    assert try_seed(seed, draw_topics).violation is None


def test_a_group_ends_though_the_last_commit_was_never_acknowledged() -> None:
    """The member was killed before the reply; the next owner of its partition had nothing left to read."""
    assert try_seed(777_029, draw_groups).violation is None
