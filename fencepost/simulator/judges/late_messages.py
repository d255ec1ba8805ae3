"""Looks for what comes too late, in generations whose transactions share an epoch: those brokers take it for
a part of the next transaction.

Rule: late is what left its sender before the transaction that it touches began, or before the marker behind
which it is written. It is known behaviour only where nothing that the broker keeps could have told it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from fencepost.broker.contract import Append, Received
from fencepost.broker.settings import NodeSettings
from fencepost.log_model.transactions import DECISIONS
from fencepost.protocol.batches import BatchHeader, read_header, read_marker
from fencepost.protocol.messages import EndTxn, Produce, Request, TxnOffsetCommit, WriteTxnMarkers
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    NO_SEQUENCE,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    TransactionState,
    coordinator_partition,
)
from fencepost.protocol.transaction_log import TransactionRecord, read_transactions
from fencepost.simulator.judges.known_anomalies import (
    LATE_END,
    LATE_MARKER,
    LATE_WRITE,
    LATE_WRITE_ALONE,
    KnownAnomaly,
    OldBehaviour,
)
from fencepost.simulator.judges.partition_rules import PartitionRecord
from fencepost.simulator.judges.transaction_rules import TransactionBook
from fencepost.simulator.world.events import MessageLost, MessageSent, NodeStepped
from fencepost.simulator.world.network import RequestMessage
from fencepost.simulator.world.participants import NS_PER_MS
from fencepost.simulator.world.world import World

_WATCHED: Final = (EndTxn, Produce, TxnOffsetCommit, WriteTxnMarkers)
_NO_COORDINATOR_EPOCH: Final = -1
Written = tuple[TopicPartition, int, int, int]
"""A batch on its way: its partition, its producer's id and epoch, and its first sequence."""
Place = tuple[TopicPartition, int]
"""A producer's records in a partition."""


@attrs.define(eq=False)
class LateMessages:
    """A judge of steps and messages. It looks before the white box and reads the white box's record, which
    then describes the state before the step.

    `left_at` is when each request left its sender, `written_at` the same of the batches in it once it was
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
            # What a node asks itself past the network leaves when it comes.
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
                header = read_header(part.records)
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
        if record.state not in DECISIONS or not isinstance(request, EndTxn):
            return
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
        newest = self.coordinator_epochs.get(place, _NO_COORDINATOR_EPOCH)
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
        if left_at >= marked_at or _is_outdated(header, record):
            return
        newest = self.transactions.latest.get(self.transactions.owners.get(header.producer_id, ""))
        joins = (
            newest is not None
            and newest.state is TransactionState.ONGOING
            and _identity(newest) == (header.producer_id, header.producer_epoch)
            and record.key in newest.partitions
        )
        self._meet(
            LATE_WRITE if joins else LATE_WRITE_ALONE,
            f"{record.key}: a batch of producer {header.producer_id} epoch {header.producer_epoch} left at "
            f"{_ms(left_at)}, and entered after its producer's marker of {_ms(marked_at)}",
        )

    def _meet(self, behaviour: OldBehaviour, evidence: str) -> None:
        if behaviour.is_of(self._settings):
            raise KnownAnomaly(behaviour, evidence)

    @property
    def _settings(self) -> NodeSettings:
        return self.world.settings.node_settings


def _is_outdated(header: BatchHeader, record: PartitionRecord) -> bool:
    """Whether the partition knows a newer epoch: then it had to refuse."""
    return header.producer_epoch < record.newest_epoch(header.producer_id)


def _identity(record: TransactionRecord) -> tuple[int, int]:
    return record.producer_id, record.producer_epoch


def _written(key: TopicPartition, header: BatchHeader) -> Written:
    return key, header.producer_id, header.producer_epoch, header.base_sequence


def _ms(at: int) -> str:
    return f"{at / NS_PER_MS:.3f} ms"
