"""Worlds of compacted topics: what their judge says of histories by hand, and what seeds come through."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from fencepost.log_model.compaction import CleanupRules, Removal
from fencepost.simulator.fuzz.plan import draw_compaction
from fencepost.simulator.fuzz.worlds import try_seed
from fencepost.simulator.judges import rules
from fencepost.simulator.judges.black_box import check
from fencepost.simulator.judges.compaction import PASSED_OVER, LastReader, check_compacted
from fencepost.simulator.judges.operations import (
    ClientOperation,
    OperationOutcome,
    PositionSet,
    key_of,
    keyed,
)
from fencepost.simulator.scenarios.files import scenario_of
from fencepost.simulator.scenarios.found import seeded_text
from fencepost.simulator.scenarios.model import Scenario
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.nodes import KILLED_IN_CLEANING
from fencepost.simulator.world.participants import NS_PER_MS
from tests.simulator.client_stories import FAIL, INFO, OK, A, plain, poll, transaction, write
from tests.simulator.planting import Edit, Mutation, planted

SEEDS = range(40, 61)

# --- histories by hand --------------------------------------------------------------------------------------

LAST = "last"
RETENTION = CleanupRules(delete_retention_ms=100)


def wrote(value: str, offset: int | None, at: int, outcome: OperationOutcome = OK) -> ClientOperation:
    """A record outside of transactions, written at a time in ms."""
    return at_ms(plain("p", write(value, offset), outcome=outcome), at)


def read(*records: tuple[int, str], at: int, by: str = "r", again: bool = False) -> ClientOperation:
    operation = at_ms(plain(by, poll(*records)), at)
    return operation._replace(actions=(PositionSet(A), *operation.actions)) if again else operation


def at_ms(operation: ClientOperation, at: int) -> ClientOperation:
    return operation._replace(invoked_at=at * NS_PER_MS, completed_at=at * NS_PER_MS)


def broken(
    *history: ClientOperation, cleanup: CleanupRules = RETENTION, last: int | None = None
) -> list[str]:
    """What the judge finds; with `last`, the last reader has read to the end, from this time (ms) to 10 ms
    later.
    """
    begun_at = (last or 0) * NS_PER_MS
    reader = LastReader(
        name=LAST,
        to_the_end=() if last is None else (A,),
        begun_at=begun_at,
        ended_at=begun_at + 10 * NS_PER_MS,
    )
    found = check_compacted(history, cleanup, {A}, reader)
    assert not [*check(history, finally_read=reader.to_the_end, compacted={A}).anomalies]
    return [anomaly.rule.name for anomaly in found.anomalies]


TWO = (wrote("k=1", 0, 0), wrote("k=2", 1, 20), wrote("l=3", 2, 30))
DELETED = (wrote("k=1", 0, 0), wrote("k~2", 1, 20), wrote("l=3", 2, 30))

STORIES = {
    "a value that was replaced": ((*TWO, read((1, "k=2"), (2, "l=3"), at=40)), ""),
    "a value that was replaced later": ((*TWO, read((2, "l=3"), at=40)), "lost-latest"),
    "a value that nothing replaced yet": (
        (wrote("k=1", 0, 0), wrote("l=3", 1, 10), read((1, "l=3"), at=15), wrote("k=2", 2, 20)),
        "lost-latest",
    ),
    "a reader that begins again": (
        (*TWO, read((0, "k=1"), (1, "k=2"), at=40), read((2, "l=3"), at=50, again=True)),
        "lost-latest",
    ),
    "a reader that goes on": ((*TWO, read((0, "k=1"), (1, "k=2"), at=40), read((2, "l=3"), at=50)), ""),
    "a tombstone in its time": ((*DELETED, read((2, "l=3"), at=110)), "early-tombstone"),
    "a tombstone after its time": ((*DELETED, read((2, "l=3"), at=120)), ""),
    "a value that was aborted": (
        (
            wrote("k=1", 0, 0),
            at_ms(transaction("t", write("k=2", 1), outcome=FAIL), 5),
            wrote("l=3", 2, 30),
            read((2, "l=3"), at=40),
        ),
        "lost-latest",
    ),
    "a value that may have been replaced": (
        (
            wrote("k=1", 0, 0),
            at_ms(transaction("t", write("k=2"), outcome=INFO, asked=5 * NS_PER_MS), 5),
            wrote("l=3", 2, 30),
            read((2, "l=3"), at=40),
        ),
        "",
    ),
}


@pytest.mark.parametrize("title", STORIES)
def test_a_record_that_a_reader_passed_needs_a_reason(title: str) -> None:
    history, wrong = STORIES[title]
    assert broken(*history) == wrong.split()


LAST_READS = {
    "the last values": ((*TWO, read((1, "k=2"), (2, "l=3"), at=200, by=LAST)), ""),
    "not the end": ((*TWO, read((1, "k=2"), at=200, by=LAST)), "lost-latest"),
    "nothing of a deleted key": ((*DELETED, read((2, "l=3"), at=200, by=LAST)), ""),
    "a value that was deleted": ((*DELETED, read((0, "k=1"), (2, "l=3"), at=200, by=LAST)), "stale-value"),
}


@pytest.mark.parametrize("title", LAST_READS)
def test_the_last_reader_knows_the_last_values(title: str) -> None:
    history, wrong = LAST_READS[title]
    assert broken(*history, last=200) == wrong.split()


def test_a_reader_that_is_slower_than_a_tombstone_may_keep_the_value() -> None:
    history = (*DELETED, read((0, "k=1"), (2, "l=3"), at=200, by=LAST))
    assert broken(*history, last=200, cleanup=CleanupRules(delete_retention_ms=10)) == []


def test_where_retention_deletes_the_last_reader_may_miss_the_end_of_a_key() -> None:
    history = (*TWO, read((0, "k=1"), (2, "l=3"), at=200, by=LAST))
    assert broken(*history, last=200, cleanup=attrs.evolve(RETENTION, retention_ms=100)) == []
    assert broken(*history, last=200) == ["lost-latest", "stale-value"]


def test_a_skip_is_no_anomaly_of_a_compacted_topic_alone() -> None:
    history = (*TWO, read((0, "k=1"), (1, "k=2"), (2, "l=3"), at=35, by="a"), read((1, "k=2"), at=40))
    skips = (*history, read((0, "k=1"), (2, "l=3"), at=50, by="b"))
    assert [each.rule for each in check(skips).anomalies] == [rules.INTERNAL_POLL_SKIP]
    assert check(skips, compacted={A}).anomalies == ()


def test_the_value_that_judges_see_names_the_key() -> None:
    assert key_of(keyed(b"k1", b"p 0=~", is_tombstone=False)) == (b"k1", False)
    assert key_of(keyed(b"k1", b"p 0=~", is_tombstone=True)) == (b"k1", True)


# --- seeds --------------------------------------------------------------------------------------------------


def test_seeds_come_to_holes_that_readers_cross_and_to_deaths_in_cleanings() -> None:
    marks = Counter[str]()
    for seed in SEEDS:
        trial = try_seed(seed, draw_compaction)
        assert trial.violation is None, f"seed {seed}: {trial.violation}"
        marks.update(mark for mark, count in trial.marks.items() if count)
    for reached in (
        KILLED_IN_CLEANING,
        *(f"exercised: {PASSED_OVER[removal]}" for removal in Removal),
        *(
            f"exercised: {rule.name}"
            for rule in (rules.LOST_LATEST, rules.EARLY_TOMBSTONE, rules.STALE_VALUE)
        ),
    ):
        assert marks[reached] > 1, reached


def test_a_start_that_the_dead_leader_had_not_learned_of_is_no_loss() -> None:
    """The files move the start of a log first. A process may die before its leader learns of it, and the next
    leader then knows more than the last one.
    """
    death = 910_071
    assert try_seed(death, draw_compaction).violation is None
    accuses = Mutation(
        "the last leader knows all that the files know",
        breaks="The judge accuses a leader of a start that the last one had not learned of.",
        workload="compaction",
        edits=(
            Edit(
                "simulator.judges.recovery_rule:RecoveryRule._remember",
                {"and log.partition.log_start_offset >= journal.log_start_offset": ""},
            ),
        ),
    )
    with planted(accuses):
        assert try_seed(death, draw_compaction).violation is not None, "another seed must be found"


def test_every_kind_of_compaction_is_drawn() -> None:
    plans = [draw_compaction(Choices(seed)) for seed in range(60)]
    drawn = [plan.compaction for plan in plans if plan.compaction is not None]
    assert len(drawn) == len(plans)
    for name in (field.name for field in attrs.fields(type(drawn[0]))):
        assert len({getattr(each, name) for each in drawn}) > 1, name


def test_a_world_of_a_compacted_topic_can_be_written_as_a_scenario() -> None:
    plan = draw_compaction(Choices(SEEDS[0]))
    found = Scenario(name="compacted", seeded=plan)
    assert scenario_of(seeded_text(found), "compacted").seeded == plan
