"""Plans that are smaller than a plan by one thing: fewer faults, fewer people, less to do, fewer features.

Rule: each differs from the plan in one dimension, and what was changed is calmer than it was; the boldest
come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import attrs

from fencepost.broker.host import SyncPolicy
from fencepost.simulator.faults.random_faults import FaultKind
from fencepost.simulator.fuzz.plan import DEFAULT_PAUSE_MS, LONG_MS, FuzzPlan, TxnWriterPlan, draw
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.participants import NS_PER_MS

Thing = TypeVar("Thing")
Smaller = Callable[[FuzzPlan], Iterator[FuzzPlan]]

_NEED_NODES: Final = frozenset({FaultKind.FAILOVER, FaultKind.MOVE})


def _fewer_kinds(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    """None at all, or one alone, or all but one."""
    if plan.kinds:
        yield attrs.evolve(plan, kinds=(), strikes=0)
    if len(plan.kinds) > 1:
        for kind in plan.kinds:
            yield attrs.evolve(plan, kinds=(kind,))
    if len(plan.kinds) > 2:
        for kinds in _all_but_one(plan.kinds):
            yield attrs.evolve(plan, kinds=kinds)


def _fewer_strikes(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    for strikes in _lower(plan.strikes, 1):
        yield attrs.evolve(plan, strikes=strikes)


def _fewer_processors(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    if plan.processors:
        yield attrs.evolve(plan, processors=(), idempotent_writes=0)
    if len(plan.processors) > 1:
        yield attrs.evolve(plan, processors=plan.processors[:1])


def _fewer_members(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    if len(plan.members) > 1:
        for members in _all_but_one(plan.members):
            yield attrs.evolve(plan, members=members)
    for at, (name, member) in enumerate(plan.members):
        for calmer in (
            attrs.evolve(member, group_instance_id=None),
            attrs.evolve(member, starts_after_ms=0),
            attrs.evolve(member, stalls=0),
            attrs.evolve(member, leaves=0),
        ):
            if calmer != member:
                members = (*plan.members[:at], (name, calmer), *plan.members[at + 1 :])
                yield attrs.evolve(plan, members=members)


def _fewer_txn_writers(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    if plan.txn_writers and (plan.processors or plan.members):
        yield attrs.evolve(plan, txn_writers=())
    if len(plan.txn_writers) > 1:
        for txn_writers in _all_but_one(plan.txn_writers):
            yield attrs.evolve(plan, txn_writers=txn_writers)


def _fewer_transactions(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    for at, txn_writer in enumerate(plan.txn_writers):
        for transactions in _lower(txn_writer.transactions, 1):
            yield _with_txn_writer(plan, at, attrs.evolve(txn_writer, transactions=transactions))
        for records_max in _lower(txn_writer.records_max, 1):
            yield _with_txn_writer(plan, at, attrs.evolve(txn_writer, records_max=records_max))
        if txn_writer.reads:
            yield _with_txn_writer(plan, at, attrs.evolve(txn_writer, reads=False))


def _fewer_idempotent_writes(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    for idempotent_writes in _lower(plan.idempotent_writes, 1):
        yield attrs.evolve(plan, idempotent_writes=idempotent_writes)


def _fewer_epoch_bumps(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    for epoch_bumps in _lower(plan.epoch_bumps, 0):
        yield attrs.evolve(plan, epoch_bumps=epoch_bumps)


def _one_node_less(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    if plan.world.nodes > 1 and not _NEED_NODES.intersection(plan.kinds):
        yield _with_world(plan, nodes=1)
    elif plan.world.nodes > 2:
        yield _with_world(plan, nodes=2)


def _fewer_features(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    """One at a time."""
    calm = attrs.evolve(draw(Choices()), drifts_ppm=())
    for name in ("reads_uncommitted", "drifts_ppm", "slow_participants"):
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


def _longer_timeouts(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    for at, txn_writer in enumerate(plan.txn_writers):
        if txn_writer.transaction_timeout_ms < LONG_MS:
            yield _with_txn_writer(plan, at, attrs.evolve(txn_writer, transaction_timeout_ms=LONG_MS))


def _longer_pauses(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    if plan.pause < DEFAULT_PAUSE_MS * NS_PER_MS:
        yield attrs.evolve(plan, pause=DEFAULT_PAUSE_MS * NS_PER_MS)


DIMENSIONS: Final[tuple[Smaller, ...]] = (
    _fewer_processors,
    _fewer_members,
    _fewer_txn_writers,
    _fewer_kinds,
    _fewer_strikes,
    _fewer_transactions,
    _fewer_idempotent_writes,
    _fewer_epoch_bumps,
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


def _with_txn_writer(plan: FuzzPlan, at: int, txn_writer: TxnWriterPlan) -> FuzzPlan:
    return attrs.evolve(plan, txn_writers=(*plan.txn_writers[:at], txn_writer, *plan.txn_writers[at + 1 :]))


def _with_world(plan: FuzzPlan, **changes: Any) -> FuzzPlan:
    return attrs.evolve(plan, world=attrs.evolve(plan.world, **changes))
