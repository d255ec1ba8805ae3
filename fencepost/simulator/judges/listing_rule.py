"""What a reply to ListOffsets may say: where a log begins, where it ends for readers of an isolation level,
and which of its records is the first since a time (I18).

Rule: the expected offsets are those of the step in which the node plans its reply. The broker's time index is
not asked: records are looked up by time in the batches, from the first one on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import attrs

from fencepost.broker.contract import OffsetPlan, ReplyListed, ReplyTo
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_OFFSET,
    NO_TIMESTAMP,
    IsolationLevel,
    TopicPartition,
)
from fencepost.simulator.judges import rules
from fencepost.simulator.judges.partition_rules import PartitionRecord
from fencepost.simulator.judges.rules import Exercised
from fencepost.simulator.world.events import OffsetsListed
from fencepost.simulator.world.journals import ClusterJournals
from fencepost.simulator.world.nodes import SimulatedNode


class ExpectedOffset(NamedTuple):
    """The offset that a reply must have, the timestamp (ms) of its record, and what was asked for."""

    offset: int
    timestamp: int
    asked: str


_EARLIEST: Final = (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP)


@attrs.define(eq=False)
class ListingRule:
    """`planned` holds the replies that are on their way, by the node's id: an entry for each partition, None
    for one that is not judged.
    """

    exercised: Exercised
    partitions: Mapping[TopicPartition, PartitionRecord]
    journals: ClusterJournals
    planned: dict[tuple[int, ReplyTo], tuple[ExpectedOffset | None, ...]] = attrs.Factory(
        dict[tuple[int, ReplyTo], tuple[ExpectedOffset | None, ...]]
    )

    def plans(self, node: SimulatedNode, reply: ReplyListed) -> None:
        """A node decided what it will reply."""
        level = reply.request.isolation_level
        # A request may name a partition thousands of times.
        expected = {plan: self._expected(node, plan, level) for plan in dict.fromkeys(reply.plans)}
        self.planned[node.settings.node_id, reply.to] = tuple(expected[plan] for plan in reply.plans)

    def replied(self, listed: OffsetsListed) -> None:
        """The reply leaves the node."""
        expected = self.planned.pop((listed.node.settings.node_id, listed.to), ())
        for part, wanted in zip(listed.reply.partitions, expected, strict=False):
            if part.error or wanted is None:
                continue
            self.exercised[rules.LISTED_OFFSETS.name] += 1
            if (part.offset, part.timestamp) != (wanted.offset, wanted.timestamp):
                raise rules.LISTED_OFFSETS.broken(
                    f"{part.topic}-{part.partition}: ListOffsets of {wanted.asked} got offset {part.offset} "
                    f"with timestamp {part.timestamp}; by the log they are {wanted.offset} and "
                    f"{wanted.timestamp}"
                )

    def died(self, node_id: int) -> None:
        """A node died: it sends no more replies."""
        for planned in [planned for planned in self.planned if planned[0] == node_id]:
            del self.planned[planned]

    def _expected(
        self, node: SimulatedNode, plan: OffsetPlan, level: IsolationLevel
    ) -> ExpectedOffset | None:
        key = plan.partition
        record = self.partitions.get(key)
        # A leader that was replaced reports what was true when it led. A damaged log has no true records.
        if plan.error or record is None or record.host is not node.host or key in self.journals.damaged:
            return None
        is_committed = level is IsolationLevel.READ_COMMITTED
        end = record.last_stable_offset if is_committed else record.high_watermark
        start = self.journals.journal(key).log_start_offset if self.journals.has(key) else 0
        if plan.timestamp == LATEST_TIMESTAMP:
            return ExpectedOffset(end, NO_TIMESTAMP, f"the latest at {level.name.lower()}")
        if plan.timestamp in _EARLIEST:
            return ExpectedOffset(start, NO_TIMESTAMP, "the earliest")
        if plan.timestamp >= 0:
            found = self._first_since(key, plan.timestamp, start=start, end=end)
            return ExpectedOffset(*found, f"{plan.timestamp} ms at {level.name.lower()}")
        return None

    def _first_since(self, key: TopicPartition, timestamp: int, *, start: int, end: int) -> tuple[int, int]:
        """Offset and timestamp of the first record at least as new as `timestamp` (ms); markers count."""
        if start < end:
            for header, batch in self.journals.journal(key).segments.batches(start):
                for offset, time in _times_of(header, batch):
                    if start <= offset < end and time >= timestamp:
                        return offset, time
        return NO_OFFSET, NO_TIMESTAMP


def _times_of(header: BatchHeader, batch: memoryview) -> list[tuple[int, int]]:
    if header.is_control:
        return [(header.base_offset, header.max_timestamp)]
    try:
        columns = read_columns(batch, header)
    except ProtocolViolation:  # a stranger's, which has no readable records
        return []
    offsets = columns.offset_deltas or range(len(columns.values))
    times = columns.timestamp_deltas or [0] * len(columns.values)
    return [
        (header.base_offset + offset, header.base_timestamp + time)
        for offset, time in zip(offsets, times, strict=True)
    ]
