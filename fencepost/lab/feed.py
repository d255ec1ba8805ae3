"""What a broker provides for its followers: each event of its recording, and what that changed.

Rule: an observer changes nothing. Nothing here grows with the time for which the broker runs.
"""

# A node decides in a step, before it writes. So what a step has changed of a log waits until its appends are
# written, and stands at the event that shows the last of them; everything else stands at the next event.
#
# Only logs that a step may have touched are compared with their earlier state: a broker has many, and most
# steps touch one. Markers are answered one by one, so the coordinators that wait for some are looked at, too.

from __future__ import annotations

import secrets
from typing import Any, Final

import attrs

from fencepost.broker.contract import Append, BecomeLeader, Durable, Input, Outcome, Reply, ReplyTo
from fencepost.broker.feed import FeedBuffer
from fencepost.broker.node import Node
from fencepost.broker.transactions.state import Transactions
from fencepost.faults.phrases import BROKER
from fencepost.lab.append_reasons import bound_reason
from fencepost.lab.broker_recording import ASKED_MAX, LABEL_MAX, BrokerEvents, lane_of
from fencepost.lab.details import batch_values, participant_change, reply_details, request_details
from fencepost.lab.hidden_clients import HIDDEN_CLIENTS
from fencepost.lab.node_state import Changes, ClusterState, UnwrittenChanges, touched_by
from fencepost.lab.reasons import explain
from fencepost.lab.rules import Reason, reason_of_reply
from fencepost.lab.wire_steps import NOTHING, About, pack
from fencepost.protocol.frames import RequestFrame
from fencepost.protocol.messages import Fetch
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.simulator.draw.fates import shortened
from fencepost.simulator.world.history import Bounded, Called, Event, Lost, Struck

POSITIONS_MAX: Final = 1_000  # of readers
VALUE_MAX: Final = 60
START: Final = "start"
READY: Final = "ready"
READER: Final = "reader/"
ISOLATION: Final = "isolation/"
"""Keys of changes: the next offset of a reader, and the isolation level of a client."""
_COORDINATORS: Final = f"log/{TRANSACTION_STATE_TOPIC}-"


@attrs.define(eq=False)
class StepFeed(BrokerEvents):
    """Lets `fencepost lab --bootstrap-server` follow a broker: `Broker(feed=StepFeed())`. Its `buffer` keeps
    the last 20,000 steps, in at most 16 MiB.
    """

    buffer: FeedBuffer = attrs.field(init=False, factory=lambda: FeedBuffer(secrets.token_hex(8)))
    _about: About = NOTHING
    _cluster: ClusterState = attrs.Factory(ClusterState)
    _appends: dict[int, Reason] = attrs.Factory(dict[int, Reason])  # of the last step, by identity
    _replies: dict[ReplyTo, Reason] = attrs.Factory(dict[ReplyTo, Reason])
    _pending: Changes = attrs.Factory(dict[str, Any])
    _unwritten: UnwrittenChanges = attrs.Factory(UnwrittenChanges)
    _marking: set[TopicPartition] = attrs.Factory(set[TopicPartition])
    _positions: dict[str, int] = attrs.Factory(dict[str, int])
    _is_recovering: bool = False

    def __attrs_post_init__(self) -> None:
        self._began_ns = 0  # processes of a machine share the monotonic clock

    def started(self, node: Node) -> None:
        """A broker accepts connections."""
        is_first = self._node is None
        BrokerEvents.started(self, node)
        self._marking.clear()
        self._is_recovering = True
        if is_first:
            self._pending[f"participant/{BROKER}"] = "up"
            self._add(Called(self._now(), participant=BROKER, label=START))

    def killed(self) -> None:
        """The broker is killed, and with it what was on its way."""
        self._unwritten.forget(BROKER)
        self._replies.clear()
        for changes in self._cluster.stopped(BROKER).values():
            self._pending.update(changes)
        BrokerEvents.killed(self)
        for asked in self._asked.values():
            if not asked.is_taken:
                self._add(Lost(self._now(), number=asked.number, because="the broker is gone"))
        self._asked.clear()

    def asked(self, to: ReplyTo, arrived: RequestFrame) -> None:
        request = arrived.request
        if self._is_recovering:  # what it has read from its logs is shown from here on
            self._is_recovering = False
            self._add(Called(self._now(), participant=BROKER, label=READY))
        if type(request) is Fetch:
            self._reads(lane_of(arrived.client_id), request)
            return
        found = request_details(request)
        self._about = About(transactional_id=found.transactional_id, producer_ids=found.producer_ids)
        BrokerEvents.asked(self, to, arrived)
        self._about = NOTHING

    def _reads(self, client: str, request: Fetch) -> None:
        """A reader has come to these offsets."""
        if client in HIDDEN_CLIENTS:
            return
        moved: list[str] = []
        for part in request.partitions:
            where = f"{part.topic}-{part.partition}"
            key = f"{READER}{client}/{where}"
            if self._positions.get(key) != part.fetch_offset:
                if len(self._positions) >= POSITIONS_MAX:
                    self._positions.clear()
                self._positions[key] = self._pending[key] = part.fetch_offset
                moved.append(f"{where}@{part.fetch_offset}")
        if moved:
            level = request.isolation_level.name.lower()
            self._pending[f"{ISOLATION}{client}"] = level
            label = shortened(f"reads {' '.join(moved)} {level}", LABEL_MAX)
            self._add(Called(self._now(), participant=client, label=label))

    def answered(self, answer: Reply, lost_because: str | None) -> None:
        """A reply leaves, or is lost."""
        reason = self._replies.pop(answer.to, None)
        asked = self._asked.get(answer.to)
        if asked is not None:
            error = reply_details(answer.error, answer.body).error
            why = reason_of_reply(BROKER, asked.api.name, error, reason)
            self._about = About(error=error, why=why)
            BrokerEvents.answered(self, answer, lost_because)
            self._about = NOTHING

    def appended(self, append: Append) -> None:
        self._pending.update(self._unwritten.written(BROKER, append.partition))
        values = tuple(shortened(value, VALUE_MAX) for value in batch_values(append))
        self._about = About(values=values, why=self._appends.pop(id(append), None))
        BrokerEvents.appended(self, append)
        self._about = NOTHING

    def stepped(self, arrived: Input, outcome: Outcome) -> None:
        """The node took an input: see why it decided as it did, and what that has changed."""
        node = self._node
        if node is None:
            return
        reasons = explain(BROKER, node, arrived, outcome, self._cluster.nodes.get(BROKER, {}))
        self._appends = reasons.appends
        self._replies.update(reasons.replies)
        while len(self._replies) > ASKED_MAX:
            del self._replies[next(iter(self._replies))]
        for where, changes in self._changed(node, arrived, outcome).items():
            self._pending.update(self._unwritten.decided(BROKER, where, changes, outcome))
        self._about = NOTHING if reasons.arrival is None else About(why=reasons.arrival)
        BrokerEvents.stepped(self, arrived, outcome)
        self._about = NOTHING

    def _changed(self, node: Node, arrived: Input, outcome: Outcome) -> dict[TopicPartition, Changes]:
        touched = self._touched(node, arrived, outcome)
        found = self._cluster.stepped(BROKER, node, touched) if touched else {}
        return {where: shown for where, changes in found.items() if (shown := _shown(changes))}

    def _touched(self, node: Node, arrived: Input, outcome: Outcome) -> set[TopicPartition]:
        """The logs whose state this step may have changed."""
        if type(arrived) is Durable and arrived.partition.topic == TRANSACTION_STATE_TOPIC:
            touched = {append.partition for append in outcome.appends}
            if _waits_for_markers(
                node, arrived.partition
            ):  # a decision that became durable shows in them alone
                self._marking.add(arrived.partition)
            return touched | self._marking
        touched = touched_by(arrived, outcome)
        if touched is None:
            touched = {append.partition for append in outcome.appends} | self._marking
            if isinstance(arrived, BecomeLeader):
                touched.add(arrived.partition)
        self._marking -= {where for where in self._marking & touched if not _waits_for_markers(node, where)}
        return touched

    def _add(self, event: Event) -> None:
        changes, self._pending = self._pending, {}
        if isinstance(event, Struck) and event.participant:
            changes |= participant_change(event)
        about = self._about
        if isinstance(event, Bounded) and self._node is not None:
            about = About(why=bound_reason(self._node.logs[event.partition].partition))
        elif isinstance(event, Called | Struck | Lost):
            about = NOTHING
        self.buffer.add(pack(event, about), changes)


def _waits_for_markers(node: Node, where: TopicPartition) -> bool:
    """Whether this is the log of a coordinator that waits for the replies to its markers."""
    log = node.logs.get(where)
    return (
        log is not None
        and isinstance(log.coordinator, Transactions)
        and bool(log.coordinator.pending_markers)
    )


def _shown(changes: Changes) -> Changes:
    """The changes without those of logs of the coordinator: a page shows the transactions that they hold."""
    return {key: value for key, value in changes.items() if not key.startswith(_COORDINATORS)}
