"""What a fuzzed world is like: how many of what, which faults, how slow. Drawn anew for each seed (swarm
testing).

Rule: a plan is a value; everything random in it was decided when it was drawn.
"""

from __future__ import annotations

from typing import Final

import attrs

from fencepost.broker.host import SyncPolicy
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS
from fencepost.journal.journal import JournalSettings
from fencepost.simulator.actors.workloads import Membership
from fencepost.simulator.faults.random_faults import FaultKind
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.participants import NS_PER_MS
from fencepost.simulator.world.world import WorldSettings

PARTITIONS: Final = 2
RECORDS_MAX: Final = 4
PROCESSORS: Final = (("copier",), ("copier", "rival copier"))
SCAN_MS: Final = 100  # how often a coordinator looks for transactions that are open for too long
TIMEOUTS_MS: Final = (60_000, 60_000, 60_000, 300)
GROUP: Final = "sharers"
ASSIGNORS: Final = ("range", "cooperative-sticky")
STARTS_MS: Final = (0, 0, 300, 1_000)  # members join one after the other
SESSIONS_MS: Final = (1_500, 600)
POLL_INTERVALS_MS: Final = (3_000, 1_000)
FEED_PAUSES_MS: Final = (0, 0, 50, 200)  # so that the input is not copied before the group has rebalanced
LONG_MS: Final = 60_000
DEFAULT_PAUSE_MS: Final = 120


@attrs.frozen(kw_only=True)
class TxnWriterPlan:
    """One process that writes transactions. Two with one id fight for it."""

    name: str
    transactional_id: str
    transactions: int
    transaction_timeout_ms: int
    records_max: int = RECORDS_MAX  # in one transaction
    reads: bool = False  # in each transaction, what is committed where it writes


@attrs.frozen(kw_only=True)
class FuzzPlan:
    """One seed's world, its workload and its faults. Times are nanoseconds."""

    world: WorldSettings
    transaction_version: int = 2
    txn_writers: tuple[TxnWriterPlan, ...] = ()
    idempotent_writes: int = (
        0  # records that a plain producer writes into each partition of the input, for processors to copy
    )
    processors: tuple[str, ...] = ()  # names; they all share one transactional id
    members: tuple[tuple[str, Membership], ...] = ()  # processors of one group, by their names
    epoch_bumps: int = 0  # how often a process asks for the identity after the one that it has
    reads_uncommitted: bool = False
    kinds: tuple[FaultKind, ...] = ()
    strikes: int = 0
    pause: int = 40 * NS_PER_MS  # between two strikes, about
    drifts_ppm: tuple[int, ...] = ()  # of the nodes' clocks, in their order
    slow_participants: int = 0  # PCT: so many times a lane becomes the slowest


def draw(
    choices: Choices, *, transaction_version: int = 2, node_settings: NodeSettings | None = None
) -> FuzzPlan:
    """A plan at random, the calmest first: what the first choices of a seed are for."""
    world = _draw_world(choices, transaction_version, node_settings or NodeSettings())
    copies = choices.happens(500)
    able = tuple(kind for kind in FaultKind if _applies(kind, world, copies=copies))
    kinds = choices.some_of(able)
    return FuzzPlan(
        world=world,
        transaction_version=transaction_version,
        txn_writers=_draw_txn_writers(choices),
        idempotent_writes=4 + choices.below(20) if copies else 0,
        processors=choices.one_of(PROCESSORS) if copies else (),
        epoch_bumps=choices.one_of((0, 0, 0, 30)),
        reads_uncommitted=choices.happens(250),
        kinds=kinds,
        strikes=choices.one_of((2, 4, 8, 16)) if kinds else 0,
        pause=choices.one_of((DEFAULT_PAUSE_MS, 40, 15)) * NS_PER_MS,
        drifts_ppm=tuple(choices.one_of((0, 200, -200)) for _ in range(world.nodes)),
        slow_participants=choices.one_of((0, 0, 1, 3)),
    )


def draw_groups(
    choices: Choices, *, transaction_version: int = 2, node_settings: NodeSettings | None = None
) -> FuzzPlan:
    """Another population of worlds: members of one group copy a topic, and one transactional writer is there
    besides. A seed means another world here than with `draw`, so neither has to keep the other's choices.
    """
    world = _draw_world(choices, transaction_version, node_settings or NodeSettings())
    able = tuple(kind for kind in FaultKind if _applies(kind, world, copies=True))
    kinds = choices.some_of(able)
    return FuzzPlan(
        world=world,
        transaction_version=transaction_version,
        txn_writers=_draw_txn_writers(choices)[:1] if choices.happens(250) else (),
        idempotent_writes=6 + choices.below(18),
        members=_draw_members(choices),
        kinds=kinds,
        strikes=choices.one_of((2, 4, 8, 16)) if kinds else 0,
        pause=choices.one_of((2 * DEFAULT_PAUSE_MS, DEFAULT_PAUSE_MS, 40)) * NS_PER_MS,
        drifts_ppm=tuple(choices.one_of((0, 200, -200)) for _ in range(world.nodes)),
        slow_participants=choices.one_of((0, 0, 1, 3)),
    )


PLANNERS: Final = {"transactions": draw, "groups": draw_groups}
"""The populations of worlds, by the name of their workload."""


def verifies(transaction_version: int, partition_verification: bool | None) -> bool:
    """Whether partition leaders ask the coordinator about older clients' batches (KIP-890 part 1); when it is
    not said, as that version was shipped: not in version 0, which is KIP-98.
    """
    return transaction_version > 0 if partition_verification is None else partition_verification


def hurried(settings: NodeSettings, *, transaction_version: int, coordinators: int) -> NodeSettings:
    """Settings of nodes in a hurry, as in every fuzzed world: so much fits into a second that faults meet
    each other. `coordinators` is the number of partitions of `__transaction_state`.
    """
    return attrs.evolve(
        settings,
        transaction_version=TRANSACTION_VERSIONS[transaction_version],
        transaction_state_log_num_partitions=coordinators,
        offsets_topic_num_partitions=1,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=SCAN_MS,
        reelection_backoff_ms=20,
        marker_retry_backoff_ms=10,
        group_initial_rebalance_delay_ms=50,
        group_min_session_timeout_ms=min(SESSIONS_MS),
    )


def _draw_world(choices: Choices, transaction_version: int, node_settings: NodeSettings) -> WorldSettings:
    nodes = choices.one_of((1, 2, 3))
    policy = choices.one_of((SyncPolicy.NONE, SyncPolicy.COMMIT, SyncPolicy.ALL))
    settings = hurried(
        node_settings, transaction_version=transaction_version, coordinators=choices.one_of((1, 2))
    )
    return WorldSettings(
        nodes=nodes,
        node_settings=settings,
        policy=policy,
        journals=JournalSettings(segment_bytes=choices.one_of((65_536, 2_000, 600))),
        latency=choices.one_of((100_000, 1_000_000)),
        sync_latency=choices.one_of((200_000, 3_000_000)),
        encodes=choices.happens(50),
        own_travels=choices.happens(500),
    )


def _applies(kind: FaultKind, world: WorldSettings, *, copies: bool) -> bool:
    # Without syncs there is no promise about a loss of power.
    if kind is FaultKind.POWER_LOSS:  # what a plain producer wrote is only promised by the strictest policy
        return world.policy is SyncPolicy.ALL or (world.policy is SyncPolicy.COMMIT and not copies)
    if kind in (FaultKind.FAILOVER, FaultKind.MOVE):
        return world.nodes > 1
    return True


def _draw_txn_writers(choices: Choices) -> tuple[TxnWriterPlan, ...]:
    return tuple(
        TxnWriterPlan(
            name=f"payer-{number + 1}",
            transactional_id=choices.one_of((f"payer-{number + 1}", "payers")),
            transactions=5 + choices.below(25),
            transaction_timeout_ms=choices.one_of(TIMEOUTS_MS),
            records_max=choices.one_of((RECORDS_MAX, 1)),
            reads=choices.happens(250),
        )
        for number in range(1 + choices.below(3))
    )


def _draw_members(choices: Choices) -> tuple[tuple[str, Membership], ...]:
    """Two or three members that share the timeouts of their group."""
    assignor = choices.one_of(ASSIGNORS)
    session_timeout_ms = choices.one_of(SESSIONS_MS)
    max_poll_interval_ms = choices.one_of(POLL_INTERVALS_MS)
    members: list[tuple[str, Membership]] = []
    for number in range(2 + choices.below(2)):
        name = f"sharer-{number + 1}"
        member = Membership(
            group=GROUP,
            assignor=assignor,
            group_instance_id=name if choices.happens(300) else None,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=session_timeout_ms // 6,
            max_poll_interval_ms=max_poll_interval_ms,
            starts_after_ms=choices.one_of(STARTS_MS),
            stalls=choices.one_of((0, 0, 100, 300)),
            leaves=choices.one_of((0, 0, 150)),
        )
        members.append((name, member))
    return tuple(members)
