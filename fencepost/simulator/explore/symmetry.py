"""Symmetry: worlds that differ only in which client is which count as one.

Rule: nothing is renamed. For each step the cores also take its mirror image, the same step with two
neighbouring clients exchanged; the results are images of each other.
"""

from __future__ import annotations

from fencepost.simulator.explore.connections import ClientConnections, LoopbackQueues, connection_of, whose
from fencepost.simulator.explore.steps import NO_MESSAGE, BrokerMove, ClientInput, ProcessMove, Steps
from fencepost.simulator.explore.worlds import BROKER, FIRST_CLIENT, INNER, World

Pairs = dict[int, int]


class Mirror:
    """The images of states and messages when two neighbouring clients are exchanged."""

    def __init__(self, steps: Steps, clients: int, first: int, root: World) -> None:
        self.steps, self.clients, self.first = steps, clients, first
        self.brokers: Pairs = {root[BROKER]: root[BROKER]}
        self.processes: Pairs = {}
        self.messages: Pairs = {NO_MESSAGE: NO_MESSAGE}
        self._wires: Pairs = {}
        self._inners: Pairs = {}
        for client in range(clients):
            at, image_at = _place(client), _place(self.client(client))
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
            self._inner(world[INNER]),
            *world[INNER + 1 : at],
            self.processes[other],
            self._wire(other_wires),
            self.processes[one],
            self._wire(its_wires),
            *world[at + 4 :],
        )

    # --- steps, each with its image

    def broker_moved(self, broker: int, connection: int, message: int, move: BrokerMove) -> None:
        """Take the image of a step of the broker."""
        image = self.steps.broker(self.brokers[broker], self.connection(connection), self.messages[message])
        _pair(self.brokers, move[0], image[0])
        for (where, posted), (image_where, other) in zip(move[1], image[1], strict=True):
            assert self.connection(where) == image_where, "a message's image goes to its destination's image"
            _pair(self.messages, posted, other)

    def process_moved(
        self, process: int, event: ClientInput, place: int, message: int, ways: tuple[ProcessMove, ...]
    ) -> None:
        """Take the image of a step of a client."""
        images = self.steps.process(self.processes[process], event, place, self.messages[message])
        for (after, sent), (image_after, image_sent) in zip(ways, images, strict=True):
            _pair(self.processes, after, image_after)
            for (where, question), (image_where, other) in zip(sent, image_sent, strict=True):
                assert where == image_where, "the image of a request uses the same connection"
                _pair(self.messages, question, other)

    # --- connections, which only hold messages

    def _wire(self, number: int) -> int:
        image = self._wires.get(number)
        if image is None:
            wires = self.steps.wires[number]
            lines = tuple(
                line._replace(outgoing=self._all(line.outgoing), incoming=self._all(line.incoming))
                for line in wires.lines
            )
            other = ClientConnections(lines, tuple(sorted(self._all(stray) for stray in wires.strays)))
            image = self._wires[number] = self.steps.wires.number(other, other)
        return image

    def _inner(self, number: int) -> int:
        image = self._inners.get(number)
        if image is None:
            inner = self.steps.inners[number]
            other = LoopbackQueues(self._all(inner.questions), self._all(inner.answers))
            image = self._inners[number] = self.steps.inners.number(other, other)
        return image

    def _all(self, messages: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.messages[message] for message in messages)


def _place(client: int) -> int:
    return FIRST_CLIENT + 2 * client


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
