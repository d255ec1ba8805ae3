"""What an admin asks, and what it makes of the answers; the shells wait in between.

Rule: a question is a request, who must answer it, and a function from the reply to what the caller gets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import attrs

from fencepost.client.retries import ANY_NODE, CONTROLLER, BrokerAt, CoordinatorOf, Target
from fencepost.protocol import messages as m
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    CoordinatorType,
    IsolationLevel,
    TopicPartition,
    TransactionResult,
    TransactionState,
)

ResultT = TypeVar("ResultT")

# The lenient check: an administrator's marker carries the very epoch of the transaction that it ends, which
# a marker of version 2 must exceed (KIP-1228, AbortTransactionHandler).
_ABORT_VERSION: Final = 0
FENCING_TIMEOUT_MS: Final = (
    30_000  # FenceProducersHandler: request.timeout.ms; nobody will open a transaction
)
DELETE_RECORDS_MS: Final = 30_000  # request.timeout.ms: what a leader of Kafka's grants its followers


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


@attrs.frozen(kw_only=True)
class TransactionListing:
    """A transactional id, and the broker that coordinates it."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: TransactionState


@attrs.frozen(kw_only=True)
class AbortSpec:
    """The open transaction that a marker is to abort: of one producer in one partition (KIP-664)."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


def list_brokers() -> Question[list[int]]:
    """The ids of the brokers that are up."""
    return Question(
        m.Metadata(topics=()), target=ANY_NODE, read=lambda reply: [node.node_id for node in reply.nodes]
    )


def transaction_version() -> Question[int]:
    """The generation of transactions that is finalized in the cluster."""
    return Question(m.ApiVersions(), target=ANY_NODE, read=lambda reply: reply.transaction_version)


def create_topic(name: str, partitions: int, configs: Mapping[str, str]) -> Question[None]:
    """Makes a topic; `configs` are its settings under Kafka's names."""
    settings = tuple(m.TopicConfig(name=setting, value=value) for setting, value in sorted(configs.items()))
    wanted = m.CreateTopic(topic=name, partition_count=partitions, configs=settings)
    return Question(m.CreateTopics(topics=(wanted,)), target=CONTROLLER, read=nothing)


def delete_topic(name: str) -> Question[None]:
    """Removes a topic and its records."""
    return Question(m.DeleteTopics(topics=(name,)), target=CONTROLLER, read=nothing)


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


def delete_records(partition: TopicPartition, before: int) -> Question[int]:
    """Moves the start of a log to `before`, or with HIGH_WATERMARK to its end; where the log starts now."""
    part = m.DeleteRecordsPartition(topic=partition.topic, partition=partition.partition, offset=before)
    request = m.DeleteRecords(timeout_ms=DELETE_RECORDS_MS, partitions=(part,))
    return Question(request, target=partition, read=lambda reply: reply.partitions[0].low_watermark)


def list_transactions(
    broker_id: int,
    states: Sequence[TransactionState] = (),
    producer_ids: Sequence[int] = (),
    duration_ms: int = NO_TIMESTAMP,
    transactional_id_pattern: str | None = None,
) -> Question[list[TransactionListing]]:
    """The transactional ids that a broker coordinates, filtered as Kafka does (KIP-664, KIP-994, KIP-1152).

    The pattern is tried here and not in the broker, as Kafka does: Kafka has a matcher that takes linear
    time, and what takes Python for ever should not hold up everybody else. ValueError when it is no pattern.
    """
    wanted = _pattern(transactional_id_pattern)
    request = m.ListTransactions(
        states=tuple(state.title for state in states),
        producer_ids=tuple(producer_ids),
        duration_ms=duration_ms,
    )

    def read(reply: m.ListTransactionsReply) -> list[TransactionListing]:
        return [
            TransactionListing(
                transactional_id=listed.transactional_id,
                coordinator_id=broker_id,
                producer_id=listed.producer_id,
                state=listed.state,
            )
            for listed in reply.transactions
            if wanted.fullmatch(listed.transactional_id)
        ]

    return Question(request, target=BrokerAt(broker_id), read=read)


def _pattern(given: str | None) -> re.Pattern[str]:
    try:
        return re.compile(given or ".*", re.DOTALL)
    except re.error as problem:
        raise ValueError(f"{given!r} is no regular expression: {problem}") from problem


def find_coordinator(transactional_id: str) -> Question[int]:
    """The broker that coordinates a transactional id, known or not."""
    request = m.FindCoordinator(kind=CoordinatorType.TRANSACTION, key=transactional_id)
    return Question(request, target=ANY_NODE, read=lambda reply: reply.node_id)


def describe_transaction(transactional_id: str) -> Question[m.TransactionDescription]:
    """One transactional id: its state, identity, timeout and open partitions."""
    target = CoordinatorOf(CoordinatorType.TRANSACTION, transactional_id)
    request = m.DescribeTransactions(transactional_ids=(transactional_id,))
    return Question(request, target=target, read=lambda reply: reply.transactions[0])


def describe_producers(
    partition: TopicPartition, broker_id: int | None
) -> Question[list[m.ProducerDescription]]:
    """The producers that a partition remembers, as its leader or the broker named tells it."""
    name = m.PartitionName(topic=partition.topic, partition=partition.partition)
    request = m.DescribeProducers(partitions=(name,))
    target = partition if broker_id is None else BrokerAt(broker_id)
    return Question(request, target=target, read=lambda reply: list(reply.partitions[0].producers))


def abort_transaction(spec: AbortSpec) -> Question[None]:
    """Writes an ABORT marker past the coordinator, which is not told (Kafka's Admin.abortTransaction)."""
    name = m.PartitionName(topic=spec.partition.topic, partition=spec.partition.partition)
    marker = m.TransactionMarker(
        producer_id=spec.producer_id,
        producer_epoch=spec.producer_epoch,
        result=TransactionResult.ABORT,
        coordinator_epoch=spec.coordinator_epoch,
        transaction_version=_ABORT_VERSION,
        partitions=(name,),
    )
    return Question(m.WriteTxnMarkers(markers=(marker,)), target=spec.partition, read=nothing)


def force_terminate_transaction(transactional_id: str) -> Question[None]:
    """Takes the id over from its producer, as the next owner would: what is open is aborted, and whoever
    had it is fenced (Kafka's Admin.forceTerminateTransaction, Admin.fenceProducers).
    """
    request = m.InitProducerId(
        transactional_id=transactional_id,
        transaction_timeout_ms=FENCING_TIMEOUT_MS,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
    )
    target = CoordinatorOf(CoordinatorType.TRANSACTION, transactional_id)
    return Question(request, target=target, read=nothing)


def nothing(_reply: object) -> None:
    """Reads a reply that says no more than that it was done."""


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
