"""What a node does as transaction coordinator: requests to it, markers to partition leaders, timeouts.

Rule: a decided transaction is finished by whoever coordinates it: markers go to every partition until each
has answered, then COMPLETE_* is written once (TransactionCoordinator, TransactionMarkerChannelManager).
"""

from __future__ import annotations

from typing import Final

import attrs

from fencepost.broker.checks import first_refusal
from fencepost.broker.contract import Answered, Refused, Reply, ReplyTo
from fencepost.broker.node import Node
from fencepost.broker.partitions.produce import has_no_transactions
from fencepost.broker.purgatory import AskedMarkers, Log
from fencepost.broker.transactions import end_txn
from fencepost.broker.transactions import init_producer_id as identities
from fencepost.broker.transactions import state as transactions
from fencepost.broker.transactions.identity_tables import HALF_AN_IDENTITY
from fencepost.broker.transactions.state import PREPARED, RESULT_OF, Decision, Transactions
from fencepost.broker.transactions.tables import ONGOING, ClientVersion, TransactionVersion
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    AddOffsetsToTxn,
    AddOffsetsToTxnReply,
    AddPartitionsToTxn,
    AddPartitionsToTxnReply,
    EndTxn,
    InitProducerId,
    InitProducerIdReply,
    PartitionError,
    PartitionName,
    TransactionMarker,
    WriteTxnMarkers,
    WriteTxnMarkersReply,
)
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    INT64_MAX,
    INTERNAL_TOPICS,
    TopicPartition,
    coordinator_partition,
)
from fencepost.protocol.transaction_log import TransactionRecord

# A leader is not asked again that has written its marker, or says that a newer coordinator or a newer epoch
# owns the transaction: this one gives up on it.
MARKER_SETTLED: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)

NEVER_DURABLE: Final = INT64_MAX

NO_PRODUCER_IDS: Final = Refused(
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the controller is being asked for producer ids"
)


def coordinator_log(node: Node, transactional_id: str) -> Log | Refused:
    """The log of the id's coordinator, when this node is it."""
    log = node.logs.get(
        transactions.log_of(transactional_id, node.settings.transaction_state_log_num_partitions)
    )
    return Refused(ErrorCode.NOT_COORDINATOR) if log is None else log


def transactions_of(log: Log) -> Transactions:
    """The coordinator on top of a `__transaction_state` partition."""
    assert isinstance(log.coordinator, Transactions), "transactions live on __transaction_state"
    return log.coordinator


def _carry_out(node: Node, log: Log, decision: Decision, now: int) -> None:
    state = transactions_of(log)
    if decision.last_epoch is not None:
        state.last_epochs[decision.transactional_id] = decision.last_epoch
    record = decision.record
    if record is not None:
        node.use_producer_id(record)
        if not node.settings.rules.persists_other_ids:
            record = transactions.without_other_ids(state, decision.transactional_id, record)
        node.append_transaction(log, decision.transactional_id, record, now=now)
        if record.state is ONGOING:
            schedule_timeouts(node, state, now)
    node.after(log, decision.effects)


def _answer(
    node: Node, log: Log, decided: Decision | Refused, to: ReplyTo, now: int, asked: ClientVersion
) -> None:
    """A refusal, too, waits until what it saw is durable."""
    if isinstance(decided, Refused):
        node.after(log, (Reply(to, error=asked.told(decided.error)),))
    else:
        _carry_out(node, log, decided, now)


# --- requests --------------------------------------------------------------------------------------------


def init_producer_id(
    node: Node, request: InitProducerId, to: ReplyTo, now: int, asked: ClientVersion
) -> None:
    """An identity: from the coordinator for a transactional id, else just a fresh one."""
    fresh = node.fresh_producer_id()
    if request.transactional_id is None:
        refused = first_refusal((HALF_AN_IDENTITY,), request, node.settings.rules)
        if refused is not None or fresh is None:
            node.reply(to, refused or NO_PRODUCER_IDS)
            return
        node.producer_ids.next_id += 1
        body = InitProducerIdReply(producer_id=fresh, producer_epoch=0)
        node.outcome.effects.append(Reply(to, body=body))
        return
    log = coordinator_log(node, request.transactional_id)
    if isinstance(log, Refused) or fresh is None:
        node.reply(to, log if isinstance(log, Refused) else NO_PRODUCER_IDS)
        return
    decided = identities.init_producer_id(
        transactions_of(log), request, to=to, now=now, fresh_producer_id=fresh, rules=node.settings.rules
    )
    _answer(node, log, decided, to, now, asked)


def add_partitions(
    node: Node, request: AddPartitionsToTxn, to: ReplyTo, now: int, asked: ClientVersion
) -> None:
    """From partition leaders on behalf of a producer (KIP-890), or from a client; all partitions or none."""
    problems = [_add_problem(node, part.key, asked.generation) for part in request.partitions]
    if any(problems):
        parts = tuple(
            PartitionError(
                topic=part.topic, partition=part.partition, error=problem or ErrorCode.OPERATION_NOT_ATTEMPTED
            )
            for part, problem in zip(request.partitions, problems, strict=True)
        )
        node.outcome.effects.append(Reply(to, body=AddPartitionsToTxnReply(partitions=parts)))
        return
    log = coordinator_log(node, request.transactional_id)
    if isinstance(log, Refused):
        node.reply(to, log)
        return
    state, rules = transactions_of(log), node.settings.rules
    if request.verify_only:
        decided = transactions.verify_partitions(state, request, to=to, rules=rules)
    else:
        decided = transactions.add_partitions(
            state, request, to=to, now=now, rules=rules, asked=asked.generation
        )
        if isinstance(decided, Decision) and not _can_write(rules.generation, decided.record):
            # Kafka has noted by then that a record is on its way: the id is busy until its coordinator moves.
            state.pending[request.transactional_id] = NEVER_DURABLE
            decided = Refused(ErrorCode.UNSUPPORTED_VERSION, "transaction.version 2 is not finalized here")
    _answer(node, log, decided, to, now, asked)


def _can_write(cluster: TransactionVersion, record: TransactionRecord | None) -> bool:
    """Only the log of a newer cluster can say that a client speaks its generation; Kafka finds out as it
    writes the record, after every other check (TransactionLog.valueToBytes).
    """
    return record is None or record.client_version <= cluster.client_version


def _add_problem(node: Node, key: TopicPartition, asked: TransactionVersion) -> ErrorCode:
    """Clients of old name topics of their own; partition leaders name that of offsets, too."""
    if key.topic in INTERNAL_TOPICS and (has_no_transactions(key) or not asked.adds_implicitly):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    known = node.cluster.leader(key) is not None
    return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def add_offsets(node: Node, request: AddOffsetsToTxn, to: ReplyTo, now: int, asked: ClientVersion) -> None:
    """The same as adding the one partition that holds the group's offsets; only older clients ask for it."""
    log = coordinator_log(node, request.transactional_id)
    if isinstance(log, Refused):
        node.reply(to, log)
        return
    number = coordinator_partition(request.group_id, node.settings.offsets_topic_num_partitions)
    add = AddPartitionsToTxn(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        verify_only=False,
        partitions=(PartitionName(topic=CONSUMER_OFFSETS_TOPIC, partition=number),),
    )
    decided = transactions.add_partitions(
        transactions_of(log), add, to=to, now=now, rules=node.settings.rules, asked=asked.generation
    )
    if isinstance(decided, Decision):
        decided = attrs.evolve(decided, effects=(Reply(to, body=AddOffsetsToTxnReply()),))
    _answer(node, log, decided, to, now, asked)


def end_transaction(node: Node, request: EndTxn, to: ReplyTo, now: int, asked: ClientVersion) -> None:
    """Commit or abort: answered once the decision is durable, before any marker is written."""
    log = coordinator_log(node, request.transactional_id)
    fresh = node.fresh_producer_id()
    if isinstance(log, Refused) or fresh is None:
        node.reply(to, log if isinstance(log, Refused) else NO_PRODUCER_IDS)
        return
    state, rules = transactions_of(log), node.settings.rules
    decided = end_txn.end_transaction(
        state, request, to=to, now=now, fresh_producer_id=fresh, rules=rules, asked=asked.generation
    )
    _answer(node, log, decided, to, now, asked)


# --- markers ---------------------------------------------------------------------------------------------


def resume(node: Node, log: Log, now: int) -> None:
    """A coordinator has just loaded its log: what PREPARE_* decided is finished, with markers to every
    partition.
    """
    state = transactions_of(log)
    for name, record in state.records.items():
        if record.state in PREPARED:
            node.marker_retries[log.partition.key, name] = now
    schedule_timeouts(node, state, now)


def send_due_markers(node: Node, now: int) -> None:
    """Markers of transactions that were decided in this step, or whose retry is due."""
    for (key, name), due_ms in list(node.marker_retries.items()):
        if due_ms <= now:
            del node.marker_retries[key, name]
            log = node.logs.get(key)
            if log is not None:
                _send_markers(node, log, name, now)


def _send_markers(node: Node, log: Log, name: str, now: int) -> None:
    state = transactions_of(log)
    record = state.records.get(name)
    if record is None or record.state not in PREPARED:
        return
    pending_markers = state.pending_markers.setdefault(name, set(record.partitions))
    by_node: dict[int, list[TopicPartition]] = {}
    for key in sorted(pending_markers):
        leader = node.cluster.leader(key)
        if leader is not None:
            by_node.setdefault(leader.node_id, []).append(key)
        elif node.cluster.is_gone(key):
            # Nobody is left to tell (TransactionMarkerChannelManager, unknown partition).
            pending_markers.discard(key)
        else:
            _retry_markers(node, log, name, now)
    for node_id, keys in by_node.items():
        why = AskedMarkers(
            log_key=log.partition.key,
            transactional_id=name,
            producer_epoch=record.producer_epoch,
            partitions=frozenset(keys),
        )
        node.ask(node_id, WriteTxnMarkers(markers=(_marker(state, record, keys),)), why)
    _finish(node, log, name, now)


def _marker(state: Transactions, record: TransactionRecord, keys: list[TopicPartition]) -> TransactionMarker:
    return TransactionMarker(
        producer_id=record.producer_id,
        producer_epoch=record.producer_epoch,
        result=RESULT_OF[record.state],
        coordinator_epoch=state.coordinator_epoch,
        transaction_version=record.client_version,
        partitions=tuple(PartitionName(topic=key.topic, partition=key.partition) for key in keys),
    )


def answer_markers(node: Node, asked: AskedMarkers, answer: Answered, now: int) -> None:
    """Leaders that wrote their marker are done; others are asked again later, unless they know a newer
    owner.
    """
    log = node.logs.get(asked.log_key)
    if log is None:
        return
    state = transactions_of(log)
    name = asked.transactional_id
    record, pending_markers = state.records.get(name), state.pending_markers.get(name)
    if record is None or pending_markers is None or record.producer_epoch != asked.producer_epoch:
        return  # the answer is to a question of the past
    errors: dict[tuple[str, int], ErrorCode]
    if isinstance(answer.body, WriteTxnMarkersReply):
        parts = [part for marker in answer.body.markers for part in marker.partitions]
        errors = {(part.topic, part.partition): part.error for part in parts}
    else:
        errors = dict.fromkeys(asked.partitions, answer.error)
    pending_markers -= {key for key, error in errors.items() if not error}
    if not MARKER_SETTLED.issuperset(errors.values()):
        _retry_markers(node, log, name, now)
    _finish(node, log, name, now)


def _retry_markers(node: Node, log: Log, name: str, now: int) -> None:
    due_ms = now + node.settings.marker_retry_backoff_ms
    node.marker_retries[log.partition.key, name] = due_ms
    node.wake_at(due_ms)


def _finish(node: Node, log: Log, name: str, now: int) -> None:
    """Nobody owes a marker any more: the transaction is complete."""
    state = transactions_of(log)
    if name in state.pending_markers and not state.pending_markers[name]:
        del state.pending_markers[name]
        decision = end_txn.complete(state, name, now=now, rules=node.settings.rules)
        _carry_out(node, log, decision, now)


# --- timeouts --------------------------------------------------------------------------------------------


def schedule_timeouts(node: Node, state: Transactions, now: int) -> None:
    """Wake at the first scan after the earliest deadline; scans happen on a grid of the configured
    interval.
    """
    if state.deadlines:
        interval = node.settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        node.wake_at((max(state.deadlines[0][0], now) // interval + 1) * interval)


def abort_timed_out(node: Node, now: int) -> None:
    """Abort what has been open for too long, under a new epoch; without producer ids, at the next scan."""
    for log in list(node.logs.values()):
        if isinstance(log.coordinator, Transactions):
            for name in list(transactions.timed_out(log.coordinator, now=now)):
                _abort_one(node, log, name, now)
            schedule_timeouts(node, log.coordinator, now)


def _abort_one(node: Node, log: Log, name: str, now: int) -> None:
    fresh = node.fresh_producer_id()
    if fresh is not None:
        state, rules = transactions_of(log), node.settings.rules
        decided = end_txn.abort_timed_out(state, name, now=now, fresh_producer_id=fresh, rules=rules)
        if isinstance(decided, Decision):
            _carry_out(node, log, decided, now)
