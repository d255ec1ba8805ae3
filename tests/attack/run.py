"""All attacks, in the order in which they are played."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tests.attack import amplifiers, disks, frames, kafka_frames, kills, peers, races, unfolding
from tests.attack.attacks import Attack, Row
from tests.attack.playing import Run, play
from tests.attack.scene import PLAIN

ATTACKS: tuple[Attack, ...] = (
    *disks.ATTACKS,
    *frames.ATTACKS,
    *amplifiers.ATTACKS,
    *kafka_frames.ATTACKS,
    *unfolding.ATTACKS,
    *peers.ATTACKS,
    *kills.ATTACKS,
    *races.ATTACKS,
)

Tell = Callable[[Row], None]


def attacks_named(names: Sequence[str]) -> list[Attack]:
    """The attacks whose names begin so; all without names. ValueError if there is none."""
    found = [attack for attack in ATTACKS if attack.name.startswith(tuple(names) or "")]
    if not found:
        raise ValueError(
            f"no attack is called {', '.join(names)}: {', '.join(each.name for each in ATTACKS)}"
        )
    return found


def scenes(attacks: Sequence[Attack], *, shared: bool) -> Iterator[list[Attack]]:
    """Attacks that are played on one broker: each alone, or all that need no broker of their own together."""
    together = [attack for attack in attacks if shared and attack.options == PLAIN]
    if together:
        yield together
    yield from ([attack] for attack in attacks if attack not in together)


async def perform(attacks: Sequence[Attack], run: Run, tell: Tell) -> list[Row]:
    """Plays all of them, and tells each row as soon as it is there."""
    rows: list[Row] = []
    for scene in scenes(attacks, shared=run.is_quick):
        for row in await play(scene, run):
            rows.append(row)
            tell(row)
    return rows
