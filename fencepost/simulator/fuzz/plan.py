"""Random plans: which participants, which faults, how slow. Each seed draws its own (swarm testing).

Rule: in each draw the calmest value comes first. A plan is a value (`scenarios/model.py`), and the same one
makes the same world.
"""

# Theory of operation. The first choices of a seed draw a plan, and the others decide what happens in it. Each
# plan leaves out some of the features: a run with all of them at once hides what a run with two of them shows
# (swarm testing, Groce et al., 2012).
#
#     transactions   writers of transactions; in every other world a topic is copied, too
#     groups         two or three members of one group copy a topic
#     power          nodes lose their power, under the policies that promise something about it
#     damage         disks damage synced data, and nodes crash, since a start reads it
#     requests       a stranger sends extreme requests meanwhile
#     identities     producer ids are used up, transactional ids expire, and markers are late
#     compaction     one compacted topic, to which everybody writes
#     topics         a topic is deleted and created again while it is used, with the faults of three others
#
# A draw that is added, taken away or moved gives every seed another world: of its population, and of those
# that begin with the same draws. So whatever follows from an earlier draw is derived, not drawn.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from fencepost.broker.sync_policy import SyncPolicy
from fencepost.simulator.faults.random_faults import DAMAGES, DEATHS, FaultKind
from fencepost.simulator.scenarios.model import (
    LONG_MS,
    POLL_INTERVALS_MS,
    RECORDS_MAX,
    SESSIONS_MS,
    CompactionPlan,
    FuzzPlan,
    IdentityPlan,
    MemberPlan,
    TxnWriterPlan,
)
from fencepost.simulator.world.choices import Choices

PROCESSORS: Final = (("copier",), ("copier", "rival copier"))
TIMEOUTS_MS: Final = (LONG_MS, LONG_MS, LONG_MS, 300)
ASSIGNORS: Final = ("range", "cooperative-sticky")
STARTS_MS: Final = (0, 0, 300, 1_000)  # members join one after the other
PAUSES_MS: Final = (120, 40, 15)
POWER_STRIKES: Final = (8, 16)  # several: a node that is to die a few writes later may have none to do
POWER_PAUSES_MS: Final = (40, 15)
OTHER_KINDS_MAX: Final = 2
GROUP_PAUSES_MS: Final = (240, 120, 40)
DAMAGE_PAUSES_MS: Final = (240, 120)  # so that there is a manifest, which promises something

IDENTITY_KINDS: Final = (FaultKind.LATE_MARKER, FaultKind.LOST_REPLY)
IDENTITY_STRIKES: Final = (8, 16)
EPOCHS_LEFT: Final = (8, 4, 1, 0)
EXPIRATIONS_MS: Final = (0, 250, 100)  # writers rest for up to 300 ms between two transactions

SMALL_SEGMENTS: Final = (2_000, 600)  # an active segment is never compacted
LIFETIMES_MS: Final = (2_000, 500, 100, 0)

Planner = Callable[[Choices], FuzzPlan]


def draw(choices: Choices, **given: Any) -> FuzzPlan:
    """A plan at random, which is what the first choices of a seed are for. What is `given` is not drawn: the
    transaction version, and the protections and fixes that are turned off.
    """
    return _draw_usual(choices, _draw_world(choices, given))


def _draw_usual(choices: Choices, plan: FuzzPlan) -> FuzzPlan:
    """The rest of the plan of a world whose brokers are drawn already."""
    # Drawn before the kinds of fault: whether a loss of power is allowed depends on it.
    copies = choices.happens(500)
    plan = _draw_kinds(choices, plan, copies=copies)
    plan = attrs.evolve(
        plan,
        txn_writers=_draw_txn_writers(choices),
        idempotent_writes=4 + choices.below(20) if copies else 0,
        processors=choices.one_of(PROCESSORS) if copies else (),
        epoch_bumps=choices.one_of((0, 0, 0, 30)),
        reads_uncommitted=choices.happens(250),
    )
    return _draw_strikes(choices, plan, PAUSES_MS)


def draw_groups(choices: Choices, **given: Any) -> FuzzPlan:
    """Another population of worlds: members of one group copy a topic, and one transactional writer works
    next to them. A seed means another world here than with `draw`, so neither has to keep the other's
    choices.
    """
    plan = _draw_kinds(choices, _draw_world(choices, given), copies=True)
    plan = attrs.evolve(
        plan,
        txn_writers=_draw_txn_writers(choices)[:1] if choices.happens(250) else (),
        idempotent_writes=6 + choices.below(18),
        members=_draw_members(choices),
    )
    return _draw_strikes(choices, plan, GROUP_PAUSES_MS)


def draw_damage(choices: Choices, **given: Any) -> FuzzPlan:
    """Worlds of `draw` whose disks damage synced data. Nodes crash, since a start reads all that is
    there. Power is not lost: it may take the manifest, and with it the promise that damage would break.
    """
    plan = draw(choices, **given)
    kinds = tuple(kind for kind in plan.kinds if kind not in (FaultKind.POWER_LOSS, FaultKind.CRASH))
    damages = choices.some_of(tuple(DAMAGES)) or tuple(DAMAGES)
    return attrs.evolve(
        plan,
        kinds=(*kinds, FaultKind.CRASH, *damages),
        strikes=choices.one_of((3, 6, 12)),
        pause_ms=choices.one_of(DAMAGE_PAUSES_MS),
    )


def draw_power(choices: Choices, **given: Any) -> FuzzPlan:
    """Worlds of `draw` whose nodes lose their power, under the policies that promise something about it."""
    plan = draw(choices, **given)
    # The input of processors is written without transactions, which only the strictest policy protects.
    policies = (SyncPolicy.ALL,) if plan.processors else (SyncPolicy.COMMIT, SyncPolicy.ALL)
    others = [kind for kind in plan.kinds if kind is not FaultKind.POWER_LOSS]
    return attrs.evolve(
        plan,
        sync=choices.one_of(policies),
        kinds=(*choices.some_of(others)[:OTHER_KINDS_MAX], FaultKind.POWER_LOSS),
        strikes=choices.one_of(POWER_STRIKES),
        pause_ms=choices.one_of(POWER_PAUSES_MS),
    )


def draw_requests(choices: Choices, **given: Any) -> FuzzPlan:
    """Worlds of `draw` with a client whose requests have an extreme meaning."""
    return attrs.evolve(draw(choices, **given), strange_requests=20 + choices.below(100))


def draw_topics(choices: Choices, **given: Any) -> FuzzPlan:
    """Worlds of `draw`, `draw_power` or `draw_damage` in which a topic is deleted and created again."""
    planner = choices.one_of((draw, draw_power, draw_damage))
    return attrs.evolve(planner(choices, **given), topic_deletions=1 + choices.below(4))


def draw_identities(choices: Choices, **given: Any) -> FuzzPlan:
    """Worlds of several nodes in which producer ids are used up, transactional ids expire while their owners
    live, and coordinators are replaced while their markers are on the way.
    """
    brokers = attrs.evolve(_draw_world(choices, given), nodes=choices.one_of((2, 3)))
    plan = _draw_usual(choices, brokers)
    others = [kind for kind in plan.kinds if kind not in IDENTITY_KINDS]
    return attrs.evolve(
        plan,
        epoch_bumps=choices.one_of((0, 30)),
        kinds=(*choices.some_of(others)[:OTHER_KINDS_MAX], *IDENTITY_KINDS),
        strikes=choices.one_of(IDENTITY_STRIKES),
        pause_ms=choices.one_of(PAUSES_MS),
        identities=IdentityPlan(
            epochs_left=choices.one_of(EPOCHS_LEFT), expiration_ms=choices.one_of(EXPIRATIONS_MS)
        ),
    )


def draw_compaction(choices: Choices, **given: Any) -> FuzzPlan:
    """Worlds of one compacted topic, to which everybody writes. Clocks are right, so that judges can say how
    long a record has to stay, unless they jump.
    """
    plan = attrs.evolve(_draw_world(choices, given), segment_bytes=choices.one_of(SMALL_SEGMENTS))
    # What a plain producer writes must survive a loss of power, like the input of a processor.
    plan = _draw_kinds(choices, plan, copies=True)
    plan = attrs.evolve(
        plan,
        txn_writers=_draw_txn_writers(choices),
        idempotent_writes=choices.one_of((0, 10, 30)),
        epoch_bumps=choices.one_of((0, 0, 0, 30)),
        reads_uncommitted=choices.happens(500),
        compaction=_draw_compaction(choices),
    )
    plan = attrs.evolve(_draw_strikes(choices, plan, PAUSES_MS), drifts_ppm=())
    return _with_deaths(choices, plan) if choices.happens(500) else plan


def _with_deaths(choices: Choices, plan: FuzzPlan) -> FuzzPlan:
    """With nodes that die again and again, often in a cleaning."""
    deaths = [kind for kind in DEATHS if _applies(kind, plan, copies=True)]
    others = [kind for kind in plan.kinds if kind not in DEATHS]
    kinds = (*choices.some_of(others)[:OTHER_KINDS_MAX], *deaths)
    return attrs.evolve(
        plan, kinds=kinds, strikes=choices.one_of(POWER_STRIKES), pause_ms=choices.one_of(PAUSES_MS)
    )


PLANNERS: Final = {
    "transactions": draw,
    "groups": draw_groups,
    "power": draw_power,
    "damage": draw_damage,
    "requests": draw_requests,
    "identities": draw_identities,
    "compaction": draw_compaction,
    "topics": draw_topics,
}
"""The populations of worlds, by the name of their workload."""


def verifies(transaction_version: int, partition_verification: bool | None) -> bool:
    """Whether partition leaders ask the coordinator about older clients' batches (KIP-890 part 1); if None,
    as that version was shipped: not in version 0, which is KIP-98.
    """
    return transaction_version > 0 if partition_verification is None else partition_verification


def _draw_world(choices: Choices, given: dict[str, Any]) -> FuzzPlan:
    return FuzzPlan(
        nodes=choices.one_of((1, 2, 3)),
        sync=choices.one_of((SyncPolicy.NONE, SyncPolicy.COMMIT, SyncPolicy.ALL)),
        coordinators=choices.one_of((1, 2)),
        segment_bytes=choices.one_of((65_536, 2_000, 600)),
        latency_us=choices.one_of((100, 1_000)),
        sync_latency_us=choices.one_of((200, 3_000)),
        encodes=choices.happens(50),
        own_travels=choices.happens(500),
        **given,
    )


def _draw_kinds(choices: Choices, plan: FuzzPlan, *, copies: bool) -> FuzzPlan:
    able = tuple(kind for kind in FaultKind if _applies(kind, plan, copies=copies))
    return attrs.evolve(plan, kinds=choices.some_of(able))


def _applies(kind: FaultKind, plan: FuzzPlan, *, copies: bool) -> bool:
    if kind in DAMAGES or kind is FaultKind.LATE_MARKER:
        return False
    if kind is FaultKind.POWER_LOSS:
        # Without syncs there is no promise about a loss of power, and what a plain producer wrote is only
        # promised by the strictest policy.
        return plan.sync is SyncPolicy.ALL or (plan.sync is SyncPolicy.COMMIT and not copies)
    return plan.nodes > 1 or kind not in (FaultKind.FAILOVER, FaultKind.MOVE)


def _draw_strikes(choices: Choices, plan: FuzzPlan, pauses_ms: Sequence[int]) -> FuzzPlan:
    return attrs.evolve(
        plan,
        strikes=choices.one_of((2, 4, 8, 16)) if plan.kinds else 0,
        pause_ms=choices.one_of(pauses_ms),
        drifts_ppm=tuple(choices.one_of((0, 200, -200)) for _ in range(plan.nodes)),
        slow_participants=choices.one_of((0, 0, 1, 3)),
    )


def _draw_txn_writers(choices: Choices) -> tuple[TxnWriterPlan, ...]:
    return tuple(
        TxnWriterPlan(
            name=f"payer-{number + 1}",
            # Two writers with the same id fence each other again and again.
            transactional_id=choices.one_of((f"payer-{number + 1}", "payers")),
            transactions=5 + choices.below(25),
            transaction_timeout_ms=choices.one_of(TIMEOUTS_MS),
            records_max=choices.one_of((RECORDS_MAX, 1)),
            reads=choices.happens(250),
        )
        for number in range(1 + choices.below(3))
    )


def _draw_members(choices: Choices) -> tuple[MemberPlan, ...]:
    """Two or three members that share the timeouts of their group."""
    assignor = choices.one_of(ASSIGNORS)
    session_timeout_ms = choices.one_of(SESSIONS_MS)
    max_poll_interval_ms = choices.one_of(POLL_INTERVALS_MS)
    return tuple(
        MemberPlan(
            name=f"sharer-{number + 1}",
            assignor=assignor,
            group_instance_id=f"sharer-{number + 1}" if choices.happens(300) else None,
            session_timeout_ms=session_timeout_ms,
            # Kafka advises a third at most; here several may get lost.
            heartbeat_interval_ms=session_timeout_ms // 6,
            max_poll_interval_ms=max_poll_interval_ms,
            starts_after_ms=choices.one_of(STARTS_MS),
            stalls=choices.one_of((0, 0, 100, 300)),
            leaves=choices.one_of((0, 0, 150)),
        )
        for number in range(2 + choices.below(2))
    )


def _draw_compaction(choices: Choices) -> CompactionPlan:
    is_deleted = choices.happens(300)
    return CompactionPlan(
        keys=1 + choices.below(6),
        tombstones=choices.one_of((100, 300, 0)),
        min_cleanable_dirty_permille=choices.one_of((500, 200, 0)),
        min_compaction_lag_ms=choices.one_of((0, 0, 0, 300)),
        delete_retention_ms=choices.one_of(LIFETIMES_MS),
        retention_ms=choices.one_of((1_500, 300, 0)) if is_deleted else 0,
        retention_bytes=choices.one_of((0, 4_000, 1_500)) if is_deleted else 0,
        rereaders=1 + choices.below(3),
    )
