"""What an attack is, and what comes of it: one row of the table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from tests.attack.ledger import Latency
from tests.attack.scene import PLAIN, BrokerOptions, Scene

ANSWER_MS_MAX = 1_000
"""At the 99th percentile, while the broker is up."""


@attrs.frozen(kw_only=True)
class Attack:
    """One attack: a name, what it does in a sentence, and how."""

    name: str
    does: str
    act: Callable[[Scene], Awaitable[None]]
    options: BrokerOptions = PLAIN
    is_restarted: bool = False
    """Whether the broker is ended and started again: then no answer is late, and errors are expected."""


@attrs.define(kw_only=True)
class Row:
    """The figures of one attack. A verdict fails when there are `faults`."""

    name: str
    figures: dict[str, Any]
    transactions: int
    latency: Latency
    memory_before_mb: float
    memory_peak_mb: float
    memory_bound_mb: float
    seconds: float
    faults: list[str] = attrs.Factory(list[str])

    @property
    def verdict(self) -> str:
        """In one word."""
        return "FAIL" if self.faults else "pass"

    def to_json(self) -> dict[str, Any]:
        """The row for programs."""
        return {**attrs.asdict(self), "verdict": self.verdict}
