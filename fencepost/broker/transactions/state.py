"""The state of a transaction coordinator over one partition of `__transaction_state` (TransactionMetadata).

Rule: only `apply` changes what the log says. Notes are changed by the functions whose docstrings begin with
"Note", `pending` also by handlers.py, and `pending_markers` by markers.py; `apply` drops those about the
owner of a deleted id. `check_identity` fences zombies.
"""

# `records` is what the log says. Notes are lost at a restart, as in Kafka's TransactionMetadata: the last
# epoch before the current one (recognises a retried InitProducerId), unanswered markers, and the offset up to
# which an id waits for its record to be durable. Each may be lost without harm: the retry is then fenced, the
# marker is sent again, and a client without a reply asks the next coordinator. `other_ids`, the producer ids
# before and after a rotation, exists only where the log does not store them; to lose it is a bug that Kafka
# fixed later (KAFKA-20310).

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

import attrs

from fencepost.broker.contract import Decision, Refused, Reply, ReplyTo
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.tables import ONGOING
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import Ignored, Note
from fencepost.protocol.terms import (
    INT64_MAX,
    NO_PRODUCER_ID,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    coordinator_partition,
)
from fencepost.protocol.transaction_log import TransactionRecord

IDENTITY_SOURCE: Final = "KIP-98, TransactionCoordinator.endTransaction"
# No log end reaches this offset, so an id that is pending until then stays busy (`Unwritable`).
NEVER_DURABLE: Final = INT64_MAX


@lru_cache(maxsize=1024)  # called several times per transaction
def key_of_id(transactional_id: str, partition_count: int) -> TopicPartition:
    """The partition of `__transaction_state` whose leader coordinates the id."""
    return TopicPartition(TRANSACTION_STATE_TOPIC, coordinator_partition(transactional_id, partition_count))


TransactionEntry = tuple[str, TransactionRecord | None]
TransactionDecision = Decision[TransactionEntry]


class LastEpoch(NamedTuple):
    """Note: the epoch of a caller that lost the last reply (TransactionMetadata.lastProducerEpoch)."""

    transactional_id: str
    epoch: int


class Unwritable(NamedTuple):
    """Note: the id stays busy until its coordinator moves. Kafka reserves it for a record that it then cannot
    write, and never releases it.
    """

    transactional_id: str


class OtherIds(NamedTuple):
    """The producer id before the last rotation, and the one after the next."""

    previous: int
    next: int


NO_OTHER_IDS: Final = OtherIds(NO_PRODUCER_ID, NO_PRODUCER_ID)


@attrs.define(eq=False)
class Transactions:
    """State of one coordinator. `records` comes from the log, and `deadlines` from the records."""

    coordinator_epoch: Note[int]
    records: dict[str, TransactionRecord] = attrs.Factory(dict[str, TransactionRecord])
    deadlines: Ignored[dict[str, int]] = attrs.Factory(dict[str, int])  # when an open transaction times out
    last_epochs: Note[dict[str, int]] = attrs.Factory(dict[str, int])
    other_ids: Note[dict[str, OtherIds]] = attrs.Factory(
        dict[str, OtherIds]
    )  # where the log does not store them
    # The log end after each id's last record, until it is durable (TransactionMetadata.pendingState).
    pending: Note[dict[str, int]] = attrs.Factory(dict[str, int])
    pending_markers: Note[dict[str, set[TopicPartition]]] = attrs.Factory(dict[str, set[TopicPartition]])


# --- what every request to a coordinator checks first ------------------------------------------------------


def find(state: Transactions, name: str) -> TransactionRecord | Refused:
    """The record of an id that has an owner."""
    if not name:
        return Refused(ErrorCode.INVALID_REQUEST, "the transactional id is empty", source=IDENTITY_SOURCE)
    record = known_record(state, name)
    # Also where the id has expired: its former producer cannot go on either.
    if record is None:
        return Refused(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"the transactional id {name} has no owner; call InitProducerId first",
            source=IDENTITY_SOURCE,
        )
    return record


def busy(name: str) -> Refused:
    return Refused(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"the last step of {name} is not finished yet",
        source="KIP-98, TransactionMetadata.pendingState",
    )


def unwritable(name: str, to: ReplyTo) -> TransactionDecision:
    """The decision on a request that passed every check, but whose record the log cannot store
    (`NodeSettings.can_store_transactions`). Kafka finds out when it writes the record
    (TransactionLog.valueToBytes).
    """
    return Decision(effects=(Reply(to, error=ErrorCode.UNSUPPORTED_VERSION),), note=Unwritable(name))


def check_identity(
    record: TransactionRecord, producer_id: int, producer_epoch: int, settings: NodeSettings
) -> Refused | None:
    """Why this is not the owner at its current epoch, or None. Here the coordinator fences zombies."""
    if "fencing" in settings.broken:
        return None
    # The id comes first: an epoch says nothing about another producer id.
    if producer_id != record.producer_id:
        return Refused(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"the owner is producer {record.producer_id}",
            source=IDENTITY_SOURCE,
        )
    # A higher epoch is refused, too: only this coordinator raises epochs, and it has granted none above.
    if producer_epoch != record.producer_epoch:
        return Refused(
            ErrorCode.PRODUCER_FENCED, f"the owner's epoch is {record.producer_epoch}", source=IDENTITY_SOURCE
        )
    return None


# --- notes and deadlines ----------------------------------------------------------------------------------


def without_other_ids(record: TransactionRecord) -> TransactionRecord:
    """The record as TransactionLogValue version 0 stores it."""
    return record._replace(previous_producer_id=NO_PRODUCER_ID, next_producer_id=NO_PRODUCER_ID)


def remember_other_ids(state: Transactions, name: str, record: TransactionRecord) -> None:
    """Note the fields that `without_other_ids` omits."""
    ids = OtherIds(record.previous_producer_id, record.next_producer_id)
    if ids != state.other_ids.get(name, NO_OTHER_IDS):
        state.other_ids[name] = ids


def take_note(state: Transactions, note: LastEpoch | Unwritable) -> None:
    """Note what a decision remembers in addition to its record."""
    if isinstance(note, LastEpoch):
        state.last_epochs[note.transactional_id] = note.epoch
    else:
        state.pending[note.transactional_id] = NEVER_DURABLE


def clear_pending(state: Transactions, offset: int) -> list[str]:
    """Note that the log is durable up to `offset`. Returns the ids whose decision became durable by this."""
    decided: list[str] = []
    for name, end in list(state.pending.items()):
        if end <= offset:
            del state.pending[name]
            # The id is not there if what became durable is its tombstone.
            if name in state.records and state.records[name].state.is_prepared:
                decided.append(name)
    return decided


def known_record(state: Transactions, name: str) -> TransactionRecord | None:
    """The record of an id, completed from the notes."""
    record = state.records.get(name)
    if record is None or name not in state.other_ids:
        return record
    ids = state.other_ids[name]
    return record._replace(previous_producer_id=ids.previous, next_producer_id=ids.next)


def timed_out(state: Transactions, *, now: int) -> list[str]:
    """Transactional ids whose transaction exceeded its timeout, the oldest deadline first; a busy id is left
    for the next scan.
    """
    # Strictly after the deadline (TransactionStateManager.timedOutTransactions); ids and producers expire at
    # theirs.
    late = [(due_ms, name) for name, due_ms in state.deadlines.items() if due_ms < now]
    return [name for _, name in sorted(late) if name not in state.pending]


# --- Changing state --------------------------------------------------------------------------------------


def apply(state: Transactions, entries: Iterable[TransactionEntry]) -> None:
    """The log now holds these records, live and at recovery; None is a tombstone."""
    for name, record in entries:
        if record is not None and record.state is ONGOING:
            state.deadlines[name] = record.start_ms + record.timeout_ms
        elif name in state.deadlines:
            del state.deadlines[name]
        if record is not None:
            state.records[name] = record
        else:
            state.records.pop(name, None)
            # An id that comes back gets a new producer, and these are about the old one.
            state.last_epochs.pop(name, None)
            state.other_ids.pop(name, None)
