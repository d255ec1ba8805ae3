"""How a decision of a transaction coordinator reaches its log: the one way to write `__transaction_state`.

Rule: until its record is durable, a transactional id is pending, and no other record is decided for it.
"""

from __future__ import annotations

from fencepost.broker.leader_log import TransactionLog
from fencepost.broker.node import Node
from fencepost.broker.transactions import state as transactions
from fencepost.broker.transactions.state import TransactionDecision
from fencepost.broker.transactions.tables import ONGOING
from fencepost.protocol.transaction_log import TransactionRecord, transaction_batch


def carry_out(node: Node, log: TransactionLog, decision: TransactionDecision, now: int) -> None:
    """Carry out a decision: note and record now, effects when the record is durable.

    `Node.after` holds them back, and `Node.became_durable` releases them.
    """
    if decision.note is not None:
        transactions.take_note(log.coordinator, decision.note)
    for name, record in decision.entries:
        write_record(node, log, name, record, now)
    node.after(log, decision.effects)


def write_record(
    node: Node, log: TransactionLog, name: str, record: TransactionRecord | None, now: int
) -> None:
    """Append the next record of an id (None: its tombstone); until it is durable, the id is pending."""
    state, ids = log.coordinator, node.producer_ids
    if record is not None:
        # A decision is offered a fresh producer id and need not use it; only its record shows whether it did.
        if ids.next_id in (record.producer_id, record.next_producer_id) and not ids.is_empty:
            node.use_producer_id()
        if not node.settings.persists_other_ids:
            transactions.remember_other_ids(state, name, record)
            record = transactions.without_other_ids(record)
    entries = ((name, record),)
    header = node.append(log, transaction_batch(name, record, timestamp=now), entries)
    # Even if a write is durable at once: Durable, a later input, ends the wait (`clear_pending`).
    state.pending[name] = header.next_offset
    if record is not None and record.state is ONGOING:
        schedule_scan(node, state.deadlines[name], now)


def schedule_scan(node: Node, due_ms: int, now: int) -> None:
    """Schedule the first scan after a deadline. Scans are a fixed interval apart, as in Kafka."""
    interval = node.settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
    node.wake_at((max(due_ms, now) // interval + 1) * interval)
