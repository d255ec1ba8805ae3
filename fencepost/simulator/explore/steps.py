"""The local steps of an explored world, each taken once by the real core and then looked up.

Rule: what one actor does depends on its own state and on what reaches it, on nothing else; so a step is a
pair of numbers, and a world of thousands of states needs the cores only for the few that differ.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

from fencepost.broker.contract import NOBODY
from fencepost.protocol.errors import ErrorCode
from fencepost.simulator.explore.broker import Answer, Broker, Message, Posted
from fencepost.simulator.explore.connections import PLACES, Inner, Wires
from fencepost.simulator.explore.interning import Interned, States
from fencepost.simulator.explore.process import Process

NO_MESSAGE: Final = -1
STRAY: Final = NOBODY.connection


class Event(IntEnum):
    """What reaches a process."""

    HEARS = 0
    LOSES = 1
    GIVES_UP = 2
    WAKES = 3


Routed = tuple[int, int]
"""Where a message goes, and its number."""
BrokerMove = tuple[int, tuple[Routed, ...]]
ProcessMove = tuple[int, tuple[Routed, ...]]


class Mirroring(Protocol):
    """Who wants every step to be taken in the mirror, too."""

    def broker_moved(self, broker: int, connection: int, message: int, move: BrokerMove) -> None: ...

    def process_moved(
        self, process: int, event: Event, place: int, message: int, ways: tuple[ProcessMove, ...]
    ) -> None: ...


class Steps:
    """Every local state that was met, and what came of every step that was taken in it."""

    def __init__(self) -> None:
        self.brokers: States[Broker] = States()
        self.processes: States[Process] = States()
        self.messages: Interned[Message] = Interned()
        self.wires: Interned[Wires] = Interned()
        self.inners: Interned[Inner] = Interned()
        self._of_broker: dict[tuple[int, int, int], BrokerMove] = {}
        self._of_process: dict[tuple[int, Event, int, int], tuple[ProcessMove, ...]] = {}
        self.late_answers: dict[tuple[int, int], ErrorCode] = {}
        """What the broker would have answered at once, in which state, to which message that came late."""
        self.mirrors: list[Mirroring] = []
        self.taken = 0

    # --- the broker

    def broker(self, broker: int, connection: int, message: int) -> BrokerMove:
        """A message arrives at the broker; NO_MESSAGE: it dies and starts again."""
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
            if where == STRAY and isinstance(answer, Answer) and connection == STRAY:
                self.late_answers[number, message] = answer.error
        return self.keep_broker(broker), self._routed(posted)

    def deliver(self, broker: Broker, connection: int, message: int) -> list[Posted]:
        """What the broker itself does with a message; this changes it."""
        if message == NO_MESSAGE:
            return broker.restart()
        arrived = self.messages[message]
        if isinstance(arrived, Answer):
            return broker.hear(arrived)
        # nobody hears the answer: its number is all the same
        slot = 0 if connection == STRAY else arrived.slot
        return broker.receive(arrived._replace(slot=slot), connection)

    def keep_broker(self, broker: Broker) -> int:
        """The number of this state of the broker."""
        return self.brokers.keep(broker)

    def _routed(self, posted: list[Posted]) -> tuple[Routed, ...]:
        return tuple(
            (where, self.messages.number(message, message)) for where, message in posted if where != STRAY
        )

    # --- processes

    def process(self, process: int, event: Event, place: int, message: int) -> tuple[ProcessMove, ...]:
        """What reaches a process leads to one state, or to one for each way that its script can decide."""
        key = (process, event, place, message)
        found = self._of_process.get(key)
        if found is None:
            found = self._of_process[key] = self._react(process, event, place, message)
            for mirror in self.mirrors:
                mirror.process_moved(process, event, place, message, found)
        return found

    def _react(self, number: int, event: Event, place: int, message: int) -> tuple[ProcessMove, ...]:
        self.taken += 1
        process = self.processes.taken(number)
        match event:
            case Event.HEARS:
                answer = self.messages[message]
                assert isinstance(answer, Answer), "a client is asked nothing"
                ways = process.hear(PLACES[place], answer)
            case Event.LOSES:
                ways = process.lose(PLACES[place])
            case Event.GIVES_UP:
                process.retries -= 1
                ways = process.lose(PLACES[place])
            case Event.WAKES:
                ways = process.wake()
        return tuple(self.keep_process(way) for way in ways)

    def keep_process(self, process: Process) -> ProcessMove:
        """The number of this state of a process, and what it has just sent."""
        sent = tuple(
            (PLACES.index(node), self.messages.number(question, question)) for node, question in process.sent
        )
        process.sent.clear()
        return self.processes.keep(process), sent
