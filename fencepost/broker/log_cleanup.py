"""When logs lose old records: retention deletes the oldest segments, compaction keeps the latest of each key.

Rule: only durable records are deleted, and only records below the last stable offset are compacted. The
host knows the segments and picks among them (`Journal.deletable_before`, `plan_cleaning`); the log's state
does not change.
"""

# Kafka has two threads for this, LogManager.cleanupLogs every log.retention.check.interval.ms and the log
# cleaner every log.cleaner.backoff.ms. Here both are scans of the node (expiration.py). A compacted log is
# also looked at when a segment of it is full: the logs of coordinators must not grow until the next scan,
# since a start reads all of them.

from __future__ import annotations

from fencepost.broker.contract import CleanLog, ExpireLog
from fencepost.broker.node import LeaderLog, Node
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
    """Let the host compact what is dirty."""
    for log in node.logs.values():
        order = order_to_clean(node, log, now)
        if order is not None:
            node.outcome.effects.append(order)


def order_to_clean(node: Node, log: LeaderLog, now: int) -> CleanLog | None:
    """How this log may be compacted now, None if it never is."""
    state = log.partition
    config = node.log_config(state.key.topic)
    if not config.is_compacted:
        return None
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
    return CleanLog(partition=state.key, rules=rules)
