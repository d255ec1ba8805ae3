"""The judge's own record of every transaction: what the coordinators' logs say, durable or not yet.

Rule: a transaction is what lies between two ends of one transactional id; its identity, partitions and
decision are read from the log's records, never from a coordinator's notes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Final

import attrs

from fencepost.protocol.terms import (
    INT16_MAX,
    NO_PRODUCER_ID,
    TopicPartition,
    TransactionResult,
    TransactionState,
)
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.simulator.judges.anomalies import Looks, Rule
from fencepost.simulator.judges.partition_record import PartitionRecord
from fencepost.simulator.judges.step_rules import (
    DURABLE_DECISION,
    FENCED,
    HANGING,
    IDENTITY_ONCE,
    ONE_DECISION,
)
from fencepost.simulator.judges.violation import Violation

_S = TransactionState
_EMPTY: Final = _S.EMPTY
_ONGOING: Final = _S.ONGOING
_ABORTS: Final = (_EMPTY, _ONGOING, _S.PREPARE_ABORT)
FOLLOWERS: Final[dict[TransactionState, tuple[TransactionState, ...]]] = {
    _EMPTY: _ABORTS,
    _ONGOING: (_ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT),
    _S.PREPARE_COMMIT: (_S.COMPLETE_COMMIT,),
    _S.PREPARE_ABORT: (_S.COMPLETE_ABORT,),
    _S.COMPLETE_COMMIT: _ABORTS,
    _S.COMPLETE_ABORT: _ABORTS,
}
"""What a log may say next of a transactional id: the judge's own table, whatever the coordinator's says."""

DECISIONS: Final = {_S.PREPARE_COMMIT: TransactionResult.COMMIT, _S.PREPARE_ABORT: TransactionResult.ABORT}
_COMPLETE: Final = (_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)
RETIRED: Final = INT16_MAX + 1  # above every epoch of a producer id that gave way to another one


Entry = tuple[int, str, TransactionRecord]
"""One record of a coordinator's log: the offset behind it, the transactional id, and what it says of it."""


@attrs.define(eq=False)
class Transaction:
    """One transaction. `partitions`, `decision` and `is_prepared` count once they are durable."""

    name: str
    producer_id: int
    producer_epoch: int
    renews_identity: bool  # its end raises the epoch, so that its sequences began at 0
    partitions: tuple[TopicPartition, ...] = ()
    decision: TransactionResult | None = None
    is_prepared: bool = False


@attrs.define(eq=False)
class TransactionBook:
    """Every transactional id. What a log lost is taken back by reading the rest again."""

    marks: Looks
    partitions: Mapping[TopicPartition, PartitionRecord]
    entries: defaultdict[TopicPartition, list[Entry]] = attrs.Factory(lambda: defaultdict(list[Entry]))
    waiting: defaultdict[TopicPartition, deque[Entry]] = attrs.Factory(lambda: defaultdict(deque[Entry]))
    latest: dict[str, TransactionRecord] = attrs.Factory(dict[str, TransactionRecord])
    durable_records: dict[str, TransactionRecord] = attrs.Factory(dict[str, TransactionRecord])
    current: dict[str, Transaction] = attrs.Factory(dict[str, Transaction])
    written_by: dict[int, Transaction] = attrs.Factory(dict[int, Transaction])  # the newest, by producer id
    ended: dict[tuple[int, int], Transaction] = attrs.Factory(dict[tuple[int, int], Transaction])
    marked_as: dict[tuple[int, int], Transaction] = attrs.Factory(dict[tuple[int, int], Transaction])
    homes: dict[str, TopicPartition] = attrs.Factory(dict[str, TopicPartition])
    first_markers: dict[tuple[int, int], tuple[TopicPartition, TransactionResult]] = attrs.Factory(
        dict[tuple[int, int], tuple[TopicPartition, TransactionResult]]
    )
    """What was first said of each identity's transaction, whatever its coordinator takes back."""
    owners: dict[int, str] = attrs.Factory(dict[int, str])  # of producer ids
    floors: dict[int, int] = attrs.Factory(dict[int, int])  # the oldest epoch that is not fenced

    # --- the coordinator's log ------------------------------------------------------------------------------

    def enter(self, key: TopicPartition, entry: Entry) -> None:
        """A coordinator decided; its record entered the log."""
        _, name, record = entry
        before = self.latest.get(name)
        self.marks[DURABLE_DECISION.name] += 1
        if before is not None:
            self._judge_move(name, before, record)
        self._judge_identity(name, before, record)
        self._note(key, entry)

    def _note(self, key: TopicPartition, entry: Entry) -> None:
        _, name, record = entry
        before = self.latest.get(name)
        self.latest[name] = record
        self.entries[key].append(entry)
        self.waiting[key].append(entry)
        self.homes[name] = key
        self.owners[record.producer_id] = name
        if record.next_producer_id != NO_PRODUCER_ID:
            self.owners[record.next_producer_id] = name
        state = record.state
        if state is _ONGOING:
            if before is None or before.state is not _ONGOING:
                made = Transaction(
                    name, record.producer_id, record.producer_epoch, record.client_version >= 2
                )
                self.current[name] = self.written_by[record.producer_id] = made
        elif state in DECISIONS:
            self._decide(name, before, record)

    def _decide(self, name: str, before: TransactionRecord | None, record: TransactionRecord) -> None:
        if before is None or before.state is not _ONGOING:  # an end of nothing, which raises the epoch
            epoch = record.producer_epoch if before is None else before.producer_epoch
            self.current[name] = Transaction(name, record.producer_id, epoch, record.client_version >= 2)
        transaction = self.current[name]
        transaction.decision = DECISIONS[record.state]
        self.ended[transaction.producer_id, transaction.producer_epoch] = transaction
        identity = record.producer_id, record.producer_epoch
        self.marked_as[identity] = transaction
        if not transaction.renews_identity:  # the next transaction has the same
            self.first_markers.pop(identity, None)

    def durable(self, key: TopicPartition, offset: int) -> None:
        """The coordinator learned that its log is safe up to `offset`."""
        waiting = self.waiting.get(key)
        while waiting and waiting[0][0] <= offset:
            _, name, record = waiting.popleft()
            before = self.durable_records.get(name)
            self.durable_records[name] = record
            if record.state is _ONGOING:
                self.current[name].partitions = record.partitions
            elif record.state in DECISIONS:
                self.current[name].is_prepared = True
            elif record.state is _EMPTY:
                self.floors[record.producer_id] = record.producer_epoch
            if before is not None and before.producer_id != record.producer_id:
                self.floors[before.producer_id] = RETIRED

    def cut(self, key: TopicPartition, end: int) -> None:
        """The log ends at `end` now: whatever was behind it was never said."""
        entered = self.entries[key]
        kept = [entry for entry in entered if entry[0] <= end]
        if len(kept) < len(entered):
            names = {name: None for _, name, _ in entered}
            self.waiting[key], self.entries[key] = deque(), []
            for name in names:
                for known in (self.latest, self.durable_records, self.current):
                    known.pop(name, None)
            for entry in kept:
                self._note(key, entry)
                self.durable(key, entry[0])
        self.durable(key, end)

    # --- rules of the coordinator's log ---------------------------------------------------------------------

    def _judge_move(self, name: str, before: TransactionRecord, record: TransactionRecord) -> None:
        if record.state not in FOLLOWERS[before.state]:
            raise Violation(
                DURABLE_DECISION.name, f"{name} went from {before.state.title} to {record.state.title}"
            )
        if record.state not in _COMPLETE:
            return
        for where in before.partitions:
            log = self.partitions.get(where)
            if log is not None and not _is_marked(log, before):
                raise Violation(
                    DURABLE_DECISION.name,
                    f"{name} is {record.state.title} without a durable marker of epoch "
                    f"{before.producer_epoch} in {where}",
                )

    def _judge_identity(self, name: str, before: TransactionRecord | None, record: TransactionRecord) -> None:
        producer_id, epoch = record.producer_id, record.producer_epoch
        if before is not None and before.producer_id == producer_id:
            renews = record.state in DECISIONS and record.client_version >= 2
            if epoch < before.producer_epoch + renews:
                raise Violation(
                    IDENTITY_ONCE.name,
                    f"{name}: epoch {before.producer_epoch} of producer {producer_id} was followed by "
                    f"{epoch} in {record.state.title}",
                )
        else:
            self._judge_fresh(name, producer_id, before)
        if record.next_producer_id != NO_PRODUCER_ID:
            self._judge_fresh(name, record.next_producer_id, before)

    def _judge_fresh(self, name: str, producer_id: int, before: TransactionRecord | None) -> None:
        """A producer id that is new here is new everywhere."""
        self.marks[IDENTITY_ONCE.name] += 1
        promised = before is not None and before.next_producer_id == producer_id
        owner = self.owners.get(producer_id)
        if owner is not None and not promised:
            raise Violation(
                IDENTITY_ONCE.name, f"{name} got producer id {producer_id}, which {owner} had before"
            )

    # --- rules of other logs --------------------------------------------------------------------------------

    def judge_write(self, where: TopicPartition, producer_id: int, producer_epoch: int) -> Transaction:
        """Before a transactional batch enters: a marker will come for it. Returns its transaction."""
        self.marks[HANGING.name] += 1
        transaction = self.written_by.get(producer_id)
        if transaction is None or (
            transaction.producer_epoch != producer_epoch or where not in transaction.partitions
        ):
            held = "none" if transaction is None else f"epoch {transaction.producer_epoch}"
            raise Violation(
                HANGING.name,
                f"{where}: a batch of producer {producer_id} epoch {producer_epoch} entered, and its "
                f"coordinator has no transaction of it there (has {held})",
            )
        record = self.latest[transaction.name]
        if transaction.is_prepared and record.state in _COMPLETE:
            raise Violation(
                HANGING.name,
                f"{where}: a batch of producer {producer_id} epoch {producer_epoch} entered, and "
                f"{transaction.name} is {record.state.title}",
            )
        return transaction

    def judge_fenced(self, where: TopicPartition, producer_id: int, producer_epoch: int) -> None:
        """Before any batch enters: nobody newer was let in as the owner."""
        floor = self.floors.get(producer_id)
        if floor is None:
            return
        self.marks[FENCED.name] += 1
        if producer_epoch < floor:
            raise Violation(
                FENCED.name,
                f"{where}: a batch of producer {producer_id} epoch {producer_epoch} entered, and a newer "
                f"owner has epoch {floor}",
            )

    def judge_marker(
        self, where: TopicPartition, identity: tuple[int, int], result: TransactionResult
    ) -> None:
        """Before a marker enters: others of its transaction say the same, and that is decided, durably."""
        first = self.first_markers.setdefault(identity, (where, result))
        self.marks[ONE_DECISION.name] += first[0] != where
        if first[1] is not result:
            raise _wrong(ONE_DECISION, where, identity, result, f"{first[0]} has {first[1].name}")
        self.marks[DURABLE_DECISION.name] += 1
        transaction = self.marked_as.get(identity)
        if transaction is None or not transaction.is_prepared:
            raise _wrong(DURABLE_DECISION, where, identity, result, "no durable decision")
        if transaction.decision is not result:
            assert transaction.decision is not None, "a durable decision is one"
            decision = f"the decision is {transaction.decision.name}"
            raise _wrong(DURABLE_DECISION, where, identity, result, decision)


def _wrong(
    rule: Rule, where: TopicPartition, identity: tuple[int, int], result: TransactionResult, found: str
) -> Violation:
    """A marker that should not be there, and what speaks against it."""
    said = f"{where}: {result.name} marker of producer {identity[0]} epoch {identity[1]}"
    return Violation(rule.name, f"{said}, and {found}")


def _is_marked(log: PartitionRecord, decided: TransactionRecord) -> bool:
    """Whether the last marker of this producer is the one that was decided, and durable; one that came again,
    as after a change of coordinators, need not be.
    """
    marked = log.marked.get(decided.producer_id)
    return (
        marked is not None
        and marked.offset < log.high_watermark
        and marked.producer_epoch == decided.producer_epoch
        and marked.result is DECISIONS[decided.state]
        and decided.producer_id not in log.current_txn_first_offset
    )
