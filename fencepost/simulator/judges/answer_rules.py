"""What a node may reply: identities that no other client has, writes that are replicated, ends that were
decided so, and success to a retry of what was done (I7, I13, I15, I16).

A reply is judged in the step that sends it, against the logs as they are then. A leader that was replaced is
not judged: it reports what was true when it led.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Final, NamedTuple

import attrs

from fencepost.broker.contract import Reply, ReplyTo
from fencepost.broker.host import Host
from fencepost.log_model.transactions import COMPLETED, Identity
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    AllocateProducerIdsReply,
    EndTxn,
    EndTxnReply,
    InitProducerId,
    InitProducerIdReply,
    ProduceReply,
    WriteTxnMarkers,
    WriteTxnMarkersReply,
)
from fencepost.protocol.terms import NO_PRODUCER_ID, TopicPartition, TransactionState
from fencepost.simulator.judges.partition_rules import PartitionRecord
from fencepost.simulator.judges.rules import (
    DURABLE_DECISION,
    FENCED,
    IDENTITY_ONCE,
    SEEN_IS_SAFE,
    TOLD_AGAIN,
    Exercised,
    Violation,
)
from fencepost.simulator.judges.transaction_rules import TransactionBook
from fencepost.simulator.world.nodes import SimulatedNode

Asked = tuple[int, ReplyTo]
"""A node's id, and where its reply goes."""


@attrs.define(eq=False)
class AnswerRules:
    """`asked` are the ends and markers without a reply yet, by the node that has them: each node numbers the
    requests that it sends to itself. `granted` says which client was given which identity.
    """

    exercised: Exercised
    partitions: Mapping[TopicPartition, PartitionRecord]
    transactions: TransactionBook
    asked: dict[Asked, EndTxn | WriteTxnMarkers] = attrs.Factory(dict[Asked, EndTxn | WriteTxnMarkers])
    granted: dict[tuple[int, int], Any] = attrs.Factory(dict[tuple[int, int], Any])
    producer_ids_end: int = 0

    def replied(self, node: SimulatedNode, reply: Reply) -> None:
        """A node sends a reply."""
        judge = _JUDGES.get(type(reply.body))
        if judge is not None:
            judge(self, node, reply)

    def died(self, node_id: int) -> None:
        """A node died: its requests get no reply."""
        for asked in [asked for asked in self.asked if asked[0] == node_id]:
            del self.asked[asked]

    def refused(self, node: SimulatedNode, reply: Reply) -> None:
        self.asked.pop((node.settings.node_id, reply.to), None)

    # --- writes ---------------------------------------------------------------------------------------------

    def produced(self, node: SimulatedNode, reply: Reply) -> None:
        assert isinstance(reply.body, ProduceReply), "the table says so"
        for part in reply.body.partitions:
            if part.error or part.base_offset < 0:
                continue
            self.exercised[SEEN_IS_SAFE.name] += 1
            record = self.partitions[TopicPartition(part.topic, part.partition)]
            if part.base_offset >= record.high_watermark:
                raise Violation(
                    SEEN_IS_SAFE.name,
                    f"{record.key}: a batch at {part.base_offset} was acknowledged, the log is safe up to "
                    f"{record.high_watermark}",
                )

    def wrote_markers(self, node: SimulatedNode, reply: Reply) -> None:
        body, request = reply.body, self.asked.pop((node.settings.node_id, reply.to), None)
        assert isinstance(body, WriteTxnMarkersReply), "the table says so"
        if not isinstance(request, WriteTxnMarkers):
            return
        epochs = {marker.producer_id: marker.producer_epoch for marker in request.markers}
        for marker in body.markers:
            for part in marker.partitions:
                if not part.error:
                    identity = (marker.producer_id, epochs[marker.producer_id])
                    self._wrote_marker(TopicPartition(part.topic, part.partition), identity)

    def _wrote_marker(self, where: TopicPartition, identity: tuple[int, int]) -> None:
        self.exercised[SEEN_IS_SAFE.name] += 1
        record = self.partitions[where]
        marker = record.model.first_marker(*identity)
        if marker is None or marker.offset >= record.high_watermark:
            raise Violation(
                SEEN_IS_SAFE.name,
                f"{where}: the marker of producer {identity[0]} epoch {identity[1]} was acknowledged and is "
                "not safe",
            )

    # --- ends -----------------------------------------------------------------------------------------------

    def ended(self, node: SimulatedNode, reply: Reply) -> None:
        body, request = reply.body, self.asked.pop((node.settings.node_id, reply.to), None)
        assert isinstance(body, EndTxnReply), "the table says so"
        if body.producer_id != NO_PRODUCER_ID:
            self._grant(node, reply, (body.producer_id, body.producer_epoch))
        if not isinstance(request, EndTxn) or not self._is_newest(node, request.transactional_id):
            return
        self.exercised[FENCED.name] += 1
        transaction = self.transactions.ended.get((request.producer_id, request.producer_epoch))
        if transaction is None:
            rule, found = FENCED, "no transaction of this identity ended"
        elif not transaction.is_prepared:
            rule, found = SEEN_IS_SAFE, "the decision is not safe"
        elif transaction.decision is not request.result:
            rule, found = DURABLE_DECISION, "the log says otherwise"
        else:
            return
        raise Violation(
            rule.name,
            f"EndTxn {request.result.name} of {request.transactional_id} by producer {request.producer_id} "
            f"epoch {request.producer_epoch} was answered with success, and {found}",
        )

    def _is_newest(self, node: SimulatedNode, name: str) -> bool:
        home = self.transactions.homes.get(name)
        return home is not None and self.partitions[home].host is node.host

    # --- identities -----------------------------------------------------------------------------------------

    def initialized(self, node: SimulatedNode, reply: Reply) -> None:
        body = reply.body
        assert isinstance(body, InitProducerIdReply), "the table says so"
        identity = (body.producer_id, body.producer_epoch)
        self._grant(node, reply, identity)
        name = self.transactions.owners.get(body.producer_id)
        if name is None:
            return  # without a transactional id; `_grant` has judged it
        record = self.transactions.durable_records.get(name)
        if self._is_newest(node, name) and (
            record is None or (record.producer_id, record.producer_epoch) != identity
        ):
            raise Violation(
                SEEN_IS_SAFE.name,
                f"{name} got producer {identity[0]} epoch {identity[1]}, and no durable record says so",
            )

    def _grant(self, node: SimulatedNode, reply: Reply, identity: tuple[int, int]) -> None:
        connection = node.callers.get(reply.to.connection)
        if connection is None:
            return  # the connection is gone: no client gets it
        self.exercised[IDENTITY_ONCE.name] += 1
        holder = self.granted.setdefault(identity, connection.caller)
        if holder is not connection.caller:
            raise Violation(
                IDENTITY_ONCE.name,
                f"producer {identity[0]} epoch {identity[1]} was granted to {connection.caller.participant}, "
                f"and to {holder.participant} before",
            )

    def allocated(self, node: SimulatedNode, reply: Reply) -> None:
        body = reply.body
        assert isinstance(body, AllocateProducerIdsReply), "the table says so"
        if body.first_producer_id < self.producer_ids_end:
            raise Violation(
                IDENTITY_ONCE.name,
                f"producer ids from {body.first_producer_id} on were handed out, and all before "
                f"{self.producer_ids_end} had been",
            )
        self.producer_ids_end = body.first_producer_id + body.count


_JUDGES: Final[dict[type[Any], Callable[[AnswerRules, SimulatedNode, Reply], None]]] = {
    NoneType: AnswerRules.refused,
    ProduceReply: AnswerRules.produced,
    WriteTxnMarkersReply: AnswerRules.wrote_markers,
    EndTxnReply: AnswerRules.ended,
    InitProducerIdReply: AnswerRules.initialized,
    AllocateProducerIdsReply: AnswerRules.allocated,
}


# --- I16: retries -------------------------------------------------------------------------------------------

REFUSALS: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)


class Renewal(NamedTuple):
    """An InitProducerId for the identity after the one that the owner had, and the coordinator's leader
    epoch.
    """

    name: str
    had: Identity
    leader_epoch: int


@attrs.define(eq=False)
class RetryRule:
    """A retry of a request that was carried out succeeds (KIP-360, KIP-890), until a newer owner is admitted.
    What a coordinator keeps in memory only counts under the same leadership: the epoch before the last
    InitProducerId is such a thing, since Kafka's log does not hold it either.

    `asking` are the renewals without a reply yet, `again` the retries, `renewed` the newest renewal of each
    transactional id with the identity that it gave.
    """

    exercised: Exercised
    partitions: Mapping[TopicPartition, PartitionRecord]
    transactions: TransactionBook
    asking: dict[ReplyTo, Renewal] = attrs.Factory(dict[ReplyTo, Renewal])
    again: dict[ReplyTo, EndTxn | InitProducerId] = attrs.Factory(dict[ReplyTo, EndTxn | InitProducerId])
    renewed: dict[str, tuple[Renewal, Identity]] = attrs.Factory(dict[str, tuple[Renewal, Identity]])

    def asked(self, host: Host, to: ReplyTo, request: EndTxn | InitProducerId) -> None:
        """A request reached a node, which has not handled it yet. A coordinator that was replaced is not
        judged.
        """
        name = request.transactional_id
        home = None if name is None else self.transactions.homes.get(name)
        if home is not None and self.partitions[home].host is host and home in host.node.logs:
            if isinstance(request, EndTxn):
                self._asked_to_end(to, request)
            elif request.producer_id != NO_PRODUCER_ID:
                self._asked_to_renew(to, request, self.partitions[home].leader_epoch)

    def _asked_to_end(self, to: ReplyTo, request: EndTxn) -> None:
        book = self.transactions
        ended = book.ended.get((request.producer_id, request.producer_epoch))
        if ended is None or not ended.renews_identity or ended.decision is not request.result:
            return
        now = book.latest[ended.name]
        is_last = book.marked_as.get((now.producer_id, now.producer_epoch)) is ended
        if is_last and now.state in COMPLETED and book.durable_records[ended.name] is now:
            self.again[to] = request

    def _asked_to_renew(self, to: ReplyTo, request: InitProducerId, leader_epoch: int) -> None:
        name, had = request.transactional_id, (request.producer_id, request.producer_epoch)
        assert name is not None, "only a transactional id has a coordinator"
        self.asking[to] = Renewal(name, had, leader_epoch)
        known, now = self.renewed.get(name), self.transactions.latest[name]
        if (
            known is not None
            and known[0] == self.asking[to]
            and known[1] == (now.producer_id, now.producer_epoch)
            and now.state is TransactionState.EMPTY
        ):
            self.again[to] = request

    def replied(self, reply: Reply) -> None:
        """A node sends a reply."""
        if not self.asking and not self.again:
            return  # nearly every reply
        again, renewal = self.again.pop(reply.to, None), self.asking.pop(reply.to, None)
        if again is not None:
            self.exercised[TOLD_AGAIN.name] += 1
            if reply.error in REFUSALS:
                raise Violation(
                    TOLD_AGAIN.name,
                    f"{type(again).__name__} of {again.transactional_id} by producer {again.producer_id} "
                    f"epoch {again.producer_epoch} was carried out, and its retry was refused: "
                    f"{reply.error.name}",
                )
        if renewal is not None and isinstance(reply.body, InitProducerIdReply):
            self.renewed[renewal.name] = (renewal, (reply.body.producer_id, reply.body.producer_epoch))

    def died(self, connections: Mapping[int, object]) -> None:
        """A node died: requests on these connections get no reply."""
        for waiting in (self.asking, self.again):
            for to in [to for to in waiting if to.connection in connections]:
                del waiting[to]
