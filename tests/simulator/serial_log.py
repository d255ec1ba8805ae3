"""A trivially correct Kafka for the judge to find nothing in: one list per partition, one thing at a time.

Transactions interleave, abort, and end unknown to their process; readers stop at the first open transaction.
What its clients saw is kept as a history.
"""

from __future__ import annotations

from typing import Literal

import attrs

from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.simulator.judges.operations import (
    Action,
    ClientOperation,
    OperationOutcome,
    Poll,
    PositionSet,
    Record,
    Write,
)

PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 1))

Kind = Literal["send", "read", "write", "commit", "abort", "half", "poll", "peek", "seek", "plain"]
KINDS: tuple[Kind, ...] = (
    "send",  # a transactional process writes in its transaction, and begins one if it has none
    "read",  # ... polls in it
    "write",
    "commit",
    "abort",
    "half",  # ... asks for its commit and never hears of it
    "poll",  # a reader of committed records polls
    "peek",  # a reader of everything polls
    "seek",  # a reader goes back to the beginning
    "plain",  # a process writes without a transaction
)
Step = tuple[Kind, int, int, int]  # what, which process, which partition, how much


@attrs.define
class Entry:
    """A record or marker; `transaction` is the index of its transaction, None for a plain record."""

    value: bytes | None
    transaction: int | None


@attrs.define
class Transaction:
    """One that has begun: `decided` is None while it is open."""

    began: int
    actions: list[Action] = attrs.field(factory=list[Action])
    partitions: list[TopicPartition] = attrs.field(factory=list[TopicPartition])
    decided: bool | None = None


@attrs.define
class SerialLog:
    """The whole world: partitions, transactions, positions of readers, and the history so far."""

    logs: dict[TopicPartition, list[Entry]] = attrs.field(
        factory=lambda: {partition: list[Entry]() for partition in PARTITIONS}
    )
    transactions: list[Transaction] = attrs.field(factory=list[Transaction])
    open_ones: dict[str, int] = attrs.field(factory=dict[str, int])
    positions: dict[tuple[str, TopicPartition], int] = attrs.field(
        factory=dict[tuple[str, TopicPartition], int]
    )
    history: list[ClientOperation] = attrs.field(factory=list[ClientOperation])
    now: int = 0
    written: int = 0

    def do(self, step: Step) -> None:
        """Performs one step; what makes no sense at this point does nothing."""
        kind, number, which, count = step
        partition = PARTITIONS[which]
        self.now += 1
        match kind:
            case "send" | "write":
                self._send(f"p{number}", partition)
            case "read":
                self._transaction(f"p{number}").actions.append(self._poll(f"p{number}", partition, count))
            case "commit" | "half" if f"p{number}" in self.open_ones:
                self._end(f"p{number}", committed=count != 1 or kind == "commit", told=kind == "commit")
            case "abort" if f"p{number}" in self.open_ones:
                self._end(f"p{number}", committed=False, told=True)
            case "poll":
                self._keep(f"c{number}", self._poll(f"c{number}", partition, count))
            case "peek":
                self._keep(f"u{number}", self._poll(f"u{number}", partition, count))
            case "seek":
                self.positions[f"c{number}", partition] = 0
                self._keep(f"c{number}", PositionSet(partition))
            case "plain":
                offset = self._append(partition, None)
                outcome = OperationOutcome.INFO if count == 1 else OperationOutcome.OK
                self._keep(
                    f"s{number}", self._acknowledged(partition, offset, told=count != 1), outcome=outcome
                )
            case _:
                pass

    def finish(self) -> list[ClientOperation]:
        """Aborts what is open, reads everything from its beginning to its end, and returns the history."""
        for process in list(self.open_ones):
            self._end(process, committed=False, told=False)
        for partition in PARTITIONS:
            self.now += 1
            self._keep("last", self._poll("last", partition, len(self.logs[partition])))
        return self.history

    def _transaction(self, process: str) -> Transaction:
        if process not in self.open_ones:
            self.open_ones[process] = len(self.transactions)
            self.transactions.append(Transaction(self.now))
        return self.transactions[self.open_ones[process]]

    def _send(self, process: str, partition: TopicPartition) -> None:
        transaction = self._transaction(process)
        offset = self._append(partition, self.open_ones[process])
        transaction.actions.append(self._acknowledged(partition, offset, told=self.written % 7 != 0))
        if partition not in transaction.partitions:
            transaction.partitions.append(partition)

    def _append(self, partition: TopicPartition, transaction: int | None) -> int:
        self.written += 1
        self.logs[partition].append(Entry(f"v{self.written}".encode(), transaction))
        return len(self.logs[partition]) - 1

    def _acknowledged(self, partition: TopicPartition, offset: int, *, told: bool) -> Write:
        value = self.logs[partition][offset].value
        assert value is not None, "only records are acknowledged"
        return Write(partition, value, offset if told else None)

    def _end(self, process: str, *, committed: bool, told: bool) -> None:
        index = self.open_ones.pop(process)
        transaction = self.transactions[index]
        transaction.decided = committed
        for partition in transaction.partitions:
            self.logs[partition].append(Entry(None, index))
        outcome = (
            OperationOutcome.INFO if not told else OperationOutcome.OK if committed else OperationOutcome.FAIL
        )
        self.history.append(
            ClientOperation(
                process,
                len(self.history),
                outcome,
                tuple(transaction.actions),
                transaction.began,
                self.now,
                transactional=True,
                commit_asked_at=self.now if committed or not told else None,
            )
        )

    def _poll(self, process: str, partition: TopicPartition, count: int) -> Poll:
        log, at = self.logs[partition], self.positions.get((process, partition), 0)
        records: list[Record] = []
        while at < len(log) and len(records) < count:
            entry = log[at]
            state = True if entry.transaction is None else self.transactions[entry.transaction].decided
            if process[0] != "u" and state is None:
                break
            if entry.value is not None and (state or process[0] == "u"):
                records.append((at, entry.value))
            at += 1
        self.positions[process, partition] = at
        return Poll(partition, tuple(records))

    def _keep(self, process: str, action: Action, *, outcome: OperationOutcome = OperationOutcome.OK) -> None:
        level = IsolationLevel.READ_UNCOMMITTED if process[0] == "u" else IsolationLevel.READ_COMMITTED
        number = len(self.history)
        self.history.append(
            ClientOperation(process, number, outcome, (action,), self.now, self.now, isolation_level=level)
        )
