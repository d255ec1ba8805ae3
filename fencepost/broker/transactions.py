"""The transaction coordinator over one partition of `__transaction_state` (TransactionCoordinator,
TransactionMetadata).

Rule: each function below decides from state, request and clock alone; `apply` takes what the log then
holds. What the log does not hold (the epoch before the last one, markers not answered yet, appends not
durable yet) is a note and dies with the node; before KIP-890 the producer id before a rotation is one too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import attrs
from attrs import evolve
from sortedcontainers import SortedSet

from fencepost.broker.transaction_tables import NEWEST, Cell, CoordinatorInput, EndInput, Generation, served
from fencepost.broker.words import Effect, Refused, Reply, ReplyTo
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    AddPartitionsToTxn,
    AddPartitionsToTxnReply,
    EndTxn,
    EndTxnReply,
    PartitionError,
)
from fencepost.protocol.stored import TransactionRecord
from fencepost.protocol.terms import (
    INT16_MAX,
    LAST_GRANTED_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
    TransactionResult,
    TransactionState,
)
from fencepost.protocol.values import value

PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
COMPLETED: Final = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
RESULT_OF: Final = {
    TransactionState.PREPARE_COMMIT: TransactionResult.COMMIT,
    TransactionState.PREPARE_ABORT: TransactionResult.ABORT,
}


@value
class WriteMarkers:
    """Effect inside the node: the transaction is decided and durable, so its partitions get their markers."""

    transactional_id: str


@value
class Decision:
    """At most one record for the log, and what happens when it, and all that was seen, is durable."""

    transactional_id: str
    record: TransactionRecord | None = attrs.field(kw_only=True, default=None)
    last_epoch: int | None = attrs.field(
        kw_only=True, default=None
    )  # note: the epoch that a lost reply still carries
    effects: tuple[Effect | WriteMarkers, ...] = attrs.field(kw_only=True, default=())


@attrs.define(eq=False)
class Transactions:
    """State of one coordinator. `records` is what the log says; the other dictionaries are notes or derived
    from it.
    """

    coordinator_epoch: int
    records: dict[str, TransactionRecord] = attrs.Factory(dict[str, TransactionRecord])
    deadlines: SortedSet[tuple[int, str]] = attrs.Factory(SortedSet[tuple[int, str]])
    last_epochs: dict[str, int] = attrs.Factory(dict[str, int])
    previous_ids: dict[str, int] = attrs.Factory(dict[str, int])  # where the log does not hold them
    pending: dict[str, int] = attrs.Factory(dict[str, int])
    owed: dict[str, set[TopicPartition]] = attrs.Factory(dict[str, set[TopicPartition]])

    def key_of_state(self) -> tuple[Any, ...]:
        """What the log alone determines."""
        return tuple(sorted(self.records.items(), key=lambda item: item[0]))

    def copy(self) -> Transactions:
        """An independent copy; records are immutable and shared."""
        return evolve(
            self,
            records=dict(self.records),
            deadlines=self.deadlines.copy(),
            last_epochs=dict(self.last_epochs),
            previous_ids=dict(self.previous_ids),
            pending=dict(self.pending),
            owed={name: set(partitions) for name, partitions in self.owed.items()},
        )


@attrs.frozen(kw_only=True)
class Rules:
    """What one node's coordinators go by; `generation` is the one that is finalized in the cluster."""

    generation: Generation = NEWEST
    transaction_max_timeout_ms: int = 900_000
    broken: frozenset[str] = frozenset()


# --- AddPartitionsToTxn ----------------------------------------------------------------------------------


def add_partitions(
    state: Transactions,
    request: AddPartitionsToTxn,
    *,
    to: ReplyTo,
    now: int,
    rules: Rules,
    asked: Generation,
) -> Decision | Refused:
    """Take partitions into the transaction, opening it at need."""
    name = request.transactional_id
    partitions = {partition.key for partition in request.partitions}
    found = _find(state, name)
    if isinstance(found, Refused):
        return found
    if name in state.pending:
        return busy(name)
    cell = rules.generation.moves[found.state][CoordinatorInput.ADD]
    if isinstance(cell, ErrorCode):
        return Refused(cell, f"{name} is in {found.state.title}")
    refused = _check_identity(found, request.producer_id, request.producer_epoch, rules)
    if refused is not None:
        return refused
    reply = Reply(to, body=_added(request))
    if found.state is TransactionState.ONGOING and partitions.issubset(found.partitions):
        return Decision(name, effects=(reply,))
    joined = tuple(sorted(partitions.union(found.partitions)))
    start_ms = found.start_ms if found.state is TransactionState.ONGOING else now
    record = found._replace(
        state=cell, partitions=joined, start_ms=start_ms, update_ms=now,
        client_version=asked.client_version,
    )  # fmt: skip
    return Decision(name, record=record, effects=(reply,))


def verify_partitions(
    state: Transactions, request: AddPartitionsToTxn, *, to: ReplyTo, rules: Rules
) -> Decision | Refused:
    """Say which partitions are in the transaction: a leader asks before it lets an older client's batch in
    (KIP-890 part 1).
    """
    found = _find(state, request.transactional_id)
    if isinstance(found, Refused):
        return found
    refused = _check_identity(found, request.producer_id, request.producer_epoch, rules)
    if refused is not None:
        return refused
    if found.state in PREPARED:
        return busy(request.transactional_id)
    return Decision(request.transactional_id, effects=(Reply(to, body=_verified(request, found)),))


def _find(state: Transactions, name: str) -> TransactionRecord | Refused:
    if not name:
        return Refused(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    record = state.records.get(name)
    if record is None:
        return Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"nobody owns the transactional id {name}")
    return record


def busy(name: str) -> Refused:
    return Refused(ErrorCode.CONCURRENT_TRANSACTIONS, f"the last step of {name} is not finished yet")


def _check_identity(
    record: TransactionRecord, producer_id: int, producer_epoch: int, rules: Rules
) -> Refused | None:
    if "fencing" in rules.broken:
        return None
    if producer_id != record.producer_id:
        return Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"the owner is producer {record.producer_id}")
    if producer_epoch != record.producer_epoch:
        return Refused(ErrorCode.PRODUCER_FENCED, f"the owner's epoch is {record.producer_epoch}")
    return None


def _added(request: AddPartitionsToTxn) -> AddPartitionsToTxnReply:
    return AddPartitionsToTxnReply(
        partitions=tuple(
            PartitionError(topic=p.topic, partition=p.partition, error=ErrorCode.NONE)
            for p in request.partitions
        )
    )


def _verified(request: AddPartitionsToTxn, record: TransactionRecord) -> AddPartitionsToTxnReply:
    def error(key: TopicPartition) -> ErrorCode:
        return ErrorCode.NONE if key in record.partitions else ErrorCode.TRANSACTION_ABORTABLE

    return AddPartitionsToTxnReply(
        partitions=tuple(
            PartitionError(topic=p.topic, partition=p.partition, error=error(p.key))
            for p in request.partitions
        )
    )


# --- EndTxn ----------------------------------------------------------------------------------------------


def end_transaction(
    state: Transactions,
    request: EndTxn,
    *,
    to: ReplyTo,
    now: int,
    fresh_producer_id: int,
    rules: Rules,
    asked: Generation,
) -> Decision | Refused:
    """Decide the transaction: from PREPARE_* on it ends that way, whatever crashes (KIP-98; the table is that
    of the generation that the request asks in, or of the cluster's if that is older).
    """
    name = request.transactional_id
    generation = served(rules.generation, asked)
    found = _find(state, name)
    if isinstance(found, Refused):
        return found
    cell = _end_cell(state, found, request, rules, generation)
    if isinstance(cell, Refused):
        return cell
    if cell is found.state:
        return Decision(name, effects=(Reply(to, body=_identity(found, generation)),))
    decision = prepare(
        name, found, cell, now=now, fresh_producer_id=fresh_producer_id, generation=generation, fences=False
    )
    assert decision.record is not None, "a transaction that ends writes its decision"
    effects = (Reply(to, body=_identity(decision.record, generation)), *decision.effects)
    return Decision(name, record=decision.record, last_epoch=decision.last_epoch, effects=effects)


def _end_cell(
    state: Transactions, record: TransactionRecord, request: EndTxn, rules: Rules, generation: Generation
) -> TransactionState | Refused:
    is_busy = request.transactional_id in state.pending or record.state in PREPARED
    if is_busy and generation.renews_identity:  # whoever asks: the identity is about to change (KAFKA-18464)
        return busy(request.transactional_id)
    # With fencing broken a former owner in the middle of a transaction is no retry: he ends whatever is open.
    is_retry = (
        generation.renews_identity
        and _is_retry(record, request)
        and ("fencing" not in rules.broken or record.state in COMPLETED)
    )
    if not is_retry and (
        refused := _check_identity(record, request.producer_id, request.producer_epoch, rules)
    ):
        return refused
    if is_busy:
        return busy(request.transactional_id)
    cell: Cell = generation.end[record.state][_end_input(request.result, is_retry=is_retry)]
    return (
        Refused(cell, f"{request.transactional_id} is in {record.state.title}")
        if isinstance(cell, ErrorCode)
        else cell
    )


def _end_input(result: TransactionResult, *, is_retry: bool) -> EndInput:
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


def _identity(record: TransactionRecord, generation: Generation) -> EndTxnReply:
    """Who the producer is in its next transaction; an older client is not told, for it stays who it is."""
    if not generation.renews_identity:
        return EndTxnReply(producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)
    if record.next_producer_id != NO_PRODUCER_ID:
        return EndTxnReply(producer_id=record.next_producer_id, producer_epoch=0)
    return EndTxnReply(producer_id=record.producer_id, producer_epoch=record.producer_epoch)


def prepare(
    name: str,
    record: TransactionRecord,
    target: TransactionState,
    *,
    now: int,
    fresh_producer_id: int,
    generation: Generation,
    fences: bool = True,
    effects: tuple[Effect, ...] = (),
) -> Decision:
    """PREPARE_*, and its epoch, which the markers carry: the next one if identities are renewed or if this
    fences the owner. The last epoch of a producer id hands over to a fresh id when the transaction completes.
    """
    raises = generation.renews_identity or fences
    rotates = generation.renews_identity and record.producer_epoch >= LAST_GRANTED_EPOCH
    was_open = record.state is TransactionState.ONGOING
    prepared = record._replace(
        state=target,
        producer_epoch=min(record.producer_epoch + 1, INT16_MAX) if raises else record.producer_epoch,
        next_producer_id=fresh_producer_id if rotates else NO_PRODUCER_ID,
        partitions=record.partitions if was_open else (),
        start_ms=record.start_ms if was_open else now,
        update_ms=now,
        client_version=generation.client_version,
    )
    return Decision(
        name,
        record=prepared,
        last_epoch=_last_epoch(record, generation, fences=fences),
        effects=(*effects, WriteMarkers(name)),
    )


def _last_epoch(record: TransactionRecord, generation: Generation, *, fences: bool) -> int | None:
    """By which epoch a fenced owner is still known once identities are renewed; before, by none."""
    if generation.renews_identity:
        return record.producer_epoch
    return NO_PRODUCER_EPOCH if fences else None


def complete(state: Transactions, name: str, *, now: int, rules: Rules) -> Decision:
    """All markers are written: the transaction is over, and a used-up producer id gives way to the next
    one.
    """
    record = state.records[name]
    cell = rules.generation.moves[record.state][CoordinatorInput.MARKERS_WRITTEN]
    assert isinstance(cell, TransactionState), "markers are only written for a decided transaction"
    done = record._replace(state=cell, partitions=(), update_ms=now)
    if record.next_producer_id != NO_PRODUCER_ID:
        done = done._replace(
            producer_id=record.next_producer_id,
            producer_epoch=0,
            previous_producer_id=record.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )
    return Decision(name, record=done)


def without_history(state: Transactions, name: str, record: TransactionRecord) -> TransactionRecord:
    """The record as a log of old holds it (TransactionLogValue version 0); what it leaves out becomes a
    note.
    """
    if record.previous_producer_id != NO_PRODUCER_ID:
        state.previous_ids[name] = record.previous_producer_id
    return record._replace(previous_producer_id=NO_PRODUCER_ID)


def timed_out(state: Transactions, *, now: int) -> Iterator[str]:
    """Transactional ids whose transaction has been open for longer than its timeout; one that is busy is
    for the next scan.
    """
    for deadline, name in state.deadlines:
        if deadline >= now:
            return
        if name not in state.pending:
            yield name


def abort_timed_out(
    state: Transactions, name: str, *, now: int, fresh_producer_id: int, rules: Rules
) -> Decision:
    """Abort on the coordinator's own account, under a new epoch (transaction.timeout.ms)."""
    record = state.records[name]
    cell = rules.generation.moves[record.state][CoordinatorInput.TIMEOUT]
    assert isinstance(cell, TransactionState), "only an open transaction has a deadline"
    return prepare(
        name, record, cell, now=now, fresh_producer_id=fresh_producer_id, generation=rules.generation
    )


# --- Changing state --------------------------------------------------------------------------------------


def apply(state: Transactions, entries: Iterable[tuple[str, TransactionRecord | None]]) -> None:
    """The log now holds these records, live and at recovery; None is a tombstone."""
    for name, record in entries:
        before = state.records.pop(name, None)
        if before is not None and before.state is TransactionState.ONGOING:
            state.deadlines.discard((before.start_ms + before.timeout_ms, name))
        if record is None:
            state.last_epochs.pop(name, None)
            state.previous_ids.pop(name, None)
            continue
        state.records[name] = record
        if record.state is TransactionState.ONGOING:
            state.deadlines.add((record.start_ms + record.timeout_ms, name))
