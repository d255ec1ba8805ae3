"""Small worlds, looked at whole: what the search finds, how short its way there is, and what it proves.

The cores are the real ones. State counts are exact: when a core changes what it does they change, and are to
be looked at anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import attrs
import pytest

from fencepost.broker.settings import PROTECTIONS
from fencepost.protocol.terms import TransactionResult
from fencepost.simulator.explore import ExploreConfig, Explored, search
from fencepost.simulator.explore.search import explore
from fencepost.simulator.explore.trace import REACHED
from fencepost.simulator.explore.worlds import Successor, World, Worlds

LATE_END = ExploreConfig(producers=1, transactions=2, retries=1, transaction_version=0)
SAME_IN_VERSION_2 = attrs.evolve(LATE_END, transaction_version=2)
TWO_PRODUCERS = ExploreConfig(producers=2, transactions=1, retries=0)
CRASHING = ExploreConfig(transactions=1, retries=0, crashes=1)


@cache
def explored(config: ExploreConfig) -> Explored:
    """Several tests look at the same worlds, each at something else."""
    return explore(config)


# --- KAFKA-17754 --------------------------------------------------------------------------------------------


def test_a_late_end_decides_the_next_transaction_before_kip_890() -> None:
    found = explored(LATE_END)
    assert found.violation == "G1a"
    assert found.states < 5_000
    assert list(found.trace) == [
        "AddPartitionsToTxn t-0 0/0 of p0 reaches the coordinator",
        "p0 receives AddPartitionsToTxn NONE",
        "Produce t-0 p0.1.0 0/0 of p0 reaches the leader of t-0",
        "p0 receives Produce NONE @0 [commit]",
        "p0 stops waiting and gives up its first connection",
        "a pause of p0 is over",
        "FindCoordinator of p0 reaches the broker (first connection)",
        "p0 receives FindCoordinator NONE",
        "EndTxn COMMIT 0/0 of p0 reaches the coordinator (second connection)",
        "p0 receives EndTxn NONE [commit: ok, begin]",
        "WriteTxnMarkers t-0 COMMIT 0/0 reaches the leader of t-0",
        "the reply comes back: WriteTxnMarkers NONE",
        "AddPartitionsToTxn t-0 0/0 of p0 reaches the coordinator (second connection)",
        "p0 receives AddPartitionsToTxn NONE",
        "Produce t-0 p0.2.0 0/0 of p0 reaches the leader of t-0 (second connection)",
        "p0 receives Produce NONE @2 [abort]",
        "EndTxn COMMIT 0/0 of p0 reaches the coordinator late",
        "WriteTxnMarkers t-0 COMMIT 0/0 reaches the leader of t-0",
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_asking_the_coordinator_about_batches_does_not_help(version: int) -> None:
    found = explored(attrs.evolve(LATE_END, transaction_version=version, partition_verification=True))
    assert found.violation == "G1a"
    assert len(found.trace) == 22


def test_without_a_retry_nothing_is_late() -> None:
    found = explored(attrs.evolve(LATE_END, retries=0))
    assert (found.violation, found.complete) == (None, True)


def test_an_epoch_per_transaction_is_the_cure() -> None:
    proof = explored(SAME_IN_VERSION_2)
    assert (proof.violation, proof.complete, proof.trace) == (None, True, ())
    assert (proof.states, proof.transitions, proof.ends) == (2_388, 5_128, 16)


@pytest.mark.parametrize(
    ("config", "states"),
    [(ExploreConfig(transactions=1, retries=0), 18), (ExploreConfig(partitions=2), 2_882), (CRASHING, 3_194)],
)
def test_other_worlds_of_version_2(config: ExploreConfig, states: int) -> None:
    proof = explored(config)
    assert (proof.violation, proof.complete, proof.states) == (None, True, states)
    assert proof.ends > 0, "some world of these ends well"


# --- the search itself --------------------------------------------------------------------------------------


def test_the_way_there_is_the_shortest() -> None:
    """Breadth first keeps the depths in order; a depth-first look at the same worlds finds none that is wrong
    nearer to the root.
    """
    found = explored(LATE_END)
    assert _nearest_wrong_depth(LATE_END, at_most=len(found.trace) - 1) is None
    assert _nearest_wrong_depth(LATE_END, at_most=len(found.trace)) == len(found.trace)


def _nearest_wrong_depth(config: ExploreConfig, *, at_most: int) -> int | None:
    """Depth first, with a bound: each world is looked at again when it is met with more steps left."""
    one = search.StateSearch(config)
    best: dict[World, int] = {}
    todo: list[tuple[World, int]] = [(one.root, 0)]
    nearest: int | None = None
    while todo:
        world, depth = todo.pop()
        if depth > at_most or best.get(world, at_most + 1) <= depth:
            continue
        best[world] = depth
        if one.wrong(world) is not None:
            nearest = depth if nearest is None else min(nearest, depth)
            continue
        todo += [(after, depth + 1) for _, after in one.worlds.after(world)]
    return nearest


class Backwards(Worlds):
    """The same worlds, met in another order."""

    __slots__ = ()

    def after(self, world: World) -> Iterator[Successor]:
        yield from reversed(list(super().after(world)))


@pytest.mark.parametrize("config", [SAME_IN_VERSION_2, TWO_PRODUCERS, CRASHING])
def test_states_that_count_as_equal_go_on_alike(
    config: ExploreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If equal keys could act differently, what is met first would decide what is found."""
    forwards = explored(config)
    monkeypatch.setattr(search, "Worlds", Backwards)
    backwards = explore(config)
    assert (forwards.states, forwards.transitions, forwards.ends) == (
        backwards.states,
        backwards.transitions,
        backwards.ends,
    )


@pytest.mark.parametrize(
    ("config", "all_states", "states"),
    [(TWO_PRODUCERS, 1_347, 674), (attrs.evolve(TWO_PRODUCERS, partitions=2), 3_281, 1_641)],
)
def test_producers_that_do_the_same_are_interchangeable(
    config: ExploreConfig, all_states: int, states: int
) -> None:
    """Half of the states and one, for in the first state alone both stand where the other stands."""
    plain = explored(attrs.evolve(config, symmetry=False))
    folded = explored(config)
    assert (plain.violation, plain.complete, plain.states) == (None, True, all_states)
    assert (folded.violation, folded.complete, folded.states) == (None, True, states)
    assert 2 * folded.ends == plain.ends


def test_symmetry_hides_nothing() -> None:
    broken = attrs.evolve(TWO_PRODUCERS, retries=1, broken=frozenset({"fencing"}))
    plain = explored(attrs.evolve(broken, symmetry=False))
    folded = explored(broken)
    assert folded.violation == plain.violation == "duplicate"
    assert len(folded.trace) == len(plain.trace)
    assert folded.states < plain.states
    assert len([step for step in folded.trace if "gives up" in step]) == 1


def test_a_search_that_is_cut_short_proves_nothing() -> None:
    cut = explored(attrs.evolve(SAME_IN_VERSION_2, max_states=100))
    assert (cut.violation, cut.complete) == (None, False)


@pytest.mark.parametrize("config", [LATE_END, SAME_IN_VERSION_2])
def test_the_standard_worlds_come_through_what_could_go_wrong(config: ExploreConfig) -> None:
    """Whoever finds nothing must have met late ends, and transactions that are over."""
    reached = explored(config).reached
    assert tuple(reached) == REACHED
    assert all(reached.values()), reached
    assert reached["late requests"] > reached["late EndTxns"] > reached["refused late EndTxns"]


def test_what_a_world_has_not_is_not_counted() -> None:
    calm = explored(
        attrs.evolve(LATE_END, transactions=1, retries=0, ends=(TransactionResult.COMMIT,))
    ).reached
    assert calm == dict.fromkeys(REACHED, 0) | {"commits": 3, "commit markers": 2}


PROGRAM = """
import sys
from fencepost.simulator.explore import ExploreConfig, explore
for version in (0, 2):
    found = explore(ExploreConfig(transaction_version=version))
    print(found.states, found.transitions, found.core_steps, found.ends, found.trace)
"""


@pytest.mark.thorough
def test_hash_seeds_change_nothing() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
            timeout=600,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


# --- what it can find ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("protection", sorted(PROTECTIONS))
def test_without_a_protection_something_is_found(protection: str) -> None:
    found = explored(attrs.evolve(SAME_IN_VERSION_2, broken=frozenset({protection})))
    assert found.violation is not None
    assert found.trace
