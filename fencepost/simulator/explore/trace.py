"""A path through explored worlds as text and as the history that pictures are drawn from.

Rule: the path is replayed over the steps that the search took. Changes are found by comparing the states
before and after a step; the cores do not report them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from fencepost.broker.contract import NODE
from fencepost.broker.transactions.state import Transactions
from fencepost.protocol.batches import read_header, read_marker
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import (
    AddPartitionsToTxn,
    AddPartitionsToTxnReply,
    EndTxn,
    EndTxnReply,
    InitProducerId,
    InitProducerIdReply,
    Produce,
    ProduceReply,
    ReplyBody,
    Request,
    WriteTxnMarkers,
    WriteTxnMarkersReply,
)
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import TopicPartition, TransactionResult
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.simulator.explore.broker import ANSWERS, ExploredBroker, RequestInFlight
from fencepost.simulator.explore.connections import PLACES, ClientConnections, connection_of, whose
from fencepost.simulator.explore.process import TOPIC, ExploredClient, TransactionOutcome
from fencepost.simulator.explore.steps import NO_MESSAGE, STRAY, ClientInput, Routed
from fencepost.simulator.explore.worlds import BROKER, FIRST_CLIENT, Transition, TransitionKind, World, Worlds
from fencepost.simulator.world.history import (
    Appended,
    Arrived,
    Bounded,
    Called,
    Coordinated,
    History,
    Lost,
    Sent,
    Struck,
)
from fencepost.simulator.world.history import Event as HistoryEvent
from fencepost.simulator.world.labels import values_of

COORDINATED = (AddPartitionsToTxn, EndTxn, InitProducerId)


def request_words(request: Request) -> str:
    """`EndTxn commit (epoch 0)`, `Produce p0.1.0 to t-0`."""
    match request:
        case EndTxn():
            return f"EndTxn {request.result.name.lower()} (epoch {request.producer_epoch})"
        case Produce():
            parts = (
                f"{_values(part.records)} to {part.topic}-{part.partition}" for part in request.partitions
            )
            return f"Produce {', '.join(parts)}"
        case AddPartitionsToTxn():
            places = ", ".join(f"{part.topic}-{part.partition}" for part in request.partitions)
            return f"AddPartitionsToTxn {places}{' (verify only)' if request.verify_only else ''}"
        case WriteTxnMarkers():
            ends = (
                f"{marker.result.name.lower()} to {part.topic}-{part.partition}"
                for marker in request.markers
                for part in marker.partitions
            )
            return f"WriteTxnMarkers {', '.join(ends)}"
        case _:
            return type(request).__name__


def _values(batch: bytes | bytearray | memoryview) -> str:
    values = read_columns(batch, read_header(batch)).values
    return " ".join("-" if value is None else bytes(value).decode() for value in values)


def answer_words(error: ErrorCode, body: ReplyBody | None) -> str:
    """`NONE 4000/1`: the error, and the producer id and epoch where the reply has them."""
    match body:
        case EndTxnReply() | InitProducerIdReply():
            return f"{error.name} {body.producer_id}/{body.producer_epoch}"
        case ProduceReply() | AddPartitionsToTxnReply():
            return _worst(error, [part.error for part in body.partitions])
        case WriteTxnMarkersReply():
            return _worst(error, [part.error for marker in body.markers for part in marker.partitions])
        case _:
            return error.name


def _worst(error: ErrorCode, errors: list[ErrorCode]) -> str:
    return next((found.name for found in (error, *errors) if found is not NO_ERROR), NO_ERROR.name)


def role_of(request: Request) -> str:
    """The role of the broker that handles a request."""
    match request:
        case Produce():
            part = request.partitions[0]
            return f"the leader of {part.topic}-{part.partition}"
        case WriteTxnMarkers():
            part = request.markers[0].partitions[0]
            return f"the leader of {part.topic}-{part.partition}"
        case _:
            return "the coordinator" if isinstance(request, COORDINATED) else "the broker"


BROKER_LANE: Final = "broker"


def broker_changes(before: ExploredBroker, after: ExploredBroker, at: int) -> Iterator[HistoryEvent]:
    """Batches appended to the topic, bounds that moved, and transactions that changed state."""
    for key in sorted(after.logs_of(TOPIC)):
        for batch in _entered(key, before, after):
            yield _appended(key, batch, at)
        if _bounds(before, key) != _bounds(after, key):
            last_stable_offset, high_watermark = _bounds(after, key)
            yield Bounded(
                at=at, partition=key, last_stable_offset=last_stable_offset, high_watermark=high_watermark
            )
    known = _records(before)
    for name, record in sorted(_records(after).items(), key=lambda item: item[0]):
        if known.get(name) != record:
            yield Coordinated.of(name, record, at=at, node=BROKER_LANE)


def markers(before: ExploredBroker, after: ExploredBroker) -> Iterator[TransactionResult]:
    """The markers that a step appended to the topic."""
    for key in after.logs_of(TOPIC):
        for batch in _entered(key, before, after):
            if read_header(batch).is_control:
                yield read_marker(batch).result


def _entered(key: TopicPartition, before: ExploredBroker, after: ExploredBroker) -> tuple[bytes, ...]:
    return after.logs[key][len(before.logs.get(key, ())) :]


def _appended(key: TopicPartition, batch: bytes, at: int) -> Appended:
    header = read_header(batch)
    label = "" if header.is_control else values_of(batch)
    return Appended.of(key, header, batch, at=at, node=BROKER_LANE, label=label)


def _bounds(broker: ExploredBroker, key: TopicPartition) -> tuple[int, int]:
    log = broker.node.logs.get(key)
    return (0, 0) if log is None else (log.partition.last_stable_offset, log.partition.high_watermark)


def _records(broker: ExploredBroker) -> dict[str, TransactionRecord]:
    coordinators = (log.coordinator for log in broker.node.logs.values())
    return {
        name: record
        for above in coordinators
        if isinstance(above, Transactions)
        for name, record in above.records.items()
    }


def client_changes(before: ExploredClient, after: ExploredClient) -> list[str]:
    """What the script did and learned: "begin", "commit", "commit: ok"."""
    words: list[str] = []
    for number, attempt in enumerate(after.attempts):
        known = before.attempts[number] if number < len(before.attempts) else None
        if known is None:
            words.append("begin")
        if attempt.requested is not None and (known is None or known.requested is not attempt.requested):
            words.append(attempt.requested.name.lower())
        if attempt.outcome is not TransactionOutcome.OPEN and (
            known is None or known.outcome is not attempt.outcome
        ):
            assert attempt.requested is not None, "only what was ended has an outcome"
            told = "unknown" if attempt.outcome is TransactionOutcome.UNKNOWN else "ok"
            words.append(f"{attempt.requested.name.lower()}: {told}")
    if after.machine.is_over and not before.machine.is_over:
        failure = after.machine.failure
        words.append("over" if failure is None else f"over: {failure.kind.__name__}")
    return words


STEP_NS: Final = 1_000_000  # steps take no time; in pictures they are a millisecond apart
ORDINALS: Final = ("first", "second", "third", "fourth")


@attrs.frozen
class TraceStep:
    """One step of a trace, in words."""

    label: str
    kind: TransitionKind = attrs.field(kw_only=True)


@attrs.frozen(kw_only=True)
class MessageInFlight:
    """A message in flight: its number in the history, and the request that it is or answers."""

    number: int
    request: Request
    words: str
    message: int = NO_MESSAGE
    generation: int = 0


Queue = deque[MessageInFlight]


class TraceBuilder:
    """Builds a trace step by step; knows where each message is."""

    def __init__(self, worlds: Worlds, root: World) -> None:
        self.worlds, self.world = worlds, root
        self.at = 0
        self.events: list[HistoryEvent] = []
        self.steps: tuple[TraceStep, ...] = ()
        self._sent = 0
        clients = range(worlds.clients)
        lines = [(client, place) for client in clients for place in range(len(PLACES))]
        self._outgoing: dict[tuple[int, int], Queue] = {line: deque() for line in lines}
        self._incoming: dict[tuple[int, int], Queue] = {line: deque() for line in lines}
        self._strays: dict[int, list[Queue]] = {client: [] for client in clients}
        self._inner: dict[int, Queue] = {NODE: deque(), ANSWERS: deque()}
        self._asked: dict[tuple[int, int], MessageInFlight] = {}  # by connection and slot
        for client in clients:
            wires = self._wires(root, client)
            began = [(place, m) for place, line in enumerate(wires.lines) for m in line.outgoing]
            self._send(client, began, wires)

    def history(self, title: str) -> History:
        """The history so far."""
        participants = (*(self._name(client) for client in range(self.worlds.clients)), BROKER_LANE)
        return History(
            title=title, participants=participants, events=tuple(self.events), end=self.at + STEP_NS
        )

    def step(self, action: Transition, after: World) -> TraceStep:
        """Take one step, and describe it."""
        self.at += STEP_NS
        before = self.world
        match action.kind:
            case TransitionKind.REQUEST | TransitionKind.STRAY:
                label = self._to_broker(action)
            case TransitionKind.ASK_SELF | TransitionKind.ANSWER_SELF:
                label = self._to_self(action)
            case TransitionKind.CRASH:
                label = self._crash()
            case _:
                label = self._to_client(action, after)
        steps = self.worlds.steps
        self.events += broker_changes(steps.brokers[before[BROKER]], steps.brokers[after[BROKER]], self.at)
        label += self._told(before, after)
        self.world = after
        return TraceStep(label, kind=action.kind)

    # --- the description of a step

    def _to_broker(self, action: Transition) -> str:
        client, place = action.client, action.place
        wires = self._wires(self.world, client)
        if action.kind is TransitionKind.STRAY:
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

    def _which(self, flying: MessageInFlight, wires: ClientConnections) -> str:
        """Which connection, for a client that has had more than one."""
        if not any(line.generation for line in wires.lines):
            return ""
        return f" ({_ordinal(flying.generation)} connection)"

    def _to_self(self, action: Transition) -> str:
        where = NODE if action.kind is TransitionKind.ASK_SELF else ANSWERS
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

    def _to_client(self, action: Transition, after: World) -> str:
        client, place, name = action.client, action.place, self._name(action.client)
        if action.kind is TransitionKind.ANSWER:
            flying = self._arrive(self._incoming[client, place])
            label, event = (
                f"{name} hears {flying.words} for {request_words(flying.request)}",
                ClientInput.HEARS,
            )
        elif action.kind is TransitionKind.WAKE:
            label, event = f"a pause of {name} is over", ClientInput.WAKES
        else:
            event = ClientInput.GIVES_UP if action.kind is TransitionKind.GIVE_UP else ClientInput.LOSES
            label = self._leave(client, place, event)
        ways = self.worlds.steps.process(self.world[FIRST_CLIENT + 2 * client], event, place, action.message)
        self._send(client, ways[action.way][1], self._wires(after, client))
        return label

    def _leave(self, client: int, place: int, event: ClientInput) -> str:
        """The client forgets a connection; what it sent there may still arrive, unless the broker is gone."""
        name = self._name(client)
        if self._outgoing[client, place]:
            self._strays[client].append(self._outgoing[client, place])
            self._outgoing[client, place] = deque()
        self._lose(self._incoming[client, place], f"{name} gave up the connection")
        if event is ClientInput.LOSES:
            return f"{name} learns that its connection broke"
        ordinal = _ordinal(self._wires(self.world, client).lines[place].generation)
        self.events.append(Struck(self.at, participant=name, label=f"gives up its {ordinal} connection"))
        return f"{name} waits no longer and gives up its {ordinal} connection"

    def _told(self, before: World, after: World) -> str:
        """What the scripts did in this step, in brackets."""
        words: list[str] = []
        steps = self.worlds.steps
        for client in range(self.worlds.clients):
            at = FIRST_CLIENT + 2 * client
            told = client_changes(steps.processes[before[at]], steps.processes[after[at]])
            self.events += [Called(self.at, participant=self._name(client), label=label) for label in told]
            words += told
        return f" [{', '.join(words)}]" if words else ""

    # --- messages

    def _name(self, client: int) -> str:
        return self.worlds.steps.processes[self.world[FIRST_CLIENT + 2 * client]].name

    def _wires(self, world: World, client: int) -> ClientConnections:
        return self.worlds.steps.wires[world[FIRST_CLIENT + 2 * client + 1]]

    def _slot(self, message: int) -> int:
        return self.worlds.steps.messages[message].slot

    def _arrive(self, queue: Queue) -> MessageInFlight:
        flying = queue.popleft()
        self.events.append(Arrived(self.at, flying.number))
        return flying

    def _lose(self, queue: Queue, because: str) -> None:
        while queue:
            self.events.append(Lost(self.at, queue.popleft().number, because=because))

    def _send(self, client: int, sent: Iterable[Routed], wires: ClientConnections) -> None:
        """A client sends requests on its current connections."""
        for place, message in sent:
            question = self.worlds.steps.messages[message]
            assert isinstance(question, RequestInFlight), "a client sends requests only"
            words = request_words(question.request)
            number = self._new(self._name(client), BROKER_LANE, words)
            self._outgoing[client, place].append(
                MessageInFlight(
                    number=number,
                    message=message,
                    request=question.request,
                    words=words,
                    generation=wires.lines[place].generation,
                )
            )

    def _post(self, posted: Iterable[Routed]) -> None:
        """The broker sends messages to clients and to itself."""
        for where, message in posted:
            sent = self.worlds.steps.messages[message]
            if isinstance(sent, RequestInFlight):
                words = request_words(sent.request)
                number = self._new(BROKER_LANE, BROKER_LANE, words)
                self._inner[NODE].append(MessageInFlight(number=number, request=sent.request, words=words))
                continue
            asked = self._asked.pop((NODE if where == ANSWERS else where, sent.slot))
            words = answer_words(sent.error, sent.body)
            if where == ANSWERS:
                number = self._new(BROKER_LANE, BROKER_LANE, words, answers=asked.number)
                self._inner[ANSWERS].append(
                    MessageInFlight(number=number, request=asked.request, words=words)
                )
            else:
                self._answer(where, asked, words)

    def _answer(self, connection: int, asked: MessageInFlight, words: str) -> None:
        client, place, generation = whose(connection, self.worlds.clients)
        name = self._name(client)
        number = self._new(BROKER_LANE, name, words, answers=asked.number)
        line = self._wires(self.world, client).lines[place]
        if line.generation == generation and not line.is_broken:
            self._incoming[client, place].append(
                MessageInFlight(number=number, request=asked.request, words=words)
            )
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


def tell(worlds: Worlds, root: World, path: Iterable[tuple[Transition, World]]) -> TraceBuilder:
    """The trace of a whole path from `root`."""
    telling = TraceBuilder(worlds, root)
    telling.steps = tuple(telling.step(action, world) for action, world in path)
    return telling
