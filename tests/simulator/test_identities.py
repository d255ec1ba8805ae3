"""Worlds in which the identities of producers end: producer ids are used up, transactional ids expire, and
markers of replaced coordinators arrive late.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Final

from fencepost.broker.settings import NodeSettings
from fencepost.protocol.terms import LAST_GRANTED_EPOCH, TransactionState
from fencepost.simulator.fuzz.plan import EPOCHS_LEFT, EXPIRATIONS_MS, draw_identities
from fencepost.simulator.fuzz.worlds import try_seed
from fencepost.simulator.judges.rare_states import RARE_STATES
from fencepost.simulator.judges.white_box import Invariants
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.world import World, WorldSettings

SEEDS: Final = 12
SEEDS_MAX: Final = 1_000
RARE: Final = (45, 8)
"""Seeds that come where few come. Other draws may make others rare: then the search takes longer."""


def test_every_rare_state_is_reached_and_no_rule_is_broken() -> None:
    """One of the rarest: the reply to the very InitProducerId that replaces a producer id gets lost."""
    reached = Counter[str]()
    for tried, seed in enumerate(chain(RARE, range(SEEDS_MAX))):
        trial = try_seed(seed, draw_identities)
        assert trial.violation is None, f"seed {seed}: {trial.violation}"
        reached.update(name for name, count in trial.coverage.rare_states.items() if count)
        if tried >= SEEDS and set(RARE_STATES["identities"]) <= set(reached):
            break
    assert [name for name in RARE_STATES["identities"] if not reached[name]] == []


def test_rare_states_are_those_of_this_workload() -> None:
    """In the usual worlds nothing wears out."""
    for seed in range(SEEDS):
        assert not +try_seed(seed).coverage.rare_states, f"seed {seed}"


def test_every_end_is_drawn() -> None:
    drawn = [draw_identities(Choices(seed)).identities for seed in range(40)]
    assert {each.epochs_left for each in drawn if each is not None} == set(EPOCHS_LEFT)
    assert {each.expiration_ms for each in drawn if each is not None} == set(EXPIRATIONS_MS)


def test_an_aged_id_has_the_record_of_many_owners_in_its_log() -> None:
    world = World(WorldSettings(nodes=2, node_settings=NodeSettings()), Choices())
    invariants = Invariants(world)
    invariants.attach()
    world.start()
    aged = {"payer": LAST_GRANTED_EPOCH, "other": 7}
    world.age_identities(aged)
    known = invariants.transactions.durable_records
    # When the coordinators lead again.
    world.run_until(lambda: {name: record.producer_epoch for name, record in known.items()} == aged)
    assert {record.state for record in known.values()} == {TransactionState.EMPTY}
    assert len({record.producer_id for record in known.values()}) == 2
