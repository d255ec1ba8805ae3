"""Where the blows fall, drawn from a seed as points of progress: which transaction, and how far into it.

Rule: nothing depends on time, so a seed means the same blows on a fast machine and on a slow one.
"""

from __future__ import annotations

import random
from enum import Enum

import attrs

RECORDS_PER_TRANSACTION_MAX = 400
ABORT_SHARE = 0.04  # of the transactions of a long run, on purpose
ABORTS = 4  # about so many at least in a short one


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
        """Whether the coordinator knows of an open transaction then."""
        return self in INSIDE


INSIDE = (WorkerPoint.HALF, WorkerPoint.PRODUCED, WorkerPoint.OFFSETS)
OUTSIDE = (WorkerPoint.READ, WorkerPoint.BEGUN, WorkerPoint.COMMITTED)


class Strike(Enum):
    """What happens at a point."""

    KILL_WORKER = "SIGKILL to the worker"
    KILL_BROKER = "SIGKILL to the broker"
    KILL_BROKER_AT_PREPARE = "SIGKILL to the broker between PREPARE and COMPLETE"
    FREEZE_WORKER = "SIGSTOP to the worker, a replacement takes over, then SIGCONT"


@attrs.frozen
class PlannedStrike:
    """One blow: in the `round`-th round of work (1 is the first), when it gets to `point`."""

    round: int
    strike: Strike = attrs.field(kw_only=True)
    point: WorkerPoint = attrs.field(kw_only=True)


@attrs.frozen
class StrikePlan:
    """All that a seed decides. Of `lose_every` answers to Produce one is lost, so producers send again."""

    seed: int
    flights: int = attrs.field(kw_only=True)
    records_per_transaction: int = attrs.field(kw_only=True)
    lose_every: int = attrs.field(kw_only=True)
    abort_share: float = attrs.field(kw_only=True)
    events: tuple[PlannedStrike, ...] = attrs.field(kw_only=True)

    def count(self, *blows: Strike) -> int:
        """How many events are of these kinds."""
        return sum(event.strike in blows for event in self.events)


class TooManyKills(ValueError):
    """The flights do not fill enough transactions for so many blows."""


def draw_plan(*, seed: int, flights: int, kills: int) -> StrikePlan:
    """Spreads `kills` over the run, and freezes beside them; TooManyKills when the run is too short."""
    chance = random.Random(f"blows {seed}")
    blows = draw_strikes(chance, kills)
    per_transaction = min(RECORDS_PER_TRANSACTION_MAX, flights // (2 * len(blows) + 4))
    if per_transaction < 1:
        raise TooManyKills(f"{kills} kills need at least {2 * len(blows) + 4} flights")
    rounds = flights // per_transaction
    # The last rounds stay free: aborted rounds are done again, but none is sure to follow the last.
    places = sorted(chance.sample(range(2, rounds * 9 // 10), len(blows)))
    events = (
        PlannedStrike(place, strike=blow, point=point)
        for place, (blow, point) in zip(places, blows, strict=True)
    )
    return StrikePlan(
        seed,
        flights=flights,
        records_per_transaction=per_transaction,
        lose_every=max(3, rounds // 40),
        abort_share=max(ABORT_SHARE, ABORTS / rounds),
        events=tuple(events),
    )


def draw_strikes(chance: random.Random, kills: int) -> list[tuple[Strike, WorkerPoint]]:
    """In random order: a fifth of the kills at the broker, two at least, but never more than half."""
    broker_kills = min(kills // 2, max(2, kills // 5))
    worker_kills = kills - broker_kills
    frozen = 0 if kills == 0 else 1 + kills // 5
    blows = [
        (Strike.KILL_BROKER_AT_PREPARE, WorkerPoint.OFFSETS)
        if index % 2 == 0
        else (Strike.KILL_BROKER, chance.choice(list(WorkerPoint)))
        for index in range(broker_kills)
    ]
    blows += [
        (Strike.KILL_WORKER, chance.choice(INSIDE if index % 3 < 2 else OUTSIDE))
        for index in range(worker_kills)
    ]
    blows += [(Strike.FREEZE_WORKER, chance.choice(INSIDE)) for _ in range(frozen)]
    chance.shuffle(blows)
    return blows


def is_aborted_on_purpose(seed: int, offsets: tuple[int, ...], *, share: float, attempt: int) -> bool:
    """Whether the worker gives up the transaction that ends at these offsets; its first attempt only."""
    return attempt == 0 and random.Random(f"abort {seed} {offsets}").random() < share
