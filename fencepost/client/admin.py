"""The requests of an admin, and how their replies are read; the shells wait in between.

Rule: an `AdminRequest` is a request, the node that must answer it, and a function from its reply to a result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import attrs

from fencepost.client.retries import ANY_NODE, CONTROLLER, BrokerAt, CoordinatorOf, Target
from fencepost.protocol import messages as m
from fencepost.protocol.consumer_protocol import decode_assignment
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import (
    CONSUMER_PROTOCOL,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    CoordinatorType,
    GroupState,
    IsolationLevel,
    TopicPartition,
    TransactionResult,
    TransactionState,
)

ResultT = TypeVar("ResultT")

# The lenient check: an administrator's marker has the epoch of the transaction that it ends, and a marker of
# version 2 must have a higher one (KIP-1228, AbortTransactionHandler).
_ABORT_VERSION: Final = 0
# FenceProducersHandler: request.timeout.ms, as no transaction will be opened.
FENCING_TIMEOUT_MS: Final = 30_000
# request.timeout.ms: the time that Kafka's leader waits for its followers.
DELETE_RECORDS_MS: Final = 30_000


@attrs.frozen
class AdminRequest(Generic[ResultT]):
    """A request, its target, and how to read the reply."""

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
    """The open transaction to abort, of one producer in one partition (KIP-664)."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


def list_brokers() -> AdminRequest[list[int]]:
    """The ids of the running brokers."""
    return AdminRequest(
        m.Metadata(topics=()), target=ANY_NODE, read=lambda reply: [node.node_id for node in reply.nodes]
    )


def transaction_version() -> AdminRequest[int]:
    """The finalized `transaction.version` of the cluster."""
    return AdminRequest(m.ApiVersions(), target=ANY_NODE, read=lambda reply: reply.transaction_version)


def create_topic(name: str, partitions: int, configs: Mapping[str, str]) -> AdminRequest[None]:
    """Creates a topic; `configs` are its configs by Kafka's names."""
    settings = tuple(m.TopicConfig(name=setting, value=value) for setting, value in sorted(configs.items()))
    wanted = m.CreateTopic(topic=name, partition_count=partitions, configs=settings)
    return AdminRequest(m.CreateTopics(topics=(wanted,)), target=CONTROLLER, read=nothing)


def delete_topic(name: str) -> AdminRequest[None]:
    """Deletes a topic and its records."""
    return AdminRequest(m.DeleteTopics(topics=(name,)), target=CONTROLLER, read=nothing)


def list_topics() -> AdminRequest[list[TopicDescription]]:
    """Every topic, internal ones too, by name."""
    return AdminRequest(m.Metadata(topics=None), target=ANY_NODE, read=_topics)


def describe_topic(name: str) -> AdminRequest[TopicDescription]:
    """One topic."""
    return AdminRequest(m.Metadata(topics=(name,)), target=ANY_NODE, read=lambda reply: _topics(reply)[0])


def offset_of(partition: TopicPartition, timestamp: int, isolation: IsolationLevel) -> AdminRequest[int]:
    """The first offset at or after a timestamp, or of LATEST_TIMESTAMP or EARLIEST_TIMESTAMP; or -1."""
    asked = m.ListOffsetsPartition(topic=partition.topic, partition=partition.partition, timestamp=timestamp)
    request = m.ListOffsets(isolation_level=isolation, partitions=(asked,))
    return AdminRequest(request, target=partition, read=lambda reply: reply.partitions[0].offset)


def delete_records(partition: TopicPartition, before: int) -> AdminRequest[int]:
    """Deletes the records before an offset, or with HIGH_WATERMARK all; the new log start offset."""
    part = m.DeleteRecordsPartition(topic=partition.topic, partition=partition.partition, offset=before)
    request = m.DeleteRecords(timeout_ms=DELETE_RECORDS_MS, partitions=(part,))
    return AdminRequest(request, target=partition, read=lambda reply: reply.partitions[0].low_watermark)


def list_transactions(
    broker_id: int,
    states: Sequence[TransactionState] = (),
    producer_ids: Sequence[int] = (),
    duration_ms: int = NO_TIMESTAMP,
    transactional_id_pattern: str | None = None,
) -> AdminRequest[list[TransactionListing]]:
    """The transactional ids that a broker coordinates, filtered as Kafka does (KIP-664, KIP-994, KIP-1152).

    The pattern is applied here and not in the broker, unlike Kafka: Kafka's matcher needs linear time, but an
    evil pattern for Python's would block the broker for all clients. ValueError if it is invalid.
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

    return AdminRequest(request, target=BrokerAt(broker_id), read=read)


def _pattern(given: str | None) -> re.Pattern[str]:
    try:
        return re.compile(given or ".*", re.DOTALL)
    except re.error as problem:
        raise ValueError(f"{given!r} is not a valid regular expression: {problem}") from problem


def find_coordinator(transactional_id: str) -> AdminRequest[int]:
    """The broker that coordinates a transactional id, which need not exist."""
    request = m.FindCoordinator(kind=CoordinatorType.TRANSACTION, key=transactional_id)
    return AdminRequest(request, target=ANY_NODE, read=lambda reply: reply.node_id)


def describe_transaction(transactional_id: str) -> AdminRequest[m.TransactionDescription]:
    """One transactional id: its state, identity, timeout and open partitions."""
    target = CoordinatorOf(CoordinatorType.TRANSACTION, transactional_id)
    request = m.DescribeTransactions(transactional_ids=(transactional_id,))
    return AdminRequest(request, target=target, read=lambda reply: reply.transactions[0])


def describe_producers(
    partition: TopicPartition, broker_id: int | None
) -> AdminRequest[list[m.ProducerDescription]]:
    """The producers that a partition remembers, at its leader or at one broker."""
    request = m.DescribeProducers(partitions=(partition,))
    target = partition if broker_id is None else BrokerAt(broker_id)
    return AdminRequest(request, target=target, read=lambda reply: list(reply.partitions[0].producers))


def abort_transaction(spec: AbortSpec) -> AdminRequest[None]:
    """Writes an ABORT marker; the coordinator is not informed (Kafka's Admin.abortTransaction)."""
    marker = m.TransactionMarker(
        producer_id=spec.producer_id,
        producer_epoch=spec.producer_epoch,
        result=TransactionResult.ABORT,
        coordinator_epoch=spec.coordinator_epoch,
        transaction_version=_ABORT_VERSION,
        partitions=(spec.partition,),
    )
    return AdminRequest(m.WriteTxnMarkers(markers=(marker,)), target=spec.partition, read=nothing)


def force_terminate_transaction(transactional_id: str) -> AdminRequest[None]:
    """Registers the id as a new producer would, which fences its producer and aborts its open transaction
    (Kafka's Admin.forceTerminateTransaction, Admin.fenceProducers).
    """
    request = m.InitProducerId(
        transactional_id=transactional_id,
        transaction_timeout_ms=FENCING_TIMEOUT_MS,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
    )
    target = CoordinatorOf(CoordinatorType.TRANSACTION, transactional_id)
    return AdminRequest(request, target=target, read=nothing)


def nothing(_reply: object) -> None:
    """Reads a reply without a result."""


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


# --- consumer groups ----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class GroupListing:
    """A consumer group, and the broker that coordinates it."""

    group_id: str
    coordinator_id: int
    protocol_type: str
    state: GroupState


@attrs.frozen(kw_only=True)
class MemberDescription:
    """A member and its partitions; none during a rebalance, or in a group of another protocol type."""

    member_id: str
    group_instance_id: str | None
    partitions: tuple[TopicPartition, ...]


@attrs.frozen(kw_only=True)
class GroupDescription:
    """A group and its members. Dead: it does not exist. `protocol`: the assignor of a stable group."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]


def list_groups(broker_id: int, states: Iterable[GroupState]) -> AdminRequest[list[GroupListing]]:
    """The groups that a broker coordinates, in these states, or in any state if none is given."""

    def read(reply: m.ListGroupsReply) -> list[GroupListing]:
        return [
            GroupListing(
                group_id=listed.group_id,
                coordinator_id=broker_id,
                protocol_type=listed.protocol_type,
                state=listed.state,
            )
            for listed in reply.groups
        ]

    return AdminRequest(m.ListGroups(states=tuple(states)), target=BrokerAt(broker_id), read=read)


def describe_group(group_id: str) -> AdminRequest[GroupDescription]:
    """One group with its members."""

    def read(reply: m.DescribeGroupsReply) -> GroupDescription:
        (found,) = reply.groups
        return GroupDescription(
            group_id=found.group_id,
            state=found.state,
            protocol_type=found.protocol_type,
            protocol=found.protocol,
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    partitions=_assigned(found.protocol_type, member.assignment),
                )
                for member in found.members
            ),
        )

    return AdminRequest(m.DescribeGroups(groups=(group_id,)), target=_coordinator(group_id), read=read)


def group_offsets(group_id: str, *, require_stable: bool) -> AdminRequest[dict[TopicPartition, int]]:
    """All committed offsets of a group; `require_stable` waits for transactions that commit one."""

    def read(reply: m.OffsetFetchReply) -> dict[TopicPartition, int]:
        return {TopicPartition(found.topic, found.partition): found.offset for found in reply.offsets}

    request = m.OffsetFetch(group_id=group_id, partitions=None, require_stable=require_stable)
    return AdminRequest(request, target=_coordinator(group_id), read=read)


def delete_group(group_id: str) -> AdminRequest[None]:
    """Deletes a group without members, and its offsets."""
    return AdminRequest(m.DeleteGroups(groups=(group_id,)), target=_coordinator(group_id), read=nothing)


def delete_group_offsets(group_id: str, partitions: Iterable[TopicPartition]) -> AdminRequest[None]:
    """Deletes offsets of partitions that no member reads; a missing offset is not an error."""
    request = m.OffsetDelete(group_id=group_id, partitions=tuple(partitions))
    return AdminRequest(request, target=_coordinator(group_id), read=nothing)


def _coordinator(group_id: str) -> CoordinatorOf:
    return CoordinatorOf(CoordinatorType.GROUP, group_id)


def _assigned(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of a member of the consumer protocol; none for other protocols."""
    if protocol_type != CONSUMER_PROTOCOL:
        return ()
    try:
        return decode_assignment(assignment)
    except ProtocolViolation:
        return ()  # an assignment is opaque to the broker: the leader may have sent any bytes
