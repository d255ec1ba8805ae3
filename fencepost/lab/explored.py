"""Observes a path through explored worlds while its history is made, and collects what the history does not
contain.

The explorer keeps states and what was sent, but not the decisions between them. So each step of the broker is
taken once more, from a copy of the state before it, and its inputs and outcomes are explained as those of a
simulated node are.

Rule: it changes no state of the explorer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from fencepost.broker.contract import Input, Outcome, Received, ReplyTo
from fencepost.broker.node import Node
from fencepost.lab.append_reasons import bound_reason
from fencepost.lab.details import Details, batch_values, reply_details, request_details, shown_by
from fencepost.lab.node_state import Changes, ClusterState
from fencepost.lab.reasons import explain
from fencepost.lab.rules import Reason, reason_of_reply
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.protocol.transaction_log import read_transactions
from fencepost.simulator.explore.broker import ExploredBroker, Message, RequestInFlight
from fencepost.simulator.explore.history import BROKER_NAME, ExploredHistory, PathWatch
from fencepost.simulator.explore.steps import NO_MESSAGE
from fencepost.simulator.explore.worlds import BROKER, World
from fencepost.simulator.world.history import Appended, Arrived, Bounded, Coordinated, Sent


@attrs.define(eq=False, kw_only=True)
class WatchedBroker(ExploredBroker):
    """A copy of an explored broker; `watch` is called with each of its steps."""

    watch: Callable[[Node, Input, Outcome], None]

    def step(self, arrived: Input) -> Outcome:
        outcome = super().step(arrived)
        self.watch(self.node, arrived, outcome)
        return outcome


@attrs.define(eq=False)
class _Delivery:
    """What followed from one message: reasons by what they explain, and changes by log."""

    states: dict[str, Reason] = attrs.Factory(dict[str, Reason])  # by transactional id
    appends: dict[tuple[TopicPartition, int], Reason] = attrs.Factory(
        dict[tuple[TopicPartition, int], Reason]
    )
    values: dict[tuple[TopicPartition, int], tuple[str, ...]] = attrs.Factory(
        dict[tuple[TopicPartition, int], tuple[str, ...]]
    )
    sends: dict[int, Reason] = attrs.Factory(dict[int, Reason])  # by token
    arrival: Reason | None = None
    changes: dict[TopicPartition, Changes] = attrs.Factory(dict[TopicPartition, dict[str, Any]])


@attrs.define(eq=False)
class PathObserver(PathWatch):
    """The details of a path. `replies` are the reasons of replies, some of which leave in a later step."""

    details: Details = attrs.Factory(Details)
    cluster: ClusterState = attrs.Factory(ClusterState)
    told: ExploredHistory = attrs.field(init=False)
    replies: dict[ReplyTo, Reason] = attrs.Factory(dict[ReplyTo, Reason])
    delivery: _Delivery = attrs.Factory(_Delivery)

    def starts(self, told: ExploredHistory, root: World) -> None:
        """What the broker knows before the first step: the clients have introduced themselves."""
        self.told = told
        node = told.steps.brokers[root[BROKER]].node
        for changes in self.cluster.stepped(BROKER_NAME, node).values():
            self.details.put(0, changes)
        for name in (BROKER_NAME, *(f"p{client}" for client in range(told.worlds.clients))):
            self.details.put(0, {f"participant/{name}": "up"})

    def sent(self, number: int, message: Message) -> None:
        self.details.messages[number] = (
            request_details(message.request)
            if isinstance(message, RequestInFlight)
            else reply_details(message.error, message.body)
        )

    def reached(self, broker: int, connection: int, message: int, began: int) -> None:
        """Take the step once more, and explain it."""
        steps, self.delivery = self.told.steps, _Delivery()
        if message == NO_MESSAGE:
            for changes in self.cluster.stopped(BROKER_NAME).values():
                self.details.put(began, changes)
            self.replies.clear()
        copied = steps.brokers.taken(broker)
        watched = WatchedBroker(
            node=copied.node,
            may_die=copied.may_die,
            logs=copied.logs,
            slots=copied.slots,
            watch=self._stepped,
        )
        steps.deliver(watched, connection, message)
        self._explain(watched, began)
        for where, changes in self.delivery.changes.items():
            self.details.put(shown_by(self.told.events, where, began), changes)

    # --- the steps of the broker

    def _stepped(self, node: Node, arrived: Input, outcome: Outcome) -> None:
        delivery = self.delivery
        found = explain(BROKER_NAME, node, arrived, outcome, self.cluster.nodes.get(BROKER_NAME, {}))
        for append in outcome.appends:
            at = (append.partition, append.header.base_offset)
            delivery.values[at] = batch_values(append)
            reason = found.appends.get(id(append))
            if reason is None:
                continue
            if append.partition.topic == TRANSACTION_STATE_TOPIC:
                names = (name for name, _ in read_transactions(append.batch, append.header))
                delivery.states.update(dict.fromkeys(names, reason))
            delivery.appends[at] = reason
        self.replies.update(found.replies)
        delivery.sends.update(found.sends)
        if isinstance(arrived, Received) and delivery.arrival is None:
            delivery.arrival = found.arrival
        for where, changes in self.cluster.stepped(BROKER_NAME, node).items():
            delivery.changes[where] = {**delivery.changes.get(where, {}), **changes}

    # --- the events that show them

    def _explain(self, broker: ExploredBroker, began: int) -> None:
        delivery, events = self.delivery, self.told.events
        for place in range(began, len(events)):
            event = events[place]
            reason: Reason | None = None
            match event:
                case Arrived():
                    reason = delivery.arrival
                case Coordinated():
                    reason = delivery.states.get(event.transactional_id)
                case Appended():
                    at = (event.partition, event.header.base_offset)
                    reason = delivery.appends.get(at)
                    self.details.values[place] = delivery.values[at]
                case Bounded():
                    reason = bound_reason(broker.node.logs[event.partition].partition)
                case Sent(source=source) if source == BROKER_NAME:
                    reason = self._reason_of_send(event, broker)
                case _:
                    pass
            if reason is not None:
                self.details.reasons.setdefault(place, reason)

    def _reason_of_send(self, sent: Sent, broker: ExploredBroker) -> Reason | None:
        asked = {number: slot for slot, (number, _) in self.told.asked.items() if number is not None}
        if sent.answers is None:
            slot = asked.get(sent.number)
            tokens = [token for token, taken in broker.slots.items() if slot is not None and taken == slot[1]]
            return next(
                (self.delivery.sends[token] for token in tokens if token in self.delivery.sends), None
            )
        slot = asked.get(sent.answers)
        reason = None if slot is None else self.replies.pop(ReplyTo(*slot), None)
        error = self.details.messages[sent.number].error if sent.number in self.details.messages else None
        return reason_of_reply(BROKER_NAME, sent.label.split(" ")[0], error, reason)
