"""Observes a simulated world next to its recorder, and collects what the history does not contain.

A change belongs to the step that shows it: for a batch its append, for a bound its move, otherwise the latest
step. A node changes its state when it decides, which is before it writes (broker/node.py). So the
changes of a log wait until the appends of that step are written; if the node dies before, they are dropped.

Rule: it only observes; a world runs the same with it and without it.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from fencepost.broker.contract import Append, Received, ReplyTo
from fencepost.broker.node import Node
from fencepost.client.consumer import ConsumerMachine
from fencepost.lab.append_reasons import bound_reason, truncation_reason
from fencepost.lab.details import Details, batch_values, reply_details, request_details, shown_by
from fencepost.lab.node_state import ClusterState, UnwrittenChanges, touched_by
from fencepost.lab.reasons import explain
from fencepost.lab.rules import Reason, reason_of_reply
from fencepost.lab.run_reasons import conclusion_reason, fault_reason
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.simulator.run import Run
from fencepost.simulator.world.events import (
    ActDone,
    CallBegan,
    CallEnded,
    FaultEnded,
    FaultStruck,
    Life,
    LifeChanged,
    MessageLost,
    MessageSent,
    MessageTaken,
    NodeKilled,
    NodeStepped,
    RecordsRead,
    ReplyDiscarded,
)
from fencepost.simulator.world.history import Appended, Bounded, Coordinated, Truncated
from fencepost.simulator.world.network import Channel, Message, ReplyMessage, RequestMessage
from fencepost.simulator.world.processes import ClientProcess
from fencepost.simulator.world.recording import Recorder

PARTICIPANT_STATES: Final = {
    Life.STARTS: "up",
    Life.RESTARTS: "up",
    Life.RESUMES: "up",
    Life.PAUSES: "paused",
    Life.CRASHES: "down",
    Life.DIES: "down",
    Life.ENDS: "ended",
}


@attrs.define(eq=False)
class RunObserver:
    """The details of a run, collected while it runs. `processed`: how many events had happened at its last
    update.
    """

    run: Run
    recorder: Recorder
    details: Details = attrs.Factory(Details)
    cluster: ClusterState = attrs.Factory(ClusterState)
    positions: dict[str, dict[TopicPartition, int]] = attrs.Factory(dict[str, dict[TopicPartition, int]])
    appends: dict[str, dict[int, Reason]] = attrs.Factory(dict[str, dict[int, Reason]])
    """By node and identity: those of its last step that are not written yet."""
    replies: dict[tuple[str, ReplyTo], Reason] = attrs.Factory(dict[tuple[str, ReplyTo], Reason])
    asked: dict[tuple[str, int], Reason] = attrs.Factory(dict[tuple[str, int], Reason])
    arrived: tuple[ReplyTo, int] = (ReplyTo(0, 0), 0)  # the request that was taken last, and its step
    processed: int = 0
    breaches: int = 0
    unwritten: UnwrittenChanges = attrs.Factory(UnwrittenChanges)

    def attach(self) -> None:
        """Watch from now on. Subscribe after the recorder."""
        events = self.run.world.events
        events.subscribe(MessageSent, lambda sent: self._message(sent.channel, sent.message))
        events.subscribe(ReplyDiscarded, lambda event: self._message(event.channel, event.message))
        events.subscribe(MessageTaken, self._taken)
        events.subscribe(CallEnded, self._call_ended)
        events.subscribe(FaultStruck, self._fault)
        events.subscribe(FaultEnded, self._fault)
        events.subscribe(NodeStepped, self._stepped)
        events.subscribe(ActDone, self._act_done)
        events.subscribe(NodeKilled, self._killed)
        events.subscribe(LifeChanged, self._life)
        events.subscribe(RecordsRead, self._read)
        for kind in (MessageLost, CallBegan):
            events.subscribe(kind, self._before_event)

    @property
    def _latest(self) -> int:
        return len(self.recorder.events) - 1

    # --- what changed before an event

    def _before_event(self, _: object) -> None:
        """Readers that moved, and rules that were broken, since the last update: they belong to the step
        then.
        """
        self._update(self.processed - 1)

    def _update(self, step: int) -> None:
        self._readers(step)
        for breach in self.run.breaches[self.breaches :]:
            self.details.breaches.setdefault(breach.rule, max(step, 0))
        self.breaches = len(self.run.breaches)
        self.processed = len(self.recorder.events)

    def _readers(self, step: int) -> None:
        for process in self.run.world.processes:
            if process.participant not in self.recorder.unseen:
                machine = consumer_of(process)
                if machine is not None:
                    self._reader(step, process.participant, machine)

    def _reader(self, step: int, name: str, machine: ConsumerMachine) -> None:
        positions = {
            where: state.position for where, state in machine.assigned.items() if state.position is not None
        }
        before = self.positions.get(name, {})
        if positions != before:
            self.positions[name] = positions
            moved = {**dict.fromkeys(before), **positions}
            self.details.put(step, {f"reader/{name}/{where}": offset for where, offset in moved.items()})

    def _read(self, _: RecordsRead) -> None:
        """The step of these records is already there; it moved the reader."""
        self._update(self._latest)

    # --- messages

    def _message(self, channel: Channel, message: Message) -> None:
        began = self.processed
        self._update(began - 1)
        known = self.recorder.numbers.get(id(message))
        if known is None or len(self.recorder.events) == began:
            return
        match message:
            case RequestMessage():
                self.details.messages[known[1]] = request_details(message.request)
                self._set_reason(began, self.asked.pop((channel.source, message.token), None))
            case ReplyMessage():
                self.details.messages[known[1]] = found = reply_details(message.error, message.body)
                to = ReplyTo(channel.connection.number, message.token)
                reason, api = self.replies.pop((channel.source, to), None), self.recorder.asked[to][1].name
                self._set_reason(began, reason_of_reply(channel.source, api, found.error, reason))
            case _:
                pass

    def _taken(self, taken: MessageTaken) -> None:
        began = self.processed
        self._update(began - 1)
        if len(self.recorder.events) > began and isinstance(taken.message, RequestMessage):
            self.arrived = (ReplyTo(taken.channel.connection.number, taken.message.token), began)

    def _set_reason(self, step: int, reason: Reason | None) -> None:
        """Note the reason of a step; only the first one counts."""
        if reason is not None:
            self.details.reasons.setdefault(step, reason)

    # --- faults and clients

    def _fault(self, fault: FaultStruck | FaultEnded) -> None:
        self._update(self.processed - 1)
        self._set_reason(self._latest, fault_reason(self.run, fault))

    def _call_ended(self, ended: CallEnded) -> None:
        began, failure = self.processed, ended.resolved.failure
        self._update(began - 1)
        if failure is not None and len(self.recorder.events) > began:
            self._set_reason(self._latest, conclusion_reason(ended.process.participant, failure))

    # --- nodes

    def _stepped(self, step: NodeStepped) -> None:
        host, began = step.node.host, self.processed
        self._update(began - 1)
        if host is None:
            return
        name = step.node.participant
        self._explain(name, host.node, step)
        self._bounds(host.node, began)
        touched = touched_by(step.arrived, step.outcome)
        for where, changes in self.cluster.stepped(name, host.node, touched).items():
            shown = self.unwritten.decided(name, where, changes, step.outcome)
            self.details.put(shown_by(self.recorder.events, where, began), shown)

    def _explain(self, name: str, node: Node, step: NodeStepped) -> None:
        found = explain(name, node, step.arrived, step.outcome, self.cluster.nodes.get(name, {}))
        self.appends[name] = found.appends
        self.replies.update({(name, to): reason for to, reason in found.replies.items()})
        self.asked.update({(name, token): reason for token, reason in found.sends.items()})
        if isinstance(step.arrived, Received) and self.arrived[0] == step.arrived.to:
            self._set_reason(self.arrived[1], found.arrival)

    def _bounds(self, node: Node, began: int) -> None:
        """The bounds that moved in this step."""
        events = self.recorder.events
        for place in range(began, len(events)):
            event = events[place]
            if isinstance(event, Bounded):
                self._set_reason(place, bound_reason(node.logs[event.partition].partition))
            elif isinstance(event, Truncated):
                self._set_reason(
                    place, truncation_reason(event.node, str(event.partition), event.next_offset)
                )

    def _act_done(self, done: ActDone) -> None:
        act, began = done.act, self.processed
        self._update(began - 1)
        if isinstance(act, Append):
            reason = self.appends.get(done.node.participant, {}).pop(id(act), None)
            if len(self.recorder.events) > began:
                self._set_reason(self._latest, reason)
            self._values(act, began)
            self.details.put(self._latest, self.unwritten.written(done.node.participant, act.partition))

    def _values(self, append: Append, began: int) -> None:
        events = self.recorder.events
        if len(events) > began and isinstance(events[-1], Appended):
            self.details.values[len(events) - 1] = batch_values(append)

    def _killed(self, killed: NodeKilled) -> None:
        self._update(self.processed - 1)
        name = killed.node.participant
        self.appends.pop(name, None)
        self.unwritten.forget(name)
        for changes in self.cluster.stopped(name).values():
            self.details.put(self._latest, changes)

    def _life(self, life: LifeChanged) -> None:
        self._update(self.processed - 1)
        if life.participant not in self.recorder.unseen:
            self.details.put(
                self._latest, {f"participant/{life.participant}": PARTICIPANT_STATES[life.change]}
            )

    # --- the end

    def finish(self) -> None:
        """The run is over, and the recorder has what it was about to do."""
        events = self.recorder.events
        places = {
            (event.node, _log_of(event)): place
            for place, event in enumerate(events[self.processed :], start=self.processed)
            if isinstance(event, Appended | Coordinated)
        }
        for (name, where), (changes, _) in self.unwritten.waiting.items():
            is_told = where.topic == TRANSACTION_STATE_TOPIC
            log: Any = TRANSACTION_STATE_TOPIC if is_told else where
            self.details.put(places.get((name, log), self._latest), changes)
        self.unwritten.waiting.clear()
        # A judge stopped the world before these were written; a dictionary keeps their order.
        for place in range(self.processed, len(events)):
            event = events[place]
            if isinstance(event, Appended | Coordinated):
                waiting = self.appends.get(event.node, {})
                self._set_reason(place, waiting.pop(next(iter(waiting), 0), None))
        self._update(self._latest)


def consumer_of(process: ClientProcess) -> ConsumerMachine | None:
    """The newest consumer of a process, if it has one."""
    for port in reversed(process.ports):
        if isinstance(port.machine, ConsumerMachine):
            return port.machine
    return None


def _log_of(event: Appended | Coordinated) -> TopicPartition | str:
    return event.partition if isinstance(event, Appended) else TRANSACTION_STATE_TOPIC
