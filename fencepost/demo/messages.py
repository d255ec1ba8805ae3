"""How the demonstration talks to its processes: a task as argument, JSON lines on stdout, words on stdin.

Rule: a process reports that it waits before it is killed, so a kill happens exactly at the planned point.
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

# Exit codes of the worker besides 0; its parent acts on them.
FENCED = 4
COMMIT_UNKNOWN = 5


@attrs.frozen(kw_only=True)
class WorkerTask:
    """The task of a worker; `pauses` are the pairs (round, point), in order, at which it waits."""

    bootstrap: str
    seed: int
    records_per_transaction: int
    abort_share: float
    read_uncommitted: bool = False
    pauses: tuple[tuple[int, WorkerPoint], ...] = ()

    def to_json(self) -> str:
        """Encodes the task as a command-line argument."""
        fields = attrs.asdict(self)
        return json.dumps({**fields, "pauses": [[number, point.name] for number, point in self.pauses]})

    @staticmethod
    def from_json(text: str) -> WorkerTask:
        """Decodes the argument."""
        fields = json.loads(text)
        pauses = tuple((number, WorkerPoint[name]) for number, name in fields.pop("pauses"))
        return WorkerTask(pauses=pauses, **fields)


def say(event: str, **facts: Any) -> None:
    """Sends one line to the parent."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def wait_for_word() -> str:
    """Waits for a line from the parent; exits if the parent is gone."""
    word = sys.stdin.readline()
    if not word:
        sys.exit("the demonstration has ended")
    return word.strip()
