"""A check: a condition, and the error that refuses whatever meets it.

Checks stand in tables, in Kafka's order; the first whose predicate is true refuses. The broker runs the
tables, and the docs draw them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVarTuple

from fencepost.broker.contract import Refused
from fencepost.broker.kafka_fixes import KafkaFixes
from fencepost.protocol.errors import ErrorCode

Looked = TypeVarTuple("Looked")


class Check(NamedTuple, Generic[*Looked]):
    """One rule. `name` completes "refused, because it ..."; `source` is the KIP or the class of Kafka."""

    name: str
    error: ErrorCode
    predicate: Callable[[*Looked], bool]
    source: str
    protection: str | None = None
    """What it is part of: a broker whose `broken` names this protection does without the check."""
    since: str | None = None
    """The correction of Kafka (KafkaFixes) that brought it."""
    until: str | None = None
    """The correction that took it away."""


def in_force(
    checks: tuple[Check[*Looked], ...], *, broken: frozenset[str], fixes: KafkaFixes
) -> tuple[Check[*Looked], ...]:
    """The checks of a broker that lacks these protections and has these corrections."""
    return tuple(
        check
        for check in checks
        if check.protection not in broken
        and (check.since is None or fixes.has(check.since))
        and (check.until is None or not fixes.has(check.until))
    )


def first_refusal(checks: Iterable[Check[*Looked]], *looked: *Looked) -> Refused | None:
    """The refusal of the first check whose predicate is true, or None."""
    for check in checks:
        if check.predicate(*looked):
            return Refused(check.error, check.name)
    return None
