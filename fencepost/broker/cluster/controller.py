"""The controller over `__cluster_metadata-0`: nodes, topics, leadership with rising epochs, and blocks of
producer ids.

Rule: every grant is a record first, and nodes learn of it only from the log (cluster/follower.py).
"""

# Theory of operation (Kafka: QuorumController, ReplicationControlManager, ClusterControlManager)
#
# The state of the cluster is the sum of the records in this log; this file has the state, and `apply` for the
# records. Each request is decided in topics.py, config_changes.py or elections.py (AllocateProducerIds:
# here), and becomes one batch. Once that is durable, each node does its part:
#
#     request                    records                                what a node then does
#     BrokerRegistration         BrokerRegistered, LeaderChanged ...    leads its partitions under new epochs
#     CreateTopics               TopicCreated, TopicConfigured ...,     leads its share of them, in new logs
#                                PartitionCreated ...
#     CreatePartitions           PartitionCreated ...                   the same for the new ones
#     ElectLeaders, Reassign,    LeaderChanged ...                      reads the log again, or gives it up
#     AlterPartitionReassignments
#     IncrementalAlterConfigs    TopicConfigured ...                    keeps its logs by the new settings
#     DeleteTopics               TopicRemoved                           drops the partitions and their files
#     AllocateProducerIds        ProducerIdsAllocated                   -          the reply grants the block
#     -                          ClusterSnapshot, then all that is true   -        the older records can go
#
# The invariant: under one name the leader epoch of a partition never falls. Elections and starts raise it. A
# topic that is deleted and created again continues above the old one:
#
#     create   start   delete            create
#     epoch 0  1       `removed` has 1   2
#
# A snapshot forgets the names of deleted topics, and keeps the largest leader epoch of them all: whatever is
# created later begins above it. It is written when most of the log is out of date, but not while the files of
# a deleted topic may still be there. Then the log is compacted up to the snapshot before, which stays: so a
# damaged snapshot costs a repair nothing.
#
#     S1 ... changes ... S2 ... changes ...        S2 is written: what is before S1 goes
#
# All fencing below rests on it: a journal refuses an older epoch (StaleLeader), a marker carries it as
# coordinator epoch, a verification guard contains it.
#
# There is one replica of each partition and one controller, the node `controller_id`. So no decision is about
# replicas in sync, and a partition whose node is down is led by nobody else.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs

from fencepost.broker.contract import Assign, Configure, Decision, MetadataChange, Remove, Reply, ReplyTo
from fencepost.protocol import messages as m
from fencepost.protocol.fork import Ignored, Shared
from fencepost.protocol.metadata_log import (
    BrokerRegistered,
    ClusterRecord,
    ClusterSnapshot,
    LeaderChanged,
    PartitionCreated,
    ProducerIdsAllocated,
    TopicConfigured,
    TopicCreated,
    TopicRemoved,
    topic_number,
)
from fencepost.protocol.terms import NO_LEADER_EPOCH, NO_TOPIC_ID, TopicPartition

PRODUCER_ID_BLOCK_SIZE: Final = 1_000  # ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE


@attrs.frozen
class Leader:
    node_id: int
    leader_epoch: int


@attrs.define(eq=False)
class Topic:
    """A topic, the leaders of its partitions by number, and its own configuration."""

    name: str
    topic_id: bytes
    created_ms: int = attrs.field(kw_only=True)
    leaders: dict[int, Leader] = attrs.Factory(dict[int, Leader])
    configs: dict[str, str] = attrs.Factory(dict[str, str])  # its own settings, by Kafka's names
    described: Shared[m.TopicMetadata | None] = None  # the reply to Metadata, until a leader changes


@attrs.frozen
class RemovedTopic:
    topic_id: bytes
    partition_count: int
    leader_epoch: int
    """The last one of its partitions."""


NO_SNAPSHOT: Final = ClusterSnapshot(0, leader_epoch=NO_LEADER_EPOCH, topic_number=0)

ClusterDecision = Decision[ClusterRecord]


@attrs.define(eq=False)
class Controller:
    """State of the cluster; all of it comes from the log."""

    topics: dict[str, Topic] = attrs.Factory(dict[str, Topic])
    names: Ignored[dict[bytes, str]] = attrs.Factory(dict[bytes, str])
    brokers: dict[int, m.NodeAddress] = attrs.Factory(dict[int, m.NodeAddress])
    # Topics that were deleted since the last snapshot: files may remain after a kill, and the epochs of a new
    # topic start above the last one.
    removed: dict[str, RemovedTopic] = attrs.Factory(dict[str, RemovedTopic])
    snapshot: ClusterSnapshot = NO_SNAPSHOT  # the last one
    # Not a count of topics: a repair may have saved a topic and lost an earlier one.
    newest_topic_number: int = 0
    next_producer_id: int = 0

    def leader(self, partition: TopicPartition) -> Leader | None:
        name, number = partition
        return self.topics[name].leaders.get(number) if name in self.topics else None

    def is_deleted(self, topic: str, topic_id: bytes) -> bool:
        """Whether the topic that had this name and id was deleted; not if this node has not read of it."""
        if topic in self.removed:
            return True
        if topic_id == NO_TOPIC_ID or topic_id in self.names:
            return False
        return topic in self.topics or topic_number(topic_id) <= self.snapshot.topic_number


def allocate_producer_ids(state: Controller, *, node_id: int, to: ReplyTo) -> ClusterDecision:
    """Grant the next block of producer ids. No id is granted twice; gaps are normal (KIP-730)."""
    first = state.next_producer_id
    record = ProducerIdsAllocated(node_id=node_id, next_producer_id=first + PRODUCER_ID_BLOCK_SIZE)
    body = m.AllocateProducerIdsReply(first_producer_id=first, count=PRODUCER_ID_BLOCK_SIZE)
    return Decision((record,), (Reply(to, body),))


def snapshot_is_due(state: Controller, *, log_end_offset: int, records_between: int) -> bool:
    """Whether most of the log is out of date, and so many records that a snapshot is worth it."""
    records = log_end_offset - state.snapshot.offset
    if records <= records_between:
        return False
    live = sum(1 + len(topic.configs) + len(topic.leaders) for topic in state.topics.values())
    return records > records_between + 2 * live


def snapshot_of(state: Controller, *, offset: int, node_id: int) -> tuple[ClusterRecord, ...]:
    """The whole state as one batch, which will be at this offset."""
    former = [state.snapshot.leader_epoch, *(removed.leader_epoch for removed in state.removed.values())]
    records: list[ClusterRecord] = [
        ClusterSnapshot(offset, leader_epoch=max(former), topic_number=state.newest_topic_number),
        ProducerIdsAllocated(node_id, next_producer_id=state.next_producer_id),
    ]
    records += [
        BrokerRegistered(node.node_id, broker_epoch=offset, host=node.host, port=node.port)
        for node in state.brokers.values()
    ]
    for topic in state.topics.values():
        records.append(TopicCreated(topic.name, topic_id=topic.topic_id, created_ms=topic.created_ms))
        records += [TopicConfigured(topic.name, name=name, value=own) for name, own in topic.configs.items()]
        records += [
            PartitionCreated(
                topic.topic_id, partition=number, leader_id=leader.node_id, leader_epoch=leader.leader_epoch
            )
            for number, leader in topic.leaders.items()
        ]
    return tuple(records)


def apply(state: Controller, records: Sequence[ClusterRecord]) -> list[MetadataChange]:
    """Apply records that the metadata log now holds. Returns the changes on which nodes act, once durable."""
    if not records or not isinstance(records[0], ClusterSnapshot):
        return _apply(state, records)
    snapshot = records[0]
    for known in (state.topics, state.names, state.brokers, state.removed):
        known.clear()
    state.snapshot, state.newest_topic_number = snapshot, snapshot.topic_number
    _apply(state, records[1:])
    # Whoever has read the records before the snapshot has acted on them, and others register after it.
    return []


def _apply(state: Controller, records: Iterable[ClusterRecord]) -> list[MetadataChange]:
    changes: list[MetadataChange] = []
    for record in records:
        match record:
            case TopicCreated():
                state.topics[record.topic] = Topic(
                    record.topic, record.topic_id, created_ms=record.created_ms
                )
                state.removed.pop(record.topic, None)
                state.names[record.topic_id] = record.topic
                state.newest_topic_number = max(state.newest_topic_number, topic_number(record.topic_id))
            case TopicConfigured():
                changes.extend(_configure(state.topics[record.topic], record))
            case TopicRemoved():
                changes.extend(_remove(state, record.topic_id))
            case PartitionCreated() | LeaderChanged():
                changes.append(_assign(state, record))
            case ProducerIdsAllocated():
                state.next_producer_id = record.next_producer_id
            case BrokerRegistered():
                address = m.NodeAddress(node_id=record.node_id, host=record.host, port=record.port)
                state.brokers[record.node_id] = address
            case ClusterSnapshot():
                raise AssertionError("a snapshot is a batch of its own")
    return changes


def present_changes(state: Controller) -> list[MetadataChange]:
    """The changes that bring a node from any earlier state of the cluster to the present one."""
    changes: list[MetadataChange] = [
        Remove(partition=TopicPartition(name, number), topic_id=removed.topic_id)
        for name, removed in state.removed.items()
        for number in range(removed.partition_count)
    ]
    for topic in state.topics.values():
        for number, leader in topic.leaders.items():
            key = TopicPartition(topic.name, number)
            changes.append(
                # As one that was led before: files that are already there may hold its records.
                Assign(
                    partition=key,
                    leader_id=leader.node_id,
                    leader_epoch=leader.leader_epoch,
                    topic_id=topic.topic_id,
                    was_leader=True,
                )
            )
            changes.append(Configure(partition=key))
    return changes


def _remove(state: Controller, topic_id: bytes) -> list[MetadataChange]:
    name = state.names.pop(topic_id)
    leaders = state.topics.pop(name).leaders
    last = max(leader.leader_epoch for leader in leaders.values())
    state.removed[name] = RemovedTopic(topic_id, len(leaders), last)
    return [Remove(partition=TopicPartition(name, number), topic_id=topic_id) for number in leaders]


def _configure(topic: Topic, record: TopicConfigured) -> Iterator[MetadataChange]:
    """The changes that follow; none for a topic that is being created, as it has no partitions yet."""
    if record.value is None:
        topic.configs.pop(record.name, None)
    else:
        topic.configs[record.name] = record.value
    return (Configure(partition=TopicPartition(topic.name, number)) for number in topic.leaders)


def _assign(state: Controller, record: PartitionCreated | LeaderChanged) -> Assign:
    topic = state.topics[state.names[record.topic_id]]
    before = topic.leaders.get(record.partition)
    topic.leaders[record.partition] = Leader(record.leader_id, record.leader_epoch)
    # The kept reply to Metadata names leaders and epochs.
    topic.described = None
    return Assign(
        partition=TopicPartition(topic.name, record.partition),
        leader_id=record.leader_id,
        leader_epoch=record.leader_epoch,
        topic_id=record.topic_id,
        is_new=isinstance(record, PartitionCreated),
        was_leader=before is not None and before.node_id == record.leader_id,
    )
