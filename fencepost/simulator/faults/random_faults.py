"""Faults that strike at random: each kind with how it is done and how it is undone.

Rule: a fault only does what could happen to a real cluster, and whatever it did is undone when all must be
well again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import attrs

from fencepost.broker.cluster.controller import METADATA_PARTITION
from fencepost.broker.host import SyncPolicy
from fencepost.journal.simulated import APPEND, SYNC
from fencepost.protocol.messages import ReplyBody, Request
from fencepost.simulator.faults.kinds import ENDS, FaultKind, Struck
from fencepost.simulator.faults.message_trap import ANSWERS, REQUESTS, MessageTrap
from fencepost.simulator.world.clock import NS_PER_MS
from fencepost.simulator.world.events import FaultEnded, FaultStruck, NodeKilled
from fencepost.simulator.world.network import SimulatedConnection
from fencepost.simulator.world.nodes import Death, SimulatedNode, led_by
from fencepost.simulator.world.processes import ClientProcess
from fencepost.simulator.world.world import World

Undo = Callable[[], None]
Able = TypeVar("Able", bound=SimulatedNode | ClientProcess)


class Done(NamedTuple):
    """A fault that strikes: whom or what, and how it is undone. `whom` is None while it lies in wait, and is
    told when it strikes; `do` is what others see at once, done when the fault has been told.
    """

    whom: str | None
    undo: Undo
    do: Undo = lambda: None


DURATIONS_MS: Final = (1, 5, 20, 50, 120, 300, 700, 1_700)
LATE_MS: Final = (120, 150, 200, 300, 700, 1_700)  # long enough to have asked again
SLOWNESS: Final = (5, 20, 100)
JUMPS_MS: Final = (50, 400, 3_000, -20, -300, 70_000)
THINGS_BEFORE_DEATH: Final = 12
WRITES_BEFORE_DEATH: Final = 4


DEATHS: Final = {
    FaultKind.CRASH: (Death.ANYWHERE, Death.BEFORE_A_WRITE),
    FaultKind.POWER_LOSS: (Death.ANYWHERE, Death.BEHIND_A_WRITE, Death.BEHIND_A_WRITE),
}


@attrs.define(eq=False)
class Nemesis:
    """Strikes `strikes_left` times, about every `pause` nanoseconds, with the kinds that it was given; it
    `is_over` when the last strike has had its time too.
    """

    world: World
    kinds: tuple[FaultKind, ...]
    strikes_left: int
    pause: int
    respawn: Callable[[str], None]
    hunted: Callable[[], list[ClientProcess]] = list[ClientProcess]
    """Whom a fault of processes strikes every other time, if they live."""
    requests: tuple[type[Request], ...] = REQUESTS  # those that may be late
    answers: tuple[type[ReplyBody], ...] = ANSWERS  # those that may be lost
    is_over: bool = True
    undos: dict[int, tuple[Undo, Struck | None]] = attrs.Factory(dict[int, tuple[Undo, Struck | None]])
    made: int = 0
    struck: list[Struck] = attrs.Factory(list[Struck])
    doomed: dict[str, FaultKind] = attrs.Factory(dict[str, FaultKind])  # nodes about to die, and of what

    def start(self) -> None:
        """From now on."""
        if self.kinds and self.strikes_left:
            self.is_over = False
            self.world.events.subscribe(NodeKilled, self._died)
            self._plan_next()

    def _plan_next(self) -> None:
        world = self.world
        world.at(world.now + self.pause * (1 + world.choices.below(16)) // 8, self._strike)

    def _strike(self, _: object) -> None:
        if self.strikes_left == 0:
            self.is_over = True
            return
        self.strikes_left -= 1
        kind = self.world.choices.one_of(self.kinds)
        done = _STRIKES[kind](self)
        if done is not None and done.whom is not None:
            struck = self.tell(kind, done.whom)
            done.do()
            self.undo_later(done.undo, struck)
        elif done is not None:
            self._keep(done.undo)
        self._plan_next()

    def tell(self, kind: FaultKind, whom: str) -> Struck:
        """A fault struck now."""
        self.world.marks[f"fault: {kind.value}"] += 1
        struck = Struck(at=self.world.now, kind=kind, whom=whom)
        self.struck.append(struck)
        self.world.events.publish(FaultStruck("", f"{kind.value}: {whom}"))
        return struck

    def _died(self, killed: NodeKilled) -> None:
        node = killed.node
        kind = self.doomed.pop(node.participant, None)
        if kind is not None:
            self.undo_later(lambda: _start_again(node), self.tell(kind, node.participant))

    def _keep(self, undo: Undo, struck: Struck | None = None) -> int:
        """What lies in wait is only undone when all is healed; the rest may be earlier, by this number."""
        self.made += 1
        self.undos[self.made] = (undo, struck)
        return self.made

    def undo_later(self, undo: Undo, struck: Struck, durations_ms: tuple[int, ...] = DURATIONS_MS) -> None:
        """After one of these times, or when all is healed."""
        world, number = self.world, self._keep(undo, struck)
        world.at(world.now + world.choices.one_of(durations_ms) * NS_PER_MS, self._undo, number)

    def _undo(self, number: int) -> None:
        undo, struck = self.undos.pop(number, (_nothing, None))
        if struck is not None and struck.kind in ENDS:
            self.world.events.publish(FaultEnded("", f"{ENDS[struck.kind]}: {struck.whom}"))
        undo()

    def heal(self) -> None:
        """No more strikes, and every effect is undone."""
        self.strikes_left, self.is_over = 0, True
        while self.undos:
            self._undo(next(iter(self.undos)))
        for node in self.world.nodes:
            node.dies_in = None
        self.doomed.clear()


def _nothing() -> None:
    """A fault that is over at once has nothing to undo."""


# --- the network --------------------------------------------------------------------------------------------


def _drop(nemesis: Nemesis) -> Done | None:
    world = nemesis.world
    connections = list(world.network.connections.values())
    if not connections:
        return None
    connection = world.choices.one_of(connections)
    return Done(_named(connection), _nothing, lambda: world.network.reset(connection))


def _named(connection: SimulatedConnection) -> str:
    return f"{connection.caller.participant} and {connection.server.participant}"


def _lose_answer(nemesis: Nemesis) -> Done | None:
    """As soon as it is on its way."""
    awaited = nemesis.world.choices.one_of(nemesis.answers)

    def strike(connection: SimulatedConnection) -> None:
        nemesis.tell(FaultKind.LOST_ANSWER, f"{awaited.__name__} to {connection.caller.participant}")
        nemesis.world.network.reset(connection)

    ambush = MessageTrap(nemesis.world, awaited, strike)
    ambush.lie_in_wait()
    return Done(None, ambush.leave)


def _delay_request(nemesis: Nemesis) -> Done | None:
    """Whoever asked takes it for lost and asks again elsewhere; then the first one arrives."""
    network = nemesis.world.network
    awaited = nemesis.world.choices.one_of(nemesis.requests)

    def strike(connection: SimulatedConnection) -> None:
        struck = nemesis.tell(
            FaultKind.LATE_REQUEST, f"{awaited.__name__} of {connection.caller.participant}"
        )
        network.hold(connection.to_server)
        nemesis.undo_later(lambda: network.release(connection.to_server), struck, LATE_MS)
        connection.caller.lost(connection)
        network.give_up(connection)

    ambush = MessageTrap(nemesis.world, awaited, strike)
    ambush.lie_in_wait()
    return Done(None, ambush.leave)


def _hold(nemesis: Nemesis) -> Done | None:
    """Everything of one direction of one connection stops."""
    world = nemesis.world
    connections = list(world.network.connections.values())
    if not connections:
        return None
    connection = world.choices.one_of(connections)
    channel = world.choices.one_of((connection.to_caller, connection.to_server))
    world.network.hold(channel)
    return Done(f"{channel.source} to {channel.target}", lambda: world.network.release(channel))


def _participants(world: World) -> list[str]:
    return [node.participant for node in world.nodes] + [
        p.participant for p in world.processes if not p.is_over
    ]


def _partition(nemesis: Nemesis) -> Done | None:
    world = nemesis.world
    one, other = world.choices.one_of(_participants(world)), world.choices.one_of(_participants(world))
    pairs = ((one, other), (other, one)) if world.choices.below(2) else ((one, other),)
    words = f"{one} to {other}" if len(pairs) == 1 else f"{one} and {other}"
    return Done(words, _block(world, pairs)) if one != other else None


def _isolate(nemesis: Nemesis) -> Done | None:
    world = nemesis.world
    participant = world.choices.one_of(world.nodes).participant
    others = [other for other in _participants(world) if other != participant]
    pairs = tuple(pair for other in others for pair in ((participant, other), (other, participant)))
    return Done(participant, _block(world, pairs))


def _block(world: World, pairs: tuple[tuple[str, str], ...]) -> Undo:
    fresh = tuple(pair for pair in pairs if pair not in world.network.blocked)
    world.network.blocked.update(fresh)
    return lambda: world.network.unblock(fresh)


# --- nodes and processes ------------------------------------------------------------------------------------


def _up(world: World) -> list[SimulatedNode]:
    return [node for node in world.nodes if node.host is not None and not node.is_paused]


def _victim(nemesis: Nemesis, able: list[Able]) -> Able:
    choices, participants = nemesis.world.choices, {process.participant for process in nemesis.hunted()}
    favoured = [each for each in able if each.participant in participants]
    return choices.one_of(favoured if favoured and choices.happens(500) else able)


def _pause(nemesis: Nemesis) -> Done | None:
    world = nemesis.world
    able = [*_up(world), *(p for p in world.processes if not p.is_over and not p.is_paused)]
    if not able:
        return None
    chosen = _victim(nemesis, able)
    chosen.pause()
    return Done(chosen.participant, chosen.resume)


def _crash(nemesis: Nemesis, kind: FaultKind = FaultKind.CRASH) -> Done | None:
    """Not at once, but some things later: most deaths find a node in the middle of something."""
    world = nemesis.world
    able = [node for node in _up(world) if node.participant not in nemesis.doomed]
    if not able:
        return None
    node = world.choices.one_of(able)
    node.loses_power = kind is FaultKind.POWER_LOSS
    node.death = world.choices.one_of(DEATHS[kind])
    is_anywhere = node.death is Death.ANYWHERE
    node.dies_in = world.choices.below(THINGS_BEFORE_DEATH if is_anywhere else WRITES_BEFORE_DEATH)
    nemesis.doomed[node.participant] = kind
    return Done(None, _nothing)


def _start_again(node: SimulatedNode) -> None:
    if node.host is None:
        node.start()


def _lose_power(nemesis: Nemesis) -> Done | None:
    return _crash(nemesis, FaultKind.POWER_LOSS)


def _fail_over(nemesis: Nemesis) -> Done | None:
    world = nemesis.world
    able = [node for node in _up(world) if node is not world.nodes[0]]
    if not able or world.nodes[0].host is None:
        return None
    node = world.choices.one_of(able)
    assert node.host is not None, "a node that is up has a host"
    led = led_by(node.host)

    def do() -> None:
        nemesis.doomed.pop(node.participant, None)  # this death has another reason
        node.kill()
        for key in led:
            world.move(key, world.choices.one_of(world.nodes).settings.node_id)

    return Done(node.participant, lambda: _start_again(node), do)


def _move(nemesis: Nemesis) -> Done | None:
    world = nemesis.world
    able = [key for node in _up(world) if node.host is not None for key in led_by(node.host)]
    able = [key for key in able if key != METADATA_PARTITION]
    if not able or world.nodes[0].host is None or len(world.nodes) == 1:
        return None
    key, heir = world.choices.one_of(able), world.choices.one_of(world.nodes)
    return Done(f"{key} to {heir.participant}", _nothing, lambda: world.move(key, heir.settings.node_id))


def _kill(nemesis: Nemesis) -> Done | None:
    world = nemesis.world
    able = [process for process in world.processes if not process.is_over]
    if not able:
        return None
    process = _victim(nemesis, able)
    return Done(process.participant, lambda: nemesis.respawn(process.participant), process.kill)


def _jump(nemesis: Nemesis) -> Done | None:
    world = nemesis.world
    chosen = world.choices.one_of([*world.nodes, *(p for p in world.processes if not p.is_over)])
    jump_ms = world.choices.one_of(JUMPS_MS)

    def do() -> None:
        chosen.clock.offset_ns += jump_ms * NS_PER_MS
        chosen.look_at_clock()

    return Done(f"{chosen.participant} by {jump_ms} ms", _nothing, do)


def _slow(nemesis: Nemesis) -> Done | None:
    world = nemesis.world
    disks = [] if world.settings.policy is SyncPolicy.NONE else [node.disk for node in world.nodes]
    slow = world.choices.one_of([*_participants(world), *disks])
    if slow in world.speeds:
        return None
    world.speeds[slow] = world.choices.one_of(SLOWNESS)
    return Done(f"{slow} by {world.speeds[slow]} times", lambda: world.speeds.__delitem__(slow))


def _break_disk(nemesis: Nemesis) -> Done | None:
    world = nemesis.world
    able = sorted(key for key in world.journals.disks if key != METADATA_PARTITION)
    if not able:
        return None
    broken = (world.choices.one_of((SYNC, APPEND)), str(world.choices.one_of(able)))
    if broken in world.broken_disks:
        return None
    world.broken_disks.add(broken)
    return Done(" of ".join(broken), lambda: world.broken_disks.discard(broken))


_STRIKES: Final[dict[FaultKind, Callable[[Nemesis], Done | None]]] = {
    FaultKind.DROP: _drop,
    FaultKind.LOST_ANSWER: _lose_answer,
    FaultKind.LATE_REQUEST: _delay_request,
    FaultKind.HOLD: _hold,
    FaultKind.PARTITION: _partition,
    FaultKind.ISOLATION: _isolate,
    FaultKind.PAUSE: _pause,
    FaultKind.CRASH: _crash,
    FaultKind.POWER_LOSS: _lose_power,
    FaultKind.FAILOVER: _fail_over,
    FaultKind.MOVE: _move,
    FaultKind.CLOCK_JUMP: _jump,
    FaultKind.SLOW: _slow,
    FaultKind.DISK: _break_disk,
    FaultKind.KILL: _kill,
}
