"""Every request and reply, a frozen class each with its fields by name, and the API table with Kafka's keys.

Rule: a message says what Kafka's of that name says (clients/.../common/message/*.json), less the fields
that only other clusters need. A reply's own error travels in the frame; those of partitions are fields.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from fencepost.protocol.codec import Int8, Int16, Int32, Int64, Records
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import (
    CoordinatorType,
    IsolationLevel,
    TopicPartition,
    TransactionResult,
    TransactionState,
)

message = attrs.frozen(kw_only=True)


@message
class ProducePartition:
    """The batches for one partition; today's clients send exactly one."""

    topic: str
    partition: Int32
    records: Records


@message
class Produce:
    """Append batches. `acks` 0 wants no answer, 1 and -1 are the same with one replica."""

    transactional_id: str | None
    acks: Int16
    timeout_ms: Int32
    partitions: tuple[ProducePartition, ...]


@message
class ProducedPartition:
    """What became of one partition's batches; a duplicate is answered with the offset it was first given."""

    topic: str
    partition: Int32
    error: ErrorCode
    base_offset: Int64
    log_start_offset: Int64


@message
class ProduceReply:
    partitions: tuple[ProducedPartition, ...]


@message
class FetchPartition:
    topic: str
    partition: Int32
    fetch_offset: Int64
    max_bytes: Int32


@message
class Fetch:
    """Read batches. With `min_bytes` above 0 waits up to `max_wait_ms` for a byte; one batch comes whole."""

    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32
    isolation_level: IsolationLevel
    partitions: tuple[FetchPartition, ...]


@message
class AbortedTransaction:
    """A reader drops this producer's transactional batches from `first_offset` up to its ABORT marker."""

    producer_id: Int64
    first_offset: Int64


@message
class FetchedPartition:
    """Batches from one partition, bounded by the isolation level; `aborted` is None for read_uncommitted."""

    topic: str
    partition: Int32
    error: ErrorCode
    high_watermark: Int64
    last_stable_offset: Int64
    log_start_offset: Int64
    aborted: tuple[AbortedTransaction, ...] | None
    records: Records


@message
class FetchReply:
    partitions: tuple[FetchedPartition, ...]


@message
class ListOffsetsPartition:
    """`timestamp` in milliseconds, or LATEST_TIMESTAMP / EARLIEST_TIMESTAMP."""

    topic: str
    partition: Int32
    timestamp: Int64


@message
class ListOffsets:
    isolation_level: IsolationLevel
    partitions: tuple[ListOffsetsPartition, ...]


@message
class ListedOffset:
    """The first offset at or after the timestamp that the isolation level allows, else -1 and -1."""

    topic: str
    partition: Int32
    error: ErrorCode
    timestamp: Int64
    offset: Int64


@message
class ListOffsetsReply:
    partitions: tuple[ListedOffset, ...]


@message
class Metadata:
    """Topics to describe; None means all."""

    topics: tuple[str, ...] | None


@message
class NodeAddress:
    node_id: Int32
    host: str
    port: Int32


@message
class PartitionMetadata:
    partition: Int32
    leader_id: Int32
    leader_epoch: Int32


@message
class TopicMetadata:
    topic: str
    error: ErrorCode
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]


@message
class MetadataReply:
    cluster_id: str
    controller_id: Int32
    nodes: tuple[NodeAddress, ...]
    topics: tuple[TopicMetadata, ...]


@message
class OffsetToCommit:
    topic: str
    partition: Int32
    offset: Int64
    leader_epoch: Int32
    metadata: str


@message
class OffsetCommit:
    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]


@message
class PartitionError:
    topic: str
    partition: Int32
    error: ErrorCode


@message
class OffsetCommitReply:
    partitions: tuple[PartitionError, ...]


@message
class PartitionName:
    topic: str
    partition: Int32

    @property
    def key(self) -> TopicPartition:
        """As the cores name a partition."""
        return TopicPartition(self.topic, self.partition)


@message
class OffsetFetch:
    """Committed offsets; None means every partition of the group. `require_stable` is KIP-447."""

    group_id: str
    require_stable: bool
    partitions: tuple[PartitionName, ...] | None


@message
class FetchedOffset:
    """`offset` is -1 when nothing is committed."""

    topic: str
    partition: Int32
    error: ErrorCode
    offset: Int64
    leader_epoch: Int32
    metadata: str


@message
class OffsetFetchReply:
    offsets: tuple[FetchedOffset, ...]


@message
class FindCoordinator:
    kind: CoordinatorType
    key: str


@message
class FindCoordinatorReply:
    node_id: Int32
    host: str
    port: Int32


@message
class ApiVersions:
    pass


@message
class ApiVersionRange:
    api_key: Int16
    minimum: Int16
    maximum: Int16


@message
class ApiVersionsReply:
    versions: tuple[ApiVersionRange, ...]
    transaction_version: Int16


@message
class CreateTopic:
    topic: str
    partition_count: Int32


@message
class CreateTopics:
    topics: tuple[CreateTopic, ...]


@message
class TopicError:
    topic: str
    error: ErrorCode
    because: str


@message
class CreateTopicsReply:
    topics: tuple[TopicError, ...]


@message
class DeleteTopics:
    topics: tuple[str, ...]


@message
class DeleteTopicsReply:
    topics: tuple[TopicError, ...]


@message
class InitProducerId:
    """A producer id and epoch; fences the former owner of the id. -1, -1: no expectation (KIP-360)."""

    transactional_id: str | None
    transaction_timeout_ms: Int32
    producer_id: Int64
    producer_epoch: Int16


@message
class InitProducerIdReply:
    producer_id: Int64
    producer_epoch: Int16


@message
class AddPartitionsToTxn:
    """Add partitions to the transaction, or with `verify_only` ask whether they are in it (KIP-890)."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    verify_only: bool
    partitions: tuple[PartitionName, ...]


@message
class AddPartitionsToTxnReply:
    partitions: tuple[PartitionError, ...]


@message
class AddOffsetsToTxn:
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    group_id: str


@message
class AddOffsetsToTxnReply:
    pass


@message
class EndTxn:
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    result: TransactionResult


@message
class EndTxnReply:
    """The identity for the next transaction: an epoch per transaction since KIP-890 part 2."""

    producer_id: Int64
    producer_epoch: Int16


@message
class TransactionMarker:
    producer_id: Int64
    producer_epoch: Int16
    result: TransactionResult
    coordinator_epoch: Int32
    transaction_version: Int8
    partitions: tuple[PartitionName, ...]


@message
class WriteTxnMarkers:
    """From the coordinator to partition leaders: append these markers."""

    markers: tuple[TransactionMarker, ...]


@message
class WrittenMarker:
    producer_id: Int64
    partitions: tuple[PartitionError, ...]


@message
class WriteTxnMarkersReply:
    markers: tuple[WrittenMarker, ...]


@message
class TxnOffsetCommit:
    """Offsets that count when the transaction commits; the group coordinator adds its partition to it."""

    transactional_id: str
    group_id: str
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]


@message
class TxnOffsetCommitReply:
    partitions: tuple[PartitionError, ...]


@message
class DescribeProducers:
    partitions: tuple[PartitionName, ...]


@message
class ProducerDescription:
    """-1 stands for none everywhere; `open_since_offset` is the first offset of its open transaction here."""

    producer_id: Int64
    producer_epoch: Int16
    last_sequence: Int32
    last_timestamp: Int64
    coordinator_epoch: Int32
    open_since_offset: Int64


@message
class DescribedProducers:
    topic: str
    partition: Int32
    error: ErrorCode
    producers: tuple[ProducerDescription, ...]


@message
class DescribeProducersReply:
    partitions: tuple[DescribedProducers, ...]


@message
class DescribeTransactions:
    transactional_ids: tuple[str, ...]


@message
class TransactionDescription:
    """`start_ms` is -1 unless started; during PREPARE `partitions` are those whose marker is missing."""

    transactional_id: str
    error: ErrorCode
    state: TransactionState
    timeout_ms: Int32
    start_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    partitions: tuple[PartitionName, ...]


@message
class DescribeTransactionsReply:
    transactions: tuple[TransactionDescription, ...]


@message
class ListTransactions:
    """Empty filters let everything through; `duration_ms` -1 does too (KIP-664, KIP-994)."""

    states: tuple[TransactionState, ...]
    producer_ids: tuple[Int64, ...]
    duration_ms: Int64


@message
class ListedTransaction:
    transactional_id: str
    producer_id: Int64
    state: TransactionState


@message
class ListTransactionsReply:
    transactions: tuple[ListedTransaction, ...]


@message
class AllocateProducerIds:
    node_id: Int32


@message
class AllocateProducerIdsReply:
    first_producer_id: Int64
    count: Int32


Request = (
    Produce | Fetch | ListOffsets | Metadata | OffsetCommit | OffsetFetch | FindCoordinator | ApiVersions
    | CreateTopics | DeleteTopics | InitProducerId | AddPartitionsToTxn | AddOffsetsToTxn | EndTxn
    | WriteTxnMarkers | TxnOffsetCommit | DescribeProducers | DescribeTransactions | ListTransactions
    | AllocateProducerIds
)  # fmt: skip
ReplyBody = (
    ProduceReply | FetchReply | ListOffsetsReply | MetadataReply | OffsetCommitReply | OffsetFetchReply
    | FindCoordinatorReply | ApiVersionsReply | CreateTopicsReply | DeleteTopicsReply | InitProducerIdReply
    | AddPartitionsToTxnReply | AddOffsetsToTxnReply | EndTxnReply | WriteTxnMarkersReply
    | TxnOffsetCommitReply | DescribeProducersReply | DescribeTransactionsReply | ListTransactionsReply
    | AllocateProducerIdsReply
)  # fmt: skip


@attrs.frozen
class Api:
    """One line of the API table: Kafka's key, the versions spoken, and the two classes."""

    key: int
    request: type[Any] = attrs.field(kw_only=True)
    reply: type[Any] = attrs.field(kw_only=True)
    minimum: int = attrs.field(kw_only=True)
    maximum: int = attrs.field(kw_only=True)

    @property
    def name(self) -> str:
        return self.request.__name__


def _api(key: int, request: type[Any], reply: type[Any], versions: tuple[int, int]) -> Api:
    return Api(key, request=request, reply=reply, minimum=versions[0], maximum=versions[1])


# Versions are Kafka's; today only the newest meaning of each is spoken.
APIS: Final[tuple[Api, ...]] = (
    _api(0, Produce, ProduceReply, (12, 12)),
    _api(1, Fetch, FetchReply, (12, 12)),
    _api(2, ListOffsets, ListOffsetsReply, (5, 5)),
    _api(3, Metadata, MetadataReply, (8, 8)),
    _api(8, OffsetCommit, OffsetCommitReply, (8, 8)),
    _api(9, OffsetFetch, OffsetFetchReply, (7, 7)),
    _api(10, FindCoordinator, FindCoordinatorReply, (3, 3)),
    _api(18, ApiVersions, ApiVersionsReply, (3, 3)),
    _api(19, CreateTopics, CreateTopicsReply, (4, 4)),
    _api(20, DeleteTopics, DeleteTopicsReply, (3, 3)),
    _api(22, InitProducerId, InitProducerIdReply, (5, 5)),
    _api(24, AddPartitionsToTxn, AddPartitionsToTxnReply, (5, 5)),
    _api(25, AddOffsetsToTxn, AddOffsetsToTxnReply, (4, 4)),
    _api(26, EndTxn, EndTxnReply, (5, 5)),
    _api(27, WriteTxnMarkers, WriteTxnMarkersReply, (2, 2)),
    _api(28, TxnOffsetCommit, TxnOffsetCommitReply, (5, 5)),
    _api(61, DescribeProducers, DescribeProducersReply, (0, 0)),
    _api(65, DescribeTransactions, DescribeTransactionsReply, (0, 0)),
    _api(66, ListTransactions, ListTransactionsReply, (1, 1)),
    _api(67, AllocateProducerIds, AllocateProducerIdsReply, (0, 0)),
)
API_BY_KEY: Final = {api.key: api for api in APIS}
API_BY_REQUEST: Final = {api.request: api for api in APIS}
