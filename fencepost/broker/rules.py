"""A table of rules: each a condition and the error that it means.

Rule: rules are asked in their order, which is Kafka's; the first that holds counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVarTuple

from fencepost.broker.contract import Refused
from fencepost.protocol.errors import ErrorCode

Asked = TypeVarTuple("Asked")


class Rule(NamedTuple, Generic[*Asked]):
    """What `holds` of whoever gets `error`; the name says it in words."""

    name: str
    error: ErrorCode
    holds: Callable[[*Asked], bool]


def first_that_holds(rules: Iterable[Rule[*Asked]], *asked: *Asked) -> Refused | None:
    """The refusal that the first rule means which holds of these, if one does."""
    for rule in rules:
        if rule.holds(*asked):
            return Refused(rule.error, rule.name)
    return None
