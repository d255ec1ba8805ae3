"""`fencepost.simulate`: a world in a test of one's own, as the docs show it."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

import fencepost
from fencepost.simulator.fuzz.plan import draw, draw_groups
from fencepost.simulator.fuzz.worlds import WorldKind, try_seed
from fencepost.simulator.world.choices import Choices


@pytest.mark.parametrize("seed", range(1, 6))
def test_exactly_once(seed: int) -> None:
    trial = fencepost.simulate(seed)
    assert trial.violation is None
    assert trial.transactions
    assert trial.events > trial.transactions


def test_a_seed_is_the_same_world_as_on_the_command_line() -> None:
    for version in (0, 1, 2):
        searched = try_seed(3, partial(draw, transaction_version=version))
        same = fencepost.simulate(3, transaction_version=version, partition_verification=True)
        assert same.digest == searched.digest


def test_a_workload_is_another_world() -> None:
    assert fencepost.simulate(3, workload="groups").digest == try_seed(3, draw_groups).digest
    assert fencepost.simulate(3, workload="transactions").digest == fencepost.simulate(3).digest
    with pytest.raises(ValueError, match=r"workload must be one of \[.*\], not 'luck'"):
        fencepost.simulate(3, workload="luck")


def test_partition_leaders_ask_unless_it_is_version_0() -> None:
    plans = [WorldKind(transaction_version=version).planner(Choices(3)) for version in (0, 1, 2)]
    assert [plan.partition_verification for plan in plans] == [False, True, True]


def test_without_a_protection_some_seed_breaks_a_rule() -> None:
    violations = [fencepost.simulate(seed, broken=["dedup"]).violation for seed in range(1, 20)]
    told = [str(violation) for violation in violations if violation is not None]
    assert told
    assert told == [f"{violation.rule}: {violation.evidence}" for violation in violations if violation]


def test_what_there_is_not_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"transaction_version must be one of \[0, 1, 2\], not 3"):
        fencepost.simulate(1, transaction_version=3)
    with pytest.raises(ValueError, match="unknown protection luck; the protections are dedup, fencing"):
        fencepost.simulate(1, broken=["luck"])
    with pytest.raises(ValueError, match="unknown fix luck; the fixes are group_fencing, "):
        WorldKind(without_fixes=["luck"])


def test_one_name_alone_is_no_tuple_of_names() -> None:
    """A text is one of its letters, too, and nobody means those."""
    with pytest.raises(
        ValueError, match=r"broken must be a tuple of names, not 'fencing': write \('fencing',\)"
    ):
        fencepost.simulate(1, broken="fencing")
    with pytest.raises(
        ValueError,
        match=r"without_fixes must be a tuple of names, not 'fences_once': write \('fences_once',\)",
    ):
        fencepost.simulate(1, without_fixes="fences_once")


def test_without_a_correction_of_kafkas_the_world_is_another() -> None:
    """A fence raises the epoch twice: seen as soon as somebody is fenced."""
    digests = {(fencepost.simulate(s).digest, fencepost.simulate(s, without_fixes=["fences_once"]).digest)
               for s in range(1, 6)}  # fmt: skip
    assert any(with_it != without for with_it, without in digests)


@pytest.mark.parametrize("seed", [-1, True, 1.5, "a", None])
def test_a_seed_is_a_whole_number_from_0_on(seed: Any) -> None:
    """Python's generator takes all of these, and takes -1 and True for 1."""
    with pytest.raises(ValueError, match=f"seed must be a whole number from 0, not {re.escape(repr(seed))}"):
        fencepost.simulate(seed)
    assert fencepost.simulate(0).transactions
