"""A world as a tuple of numbers, and every world that one step leads to.

Rule: the order of successors is part of a trace, so nothing here depends on hashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

import attrs

from fencepost.broker.contract import NODE
from fencepost.simulator.explore.broker import ANSWERS
from fencepost.simulator.explore.connections import (
    PLACES,
    ClientConnections,
    LoopbackQueues,
    connection_of,
    whose,
)
from fencepost.simulator.explore.steps import NO_MESSAGE, STRAY, ClientInput, Routed, Steps

World = tuple[int, ...]
"""The broker, what it sent to itself, the crashes left; then for each client its state and its connections.
"""

BROKER: Final = 0
INNER: Final = 1
CRASHES: Final = 2
FIRST_CLIENT: Final = 3


class TransitionKind(Enum):
    """The kinds of steps."""

    REQUEST = "a request arrives"
    STRAY = "a request of a connection that was given up arrives"
    ANSWER = "an answer arrives"
    GIVE_UP = "a client gives up its connection"
    BREAK = "a client learns that its connection broke"
    WAKE = "a pause is over"
    ASK_SELF = "the broker hears what it asked itself"
    ANSWER_SELF = "the broker hears what it answered itself"
    CRASH = "the broker dies and starts again"


class Transition(NamedTuple):
    """One step: the client, its connection, the message, and which way the script decided."""

    kind: TransitionKind
    client: int = -1
    place: int = 0
    message: int = NO_MESSAGE
    way: int = 0


Successor = tuple[Transition, World]


@attrs.frozen
class ClientSuccessors:
    """The steps that follow from one client's part of a world, whatever the rest is."""

    own: tuple[tuple[Transition, int, int], ...]
    """Steps of the client alone: its state and its connections after each."""
    requests: tuple[tuple[Transition, int, int, int], ...]
    """Requests that reach the broker: the connections after each, the connection number and the message."""


class Worlds:
    """The successors of worlds with this number of `clients`."""

    __slots__ = ("_inner", "_routes", "_ways", "clients", "steps")

    def __init__(self, steps: Steps, clients: int) -> None:
        self.steps = steps
        self.clients = clients
        self._ways: dict[tuple[int, int, int], ClientSuccessors] = {}
        self._inner: dict[int, tuple[tuple[Transition, int, int, int], ...]] = {}
        self._routes: dict[tuple[int, int, int], int] = {}

    def after(self, world: World) -> Iterator[Successor]:
        """Every world that one step leads to, in a fixed order."""
        for client in range(self.clients):
            at = FIRST_CLIENT + 2 * client
            process, wires = world[at], world[at + 1]
            ways = self._ways.get((client, process, wires))
            if ways is None:
                ways = self._ways[client, process, wires] = self._ways_of(client, process, wires)
            head, tail = world[:at], world[at + 2 :]
            for action, after, left in ways.own:
                yield action, (*head, after, left, *tail)
            for action, left, connection, message in ways.requests:
                yield action, self._to_broker([*head, process, left, *tail], connection, message)
        inner = self._inner.get(world[INNER])
        if inner is None:
            inner = self._inner[world[INNER]] = tuple(self._ways_inside(world[INNER]))
        for action, left, where, message in inner:
            yield action, self._to_broker([world[BROKER], left, *world[INNER + 1 :]], where, message)
        if world[CRASHES]:
            yield Transition(TransitionKind.CRASH), self._crash(world)

    def _ways_inside(self, number: int) -> Iterator[tuple[Transition, int, int, int]]:
        """The oldest request and the oldest reply of the node to itself."""
        inner = self.steps.inners[number]
        if inner.questions:
            message, left = inner.questions[0], inner._replace(questions=inner.questions[1:])
            yield Transition(TransitionKind.ASK_SELF, message=message), self._number_of(left), NODE, message
        if inner.answers:
            message, left = inner.answers[0], inner._replace(answers=inner.answers[1:])
            yield (
                Transition(TransitionKind.ANSWER_SELF, message=message),
                self._number_of(left),
                ANSWERS,
                message,
            )

    # --- one client

    def _ways_of(self, client: int, process: int, number: int) -> ClientSuccessors:
        wires = self.steps.wires[number]
        return ClientSuccessors(
            own=tuple(self._own_ways(client, process, wires)), requests=tuple(self._requests(client, wires))
        )

    def _own_ways(
        self, client: int, number: int, wires: ClientConnections
    ) -> Iterator[tuple[Transition, int, int]]:
        process = self.steps.processes[number]
        for place, line in enumerate(wires.lines):
            if line.incoming:
                action = Transition(TransitionKind.ANSWER, client, place, line.incoming[0])
                yield from self._react(action, number, ClientInput.HEARS, wires.heard(place))
            if line.is_broken:
                left = wires.given_up(place)
                yield from self._react(
                    Transition(TransitionKind.BREAK, client, place), number, ClientInput.LOSES, left
                )
            elif process.retries and process.awaits(PLACES[place]):
                left = wires.given_up(place)
                yield from self._react(
                    Transition(TransitionKind.GIVE_UP, client, place), number, ClientInput.GIVES_UP, left
                )
        if process.pauses:
            yield from self._react(Transition(TransitionKind.WAKE, client), number, ClientInput.WAKES, wires)

    def _react(
        self, action: Transition, process: int, event: ClientInput, left: ClientConnections
    ) -> Iterator[tuple[Transition, int, int]]:
        for way, (after, sent) in enumerate(self.steps.process(process, event, action.place, action.message)):
            taken = action._replace(way=way) if way else action
            yield taken, after, self._number_of(left.sent(sent) if sent else left)

    def _requests(self, client: int, wires: ClientConnections) -> Iterator[tuple[Transition, int, int, int]]:
        for place, line in enumerate(wires.lines):
            if line.outgoing:
                message, left = line.outgoing[0], self._number_of(wires.delivered(place))
                connection = connection_of(client, place, line.generation, self.clients)
                yield Transition(TransitionKind.REQUEST, client, place, message), left, connection, message
        for index, stray in enumerate(wires.strays):
            left = self._number_of(wires.strayed(index))
            yield Transition(TransitionKind.STRAY, client, index, stray[0]), left, STRAY, stray[0]

    # --- the broker

    def _to_broker(self, after: list[int], connection: int, message: int) -> World:
        """Deliver a message to the broker; `after` is the world without that message."""
        after[BROKER], posted = self.steps.broker(after[BROKER], connection, message)
        self._post(after, posted)
        return tuple(after)

    def _post(self, after: list[int], posted: tuple[Routed, ...]) -> None:
        """Queue what the broker sent to clients and to itself."""
        for where, message in posted:
            at = INNER if where in (NODE, ANSWERS) else FIRST_CLIENT + 2 * whose(where, self.clients)[0] + 1
            key = (after[at], where, message)
            left = self._routes.get(key)
            if left is None:
                left = self._routes[key] = self._posted(*key)
            after[at] = left

    def _posted(self, number: int, where: int, message: int) -> int:
        if where == NODE:
            inner = self.steps.inners[number]
            return self._number_of(inner._replace(questions=(*inner.questions, message)))
        if where == ANSWERS:
            inner = self.steps.inners[number]
            return self._number_of(inner._replace(answers=(*inner.answers, message)))
        _, place, generation = whose(where, self.clients)
        return self._number_of(self.steps.wires[number].answered(place, generation, message))

    def _crash(self, world: World) -> World:
        broker, posted = self.steps.broker(world[BROKER], STRAY, NO_MESSAGE)
        after = [broker, self._number_of(LoopbackQueues()), world[CRASHES] - 1, *world[FIRST_CLIENT:]]
        for at in range(FIRST_CLIENT + 1, len(world), 2):
            after[at] = self._number_of(self.steps.wires[world[at]].broken())
        self._post(after, posted)
        return tuple(after)

    def _number_of(self, what: ClientConnections | LoopbackQueues) -> int:
        if isinstance(what, ClientConnections):
            return self.steps.wires.number(what, what)
        return self.steps.inners.number(what, what)
