"""The white-box judge: it looks at each step of each node, before anything of the step is written or sent.

Theory of operation. A world publishes every step (NodeStepped: a node, its input, the appends and effects
that it decided). The judge keeps a second account of the whole cluster, made from the appends alone, and
compares:

    step ──▶ appends ──▶ PartitionRecord   log model of each partition, bounds          I1-4, I11, I12, I21
        │           ├──▶ TransactionBook   records of each coordinator, durable or not      I4-I7, I13, I19
        │           └──▶ OffsetsRecord     committed and pending offsets of each group      I9
        ├──▶ replies ──▶ ReplyRules        replies to clients and nodes, even to retries    I7, I13, I15, I16
        │           └──▶ ListingRule       replies to ListOffsets                           I18
        └──▶ after it    bounds that the leader shows, timeouts                             I1, I2, I14
    the end of a run ──▶ judge_end                                                          I8, I9, I20

Order matters within a step. The input comes first, since it may make a log durable or change its leader; then
the appends in their order, each judged against the account *before* it enters; then the replies, which may
confirm these appends only if they are durable; finally the bounds, which must agree with all of this.

The invariant: what the judge knows comes from log bytes. It reads the cores only to compare them (bounds,
offsets, what a leader knows after recovery). A judge that believed a coordinator's memory would miss every
bug where memory and log differ, and such a bug shows only after a failover.

Speed matters too, since the judge runs in every step of every simulated world: an append costs one step of
each fold, and a partition is looked at only when a step touched it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from fencepost.broker.contract import (
    Append,
    BecomeLeader,
    Durable,
    Input,
    Outcome,
    Received,
    Reply,
    ReplyListed,
    StorageFailed,
    Tick,
)
from fencepost.broker.groups.state import Groups
from fencepost.broker.host import Host
from fencepost.broker.leader_log import LeaderLog
from fencepost.broker.partitions.partition import Partition
from fencepost.broker.purgatory import InFlightMetadataFetch
from fencepost.broker.transactions.state import Transactions
from fencepost.protocol.batches import BatchHeader, Buffer, checksum_matches, marker_of, walk
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.messages import Produce
from fencepost.protocol.metadata_log import TopicCreated, TopicRemoved, read_cluster_records
from fencepost.protocol.offsets_log import read_offsets
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    LAST_GRANTED_EPOCH,
    NO_PRODUCER_ID,
    NO_TOPIC_ID,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    TransactionResult,
    TransactionState,
)
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions
from fencepost.simulator.judges.coverage import COUNTED, CellCounter
from fencepost.simulator.judges.group_rules import OwnerRule
from fencepost.simulator.judges.listing_rule import ListingRule
from fencepost.simulator.judges.offset_rules import AcknowledgedOffsets, OffsetsBatch, OffsetsRecord
from fencepost.simulator.judges.partition_rules import PartitionRecord, judge_fetched, judge_order
from fencepost.simulator.judges.recovery_rule import RecoveryRule
from fencepost.simulator.judges.reply_rules import WATCHED, ReplyRules
from fencepost.simulator.judges.rules import (
    CONVERGENCE,
    FORGOTTEN_OFFSETS,
    RECOVERY,
    TIMEOUT,
    TOPIC_IDS,
    Exercised,
    Violation,
)
from fencepost.simulator.judges.transaction_rules import BookEntry, TransactionBook
from fencepost.simulator.world.events import (
    FetchReplied,
    LogDeleted,
    LogWritten,
    NodeKilled,
    NodeStepped,
    OffsetsAcknowledged,
    OffsetsListed,
    PartitionsAdded,
)
from fencepost.simulator.world.nodes import SimulatedNode
from fencepost.simulator.world.world import World

Look = Callable[[Any], None]


class Invariants:
    """The white-box judge of one world. Call `judge_end` when a healed run is over."""

    def __init__(self, world: World) -> None:
        settings = world.settings
        self.world = world
        self.exercised = Exercised(int)
        self.partitions: dict[TopicPartition, PartitionRecord] = {}
        self.transactions = TransactionBook(self.exercised, self.partitions)
        self.offsets: dict[TopicPartition, OffsetsRecord] = {}
        self.topic_ids: dict[str, bytes] = {}  # of the last topic of each name
        self.created: list[tuple[int, TopicCreated]] = []  # by the offset of their batches
        self.topic_names: dict[bytes, str] = {}  # of all topics, as a damaged metadata log may forget one
        self.rare_states: Counter[str] = Counter()
        self.replies = ReplyRules(
            self.exercised, self.partitions, self.transactions, self.offsets, self.rare_states, self.topic_ids
        )
        self.listings = ListingRule(self.exercised, self.partitions, world.journals)
        self.acknowledged = AcknowledgedOffsets(self.exercised, self.transactions, self.offsets)
        self.owners = OwnerRule(world, self.exercised)
        self.recovery = RecoveryRule(self.exercised, settings.policy, world.journals)
        self.moved: list[tuple[PartitionRecord, Partition]] = []  # in this step, by their newest leader
        self.cells = CellCounter(
            settings.node_settings.transaction_version, self.transactions, self.rare_states
        )

    # --- events ---------------------------------------------------------------------------------------------

    def attach(self, guarded: Callable[[Look], Look] = lambda look: look) -> None:
        """From now on it looks at each step, and raises Violation in the middle of the first bad one; unless
        `guarded` keeps it.
        """
        subscribe = self.world.events.subscribe
        subscribe(NodeStepped, guarded(self.stepped))
        subscribe(FetchReplied, guarded(self.fetched))
        subscribe(OffsetsListed, guarded(self.listings.replied))
        subscribe(NodeKilled, guarded(self.killed))
        subscribe(LogWritten, guarded(self.aged))
        subscribe(LogDeleted, guarded(self.deleted))
        subscribe(OffsetsAcknowledged, guarded(self.acknowledged.add))
        subscribe(PartitionsAdded, guarded(self.owners.added))

    def stepped(self, step: NodeStepped) -> None:
        """A node took one input; nothing of the outcome is written or sent yet."""
        node, arrived, outcome = step.node, step.arrived, step.outcome
        host = node.host
        assert host is not None, "only a live node takes an input"
        kind = type(arrived)
        look = _BEFORE_APPENDS.get(kind)
        if look is not None:
            look(self, host, arrived, outcome)
        for append in outcome.appends:
            self._append(node, host, arrived, append)
        for effect in outcome.effects:
            if type(effect) is Reply:
                self.replies.replied(node, effect)
            elif type(effect) is ReplyListed:
                self.listings.plans(node, effect)
        if self.moved:
            for record, partition in self.moved:
                record.judge_bounds(partition)
            self.moved.clear()
        if kind is Tick:
            self._judge_timeouts(node, host)

    def fetched(self, replied: FetchReplied) -> None:
        """A node replies to a Fetch, with what it read."""
        for part in replied.reply.partitions:
            key = TopicPartition(part.topic, part.partition)
            record = self.partitions.get(key)  # None when another node knows already that it was deleted
            is_damaged = key in self.world.journals.damaged
            if record is not None and len(part.records) and not (is_damaged and _is_refused(part.records)):
                judge_fetched(part, record, self.exercised)

    def killed(self, killed: NodeKilled) -> None:
        """A node was killed; its logs are still open."""
        node, host = killed.node, killed.host
        self.replies.died(node.settings.node_id)
        self.listings.died(node.settings.node_id)
        for record in self.partitions.values():
            if record.host is host:
                self.recovery.died(record, host, power_is_lost=killed.power_is_lost)
                record.host = None

    def aged(self, written: LogWritten) -> None:
        """The world wrote a record of a transactional id while its log had no leader."""
        key, header = written.partition, written.header
        record = self.partitions[key]
        record.enter(header, None)
        self.recovery.remembered.pop(key, None)  # the last leader did not know this record
        (name, decided), *_ = read_transactions(written.batch, header)
        self.transactions.enter(key, BookEntry(record.end_offset, name, decided, record.leader_epoch))

    # --- the end --------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether `judge_end` would find nothing that is still going on."""
        return next(self._still_going_on(), None) is None

    def judge_end(self) -> None:
        """I8, I20, the ends of I9 and I14: all faults and all work are over, and nothing may be left open."""
        self.exercised[CONVERGENCE.name] += 1
        for breach in self._still_going_on():
            raise breach
        self.acknowledged.judge_end()

    def _still_going_on(self) -> Iterator[Violation]:
        for name, record in self.transactions.latest.items():
            if record.state.is_prepared:
                yield CONVERGENCE.broken(f"{name} is still {record.state.title}")
            elif record.state is TransactionState.ONGOING:
                yield TIMEOUT.broken(f"{name} is still open, since {record.start_ms} ms")
        for node in self.world.nodes:
            for problem in _unsettled(node):
                yield CONVERGENCE.broken(f"{node.participant}: {problem}")
        if self.transactions.deleted:
            for offsets in self.offsets.values():
                for problem in offsets.remembered(self.topic_ids):
                    yield FORGOTTEN_OFFSETS.broken(problem)

    # --- inputs ---------------------------------------------------------------------------------------------

    def durable(self, host: Host, arrived: Durable, _outcome: Outcome) -> None:
        key = arrived.partition
        log, record = host.node.logs.get(key), self.partitions.get(key)
        if log is None or record is None:
            return
        # A leader that was replaced need not know it yet, but it must not learn more than its successor
        # found.
        if record.host is not host:
            record.judge_replaced(arrived.offset)
            judge_order(log.partition)
            return
        record.durable(arrived.offset)
        if key.topic == TRANSACTION_STATE_TOPIC:
            self.transactions.durable(key, arrived.offset)
        self.moved.append((record, log.partition))

    def received(self, host: Host, arrived: Received, _outcome: Outcome) -> None:
        request: Any = arrived.request
        kind = type(arrived.request)
        if kind in COUNTED:
            self.cells.received(host, arrived)
        if kind in WATCHED:
            self.replies.received(host, arrived.to, request)

    def led(self, host: Host, arrived: BecomeLeader, outcome: Outcome) -> None:
        key = arrived.partition
        record = self.partitions.get(key)
        if record is None:
            record = self.partitions[key] = PartitionRecord(key, self.exercised)
        # A leader that writes in its first step knows more than what it has read, and cannot be compared.
        is_untouched = all(append.partition != key for append in outcome.appends)
        count = self.recovery.take_over(record, arrived, host.node, is_untouched=is_untouched)
        is_cut = count < len(record.headers)
        if is_cut:
            record.cut(count)
        record.taken_over(host, arrived.leader_epoch, is_cut=is_cut)
        self._moves(host, record)
        if key.topic == CLUSTER_METADATA_TOPIC:
            self._cut_metadata(record.end_offset)
        elif key.topic == TRANSACTION_STATE_TOPIC:
            self.transactions.cut(key, record.end_offset)
        elif key in self.offsets:
            self.offsets[key].cut(record.end_offset)
            if key not in self.world.journals.damaged:
                self.acknowledged.judge_recovered()
            groups = host.node.logs[key].coordinator
            if is_untouched and isinstance(groups, Groups):
                self.offsets[key].judge_all(groups)

    def storage_failed(self, _host: Host, arrived: StorageFailed, _outcome: Outcome) -> None:
        """Only what a fault damaged is damaged: no crash leaves a log that its next leader refuses."""
        if arrived.needs_operator and arrived.partition not in self.world.journals.damaged:
            raise RECOVERY.broken(f"{arrived.partition}: a node refuses the log, which nothing has damaged")

    def _moves(self, host: Host, record: PartitionRecord) -> None:
        log = host.node.logs.get(record.key)
        if log is not None:
            self.moved.append((record, log.partition))

    def deleted(self, deleted: LogDeleted) -> None:
        """A log was deleted: the next one of this name is new."""
        self.partitions.pop(deleted.partition, None)
        self.recovery.forget(deleted.partition)

    # --- appends --------------------------------------------------------------------------------------------

    def _append(self, node: SimulatedNode, host: Host, arrived: Input, append: Append) -> None:
        key, header = append.partition, append.header
        record = self.partitions.get(key)
        # The journal refuses the batches of a leader that was replaced: they are never written.
        if record is None or record.host is not host or record.leader_epoch != append.leader_epoch:
            return
        if isinstance(arrived, Received) and isinstance(arrived.request, Produce):
            self._judge_topic(host, key, arrived.request)
        marker = None
        if header.producer_id != NO_PRODUCER_ID:
            if header.is_control:
                marker = marker_of(append.batch, 0, header)
                identity = (header.producer_id, header.producer_epoch)
                self.transactions.judge_marker(key, identity, marker)
                # A marker must not move the LSO before it is replicated. Data may move the bounds only when
                # it is durable, which is a step of its own.
                self._moves(host, record)
            else:
                self._judge_batch(record, header)
        record.enter(header, marker)
        if key.topic == TRANSACTION_STATE_TOPIC:
            # Read from the batch, since a coordinator's memory may hold what its log does not.
            (name, decided), *_ = read_transactions(append.batch, header)
            _compare(host, key, name, decided)
            is_tick = isinstance(arrived, Tick)
            if decided is None:
                self._judge_expiry(node, name)
            elif is_tick:
                self._judge_abort(node, name, decided)
            self.cells.decided(name, decided, is_tick=is_tick)
            self.transactions.enter(key, BookEntry(record.end_offset, name, decided, record.leader_epoch))
        elif key.topic == CLUSTER_METADATA_TOPIC:
            self._enter_metadata(append)
        elif key.topic == CONSUMER_OFFSETS_TOPIC:
            self._enter_offsets(host, append, None if marker is None else marker.result)

    def _judge_topic(self, host: Host, key: TopicPartition, request: Produce) -> None:
        """The batches of a Produce that is decided at once. Those that waited for the coordinator have a
        guard, which is of one leadership, and so of one topic.
        """
        held = host.held.get(key)
        if held is None:  # this batch creates the log, as that of the topic which the node knows by this name
            there = host.node.topic_id(key.topic)
        elif self.world.journals.holds(held.journal):
            there = held.journal.topic_id
        else:
            return  # the log was lost, and takes no batch
        self.exercised[TOPIC_IDS.name] += 1
        meant = {part.topic_id for part in request.partitions if part.topic == key.topic}
        if meant - {NO_TOPIC_ID, there}:
            raise TOPIC_IDS.broken(f"{key}: a batch for another topic of this name was appended")

    def _enter_metadata(self, append: Append) -> None:
        for record in read_cluster_records(append.batch, append.header):
            if isinstance(record, TopicCreated):
                self.created.append((append.header.base_offset, record))
                self.topic_ids[record.topic] = record.topic_id
                self.topic_names[record.topic_id] = record.topic
            elif isinstance(record, TopicRemoved):
                topic = self.topic_names[record.topic_id]
                self.transactions.deleted.add(topic)
                committed = [key for each in self.offsets.values() for key in each.model.committed]
                self.exercised[FORGOTTEN_OFFSETS.name] += sum(key.topic == topic for key in committed)

    def _cut_metadata(self, end: int) -> None:
        """The log ends at `end`: topics after it were never created."""
        self.created = [(offset, record) for offset, record in self.created if offset < end]
        self.topic_ids.clear()
        self.topic_ids.update((record.topic, record.topic_id) for _, record in self.created)

    def _judge_batch(self, record: PartitionRecord, header: BatchHeader) -> None:
        identity = (header.producer_id, header.producer_epoch)
        starts_at_zero = False
        record.judge_after_marker(header)
        if header.is_transactional:
            # Plain batches have no owner: fencing is about transactional ids.
            self.transactions.judge_fenced(record.key, *identity)
            starts_at_zero = self.transactions.judge_write(record.key, *identity).renews_identity
        # Where each transaction has an epoch of its own, its first batch in a partition has sequence 0
        # (KIP-890).
        record.judge_sequence(header, starts_at_zero=starts_at_zero)

    def _enter_offsets(self, host: Host, append: Append, result: TransactionResult | None) -> None:
        header = append.header
        offsets = self.offsets.get(append.partition)
        if offsets is None:
            offsets = self.offsets[append.partition] = OffsetsRecord(self.exercised)
        entries = read_offsets(append.batch, header) if result is None else []
        groups = host.node.logs[append.partition].coordinator
        assert isinstance(groups, Groups), "groups live on __consumer_offsets"
        offsets.enter(OffsetsBatch(header, result, entries), groups)

    def _judge_abort(self, node: SimulatedNode, name: str, decided: TransactionRecord) -> None:
        """A scan aborts only what is overdue."""
        record, now = self.transactions.latest.get(name), node.clock.ms(self.world.now)
        if record is None or record.state is not TransactionState.ONGOING or not decided.state.is_prepared:
            return
        if record.start_ms + record.timeout_ms >= now:
            raise TIMEOUT.broken(
                f"{name} is open since {record.start_ms} ms for {record.timeout_ms} ms, and was aborted at "
                f"{now} ms"
            )

    def _judge_expiry(self, node: SimulatedNode, name: str) -> None:
        self.transactions.judge_expiry(
            name,
            expires_after_ms=node.settings.transactional_id_expiration_ms,
            now_ms=node.clock.ms(self.world.now),
        )

    # --- after the step -------------------------------------------------------------------------------------

    def _judge_timeouts(self, node: SimulatedNode, host: Host) -> None:
        """A scan leaves nothing overdue open, unless its abort needs a producer id and none is left."""
        ids, book = host.node.producer_ids, self.transactions
        has_no_ids = ids.is_empty and ids.next_block is None
        now = node.clock.ms(self.world.now)
        for name, record in book.latest.items():
            if (
                record.state is TransactionState.ONGOING
                and self._leads(host, book.homes[name])
                and book.durable_records.get(name) is record
                # At the last epoch, an abort needs another producer id (KAFKA-20090).
                and not (has_no_ids and record.producer_epoch >= LAST_GRANTED_EPOCH)
            ):
                self.exercised[TIMEOUT.name] += 1
                if record.start_ms + record.timeout_ms < now:
                    raise TIMEOUT.broken(
                        f"{name} is open since {record.start_ms} ms for at most {record.timeout_ms} ms, and "
                        f"was left open at {now} ms"
                    )

    def _leads(self, host: Host, key: TopicPartition) -> bool:
        return self.partitions[key].host is host and key in host.node.logs


def _is_refused(records: Buffer) -> bool:
    """Whether a client refuses these batches: brokers leave most checksums to the readers, as Kafka does."""
    try:
        return not all(checksum_matches(records, at, header) for at, header in walk(records))
    except ProtocolViolation:
        return True


def _compare(host: Host, key: TopicPartition, name: str, written: TransactionRecord | None) -> None:
    """Memory and log must agree, since a coordinator does not read its own records back."""
    coordinator = host.node.logs[key].coordinator
    assert isinstance(coordinator, Transactions), "transactions live on __transaction_state"
    known = coordinator.records.get(name)
    assert known == written, f"{name}: {known} is written as {written}"


_BEFORE_APPENDS: Final[dict[type[Any], Callable[[Invariants, Host, Any, Outcome], None]]] = {
    Durable: Invariants.durable,
    Received: Invariants.received,
    BecomeLeader: Invariants.led,
    StorageFailed: Invariants.storage_failed,
}


def _unsettled(node: SimulatedNode) -> Iterator[str]:
    if node.host is None:
        yield "is down"
        return
    core = node.host.node
    for key, log in core.logs.items():
        yield from (f"{key}: {problem}" for problem in _open_in(log))
    if core.partial_replies:
        yield f"{len(core.partial_replies)} replies lack a part"
    if core.markers_due or core.reelections:
        yield f"retries are planned: {[*core.markers_due, *core.reelections]}"
    # A follower of the metadata always has a fetch on its way.
    unanswered = [why for why in core.in_flight.values() if not isinstance(why, InFlightMetadataFetch)]
    if unanswered:
        yield f"waits for a reply: {unanswered[0]}"


def _open_in(log: LeaderLog) -> Iterator[str]:
    state = log.partition
    if log.waiting:
        yield f"{len(log.waiting)} replies wait for offset {log.waiting[0][0]}"
    if state.open_transactions:
        yield f"transactions are open: {dict(state.open_transactions)}"
    if state.last_stable_offset != state.log_end_offset:
        yield f"LSO {state.last_stable_offset}, log end {state.log_end_offset}"
