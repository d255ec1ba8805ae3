"""The calls of an admin: topics, offsets, transactions, producers and groups of a cluster.

Rule: a call is a script (see `calls`) that sends its requests one after the other, each to the node that must
answer it, and returns what a program wants to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from fencepost.client.arguments import Count, FaultId, NodeId, Offset, OffsetOrEnd, Timestamp, TimestampOrEnd
from fencepost.client.calls import CallScript, RequestCalls
from fencepost.client.effects import CallAnswered
from fencepost.client.errors import ClientError, RequestFailed
from fencepost.client.group_offsets import ConsumerGroupMetadata, commit_request
from fencepost.client.metadata import CoordinatorOf
from fencepost.client.retries import ANY_NODE, CONTROLLER, BrokerAt
from fencepost.client.settings import isolation_named
from fencepost.protocol import messages as m
from fencepost.protocol.consumer_protocol import decode_assignment
from fencepost.protocol.errors import ErrorCode, ProtocolViolation
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import (
    CONSUMER_PROTOCOL,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    ConfigOperation,
    CoordinatorType,
    GroupState,
    GroupType,
    IsolationLevel,
    TopicPartition,
    TransactionResult,
    TransactionState,
)

# The lenient check: an administrator's marker has the epoch of the transaction that it ends, and a marker of
# version 2 must have a higher one (KIP-1228, AbortTransactionHandler).
_ABORT_VERSION: Final = 0
# FenceProducersHandler: request.timeout.ms, as no transaction will be opened.
FENCING_TIMEOUT_MS: Final = 30_000
# request.timeout.ms: the time that Kafka's leader waits for its followers.
DELETE_RECORDS_MS: Final = 30_000


@attrs.frozen(kw_only=True)
class TopicDescription:
    """A topic. `is_internal`: it belongs to the broker. `leaders`, `leader_epochs`: by partition number, the
    id of the broker that leads the partition, and its leader epoch.
    """

    topic: str
    is_internal: bool
    leaders: tuple[int, ...]
    leader_epochs: tuple[int, ...]


@attrs.frozen(kw_only=True)
class TransactionListing:
    """A transactional id. `coordinator_id`: the broker that coordinates it. `state`: that of its newest
    transaction.
    """

    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: TransactionState


@attrs.frozen(kw_only=True)
class AbortSpec:
    """The open transaction to abort, of one producer in one partition (KIP-664); Admin.describe_producers()
    shows its ids and epochs.
    """

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


@attrs.frozen(kw_only=True)
class GroupListing:
    """A consumer group. `coordinator_id`: the broker that coordinates it. `state`: what its members are
    doing. `group_type`: the protocol that its members speak.
    """

    group_id: str
    coordinator_id: int
    protocol_type: str
    state: GroupState
    group_type: GroupType


@attrs.frozen(kw_only=True)
class MemberDescription:
    """A member of a group. `partitions`: those of its last assignment, even during a rebalance; none in a
    group of another protocol type. `host`: the address that it connects from.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@attrs.frozen(kw_only=True)
class GroupDescription:
    """A group of either protocol. `state`: DEAD if the group does not exist. `protocol`: its assignor; in the
    classic protocol only while the group is stable. `members`: all of them, even those without partitions.
    """

    group_id: str
    state: GroupState
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]


class AdminCalls(RequestCalls):
    """The calls of an admin. Every one raises RequestFailed when the broker rejects the request."""

    __slots__ = ()

    # --- topics ---------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: Count = 1, configs: Mapping[str, str] | None = None
    ) -> CallScript[None]:
        """Creates a topic.

        `name`: up to 249 ASCII letters, digits, ".", "_" and "-". `partitions`: how many it has. `configs`:
        topic configs by Kafka's names, such as cleanup.policy or retention.ms. RequestFailed when the topic
        exists (TOPIC_ALREADY_EXISTS), or the name, a config or the number of partitions is invalid.
        """
        settings = tuple(
            m.TopicConfig(name=key, value=value) for key, value in sorted((configs or {}).items())
        )
        wanted = m.CreateTopic(topic=name, partition_count=partitions, configs=settings)
        yield from self.ask(m.CreateTopics(topics=(wanted,)), CONTROLLER)

    def create_partitions(self, name: str, total: Count) -> CallScript[None]:
        """Adds partitions to a topic. A key may then belong to another partition.

        `name`: the topic. `total`: how many partitions it has afterwards. RequestFailed when the topic does
        not exist (UNKNOWN_TOPIC_OR_PARTITION), or has at least as many already (INVALID_PARTITIONS).
        """
        wanted = m.NewPartitions(topic=name, count=total)
        yield from self.ask(m.CreatePartitions(topics=(wanted,), validate_only=False), CONTROLLER)

    def delete_topic(self, name: str) -> CallScript[None]:
        """Deletes the topic called `name` and its records. RequestFailed with UNKNOWN_TOPIC_OR_PARTITION if
        it does not exist.
        """
        yield from self.ask(m.DeleteTopics(topics=(name,)), CONTROLLER)

    def list_topics(self) -> CallScript[list[TopicDescription]]:
        """All topics, sorted by name, including internal ones."""
        return _topics((yield from self.ask(m.Metadata(topics=None), ANY_NODE)))

    def describe_topic(self, name: str) -> CallScript[TopicDescription]:
        """The topic called `name`. RequestFailed with UNKNOWN_TOPIC_OR_PARTITION if it does not exist."""
        return _topics((yield from self.ask(m.Metadata(topics=(name,)), ANY_NODE)))[0]

    def describe_topic_configs(self, name: str) -> CallScript[list[m.DescribedConfig]]:
        """The settings of the topic called `name`, its own and those of the broker, each with its source."""
        request = m.DescribeConfigs(topics=(name,), node_id=None)
        return list((yield from self.ask(request, ANY_NODE)).topics[0].configs)

    def alter_topic_configs(self, name: str, configs: Mapping[str, str | None]) -> CallScript[None]:
        """Changes settings of a topic, all of them at once or none; the others stay.

        `name`: the topic. `configs`: values by Kafka's names. With None, the broker's setting applies again.
        RequestFailed when the topic does not exist (UNKNOWN_TOPIC_OR_PARTITION), or a setting is invalid
        (INVALID_CONFIG).
        """
        changes = tuple(
            m.ConfigChange(
                name=key,
                operation=ConfigOperation.DELETE if value is None else ConfigOperation.SET,
                value=value,
            )
            for key, value in sorted(configs.items())
        )
        wanted = m.TopicConfigChanges(topic=name, changes=changes)
        yield from self.ask(m.IncrementalAlterConfigs(topics=(wanted,), validate_only=False), CONTROLLER)

    def describe_broker_configs(self, broker_id: NodeId) -> CallScript[list[m.DescribedConfig]]:
        """The settings of the broker `broker_id` that have a name in Kafka. RequestFailed if it is not
        running.
        """
        request = m.DescribeConfigs(topics=(), node_id=broker_id)
        return list((yield from self.ask(request, BrokerAt(broker_id))).node)

    def list_brokers(self) -> CallScript[list[int]]:
        """The ids of the running brokers."""
        reply: m.MetadataReply = yield from self.ask(m.Metadata(topics=()), ANY_NODE)
        return [node.node_id for node in reply.nodes]

    def broker_status(self, broker_id: NodeId | None = None) -> CallScript[m.BrokerStatusReply]:
        """The health of a broker, and its counters since it started.

        `broker_id`: by default any broker. RequestFailed if this one is not running.
        """
        target = ANY_NODE if broker_id is None else BrokerAt(broker_id)
        return (yield from self.ask(m.BrokerStatus(), target))

    # --- offsets --------------------------------------------------------------------------------------------

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> CallScript[dict[TopicPartition, int]]:
        """The log start offset of each partition."""
        return self._offsets(partitions, EARLIEST_TIMESTAMP, "read_uncommitted")

    def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation_level: str | IsolationLevel = "read_committed"
    ) -> CallScript[dict[TopicPartition, int]]:
        """The end offset of each partition. `isolation_level`: "read_committed" for the last stable offset,
        "read_uncommitted" for the high watermark.
        """
        return self._offsets(partitions, LATEST_TIMESTAMP, isolation_level)

    def offsets_for_times(
        self, partitions: Iterable[TopicPartition], timestamp_ms: Timestamp
    ) -> CallScript[dict[TopicPartition, int]]:
        """For each partition, the offset of the first record whose timestamp is at least `timestamp_ms`
        (since 1970); -1 if there is none.
        """
        return self._offsets(partitions, timestamp_ms, "read_committed")

    def list_offsets(
        self,
        partitions: Iterable[TopicPartition],
        timestamp_ms: TimestampOrEnd,
        isolation_level: str | IsolationLevel = "read_committed",
    ) -> CallScript[dict[TopicPartition, int | ClientError]]:
        """The same as `beginning_offsets`, `end_offsets` or `offsets_for_times`, for a program that continues
        without the partitions that cannot be read: their value is the error, which is not raised.

        `timestamp_ms`: -2 for the log start offsets, -1 for the end offsets, or a time since 1970.
        `isolation_level`: as in `end_offsets`.
        """
        level, wanted = isolation_named(isolation_level), list(partitions)

        def request_for(where: TopicPartition) -> m.ListOffsets:
            asked = m.ListOffsetsPartition(
                topic=where.topic, partition=where.partition, timestamp=timestamp_ms
            )
            return m.ListOffsets(isolation_level=level, partitions=(asked,))

        answers = yield from self.ask_each([(request_for(where), where) for where in wanted])
        return dict(zip(wanted, map(_offset_or_error, answers), strict=True))

    def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, isolation_level: str | IsolationLevel
    ) -> CallScript[dict[TopicPartition, int]]:
        listed = yield from self.list_offsets(partitions, timestamp, isolation_level)
        found: dict[TopicPartition, int] = {}
        for where, offset in listed.items():
            if isinstance(offset, ClientError):
                raise offset
            found[where] = offset
        return found

    def delete_records(
        self, before: Mapping[TopicPartition, OffsetOrEnd]
    ) -> CallScript[dict[TopicPartition, int]]:
        """Deletes the records before an offset of each partition; returns the new log start offsets.

        `before`: offsets by partition; HIGH_WATERMARK (-1) deletes all records. RequestFailed with
        OFFSET_OUT_OF_RANGE if an offset is above the high watermark, and with POLICY_VIOLATION if the topic's
        cleanup.policy is "compact" without "delete".
        """
        starts: dict[TopicPartition, int] = {}
        for where, offset in before.items():
            part = m.DeleteRecordsPartition(topic=where.topic, partition=where.partition, offset=offset)
            request = m.DeleteRecords(timeout_ms=DELETE_RECORDS_MS, partitions=(part,))
            reply: m.DeleteRecordsReply = yield from self.ask(request, where)
            starts[where] = reply.partitions[0].low_watermark
        return starts

    # --- transactions ---------------------------------------------------------------------------------------

    def list_transactions(
        self,
        states: Iterable[TransactionState] = (),
        producer_ids: Iterable[OffsetOrEnd] = (),
        duration_ms: OffsetOrEnd = NO_TIMESTAMP,
        transactional_id_pattern: str | None = None,
    ) -> CallScript[list[TransactionListing]]:
        """The transactional ids of all coordinators (KIP-664), filtered.

        `states`, `producer_ids`: only these, or all if empty. `duration_ms`: only transactions that have been
        open for longer; ids without a transaction pass, as in Kafka (KIP-994). `transactional_id_pattern`: a
        regular expression of RE2 for the whole id (KIP-1152). RequestFailed with INVALID_REGULAR_EXPRESSION
        if it is not one.
        """
        request = m.ListTransactions(
            states=tuple(state.title for state in states),
            producer_ids=tuple(producer_ids),
            duration_ms=duration_ms,
            transactional_id_pattern=transactional_id_pattern,
        )
        replies: dict[int, m.ListTransactionsReply] = yield from self._ask_all(request)
        return [
            TransactionListing(
                transactional_id=listed.transactional_id,
                coordinator_id=broker,
                producer_id=listed.producer_id,
                state=listed.state,
            )
            for broker, reply in replies.items()
            for listed in reply.transactions
        ]

    def _ask_all(self, request: Request) -> CallScript[dict[int, Any]]:
        """The reply of each broker, by its id."""
        replies: dict[int, Any] = {}
        for broker in (yield from self.list_brokers()):
            replies[broker] = yield from self.ask(request, BrokerAt(broker))
        return replies

    def transaction_version(self) -> CallScript[int]:
        """The `transaction.version` of the cluster: 0, 1 or 2. Give a producer
        `transaction_version=2` for 2, and 0 for the others.
        """
        return (yield from self.ask(m.ApiVersions(), ANY_NODE)).transaction_version

    def find_coordinator(self, transactional_id: str) -> CallScript[int]:
        """The id of the broker that coordinates a transactional id, which need not exist."""
        request = m.FindCoordinator(kind=CoordinatorType.TRANSACTION, key=transactional_id)
        return (yield from self.ask(request, ANY_NODE)).node_id

    def describe_transaction(self, transactional_id: str) -> CallScript[m.TransactionDescription]:
        """One transactional id: its state, identity, timeout and open partitions. RequestFailed with
        TRANSACTIONAL_ID_NOT_FOUND if it does not exist.
        """
        request = m.DescribeTransactions(transactional_ids=(transactional_id,))
        target = CoordinatorOf(CoordinatorType.TRANSACTION, transactional_id)
        return (yield from self.ask(request, target)).transactions[0]

    def describe_producers(
        self, partition: TopicPartition, broker_id: NodeId | None = None
    ) -> CallScript[list[m.ProducerDescription]]:
        """The producers that a partition remembers, with their open transactions (KIP-664).

        The leader answers, or the broker `broker_id`, which must be a replica of the partition.
        """
        target = partition if broker_id is None else BrokerAt(broker_id)
        reply = yield from self.ask(m.DescribeProducers(partitions=(partition,)), target)
        return list(reply.partitions[0].producers)

    def force_terminate_transaction(self, transactional_id: str) -> CallScript[None]:
        """Fences the producer with this transactional id and aborts its open transaction
        (Admin.forceTerminateTransaction), by registering the id as a new producer would.

        Creates the id if it does not exist.
        """
        request = m.InitProducerId(
            transactional_id=transactional_id,
            transaction_timeout_ms=FENCING_TIMEOUT_MS,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
        )
        yield from self.ask(request, CoordinatorOf(CoordinatorType.TRANSACTION, transactional_id))

    def abort_transaction(self, spec: AbortSpec) -> CallScript[None]:
        """Ends a hanging transaction in one partition with an ABORT marker (KIP-664).

        `spec`: which one. The coordinator is not informed. RequestFailed if the partition has seen a newer
        epoch of the producer or of the coordinator.
        """
        marker = m.TransactionMarker(
            producer_id=spec.producer_id,
            producer_epoch=spec.producer_epoch,
            result=TransactionResult.ABORT,
            coordinator_epoch=spec.coordinator_epoch,
            transaction_version=_ABORT_VERSION,
            partitions=(spec.partition,),
        )
        yield from self.ask(m.WriteTxnMarkers(markers=(marker,)), spec.partition)

    # --- consumer groups ------------------------------------------------------------------------------------

    def list_consumer_groups(self, states: Iterable[GroupState] = ()) -> CallScript[list[GroupListing]]:
        """The consumer groups of all coordinators. `states`: only groups in these; by default in any."""
        replies: dict[int, m.ListGroupsReply] = yield from self._ask_all(m.ListGroups(states=tuple(states)))
        return [
            GroupListing(
                group_id=listed.group_id,
                coordinator_id=broker,
                protocol_type=listed.protocol_type,
                state=listed.state,
                group_type=listed.group_type,
            )
            for broker, reply in replies.items()
            for listed in reply.groups
        ]

    def describe_consumer_group(self, group_id: str) -> CallScript[GroupDescription]:
        """One consumer group with its members; its state is Dead if it does not exist."""
        reply: m.DescribeGroupsReply = yield from self.ask(
            m.DescribeGroups(groups=(group_id,)), _coordinator(group_id)
        )
        (found,) = reply.groups
        if found.state is GroupState.DEAD:
            other = yield from self._describe_consumers(group_id)
            if other is not None:
                return other
        return GroupDescription(
            group_id=found.group_id,
            state=found.state,
            protocol_type=found.protocol_type,
            protocol=found.protocol,
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    host=member.client_host,
                    partitions=_assigned(found.protocol_type, member.assignment),
                )
                for member in found.members
            ),
        )

    def _describe_consumers(self, group_id: str) -> CallScript[GroupDescription | None]:
        """A group of the consumer protocol (KIP-848), which Kafka's clients may use."""
        request = m.ConsumerGroupDescribe(groups=(group_id,))
        try:
            reply: m.ConsumerGroupDescribeReply = yield from self.ask(request, _coordinator(group_id))
        except RequestFailed as problem:
            if problem.error is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return None
        (found,) = reply.groups
        return GroupDescription(
            group_id=found.group_id,
            state=found.state,
            protocol_type=CONSUMER_PROTOCOL,
            protocol=found.assignor_name,
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    host=member.client_host,
                    partitions=tuple(
                        TopicPartition(topic.topic, number)
                        for topic in member.assignment
                        for number in topic.partitions
                    ),
                )
                for member in found.members
            ),
        )

    def list_consumer_group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> CallScript[dict[TopicPartition, int]]:
        """All committed offsets of a group. `require_stable` waits for open transactions that commit one."""
        request = m.OffsetFetch(group_id=group_id, partitions=None, require_stable=require_stable)
        reply: m.OffsetFetchReply = yield from self.ask(request, _coordinator(group_id))
        return {TopicPartition(found.topic, found.partition): found.offset for found in reply.offsets}

    def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> CallScript[None]:
        """Commits offsets for a group without members, which is created if it does not exist.

        `offsets`: by partition, the offset of the next record to read. RequestFailed with UNKNOWN_MEMBER_ID
        while the group has members.
        """
        request = commit_request(ConsumerGroupMetadata(group_id=group_id), offsets)
        yield from self.ask(request, _coordinator(group_id))

    def delete_consumer_group(self, group_id: str) -> CallScript[None]:
        """Deletes a group and its offsets. RequestFailed with NON_EMPTY_GROUP while it has members."""
        yield from self.ask(m.DeleteGroups(groups=(group_id,)), _coordinator(group_id))

    def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> CallScript[None]:
        """Deletes the group's offsets of these partitions; a missing offset is not an error.

        RequestFailed with GROUP_SUBSCRIBED_TO_TOPIC if a member reads one of the topics; the other offsets
        are deleted.
        """
        request = m.OffsetDelete(group_id=group_id, partitions=tuple(partitions))
        yield from self.ask(request, _coordinator(group_id))

    # --- faults ---------------------------------------------------------------------------------------------

    def add_fault(self, fault: str) -> CallScript[int]:
        """Adds a fault to the broker, for the tests of an application; returns its id.

        `fault`: "when POINT do ACTION", in the phrases of scenarios (docs/faults.md). RequestFailed with
        INVALID_REQUEST if a broker cannot inject it.
        """
        reply: m.AddFaultsReply = yield from self.ask(m.AddFaults(faults=(fault,)), ANY_NODE)
        return reply.faults[0].fault_id

    def list_faults(self) -> CallScript[list[m.DescribedFault]]:
        """The faults that were added to the broker and not removed, oldest first."""
        return list((yield from self.ask(m.ListFaults(), ANY_NODE)).faults)

    def end_fault(self, fault_id: FaultId) -> CallScript[None]:
        """Undoes now what a fault did: releases what it holds, resumes what it paused. RequestFailed with
        INVALID_REQUEST if there is no such fault.
        """
        yield from self.ask(m.RemoveFaults(fault_ids=(fault_id,), keeps=True), ANY_NODE)

    def remove_fault(self, fault_id: FaultId) -> CallScript[None]:
        """Ends a fault and forgets it; it does not strike again. RequestFailed with INVALID_REQUEST if there
        is no such fault.
        """
        yield from self.ask(m.RemoveFaults(fault_ids=(fault_id,), keeps=False), ANY_NODE)

    # --- steps ----------------------------------------------------------------------------------------------

    def follow(
        self, run: str = "", after: Offset = 0, *, bytes_max: Count = 1 << 18, wait_ms: Count = 500
    ) -> CallScript[m.FollowReply]:
        """Waits for the next steps of a broker that was started with `--follow`, for pictures of it.

        `run`, `after`: where to continue, from the last reply; leave them out at first. `bytes_max`: the
        limit for the steps in the reply. `wait_ms`: how long to wait for a step; a second at most. The `run`
        of the reply is empty if the broker accepts no followers.
        """
        request = m.Follow(run=run, after=after, bytes_max=bytes_max, wait_ms=wait_ms)
        return (yield from self.ask(request, ANY_NODE))


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


def _offset_or_error(answer: CallAnswered) -> int | ClientError:
    if answer.failure is not None:
        return answer.failure.exception()
    reply: Any = answer.reply
    return reply.partitions[0].offset


def _coordinator(group_id: str) -> CoordinatorOf:
    return CoordinatorOf(CoordinatorType.GROUP, group_id)


def _assigned(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of a member whose protocol type is "consumer"; none for other types."""
    if protocol_type != CONSUMER_PROTOCOL:
        return ()
    try:
        return decode_assignment(assignment)
    except ProtocolViolation:
        return ()  # an assignment is opaque to the broker: the leader may have sent any bytes
