"""EndTxn, and every other end of a transaction: how it is decided, and how it is completed (KIP-98, KIP-890).

Rule: from PREPARE_* on the transaction ends that way, whatever crashes. The version's table decides;
`handlers.carry_out` writes the decision, and `node.py` holds the reply back until it is durable.
"""

# The epochs of an end, for an owner at epoch 4 (prepareAbortOrCommit, prepareFenceProducerEpoch):
#
#     ended by                        versions 0, 1      version 2
#     EndTxn of the owner             4                  5, and the reply says so
#     a timeout or a new owner        5 (fences)         5 (one step for both reasons, KAFKA-19367)
#
# PREPARE_* has this epoch already, so markers carry it, and each partition that has its marker refuses late
# batches of the ended transaction. At epoch 32766 an end of version 2 reserves the next producer id;
# COMPLETE_* switches to it, because the markers must still name the producer that wrote the records.

from __future__ import annotations

from typing import Final

from fencepost.broker.contract import Decision, Effect, Refused, Reply, ReplyTo
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.state import (
    LastEpoch,
    TransactionDecision,
    Transactions,
    busy,
    check_identity,
    find,
    known_record,
    unwritable,
)
from fencepost.broker.transactions.tables import (
    BUSY,
    ONGOING,
    Cell,
    CoordinatorInput,
    EndInput,
    TransactionVersion,
)
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import EndTxn, EndTxnReply
from fencepost.protocol.terms import (
    INT16_MAX,
    LAST_GRANTED_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionResult,
    TransactionState,
)
from fencepost.protocol.transaction_log import TransactionRecord

# Retriable at this coordinator: it is the right one, and only waits for the controller (KIP-730).
NO_PRODUCER_IDS: Final = Refused(
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    "the node has no producer ids left; the controller grants more",
    source="RPCProducerIdManager.generateProducerId",
)


def decide_end(
    state: Transactions,
    request: EndTxn,
    *,
    to: ReplyTo,
    now: int,
    fresh_producer_id: int | None,
    settings: NodeSettings,
    version: TransactionVersion,
) -> TransactionDecision | Refused:
    """Decide how the transaction ends, by the table of the client's transaction version
    (TransactionCoordinator.endTransaction).
    """
    name = request.transactional_id
    found = find(state, name)
    if isinstance(found, Refused):
        return found
    cell = _end_cell(state, found, request, settings, version)
    if isinstance(cell, Refused):
        return cell
    # Already done: the same reply again, without a record.
    if cell is found.state:
        return Decision(effects=(Reply(to, _identity(found, settings, version)),))
    decision = prepare(
        name, found, cell, now=now, fresh_producer_id=fresh_producer_id, settings=settings, version=version,
        fences=False,
    )  # fmt: skip
    if isinstance(decision, Refused):
        return decision
    if not settings.can_store_transactions(version):
        return unwritable(name, to)
    ((_, prepared),) = decision.entries
    assert prepared is not None, "an end is a record, not a tombstone"
    reply = Reply(to, _identity(prepared, settings, version))
    return Decision(decision.entries, (reply,), decision.note)


def _end_cell(
    state: Transactions,
    record: TransactionRecord,
    request: EndTxn,
    settings: NodeSettings,
    version: TransactionVersion,
) -> TransactionState | Refused:
    # With fencing turned off, a former owner's EndTxn during a transaction must not pass as a retry: it ends
    # the open transaction, which is the anomaly that fencing prevents.
    is_retry = (
        version.renews_identity
        and _is_retry(record, request)
        and ("fencing" not in settings.broken or record.state.is_complete)
    )
    # The table is about durable records; until then the id is busy, whatever its state.
    is_pending = request.transactional_id in state.pending
    cell: Cell = BUSY if is_pending else version.end[record.state][_end_input(request.result, is_retry)]
    # In version 2 the identity of a busy id is about to change, and the caller cannot know the next one yet.
    # So CONCURRENT_TRANSACTIONS comes before the identity check (KAFKA-18464); in older versions, after it.
    if not is_retry and not (cell is BUSY and version.renews_identity):
        refused = check_identity(record, request.producer_id, request.producer_epoch, settings)
        if refused is not None:
            return refused
    if is_pending:
        return busy(request.transactional_id)
    if isinstance(cell, ErrorCode):
        because = f"{request.transactional_id} is in {record.state.title}"
        return Refused(cell, because, source=version.end.source, table=version.end.name)
    return cell


def _end_input(result: TransactionResult, is_retry: bool) -> EndInput:
    if result is TransactionResult.COMMIT:
        return EndInput.COMMIT_RETRY if is_retry else EndInput.COMMIT
    return EndInput.ABORT_RETRY if is_retry else EndInput.ABORT


def _is_retry(record: TransactionRecord, request: EndTxn) -> bool:
    """Whether the request has the identity before the last end: one epoch less, or, after a rotation, the
    last epoch of the previous producer id.
    """
    if request.producer_id == record.producer_id:
        return request.producer_epoch == record.producer_epoch - 1
    # InitProducerId sets `previous_producer_id`, too, but leaves EMPTY: only COMPLETE_* follows an end.
    rotated = record.producer_epoch == 0 and request.producer_id == record.previous_producer_id
    return rotated and record.state.is_complete and request.producer_epoch == LAST_GRANTED_EPOCH


def _identity(record: TransactionRecord, settings: NodeSettings, version: TransactionVersion) -> EndTxnReply:
    """The producer's identity in its next transaction. Older clients keep theirs and get none."""
    if not version.renews_identity:
        return EndTxnReply(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    if record.next_producer_id != NO_PRODUCER_ID and settings.fixes.tells_next_producer_id:
        return EndTxnReply(record.next_producer_id, 0)
    return EndTxnReply(record.producer_id, record.producer_epoch)


def prepare(
    name: str,
    record: TransactionRecord,
    target: TransactionState,
    *,
    now: int,
    fresh_producer_id: int | None,
    settings: NodeSettings,
    version: TransactionVersion,
    fences: bool = True,
    effects: tuple[Effect, ...] = (),
) -> TransactionDecision | Refused:
    """Decide the end `target` with its epoch. `fences`: the owner did not ask for it and must be fenced.

    `fresh_producer_id` is needed where the epochs are used up: the next transaction then has another one.
    """
    # Without the fix of KAFKA-19367 the fence and the end raise the epoch by one each.
    raised_by = int(version.renews_identity) + int(fences)
    raised_by = min(raised_by, 1) if settings.fixes.fences_once else raised_by
    if raised_by > 1 and record.producer_epoch + raised_by > INT16_MAX:
        return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "the epoch would turn negative", source="KAFKA-19367")
    rotates = version.renews_identity and record.producer_epoch >= LAST_GRANTED_EPOCH
    rotates = rotates and (settings.fixes.rotates_when_fencing or not fences)
    next_producer_id = NO_PRODUCER_ID
    if rotates:
        if fresh_producer_id is None:
            return NO_PRODUCER_IDS
        next_producer_id = fresh_producer_id
    was_open = record.state is ONGOING
    # An epoch of 32767 was granted to nobody; a request that has it all the same must not overflow the field.
    # An abort without a transaction starts when it ends (prepareAbortOrCommit: noPartitionAdded). The markers
    # carry `client_version`, and partitions check them strictly from 2 on (MARKER_CHECKS).
    prepared = record._replace(
        state=target,
        producer_epoch=min(record.producer_epoch + raised_by, INT16_MAX),
        next_producer_id=next_producer_id,
        partitions=record.partitions if was_open else (),
        start_ms=record.start_ms if was_open else now,
        update_ms=now,
        client_version=version.client_version,
    )
    # The epoch before the end: by it InitProducerId recognises an owner that lost the reply with the new
    # epoch. In versions 0 and 1 a fence leaves none.
    note = LastEpoch(name, NO_PRODUCER_EPOCH) if fences else None
    if version.renews_identity:
        note = LastEpoch(name, record.producer_epoch + raised_by - 1)
    return Decision(((name, prepared),), effects, note)


def complete(state: Transactions, name: str, *, now: int, settings: NodeSettings) -> TransactionDecision:
    """Complete the transaction after its last marker; an exhausted producer id is replaced by the next."""
    record = known_record(state, name)
    assert record is not None, "markers are only written for an id that is known"
    cell = settings.transaction_version.moves[record.state][CoordinatorInput.MARKERS_WRITTEN]
    assert isinstance(cell, TransactionState), "markers are only written for a decided transaction"
    # The epoch stays: PREPARE_* raised it already, so that the markers have it.
    done = record._replace(state=cell, partitions=(), update_ms=now)
    if record.next_producer_id != NO_PRODUCER_ID:
        done = done._replace(
            producer_id=record.next_producer_id,
            producer_epoch=0,
            previous_producer_id=record.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )
    return Decision(((name, done),))


def decide_timeout(
    state: Transactions, name: str, *, now: int, fresh_producer_id: int | None, settings: NodeSettings
) -> TransactionDecision | Refused:
    """Abort a transaction that exceeded transaction.timeout.ms, and fence its producer by a new epoch."""
    record = known_record(state, name)
    assert record is not None, "only an id that is known has a deadline"
    # By the version of the cluster: no request says which one the client implements.
    cell = settings.transaction_version.moves[record.state][CoordinatorInput.TIMEOUT]
    assert isinstance(cell, TransactionState), "only an open transaction has a deadline"
    return prepare(
        name, record, cell, now=now, fresh_producer_id=fresh_producer_id, settings=settings,
        version=settings.transaction_version,
    )  # fmt: skip
