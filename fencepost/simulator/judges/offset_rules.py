"""I9: the offsets of a transaction take effect with its COMMIT marker, and broker and log agree on them.

Rule: offsets count as the group's only where its log holds them and, after them, the producer's COMMIT
marker.
"""

# The offsets are the only effect of a transaction without records: if they are lost, no reader misses a
# value, and the group processes the same records again.
#
#     a batch of offsets enters   log and broker agree on what it commits
#     commit is acknowledged      its decision is durable and says COMMIT
#     a log of offsets is read    what complete transactions committed is in it
#     the end of a healed run     everything that was acknowledged has taken effect

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import attrs

from fencepost.broker.groups.state import Groups
from fencepost.log_model.offsets import OffsetsModel
from fencepost.log_model.transactions import Identity
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.offsets_log import OffsetKey, OffsetRecord
from fencepost.protocol.terms import NO_TOPIC_ID, TopicPartition, TransactionResult
from fencepost.simulator.judges import rules
from fencepost.simulator.judges.rules import Exercised
from fencepost.simulator.judges.transaction_rules import JudgedTransaction, TransactionBook
from fencepost.simulator.world.events import OffsetsAcknowledged

# --- what the log says --------------------------------------------------------------------------------------


class OffsetsBatch(NamedTuple):
    """One batch of `__consumer_offsets`: the offsets of one producer, or (with a result) its marker."""

    header: BatchHeader
    result: TransactionResult | None
    offsets: list[tuple[OffsetKey, OffsetRecord | None]]


@attrs.define(eq=False)
class OffsetsRecord:
    """One group coordinator's log: its batches, and the model of what they amount to."""

    exercised: Exercised
    batches: list[OffsetsBatch] = attrs.Factory(list[OffsetsBatch])
    model: OffsetsModel = attrs.Factory(OffsetsModel)

    def enter(self, batch: OffsetsBatch, groups: Groups) -> None:
        """The batch entered the log and the broker applied it: log and broker must agree on its offsets."""
        if batch.result is not None and batch.header.producer_id in self.model.pending:
            self.exercised[rules.OFFSETS_WITH_MARKER.name] += 1
        self.batches.append(batch)
        self._judge(self.model.apply(*batch), groups)

    def cut(self, end: int) -> None:
        """The log ends at `end`: batches after it never were there."""
        kept = [batch for batch in self.batches if batch.header.base_offset < end]
        if len(kept) < len(self.batches):
            self.batches, self.model = kept, OffsetsModel()
            for batch in kept:
                self.model.apply(*batch)

    def has(self, key: OffsetKey, offset: int, *, before: int) -> bool:
        return any(
            written == key and record is not None and record.offset == offset
            for batch in reversed(self.batches)
            if batch.header.next_offset <= before
            for written, record in batch.offsets
        )

    def commits(self, key: OffsetKey, offset: int, identity: Identity) -> bool:
        """Whether a transaction of this identity wrote the offset, and the producer's next marker commits."""
        is_written = False
        for header, result, offsets in self.batches:
            if header.producer_id != identity[0]:
                continue
            if result is None:
                is_own = header.producer_epoch == identity[1]
                is_written |= is_own and any(
                    written == key and record is not None and record.offset == offset
                    for written, record in offsets
                )
            elif is_written:
                if result is TransactionResult.COMMIT:
                    return True
                is_written = False
        return False

    def judge_all(self, groups: Groups) -> None:
        """A coordinator that has just read its log knows every offset."""
        self._judge(self.model.committed, groups)

    def remembered(self, topic_ids: Mapping[str, bytes]) -> Iterator[str]:
        """I20: the committed offsets of topics that were deleted, in words."""
        for key, written in self.model.committed.items():
            if written.topic_id not in (NO_TOPIC_ID, topic_ids.get(key.topic)):
                yield (
                    f"group {key.group_id} has offset {written.offset} of {key.topic}-{key.partition}, whose "
                    "topic was deleted"
                )

    def _judge(self, keys: Collection[OffsetKey], groups: Groups) -> None:
        for key in keys:
            offsets = groups.committed.get(key.group_id, {})
            known = offsets.get(TopicPartition(key.topic, key.partition))
            written = self.model.committed.get(key)
            expected = None if written is None else written.offset
            found = None if known is None else known.record.offset
            if found != expected:
                raise rules.OFFSETS_WITH_MARKER.broken(
                    f"group {key.group_id} stands at {found} in {key.topic}-{key.partition}; its log says "
                    f"{expected}"
                )


# --- what clients were told ---------------------------------------------------------------------------------


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
            if not is_last or record is None or record.state.is_complete:
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
