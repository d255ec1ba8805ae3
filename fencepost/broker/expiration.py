"""Expiration of unused state: transactional ids, producers, group offsets.

Rule: state that an unfinished transaction needs never expires. Timeouts of transactions are in
`transactions/handlers.py`.
"""

# Ids, offsets and groups expire by tombstones in their logs, so that every later leader forgets them, too.
# Producers expire in memory: each leader derives this from the timestamps in its log (ProducerStateManager).
# Scans are a fixed interval apart, as KafkaScheduler runs them, so state lives up to one interval longer than
# its limit.

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final

from fencepost.broker.contract import Warn
from fencepost.broker.groups.offsets import forget_group, forget_offsets
from fencepost.broker.groups.state import Groups, expired_offsets, group_ids, is_over
from fencepost.broker.leader_log import GroupLog, LeaderLog
from fencepost.broker.log_cleanup import clean_logs, expire_logs
from fencepost.broker.node import Node
from fencepost.broker.partitions import partition
from fencepost.broker.purgatory import Scan
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.handlers import write_record
from fencepost.broker.transactions.state import Transactions
from fencepost.protocol.terms import LATE_TRANSACTION_BUFFER_MS, MINUTE_MS, NO_TIMESTAMP, TopicPartition


def start(node: Node, log: LeaderLog, now: int) -> None:
    """Forget producers that expired while this node did not lead the log, and schedule the scans."""
    # A snapshot or an old log brings back producers that have expired since.
    _forget_producers(node, log, now)
    for scan in Scan:
        _schedule(node, scan, now)


def scan_if_due(node: Node, now: int) -> None:
    """Run the scans that are due, and schedule the next ones."""
    for scan, due_ms in list(node.scans_at_ms.items()):
        if due_ms <= now:
            del node.scans_at_ms[scan]
            with node.contained():
                _SCANS[scan][0](node, now)
            _schedule(node, scan, now)
        else:
            node.wake_at(due_ms)


def _schedule(node: Node, scan: Scan, now: int) -> None:
    interval = _SCANS[scan][1](node.settings)
    # A log may hold records that are too old already: a start leaves an interval to read or copy them.
    first = now + interval if scan is Scan.LOGS else (now // interval + 1) * interval
    node.wake_at(node.scans_at_ms.setdefault(scan, first))


def _expire_transactional_ids(node: Node, now: int) -> None:
    before_ms = now - node.settings.transactional_id_expiration_ms
    for log in node.coordinator_logs(Transactions):
        for name in expired(log.coordinator, before_ms=before_ms):
            write_record(node, log, name, None, now)


def expired(state: Transactions, *, before_ms: int) -> list[str]:
    """Transactional ids without an update since `before_ms` and without an unfinished transaction; a busy id
    is left for the next scan (TransactionStateManager.removeExpiredTransactionalIds).
    """
    return [
        name
        for name, record in state.records.items()
        if not record.state.is_open and record.update_ms <= before_ms and name not in state.pending
    ]


def _expire_producers(node: Node, now: int) -> None:
    for log in node.logs.values():
        _forget_producers(node, log, now)
    # A transaction that outlived transaction.max.timeout.ms probably hangs: no coordinator will end it, and
    # the LSO stays before it. The broker cannot decide it, but an operator can (KIP-664).
    late = partitions_with_late_transactions(node, now)
    if late:
        node.outcome.effects.append(
            Warn(
                f"PartitionsWithLateTransactionsCount is {len(late)}: the oldest transaction in {late[0]} "
                "has been open for longer than transaction.max.timeout.ms allows; run `fencepost "
                f"transactions find-hanging --broker-id {node.settings.node_id}` to see whether it hangs"
            )
        )


def _forget_producers(node: Node, log: LeaderLog, now: int) -> None:
    before_ms = now - node.settings.producer_id_expiration_ms
    partition.forget_expired(log.partition, before_ms=before_ms)


def _expire_offsets(node: Node, now: int) -> None:
    for log in node.coordinator_logs(Groups):
        for group_id in group_ids(log.coordinator):
            _expire_offsets_of(node, log, group_id, now)


def _expire_offsets_of(node: Node, log: GroupLog, group_id: str, now: int) -> None:
    state = log.coordinator
    group = state.any_group(group_id, now=now)
    assert group is not None, "a group with a record is there"
    retention_ms = node.settings.offsets_retention_minutes * MINUTE_MS
    keys = expired_offsets(state, group, retention_ms=retention_ms, now=now)
    # A group that loses its last offsets goes with them, unless it has members or a transaction moves its
    # offsets.
    if is_over(state, group, keys):
        forget_group(node, log, group_id, now)
    elif keys:
        forget_offsets(node, log, keys, now)


def partitions_with_late_transactions(node: Node, now: int) -> list[TopicPartition]:
    """Partitions whose oldest open transaction outlived every timeout. Their number is Kafka's metric
    PartitionsWithLateTransactionsCount.
    """
    limit = node.settings.transaction_max_timeout_ms + LATE_TRANSACTION_BUFFER_MS
    return sorted(key for key, log in node.logs.items() if _is_late(log, before_ms=now - limit))


def _is_late(log: LeaderLog, *, before_ms: int) -> bool:
    oldest_ms = partition.oldest_open_timestamp(log.partition)
    return oldest_ms != NO_TIMESTAMP and oldest_ms < before_ms


# What each scan does, and the setting for the interval between two.
_SCANS: Final[dict[Scan, tuple[Callable[[Node, int], None], Callable[[NodeSettings], int]]]] = {
    Scan.TRANSACTIONAL_IDS: (
        _expire_transactional_ids,
        attrgetter("transaction_remove_expired_transaction_cleanup_interval_ms"),
    ),
    Scan.PRODUCER_IDS: (_expire_producers, attrgetter("producer_id_expiration_check_interval_ms")),
    Scan.OFFSETS: (_expire_offsets, attrgetter("offsets_retention_check_interval_ms")),
    Scan.LOGS: (expire_logs, attrgetter("log_retention_check_interval_ms")),
    Scan.DIRTY_LOGS: (clean_logs, attrgetter("log_cleaner_backoff_ms")),
}
