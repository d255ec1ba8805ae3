"""The connections of one client to the broker, as values: what is on its way on each, in both directions.

Rule: a connection is first in, first out. A client that gives one up goes on on a new one and never hears
of the old one again; what it had sent there may still arrive, at any time after.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fencepost.client.metadata import FIRST_BOOTSTRAP_NODE

NODE_ID: Final = 1

Numbers = tuple[int, ...]
"""Messages by their numbers, oldest first."""


class Line(NamedTuple):
    """The connection that a client has now; `generation` counts those before it."""

    generation: int = 0
    is_broken: bool = False
    outgoing: Numbers = ()
    incoming: Numbers = ()


class Wires(NamedTuple):
    """The lines of one client, one for each node that it knows, and what is left of those that it gave up."""

    lines: tuple[Line, ...]
    strays: tuple[Numbers, ...] = ()

    def sent(self, messages: tuple[tuple[int, int], ...]) -> Wires:
        """With more on its way to the broker: pairs of place and message."""
        lines = list(self.lines)
        for place, message in messages:
            line = lines[place]
            lines[place] = line._replace(outgoing=(*line.outgoing, message))
        return Wires(tuple(lines), self.strays)

    def answered(self, place: int, generation: int, message: int) -> Wires:
        """With an answer on its way to the client, if it still listens there."""
        line = self.lines[place]
        if line.generation != generation or line.is_broken:
            return self
        return self._with(place, line._replace(incoming=(*line.incoming, message)))

    def delivered(self, place: int) -> Wires:
        """The oldest request of a line has arrived."""
        line = self.lines[place]
        return self._with(place, line._replace(outgoing=line.outgoing[1:]))

    def heard(self, place: int) -> Wires:
        """The oldest answer of a line has arrived."""
        line = self.lines[place]
        return self._with(place, line._replace(incoming=line.incoming[1:]))

    def strayed(self, index: int) -> Wires:
        """The oldest request of a connection that was given up has arrived."""
        left = self.strays[index][1:]
        strays = (*self.strays[:index], *self.strays[index + 1 :], *((left,) if left else ()))
        return Wires(self.lines, tuple(sorted(strays)))

    def given_up(self, place: int) -> Wires:
        """A new line; what was sent on the old one goes its own way, unless the broker itself is gone."""
        line = self.lines[place]
        strays = self.strays if not line.outgoing else tuple(sorted((*self.strays, line.outgoing)))
        return self._with(place, Line(generation=line.generation + 1))._replace(strays=strays)

    def broken(self) -> Wires:
        """The broker is gone, and with it whatever was on its way; who waits has yet to learn of it."""
        return Wires(tuple(Line(generation=line.generation, is_broken=True) for line in self.lines))

    def _with(self, place: int, line: Line) -> Wires:
        return Wires((*self.lines[:place], line, *self.lines[place + 1 :]), self.strays)


class Inner(NamedTuple):
    """What the node has sent to itself and not received yet: what it asks, and what it answers to that."""

    questions: Numbers = ()
    answers: Numbers = ()


PLACES: Final = (NODE_ID, FIRST_BOOTSTRAP_NODE)
"""The nodes that a client knows: the one there is, and the address that it began with, which is the same."""

NO_WIRES: Final = Wires(tuple(Line() for _ in PLACES))


def connection_of(client: int, place: int, generation: int, clients: int) -> int:
    """The broker's number for a connection of a client, from 1 on."""
    return 1 + (generation * clients + client) * len(PLACES) + place


def whose(connection: int, clients: int) -> tuple[int, int, int]:
    """The client, the place and the generation of a connection."""
    rest, place = divmod(connection - 1, len(PLACES))
    generation, client = divmod(rest, clients)
    return client, place, generation
