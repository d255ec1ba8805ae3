"""What is asked about the cluster: metadata, coordinators, versions, topics, producer ids.

Rule: a message says what Kafka's message of that name says; what only other clusters need is left out.
"""

from __future__ import annotations

from fencepost.protocol.codec import Int8, Int16, Int32, Int64
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages.common import PartitionError, PartitionName
from fencepost.protocol.values import value


@value(kw_only=True)
class Metadata:
    """Topics to describe; None means all."""

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
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]


@value(kw_only=True)
class MetadataReply:
    cluster_id: str
    controller_id: Int32
    nodes: tuple[NodeAddress, ...]
    topics: tuple[TopicMetadata, ...]


@value(kw_only=True)
class FindCoordinator:
    """`kind` is a CoordinatorType, or a number that a broker knows nothing of."""

    kind: Int8
    key: str


@value(kw_only=True)
class FindCoordinatorReply:
    node_id: Int32
    host: str
    port: Int32


@value(kw_only=True)
class ApiVersions:
    pass


@value(kw_only=True)
class ApiVersionRange:
    api_key: Int16
    minimum: Int16
    maximum: Int16


@value(kw_only=True)
class ApiVersionsReply:
    versions: tuple[ApiVersionRange, ...]
    transaction_version: Int16


@value(kw_only=True)
class TopicConfig:
    """One setting of a topic, under Kafka's name."""

    name: str
    value: str


@value(kw_only=True)
class CreateTopic:
    topic: str
    partition_count: Int32
    configs: tuple[TopicConfig, ...] = ()


@value(kw_only=True)
class CreateTopics:
    topics: tuple[CreateTopic, ...]


@value(kw_only=True)
class TopicError:
    topic: str
    error: ErrorCode
    because: str


@value(kw_only=True)
class CreateTopicsReply:
    topics: tuple[TopicError, ...]


@value(kw_only=True)
class DeleteTopics:
    topics: tuple[str, ...]


@value(kw_only=True)
class DeleteTopicsReply:
    topics: tuple[TopicError, ...]


@value(kw_only=True)
class AllocateProducerIds:
    node_id: Int32


@value(kw_only=True)
class AllocateProducerIdsReply:
    first_producer_id: Int64
    count: Int32


@value(kw_only=True)
class BrokerRegistration:
    """A node that starts tells the controller where it is; only nodes may."""

    node_id: Int32
    host: str
    port: Int32


@value(kw_only=True)
class BrokerRegistrationReply:
    """`broker_epoch` is the offset in the metadata log where the registration lies."""

    broker_epoch: Int64


@value(kw_only=True)
class ElectLeaders:
    """A leader that lost its logs asks the controller for new leader epochs; only nodes may."""

    partitions: tuple[PartitionName, ...]


@value(kw_only=True)
class ElectLeadersReply:
    partitions: tuple[PartitionError, ...]
