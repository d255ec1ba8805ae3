"""The judge's own records, played by hand: what enters, what may follow, and what may not."""

from __future__ import annotations

from collections import Counter
from typing import Final

import attrs
import pytest

from fencepost.broker.contract import (
    NODE,
    Append,
    Durable,
    OffsetPlan,
    Outcome,
    Received,
    Reply,
    ReplyListed,
    ReplyTo,
    Tick,
)
from fencepost.broker.groups.group import Group
from fencepost.broker.groups.members import Member, Members
from fencepost.broker.groups.state import Committed, Groups
from fencepost.broker.host import Host
from fencepost.broker.leader_log import LeaderLog
from fencepost.broker.node import Node
from fencepost.broker.partitions.partition import Partition
from fencepost.broker.settings import NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.broker.transactions.state import Transactions
from fencepost.client.consumer import ConsumerMachine
from fencepost.client.group_member import GroupMember
from fencepost.client.settings import ConsumerSettings
from fencepost.journal.indexes import ProducerSnapshot
from fencepost.journal.journal import JournalSettings
from fencepost.protocol.batches import BatchHeader, Marker, build_marker, place, read_header, read_marker
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    AbortedTransaction,
    EndTxn,
    FetchedPartition,
    ListedOffset,
    ListOffsets,
    ListOffsetsPartition,
    ListOffsetsReply,
    PartitionError,
    Produce,
    ProducedPartition,
    ProducePartition,
    ProduceReply,
    TransactionMarker,
    WriteTxnMarkers,
    WriteTxnMarkersReply,
    WrittenMarker,
)
from fencepost.protocol.metadata_log import TopicCreated, cluster_batch
from fencepost.protocol.offsets_log import OffsetKey, OffsetRecord
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    EARLIEST_TIMESTAMP,
    INT32_MAX,
    LATEST_TIMESTAMP,
    METADATA_PARTITION,
    NO_COORDINATOR_EPOCH,
    NO_PRODUCER_ID,
    NO_TOPIC_ID,
    TRANSACTION_STATE_TOPIC,
    IsolationLevel,
    TopicPartition,
    TransactionResult,
    TransactionState,
)
from fencepost.protocol.transaction_log import TransactionRecord, transaction_batch
from fencepost.simulator.judges.group_rules import OwnerRule
from fencepost.simulator.judges.listing_rule import ListingRule
from fencepost.simulator.judges.offset_rules import AcknowledgedOffsets, OffsetsBatch, OffsetsRecord
from fencepost.simulator.judges.partition_rules import PartitionRecord, judge_fetched
from fencepost.simulator.judges.recovery_rule import judge_snapshot
from fencepost.simulator.judges.reply_rules import ReplyRules, Unanswered
from fencepost.simulator.judges.rules import Exercised, Violation
from fencepost.simulator.judges.transaction_rules import BookEntry, TransactionBook
from fencepost.simulator.judges.white_box import Invariants
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.events import NodeStepped, OffsetsAcknowledged, OffsetsListed, PartitionsAdded
from fencepost.simulator.world.journals import ClusterJournals
from fencepost.simulator.world.participants import NS_PER_MS
from fencepost.simulator.world.world import World, WorldSettings

KEY, OTHER = TopicPartition("payments", 0), TopicPartition("payments", 1)
OFFSETS = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
LOG = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT
STATE = TransactionState
PRODUCER = 7


def started() -> tuple[World, Host]:
    """A world of one node, which runs."""
    world = World(WorldSettings(node_settings=NodeSettings()), Choices())
    world.start()
    host = world.nodes[0].host
    assert host is not None
    return world, host


# --- one partition ------------------------------------------------------------------------------------------


def record_of(key: TopicPartition = KEY) -> PartitionRecord:
    return PartitionRecord(key, Exercised(int))


def data(
    record: PartitionRecord, epoch: int, sequence: int, *, count: int = 1
) -> tuple[BatchHeader, bytearray]:
    batch = build_data_batch(
        [b"v"] * count,
        base_timestamp=0,
        producer_id=PRODUCER,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    place(batch, base_offset=record.end_offset, leader_epoch=0)
    return read_header(batch), batch


def write(record: PartitionRecord, epoch: int, sequence: int, *, count: int = 1) -> bytes:
    header, batch = data(record, epoch, sequence, count=count)
    record.judge_after_marker(header)
    record.judge_sequence(header, starts_at_zero=False)
    record.enter(header, None)
    return bytes(batch)


def mark(
    record: PartitionRecord, epoch: int, result: TransactionResult, *, coordinator_epoch: int = 0
) -> bytes:
    batch = build_marker(
        result, producer_id=PRODUCER, producer_epoch=epoch, coordinator_epoch=coordinator_epoch, timestamp=0
    )
    place(batch, base_offset=record.end_offset, leader_epoch=0)
    record.enter(read_header(batch), read_marker(batch))
    return bytes(batch)


def test_sequences_go_on_wrap_and_start_again_with_the_epoch() -> None:
    record = record_of()
    write(record, 0, INT32_MAX - 1, count=2)
    write(record, 0, 0)
    write(record, 1, 0)
    for epoch, sequence in ((1, 0), (1, 2), (2, 1)):
        with pytest.raises(Violation, match="I3 unique sequence"):
            write(record, epoch, sequence)


def test_a_producer_that_is_unknown_may_start_anywhere_unless_its_epoch_is_its_transactions() -> None:
    record = record_of()
    header, _ = data(record, 0, 5)
    record.judge_sequence(header, starts_at_zero=False)
    with pytest.raises(Violation, match="entered with sequence 5 where 0 was next"):
        record.judge_sequence(header, starts_at_zero=True)


def test_nothing_of_an_older_epoch_enters_behind_a_marker() -> None:
    record = record_of()
    write(record, 0, 0)
    mark(record, 1, COMMIT)
    write(record, 1, 0)
    with pytest.raises(Violation, match="I4 hanging"):
        write(record, 0, 1)


def test_the_lso_follows_open_and_undurable_transactions() -> None:
    record = record_of()
    write(record, 0, 0, count=3)
    record.durable(3)
    assert record.first_undecided() == 0
    mark(record, 1, COMMIT)
    assert record.first_undecided() == 0, "the marker is not durable"
    record.durable(4)
    assert record.first_undecided() == 4


def test_an_lso_that_goes_back_is_told() -> None:
    record = record_of()
    write(record, 0, 0)
    mark(record, 1, COMMIT)
    record.durable(2)
    record.judge_bounds(Partition(KEY, high_watermark=2, log_end_offset=2))
    record.model.open[PRODUCER] = 0
    state = Partition(KEY, high_watermark=2, log_end_offset=2)
    state.open_transactions[0] = PRODUCER
    with pytest.raises(Violation, match="I2 monotone"):
        record.judge_bounds(state)


def test_what_a_log_lost_is_taken_back() -> None:
    record = record_of()
    write(record, 0, 0)
    mark(record, 1, ABORT)
    write(record, 1, 0)
    record.cut(1)
    assert (record.end_offset, record.model.aborted, record.model.markers) == (1, [], {})
    assert record.model.open == {PRODUCER: 0}
    mark(record, 1, COMMIT)


def test_a_marker_that_a_log_lost_says_nothing_of_what_came_in_its_place() -> None:
    record = record_of()
    write(record, 0, 0)
    mark(record, 0, COMMIT)
    record.cut(1)
    write(record, 0, 1)
    write(record, 0, 2)
    record.cut(2)
    assert record.model.open == {PRODUCER: 0}
    assert record.model.markers == {}


def test_a_log_that_was_set_aside_is_not_missed() -> None:
    """After a loss of power the metadata may not know a partition. Its next log is a new one."""
    journals = ClusterJournals(
        lambda _most: 0, settings=JournalSettings(), breaks=lambda _what, _where: False
    )
    journals.journal(KEY)
    assert journals.set_aside(KEY) == f"{KEY}~1"
    assert journals.journal(KEY).log_end_offset == 0


def test_a_snapshot_says_what_the_log_says_and_nothing_else() -> None:
    record = record_of()
    write(record, 0, 0)
    known = ProducerSnapshot(PRODUCER, 0, 0, 0, 0, 0, NO_COORDINATOR_EPOCH, 0)
    judge_snapshot(record, 1, (known,))
    judge_snapshot(record, 0, ())
    for wrong in (
        (known._replace(last_sequence=1),),
        (),
        (known, known._replace(producer_id=PRODUCER + 1)),  # its batch was lost with the power
    ):
        with pytest.raises(Violation, match="I12 recovery: payments-0: the snapshot at 1 says of producer"):
            judge_snapshot(record, 1, wrong)


def test_a_replaced_leader_learns_of_nothing_new() -> None:
    record = record_of()
    write(record, 0, 0)
    journals = ClusterJournals(
        lambda _most: 0, settings=JournalSettings(), breaks=lambda _what, _where: False
    )
    record.taken_over(Host(Node(NodeSettings()), journals), 1, is_cut=False)
    record.judge_replaced(1)
    write(record, 0, 1)
    with pytest.raises(Violation, match="I15 durable replies"):
        record.judge_replaced(2)


def test_the_bounds_of_a_replaced_leader_are_in_order_too() -> None:
    world = World(WorldSettings(node_settings=NodeSettings()), Choices())
    judge = Invariants(world)
    judge.partitions[KEY] = record = record_of()
    write(record, 0, 0)
    replaced, heir = (Host(Node(NodeSettings()), world.journals) for _ in range(2))
    record.taken_over(heir, 1, is_cut=False)
    state = Partition(KEY, high_watermark=1, log_end_offset=1)
    replaced.node.logs[KEY] = LeaderLog(state, None)
    learned = Durable(partition=KEY, offset=1)
    judge.durable(replaced, learned, Outcome([], [], []))
    state.high_watermark = 2
    with pytest.raises(Violation, match="high watermark 2, end 1"):
        judge.durable(replaced, learned, Outcome([], [], []))


# --- what readers get ---------------------------------------------------------------------------------------


def test_a_fetch_names_exactly_the_aborted_transactions_that_it_meets() -> None:
    record = record_of()
    bytes_of = [write(record, 0, 0), mark(record, 1, ABORT), write(record, 1, 0)]
    record.durable(3)
    record.last_stable_offset = 2
    named = (AbortedTransaction(producer_id=PRODUCER, first_offset=0),)

    def fetched(records: bytes, aborted: tuple[AbortedTransaction, ...] | None) -> None:
        part = FetchedPartition(
            topic=KEY.topic,
            partition=KEY.partition,
            error=ErrorCode.NONE,
            high_watermark=3,
            last_stable_offset=2,
            log_start_offset=0,
            aborted=aborted,
            records=records,
        )
        judge_fetched(part, record, Exercised(int))

    fetched(b"".join(bytes_of[:2]), named)
    fetched(bytes_of[1], named)
    fetched(b"".join(bytes_of), None)
    with pytest.raises(Violation, match="does not name the aborted transaction"):
        fetched(b"".join(bytes_of[:2]), ())
    with pytest.raises(Violation, match="aborted from 1 on"):
        fetched(bytes_of[0], (*named, AbortedTransaction(producer_id=PRODUCER, first_offset=1)))
    with pytest.raises(Violation, match="the LSO is 2"):
        fetched(b"".join(bytes_of), named)
    record.high_watermark = 2
    with pytest.raises(Violation, match="the log is durable only up to 2"):
        fetched(b"".join(bytes_of), None)


# --- transactions -------------------------------------------------------------------------------------------


@attrs.define
class Coordinator:
    """A transactional id whose log is written by hand; every record is durable at once. A new leader leads
    with the next `leader_epoch`.
    """

    book: TransactionBook
    record: TransactionRecord
    end: int = 0
    leader_epoch: int = 0

    def says(self, state: STATE, *, is_durable: bool = True, **changes: object) -> None:
        self.record = self.record._replace(state=state, **changes)
        self.end += 1
        self.book.enter(LOG, BookEntry(self.end, "payer", self.record, self.leader_epoch))
        if is_durable:
            self.book.durable(LOG, self.end)

    def expires(self) -> None:
        """The tombstone of the id."""
        self.end += 1
        self.book.enter(LOG, BookEntry(self.end, "payer", None, self.leader_epoch))
        self.book.durable(LOG, self.end)


OWNED: Final = TransactionRecord(
    producer_id=PRODUCER,
    previous_producer_id=NO_PRODUCER_ID,
    next_producer_id=NO_PRODUCER_ID,
    producer_epoch=1,
    timeout_ms=1_000,
    state=STATE.EMPTY,
    partitions=(),
    update_ms=0,
    start_ms=0,
    client_version=2,
)


@pytest.fixture
def coordinator() -> Coordinator:
    """An owner with epoch 1 and an open transaction in both partitions."""
    partitions = {KEY: record_of(), OTHER: record_of(OTHER), LOG: record_of(LOG)}
    partitions[LOG].leader_epoch = 0
    made = Coordinator(TransactionBook(Exercised(int), partitions), OWNED)
    made.says(STATE.EMPTY)
    made.says(STATE.ONGOING, partitions=(KEY, OTHER))
    return made


def test_a_decision_is_the_same_everywhere_and_comes_first(coordinator: Coordinator) -> None:
    book = coordinator.book
    with pytest.raises(Violation, match=r"I6 durable decision.*no durable decision"):
        book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, 0))
    coordinator.says(STATE.PREPARE_COMMIT, producer_epoch=2, is_durable=False)
    with pytest.raises(Violation, match=r"I6 durable decision.*no durable decision"):
        book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, 0))
    book.durable(LOG, coordinator.end)
    book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, 0))
    with pytest.raises(Violation, match="I5 one decision"):
        book.judge_marker(OTHER, (PRODUCER, 2), Marker(ABORT, 0))


def test_a_coordinator_that_lost_its_decision_is_held_to_the_first_marker(coordinator: Coordinator) -> None:
    book = coordinator.book
    before = coordinator.end
    coordinator.says(STATE.PREPARE_COMMIT, producer_epoch=2)
    book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, 0))
    book.cut(LOG, before)
    coordinator.says(STATE.PREPARE_ABORT, producer_epoch=2)
    with pytest.raises(Violation, match=r"I5 one decision: payments-1: ABORT.* and payments-0 has COMMIT"):
        book.judge_marker(OTHER, (PRODUCER, 2), Marker(ABORT, 0))


def test_the_first_marker_says_what_was_decided(coordinator: Coordinator) -> None:
    coordinator.says(STATE.PREPARE_ABORT, producer_epoch=2)
    with pytest.raises(Violation, match=r"I6 durable decision.*the decision is ABORT"):
        coordinator.book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, 0))


def test_a_marker_ends_the_transaction_that_is_open(coordinator: Coordinator) -> None:
    book, log = coordinator.book, coordinator.book.partitions[KEY]
    coordinator.says(STATE.PREPARE_COMMIT, producer_epoch=2)
    book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, 0))  # nothing was written there
    write(log, 1, 0)
    book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, 0))
    for where in (KEY, OTHER):
        mark(book.partitions[where], 2, COMMIT)
        book.partitions[where].durable(2)
    book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, 0))  # again: nothing is open
    coordinator.says(STATE.COMPLETE_COMMIT, partitions=())
    coordinator.says(STATE.ONGOING, partitions=(KEY,))
    write(log, 2, 0)
    with pytest.raises(Violation, match=r"I6 durable decision.*next transaction is open since 2"):
        book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, 0))
    coordinator.says(STATE.PREPARE_COMMIT, producer_epoch=3)
    mark(log, 3, COMMIT)
    with pytest.raises(Violation, match=r"I6 durable decision.*the partition knows epoch 3"):
        book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, 0))


def test_a_marker_has_the_epoch_of_its_coordinator(coordinator: Coordinator) -> None:
    book = coordinator.book
    log = book.partitions[LOG]
    log.leader_epoch = coordinator.leader_epoch = 4
    coordinator.says(STATE.PREPARE_COMMIT, producer_epoch=2)
    log.leader_epoch = 6  # two more coordinators may have sent the marker
    for epoch in (4, 5, 6):
        book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, epoch))
    for epoch in (3, 7):
        with pytest.raises(Violation, match=f"coordinator has epoch {epoch}, but 4 decided, and 6 leads"):
            book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, epoch))
    mark(book.partitions[KEY], 2, COMMIT, coordinator_epoch=5)
    with pytest.raises(Violation, match="has epoch 4, but that of the last marker has 5"):
        book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, 4))


@pytest.mark.parametrize("state", [STATE.PREPARE_ABORT, STATE.COMPLETE_ABORT, STATE.ONGOING, STATE.EMPTY])
def test_what_was_decided_stays_decided(coordinator: Coordinator, state: STATE) -> None:
    coordinator.says(STATE.PREPARE_COMMIT, producer_epoch=2)
    with pytest.raises(Violation, match="I6 durable decision: payer went from PrepareCommit"):
        coordinator.says(state, producer_epoch=3)


def test_a_transaction_is_complete_when_every_marker_is_durable(coordinator: Coordinator) -> None:
    partitions = coordinator.book.partitions
    coordinator.says(STATE.PREPARE_COMMIT, producer_epoch=2)
    for where in (KEY, OTHER):
        write(partitions[where], 1, 0)
        mark(partitions[where], 2, COMMIT)
    partitions[KEY].durable(2)
    with pytest.raises(Violation, match=r"without a durable marker of epoch 2 in payments-1"):
        coordinator.says(STATE.COMPLETE_COMMIT, partitions=())
    partitions[OTHER].durable(2)
    coordinator.says(STATE.COMPLETE_COMMIT, partitions=())


def test_a_complete_transaction_keeps_no_partitions(coordinator: Coordinator) -> None:
    coordinator.says(STATE.PREPARE_ABORT, producer_epoch=2)
    with pytest.raises(Violation, match="payer is CompleteAbort and keeps payments-0, payments-1"):
        coordinator.says(STATE.COMPLETE_ABORT)


def test_an_open_transaction_keeps_its_timeout(coordinator: Coordinator) -> None:
    with pytest.raises(Violation, match="I14 timeout: payer is open since"):
        coordinator.says(STATE.ONGOING, start_ms=coordinator.record.start_ms + 1)


def test_a_scan_aborts_what_is_overdue_and_nothing_else() -> None:
    world, host = started()
    (node,) = world.nodes
    judge, record = Invariants(world), record_of(LOG)
    judge.partitions[LOG], record.host, record.leader_epoch = record, host, 0
    coordinator = Coordinator(judge.transactions, OWNED)
    coordinator.says(STATE.EMPTY)
    coordinator.says(STATE.ONGOING, partitions=(KEY,))
    aborted = coordinator.record._replace(state=STATE.PREPARE_ABORT, producer_epoch=2)
    host.node.logs[LOG] = LeaderLog(Partition(LOG), Transactions(0, records={"payer": aborted}))

    def scanned(at_ms: int, *, aborts: bool) -> None:
        node.clock.offset_ns = at_ms * NS_PER_MS - world.now
        appends: list[Append] = []
        if aborts:
            batch = transaction_batch("payer", aborted, timestamp=at_ms)
            place(batch, base_offset=record.end_offset, leader_epoch=0)
            appends.append(Append(LOG, header=read_header(batch), batch=batch, leader_epoch=0))
        judge.stepped(NodeStepped(node, Tick(), Outcome(appends, [], [])))

    scanned(1_000, aborts=False)
    with pytest.raises(Violation, match=r"I14 timeout: payer is open since 0 ms .* left open at 1001 ms"):
        scanned(1_001, aborts=False)
    with pytest.raises(Violation, match=r"I14 timeout: payer is open since 0 ms .* aborted at 1000 ms"):
        scanned(1_000, aborts=True)
    record.cut(0)
    scanned(1_001, aborts=True)


def test_a_batch_enters_where_its_coordinator_has_it(coordinator: Coordinator) -> None:
    book = coordinator.book
    book.judge_write(KEY, PRODUCER, 1)
    for where, producer, epoch in ((TopicPartition("in", 0), PRODUCER, 1), (KEY, PRODUCER, 0), (KEY, 8, 1)):
        with pytest.raises(Violation, match="I4 hanging"):
            book.judge_write(where, producer, epoch)
    coordinator.says(STATE.PREPARE_ABORT, producer_epoch=2, partitions=())
    book.judge_write(KEY, PRODUCER, 1)
    coordinator.says(STATE.COMPLETE_ABORT)
    with pytest.raises(Violation, match="payer is CompleteAbort"):
        book.judge_write(KEY, PRODUCER, 1)


def test_epochs_do_not_fall_and_ids_are_new(coordinator: Coordinator) -> None:
    with pytest.raises(Violation, match="I7 unique identity"):
        coordinator.says(STATE.PREPARE_COMMIT, producer_epoch=1)
    with pytest.raises(Violation, match="which payer had before"):
        coordinator.book.enter(LOG, BookEntry(9, "other", coordinator.record, 0))


def test_an_owner_who_was_replaced_writes_nothing_more(coordinator: Coordinator) -> None:
    book = coordinator.book
    coordinator.says(STATE.PREPARE_ABORT, producer_epoch=2, partitions=())
    coordinator.says(STATE.COMPLETE_ABORT)
    coordinator.says(STATE.EMPTY, producer_epoch=3, is_durable=False)
    book.judge_fenced(KEY, PRODUCER, 1)
    book.durable(LOG, coordinator.end)
    book.judge_fenced(KEY, PRODUCER, 3)
    with pytest.raises(Violation, match="I13 fenced"):
        book.judge_fenced(KEY, PRODUCER, 2)


def test_an_id_expires_once_it_was_unused_for_long_enough(coordinator: Coordinator) -> None:
    book = coordinator.book

    def expires(now_ms: int) -> None:
        book.judge_expiry("payer", expires_after_ms=100, now_ms=now_ms)

    for state in (STATE.ONGOING, STATE.PREPARE_ABORT):
        coordinator.says(state, producer_epoch=1 + (state is STATE.PREPARE_ABORT))
        with pytest.raises(Violation, match=f"I19 expiry: payer expired while it was {state.title}"):
            expires(10_000)
    for where in (KEY, OTHER):
        mark(book.partitions[where], 2, ABORT)
        book.partitions[where].durable(1)
    coordinator.says(STATE.COMPLETE_ABORT, partitions=(), update_ms=50)
    with pytest.raises(Violation, match=r"I19 expiry: payer expired at 149 ms.*for 100 ms"):
        expires(149)
    expires(150)
    coordinator.expires()
    with pytest.raises(Violation, match="I19 expiry: payer expired, but the log has no record of it"):
        expires(10_000)
    assert book.exercised["I19 expiry"] == 5


def test_nobody_writes_by_an_id_that_has_expired(coordinator: Coordinator) -> None:
    book = coordinator.book
    coordinator.says(STATE.PREPARE_ABORT, producer_epoch=2, partitions=())
    coordinator.says(STATE.COMPLETE_ABORT)
    before = coordinator.end
    coordinator.expires()
    with pytest.raises(Violation, match=r"I13 fenced.*its producer id was replaced or expired"):
        book.judge_fenced(KEY, PRODUCER, 2)
    with pytest.raises(Violation, match=r"I4 hanging.*no such transaction"):
        book.judge_write(KEY, PRODUCER, 2)
    assert not book.latest
    book.cut(LOG, before)  # the tombstone is lost
    assert book.latest["payer"].state is STATE.COMPLETE_ABORT


def test_a_record_that_a_log_lost_was_never_said(coordinator: Coordinator) -> None:
    book = coordinator.book
    coordinator.says(STATE.PREPARE_COMMIT, producer_epoch=2, is_durable=False)
    book.cut(LOG, coordinator.end - 1)
    assert book.latest["payer"].state is STATE.ONGOING
    book.judge_write(OTHER, PRODUCER, 1)
    with pytest.raises(Violation, match="no durable decision"):
        book.judge_marker(KEY, (PRODUCER, 2), Marker(COMMIT, 0))


# --- what is answered ---------------------------------------------------------------------------------------


def test_nodes_that_number_what_they_ask_themselves_alike_are_told_apart() -> None:
    """KeyError once: two leaders were each coordinators of their own partition, with the same ticket."""
    world = World(WorldSettings(nodes=2, node_settings=NodeSettings()), Choices())
    world.start()
    partitions = {KEY: record_of(), OTHER: record_of(OTHER)}
    book = TransactionBook(Exercised(int), partitions)
    rules = ReplyRules(Exercised(int), partitions, book, {}, Counter(), {})
    ticket = ReplyTo(NODE, 1)
    for node, key, producer_id in zip(world.nodes, partitions, (PRODUCER, 8), strict=True):
        marker = TransactionMarker(
            producer_id=producer_id,
            producer_epoch=1,
            result=COMMIT,
            coordinator_epoch=0,
            transaction_version=2,
            partitions=(key,),
        )
        rules.asked[node.settings.node_id, ticket] = Unanswered(WriteTxnMarkers(markers=(marker,)))
    mark(partitions[KEY], 1, COMMIT)
    partitions[KEY].durable(1)
    done = PartitionError(topic=KEY.topic, partition=KEY.partition, error=ErrorCode.NONE)
    written = WrittenMarker(producer_id=PRODUCER, partitions=(done,))
    reply = Reply(to=ticket, body=WriteTxnMarkersReply(markers=(written,)))
    rules.replied(world.nodes[0], reply)
    assert list(rules.asked) == [(2, ticket)]
    rules.died(2)
    assert not rules.asked


def test_a_reply_to_a_produce_is_judged_by_the_log_of_the_topic_that_it_names() -> None:
    """Another one may have been durable in a topic that was deleted while the reply waited."""
    world = World(WorldSettings(nodes=1, node_settings=NodeSettings()), Choices())
    world.start()
    partitions, old, new = {KEY: record_of()}, bytes(15) + b"\1", bytes(15) + b"\2"
    book = TransactionBook(Exercised(int), partitions, deleted={KEY.topic})
    rules = ReplyRules(Exercised(int), partitions, book, {}, Counter(), {KEY.topic: new})
    done = ProducedPartition(
        topic=KEY.topic, partition=KEY.partition, error=ErrorCode.NONE, base_offset=7, log_start_offset=0
    )
    reply = Reply(to=ReplyTo(1, 1), body=ProduceReply(partitions=(done,)))

    def replied(topic_id: bytes) -> None:
        part = ProducePartition(topic=KEY.topic, topic_id=topic_id, partition=KEY.partition, records=b"")
        produce = Produce(transactional_id=None, acks=-1, timeout_ms=1, partitions=(part,))
        rules.asked[1, reply.to] = Unanswered(produce)
        rules.replied(world.nodes[0], reply)

    replied(old)
    with pytest.raises(Violation, match="a batch at 7 was acknowledged, but the log is durable only up to 0"):
        replied(new)


def test_a_retry_of_an_end_that_was_carried_out_succeeds_until_there_is_a_newer_owner(
    coordinator: Coordinator,
) -> None:
    world, host = started()
    book = coordinator.book
    book.partitions[LOG].host = host
    host.node.logs[LOG] = LeaderLog(Partition(LOG), None)
    rules = ReplyRules(Exercised(int), book.partitions, book, {}, Counter(), {})
    request = EndTxn(transactional_id="payer", producer_id=PRODUCER, producer_epoch=1, result=COMMIT)

    def refused() -> None:
        to = ReplyTo(1, 1)
        rules.received(host, to, request)
        rules.replied(world.nodes[0], Reply(to, error=ErrorCode.INVALID_PRODUCER_EPOCH))

    refused()
    coordinator.says(STATE.PREPARE_COMMIT, producer_epoch=2, partitions=())
    refused()  # the decision is not carried out yet
    coordinator.says(STATE.COMPLETE_COMMIT)
    with pytest.raises(Violation, match=r"I16 retries succeed: EndTxn of payer by producer 7 epoch 1.*"):
        refused()
    coordinator.says(STATE.EMPTY, producer_epoch=3)
    refused()


def test_acknowledged_offsets_take_effect(coordinator: Coordinator) -> None:
    """Also when the log of the offsets is read again, once the transaction is complete."""
    wanted = OffsetKey("copiers", KEY.topic, KEY.partition)
    record, offsets = record_of(), OffsetsRecord(Exercised(int))
    rule = AcknowledgedOffsets(Exercised(int), coordinator.book, {OFFSETS: offsets})
    acknowledged = OffsetsAcknowledged("copier", PRODUCER, 1, ((wanted, 5),))
    header, _ = data(record, 1, 0)
    committed = OffsetRecord(offset=5, leader_epoch=0, metadata="", commit_ms=0)
    offsets.enter(OffsetsBatch(header, None, [(wanted, committed)]), Groups())
    with pytest.raises(Violation, match=r"I9 offsets with marker.*but no durable decision says so"):
        rule.add(acknowledged)
    coordinator.says(STATE.PREPARE_COMMIT, producer_epoch=2, partitions=())
    rule.add(acknowledged)
    rule.judge_recovered()  # the marker is on its way
    coordinator.says(STATE.COMPLETE_COMMIT)
    for judge in (rule.judge_recovered, rule.judge_end):
        with pytest.raises(Violation, match="offset 5 of group copiers in payments-0 never took effect"):
            judge()
    groups = Groups(committed={wanted.group_id: {KEY: Committed(committed, 0)}})
    offsets.enter(OffsetsBatch(header, COMMIT, []), groups)
    rule.judge_recovered()
    rule.judge_end()


def test_no_offset_of_a_deleted_topic_is_remembered() -> None:
    old, new = bytes(15) + b"\1", bytes(15) + b"\2"
    wanted = OffsetKey("copiers", KEY.topic, KEY.partition)
    committed = OffsetRecord(offset=5, leader_epoch=0, metadata="", commit_ms=0, topic_id=old)
    header, _ = data(record_of(), 1, 0)
    offsets = OffsetsRecord(Exercised(int))
    offsets.enter(OffsetsBatch(header, None, [(wanted, committed)]), Groups())
    assert [*offsets.remembered({KEY.topic: new})] == [], "the offset is not committed yet"
    groups = Groups(committed={wanted.group_id: {KEY: Committed(committed, 0)}})
    offsets.enter(OffsetsBatch(header, COMMIT, []), groups)
    assert [*offsets.remembered({KEY.topic: old})] == []
    for known in ({KEY.topic: new}, {}):
        assert [*offsets.remembered(known)] == [
            "group copiers has offset 5 of payments-0, whose topic was deleted"
        ]


def test_a_topic_whose_creation_is_lost_never_was() -> None:
    """I20 and I21 compare with the topic that the name had before."""
    world = World(WorldSettings(node_settings=NodeSettings(), policy=SyncPolicy.COMMIT), Choices())
    judge = Invariants(world)
    judge.attach()
    world.start()
    world.create_topics(((KEY.topic, 1),))
    (node,) = world.nodes
    known, metadata = judge.topic_ids[KEY.topic], judge.partitions[METADATA_PARTITION]
    batch = cluster_batch([TopicCreated(KEY.topic, topic_id=bytes(15) + b"\1", created_ms=0)], timestamp=0)
    place(batch, base_offset=metadata.end_offset, leader_epoch=metadata.leader_epoch)
    append = Append(
        METADATA_PARTITION, header=read_header(batch), batch=batch, leader_epoch=metadata.leader_epoch
    )
    judge.stepped(NodeStepped(node, Tick(), Outcome([append], [], [])))  # and it is never written
    assert judge.topic_ids[KEY.topic] != known
    node.kill(power_is_lost=True)
    node.start()
    assert judge.topic_ids[KEY.topic] == known


def test_a_batch_enters_the_topic_that_its_request_names() -> None:
    world, host = started()
    world.create_topics(((KEY.topic, 1),))
    judge, record = Invariants(world), record_of()
    judge.partitions[KEY], record.host, record.leader_epoch = record, host, 0

    def appended(topic_id: bytes) -> None:
        batch = build_data_batch([b"v"], base_timestamp=0)
        place(batch, base_offset=record.end_offset, leader_epoch=0)
        part = ProducePartition(topic=KEY.topic, topic_id=topic_id, partition=KEY.partition, records=batch)
        request = Produce(transactional_id=None, acks=-1, timeout_ms=1, partitions=(part,))
        append = Append(KEY, header=read_header(batch), batch=batch, leader_epoch=0)
        received = Received(request, to=ReplyTo(1, 1))
        judge.stepped(NodeStepped(world.nodes[0], received, Outcome([append], [], [])))

    known = host.node.topic_id(KEY.topic)
    assert known is not None
    appended(known)
    appended(NO_TOPIC_ID)  # of a client that has no topic ids
    with pytest.raises(Violation, match="I21 topic ids: payments-0: a batch for another topic of this name"):
        appended(bytes(15) + b"\1")


def test_members_of_one_generation_own_different_partitions() -> None:
    world, host = started()
    settings = ConsumerSettings(group_id="copiers")
    calls = ConsumerMachine(world.bootstrap, settings).calls
    members = [GroupMember(calls, settings, 0, member_id=name, generation_id=1) for name in ("a", "b", "c")]
    group = Group(group_id="copiers", members=Members.of(_known(each.member_id) for each in members[:2]))
    host.node.logs[OFFSETS] = LeaderLog(Partition(OFFSETS), Groups(live={"copiers": group}))
    rule = OwnerRule(world, Exercised(int))
    processes = [world.process(member.member_id) for member in members]

    def owns(number: int, *partitions: TopicPartition) -> None:
        members[number].assigned = partitions
        rule.added(PartitionsAdded(processes[number], members[number], partitions))

    owns(0, KEY)
    owns(1, OTHER)
    owns(2, KEY)  # the group has replaced this member
    members[2].assigned = ()
    with pytest.raises(Violation, match="I17 one owner: a has not given up payments-0, which b owns in"):
        owns(1, OTHER, KEY)
    members[1].generation_id = 2  # a owns its partition until it learns of this
    owns(1, OTHER, KEY)


def _known(member_id: str) -> Member:
    return Member(
        member_id=member_id,
        instance_id=None,
        client_id="",
        client_host="",
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        protocols=(),
    )


def test_a_listing_is_what_the_log_says() -> None:
    """The node plans its reply; what is written between plan and reply does not count."""
    world = World(WorldSettings(node_settings=NodeSettings()), Choices())
    world.start()
    (node,) = world.nodes
    record = record_of()
    for sequence in range(3):
        batch = write(record, 0, sequence)
        world.journals.journal(KEY).append(batch, read_header(batch), leader_epoch=0)
    record.host, record.high_watermark, record.last_stable_offset = node.host, 2, 1
    rule, to = ListingRule(Exercised(int), {KEY: record}, world.journals), ReplyTo(1, 1)

    def listed(level: IsolationLevel, timestamp: int, offset: int, found_ms: int) -> None:
        asked = ListOffsetsPartition(topic=KEY.topic, partition=KEY.partition, timestamp=timestamp)
        plan = OffsetPlan(
            partition=KEY,
            error=ErrorCode.NONE,
            offset=offset,
            leader_epoch=0,
            timestamp=timestamp,
            before=2,
            is_lookup=False,
        )
        request = ListOffsets(isolation_level=level, partitions=(asked,))
        rule.plans(node, ReplyListed(request, to, plans=(plan,)))
        part = ListedOffset(
            topic=KEY.topic, partition=KEY.partition, error=ErrorCode.NONE, timestamp=found_ms, offset=offset
        )
        rule.replied(OffsetsListed(node, to, ListOffsetsReply(partitions=(part,))))

    committed, all_records = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
    for level, timestamp, offset, found_ms in (
        (committed, LATEST_TIMESTAMP, 1, -1),
        (all_records, LATEST_TIMESTAMP, 2, -1),
        (committed, EARLIEST_TIMESTAMP, 0, -1),
        (committed, 0, 0, 0),
        (all_records, 1, -1, -1),
    ):
        listed(level, timestamp, offset, found_ms)
        with pytest.raises(Violation, match="I18 listed offsets: payments-0: ListOffsets of"):
            listed(level, timestamp, offset + 1, found_ms)
    rule.plans(node, ReplyListed(ListOffsets(isolation_level=committed, partitions=()), to, plans=()))
    rule.died(node.settings.node_id)
    assert not rule.planned
