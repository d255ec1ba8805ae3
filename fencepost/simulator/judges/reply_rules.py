"""What a node may reply: identities that no other client has, writes that are replicated, ends that the
log decided, and success to a retry of a completed request (I7, I13, I15, I16).

A reply is judged in the step that sends it, against the logs as they are then. A leader that was replaced is
not judged: it reports what was true when it led.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, get_args

import attrs

from fencepost.broker.contract import Reply, ReplyTo
from fencepost.broker.host import Host
from fencepost.log_model.transactions import Identity
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    AllocateProducerIdsReply,
    EndTxn,
    EndTxnReply,
    InitProducerId,
    InitProducerIdReply,
    OffsetCommit,
    OffsetCommitReply,
    PartitionError,
    Produce,
    ProduceReply,
    TxnOffsetCommit,
    TxnOffsetCommitReply,
    WriteTxnMarkers,
    WriteTxnMarkersReply,
)
from fencepost.protocol.offsets_log import OffsetKey
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    INT16_MAX,
    NO_PRODUCER_ID,
    TopicPartition,
    TransactionState,
    coordinator_partition,
)
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.simulator.judges import rules
from fencepost.simulator.judges.offset_rules import OffsetsRecord
from fencepost.simulator.judges.partition_rules import PartitionRecord
from fencepost.simulator.judges.rare_states import (
    END_RETRIED,
    INIT_RETRIED,
    OLD_COORDINATOR,
    UNKNOWN_TO_COORDINATOR,
)
from fencepost.simulator.judges.rules import Exercised
from fencepost.simulator.judges.transaction_rules import TransactionBook
from fencepost.simulator.world.nodes import SimulatedNode

# The errors that a retry of a request that was carried out must not get: it succeeds (KIP-360, KIP-890),
# until a newer owner is admitted.
REFUSALS: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)


Committing = OffsetCommit | TxnOffsetCommit
Watched = Produce | EndTxn | InitProducerId | WriteTxnMarkers | Committing

WATCHED: Final = frozenset(get_args(Watched))
"""The requests that must be known to judge their replies."""

JUDGED: Final = frozenset({WriteTxnMarkersReply, EndTxnReply, InitProducerIdReply, AllocateProducerIdsReply})
"""The replies whose contents are judged."""


class Renewal(NamedTuple):
    """An InitProducerId for the identity after the one that the owner had, and the coordinator's leader
    epoch. A coordinator knows the epoch before the last InitProducerId from memory alone, since Kafka's log
    does not hold it either; so it must recognise a retry only under the same leadership.
    """

    name: str
    had: Identity
    leader_epoch: int


class Unanswered(NamedTuple):
    """A request that has no reply yet. `is_retry`: it was carried out before, so it must not be refused."""

    request: Watched
    is_retry: bool = False
    renewal: Renewal | None = None


@attrs.define(eq=False)
class ReplyRules:
    """`asked` are the requests without a reply yet by their node's id: each node numbers the requests that it
    sends to itself. `granted` says which client was given which identity, `renewed` which identity the newest
    renewal of each transactional id gave. `rare_states` counts those that replies show (coverage.py).
    """

    exercised: Exercised
    partitions: Mapping[TopicPartition, PartitionRecord]
    transactions: TransactionBook
    offsets: Mapping[TopicPartition, OffsetsRecord]
    rare_states: Counter[str]
    topic_ids: Mapping[str, bytes]
    asked: dict[tuple[int, ReplyTo], Unanswered] = attrs.Factory(dict[tuple[int, ReplyTo], Unanswered])
    granted: dict[Identity, Any] = attrs.Factory(dict[Identity, Any])
    renewed: dict[str, tuple[Renewal, Identity]] = attrs.Factory(dict[str, tuple[Renewal, Identity]])
    producer_ids_end: int = 0

    def received(self, host: Host, to: ReplyTo, request: Watched) -> None:
        """A request reached a node, which has not handled it yet."""
        asked = Unanswered(request)
        if isinstance(request, EndTxn | InitProducerId) and request.transactional_id is not None:
            name = request.transactional_id
            # A coordinator that was replaced replies with what it knew, and need not accept a retry.
            if self._is_newest(host, name) and self.transactions.homes[name] in host.node.logs:
                asked = self._compared(name, request)
        self.asked[host.node.settings.node_id, to] = asked

    def replied(self, node: SimulatedNode, reply: Reply) -> None:
        """A node sends a reply."""
        asked = self.asked.pop((node.settings.node_id, reply.to), None)
        if asked is None and type(reply.body) not in JUDGED:
            return
        request = None if asked is None else asked.request
        match reply.body:
            case ProduceReply() if isinstance(request, Produce):
                self._produced(reply.body, request)
            case WriteTxnMarkersReply() if isinstance(request, WriteTxnMarkers):
                self._wrote_markers(reply.body, request)
            case EndTxnReply(producer_id=producer_id, producer_epoch=epoch):
                if producer_id != NO_PRODUCER_ID:
                    self._grant(node, reply, (producer_id, epoch))
                if isinstance(request, EndTxn) and self._is_newest(node.host, request.transactional_id):
                    self._ended(request)
            case InitProducerIdReply(producer_id=producer_id, producer_epoch=epoch):
                self._grant(node, reply, (producer_id, epoch))
                if isinstance(request, InitProducerId):
                    self._initialized(node, (producer_id, epoch), request)
            case AllocateProducerIdsReply():
                self._allocated(reply.body)
            case OffsetCommitReply(partitions=parts) | TxnOffsetCommitReply(partitions=parts):
                if isinstance(request, Committing):
                    self._committed(node, parts, request)
            case _:
                pass
        if asked is not None:
            self._judge_retry(asked, reply)

    def died(self, node_id: int) -> None:
        """A node died: its requests get no reply."""
        for asked in [asked for asked in self.asked if asked[0] == node_id]:
            del self.asked[asked]

    def _is_newest(self, host: Host | None, name: str) -> bool:
        """Whether this is the coordinator of a transactional id, and was not replaced."""
        home = self.transactions.homes.get(name)
        return home is not None and self.partitions[home].host is host

    # --- writes ---------------------------------------------------------------------------------------------

    def _produced(self, body: ProduceReply, request: Produce) -> None:
        meant = {part.topic: part.topic_id for part in request.partitions}
        for part in body.partitions:
            if part.error or part.base_offset < 0:
                if part.error is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
                    self.rare_states[UNKNOWN_TO_COORDINATOR] += 1
                continue
            record = self.partitions.get(TopicPartition(part.topic, part.partition))
            if record is None or meant[part.topic] != self.topic_ids.get(part.topic):
                continue  # the topic was deleted while the reply waited for other partitions
            self.exercised[rules.DURABLE_REPLIES.name] += 1
            if part.base_offset >= record.high_watermark:
                raise rules.DURABLE_REPLIES.broken(
                    f"{record.key}: a batch at {part.base_offset} was acknowledged, but the log is durable "
                    f"only up to {record.high_watermark}"
                )

    def _wrote_markers(self, body: WriteTxnMarkersReply, request: WriteTxnMarkers) -> None:
        epochs = {marker.producer_id: marker.producer_epoch for marker in request.markers}
        for written in body.markers:
            producer_id, epoch = written.producer_id, epochs[written.producer_id]
            for part in written.partitions:
                if part.error:
                    if part.error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                        self.rare_states[OLD_COORDINATOR] += 1
                    continue
                # Markers name topics, not their ids: they may be durable in one that was deleted.
                if part.topic in self.transactions.deleted:
                    continue
                record = self.partitions[TopicPartition(part.topic, part.partition)]
                self.exercised[rules.DURABLE_REPLIES.name] += 1
                # The first one: a repeated marker is acknowledged as soon as the one before it is durable.
                marker = record.model.first_marker(producer_id, epoch)
                if marker is None or marker.offset >= record.high_watermark:
                    raise rules.DURABLE_REPLIES.broken(
                        f"{record.key}: the marker of producer {producer_id} epoch {epoch} was acknowledged "
                        "but is not durable"
                    )

    def _committed(self, node: SimulatedNode, parts: Iterable[PartitionError], request: Committing) -> None:
        """A record of each confirmed offset is durable. A later one of the same key need not be."""
        assert node.host is not None, "only a live node replies"
        coordinators = node.host.node.coordinator_count(CONSUMER_OFFSETS_TOPIC)
        home = TopicPartition(CONSUMER_OFFSETS_TOPIC, coordinator_partition(request.group_id, coordinators))
        log, offsets = self.partitions.get(home), self.offsets.get(home)
        if log is not None and log.host is not node.host:
            return
        durable_end = 0 if log is None else log.high_watermark
        wanted = {(part.topic, part.partition): part.offset for part in request.offsets}
        for part in parts:
            if part.error:
                continue
            self.exercised[rules.DURABLE_REPLIES.name] += 1
            offset = wanted[part.topic, part.partition]
            key = OffsetKey(request.group_id, part.topic, part.partition)
            if offsets is None or not offsets.has(key, offset, before=durable_end):
                raise rules.DURABLE_REPLIES.broken(
                    f"{home}: offset {offset} of group {request.group_id} in {part.topic}-{part.partition} "
                    "was acknowledged but is not durable"
                )

    # --- ends -----------------------------------------------------------------------------------------------

    def _ended(self, request: EndTxn) -> None:
        self.exercised[rules.FENCED.name] += 1
        transaction = self.transactions.ended.get((request.producer_id, request.producer_epoch))
        if transaction is None:
            rule, found = rules.FENCED, "no transaction of this identity ended"
        elif not transaction.is_prepared:
            rule, found = rules.DURABLE_REPLIES, "the decision is not durable"
        elif transaction.decision is not request.result:
            rule, found = rules.DURABLE_DECISION, "the log says otherwise"
        else:
            return
        raise rule.broken(
            f"EndTxn {request.result.name} of {request.transactional_id} by producer {request.producer_id} "
            f"epoch {request.producer_epoch} was answered with success, and {found}"
        )

    # --- identities -----------------------------------------------------------------------------------------

    def _initialized(self, node: SimulatedNode, identity: Identity, request: InitProducerId) -> None:
        name = self.transactions.owners.get(identity[0])
        if name is None or not self._is_newest(node.host, name):
            return  # without a transactional id `_grant` says all
        record = self.transactions.durable_records.get(name)
        if record is None or (record.producer_id, record.producer_epoch) != identity:
            raise rules.DURABLE_REPLIES.broken(
                f"{name} got producer {identity[0]} epoch {identity[1]}, but no durable record says so"
            )
        if record.timeout_ms != request.transaction_timeout_ms:
            raise rules.TIMEOUT.broken(
                f"{name} asked for a timeout of {request.transaction_timeout_ms} ms and got "
                f"{record.timeout_ms} ms"
            )

    def _grant(self, node: SimulatedNode, reply: Reply, identity: Identity) -> None:
        connection = node.callers.get(reply.to.connection)
        if connection is None:
            return  # the connection is gone: no client gets it
        self.exercised[rules.UNIQUE_IDENTITY.name] += 1
        # Its retries come on other connections of the same caller, so the caller counts.
        holder = self.granted.setdefault(identity, connection.caller)
        if holder is not connection.caller:
            raise rules.UNIQUE_IDENTITY.broken(
                f"producer {identity[0]} epoch {identity[1]} was granted to {connection.caller.participant}, "
                f"and to {holder.participant} before"
            )

    def _allocated(self, body: AllocateProducerIdsReply) -> None:
        if body.first_producer_id < self.producer_ids_end:
            raise rules.UNIQUE_IDENTITY.broken(
                f"producer ids from {body.first_producer_id} on were handed out, and all before "
                f"{self.producer_ids_end} had been"
            )
        self.producer_ids_end = body.first_producer_id + body.count

    # --- I16: retries ---------------------------------------------------------------------------------------

    def _compared(self, name: str, request: EndTxn | InitProducerId) -> Unanswered:
        """Find out whether the coordinator has already carried out this request."""
        book, had = self.transactions, (request.producer_id, request.producer_epoch)
        if isinstance(request, EndTxn):
            ended = book.ended.get(had)
            if ended is None or not ended.renews_identity or ended.decision is not request.result:
                return Unanswered(request)
            now = book.latest.get(ended.name)
            if now is None:  # its transactional id has expired
                return Unanswered(request)
            # Kafka recognises the retry by the epoch before the current one, so of the last end only.
            is_last = book.marked_as.get(_identity_of_markers(now)) is ended
            is_durable = book.durable_records.get(ended.name) is now
            return Unanswered(request, is_last and now.state.is_complete and is_durable)
        if request.producer_id == NO_PRODUCER_ID or name not in book.latest:
            return Unanswered(request)
        now, renewal = book.latest[name], Renewal(name, had, self.partitions[book.homes[name]].leader_epoch)
        is_same = self.renewed.get(name) == (renewal, (now.producer_id, now.producer_epoch))
        return Unanswered(request, is_same and now.state is TransactionState.EMPTY, renewal)

    def _judge_retry(self, asked: Unanswered, reply: Reply) -> None:
        request, is_retry, renewal = asked
        if is_retry:
            assert isinstance(request, EndTxn | InitProducerId), "only their retries are judged"
            self.exercised[rules.RETRIES_SUCCEED.name] += 1
            self._count_rotation(request)
            if reply.error in REFUSALS:
                raise rules.RETRIES_SUCCEED.broken(
                    f"{type(request).__name__} of {request.transactional_id} by producer "
                    f"{request.producer_id} epoch {request.producer_epoch} was carried out, and its retry "
                    f"was refused: {reply.error.name}"
                )
        if renewal is not None and isinstance(reply.body, InitProducerIdReply):
            self.renewed[renewal.name] = (renewal, (reply.body.producer_id, reply.body.producer_epoch))
            if is_retry and reply.body.producer_id != renewal.had[0]:
                # The record of the retry no longer names the producer id before it (prepareTransitionTo), so
                # Kafka, too, recognises the retry of a rotation once.
                del self.renewed[renewal.name]

    def _count_rotation(self, request: EndTxn | InitProducerId) -> None:
        """A request is retried: counts it if the first attempt replaced the producer id."""
        assert request.transactional_id is not None, "only requests with one are compared"
        now = self.transactions.latest.get(request.transactional_id)
        if now is not None and now.producer_id != request.producer_id:
            self.rare_states[END_RETRIED if isinstance(request, EndTxn) else INIT_RETRIED] += 1


def _identity_of_markers(now: TransactionRecord) -> Identity:
    """The identity that the markers of the last transaction have. The end of one that used up its producer id
    has the last epoch of that id, and then the next id takes over.
    """
    if now.producer_epoch == 0 and now.previous_producer_id != NO_PRODUCER_ID:
        return now.previous_producer_id, INT16_MAX
    return now.producer_id, now.producer_epoch
