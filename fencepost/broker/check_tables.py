"""A check: a predicate, and the error for everything to which it applies.

Rule: tables of checks are in Kafka's order; the first check whose predicate is true refuses.
"""

# A table instead of a function with branches, because three readers use it: the broker runs it, the docs show
# it (docs/state-machines.md), and a broker without a protection or a fix has the same table minus some rows.

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVarTuple

from fencepost.broker.contract import Refused
from fencepost.broker.kafka_fixes import KafkaFixes
from fencepost.protocol.errors import ErrorCode

Looked = TypeVarTuple("Looked")


class Check(NamedTuple, Generic[*Looked]):
    """One row. `name` completes "refused, because it ..."; `source` is the KIP or Kafka's class."""

    name: str
    error: ErrorCode
    predicate: Callable[[*Looked], bool]
    source: str
    protection: str | None = None
    """The protection to which the check belongs: a broker with this in `broken` lacks the check."""
    since: str | None = None
    """The Kafka fix (KafkaFixes) that introduced the check."""
    until: str | None = None
    """The fix that removed it."""


def in_force(
    checks: tuple[Check[*Looked], ...], *, broken: frozenset[str], fixes: KafkaFixes
) -> tuple[Check[*Looked], ...]:
    """The checks of a broker without these protections and with these fixes."""
    return tuple(
        check
        for check in checks
        if check.protection not in broken
        and (check.since is None or fixes.has(check.since))
        and (check.until is None or not fixes.has(check.until))
    )


def first_refusal(checks: Iterable[Check[*Looked]], *looked: *Looked) -> Refused | None:
    for check in checks:
        if check.predicate(*looked):
            return Refused(check.error, check.name, source=check.source)
    return None
