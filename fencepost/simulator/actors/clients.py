"""What a client process can do, step by step: become an owner, begin, write, commit, abort, read.

Rule: an act trusts only what its machine resolved; if no reply came, the outcome is recorded as unknown.
"""

# Theory of operation
#
#     Sender    a producer ──▶ AttemptedTransaction per transaction ─┐
#     Receiver  a consumer ──▶ Poll per batch ───────────────────────┴─▶ ClientOperation ──▶ black box
#
# The judges may believe only what a client knows for certain. So each transaction has one of Jepsen's three
# outcomes, by the last thing that its process learned:
#
#     begun, commit not requested                FAIL   it will be aborted, no matter by whom
#     commit requested, no reply yet             INFO   also when the process dies here
#     commit is ok                               OK
#     TransactionAborted, ProducerFenced         FAIL
#     any other failure of the commit            INFO   as CommitOutcomeUnknown: a refusal after a lost reply
#
# What was read counts whatever the outcome: no abort takes a read back.

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

import attrs

from fencepost.client.accumulator import AppendedRecord
from fencepost.client.batch import ProducerRecord
from fencepost.client.calls import CallScript
from fencepost.client.consumer import ConsumerMachine
from fencepost.client.consumer_calls import ConsumerCalls
from fencepost.client.consumer_records import ConsumedBatch
from fencepost.client.errors import (
    ClientError,
    CorruptRecords,
    Failure,
    ProducerFenced,
    TransactionAborted,
    WrongState,
)
from fencepost.client.group_member import RebalanceEvent, RebalanceListener
from fencepost.client.group_offsets import CommittableOffset, ConsumerGroupMetadata, with_metadata
from fencepost.client.member_states import MemberState
from fencepost.client.producer import ProducerMachine
from fencepost.client.producer_calls import ProducerCalls
from fencepost.client.settings import ConsumerSettings, ProducerSettings
from fencepost.client.topic_partition_state import TopicPartitionState
from fencepost.protocol.offsets_log import OffsetKey
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.simulator.judges.operations import (
    Action,
    ClientOperation,
    OperationOutcome,
    Poll,
    Write,
    keyed,
)
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.events import DamageNoticed, OffsetsAcknowledged, PartitionsAdded
from fencepost.simulator.world.processes import ClientProcess, Port, Script
from fencepost.simulator.world.world import World

# Small batches, so that a transaction has several, and a short timeout, so that a request whose reply was
# lost is soon retried.
BATCH_BYTES: Final = 96
REQUEST_TIMEOUT_MS: Final = 1_500
AFTER_A_PROBLEM_MS: Final = 20
PARTIAL_PERMILLE: Final = 150
NAME: Final = "name"  # the header that tells a tombstone from all others
MID_BATCH: Final = "read on in mid-batch"


@attrs.define(eq=False)
class AttemptedTransaction:
    """What one transaction of a process read and wrote, and what the process knows of its end. A record
    outside of transactions is one of these, too.

    The outcome is FAIL until a commit is tried: a transaction that a killed process left open will be
    aborted.
    """

    invoked_at: int
    is_transactional: bool = True
    read: list[Action] = attrs.Factory(list[Action])
    written: list[tuple[TopicPartition, bytes, AppendedRecord]] = attrs.Factory(
        list[tuple[TopicPartition, bytes, AppendedRecord]]
    )
    outcome: OperationOutcome = OperationOutcome.FAIL
    commit_asked_at: int | None = None
    completed_at: int | None = None

    def operation(self, process: str, number: int, *, now: int) -> ClientOperation:
        """This transaction as the judges of histories see it; one that never ended ends now."""
        written = (Write(where, value, _offset(appended)) for where, value, appended in self.written)
        return ClientOperation(
            process,
            number,
            self.outcome,
            (*self.read, *written),
            self.invoked_at,
            now if self.completed_at is None else self.completed_at,
            transactional=self.is_transactional,
            commit_asked_at=self.commit_asked_at,
        )


def _offset(appended: AppendedRecord) -> int | None:
    batch, index = appended
    # A batch that failed has no offset.
    return batch.base_offset + index if batch.is_done and batch.base_offset >= 0 else None


@attrs.define(eq=False)
class Sender:
    """A producer of a process. `transactions` is everything that it tried, for the judges, and `offsets` are
    those of its open transaction.
    """

    process: ClientProcess
    machine: ProducerMachine
    calls: ProducerCalls
    transactions: list[AttemptedTransaction]
    offsets: dict[OffsetKey, int] = attrs.Factory(dict[OffsetKey, int])

    @property
    def is_usable(self) -> bool:
        """Whether it takes records."""
        return not self.machine.is_over and self.machine.failure is None

    def init(self) -> Script[Failure | None]:
        """Becomes the owner of its transactional id; returns the failure, or None."""
        return _ended(self.calls.init_transactions(inf))

    def begin(self) -> AttemptedTransaction:
        """Begins a transaction; no broker knows of it yet."""
        self.calls.begin_transaction()
        self.offsets.clear()
        transaction = AttemptedTransaction(self.process.world.now)
        self.transactions.append(transaction)
        return transaction

    def send(
        self,
        transaction: AttemptedTransaction,
        partition: TopicPartition,
        value: bytes,
        *,
        at_once: bool = True,
        key: bytes | None = None,
        is_tombstone: bool = False,
    ) -> Script[bool]:
        """Sends one record; False when the producer no longer takes any. Unless `at_once`, the record waits
        for the next one that is sent at once, or for the commit. A tombstone has its `value` in a header.
        """
        if not self.is_usable:
            return False
        record = ProducerRecord(partition.topic, value, key, partition.partition)
        if key is not None:  # compaction goes by the time of each record
            record = record._replace(timestamp_ms=self.process.now_ms)
        if is_tombstone:
            record = record._replace(value=None, headers=[(NAME, value)])
        try:
            appended = yield from self._take(record, at_once=at_once)
        except ClientError:
            assert not self.is_usable, "a usable producer takes records"
            return False
        judged = value if key is None else keyed(key, value, is_tombstone=is_tombstone)
        transaction.written.append((partition, judged, appended))
        return True

    def _take(self, record: ProducerRecord, *, at_once: bool) -> Script[AppendedRecord]:
        while not at_once:
            now = self.process.now_ms
            appended = self.machine.append(record, now=now, wall_ms=now)
            if appended is not None:
                return appended
            yield from self.calls.route(record.topic, inf)
        return (yield from self.calls.append(record, inf))

    def send_offsets(
        self, offsets: Mapping[TopicPartition, CommittableOffset], group: ConsumerGroupMetadata | str
    ) -> None:
        """Commits a group's offsets with the transaction."""
        self.calls.send_offsets_to_transaction(offsets, group)
        group_id = group if isinstance(group, str) else group.group_id
        for where, given in offsets.items():
            key = OffsetKey(group_id, where.topic, where.partition)
            self.offsets[key] = with_metadata(given).offset

    def commit(self, transaction: AttemptedTransaction) -> Script[Failure | None]:
        """Commits the transaction. A process that is killed before the reply leaves its outcome unknown."""
        transaction.outcome = OperationOutcome.INFO
        transaction.commit_asked_at = self.process.world.now
        identity = self.machine.producer_id, self.machine.producer_epoch  # its next transaction has another
        failure = yield from _ended(self.calls.commit_transaction(inf))
        if failure is None:
            transaction.outcome = OperationOutcome.OK
            if self.offsets:
                who, offsets = self.process.participant, tuple(self.offsets.items())
                self.process.world.events.publish(OffsetsAcknowledged(who, *identity, offsets))
        elif failure.kind in (TransactionAborted, ProducerFenced):
            transaction.outcome = OperationOutcome.FAIL
        transaction.completed_at = self.process.world.now
        return failure

    def abort(self, transaction: AttemptedTransaction) -> Script[Failure | None]:
        failure = yield from _ended(self.calls.abort_transaction(inf))
        transaction.completed_at = self.process.world.now
        return failure


def _ended(call: CallScript[None]) -> Script[Failure | None]:
    """How a call ended. A call that the state of the producer does not allow is a bug of the script."""
    try:
        yield from call
    except WrongState:
        raise
    except ClientError as problem:
        return Failure(type(problem), because=problem.because, error=problem.error)
    return None


def can_go_on(failure: Failure | None) -> bool:
    """Whether the same producer may continue after an operation with this end."""
    return failure is None or failure.kind is TransactionAborted


@attrs.define(eq=False)
class Receiver(RebalanceListener):
    process: ClientProcess
    port: Port
    machine: ConsumerMachine
    calls: ConsumerCalls
    assigned: list[TopicPartition] = attrs.Factory(list[TopicPartition])
    """The partitions that the group has added since the script last looked."""

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Reads the partitions that the group assigns to it."""
        self.calls.subscribe(topics, self)

    def assign(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Reads these partitions, from where the group or the log begins."""
        self.machine.assign(partitions)
        self.port.wake()

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Reads on from these offsets."""
        for where, offset in offsets.items():
            self.machine.seek(where, offset)
        self.port.wake()

    def leave(self) -> Script[None]:
        """Leaves the group, and waits until the coordinator has replied or a timeout is over."""
        yield from self.calls.unsubscribe()

    @property
    def is_fenced(self) -> bool:
        """Whether another process has taken the instance id of this member."""
        return self.machine.member is not None and self.machine.member.is_fenced

    @property
    def is_stable(self) -> bool:
        """Whether the group has not begun to rebalance, as far as this member knows."""
        return self.machine.member is not None and self.machine.member.state is MemberState.STABLE

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._count(RebalanceEvent.REVOKED)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._count(RebalanceEvent.LOST)

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._count(RebalanceEvent.ASSIGNED)
        self.assigned += partitions
        assert self.machine.member is not None, "only a member gets this call"
        added = PartitionsAdded(self.process, self.machine.member, tuple(partitions))
        self.process.world.events.publish(added)

    def _count(self, event: RebalanceEvent) -> None:
        self.process.world.marks[event.value] += 1

    def poll(self, timeout_ms: float = inf) -> Script[list[ConsumedBatch]]:
        """Waits for records, and takes those that have arrived; none after an error."""
        try:
            return (yield from self.calls.poll(timeout_ms))
        except ClientError as problem:
            self._failed(problem)
        yield AFTER_A_PROBLEM_MS
        self.port.wake()
        return []

    def glance(self) -> tuple[Poll, ...]:
        """Takes the records that have arrived, without waiting."""
        batches: list[ConsumedBatch] = []
        try:
            batches = self.machine.take()
        except ClientError as problem:
            self._failed(problem)
        self.port.wake()
        return polls_of(batches)

    def _failed(self, problem: ClientError) -> None:
        if isinstance(problem, CorruptRecords):
            self.process.world.events.publish(DamageNoticed())
        self.process.world.marks[f"poll failed: {type(problem).__name__}"] += 1

    def poll_some(self, choices: Choices) -> Script[tuple[Poll, ...]]:
        """Polls, and sometimes takes only the first records, as a program with its own limit does. It then
        reads on from the first record that it left, which is often in the middle of a batch.
        """
        polls = polls_of((yield from self.poll()))
        if not polls or not choices.happens(PARTIAL_PERMILLE):
            return polls
        count = 1 + choices.below(sum(len(poll.records) for poll in polls))
        kept: list[Poll] = []
        left: dict[TopicPartition, int] = {}
        for poll in polls:
            taken = poll.records[:count]
            count -= len(taken)
            if taken:
                kept.append(Poll(poll.partition, taken))
            if len(taken) < len(poll.records):
                left.setdefault(poll.partition, poll.records[len(taken)][0])
                self.process.world.marks[MID_BATCH] += bool(taken)
        self.seek(left)
        return tuple(kept)


def polls_of(batches: list[ConsumedBatch]) -> tuple[Poll, ...]:
    """What was polled: one micro-operation per batch, in order."""
    return tuple(
        Poll(batch.partition, tuple(zip(batch.offsets, _judged(batch), strict=True))) for batch in batches
    )


def _judged(batch: ConsumedBatch) -> list[bytes]:
    if batch.columns.keys is None:
        return batch.values
    return [
        record.value
        if record.key is None
        else keyed(
            record.key,
            dict(record.headers or ()).get(NAME) or b"" if record.value is None else record.value,
            is_tombstone=record.value is None,
        )
        for record in batch.records()
    ]


@attrs.define(eq=False)
class Actor:
    """A client process at work, and what it did, for the judges."""

    process: ClientProcess
    transactions: list[AttemptedTransaction] = attrs.field(factory=list, init=False)
    operations: list[ClientOperation] = attrs.field(factory=list, init=False)  # what it read outside of them
    assigned: dict[TopicPartition, TopicPartitionState] = attrs.field(factory=dict, init=False)

    @property
    def world(self) -> World:
        return self.process.world

    def all_operations(self, now: int) -> list[ClientOperation]:
        """What it did, in its own order; what is not over ends now."""
        name = self.process.participant
        # Transactions and polls of one process are numbered apart; only the time of their end is compared.
        ended = [transaction.operation(name, at, now=now) for at, transaction in enumerate(self.transactions)]
        return [*ended, *self.operations]

    def positions(self) -> dict[TopicPartition, int]:
        """How far it read."""
        return {where: state.position or 0 for where, state in self.assigned.items()}

    def new_sender(self, settings: ProducerSettings) -> Sender:
        machine = ProducerMachine(self.world.bootstrap, settings)
        port = self.process.port(machine, request_timeout_ms=settings.request_timeout_ms)
        return Sender(self.process, machine, ProducerCalls(machine, port), self.transactions)

    def new_receiver(self, settings: ConsumerSettings) -> Receiver:
        machine = ConsumerMachine(self.world.bootstrap, settings)
        port = self.process.port(machine, request_timeout_ms=settings.request_timeout_ms)
        return Receiver(self.process, port, machine, ConsumerCalls(machine, port))

    def single_write(self) -> AttemptedTransaction:
        """The fate of a record outside of transactions; unknown until it has its outcome."""
        write = AttemptedTransaction(self.world.now, is_transactional=False, outcome=OperationOutcome.INFO)
        self.transactions.append(write)
        return write

    def flush(self) -> Script[None]:
        """Waits until every record has its outcome; those outside of transactions are then known."""
        batches = [batch for known in self.transactions for _, _, (batch, _) in known.written]
        yield lambda: all(batch.is_done for batch in batches)
        for known in self.transactions:
            if not known.is_transactional and all(
                batch.failure is None for _, _, (batch, _) in known.written
            ):
                known.outcome = OperationOutcome.OK

    def has_read(
        self, actions: tuple[Action, ...], *, invoked_at: int, isolation_level: IsolationLevel
    ) -> None:
        """Records what a poll returned, as one operation."""
        self.operations.append(
            ClientOperation(
                self.process.participant,
                len(self.operations),
                OperationOutcome.OK,
                actions,
                invoked_at,
                self.world.now,
                isolation_level=isolation_level,
            )
        )
