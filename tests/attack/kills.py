"""Kills of the broker and of its client, at moments that the client's progress and chance decide."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

from tests.attack.attacks import Attack
from tests.attack.scene import PLAIN, BrokerOptions, Scene

DEFAULT_POLICY = "none"
POLICIES = (DEFAULT_POLICY, "commit", "all")
TRANSACTIONS_MAX = 4  # of the canary between two kills


async def kill_broker(scene: Scene) -> None:
    """SIGKILL, and another process on the same directory."""
    await scene.restart(signal.SIGKILL)


async def kill_canary(scene: Scene) -> None:
    """SIGKILL, and another client with the same transactional id."""
    await scene.canary.kill()
    await scene.canary.start()


async def kill_both(scene: Scene) -> None:
    """The client first, so that nobody ends its transaction before the broker dies, too."""
    await scene.canary.kill()
    await scene.restart(signal.SIGKILL)
    await scene.canary.start()


KINDS: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "broker": kill_broker,
    "client": kill_canary,
    "both": kill_both,
}


async def kills(scene: Scene, count: int) -> None:
    """So many kills, each after some progress and at some point in the middle of a transaction."""
    done = dict.fromkeys(KINDS, 0)
    for _ in range(count):
        kind = scene.chance.choice(list(KINDS))
        await scene.canary.meanwhile(scene.chance.randint(1, TRANSACTIONS_MAX))
        await scene.canary.lines(scene.chance.randint(0, 3))
        await KINDS[kind](scene)
        done[kind] += 1
    scene.figures |= {f"kills of {kind}": times for kind, times in done.items()}
    scene.figures["unknown outcomes"] = scene.canary.unknown


async def some_kills(scene: Scene) -> None:
    """As many as an attack has."""
    await kills(scene, scene.scaled(1, 15))


ATTACKS: tuple[Attack, ...] = tuple(
    Attack(
        name=f"kills, sync {policy}",
        does="SIGKILL to the broker, its client, or both",
        act=some_kills,
        options=PLAIN if policy == DEFAULT_POLICY else BrokerOptions(arguments=("--sync", policy)),
        is_restarted=True,
    )
    for policy in POLICIES
)
