"""Results are counted in the order of their seeds, whatever the order in which they come."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import attrs

from fencepost.simulator.fuzz.seeds import SeedFinding, SeedTally, Tried


def tried(seed: int, *marks: str, breaks: str = "", meets: str = "") -> Tried:
    """A seed's result, made by hand."""
    finding = SeedFinding(seed=seed, rule=breaks, evidence="") if breaks else None
    met = SeedFinding(seed=seed, rule=meets, evidence="") if meets else None
    return Tried(
        seed=seed,
        digest=f"history of {seed}",
        finding=finding,
        met=met,
        marks=dict.fromkeys(marks, 3),
        transactions=1,
        events=10,
        elapsed=100,
    )


def tally_of(results: Sequence[Tried], *, keep_going: bool = False) -> SeedTally:
    tally = SeedTally(1, keep_going=keep_going)
    for result in results:
        tally.add(result)
    return tally


def test_the_order_in_which_results_come_changes_nothing() -> None:
    results = [tried(1), tried(2, "known: a"), tried(3, "known: a", "known: b", "commit: ok"), tried(4)]
    tallies = [tally_of(order) for order in permutations(results)]
    assert {tally.digest for tally in tallies} == {tallies[0].digest}
    assert all(tally.known == {"a": 2, "b": 1} for tally in tallies)
    assert all((tally.seeds, tally.transactions, tally.events) == (4, 4, 40) for tally in tallies)


def test_another_history_is_another_digest() -> None:
    assert tally_of([tried(1)]).digest != tally_of([tried(1), tried(2)]).digest


def test_the_first_finding_is_that_of_the_lowest_seed() -> None:
    results = [tried(3, breaks="late"), tried(2, breaks="early"), tried(1), tried(4)]
    tally = tally_of(results)
    assert [finding.rule for finding in tally.found] == ["early"]
    assert (tally.is_over, tally.seeds) == (True, 2)
    assert [finding.rule for finding in tally_of(results, keep_going=True).found] == ["early", "late"]


def test_what_brokers_of_old_do_ends_no_search_and_is_told_with_its_seeds() -> None:
    results = [tried(4, meets="late"), tried(1), tried(2, meets="later"), tried(3, meets="late")]
    tally = tally_of(results)
    assert (tally.is_over, tally.seeds, tally.found) == (False, 4, [])
    met = {name: [finding.seed for finding in found] for name, found in tally.behaviours.items()}
    assert met == {"later": [2], "late": [3, 4]}


def test_a_mark_that_a_seed_did_not_reach_does_not_count() -> None:
    idle = attrs.evolve(tried(1, "commit: ok"), marks={"exercised: G1c": 0, "commit: ok": 2})
    assert tally_of([idle]).marks == {"commit: ok": 1}


def test_what_comes_before_the_first_that_is_missing_counts() -> None:
    tally = tally_of([tried(1), tried(3, breaks="late")])
    assert (tally.seeds, tally.found, tally.is_over) == (1, [], False)
