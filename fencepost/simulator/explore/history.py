"""A path through explored worlds as a history, so that the same pictures and tables show it.

Each step takes one virtual millisecond. The queues of a world hold numbers of messages, and equal messages
have equal numbers; here every message that leaves gets a number of its own. Look-ups of coordinators
(FindCoordinator) are left out, as in every picture.

Rule: the steps are looked up, not taken again; the changes are found by comparing states, as in trace.py.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Final

from fencepost.broker.contract import NODE
from fencepost.broker.leader_log import LeaderLog
from fencepost.broker.observer import UNAWAITED
from fencepost.broker.transactions.state import Transactions
from fencepost.protocol.batches import read_header
from fencepost.protocol.messages import API_BY_REQUEST, Request
from fencepost.protocol.terms import TopicPartition
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.simulator.explore.broker import REPLIES_TO_SELF, Message, ReplyInFlight, RequestInFlight
from fencepost.simulator.explore.steps import NO_MESSAGE, STRAY, TransitionKind, connection_of, whose
from fencepost.simulator.explore.trace import client_changes
from fencepost.simulator.explore.worlds import BROKER, FIRST_CLIENT, Transition, World, Worlds
from fencepost.simulator.world.history import (
    Arrived,
    Called,
    Coordinated,
    Event,
    History,
    Lost,
    Sent,
    Struck,
    moved,
    written,
)
from fencepost.simulator.world.labels import UNTOLD, reply_label, request_label
from fencepost.simulator.world.participants import NS_PER_MS

BROKER_NAME: Final = "node 1"

Travelling = deque[int | None]
"""The messages on one connection in one direction, oldest first; None for one that is left out."""


class PathWatch:
    """Watches a path while its history is made; this one looks away."""

    def starts(self, told: ExploredHistory, root: World) -> None:
        """Before the first event."""

    def reached(self, broker: int, connection: int, message: int, began: int) -> None:
        """The broker in this state took a message, or crashed (NO_MESSAGE); `began` is the place of the first
        event of that.
        """

    def sent(self, number: int, message: Message) -> None:
        """A message got this number; its event is the last one."""


class ExploredHistory:
    """Follows a path step by step; `events` is what has happened so far."""

    def __init__(self, worlds: Worlds, root: World, watch: PathWatch) -> None:
        self.worlds, self.steps, self.watch = worlds, worlds.steps, watch
        self.events: list[Event] = []
        self.now = 0
        self.last_number = 0
        self.out: dict[int, Travelling] = defaultdict(deque)
        """Requests by connection; those of a connection that was given up stay there until they arrive."""
        self.back: dict[int, Travelling] = defaultdict(deque)
        self.stray: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
        """The connections that were given up, by client and the messages that are left on them."""
        self.asked: dict[tuple[int, int], tuple[int | None, type[Request]]] = {}
        """The request of a slot, by connection."""
        self.bounds: dict[TopicPartition, tuple[int, int]] = {}
        watch.starts(self, root)
        for client in range(worlds.clients):
            at = FIRST_CLIENT + 2 * client
            if self.steps.processes[root[at]].attempts:
                self._call(client, ["begin"])
            for place, queue in enumerate(self.steps.wires[root[at + 1]].lines):
                self._request(client, place, 0, queue.outgoing)

    def history(self, title: str, broken: tuple[str, ...]) -> History:
        """Everything so far."""
        clients = tuple(f"p{client}" for client in range(self.worlds.clients))
        return History(
            title=title,
            participants=(*clients, BROKER_NAME),
            events=tuple(self.events),
            end=self.now,
            broken=broken,
        )

    def step(self, before: World, action: Transition, after: World) -> None:
        """Add what one step did."""
        self.now += NS_PER_MS
        match action.kind:
            case TransitionKind.REQUEST:
                at = FIRST_CLIENT + 2 * action.client
                generation = self.steps.wires[before[at + 1]].lines[action.place].generation
                connection = connection_of(action.client, action.place, generation, self.worlds.clients)
                self._reach_broker(before, after, connection, action.message, self.out[connection].popleft())
            case TransitionKind.STRAY:
                number = self._take_stray(before, action)
                self._reach_broker(before, after, STRAY, action.message, number, late_of=action.client)
            case TransitionKind.REQUEST_TO_SELF:
                self._reach_broker(before, after, NODE, action.message, self.out[NODE].popleft())
            case TransitionKind.REPLY_TO_SELF:
                self._reach_broker(before, after, REPLIES_TO_SELF, action.message, self.back[NODE].popleft())
            case TransitionKind.CRASH:
                self._crash(before, after)
            case _:
                self._client(before, action, after)

    # --- the broker

    def _reach_broker(
        self,
        before: World,
        after: World,
        connection: int,
        message: int,
        number: int | None,
        *,
        late_of: int | None = None,
    ) -> None:
        """A message reaches the broker, which changes and sends others."""
        began = len(self.events)
        if number is not None:
            self.events.append(Arrived(self.now, number=number))
        self._broker_steps(before, after, connection, message)
        error = self.steps.late_replies.get((before[BROKER], message))
        question = self.steps.messages[message]
        if late_of is not None and error is not None and isinstance(question, RequestInFlight):
            label = reply_label(API_BY_REQUEST[type(question.request)], error, None)
            reply = self._leave(BROKER_NAME, f"p{late_of}", label, answers=number)
            self._lose(reply, UNAWAITED)
        self.watch.reached(before[BROKER], connection, message, began)

    def _broker_steps(self, before: World, after: World, connection: int, message: int) -> None:
        _, posted = self.steps.broker(before[BROKER], connection, message)
        self._broker_changes(before[BROKER], after[BROKER])
        for where, sent in posted:
            self._post(after, where, sent)

    def _post(self, after: World, where: int, sent: int) -> None:
        """A message leaves the broker; no one hears a reply on a connection that is gone."""
        message = self.steps.messages[sent]
        if isinstance(message, RequestInFlight):
            label = request_label(message.request)
            number = self._leave(BROKER_NAME, BROKER_NAME, label, message=message)
            self.out[NODE].append(number)
            self.asked[NODE, message.slot] = number, type(message.request)
            return
        if where == REPLIES_TO_SELF:
            self.back[NODE].append(self._reply(NODE, message, BROKER_NAME))
            return
        client, place, generation = whose(where, self.worlds.clients)
        number = self._reply(where, message, f"p{client}")
        line = self.steps.wires[after[FIRST_CLIENT + 2 * client + 1]].lines[place]
        if line.generation == generation and not line.is_broken:
            self.back[where].append(number)
        else:
            self._lose(number, UNAWAITED)

    def _lose(self, number: int | None, because: str) -> None:
        if number is not None:
            self.events.append(Lost(self.now, number=number, because=because))

    def _reply(self, connection: int, message: ReplyInFlight, target: str) -> int | None:
        answers, asked = self.asked[connection, message.slot]
        if answers is None:
            return None
        label = reply_label(API_BY_REQUEST[asked], message.error, message.body)
        return self._leave(BROKER_NAME, target, label, answers=answers, message=message)

    def _crash(self, before: World, after: World) -> None:
        began = len(self.events)
        self.events.append(Struck(self.now, participant=BROKER_NAME, label="crash"))
        for queue in (*self.out.values(), *self.back.values()):
            for number in queue:
                self._lose(number, "the broker crashed")
            queue.clear()
        self.stray.clear()
        self.events.append(Struck(self.now, participant=BROKER_NAME, label="restart"))
        self._broker_steps(before, after, STRAY, NO_MESSAGE)
        self.watch.reached(before[BROKER], STRAY, NO_MESSAGE, began)

    def _broker_changes(self, before: int, after: int) -> None:
        """The states of transactions, the batches and the bounds that are new."""
        old, new = self.steps.brokers[before], self.steps.brokers[after]
        known = dict(_records(old.node.logs.values()))
        for name, record in _records(new.node.logs.values()):
            if record != known.get(name):
                self.events.append(
                    Coordinated(at=self.now, node=BROKER_NAME, transactional_id=name, record=record)
                )
        for where in new.written_partitions():
            for batch in new.logs[where][len(old.logs.get(where, ())) :]:
                self.events += written(self.now, BROKER_NAME, where, read_header(batch), batch)
            led = new.node.logs.get(where)
            if led is not None:
                self.events += moved(self.now, BROKER_NAME, led.partition, self.bounds)

    # --- clients

    def _client(self, before: World, action: Transition, after: World) -> None:
        """A client takes a reply, or does something without one."""
        at, clients = FIRST_CLIENT + 2 * action.client, self.worlds.clients
        old, new = self.steps.wires[before[at + 1]], self.steps.wires[after[at + 1]]
        line = old.lines[action.place]
        connection = connection_of(action.client, action.place, line.generation, clients)
        if action.kind is TransitionKind.REPLY:
            number = self.back[connection].popleft()
            if number is not None:
                self.events.append(Arrived(self.now, number=number))
        elif action.kind is TransitionKind.GIVE_UP:
            self._call(action.client, ["gives up a connection"])
            for number in self.back.pop(connection, ()):
                self._lose(number, UNAWAITED)
            if line.outgoing:
                self.stray[action.client, line.outgoing].append(connection)
        changes = client_changes(self.steps.processes[before[at]], self.steps.processes[after[at]])
        self._call(action.client, changes)
        ways = self.steps.process(before[at], action.kind, action.place, action.message)
        for place, message in ways[action.way][1]:
            self._request(action.client, place, new.lines[place].generation, (message,))

    def _request(self, client: int, place: int, generation: int, messages: Iterable[int]) -> None:
        connection = connection_of(client, place, generation, self.worlds.clients)
        for message in messages:
            question = self.steps.messages[message]
            assert isinstance(question, RequestInFlight), "clients send requests only"
            is_told = type(question.request).__name__ not in UNTOLD
            label = request_label(question.request)
            number = self._leave(f"p{client}", BROKER_NAME, label, message=question) if is_told else None
            self.out[connection].append(number)
            self.asked[connection, question.slot] = number, type(question.request)

    def _take_stray(self, before: World, action: Transition) -> int | None:
        """The number of a request that arrives late. If several abandoned connections hold the same requests,
        it is taken from the oldest.
        """
        at = FIRST_CLIENT + 2 * action.client
        left = self.steps.wires[before[at + 1]].strays[action.place]
        connection = self.stray[action.client, left].pop(0)
        if left[1:]:
            self.stray[action.client, left[1:]].append(connection)
        return self.out[connection].popleft()

    def _call(self, client: int, labels: Iterable[str]) -> None:
        self.events += [Called(self.now, participant=f"p{client}", label=label) for label in labels]

    def _leave(
        self,
        source: str,
        target: str,
        label: str,
        *,
        answers: int | None = None,
        message: Message | None = None,
    ) -> int:
        self.last_number += 1
        self.events.append(
            Sent(
                self.now, number=self.last_number, source=source, target=target, label=label, answers=answers
            )
        )
        if message is not None:
            self.watch.sent(self.last_number, message)
        return self.last_number


def _records(logs: Iterable[LeaderLog]) -> Iterable[tuple[str, TransactionRecord]]:
    """The state of each transactional id at its coordinator."""
    for log in logs:
        if isinstance(log.coordinator, Transactions):
            yield from log.coordinator.records.items()


def history_of(
    worlds: Worlds,
    root: World,
    path: Iterable[tuple[Transition, World]],
    *,
    title: str,
    broken: tuple[str, ...],
    watch: PathWatch,
) -> History:
    told, here = ExploredHistory(worlds, root, watch), root
    for action, world in path:
        told.step(here, action, world)
        here = world
    return told.history(title, broken)
