"""The state of a broker's partitions, transactions and groups, for BrokerStatus and the metrics.

Rule: nothing here changes anything. It walks over all partitions, so it is called when someone asks, and
never by the broker's own work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import attrs

from fencepost.broker.contract import Reply, ReplyTo
from fencepost.broker.counters import NOTHING, Counters, RequestCounts
from fencepost.broker.expiration import partitions_with_late_transactions
from fencepost.broker.groups.state import Groups, group_ids
from fencepost.broker.leader_log import LeaderLog
from fencepost.broker.node import Node
from fencepost.broker.partitions import partition
from fencepost.broker.partitions.partition import Partition
from fencepost.broker.transactions.state import Transactions
from fencepost.protocol import messages as m
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    NO_TIMESTAMP,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from fencepost.protocol.version import VERSION

KnownTransactions = set[tuple[int, TopicPartition]]


class PartitionStatus(NamedTuple):
    """One led partition."""

    partition: Partition
    hanging: int  # open transactions that no coordinator knows
    is_late: bool

    @property
    def stable_lag(self) -> int:
        """How far the last stable offset is behind the high watermark (Kafka: LastStableOffsetLag)."""
        return self.partition.high_watermark - self.partition.last_stable_offset


def partition_statuses(node: Node, now: int) -> dict[TopicPartition, PartitionStatus]:
    # Each of these walks over all logs, so both are done once and not per partition.
    late = frozenset(partitions_with_late_transactions(node, now))
    known = _known_transactions(node)
    return {key: _status(log, known, is_late=key in late) for key, log in sorted(node.logs.items())}


def _status(log: LeaderLog, known: KnownTransactions | None, *, is_late: bool) -> PartitionStatus:
    state = log.partition
    producer_ids = state.open_transactions.values()
    hanging = 0 if known is None else sum((each, state.key) not in known for each in producer_ids)
    return PartitionStatus(state, hanging, is_late)


def _known_transactions(node: Node) -> KnownTransactions | None:
    """The producer id and the partitions of each unfinished transaction. None if a coordinator is missing."""
    topic = node.cluster.topics.get(TRANSACTION_STATE_TOPIC)
    logs = node.coordinator_logs(Transactions)
    # The transactions of the missing ones would all look as if no coordinator knew them.
    if topic is not None and len(logs) < len(topic.leaders):
        return None
    return {
        (record.producer_id, key)
        for log in logs
        for record in log.coordinator.records.values()
        if record.state.is_open
        for key in record.partitions
    }


def unserved(node: Node) -> list[TopicPartition]:
    """The partitions that this node should lead and does not: their logs are damaged, or cannot be read."""
    return sorted(
        key
        for name, topic in node.cluster.topics.items()
        for number, leader in topic.leaders.items()
        if leader.node_id == node.settings.node_id and (key := TopicPartition(name, number)) not in node.logs
    )


def transactions_by_state(node: Node) -> Counter[str]:
    """How many transactional ids are in each state."""
    return Counter(
        record.state.title
        for log in node.coordinator_logs(Transactions)
        for record in log.coordinator.records.values()
    )


def groups_by_state(node: Node, now: int) -> Counter[str]:
    """How many groups are in each state."""
    return Counter(
        group.state.title
        for log in node.coordinator_logs(Groups)
        for group_id in group_ids(log.coordinator)
        if (group := log.coordinator.any_group(group_id, now=now)) is not None
    )


def broker_status(node: Node, request: m.BrokerStatus, to: ReplyTo, now: int) -> None:
    """What the node knows now. It promises nothing, so it does not wait for durability. The server adds what
    it has counted (`with_counts`).
    """
    statuses = partition_statuses(node, now)
    of_topics: dict[str, list[PartitionStatus]] = {}
    for key, found in statuses.items():
        if key.topic == CLUSTER_METADATA_TOPIC:
            continue  # a log of the controller, and not a topic for Kafka's tools
        of_topics.setdefault(key.topic, []).append(found)
    body = m.BrokerStatusReply(
        version=VERSION,
        node_id=node.settings.node_id,
        now_ms=now,
        started_ms=now,
        transaction_version=node.settings.transaction_version.number,
        partition_verification=node.settings.partition_verification,
        fixes_off=node.settings.fixes.off,
        broken=tuple(sorted(node.settings.broken)),
        unserved=tuple(unserved(node)),
        topics=tuple(_topic_status(topic, found) for topic, found in of_topics.items()),
        transactions=_counts(transactions_by_state(node)),
        groups=_counts(groups_by_state(node, now)),
        requests=(),
        connections=0,
        disk_problems=(),
        directory="",
    )
    node.outcome.effects.append(Reply(to, body))


def _topic_status(topic: str, statuses: list[PartitionStatus]) -> m.TopicStatus:
    furthest = max(statuses, key=lambda each: each.stable_lag)
    return m.TopicStatus(
        topic=topic,
        partitions=len(statuses),
        sizes=tuple(
            m.PartitionSize(partition=each.partition.key.partition, size_bytes=0) for each in statuses
        ),
        open_transactions=sum(len(each.partition.open_transactions) for each in statuses),
        late=tuple(each.partition.key.partition for each in statuses if each.is_late),
        hanging=tuple(each.partition.key.partition for each in statuses if each.hanging),
        stable_lag=furthest.stable_lag,
        stable_lag_partition=furthest.partition.key.partition,
        oldest_open_ms=oldest_open_ms(statuses),
        records_in=0,
        bytes_in=0,
        bytes_out=0,
    )


def oldest_open_ms(statuses: Iterable[PartitionStatus]) -> int:
    """When the oldest open transaction of these partitions last wrote; -1 if none is open."""
    times = [partition.oldest_open_timestamp(each.partition) for each in statuses]
    return min((at_ms for at_ms in times if at_ms != NO_TIMESTAMP), default=NO_TIMESTAMP)


def with_counts(
    body: m.BrokerStatusReply,
    counters: Counters,
    *,
    directory: str,
    sizes: Mapping[TopicPartition, int],
    connections: int,
) -> m.BrokerStatusReply:
    """The status, its logs, and what the server has counted since it started."""
    topics = [
        attrs.evolve(
            topic,
            sizes=tuple(
                # A log is opened when it is first written.
                attrs.evolve(each, size_bytes=sizes.get(TopicPartition(topic.topic, each.partition), 0))
                for each in topic.sizes
            ),
            records_in=counted.records_in,
            bytes_in=counted.bytes_in,
            bytes_out=counted.bytes_out,
        )
        for topic in body.topics
        for counted in (counters.topics.get(topic.topic, NOTHING),)
    ]
    return attrs.evolve(
        body,
        started_ms=counters.started_ms,
        topics=tuple(topics),
        requests=tuple(_request_status(kind, counts) for kind, counts in counters.requests.items()),
        connections=connections,
        disk_problems=tuple(
            m.DiskProblem(at_ms=at_ms, text=text) for text, at_ms in counters.last_disk_problems.items()
        ),
        directory=directory,
    )


def _request_status(kind: type[m.Request], counts: RequestCounts) -> m.RequestStatus:
    took = counts.durations
    return m.RequestStatus(
        api=kind.__name__,
        count=took.count,
        errors=counts.errors.total(),
        total_us=round(took.total_ms * 1_000),
    )


def _counts(found: Counter[str]) -> tuple[m.StateCount, ...]:
    return tuple(m.StateCount(state=state, count=count) for state, count in sorted(found.items()))
