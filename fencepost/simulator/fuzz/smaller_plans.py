"""Smaller variants of a plan: fewer faults, fewer processes, less work, fewer features.

Rule: each differs from the plan in one dimension, where it is calmer; the largest reductions come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final, TypeVar

import attrs

from fencepost.simulator.faults.random_faults import FaultKind
from fencepost.simulator.scenarios.model import FuzzPlan, TxnWriterPlan

Thing = TypeVar("Thing")
Smaller = Callable[[FuzzPlan], Iterator[FuzzPlan]]

CLEANUP: Final = (
    *("min_cleanable_dirty_permille", "min_compaction_lag_ms"),
    *("retention_ms", "retention_bytes"),
)
MEMBERSHIP: Final = ("group_instance_id", "starts_after_ms", "stalls", "leaves")
_NEED_NODES: Final = frozenset({FaultKind.FAILOVER, FaultKind.MOVE, FaultKind.LATE_MARKER})


def _fewer_processors(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    if plan.processors:
        # What the plain producer writes is for the processors, so it goes with them.
        yield attrs.evolve(plan, processors=(), idempotent_writes=0)
    if len(plan.processors) > 1:
        yield attrs.evolve(plan, processors=plan.processors[:1])


def _fewer_members(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    if len(plan.members) > 1:
        for members in _all_but_one(plan.members):
            yield attrs.evolve(plan, members=members)
    yield from _each(plan, "members", lambda member: _as_usual(member, MEMBERSHIP))


def _fewer_txn_writers(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    # Somebody has to work, or no rule is put to the test.
    if plan.txn_writers and (plan.processors or plan.members):
        yield attrs.evolve(plan, txn_writers=())
    if len(plan.txn_writers) > 1:
        for txn_writers in _all_but_one(plan.txn_writers):
            yield attrs.evolve(plan, txn_writers=txn_writers)


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


def _less_work(writer: TxnWriterPlan) -> Iterator[TxnWriterPlan]:
    yield from _lower(writer, "transactions", 1)
    yield from _lower(writer, "records_max", 1)
    yield from _as_usual(writer, ("reads",))


def _calmer_compaction(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    compaction = plan.compaction
    if compaction is None:
        return
    lower = (
        _lower(compaction, name, least) for name, least in (("keys", 1), ("rereaders", 0), ("tombstones", 0))
    )
    for calmer in chain(*lower, _as_usual(compaction, CLEANUP)):
        yield attrs.evolve(plan, compaction=calmer)


def _longer_identities(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    """Without the end of identities, or with that of producer ids or of transactional ids alone."""
    identities = plan.identities
    if identities is None:
        return
    yield attrs.evolve(plan, identities=None)
    for calmer in _as_usual(identities, ("expiration_ms",)):
        yield attrs.evolve(plan, identities=calmer)


def _less_of(name: str, least: int) -> Smaller:
    return lambda plan: _lower(plan, name, least)


def _fewer_nodes(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    if plan.nodes > 1 and not _NEED_NODES.intersection(plan.kinds):
        yield attrs.evolve(plan, nodes=1)
    elif plan.nodes > 2:
        yield attrs.evolve(plan, nodes=2)


def _fewer_features(plan: FuzzPlan) -> Iterator[FuzzPlan]:
    """One at a time."""
    names = ["reads_uncommitted", "drifts_ppm", "slow_participants"]
    names += ["encodes", "own_travels", "segment_bytes", "latency_us", "sync_latency_us"]
    if FaultKind.POWER_LOSS not in plan.kinds:
        # Without syncs nothing is promised about power, and any loss would be a breach of another kind.
        names.append("sync")
    return _as_usual(plan, (*names, "coordinators"))


DIMENSIONS: Final[tuple[Smaller, ...]] = (
    _fewer_processors,
    _fewer_members,
    _fewer_txn_writers,
    _fewer_kinds,
    _less_of("strikes", 1),
    lambda plan: _each(plan, "txn_writers", _less_work),
    _less_of("idempotent_writes", 1),
    _less_of("epoch_bumps", 0),
    _less_of("strange_requests", 0),
    _less_of("topic_deletions", 0),
    _calmer_compaction,
    _longer_identities,
    _fewer_nodes,
    _fewer_features,
    lambda plan: _each(plan, "txn_writers", lambda writer: _longer(writer, "transaction_timeout_ms")),
    lambda plan: _longer(plan, "pause_ms"),
)


def _lower(thing: Thing, name: str, least: int) -> Iterator[Thing]:
    """With the smallest number, half of what it has, or one less."""
    number = getattr(thing, name)
    if number > least:
        for lower in dict.fromkeys((least, max(number // 2, least), number - 1)):
            yield attrs.evolve(thing, **{name: lower})


def _as_usual(thing: Thing, names: Iterable[str]) -> Iterator[Thing]:
    """With the default of one of these fields instead of what it has."""
    fields = attrs.fields_dict(type(thing))
    for name in names:
        if getattr(thing, name) != fields[name].default:
            yield attrs.evolve(thing, **{name: fields[name].default})


def _longer(thing: Thing, name: str) -> Iterator[Thing]:
    """With the default of a time, where it is shorter."""
    if getattr(thing, name) < attrs.fields_dict(type(thing))[name].default:
        yield from _as_usual(thing, (name,))


def _each(plan: FuzzPlan, name: str, smaller: Callable[[Any], Iterator[Any]]) -> Iterator[FuzzPlan]:
    """Plans in which one writer or one member does less."""
    things = getattr(plan, name)
    for at, thing in enumerate(things):
        for other in smaller(thing):
            yield attrs.evolve(plan, **{name: (*things[:at], other, *things[at + 1 :])})


def _all_but_one(things: tuple[Thing, ...]) -> Iterator[tuple[Thing, ...]]:
    for at in range(len(things)):
        yield things[:at] + things[at + 1 :]
