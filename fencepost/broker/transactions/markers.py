"""Markers: how a decision of the transaction coordinator reaches every partition of the transaction.

Rule: each partition of a decided transaction gets its marker at least once; COMPLETE_* is written once.
"""

# Theory of operation (Kafka: TransactionMarkerChannelManager, KafkaApis.handleWriteTxnMarkersRequest)
#
#     coordinator                                               leader of a partition
#     PREPARE_* is durable
#       |  markers_due[id] is due at once
#     send_due_markers ------------ WriteTxnMarkers ----------> write_markers
#       |  pending_markers: partitions without a reply            MARKER_CHECKS, then the marker is appended;
#     take_marker_answers <-------- an error per partition ---    answered once it is durable; the LSO moves
#       |  a failed one is due again after marker_retry_backoff_ms
#     _finish: COMPLETE_* is written once, when no marker is pending
#
# A deleted partition needs no marker. Of a partition that the coordinator's node does not know, only the
# controller can say that it does not exist (`_look_up`).
#
# From PREPARE_* on the transaction ends as decided. A coordinator that takes over finds PREPARE_* in its log
# and sends every marker again (`resume`): it cannot know which ones its predecessor has sent. A leader that
# already has the marker appends it once more, which changes nothing, since no transaction is open. So a
# marker may be written twice, but it is never missing.
#
# The first attempt is a retry that is due at once. A step may only send after its record is durable, and this
# way the first attempt, a retry and a failover are the same code.
#
# Two epochs protect the leader. The producer epoch refuses markers of an older owner. The coordinator epoch
# is the leader epoch of the coordinator's partition: it refuses markers of a coordinator that was replaced
# and does not know it yet. After either refusal this coordinator never writes COMPLETE_*, because a newer one
# owns the transaction (MARKER_SETTLED). Every other error is retried, for as long as it takes: a missing
# marker blocks the LSO.

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from fencepost.broker.contract import Answered, Refused, ReplyTo
from fencepost.broker.leader_log import Collect, TransactionLog
from fencepost.broker.node import Node
from fencepost.broker.partitions.checks import has_no_transactions, judge_marker
from fencepost.broker.purgatory import InFlightLookup, InFlightMarkers, InFlightOffsetsTopic
from fencepost.broker.transactions import end_txn
from fencepost.broker.transactions.handlers import carry_out
from fencepost.broker.transactions.state import Transactions
from fencepost.protocol.batches import build_marker
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import (
    CreateTopic,
    CreateTopics,
    Metadata,
    MetadataReply,
    PartitionError,
    TransactionMarker,
    WriteTxnMarkers,
    WriteTxnMarkersReply,
)
from fencepost.protocol.terms import CONSUMER_OFFSETS_TOPIC, DECISIONS, TopicPartition
from fencepost.protocol.transaction_log import TransactionRecord

# Replies without a retry: the marker is written, or a newer epoch or a newer coordinator owns the
# transaction.
MARKER_SETTLED: Final = frozenset(
    {NO_ERROR, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)

MarkerKey = tuple[TopicPartition, str, TopicPartition]
"""The partition of the transaction log, the transactional id, and the partition that gets the marker."""

_INTERNAL: Final = Refused(
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    "is for an internal topic, which has no transactions",
    source="ReplicaManager.appendRecords",
)


# --- the coordinator ---------------------------------------------------------------------------------------


def resume(node: Node, log: TransactionLog, now: int) -> None:
    """Finish decided transactions after a coordinator has loaded its log: schedule all their markers."""
    state = log.coordinator
    # A late reply must not stand for the marker of a later transaction, which may have the same epoch. So
    # replies to requests that this node sent when it led this log before are ignored.
    for token, why in list(node.in_flight.items()):
        if isinstance(why, InFlightMarkers | InFlightLookup) and why.log_key == log.partition.key:
            del node.in_flight[token]
    for name, record in state.records.items():
        if record.state.is_prepared:
            node.markers_due[log.partition.key, name] = now


def send_due_markers(node: Node, now: int) -> None:
    """Send the markers that are due: a decision became durable in this step, a coordinator has loaded its
    log, or the time of a retry has come.
    """
    in_flight: frozenset[MarkerKey] | None = None
    for (key, name), due_ms in list(node.markers_due.items()):
        if due_ms <= now:
            del node.markers_due[key, name]
            log = node.coordinator_log(Transactions, key)
            if log is not None:
                # Only a retry can have a marker in flight. They are collected once, because thousands of
                # ids may retry together.
                if in_flight is None and name in log.coordinator.pending_markers:
                    in_flight = _in_flight(node)
                try:  # like `node.contained`, but inline: this is done for every commit
                    _send_markers(node, log, name, now, in_flight or frozenset())
                except Exception as problem:  # noqa: BLE001 - see dispatch.step
                    node.contain(problem, None)


def _in_flight(node: Node) -> frozenset[MarkerKey]:
    return frozenset(
        (why.log_key, why.transactional_id, key)
        for why in node.in_flight.values()
        if isinstance(why, InFlightMarkers | InFlightLookup)
        for key in why.partitions
    )


def _send_markers(
    node: Node, log: TransactionLog, name: str, now: int, in_flight: Collection[MarkerKey]
) -> None:
    state = log.coordinator
    record = state.records.get(name)
    # The transaction was completed by a reply that came after this attempt had been scheduled.
    if record is None or not record.state.is_prepared:
        return
    pending_markers = state.pending_markers.setdefault(name, set(record.partitions))
    by_node: dict[int, list[TopicPartition]] = {}
    unknown: list[TopicPartition] = []
    for key in sorted(pending_markers):
        # A marker or lookup that is in flight is not sent again: the reply to the second copy could come when
        # the transaction has ended, and stand for the marker of the next one (see `resume`).
        if (log.partition.key, name, key) in in_flight:
            continue
        leader = node.cluster.leader(key)
        if leader is not None:
            by_node.setdefault(leader.node_id, []).append(key)
        elif key.topic == CONSUMER_OFFSETS_TOPIC and key.topic not in node.cluster.topics:
            _create_offsets_topic(node)
            _retry_markers(node, log, name, now)
        else:
            unknown.append(key)
    if unknown:
        _look_up(node, log, name, unknown)
    # One request per node, as Kafka batches markers per broker.
    for node_id, keys in by_node.items():
        why = InFlightMarkers(log.partition.key, name, frozenset(keys))
        node.ask(node_id, WriteTxnMarkers((_marker(state, record, keys),)), why)
    _finish(node, log, name, now)


def _create_offsets_topic(node: Node) -> None:
    """AddOffsetsToTxn succeeds before the topic exists, as in Kafka. Kafka then drops the marker; here it
    waits for the topic, because another node may know it already and have offsets of this transaction.
    """
    count = node.coordinator_count(CONSUMER_OFFSETS_TOPIC)
    wanted = CreateTopic(topic=CONSUMER_OFFSETS_TOPIC, partition_count=count)
    node.ask(node.settings.controller_id, CreateTopics(topics=(wanted,)), InFlightOffsetsTopic())


def _look_up(node: Node, log: TransactionLog, name: str, keys: list[TopicPartition]) -> None:
    """Ask the controller whether partitions exist that this node does not know.

    This node may not have read of them yet. Or their topic was deleted; or a loss of power has taken its
    creation, and left a transaction that wrote to it.
    """
    why = InFlightLookup(log_key=log.partition.key, transactional_id=name, partitions=frozenset(keys))
    topics = tuple(dict.fromkeys(key.topic for key in keys))
    node.ask(node.settings.controller_id, Metadata(topics=topics), why)


def take_lookup_answer(node: Node, in_flight: InFlightLookup, answer: Answered, now: int) -> None:
    """Drop the partitions that do not exist, as Kafka does (addTxnMarkersToBrokerQueue), and schedule a retry
    for the others.
    """
    log = node.coordinator_log(Transactions, in_flight.log_key)
    if log is None:
        return
    name = in_flight.transactional_id
    # If the metadata does not know this coordinator either, all of it is lost, and nothing can be concluded.
    if isinstance(answer.body, MetadataReply) and node.cluster.leader(in_flight.log_key) is not None:
        exists = {
            TopicPartition(topic.topic, part.partition)
            for topic in answer.body.topics
            for part in topic.partitions
        }
        log.coordinator.pending_markers[name].difference_update(in_flight.partitions - exists)
    if log.coordinator.pending_markers[name].intersection(in_flight.partitions):
        _retry_markers(node, log, name, now)
    _finish(node, log, name, now)


def _marker(state: Transactions, record: TransactionRecord, keys: list[TopicPartition]) -> TransactionMarker:
    return TransactionMarker(
        record.producer_id,
        record.producer_epoch,
        DECISIONS[record.state],
        state.coordinator_epoch,
        record.client_version,
        tuple(keys),
    )


def take_marker_answers(node: Node, in_flight: InFlightMarkers, answer: Answered, now: int) -> None:
    """Cross off the partitions that wrote their marker, and schedule a retry for the others."""
    log = node.coordinator_log(Transactions, in_flight.log_key)
    if log is None:
        return
    name = in_flight.transactional_id
    errors: dict[tuple[str, int], ErrorCode]
    if isinstance(answer.body, WriteTxnMarkersReply):
        parts = [part for marker in answer.body.markers for part in marker.partitions]
        errors = {(part.topic, part.partition): part.error for part in parts}
    else:
        errors = dict.fromkeys(in_flight.partitions, answer.error)
    # A partition that refused for good stays pending: this coordinator must not write COMPLETE_*, since a
    # newer owner continues. Describing the transaction then shows which partition it was.
    # A marker that is in flight is always pending: see `resume`.
    written = {key for key, error in errors.items() if error is NO_ERROR}
    log.coordinator.pending_markers[name].difference_update(written)
    if not MARKER_SETTLED.issuperset(errors.values()):
        _retry_markers(node, log, name, now)
    _finish(node, log, name, now)


def _retry_markers(node: Node, log: TransactionLog, name: str, now: int) -> None:
    due_ms = now + node.settings.marker_retry_backoff_ms
    node.markers_due[log.partition.key, name] = due_ms
    node.wake_at(due_ms)


def _finish(node: Node, log: TransactionLog, name: str, now: int) -> None:
    """Write COMPLETE_* when no marker is pending (TransactionMetadata.prepareComplete)."""
    state = log.coordinator
    if name in state.pending_markers and not state.pending_markers[name]:
        # First, so that no further reply can complete the transaction a second time.
        del state.pending_markers[name]
        decision = end_txn.complete(state, name, now=now, settings=node.settings)
        carry_out(node, log, decision, now)


# --- the leader of a partition -----------------------------------------------------------------------------


def write_markers(node: Node, request: WriteTxnMarkers, to: ReplyTo, now: int) -> None:
    """Append the markers that a coordinator sent; each partition has its own result
    (KafkaApis.handleWriteTxnMarkersRequest).
    """
    # Named twice, a partition gets one marker: Kafka collects the batches of a marker in a map.
    targets = [(marker, key) for marker in request.markers for key in dict.fromkeys(marker.partitions)]
    producer_ids = tuple([marker.producer_id for marker, _ in targets])
    ticket = node.begin_reply(to, WriteTxnMarkersReply, len(targets), producer_ids)
    for index, (marker, key) in enumerate(targets):
        log = node.log_of(key)
        if isinstance(log, Refused):
            node.note_ruling(to, log, partition=key)
            node.collect(_marker_part(ticket, index, key, log.error))
            continue
        # Internal topics must be refused here: judge_marker looks only at the producer.
        refused = (
            _INTERNAL
            if has_no_transactions(key)
            else judge_marker(log.partition, marker, checks=node.settings.marker_checks)
        )
        if refused is None:
            node.append(log, _marker_batch(marker, now), entries=())
        else:
            node.note_ruling(
                to, refused, table="" if refused is _INTERNAL else "MARKER_CHECKS", partition=key
            )
        node.after(log, (_marker_part(ticket, index, key, refused.error if refused else NO_ERROR),))


def _marker_batch(marker: TransactionMarker, now: int) -> bytearray:
    return build_marker(
        marker.result,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=now,
    )


def _marker_part(ticket: int, index: int, key: TopicPartition, error: ErrorCode) -> Collect:
    return Collect(ticket, index, PartitionError(key.topic, key.partition, error))
