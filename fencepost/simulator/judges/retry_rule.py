"""I16: whoever asks again for what was done is told that it was (KIP-360, KIP-890).

Rule: as long as nobody else was let in, and, for what a coordinator keeps in memory alone, under the same
leadership. The epoch before the last InitProducerId is such a thing: Kafka's log does not hold it either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import attrs

from fencepost.broker.contract import Reply, ReplyTo
from fencepost.broker.host import Host
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import EndTxn, InitProducerId, InitProducerIdReply
from fencepost.protocol.terms import NO_PRODUCER_ID, TopicPartition, TransactionState
from fencepost.simulator.judges.anomalies import Looks
from fencepost.simulator.judges.partition_record import PartitionRecord
from fencepost.simulator.judges.step_rules import TOLD_AGAIN
from fencepost.simulator.judges.transaction_record import TransactionBook
from fencepost.simulator.judges.violation import Violation

REFUSALS: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
_COMPLETE: Final = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
Identity = tuple[int, int]


class Renewal(NamedTuple):
    """A wish for the identity after the one that the owner had, and the leader epoch of who was asked."""

    name: str
    had: Identity
    leader_epoch: int


@attrs.define(eq=False)
class RetryRule:
    """`asking` are the renewals that wait for an answer, `again` what was asked again, `renewed` the newest
    renewal of each transactional id, and what it gave.
    """

    sometimes: Looks
    partitions: Mapping[TopicPartition, PartitionRecord]
    transactions: TransactionBook
    asking: dict[ReplyTo, Renewal] = attrs.Factory(dict[ReplyTo, Renewal])
    again: dict[ReplyTo, EndTxn | InitProducerId] = attrs.Factory(dict[ReplyTo, EndTxn | InitProducerId])
    renewed: dict[str, tuple[Renewal, Identity]] = attrs.Factory(dict[str, tuple[Renewal, Identity]])

    def asked(self, host: Host, to: ReplyTo, request: EndTxn | InitProducerId) -> None:
        """A node is asked, and has not looked at it yet; what a replaced coordinator says is nobody's
        truth.
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
        if is_last and now.state in _COMPLETE and book.durable_records[ended.name] is now:
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
        """A node lets go of an answer."""
        if not self.asking and not self.again:
            return  # as nearly always
        again, renewal = self.again.pop(reply.to, None), self.asking.pop(reply.to, None)
        if again is not None:
            self.sometimes[TOLD_AGAIN.name] += 1
            if reply.error in REFUSALS:
                raise Violation(
                    TOLD_AGAIN.name,
                    f"{type(again).__name__} of {again.transactional_id} by producer {again.producer_id} "
                    f"epoch {again.producer_epoch} was carried out, and asked again it was refused: "
                    f"{reply.error.name}",
                )
        if renewal is not None and isinstance(reply.body, InitProducerIdReply):
            self.renewed[renewal.name] = (renewal, (reply.body.producer_id, reply.body.producer_epoch))

    def died(self, connections: Mapping[int, object]) -> None:
        """A node died: nobody on these connections is answered."""
        for waiting in (self.asking, self.again):
            for to in [to for to in waiting if to.connection in connections]:
                del waiting[to]
