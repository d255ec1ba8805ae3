"""A client without its sockets: a machine, its connections, and what a shell must do for them.

Rule: the shell opens, reads, writes and closes what this says and
tells what happened; every decision is made here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fencepost.client.connection import Answer, Connection
from fencepost.client.effects import Effect, Send, WakeMe
from fencepost.client.metadata import Address, Cluster
from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.messages import ReplyBody


class Machine(Protocol):
    """What a session drives: a producer, a consumer or an admin."""

    def on_reply(self, token: int, error: ErrorCode, body: ReplyBody | None, now: int) -> list[Effect]: ...

    def wake(self, now: int) -> list[Effect]: ...

    @property
    def cluster(self) -> Cluster: ...


class Session:
    """The connections of one client. `wake_at` is when to call `wake`; `outcomes` is for the callers."""

    __slots__ = (
        "_client_id",
        "_machine",
        "_machine_wake",
        "_timeout_ms",
        "connections",
        "outcomes",
        "to_open",
    )

    def __init__(self, machine: Machine, *, client_id: str, request_timeout_ms: int) -> None:
        self._machine = machine
        self._client_id = client_id
        self._timeout_ms = request_timeout_ms
        self._machine_wake: int | None = None
        self.connections: dict[int, Connection] = {}
        self.to_open: list[int] = []
        """Nodes that the shell must connect to; it takes them off."""
        self.outcomes: list[Effect] = []

    def address(self, node_id: int) -> Address | None:
        """Where a node is, if that is still known."""
        return self._machine.cluster.address(node_id)

    def perform(self, effects: Iterable[Effect], now: int) -> None:
        """Takes effects of the machine: requests go to outboxes, outcomes to `outcomes`."""
        for effect in effects:
            if isinstance(effect, Send):
                self._connection(effect.node_id).send(effect, now)
            elif isinstance(effect, WakeMe):
                self._machine_wake = effect.at
            else:
                self.outcomes.append(effect)

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is on its way."""
        return any(connection.deadline is not None for connection in self.connections.values())

    def _connection(self, node_id: int) -> Connection:
        found = self.connections.get(node_id)
        if found is None:
            found = Connection(client_id=self._client_id, request_timeout_ms=self._timeout_ms)
            self.connections[node_id] = found
            self.to_open.append(node_id)
        return found

    def received(self, node_id: int, chunk: Buffer, now: int) -> str | None:
        """Takes bytes from a node. Says why the connection is over, for the shell to close it, when it is."""
        connection = self.connections.get(node_id)
        if connection is None:
            return "the connection is over"
        try:
            for answer in connection.receive(chunk):
                self._hand_over(answer, now)
        except ProtocolViolation as problem:
            self.lost(node_id, now)
            return str(problem)
        return None

    def lost(self, node_id: int, now: int) -> None:
        """A connection ended or could not be made; whatever was in flight on it has no answer."""
        connection = self.connections.pop(node_id, None)
        if connection is not None:
            if node_id in self.to_open:
                self.to_open.remove(node_id)
            for answer in connection.lost(now):
                self._hand_over(answer, now)

    def _hand_over(self, answer: Answer, now: int) -> None:
        self.perform(self._machine.on_reply(answer.token, answer.error, answer.body, now), now)

    def wake(self, now: int) -> list[int]:
        """Time went by: nodes whose oldest request timed out, which the shell disconnects, are returned."""
        late = [
            node
            for node, connection in self.connections.items()
            if connection.deadline is not None and connection.deadline <= now
        ]
        for node in late:
            self.lost(node, now)
        if self._machine_wake is not None and self._machine_wake <= now:
            self._machine_wake = None
            self.perform(self._machine.wake(now), now)
        return late

    @property
    def wake_at(self) -> int | None:
        """The next time at which `wake` has something to do."""
        earliest = self._machine_wake
        for connection in self.connections.values():
            deadline = connection.deadline
            if deadline is not None and (earliest is None or deadline < earliest):
                earliest = deadline
        return earliest
