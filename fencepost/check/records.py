"""What the records of each kind of log say: plain records, transactions, committed offsets, cluster metadata.

Every record is decoded, since one that cannot be read stops every reader. What the other checks compare is
kept: the cluster's metadata, the history of each transactional id, and the offsets of each group.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

import attrs

from fencepost.check.findings import Findings
from fencepost.check.scan import RecordReader, ScannedBatch
from fencepost.log_model.metadata import ClusterModel
from fencepost.log_model.offsets import OffsetsModel
from fencepost.log_model.transactions import LoggedState
from fencepost.protocol.consumer_group_log import ConsumerRecordKind, GroupEpoch
from fencepost.protocol.kraft_log import KraftCluster, KraftRecord, read_kraft_records
from fencepost.protocol.metadata_log import ClusterRecord, ClusterSnapshot, read_cluster_records
from fencepost.protocol.offsets_log import read_group_batch
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    coordinator_partition,
)
from fencepost.protocol.transaction_log import read_transactions

UNFENCED: Final = "a member that was replaced could commit offsets"
CONTINUES: Final = "a start continues from the snapshot: what it lacks is lost, or is given out again"


class _Home(NamedTuple):
    """A partition of a coordinator's topic, and how many the topic has; 0 if unknown."""

    partition: int
    of: int


def reading_order(partition: TopicPartition) -> tuple[bool, bool, TopicPartition]:
    """The sort key by which logs are read: the metadata, the coordinators' logs, and then data."""
    return (partition.topic != CLUSTER_METADATA_TOPIC, partition.topic not in INTERNAL_TOPICS, partition)


@attrs.define(eq=False)
class Internals:
    """What the internal topics hold, read batch by batch."""

    findings: Findings
    is_kafka: bool = False
    """Whether an Apache Kafka controller wrote the metadata."""
    cluster: KraftCluster = attrs.Factory(KraftCluster)
    metadata: ClusterModel | None = None
    """What the records so far say; None if records before them are gone."""
    histories: dict[str, list[LoggedState]] = attrs.Factory(dict[str, list[LoggedState]])
    offsets: dict[TopicPartition, OffsetsModel] = attrs.Factory(dict[TopicPartition, OffsetsModel])
    """By partition of `__consumer_offsets`."""
    generations: dict[str, int] = attrs.Factory(dict[str, int])
    """The last one of each group of the classic protocol."""
    group_epochs: dict[str, int] = attrs.Factory(dict[str, int])
    """The same in the consumer protocol."""

    def contents(self, partition: TopicPartition) -> RecordReader:
        """The function that reads the records in the batches of this partition; the metadata log is read
        first.
        """
        match partition.topic:
            case topic if topic == CLUSTER_METADATA_TOPIC:
                return _of_data(self._cluster)
            case topic if topic == TRANSACTION_STATE_TOPIC:
                return _of_data(partial(self._transactions, self._home(partition)))
            case topic if topic == CONSUMER_OFFSETS_TOPIC:
                offsets = self.offsets.setdefault(partition, OffsetsModel())
                return partial(self._groups, self._home(partition), offsets)
            case _:
                return _of_data(_plain)

    def _home(self, partition: TopicPartition) -> _Home:
        topic = self.cluster.named.get(partition.topic)
        return _Home(partition.partition, 0 if topic is None else len(topic.partitions))

    def _cluster(self, batch: ScannedBatch, data: bytes) -> None:
        if not self.is_kafka:  # a node reads all fields of each record, and stops at one that is malformed
            self._follow(batch, read_cluster_records(data, batch.header))
        for record in read_kraft_records(data, batch.header):
            if record.leader_id is not None and record.topic_id is not None and not self.is_kafka:
                self._judge_leader(batch, record.topic_id, record)
            self.cluster.take(record)

    def _follow(self, batch: ScannedBatch, records: list[ClusterRecord]) -> None:
        """Follow the metadata. A snapshot is compared with what the records before it say, as far as these
        are still there.
        """
        header, before = batch.header, self.metadata
        first = records[0] if records else None
        snapshot = first if isinstance(first, ClusterSnapshot) else None
        if header.is_covering:
            self.metadata = None
        elif snapshot is not None or header.base_offset == 0:
            self.metadata = ClusterModel()
        if self.metadata is None:
            return
        for record in records:
            self.metadata.take(record)
        if snapshot is not None and before is not None:
            right = before.facts() | {"offset": str(header.base_offset)}
            self._compare(batch, self.metadata.facts() | {"offset": str(snapshot.offset)}, right)

    def _compare(self, batch: ScannedBatch, snapshot: dict[str, str], before: dict[str, str]) -> None:
        """Report the first difference."""
        for name in before | snapshot:
            said, right = snapshot.get(name, "nothing"), before.get(name, "nothing")
            if said != right:
                what = f"{name}: {said} in the snapshot, but {right} in the records before it"
                self.findings.problem(batch.location, what, CONTINUES)
                return

    def _judge_leader(self, batch: ScannedBatch, topic_id: bytes, record: KraftRecord) -> None:
        topic, epoch = self.cluster.topics.get(topic_id), record.leader_epoch
        assert record.partition is not None, "what has a leader is a partition"
        assert epoch is not None, "a node writes it with each leader"
        if topic is None:
            self.findings.problem(
                batch.location,
                f"partition {record.partition} of a topic that does not exist",
                "the metadata has lost the record that made the topic",
            )
            return
        before = topic.partitions.get(record.partition)
        if before is not None and epoch < before.leader_epoch:
            self.findings.problem(
                batch.location,
                f"{topic.name}-{record.partition}: leader epoch {epoch} after {before.leader_epoch}",
                "a leader that was replaced could write again",
            )

    def _transactions(self, home: _Home, batch: ScannedBatch, data: bytes) -> None:
        for name, record in read_transactions(data, batch.header):
            header = batch.header
            state = LoggedState(record, batch.file, header.base_offset, header.leader_epoch)
            self.histories.setdefault(name, []).append(state)
            self._check_home(home, batch, f"transactional id {name!r}", name)

    def _groups(self, home: _Home, offsets: OffsetsModel, batch: ScannedBatch, data: bytes) -> None:
        header, marker = batch.header, batch.marker
        if header.is_control:
            if marker is not None:
                offsets.apply(header, marker.result, ())
            return
        if header.is_covering:  # a tombstone may have been lost there, before a repair
            self.generations.clear()
            self.group_epochs.clear()
        found = read_group_batch(data, header)
        offsets.apply(header, None, found.offsets, found.deltas)
        keys = [key.group_id for key, _ in (*found.offsets, *found.consumers)]
        for name in dict.fromkeys([*keys, *[name for name, _ in found.groups]]):
            self._check_home(home, batch, f"group {name!r}", name)
        for name, record in found.groups:
            number = None if record is None else record.generation_id
            self._follow_fence(batch, name, "generation", number, self.generations)
        for key, record in found.consumers:
            if key.kind is ConsumerRecordKind.GROUP:
                number = record.epoch if isinstance(record, GroupEpoch) else None
                self._follow_fence(batch, key.group_id, "epoch", number, self.group_epochs)
                self.generations.pop(key.group_id, None)  # the group has changed its protocol

    def _follow_fence(
        self, batch: ScannedBatch, name: str, what: str, number: int | None, known: dict[str, int]
    ) -> None:
        """A group's generation or epoch never falls, until a tombstone, None, forgets the group."""
        before = known.pop(name, None)
        if number is None:
            return
        known[name] = number
        if before is not None and number < before:
            self.findings.problem(
                batch.location, f"group {name!r} is in {what} {number} after {before}", UNFENCED
            )

    def _check_home(self, home: _Home, batch: ScannedBatch, what: str, name: str) -> None:
        """A coordinator finds only what is in the partition that the name hashes to."""
        right = coordinator_partition(name, home.of) if home.of else home.partition
        if right != home.partition:
            self.findings.problem(
                batch.location,
                f"{what} belongs to partition {right}",
                "its coordinator looks for it there and does not find it",
            )


def _of_data(reader: RecordReader) -> RecordReader:
    """The same reader without control batches: markers, and those of Kafka's controllers."""

    def read(batch: ScannedBatch, data: bytes) -> None:
        if not batch.header.is_control:
            reader(batch, data)

    return read


def _plain(batch: ScannedBatch, data: bytes) -> None:
    read_columns(data, batch.header)
