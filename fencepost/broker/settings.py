"""The settings of a node, with Kafka's names and defaults where Kafka has them.

Rule: one frozen value per node; no core reads an environment variable or a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import attrs

from fencepost.broker.check_tables import Check, Looked, in_force
from fencepost.broker.config_def import COMPACT, DELETE
from fencepost.broker.kafka_fixes import ALL_FIXES, KafkaFixes
from fencepost.broker.log_config import (
    INTERNAL_ACTIVE_BYTES_MAX,
    INTERNAL_DELETE_RETENTION_MS,
    UNLIMITED,
    LogConfig,
)
from fencepost.broker.partitions import checks
from fencepost.broker.partitions.checks import MarkerCheck, WriteCheck
from fencepost.broker.transactions.tables import NEWEST, TransactionVersion
from fencepost.journal.journal import SEGMENT_BYTES, SEGMENT_MS
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    INT32_MAX,
    INT64_MAX,
    TRANSACTION_STATE_TOPIC,
)

# A request of 100 MiB, and what its header takes when it is decoded (memory.py); a batch is no larger.
QUEUED_BYTES_MIN: Final = 144 << 20
PROTECTIONS: Final = frozenset({"fencing", "dedup"})


def _known_protections(_: object, __: object, broken: frozenset[str]) -> None:
    if unknown := broken - PROTECTIONS:
        raise ValueError(
            f"unknown protection {', '.join(sorted(unknown))}; "
            f"the protections are {', '.join(sorted(PROTECTIONS))}"
        )


def _own_id(settings: NodeSettings) -> int:
    return settings.node_id


def _holds_the_largest(_: object, __: object, size: int) -> None:
    if size < QUEUED_BYTES_MIN:
        raise ValueError(
            f"it must be at least {QUEUED_BYTES_MIN}, for the largest request or batch, not {size}"
        )


@attrs.frozen(kw_only=True)
class ConnectionSettings:
    """What the clients of a broker may take together. By default Kafka limits neither their number nor their
    bytes.
    """

    # None: CONNECTIONS_MAX, or half of the file descriptors if that is less; the logs need the other half.
    max_connections: int | None = None
    connections_max_idle_ms: int = 600_000
    queued_max_request_bytes: int = attrs.field(default=256 << 20, validator=_holds_the_largest)
    # Kafka has none: it sends records from their files.
    queued_max_response_bytes: int = attrs.field(default=256 << 20, validator=_holds_the_largest)


@attrs.frozen(kw_only=True)
class NodeSettings:
    """Settings of one node. `broken` turns protections off, to show the anomalies that they prevent."""

    node_id: int = 1
    controller_id: int = attrs.field(
        default=attrs.Factory(_own_id, takes_self=True)
    )  # who leads the metadata
    host: str = "127.0.0.1"
    port: int = 0
    cluster_id: str = "fencepost"
    # As Kafka's settings write them. A node of a broker process only shows them, and others have none.
    listeners: str | None = None
    advertised_listeners: str | None = None
    log_dirs: str | None = None
    transaction_version: TransactionVersion = NEWEST  # transaction.version, as finalized in the cluster
    partition_verification: bool = True  # transaction.partition.verification.enable (KIP-890 part 1)
    broken: frozenset[str] = attrs.field(factory=frozenset[str], validator=_known_protections)
    fixes: KafkaFixes = ALL_FIXES  # the Kafka fixes that this broker has
    auto_create_topics_enable: bool = True  # for Kafka's clients; ours never ask for it
    num_partitions: int = 1  # of a topic that is created without a number
    # Ids are hashed to them; once the topic exists, its own number counts (`Node.coordinators`).
    transaction_state_log_num_partitions: int = 50
    offsets_topic_num_partitions: int = 50
    message_max_bytes: int = 1_048_588  # message.max.bytes: 1 MiB and 12 bytes (Records.LOG_OVERHEAD)
    log_message_timestamp_after_max_ms: int = 3_600_000  # records beyond it would open a segment per batch
    log_message_timestamp_before_max_ms: int = INT64_MAX
    transaction_max_timeout_ms: int = 900_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000
    offsets_retention_minutes: int = 10_080  # a week
    offsets_retention_check_interval_ms: int = 600_000
    log_cleanup_policy: tuple[str, ...] = (DELETE,)
    log_segment_bytes: int = SEGMENT_BYTES
    log_roll_ms: int = SEGMENT_MS
    log_retention_ms: int = 604_800_000  # a week
    log_retention_bytes: int = UNLIMITED
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_min_cleanable_ratio: float = 0.5
    log_cleaner_min_compaction_lag_ms: int = 0
    log_cleaner_max_compaction_lag_ms: int = INT64_MAX
    log_cleaner_delete_retention_ms: int = 86_400_000
    transaction_state_log_segment_bytes: int = 1 << 20  # Kafka has 100 MiB, and only rolls a full one
    offsets_topic_segment_bytes: int = 1 << 20
    # Not Kafka's: after this many bytes in coordinators' logs, they are compacted before the backoff is over.
    # This bounds what a start reads, however many transactions there were.
    coordinator_logs_dirty_bytes_max: int = 1 << 20
    metadata_records_between_snapshots: int = 3_000
    reelection_backoff_ms: int = 1_000  # a disk that failed gets this long before its log is read again
    controller_quorum_retry_backoff_ms: int = 20  # controller.quorum.retry.backoff.ms
    metadata_max_wait_ms: int = 500  # KafkaRaftClient.MAX_FETCH_WAIT_MS: how long a metadata Fetch is parked
    group_initial_rebalance_delay_ms: int = 3_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = INT32_MAX
    group_new_member_join_timeout_ms: int = 300_000  # CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS, never set
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_assignment_interval_ms: int = 1_000
    group_consumer_max_size: int = INT32_MAX
    marker_retry_backoff_ms: int = 100  # retry.backoff.ms of TransactionMarkerChannelManager's sender

    def can_store_transactions(self, version: TransactionVersion) -> bool:
        """Whether the transaction log has records for transactions of clients of this version."""
        return version.client_version == 0 or self.transaction_version.has_flexible_records

    @cached_property
    def persists_other_producer_ids(self) -> bool:
        """Whether the transaction log stores the producer ids before and after a rotation."""
        return (
            self.transaction_version.has_flexible_records
            and self.fixes.persists_previous_and_next_producer_id
        )

    # Tables without the rows that are off are built once, so that the hot path does not look at `broken` or
    # `fixes`.

    @cached_property
    def batch_checks(self) -> tuple[WriteCheck, ...]:
        """The checks for clients' batches."""
        return self._in_force(checks.CHECKS)

    @cached_property
    def checks_before_asking(self) -> tuple[WriteCheck, ...]:
        """The checks for a transactional write before the coordinator verifies it."""
        return self._in_force(checks.BEFORE_ASKING)

    @cached_property
    def offset_checks(self) -> tuple[WriteCheck, ...]:
        """The checks for offsets that a transaction commits."""
        return self._in_force(checks.OFFSET_CHECKS)

    @cached_property
    def marker_checks(self) -> tuple[MarkerCheck, ...]:
        """The checks for coordinators' markers."""
        return self._in_force(checks.MARKER_CHECKS)

    def _in_force(self, rows: tuple[Check[*Looked], ...]) -> tuple[Check[*Looked], ...]:
        return in_force(rows, broken=self.broken, fixes=self.fixes)

    @cached_property
    def log_config(self) -> LogConfig:
        """How logs are kept if their topic has no settings of its own."""
        return LogConfig(
            cleanup_policy=self.log_cleanup_policy,
            segment_bytes=self.log_segment_bytes,
            segment_ms=self.log_roll_ms,
            retention_ms=self.log_retention_ms,
            retention_bytes=self.log_retention_bytes,
            delete_retention_ms=self.log_cleaner_delete_retention_ms,
            min_cleanable_dirty_ratio=self.log_cleaner_min_cleanable_ratio,
            min_compaction_lag_ms=self.log_cleaner_min_compaction_lag_ms,
            max_compaction_lag_ms=self.log_cleaner_max_compaction_lag_ms,
        )

    @cached_property
    def internal_log_configs(self) -> Mapping[str, LogConfig]:
        """How logs of internal topics are kept. For `__cluster_metadata`, see cluster/controller.py."""
        compacted = attrs.evolve(
            self.log_config,
            cleanup_policy=(COMPACT,),
            active_bytes_max=INTERNAL_ACTIVE_BYTES_MAX,
            delete_retention_ms=min(self.log_cleaner_delete_retention_ms, INTERNAL_DELETE_RETENTION_MS),
        )
        return {
            CLUSTER_METADATA_TOPIC: attrs.evolve(
                self.log_config, cleanup_policy=(), segment_bytes=SEGMENT_BYTES, segment_ms=SEGMENT_MS
            ),
            TRANSACTION_STATE_TOPIC: attrs.evolve(
                compacted, segment_bytes=self.transaction_state_log_segment_bytes
            ),
            CONSUMER_OFFSETS_TOPIC: attrs.evolve(compacted, segment_bytes=self.offsets_topic_segment_bytes),
        }
