"""InitProducerId: which producer id and epoch the owner of a transactional id gets (KIP-98, KIP-360).

Rule: each identity is granted to one caller; the producer id and epoch that it expects identify its retry. A
cell of the table is the grant, or the error that refuses.
"""

# A new instance sends no expectation. It gets the next epoch, which fences the previous instance; if a
# transaction is open, it is aborted first, and the caller has to retry (CONCURRENT_TRANSACTIONS).
#
# A running producer that recovers from an error sends its identity (KIP-360). If it is current, it gets the
# next epoch. If its first attempt succeeded and only the reply was lost, it sends the previous epoch: the
# note LastEpoch recognises it, and it gets the current identity again. Any other epoch has been replaced:
# PRODUCER_FENCED. While a transaction is open, any epoch of the owner's producer id aborts it first.

from __future__ import annotations

from typing import Final

from fencepost.broker.check_tables import Check, first_refusal
from fencepost.broker.contract import Decision, Refused, Reply, ReplyTo
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.end_txn import NO_PRODUCER_IDS, prepare
from fencepost.broker.transactions.state import (
    LastEpoch,
    TransactionDecision,
    Transactions,
    busy,
    known_record,
)
from fencepost.broker.transactions.tables import MOVE_SOURCE, Cell, CoordinatorInput
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import InitProducerId, InitProducerIdReply
from fencepost.protocol.terms import (
    LAST_GRANTED_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    IdentityEnum,
    TransactionState,
)
from fencepost.protocol.transaction_log import TransactionRecord

# --- the tables -------------------------------------------------------------------------------------------


class Standing(IdentityEnum):
    """The standing of a transactional id that has an owner; an unknown id needs no table."""

    SETTLED = "nothing is open"
    USED_UP = "nothing is open, the epochs are used up"
    OPEN = "a transaction is open"


class Expectation(IdentityEnum):
    """The identity that the caller expects to have, compared with the owner's."""

    NONE = "none"
    CURRENT = "the current identity"
    LAST = "the previous identity"
    PAST = "an earlier epoch"
    FOREIGN = "another producer id"


class Grant(IdentityEnum):
    FIRST_EPOCH = "a fresh producer id, epoch 0"
    NEXT_EPOCH = "the next epoch"
    SAME_AGAIN = "the same identity again"
    ABORT_FIRST = "CONCURRENT_TRANSACTIONS, and an abort"


GrantTable = dict[Standing, dict[Expectation, Grant | ErrorCode]]

_FENCED = ErrorCode.PRODUCER_FENCED
# A retry after the last epoch: Kafka throws IllegalStateException here.
_LOST = ErrorCode.UNKNOWN_SERVER_ERROR

# TransactionCoordinator.prepareInitProducerIdTransit, TransactionMetadata.prepareIncrementProducerEpoch. Only
# the producer id is compared while a transaction is open, so even an old epoch aborts it.
GRANT_SOURCE: Final = "KIP-98, KIP-360, TransactionCoordinator.prepareInitProducerIdTransit"
GRANTS: Final[GrantTable] = {
    Standing.SETTLED: {
        Expectation.NONE: Grant.NEXT_EPOCH,
        Expectation.CURRENT: Grant.NEXT_EPOCH,
        Expectation.LAST: Grant.SAME_AGAIN,
        Expectation.PAST: _FENCED,
        Expectation.FOREIGN: _FENCED,
    },
    Standing.USED_UP: {
        Expectation.NONE: Grant.FIRST_EPOCH,
        Expectation.CURRENT: Grant.FIRST_EPOCH,
        Expectation.LAST: _LOST,
        Expectation.PAST: _LOST,
        Expectation.FOREIGN: _FENCED,
    },
    Standing.OPEN: {
        Expectation.NONE: Grant.ABORT_FIRST,
        Expectation.CURRENT: Grant.ABORT_FIRST,
        Expectation.LAST: Grant.ABORT_FIRST,
        Expectation.PAST: Grant.ABORT_FIRST,
        Expectation.FOREIGN: _FENCED,
    },
}


# --- the request, before its id is looked up --------------------------------------------------------------


def _lacks_name(request: InitProducerId, settings: NodeSettings) -> bool:
    return not request.transactional_id


def _expects_half(request: InitProducerId, settings: NodeSettings) -> bool:
    return (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH)


def _has_bad_timeout(request: InitProducerId, settings: NodeSettings) -> bool:
    return not 0 < request.transaction_timeout_ms <= settings.transaction_max_timeout_ms


HALF_AN_IDENTITY: Final = Check(
    "has a producer id without an epoch, or an epoch without a producer id",
    ErrorCode.INVALID_REQUEST,
    _expects_half,
    source="KafkaApis.handleInitProducerIdRequest",
)
"""Also checked for requests without a transactional id."""

INIT_CHECKS: Final = (
    Check(
        "has an empty transactional id",
        ErrorCode.INVALID_REQUEST,
        _lacks_name,
        source="TransactionCoordinator.handleInitProducerId",
    ),
    HALF_AN_IDENTITY,
    Check(
        "has a transaction.timeout.ms that is not between 1 and transaction.max.timeout.ms",
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        _has_bad_timeout,
        source="TransactionCoordinator.handleInitProducerId",
    ),
)


# --- the decision -----------------------------------------------------------------------------------------

_STANDINGS: Final[dict[Cell, Standing]] = {
    TransactionState.EMPTY: Standing.SETTLED,
    TransactionState.PREPARE_ABORT: Standing.OPEN,
}
"""The standing of an id, by the state to which InitProducerId moves it."""


def decide_identity(
    state: Transactions,
    request: InitProducerId,
    *,
    to: ReplyTo,
    now: int,
    fresh_producer_id: int | None,
    settings: NodeSettings,
) -> TransactionDecision | Refused:
    """Grant an identity, or abort the open transaction and make the caller retry
    (TransactionCoordinator.handleInitProducerId).
    """
    name = request.transactional_id
    assert name is not None, "a producer without transactional id never reaches a coordinator"
    refused = first_refusal(INIT_CHECKS, request, settings)
    if refused is not None:
        return refused
    if name in state.pending:  # also when the tombstone of an expired id is not durable yet
        return busy(name)
    record = known_record(state, name)
    if record is None:
        if fresh_producer_id is None:
            return NO_PRODUCER_IDS
        first = _first_identity(request, now=now, fresh_producer_id=fresh_producer_id)
        return _granted(name, to, first, last_epoch=NO_PRODUCER_EPOCH)
    cell = settings.transaction_version.moves[record.state][CoordinatorInput.INIT]
    if isinstance(cell, ErrorCode):
        return Refused(cell, f"{name} is in {record.state.title}", source=MOVE_SOURCE, table="MOVES")
    last_epoch = state.last_epochs.get(name, NO_PRODUCER_EPOCH)
    grant = GRANTS[_standing(cell, record)][_expectation(request, record, last_epoch)]
    if isinstance(grant, ErrorCode):
        because = f"{name} belongs to {record.producer_id}/{record.producer_epoch}"
        return Refused(grant, because, source=GRANT_SOURCE, table="GRANTS")
    if grant is Grant.ABORT_FIRST:
        # The caller's retry finds COMPLETE_ABORT and is granted an epoch then. The abort is the coordinator's
        # own, so it follows the version of the cluster.
        answer = Reply(to, error=ErrorCode.CONCURRENT_TRANSACTIONS)
        return prepare(
            name, record, cell, now=now, fresh_producer_id=fresh_producer_id, settings=settings,
            version=settings.transaction_version, effects=(answer,),
        )  # fmt: skip
    if grant is Grant.FIRST_EPOCH and fresh_producer_id is None:
        return NO_PRODUCER_IDS
    granted, last_epoch = _next_identity(request, record, grant, now=now, fresh_producer_id=fresh_producer_id)
    return _granted(name, to, granted, last_epoch=last_epoch)


def _standing(cell: Cell, record: TransactionRecord) -> Standing:
    standing = _STANDINGS[cell]
    is_used_up = standing is Standing.SETTLED and record.producer_epoch >= LAST_GRANTED_EPOCH
    return Standing.USED_UP if is_used_up else standing


def _expectation(request: InitProducerId, record: TransactionRecord, last_epoch: int) -> Expectation:
    """Classify the identity that the caller expects to have."""
    expected_id, expected = request.producer_id, request.producer_epoch
    if expected_id == NO_PRODUCER_ID:
        return Expectation.NONE
    # The last epoch of the previous producer id: the caller asked for the rotation and lost the reply.
    is_before = expected_id == record.previous_producer_id and expected >= LAST_GRANTED_EPOCH
    if expected_id != record.producer_id and not is_before:
        return Expectation.FOREIGN
    if expected == record.producer_epoch:
        return Expectation.CURRENT
    return Expectation.LAST if expected == last_epoch else Expectation.PAST


def _first_identity(request: InitProducerId, *, now: int, fresh_producer_id: int) -> TransactionRecord:
    """The record of an id without an owner."""
    return TransactionRecord(
        producer_id=fresh_producer_id, previous_producer_id=NO_PRODUCER_ID, next_producer_id=NO_PRODUCER_ID,
        producer_epoch=0, timeout_ms=request.transaction_timeout_ms, state=TransactionState.EMPTY,
        partitions=(), update_ms=now, start_ms=NO_TIMESTAMP, client_version=0,
    )  # fmt: skip


def _next_identity(
    request: InitProducerId,
    record: TransactionRecord,
    grant: Grant,
    *,
    now: int,
    fresh_producer_id: int | None,
) -> tuple[TransactionRecord, int]:
    """The record of the granted identity, and the epoch that identifies a retry
    (TransactionMetadata.prepareIncrementProducerEpoch, prepareProducerIdRotation).
    """
    # `previous_producer_id` is set even if the id stays the same, as in Kafka. So after a switch to a new id,
    # only one retry succeeds: it sets this field to the new id, and the former one is foreign from then on.
    settled = record._replace(
        state=TransactionState.EMPTY, partitions=(), update_ms=now, start_ms=NO_TIMESTAMP,
        timeout_ms=request.transaction_timeout_ms, previous_producer_id=record.producer_id,
    )  # fmt: skip
    # The reply to the retry may be lost as well, so the same epoch identifies the next one.
    if grant is Grant.SAME_AGAIN:
        return settled, request.producer_epoch
    # A caller without an expectation is a new instance: the previous one must not pass as its retry.
    last_epoch = NO_PRODUCER_EPOCH if request.producer_id == NO_PRODUCER_ID else record.producer_epoch
    if grant is Grant.NEXT_EPOCH:
        return settled._replace(producer_epoch=record.producer_epoch + 1), last_epoch
    assert fresh_producer_id is not None, "otherwise the request was refused"
    return settled._replace(producer_id=fresh_producer_id, producer_epoch=0), last_epoch


def _granted(name: str, to: ReplyTo, record: TransactionRecord, *, last_epoch: int) -> TransactionDecision:
    body = InitProducerIdReply(producer_id=record.producer_id, producer_epoch=record.producer_epoch)
    return Decision(((name, record),), (Reply(to, body),), LastEpoch(name, last_epoch))
