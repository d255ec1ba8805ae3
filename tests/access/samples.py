"""One request of each kind, about topic `orders`, group `readers` and transactional id `pay`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fencepost.protocol import messages as m
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import CoordinatorType, IsolationLevel, TopicPartition, TransactionResult
from tests.broker.requests import ABORT, COMMIT, NOBODY, marker_request, produce_request

TOPIC: Final = "orders"
GROUP: Final = "readers"
PAY: Final = "pay"


def offsets(topic: str) -> tuple[m.OffsetToCommit, ...]:
    return (m.OffsetToCommit(topic=topic, partition=0, offset=0, leader_epoch=-1, metadata=""),)


def _member(kind: type[Any], **fields: Any) -> Request:
    return kind(group_id=GROUP, generation_id=1, member_id="m", group_instance_id=None, **fields)


def _beat(*, topics: tuple[str, ...] | None = None, regex: str | None = None) -> m.ConsumerGroupHeartbeat:
    return m.ConsumerGroupHeartbeat(
        group_id=GROUP, member_id="m", member_epoch=1, instance_id=None, rack_id=None,
        rebalance_timeout_ms=10_000, subscribed_topic_names=topics, subscribed_topic_regex=regex,
        server_assignor=None, topic_partitions=(),
    )  # fmt: skip


def _fetch(topic: str) -> m.Fetch:
    part = m.FetchPartition(topic=topic, partition=0, fetch_offset=0, max_bytes=1)
    level = IsolationLevel.READ_COMMITTED
    return m.Fetch(max_wait_ms=0, min_bytes=0, max_bytes=1, isolation_level=level, partitions=(part,))


def _list_offsets(topic: str) -> m.ListOffsets:
    part = m.ListOffsetsPartition(topic=topic, partition=0, timestamp=-1)
    return m.ListOffsets(isolation_level=IsolationLevel.READ_COMMITTED, partitions=(part,))


def _marker(result: TransactionResult) -> m.WriteTxnMarkers:
    return marker_request(NOBODY, result, TopicPartition(TOPIC, 0))


def _init(name: str | None) -> m.InitProducerId:
    return m.InitProducerId(
        transactional_id=name, transaction_timeout_ms=1_000, producer_id=-1, producer_epoch=-1
    )


def _txn_offsets() -> m.TxnOffsetCommit:
    return m.TxnOffsetCommit(
        transactional_id=PAY, group_id=GROUP, producer_id=0, producer_epoch=0, generation_id=-1, member_id="",
        group_instance_id=None, offsets=offsets(TOPIC),
    )  # fmt: skip


def _of_topics(topic: str) -> tuple[TopicPartition, ...]:
    return (TopicPartition(topic, 0),)


def _unchanged(topic: str) -> tuple[m.TopicConfigChanges, ...]:
    return (m.TopicConfigChanges(topic=topic, changes=()),)


Samples = tuple[Callable[[], Request], ...]

SAMPLES: Final[dict[type[Any], Samples]] = {
    m.Produce: (
        lambda: produce_request(NOBODY, {TopicPartition(TOPIC, 0): "a"}, name=None),
        lambda: produce_request(NOBODY, {TopicPartition(TOPIC, 0): "a"}, name=PAY),
    ),
    m.Fetch: (lambda: _fetch(TOPIC),),
    m.ListOffsets: (lambda: _list_offsets(TOPIC),),
    m.OffsetForLeaderEpoch: (
        lambda: m.OffsetForLeaderEpoch(
            partitions=(m.LeaderEpochPartition(topic=TOPIC, partition=0, leader_epoch=0),)
        ),
    ),
    m.Metadata: (lambda: m.Metadata(topics=(TOPIC,)), lambda: m.Metadata(topics=None)),
    m.OffsetCommit: (
        lambda: m.OffsetCommit(
            group_id=GROUP, generation_id=-1, member_id="", group_instance_id=None, offsets=offsets(TOPIC)
        ),
    ),
    m.OffsetFetch: (
        lambda: m.OffsetFetch(group_id=GROUP, require_stable=False, partitions=_of_topics(TOPIC)),
        lambda: m.OffsetFetch(group_id=GROUP, require_stable=False, partitions=None),
    ),
    m.FindCoordinator: (
        lambda: m.FindCoordinator(kind=CoordinatorType.GROUP, key=GROUP),
        lambda: m.FindCoordinator(kind=CoordinatorType.TRANSACTION, key=PAY),
    ),
    m.ApiVersions: (m.ApiVersions,),
    m.SaslHandshake: (lambda: m.SaslHandshake(mechanism="PLAIN"),),
    m.SaslAuthenticate: (lambda: m.SaslAuthenticate(auth_bytes=b""),),
    m.CreateTopics: (
        lambda: m.CreateTopics(topics=(m.CreateTopic(topic="fresh", partition_count=1),)),
    ),
    m.DeleteTopics: (lambda: m.DeleteTopics(topics=("fresh",)),),
    m.DescribeAcls: (m.DescribeAcls,),
    m.DescribeConfigs: (
        lambda: m.DescribeConfigs(topics=(TOPIC,), node_id=None),
        lambda: m.DescribeConfigs(topics=(TOPIC,), node_id=1),
        lambda: m.DescribeConfigs(topics=(TOPIC,), node_id=None, group_id=GROUP),
    ),
    m.IncrementalAlterConfigs: (
        lambda: m.IncrementalAlterConfigs(topics=_unchanged(TOPIC), validate_only=False),
        lambda: m.IncrementalAlterConfigs(topics=_unchanged(TOPIC), validate_only=False, node_id=1),
        lambda: m.IncrementalAlterConfigs(topics=_unchanged(TOPIC), validate_only=False, group_id=GROUP),
    ),
    m.CreatePartitions: (
        lambda: m.CreatePartitions(topics=(m.NewPartitions(topic=TOPIC, count=9),), validate_only=True),
    ),
    m.DeleteRecords: (
        lambda: m.DeleteRecords(
            timeout_ms=0, partitions=(m.DeleteRecordsPartition(topic=TOPIC, partition=0, offset=0),)
        ),
    ),
    m.AllocateProducerIds: (lambda: m.AllocateProducerIds(node_id=1),),
    m.BrokerRegistration: (lambda: m.BrokerRegistration(node_id=1, host="here", port=1),),
    m.AlterPartitionReassignments: (
        lambda: m.AlterPartitionReassignments(
            partitions=(m.PartitionReassignment(topic=TOPIC, partition=0, node_ids=(1,)),)
        ),
    ),
    m.ListPartitionReassignments: (m.ListPartitionReassignments,),
    m.ElectLeaders: (lambda: m.ElectLeaders(partitions=_of_topics(TOPIC)),),
    m.InitProducerId: (lambda: _init(None), lambda: _init(PAY)),
    m.AddPartitionsToTxn: (
        lambda: m.AddPartitionsToTxn(
            transactional_id=PAY, producer_id=0, producer_epoch=0, verify_only=False,
            partitions=_of_topics(TOPIC),
        ),
    ),
    m.AddOffsetsToTxn: (
        lambda: m.AddOffsetsToTxn(transactional_id=PAY, producer_id=0, producer_epoch=0, group_id=GROUP),
    ),
    m.EndTxn: (lambda: m.EndTxn(transactional_id=PAY, producer_id=0, producer_epoch=0, result=ABORT),),
    m.WriteTxnMarkers: (lambda: _marker(ABORT), lambda: _marker(COMMIT)),
    m.TxnOffsetCommit: (_txn_offsets,),
    m.DescribeProducers: (lambda: m.DescribeProducers(partitions=_of_topics(TOPIC)),),
    m.DescribeTransactions: (lambda: m.DescribeTransactions(transactional_ids=(PAY,)),),
    m.ListTransactions: (lambda: m.ListTransactions(states=(), producer_ids=(), duration_ms=-1),),
    m.JoinGroup: (
        lambda: m.JoinGroup(
            group_id=GROUP, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="m",
            group_instance_id=None, protocol_type="consumer", protocols=(),
        ),
    ),
    m.SyncGroup: (
        lambda: _member(m.SyncGroup, protocol_type=None, protocol_name=None, assignments=()),
    ),
    m.Heartbeat: (lambda: _member(m.Heartbeat),),
    m.LeaveGroup: (lambda: m.LeaveGroup(group_id=GROUP, members=()),),
    m.ConsumerGroupHeartbeat: (lambda: _beat(topics=(TOPIC,)), lambda: _beat(regex="orders.*")),
    m.ConsumerGroupDescribe: (lambda: m.ConsumerGroupDescribe(groups=(GROUP,)),),
    m.DescribeGroups: (lambda: m.DescribeGroups(groups=(GROUP,)),),
    m.ListGroups: (lambda: m.ListGroups(states=()),),
    m.AddFaults: (lambda: m.AddFaults(faults=("when broker sends EndTxn reply #999 do drop",)),),
    m.ListFaults: (m.ListFaults,),
    m.RemoveFaults: (lambda: m.RemoveFaults(fault_ids=(), keeps=False),),
    m.Follow: (lambda: m.Follow(run="", after=0, bytes_max=1, wait_ms=0),),
    m.BrokerStatus: (m.BrokerStatus,),
    m.DeleteGroups: (lambda: m.DeleteGroups(groups=("absent",)),),
    m.OffsetDelete: (lambda: m.OffsetDelete(group_id=GROUP, partitions=_of_topics(TOPIC)),),
}  # fmt: skip
"""By kind of request; a kind with several needs has a sample for each."""
