"""A failing run becomes small: choices by what fails still, plans one thing at a time; the rule stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from fencepost.simulator.fuzz.plan import draw
from fencepost.simulator.fuzz.shrinking import (
    Failing,
    ShrinkSearch,
    failing_run,
    failing_seed,
    smaller,
    trimmed,
)
from fencepost.simulator.fuzz.smaller_plans import DIMENSIONS
from fencepost.simulator.scenarios.model import FuzzPlan, TxnWriterPlan
from fencepost.simulator.world.choices import Choices

UNPROTECTED = partial(draw, broken=("dedup",))
BUDGET = 40_000

Fails = Callable[[Sequence[int]], bool]


def first_failing() -> Failing:
    found = (failing_seed(seed, UNPROTECTED) for seed in range(1, 60))
    return next(failing for failing in found if failing is not None and failing.events > 500)


def told(failing: Failing) -> tuple[FuzzPlan, tuple[int, ...], str, int]:
    return failing.plan, failing.choices, str(failing.violation), failing.events


CHOICES: list[tuple[str, Fails, list[int], tuple[int, ...]]] = [
    ("one low number", lambda taken: any(choice >= 7 for choice in taken), [3, 0, 50, 9, 12], (7,)),
    ("a place", lambda taken: len(taken) > 3 and taken[3] > 0, [5, 5, 5, 5, 5], (0, 0, 0, 1)),
    ("two of them", lambda taken: sum(choice > 4 for choice in taken) > 1, [9, 1, 0, 9, 9, 9], (5, 5)),
    ("anything", lambda _: True, [4, 4, 4], ()),
    ("nothing smaller", lambda taken: list(taken) == [2, 0, 3], [2, 0, 3], (2, 0, 3)),
]


@pytest.mark.parametrize(
    ("fails", "begun", "least"), [row[1:] for row in CHOICES], ids=[row[0] for row in CHOICES]
)
def test_choices_become_as_small_as_they_can_be(
    fails: Fails, begun: list[int], least: tuple[int, ...]
) -> None:
    assert smaller(begun, lambda taken: tuple(taken) if fails(taken) else None) == least


def test_what_was_not_really_taken_does_not_count() -> None:
    """A run may take fewer choices than it was given, or more."""

    def takes_two(given: Sequence[int]) -> tuple[int, ...] | None:
        return (*given, 0, 0)[:2] if sum(given[:2]) > 3 else None

    assert smaller([9, 9, 9, 9], takes_two) == (4,)


def test_zeros_at_the_end_go_without_saying() -> None:
    assert trimmed([0, 3, 0, 0]) == (0, 3)
    assert trimmed([0, 0]) == ()


@pytest.mark.parametrize("seed", range(1, 30))
def test_when_everything_fails_the_calmest_world_is_left(seed: int) -> None:
    plan, steps = draw(Choices(seed)), 0
    while (found := next((other for made in DIMENSIONS for other in made(plan)), None)) is not None:
        plan, steps = found, steps + 1
        assert steps < 100
    (writer,) = plan.txn_writers
    least = TxnWriterPlan(name=writer.name, transactional_id=writer.transactional_id, records_max=1)
    assert plan == FuzzPlan(txn_writers=(least,))


def test_a_failing_run_becomes_small_and_breaks_the_same_rule() -> None:
    failing = first_failing()
    heard: list[int] = []
    small = ShrinkSearch(failing, budget=BUDGET, tell=lambda best: heard.append(best.size)).run()
    assert small.violation.rule == failing.violation.rule
    assert small.size < failing.size
    assert small.events < failing.events
    assert heard
    again = failing_run(small.plan, small.choices)
    assert again is not None
    assert told(again) == told(small)
    assert told(ShrinkSearch(failing, budget=BUDGET).run()) == told(small)


def test_a_search_that_is_ended_from_outside_has_what_it_had_found() -> None:
    failing = first_failing()

    def tell(best: Failing) -> None:
        if best is not failing:
            raise KeyboardInterrupt

    search = ShrinkSearch(failing, budget=BUDGET, tell=tell)
    with pytest.raises(KeyboardInterrupt):
        search.run()
    assert search.is_cut_short
    assert search.best is not failing
    again = failing_run(search.best.plan, search.best.choices)
    assert again is not None
    assert told(again) == told(search.best)


def test_a_budget_of_nothing_changes_nothing() -> None:
    failing = first_failing()
    search = ShrinkSearch(failing, budget=0)
    assert search.run() is failing
    assert search.is_cut_short


def test_a_run_that_keeps_every_rule_is_no_failing_one() -> None:
    assert failing_seed(1, draw) is None
    assert failing_run(draw(Choices(1)), ()) is None
