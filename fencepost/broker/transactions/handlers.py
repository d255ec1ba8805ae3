"""The handlers of a transaction coordinator: each gets a decision for its request, and carries it out. So
does the scan for transactions that have been open for longer than transaction.timeout.ms.

Rule: every reply that depends on the coordinator's log, even a refusal, waits until the log is durable as far
as the decision has seen it. Until its record is durable, a transactional id is pending, and no other record
is decided for it.
"""

from __future__ import annotations

from typing import Final

import attrs

from fencepost.broker.check_tables import first_refusal
from fencepost.broker.contract import Decision, Refused, Reply, ReplyTo
from fencepost.broker.leader_log import TransactionLog
from fencepost.broker.node import Node
from fencepost.broker.partitions.checks import has_no_transactions
from fencepost.broker.transactions import state as transactions
from fencepost.broker.transactions.add_partitions import decide_partitions, verify_partitions
from fencepost.broker.transactions.end_txn import NO_PRODUCER_IDS, decide_end, decide_timeout
from fencepost.broker.transactions.init_producer_id import HALF_AN_IDENTITY, decide_identity
from fencepost.broker.transactions.state import TransactionDecision, Transactions
from fencepost.broker.transactions.tables import ONGOING, ClientVersion, TransactionVersion
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TOPIC_NAME_LENGTH_MAX,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    coordinator_partition,
)
from fencepost.protocol.transaction_log import TransactionRecord, transaction_batch

RECORD_TOO_LARGE: Final = Refused(
    ErrorCode.UNKNOWN_SERVER_ERROR,  # as TransactionStateManager.appendTransactionToLog maps it
    "the record of the transaction is larger than max.message.bytes of its topic",
    source="TransactionStateManager.appendTransactionToLog",
)
NOT_COORDINATOR: Final = Refused(
    ErrorCode.NOT_COORDINATOR,
    "this node does not coordinate the transactional id",
    source="TransactionStateManager.getTransactionState",
)
RECORD_RESERVE: Final = 64  # bytes: room for the producer ids that a rotation adds to a later record
PARTITION_SIZE_MAX: Final = TOPIC_NAME_LENGTH_MAX + 16  # bytes, in a record, of a partition and its topic
RECORD_REST_MAX: Final = 2048  # bytes: the batch and its record without partitions, with the longest id


def log_of_id(node: Node, transactional_id: str) -> TransactionLog | Refused:
    """The log of the id's coordinator, if this node is the coordinator."""
    key = transactions.key_of_id(transactional_id, node.coordinator_count(TRANSACTION_STATE_TOPIC))
    return node.coordinator_log(Transactions, key) or NOT_COORDINATOR


def _answer(
    node: Node,
    log: TransactionLog,
    decided: TransactionDecision | Refused,
    to: ReplyTo,
    now: int,
    client_version: ClientVersion,
) -> None:
    """Carry out a decision, or refuse. A refusal waits, too: the record that caused it may not survive."""
    if isinstance(decided, Refused):
        node.note_ruling(to, decided)
        node.after(log, (Reply(to, error=client_version.downgrade(decided.error)),))
    else:
        carry_out(node, log, decided, now)


# --- carrying out: the one way to write `__transaction_state` -----------------------------------------------


def carry_out(node: Node, log: TransactionLog, decision: TransactionDecision, now: int) -> None:
    """Carry out a decision: note and record now, effects when the record is durable.

    `Node.after` holds them back, and `Node.became_durable` releases them.
    """
    if decision.note is not None:
        transactions.take_note(log.coordinator, decision.note)
    for name, record in decision.entries:
        write_record(node, log, name, record, now)
    if decision.effects:
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
        if not node.settings.persists_other_producer_ids:
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


# --- requests --------------------------------------------------------------------------------------------


def init_producer_id(
    node: Node, request: m.InitProducerId, to: ReplyTo, now: int, client_version: ClientVersion
) -> None:
    """Grant an identity: for a transactional id by its coordinator, otherwise any fresh producer id."""
    # A decision cannot wait for the controller, so it is offered an id before it is known whether it needs
    # one. An id that it does not use is offered again (`write_record`).
    fresh = node.fresh_producer_id()
    if request.transactional_id is None:
        refused = first_refusal((HALF_AN_IDENTITY,), request, node.settings)
        if refused is not None or fresh is None:
            node.reply(to, refused or NO_PRODUCER_IDS)
            return
        # Nothing is written, and nothing waits: the whole block was durable before this node got it.
        node.use_producer_id()
        body = m.InitProducerIdReply(producer_id=fresh, producer_epoch=0)
        node.outcome.effects.append(Reply(to, body))
        return
    log = log_of_id(node, request.transactional_id)
    if isinstance(log, Refused):
        node.reply(to, log)
        return
    decided = decide_identity(
        log.coordinator, request, to=to, now=now, fresh_producer_id=fresh, settings=node.settings
    )
    _answer(node, log, decided, to, now, client_version)


def add_partitions(
    node: Node, request: m.AddPartitionsToTxn, to: ReplyTo, now: int, client_version: ClientVersion
) -> None:
    """From partition leaders on behalf of a producer (KIP-890), or from a client; all partitions or none."""
    # Before the id is looked up, as in KafkaApis.handleAddPartitionsToTxnRequest. One bad partition refuses
    # all; the good ones get OPERATION_NOT_ATTEMPTED.
    problems = [_add_problem(node, key, client_version.transaction_version) for key in request.partitions]
    if any(problems):
        parts = tuple(
            m.PartitionError(
                topic=key.topic, partition=key.partition, error=problem or ErrorCode.OPERATION_NOT_ATTEMPTED
            )
            for key, problem in zip(request.partitions, problems, strict=True)
        )
        node.outcome.effects.append(Reply(to, m.AddPartitionsToTxnReply(partitions=parts)))
        return
    log = log_of_id(node, request.transactional_id)
    if isinstance(log, Refused):
        node.reply(to, log)
        return
    state, settings = log.coordinator, node.settings
    if request.verify_only:
        decided = verify_partitions(state, request, to=to, settings=settings)
    else:
        decided = decide_partitions(
            state, request, to=to, now=now, settings=settings, version=client_version.transaction_version
        )
        decided = _if_it_fits(node, decided)
    _answer(node, log, decided, to, now, client_version)


def _add_problem(node: Node, key: TopicPartition, version: TransactionVersion) -> ErrorCode:
    """Why the partition cannot be added, or NONE. Of the internal topics only `__consumer_offsets` takes part
    in transactions, and only a partition leader adds it this way.
    """
    if key.topic in INTERNAL_TOPICS and (has_no_transactions(key) or not version.adds_implicitly):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    known = node.cluster.leader(key) is not None
    return NO_ERROR if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def add_offsets(
    node: Node, request: m.AddOffsetsToTxn, to: ReplyTo, now: int, client_version: ClientVersion
) -> None:
    """Add the group's partition of `__consumer_offsets`; only clients before version 2 request this."""
    log = log_of_id(node, request.transactional_id)
    if isinstance(log, Refused):
        node.reply(to, log)
        return
    # No check that the partition exists, unlike in `add_partitions`: the topic may be created later, at the
    # latest for the marker (markers.py).
    number = coordinator_partition(request.group_id, node.coordinator_count(CONSUMER_OFFSETS_TOPIC))
    add = m.AddPartitionsToTxn(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        verify_only=False,
        partitions=(TopicPartition(CONSUMER_OFFSETS_TOPIC, number),),
    )
    decided = decide_partitions(
        log.coordinator,
        add,
        to=to,
        now=now,
        settings=node.settings,
        version=client_version.transaction_version,
    )
    if isinstance(decided, Decision):
        decided = attrs.evolve(decided, effects=(Reply(to, m.AddOffsetsToTxnReply()),))
    _answer(node, log, _if_it_fits(node, decided), to, now, client_version)


def _if_it_fits(node: Node, decided: TransactionDecision | Refused) -> TransactionDecision | Refused:
    """The decision to add partitions, unless the record of the transaction becomes too large.

    Only this makes a record larger, so no other decision is refused: a transaction can always be ended.
    """
    if isinstance(decided, Decision):
        for name, record in decided.entries:
            # A record of few partitions need not be encoded to be measured, however long their names are.
            partition_count = 0 if record is None else len(record.partitions)
            if node.is_too_large(RECORD_REST_MAX + PARTITION_SIZE_MAX * partition_count):
                size = len(transaction_batch(name, record, timestamp=0))
                if node.is_too_large(size + RECORD_RESERVE):
                    return RECORD_TOO_LARGE
    return decided


def end_transaction(
    node: Node, request: m.EndTxn, to: ReplyTo, now: int, client_version: ClientVersion
) -> None:
    """Commit or abort. The reply leaves when the decision is durable, before any marker is written."""
    log = log_of_id(node, request.transactional_id)
    if isinstance(log, Refused):
        node.reply(to, log)
        return
    state, settings = log.coordinator, node.settings
    decided = decide_end(
        state,
        request,
        to=to,
        now=now,
        fresh_producer_id=node.fresh_producer_id(),
        settings=settings,
        version=client_version.transaction_version,
    )
    _answer(node, log, decided, to, now, client_version)


# --- timeouts ---------------------------------------------------------------------------------------------


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
    decided = decide_timeout(state, name, now=now, fresh_producer_id=fresh, settings=settings)
    # It is refused if the epochs are used up, and no producer id is left or the fix of KAFKA-19367 is off.
    # The next scan tries again.
    if isinstance(decided, Decision):
        carry_out(node, log, decided, now)
