"""InitProducerId: who may call itself by a transactional id, and under which producer id and epoch (KIP-98,
KIP-360).

Rule: an identity is granted once. What a lost reply can be told from is the expectation that the caller
sends along.
"""

from __future__ import annotations

from fencepost.broker.transaction_tables import CoordinatorInput
from fencepost.broker.transactions import Decision, Rules, Transactions, busy, prepare
from fencepost.broker.words import Refused, Reply, ReplyTo
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import InitProducerId, InitProducerIdReply
from fencepost.protocol.stored import TransactionRecord
from fencepost.protocol.terms import (
    LAST_GRANTED_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TransactionState,
)


def init_producer_id(
    state: Transactions,
    request: InitProducerId,
    *,
    to: ReplyTo,
    now: int,
    fresh_producer_id: int,
    rules: Rules,
) -> Decision | Refused:
    """Grant an identity, or abort what the former owner left open and let the caller ask again (KIP-360's
    retry rules).
    """
    name = request.transactional_id
    assert name is not None, "a producer without transactional id never reaches a coordinator"
    if not name or (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return Refused(ErrorCode.INVALID_REQUEST, "an empty transactional id, or half an expected identity")
    if not 0 < request.transaction_timeout_ms <= rules.transaction_max_timeout_ms:
        limit = rules.transaction_max_timeout_ms
        return Refused(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT, f"transaction.timeout.ms must be between 1 and {limit}"
        )
    record = state.records.get(name)
    if name in state.pending:  # also when the tombstone of an expired id is not durable yet
        return busy(name)
    if record is None:
        return _granted(name, _new_record(request, fresh_producer_id, now), to, last_epoch=NO_PRODUCER_EPOCH)
    cell = rules.generation.moves[record.state][CoordinatorInput.INIT]
    if isinstance(cell, ErrorCode):
        return Refused(cell, f"{name} is in {record.state.title}")
    previous = state.previous_ids.get(name, record.previous_producer_id)
    if not _expectation_is_plausible(request, record.producer_id, previous):
        return Refused(ErrorCode.PRODUCER_FENCED, f"{name} belongs to producer {record.producer_id} now")
    if cell is TransactionState.PREPARE_ABORT:
        refused = Reply(to, error=ErrorCode.CONCURRENT_TRANSACTIONS)
        return prepare(
            name, record, cell, now=now, fresh_producer_id=fresh_producer_id, generation=rules.generation,
            effects=(refused,),
        )  # fmt: skip
    return _next_identity(state, name, record, request, to=to, now=now, fresh_producer_id=fresh_producer_id)


def _new_record(request: InitProducerId, producer_id: int, now: int) -> TransactionRecord:
    return TransactionRecord(
        producer_id=producer_id,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=0,
        timeout_ms=request.transaction_timeout_ms,
        state=TransactionState.EMPTY,
        partitions=(),
        update_ms=now,
        start_ms=NO_TIMESTAMP,
        client_version=0,
    )


def _expectation_is_plausible(request: InitProducerId, producer_id: int, previous_producer_id: int) -> bool:
    """Only the id is looked at here; the epoch matters once nothing is open
    (TransactionCoordinator.prepareInitProducerIdTransit).
    """
    return request.producer_id in (NO_PRODUCER_ID, producer_id) or (
        request.producer_id == previous_producer_id and request.producer_epoch >= LAST_GRANTED_EPOCH
    )


def _next_identity(
    state: Transactions,
    name: str,
    record: TransactionRecord,
    request: InitProducerId,
    *,
    to: ReplyTo,
    now: int,
    fresh_producer_id: int,
) -> Decision | Refused:
    """The next epoch, or a new producer id when epochs are used up
    (TransactionMetadata.prepareIncrementProducerEpoch).
    """
    expected = request.producer_epoch
    has_expectation = request.producer_id != NO_PRODUCER_ID
    current = record.producer_epoch
    last_epoch = current if has_expectation else NO_PRODUCER_EPOCH
    settled = record._replace(
        state=TransactionState.EMPTY, partitions=(), update_ms=now, start_ms=NO_TIMESTAMP,
        timeout_ms=request.transaction_timeout_ms,
    )  # fmt: skip
    if current >= LAST_GRANTED_EPOCH:
        if has_expectation and expected != current:
            return Refused(
                ErrorCode.UNKNOWN_SERVER_ERROR, "the reply to the last possible epoch bump was lost"
            )
        rotated = settled._replace(
            producer_id=fresh_producer_id, previous_producer_id=record.producer_id, producer_epoch=0
        )
        return _granted(name, rotated, to, last_epoch=last_epoch)
    settled = settled._replace(previous_producer_id=record.producer_id)
    if has_expectation and expected != current:
        if expected != state.last_epochs.get(name, NO_PRODUCER_EPOCH):
            return Refused(ErrorCode.PRODUCER_FENCED, f"{name} is at epoch {current}")
        return _granted(name, settled, to, last_epoch=expected)
    return _granted(name, settled._replace(producer_epoch=current + 1), to, last_epoch=last_epoch)


def _granted(name: str, record: TransactionRecord, to: ReplyTo, *, last_epoch: int) -> Decision:
    body = InitProducerIdReply(producer_id=record.producer_id, producer_epoch=record.producer_epoch)
    return Decision(name, record=record, last_epoch=last_epoch, effects=(Reply(to, body=body),))
