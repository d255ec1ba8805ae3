"""A world as a tuple of numbers, and every way in which it can go on.

Rule: the order of the ways is part of a trace; nothing here depends on how anything is hashed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from fencepost.broker.words import NODE
from fencepost.simulator.exploring.broker import ANSWERS
from fencepost.simulator.exploring.steps import NO_MESSAGE, PLACES, STRAY, Event, ProcessMove, Steps
from fencepost.simulator.exploring.wires import Inner, Wires

World = tuple[int, ...]
"""The broker, what it has sent to itself, the crashes left; then for each client its process and its wires.
"""

BROKER: Final = 0
INNER: Final = 1
CRASHES: Final = 2
FIRST_CLIENT: Final = 3


class Kind(Enum):
    """What can happen next in a world."""

    REQUEST = "a request arrives"
    STRAY = "a request of a connection that was given up arrives"
    ANSWER = "an answer arrives"
    GIVE_UP = "a client gives up its connection"
    BREAK = "a client learns that its connection broke"
    WAKE = "a pause is over"
    ASK_SELF = "the broker hears what it asked itself"
    ANSWER_SELF = "the broker hears what it answered itself"
    CRASH = "the broker dies and starts again"


class Action(NamedTuple):
    """One step of a world: who, on which of its connections, which message, and which way it decided."""

    kind: Kind
    client: int = -1
    place: int = 0
    message: int = NO_MESSAGE
    way: int = 0


Way = tuple[Action, World]


class Worlds:
    """What follows from what. `clients` is how many there are."""

    __slots__ = ("clients", "steps")

    def __init__(self, steps: Steps, clients: int) -> None:
        self.steps = steps
        self.clients = clients

    def after(self, world: World) -> Iterator[Way]:
        """Every world that one step leads to."""
        for client in range(self.clients):
            yield from self._of_client(world, client)
        inner = self.steps.inners[world[INNER]]
        if inner.questions:
            message = inner.questions[0]
            rest = self._put(world, INNER, self._inner(inner._replace(questions=inner.questions[1:])))
            yield Action(Kind.ASK_SELF, message=message), self._to_broker(rest, NODE, message)
        if inner.answers:
            message = inner.answers[0]
            rest = self._put(world, INNER, self._inner(inner._replace(answers=inner.answers[1:])))
            yield Action(Kind.ANSWER_SELF, message=message), self._to_broker(rest, ANSWERS, message)
        if world[CRASHES]:
            yield Action(Kind.CRASH), self._crash(world)

    # --- one client

    def _of_client(self, world: World, client: int) -> Iterator[Way]:
        at = FIRST_CLIENT + 2 * client
        steps, wires = self.steps, self.steps.wires[world[at + 1]]
        process = steps.processes[world[at]]
        for place, line in enumerate(wires.lines):
            if line.outgoing:
                message = line.outgoing[0]
                rest = self._put(world, at + 1, self._wires(wires.delivered(place)))
                connection = self.connection(client, place, line.generation)
                yield Action(Kind.REQUEST, client, place, message), self._to_broker(rest, connection, message)
            if line.incoming:
                message, left = line.incoming[0], wires.heard(place)
                ways = steps.process(world[at], Event.HEARS, place, message)
                yield from self._ways(Action(Kind.ANSWER, client, place, message), world, ways, left)
            if line.is_broken:
                ways = steps.process(world[at], Event.LOSES, place, NO_MESSAGE)
                yield from self._ways(Action(Kind.BREAK, client, place), world, ways, wires.given_up(place))
            elif process.retries and process.awaits(PLACES[place]):
                ways = steps.process(world[at], Event.GIVES_UP, place, NO_MESSAGE)
                yield from self._ways(Action(Kind.GIVE_UP, client, place), world, ways, wires.given_up(place))
        for index, stray in enumerate(wires.strays):
            rest = self._put(world, at + 1, self._wires(wires.strayed(index)))
            yield (Action(Kind.STRAY, client, index, stray[0]), self._to_broker(rest, STRAY, stray[0]))
        if process.wakes_at is not None:
            ways = steps.process(world[at], Event.WAKES, 0, NO_MESSAGE)
            yield from self._ways(Action(Kind.WAKE, client), world, ways, wires)

    def _ways(
        self, action: Action, world: World, ways: tuple[ProcessMove, ...], wires: Wires
    ) -> Iterator[Way]:
        at = FIRST_CLIENT + 2 * action.client
        for way, (process, sent) in enumerate(ways):
            after = self._wires(wires.sent(sent) if sent else wires)
            yield action._replace(way=way), (*world[:at], process, after, *world[at + 2 :])

    # --- the broker

    def connection(self, client: int, place: int, generation: int) -> int:
        """The broker's number for a connection of a client."""
        return 1 + (generation * self.clients + client) * len(PLACES) + place

    def whose(self, connection: int) -> tuple[int, int, int]:
        """The client, the place and the generation of a connection."""
        rest, place = divmod(connection - 1, len(PLACES))
        generation, client = divmod(rest, self.clients)
        return client, place, generation

    def _to_broker(self, world: World, connection: int, message: int) -> World:
        broker, posted = self.steps.broker(world[BROKER], connection, message)
        after = self._put(world, BROKER, broker)
        for where, answer in posted:
            after = self._route(after, where, answer)
        return after

    def _route(self, world: World, where: int, message: int) -> World:
        if where in (NODE, ANSWERS):
            inner = self.steps.inners[world[INNER]]
            if where == NODE:
                inner = inner._replace(questions=(*inner.questions, message))
            else:
                inner = inner._replace(answers=(*inner.answers, message))
            return self._put(world, INNER, self._inner(inner))
        client, place, generation = self.whose(where)
        at = FIRST_CLIENT + 2 * client + 1
        wires = self.steps.wires[world[at]].answered(place, generation, message)
        return self._put(world, at, self._wires(wires))

    def _crash(self, world: World) -> World:
        broker, posted = self.steps.broker(world[BROKER], STRAY, NO_MESSAGE)
        after = [broker, self._inner(Inner()), world[CRASHES] - 1, *world[FIRST_CLIENT:]]
        for at in range(FIRST_CLIENT + 1, len(world), 2):
            after[at] = self._wires(self.steps.wires[world[at]].broken())
        crashed = tuple(after)
        for where, message in posted:
            crashed = self._route(crashed, where, message)
        return crashed

    # --- numbers

    def _put(self, world: World, at: int, number: int) -> World:
        return (*world[:at], number, *world[at + 1 :])

    def _wires(self, wires: Wires) -> int:
        return self.steps.wires.number(wires, wires)

    def _inner(self, inner: Inner) -> int:
        return self.steps.inners.number(inner, inner)
