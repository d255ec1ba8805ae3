"""A path through explored worlds told in words, and as the history that pictures are made of.

Rule: the path is walked once more over the steps that the search took; nothing is told that did not happen
there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import attrs

from fencepost.broker.contract import NODE
from fencepost.protocol.messages import Request
from fencepost.simulator.explore import changes
from fencepost.simulator.explore.broker import ANSWERS, Question
from fencepost.simulator.explore.changes import BROKER_LANE
from fencepost.simulator.explore.connections import PLACES, Wires, connection_of, whose
from fencepost.simulator.explore.steps import NO_MESSAGE, STRAY, Event, Routed
from fencepost.simulator.explore.wording import answer_words, request_words, role_of
from fencepost.simulator.explore.worlds import BROKER, FIRST_CLIENT, Action, Kind, World, Worlds
from fencepost.simulator.world.history import Arrived, Called, History, Lost, Sent, Struck
from fencepost.simulator.world.history import Event as Happening

STEP_NS: Final = 1_000_000  # steps take no time: a picture puts them a millisecond apart
ORDINALS: Final = ("first", "second", "third", "fourth")


@attrs.frozen
class TraceStep:
    """One step of a trace: what happened, in words."""

    label: str
    kind: Kind = attrs.field(kw_only=True)


@attrs.frozen(kw_only=True)
class Flying:
    """A message on its way: its number in the history, and the request that it is, or that it answers."""

    number: int
    request: Request
    words: str
    message: int = NO_MESSAGE
    generation: int = 0


Queue = deque[Flying]


class Telling:
    """A path as it is told: where each message is, step by step."""

    def __init__(self, worlds: Worlds, root: World) -> None:
        self.worlds, self.world = worlds, root
        self.at = 0
        self.events: list[Happening] = []
        self.steps: tuple[TraceStep, ...] = ()
        self._sent = 0
        clients = range(worlds.clients)
        lines = [(client, place) for client in clients for place in range(len(PLACES))]
        self._outgoing: dict[tuple[int, int], Queue] = {line: deque() for line in lines}
        self._incoming: dict[tuple[int, int], Queue] = {line: deque() for line in lines}
        self._strays: dict[int, list[Queue]] = {client: [] for client in clients}
        self._inner: dict[int, Queue] = {NODE: deque(), ANSWERS: deque()}
        self._asked: dict[tuple[int, int], Flying] = {}  # by connection and slot
        for client in clients:
            wires = self._wires(root, client)
            began = [(place, m) for place, line in enumerate(wires.lines) for m in line.outgoing]
            self._send(client, began, wires)

    def history(self, title: str) -> History:
        """All that was told so far."""
        participants = (*(self._name(client) for client in range(self.worlds.clients)), BROKER_LANE)
        return History(
            title=title, participants=participants, events=tuple(self.events), end=self.at + STEP_NS
        )

    def step(self, action: Action, after: World) -> TraceStep:
        """One step on, in words."""
        self.at += STEP_NS
        before = self.world
        match action.kind:
            case Kind.REQUEST | Kind.STRAY:
                label = self._to_broker(action)
            case Kind.ASK_SELF | Kind.ANSWER_SELF:
                label = self._to_self(action)
            case Kind.CRASH:
                label = self._crash()
            case _:
                label = self._to_client(action, after)
        steps = self.worlds.steps
        self.events += changes.of_broker(steps.brokers[before[BROKER]], steps.brokers[after[BROKER]], self.at)
        label += self._told(before, after)
        self.world = after
        return TraceStep(label, kind=action.kind)

    # --- what a step is in words

    def _to_broker(self, action: Action) -> str:
        client, place = action.client, action.place
        wires = self._wires(self.world, client)
        if action.kind is Kind.STRAY:
            messages = wires.strays[place]
            queue = next(q for q in self._strays[client] if tuple(f.message for f in q) == messages)
            connection, late = STRAY, " late"
        else:
            queue = self._outgoing[client, place]
            connection, late = (
                connection_of(client, place, wires.lines[place].generation, self.worlds.clients),
                "",
            )
        flying = self._arrive(queue)
        if not queue and queue in self._strays[client]:
            self._strays[client].remove(queue)
        _, posted = self.worlds.steps.broker(self.world[BROKER], connection, action.message)
        if connection != STRAY:
            self._asked[connection, self._slot(action.message)] = flying
        self._post(posted)
        which = self._which(flying, wires)
        return f"{flying.words} of {self._name(client)} reaches {role_of(flying.request)}{late}{which}"

    def _which(self, flying: Flying, wires: Wires) -> str:
        """The connection, for a client that has had more than one."""
        if not any(line.generation for line in wires.lines):
            return ""
        return f" ({_ordinal(flying.generation)} connection)"

    def _to_self(self, action: Action) -> str:
        where = NODE if action.kind is Kind.ASK_SELF else ANSWERS
        flying = self._arrive(self._inner[where])
        _, posted = self.worlds.steps.broker(self.world[BROKER], where, action.message)
        if where == NODE:
            self._asked[NODE, self._slot(action.message)] = flying
            self._post(posted)
            return f"{flying.words} reaches {role_of(flying.request)}"
        self._post(posted)
        return f"the answer to {request_words(flying.request)} comes back: {flying.words}"

    def _crash(self) -> str:
        _, posted = self.worlds.steps.broker(self.world[BROKER], STRAY, NO_MESSAGE)
        everywhere = [*self._outgoing.values(), *self._incoming.values(), *self._inner.values()]
        for queue in (*everywhere, *(q for queues in self._strays.values() for q in queues)):
            self._lose(queue, "the broker died")
        self._strays = {client: [] for client in self._strays}
        self._asked.clear()
        self.events.append(Struck(self.at, participant=BROKER_LANE, label="crash"))
        self.events.append(Struck(self.at, participant=BROKER_LANE, label="restart"))
        self._post(posted)
        return "the broker dies and starts again"

    def _to_client(self, action: Action, after: World) -> str:
        client, place, name = action.client, action.place, self._name(action.client)
        if action.kind is Kind.ANSWER:
            flying = self._arrive(self._incoming[client, place])
            label, event = f"{name} hears {flying.words} for {request_words(flying.request)}", Event.HEARS
        elif action.kind is Kind.WAKE:
            label, event = f"a pause of {name} is over", Event.WAKES
        else:
            event = Event.GIVES_UP if action.kind is Kind.GIVE_UP else Event.LOSES
            label = self._leave(client, place, event)
        ways = self.worlds.steps.process(self.world[FIRST_CLIENT + 2 * client], event, place, action.message)
        self._send(client, ways[action.way][1], self._wires(after, client))
        return label

    def _leave(self, client: int, place: int, event: Event) -> str:
        """The client forgets a connection; what it sent there may still arrive, unless the broker is gone."""
        name = self._name(client)
        if self._outgoing[client, place]:
            self._strays[client].append(self._outgoing[client, place])
            self._outgoing[client, place] = deque()
        self._lose(self._incoming[client, place], f"{name} gave up the connection")
        if event is Event.LOSES:
            return f"{name} learns that its connection broke"
        ordinal = _ordinal(self._wires(self.world, client).lines[place].generation)
        self.events.append(Struck(self.at, participant=name, label=f"gives up its {ordinal} connection"))
        return f"{name} waits no longer and gives up its {ordinal} connection"

    def _told(self, before: World, after: World) -> str:
        """What the scripts did in this step."""
        words: list[str] = []
        steps = self.worlds.steps
        for client in range(self.worlds.clients):
            at = FIRST_CLIENT + 2 * client
            told = changes.of_process(steps.processes[before[at]], steps.processes[after[at]])
            self.events += [Called(self.at, participant=self._name(client), label=label) for label in told]
            words += told
        return f" [{', '.join(words)}]" if words else ""

    # --- messages

    def _name(self, client: int) -> str:
        return self.worlds.steps.processes[self.world[FIRST_CLIENT + 2 * client]].name

    def _wires(self, world: World, client: int) -> Wires:
        return self.worlds.steps.wires[world[FIRST_CLIENT + 2 * client + 1]]

    def _slot(self, message: int) -> int:
        return self.worlds.steps.messages[message].slot

    def _arrive(self, queue: Queue) -> Flying:
        flying = queue.popleft()
        self.events.append(Arrived(self.at, flying.number))
        return flying

    def _lose(self, queue: Queue, because: str) -> None:
        while queue:
            self.events.append(Lost(self.at, queue.popleft().number, because=because))

    def _send(self, client: int, sent: Iterable[Routed], wires: Wires) -> None:
        """A client's requests leave, on the connections that it has now."""
        for place, message in sent:
            question = self.worlds.steps.messages[message]
            assert isinstance(question, Question), "a client answers nothing"
            words = request_words(question.request)
            number = self._new(self._name(client), BROKER_LANE, words)
            self._outgoing[client, place].append(
                Flying(
                    number=number,
                    message=message,
                    request=question.request,
                    words=words,
                    generation=wires.lines[place].generation,
                )
            )

    def _post(self, posted: Iterable[Routed]) -> None:
        """What the broker sends leaves: to a client, or to itself."""
        for where, message in posted:
            sent = self.worlds.steps.messages[message]
            if isinstance(sent, Question):
                words = request_words(sent.request)
                number = self._new(BROKER_LANE, BROKER_LANE, words)
                self._inner[NODE].append(Flying(number=number, request=sent.request, words=words))
                continue
            asked = self._asked.pop((NODE if where == ANSWERS else where, sent.slot))
            words = answer_words(sent.error, sent.body)
            if where == ANSWERS:
                number = self._new(BROKER_LANE, BROKER_LANE, words, answers=asked.number)
                self._inner[ANSWERS].append(Flying(number=number, request=asked.request, words=words))
            else:
                self._answer(where, asked, words)

    def _answer(self, connection: int, asked: Flying, words: str) -> None:
        client, place, generation = whose(connection, self.worlds.clients)
        name = self._name(client)
        number = self._new(BROKER_LANE, name, words, answers=asked.number)
        line = self._wires(self.world, client).lines[place]
        if line.generation == generation and not line.is_broken:
            self._incoming[client, place].append(Flying(number=number, request=asked.request, words=words))
        else:
            self.events.append(Lost(self.at, number, because=f"{name} gave up the connection"))

    def _new(self, source: str, target: str, label: str, answers: int | None = None) -> int:
        self._sent += 1
        self.events.append(
            Sent(self.at, number=self._sent, source=source, target=target, label=label, answers=answers)
        )
        return self._sent


def _ordinal(generation: int) -> str:
    return ORDINALS[min(generation, len(ORDINALS) - 1)]


def tell(worlds: Worlds, root: World, path: Iterable[tuple[Action, World]]) -> Telling:
    """The telling of a whole path from `root`."""
    telling = Telling(worlds, root)
    telling.steps = tuple(telling.step(action, world) for action, world in path)
    return telling
