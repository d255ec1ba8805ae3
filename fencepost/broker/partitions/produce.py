"""Produce: how clients' batches enter the logs that a node leads (ReplicaManager.handleProduceAppend).

Rule: a transactional batch is appended only into a transaction that the coordinator knows to be open, unless
verification is off.
"""

# Theory of operation: the verification of KIP-890
#
# A batch may arrive late: a slow network delivers it after its transaction was aborted and its marker was
# written. Before KIP-890 the leader appended it, which opened a transaction that no coordinator knew. Its
# marker was never written, and the LSO stood still: a hanging transaction.
#
# So the leader asks first. If the transaction (producer id and epoch) is not open in this partition yet, the
# batch is parked and the coordinator is asked by AddPartitionsToTxn. A client from Produce 12 on lets the
# leader add the partition (part 2); an older client has added it itself, and the leader only verifies
# (part 1). Once the transaction is open here, later batches of the same epoch need no question.
#
#     producer            leader                                 coordinator
#       | Produce seq 0 --> checks before asking
#       |                   guard 7 = start_verification()
#       |                   park the batch with guard 7 ----------> add, or verify, the partition
#       |                                                           its record becomes durable
#       |                   seq 0 with guard 7: checks, append <--- NONE
#       | <-- offset ------ durable
#       | Produce seq 1 --> the transaction is open: append, no question
#
# A batch that arrives while the first one is still parked gets the same guard, and the coordinator is asked
# for it, too. While the record of the first is not durable, the reply is CONCURRENT_TRANSACTIONS, and the
# producer retries; a question that only verifies is answered.
#
# The reply may be outdated when it arrives, because the transaction can end right after it was given. The
# guard closes this gap. A marker removes the verification entry of the transaction that it ends, so a batch
# that presents the guard of a removed entry was overtaken by a marker and is refused with INVALID_TXN_STATE:
#
#       | Produce seq 0 --> guard 8, parked ----------------------> NONE, but the reply is slow
#       | EndTxn(abort) ------------------------------------------> PREPARE_ABORT
#       |                   marker: entry removed <---------------- WriteTxnMarkers, under the same epoch
#       |                   seq 0 with guard 8: no entry <--------- NONE
#       | <-- INVALID_TXN_STATE
#
# A timeout, a new owner and every end in version 2 raise the epoch. Their markers already fence the batch
# (INVALID_PRODUCER_EPOCH); the guard protects the ends that keep the epoch, those of versions 0 and 1.
#
# A guard also contains the leader epoch: if the leadership was lost and regained in between, this leader has
# not seen every marker, and the batch is refused with NOT_LEADER_OR_FOLLOWER (`Partition.issued`).
#
# Kafka: ReplicaManager.maybeSendPartitionsToTransactionCoordinator, AddPartitionsToTxnManager,
# VerificationGuard, UnifiedLog.maybeStartTransactionVerification.

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.broker.check_tables import first_refusal
from fencepost.broker.config_def import COMPACT
from fencepost.broker.contract import Answered, Refused, ReplyTo
from fencepost.broker.leader_log import Collect, LeaderLog
from fencepost.broker.node import Node
from fencepost.broker.partitions import batch_form, checks, partition
from fencepost.broker.partitions.batch_form import FormRules, Parsed
from fencepost.broker.partitions.checks import NO_GUARD, UNGUARDED, Duplicate
from fencepost.broker.purgatory import Incoming, InFlightAddOffsets, InFlightAddPartitions
from fencepost.broker.transactions import state as transactions
from fencepost.broker.transactions.tables import ClientVersion
from fencepost.protocol.batches import LOG_APPEND_TIME_BIT, mark_create_time, set_max_timestamp, writable
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import (
    AddPartitionsToTxn,
    AddPartitionsToTxnReply,
    Produce,
    ProducedPartition,
    ProducePartition,
    ProduceReply,
)
from fencepost.protocol.terms import (
    INTERNAL_TOPICS,
    NO_OFFSET,
    NO_TIMESTAMP,
    NO_TOPIC_ID,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

# A refusal of the coordinator, as the producer sees it (AddPartitionsToTxnManager). NOT_ENOUGH_REPLICAS makes
# clients retry without a metadata refresh, which would be in vain: the partition has not moved.
ADD_ERRORS: Final = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_ENOUGH_REPLICAS,
}
# A refusal with one of these does not say where the log starts: Kafka has not looked at the log by then
# (ReplicaManager.appendRecordsToLeader).
ERRORS_WITHOUT_LOG_START: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.MESSAGE_TOO_LARGE,
    }
)
# Clients that add partitions themselves do not expect CONCURRENT_TRANSACTIONS from a partition leader.
VERIFY_ERRORS: Final = {**ADD_ERRORS, ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.NOT_ENOUGH_REPLICAS}


def produce(node: Node, request: Produce, to: ReplyTo, now: int, client_version: ClientVersion) -> None:
    """Append one batch per partition; each partition has its own result (KafkaApis.handleProduceRequest,
    ReplicaManager.appendRecords).
    """
    keys = [TopicPartition(part.topic, part.partition) for part in request.partitions]
    knows_zstd = client_version.knows_zstd
    parsed = [batch_form.header_of(part.records, knows_zstd=knows_zstd) for part in request.partitions]
    refused = _refused_request(node, request, keys, parsed)
    to_add: list[tuple[Incoming, int]] = []
    asks = asks_coordinator(node, client_version)
    entries = _by_partition(keys, request, parsed)
    ticket = node.begin_reply(to, ProduceReply, len(entries))
    for index, (key, (part, header)) in enumerate(entries.items()):
        if refused is not None:
            _refuse(node, ticket, index, key, refused, table="REQUEST_CHECKS")
            continue
        log = _log_of(node, key, part.topic_id)
        if isinstance(log, Refused):
            _refuse(node, ticket, index, key, log)
            continue
        if isinstance(header, Refused):
            _refuse(node, ticket, index, key, header)
            continue
        incoming = Incoming(ticket, index, key, header, part.records, request.acks)
        is_open = log.partition.is_open(header.producer_id, header.producer_epoch)
        # Batches for internal topics are refused by FORM_CHECKS, so the coordinator need not be asked; Kafka
        # adds the partition first.
        is_internal = key.topic in INTERNAL_TOPICS
        if asks and header.has_transaction and not is_open and not is_internal:
            _start_adding(node, log, incoming, to_add, client_version, now)
        else:
            _append(node, log, incoming, NO_GUARD if asks else UNGUARDED, now)
    if to_add:
        assert request.transactional_id is not None, "a transactional batch without its id was refused above"
        _ask_to_add(node, request.transactional_id, to_add, now, client_version)


def _refused_request(
    node: Node, request: Produce, keys: Sequence[TopicPartition], parsed: Sequence[Parsed]
) -> Refused | None:
    """Why no batch of the request may be appended, or None."""
    placed = parsed
    if len(keys) > 1:  # only several batches can have several producers
        placed = [header for key, header in zip(keys, parsed, strict=True) if node.cluster.leader(key)]
    return first_refusal(checks.REQUEST_CHECKS, request, parsed, placed)


def _by_partition(
    keys: Sequence[TopicPartition], request: Produce, parsed: Sequence[Parsed]
) -> dict[TopicPartition, tuple[ProducePartition, Parsed]]:
    """The entry that counts for each partition: the last one, or one that is not a batch. Kafka collects the
    two kinds in maps (KafkaApis.handleProduceRequest), and answers with the latter.
    """
    entries = dict(zip(keys, zip(request.partitions, parsed, strict=True), strict=True))
    if len(entries) < len(keys):
        for key, part, header in zip(keys, request.partitions, parsed, strict=True):
            if isinstance(header, Refused):
                entries[key] = (part, header)
    return entries


def _log_of(node: Node, key: TopicPartition, topic_id: bytes) -> LeaderLog | Refused:
    """The log of a partition of the topic with this id, if this node leads it (KIP-516). A batch for a
    deleted topic may arrive after another one got its name: it knows none of the sequences, and would take
    the batch.
    """
    topic = node.cluster.topics.get(key.topic)
    if topic_id != NO_TOPIC_ID and (topic is None or topic.topic_id != topic_id):
        because = "is for a topic that was deleted, or that this node does not know yet"
        return Refused(ErrorCode.UNKNOWN_TOPIC_ID, because, source="KafkaApis.handleProduceRequest")
    return node.log_of(key)


def _refuse(
    node: Node, ticket: int, index: int, key: TopicPartition, refused: Refused, *, table: str = ""
) -> None:
    node.note_ruling(node.partial_replies[ticket].to, refused, table=table, partition=key)
    node.collect(_part(ticket, index, key, refused.error))


def _part(
    ticket: int,
    index: int,
    key: TopicPartition,
    error: ErrorCode,
    base_offset: int = NO_OFFSET,
    log_start_offset: int = NO_OFFSET,
    log_append_time: int = NO_TIMESTAMP,
) -> Collect:
    result = ProducedPartition(
        key.topic, key.partition, error, base_offset, log_start_offset, log_append_time
    )
    return Collect(ticket, index, result)


# --- adding the partition to the transaction -------------------------------------------------------------


def _start_adding(
    node: Node,
    log: LeaderLog,
    incoming: Incoming,
    to_add: list[tuple[Incoming, int]],
    client_version: ClientVersion,
    now: int,
) -> None:
    header = incoming.header
    verdict = checks.judge(
        log.partition, header, verification_guard=NO_GUARD, checks=node.settings.checks_before_asking
    )
    if isinstance(verdict, Refused):
        _note_row(node, incoming, verdict, table="BEFORE_ASKING")
        part = _part(incoming.ticket, incoming.index, incoming.key, verdict.error)
        node.after(log, (part,))
        return
    guard = partition.start_verification(
        log.partition,
        header.producer_id,
        producer_epoch=header.producer_epoch,
        sequence=header.base_sequence,
        starts_at_zero=client_version.transaction_version.adds_implicitly,
        now=now,
    )
    to_add.append((incoming, guard))


def _ask_to_add(
    node: Node,
    transactional_id: str,
    batches: list[tuple[Incoming, int]],
    now: int,
    client_version: ClientVersion,
) -> None:
    # All batches have this producer and epoch: REQUEST_CHECKS refuse a request with several.
    header = batches[0][0].header
    why = InFlightAddPartitions(tuple(batches), client_version=client_version)
    keys = tuple([incoming.key for incoming, _ in batches])
    if not ask_coordinator(node, transactional_id, header.producer_id, header.producer_epoch, keys, why):
        unavailable = Answered(token=0, error=ErrorCode.COORDINATOR_NOT_AVAILABLE, body=None)
        answer_to_add(node, why, unavailable, now)


def asks_coordinator(node: Node, client_version: ClientVersion) -> bool:
    """Whether batches of such a client's transactions are verified by the coordinator, or added there."""
    return client_version.transaction_version.adds_implicitly or node.settings.partition_verification


def ask_coordinator(
    node: Node,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    keys: tuple[TopicPartition, ...],
    why: InFlightAddPartitions | InFlightAddOffsets,
) -> bool:
    """Ask the coordinator to add this leader's partitions to a transaction, or, for an older client, to
    verify that they are in it. Returns False if there is no coordinator.
    """
    count = node.coordinator_count(TRANSACTION_STATE_TOPIC)
    leader = node.cluster.leader(transactions.key_of_id(transactional_id, count))
    if leader is None:
        return False
    request = AddPartitionsToTxn(
        transactional_id,
        producer_id,
        producer_epoch,
        not why.client_version.transaction_version.adds_implicitly,
        keys,
    )
    node.ask(leader.node_id, request, why)
    return True


def answer_to_add(node: Node, in_flight: InFlightAddPartitions, answer: Answered, now: int) -> None:
    """Handle the coordinator's reply: append the batches that it admitted, and refuse the others."""
    added = answer.body.partitions if isinstance(answer.body, AddPartitionsToTxnReply) else ()
    errors = {(part.topic, part.partition): part.error for part in added}
    for incoming, guard in in_flight.batches:
        error = answer.error or errors.get(incoming.key, ErrorCode.UNKNOWN_SERVER_ERROR)
        log = node.logs.get(incoming.key)
        # A leader that lost and regained the partition has not seen the markers in between.
        if error is NO_ERROR and log is not None and log.partition.issued(guard):
            _append(node, log, incoming, guard, now)
        else:
            meanings = (
                ADD_ERRORS if in_flight.client_version.transaction_version.adds_implicitly else VERIFY_ERRORS
            )
            meant = ErrorCode.NOT_LEADER_OR_FOLLOWER if error is NO_ERROR else meanings.get(error, error)
            refused = Refused(
                in_flight.client_version.downgrade(meant),
                "was verified for an earlier leadership"
                if error is NO_ERROR
                else f"was not admitted: the transaction coordinator answered {error.name}",
                source="KIP-890, AddPartitionsToTxnManager",
                table="ADD_ERRORS" if meanings is ADD_ERRORS else "VERIFY_ERRORS",
            )
            # At once, unlike refusals by this log: the coordinator's log was durable before it answered.
            _refuse(node, incoming.ticket, incoming.index, incoming.key, refused)


# --- appending -------------------------------------------------------------------------------------------


def _append(node: Node, log: LeaderLog, incoming: Incoming, guard: int, now: int) -> None:
    header, rules = incoming.header, _form_rules(node, incoming.key.topic, now)
    refused = batch_form.refused_form(
        header, incoming.records, key=incoming.key, acks=incoming.acks, rules=rules
    )
    latest = header.max_timestamp
    if refused is None and latest < header.base_timestamp:
        latest = _latest_timestamp(node, incoming)
        refused = batch_form.too_late() if latest > rules.latest else None
    verdict = (
        refused
        or _refused_keys(node, incoming)
        or checks.judge(log.partition, header, verification_guard=guard, checks=node.settings.batch_checks)
    )
    error, base_offset, log_start_offset = NO_ERROR, NO_OFFSET, log.partition.log_start_offset
    log_append_time = NO_TIMESTAMP  # the time of a record is that of its producer (CreateTime)
    match verdict:
        case Refused():
            _note_row(node, incoming, verdict)
            error = verdict.error
            if error in ERRORS_WITHOUT_LOG_START:
                log_start_offset = NO_OFFSET
        case Duplicate():
            _note_row(node, incoming, verdict.refused)
            base_offset = verdict.base_offset
            log_append_time = latest  # of the retry, which is the same batch
        case None:
            batch = writable(incoming.records)
            if latest != header.max_timestamp:
                set_max_timestamp(batch, latest)
            if header.attributes & LOG_APPEND_TIME_BIT:
                mark_create_time(batch)
            base_offset = node.append(log, batch, entries=()).base_offset
    result = (error, base_offset, log_start_offset, log_append_time)
    part = _part(incoming.ticket, incoming.index, incoming.key, *result)
    # Refusals and duplicates wait, too, and so do refusals by BEFORE_ASKING: they were decided by batches
    # that may not be durable yet. A newer epoch usually is durable, at the coordinator; that of an
    # administrator's marker may not be.
    node.after(log, (part,))


def _refused_keys(node: Node, incoming: Incoming) -> Refused | None:
    """Why the batch may not enter a compacted topic, in which every record has a key."""
    topic = node.cluster.topics.get(incoming.key.topic)
    own = None if topic is None else topic.configs.get("cleanup.policy")
    if COMPACT not in (node.settings.log_cleanup_policy if own is None else own):
        return None
    reply = node.partial_replies[incoming.ticket]
    seen = batch_form.check_keys(incoming.header, incoming.records, work_max=reply.work_left)
    reply.work_left -= seen.work
    return seen.refused


def _latest_timestamp(node: Node, incoming: Incoming) -> int:
    """The latest timestamp of a batch whose producer left it out, as sarama does: lookups and retention by
    time rely on it (LogValidator).
    """
    reply = node.partial_replies[incoming.ticket]
    latest = batch_form.latest_timestamp(incoming.header, incoming.records, work_max=reply.work_left)
    reply.work_left -= latest.work
    return latest.timestamp


def _note_row(node: Node, incoming: Incoming, refused: Refused, *, table: str = "CHECKS") -> None:
    """Note the row of a table that keeps a batch out of its log."""
    to = node.partial_replies[incoming.ticket].to
    node.note_ruling(to, refused, table=refused.table or table, partition=incoming.key)


def _form_rules(node: Node, topic_name: str, now: int) -> FormRules:
    topic, settings = node.cluster.topics.get(topic_name), node.settings
    own = {} if topic is None else topic.configs  # not `log_config`: this runs for every batch
    before_ms = settings.log_message_timestamp_before_max_ms
    after_ms = settings.log_message_timestamp_after_max_ms
    return FormRules(
        size_max=int(own.get("max.message.bytes", settings.message_max_bytes)),
        earliest=now - int(own.get("message.timestamp.before.max.ms", before_ms)),
        latest=now + int(own.get("message.timestamp.after.max.ms", after_ms)),
    )
