"""Plans that are smaller than a plan by one thing: fewer faults, fewer people, less to do, fewer features.

Rule: each differs from the plan in one dimension, and what was changed is calmer than it was; the boldest
come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import attrs

from fencepost.broker.host import SyncPolicy
from fencepost.simulator.faults.kinds import FaultKind
from fencepost.simulator.fuzz.plan import CALMEST_PAUSE_MS, LONG_MS, PayerPlan, Plan, draw
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.clock import NS_PER_MS

Thing = TypeVar("Thing")
Smaller = Callable[[Plan], Iterator[Plan]]

_NEED_NODES: Final = frozenset({FaultKind.FAILOVER, FaultKind.MOVE})


def _fewer_kinds(plan: Plan) -> Iterator[Plan]:
    """None at all, or one alone, or all but one."""
    if plan.kinds:
        yield attrs.evolve(plan, kinds=(), strikes=0)
    if len(plan.kinds) > 1:
        for kind in plan.kinds:
            yield attrs.evolve(plan, kinds=(kind,))
    if len(plan.kinds) > 2:
        for kinds in _all_but_one(plan.kinds):
            yield attrs.evolve(plan, kinds=kinds)


def _fewer_strikes(plan: Plan) -> Iterator[Plan]:
    for strikes in _lower(plan.strikes, 1):
        yield attrs.evolve(plan, strikes=strikes)


def _fewer_copies(plan: Plan) -> Iterator[Plan]:
    if plan.copiers:
        yield attrs.evolve(plan, copiers=(), feeds=0)
    if len(plan.copiers) > 1:
        yield attrs.evolve(plan, copiers=plan.copiers[:1])


def _fewer_payers(plan: Plan) -> Iterator[Plan]:
    if plan.payers and plan.copiers:
        yield attrs.evolve(plan, payers=())
    if len(plan.payers) > 1:
        for payers in _all_but_one(plan.payers):
            yield attrs.evolve(plan, payers=payers)


def _fewer_transactions(plan: Plan) -> Iterator[Plan]:
    for at, payer in enumerate(plan.payers):
        for transactions in _lower(payer.transactions, 1):
            yield _with_payer(plan, at, attrs.evolve(payer, transactions=transactions))
        for records_max in _lower(payer.records_max, 1):
            yield _with_payer(plan, at, attrs.evolve(payer, records_max=records_max))
        if payer.reads:
            yield _with_payer(plan, at, attrs.evolve(payer, reads=False))


def _fewer_feeds(plan: Plan) -> Iterator[Plan]:
    for feeds in _lower(plan.feeds, 1):
        yield attrs.evolve(plan, feeds=feeds)


def _fewer_renewals(plan: Plan) -> Iterator[Plan]:
    for renewals in _lower(plan.renewals, 0):
        yield attrs.evolve(plan, renewals=renewals)


def _one_node_less(plan: Plan) -> Iterator[Plan]:
    if plan.world.nodes > 1 and not _NEED_NODES.intersection(plan.kinds):
        yield _with_world(plan, nodes=1)
    elif plan.world.nodes > 2:
        yield _with_world(plan, nodes=2)


def _fewer_features(plan: Plan) -> Iterator[Plan]:
    """One at a time."""
    calm = attrs.evolve(draw(Choices()), drifts_ppm=())
    for name in ("reads_uncommitted", "drifts_ppm", "slow_lanes"):
        if getattr(plan, name) != getattr(calm, name):
            yield attrs.evolve(plan, **{name: getattr(calm, name)})
    for name in ("encodes", "own_travels", "journals", "latency", "sync_latency"):
        if getattr(plan.world, name) != getattr(calm.world, name):
            yield _with_world(plan, **{name: getattr(calm.world, name)})
    if plan.world.policy is not SyncPolicy.NONE and FaultKind.POWER_LOSS not in plan.kinds:
        yield _with_world(plan, policy=SyncPolicy.NONE)
    node_settings = plan.world.node_settings
    if node_settings.transaction_state_log_num_partitions > 1:
        fewer = attrs.evolve(node_settings, transaction_state_log_num_partitions=1)
        yield _with_world(plan, node_settings=fewer)


def _longer_timeouts(plan: Plan) -> Iterator[Plan]:
    for at, payer in enumerate(plan.payers):
        if payer.transaction_timeout_ms < LONG_MS:
            yield _with_payer(plan, at, attrs.evolve(payer, transaction_timeout_ms=LONG_MS))


def _longer_pauses(plan: Plan) -> Iterator[Plan]:
    if plan.pause < CALMEST_PAUSE_MS * NS_PER_MS:
        yield attrs.evolve(plan, pause=CALMEST_PAUSE_MS * NS_PER_MS)


DIMENSIONS: Final[tuple[Smaller, ...]] = (
    _fewer_copies,
    _fewer_payers,
    _fewer_kinds,
    _fewer_strikes,
    _fewer_transactions,
    _fewer_feeds,
    _fewer_renewals,
    _one_node_less,
    _fewer_features,
    _longer_timeouts,
    _longer_pauses,
)


def _lower(number: int, least: int) -> Iterator[int]:
    """The least, the half, one less."""
    if number > least:
        yield from dict.fromkeys((least, max(number // 2, least), number - 1))


def _all_but_one(things: tuple[Thing, ...]) -> Iterator[tuple[Thing, ...]]:
    for at in range(len(things)):
        yield things[:at] + things[at + 1 :]


def _with_payer(plan: Plan, at: int, payer: PayerPlan) -> Plan:
    return attrs.evolve(plan, payers=(*plan.payers[:at], payer, *plan.payers[at + 1 :]))


def _with_world(plan: Plan, **changes: Any) -> Plan:
    return attrs.evolve(plan, world=attrs.evolve(plan.world, **changes))
