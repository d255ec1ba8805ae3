"""The broker of an explored world: one real node, and its logs, in a state that can be copied and known
again.

Rule: a step takes one message and all that follows from it at once; what is appended is durable with it.
What the node sends to itself, from one of its roles to another, is a message that may be delayed like any
other.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import attrs

from fencepost.broker.cluster.controller import METADATA_PARTITION
from fencepost.broker.contract import (
    NODE,
    Answered,
    Assign,
    BecomeLeader,
    Durable,
    Effect,
    Input,
    Received,
    Reply,
    ReplyTo,
    Send,
    Started,
    WakeMe,
)
from fencepost.broker.dispatch import step
from fencepost.broker.node import Node
from fencepost.broker.purgatory import Token
from fencepost.broker.settings import NodeSettings
from fencepost.protocol.batches import BatchHeader, read_header
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import CreateTopic, CreateTopics, ReplyBody, Request
from fencepost.protocol.terms import INTERNAL_TOPICS, TopicPartition

NOW: Final = 1_000_000  # the one time that a broker ever sees: how long things take decides nothing
ANSWERS: Final = -3  # where what the node answers to itself goes; what it asks itself goes to NODE


class Question(NamedTuple):
    """A request on its way, in Kafka's `version` of it; `slot` is the number that its answer will bear."""

    slot: int
    request: Request
    version: int


class Answer(NamedTuple):
    """What comes back for the question of that slot."""

    slot: int
    error: ErrorCode
    body: ReplyBody | None


Message = Question | Answer
Posted = tuple[int, Message]
"""A message and where it goes: a client's connection, NODE or ANSWERS."""


@attrs.define(eq=False)
class Broker:
    """A node over logs that survive it. `slots` are the numbers under which others know what it asked.

    Where it may not die, nobody will ever read its internal logs again: none is kept, and states that
    differ in the order of what they hold are one.
    """

    node: Node
    may_die: bool
    logs: dict[TopicPartition, tuple[bytes, ...]] = attrs.Factory(dict[TopicPartition, tuple[bytes, ...]])
    slots: dict[Token, int] = attrs.Factory(dict[int, int])

    @classmethod
    def started(cls, settings: NodeSettings, topic: str, partitions: int, *, may_die: bool) -> Broker:
        """A broker with one topic, and nothing else in it."""
        broker = cls(Node(settings), may_die)
        broker.settle(broker.restart())
        request = CreateTopics(topics=(CreateTopic(topic=topic, partition_count=partitions),))
        broker.take(Received(request, to=ReplyTo(0, 0)))
        return broker

    def restart(self) -> list[Posted]:
        """A new node over what the old one left in the logs."""
        self.node, self.slots = Node(self.node.settings), {}
        epoch = max((header.leader_epoch for header, _ in self.batches(METADATA_PARTITION)), default=-1) + 1
        self.take(self._lead(METADATA_PARTITION, epoch))
        return self.take(Started(node_id=self.node.settings.node_id))

    def settle(self, posted: list[Posted]) -> list[Posted]:
        """What the node sends to itself arrives at once, in order; what is left is for clients."""
        left: list[Posted] = []
        while posted:
            where, message = posted.pop(0)
            if where == NODE and isinstance(message, Question):
                posted += self.receive(message, NODE)
            elif where == ANSWERS and isinstance(message, Answer):
                posted += self.hear(message)
            else:
                left.append((where, message))
        return left

    def logs_of(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic that something was written to."""
        return [key for key in self.logs if key.topic == topic]

    def batches(self, partition: TopicPartition) -> list[tuple[BatchHeader, bytes]]:
        """What lies in the log of a partition."""
        return [(read_header(batch), batch) for batch in self.logs.get(partition, ())]

    # --- inputs

    def receive(self, question: Question, connection: int) -> list[Posted]:
        """A request arrives, on a client's connection or from the node itself."""
        return self.take(
            Received(
                question.request,
                to=ReplyTo(connection, question.slot),
                version=question.version,
                from_node=self.node.settings.node_id if connection == NODE else None,
            )
        )

    def hear(self, answer: Answer) -> list[Posted]:
        """The node hears what it answered to itself."""
        token = next(token for token, slot in self.slots.items() if slot == answer.slot)
        del self.slots[token]
        return self.take(Answered(token=token, error=answer.error, body=answer.body))

    def take(self, arrived: Input) -> list[Posted]:
        """One input, and what has to follow at once: its appends are durable, partitions that it makes are
        led.
        """
        posted: list[Posted] = []
        inputs = deque([arrived])
        while inputs:
            outcome = step(self.node, inputs.popleft(), NOW)
            for append in outcome.appends:
                if self.may_die or append.partition.topic not in INTERNAL_TOPICS:
                    known = self.logs.get(append.partition, ())
                    self.logs[append.partition] = (*known, bytes(append.batch))
                inputs.append(Durable(partition=append.partition, offset=append.header.next_offset))
            for effect in outcome.effects:
                match effect:
                    case Assign():
                        inputs.append(self._lead(effect.partition, effect.leader_epoch))
                    case _:
                        posted += self._post(effect)
        return posted

    def _lead(self, partition: TopicPartition, leader_epoch: int) -> BecomeLeader:
        return BecomeLeader(partition=partition, leader_epoch=leader_epoch, batches=self.batches(partition))

    def _post(self, effect: Effect) -> list[Posted]:
        match effect:
            case Send():
                taken = set(self.slots.values())
                slot = self.slots[effect.token] = next(n for n in range(len(taken) + 1) if n not in taken)
                return [(NODE, Question(slot, effect.request, effect.version))]
            case Reply():
                answer = Answer(effect.to.correlation_id, effect.error, effect.body)
                return [(ANSWERS if effect.to.connection == NODE else effect.to.connection, answer)]
            case WakeMe():
                return []  # what a node does at a time of its own is no part of this world
            case _:
                raise AssertionError(f"an explored world has nothing that leads to {effect}")
