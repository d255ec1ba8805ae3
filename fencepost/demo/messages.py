"""How the demonstration and its processes talk: a task as argument, JSON lines on stdout, a word on stdin.

Rule: a process that waits to be killed has said so first, so a blow lands where it was meant to.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import attrs

from fencepost.demo.plan import WorkerPoint

FLIGHTS = "flights"
DELAYS = "delays"
TOTALS = "totals"
GROUP = "delay-pipeline"
TRANSACTIONAL_ID = "delay-pipeline-0"
PARTITION_COUNT = 4

# Exit codes of the worker, besides 0: what its parent does next depends on them.
FENCED = 4
COMMIT_UNKNOWN = 5


@attrs.frozen(kw_only=True)
class Task:
    """What the worker is told at its start; `pauses` are (round, point), in order, at which it waits."""

    bootstrap: str
    seed: int
    records_per_transaction: int
    abort_share: float
    read_uncommitted: bool = False
    pauses: tuple[tuple[int, WorkerPoint], ...] = ()

    def to_json(self) -> str:
        """As the command-line argument."""
        fields = attrs.asdict(self)
        return json.dumps({**fields, "pauses": [[number, point.name] for number, point in self.pauses]})

    @staticmethod
    def from_json(text: str) -> Task:
        """Reads the argument."""
        fields = json.loads(text)
        pauses = tuple((number, WorkerPoint[name]) for number, name in fields.pop("pauses"))
        return Task(pauses=pauses, **fields)


def say(event: str, **facts: Any) -> None:
    """One line to the parent."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def wait_for_word() -> str:
    """Blocks until the parent says something; leaves when the parent is gone."""
    word = sys.stdin.readline()
    if not word:
        sys.exit("the demonstration is gone")
    return word.strip()
