"""Every request and reply, a frozen class each with its fields by name, and the API table with Kafka's keys.

Rule: a message says what Kafka's of that name says (clients/.../common/message/*.json), less the fields
that only other clusters need. A reply's own error travels in the frame; those of partitions are fields.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from fencepost.protocol.messages.cluster import (
    AllocateProducerIds,
    AllocateProducerIdsReply,
    ApiVersionRange,
    ApiVersions,
    ApiVersionsReply,
    BrokerRegistration,
    BrokerRegistrationReply,
    CreateTopic,
    CreateTopics,
    CreateTopicsReply,
    DeleteTopics,
    DeleteTopicsReply,
    ElectLeaders,
    ElectLeadersReply,
    FindCoordinator,
    FindCoordinatorReply,
    Metadata,
    MetadataReply,
    NodeAddress,
    PartitionMetadata,
    TopicConfig,
    TopicError,
    TopicMetadata,
)
from fencepost.protocol.messages.common import PartitionError, PartitionName
from fencepost.protocol.messages.data import (
    AbortedTransaction,
    DeletedRecords,
    DeleteRecords,
    DeleteRecordsPartition,
    DeleteRecordsReply,
    Fetch,
    FetchedPartition,
    FetchPartition,
    FetchReply,
    ListedOffset,
    ListOffsets,
    ListOffsetsPartition,
    ListOffsetsReply,
    Produce,
    ProducedPartition,
    ProducePartition,
    ProduceReply,
)
from fencepost.protocol.messages.groups import (
    DeleteGroups,
    DeleteGroupsReply,
    DescribedGroup,
    DescribedMember,
    DescribeGroups,
    DescribeGroupsReply,
    GroupError,
    GroupProtocol,
    Heartbeat,
    HeartbeatReply,
    JoinedMember,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
    LeavingMember,
    LeftMember,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
    MemberAssignment,
    OffsetDelete,
    OffsetDeleteReply,
    SyncGroup,
    SyncGroupReply,
)
from fencepost.protocol.messages.offsets import (
    FetchedOffset,
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetFetchReply,
    OffsetToCommit,
    TxnOffsetCommit,
    TxnOffsetCommitReply,
)
from fencepost.protocol.messages.transactions import (
    AddOffsetsToTxn,
    AddOffsetsToTxnReply,
    AddPartitionsToTxn,
    AddPartitionsToTxnReply,
    DescribedProducers,
    DescribeProducers,
    DescribeProducersReply,
    DescribeTransactions,
    DescribeTransactionsReply,
    EndTxn,
    EndTxnReply,
    InitProducerId,
    InitProducerIdReply,
    ListedTransaction,
    ListTransactions,
    ListTransactionsReply,
    ProducerDescription,
    TransactionDescription,
    TransactionMarker,
    WriteTxnMarkers,
    WriteTxnMarkersReply,
    WrittenMarker,
)

Request = (
    Produce | Fetch | ListOffsets | Metadata | OffsetCommit | OffsetFetch | FindCoordinator | ApiVersions
    | CreateTopics | DeleteTopics | DeleteRecords | InitProducerId | AddPartitionsToTxn | AddOffsetsToTxn
    | EndTxn | WriteTxnMarkers | TxnOffsetCommit | DescribeProducers | DescribeTransactions | ListTransactions
    | AllocateProducerIds | BrokerRegistration | ElectLeaders | JoinGroup | SyncGroup | Heartbeat | LeaveGroup
    | DescribeGroups | ListGroups | DeleteGroups | OffsetDelete
)  # fmt: skip
ReplyBody = (
    ProduceReply | FetchReply | ListOffsetsReply | MetadataReply | OffsetCommitReply | OffsetFetchReply
    | FindCoordinatorReply | ApiVersionsReply | CreateTopicsReply | DeleteTopicsReply | InitProducerIdReply
    | AddPartitionsToTxnReply | AddOffsetsToTxnReply | EndTxnReply | WriteTxnMarkersReply
    | TxnOffsetCommitReply | DescribeProducersReply | DescribeTransactionsReply | ListTransactionsReply
    | AllocateProducerIdsReply | BrokerRegistrationReply | ElectLeadersReply | JoinGroupReply | SyncGroupReply
    | HeartbeatReply | LeaveGroupReply | DescribeGroupsReply | ListGroupsReply | DeleteGroupsReply
    | OffsetDeleteReply | DeleteRecordsReply
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


# Versions are Kafka's. Where several are spoken, they differ in the generation that the client speaks and in
# the errors that it knows (broker/transactions/tables.py), never in the fields of the message.
APIS: Final[tuple[Api, ...]] = (
    _api(0, Produce, ProduceReply, (3, 12)),
    _api(1, Fetch, FetchReply, (12, 12)),
    _api(2, ListOffsets, ListOffsetsReply, (5, 5)),
    _api(3, Metadata, MetadataReply, (8, 8)),
    _api(8, OffsetCommit, OffsetCommitReply, (8, 8)),
    _api(9, OffsetFetch, OffsetFetchReply, (7, 7)),
    _api(10, FindCoordinator, FindCoordinatorReply, (3, 3)),
    _api(11, JoinGroup, JoinGroupReply, (9, 9)),
    _api(12, Heartbeat, HeartbeatReply, (4, 4)),
    _api(13, LeaveGroup, LeaveGroupReply, (5, 5)),
    _api(14, SyncGroup, SyncGroupReply, (5, 5)),
    _api(15, DescribeGroups, DescribeGroupsReply, (5, 5)),
    _api(16, ListGroups, ListGroupsReply, (4, 4)),
    _api(18, ApiVersions, ApiVersionsReply, (3, 3)),
    _api(19, CreateTopics, CreateTopicsReply, (4, 4)),
    _api(20, DeleteTopics, DeleteTopicsReply, (3, 3)),
    _api(21, DeleteRecords, DeleteRecordsReply, (2, 2)),
    _api(22, InitProducerId, InitProducerIdReply, (0, 5)),
    _api(24, AddPartitionsToTxn, AddPartitionsToTxnReply, (0, 5)),
    _api(25, AddOffsetsToTxn, AddOffsetsToTxnReply, (0, 4)),
    _api(26, EndTxn, EndTxnReply, (0, 5)),
    _api(27, WriteTxnMarkers, WriteTxnMarkersReply, (1, 2)),
    _api(28, TxnOffsetCommit, TxnOffsetCommitReply, (0, 5)),
    _api(42, DeleteGroups, DeleteGroupsReply, (2, 2)),
    _api(43, ElectLeaders, ElectLeadersReply, (2, 2)),
    _api(47, OffsetDelete, OffsetDeleteReply, (0, 0)),
    _api(61, DescribeProducers, DescribeProducersReply, (0, 0)),
    _api(62, BrokerRegistration, BrokerRegistrationReply, (0, 0)),
    _api(65, DescribeTransactions, DescribeTransactionsReply, (0, 0)),
    _api(66, ListTransactions, ListTransactionsReply, (1, 1)),
    _api(67, AllocateProducerIds, AllocateProducerIdsReply, (0, 0)),
)
API_BY_KEY: Final = {api.key: api for api in APIS}
API_BY_REQUEST: Final = {api.request: api for api in APIS}

__all__ = [
    "APIS",
    "API_BY_KEY",
    "API_BY_REQUEST",
    "AbortedTransaction",
    "AddOffsetsToTxn",
    "AddOffsetsToTxnReply",
    "AddPartitionsToTxn",
    "AddPartitionsToTxnReply",
    "AllocateProducerIds",
    "AllocateProducerIdsReply",
    "Api",
    "ApiVersionRange",
    "ApiVersions",
    "ApiVersionsReply",
    "BrokerRegistration",
    "BrokerRegistrationReply",
    "CreateTopic",
    "CreateTopics",
    "CreateTopicsReply",
    "DeleteGroups",
    "DeleteGroupsReply",
    "DeleteRecords",
    "DeleteRecordsPartition",
    "DeleteRecordsReply",
    "DeleteTopics",
    "DeleteTopicsReply",
    "DeletedRecords",
    "DescribeGroups",
    "DescribeGroupsReply",
    "DescribeProducers",
    "DescribeProducersReply",
    "DescribeTransactions",
    "DescribeTransactionsReply",
    "DescribedGroup",
    "DescribedMember",
    "DescribedProducers",
    "ElectLeaders",
    "ElectLeadersReply",
    "EndTxn",
    "EndTxnReply",
    "Fetch",
    "FetchPartition",
    "FetchReply",
    "FetchedOffset",
    "FetchedPartition",
    "FindCoordinator",
    "FindCoordinatorReply",
    "GroupError",
    "GroupProtocol",
    "Heartbeat",
    "HeartbeatReply",
    "InitProducerId",
    "InitProducerIdReply",
    "JoinGroup",
    "JoinGroupReply",
    "JoinedMember",
    "LeaveGroup",
    "LeaveGroupReply",
    "LeavingMember",
    "LeftMember",
    "ListGroups",
    "ListGroupsReply",
    "ListOffsets",
    "ListOffsetsPartition",
    "ListOffsetsReply",
    "ListTransactions",
    "ListTransactionsReply",
    "ListedGroup",
    "ListedOffset",
    "ListedTransaction",
    "MemberAssignment",
    "Metadata",
    "MetadataReply",
    "NodeAddress",
    "OffsetCommit",
    "OffsetCommitReply",
    "OffsetDelete",
    "OffsetDeleteReply",
    "OffsetFetch",
    "OffsetFetchReply",
    "OffsetToCommit",
    "PartitionError",
    "PartitionMetadata",
    "PartitionName",
    "Produce",
    "ProducePartition",
    "ProduceReply",
    "ProducedPartition",
    "ProducerDescription",
    "ReplyBody",
    "Request",
    "SyncGroup",
    "SyncGroupReply",
    "TopicConfig",
    "TopicError",
    "TopicMetadata",
    "TransactionDescription",
    "TransactionMarker",
    "TxnOffsetCommit",
    "TxnOffsetCommitReply",
    "WriteTxnMarkers",
    "WriteTxnMarkersReply",
    "WrittenMarker",
]
