"""How a simulation fails a test: what was broken, the last rows of the run, and the next commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fencepost.protocol.errors import FencepostError
from fencepost.simulator.draw.text import ending
from fencepost.simulator.world.history import History

WIDTH: Final = 100
ROWS: Final = 20


class SimulationFailed(FencepostError):
    """A run broke a rule, or differs from what its scenario expects. The message shows how it ended."""


def failure_of(problems: Iterable[str], history: History | None, commands: Iterable[str]) -> SimulationFailed:
    """The exception for a run; `commands` are (name, command) lines such as `replay: fencepost fuzz ...`."""
    rows = [] if history is None else ["", *ending(history, width=WIDTH, rows=ROWS, folds=False), ""]
    return SimulationFailed("\n".join((*problems, *rows, *commands)))
