"""The plan of a run, and how the demonstration talks to its processes.

Rule: a plan names points of progress, not times, so a seed means the same run on fast and slow machines. A
process reports that it has reached its point and waits there, so a kill happens exactly at that point. A
process gets its task as an argument, writes JSON lines to stdout, and reads words from stdin.
"""

from __future__ import annotations

import json
import random
import sys
from enum import Enum
from typing import Any

import attrs

FLIGHTS = "flights"
DELAYS = "delays"
TOTALS = "totals"
GROUP = "delay-pipeline"
TRANSACTIONAL_ID = "delay-pipeline-0"
PARTITION_COUNT = 4

# Exit codes of the worker besides 0; its parent acts on them.
FENCED = 4
PRODUCER_FAILED = 5

RECORDS_PER_TRANSACTION_MAX = 400
ABORT_SHARE = 0.04  # of the transactions of a long run are aborted on purpose
ABORTS = 4  # a short run has a higher share, for about this many aborts


class WorkerPoint(Enum):
    """Points of progress in one round of the worker, in order."""

    READ = "input read, no transaction"
    BEGUN = "transaction begun, nothing sent"
    HALF = "half of the records written"
    PRODUCED = "all records written"
    OFFSETS = "offsets added to the transaction"
    COMMITTED = "transaction committed, reply received"


INSIDE = (WorkerPoint.HALF, WorkerPoint.PRODUCED, WorkerPoint.OFFSETS)
OUTSIDE = (WorkerPoint.READ, WorkerPoint.BEGUN, WorkerPoint.COMMITTED)


class Disruption(Enum):
    """What happens to a process at a point."""

    KILL_WORKER = "SIGKILL to the worker"
    KILL_BROKER = "SIGKILL to the broker"
    KILL_BROKER_AT_PREPARE = "SIGKILL to the broker between PREPARE and COMPLETE"
    FREEZE_WORKER = "SIGSTOP to the worker, a replacement takes over, then SIGCONT"


@attrs.frozen
class PlannedDisruption:
    """One disruption, when the `round`-th round of the workers (the first is 1) reaches `point`."""

    round: int
    kind: Disruption = attrs.field(kw_only=True)
    point: WorkerPoint = attrs.field(kw_only=True)


@attrs.frozen
class DisruptionPlan:
    """Everything that a seed decides, and the sync policy. One of `lose_every` Produce responses is lost."""

    seed: int
    flights: int = attrs.field(kw_only=True)
    records_per_transaction: int = attrs.field(kw_only=True)
    lose_every: int = attrs.field(kw_only=True)
    abort_share: float = attrs.field(kw_only=True)
    events: tuple[PlannedDisruption, ...] = attrs.field(kw_only=True)
    sync: str = attrs.field(default="none", kw_only=True)
    """The durability policy of the broker."""

    def count(self, *kinds: Disruption) -> int:
        """How many disruptions are of these kinds."""
        return sum(event.kind in kinds for event in self.events)


class TooManyKills(ValueError):
    """The flights do not fill enough transactions for this many kills."""


def draw_plan(*, seed: int, flights: int, kills: int, sync: str = "none") -> DisruptionPlan:
    """Spreads kills and freezes over the run; raises TooManyKills if the run is too short."""
    chance = random.Random(f"blows {seed}")
    disruptions = draw_disruptions(chance, kills)
    rounds_min = 2 * len(disruptions) + 4
    per_transaction = min(RECORDS_PER_TRANSACTION_MAX, flights // rounds_min)
    if per_transaction < 1:
        raise TooManyKills(f"{kills} kills need at least {rounds_min} flights")
    rounds = flights // per_transaction
    # The last rounds stay free: an aborted round needs a round after it for its retry.
    places = sorted(chance.sample(range(2, rounds * 9 // 10), len(disruptions)))
    events = (
        PlannedDisruption(place, kind=kind, point=point)
        for place, (kind, point) in zip(places, disruptions, strict=True)
    )
    return DisruptionPlan(
        seed,
        flights=flights,
        records_per_transaction=per_transaction,
        lose_every=max(3, rounds // 40),
        abort_share=max(ABORT_SHARE, ABORTS / rounds),
        events=tuple(events),
        sync=sync,
    )


def draw_disruptions(chance: random.Random, kills: int) -> list[tuple[Disruption, WorkerPoint]]:
    """Draws kinds and points in random order.

    A fifth of the kills, but at least two and at most half, hit the broker.
    """
    broker_kills = min(kills // 2, max(2, kills // 5))
    worker_kills = kills - broker_kills
    frozen = 0 if kills == 0 else 1 + kills // 5
    disruptions = [
        (Disruption.KILL_BROKER_AT_PREPARE, WorkerPoint.OFFSETS)
        if index % 2 == 0
        else (Disruption.KILL_BROKER, chance.choice(list(WorkerPoint)))
        for index in range(broker_kills)
    ]
    disruptions += [
        (Disruption.KILL_WORKER, chance.choice(INSIDE if index % 3 < 2 else OUTSIDE))
        for index in range(worker_kills)
    ]
    disruptions += [(Disruption.FREEZE_WORKER, chance.choice(INSIDE)) for _ in range(frozen)]
    chance.shuffle(disruptions)
    return disruptions


def is_aborted_on_purpose(seed: int, offsets: tuple[int, ...], *, share: float, attempt: int) -> bool:
    """Whether the worker aborts the transaction that ends at these offsets; only its first attempt."""
    return attempt == 0 and random.Random(f"abort {seed} {offsets}").random() < share


@attrs.frozen(kw_only=True)
class WorkerTask:
    """The task of a worker; `pauses` are the pairs (round, point), in order, at which it waits."""

    bootstrap: str
    seed: int
    records_per_transaction: int
    abort_share: float
    isolation_level: str = "read_committed"
    pauses: tuple[tuple[int, WorkerPoint], ...] = ()
    client_id: str = "worker"

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
