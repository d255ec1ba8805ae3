"""Steps of the actors by number, and the connections between them: each step is taken once by the real core
and then looked up.

Rule: what an actor does depends on its own state and on what reaches it, and on nothing else. Equal
fingerprints get the same number, and the first state with a fingerprint stands for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from fencepost.broker.contract import NOBODY
from fencepost.client.metadata import FIRST_BOOTSTRAP_NODE
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint, fork
from fencepost.simulator.explore.broker import ExploredBroker, Message, Posted, ReplyInFlight
from fencepost.simulator.explore.process import ExploredClient

if TYPE_CHECKING:
    from fencepost.simulator.explore.worlds import Mirror

# --- connections --------------------------------------------------------------------------------------------

NODE_ID: Final = 1
PLACES: Final = (NODE_ID, FIRST_BOOTSTRAP_NODE)
"""The addresses that a client knows: the node's, and the bootstrap address, which leads to the same node."""

Numbers = tuple[int, ...]
"""Numbers of messages, oldest first."""


class ConnectionQueues(NamedTuple):
    """The current connection to a node: its messages in both directions. `generation` counts the connections
    before it.
    """

    generation: int = 0
    is_broken: bool = False
    outgoing: Numbers = ()
    incoming: Numbers = ()


class Connections(NamedTuple):
    """The connections of one client, one for each address it knows, and the requests left on those it gave
    up. What the node has sent to itself is one more such connection.

    A connection is first in, first out. A client that gives up a connection opens a new one and never hears
    from the old one again; requests that it sent there may still arrive, at any later time.
    """

    lines: tuple[ConnectionQueues, ...]
    strays: tuple[Numbers, ...] = ()

    def sent(self, place: int, message: int) -> Connections:
        """These connections after a request was sent to the broker."""
        line = self.lines[place]
        return self._with(place, line._replace(outgoing=(*line.outgoing, message)))

    def answered(self, place: int, generation: int, message: int) -> Connections:
        """These connections after the broker sent a reply, if that connection still exists."""
        line = self.lines[place]
        if line.generation != generation or line.is_broken:
            return self
        return self._with(place, line._replace(incoming=(*line.incoming, message)))

    def delivered(self, place: int) -> Connections:
        """The oldest request of a connection has arrived."""
        line = self.lines[place]
        return self._with(place, line._replace(outgoing=line.outgoing[1:]))

    def heard(self, place: int) -> Connections:
        """The oldest reply of a connection has arrived."""
        line = self.lines[place]
        return self._with(place, line._replace(incoming=line.incoming[1:]))

    def strayed(self, index: int) -> Connections:
        """The oldest request of an abandoned connection has arrived, late."""
        left = self.strays[index][1:]
        strays = (*self.strays[:index], *self.strays[index + 1 :], *((left,) if left else ()))
        return Connections(self.lines, tuple(sorted(strays)))

    def given_up(self, place: int) -> Connections:
        """A new connection; requests on the old one may still arrive, unless the broker crashed."""
        line = self.lines[place]
        # Sorted: in which order connections were given up decides nothing, so such worlds are equal.
        strays = self.strays if not line.outgoing else tuple(sorted((*self.strays, line.outgoing)))
        return self._with(place, ConnectionQueues(generation=line.generation + 1))._replace(strays=strays)

    def broken(self) -> Connections:
        """The broker crashed: every message is lost, and the client has not noticed yet."""
        return Connections(tuple(ConnectionQueues(line.generation, is_broken=True) for line in self.lines))

    def _with(self, place: int, line: ConnectionQueues) -> Connections:
        return Connections((*self.lines[:place], line, *self.lines[place + 1 :]), self.strays)


NOTHING_SENT: Final = Connections(tuple(ConnectionQueues() for _ in PLACES))
LOOPBACK: Final = Connections((ConnectionQueues(),))


def connection_of(client: int, place: int, generation: int, clients: int) -> int:
    """The broker's number for a connection, from 1 on."""
    # Below 1 are the node's own queues (NODE, REPLIES_TO_SELF) and the strays.
    return 1 + (generation * clients + client) * len(PLACES) + place


def whose(connection: int, clients: int) -> tuple[int, int, int]:
    rest, place = divmod(connection - 1, len(PLACES))
    generation, client = divmod(rest, clients)
    return client, place, generation


# --- numbers ------------------------------------------------------------------------------------------------

ValueT = TypeVar("ValueT", bound=Hashable)


class Interned(Generic[ValueT]):
    """Values by number, in the order in which their keys were first seen."""

    __slots__ = ("_numbers", "values")

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.values: list[ValueT] = []

    def number(self, value: ValueT, *, key: Hashable = None) -> int:
        """The number of `key`, by default the value itself; the first value of a key is kept."""
        found = self._numbers.setdefault(value if key is None else key, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found

    def __getitem__(self, number: int) -> ValueT:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)


class States(Interned[ValueT]):
    """States of an actor by number. The first state of a number is the one to read, and is never changed; a
    step may use up a later one instead of a fork, since states with equal fingerprints act alike.
    """

    __slots__ = ("_doubles",)

    def __init__(self) -> None:
        super().__init__()
        self._doubles: dict[int, ValueT] = {}

    def keep(self, state: ValueT) -> int:
        """The number of a state. Most steps lead to a known one; the duplicate saves the next step a fork."""
        number = self.number(state, key=fingerprint(state))
        if self.values[number] is not state:
            self._doubles[number] = state
        return number

    def taken(self, number: int) -> ValueT:
        """A state of that number, for the caller to change."""
        double = self._doubles.pop(number, None)
        return fork(self.values[number]) if double is None else double


# --- steps --------------------------------------------------------------------------------------------------

NO_MESSAGE: Final = -1
STRAY: Final = NOBODY.connection


class TransitionKind(Enum):
    REQUEST = "a request arrives"
    STRAY = "a request of a connection that was given up arrives"
    REPLY = "a reply arrives"
    GIVE_UP = "a client gives up its connection"
    BREAK = "a client learns that its connection broke"
    WAKE = "a pause is over"
    REQUEST_TO_SELF = "a request of the broker to itself arrives"
    REPLY_TO_SELF = "a reply of the broker to itself arrives"
    CRASH = "the broker dies and starts again"


Move = tuple[int, tuple[tuple[int, int], ...]]
"""The state after a step, and what the actor sent: destination and number of each message."""


class Steps:
    """Every state of an actor that was met, and the result of every step taken from it."""

    def __init__(self) -> None:
        self.brokers: States[ExploredBroker] = States()
        self.processes: States[ExploredClient] = States()
        self.messages: Interned[Message] = Interned()
        self.wires: Interned[Connections] = Interned()
        self._of_broker: dict[tuple[int, int, int], Move] = {}
        self._of_process: dict[tuple[int, TransitionKind, int, int], tuple[Move, ...]] = {}
        self.late_replies: dict[tuple[int, int], ErrorCode] = {}
        """The errors of the broker's replies to late requests, by its state and the request. No client gets
        them.
        """
        self.mirrors: list[Mirror] = []
        self.taken = 0

    # --- the broker

    def broker(self, broker: int, connection: int, message: int) -> Move:
        """A message reaches the broker; NO_MESSAGE: it crashes and restarts."""
        key = (broker, connection, message)
        found = self._of_broker.get(key)
        if found is None:
            found = self._of_broker[key] = self._take(broker, connection, message)
            for mirror in self.mirrors:
                mirror.broker_moved(broker, connection, message, found)
        return found

    def _take(self, number: int, connection: int, message: int) -> Move:
        self.taken += 1
        broker = self.brokers.taken(number)
        posted = self.deliver(broker, connection, message)
        for where, reply in posted:
            if where == STRAY and isinstance(reply, ReplyInFlight) and connection == STRAY:
                self.late_replies[number, message] = reply.error
        return self.keep_broker(broker), tuple(
            (where, self.messages.number(sent)) for where, sent in posted if where != STRAY
        )

    def deliver(self, broker: ExploredBroker, connection: int, message: int) -> list[Posted]:
        """Let the broker take a message; this changes it."""
        if message == NO_MESSAGE:
            return broker.restart()
        arrived = self.messages[message]
        if isinstance(arrived, ReplyInFlight):
            return broker.hear(arrived)
        # no one hears the reply, so one slot does for all
        slot = 0 if connection == STRAY else arrived.slot
        return broker.receive(arrived._replace(slot=slot), connection)

    def keep_broker(self, broker: ExploredBroker) -> int:
        """The number of this state of the broker."""
        return self.brokers.keep(broker)

    # --- processes

    def process(self, process: int, kind: TransitionKind, place: int, message: int) -> tuple[Move, ...]:
        """An input to a client leads to one state, or to one for each way that its script can decide."""
        key = (process, kind, place, message)
        found = self._of_process.get(key)
        if found is None:
            found = self._of_process[key] = self._react(process, kind, place, message)
            for mirror in self.mirrors:
                mirror.process_moved(process, kind, place, message, found)
        return found

    def _react(self, number: int, kind: TransitionKind, place: int, message: int) -> tuple[Move, ...]:
        self.taken += 1
        process = self.processes.taken(number)
        match kind:
            case TransitionKind.REPLY:
                reply = self.messages[message]
                assert isinstance(reply, ReplyInFlight), "a client receives replies only"
                ways = process.hear(PLACES[place], reply)
            case TransitionKind.BREAK:
                ways = process.lose(PLACES[place])
            case TransitionKind.GIVE_UP:
                # Each timeout uses one up: without a bound, worlds with retries would have no end.
                process.retries -= 1
                ways = process.lose(PLACES[place])
            case _:
                assert kind is TransitionKind.WAKE, "a client takes no other step"
                ways = process.wake()
        return tuple(self.keep_process(way) for way in ways)

    def keep_process(self, process: ExploredClient) -> Move:
        """The number of a client's state, and what it has just sent."""
        # Taken out before the state is numbered: what was sent is in the world, and no longer in the client.
        sent = tuple((PLACES.index(node), self.messages.number(question)) for node, question in process.sent)
        process.sent.clear()
        return self.processes.keep(process), sent
