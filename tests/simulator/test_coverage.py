"""What a run came through is counted by cell and by fault; all is reached but what is called unreachable."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from fencepost.broker.transactions.tables import CoordinatorInput, EndInput
from fencepost.protocol.terms import TransactionState
from fencepost.simulator.fuzz.plan import draw, draw_compaction, draw_groups, draw_identities, draw_topics
from fencepost.simulator.fuzz.worlds import try_seed
from fencepost.simulator.judges.coverage import UNREACHABLE, Cell, Coverage, cells_of
from fencepost.simulator.judges.rare_states import EXPIRED
from fencepost.simulator.judges.rules import HISTORY_RULES, STEP_RULES
from fencepost.simulator.scenarios.files import scenario_of
from fencepost.simulator.scenarios.model import cases
from fencepost.simulator.scenarios.runner import run_case

COMMITTED: Cell = (2, TransactionState.ONGOING, EndInput.COMMIT)
LOOKED = tuple(f"exercised: {rule.name}" for rule in (*STEP_RULES, *HISTORY_RULES))
TIMED_OUT: Cell = (2, TransactionState.ONGOING, CoordinatorInput.TIMEOUT)


def test_runs_add_up() -> None:
    first, second = Coverage(), Coverage()
    first.add({COMMITTED: 2}, ("crash", "drop"), {EXPIRED: 1})
    second.add({COMMITTED: 1, TIMED_OUT: 1}, ("crash",), {EXPIRED: 2})
    first.merge(second)
    assert first.rare_states == {EXPIRED: 3}
    rows = {(row.state, row.given): (row.count, row.faults) for row in first.rows(2)}
    assert rows["Ongoing", "commit"] == (3, {"crash": 3, "drop": 2})
    assert rows["Ongoing", "timeout"] == (1, {"crash": 1})
    assert rows["Ongoing", "abort"] == (0, {})
    assert COMMITTED not in first.missed(2)
    assert (2, TransactionState.ONGOING, EndInput.ABORT) in first.missed(2)


def test_a_cell_that_cannot_be_reached_is_not_missed_and_says_why() -> None:
    coverage = Coverage()
    assert not set(coverage.missed(2)) & set(UNREACHABLE)
    reasons = {(row.state, row.given): row.unreachable for row in coverage.rows(2)}
    assert reasons["Empty", "commit"] == UNREACHABLE[2, TransactionState.EMPTY, EndInput.COMMIT]
    assert reasons["Ongoing", "commit"] == ""


def test_every_cell_is_in_the_table_once() -> None:
    cells = cells_of(2)
    assert len(set(cells)) == len(cells)
    assert set(UNREACHABLE) <= {*cells_of(0), *cells}


# --- what is reached ----------------------------------------------------------------------------------------

SEEDS_MAX = 400
OLD = (161, 139)
RARE = {0: (*OLD, 124, 44), 1: (*OLD, 56, 44), 2: (103, 64, 33, 9, 13)}
"""Seeds that come where few come. Other draws may make others rare: then the search takes longer."""

LATE_COMMIT = """
name = "a commit that comes late"

[cluster]
transaction_version = {version}

[[producer]]
name = "p"
transactional_id = "app"
script = ["init", "begin", "send t-0 a", "commit", "begin", "send t-0 b", "flush", "pause 100 ms", "abort", \
    "init", "pause 100 ms", "begin", "send t-0 c", "commit"]

[[fault]]
when = "p sends EndTxn"
do = "hold"
until = "{until}"
"""
MOMENTS = ("t-0 appends data", "t-0 appends ABORT marker", "coordinator of app appends COMPLETE_ABORT")
"""The commit of the first transaction arrives in the midst of the second, while it is aborted, and behind it.
"""


def late_commits(transaction_version: int) -> Coverage:
    """What stories come through in which a commit is asked for again and arrives twice (KAFKA-17754)."""
    coverage = Coverage()
    for until in MOMENTS:
        text = LATE_COMMIT.format(version=transaction_version, until=until)
        for case in cases(scenario_of(text, "a late commit")):
            result = run_case(case)
            assert result.struck
            coverage.merge(result.coverage)
    return coverage


GROUP_SEED = 3
COMPACTED_SEED = 21
EXPIRING_SEED = 0
DELETING_SEED = 18


@pytest.mark.parametrize("transaction_version", [0, 1, 2])
def test_every_cell_that_can_be_reached_is_reached_and_no_other(transaction_version: int) -> None:
    coverage = late_commits(transaction_version)
    planner = partial(draw, transaction_version=transaction_version)
    # Only worlds with groups have members that could share a partition (I17), only those of a compacted topic
    # have records that may be missing, only in those of identities do transactional ids expire (I19), and
    # only those of topics delete one whose offsets were committed (I20).
    others = (
        try_seed(GROUP_SEED, draw_groups),
        try_seed(COMPACTED_SEED, draw_compaction),
        try_seed(EXPIRING_SEED, draw_identities),
        try_seed(DELETING_SEED, draw_topics),
    )
    exercised = Counter(mark for trial in others for mark, count in trial.marks.items() if count)
    for seed in (*RARE[transaction_version], *range(1, SEEDS_MAX)):
        if not coverage.missed(transaction_version) and set(LOOKED) <= set(exercised):
            break
        trial = try_seed(seed, planner)
        coverage.merge(trial.coverage)
        exercised.update(mark for mark, count in trial.marks.items() if count)
    assert coverage.missed(transaction_version) == []
    assert [mark for mark in LOOKED if mark not in exercised] == []
    assert not [cell for cell in UNREACHABLE if coverage.cells[cell]]
    assert coverage.with_faults
