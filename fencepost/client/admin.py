"""What an admin asks, and what it makes of the answers; the shells wait in between.

Rule: a question is a request, who must answer it, and a function from the reply to what the caller gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import attrs

from fencepost.client.calls import ANY_NODE, CONTROLLER, CoordinatorOf, Target
from fencepost.protocol import messages as m
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import (
    NO_TIMESTAMP,
    CoordinatorType,
    IsolationLevel,
    TopicPartition,
    TransactionState,
)

ResultT = TypeVar("ResultT")


@attrs.frozen
class Question(Generic[ResultT]):
    """One thing to ask, and how to read the answer."""

    request: Request
    target: Target = attrs.field(kw_only=True)
    read: Callable[[Any], ResultT] = attrs.field(kw_only=True)


@attrs.frozen(kw_only=True)
class TopicDescription:
    """A topic: its partitions by number, each with the node that leads it and under which leader epoch."""

    topic: str
    is_internal: bool
    leaders: tuple[int, ...]
    leader_epochs: tuple[int, ...]


def create_topic(name: str, partitions: int) -> Question[None]:
    """Makes a topic."""
    request = m.CreateTopics(topics=(m.CreateTopic(topic=name, partition_count=partitions),))
    return Question(request, target=CONTROLLER, read=_nothing)


def delete_topic(name: str) -> Question[None]:
    """Removes a topic and its records."""
    return Question(m.DeleteTopics(topics=(name,)), target=CONTROLLER, read=_nothing)


def list_topics() -> Question[list[TopicDescription]]:
    """Every topic, internal ones too, by name."""
    return Question(m.Metadata(topics=None), target=ANY_NODE, read=_topics)


def describe_topic(name: str) -> Question[TopicDescription]:
    """One topic."""
    return Question(m.Metadata(topics=(name,)), target=ANY_NODE, read=lambda reply: _topics(reply)[0])


def offset_of(partition: TopicPartition, timestamp: int, isolation: IsolationLevel) -> Question[int]:
    """The offset for a timestamp, LATEST_TIMESTAMP or EARLIEST_TIMESTAMP; -1 when none is as late."""
    asked = m.ListOffsetsPartition(topic=partition.topic, partition=partition.partition, timestamp=timestamp)
    request = m.ListOffsets(isolation_level=isolation, partitions=(asked,))
    return Question(request, target=partition, read=lambda reply: reply.partitions[0].offset)


def list_transactions(
    states: Sequence[TransactionState] = (), producer_ids: Sequence[int] = (), duration_ms: int = NO_TIMESTAMP
) -> Question[list[m.ListedTransaction]]:
    """The transactional ids that a coordinator knows, filtered as Kafka does (KIP-664, KIP-994)."""
    request = m.ListTransactions(
        states=tuple(state.title for state in states),
        producer_ids=tuple(producer_ids),
        duration_ms=duration_ms,
    )
    return Question(request, target=ANY_NODE, read=lambda reply: list(reply.transactions))


def describe_transaction(transactional_id: str) -> Question[m.TransactionDescription]:
    """One transactional id: its state, identity, timeout and open partitions."""
    target = CoordinatorOf(CoordinatorType.TRANSACTION, transactional_id)
    request = m.DescribeTransactions(transactional_ids=(transactional_id,))
    return Question(request, target=target, read=lambda reply: reply.transactions[0])


def describe_producers(partition: TopicPartition) -> Question[list[m.ProducerDescription]]:
    """The producers that a partition remembers."""
    name = m.PartitionName(topic=partition.topic, partition=partition.partition)
    request = m.DescribeProducers(partitions=(name,))
    return Question(request, target=partition, read=lambda reply: list(reply.partitions[0].producers))


def _nothing(_reply: object) -> None:
    return None


def _topics(reply: m.MetadataReply) -> list[TopicDescription]:
    return [
        TopicDescription(
            topic=topic.topic,
            is_internal=topic.is_internal,
            leaders=tuple(partition.leader_id for partition in topic.partitions),
            leader_epochs=tuple(partition.leader_epoch for partition in topic.partitions),
        )
        for topic in sorted(reply.topics, key=lambda topic: topic.topic)
    ]
