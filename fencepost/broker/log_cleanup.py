"""When logs lose old records: retention deletes the oldest segments, compaction keeps the latest of each key.

Rule: only durable records are deleted, and only records below the last stable offset are compacted. The
host knows the segments and picks among them (`Journal.deletable_before`, `plan_cleaning`); the log's state
does not change.
"""

# Kafka has two threads for this, LogManager.cleanupLogs every log.retention.check.interval.ms and the log
# cleaner every log.cleaner.backoff.ms. Here both are scans of the node (expiration.py). Kafka never compacts
# an active segment. But a start reads the logs of coordinators, all of them in full. So the host also has
# them compacted after every MiB that was written to them, and then rolls active segments that are not small.
# A segment for every 16 KiB would cost a busy broker more than the compaction: a new one takes several files.

from __future__ import annotations

from fencepost.broker.cluster.handlers import shorten_log
from fencepost.broker.contract import CleanLog, ExpireLog
from fencepost.broker.groups.state import Groups
from fencepost.broker.leader_log import LeaderLog
from fencepost.broker.log_config import LogConfig
from fencepost.broker.node import Node
from fencepost.broker.transactions.state import Transactions
from fencepost.journal.cleaning import CleaningRules


def expire_logs(node: Node, now: int) -> None:
    """Let the host apply retention.ms and retention.bytes to each log."""
    for key, log in node.logs.items():
        config = node.log_config(key.topic)
        if config.is_deleted:
            node.outcome.effects.append(
                ExpireLog(
                    partition=key,
                    before=log.partition.high_watermark,
                    retention_ms=config.retention_ms,
                    retention_bytes=config.retention_bytes,
                )
            )


def clean_logs(node: Node, now: int) -> None:
    """Let the host compact what is dirty, after a snapshot of the metadata if one is due."""
    shorten_log(node, now)
    for log in node.logs.values():
        config = node.log_config(log.partition.key.topic)
        if config.is_compacted:
            node.outcome.effects.append(_order_to_clean(log, config, now))


def orders_to_clean_coordinators(node: Node, now: int) -> list[CleanLog]:
    logs = [log for kind in (Transactions, Groups) for log in node.coordinator_logs(kind)]
    return [_order_to_clean(log, node.log_config(log.partition.key.topic), now) for log in logs]


def _order_to_clean(log: LeaderLog, config: LogConfig, now: int) -> CleanLog:
    state = log.partition
    rules = CleaningRules(
        now=now,
        before=state.last_stable_offset,
        producers=frozenset(state.producers),
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        delete_retention_ms=config.delete_retention_ms,
        is_deleted=config.is_deleted,
    )
    return CleanLog(partition=state.key, active_bytes_max=config.active_bytes_max, rules=rules)
