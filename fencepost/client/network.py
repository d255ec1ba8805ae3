"""The connections of one client without their sockets: requests become bytes, bytes become replies.

Rule: a driver opens, reads, writes and closes what `NetworkClient` says, and reports what happened. Each
request that was sent returns exactly once: as a reply, as NETWORK_EXCEPTION when its connection was lost,
or as REQUEST_TIMED_OUT.
"""

#         machine                NetworkClient                       driver
#         -------                -------------                       ------
#         SendRequest     -->    ClientConnection.send: outbox  -->  bytes into a socket
#         on_reply        <--    received: correlation id       <--  bytes from a socket
#         on_reply        <--    lost, wake: error codes        <--  end of a connection, the time
#         Resolve, ...    -->    resolved, answers, notify      -->  wakes the waiting callers
#
# A connection is closed when one of its requests times out (NetworkClient.handleTimedOutRequests): a broker
# answers the requests of a connection in order, so the later replies would be late too. The machines rely on
# the exactly-once return: a batch whose request never returned would stay in flight forever, and block its
# partition.

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import attrs

from fencepost.client.batch import ProducerBatch
from fencepost.client.effects import (
    BatchDone,
    CallAnswered,
    Effect,
    Resolve,
    SendRequest,
    TransactionCall,
    WakeAt,
    WarnProgram,
)
from fencepost.client.errors import Failure
from fencepost.client.metadata import FIRST_BOOTSTRAP_NODE, NOT_A_BROKER, NOT_ACCEPTING, Address, can_be_host
from fencepost.client.requests import RequestMachine
from fencepost.client.security import REFUSALS, Handshake, HandshakeRefused, StartHandshake, refusal
from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import NO_ERROR, ErrorCode, ProtocolViolation
from fencepost.protocol.frames import FrameReader, PeerSpeaksTls, decode_reply_of, encode_request
from fencepost.protocol.messages import API_BY_REQUEST, Api, ReplyBody
from fencepost.protocol.terms import INT32_MAX

# How long a client waits for its first reply before it warns the program: a host that drops packets refuses
# no connection, and a call waits for a minute.
NO_REPLY_WARNING_MS: Final = 3_000

# What wakes the callers that wait for room in the buffer: a finished batch.
ROOM: Final = "room"

AddressInfo = tuple[int, int, int, str, Any]
"""A result of getaddrinfo: family, kind, protocol, canonical name, address."""


class RequestResult(NamedTuple):
    token: int
    error: ErrorCode
    body: ReplyBody | None


class _Expected(NamedTuple):
    token: int
    api: Api
    deadline: int


@attrs.define(eq=False)
class ClientConnection:
    """Correlation ids, requests in flight and bytes still to write, of one connection."""

    client_id: str
    request_timeout_ms: int
    start_handshake: StartHandshake | None = None
    outbox: deque[Buffer] = attrs.field(factory=deque)
    """The bytes to write, in order; the driver removes what it has written."""
    _next: int = 0
    _reader: FrameReader = attrs.field(factory=FrameReader)
    deadline: int | None = attrs.field(default=None, init=False)
    """When the first request in flight times out."""
    _in_flight: dict[int, _Expected] = attrs.field(factory=dict)
    _in_order: bool = True
    """Whether the deadlines are in the order of the requests: the usual case, with one timeout for all."""
    _handshake: Handshake | None = None

    def begin(self, host: str) -> None:
        """The driver is about to connect: what waits in the outbox goes through TLS and SASL first."""
        if self.start_handshake is not None:
            self._handshake = self.start_handshake(host)
            self._handshake.send(list(self.outbox))
            self.outbox.clear()
            self._pass_on(self._handshake.outgoing())

    def send(self, effect: SendRequest, now: int) -> None:
        """Encodes a request into the outbox and expects its reply."""
        correlation_id = self._next
        self._next = (correlation_id + 1) & INT32_MAX
        timeout_ms = self.request_timeout_ms
        if effect.timeout_ms is not None:
            timeout_ms, self._in_order = effect.timeout_ms, False
        deadline = now + timeout_ms
        self._in_flight[correlation_id] = _Expected(
            effect.token, API_BY_REQUEST[type(effect.request)], deadline
        )
        if self.deadline is None or deadline < self.deadline:
            self.deadline = deadline
        pieces = encode_request(
            effect.request, correlation_id=correlation_id, client_id=self.client_id, version=effect.version
        )
        if self._handshake is not None:
            self._handshake.send(pieces)
            pieces = self._handshake.outgoing()
        self._pass_on(pieces)

    def _pass_on(self, pieces: list[Buffer]) -> None:
        # sendmsg() of an empty piece writes nothing, so the piece would stay forever.
        self.outbox.extend(filter(len, pieces))

    def receive(self, chunk: Buffer) -> Iterator[RequestResult]:
        """The replies that `chunk` completes. ProtocolViolation for an unknown correlation id,
        HandshakeRefused when the connection can never be used.
        """
        if self._handshake is not None:
            chunk = self._handshake.receive(chunk)
            self._pass_on(self._handshake.outgoing())
        for frame in self._reader.feed(chunk):
            yield self._answer(frame)

    def _answer(self, frame: memoryview) -> RequestResult:
        reply = decode_reply_of(frame, self._api_of)
        if reply.error is not NO_ERROR and reply.error in REFUSALS:
            raise refusal(reply.error, None if self._handshake is None else self._handshake.security)
        expected = self._in_flight.pop(reply.correlation_id)
        if expected.deadline == self.deadline:
            left = (other.deadline for other in self._in_flight.values())
            self.deadline = next(left, None) if self._in_order else min(left, default=None)
        return RequestResult(expected.token, reply.error, reply.body)

    def _api_of(self, correlation_id: int) -> Api:
        expected = self._in_flight.get(correlation_id)
        if expected is None:
            raise ProtocolViolation(f"received a reply to request {correlation_id}, which is not in flight")
        return expected.api

    def lost(self, now: int) -> list[RequestResult]:
        """Error results for all requests in flight; the broker may have executed any of them."""
        answers = [
            RequestResult(
                expected.token,
                ErrorCode.REQUEST_TIMED_OUT if expected.deadline <= now else ErrorCode.NETWORK_EXCEPTION,
                None,
            )
            for expected in self._in_flight.values()
        ]
        self._in_flight.clear()
        self.deadline = None
        self.outbox.clear()
        return answers


def _one_bootstrap(node_id: int) -> int:
    """The node, but the same one for all bootstrap addresses: one of them that answers is enough."""
    return max(FIRST_BOOTSTRAP_NODE, node_id)


def ignore(_: object) -> None:
    """Does nothing: for a driver that parks no callers, or a program that wants no warnings."""


@attrs.define(eq=False)
class NetworkClient:
    """The connections of one client, and the results of its machine for waiting callers."""

    machine: RequestMachine
    client_id: str = attrs.field(kw_only=True)
    request_timeout_ms: int = attrs.field(kw_only=True)
    start_handshake: StartHandshake | None = attrs.field(default=None, kw_only=True)
    failure: Failure | None = attrs.field(default=None, init=False)
    """Why connections can no longer be used: every waiting caller must get it."""
    notify: Callable[[Hashable], object] = attrs.field(default=ignore, kw_only=True)
    """Called with the `woken_by` of the waits whose condition may be true now."""
    warn: Callable[[str], object] = attrs.field(default=ignore, kw_only=True)
    """Called with a line for the log of the program."""
    connections: dict[int, ClientConnection] = attrs.field(factory=dict)
    to_open: list[int] = attrs.field(factory=list)
    """Nodes that the driver must connect to; it removes each."""
    resolved: dict[TransactionCall, Failure | None] = attrs.field(factory=dict)
    answers: dict[int, CallAnswered] = attrs.field(factory=dict)
    callbacks: deque[ProducerBatch] = attrs.field(factory=deque)
    """Batches that are done, whose callbacks the driver must call when no script is running."""
    _machine_wake: int | None = None
    _warn_at: dict[int, int] = attrs.field(factory=dict)
    """When to warn that a node has not answered yet; one time for all bootstrap addresses."""
    _settled: set[int] = attrs.field(factory=set)
    """The nodes that need no warning: they answer or accept connections, or the program has been warned."""
    _untried: dict[int, tuple[Address, list[AddressInfo]]] = attrs.field(factory=dict)

    def open(self, node_id: int) -> Address | None:
        """The address that the driver must connect to now; None if it is no longer known, or if no host can
        have the name that the broker gave.
        """
        address = self.machine.cluster.address(node_id)
        if address is None or not can_be_host(address[0]):
            return None
        self.connections[node_id].begin(address[0])
        return address

    def untried(self, node_id: int, address: Address) -> list[AddressInfo]:
        """The addresses of a node's host name that were not tried yet. The driver resolves the name into an
        empty list, and removes what it tries. The next connection continues with the rest, because an address
        may drop whatever is sent to it; the first reply of the node empties the list (KAFKA-12193).
        """
        known = self._untried.get(node_id)
        if known is None or known[0] != address:
            known = self._untried[node_id] = (address, [])
        return known[1]

    def unreachable(self, node_id: int, problem: OSError) -> None:
        """An attempt to connect to a node failed, or to resolve its host name."""
        self.machine.cluster.unreachable[node_id] = problem.strerror or str(problem)

    def accepted(self, node_id: int) -> None:
        """A node accepted a connection."""
        self.machine.cluster.unreachable.pop(node_id, None)
        self.machine.cluster.accepts[node_id] = None

    def perform(self, effects: Iterable[Effect], now: int) -> None:
        """Performs effects of the machine: requests go to outboxes, results to waiting callers."""
        for effect in effects:
            if isinstance(effect, SendRequest):
                self._connection(effect.node_id, now).send(effect, now)
            elif isinstance(effect, WakeAt):
                self._machine_wake = effect.at
            elif isinstance(effect, BatchDone):
                if effect.batch.callbacks is not None:
                    self.callbacks.append(effect.batch)
                self.notify(effect.batch)
                self.notify(ROOM)
            elif isinstance(effect, Resolve):
                self.resolved[effect.operation] = effect.failure
                self.notify(effect.operation)
            elif isinstance(effect, WarnProgram):
                self.warn(effect.because)
            else:
                self.answers[effect.number] = effect
                self.notify(("answer", effect.number))

    @property
    def has_requests_in_flight(self) -> bool:
        return any(connection.deadline is not None for connection in self.connections.values())

    def _connection(self, node_id: int, now: int) -> ClientConnection:
        found = self.connections.get(node_id)
        if found is None:
            found = ClientConnection(self.client_id, self.request_timeout_ms, self.start_handshake)
            self.connections[node_id] = found
            # After a refusal the client opens no more connections: the requests time out.
            if self.failure is None:
                self.to_open.append(node_id)
                if (node := _one_bootstrap(node_id)) not in self._settled:
                    self._warn_at.setdefault(node, now + NO_REPLY_WARNING_MS)
        return found

    def received(self, node_id: int, chunk: Buffer, now: int) -> str | None:
        """Takes bytes from a node. Returns why the driver must close the connection, or None."""
        connection = self.connections.get(node_id)
        if connection is None:
            return "the connection is over"
        try:
            for answer in connection.receive(chunk):
                if node_id not in self._settled:
                    self._settle(node_id)
                self._untried.pop(node_id, None)
                self.machine.cluster.unreachable.pop(node_id, None)
                self._hand_over(answer, now)
        except ProtocolViolation as problem:
            if isinstance(problem, PeerSpeaksTls):
                problem = HandshakeRefused(
                    'the broker requires TLS: set security_protocol to "SSL" or "SASL_SSL"'
                )
            if isinstance(problem, HandshakeRefused):
                self.failure = problem.failure
                self._warn_at.clear()  # each call raises the refusal
            else:
                self.machine.cluster.unreachable[node_id] = NOT_A_BROKER
            self.lost(node_id, now)
            return str(problem)
        return None

    def lost(self, node_id: int, now: int) -> None:
        """A connection ended or could not be opened: its requests get an error."""
        connection = self.connections.pop(node_id, None)
        if connection is not None:
            if node_id in self.to_open:
                self.to_open.remove(node_id)
            for answer in connection.lost(now):
                self._hand_over(answer, now)
            if self.machine.cluster.is_unreachable:
                self._warn_of_no_reply(node_id)

    def _settle(self, node_id: int) -> None:
        self._warn_at.pop(_one_bootstrap(node_id), None)
        self._settled.add(_one_bootstrap(node_id))

    def _warn_of_no_reply(self, node_id: int, within: str = "") -> None:
        """A call waits for a minute, and poll() returns nothing: the program would not know why."""
        cluster = self.machine.cluster
        if _one_bootstrap(node_id) in self._settled:
            return
        self._settle(node_id)
        if node_id in cluster.nodes:
            if node_id not in cluster.unreachable:
                return  # the address is right: a JoinGroup waits for other members, and a Fetch for records
            what = f"{cluster.node_in_words(node_id)} has not answered{within}"
            advice = "this address is the broker's advertised listener: check that clients can reach it"
        else:
            what = f"no broker answered at {cluster.bootstrap_in_words()}{within}"
            advice = "check the address, and that a broker runs there"
        self.warn(f"{what}; the client keeps trying: {advice}")

    def _hand_over(self, answer: RequestResult, now: int) -> None:
        self.perform(self.machine.on_reply(answer.token, answer.error, answer.body, now), now)

    def wake(self, now: int) -> list[int]:
        """Does what is due at `now`; returns the nodes with a timed-out request, for the driver to disconnect
        from.
        """
        late = [
            node
            for node, connection in self.connections.items()
            if connection.deadline is not None and connection.deadline <= now
        ]
        for node in late:
            self.lost(node, now)
        for node in [node for node, at in self._warn_at.items() if at <= now]:
            for each in self.connections:
                if _one_bootstrap(each) == node and each not in self.machine.cluster.accepts:
                    self.machine.cluster.unreachable.setdefault(each, NOT_ACCEPTING)
            self._warn_of_no_reply(node, f" within {NO_REPLY_WARNING_MS // 1_000} s")
        if self._machine_wake is not None and self._machine_wake <= now:
            self._machine_wake = None
            self.perform(self.machine.wake(now), now)
        return late

    @property
    def wake_at(self) -> int | None:
        """The next time at which `wake` has something to do."""
        earliest = self._machine_wake
        for at in self._warn_at.values():
            if earliest is None or at < earliest:
                earliest = at
        for connection in self.connections.values():
            deadline = connection.deadline
            if deadline is not None and (earliest is None or deadline < earliest):
                earliest = deadline
        return earliest
