"""Queues of messages that wait behind a held one, for each connection and direction.

Rule: a line keeps its order. A message goes on when it is the first and nothing holds it, and a fault that
strikes a waiting message acts on it then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import attrs

from fencepost.broker.contract import Received, Reply
from fencepost.broker.faults import PlannedFault
from fencepost.faults.phrases import Point
from fencepost.protocol.messages import Request


class UnansweredRequest(Protocol):
    """A request without a reply."""

    @property
    def kind(self) -> type[Request]: ...

    @property
    def client_id(self) -> str: ...


class Link(Protocol):
    """What a connection of the server offers to faults."""

    @property
    def number(self) -> int: ...

    @property
    def in_progress(self) -> Mapping[int, UnansweredRequest]: ...

    def close(self) -> None: ...


class Carried(NamedTuple):
    """A message that a fault may strike: a request that has arrived, or a reply that leaves. `is_received`
    is whether the fault points of its receipt were reported.
    """

    connection: Link
    message: Received | Reply
    is_received: bool = False

    @property
    def line(self) -> Line:
        """The line in which it would wait."""
        return self.connection.number, isinstance(self.message, Received)


Line = tuple[int, bool]
"""The messages of a connection in one direction; True: to the broker."""


class PendingStrike(NamedTuple):
    """A fault that acts on a waiting message in its turn, and the point at which it found the message."""

    planned: PlannedFault
    point: Point


@attrs.define(eq=False)
class InLine:
    """A message that waits. `is_held`: a fault holds it, besides those before it."""

    carried: Carried
    is_held: bool = False
    strike: PendingStrike | None = None


@attrs.define(eq=False)
class MessageLines:
    """All lines of a server. A connection without a held message has none."""

    _lines: dict[Line, deque[InLine]] = attrs.Factory(dict[Line, deque[InLine]])
    _moving: set[Line] = attrs.Factory(set[Line])

    def has(self, connection: Link, *, are_requests: bool) -> bool:
        """Whether a message of this connection waits in this direction."""
        return (connection.number, are_requests) in self._lines

    def waits(self, carried: Carried) -> bool:
        """Whether other messages are before this one."""
        line = self._lines.get(carried.line)
        return line is not None and line[0].carried.message is not carried.message

    def place(self, carried: Carried) -> InLine:
        """The place of this message: the one that it has, or a new one at the end of its line."""
        line = self._lines.setdefault(carried.line, deque())
        found = next((place for place in line if place.carried.message is carried.message), None)
        if found is None:
            found = InLine(carried)
            line.append(found)
        found.carried = carried
        return found

    def start(self, key: Line) -> bool:
        """Whether the caller has to move this line on: no other task is doing it."""
        is_free = key in self._lines and key not in self._moving
        if is_free:
            self._moving.add(key)
        return is_free

    def first(self, key: Line) -> InLine | None:
        """The message whose turn it is. It stays in the line until `leave`, so that what arrives meanwhile
        is queued after it.
        """
        line = self._lines.get(key)
        return None if line is None or line[0].is_held else line[0]

    def leave(self, key: Line) -> None:
        """The first message has gone on."""
        line = self._lines[key]
        line.popleft()
        if not line:
            del self._lines[key]

    def drop(self, key: Line) -> list[InLine]:
        """The connection has broken: return what is lost with this line."""
        return list(self._lines.pop(key, ()))

    def stop(self, key: Line) -> None:
        """The line stands still: it is empty, or its first message is held."""
        self._moving.discard(key)

    def drop_all(self) -> list[InLine]:
        """The server has ended: return what is lost with it."""
        lost = [place for line in self._lines.values() for place in line]
        self._lines.clear()
        return lost
