"""Records what happens in a world as a history, for pictures and for readers of a run.

Rule: it looks and never touches; a world runs the same with it and without it.
"""

from __future__ import annotations

import attrs

from fencepost.broker.contract import Append, BecomeLeader, Effect, Outcome, Reply
from fencepost.broker.host import Host
from fencepost.broker.observer import UNAWAITED
from fencepost.protocol.messages import Api
from fencepost.protocol.terms import CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.simulator.world.events import (
    ActBegins,
    ActDone,
    CallBegan,
    CallEnded,
    FaultEnded,
    FaultStruck,
    MessageLost,
    MessageSent,
    MessageTaken,
    NodeKilled,
    NodeStepped,
    RecordsRead,
    ReplyDiscarded,
)
from fencepost.simulator.world.history import (
    Arrived,
    Called,
    Event,
    History,
    Lost,
    Sent,
    Struck,
    Truncated,
    moved,
    written,
)
from fencepost.simulator.world.labels import UNTOLD, line_text, reply_label, request_label
from fencepost.simulator.world.network import Channel, Message, ReplyMessage, RequestMessage
from fencepost.simulator.world.nodes import SimulatedNode
from fencepost.simulator.world.world import World

# Transaction records are shown as states of transactions; cluster metadata is not shown.
_UNTOLD_TOPICS = frozenset({TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC})


@attrs.define(eq=False)
class Recorder:
    """What has happened so far. `unseen` are participants that are not shown."""

    world: World
    unseen: tuple[str, ...] = ()
    events: list[Event] = attrs.Factory(list[Event])
    numbers: dict[int, tuple[Message, int]] = attrs.Factory(dict[int, tuple[Message, int]])  # by identity
    asked: dict[tuple[int, int], tuple[int, Api]] = attrs.Factory(dict[tuple[int, int], tuple[int, Api]])
    ends: dict[TopicPartition, int] = attrs.Factory(dict[TopicPartition, int])
    bounds: dict[TopicPartition, tuple[int, int]] = attrs.Factory(dict[TopicPartition, tuple[int, int]])
    decided: tuple[SimulatedNode, Outcome] | None = None  # and nothing of it was done yet

    def attach(self) -> None:
        """Record from now on. Subscribe before faults and judges: an event must be recorded before the fault
        that strikes at it.
        """
        events = self.world.events
        events.subscribe(MessageSent, self._sent)
        events.subscribe(MessageTaken, self._taken)
        events.subscribe(MessageLost, self._lost)
        events.subscribe(ReplyDiscarded, self._discarded)
        events.subscribe(NodeStepped, self._stepped)
        events.subscribe(ActBegins, self._forget_decided)
        events.subscribe(ActDone, self._act_done)
        events.subscribe(NodeKilled, self._forget_decided)
        events.subscribe(CallBegan, lambda event: self._called(event.participant, event.label))
        events.subscribe(CallEnded, self._call_ended)
        events.subscribe(RecordsRead, self._read)
        events.subscribe(FaultStruck, self._fault)
        events.subscribe(FaultEnded, self._fault)

    def history(self, title: str, participants: tuple[str, ...]) -> History:
        """Everything so far."""
        return History(title=title, participants=participants, events=tuple(self.events), end=self.world.now)

    def _called(self, participant: str, label: str) -> None:
        """A process begins something, or learned something."""
        if participant not in self.unseen:
            self.events.append(Called(self.world.now, participant=participant, label=line_text(label)))

    def _call_ended(self, ended: CallEnded) -> None:
        resolved = ended.resolved
        outcome = "ok" if resolved.failure is None else resolved.failure.kind.__name__
        self._called(ended.process.participant, f"{resolved.operation.value}: {outcome}")

    def _read(self, read: RecordsRead) -> None:
        self._called(read.participant, f"reads {read.partition}: {' '.join(read.values)}")

    def _fault(self, fault: FaultStruck | FaultEnded) -> None:
        number = self._number(fault.message)
        self.events.append(
            Struck(self.world.now, participant=fault.participant, label=fault.label, number=number)
        )

    # --- messages -------------------------------------------------------------------------------------------

    def _sent(self, sent: MessageSent) -> None:
        channel, message = sent.channel, sent.message
        api = channel.api_of(message)
        if api is None or api.name in UNTOLD or not {channel.source, channel.target}.isdisjoint(self.unseen):
            return
        connection = channel.connection.number
        if isinstance(message, RequestMessage):
            number = self._leaves(channel, message, request_label(message.request), None)
            # One that is delivered twice keeps its first number, which the reply that is taken answers.
            self.asked.setdefault((connection, message.token), (number, api))
        elif isinstance(message, ReplyMessage):
            answers, _ = self.asked.get((connection, message.token), (None, api))
            self._leaves(channel, message, reply_label(api, message.error, message.body), answers)

    def _leaves(self, channel: Channel, message: Message, label: str, answers: int | None) -> int:
        number = len(self.numbers) + 1
        self.numbers[id(message)] = (message, number)  # kept, so that no other takes its identity
        self.events.append(
            Sent(
                self.world.now,
                number=number,
                source=channel.source,
                target=channel.target,
                label=label,
                answers=answers,
            )
        )
        return number

    def _discarded(self, discarded: ReplyDiscarded) -> None:
        """A reply without a receiver; it is recorded because it shows the effect of a late request."""
        channel, reply = discarded.channel, discarded.message
        asked = self.asked.get((channel.connection.number, reply.token))
        if asked is not None:
            answers, api = asked
            self._leaves(channel, reply, reply_label(api, reply.error, reply.body), answers)
            self._lost(MessageLost(channel, reply, UNAWAITED))

    def _taken(self, taken: MessageTaken) -> None:
        number = self._number(taken.message)
        if number is not None:
            self.events.append(Arrived(self.world.now, number=number))

    def _lost(self, lost: MessageLost) -> None:
        number = self._number(lost.message)
        if number is not None:
            self.events.append(Lost(self.world.now, number=number, because=lost.because))

    def _number(self, message: Message | None) -> int | None:
        """The number of a message that is shown."""
        known = self.numbers.get(id(message))
        return None if known is None else known[1]

    # --- nodes ----------------------------------------------------------------------------------------------

    def _forget_decided(self, _: ActBegins | NodeKilled) -> None:
        self.decided = None

    def _act_done(self, done: ActDone) -> None:
        self.decided = None
        self._written(done.node, done.act)

    def _written(self, node: SimulatedNode, act: Append | Effect) -> None:
        if isinstance(act, Append):
            where, header = act.partition, act.header
            self.events += written(self.world.now, node.participant, where, header, act.batch)
            if where.topic not in _UNTOLD_TOPICS:
                self.ends[where] = header.next_offset

    def _stepped(self, step: NodeStepped) -> None:
        """What readers may see, or how far a log goes, may have changed."""
        node, arrived, outcome = step.node, step.arrived, step.outcome
        self.decided = (node, outcome)
        host = node.host
        if host is None:
            return
        # Only a new leader finds out what a crash has lost.
        if isinstance(arrived, BecomeLeader) and arrived.partition in self.ends:
            self._led(node, arrived.partition, host)
        for where, log in host.node.logs.items():
            if where.topic not in _UNTOLD_TOPICS and self._is_leader(host, where):
                self.events += moved(self.world.now, node.participant, log.partition, self.bounds)

    def stopped(self) -> None:
        """The world was stopped where a rule was broken: what the node was about to do is what broke it."""
        if self.decided is None:
            return
        node, outcome = self.decided
        for append in outcome.appends:
            self._written(node, append)
        for effect in outcome.effects:
            connection = node.callers.get(effect.to.connection) if isinstance(effect, Reply) else None
            if isinstance(effect, Reply) and connection is not None and connection.is_open:
                reply = ReplyMessage(effect.to.correlation_id, effect.error, effect.body)
                self._sent(MessageSent(connection.to_caller, reply))

    def _is_leader(self, host: Host, where: TopicPartition) -> bool:
        """Whether no later leader has the log, as far as it is open."""
        journal = self.world.journals.opened.get(where)
        return journal is None or journal.leader_epoch <= host.node.logs[where].partition.leader_epoch

    def _led(self, node: SimulatedNode, where: TopicPartition, host: Host) -> None:
        end = host.node.logs[where].partition.log_end_offset
        if end < self.ends[where]:
            self.ends[where] = end
            self.events.append(
                Truncated(at=self.world.now, node=node.participant, partition=where, next_offset=end)
            )
