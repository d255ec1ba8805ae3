"""What a node may tell: identities that nobody else has, writes that are safe, ends that were decided so.

Rule: an answer is judged in the step that lets it go, by the logs as they are then; one from a leader who
was replaced is not, since he tells what was true when he led.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Final

import attrs

from fencepost.broker.contract import Reply, ReplyTo
from fencepost.protocol.messages import (
    AllocateProducerIdsReply,
    EndTxn,
    EndTxnReply,
    InitProducerIdReply,
    ProduceReply,
    WriteTxnMarkers,
    WriteTxnMarkersReply,
)
from fencepost.protocol.terms import NO_PRODUCER_ID, TopicPartition
from fencepost.simulator.judges.anomalies import Looks
from fencepost.simulator.judges.partition_record import PartitionRecord
from fencepost.simulator.judges.step_rules import DURABLE_DECISION, FENCED, IDENTITY_ONCE, SEEN_IS_SAFE
from fencepost.simulator.judges.transaction_record import TransactionBook
from fencepost.simulator.judges.violation import Violation
from fencepost.simulator.world.nodes import SimulatedNode

Asked = tuple[int, ReplyTo]
"""A node's id, and who waits there for an answer."""


@attrs.define(eq=False)
class AnswerRules:
    """`asked` are the ends and markers that wait for an answer, by the node that was asked: what nodes send
    themselves is numbered by each of them. `granted` says who was given which identity.
    """

    marks: Looks
    partitions: Mapping[TopicPartition, PartitionRecord]
    transactions: TransactionBook
    asked: dict[Asked, EndTxn | WriteTxnMarkers] = attrs.Factory(dict[Asked, EndTxn | WriteTxnMarkers])
    granted: dict[tuple[int, int], Any] = attrs.Factory(dict[tuple[int, int], Any])
    producer_ids_end: int = 0

    def replied(self, node: SimulatedNode, reply: Reply) -> None:
        """A node lets go of an answer."""
        judge = _JUDGES.get(type(reply.body))
        if judge is not None:
            judge(self, node, reply)

    def died(self, node_id: int) -> None:
        """A node died: nobody is answered there."""
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
            self.marks[SEEN_IS_SAFE.name] += 1
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
        self.marks[SEEN_IS_SAFE.name] += 1
        record = self.partitions[where]
        offset = record.markers.get(identity)
        if offset is None or offset >= record.high_watermark:
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
        self.marks[FENCED.name] += 1
        transaction = self.transactions.ended.get((request.producer_id, request.producer_epoch))
        if transaction is None:
            rule, found = FENCED, "no transaction of his ended"
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
            return  # without a transactional id; that nobody else has it, the grant says
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
            return  # nobody hears it
        self.marks[IDENTITY_ONCE.name] += 1
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
