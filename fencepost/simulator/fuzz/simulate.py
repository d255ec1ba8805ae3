"""The world of a seed, run from Python: what `fencepost fuzz` does to each seed, for tests.

Rule: the same seed with the same options is the same trial here, there and in any process.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from fencepost.broker.kafka_fixes import KafkaFixes
from fencepost.broker.settings import PROTECTIONS, NodeSettings
from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS
from fencepost.simulator.fuzz.plan import PLANNERS, verifies
from fencepost.simulator.fuzz.worlds import Planner, try_seed
from fencepost.simulator.run import RunResult


def simulate(
    seed: int,
    *,
    workload: str = "transactions",
    transaction_version: int = 2,
    partition_verification: bool | None = None,
    broken: Iterable[str] = (),
    without_fixes: Iterable[str] = (),
) -> RunResult:
    """Run one world at random: brokers and clients under virtual time, with faults, before every judge.

    The result's `violation` is None, or says which rule was broken and by what; `known_anomaly` is the same
    of what brokers of an old generation do by design; `digest` is equal for equal histories. `workload` is
    "transactions", or "groups" for worlds in which the members of a group process a topic. Without
    `partition_verification` it is as that version was shipped: off in 0. `broken` are protections of the
    broker to turn off: "fencing", "dedup"; `without_fixes` are Kafka's later fixes to turn off
    (broker.history). ValueError for a seed, a version or a name that does not exist.
    """
    planner = planner_of(
        transaction_version,
        broken,
        without_fixes,
        partition_verification=partition_verification,
        workload=workload,
    )
    return try_seed(_seed_of(seed), planner)


def _seed_of(value: object) -> int:
    """Whatever else Python's generator takes names the world of another seed: -1 that of 1, True, too."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f"seed is {value!r}, and may be any whole number from 0 on")


def planner_of(
    transaction_version: int,
    broken: Iterable[str],
    without_fixes: Iterable[str],
    *,
    partition_verification: bool | None = None,
    workload: str = "transactions",
) -> Planner:
    """What draws such worlds; it can be handed to other processes."""
    protections = frozenset(_names_of("broken", broken))
    if transaction_version not in TRANSACTION_VERSIONS:
        raise ValueError(
            f"transaction_version is {transaction_version}, and may be {sorted(TRANSACTION_VERSIONS)}"
        )
    if workload not in PLANNERS:
        raise ValueError(f"workload is {workload!r}, and may be {sorted(PLANNERS)}")
    if not protections <= PROTECTIONS:
        raise ValueError(f"broken is {sorted(protections)}, and may be of {sorted(PROTECTIONS)}")
    settings = NodeSettings(
        broken=protections,
        fixes=KafkaFixes.without(_names_of("without_fixes", without_fixes)),
        partition_verification=verifies(transaction_version, partition_verification),
    )
    return partial(PLANNERS[workload], transaction_version=transaction_version, node_settings=settings)


def _names_of(key: str, names: Iterable[str]) -> Iterable[str]:
    """One name alone would be taken for a list of its letters."""
    if isinstance(names, str):
        raise ValueError(f"{key} is {names!r}, and must be a tuple of names: ({names!r},)")
    return names
