"""Every request and reply, a frozen class each with its fields by name, and the API table with Kafka's keys.

Rule: a message says what Kafka's message of that name says (clients/.../common/message/*.json), without the
fields that only a cluster with replicas needs. The error of a whole request travels in the frame; errors of
single partitions are fields.
"""

# A class is the schema: codec.py derives the encoding from its annotations, in the order of the fields. So a
# field that is added, removed or moved is another protocol, and both sides must change together.
#
# Kafka's requests nest partitions under topics, these do not: a flat tuple of partitions is what every reader
# of a message wants, and repeating a topic's name costs few bytes.

from __future__ import annotations

from typing import Any, Final, NamedTuple

import attrs

from fencepost.protocol.codec import Int8, Int16, Int32, Int64, Records
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import (
    BROKERS_DEFAULT,
    NO_ACKS,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_RETENTION,
    NO_TIMESTAMP,
    NO_TOPIC_ID,
    ConfigOperation,
    ConfigSource,
    ConfigType,
    GroupState,
    GroupType,
    IsolationLevel,
    TopicPartition,
    TransactionResult,
    TransactionState,
)
from fencepost.protocol.values import value


@value
class PartitionError:
    """The error of one partition, in a reply that says nothing else about it."""

    topic: str
    partition: Int32
    error: ErrorCode


# --- records: Produce, Fetch, ListOffsets, DeleteRecords ----------------------------------------------------

# Records travel as whole batches (batches.py), which neither side decodes to move them. There are no fetch
# sessions (KIP-227): a reader names its partitions in every Fetch, so the node remembers nothing of it.
# The sessions of Kafka's clients end in front of the node (kafka_bridge/fetch_session.py).


@value
class ProducePartition:
    """The batches for one partition. Clients send exactly one, as Kafka's do since 0.11.

    `topic_id` is the topic that the client means: another topic of this name may have replaced it. Zeros, as
    in Kafka's requests before version 13, mean the one that has the name when the request is handled.
    """

    topic: str
    topic_id: bytes
    partition: Int32
    records: Records


@value
class Produce:
    """Append batches to partitions.

    With `acks` 0 the broker sends no reply, and closes the connection if a partition has an error; 1 and -1
    mean the same with one replica.
    """

    transactional_id: str | None
    acks: Int16
    # In Kafka, how long to wait for replicas; with one replica nothing waits.
    timeout_ms: Int32
    partitions: tuple[ProducePartition, ...]


@value
class ProducedPartition:
    """The result for one partition. For a duplicate, `base_offset` is that of the stored batch, and
    `log_append_time` the latest timestamp of its records (ms), as in Kafka.
    """

    topic: str
    partition: Int32
    error: ErrorCode
    base_offset: Int64
    log_start_offset: Int64
    log_append_time: Int64 = NO_TIMESTAMP


@value
class ProduceReply:
    partitions: tuple[ProducedPartition, ...]


@value(kw_only=True)
class FetchPartition:
    """A partition to read from.

    `current_leader_epoch` is the newest that the reader knows; with -1 it is not checked (KIP-320).
    """

    topic: str
    partition: Int32
    # Lets a leader refuse a reader that knows a newer or an older leadership, instead of reading from another
    # log.
    current_leader_epoch: Int32 = NO_LEADER_EPOCH
    fetch_offset: Int64
    max_bytes: Int32


@value(kw_only=True)
class Fetch:
    """Read batches; the broker waits up to `max_wait_ms` for `min_bytes` of records.

    A first batch that is larger than the limits is sent whole (KIP-74).
    """

    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32
    isolation_level: IsolationLevel
    partitions: tuple[FetchPartition, ...]


@value(kw_only=True)
class AbortedTransaction:
    """An aborted transaction: the reader drops the producer's transactional batches from `first_offset` up to
    its ABORT marker.
    """

    # Where it ends is not needed: the reader meets the marker in the batches themselves.
    producer_id: Int64
    first_offset: Int64


@value(kw_only=True)
class FetchedPartition:
    """Batches of one partition, up to the bound of the isolation level. `aborted` is None for
    read_uncommitted.
    """

    topic: str
    partition: Int32
    error: ErrorCode
    high_watermark: Int64
    last_stable_offset: Int64
    log_start_offset: Int64
    aborted: tuple[AbortedTransaction, ...] | None
    records: Records


@value(kw_only=True)
class FetchReply:
    partitions: tuple[FetchedPartition, ...]


@value(kw_only=True)
class ListOffsetsPartition:
    """A partition to search. `timestamp` is in ms, or one of the special values in terms.py."""

    topic: str
    partition: Int32
    current_leader_epoch: Int32 = NO_LEADER_EPOCH
    timestamp: Int64


@value(kw_only=True)
class ListOffsets:
    """Find offsets by timestamp, or the ends of a log."""

    isolation_level: IsolationLevel
    partitions: tuple[ListOffsetsPartition, ...]


@value(kw_only=True)
class ListedOffset:
    """The first offset at or after the timestamp that the isolation level allows, and the leader epoch of its
    record; -1 without one.
    """

    topic: str
    partition: Int32
    error: ErrorCode
    timestamp: Int64
    offset: Int64
    leader_epoch: Int32 = NO_LEADER_EPOCH


@value(kw_only=True)
class ListOffsetsReply:
    partitions: tuple[ListedOffset, ...]


@value(kw_only=True)
class LeaderEpochPartition:
    """A leader epoch of a partition whose end is asked for."""

    topic: str
    partition: Int32
    current_leader_epoch: Int32 = NO_LEADER_EPOCH
    leader_epoch: Int32


@value(kw_only=True)
class OffsetForLeaderEpoch:
    """Find the end offsets of leader epochs, which tell whether the leader has lost records (KIP-320)."""

    partitions: tuple[LeaderEpochPartition, ...]


@value(kw_only=True)
class EpochEndOffset:
    """The largest leader epoch up to the one that was asked for, and the offset after its last record.

    -1 and -1 for an epoch that is not known.
    """

    topic: str
    partition: Int32
    error: ErrorCode
    leader_epoch: Int32
    end_offset: Int64


@value(kw_only=True)
class OffsetForLeaderEpochReply:
    partitions: tuple[EpochEndOffset, ...]


@value(kw_only=True)
class DeleteRecordsPartition:
    """Delete all records before `offset`; -1 stands for the high watermark."""

    topic: str
    partition: Int32
    offset: Int64


@value(kw_only=True)
class DeleteRecords:
    """Move the start of logs forward."""

    # Unused, as for Produce.
    timeout_ms: Int32
    partitions: tuple[DeleteRecordsPartition, ...]


@value(kw_only=True)
class DeletedRecords:
    """`low_watermark` is the new log start offset; -1 when there is an error."""

    topic: str
    partition: Int32
    low_watermark: Int64
    error: ErrorCode


@value
class DeleteRecordsReply:
    partitions: tuple[DeletedRecords, ...]


# --- the cluster: metadata, coordinators, versions, topics, producer ids ------------------------------------

# The last three requests are between nodes; a client that sends one is refused, whatever its rights
# (cluster/handlers.py). Kafka's brokers, too, send AllocateProducerIds and BrokerRegistration to their
# controller; ElectLeaders is an administrator's there.


@value(kw_only=True)
class Metadata:
    """Describe topics and the nodes that lead their partitions; None means all topics."""

    # Never creates one, unlike Kafka's: for Kafka's clients the bridge sends CreateTopics (kafka_bridge).
    topics: tuple[str, ...] | None


@value(kw_only=True)
class NodeAddress:
    node_id: Int32
    host: str
    port: Int32


@value(kw_only=True)
class PartitionMetadata:
    partition: Int32
    leader_id: Int32
    leader_epoch: Int32


@value(kw_only=True)
class TopicMetadata:
    topic: str
    error: ErrorCode
    is_internal: bool = False
    partitions: tuple[PartitionMetadata, ...] = ()
    topic_id: bytes = NO_TOPIC_ID  # of the topic that has the name now (KIP-516)


@value(kw_only=True)
class MetadataReply:
    cluster_id: str
    controller_id: Int32
    nodes: tuple[NodeAddress, ...]
    topics: tuple[TopicMetadata, ...]


@value(kw_only=True)
class FindCoordinator:
    """Find the node that coordinates a group or a transactional id.

    `kind` is a CoordinatorType; the broker refuses other numbers.
    """

    kind: Int8
    key: str


@value(kw_only=True)
class FindCoordinatorReply:
    node_id: Int32
    host: str
    port: Int32


@value(kw_only=True)
class ApiVersions:
    """Ask which requests the broker supports, and in which versions."""


@value(kw_only=True)
class ApiVersionRange:
    api_key: Int16
    minimum: Int16
    maximum: Int16


@value(kw_only=True)
class ApiVersionsReply:
    versions: tuple[ApiVersionRange, ...]
    # Kafka sends it as a finalized feature (KIP-584): from 2 on, each transaction has an epoch of its own.
    transaction_version: Int16


@value(kw_only=True)
class TopicConfig:
    """One setting of a topic, with Kafka's name. One without a value is refused."""

    name: str
    value: str | None


@value(kw_only=True)
class ReplicaAssignment:
    """The nodes that are to have the replicas of a new partition; the first one leads it."""

    partition: Int32
    node_ids: tuple[Int32, ...]


@value(kw_only=True)
class CreateTopic:
    """A new topic. With -1 partitions, it gets num.partitions of the broker. With assignments, it gets those
    partitions, and both numbers must be -1.
    """

    topic: str
    partition_count: Int32
    replication_factor: Int16 = BROKERS_DEFAULT
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[TopicConfig, ...] = ()


@value(kw_only=True)
class CreateTopics:
    """Create topics; each topic has its own result."""

    topics: tuple[CreateTopic, ...]
    validate_only: bool = False


@value(kw_only=True)
class TopicError:
    """The result for one topic; `because` explains an error in words."""

    topic: str
    error: ErrorCode
    because: str = ""
    topic_id: bytes = NO_TOPIC_ID  # of the topic that was created or deleted
    partition_count: Int32 = -1  # of the topic that was created


@value(kw_only=True)
class CreateTopicsReply:
    topics: tuple[TopicError, ...]


@value(kw_only=True)
class NewPartitions:
    """How many partitions a topic is to have, including those that it has. `assignments`: the nodes that are
    to have the replicas of each new one; None leaves that to the controller.
    """

    topic: str
    count: Int32
    assignments: tuple[tuple[Int32, ...], ...] | None = None


@value(kw_only=True)
class CreatePartitions:
    """Add partitions to topics (KIP-195); new records of a key may then go to another partition."""

    topics: tuple[NewPartitions, ...]
    validate_only: bool


@value(kw_only=True)
class CreatePartitionsReply:
    topics: tuple[TopicError, ...]


@value(kw_only=True)
class DeleteTopics:
    """Delete topics with their records."""

    topics: tuple[str, ...]


@value(kw_only=True)
class DeleteTopicsReply:
    topics: tuple[TopicError, ...]


@value(kw_only=True)
class AllocateProducerIds:
    """A node asks the controller for a block of producer ids (nodes only)."""

    node_id: Int32


@value(kw_only=True)
class AllocateProducerIdsReply:
    first_producer_id: Int64
    count: Int32


@value(kw_only=True)
class BrokerRegistration:
    """A starting node registers its address with the controller (nodes only)."""

    node_id: Int32
    host: str
    port: Int32


@value(kw_only=True)
class BrokerRegistrationReply:
    """`broker_epoch` is the offset of the registration in the metadata log."""

    broker_epoch: Int64


@value(kw_only=True)
class ElectLeaders:
    """Elect leaders of partitions. A leader that lost its journals gets new leader epochs, and a client the
    answer that no election is needed: a partition has one replica, which leads it.
    """

    partitions: tuple[TopicPartition, ...]


@value(kw_only=True)
class ElectLeadersReply:
    partitions: tuple[PartitionError, ...]


@value(kw_only=True)
class PartitionReassignment:
    """The nodes that shall have a partition; None ends a reassignment."""

    topic: str
    partition: Int32
    node_ids: tuple[Int32, ...] | None


@value(kw_only=True)
class AlterPartitionReassignments:
    """Move partitions to other nodes (KIP-455). A node that leads a partition has all of it, so this is done
    at once.
    """

    partitions: tuple[PartitionReassignment, ...]


@value(kw_only=True)
class AlterPartitionReassignmentsReply:
    partitions: tuple[PartitionError, ...]


@value(kw_only=True)
class ListPartitionReassignments:
    """List the reassignments in progress, of which there are none."""


@value(kw_only=True)
class ListPartitionReassignmentsReply:
    pass


# --- settings of topics and nodes (KIP-133, KIP-226) --------------------------------------------------------


@value(kw_only=True)
class DescribeConfigs:
    """Describe the settings of topics, and of one node; node -1 means the node that receives the request.
    A group has no settings of its own.
    """

    topics: tuple[str, ...]
    node_id: Int32 | None
    group_id: str | None = None


@value(kw_only=True)
class ConfigSynonym:
    """A `value` for a setting. `name`: the setting's name at this `source`."""

    name: str
    value: str
    source: ConfigSource


@value(kw_only=True)
class DescribedConfig:
    """A setting that is in force. `name`: Kafka's name for it. `value`: as text, None if it has none.
    `source`: where the value comes from. `config_type`: what the text stands for. `is_read_only`: it cannot
    be altered while the broker runs. `synonyms`: every value that it has, the one in force first. `meaning`:
    what it means, in words.
    """

    name: str
    value: str | None
    source: ConfigSource
    config_type: ConfigType
    is_read_only: bool
    synonyms: tuple[ConfigSynonym, ...]
    meaning: str


@value(kw_only=True)
class TopicConfigs:
    """The settings of one topic; `because` explains an error in words."""

    topic: str
    error: ErrorCode
    because: str = ""
    configs: tuple[DescribedConfig, ...] = ()


@value(kw_only=True)
class DescribeConfigsReply:
    topics: tuple[TopicConfigs, ...]
    node: tuple[DescribedConfig, ...]


@value(kw_only=True)
class ConfigChange:
    """A change of one setting; only DELETE has no value."""

    name: str
    operation: ConfigOperation
    value: str | None


@value(kw_only=True)
class TopicConfigChanges:
    topic: str
    changes: tuple[ConfigChange, ...]


@value(kw_only=True)
class IncrementalAlterConfigs:
    """Change settings of topics (KIP-339): all changes of a topic, or none of them. Of a node and of a group
    no setting can change, so the reply says only whether the client may, and whether it asks the right node.
    """

    topics: tuple[TopicConfigChanges, ...]
    validate_only: bool
    node_id: Int32 | None = None
    group_id: str | None = None


@value(kw_only=True)
class IncrementalAlterConfigsReply:
    topics: tuple[TopicError, ...]


# --- authentication and ACLs (KIP-43, KIP-152, KIP-140) -----------------------------------------------------

# A connection answers these, SaslHandshake and SaslAuthenticate before its first other request; the node
# never sees them succeed.


@value(kw_only=True)
class SaslHandshake:
    """Choose the mechanism of the authentication that follows."""

    mechanism: str


@value(kw_only=True)
class SaslHandshakeReply:
    """The mechanisms that the broker offers, even with UNSUPPORTED_SASL_MECHANISM."""

    mechanisms: tuple[str, ...]


@value(kw_only=True)
class SaslAuthenticate:
    """Send one authentication message of the chosen mechanism."""

    auth_bytes: bytes = attrs.field(repr=False)  # of PLAIN, it holds the password


@value(kw_only=True)
class SaslAuthenticateReply:
    """The broker's message; a `session_lifetime_ms` of 0 means that the session has no end (KIP-368)."""

    auth_bytes: bytes = attrs.field(repr=False)
    session_lifetime_ms: Int64 = 0


@value(kw_only=True)
class DescribeAcls:
    """List all ACLs. Kafka's filter is applied in front of the node (kafka_bridge/acls.py)."""


@value(kw_only=True)
class DescribedAcl:
    """An ACL: a `principal` may do an `operation`, or may not if `is_allowed` is false, on the resource of a
    type with this `name`, or with `is_prefix` on all whose names begin with it. Codes are Kafka's.
    """

    resource_type: Int8
    name: str
    is_prefix: bool
    principal: str
    operation: Int8
    is_allowed: bool


@value(kw_only=True)
class DescribeAclsReply:
    acls: tuple[DescribedAcl, ...]


# --- transactions: begin, extend, end, describe -------------------------------------------------------------

# Before KIP-890 part 2 a client adds each partition to its transaction (AddPartitionsToTxn) before it writes
# there. Since then it only writes, and the partition leader sends the request to the coordinator.


@value(kw_only=True)
class InitProducerId:
    """Get a producer id and epoch; with a transactional id, fence its previous owner.

    The open transaction of that owner is aborted. Id and epoch -1: the producer has none yet (KIP-360).
    """

    transactional_id: str | None
    transaction_timeout_ms: Int32
    # With the identity that it has, a producer gets a new epoch only while it still owns the id.
    producer_id: Int64
    producer_epoch: Int16


@value(kw_only=True)
class InitProducerIdReply:
    producer_id: Int64
    producer_epoch: Int16


@value
class AddPartitionsToTxn:
    """Add partitions to the transaction; with `verify_only`, ask whether they belong to it (KIP-890)."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    verify_only: bool
    partitions: tuple[TopicPartition, ...]


@value
class AddPartitionsToTxnReply:
    partitions: tuple[PartitionError, ...]


@value(kw_only=True)
class AddOffsetsToTxn:
    """Add the group's partition of `__consumer_offsets` to the transaction."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    group_id: str


@value(kw_only=True)
class AddOffsetsToTxnReply:
    """Success; an error is in the frame."""


@value
class EndTxn:
    """Commit or abort the transaction."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    result: TransactionResult


@value
class EndTxnReply:
    """The identity for the next transaction, whose epoch is new (KIP-890 part 2); -1 for older clients."""

    producer_id: Int64
    producer_epoch: Int16


@value
class TransactionMarker:
    """The end of one transaction, for the partitions that one leader leads."""

    producer_id: Int64
    producer_epoch: Int16
    result: TransactionResult
    # The leader refuses the marker of a coordinator that was replaced (TRANSACTION_COORDINATOR_FENCED).
    coordinator_epoch: Int32
    # Decides whether the epoch of the marker must be newer than that of the data (KIP-1228).
    transaction_version: Int8
    partitions: tuple[TopicPartition, ...]


@value
class WriteTxnMarkers:
    """The coordinator asks a partition leader to append markers."""

    markers: tuple[TransactionMarker, ...]


@value
class WrittenMarker:
    producer_id: Int64
    partitions: tuple[PartitionError, ...]


@value
class WriteTxnMarkersReply:
    markers: tuple[WrittenMarker, ...]


@value(kw_only=True)
class DescribeProducers:
    """List the producers that a partition leader remembers (KIP-664)."""

    partitions: tuple[TopicPartition, ...]


@value(kw_only=True)
class ProducerDescription:
    """One producer that a partition remembers; -1 means none. `last_sequence`, `last_timestamp`: of its
    newest batch. `open_since_offset`: where its open transaction begins.
    """

    producer_id: Int64
    producer_epoch: Int16
    last_sequence: Int32
    last_timestamp: Int64
    coordinator_epoch: Int32
    open_since_offset: Int64


@value(kw_only=True)
class DescribedProducers:
    topic: str
    partition: Int32
    error: ErrorCode
    producers: tuple[ProducerDescription, ...]


@value(kw_only=True)
class DescribeProducersReply:
    partitions: tuple[DescribedProducers, ...]


@value(kw_only=True)
class DescribeTransactions:
    """Describe the current transaction of each transactional id (KIP-664)."""

    transactional_ids: tuple[str, ...]


@value(kw_only=True)
class TransactionDescription:
    """A transactional id. `error`: with one, the other fields mean nothing. `state`: that of its newest
    transaction. `timeout_ms`: that of its producer. `start_ms`: since 1970; -1 before the first partition.
    `partitions`: those of the open transaction; in PREPARE_* states those that still lack a marker.
    """

    transactional_id: str
    error: ErrorCode
    # With an error there is nothing to describe.
    state: TransactionState = TransactionState.EMPTY
    timeout_ms: Int32 = 0
    start_ms: Int64 = NO_TIMESTAMP
    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int16 = NO_PRODUCER_EPOCH
    partitions: tuple[TopicPartition, ...] = ()


@value(kw_only=True)
class DescribeTransactionsReply:
    transactions: tuple[TransactionDescription, ...]


@value(kw_only=True)
class ListTransactions:
    """List the transactions that this coordinator owns (KIP-664).

    An empty filter selects all, as does a `duration_ms` of -1 (KIP-994). `states` have the names that Kafka's
    tools print. An unknown name selects nothing, and the reply names it. `transactional_id_pattern` is a
    regular expression of RE2 for the whole id (KIP-1152).
    """

    states: tuple[str, ...]
    producer_ids: tuple[Int64, ...]
    duration_ms: Int64
    transactional_id_pattern: str | None = None


@value(kw_only=True)
class ListedTransaction:
    transactional_id: str
    producer_id: Int64
    state: TransactionState


@value(kw_only=True)
class ListTransactionsReply:
    unknown_states: tuple[str, ...]
    transactions: tuple[ListedTransaction, ...]


# --- committed offsets, plain and transactional -------------------------------------------------------------


@value(kw_only=True)
class OffsetToCommit:
    topic: str
    partition: Int32
    offset: Int64
    # Of the last record that was processed: a consumer that continues there notices if it is lost (KIP-320).
    leader_epoch: Int32
    metadata: str


@value(kw_only=True)
class OffsetCommit:
    """Commit offsets for a group, outside a transaction."""

    group_id: str
    # -1 and "" from a consumer that assigns its partitions itself: then the group must have no members.
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]
    # How long the offsets are kept (ms), -1 for as long as the broker's settings say. In Kafka's own protocol
    # only versions 2 to 4 have this field.
    retention_ms: Int64 = NO_RETENTION


@value(kw_only=True)
class OffsetCommitReply:
    partitions: tuple[PartitionError, ...]


@value(kw_only=True)
class OffsetFetch:
    """Read committed offsets; None means all partitions of the group.

    With `require_stable` the broker refuses while a transaction may still move an offset (KIP-447).
    """

    group_id: str
    # Of a member of the consumer protocol, which must learn that it was removed; None and -1 from others.
    member_id: str | None = None
    member_epoch: Int32 = -1
    require_stable: bool
    partitions: tuple[TopicPartition, ...] | None


@value(kw_only=True)
class FetchedOffset:
    """`offset` is -1 when none is committed."""

    topic: str
    partition: Int32
    error: ErrorCode
    offset: Int64
    leader_epoch: Int32
    metadata: str


@value(kw_only=True)
class OffsetFetchReply:
    offsets: tuple[FetchedOffset, ...]


@value(kw_only=True)
class TxnOffsetCommit:
    """Commit offsets for a group as part of a transaction: they take effect when it commits."""

    transactional_id: str
    group_id: str
    producer_id: Int64
    producer_epoch: Int16
    # KIP-447: these fence a member that lost its partitions, whatever its transactional id.
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]


@value(kw_only=True)
class TxnOffsetCommitReply:
    partitions: tuple[PartitionError, ...]


# --- consumer groups of the classic protocol: membership, and questions about it ----------------------------

# The coordinator keeps `metadata` and `assignment` as bytes: the members agree among themselves on what they
# mean (consumer_protocol.py), and only the leader of a generation assigns partitions.


@value(kw_only=True)
class GroupProtocol:
    """A way of assigning partitions that a member supports, and its metadata for the leader."""

    name: str
    metadata: bytes


@value(kw_only=True)
class JoinGroup:
    """Join a group, or its next generation.

    A new member joins with the id "", gets one with MEMBER_ID_REQUIRED, and joins again (KIP-394), unless its
    client is too old to know this.
    """

    group_id: str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32
    member_id: str
    # Of a static member (KIP-345): one that restarts within its session gets its partitions back.
    group_instance_id: str | None
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    requires_member_id: bool = True
    can_skip_assignment: bool = True  # if the reply tells the leader to (KIP-814)


@value(kw_only=True)
class JoinedMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@value(kw_only=True)
class JoinGroupReply:
    """The new generation. Only the leader gets `members`; with `skip_assignment` it need not assign
    partitions (KIP-814).
    """

    generation_id: Int32
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    skip_assignment: bool
    member_id: str
    members: tuple[JoinedMember, ...]


@value(kw_only=True)
class MemberAssignment:
    member_id: str
    assignment: bytes


@value(kw_only=True)
class SyncGroup:
    """Get this member's assignment for the generation; the leader sends those of all members."""

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    # What the member believes was chosen; None from clients before KIP-559, which do not say.
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[MemberAssignment, ...]


@value(kw_only=True)
class SyncGroupReply:
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


@value(kw_only=True)
class Heartbeat:
    """Keep the membership, and learn whether the generation is still current."""

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None


@value(kw_only=True)
class HeartbeatReply:
    """Success; an error is in the frame."""


@value(kw_only=True)
class LeavingMember:
    """A member by its id; for a static member its instance id is enough (KIP-345)."""

    member_id: str
    group_instance_id: str | None


@value(kw_only=True)
class LeaveGroup:
    """Leave a group, or remove members from it."""

    group_id: str
    members: tuple[LeavingMember, ...]


@value(kw_only=True)
class LeftMember:
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


@value(kw_only=True)
class LeaveGroupReply:
    members: tuple[LeftMember, ...]


@value(kw_only=True)
class DescribeGroups:
    """Describe groups; a group that does not exist is in state DEAD."""

    groups: tuple[str, ...]


@value(kw_only=True)
class DescribedMember:
    """A member. `client_id` is the name of its client, and `client_host` its address, such as /127.0.0.1."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@value(kw_only=True)
class DescribedGroup:
    """`protocol`, and the metadata of each member, are empty unless the group is stable."""

    group_id: str
    error: ErrorCode
    # With an error there is nothing to describe.
    state: GroupState = GroupState.DEAD
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


@value(kw_only=True)
class DescribeGroupsReply:
    groups: tuple[DescribedGroup, ...]


@value(kw_only=True)
class ListGroups:
    """List the groups that this node coordinates, all of them or those in some states or of some types."""

    states: tuple[GroupState, ...]
    types: tuple[GroupType, ...] = ()


@value(kw_only=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    state: GroupState
    group_type: GroupType


@value(kw_only=True)
class ListGroupsReply:
    groups: tuple[ListedGroup, ...]


@value(kw_only=True)
class DeleteGroups:
    """Delete groups that have no members, with their offsets."""

    groups: tuple[str, ...]


@value(kw_only=True)
class GroupError:
    group_id: str
    error: ErrorCode


@value(kw_only=True)
class DeleteGroupsReply:
    groups: tuple[GroupError, ...]


@value(kw_only=True)
class OffsetDelete:
    """Delete a group's offsets for partitions that no member reads."""

    group_id: str
    partitions: tuple[TopicPartition, ...]


@value(kw_only=True)
class OffsetDeleteReply:
    partitions: tuple[PartitionError, ...]


# --- groups of the consumer protocol (KIP-848) --------------------------------------------------------------


@value(kw_only=True)
class AssignedTopic:
    """Partitions of a topic, which is named by its id."""

    topic_id: bytes
    partitions: tuple[Int32, ...]


@value(kw_only=True)
class ConsumerGroupHeartbeat:
    """Join a group of the consumer protocol, stay in it, or leave it.

    `member_epoch` is 0 to join, -1 to leave, -2 for a static member that will return, or else the epoch of
    the last reply. None and -1 in other fields: as in the request before.
    """

    group_id: str
    member_id: str  # chosen by the member; "" to join: by the broker
    member_epoch: Int32
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: Int32
    subscribed_topic_names: tuple[str, ...] | None
    subscribed_topic_regex: str | None
    server_assignor: str | None
    topic_partitions: tuple[AssignedTopic, ...] | None


@value(kw_only=True)
class ConsumerGroupHeartbeatReply:
    """The member's epoch, and what it owns from now on; None: as before."""

    member_id: str
    member_epoch: Int32
    heartbeat_interval_ms: Int32
    assignment: tuple[AssignedTopic, ...] | None


@value(kw_only=True)
class ConsumerGroupDescribe:
    """Describe groups of the consumer protocol."""

    groups: tuple[str, ...]


@value(kw_only=True)
class NamedTopic:
    """Partitions of a topic, by its id and its name."""

    topic_id: bytes
    topic: str
    partitions: tuple[Int32, ...]


@value(kw_only=True)
class DescribedConsumer:
    """A member: what it subscribed to, what it owns, and what it should own."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: Int32
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str
    assignment: tuple[NamedTopic, ...]
    target_assignment: tuple[NamedTopic, ...]


@value(kw_only=True)
class DescribedConsumerGroup:
    group_id: str
    error: ErrorCode
    # With an error there is nothing to describe.
    state: GroupState = GroupState.DEAD
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumer, ...] = ()


@value(kw_only=True)
class ConsumerGroupDescribeReply:
    groups: tuple[DescribedConsumerGroup, ...]


# --- faults: Fencepost's own, in no version of Kafka --------------------------------------------------------


@value(kw_only=True)
class DescribedFault:
    """A fault of a broker. `fault`: the line that added it. `struck`, `reached`: how many times it struck,
    and how many times its point was reached. `is_lasting`: its effect has not ended, such as a pause.
    `missing`: why it has not struck; empty once it has. `absent`: the partitions that it names and that do
    not exist now.
    """

    fault_id: Int32
    fault: str
    struck: Int32
    reached: Int32
    is_lasting: bool
    missing: str
    absent: tuple[str, ...] = ()


@value(kw_only=True)
class AddFaults:
    """Add faults to a broker, in the phrases of scenarios: "when POINT do ACTION"."""

    faults: tuple[str, ...]


@value(kw_only=True)
class FaultResult:
    """The result for one fault of a request; with an error, `because` says why."""

    fault_id: Int32
    error: ErrorCode
    because: str


@value(kw_only=True)
class AddFaultsReply:
    faults: tuple[FaultResult, ...]


@value(kw_only=True)
class ListFaults:
    """List the faults that were added to a broker."""


@value(kw_only=True)
class ListFaultsReply:
    faults: tuple[DescribedFault, ...]


@value(kw_only=True)
class RemoveFaults:
    """Undo what faults did, and remove them; with `keeps` they stay, and may strike again."""

    fault_ids: tuple[Int32, ...]
    keeps: bool


@value(kw_only=True)
class RemoveFaultsReply:
    faults: tuple[FaultResult, ...]


# --- the steps of a broker: Fencepost's own, in no version of Kafka -----------------------------------------


@value(kw_only=True)
class Follow:
    """Wait for the next steps of a broker that lets the lab watch it (`fencepost lab --bootstrap-server`).

    `run`: of an earlier reply; empty at first. `after`: how many steps of that run the follower has passed.
    `bytes_max`: of the steps in the reply; at least one step comes. `wait_ms`: how long to wait for one.
    """

    run: str
    after: Int64
    bytes_max: Int32
    wait_ms: Int32


@value(kw_only=True)
class FollowedStep:
    """One step of a broker. `event`: what happened, in msgpack (fencepost/lab/wire_steps.py). `changes`: the
    new values of what it changed, a map in msgpack; empty if it changed nothing.
    """

    event: bytes
    changes: bytes


@value(kw_only=True)
class FollowReply:
    """The next steps of a broker, `steps`, in their order.

    `run`: names the life of the process; empty: the broker was started without following. `first`: how many
    steps of this run came before these. `missed`: how many of them the broker no longer keeps, and the
    follower did not get. `base`: the state before the first step, a map in msgpack; empty if the follower
    knows it.
    """

    run: str
    first: Int64
    missed: Int64
    base: bytes
    steps: tuple[FollowedStep, ...]


# --- the status of a broker: Fencepost's own, in no version of Kafka ----------------------------------------


@value(kw_only=True)
class BrokerStatus:
    """Report the health of a broker, and its counters (`fencepost status`, `fencepost top`)."""


@value(kw_only=True)
class StateCount:
    """How many transactions or groups, `count`, are in a `state` (under its name in Kafka)."""

    state: str
    count: Int32


@value(kw_only=True)
class PartitionSize:
    """The size of the log of one partition: `size_bytes`."""

    partition: Int32
    size_bytes: Int64


@value(kw_only=True)
class TopicStatus:
    """The partitions of one topic that a broker leads, and its writes and reads since the broker started.

    `partitions`: how many it leads. `sizes`: of their logs. `open_transactions`: how many there are.
    `late`: the partitions whose oldest transaction outlived every timeout. `hanging`: the partitions with an
    open transaction that no coordinator knows. `stable_lag`: how far the last stable offset is below
    the high watermark, in `stable_lag_partition`, where it is furthest. `oldest_open_ms`: when the oldest
    open transaction last wrote; -1: none is open. `records_in`, `bytes_in`, `bytes_out`: what clients wrote
    and read.
    """

    topic: str
    partitions: Int32
    sizes: tuple[PartitionSize, ...]
    open_transactions: Int32
    late: tuple[Int32, ...]
    hanging: tuple[Int32, ...]
    stable_lag: Int64
    stable_lag_partition: Int32
    oldest_open_ms: Int64
    records_in: Int64
    bytes_in: Int64
    bytes_out: Int64

    @property
    def size_bytes(self) -> int:
        """The bytes of all its logs."""
        return sum(each.size_bytes for each in self.sizes)


@value(kw_only=True)
class RequestStatus:
    """The requests of one API that were answered: `api`, its name in Kafka; `count`, how many; `errors`, how
    many of them with an error; `total_us`, the microseconds that all took together.
    """

    api: str
    count: Int64
    errors: Int64
    total_us: Int64


@value(kw_only=True)
class DiskProblem:
    """A file that could not be read or written: `at_ms`, since 1970, and `text`, what happened."""

    at_ms: Int64
    text: str


@value(kw_only=True)
class BrokerStatusReply:
    """A broker, its topics, transactions, groups and requests; times are milliseconds since 1970.

    `version`: of Fencepost. `now_ms`, `started_ms`: the broker's clock, and when it started.
    `partition_verification`: whether it verifies transactions of old clients (KIP-890). `fixes_off`,
    `broken`: Kafka fixes, and protections, that were turned off for demonstrations. `unserved`: partitions
    that it should lead and does not. `topics`: those with a partition that it leads. `transactions`,
    `groups`: those that it coordinates, by state. `requests`: by API. `connections`: how many are open.
    `disk_problems`: the last ones. `directory`: where its logs are.
    """

    version: str
    node_id: Int32
    now_ms: Int64
    started_ms: Int64
    transaction_version: Int8
    partition_verification: bool
    fixes_off: tuple[str, ...]
    broken: tuple[str, ...]
    unserved: tuple[TopicPartition, ...]
    topics: tuple[TopicStatus, ...]
    transactions: tuple[StateCount, ...]
    groups: tuple[StateCount, ...]
    requests: tuple[RequestStatus, ...]
    connections: Int32
    disk_problems: tuple[DiskProblem, ...]
    directory: str


# --- the API table ------------------------------------------------------------------------------------------

Request = (
    Produce | Fetch | ListOffsets | Metadata | OffsetCommit | OffsetFetch | FindCoordinator | ApiVersions
    | CreateTopics | DeleteTopics | DeleteRecords | InitProducerId | AddPartitionsToTxn | AddOffsetsToTxn
    | EndTxn | WriteTxnMarkers | TxnOffsetCommit | DescribeProducers | DescribeTransactions | ListTransactions
    | AllocateProducerIds | BrokerRegistration | ElectLeaders | JoinGroup | SyncGroup | Heartbeat | LeaveGroup
    | DescribeGroups | ListGroups | DeleteGroups | OffsetDelete | SaslHandshake | SaslAuthenticate
    | DescribeConfigs | IncrementalAlterConfigs | CreatePartitions | OffsetForLeaderEpoch
    | ConsumerGroupHeartbeat | ConsumerGroupDescribe | BrokerStatus | AddFaults | ListFaults | RemoveFaults
    | Follow | DescribeAcls | AlterPartitionReassignments | ListPartitionReassignments
)  # fmt: skip
ReplyBody = (
    ProduceReply | FetchReply | ListOffsetsReply | MetadataReply | OffsetCommitReply | OffsetFetchReply
    | FindCoordinatorReply | ApiVersionsReply | CreateTopicsReply | DeleteTopicsReply | InitProducerIdReply
    | AddPartitionsToTxnReply | AddOffsetsToTxnReply | EndTxnReply | WriteTxnMarkersReply
    | TxnOffsetCommitReply | DescribeProducersReply | DescribeTransactionsReply | ListTransactionsReply
    | AllocateProducerIdsReply | BrokerRegistrationReply | ElectLeadersReply | JoinGroupReply | SyncGroupReply
    | HeartbeatReply | LeaveGroupReply | DescribeGroupsReply | ListGroupsReply | DeleteGroupsReply
    | OffsetDeleteReply | DeleteRecordsReply | SaslHandshakeReply | SaslAuthenticateReply
    | DescribeConfigsReply | IncrementalAlterConfigsReply | CreatePartitionsReply | OffsetForLeaderEpochReply
    | ConsumerGroupHeartbeatReply | ConsumerGroupDescribeReply | BrokerStatusReply | AddFaultsReply
    | ListFaultsReply | RemoveFaultsReply | FollowReply | DescribeAclsReply
    | AlterPartitionReassignmentsReply | ListPartitionReassignmentsReply
)  # fmt: skip


class Api(NamedTuple):
    """One row of the API table: Kafka's key, the two classes, and the supported versions."""

    key: int
    request: type[Any]
    reply: type[Any]
    minimum: int
    maximum: int

    @property
    def name(self) -> str:
        return self.request.__name__


# Versions are Kafka's. Where several are supported, they differ in the client's transaction version and in
# the errors that it knows (broker/transactions/tables.py), never in the fields of the message.
APIS: Final[tuple[Api, ...]] = (
    Api(0, Produce, ProduceReply, 3, 12),
    Api(1, Fetch, FetchReply, 12, 12),
    Api(2, ListOffsets, ListOffsetsReply, 5, 5),
    Api(3, Metadata, MetadataReply, 8, 8),
    Api(8, OffsetCommit, OffsetCommitReply, 8, 8),
    Api(9, OffsetFetch, OffsetFetchReply, 7, 7),
    Api(10, FindCoordinator, FindCoordinatorReply, 3, 3),
    Api(11, JoinGroup, JoinGroupReply, 9, 9),
    Api(12, Heartbeat, HeartbeatReply, 4, 4),
    Api(13, LeaveGroup, LeaveGroupReply, 5, 5),
    Api(14, SyncGroup, SyncGroupReply, 5, 5),
    Api(15, DescribeGroups, DescribeGroupsReply, 5, 5),
    Api(16, ListGroups, ListGroupsReply, 4, 4),
    Api(17, SaslHandshake, SaslHandshakeReply, 1, 1),
    Api(18, ApiVersions, ApiVersionsReply, 3, 3),
    Api(19, CreateTopics, CreateTopicsReply, 4, 4),
    Api(20, DeleteTopics, DeleteTopicsReply, 3, 3),
    Api(21, DeleteRecords, DeleteRecordsReply, 2, 2),
    Api(22, InitProducerId, InitProducerIdReply, 0, 5),
    Api(23, OffsetForLeaderEpoch, OffsetForLeaderEpochReply, 4, 4),
    Api(24, AddPartitionsToTxn, AddPartitionsToTxnReply, 0, 5),
    Api(25, AddOffsetsToTxn, AddOffsetsToTxnReply, 0, 4),
    Api(26, EndTxn, EndTxnReply, 0, 5),
    Api(27, WriteTxnMarkers, WriteTxnMarkersReply, 1, 2),
    Api(28, TxnOffsetCommit, TxnOffsetCommitReply, 0, 5),
    Api(29, DescribeAcls, DescribeAclsReply, 3, 3),
    Api(32, DescribeConfigs, DescribeConfigsReply, 4, 4),
    Api(36, SaslAuthenticate, SaslAuthenticateReply, 2, 2),
    Api(37, CreatePartitions, CreatePartitionsReply, 3, 3),
    Api(42, DeleteGroups, DeleteGroupsReply, 2, 2),
    Api(43, ElectLeaders, ElectLeadersReply, 2, 2),
    Api(44, IncrementalAlterConfigs, IncrementalAlterConfigsReply, 1, 1),
    Api(45, AlterPartitionReassignments, AlterPartitionReassignmentsReply, 1, 1),
    Api(46, ListPartitionReassignments, ListPartitionReassignmentsReply, 0, 0),
    Api(47, OffsetDelete, OffsetDeleteReply, 0, 0),
    Api(61, DescribeProducers, DescribeProducersReply, 0, 0),
    Api(62, BrokerRegistration, BrokerRegistrationReply, 0, 0),
    Api(65, DescribeTransactions, DescribeTransactionsReply, 0, 0),
    Api(66, ListTransactions, ListTransactionsReply, 1, 1),
    Api(67, AllocateProducerIds, AllocateProducerIdsReply, 0, 0),
    Api(68, ConsumerGroupHeartbeat, ConsumerGroupHeartbeatReply, 1, 1),
    Api(69, ConsumerGroupDescribe, ConsumerGroupDescribeReply, 1, 1),
    # Fencepost's own, with a key above all of Kafka's.
    Api(10_000, BrokerStatus, BrokerStatusReply, 0, 0),
)
OWN_APIS: Final[tuple[Api, ...]] = (
    Api(10_001, AddFaults, AddFaultsReply, 0, 0),
    Api(10_002, ListFaults, ListFaultsReply, 0, 0),
    Api(10_003, RemoveFaults, RemoveFaultsReply, 0, 0),
    Api(10_004, Follow, FollowReply, 0, 0),
)
"""What no version of Kafka has. The server answers these requests itself; no node sees one."""

API_BY_KEY: Final = {api.key: api for api in (*APIS, *OWN_APIS)}
API_BY_REQUEST: Final = {api.request: api for api in (*APIS, *OWN_APIS)}


def is_answered(request: Request) -> bool:
    """Whether a broker sends a reply to the request: to all but a Produce with acks 0."""
    return type(request) is not Produce or request.acks != NO_ACKS
