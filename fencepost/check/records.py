"""What the records of each kind of log say: plain records, transactions, committed offsets, cluster metadata.

Rule: every record is decoded, for one that cannot be read stops whoever needs it; what other checks compare
is kept, the rest is let go.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from fencepost.check.findings import Findings
from fencepost.check.scan import Contents, Placed
from fencepost.protocol.metadata_log import (
    LeaderChanged,
    PartitionCreated,
    ProducerIdsAllocated,
    TopicCreated,
    TopicRemoved,
    read_cluster_records,
)
from fencepost.protocol.offsets_log import read_offsets
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    coordinator_partition,
)
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions


class Moment(NamedTuple):
    """One record of the transaction log, and where it stands. None is a tombstone."""

    file: str
    offset: int
    record: TransactionRecord | None


@attrs.define(eq=False)
class KnownTopic:
    """A topic as the metadata has it now: when it was made (ms), and the leader epoch of each partition."""

    name: str
    created_ms: int
    leader_epochs: dict[int, int] = attrs.Factory(dict[int, int])


@attrs.define(eq=False)
class Cluster:
    """What `__cluster_metadata` says at its end."""

    topics: dict[bytes, KnownTopic] = attrs.Factory(dict[bytes, KnownTopic])
    next_producer_id: int = 0
    is_known: bool = False
    """Whether there was any record: a directory made by hand may have none."""

    def named(self) -> dict[str, KnownTopic]:
        """Topics by name."""
        return {topic.name: topic for topic in self.topics.values()}

    def partitions(self) -> set[TopicPartition]:
        """Every partition; one that nobody has written to need not have a directory."""
        return {
            TopicPartition(topic.name, number)
            for topic in self.topics.values()
            for number in topic.leader_epochs
        }


@attrs.define(eq=False)
class Internals:
    """What the internal topics hold, read batch by batch."""

    findings: Findings
    cluster: Cluster = attrs.Factory(Cluster)
    histories: dict[str, list[Moment]] = attrs.Factory(dict[str, list[Moment]])

    def contents(self, partition: TopicPartition) -> Contents:
        """How to look into the batches of this partition."""
        match partition.topic:
            case topic if topic == CLUSTER_METADATA_TOPIC:
                return self._cluster
            case topic if topic == TRANSACTION_STATE_TOPIC:
                return lambda placed, batch: self._transactions(partition, placed, batch)
            case topic if topic == CONSUMER_OFFSETS_TOPIC:
                return lambda placed, batch: self._offsets(partition, placed, batch)
            case _:
                return _plain

    def _cluster(self, placed: Placed, batch: bytes) -> None:
        for record in read_cluster_records(batch, placed.header):
            self.cluster.is_known = True
            match record:
                case TopicCreated(topic, topic_id=topic_id):
                    self.cluster.topics[topic_id] = KnownTopic(topic, placed.header.max_timestamp)
                case TopicRemoved(topic_id):
                    self.cluster.topics.pop(topic_id, None)
                case PartitionCreated() | LeaderChanged():
                    self._leads(placed, record)
                case ProducerIdsAllocated():
                    self.cluster.next_producer_id = record.next_producer_id
                case _:
                    pass

    def _leads(self, placed: Placed, record: PartitionCreated | LeaderChanged) -> None:
        topic = self.cluster.topics.get(record.topic_id)
        if topic is None:
            self.findings.problem(
                placed.file,
                f"partition {record.partition} of a topic that does not exist",
                offset=placed.header.base_offset,
                means="the metadata has lost the record that made the topic",
            )
            return
        before = topic.leader_epochs.get(record.partition, -1)
        if record.leader_epoch < before:
            self.findings.problem(
                placed.file,
                f"{topic.name}-{record.partition}: leader epoch {record.leader_epoch} after {before}",
                offset=placed.header.base_offset,
                means="a leader that was replaced could write again",
            )
        topic.leader_epochs[record.partition] = record.leader_epoch

    def _transactions(self, partition: TopicPartition, placed: Placed, batch: bytes) -> None:
        for name, record in read_transactions(batch, placed.header):
            moment = Moment(placed.file, placed.header.base_offset, record)
            self.histories.setdefault(name, []).append(moment)
            self._check_home(partition, placed, f"transactional id {name!r}", name)

    def _offsets(self, partition: TopicPartition, placed: Placed, batch: bytes) -> None:
        for key, _record in read_offsets(batch, placed.header):
            self._check_home(partition, placed, f"group {key.group_id!r}", key.group_id)

    def _check_home(self, partition: TopicPartition, placed: Placed, what: str, name: str) -> None:
        """A coordinator finds only what lies in the partition that the name hashes to."""
        topic = self.cluster.named().get(partition.topic)
        home = None if topic is None else coordinator_partition(name, len(topic.leader_epochs))
        if home is not None and home != partition.partition:
            self.findings.problem(
                placed.file,
                f"{what} belongs to partition {home}",
                offset=placed.header.base_offset,
                means="its coordinator looks for it there, and does not find it",
            )


def _plain(placed: Placed, batch: bytes) -> None:
    read_columns(batch, placed.header)
