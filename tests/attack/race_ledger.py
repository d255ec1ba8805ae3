"""What clients that share transactional ids sent and were told, and whether it agrees with the logs.

Rule: a record and an offset are committed if their producer's commit was, and each of them is judged by what
was acknowledged before that commit was sent. What was never answered is unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import attrs

from fencepost.protocol.terms import TopicPartition, TransactionResult
from tests.broker.requests import ABORT, COMMIT, NOBODY, Identity


@attrs.define(kw_only=True)
class Write:
    """A record, or the offset of a group, that a client has sent."""

    owner: Identity
    name: str
    """The transactional id."""
    is_fenced: bool
    """Whether InitProducerId had granted a newer epoch before it was sent."""
    partition: TopicPartition
    """Of the record, or the one that the offset is about."""
    sequence: int = 0
    is_retried: bool = False
    offset: int | None = None
    """Of the record, once acknowledged."""
    acknowledged: int | None = None
    """The moment."""


@attrs.frozen
class PartitionLog:
    """A partition at the end: every record with its offset, and what a read_committed reader gets."""

    records: list[tuple[int, str]]
    visible: list[str]


@attrs.define
class RaceLedger:
    """Everything that was sent and told. Moments count what happened so far.

    `renewing`: the transactional ids whose producer has a new epoch after each transaction (KIP-890), so that
    an identity stands for one transaction.
    """

    renewing: frozenset[str]
    records: dict[str, Write] = attrs.Factory(dict[str, Write])
    offsets: dict[int, Write] = attrs.Factory(dict[int, Write])
    """By the offset, which no two of them share."""
    epochs: dict[int, int] = attrs.Factory(dict[int, int])
    """The newest epoch that InitProducerId granted, by producer id."""
    requested: set[Identity] = attrs.Factory(set[Identity])
    """The producers that asked for a commit."""
    ended: dict[tuple[Identity, TransactionResult], int] = attrs.Factory(
        dict[tuple[Identity, TransactionResult], int]
    )
    """Who ended a transaction how, and when the last such request that was answered was sent."""
    seen: dict[TopicPartition, list[str]] = attrs.Factory(dict[TopicPartition, list[str]])
    """What read_committed readers got meanwhile."""
    stable: dict[TopicPartition, int] = attrs.Factory(dict[TopicPartition, int])
    told: list[str] = attrs.Factory(list[str])
    """Faults that showed as soon as they happened."""
    moment: int = 0

    def now(self) -> int:
        """The next moment."""
        self.moment += 1
        return self.moment

    def is_fenced(self, owner: Identity) -> bool:
        """Whether a newer epoch of the producer was granted."""
        return owner.producer_epoch < self.epochs.get(owner.producer_id, -1)

    def grant(self, owner: Identity) -> None:
        """InitProducerId granted an identity."""
        newest = self.epochs.get(owner.producer_id, 0)
        self.epochs[owner.producer_id] = max(newest, owner.producer_epoch)

    def end(self, owner: Identity, result: TransactionResult, moment: int) -> None:
        """EndTxn was acknowledged; it was sent at this moment."""
        self.ended[owner, result] = max(self.ended.get((owner, result), 0), moment)

    def acknowledge(self, write: Write, offset: int | None = None) -> None:
        """A write was answered without an error; a retry gets the offset of the first attempt."""
        if write.offset not in (None, offset):
            self.told.append(f"two offsets: {write.offset} and {offset} of {write}")
        write.offset, write.acknowledged = offset, write.acknowledged or self.now()
        if write.is_fenced:
            self.told.append(f"a fenced producer wrote: {write}")

    def note_last_stable_offset(self, partition: TopicPartition, offset: int) -> None:
        """A reader was told it."""
        if offset < self.stable.get(partition, 0):
            self.told.append(
                f"last stable offset: {partition} went back from {self.stable[partition]} to {offset}"
            )
        self.stable[partition] = offset

    def has_both_ends(self) -> bool:
        """Whether a record and an offset are known to be committed, and a record to be aborted."""
        records = [write for write in self.records.values() if write.owner != NOBODY]
        return (
            any(map(self._is_committed, records))
            and any(map(self._is_committed, self.offsets.values()))
            and any(write.acknowledged is not None and self._was_aborted(write) for write in records)
        )

    # --- the verdict ----------------------------------------------------------------------------------------

    def faults(self, logs: Mapping[TopicPartition, PartitionLog], offsets: Mapping[str, int]) -> list[str]:
        """Every contradiction; `offsets` are the last committed ones, by transactional id."""
        visible = {value for log in logs.values() for value in log.visible}
        faults = list(self.told)
        for partition, log in logs.items():
            faults += self._of_partition(partition, log)
        for value, write in self.records.items():
            if write.acknowledged is not None and (write.offset, value) not in logs[write.partition].records:
                faults.append(f"lost: {value}, acknowledged as {write}")
            if self._is_committed(write) and value not in visible:
                faults.append(f"lost: {value} was committed by {write}")
        faults += self._torn(logs, visible)
        for name, offset in offsets.items():
            faults += self._of_offset(name, offset)
        return faults

    def _of_partition(self, partition: TopicPartition, log: PartitionLog) -> Iterator[str]:
        values = [value for _, value in log.records]
        counts = Counter(values)
        yield from (f"written {count} times: {value}" for value, count in counts.items() if count > 1)
        yield from (f"never sent: {value}" for value in values if value not in self.records)
        seen = self.seen.get(partition, [])
        if seen != log.visible[: len(seen)]:
            yield f"a reader of {partition} got what a later one does not get"
        for value in log.visible:
            if value in self.records and self._is_aborted(self.records[value]):
                yield f"aborted: {value} is visible, of {self.records[value]}"
        last: dict[Identity, int] = {}
        for value in values:
            write = self.records.get(value)
            if write is not None and write.owner != NOBODY:
                if write.sequence < last.get(write.owner, 0):
                    yield f"out of order: {value} in {partition}, of {write}"
                last[write.owner] = write.sequence

    def _is_committed(self, write: Write) -> bool:
        """Whether it was acknowledged before its commit, which was acknowledged as well, was sent."""
        if write.acknowledged is None:
            return False
        return write.owner == NOBODY or write.acknowledged < self.ended.get((write.owner, COMMIT), 0)

    def _is_aborted(self, write: Write) -> bool:
        """Whether nobody ever asked for its commit, or its only transaction is known to be aborted."""
        if write.owner == NOBODY:
            return False
        return self._was_aborted(write) or write.owner not in self.requested

    def _was_aborted(self, write: Write) -> bool:
        return write.name in self.renewing and (write.owner, ABORT) in self.ended

    def _torn(self, logs: Mapping[TopicPartition, PartitionLog], visible: set[str]) -> Iterator[str]:
        """Producers of one transaction of which readers get some records, and miss others."""
        written: dict[Identity, list[str]] = defaultdict(list)
        for log in logs.values():
            for _, value in log.records:
                write = self.records.get(value)
                if write is not None and write.name in self.renewing:
                    written[write.owner].append(value)
        for owner, values in written.items():
            if 0 < len(visible.intersection(values)) < len(values):
                yield f"torn: {sorted(visible.intersection(values))} of {values} are visible, of {owner}"

    def _of_offset(self, name: str, offset: int) -> Iterator[str]:
        """The offset must be of the last transaction that committed one, or of a later one that may have."""
        found = self.offsets.get(offset)
        if found is not None and self._is_aborted(found):
            yield f"aborted: offset {offset} of {found} counts"
        owner = NOBODY if found is None else found.owner
        for missing, write in self.offsets.items():
            if write.name == name and write.owner > owner and self._is_committed(write):
                yield f"lost: offset {missing} was committed by {write}, and {offset} counts"
