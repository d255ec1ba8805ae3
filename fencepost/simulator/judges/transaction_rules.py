"""The white box's own record of every transaction, and the rules of decisions, identities and fencing (I4 to
I7, I13).

It is read from the records of `__transaction_state`, never from a coordinator's memory. A record goes through
two stages, and each rule asks for one of them: it *enters* when the coordinator decides it, and it is
*durable* when the log is replicated up to it. Markers may follow only a durable PREPARE_*, a batch may enter
only where a durable ONGOING record has its partition, and a state may never follow another that the table
FOLLOWERS does not name, durable or not.

    record   ONGOING ─────────▶ PREPARE_COMMIT ─────────▶ COMPLETE_COMMIT
    durable        ▲ batches enter          ▲ markers enter        ▲ only after every marker is durable
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Final, NamedTuple

import attrs

from fencepost.log_model.transactions import FOLLOWERS, Identity, lowest_epoch_after
from fencepost.protocol.batches import Marker
from fencepost.protocol.terms import (
    DECISIONS,
    INT16_MAX,
    NO_PRODUCER_ID,
    TopicPartition,
    TransactionResult,
    TransactionState,
)
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.simulator.judges import rules
from fencepost.simulator.judges.partition_rules import PartitionRecord
from fencepost.simulator.judges.rules import Exercised, Rule, Violation

_EMPTY: Final = TransactionState.EMPTY
_ONGOING: Final = TransactionState.ONGOING
_RENEWS_IDENTITY: Final = 2  # the client's transaction version from which each end raises the epoch (KIP-890)
RETIRED: Final = INT16_MAX + 1  # above every epoch of a producer id that was replaced, or has expired


class BookEntry(NamedTuple):
    """One record of a coordinator's log, the offset after it, and the leader epoch of the coordinator that
    decided it. The record None is the tombstone of an id that expired.
    """

    end_offset: int
    name: str
    record: TransactionRecord | None
    leader_epoch: int


@attrs.define(eq=False)
class JudgedTransaction:
    """One transaction. `partitions`, `decision` and `is_prepared` count once they are durable.
    `decided_under` is the leader epoch of the coordinator that decided it.
    """

    name: str
    producer_id: int
    producer_epoch: int
    renews_identity: bool  # its end raises the epoch, so that its sequences began at 0
    partitions: tuple[TopicPartition, ...] = ()
    decision: TransactionResult | None = None
    is_prepared: bool = False
    decided_under: int = -1

    @property
    def identity(self) -> Identity:
        return self.producer_id, self.producer_epoch


@attrs.define(eq=False)
class TransactionBook:
    """Every transactional id. When a log loses its tail, the rest of it is read again."""

    exercised: Exercised
    partitions: Mapping[TopicPartition, PartitionRecord]
    entries: defaultdict[TopicPartition, list[BookEntry]] = attrs.Factory(
        lambda: defaultdict(list[BookEntry])
    )
    waiting: defaultdict[TopicPartition, deque[BookEntry]] = attrs.Factory(
        lambda: defaultdict(deque[BookEntry])
    )
    latest: dict[str, TransactionRecord] = attrs.Factory(dict[str, TransactionRecord])
    durable_records: dict[str, TransactionRecord] = attrs.Factory(dict[str, TransactionRecord])
    current: dict[str, JudgedTransaction] = attrs.Factory(dict[str, JudgedTransaction])
    written_by: dict[int, JudgedTransaction] = attrs.Factory(dict[int, JudgedTransaction])
    """The newest transaction, by producer id."""
    ended: dict[Identity, JudgedTransaction] = attrs.Factory(dict[Identity, JudgedTransaction])
    """By the identity that wrote it."""
    marked_as: dict[Identity, JudgedTransaction] = attrs.Factory(dict[Identity, JudgedTransaction])
    """By the identity that its markers have: the next epoch where each end raises it."""
    homes: dict[str, TopicPartition] = attrs.Factory(dict[str, TopicPartition])
    first_markers: dict[tuple[int, int], tuple[TopicPartition, TransactionResult]] = attrs.Factory(
        dict[tuple[int, int], tuple[TopicPartition, TransactionResult]]
    )
    """The first marker of each identity's transaction, even if its coordinator loses the decision later."""
    deleted: set[str] = attrs.Factory(set[str])  # names of topics, even if they were created again
    owners: dict[int, str] = attrs.Factory(dict[int, str])  # of producer ids
    floors: dict[int, int] = attrs.Factory(dict[int, int])  # the oldest epoch that is not fenced

    # --- the coordinator's log ------------------------------------------------------------------------------

    def enter(self, key: TopicPartition, entry: BookEntry) -> None:
        """A coordinator decided; its record entered the log."""
        name, record = entry.name, entry.record
        before = self.latest.get(name)
        if record is not None:
            self.exercised[rules.DURABLE_DECISION.name] += 1
            if before is not None:
                self._judge_step(name, before, record)
            self._judge_identity(name, before, record)
        self._note(key, entry, before)

    def judge_expiry(self, name: str, *, expires_after_ms: int, now_ms: int) -> None:
        """I19, before the tombstone of an id enters: it was unused for long enough, by the clock of its
        coordinator.
        """
        self.exercised[rules.EXPIRY.name] += 1
        before = self.latest.get(name)
        if before is None:
            raise rules.EXPIRY.broken(f"{name} expired, but the log has no record of it")
        if before.state is not _EMPTY and not before.state.is_complete:
            raise rules.EXPIRY.broken(f"{name} expired while it was {before.state.title}")
        if before.update_ms > now_ms - expires_after_ms:
            raise rules.EXPIRY.broken(
                f"{name} expired at {now_ms} ms, and its last record is of {before.update_ms} ms: it should "
                f"have been kept for {expires_after_ms} ms"
            )

    def _note(self, key: TopicPartition, entry: BookEntry, before: TransactionRecord | None) -> None:
        name, record = entry.name, entry.record
        self.entries[key].append(entry)
        self.waiting[key].append(entry)
        self.homes[name] = key
        if record is None:
            self.latest.pop(name, None)
            return
        self.latest[name] = record
        self.owners[record.producer_id] = name
        if record.next_producer_id != NO_PRODUCER_ID:
            # It is promised from now on, and first used after the end of the transaction (KIP-890).
            self.owners[record.next_producer_id] = name
        state = record.state
        if state is _ONGOING:
            if before is None or before.state is not _ONGOING:
                made = JudgedTransaction(
                    name, record.producer_id, record.producer_epoch, record.client_version >= _RENEWS_IDENTITY
                )
                self.current[name] = self.written_by[record.producer_id] = made
        elif state.is_prepared:
            self._decide(entry, record, before)

    def _decide(self, entry: BookEntry, record: TransactionRecord, before: TransactionRecord | None) -> None:
        name = entry.name
        if before is None or before.state is not _ONGOING:  # an end of nothing, which raises the epoch
            epoch = record.producer_epoch if before is None else before.producer_epoch
            self.current[name] = JudgedTransaction(
                name, record.producer_id, epoch, record.client_version >= _RENEWS_IDENTITY
            )
        transaction = self.current[name]
        transaction.decision = DECISIONS[record.state]
        transaction.decided_under = entry.leader_epoch
        self.ended[transaction.producer_id, transaction.producer_epoch] = transaction
        identity = record.producer_id, record.producer_epoch
        self.marked_as[identity] = transaction
        if not transaction.renews_identity:  # the next transaction has the same
            self.first_markers.pop(identity, None)

    def durable(self, key: TopicPartition, offset: int) -> None:
        """The coordinator learned that its log is safe up to `offset`."""
        waiting = self.waiting.get(key)
        while waiting and waiting[0].end_offset <= offset:
            _, name, record, _ = waiting.popleft()
            before = self.durable_records.pop(name, None)
            if record is None:
                if before is not None:
                    self.floors[before.producer_id] = RETIRED
                continue
            self.durable_records[name] = record
            if record.state is _ONGOING:
                self.current[name].partitions = record.partitions
            elif record.state.is_prepared:
                self.current[name].is_prepared = True
            elif record.state is _EMPTY:
                # Only InitProducerId writes EMPTY, and once that is durable, another owner is admitted.
                self.floors[record.producer_id] = record.producer_epoch
            if before is not None and before.producer_id != record.producer_id:
                self.floors[before.producer_id] = RETIRED

    def cut(self, key: TopicPartition, end: int) -> None:
        """The log ends at `end` now: records after it never were there."""
        entered = self.entries[key]
        kept = [entry for entry in entered if entry.end_offset <= end]
        if len(kept) < len(entered):
            names = {entry.name: None for entry in entered}
            # All names of this log are read anew: the state of each follows from all its entries.
            self.waiting[key], self.entries[key] = deque(), []
            for name in names:
                for known in (self.latest, self.durable_records, self.current):
                    known.pop(name, None)
            for entry in kept:
                # Without its rules: it was judged when it entered.
                self._note(key, entry, self.latest.get(entry.name))
                self.durable(key, entry.end_offset)
        self.durable(key, end)

    # --- rules of the coordinator's log ---------------------------------------------------------------------

    def _judge_step(self, name: str, before: TransactionRecord, record: TransactionRecord) -> None:
        if record.state not in FOLLOWERS[before.state]:
            raise rules.DURABLE_DECISION.broken(
                f"{name} went from {before.state.title} to {record.state.title}"
            )
        if before.state is _ONGOING is record.state and (
            (before.start_ms, before.timeout_ms) != (record.start_ms, record.timeout_ms)
        ):
            raise rules.TIMEOUT.broken(
                f"{name} is open since {before.start_ms} ms for {before.timeout_ms} ms, and then since "
                f"{record.start_ms} ms for {record.timeout_ms} ms"
            )
        if not record.state.is_complete:
            return
        if record.partitions:
            raise rules.DURABLE_DECISION.broken(
                f"{name} is {record.state.title} and keeps {', '.join(map(str, record.partitions))}"
            )
        for where in before.partitions:
            log = self.partitions.get(where)
            # A partition that was deleted gets no marker, and none is missed, nor in a new one of its name.
            if log is not None and where.topic not in self.deleted and not _is_marked(log, before):
                raise rules.DURABLE_DECISION.broken(
                    f"{name} is {record.state.title} without a durable marker of epoch "
                    f"{before.producer_epoch} in {where}"
                )

    def _judge_identity(self, name: str, before: TransactionRecord | None, record: TransactionRecord) -> None:
        producer_id, epoch = record.producer_id, record.producer_epoch
        if before is not None and before.producer_id == producer_id:
            if epoch < lowest_epoch_after(before, record):
                raise rules.UNIQUE_IDENTITY.broken(
                    f"{name}: epoch {before.producer_epoch} of producer {producer_id} was followed by "
                    f"{epoch} in {record.state.title}"
                )
        else:
            self._judge_fresh(name, producer_id, before)
        if record.next_producer_id != NO_PRODUCER_ID:
            self._judge_fresh(name, record.next_producer_id, before)

    def _judge_fresh(self, name: str, producer_id: int, before: TransactionRecord | None) -> None:
        """A producer id that is new here is new everywhere."""
        self.exercised[rules.UNIQUE_IDENTITY.name] += 1
        promised = before is not None and before.next_producer_id == producer_id
        owner = self.owners.get(producer_id)
        if owner is not None and not promised:
            raise rules.UNIQUE_IDENTITY.broken(
                f"{name} got producer id {producer_id}, which {owner} had before"
            )

    # --- rules of other logs --------------------------------------------------------------------------------

    def judge_write(self, where: TopicPartition, producer_id: int, producer_epoch: int) -> JudgedTransaction:
        """I4, before a transactional batch enters: a marker will come for it. Returns its transaction."""
        self.exercised[rules.HANGING.name] += 1
        transaction = self.written_by.get(producer_id)
        if transaction is None or (
            transaction.producer_epoch != producer_epoch or where not in transaction.partitions
        ):
            held = "none" if transaction is None else f"epoch {transaction.producer_epoch}"
            raise rules.HANGING.broken(
                f"{where}: a batch of producer {producer_id} epoch {producer_epoch} entered, but the "
                f"producer's coordinator has no such transaction in this partition (it has {held})"
            )
        record = self.latest.get(transaction.name)
        # Until its marker is there, a batch may still enter that its leader verified before the end.
        if transaction.is_prepared and (record is None or record.state.is_complete):
            found = "has expired" if record is None else f"is {record.state.title}"
            raise rules.HANGING.broken(
                f"{where}: a batch of producer {producer_id} epoch {producer_epoch} entered, but "
                f"{transaction.name} {found}"
            )
        return transaction

    def judge_fenced(self, where: TopicPartition, producer_id: int, producer_epoch: int) -> None:
        """I13, before any batch enters: no newer owner of the transactional id was admitted."""
        floor = self.floors.get(producer_id)
        if floor is None:
            return
        self.exercised[rules.FENCED.name] += 1
        if producer_epoch < floor:
            found = f"a newer owner has epoch {floor}"
            if floor == RETIRED:
                found = "its producer id was replaced or expired"
            raise rules.FENCED.broken(
                f"{where}: a batch of producer {producer_id} epoch {producer_epoch} entered, but {found}"
            )

    def judge_marker(self, where: TopicPartition, identity: Identity, marker: Marker) -> None:
        """I5 and I6, before a marker enters: the other markers of its transaction have the same result, and
        so has a durable decision.
        """
        result = marker.result
        first = self.first_markers.setdefault(identity, (where, result))
        self.exercised[rules.ONE_DECISION.name] += first[0] != where
        if first[1] is not result:
            raise _wrong(rules.ONE_DECISION, where, identity, result, f"{first[0]} has {first[1].name}")
        self.exercised[rules.DURABLE_DECISION.name] += 1
        transaction = self.marked_as.get(identity)
        if transaction is None or not transaction.is_prepared:
            found = "no durable decision"
        elif where not in transaction.partitions:
            found = "its transaction does not contain this partition"
        elif transaction.decision is not result:
            assert transaction.decision is not None, "a durable decision is one"
            found = f"the decision is {transaction.decision.name}"
        else:
            found = self._contradiction(self.partitions[where], transaction, identity, marker)
        if found:
            raise _wrong(rules.DURABLE_DECISION, where, identity, result, found)

    def _contradiction(
        self, log: PartitionRecord, transaction: JudgedTransaction, identity: Identity, marker: Marker
    ) -> str:
        """How the log, or its coordinator's epoch, contradicts a marker of this decided transaction; "" if
        nothing does.

        Nothing need be open: a partition may be added and get no data, and a coordinator repeats a marker
        whose reply it did not get (KIP-1228, KAFKA-19999).
        """
        producer_id, producer_epoch = identity
        newest = log.newest_epoch(producer_id)
        if producer_epoch < newest:
            return f"the partition knows epoch {newest}"
        if producer_id in log.model.open and self.written_by[producer_id] is not transaction:
            return f"the producer's next transaction is open since {log.model.open[producer_id]}"
        epoch, known = marker.coordinator_epoch, log.coordinator_epoch(producer_id)
        if epoch < known:
            return f"its coordinator has epoch {epoch}, but that of the last marker has {known}"
        present = self.partitions[self.homes[transaction.name]].leader_epoch
        # A marker carries the epoch of the coordinator that sends it: of the one that decided, or, after a
        # failover, of a later one.
        if not transaction.decided_under <= epoch <= present:
            since = f"{transaction.decided_under} decided, and {present} leads now"
            return f"its coordinator has epoch {epoch}, but {since}"
        return ""


def _wrong(
    rule: Rule, where: TopicPartition, identity: Identity, result: TransactionResult, found: str
) -> Violation:
    """A marker that should not be there, and what contradicts it."""
    said = f"{where}: {result.name} marker of producer {identity[0]} epoch {identity[1]}"
    return Violation(rule.name, f"{said}, and {found}")


def _is_marked(log: PartitionRecord, decided: TransactionRecord) -> bool:
    """Whether the producer's last marker is the one that was decided, and durable. A repetition of it, which
    a new coordinator sends, need not be durable.
    """
    marker = log.model.last_marker(decided.producer_id)
    return (
        marker is not None
        and marker.offset < log.high_watermark
        and marker.producer_epoch == decided.producer_epoch
        and marker.result is DECISIONS[decided.state]
        and decided.producer_id not in log.model.open
    )
