"""The connections of one client to the broker, as values: the messages in flight, in both directions.

Rule: a connection is first in, first out. A client that gives up a connection opens a new one and never hears
from the old one again; requests that it sent there may still arrive, at any later time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fencepost.client.metadata import FIRST_BOOTSTRAP_NODE

NODE_ID: Final = 1

Numbers = tuple[int, ...]
"""Numbers of messages, oldest first."""


class ConnectionQueues(NamedTuple):
    """The current connection of a client to a node: its messages in both directions. `generation` counts the
    connections before it.
    """

    generation: int = 0
    is_broken: bool = False
    outgoing: Numbers = ()
    incoming: Numbers = ()


class ClientConnections(NamedTuple):
    """The connections of one client, one for each address it knows, and the requests left on those it gave
    up.
    """

    lines: tuple[ConnectionQueues, ...]
    strays: tuple[Numbers, ...] = ()

    def sent(self, messages: tuple[tuple[int, int], ...]) -> ClientConnections:
        """With these requests (place, message) sent to the broker."""
        lines = list(self.lines)
        for place, message in messages:
            line = lines[place]
            lines[place] = line._replace(outgoing=(*line.outgoing, message))
        return ClientConnections(tuple(lines), self.strays)

    def answered(self, place: int, generation: int, message: int) -> ClientConnections:
        """With a reply sent to the client, if that connection still exists."""
        line = self.lines[place]
        if line.generation != generation or line.is_broken:
            return self
        return self._with(place, line._replace(incoming=(*line.incoming, message)))

    def delivered(self, place: int) -> ClientConnections:
        """The oldest request of a connection has arrived."""
        line = self.lines[place]
        return self._with(place, line._replace(outgoing=line.outgoing[1:]))

    def heard(self, place: int) -> ClientConnections:
        """The oldest reply of a connection has arrived."""
        line = self.lines[place]
        return self._with(place, line._replace(incoming=line.incoming[1:]))

    def strayed(self, index: int) -> ClientConnections:
        """The oldest request of an abandoned connection has arrived, late."""
        left = self.strays[index][1:]
        strays = (*self.strays[:index], *self.strays[index + 1 :], *((left,) if left else ()))
        return ClientConnections(self.lines, tuple(sorted(strays)))

    def given_up(self, place: int) -> ClientConnections:
        """A new connection; requests on the old one may still arrive, unless the broker crashed."""
        line = self.lines[place]
        strays = self.strays if not line.outgoing else tuple(sorted((*self.strays, line.outgoing)))
        return self._with(place, ConnectionQueues(generation=line.generation + 1))._replace(strays=strays)

    def broken(self) -> ClientConnections:
        """The broker crashed: every message is lost, and the client has not noticed yet."""
        return ClientConnections(
            tuple(ConnectionQueues(generation=line.generation, is_broken=True) for line in self.lines)
        )

    def _with(self, place: int, line: ConnectionQueues) -> ClientConnections:
        return ClientConnections((*self.lines[:place], line, *self.lines[place + 1 :]), self.strays)


class LoopbackQueues(NamedTuple):
    """What the node has sent to itself and not received yet: requests, and replies to them."""

    questions: Numbers = ()
    answers: Numbers = ()


PLACES: Final = (NODE_ID, FIRST_BOOTSTRAP_NODE)
"""The addresses that a client knows: the node's, and the bootstrap address, which leads to the same node."""

NO_WIRES: Final = ClientConnections(tuple(ConnectionQueues() for _ in PLACES))


def connection_of(client: int, place: int, generation: int, clients: int) -> int:
    """The broker's number for a connection, from 1 on."""
    return 1 + (generation * clients + client) * len(PLACES) + place


def whose(connection: int, clients: int) -> tuple[int, int, int]:
    """The client, the place and the generation of a connection number."""
    rest, place = divmod(connection - 1, len(PLACES))
    generation, client = divmod(rest, clients)
    return client, place, generation
