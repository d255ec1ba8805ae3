"""Reports what happens in a world in the words of protocol points, to the listeners that wait for one.

Rule: it looks and never touches. A message is told of before it is taken, an append before or after it is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, cast

import attrs

from fencepost.broker.contract import Append, BecomeLeader
from fencepost.client.effects import TransactionCall
from fencepost.client.errors import (
    ClientError,
    CommitOutcomeUnknown,
    Failure,
    ProducerFenced,
    TransactionAborted,
)
from fencepost.faults.phrases import Point, PointKind, partition_named
from fencepost.protocol.batches import read_marker
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import API_BY_REQUEST
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    coordinator_partition,
)
from fencepost.protocol.transaction_log import read_transactions
from fencepost.simulator.world.events import (
    ActBegins,
    ActDone,
    CallEnded,
    Life,
    LifeChanged,
    MessageArriving,
    MessageSent,
    NodeStepped,
    RecordsRead,
    ReplyDiscarded,
)
from fencepost.simulator.world.network import Channel, Message, ReplyMessage, RequestMessage
from fencepost.simulator.world.nodes import SimulatedNode
from fencepost.simulator.world.world import World


class ProtocolEvent(NamedTuple):
    """One moment in the words of points. `node` is the node that is at work, `carried` the
    message that it is about; `is_between` is true when no node is at work.
    """

    kind: PointKind
    who: str
    what: str = ""
    whom: str = ""
    is_before: bool = False
    is_between: bool = False
    node: SimulatedNode | None = None
    carried: tuple[Channel, Message | None] | None = None


@attrs.define(eq=False)
class Listener:
    """Somebody who waits for a point: `hear` is called at the `point.number`-th time, and `times` - 1 times
    after.
    """

    point: Point
    hear: Callable[[ProtocolEvent], None]
    times: int = 1
    seen: int = 0
    is_over: bool = False


_CALLS: Final = {
    TransactionCall.INIT_TRANSACTIONS: "init",
    TransactionCall.COMMIT: "commit",
    TransactionCall.ABORT: "abort",
    TransactionCall.FLUSH: "flush",
}
_OUTCOMES: Final[dict[type[ClientError], str]] = {
    CommitOutcomeUnknown: "unknown",
    ProducerFenced: "fenced",
    TransactionAborted: "aborted",
}
_LIVES: Final = {change: PointKind[change.name] for change in Life}
SAME: Final = "~"  # between a name and the number of those who took its place


def outcome_of(failure: Failure | None) -> str:
    """How a call ended, in the word of points."""
    return "ok" if failure is None else _OUTCOMES.get(failure.kind, "failed")


@attrs.define(eq=False)
class ProtocolEvents:
    """Everybody who waits for something in a world, and what must be known to understand it."""

    world: World
    coordinators: int
    listeners: dict[PointKind, list[Listener]] = attrs.Factory(dict[PointKind, list[Listener]])
    leaders: dict[TopicPartition, SimulatedNode] = attrs.Factory(dict[TopicPartition, SimulatedNode])
    owners: dict[int, str] = attrs.Factory(dict[int, str])  # transactional ids by producer id
    looks_ahead: bool = False  # a listener waits for the moment before an append

    def attach(self) -> None:
        """From now on."""
        events = self.world.events
        events.subscribe(MessageSent, self._sent)
        events.subscribe(MessageArriving, self._arriving)
        events.subscribe(ReplyDiscarded, lambda event: self._replied(event.channel, event.message))
        events.subscribe(ActDone, self._act_done)
        events.subscribe(CallEnded, self._call_ended)
        events.subscribe(NodeStepped, self._stepped)
        events.subscribe(LifeChanged, self._life_changed)
        events.subscribe(RecordsRead, self._read)

    # --- waiting --------------------------------------------------------------------------------------------

    def listen(self, point: Point, hear: Callable[[ProtocolEvent], None], *, times: int = 1) -> Listener:
        """Call `hear` when this point is reached, counting from now on."""
        if point.is_before and not self.looks_ahead:
            self.looks_ahead = True
            self.world.events.subscribe(ActBegins, self._act_begins)
        listener = Listener(point, hear, times)
        self.listeners.setdefault(point.kind, []).append(listener)
        return listener

    def tell(self, event: ProtocolEvent) -> None:
        """Reports an event to the listeners that wait for it."""
        waiting = self.listeners.get(event.kind)
        if waiting is None:
            return
        for listener in list(waiting):
            if not listener.is_over and self._matches(listener.point, event):
                listener.seen += 1
                if listener.seen >= listener.point.number:
                    listener.is_over = listener.seen >= listener.point.number + listener.times - 1
                    listener.hear(event)

    def _matches(self, point: Point, event: ProtocolEvent) -> bool:
        return (
            point.is_before is event.is_before
            and point.means(event.what)
            and self._is(point.who, event.who)
            and (not point.whom or self._is(point.whom, event.whom))
        )

    def _is(self, named: str, participant: str) -> bool:
        """Whether a name in a scenario means who is at work here, or a predecessor of his."""
        return (
            named in (participant, participant.partition(SAME)[0]) or self.participant(named) == participant
        )

    def participant(self, name: str) -> str:
        """The node that a name like "coordinator of app" stands for now; any other name for itself."""
        node = self.leader_named(name)
        return name if node is None else node.participant

    def leader_named(self, name: str) -> SimulatedNode | None:
        """Who leads, or was the last to lead, what this name is about; None for other names."""
        return self.leaders.get(self.partition(name)) if " of " in name else None

    def partition(self, name: str) -> TopicPartition:
        """The partition that "coordinator of app", "leader of t-0" or "t-0" is about."""
        kind, of, subject = name.partition(" of ")
        if of and kind == "coordinator":
            return TopicPartition(TRANSACTION_STATE_TOPIC, coordinator_partition(subject, self.coordinators))
        return partition_named(subject if of else name)

    # --- messages -------------------------------------------------------------------------------------------

    def _sent(self, sent: MessageSent) -> None:
        channel, message = sent.channel, sent.message
        self._tell_of_message(channel, message, PointKind.SENDS, PointKind.SENDS_REPLY, is_between=False)
        if isinstance(message, ReplyMessage):
            self._replied(channel, message)

    def _replied(self, channel: Channel, answer: ReplyMessage) -> None:
        """A node gave an answer, whether anybody still waits for it or not."""
        if PointKind.ANSWERS in self.listeners:
            for name in errors_in(answer):
                self.tell(ProtocolEvent(PointKind.ANSWERS, channel.source, name, channel.target))

    def _arriving(self, arriving: MessageArriving) -> None:
        channel, message = arriving.channel, arriving.message
        self._tell_of_message(channel, message, PointKind.RECEIVES, PointKind.RECEIVES_REPLY, is_between=True)
        if isinstance(message, ReplyMessage) and PointKind.GETS in self.listeners:
            for name in errors_in(message):
                self.tell(
                    ProtocolEvent(PointKind.GETS, channel.target, name, channel.source, is_between=True)
                )

    def _tell_of_message(
        self, channel: Channel, message: Message, question: PointKind, answer: PointKind, *, is_between: bool
    ) -> None:
        kind = answer if isinstance(message, ReplyMessage) else question
        if kind not in self.listeners:
            return
        api = api_of(channel, message)
        if api is not None:
            who, whom = channel.source, channel.target
            if is_between:
                who, whom = whom, who
            self.tell(ProtocolEvent(kind, who, api, whom, is_between=is_between, carried=(channel, message)))

    # --- logs -----------------------------------------------------------------------------------------------

    def _act_begins(self, begins: ActBegins) -> None:
        if isinstance(begins.act, Append):
            for event in self._append_told(begins.act):
                self.tell(event._replace(is_before=True, node=begins.node))

    def _act_done(self, done: ActDone) -> None:
        if isinstance(done.act, Append):
            for event in self._append_told(done.act):
                self.tell(event._replace(node=done.node))

    def _append_told(self, append: Append) -> Iterator[ProtocolEvent]:
        where = append.partition
        if where.topic == TRANSACTION_STATE_TOPIC:
            for name, record in read_transactions(append.batch, append.header):
                if record is not None:
                    self.owners[record.producer_id] = name
                    yield ProtocolEvent(PointKind.DECIDES, f"coordinator of {name}", record.state.name)
            return
        owner = self.owners.get(append.header.producer_id, "")
        if append.header.is_control:
            result = read_marker(append.batch).result
            yield ProtocolEvent(PointKind.MARKS, str(where), result.name, owner)
        elif append.header.is_transactional or where.topic != CONSUMER_OFFSETS_TOPIC:
            yield ProtocolEvent(PointKind.STORES, str(where), whom=owner)

    # --- clients and leaders --------------------------------------------------------------------------------

    def _call_ended(self, ended: CallEnded) -> None:
        call, outcome = _CALLS[ended.resolved.operation], outcome_of(ended.resolved.failure)
        self.tell(ProtocolEvent(PointKind.ENDS_CALL, ended.process.participant, call, outcome))

    def _read(self, read: RecordsRead) -> None:
        for value in read.values:
            self.tell(ProtocolEvent(PointKind.READS, read.participant, value))

    def _life_changed(self, changed: LifeChanged) -> None:
        self.tell(ProtocolEvent(_LIVES[changed.change], changed.participant))

    def _stepped(self, step: NodeStepped) -> None:
        if isinstance(step.arrived, BecomeLeader):
            self.leaders[step.arrived.partition] = step.node


def api_of(channel: Channel, message: Message) -> str | None:
    """The name of the request that a message carries or answers; None if it does neither."""
    if isinstance(message, RequestMessage):
        return API_BY_REQUEST[type(message.request)].name
    if isinstance(message, ReplyMessage):
        api = channel.connection.api_of(message.token)
        return None if api is None else api.name
    return None


def errors_in(answer: ReplyMessage) -> list[str]:
    """The names of all errors that an answer carries, for all of it or for a partition, once each."""
    found = [answer.error, *_errors_of(answer.body)]
    return list(dict.fromkeys(code.name for code in found if code is not NO_ERROR))


def _errors_of(body: object) -> Iterator[ErrorCode]:
    """Every error in a reply's body, however deep: bodies are values of a few levels."""
    if isinstance(body, ErrorCode):
        yield body
    elif isinstance(body, tuple):
        for part in cast("tuple[object, ...]", body):
            yield from _errors_of(part)
    else:
        kind: type[object] = type(body)
        if attrs.has(kind):
            for field in attrs.fields(kind):
                yield from _errors_of(getattr(body, field.name))
