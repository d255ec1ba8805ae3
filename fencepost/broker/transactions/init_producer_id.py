"""InitProducerId: which producer id and epoch the owner of a transactional id gets (KIP-98, KIP-360).

Rule: each identity is granted once; the producer id and epoch that the caller expects identify a retry.
"""

# A new instance sends no expectation. It gets the next epoch, which fences the previous instance; if a
# transaction is open, this is aborted first, and the caller has to retry (CONCURRENT_TRANSACTIONS).
#
# A running producer that recovers from an error sends its identity (KIP-360). If it is current, it gets the
# next epoch. If its first attempt succeeded and only the answer was lost, its epoch is one behind: the note
# LastEpoch recognises it, and it gets the current identity again. Any other epoch has been replaced:
# PRODUCER_FENCED.

from __future__ import annotations

from typing import Final

import attrs

from fencepost.broker.checks import first_refusal
from fencepost.broker.contract import Decision, Refused, Reply, ReplyTo
from fencepost.broker.transactions.end_txn import prepare
from fencepost.broker.transactions.identity_tables import (
    GRANTS,
    IDENTITY_CHECKS,
    Expectation,
    Grant,
    Standing,
)
from fencepost.broker.transactions.state import (
    LastEpoch,
    Rules,
    TransactionDecision,
    Transactions,
    busy,
    known_record,
)
from fencepost.broker.transactions.tables import Cell, CoordinatorInput
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import InitProducerId, InitProducerIdReply
from fencepost.protocol.terms import (
    LAST_GRANTED_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TransactionState,
)
from fencepost.protocol.transaction_log import TransactionRecord

_STANDINGS: Final[dict[Cell, Standing]] = {
    TransactionState.EMPTY: Standing.SETTLED,
    TransactionState.PREPARE_ABORT: Standing.OPEN,
}
"""The standing of an id, by the state to which InitProducerId moves it."""


@attrs.frozen(kw_only=True)
class _Call:
    """An InitProducerId with its circumstances; `fresh_producer_id` is used only if needed."""

    name: str
    request: InitProducerId
    to: ReplyTo
    now: int
    fresh_producer_id: int

    @property
    def expects(self) -> bool:
        return self.request.producer_id != NO_PRODUCER_ID


def init_producer_id(
    state: Transactions,
    request: InitProducerId,
    *,
    to: ReplyTo,
    now: int,
    fresh_producer_id: int,
    rules: Rules,
) -> TransactionDecision | Refused:
    """Grant an identity, or abort the open transaction and make the caller retry
    (TransactionCoordinator.handleInitProducerId).
    """
    name = request.transactional_id
    assert name is not None, "a producer without transactional id never reaches a coordinator"
    refused = first_refusal(IDENTITY_CHECKS, request, rules)
    if refused is not None:
        return refused
    if name in state.pending:  # also when the tombstone of an expired id is not durable yet
        return busy(name)
    call = _Call(name=name, request=request, to=to, now=now, fresh_producer_id=fresh_producer_id)
    record = known_record(state, name)
    if record is None:
        return _granted(call, _new_record(call), last_epoch=NO_PRODUCER_EPOCH)
    cell = rules.transaction_version.moves[record.state][CoordinatorInput.INIT]
    if isinstance(cell, ErrorCode):
        return Refused(cell, f"{name} is in {record.state.title}")
    grant = GRANTS[_standing(cell, record)][_expectation(state, call, record)]
    if isinstance(grant, ErrorCode):
        return Refused(grant, f"{name} belongs to {record.producer_id}/{record.producer_epoch}")
    if grant is Grant.ABORT_FIRST:
        answer = Reply(to, error=ErrorCode.CONCURRENT_TRANSACTIONS)
        return prepare(
            name, record, cell, now=now, fresh_producer_id=fresh_producer_id, rules=rules,
            version=rules.transaction_version, effects=(answer,),
        )  # fmt: skip
    return _next_identity(call, record, grant)


def _new_record(call: _Call) -> TransactionRecord:
    return TransactionRecord(
        producer_id=call.fresh_producer_id,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=0,
        timeout_ms=call.request.transaction_timeout_ms,
        state=TransactionState.EMPTY,
        partitions=(),
        update_ms=call.now,
        start_ms=NO_TIMESTAMP,
        client_version=0,
    )


def _standing(cell: Cell, record: TransactionRecord) -> Standing:
    standing = _STANDINGS[cell]
    is_used_up = standing is Standing.SETTLED and record.producer_epoch >= LAST_GRANTED_EPOCH
    return Standing.USED_UP if is_used_up else standing


def _expectation(state: Transactions, call: _Call, record: TransactionRecord) -> Expectation:
    """Classify the identity that the caller expects to have."""
    expected_id, expected = call.request.producer_id, call.request.producer_epoch
    if not call.expects:
        return Expectation.NONE
    # The last epoch of the previous producer id: the caller asked for the rotation and lost the answer.
    is_before = expected_id == record.previous_producer_id and expected >= LAST_GRANTED_EPOCH
    if expected_id != record.producer_id and not is_before:
        return Expectation.FOREIGN
    if expected == record.producer_epoch:
        return Expectation.CURRENT
    is_last = expected == state.last_epochs.get(call.name, NO_PRODUCER_EPOCH)
    return Expectation.LAST if is_last else Expectation.PAST


def _next_identity(call: _Call, record: TransactionRecord, grant: Grant) -> TransactionDecision:
    """The record of the granted identity, and the epoch that identifies a retry
    (TransactionMetadata.prepareIncrementProducerEpoch, prepareProducerIdRotation).
    """
    settled = record._replace(
        state=TransactionState.EMPTY, partitions=(), update_ms=call.now, start_ms=NO_TIMESTAMP,
        timeout_ms=call.request.transaction_timeout_ms, previous_producer_id=record.producer_id,
    )  # fmt: skip
    last_epoch = record.producer_epoch if call.expects else NO_PRODUCER_EPOCH
    if grant is Grant.SAME_AGAIN:
        return _granted(call, settled, last_epoch=call.request.producer_epoch)
    if grant is Grant.NEXT_EPOCH:
        raised = settled._replace(producer_epoch=record.producer_epoch + 1)
        return _granted(call, raised, last_epoch=last_epoch)
    rotated = settled._replace(producer_id=call.fresh_producer_id, producer_epoch=0)
    return _granted(call, rotated, last_epoch=last_epoch)


def _granted(call: _Call, record: TransactionRecord, *, last_epoch: int) -> TransactionDecision:
    body = InitProducerIdReply(producer_id=record.producer_id, producer_epoch=record.producer_epoch)
    return Decision(
        entries=((call.name, record),),
        note=LastEpoch(call.name, last_epoch),
        effects=(Reply(call.to, body=body),),
    )
