"""The plan of a run: which process is killed or frozen in which transaction, and how far into it.

Rule: a plan names points of progress, not times, so a seed means the same run on fast and slow machines.
"""

from __future__ import annotations

import random
from enum import Enum

import attrs

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
    COMMITTED = "transaction committed, response received"

    @property
    def is_inside(self) -> bool:
        """Whether the coordinator has an open transaction at this point."""
        return self in INSIDE


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
    """Everything that a seed decides. One of `lose_every` responses to Produce is lost."""

    seed: int
    flights: int = attrs.field(kw_only=True)
    records_per_transaction: int = attrs.field(kw_only=True)
    lose_every: int = attrs.field(kw_only=True)
    abort_share: float = attrs.field(kw_only=True)
    events: tuple[PlannedDisruption, ...] = attrs.field(kw_only=True)

    def count(self, *kinds: Disruption) -> int:
        """How many events are of these kinds."""
        return sum(event.kind in kinds for event in self.events)


class TooManyKills(ValueError):
    """The flights do not fill enough transactions for this many kills."""


def draw_plan(*, seed: int, flights: int, kills: int) -> DisruptionPlan:
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
