"""Steps of the actors by number: each is taken once by the real core and then looked up.

Rule: what an actor does depends on its own state and on what reaches it, and on nothing else. Equal
fingerprints get the same number, and the first state with a fingerprint stands for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import IntEnum
from typing import Final, Generic, Protocol, TypeVar

from fencepost.broker.contract import NOBODY
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint, fork
from fencepost.simulator.explore.broker import ExploredBroker, Message, Posted, ReplyInFlight
from fencepost.simulator.explore.connections import PLACES, ClientConnections, LoopbackQueues
from fencepost.simulator.explore.process import ExploredClient

ValueT = TypeVar("ValueT")
StateT = TypeVar("StateT")


class Interned(Generic[ValueT]):
    """Values by number, in the order in which their keys were first seen."""

    __slots__ = ("_numbers", "values")

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.values: list[ValueT] = []

    def number(self, key: Hashable, value: ValueT) -> int:
        """The number of `key`; the first value of a key is kept."""
        found = self._numbers.setdefault(key, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found

    def __getitem__(self, number: int) -> ValueT:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)


class States(Interned[StateT]):
    """States of an actor by number. The first state of a number is the one to read, and is never changed; a
    step may use up a later one instead of a fork, since states with equal fingerprints act alike.
    """

    __slots__ = ("_doubles",)

    def __init__(self) -> None:
        super().__init__()
        self._doubles: dict[int, StateT] = {}

    def keep(self, state: StateT) -> int:
        """The number of a state. Most steps lead to a known one; its double saves the next step a fork."""
        number = self.number(fingerprint(state), state)
        if self.values[number] is not state:
            self._doubles[number] = state
        return number

    def taken(self, number: int) -> StateT:
        """A state of that number, for the caller to change."""
        double = self._doubles.pop(number, None)
        return fork(self.values[number]) if double is None else double


NO_MESSAGE: Final = -1
STRAY: Final = NOBODY.connection


class ClientInput(IntEnum):
    """What reaches a client."""

    HEARS = 0
    LOSES = 1
    GIVES_UP = 2
    WAKES = 3


Routed = tuple[int, int]
"""The destination of a message, and its number."""
BrokerMove = tuple[int, tuple[Routed, ...]]
ProcessMove = tuple[int, tuple[Routed, ...]]


class StepObserver(Protocol):
    """Takes the mirror image of every step."""

    def broker_moved(self, broker: int, connection: int, message: int, move: BrokerMove) -> None: ...

    def process_moved(
        self, process: int, event: ClientInput, place: int, message: int, ways: tuple[ProcessMove, ...]
    ) -> None: ...


class Steps:
    """Every state of an actor that was met, and the result of every step taken from it."""

    def __init__(self) -> None:
        self.brokers: States[ExploredBroker] = States()
        self.processes: States[ExploredClient] = States()
        self.messages: Interned[Message] = Interned()
        self.wires: Interned[ClientConnections] = Interned()
        self.inners: Interned[LoopbackQueues] = Interned()
        self._of_broker: dict[tuple[int, int, int], BrokerMove] = {}
        self._of_process: dict[tuple[int, ClientInput, int, int], tuple[ProcessMove, ...]] = {}
        self.late_answers: dict[tuple[int, int], ErrorCode] = {}
        """The broker's answers to late messages, by the state it was in and the message. No client hears
        them.
        """
        self.mirrors: list[StepObserver] = []
        self.taken = 0

    # --- the broker

    def broker(self, broker: int, connection: int, message: int) -> BrokerMove:
        """A message reaches the broker; NO_MESSAGE: it crashes and restarts."""
        key = (broker, connection, message)
        found = self._of_broker.get(key)
        if found is None:
            found = self._of_broker[key] = self._take(broker, connection, message)
            for mirror in self.mirrors:
                mirror.broker_moved(broker, connection, message, found)
        return found

    def _take(self, number: int, connection: int, message: int) -> BrokerMove:
        self.taken += 1
        broker = self.brokers.taken(number)
        posted = self.deliver(broker, connection, message)
        for where, answer in posted:
            if where == STRAY and isinstance(answer, ReplyInFlight) and connection == STRAY:
                self.late_answers[number, message] = answer.error
        return self.keep_broker(broker), self._routed(posted)

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

    def _routed(self, posted: list[Posted]) -> tuple[Routed, ...]:
        return tuple(
            (where, self.messages.number(message, message)) for where, message in posted if where != STRAY
        )

    # --- processes

    def process(self, process: int, event: ClientInput, place: int, message: int) -> tuple[ProcessMove, ...]:
        """An input to a client leads to one state, or to one for each way that its script can decide."""
        key = (process, event, place, message)
        found = self._of_process.get(key)
        if found is None:
            found = self._of_process[key] = self._react(process, event, place, message)
            for mirror in self.mirrors:
                mirror.process_moved(process, event, place, message, found)
        return found

    def _react(self, number: int, event: ClientInput, place: int, message: int) -> tuple[ProcessMove, ...]:
        self.taken += 1
        process = self.processes.taken(number)
        match event:
            case ClientInput.HEARS:
                answer = self.messages[message]
                assert isinstance(answer, ReplyInFlight), "a client receives replies only"
                ways = process.hear(PLACES[place], answer)
            case ClientInput.LOSES:
                ways = process.lose(PLACES[place])
            case ClientInput.GIVES_UP:
                process.retries -= 1
                ways = process.lose(PLACES[place])
            case ClientInput.WAKES:
                ways = process.wake()
        return tuple(self.keep_process(way) for way in ways)

    def keep_process(self, process: ExploredClient) -> ProcessMove:
        """The number of a client's state, and what it has just sent."""
        sent = tuple(
            (PLACES.index(node), self.messages.number(question, question)) for node, question in process.sent
        )
        process.sent.clear()
        return self.processes.keep(process), sent
