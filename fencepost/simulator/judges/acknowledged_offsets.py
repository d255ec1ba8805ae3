"""Whether the offsets of a transaction take effect once a client was told that it committed (I9).

Rule: the offsets count as the group's only where its log holds them and, after them, the producer's COMMIT
marker. Whether the broker then agrees with the log on the offsets is judged with each batch
(`OffsetsRecord`).
"""

# A transaction without records leaves nothing else behind: if its offsets are lost, no reader misses a value,
# and the group processes the same records again.
#
#     commit is acknowledged      its decision is durable and says COMMIT
#     a log of offsets is read    what complete transactions committed is in it
#     the end of a healed run     everything that was acknowledged has taken effect

from __future__ import annotations

from collections.abc import Mapping

import attrs

from fencepost.log_model.transactions import COMPLETED
from fencepost.protocol.terms import TopicPartition, TransactionResult
from fencepost.simulator.judges import rules
from fencepost.simulator.judges.partition_rules import OffsetsRecord
from fencepost.simulator.judges.rules import Exercised
from fencepost.simulator.judges.transaction_rules import JudgedTransaction, TransactionBook
from fencepost.simulator.world.events import OffsetsAcknowledged


@attrs.define(eq=False)
class AcknowledgedOffsets:
    """`acknowledged` are the offsets of all commits that clients know of, with their transactions."""

    exercised: Exercised
    transactions: TransactionBook
    offsets: Mapping[TopicPartition, OffsetsRecord]
    acknowledged: list[tuple[OffsetsAcknowledged, JudgedTransaction]] = attrs.Factory(
        list[tuple[OffsetsAcknowledged, JudgedTransaction]]
    )

    def add(self, event: OffsetsAcknowledged) -> None:
        """A client was told that its transaction committed."""
        self.exercised[rules.OFFSETS_WITH_MARKER.name] += 1
        identity = event.producer_id, event.producer_epoch
        transaction = self.transactions.ended.get(identity)
        if (
            transaction is None
            or not transaction.is_prepared
            or transaction.decision is not TransactionResult.COMMIT
        ):
            raise rules.OFFSETS_WITH_MARKER.broken(
                f"{event.participant} was told that its transaction of producer {identity[0]} epoch "
                f"{identity[1]} committed, with offsets of group {event.offsets[0][0].group_id}, but no "
                "durable decision says so"
            )
        self.acknowledged.append((event, transaction))

    def judge_recovered(self) -> None:
        """A coordinator has read a log of offsets: complete transactions have their effect."""
        for event, transaction in self.acknowledged:
            name = transaction.name
            current = self.transactions.current.get(name)
            # By identity: a coordinator's log that lost its tail is read again, into other objects.
            is_last = current is not None and current.identity == transaction.identity
            record = self.transactions.latest.get(name)
            if not is_last or record is None or record.state in COMPLETED:
                self._judge(event)

    def judge_end(self) -> None:
        """A healed run is over: every marker is written."""
        for event, _ in self.acknowledged:
            self._judge(event)

    def _judge(self, event: OffsetsAcknowledged) -> None:
        identity = event.producer_id, event.producer_epoch
        for key, offset in event.offsets:
            if not any(record.commits(key, offset, identity) for record in self.offsets.values()):
                raise rules.OFFSETS_WITH_MARKER.broken(
                    f"{event.participant} was told that its transaction of producer {identity[0]} epoch "
                    f"{identity[1]} committed, but offset {offset} of group {key.group_id} in {key.topic}-"
                    f"{key.partition} never took effect"
                )
