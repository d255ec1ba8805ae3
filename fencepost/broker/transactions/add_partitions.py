"""AddPartitionsToTxn: the partitions of a transaction, of which the first ones open it (KIP-98, KIP-890).

Rule: a partition is added before it takes a record of the transaction, so no marker can be missing.
"""

from __future__ import annotations

from fencepost.broker.contract import Decision, Refused, Reply, ReplyTo
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.state import (
    TransactionDecision,
    Transactions,
    busy,
    check_identity,
    find,
    unwritable,
)
from fencepost.broker.transactions.tables import MOVE_SOURCE, ONGOING, CoordinatorInput, TransactionVersion
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import AddPartitionsToTxn, AddPartitionsToTxnReply, PartitionError
from fencepost.protocol.terms import TopicPartition
from fencepost.protocol.transaction_log import TransactionRecord


def decide_partitions(
    state: Transactions,
    request: AddPartitionsToTxn,
    *,
    to: ReplyTo,
    now: int,
    settings: NodeSettings,
    version: TransactionVersion,
) -> TransactionDecision | Refused:
    """Add partitions to the transaction; the first ones open it."""
    name = request.transactional_id
    partitions = frozenset(request.partitions)
    found = find(state, name)
    if isinstance(found, Refused):
        return found
    # Before the identity, which changes when a rotation becomes durable (KAFKA-18660): until then the owner
    # has to retry, and must not be refused as a stranger. The state is checked first for the same reason.
    if name in state.pending:
        return busy(name)
    cell = settings.transaction_version.moves[found.state][CoordinatorInput.ADD]
    if isinstance(cell, ErrorCode):
        return Refused(cell, f"{name} is in {found.state.title}", source=MOVE_SOURCE, table="MOVES")
    refused = check_identity(found, request.producer_id, request.producer_epoch, settings)
    if refused is not None:
        return refused
    added = [PartitionError(p.topic, p.partition, NO_ERROR) for p in request.partitions]
    reply = Reply(to, AddPartitionsToTxnReply(tuple(added)))
    # Already added: a retry, or a later batch of the partition. No record is needed; the last one is durable,
    # or the id would be busy.
    if found.state is ONGOING and partitions.issubset(found.partitions):
        return Decision(effects=(reply,))
    if not settings.can_store_transactions(version):
        return unwritable(name, to)
    # A request without partitions opens a transaction, too, as in Kafka.
    joined = tuple(sorted(partitions.union(found.partitions)))
    start_ms = found.start_ms if found.state is ONGOING else now
    record = found._replace(
        state=cell, partitions=joined, start_ms=start_ms, update_ms=now,
        client_version=version.client_version,
    )  # fmt: skip
    return Decision(((name, record),), (reply,))


def verify_partitions(
    state: Transactions, request: AddPartitionsToTxn, *, to: ReplyTo, settings: NodeSettings
) -> TransactionDecision | Refused:
    """Report which partitions are in the transaction. A leader verifies an older client's batch this way
    (KIP-890 part 1, TransactionCoordinator.handleVerifyPartitionsInTransaction).
    """
    found = find(state, request.transactional_id)
    if isinstance(found, Refused):
        return found
    # `pending` is not consulted, and the order differs from `decide_partitions`, both as in Kafka: the guard
    # has the last word, at the append (handleVerifyPartitionsInTransaction).
    refused = check_identity(found, request.producer_id, request.producer_epoch, settings)
    if refused is not None:
        return refused
    if found.state.is_prepared:
        return busy(request.transactional_id)
    return Decision(effects=(Reply(to, _verified(request, found)),))


def _verified(request: AddPartitionsToTxn, record: TransactionRecord) -> AddPartitionsToTxnReply:
    def error(key: TopicPartition) -> ErrorCode:
        # The state need not be looked at: only ONGOING has partitions here.
        return NO_ERROR if key in record.partitions else ErrorCode.TRANSACTION_ABORTABLE

    return AddPartitionsToTxnReply(
        partitions=tuple(PartitionError(key.topic, key.partition, error(key)) for key in request.partitions)
    )
