"""EndTxn, and every other end of a transaction: how it is decided, and how it is completed (KIP-98, KIP-890).

Rule: from PREPARE_* on it ends that way, whatever crashes. What an EndTxn does is a cell of the generation's
table; by how much an end raises the epoch is one sum.
"""

from __future__ import annotations

from attrs import evolve

from fencepost.broker.contract import Decision, Effect, Refused, Reply, ReplyTo
from fencepost.broker.transactions.state import (
    COMPLETED,
    LastEpoch,
    Rules,
    TransactionDecision,
    Transactions,
    check_identity,
    find,
    known_record,
)
from fencepost.broker.transactions.tables import (
    BUSY,
    ONGOING,
    Cell,
    CoordinatorInput,
    EndInput,
    TransactionVersion,
    served,
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


def end_transaction(
    state: Transactions,
    request: EndTxn,
    *,
    to: ReplyTo,
    now: int,
    fresh_producer_id: int,
    rules: Rules,
    requested: TransactionVersion,
) -> TransactionDecision | Refused:
    """Decide the transaction: from PREPARE_* on it ends that way, whatever crashes (KIP-98; the table is that
    of the version that the request asks in, or of the cluster's if that is older).
    """
    name = request.transactional_id
    version = served(rules.transaction_version, requested)
    found = find(state, name)
    if isinstance(found, Refused):
        return found
    cell = _end_cell(state, found, request, rules, version)
    if isinstance(cell, Refused):
        return cell
    if cell is found.state:
        return Decision(effects=(Reply(to, body=_identity(found, rules, version)),))
    decision = prepare(
        name, found, cell, now=now, fresh_producer_id=fresh_producer_id, rules=rules, version=version,
        fences=False,
    )  # fmt: skip
    if isinstance(decision, Refused):
        return decision
    ((_, prepared),) = decision.entries
    assert prepared is not None, "an end is a record, not a tombstone"
    return evolve(decision, effects=(Reply(to, body=_identity(prepared, rules, version)),))


def _end_cell(
    state: Transactions, record: TransactionRecord, request: EndTxn, rules: Rules, version: TransactionVersion
) -> TransactionState | Refused:
    # With fencing broken a former owner in the middle of a transaction is no retry: he ends whatever is open.
    is_retry = (
        version.renews_identity
        and _is_retry(record, request)
        and ("fencing" not in rules.broken or record.state in COMPLETED)
    )
    # The table speaks of records that are durable; before that the id is busy, whatever the table says.
    is_pending = request.transactional_id in state.pending
    cell: Cell = BUSY if is_pending else version.end[record.state][_end_input(request.result, is_retry)]
    # A busy id has an identity that is about to change. Where each end renews it, no caller can know the next
    # one yet, so "try again" comes before the question who asks (KAFKA-18464); before KIP-890, after it.
    if not is_retry and not (cell is BUSY and version.renews_identity):
        refused = check_identity(record, request.producer_id, request.producer_epoch, rules)
        if refused is not None:
            return refused
    if isinstance(cell, ErrorCode):
        return Refused(cell, f"{request.transactional_id} is in {record.state.title}")
    return cell


def _end_input(result: TransactionResult, is_retry: bool) -> EndInput:
    if result is TransactionResult.COMMIT:
        return EndInput.COMMIT_RETRY if is_retry else EndInput.COMMIT
    return EndInput.ABORT_RETRY if is_retry else EndInput.ABORT


def _is_retry(record: TransactionRecord, request: EndTxn) -> bool:
    """The identity just before the last end: one epoch less, or, if that was its last, the producer id
    before.
    """
    if request.producer_id == record.producer_id:
        return request.producer_epoch == record.producer_epoch - 1
    rotated = record.producer_epoch == 0 and request.producer_id == record.previous_producer_id
    return rotated and record.state in COMPLETED and request.producer_epoch == LAST_GRANTED_EPOCH


def _identity(record: TransactionRecord, rules: Rules, version: TransactionVersion) -> EndTxnReply:
    """Who the producer is in its next transaction; an older client is not told, for it stays who it is."""
    if not version.renews_identity:
        return EndTxnReply(producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)
    if record.next_producer_id != NO_PRODUCER_ID and rules.fixes.tells_next_producer_id:
        return EndTxnReply(producer_id=record.next_producer_id, producer_epoch=0)
    return EndTxnReply(producer_id=record.producer_id, producer_epoch=record.producer_epoch)


def prepare(
    name: str,
    record: TransactionRecord,
    target: TransactionState,
    *,
    now: int,
    fresh_producer_id: int,
    rules: Rules,
    version: TransactionVersion,
    fences: bool = True,
    effects: tuple[Effect, ...] = (),
) -> TransactionDecision | Refused:
    """PREPARE_*, and its epoch, which the markers carry: the next one if identities are renewed or if this
    fences the owner. The last epoch of a producer id hands over to a fresh id when the transaction completes.
    """
    raised_by = _raised_by(rules, version, fences=fences)
    if raised_by > 1 and record.producer_epoch + raised_by > INT16_MAX:
        return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "the epoch would turn negative (KAFKA-19367)")
    rotates = version.renews_identity and record.producer_epoch >= LAST_GRANTED_EPOCH
    rotates = rotates and (rules.fixes.rotates_when_fencing or not fences)
    was_open = record.state is ONGOING
    prepared = record._replace(
        state=target,
        producer_epoch=min(record.producer_epoch + raised_by, INT16_MAX),
        next_producer_id=fresh_producer_id if rotates else NO_PRODUCER_ID,
        partitions=record.partitions if was_open else (),
        start_ms=record.start_ms if was_open else now,
        update_ms=now,
        client_version=version.client_version,
    )
    last_epoch = _last_epoch(record, version, fences=fences, raised_by=raised_by)
    return Decision(
        entries=((name, prepared),),
        note=None if last_epoch is None else LastEpoch(name, last_epoch),
        effects=effects,
    )


def _raised_by(rules: Rules, version: TransactionVersion, *, fences: bool) -> int:
    """By how much PREPARE_* raises the epoch: a fence and an end each ask for one more (KAFKA-19367)."""
    asked_for = int(version.renews_identity) + int(fences)
    return min(asked_for, 1) if rules.fixes.fences_once else asked_for


def _last_epoch(
    record: TransactionRecord, version: TransactionVersion, *, fences: bool, raised_by: int
) -> int | None:
    """By which epoch a fenced owner is still known once identities are renewed; before, by none."""
    if version.renews_identity:
        return record.producer_epoch + raised_by - 1
    return NO_PRODUCER_EPOCH if fences else None


def complete(state: Transactions, name: str, *, now: int, rules: Rules) -> TransactionDecision:
    """All markers are written: the transaction is over, and a used-up producer id gives way to the next
    one.
    """
    record = known_record(state, name)
    assert record is not None, "markers are only written for an id that is known"
    cell = rules.transaction_version.moves[record.state][CoordinatorInput.MARKERS_WRITTEN]
    assert isinstance(cell, TransactionState), "markers are only written for a decided transaction"
    done = record._replace(state=cell, partitions=(), update_ms=now)
    if record.next_producer_id != NO_PRODUCER_ID:
        done = done._replace(
            producer_id=record.next_producer_id,
            producer_epoch=0,
            previous_producer_id=record.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )
    return Decision(entries=((name, done),))


def abort_timed_out(
    state: Transactions, name: str, *, now: int, fresh_producer_id: int, rules: Rules
) -> TransactionDecision | Refused:
    """Abort on the coordinator's own account, under a new epoch (transaction.timeout.ms)."""
    record = known_record(state, name)
    assert record is not None, "only an id that is known has a deadline"
    cell = rules.transaction_version.moves[record.state][CoordinatorInput.TIMEOUT]
    assert isinstance(cell, TransactionState), "only an open transaction has a deadline"
    return prepare(
        name, record, cell, now=now, fresh_producer_id=fresh_producer_id, rules=rules,
        version=rules.transaction_version,
    )  # fmt: skip
