"""The metrics of a broker for Prometheus, under Kafka's names where Kafka has them.

Rule: the table `METRICS` is what is served and what docs/operations.md shows. A scrape reads the counters and
walks over the state; between scrapes a metric costs nothing that the broker does not count anyway.
"""

# Kafka has no Prometheus names of its own. These follow from its MBeans by the rule that the examples of the
# JMX exporter made common: kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec is
# kafka_server_BrokerTopicMetrics_BytesIn_total, and its further keys are labels.

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, Final

import attrs
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from fencepost.broker.counters import BUCKETS_MS, Counters, Durations, TopicCounts
from fencepost.broker.node import Node
from fencepost.broker.status import (
    PartitionStatus,
    groups_by_state,
    oldest_open_ms,
    transactions_by_state,
    unserved,
)
from fencepost.protocol.terms import (
    INTERNAL_TOPICS,
    NO_TIMESTAMP,
    GroupState,
    TopicPartition,
    TransactionState,
)
from fencepost.protocol.version import VERSION

Samples = Iterable[tuple[tuple[str, ...], Any]]
"""Label values, and the value: a number, or Durations for a histogram."""


@attrs.frozen(kw_only=True)
class Scrape:
    """What a broker shows to one scrape."""

    node: Node
    counters: Counters
    now_ms: int
    sizes: dict[TopicPartition, int]
    connections: int
    connections_made: int
    partitions: dict[TopicPartition, PartitionStatus]

    def of_partitions(self, value: Callable[[PartitionStatus], int]) -> Samples:
        return [((key.topic, str(key.partition)), value(each)) for key, each in self.partitions.items()]

    def of_topics(self, value: Callable[[TopicCounts], int]) -> Samples:
        """A counter of each topic that exists."""
        topics = self.node.cluster.topics
        return [((name,), value(counts)) for name, counts in self.counters.topics.items() if name in topics]


def _one(value: object) -> Samples:
    return [((), value)]


# --- the table ----------------------------------------------------------------------------------------------


@attrs.frozen
class MetricRow:
    kind: type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]
    name: str
    text: str
    labels: tuple[str, ...]
    samples: Callable[[Scrape], Samples]

    @property
    def shown_name(self) -> str:
        """The name as Prometheus stores it."""
        return f"{self.name}_total" if self.kind is CounterMetricFamily else self.name

    @property
    def type_name(self) -> str:
        """Counter, gauge or histogram."""
        return self.kind.__name__.removesuffix("MetricFamily").lower()

    def family(self, scrape: Scrape) -> Metric:
        made = self.kind(self.name, self.text, labels=self.labels)
        for labels, value in self.samples(scrape):
            if isinstance(made, HistogramMetricFamily):
                made.add_metric(labels, _buckets(value), value.total_ms)
            else:
                made.add_metric(labels, value)
        return made


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    bounds = [*map(str, BUCKETS_MS), "+Inf"]
    return list(zip(bounds, accumulate(durations.buckets), strict=True))


def _topic_counter(name: str, text: str, value: Callable[[TopicCounts], int]) -> MetricRow:
    full_name = f"kafka_server_BrokerTopicMetrics_{name}"
    return MetricRow(CounterMetricFamily, full_name, text, ("topic",), lambda scrape: scrape.of_topics(value))


def _log_gauge(name: str, text: str, value: Callable[[PartitionStatus], int]) -> MetricRow:
    labels = ("topic", "partition")
    return MetricRow(GaugeMetricFamily, name, text, labels, lambda scrape: scrape.of_partitions(value))


def _gauge(name: str, text: str, value: Callable[[Scrape], float]) -> MetricRow:
    return MetricRow(GaugeMetricFamily, name, text, (), lambda scrape: _one(value(scrape)))


def _counter(name: str, text: str, value: Callable[[Scrape], int]) -> MetricRow:
    return MetricRow(CounterMetricFamily, name, text, (), lambda scrape: _one(value(scrape)))


def _requests(scrape: Scrape) -> Samples:
    return [((kind.__name__,), each.durations.count) for kind, each in scrape.counters.requests.items()]


def _request_errors(scrape: Scrape) -> Samples:
    for kind, each in scrape.counters.requests.items():
        for error, count in each.errors.items():
            yield (kind.__name__, error.name), count


def _request_times(scrape: Scrape) -> Samples:
    return [((kind.__name__,), each.durations) for kind, each in scrape.counters.requests.items()]


def _log_sizes(scrape: Scrape) -> Samples:
    return [((key.topic, str(key.partition)), scrape.sizes.get(key, 0)) for key in scrape.partitions]


def _transactions(scrape: Scrape) -> Samples:
    found = transactions_by_state(scrape.node)
    return [((state.title,), found[state.title]) for state in TransactionState]


def _groups(scrape: Scrape) -> Samples:
    found = groups_by_state(scrape.node, scrape.now_ms)
    return [((state.title,), found[state.title]) for state in GroupState if state is not GroupState.DEAD]


def _oldest_open_seconds(scrape: Scrape) -> float:
    at_ms = oldest_open_ms(scrape.partitions.values())
    return 0.0 if at_ms == NO_TIMESTAMP else max(0, scrape.now_ms - at_ms) / 1_000


def _build(scrape: Scrape) -> Samples:
    settings = scrape.node.settings
    off = ",".join((*settings.fixes.off, *sorted(settings.broken)))
    return [((VERSION, str(settings.transaction_version.number), off), 1)]


METRICS: Final[tuple[MetricRow, ...]] = (
    _topic_counter("MessagesIn", "Records that were written, without markers.", lambda each: each.records_in),
    _topic_counter(
        "BytesIn", "Bytes of batches that were written, markers included.", lambda each: each.bytes_in
    ),
    _topic_counter("BytesOut", "Bytes of batches that clients read.", lambda each: each.bytes_out),
    _topic_counter(
        "TotalProduceRequests", "Produce requests, counted once per partition.",
        lambda each: each.produce_requests,
    ),
    _topic_counter(
        "FailedProduceRequests", "Produce requests that got an error, counted once per partition.",
        lambda each: each.failed_produce_requests,
    ),
    _topic_counter(
        "TotalFetchRequests", "Fetch requests, counted once per partition.", lambda each: each.fetch_requests
    ),
    _topic_counter(
        "FailedFetchRequests", "Fetch requests that got an error, counted once per partition.",
        lambda each: each.failed_fetch_requests,
    ),
    MetricRow(
        CounterMetricFamily, "kafka_network_RequestMetrics_Requests", "Requests that were answered.",
        ("request",), _requests,
    ),
    MetricRow(
        CounterMetricFamily, "kafka_network_RequestMetrics_Errors",
        "Errors in replies: of a whole request, or of one of its parts.", ("request", "error"),
        _request_errors,
    ),
    MetricRow(
        HistogramMetricFamily, "kafka_network_RequestMetrics_TotalTimeMs",
        "Time from the arrival of a request to its reply; for a Fetch, including its wait for records.",
        ("request",), _request_times,
    ),
    _gauge(
        "kafka_server_socket_server_metrics_connection_count", "Open connections.",
        lambda scrape: scrape.connections,
    ),
    _counter(
        "kafka_server_socket_server_metrics_connection_creation", "Connections that were accepted.",
        lambda scrape: scrape.connections_made,
    ),
    _counter(
        "fencepost_connections_refused",
        "Connections that were refused, or closed because they violated a protocol.",
        lambda scrape: scrape.counters.refused_connections,
    ),
    MetricRow(
        GaugeMetricFamily, "kafka_log_Log_Size", "Bytes of the log.", ("topic", "partition"), _log_sizes
    ),
    _log_gauge(
        "kafka_log_Log_LogStartOffset", "The first offset of the log.",
        lambda each: each.partition.log_start_offset,
    ),
    _log_gauge(
        "kafka_log_Log_LogEndOffset", "The next offset of the log.",
        lambda each: each.partition.log_end_offset,
    ),
    _log_gauge(
        "kafka_cluster_Partition_LastStableOffsetLag",
        "How far the last stable offset, where read_committed stops, is behind the high watermark.",
        lambda each: each.stable_lag,
    ),
    MetricRow(
        HistogramMetricFamily, "kafka_log_LogFlushStats_LogFlushRateAndTimeMs", "Syncs of logs to the disk.",
        (), lambda scrape: _one(scrape.counters.syncs),
    ),
    _gauge(
        "kafka_server_ReplicaManager_PartitionCount", "Partitions that the broker leads.",
        lambda scrape: len(scrape.partitions),
    ),
    _gauge(
        "kafka_log_LogManager_OfflineLogCount",
        "Partitions that the broker should lead and cannot: their logs are damaged or unreadable.",
        lambda scrape: len(unserved(scrape.node)),
    ),
    _counter(
        "fencepost_disk_problems", "How many times a file could not be read or written.",
        lambda scrape: scrape.counters.disk_problems,
    ),
    _gauge(
        "kafka_server_ReplicaManager_ProducerIdCount", "Producers that the partitions remember.",
        lambda scrape: sum(len(each.partition.producers) for each in scrape.partitions.values()),
    ),
    _gauge(
        "kafka_server_ReplicaManager_PartitionsWithLateTransactionsCount",
        "Partitions whose oldest open transaction last wrote more than "
        "transaction.max.timeout.ms plus five minutes ago.",
        lambda scrape: sum(each.is_late for each in scrape.partitions.values()),
    ),
    _gauge(
        "fencepost_open_transactions",
        "Open transactions, counted in each partition that they have written to.",
        lambda scrape: sum(len(each.partition.open_transactions) for each in scrape.partitions.values()),
    ),
    _gauge(
        "fencepost_hanging_transactions",
        "Open transactions that no coordinator knows, counted in each partition.",
        lambda scrape: sum(each.hanging for each in scrape.partitions.values()),
    ),
    _gauge(
        "fencepost_oldest_open_transaction_seconds",
        "The time since the oldest open transaction last wrote; 0 if none is open.", _oldest_open_seconds,
    ),
    MetricRow(
        GaugeMetricFamily, "fencepost_transactional_ids",
        "Transactional ids by the state of their transaction.", ("state",), _transactions,
    ),
    MetricRow(
        GaugeMetricFamily, "kafka_coordinator_group_GroupMetadataManager_NumGroups", "Groups by state.",
        ("state",), _groups,
    ),
    _gauge(
        "kafka_controller_KafkaController_GlobalTopicCount", "Topics, without internal ones.",
        lambda scrape: len(scrape.node.cluster.topics.keys() - INTERNAL_TOPICS),
    ),
    MetricRow(
        GaugeMetricFamily,
        "fencepost_build_info",
        "Always 1; its labels are the version, the transaction version, and the Kafka fixes that are "
        "switched off.",
        ("version", "transaction_version", "switched_off"),
        _build,
    ),
    _gauge(
        "fencepost_start_time_seconds", "When the broker started, in seconds since 1970.",
        lambda scrape: scrape.counters.started_ms / 1_000,
    ),
)  # fmt: skip


@attrs.frozen
class Families:
    """The metrics of one scrape, as a collector of prometheus_client."""

    families: list[Metric]

    def collect(self) -> list[Metric]:
        return self.families


def families_of(scrape: Scrape) -> Families:
    """All metrics with their samples."""
    return Families([row.family(scrape) for row in METRICS])


def exposition(families: Families) -> bytes:
    """The text format of Prometheus."""
    return generate_latest(families)
