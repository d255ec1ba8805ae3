"""The rules that a scenario can name, and what exactly-once comes down to.

Rule: "a rule holds" means that every rule that it stands for holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fencepost.simulator.judges.rules import HISTORY_RULES, STEP_RULES

CONVERGES: Final = "converges"
HANGING_TRANSACTION: Final = "hanging-transaction"
EXACTLY_ONCE: Final = "exactly-once"

# What exactly-once comes down to, for one who looks at the output.
EXACTLY_ONCE_RULES: Final = (
    "duplicate",
    "lost-write",
    "torn-transaction",
    "unseen",
    "G1a",
    "missing-output",
    "doubled-output",
    "foreign-output",
)
RULE_NAMES: Final = (
    CONVERGES,
    HANGING_TRANSACTION,
    EXACTLY_ONCE,
    *(rule.name for rule in (*HISTORY_RULES, *STEP_RULES)),
)


def spelled_out(names: Iterable[str]) -> tuple[str, ...]:
    """These rules, and behind exactly-once what it comes down to."""
    found: list[str] = []
    for name in names:
        found += (name, *EXACTLY_ONCE_RULES) if name == EXACTLY_ONCE else (name,)
    return tuple(found)


def contradictory(holds: Iterable[str], violates: Iterable[str]) -> tuple[str, ...]:
    """The rules that cannot both be kept and be broken, as these two say."""
    kept = spelled_out(holds)
    return tuple(name for name in violates if name in kept)
