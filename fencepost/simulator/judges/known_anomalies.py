"""Anomalies that are known: breaches of a rule that Apache Kafka shows, too. They are counted by name and are
not violations.

Two kinds. An *old behaviour* is what brokers did before each transaction had an epoch of its own (KIP-890): a
run that meets one ends there, so that nothing that follows from it needs an excuse. A *known behaviour* is
what the newest brokers still do to producers without transactions. Every entry names its cure or its reason,
and it counts only where the run bears it out: the log itself must hold what `needs` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from fencepost.broker.contract import Append, Received
from fencepost.broker.settings import NodeSettings
from fencepost.protocol.batches import BatchHeader, read_header, read_marker
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.messages import EndTxn, Produce, Request, TxnOffsetCommit, WriteTxnMarkers
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    NO_COORDINATOR_EPOCH,
    NO_SEQUENCE,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    TransactionState,
    coordinator_partition,
)
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions
from fencepost.simulator.judges.partition_rules import PartitionRecord
from fencepost.simulator.judges.rules import DUPLICATE, NONMONOTONIC_SEND, Anomaly, Rule, Violation
from fencepost.simulator.judges.transaction_rules import TransactionBook
from fencepost.simulator.world.events import MessageLost, MessageSent, NodeStepped
from fencepost.simulator.world.network import RequestMessage
from fencepost.simulator.world.participants import NS_PER_MS
from fencepost.simulator.world.world import World

# --- old generations ----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class OldBehaviour:
    """`cured_by` is what ended it; `needs` is what the run must show. It happens `despite_verification`
    unless partition leaders prevent it by asking the coordinator first (KIP-890 part 1).
    """

    name: str
    cured_by: str
    why: str
    needs: str
    despite_verification: bool = True

    def is_of(self, settings: NodeSettings) -> bool:
        """Whether brokers with these settings do it."""
        is_let_in = self.despite_verification or not settings.partition_verification
        return is_let_in and not settings.transaction_version.renews_identity

    @property
    def generations(self) -> str:
        """The transaction versions that show it, in words."""
        return "0 and 1" if self.despite_verification else "0 and 1 without verification"


class KnownAnomaly(Violation):
    """A run showed a known anomaly of its transaction version: the run ends, and this is not a violation."""

    def __init__(self, behaviour: OldBehaviour, evidence: str) -> None:
        super().__init__(behaviour.name, evidence)


LATE_END: Final = OldBehaviour(
    name="a late EndTxn ends the next transaction",
    cured_by="KAFKA-17754, KIP-890 part 2",
    why="An EndTxn arrives late: its sender has retried it and has begun the next transaction. Both "
    "transactions have the same epoch, so the EndTxn ends the wrong one: it commits records that the client "
    "aborts later, or aborts what the client commits; the records that follow belong to no transaction.",
    needs="The EndTxn was sent before the coordinator logged the beginning of the transaction that it "
    "ended, "
    "and both have the same producer id and epoch.",
)
LATE_MARKER: Final = OldBehaviour(
    name="a late marker ends the next transaction",
    cured_by="KIP-890 part 2, KIP-1228",
    why="The coordinator did not get the reply to its markers and retried them; the first ones arrive "
    "after the next transaction has begun. Both transactions have the same epoch, so the late marker ends "
    "what the next transaction has written to that partition so far. If that is nothing, the partition has "
    "a marker for a decision that no coordinator made.",
    needs="The marker was sent before the coordinator wrote the beginning of the newest transaction; the "
    "partition knows no newer epoch of the producer or of the coordinator.",
)
LATE_WRITE: Final = OldBehaviour(
    name="a late write joins the next transaction",
    cured_by="KIP-890 part 2",
    why="A batch or an offset commit arrives after its transaction ended, and the next transaction includes "
    "the same partition. Verification only asks whether the partition is in the transaction, and it is.",
    needs="The producer's marker was written after the batch was sent; in the coordinator's log the "
    "partition is in an open transaction of the same producer id and epoch, and the partition knows no "
    "newer epoch.",
)
LATE_WRITE_ALONE: Final = OldBehaviour(
    name="a late write opens a hanging transaction",
    cured_by="KAFKA-14402, KIP-890 part 1",
    why="A late write arrives in a partition without an open transaction. Without verification the "
    "leader accepts it, and read_committed readers wait for a marker that may never come.",
    needs="The producer's marker was written after the batch was sent, and the partition knows no newer "
    "epoch. Or the topic was deleted and created again, and the transaction has ended: the partition has no "
    "marker of it, and no epoch, but the producer that did not hear of the end sends the batch again.",
    despite_verification=False,
)
OLD_BEHAVIOURS: Final = (LATE_END, LATE_MARKER, LATE_WRITE, LATE_WRITE_ALONE)


_WATCHED: Final = (EndTxn, Produce, TxnOffsetCommit, WriteTxnMarkers)
Written = tuple[TopicPartition, int, int, int]
"""A batch on its way: its partition, its producer's id and epoch, and its first sequence."""
Place = tuple[TopicPartition, int]
"""A producer's records in a partition."""


@attrs.define(eq=False)
class LateMessages:
    """Looks for old behaviour: messages that left before the transaction that they touch began, or before the
    marker after which they are written. It looks before the white box and reads the white box's record, which
    then describes the state before the step. What the broker could have noticed is left to the white box.

    `left_at` is when each request left its sender, `written_at` the same for the batches in it, once it was
    received; `began_at` is when the newest transaction of each transactional id began, `marked_at` when the
    last marker was written. All in virtual nanoseconds.
    """

    world: World
    transactions: TransactionBook
    partitions: Mapping[TopicPartition, PartitionRecord]
    left_at: dict[tuple[int, int], int] = attrs.Factory(dict[tuple[int, int], int])
    written_at: dict[Written, int] = attrs.Factory(dict[Written, int])
    began_at: dict[str, int] = attrs.Factory(dict[str, int])
    marked_at: dict[Place, int] = attrs.Factory(dict[Place, int])
    coordinator_epochs: dict[Place, int] = attrs.Factory(dict[Place, int])

    def attach(self) -> None:
        """Before any other judge."""
        events = self.world.events
        events.subscribe(MessageSent, self._sent)
        events.subscribe(MessageLost, self._lost)
        events.subscribe(NodeStepped, self._stepped)

    # --- messages -------------------------------------------------------------------------------------------

    def _sent(self, sent: MessageSent) -> None:
        message = sent.message
        if isinstance(message, RequestMessage) and isinstance(message.request, _WATCHED):
            self.left_at[sent.channel.connection.number, message.token] = self.world.now

    def _lost(self, lost: MessageLost) -> None:
        """What is lost is never late."""
        if isinstance(lost.message, RequestMessage):
            self.left_at.pop((lost.channel.connection.number, lost.message.token), None)

    # --- steps ----------------------------------------------------------------------------------------------

    def _stepped(self, step: NodeStepped) -> None:
        """A node took one input; nothing of the outcome is written yet, nor judged by others."""
        node, arrived, outcome = step.node, step.arrived, step.outcome
        request, left_at = None, self.world.now
        if isinstance(arrived, Received) and isinstance(arrived.request, _WATCHED):
            request, to = arrived.request, arrived.to
            # A request that a node sends to itself without the network leaves when it arrives.
            # Removed, so that the dictionary holds only requests that are under way.
            left_at = self.left_at.pop((to.connection, to.correlation_id), left_at)
            self._note_writes(request, left_at)
        for append in outcome.appends:
            record = self.partitions.get(append.partition)
            if record is None or record.host is not node.host or record.leader_epoch != append.leader_epoch:
                continue  # what a leader who was replaced decides is never written
            if append.partition.topic == TRANSACTION_STATE_TOPIC:
                self._decided(append, request, left_at)
            elif append.header.is_control:
                self._marked(record, append, left_at)
            elif append.header.is_transactional:
                self._wrote(record, append.header)

    def _note_writes(self, request: Request, left_at: int) -> None:
        if isinstance(request, Produce):
            for part in request.partitions:
                try:
                    header = read_header(part.records)
                except ProtocolViolation:
                    continue  # a stranger's, which no leader writes
                key = TopicPartition(part.topic, part.partition)
                self.written_at[_written(key, header)] = left_at
        elif isinstance(request, TxnOffsetCommit):
            number = coordinator_partition(request.group_id, self._settings.offsets_topic_num_partitions)
            key = TopicPartition(CONSUMER_OFFSETS_TOPIC, number)
            self.written_at[key, request.producer_id, request.producer_epoch, NO_SEQUENCE] = left_at

    # --- what may be late -----------------------------------------------------------------------------------

    def _decided(self, append: Append, request: Request | None, left_at: int) -> None:
        """A coordinator writes its record."""
        (name, record), *_ = read_transactions(append.batch, append.header)
        before = self.transactions.latest.get(name)
        if record is None:
            return
        if before is None or before.state is not TransactionState.ONGOING:
            if record.state is TransactionState.ONGOING:
                self.began_at[name] = self.world.now
            return
        if not record.state.is_prepared or not isinstance(request, EndTxn):
            return
        # If the EndTxn of another identity ends it, that is a bug for the white box to find.
        is_own = (request.producer_id, request.producer_epoch) == _identity(before)
        if is_own and left_at < self.began_at[name]:
            self._meet(
                LATE_END,
                f"EndTxn {request.result.name} of {name} left at {_ms(left_at)} and ended the transaction "
                f"that began at {_ms(self.began_at[name])}",
            )

    def _marked(self, record: PartitionRecord, append: Append, left_at: int) -> None:
        """A marker enters a log."""
        header, place = append.header, (record.key, append.header.producer_id)
        coordinator_epoch = read_marker(append.batch).coordinator_epoch
        newest = self.coordinator_epochs.get(place, NO_COORDINATOR_EPOCH)
        began_at = self.began_at.get(self.transactions.owners.get(header.producer_id, ""), 0)
        if left_at < began_at and coordinator_epoch >= newest and not _is_outdated(header, record):
            first = record.model.open.get(header.producer_id)
            decides = "nothing" if first is None else f"the records from offset {first} on"
            self._meet(
                LATE_MARKER,
                f"{record.key}: a marker of producer {header.producer_id} epoch {header.producer_epoch} left "
                f"at {_ms(left_at)}, its next transaction began at {_ms(began_at)}, and it decides {decides}",
            )
        self.coordinator_epochs[place] = max(newest, coordinator_epoch)
        self.marked_at[place] = self.world.now

    def _wrote(self, record: PartitionRecord, header: BatchHeader) -> None:
        """A batch of a transaction enters a log."""
        left_at = self.written_at.get(_written(record.key, header), self.world.now)
        marked_at = self.marked_at.get((record.key, header.producer_id), 0)
        if _is_outdated(header, record):
            return
        newest = self.transactions.latest.get(self.transactions.owners.get(header.producer_id, ""))
        joins = (
            newest is not None
            and newest.state is TransactionState.ONGOING
            and _identity(newest) == (header.producer_id, header.producer_epoch)
            and record.key in newest.partitions
        )
        said = f"{record.key}: a batch of producer {header.producer_id} epoch {header.producer_epoch}"
        if left_at < marked_at:
            self._meet(
                LATE_WRITE if joins else LATE_WRITE_ALONE,
                f"{said} left at {_ms(left_at)}, and entered after its producer's marker of {_ms(marked_at)}",
            )
        elif (
            record.key.topic in self.transactions.deleted
            and not joins
            and _identity(header) in self.transactions.ended
        ):
            self._meet(
                LATE_WRITE_ALONE,
                f"{said} entered a topic that was created again, which has no marker of its transaction",
            )

    def _meet(self, behaviour: OldBehaviour, evidence: str) -> None:
        if behaviour.is_of(self._settings):
            raise KnownAnomaly(behaviour, evidence)

    @property
    def _settings(self) -> NodeSettings:
        return self.world.settings.node_settings


def _is_outdated(header: BatchHeader, record: PartitionRecord) -> bool:
    """Whether the partition knew a newer epoch, so that it should have refused."""
    return header.producer_epoch < record.newest_epoch(header.producer_id)


def _written(key: TopicPartition, header: BatchHeader) -> Written:
    return key, header.producer_id, header.producer_epoch, header.base_sequence


def _ms(at: int) -> str:
    return f"{at / NS_PER_MS:.3f} ms"


# --- anomalies that Apache Kafka shows, too -----------------------------------------------------------------

Explains = Callable[[PartitionRecord, int, int], bool]
"""Whether a log explains an anomaly between two of its offsets, the lower one first."""


@attrs.frozen(kw_only=True)
class KnownBehaviour:
    """A rule that producers without transactions may see broken; `needs` is what the log must hold, which
    `explains` looks for.
    """

    name: str
    rule: Rule
    why: str
    needs: str
    explains: Explains


def _was_unknown(log: PartitionRecord, first: int, _second: int) -> bool:
    entered = log.batch_at(first)
    known = (header.producer_id for header in log.headers if header.base_offset < entered.base_offset)
    return entered.producer_id not in known


def _was_forgotten(log: PartitionRecord, first: int, second: int) -> bool:
    """It was retried under a new identity, because a new leader knew newer batches of the old one."""
    before, again = log.batch_at(first), log.batch_at(second)
    identity = _identity(before)
    newer = [
        header.base_offset
        for header in log.headers
        if before.base_offset < header.base_offset < second and _identity(header) == identity
    ]
    return _identity(again) != identity and any(
        newest < taken_over <= second for newest in newer for taken_over in log.taken_over_at
    )


def _was_sent_again(log: PartitionRecord, first: int, second: int) -> bool:
    """It comes after a later batch because it was retried under a new identity, after a change of leaders."""
    is_another = _identity(log.batch_at(first)) != _identity(log.batch_at(second))
    return is_another and any(first < taken_over <= second for taken_over in log.taken_over_at)


def _identity(writer: BatchHeader | TransactionRecord) -> tuple[int, int]:
    return writer.producer_id, writer.producer_epoch


KNOWN: Final = (
    KnownBehaviour(
        name="an unknown producer may start at any sequence",
        rule=NONMONOTONIC_SEND,
        why="Since KIP-360 a partition accepts any first sequence from a producer that it does not know. "
        "Batches "
        "that are in flight while the partition gets its first leader can therefore be stored out of order.",
        needs="The batch that was stored too early is the first one of its producer id in the log.",
        explains=_was_unknown,
    ),
    KnownBehaviour(
        name="a new leader knows one batch per producer",
        rule=DUPLICATE,
        why="A leader that has restarted, or has begun with a snapshot, knows only the last batch that "
        "each producer wrote before the restart or the snapshot, so it may not recognise a retry of an older "
        "batch. It answers OUT_OF_ORDER_SEQUENCE_NUMBER; an idempotent producer then sends the batch under "
        "a new identity, as Kafka's producer does (TransactionManager.canRetry). A transactional producer "
        "must abort.",
        needs="Between the two batches a new leader took over, and the log had a newer batch of the old "
        "identity.",
        explains=_was_forgotten,
    ),
    KnownBehaviour(
        name="a retried batch lands after newer ones",
        rule=NONMONOTONIC_SEND,
        why="A batch is retried under a new identity, as above, after newer batches were acknowledged.",
        needs="Between the two batches a new leader took over, and the later batch has another identity.",
        explains=_was_sent_again,
    ),
)


def known_kafka(
    anomaly: Anomaly, partitions: Mapping[TopicPartition, PartitionRecord]
) -> KnownBehaviour | None:
    # Transactions are what the rules are about: nothing excuses a breach of theirs.
    if not anomaly.operations or any(operation.transactional for operation in anomaly.operations):
        return None
    for entry in KNOWN:
        if entry.rule is anomaly.rule:
            assert anomaly.partition is not None, "who excuses a rule knows the log"
            first, second = sorted(offset for offset, _ in anomaly.records)
            if entry.explains(partitions[anomaly.partition], first, second):
                return entry
    return None
