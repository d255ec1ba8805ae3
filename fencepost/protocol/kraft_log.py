"""The records of an Apache Kafka controller in `__cluster_metadata`: which topics and partitions there are,
who replicates them, who leads them.

Rule: a reader of somebody else's log. It takes the fields that it needs from every version of a record and
skips what follows them; kinds that it does not need are only named. Fencepost's own controller writes the
same records (metadata_log.py), so its topics can be read here, too.
"""

# A controller replaces the beginning of its log with a snapshot now and then. `<offset>-<epoch>.checkpoint`
# is next to the segments, has the same batches, and holds the state after the records before its offset.

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import attrs

from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.metadata_log import (
    FRAME_VERSION,
    NO_OP_RECORD,
    PARTITION_CHANGE_RECORD,
    PARTITION_RECORD,
    PRODUCER_IDS_RECORD,
    REMOVE_TOPIC_RECORD,
    TAG_LEADER,
    TAG_LEADER_EPOCH,
    TAG_SNAPSHOT,
    TOPIC_RECORD,
)
from fencepost.protocol.primitives import INT32, Fields
from fencepost.protocol.records import read_internal_records
from fencepost.protocol.terms import NO_LEADER_EPOCH, TopicPartition

_TAG_REPLICAS: Final = 2  # of a PartitionChangeRecord
_UNCHANGED: Final = -2

KINDS: Final = {
    0: "RegisterBrokerRecord", 1: "UnregisterBrokerRecord", 2: "TopicRecord", 3: "PartitionRecord",
    4: "ConfigRecord", 5: "PartitionChangeRecord", 7: "FenceBrokerRecord", 8: "UnfenceBrokerRecord",
    9: "RemoveTopicRecord", 10: "DelegationTokenRecord", 11: "UserScramCredentialRecord",
    12: "FeatureLevelRecord", 14: "ClientQuotaRecord", 15: "ProducerIdsRecord",
    17: "BrokerRegistrationChangeRecord", 18: "AccessControlEntryRecord",
    19: "RemoveAccessControlEntryRecord", 20: "NoOpRecord", 21: "ZkMigrationStateRecord",
    22: "RemoveUserScramCredentialRecord", 23: "BeginTransactionRecord", 24: "EndTransactionRecord",
    25: "AbortTransactionRecord", 26: "RemoveDelegationTokenRecord", 27: "RegisterControllerRecord",
    28: "ClearElrRecord",
}  # fmt: skip
"""MetadataRecordType, by API key."""


class KraftRecord(NamedTuple):
    """One record: its kind and its API version. The other fields are those that it has and that are read."""

    kind: str
    version: int
    written_ms: int
    topic: str | None = None
    topic_id: bytes | None = None
    partition: int | None = None
    replicas: tuple[int, ...] | None = None
    """The nodes that hold the partition; None if the record does not change them."""
    leader_id: int | None = None
    """None if the record does not change the leader."""
    leader_epoch: int | None = None
    """In a record that creates the partition, and in Fencepost's records of another leader."""
    next_producer_id: int | None = None
    is_snapshot: bool | None = None
    """Whether it begins a snapshot within Fencepost's log: only what follows counts."""


def read_kraft_records(batch: Buffer, header: BatchHeader) -> Iterator[KraftRecord]:
    """The records of a data batch of `__cluster_metadata`, or of one of its snapshots; ProtocolViolation when
    one is malformed.
    """
    for entry in read_internal_records(batch, header):
        fields = Fields(entry.value or b"", name="cluster metadata record")
        frame_version = fields.unsigned_varint()
        if frame_version != FRAME_VERSION:
            fields.fail(f"frame version {frame_version} is unknown")
        key, version = fields.unsigned_varint(), fields.unsigned_varint()
        kind = KINDS.get(key, f"record of kind {key}")
        written_ms = header.base_timestamp + entry.timestamp_delta
        yield KraftRecord(kind, version, written_ms)._replace(
            **_READERS[key](fields) if key in _READERS else {}
        )


def _read_topic(fields: Fields) -> dict[str, object]:
    return {"topic": fields.compact_string(), "topic_id": fields.uuid()}


def _read_removed_topic(fields: Fields) -> dict[str, object]:
    return {"topic_id": fields.uuid()}


def _read_partition(fields: Fields) -> dict[str, object]:
    partition, topic_id = fields.int32(), fields.uuid()
    replicas, *_ = [
        fields.int32s(fields.compact_array_length()) for _ in range(4)
    ]  # then ISR, removing, adding
    return {
        "partition": partition,
        "topic_id": topic_id,
        "replicas": replicas,
        "leader_id": fields.int32(),
        "leader_epoch": fields.int32(),
    }


def _read_partition_change(fields: Fields) -> dict[str, object]:
    partition, topic_id, tags = fields.int32(), fields.uuid(), fields.tagged_fields()
    leader_id = fields.tagged_int(tags, TAG_LEADER, INT32, default=_UNCHANGED)
    leader_epoch = fields.tagged_int(tags, TAG_LEADER_EPOCH, INT32, default=NO_LEADER_EPOCH)
    replicas = None
    if _TAG_REPLICAS in tags:
        content = Fields(tags[_TAG_REPLICAS], name="replicas of a partition change")
        replicas = content.int32s(content.compact_array_length())
    return {
        "partition": partition,
        "topic_id": topic_id,
        "replicas": replicas,
        "leader_id": None if leader_id == _UNCHANGED else leader_id,
        "leader_epoch": None if leader_epoch == NO_LEADER_EPOCH else leader_epoch,
    }


def _read_producer_ids(fields: Fields) -> dict[str, object]:
    fields.int32()  # the broker, then its epoch
    fields.int64()
    return {"next_producer_id": fields.int64()}


def _read_no_op(fields: Fields) -> dict[str, object]:
    return {"is_snapshot": True} if TAG_SNAPSHOT in fields.tagged_fields() else {}


_READERS: Final = {
    TOPIC_RECORD: _read_topic,
    PARTITION_RECORD: _read_partition,
    PARTITION_CHANGE_RECORD: _read_partition_change,
    REMOVE_TOPIC_RECORD: _read_removed_topic,
    PRODUCER_IDS_RECORD: _read_producer_ids,
    NO_OP_RECORD: _read_no_op,
}


@attrs.define
class KraftPartition:
    """A partition as the metadata has it now."""

    replicas: tuple[int, ...]
    leader_id: int
    """-1 while none of the brokers with a replica is up."""
    leader_epoch: int


@attrs.define
class KraftTopic:
    """A topic as the metadata has it now, and when it was created (ms); one of a snapshot file of Kafka has
    the time of the snapshot.
    """

    name: str
    created_ms: int = attrs.field(eq=False)
    partitions: dict[int, KraftPartition] = attrs.Factory(dict[int, KraftPartition])


@attrs.define
class KraftCluster:
    """The state after the records up to some offset. Show it every record, in order."""

    topics: dict[bytes, KraftTopic] = attrs.Factory(dict[bytes, KraftTopic])
    """By their 16 bytes of id."""
    named: dict[str, KraftTopic] = attrs.Factory(dict[str, KraftTopic])
    next_producer_id: int = 0
    is_known: bool = False
    """Whether there was any record: a directory made by hand may have none."""

    def topic_ids(self) -> dict[str, bytes]:
        return {topic.name: topic_id for topic_id, topic in self.topics.items()}

    def partitions(self) -> set[TopicPartition]:
        """Every partition; one without records need not have a directory."""
        return {
            TopicPartition(name, number) for name, topic in self.named.items() for number in topic.partitions
        }

    def partition(self, where: TopicPartition) -> KraftPartition | None:
        """What is known of a partition; None if there is no such partition."""
        topic = self.named.get(where.topic)
        return None if topic is None else topic.partitions.get(where.partition)

    def take(self, record: KraftRecord) -> None:
        """Take the next record into account."""
        self.is_known = True
        if record.is_snapshot:
            self.topics.clear()
            self.named.clear()
        if record.next_producer_id is not None:
            self.next_producer_id = record.next_producer_id
        if record.topic_id is None:
            return
        if record.topic is not None:
            self.topics[record.topic_id] = self.named[record.topic] = KraftTopic(
                record.topic, record.written_ms
            )
            return
        topic = self.topics.get(record.topic_id)
        if topic is None:
            return
        if record.partition is None:  # the topic is removed
            del self.topics[record.topic_id]
            self.named.pop(topic.name, None)
        elif record.leader_epoch is not None:
            assert record.leader_id is not None, "a leader epoch comes with its leader"
            replicas = record.replicas or (record.leader_id,)
            topic.partitions[record.partition] = KraftPartition(
                replicas, record.leader_id, record.leader_epoch
            )
        elif (known := topic.partitions.get(record.partition)) is not None:
            if record.replicas is not None:
                known.replicas = record.replicas
            if record.leader_id is not None:
                # Each change of the leader raises the epoch by one (PartitionRegistration.merge).
                known.leader_id = record.leader_id
                known.leader_epoch += 1
