"""Every planted mistake in compaction is found by its tests."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.journal import test_cleaning, test_compaction
from tests.journal.compaction_mutations import MUTATIONS, OF_FILES
from tests.simulator.planting import Mutation, planted

DRAWN = (
    test_compaction.test_a_cleaned_log_says_the_same,
    test_compaction.test_a_cleaning_may_end_inside_a_transaction,
)
SEEDS = 50


def stories(module: ModuleType) -> Iterator[Any]:
    """The tests of a module that need no arguments."""
    for name, test in vars(module).items():
        if name.startswith("test_") and test not in DRAWN and not inspect.signature(test).parameters:
            yield test


def drawn_acts(chance: random.Random) -> list[tuple[str, int, test_compaction.Records]]:
    acts: list[tuple[str, int, test_compaction.Records]] = []
    for _ in range(chance.randint(5, 30)):
        kind = chance.choice(
            ["plain", "idempotent", "transactional", "transactional", "commit", "abort", "clean"]
        )
        number = {"plain": -1, "idempotent": 9, "clean": chance.choice([0, test_compaction.DAY_MS])}.get(
            kind, chance.randint(1, 3)
        )
        values = [None, b"1", b"2"]
        records = [
            (chance.choice([b"a", b"b", b"c"]), chance.choice(values)) for _ in range(chance.randint(1, 3))
        ]
        acts.append((kind, number, records if kind in ("plain", "idempotent", "transactional") else []))
    return acts


def run_drawn(seed: int) -> None:
    chance = random.Random(seed)
    whole, inside = (test.hypothesis.inner_test for test in DRAWN)  # type: ignore[attr-defined] # made by @given
    whole(drawn_acts(chance), seed % 3)
    inside(drawn_acts(chance), chance.random())


def is_found(module: ModuleType, seeds: int) -> bool:
    """Whether a test fails."""
    try:
        for seed in range(seeds):
            run_drawn(seed)
        for story in stories(module):
            story()
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 - a test fails by any of them
        return True
    return False


def test_nothing_is_found_where_nothing_is_planted() -> None:
    assert not is_found(test_compaction, SEEDS)
    assert not is_found(test_cleaning, 0)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_mistake_is_found(mutation: Mutation) -> None:
    with planted(mutation):
        assert is_found(test_compaction, SEEDS), mutation.breaks


@pytest.mark.parametrize("mutation", OF_FILES, ids=lambda mutation: mutation.name)
def test_a_planted_mistake_on_the_disk_is_found(mutation: Mutation) -> None:
    with planted(mutation):
        found = is_found(test_cleaning, 0)
        for seed in () if found else range(2):
            try:
                test_cleaning.test_a_crash_at_any_step_leaves_a_log_that_says_the_same(seed)
            except Exception:  # noqa: BLE001 - as above
                found = True
                break
    assert found, mutation.breaks
