"""The records of `__cluster_metadata`: nodes, topics, leaders and blocks of producer ids, in KRaft's framing
and schemas.

Rule: a record is frame version 1, API key and version as unsigned varints, then the flexible message
(MetadataRecordSerde.java); records of other kinds are skipped.
"""

#     frame version = 1 | API key | version | fields of the message | tagged fields
#
# The log is the only place where the cluster's state is written. The controller appends, every node reads it
# as a follower and applies the records in order, so all nodes pass through the same states:
#
#     RegisterBroker ─▶ Topic ─▶ Config ... ─▶ Partition 0, 1, 2 ... ─▶ PartitionChange ... ─▶ RemoveTopic
#
# A new topic's records are in one batch: a node sees it with its partitions or not at all. Schemas are
# those of KRaft, so Kafka's own tools (kafka-dump-log --cluster-metadata-decoder) can print the log.
#
# Now and then a batch is a snapshot: it says the whole state, and its first record says so (ClusterSnapshot).
# A reader starts from nothing with it. So what is before a snapshot can be removed, and with it what is left
# of deleted topics. Kafka writes snapshots into files of their own.

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final

import attrs

from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kafka_records import KafkaRecord, build_kafka_batch
from fencepost.protocol.primitives import (
    INT32,
    UUID_SIZE,
    Fields,
    put_compact_int32s,
    put_compact_nullable_string,
    put_compact_string,
    put_tagged_fields,
    put_unsigned_varint,
)
from fencepost.protocol.records import read_internal_records
from fencepost.protocol.terms import NO_LEADER_EPOCH, NO_TIMESTAMP

_LEADERSHIP = struct.Struct(">iii")  # leader, leader epoch, partition epoch
_PRODUCER_IDS = struct.Struct(">iqq")  # node, its epoch, next producer id
_BROKER = struct.Struct(">i16sq")  # node, id of its incarnation, its epoch
_PORT = struct.Struct(">Hh")  # port, security protocol
_SNAPSHOT = struct.Struct(">qiq")  # offset, leader epoch, topic number

FRAME_VERSION: Final = 1
_RECORD_VERSION: Final = 0  # the first version of each says all that a cluster without replicas needs
REGISTER_BROKER_RECORD: Final = 0
TOPIC_RECORD: Final = 2
PARTITION_RECORD: Final = 3
CONFIG_RECORD: Final = 4
PARTITION_CHANGE_RECORD: Final = 5
REMOVE_TOPIC_RECORD: Final = 9
PRODUCER_IDS_RECORD: Final = 15
NO_OP_RECORD: Final = 20

TAG_LEADER: Final = 1
# PartitionChangeRecord names no leader epoch: Kafka increments it. Here it is written, too, under a tag that
# Kafka's readers skip, so that one record is complete.
TAG_LEADER_EPOCH: Final = 1_000
# A snapshot begins with a record that does nothing in Kafka, and says under this tag what it is.
TAG_SNAPSHOT: Final = 1_000
_NO_LEADER_CHANGE: Final = -2
_TOPIC_RESOURCE: Final = 2  # ConfigResource.Type.TOPIC
# Kafka refuses requests of an earlier incarnation by it; here a late one only wastes a block of ids.
_UNKNOWN_BROKER_EPOCH: Final = -1
_FIRST_PARTITION_EPOCH: Final = 0
_NO_INCARNATION: Final = bytes(UUID_SIZE)
_LISTENER: Final = "PLAINTEXT"  # the one endpoint of each node, and SecurityProtocol.PLAINTEXT
_PLAINTEXT: Final = 0
_FEATURE_VERSIONS_SIZE: Final = 4
_FENCED_SIZE: Final = 1


_NUMBER_SIZE: Final = 8
_NO_DASH: Final = 0x7F  # an id in base64 that began with "-" would be an option on a command line (Uuid.java)


def new_topic_id(topic: str, *, number: int, created_ms: int) -> bytes:
    """The id of the topic that is created as number `number` of its cluster.

    The number makes it unique in the cluster, whatever was deleted before. The rest tells apart topics of
    clusters that follow each other at one address: a client that outlives the first must not read the
    second's topic under the id that it remembers.
    """
    origin = blake2b(f"{created_ms} {topic}".encode(), digest_size=UUID_SIZE - _NUMBER_SIZE).digest()
    return bytes((origin[0] & _NO_DASH,)) + origin[1:] + number.to_bytes(_NUMBER_SIZE, "big")


def topic_number(topic_id: bytes) -> int:
    return int.from_bytes(topic_id[-_NUMBER_SIZE:], "big")


def _check_topic_id(_record: object, _field: object, topic_id: bytes) -> None:
    assert len(topic_id) == UUID_SIZE, f"a topic id has {UUID_SIZE} bytes"


@attrs.frozen
class TopicCreated:
    """TopicRecord: a name and its 16-byte id. The record's timestamp (ms) says when, also in a snapshot."""

    topic: str
    topic_id: bytes = attrs.field(kw_only=True, validator=_check_topic_id)
    created_ms: int = attrs.field(kw_only=True)


@attrs.frozen
class TopicRemoved:
    """RemoveTopicRecord."""

    topic_id: bytes = attrs.field(validator=_check_topic_id)


@attrs.frozen
class TopicConfigured:
    """ConfigRecord of a topic: one setting of it. With None, the broker's setting applies again."""

    topic: str
    name: str = attrs.field(kw_only=True)
    value: str | None = attrs.field(kw_only=True)


@attrs.frozen
class PartitionCreated:
    """PartitionRecord of a partition with one replica, its leader."""

    topic_id: bytes = attrs.field(validator=_check_topic_id)
    partition: int = attrs.field(kw_only=True)
    leader_id: int = attrs.field(kw_only=True)
    leader_epoch: int = attrs.field(kw_only=True)


@attrs.frozen
class LeaderChanged:
    """PartitionChangeRecord: another leader, or the same one after a start, under the next leader epoch."""

    topic_id: bytes = attrs.field(validator=_check_topic_id)
    partition: int = attrs.field(kw_only=True)
    leader_id: int = attrs.field(kw_only=True)
    leader_epoch: int = attrs.field(kw_only=True)


@attrs.frozen
class ProducerIdsAllocated:
    """ProducerIdsRecord: every producer id below `next_producer_id` has been handed out."""

    node_id: int
    next_producer_id: int = attrs.field(kw_only=True)


@attrs.frozen
class BrokerRegistered:
    """RegisterBrokerRecord of a node that is up at once; `broker_epoch` is the offset of its batch."""

    node_id: int
    broker_epoch: int = attrs.field(kw_only=True)
    host: str = attrs.field(kw_only=True)
    port: int = attrs.field(kw_only=True)


@attrs.frozen
class ClusterSnapshot:
    """The first record of a snapshot: the others in its batch are the whole state of the cluster."""

    offset: int
    """Its own."""
    leader_epoch: int = attrs.field(kw_only=True)
    """The largest that a partition of a deleted topic had; -1 without any."""
    topic_number: int = attrs.field(kw_only=True)
    """The largest that a topic had. Topics up to this number that the snapshot does not name are deleted."""


ClusterRecord = (
    TopicCreated | TopicRemoved | TopicConfigured | PartitionCreated | LeaderChanged | ProducerIdsAllocated
    | BrokerRegistered | ClusterSnapshot
)  # fmt: skip


def cluster_batch(records: Sequence[ClusterRecord], *, timestamp: int) -> bytearray:
    """One batch of `__cluster_metadata`; values only, as KRaft writes them."""
    return build_kafka_batch(
        [
            KafkaRecord(
                None,
                _value(record),
                timestamp_delta=record.created_ms - timestamp if isinstance(record, TopicCreated) else 0,
            )
            for record in records
        ],
        timestamp=timestamp,
    )


def _value(record: ClusterRecord) -> bytes:
    key, content, tags = _content(record)
    out = bytearray()
    put_unsigned_varint(out, FRAME_VERSION)
    put_unsigned_varint(out, key)
    put_unsigned_varint(out, _RECORD_VERSION)
    out += content
    put_tagged_fields(out, tags)
    return bytes(out)


def _content(record: ClusterRecord) -> tuple[int, bytes, list[tuple[int, bytes]]]:
    """API key, fields, tagged fields."""
    match record:
        case TopicCreated(topic, topic_id=topic_id):
            out = bytearray()
            put_compact_string(out, topic)
            return TOPIC_RECORD, bytes(out) + topic_id, []
        case TopicRemoved(topic_id):
            return REMOVE_TOPIC_RECORD, topic_id, []
        case TopicConfigured():
            return CONFIG_RECORD, _config_content(record), []
        case PartitionCreated():
            return PARTITION_RECORD, _partition_content(record), []
        case LeaderChanged(topic_id, partition=partition, leader_id=leader_id, leader_epoch=leader_epoch):
            tags = [(TAG_LEADER, INT32.pack(leader_id)), (TAG_LEADER_EPOCH, INT32.pack(leader_epoch))]
            return PARTITION_CHANGE_RECORD, INT32.pack(partition) + topic_id, tags
        case ProducerIdsAllocated(node_id, next_producer_id=next_producer_id):
            content = _PRODUCER_IDS.pack(node_id, _UNKNOWN_BROKER_EPOCH, next_producer_id)
            return PRODUCER_IDS_RECORD, content, []
        case BrokerRegistered():
            return REGISTER_BROKER_RECORD, _broker_content(record), []
        case ClusterSnapshot(offset, leader_epoch=leader_epoch, topic_number=topic_number):
            tag = TAG_SNAPSHOT, _SNAPSHOT.pack(offset, leader_epoch, topic_number)
            return NO_OP_RECORD, b"", [tag]


def _config_content(record: TopicConfigured) -> bytes:
    out = bytearray((_TOPIC_RESOURCE,))
    for text in (record.topic, record.name):
        put_compact_string(out, text)
    put_compact_nullable_string(out, record.value)
    return bytes(out)


def _partition_content(record: PartitionCreated) -> bytes:
    out = bytearray(INT32.pack(record.partition))
    out += record.topic_id
    replicas, in_sync = (record.leader_id,), (record.leader_id,)
    for node_ids in (replicas, in_sync, (), ()):  # the last two: replicas being removed and added
        put_compact_int32s(out, node_ids)
    out += _LEADERSHIP.pack(record.leader_id, record.leader_epoch, _FIRST_PARTITION_EPOCH)
    return bytes(out)


def _broker_content(record: BrokerRegistered) -> bytes:
    out = bytearray(_BROKER.pack(record.node_id, _NO_INCARNATION, record.broker_epoch))
    put_unsigned_varint(out, 1 + 1)  # one endpoint: lengths of compact arrays are stored plus one
    put_compact_string(out, _LISTENER)
    put_compact_string(out, record.host)
    out += _PORT.pack(record.port, _PLAINTEXT)
    put_tagged_fields(out, [])
    put_unsigned_varint(out, 0 + 1)  # no features
    put_compact_nullable_string(out, None)  # no rack
    out.append(False)  # fenced
    return bytes(out)


def read_cluster_records(batch: Buffer, header: BatchHeader) -> list[ClusterRecord]:
    """The records in a batch of `__cluster_metadata`; ProtocolViolation when a known kind is malformed."""
    found: list[ClusterRecord] = []
    for entry in read_internal_records(batch, header):
        if entry.value is None:
            raise ProtocolViolation("a record of cluster metadata has no value")
        record = _read(Fields(entry.value, name="cluster metadata record"))
        if isinstance(record, TopicCreated):
            record = attrs.evolve(record, created_ms=header.base_timestamp + entry.timestamp_delta)
        if record is not None:
            found.append(record)
    return found


def _read(fields: Fields) -> ClusterRecord | None:
    frame_version = fields.unsigned_varint()
    if frame_version != FRAME_VERSION:
        fields.fail(f"frame version {frame_version} is unknown")
    reader = _READERS.get(fields.unsigned_varint())
    # A newer version may write more kinds. They must not stop a node from reading the rest.
    if reader is None:
        return None
    version = fields.unsigned_varint()
    # A known kind in an unknown version is another matter: guessing at its fields could move a partition.
    if version != _RECORD_VERSION:
        fields.fail(f"version {version} is unknown")
    record = reader(fields)
    fields.finish()
    return record


def _read_topic(fields: Fields) -> ClusterRecord:
    topic, topic_id = fields.compact_string(), fields.uuid()
    fields.tagged_fields()
    return TopicCreated(topic, topic_id=topic_id, created_ms=NO_TIMESTAMP)  # its timestamp is not in here


def _read_config(fields: Fields) -> ClusterRecord | None:
    (resource,) = fields.take(1)
    topic, name, value = fields.compact_string(), fields.compact_string(), fields.compact_nullable_string()
    fields.tagged_fields()
    if resource != _TOPIC_RESOURCE:  # a setting of a node
        return None
    return TopicConfigured(topic, name=name, value=value)


def _read_removed_topic(fields: Fields) -> ClusterRecord:
    topic_id = fields.uuid()
    fields.tagged_fields()
    return TopicRemoved(topic_id)


def _read_partition(fields: Fields) -> ClusterRecord:
    partition, topic_id = fields.int32(), fields.uuid()
    # Replicas, in-sync replicas, replicas being removed, replicas being added.
    for _ in range(4):
        fields.int32s(fields.compact_array_length())
    leader_id, leader_epoch, _partition_epoch = fields.fixed(_LEADERSHIP)
    fields.tagged_fields()
    return PartitionCreated(topic_id, partition=partition, leader_id=leader_id, leader_epoch=leader_epoch)


def _read_partition_change(fields: Fields) -> ClusterRecord:
    partition, topic_id = fields.int32(), fields.uuid()
    tags = fields.tagged_fields()
    leader_id = fields.tagged_int(tags, TAG_LEADER, INT32, default=_NO_LEADER_CHANGE)
    # Kafka also writes changes of replicas alone. Without replicas there are none, so this is damage.
    if leader_id == _NO_LEADER_CHANGE or TAG_LEADER_EPOCH not in tags:
        fields.fail("a partition change names no leader with its epoch")
    leader_epoch = fields.tagged_int(tags, TAG_LEADER_EPOCH, INT32, default=NO_LEADER_EPOCH)
    return LeaderChanged(topic_id, partition=partition, leader_id=leader_id, leader_epoch=leader_epoch)


def _read_producer_ids(fields: Fields) -> ClusterRecord:
    node_id, _broker_epoch, next_producer_id = fields.fixed(_PRODUCER_IDS)
    fields.tagged_fields()
    return ProducerIdsAllocated(node_id, next_producer_id=next_producer_id)


def _read_broker(fields: Fields) -> ClusterRecord:
    node_id, _incarnation, broker_epoch = fields.fixed(_BROKER)
    addresses = [_read_endpoint(fields) for _ in range(fields.compact_array_length())]
    # Features: name, lowest and highest version.
    for _ in range(fields.compact_array_length()):
        fields.compact_string()
        fields.take(_FEATURE_VERSIONS_SIZE)
        fields.tagged_fields()
    rack_size = fields.unsigned_varint()
    fields.take(max(0, rack_size - 1))
    fields.take(_FENCED_SIZE)
    fields.tagged_fields()
    if not addresses:
        fields.fail("a broker has no endpoint")
    host, port = addresses[0]
    return BrokerRegistered(node_id, broker_epoch=broker_epoch, host=host, port=port)


def _read_endpoint(fields: Fields) -> tuple[str, int]:
    fields.compact_string()
    host = fields.compact_string()
    port, _security_protocol = fields.fixed(_PORT)
    fields.tagged_fields()
    return host, port


def _read_no_op(fields: Fields) -> ClusterRecord | None:
    tags = fields.tagged_fields()
    if TAG_SNAPSHOT not in tags:
        return None
    content = Fields(tags[TAG_SNAPSHOT], name="snapshot of cluster metadata")
    offset, leader_epoch, topic_number = content.fixed(_SNAPSHOT)
    content.finish()
    return ClusterSnapshot(offset, leader_epoch=leader_epoch, topic_number=topic_number)


_READERS: Final[dict[int, Callable[[Fields], ClusterRecord | None]]] = {
    TOPIC_RECORD: _read_topic,
    CONFIG_RECORD: _read_config,
    PARTITION_RECORD: _read_partition,
    PARTITION_CHANGE_RECORD: _read_partition_change,
    REMOVE_TOPIC_RECORD: _read_removed_topic,
    PRODUCER_IDS_RECORD: _read_producer_ids,
    REGISTER_BROKER_RECORD: _read_broker,
    NO_OP_RECORD: _read_no_op,
}
