"""A world as a tuple of numbers, every world that one step leads to, and the worlds that are its mirror
images.

Rule: the order of successors is part of a trace, so nothing here depends on hashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from fencepost.broker.contract import NODE
from fencepost.simulator.explore.broker import REPLIES_TO_SELF
from fencepost.simulator.explore.steps import (
    LOOPBACK,
    NO_MESSAGE,
    PLACES,
    STRAY,
    Connections,
    Move,
    Numbers,
    Steps,
    TransitionKind,
    connection_of,
    whose,
)

World = tuple[int, ...]
"""The broker, what it sent to itself, the crashes left; then for each client its state and its connections.
"""

BROKER: Final = 0
INNER: Final = 1
CRASHES: Final = 2
FIRST_CLIENT: Final = 3


class Transition(NamedTuple):
    """One step: the client, its connection, the message, and which way the script decided."""

    kind: TransitionKind
    client: int = -1
    place: int = 0
    message: int = NO_MESSAGE
    way: int = 0


Successor = tuple[Transition, World]

Delivery = tuple[Transition, int, int, int]
"""A message that reaches the broker: the connections after it, the connection number and the message."""


class ClientSuccessors(NamedTuple):
    """The steps that follow from one client's part of a world, whatever the rest is."""

    own: tuple[tuple[Transition, int, int], ...]
    """Steps of the client alone: its state and its connections after each."""
    requests: tuple[Delivery, ...]


class Worlds:
    """The successors of worlds with this number of `clients`."""

    __slots__ = ("_number_of", "_posted", "_successors", "_to_self", "clients", "steps")

    def __init__(self, steps: Steps, clients: int) -> None:
        self.steps = steps
        self.clients = clients
        self._number_of = steps.wires.number
        self._successors = cache(self._successors_of)
        self._to_self = cache(self._deliveries_to_self)
        self._posted = cache(self._connections_with)

    def after(self, world: World) -> Iterator[Successor]:
        """Every world that one step leads to, in a fixed order."""
        for client in range(self.clients):
            at = FIRST_CLIENT + 2 * client
            process, wires = world[at], world[at + 1]
            own, requests = self._successors(client, process, wires)
            head, tail = world[:at], world[at + 2 :]
            for action, after, left in own:
                yield action, (*head, after, left, *tail)
            for action, left, connection, message in requests:
                yield action, self._to_broker([*head, process, left, *tail], connection, message)
        for action, left, connection, message in self._to_self(world[INNER]):
            after_it = [world[BROKER], left, *world[INNER + 1 :]]
            yield action, self._to_broker(after_it, connection, message)
        if world[CRASHES]:
            yield Transition(TransitionKind.CRASH), self._crash(world)

    def _deliveries_to_self(self, number: int) -> tuple[Delivery, ...]:
        """The oldest request and the oldest reply of the node to itself."""
        wires, found = self.steps.wires[number], list[Delivery]()
        (line,) = wires.lines
        for message in line.outgoing[:1]:
            action = Transition(TransitionKind.REQUEST_TO_SELF, message=message)
            found.append((action, self._number_of(wires.delivered(0)), NODE, message))
        for message in line.incoming[:1]:
            action = Transition(TransitionKind.REPLY_TO_SELF, message=message)
            found.append((action, self._number_of(wires.heard(0)), REPLIES_TO_SELF, message))
        return tuple(found)

    # --- one client

    def _successors_of(self, client: int, process: int, number: int) -> ClientSuccessors:
        wires = self.steps.wires[number]
        return ClientSuccessors(
            own=tuple(self._own_steps(client, process, wires)), requests=tuple(self._requests(client, wires))
        )

    def _own_steps(
        self, client: int, number: int, wires: Connections
    ) -> Iterator[tuple[Transition, int, int]]:
        process = self.steps.processes[number]
        for place, line in enumerate(wires.lines):
            if line.incoming:
                action = Transition(TransitionKind.REPLY, client, place, line.incoming[0])
                yield from self._react(action, number, wires.heard(place))
            if line.is_broken:
                action = Transition(TransitionKind.BREAK, client, place)
                yield from self._react(action, number, wires.given_up(place))
            elif process.retries and process.awaits(PLACES[place]):
                action = Transition(TransitionKind.GIVE_UP, client, place)
                yield from self._react(action, number, wires.given_up(place))
        if process.pauses:
            yield from self._react(Transition(TransitionKind.WAKE, client), number, wires)

    def _react(
        self, action: Transition, process: int, left: Connections
    ) -> Iterator[tuple[Transition, int, int]]:
        ways = self.steps.process(process, action.kind, action.place, action.message)
        for way, (after, sent) in enumerate(ways):
            wires = left
            for place, message in sent:
                wires = wires.sent(place, message)
            yield action._replace(way=way), after, self._number_of(wires)

    def _requests(self, client: int, wires: Connections) -> Iterator[Delivery]:
        for place, line in enumerate(wires.lines):
            for message in line.outgoing[:1]:
                connection = connection_of(client, place, line.generation, self.clients)
                action = Transition(TransitionKind.REQUEST, client, place, message)
                yield action, self._number_of(wires.delivered(place)), connection, message
        for index, (message, *_) in enumerate(wires.strays):
            action = Transition(TransitionKind.STRAY, client, index, message)
            yield action, self._number_of(wires.strayed(index)), STRAY, message

    # --- the broker

    def _to_broker(self, after: list[int], connection: int, message: int) -> World:
        """Deliver a message to the broker; `after` is the world without that message."""
        after[BROKER], posted = self.steps.broker(after[BROKER], connection, message)
        for where, sent in posted:
            to_self = where in (NODE, REPLIES_TO_SELF)
            at = INNER if to_self else FIRST_CLIENT + 2 * whose(where, self.clients)[0] + 1
            after[at] = self._posted(after[at], where, sent)
        return tuple(after)

    def _connections_with(self, number: int, where: int, message: int) -> int:
        """Connections on which the broker has sent a message to a client or to itself."""
        wires = self.steps.wires[number]
        if where == NODE:
            return self._number_of(wires.sent(0, message))
        _, place, generation = (0, 0, 0) if where == REPLIES_TO_SELF else whose(where, self.clients)
        return self._number_of(wires.answered(place, generation, message))

    def _crash(self, world: World) -> World:
        # What the node had sent to itself dies with it.
        after = [world[BROKER], self._number_of(LOOPBACK), world[CRASHES] - 1, *world[FIRST_CLIENT:]]
        for at in range(FIRST_CLIENT + 1, len(world), 2):
            after[at] = self._number_of(self.steps.wires[world[at]].broken())
        return self._to_broker(after, STRAY, NO_MESSAGE)


# --- symmetry -----------------------------------------------------------------------------------------------
#
# Nothing is renamed. For each step the cores also take its mirror image, the same step with two neighbouring
# clients exchanged; the results are images of each other.

Pairs = dict[int, int]


class Mirror:
    """The images of states and messages when two neighbouring clients are exchanged."""

    def __init__(self, steps: Steps, clients: int, first: int, root: World) -> None:
        self.steps, self.clients, self.first = steps, clients, first
        self.brokers: Pairs = {root[BROKER]: root[BROKER]}
        self.processes: Pairs = {}
        self.messages: Pairs = {NO_MESSAGE: NO_MESSAGE}
        self._connections = cache(self._image_of)
        for client in range(clients):
            at, image_at = FIRST_CLIENT + 2 * client, FIRST_CLIENT + 2 * self.client(client)
            _pair(self.processes, root[at], root[image_at])
            lines = zip(steps.wires[root[at + 1]].lines, steps.wires[root[image_at + 1]].lines, strict=True)
            for line, image in lines:
                for message, other in zip(line.outgoing, image.outgoing, strict=True):
                    _pair(self.messages, message, other)

    def client(self, client: int) -> int:
        """The client that takes this one's place."""
        return {self.first: self.first + 1, self.first + 1: self.first}.get(client, client)

    def connection(self, connection: int) -> int:
        """The same connection of the client that takes the owner's place; the node's own stay."""
        if connection <= 0:
            return connection
        client, place, generation = whose(connection, self.clients)
        return connection_of(self.client(client), place, generation, self.clients)

    def world(self, world: World) -> World:
        """The image of a world."""
        at = FIRST_CLIENT + 2 * self.first
        one, its_wires, other, other_wires = world[at : at + 4]
        # Other clients do not depend on these two, so their states stay.
        return (
            self.brokers[world[BROKER]],
            self._connections(world[INNER]),
            *world[INNER + 1 : at],
            self.processes[other],
            self._connections(other_wires),
            self.processes[one],
            self._connections(its_wires),
            *world[at + 4 :],
        )

    def broker_moved(self, broker: int, connection: int, message: int, move: Move) -> None:
        image = self.steps.broker(self.brokers[broker], self.connection(connection), self.messages[message])
        _pair(self.brokers, move[0], image[0])
        for (where, posted), (image_where, other) in zip(move[1], image[1], strict=True):
            assert self.connection(where) == image_where, "a message's image goes to its destination's image"
            _pair(self.messages, posted, other)

    def process_moved(
        self, process: int, kind: TransitionKind, place: int, message: int, ways: tuple[Move, ...]
    ) -> None:
        """Take the image of a step of a client."""
        images = self.steps.process(self.processes[process], kind, place, self.messages[message])
        for (after, sent), (image_after, image_sent) in zip(ways, images, strict=True):
            _pair(self.processes, after, image_after)
            for (where, question), (image_where, other) in zip(sent, image_sent, strict=True):
                assert where == image_where, "the image of a request uses the same connection"
                _pair(self.messages, question, other)

    def _image_of(self, number: int) -> int:
        """The image of connections, which only hold messages."""
        wires = self.steps.wires[number]
        lines = tuple(
            line._replace(outgoing=self._images(line.outgoing), incoming=self._images(line.incoming))
            for line in wires.lines
        )
        strays = tuple(sorted(self._images(stray) for stray in wires.strays))
        return self.steps.wires.number(Connections(lines, strays))

    def _images(self, messages: Numbers) -> Numbers:
        return tuple(self.messages[message] for message in messages)


def _pair(pairs: Pairs, one: int, other: int) -> None:
    """Each is the image of the other and of nothing else; otherwise the cores treat clients differently."""
    assert pairs.setdefault(one, other) == other, "a state has one image"
    assert pairs.setdefault(other, one) == one, "a state has one image"


class Symmetry:
    """Chooses one of the worlds that differ only in which client is which."""

    def __init__(self, steps: Steps, clients: int, root: World) -> None:
        self.mirrors = [Mirror(steps, clients, first, root) for first in range(clients - 1)]
        steps.mirrors.extend(self.mirrors)

    def canonical(self, world: World) -> World:
        """The smallest of the worlds that exchanging clients leads to."""
        match self.mirrors:
            case []:
                return world
            case [mirror]:
                # Two clients, the usual case: one mirror, and no search of an orbit.
                return min(world, mirror.world(world))
            case _:
                return self._least(world)

    def _least(self, world: World) -> World:
        orbit = {world: None}
        todo = [world]
        while todo:
            one = todo.pop()
            for mirror in self.mirrors:
                image = mirror.world(one)
                if image not in orbit:
                    orbit[image] = None
                    todo.append(image)
        return min(orbit)
