"""What a damaged `__cluster_metadata` needs so that nothing is handed out twice: producer ids, leader epochs,
and records about topics that are lost.

Rule: a lost record is taken to have granted as much as it can have. Ids and epochs may be skipped, but are
never repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final

from fencepost.journal.storage import StorageReader
from fencepost.log_model.metadata import ClusterModel
from fencepost.protocol.batches import covering_batch, place
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.metadata_log import (
    ClusterRecord,
    LeaderChanged,
    PartitionCreated,
    ProducerIdsAllocated,
    TopicConfigured,
    TopicCreated,
    cluster_batch,
    new_topic_id,
    read_cluster_records,
)
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    coordinator_partition,
)
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.repair.salvage import IntactBatch, LostRange, SalvagedLog, content_of

_BLOCK: Final = 1_000  # ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE: the most that one record hands out
_INTERNAL_PARTITIONS: Final = 50  # Kafka's default for both coordinators' topics
_INTERNAL_PARTITIONS_MAX: Final = 1_000
_FIRST_NODE: Final = 1  # NodeSettings.node_id
_LOST_UNKNOWN: Final = 1_000  # records: a million ids and a thousand epochs are skipped, of 2^63 and 2^31


def follow(storage: StorageReader, log: SalvagedLog) -> ClusterModel:
    """Follow the metadata log. Batches with records about lost topics are replaced by batches without them,
    because a controller stops at them.
    """
    cluster = ClusterModel()
    for segment in log.segments:
        for number, piece in enumerate(segment.pieces):
            if isinstance(piece, LostRange):
                continue
            try:
                records = read_cluster_records(content_of(storage, piece), piece.header)
            except ProtocolViolation:  # it was written this way: `check` reports it
                continue
            known = [record for record in records if cluster.take(record)]
            if len(known) < len(records):
                segment.pieces[number] = _without_lost(piece, known)
                segment.is_altered = True
    return cluster


def _without_lost(piece: IntactBatch, records: list[ClusterRecord]) -> IntactBatch:
    """A batch of these records and a covering batch, together as long in offsets as the batch before."""
    header, out, offset = piece.header, bytearray(), piece.header.base_offset
    if records:
        batch = cluster_batch(records, timestamp=header.max_timestamp)
        offset = place(batch, base_offset=offset, leader_epoch=header.leader_epoch).next_offset
        out += batch
    out += covering_batch(
        base_offset=offset, next_offset=header.next_offset, leader_epoch=header.leader_epoch
    )
    return IntactBatch(piece.batch, bytes(out))


def raised(
    cluster: ClusterModel,
    log: SalvagedLog,
    *,
    leader_epochs: Mapping[TopicPartition, int],
    producer_id_max: int,
) -> list[ClusterRecord]:
    """Records that make up for lost ones: no producer id and no leader epoch is given out twice."""
    records: list[ClusterRecord] = []
    lost = sum(each.end - each.start for each in log.lost())
    if not log.end_offset:  # all of it is gone, and no one knows how long it was
        lost = _LOST_UNKNOWN
    if lost:
        fresh = max(cluster.next_producer_id, producer_id_max + 1) + lost * _BLOCK
        records.append(ProducerIdsAllocated(_node_id(cluster), next_producer_id=fresh))
    for key, known in sorted(cluster.leaders.items()):
        epoch = max(known.leader_epoch, leader_epochs.get(key, NO_LEADER_EPOCH)) + lost
        if known.leader_epoch < epoch:
            records.append(
                LeaderChanged(
                    known.topic_id, partition=key.partition, leader_id=known.leader_id, leader_epoch=epoch
                )
            )
    return records


def _node_id(cluster: ClusterModel) -> int:
    newest = max(cluster.nodes.values(), key=attrgetter("broker_epoch"), default=None)
    return _FIRST_NODE if newest is None else newest.node_id


def unused_topic_id(cluster: ClusterModel, topic: str) -> bytes:
    """A new id, for a topic whose id is in no manifest."""
    return new_topic_id(topic, number=cluster.newest_topic_number + 1, created_ms=NO_TIMESTAMP)


def adopted(
    cluster: ClusterModel, topic: str, topic_id: bytes, count: int, leader_epoch: int, *, is_compacted: bool
) -> list[ClusterRecord]:
    """The records that recreate a topic from its directories; `cluster` applies them. They turn retention
    off: the topic's settings are lost, and the default retention would soon delete the saved records.
    """
    partitions = [
        PartitionCreated(
            topic_id,
            partition=number,
            leader_id=_node_id(cluster),
            leader_epoch=max(leader_epoch, 0) + _LOST_UNKNOWN,
        )
        for number in range(count)
    ]
    settings: list[ClusterRecord] = []
    if topic not in INTERNAL_TOPICS:  # these have settings of their own
        settings.append(TopicConfigured(topic, name="retention.ms", value="-1"))
        if is_compacted:
            settings.append(TopicConfigured(topic, name="cleanup.policy", value="compact"))
    records: list[ClusterRecord] = [
        TopicCreated(topic, topic_id=topic_id, created_ms=0),
        *settings,
        *partitions,
    ]
    for record in records:
        cluster.take(record)
    return records


def partition_count(topic: str, partitions: Iterable[int], names: Mapping[int, set[str]]) -> int:
    """How many partitions a topic had, judged by its directories and, for a coordinator's topic, by the
    partition in which each transactional id or group lies.
    """
    lowest = max(partitions) + 1
    if topic not in (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC):
        return lowest
    for count in (_INTERNAL_PARTITIONS, *range(lowest, _INTERNAL_PARTITIONS_MAX)):
        if count >= lowest and all(
            coordinator_partition(name, count) == partition
            for partition, here in names.items()
            for name in here
        ):
            return count
    return lowest


def producer_ids_of(records: Iterable[TransactionRecord | None]) -> int:
    """The highest producer id that the transaction log names."""
    return max(
        (max(r.producer_id, r.next_producer_id, r.previous_producer_id) for r in records if r is not None),
        default=-1,
    )
