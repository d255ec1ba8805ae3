"""The records of `__cluster_metadata` as a fold: topics with their settings, leaders, nodes, producer ids.

Rule: a record about a topic that is not known changes nothing, and the fold says so.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

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
from fencepost.protocol.terms import NO_LEADER_EPOCH, TopicPartition, spell_topic_id


class Leadership(NamedTuple):
    """Who leads a partition, and since which leader epoch."""

    topic_id: bytes
    leader_id: int
    leader_epoch: int


@attrs.define(eq=False)
class ClusterModel:
    """The state of a cluster after the records up to some offset."""

    topics: dict[bytes, TopicCreated] = attrs.Factory(dict[bytes, TopicCreated])
    """By their ids."""
    configs: dict[str, dict[str, str]] = attrs.Factory(dict[str, dict[str, str]])
    """The settings of each topic."""
    leaders: dict[TopicPartition, Leadership] = attrs.Factory(dict[TopicPartition, Leadership])
    nodes: dict[int, BrokerRegistered] = attrs.Factory(dict[int, BrokerRegistered])
    removed: dict[str, int] = attrs.Factory(dict[str, int])
    """The last leader epoch of each topic that was deleted since the last snapshot."""
    snapshot: ClusterSnapshot | None = None
    newest_topic_number: int = 0
    next_producer_id: int = 0

    def take(self, record: ClusterRecord) -> bool:
        """Take the next record. Returns False if it is about a topic that is not known."""
        match record:
            case ClusterSnapshot():
                for known in (self.topics, self.configs, self.leaders, self.nodes, self.removed):
                    known.clear()
                self.snapshot, self.newest_topic_number = record, record.topic_number
            case TopicCreated(topic, topic_id=topic_id):
                self.topics[topic_id] = record
                self.configs[topic] = {}
                self.removed.pop(topic, None)
                self.newest_topic_number = max(self.newest_topic_number, topic_number(topic_id))
            case TopicConfigured(topic):
                return topic in self.configs and self._configure(self.configs[topic], record)
            case TopicRemoved(topic_id):
                return topic_id in self.topics and self._remove(self.topics.pop(topic_id))
            case PartitionCreated(topic_id) | LeaderChanged(topic_id):
                if topic_id not in self.topics:
                    return False
                key = TopicPartition(self.topics[topic_id].topic, record.partition)
                self.leaders[key] = Leadership(topic_id, record.leader_id, record.leader_epoch)
            case ProducerIdsAllocated():
                self.next_producer_id = record.next_producer_id
            case BrokerRegistered():
                self.nodes[record.node_id] = record
        return True

    def _configure(self, configs: dict[str, str], record: TopicConfigured) -> bool:
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value
        return True

    def _remove(self, removed: TopicCreated) -> bool:
        gone = {key: known for key, known in self.leaders.items() if known.topic_id == removed.topic_id}
        epochs = [known.leader_epoch for known in gone.values()]
        self.leaders = {key: known for key, known in self.leaders.items() if key not in gone}
        self.configs.pop(removed.topic, None)
        self.removed[removed.topic] = max(epochs, default=NO_LEADER_EPOCH)
        return True

    def facts(self) -> dict[str, str]:
        """All that a snapshot says, in words."""
        forgotten = NO_LEADER_EPOCH if self.snapshot is None else self.snapshot.leader_epoch
        return {
            "next producer id": str(self.next_producer_id),
            "newest topic number": str(self.newest_topic_number),
            "largest leader epoch of deleted topics": str(max([forgotten, *self.removed.values()])),
            **{f"node {each.node_id}": f"{each.host}:{each.port}" for each in self.nodes.values()},
            **{
                f"topic {topic.topic}": f"id {spell_topic_id(topic_id)}, created {topic.created_ms}"
                for topic_id, topic in self.topics.items()
            },
            **{
                f"{name} of topic {topic}": value
                for topic, configs in self.configs.items()
                for name, value in configs.items()
            },
            **{
                str(key): f"leader {known.leader_id}, leader epoch {known.leader_epoch}"
                for key, known in self.leaders.items()
            },
        }
