"""The bounds of an explored world, and its broker: one real node and its logs.

Rule: a step takes one message and everything that follows at once; appends are durable immediately. A message
from the node to itself, from one of its roles to another, may be delayed like any other.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import attrs

from fencepost.broker.contract import (
    NODE,
    Answered,
    Assign,
    BecomeLeader,
    Durable,
    Effect,
    Input,
    Outcome,
    Received,
    Reply,
    ReplyTo,
    Send,
    Started,
    WakeMe,
)
from fencepost.broker.dispatch import step
from fencepost.broker.kafka_fixes import ALL_FIXES, KafkaFixes
from fencepost.broker.node import Node
from fencepost.broker.purgatory import Token
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS
from fencepost.protocol.batches import BatchHeader, read_header
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import CreateTopic, CreateTopics, ReplyBody, Request
from fencepost.protocol.terms import INTERNAL_TOPICS, METADATA_PARTITION, TopicPartition, TransactionResult
from fencepost.simulator.fuzz.plan import verifies

TOPIC: Final = "t"
NOW: Final = 1_000_000  # the broker's clock stands still: durations decide nothing here
REPLIES_TO_SELF: Final = -3  # the queue of its replies to itself; its requests to itself go to NODE


@attrs.frozen(kw_only=True)
class ExploreConfig:
    """The bounds of a world. `retries` is how often each client may time out and reconnect."""

    producers: int = 1
    transactions: int = 2
    retries: int = 1
    partitions: int = 1
    transaction_version: int = 2
    partition_verification: bool | None = None
    """Whether partition leaders verify older clients' batches with the coordinator (KIP-890 part 1); None: in
    every version but 0, which is KIP-98 as shipped.
    """
    crashes: int = 0
    ends: tuple[TransactionResult, ...] = (TransactionResult.COMMIT, TransactionResult.ABORT)
    broken: frozenset[str] = frozenset()
    fixes: KafkaFixes = ALL_FIXES
    symmetry: bool = True
    """Count worlds that differ only in which producer is which as one."""
    max_states: int = 1_000_000

    @property
    def node_settings(self) -> NodeSettings:
        return NodeSettings(
            port=1,
            transaction_version=TRANSACTION_VERSIONS[self.transaction_version],
            partition_verification=verifies(self.transaction_version, self.partition_verification),
            broken=self.broken,
            fixes=self.fixes,
            transaction_state_log_num_partitions=1,
            offsets_topic_num_partitions=1,
        )

    def __str__(self) -> str:
        """The options of `fencepost explore` that differ from its defaults, each with a leading space."""
        usual = ExploreConfig()
        counts = ("producers", "transactions", "retries", "partitions", "transaction_version", "crashes")
        said = [
            f" --{name.replace('_', '-')} {getattr(self, name)}"
            for name in (*counts, "max_states")
            if getattr(self, name) != getattr(usual, name)
        ]
        if self.partition_verification is not None:
            said.append(f" --{'' if self.partition_verification else 'no-'}partition-verification")
        return "".join((*said, *(f" --without-fix {name}" for name in self.fixes.off)))


class RequestInFlight(NamedTuple):
    """A request in flight, in Kafka's `version` of it; `slot` is the number that its reply will carry."""

    slot: int
    request: Request
    version: int


class ReplyInFlight(NamedTuple):
    """The reply to the request of that slot."""

    slot: int
    error: ErrorCode
    body: ReplyBody | None


Message = RequestInFlight | ReplyInFlight
Posted = tuple[int, Message]
"""The destination of a message (a client's connection, NODE or REPLIES_TO_SELF) and the message."""


@attrs.define(eq=False)
class ExploredBroker:
    """A node and the logs that survive it. `slots` maps the node's tokens to the slots of its requests to
    itself.

    Internal logs are only read after a crash. In a world without crashes they are not kept, so states that
    differ only in the order of internal records are equal.
    """

    node: Node
    may_die: bool
    logs: dict[TopicPartition, tuple[bytes, ...]] = attrs.Factory(dict[TopicPartition, tuple[bytes, ...]])
    slots: dict[Token, int] = attrs.Factory(dict[int, int])

    @classmethod
    def started(cls, config: ExploreConfig) -> ExploredBroker:
        """A broker that has one topic."""
        broker = cls(Node(config.node_settings), may_die=config.crashes > 0)
        broker.settle(broker.restart())
        request = CreateTopics(topics=(CreateTopic(topic=TOPIC, partition_count=config.partitions),))
        broker.take(Received(request, to=ReplyTo(0, 0)))
        return broker

    def restart(self) -> list[Posted]:
        """Replace the node by a new one that recovers from the logs."""
        self.node, self.slots = Node(self.node.settings), {}
        # As Host.start does: a rising epoch fences the earlier incarnation.
        epoch = max((header.leader_epoch for header, _ in self.batches(METADATA_PARTITION)), default=-1) + 1
        self.take(self._lead(METADATA_PARTITION, epoch))
        return self.take(Started(node_id=self.node.settings.node_id))

    def settle(self, posted: list[Posted]) -> list[Posted]:
        """Deliver what the node sends to itself at once and in order; return what is for clients."""
        left: list[Posted] = []
        while posted:
            where, message = posted.pop(0)
            if where == NODE and isinstance(message, RequestInFlight):
                posted += self.receive(message, NODE)
            elif where == REPLIES_TO_SELF and isinstance(message, ReplyInFlight):
                posted += self.hear(message)
            else:
                left.append((where, message))
        return left

    def written_partitions(self) -> list[TopicPartition]:
        """The partitions of the topic that hold at least one batch."""
        return [key for key in self.logs if key.topic == TOPIC]

    def batches(self, partition: TopicPartition) -> list[tuple[BatchHeader, bytes]]:
        return [(read_header(batch), batch) for batch in self.logs.get(partition, ())]

    # --- inputs

    def receive(self, question: RequestInFlight, connection: int) -> list[Posted]:
        """Receive a request on a client's connection or from the node itself."""
        return self.take(
            Received(
                question.request,
                to=ReplyTo(connection, question.slot),
                version=question.version,
                from_node=self.node.settings.node_id if connection == NODE else None,
            )
        )

    def hear(self, reply: ReplyInFlight) -> list[Posted]:
        """Receive a reply that the node sent to itself."""
        token = next(token for token, slot in self.slots.items() if slot == reply.slot)
        del self.slots[token]
        return self.take(Answered(token=token, error=reply.error, body=reply.body))

    def take(self, arrived: Input) -> list[Posted]:
        """Take one input and what follows at once: appends become durable, and the node leads the partitions
        that it creates.
        """
        posted: list[Posted] = []
        inputs = deque([arrived])
        while inputs:
            outcome = self.step(inputs.popleft())
            for append in outcome.appends:
                if self.may_die or append.partition.topic not in INTERNAL_TOPICS:
                    known = self.logs.get(append.partition, ())
                    self.logs[append.partition] = (*known, bytes(append.batch))
                # No world has a disk that fails, so the time between a write and its sync would only add
                # states.
                inputs.append(Durable(partition=append.partition, offset=append.header.next_offset))
            for effect in outcome.effects:
                match effect:
                    case Assign():
                        inputs.append(self._lead(effect.partition, effect.leader_epoch))
                    case _:
                        posted += self._post(effect)
        return posted

    def step(self, arrived: Input) -> Outcome:
        """The node takes one input."""
        return step(self.node, arrived, NOW)

    def _lead(self, partition: TopicPartition, leader_epoch: int) -> BecomeLeader:
        return BecomeLeader(partition=partition, leader_epoch=leader_epoch, batches=self.batches(partition))

    def _post(self, effect: Effect) -> list[Posted]:
        match effect:
            case Send():
                taken = set(self.slots.values())
                # The lowest free number instead of the token, which counts all requests ever sent and would
                # make every message a new one.
                slot = self.slots[effect.token] = next(n for n in range(len(taken) + 1) if n not in taken)
                return [(NODE, RequestInFlight(slot, effect.request, effect.version))]
            case Reply():
                reply = ReplyInFlight(effect.to.correlation_id, effect.error, effect.body)
                return [(REPLIES_TO_SELF if effect.to.connection == NODE else effect.to.connection, reply)]
            case WakeMe():
                return []  # scans and timeouts of the broker are not part of these worlds
            case _:
                raise AssertionError(f"an explored world cannot handle {effect}")
