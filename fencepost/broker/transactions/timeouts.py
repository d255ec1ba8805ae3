"""Timeouts: the coordinator aborts a transaction that has been open for longer than transaction.timeout.ms.

Rule: a timeout ends a transaction as EndTxn does (end_txn.py), and also fences its producer.
"""

from __future__ import annotations

from fencepost.broker.contract import Decision
from fencepost.broker.leader_log import TransactionLog
from fencepost.broker.node import Node
from fencepost.broker.transactions import end_txn
from fencepost.broker.transactions import state as transactions
from fencepost.broker.transactions.state import Transactions
from fencepost.broker.transactions.writes import carry_out, schedule_scan


def schedule_scans(node: Node, state: Transactions, now: int) -> None:
    """Schedule the first scan after the earliest deadline."""
    if state.deadlines:
        schedule_scan(node, min(state.deadlines.values()), now)


def abort_timed_out(node: Node, now: int) -> None:
    """Abort transactions that exceeded their timeout."""
    for log in node.coordinator_logs(Transactions):
        for name in transactions.timed_out(log.coordinator, now=now):
            with node.contained():
                _abort_one(node, log, name, now)
        schedule_scans(node, log.coordinator, now)


def _abort_one(node: Node, log: TransactionLog, name: str, now: int) -> None:
    state, settings, fresh = log.coordinator, node.settings, node.fresh_producer_id()
    decided = end_txn.decide_timeout(state, name, now=now, fresh_producer_id=fresh, settings=settings)
    # It is refused if the epochs are used up, and no producer id is left or the fix of KAFKA-19367 is off.
    # The next scan tries again.
    if isinstance(decided, Decision):
        carry_out(node, log, decided, now)
