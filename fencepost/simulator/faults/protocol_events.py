"""Translates the events of a world into protocol points, and calls the listeners that wait for one.

Rule: it changes nothing in the world. A message is reported before the receiver processes it, an append
before or after it is written.
"""

# Theory of operation. A scenario names moments in words; the events of a world (world/events.py) become those
# moments here:
#
#     MessageSent        p sends EndTxn         node 1 sends EndTxn reply      node 1 answers PRODUCER_FENCED
#     MessageArriving    node 1 receives EndTxn p receives EndTxn reply        p gets PRODUCER_FENCED
#     ActBegins          before t-0 appends data                               only if a listener looks ahead
#     ActDone            t-0 appends COMMIT marker                             coordinator of app appends ...
#     CallEnded          commit of p is ok
#     LifeChanged        node 1 crashes         p starts
#     RecordsRead        c reads a
#
# Names are resolved when an event comes, not when a scenario is read: "leader of t-0" is another node after
# each move. What a real broker can name (broker/faults.py) it names with the same phrases.

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import attrs

from fencepost.broker.contract import Append, BecomeLeader
from fencepost.broker.faults import append_points, every_error
from fencepost.client.errors import (
    ClientError,
    CommitOutcomeUnknown,
    Failure,
    ProducerFenced,
    TransactionAborted,
)
from fencepost.faults.phrases import ANYONE, BROKER, Point, PointKind, partition_named
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, TopicPartition, coordinator_partition
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
from fencepost.simulator.world.network import Channel, Message, ReplyMessage
from fencepost.simulator.world.nodes import SimulatedNode
from fencepost.simulator.world.world import World


class ProtocolEvent(NamedTuple):
    """One event, in the terms of points: `who` did `what`, to `whom`. `node` is the node that is running,
    `carried` the message that the event is about; `is_between` is true while no node is running.
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
    """Calls `hear` when its point is reached for the `point.number`-th time, and `times` - 1 times after."""

    point: Point
    hear: Callable[[ProtocolEvent], None]
    times: int = 1
    seen: int = 0
    is_over: bool = False


_OUTCOMES: Final[dict[type[ClientError], str]] = {
    CommitOutcomeUnknown: "unknown",
    ProducerFenced: "fenced",
    TransactionAborted: "aborted",
}
_LIVES: Final = {change: PointKind[change.name] for change in Life}
SAME: Final = "~"  # p~2 is the second process in the role of p


def outcome_of(failure: Failure | None) -> str:
    """How a call ended, as points name it: ok, aborted, fenced, failed or unknown."""
    return "ok" if failure is None else _OUTCOMES.get(failure.kind, "failed")


@attrs.define(eq=False)
class ProtocolEvents:
    """The listeners of a world, and what is needed to match names: the leader of each partition, and the
    transactional id of each producer id.
    """

    world: World
    coordinators: int
    listeners: dict[PointKind, list[Listener]] = attrs.Factory(dict[PointKind, list[Listener]])
    leaders: dict[TopicPartition, SimulatedNode] = attrs.Factory(dict[TopicPartition, SimulatedNode])
    owners: dict[int, str] = attrs.Factory(dict[int, str])  # transactional ids by producer id
    looks_ahead: bool = False  # a listener waits for the moment before an append

    def attach(self) -> None:
        """Subscribe to the world."""
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
            # Few listeners need it, and it slows down every act of every node, so it begins with the first of
            # them.
            self.looks_ahead = True
            self.world.events.subscribe(ActBegins, self._act_begins)
        listener = Listener(point, hear, times)
        self.listeners.setdefault(point.kind, []).append(listener)
        return listener

    def tell(self, event: ProtocolEvent) -> None:
        waiting = self.listeners.get(event.kind)
        if waiting is None:
            return
        # A copy: what one of them does may make another one listen.
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
        """Whether a name in a scenario means this participant, or one that it replaced."""
        return (
            # p~2 has replaced p, and whatever is said of p holds for it.
            named in (participant, participant.partition(SAME)[0], ANYONE)
            or self.participant(named) == participant
        )

    def participant(self, name: str) -> str:
        """The participant of a name: the node that "coordinator of app" or "broker" means, or the name."""
        if name == BROKER:
            return self.world.nodes[0].participant
        node = self.leaders.get(self.partition(name)) if " of " in name else None  # it leads, or led last
        return name if node is None else node.participant

    def partition(self, name: str) -> TopicPartition:
        """The partition that "coordinator of app", "leader of t-0" or "t-0" is about."""
        kind, of, subject = name.partition(" of ")
        if of and kind == "coordinator":
            return TopicPartition(TRANSACTION_STATE_TOPIC, coordinator_partition(subject, self.coordinators))
        return partition_named(subject if of else name)

    # --- messages -------------------------------------------------------------------------------------------

    def _sent(self, sent: MessageSent) -> None:
        channel, message = sent.channel, sent.message
        is_reply = isinstance(message, ReplyMessage)
        kind = PointKind.SENDS_REPLY if is_reply else PointKind.SENDS
        if kind in self.listeners:  # most kinds have no listener
            self._tell_of_message(ProtocolEvent(kind, channel.source, whom=channel.target), channel, message)
        if is_reply:
            self._replied(channel, message)

    def _replied(self, channel: Channel, reply: ReplyMessage) -> None:
        """A node replied, whether the caller still waits for it or not."""
        if PointKind.ANSWERS in self.listeners:
            self._tell_errors(ProtocolEvent(PointKind.ANSWERS, channel.source, whom=channel.target), reply)

    def _arriving(self, arriving: MessageArriving) -> None:
        channel, message = arriving.channel, arriving.message
        is_reply = isinstance(message, ReplyMessage)
        kind = PointKind.RECEIVES_REPLY if is_reply else PointKind.RECEIVES
        if kind in self.listeners:
            event = ProtocolEvent(kind, channel.target, whom=channel.source, is_between=True)
            self._tell_of_message(event, channel, message)
        if is_reply and PointKind.GETS in self.listeners:
            event = ProtocolEvent(PointKind.GETS, channel.target, whom=channel.source, is_between=True)
            self._tell_errors(event, message)

    def _tell_of_message(self, event: ProtocolEvent, channel: Channel, message: Message) -> None:
        if (api := channel.api_of(message)) is not None:
            self.tell(event._replace(what=api.name, carried=(channel, message)))

    def _tell_errors(self, event: ProtocolEvent, reply: ReplyMessage) -> None:
        for error in every_error(reply.error, reply.body):
            self.tell(event._replace(what=error.name))

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
        for kind, who, what, whom in append_points(append, self.owners):
            yield ProtocolEvent(kind, who, what, whom)

    # --- clients and leaders --------------------------------------------------------------------------------

    def _call_ended(self, ended: CallEnded) -> None:
        call = ended.resolved.operation.value.partition("_")[0]  # "init" of "init_transactions"
        outcome = outcome_of(ended.resolved.failure)
        self.tell(ProtocolEvent(PointKind.ENDS_CALL, ended.process.participant, call, outcome))

    def _read(self, read: RecordsRead) -> None:
        for value in read.values:
            self.tell(ProtocolEvent(PointKind.READS, read.participant, value))

    def _life_changed(self, changed: LifeChanged) -> None:
        self.tell(ProtocolEvent(_LIVES[changed.change], changed.participant))

    def _stepped(self, step: NodeStepped) -> None:
        if isinstance(step.arrived, BecomeLeader):
            self.leaders[step.arrived.partition] = step.node
