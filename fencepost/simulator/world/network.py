"""Connections between clients and nodes: each direction is FIFO, and connections are not ordered among each
other, as in TCP.

Rule: a message is delivered once, or its connection dies with it. After a caller gives up, what it had sent
may still arrive: the receiver cannot tell the difference.
"""

# Theory of operation
#
#     caller ── to_server ──▶ node      due at now + latency, but not before the message ahead of it:
#     caller ◀── to_caller ── node      each direction is FIFO, and no two connections are ordered
#
#     send ──(latency)──▶ arrive ─┬─▶ _hand_over ─▶ its receiver, or the backlog of one that is paused
#                                 ├─▶ held: by a fault, by a partition, or after a message that is held
#                                 └─▶ lost: the channel is dead
#
# A connection ends in one of two ways. `give_up`: its caller stops waiting and closes it. Replies no longer
# reach the caller, but what it had sent still arrives, and then the Close. The caller retries on another
# connection, so the first request may arrive after the second: this is how a late EndTxn can meet the next
# transaction (KAFKA-17754), and all late requests come about like this. `reset`: the connection breaks. What
# is on its way in both directions is lost, and both ends are informed.
#
# On a connection that lives, no message gets lost, arrives twice, or overtakes another one, because TCP does
# not do that. An anomaly that needs it would be a bug of the simulator. Scenarios can ask for more (`deliver
# twice`, `answer`), as a proxy between client and broker could cause it.
#
# Messages travel as objects, since a codec would slow down every run. Some worlds encode and decode each of
# them (`encodes`), so that the search covers the codec, too.

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from heapq import heappush
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.frames import ReplyFrame, decode_reply, decode_request, encode_reply, encode_request
from fencepost.protocol.messages import API_BY_REQUEST, Api, ReplyBody, Request
from fencepost.protocol.values import value
from fencepost.simulator.world.events import (
    MessageArriving,
    MessageLost,
    MessageSent,
    MessageTaken,
    ReplyDiscarded,
)

if TYPE_CHECKING:
    from fencepost.simulator.world.nodes import SimulatedNode
    from fencepost.simulator.world.participants import Participant
    from fencepost.simulator.world.world import World

LENGTH_BYTES: Final = 4  # the length before a frame, which a reader of frames takes off


@value
class RequestMessage:
    """A request on its way."""

    token: int
    request: Request
    version: int


@value
class ReplyMessage:
    """The reply to the request with this token, on its way back."""

    token: int
    error: ErrorCode
    body: ReplyBody | None


@value
class Close:
    """The caller closed the connection; this arrives after everything that it sent before."""


CLOSE: Final = Close()
Message = RequestMessage | ReplyMessage | Close


class Requester(Protocol):
    """The sender of requests: a port of a client process, or a node."""

    @property
    def participant(self) -> str: ...

    @property
    def owner(self) -> Participant: ...

    def answered(self, connection: SimulatedConnection, reply: ReplyMessage) -> None: ...

    def lost(self, connection: SimulatedConnection) -> None: ...


class Channel:
    """One direction of a connection. `held` is what a partition, a hold or a pause keeps from arriving."""

    __slots__ = ("connection", "held", "is_dead", "is_held", "is_to_server", "last_at", "source", "target")

    def __init__(
        self, connection: SimulatedConnection, source: str, target: str, *, is_to_server: bool
    ) -> None:
        self.connection = connection
        self.source = source
        self.target = target
        self.is_to_server = is_to_server
        self.is_dead = self.is_held = False
        self.last_at = 0
        self.held: deque[Message] = deque()

    def api_of(self, message: Message) -> Api | None:
        """The API of a request, or of a reply that its caller still waits for; None for other messages."""
        if isinstance(message, RequestMessage):
            return API_BY_REQUEST[type(message.request)]
        asked = None if isinstance(message, Close) else self.connection.in_flight.get(message.token)
        return None if asked is None else asked[0]


class SimulatedConnection:
    """A caller's connection to a node. `in_flight`: by token, the API of each request without a reply and
    when it was sent (ns).

    `is_timed` while an act is queued that checks the age of the oldest request.
    """

    __slots__ = ("caller", "in_flight", "is_timed", "number", "server", "to_caller", "to_server")

    def __init__(self, number: int, caller: Requester, server: SimulatedNode) -> None:
        self.number = number
        self.caller = caller
        self.server = server
        self.to_server = Channel(self, caller.participant, server.participant, is_to_server=True)
        self.to_caller = Channel(self, server.participant, caller.participant, is_to_server=False)
        self.in_flight: dict[int, tuple[Api, int]] = {}
        self.is_timed = False

    @property
    def is_open(self) -> bool:
        """Whether a reply can still reach the caller."""
        return not self.to_caller.is_dead


@attrs.define(eq=False)
class Network:
    """All connections. Nothing passes from the first to the second participant of a pair in `blocked`. `held`
    are messages that faults hold: each waits where it arrives, and so does what follows on its connection.
    """

    world: World
    encodes: bool = False
    held: list[Message] = attrs.Factory(list[Message])
    connections: dict[int, SimulatedConnection] = attrs.Factory(dict[int, SimulatedConnection])
    blocked: set[tuple[str, str]] = attrs.Factory(set[tuple[str, str]])
    made: int = 0
    heard: Mapping[type, object] = attrs.field(init=False)  # the types of event that somebody subscribed to

    def __attrs_post_init__(self) -> None:
        self.heard = self.world.events.heard

    # --- sending --------------------------------------------------------------------------------------------

    def connect(self, caller: Requester, server: SimulatedNode) -> SimulatedConnection:
        # At once: a handshake would only add events. A node that is down refuses the first message.
        self.made += 1
        connection = SimulatedConnection(self.made, caller, server)
        self.connections[connection.number] = connection
        return connection

    def ask(self, connection: SimulatedConnection, message: RequestMessage) -> None:
        """Send a request; its reply, or the loss of the connection, reaches the caller."""
        connection.in_flight[message.token] = (API_BY_REQUEST[type(message.request)], self.world.now)
        self.send(connection.to_server, _recoded_request(message) if self.encodes else message)

    def reply(self, connection: SimulatedConnection, reply: ReplyMessage) -> None:
        """Send a reply, unless the caller is gone."""
        channel = connection.to_caller
        if channel.is_dead:
            if ReplyDiscarded in self.heard:
                self.world.events.publish(ReplyDiscarded(channel, reply))
            return
        if self.encodes and reply.token in connection.in_flight:
            reply = _recoded_reply(reply, connection.in_flight[reply.token][0])
        self.send(channel, reply)

    def send(self, channel: Channel, message: Message) -> None:
        """A message leaves its sender."""
        world = self.world
        if MessageSent in self.heard:
            world.events.publish(MessageSent(channel, message))
        at = world.now + world.latency(channel.source)
        # It does not overtake the message before it.
        if at < channel.last_at:
            at = channel.last_at
        channel.last_at = at
        world.happened += 1
        heappush(world.queue, (at, world.happened, self.arrive, (channel, message)))

    # --- arriving -------------------------------------------------------------------------------------------

    def arrive(self, arriving: tuple[Channel, Message]) -> None:
        """A message reached its target: it is taken, or waits for what holds it up."""
        channel, message = arriving
        if channel.is_dead:
            self._lost(channel, message, "the connection is gone")
            return
        if (
            # Behind a message that waits, everything waits.
            channel.is_held
            or channel.held
            or (self.blocked and (channel.source, channel.target) in self.blocked)
        ):
            channel.held.append(message)
            return
        # A subscriber may hold the message or break its connection, so both are looked at afterwards. What
        # was held when it was sent has its event when it is released.
        if MessageArriving in self.heard and not (self.held and self.is_held(message)):
            self.world.events.publish(MessageArriving(channel, message))
        if self.held and self.is_held(message):
            channel.held.append(message)
        elif channel.is_dead:  # the receiver of the request broke the connection
            self._lost(channel, message, "the connection broke")
        else:
            self._hand_over(channel, message)

    def _hand_over(self, channel: Channel, message: Message) -> None:
        connection = channel.connection
        target = connection.server if channel.is_to_server else connection.caller.owner
        if target.is_paused:
            target.backlog.append((channel, message))
            return
        if channel.is_to_server and connection.server.host is None:
            self._lost(channel, message, "the node is down")
        elif MessageTaken in self.heard:
            self.world.events.publish(MessageTaken(channel, message))
        if isinstance(message, ReplyMessage):
            # The caller no longer waits for the second reply to a request that arrived twice.
            if message.token in connection.in_flight:
                del connection.in_flight[message.token]
                connection.caller.answered(connection, message)
        else:
            if message is CLOSE:
                channel.is_dead = True
                self.connections.pop(connection.number, None)
            # A Close, too: a node learns of it, as a server does when a socket closes.
            connection.server.asked(connection, message)

    def resume(self, target: Participant) -> None:
        """A participant that was paused takes the messages that arrived meanwhile, in their order."""
        waiting = list(target.backlog)
        target.backlog.clear()
        for channel, message in waiting:
            if channel.is_dead:
                self._lost(channel, message, "the connection is gone")
            else:
                self._hand_over(channel, message)  # into the backlog again, if it was paused again

    def hold(self, channel: Channel, message: Message | None = None) -> None:
        """Nothing more arrives on this channel until it is released: at once, or from this message on."""
        if message is None:
            channel.is_held = True
        else:
            self.held.append(message)

    def release(self, channel: Channel, message: Message | None = None) -> None:
        """What was held continues, in its order."""
        if message is None:
            channel.is_held = False
        else:
            self.held[:] = [held for held in self.held if held is not message]
        world, waiting, channel.held = self.world, channel.held, deque()
        for each in waiting:
            world.happened += 1
            # What is sent from now on arrives after these.
            channel.last_at = max(channel.last_at, world.now)
            heappush(world.queue, (world.now, world.happened, self.arrive, (channel, each)))

    def take_away(self, channel: Channel, message: Message) -> None:
        """A message that is held and has arrived is gone; those after it continue."""
        channel.held = deque(held for held in channel.held if held is not message)
        self.release(channel, message)

    def is_held(self, message: Message) -> bool:
        """Whether a fault holds this message."""
        return any(message is held for held in self.held)

    def unblock(self, pairs: tuple[tuple[str, str], ...]) -> None:
        """A partition heals: what TCP kept sending arrives now."""
        self.blocked.difference_update(pairs)
        for connection in list(self.connections.values()):
            for channel in (connection.to_server, connection.to_caller):
                if channel.held and (channel.source, channel.target) in pairs:
                    self.release(channel)

    # --- ending ---------------------------------------------------------------------------------------------

    def give_up(self, connection: SimulatedConnection) -> None:
        """The caller closes: replies no longer reach it, but what it sent before may still arrive."""
        # The connection is forgotten only when the Close arrives: until then a fault may hold what is on it.
        self._kill(connection.to_caller, "the caller gave up")
        connection.in_flight.clear()
        if not connection.to_server.is_dead:
            self.send(connection.to_server, CLOSE)

    def reset(self, connection: SimulatedConnection, *, server_is_gone: bool = False) -> None:
        """The connection breaks: everything on its way is lost, and both ends are informed."""
        self.connections.pop(connection.number, None)
        # A caller that gave the connection up no longer needs to know.
        was_open = connection.is_open
        self._kill(connection.to_server, "the connection broke")
        self._kill(connection.to_caller, "the connection broke")
        if not server_is_gone:
            connection.server.disconnected(connection)
        if was_open:
            connection.caller.lost(connection)

    def _kill(self, channel: Channel, because: str) -> None:
        channel.is_dead = True
        while channel.held:
            self._lost(channel, channel.held.popleft(), because)

    def _lost(self, channel: Channel, message: Message, because: str) -> None:
        if MessageLost in self.heard:
            self.world.events.publish(MessageLost(channel, message, because))


def _recoded_request(message: RequestMessage) -> RequestMessage:
    """The request as its receiver decodes it."""
    frame = b"".join(encode_request(message.request, correlation_id=message.token, version=message.version))
    arrived = decode_request(memoryview(bytearray(frame))[LENGTH_BYTES:])
    return RequestMessage(arrived.correlation_id, arrived.request, arrived.version)


def _recoded_reply(reply: ReplyMessage, api: Api) -> ReplyMessage:
    frame = b"".join(encode_reply(ReplyFrame(reply.token, error=reply.error, body=reply.body)))
    arrived = decode_reply(memoryview(bytearray(frame))[LENGTH_BYTES:], api)
    return ReplyMessage(arrived.correlation_id, arrived.error, arrived.body)
