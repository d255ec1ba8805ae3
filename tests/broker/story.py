"""A broker to tell stories with: one host over a storage in memory, and a clock that the story moves.

Nothing here waits or reads a clock; `kill` may come between any two things that the host does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, Self

import attrs

from fencepost.broker.contract import BecomeLeader, Disconnected, Input, Outcome, Received, Reply, ReplyTo
from fencepost.broker.host import Host
from fencepost.broker.node import Node
from fencepost.broker.partitions.partition import Partition
from fencepost.broker.settings import NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.broker.transactions.state import Transactions
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.journal import Journal, JournalSettings
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.storage import Storage
from fencepost.protocol import messages as m
from fencepost.protocol.batches import BatchHeader, place, read_header, read_marker
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    NEWEST_VERSION,
    TRANSACTION_STATE_TOPIC,
    CoordinatorType,
    IsolationLevel,
    TopicPartition,
    TransactionResult,
    TransactionState,
    coordinator_partition,
)
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions, transaction_batch
from tests.broker.requests import (
    COMMITTED,
    NOBODY,
    NOON,
    ORDERS,
    Identity,
    body_of,
    end_request,
    fetch_request,
    fetched,
    identity_of,
    init_request,
    next_offset,
    offset_request,
    produce_request,
    produced,
    visible_values,
)

CLIENT: Final = 1  # the connection of whoever asks
INTERNAL_PARTITIONS: Final = 2  # of each internal topic: few, so that a story starts fast
SCAN_MS: Final = 200
RETRY_MS: Final = 100
LARGE: Final = "x" * 5_000  # a log with it gets a snapshot when it is closed
TURNS_MAX: Final = 100_000  # more than any story has: beyond this the host runs in circles

FEW_LOGS: Final = {
    "transaction.state.log.num.partitions": INTERNAL_PARTITIONS,
    "offsets.topic.num.partitions": INTERNAL_PARTITIONS,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": SCAN_MS,
    "group.initial.rebalance.delay.ms": 0,
}
"""The settings of a `fencepost.Broker` that starts fast."""
SETTINGS: Final = NodeSettings(
    transaction_state_log_num_partitions=INTERNAL_PARTITIONS,
    offsets_topic_num_partitions=INTERNAL_PARTITIONS,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=SCAN_MS,
    marker_retry_backoff_ms=RETRY_MS,
    reelection_backoff_ms=RETRY_MS,
    group_initial_rebalance_delay_ms=0,  # a group of one is complete
)
# The same, in a hurry to compact.
CLEANED: Final = attrs.evolve(
    SETTINGS, log_cleaner_backoff_ms=SCAN_MS, coordinator_logs_dirty_bytes_max=2_000
)


def transaction_log_of(name: str) -> TopicPartition:
    return TopicPartition(TRANSACTION_STATE_TOPIC, coordinator_partition(name, INTERNAL_PARTITIONS))


def offsets_log_of(group: str) -> TopicPartition:
    return TopicPartition(CONSUMER_OFFSETS_TOPIC, coordinator_partition(group, INTERNAL_PARTITIONS))


class Killable(Storage, Protocol):
    """A storage whose process can die."""

    def kill(self) -> None: ...


class Memory(MemoryStorage):
    """What the broker wrote survives its process; its lock does not."""

    def kill(self) -> None:
        self.unlock()


class LogEntry(NamedTuple):
    """One batch as it lies in a log."""

    header: BatchHeader
    batch: bytes

    @property
    def text(self) -> str:
        """`commit 7/1` for the marker of producer 7 at epoch 1, else the values."""
        header = self.header
        if header.is_control:
            result = read_marker(self.batch).result
            return f"{result.name.lower()} {header.producer_id}/{header.producer_epoch}"
        values = read_columns(self.batch, header).values
        return " ".join("" if value is None else bytes(value).decode() for value in values)


class Asking(ABC):
    """What a story asks the leaders of its partitions, and what it finds in their logs."""

    @abstractmethod
    def ask_leader(self, key: TopicPartition, request: m.Request, at: int | None) -> Reply:
        """Ask the leader of a partition, or the node `at`."""

    @abstractmethod
    def journal_of(self, key: TopicPartition) -> Journal: ...

    def end(
        self, who: Identity, result: TransactionResult, name: str = "pay", *, at: int | None = None
    ) -> Reply:
        return self.ask_leader(transaction_log_of(name), end_request(who, result, name), at)

    def produce(
        self,
        who: Identity,
        values: str,
        *,
        key: TopicPartition = ORDERS,
        sequence: int = 0,
        name: str | None = "pay",
        at: int | None = None,
    ) -> m.ProducedPartition:
        """One batch with the words of `values`; in a transaction unless `name` is None."""
        request = produce_request(who, {key: values}, sequence=sequence, name=name)
        return produced(self.ask_leader(key, request, at))[key]

    def commit_offset(
        self, who: Identity, group: str, offset: int, name: str = "pay", *, at: int | None = None
    ) -> ErrorCode:
        """An offset of orders-0 inside the transaction."""
        request = offset_request(who, group, {ORDERS: offset}, name)
        reply = self.ask_leader(offsets_log_of(group), request, at)
        (part,) = body_of(reply, m.TxnOffsetCommitReply).partitions
        return part.error

    def fetch(
        self,
        key: TopicPartition = ORDERS,
        isolation_level: IsolationLevel = COMMITTED,
        *,
        offset: int = 0,
        at: int | None = None,
    ) -> m.FetchedPartition:
        return fetched(self.ask_leader(key, fetch_request(key, isolation_level, offset=offset), at))

    def visible(
        self,
        key: TopicPartition = ORDERS,
        isolation_level: IsolationLevel = COMMITTED,
        *,
        at: int | None = None,
    ) -> str:
        """The values that a reader sees who reads from the start to the end, in words."""
        values: list[str] = []
        offset = 0
        while (part := self.fetch(key, isolation_level, offset=offset, at=at)).records:
            values += visible_values(part)
            offset = next_offset(part)
        return " ".join(values)

    def log(self, key: TopicPartition = ORDERS) -> list[LogEntry]:
        """What the journal holds, batch by batch."""
        return [LogEntry(header, bytes(batch)) for header, batch in self.journal_of(key).segments.batches(0)]

    def written(self, key: TopicPartition = ORDERS) -> str:
        """The same in words."""
        return " | ".join(entry.text for entry in self.log(key))

    def records(self, name: str = "pay") -> list[TransactionRecord]:
        """What the transaction log says of one id, oldest first."""
        entries = self.log(transaction_log_of(name))
        found = (pair for entry in entries for pair in read_transactions(entry.batch, entry.header))
        return [record for written, record in found if written == name and record is not None]


class Story(Asking):
    """A node, its directory and the clients that talk to it."""

    client: tuple[str, str] = ("", "")
    """What the client that asks calls itself, and its host."""

    def __init__(
        self,
        *,
        policy: SyncPolicy = SyncPolicy.NONE,
        settings: NodeSettings = SETTINGS,
        storage: Killable | None = None,
        journal: JournalSettings | None = None,
        topics: Mapping[str, int] = {"orders": 2},
        versions: Mapping[type[m.Request], int] = {},
    ) -> None:
        self._begin(storage or Memory(), policy, settings, journal, versions)
        for kind in CoordinatorType:
            self.ask(m.FindCoordinator(kind=kind, key="anybody"))
        for name, count in topics.items():
            self.create(name, count)

    def _begin(
        self,
        storage: Killable,
        policy: SyncPolicy = SyncPolicy.NONE,
        settings: NodeSettings = SETTINGS,
        journal: JournalSettings | None = None,
        versions: Mapping[type[m.Request], int] = {},
    ) -> None:
        self.storage = storage
        self.policy, self.settings, self.journal = policy, settings, journal
        self.versions = versions  # in which clients speak, where that is not the newest
        self.now: int = NOON
        self.asked = 0
        self.replies: dict[ReplyTo, Reply] = {}
        self.start()
        self.settle()

    @classmethod
    def over(cls, storage: Killable) -> Self:
        """A story over what a disk already holds; nothing is created."""
        story = cls.__new__(cls)
        story._begin(storage)
        return story

    # --- starting and dying

    def start(self) -> None:
        """A new process over what the storage holds."""
        directory = DataDirectory.open(self.storage, settings=self.journal)
        self.host = Host(
            Node(self.settings, verifies_entries=True), directory, policy=self.policy, watch=self.saw
        )
        self.host.start(self.now)

    def saw(self, arrived: Input, outcome: Outcome) -> None:
        """The node took a step; for those who keep account of what happens."""

    def kill(self) -> None:
        """The process is gone, with all that it had not written and all that it had not answered."""
        self.storage.kill()

    def restart(self) -> None:
        """Killed, started, and everything done that a start leads to."""
        self.kill()
        self.start()
        self.settle()

    # --- time and work

    def work(self) -> bool:
        """Let the host do one thing; False when it is idle."""
        if self.host.is_idle:
            return False
        self.host.work(self.now)
        for reply in self.host.answers:
            assert reply.to not in self.replies, f"{reply.to} was answered twice"
            self.replies[reply.to] = reply
        self.host.answers.clear()
        return True

    def run(self) -> None:
        """Let the host do all that it can now, without syncing."""
        self.host.tick(self.now)
        for _ in range(TURNS_MAX):
            if not self.work():
                return
        raise AssertionError("the host runs in circles")

    def sync(self) -> None:
        """One round of syncs, as the server's."""
        for key in sorted(self.host.unsynced):
            self.host.synced(key, self.host.directory.journal(key).sync())

    def settle(self) -> None:
        """Everything happens that can, syncs and retries too, until only much time changes something."""
        for _ in range(TURNS_MAX):
            self.run()
            wakes_at = self.host.wakes_at_ms
            if self.host.unsynced:
                self.sync()
            elif self.host.upkeep.is_needed:
                self.host.upkeep.do_some()
            elif wakes_at is not None and wakes_at <= self.now + RETRY_MS:
                self.now = max(self.now, wakes_at)
            else:
                return
        raise AssertionError("the story never settles")

    def wait(self, duration_ms: int) -> None:
        """Time passes; whatever is due happens at its time."""
        until = self.now + duration_ms
        self.settle()
        while self.host.wakes_at_ms is not None and self.host.wakes_at_ms <= until:
            self.now = max(self.now, self.host.wakes_at_ms)
            self.settle()
        self.now = max(self.now, until)
        self.settle()

    # --- asking

    def offer(self, request: m.Request, *, connection: int = CLIENT) -> ReplyTo:
        """Send a request; nothing happens yet."""
        self.asked += 1
        to = ReplyTo(connection, self.asked)
        version = self.versions.get(type(request), NEWEST_VERSION)
        client_id, client_host = self.client
        self.host.offer(
            Received(request, to=to, version=version, client_id=client_id, client_host=client_host)
        )
        return to

    def disconnect(self, connection: int) -> None:
        self.host.offer(Disconnected(connection=connection))
        self.run()

    def ask(self, request: m.Request) -> Reply:
        """Send a request, let everything happen that can happen now, and take the answer."""
        self.now += 1
        to = self.offer(request)
        self.settle()
        return self.replies.pop(to)

    def ask_leader(self, key: TopicPartition, request: m.Request, at: int | None = None) -> Reply:
        return self.ask(request)

    def journal_of(self, key: TopicPartition) -> Journal:
        return self.host.directory.journal(key)

    def create(self, topic: str, partitions: int = 1) -> None:
        request = m.CreateTopics(topics=(m.CreateTopic(topic=topic, partition_count=partitions),))
        (answer,) = body_of(self.ask(request), m.CreateTopicsReply).topics
        assert answer.error is ErrorCode.NONE, answer

    # --- transactions

    def init(self, name: str = "pay", expected: Identity = NOBODY, *, timeout_ms: int = 60_000) -> Reply:
        return self.ask(init_request(name, expected, timeout_ms=timeout_ms))

    def identity(self, name: str = "pay", *, timeout_ms: int = 60_000) -> Identity:
        """A fresh identity, asked for until it is granted."""
        for _ in range(3):
            reply = self.init(name, timeout_ms=timeout_ms)
            if reply.error is ErrorCode.NONE:
                return identity_of(reply)
            assert reply.error is ErrorCode.CONCURRENT_TRANSACTIONS, reply
        raise AssertionError(f"nobody is granted an identity for {name}")

    def ended(self, who: Identity, result: TransactionResult, name: str = "pay") -> Identity:
        """End the transaction; who the producer is in the next one."""
        reply = self.end(who, result, name)
        assert reply.error is ErrorCode.NONE, reply
        return identity_of(reply)

    def age(self, epoch: int, name: str = "pay") -> Identity:
        """The id is at this epoch, as after as many transactions; the process was killed on the way."""
        record = self.records(name)[-1]._replace(producer_epoch=epoch)
        batch = transaction_batch(name, record, timestamp=self.now)
        self.kill()
        directory = DataDirectory.open(self.storage)
        journal = directory.journal(transaction_log_of(name))
        place(batch, base_offset=journal.log_end_offset, leader_epoch=journal.leader_epoch)
        journal.append(batch, read_header(batch), leader_epoch=journal.leader_epoch)
        directory.abandon()
        self.restart()
        return Identity(record.producer_id, epoch)

    def transaction(self, name: str = "pay") -> m.TransactionDescription:
        request = m.DescribeTransactions(transactional_ids=(name,))
        (description,) = body_of(self.ask(request), m.DescribeTransactionsReply).transactions
        return description

    # --- looking

    def offset(self, group: str, *, require_stable: bool = False) -> m.FetchedOffset:
        """The committed offset of orders-0."""
        request = m.OffsetFetch(group_id=group, require_stable=require_stable, partitions=(ORDERS,))
        (found,) = body_of(self.ask(request), m.OffsetFetchReply).offsets
        return found

    def states(self, name: str = "pay") -> list[TransactionState]:
        return [record.state for record in self.records(name)]

    def partition(self, key: TopicPartition = ORDERS) -> Partition:
        return self.host.node.logs[key].partition

    def coordinator(self, name: str = "pay") -> Transactions:
        found = self.host.node.logs[transaction_log_of(name)].coordinator
        assert isinstance(found, Transactions)
        return found

    def check_recovery(self) -> int:
        """`recover(log) == forget_notes(live)` for each log written up to its state; how many."""
        node, checked = self.host.node, 0
        for key in node.logs:
            journal = self.host.directory.journal(key)
            if journal.log_end_offset == self.partition(key).log_end_offset:
                heir = Node(self.settings)
                order = BecomeLeader(
                    partition=key,
                    leader_epoch=journal.leader_epoch,
                    log_start_offset=journal.log_start_offset,
                    oldest_offset=journal.segments.oldest_offset,
                    batch_start=journal.segments.batch_start(journal.log_start_offset),
                    batches=journal.segments.batches(0),
                )
                heir.rebuild(order)
                assert heir.state_of(key) == node.state_of(key), f"{key} is another after recovery"
                checked += 1
        return checked
