"""A program: digests of seeds and of a small search, a line each; with a planted fault if one is named.

Rule: whatever does not follow from the seed shows: every address is moved about before, and whoever starts it
chooses how strings hash.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain, islice
from random import SystemRandom
from typing import Final

from fencepost.simulation import read_scenario
from fencepost.simulator.explore import ExploreConfig, explore
from fencepost.simulator.fuzz.plan import draw
from fencepost.simulator.fuzz.worlds import try_choices
from fencepost.simulator.run import Run
from fencepost.simulator.scenarios.model import cases
from fencepost.simulator.scenarios.runner import run_case
from fencepost.simulator.world.choices import Choices
from tests.simulator.planting import Edit, Mutation, planted

SEEDS: Final = range(1, 6)
SCENARIOS: Final = ("zombie_coordinator", "processor_dies")
SMALL: Final = ExploreConfig(producers=2, transactions=1, retries=0)

FAULTS: Final = {
    fault.name: fault
    for fault in (
        Mutation(
            "a coordinator asks partitions in the order of their hashes",
            breaks="Markers are written in another order.",
            edits=(
                Edit(
                    "broker.transactions.markers:_send_markers",
                    {"in sorted(pending_markers)": "in list(pending_markers)"},
                ),
            ),
        ),
        Mutation(
            "coordinators are found by a hash of this process",
            breaks="A transactional id belongs to another coordinator in each run.",
            edits=(
                Edit(
                    "protocol.terms:java_hash",
                    {"return code - 2**32 if code >= 2**31 else code": "return hash(text)"},
                ),
            ),
        ),
        Mutation(
            "nodes are looked for in the order of their addresses",
            breaks="The same choice strikes another node.",
            edits=(
                Edit(
                    "simulator.faults.random_faults:_up", {"in world.nodes": "in sorted(world.nodes, key=id)"}
                ),
            ),
        ),
    )
}


def digests() -> Iterator[str]:
    """What must be equal everywhere."""
    for seed in SEEDS:
        for version in (0, 2):
            watched: list[Run] = []
            trial = try_choices(Choices(seed), partial(draw, transaction_version=version), watched.append)
            seen = hashlib.blake2b(repr(watched[0].operations).encode(), digest_size=8).hexdigest()
            yield f"seed {seed} version {version}: {trial.digest} {seen} {trial.violation}"
    for case in chain.from_iterable(map(cases, map(read_scenario, SCENARIOS))):
        yield f"{case.name}: {run_case(case).digest}"
    found = explore(SMALL)
    yield f"explored: {found.states} {found.transitions} {found.ends} {found.core_steps} {found.violation}"


def noise() -> list[bytearray]:
    """Objects that lie about, with holes between them: what is made next lies anywhere, in any order."""
    dice = SystemRandom()
    made = [bytearray(dice.randrange(8, 500)) for _ in range(30_000)]
    dice.shuffle(made)
    return list(islice(made, len(made) // 2))


def main(fault: str = "") -> None:
    kept = noise()
    with planted(FAULTS[fault]) if fault else nullcontext():
        for line in digests():
            print(line)
    assert kept, "what lies about lies there until the end"


if __name__ == "__main__":
    main(*sys.argv[1:])
