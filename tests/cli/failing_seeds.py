"""Seeds that break a rule, found when a test needs one: which seeds do changes with what the clients send."""

from __future__ import annotations

from fencepost.cli.fuzz import Protection, WorldOptions
from fencepost.simulator.fuzz.shrinking import failing_seed


def failing_with(broken: Protection) -> int:
    """The first seed that breaks a rule when this protection is turned off."""
    planner = WorldOptions(transaction_version=2, broken=(broken,)).kind.planner
    return next(seed for seed in range(1, 60) if failing_seed(seed, planner) is not None)
