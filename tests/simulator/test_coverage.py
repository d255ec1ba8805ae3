"""What a run came through is counted by cell and by fault; what is called unreachable is never reached."""

from __future__ import annotations

from functools import partial

import pytest

from fencepost.broker.transaction_tables import CoordinatorInput, EndInput
from fencepost.protocol.terms import TransactionState
from fencepost.simulator.judging.coverage import UNREACHABLE, Cell, Coverage, cells_of
from fencepost.simulator.plan import draw
from fencepost.simulator.trial import try_seed

COMMITTED: Cell = (2, TransactionState.ONGOING, EndInput.COMMIT)
TIMED_OUT: Cell = (2, TransactionState.ONGOING, CoordinatorInput.TIMEOUT)


def test_runs_add_up() -> None:
    first, second = Coverage(), Coverage()
    first.add({COMMITTED: 2}, ("crash", "drop"))
    second.add({COMMITTED: 1, TIMED_OUT: 1}, ("crash",))
    first.merge(second)
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


@pytest.mark.parametrize("transaction_version", [0, 2])
def test_seeds_come_through_most_cells_and_through_none_that_is_called_unreachable(
    transaction_version: int,
) -> None:
    coverage = Coverage()
    for seed in range(1, 41):
        trial = try_seed(seed, partial(draw, transaction_version=transaction_version))
        coverage.merge(trial.coverage)
    assert not [cell for cell in UNREACHABLE if coverage.cells[cell]]
    reachable = len(set(cells_of(transaction_version)) - set(UNREACHABLE))
    assert len(coverage.missed(transaction_version)) < reachable // 4
    assert coverage.with_faults
