"""The world of a seed, run from Python: what `fencepost fuzz` does to each seed, for whoever writes a test.

Rule: the same seed with the same options is the same trial here, there and in any process.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from fencepost.broker.history import History
from fencepost.broker.settings import PROTECTIONS, NodeSettings
from fencepost.broker.transaction_tables import GENERATIONS
from fencepost.simulator.plan import draw
from fencepost.simulator.trial import Planner, Trial, try_seed


def simulate(
    seed: int, *, transaction_version: int = 2, broken: Iterable[str] = (), without: Iterable[str] = ()
) -> Trial:
    """Run one world at random: brokers and clients under virtual time, with faults, before every judge.

    The trial's `violation` is None, or says which rule was broken and by what; `digest` is equal for equal
    histories. `broken` are protections of the broker to turn off: "fencing", "dedup"; `without` are
    Kafka's later corrections that it does without (broker.history). ValueError for a seed, a version or a
    name that there is not.
    """
    return try_seed(_seed_of(seed), planner_of(transaction_version, broken, without))


def _seed_of(value: object) -> int:
    """Whatever else Python's generator takes names the world of another seed: -1 that of 1, True, too."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f"seed is {value!r}, and may be any whole number from 0 on")


def planner_of(transaction_version: int, broken: Iterable[str], without: Iterable[str]) -> Planner:
    """What draws such worlds; it can be handed to other processes."""
    protections = frozenset(broken)
    if transaction_version not in GENERATIONS:
        raise ValueError(f"transaction_version is {transaction_version}, and may be {sorted(GENERATIONS)}")
    if not protections <= PROTECTIONS:
        raise ValueError(f"broken is {sorted(protections)}, and may be of {sorted(PROTECTIONS)}")
    settings = NodeSettings(broken=protections, history=History.without(without))
    return partial(draw, transaction_version=transaction_version, node_settings=settings)
