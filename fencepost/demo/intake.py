"""The input of the worker: batches as they come, cut into portions of a fixed number of records.

Rule: a portion knows the offsets up to which it goes, and these are what its transaction commits.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from fencepost.protocol.terms import TopicPartition

if TYPE_CHECKING:
    from fencepost.client.consumer_records import ConsumedBatch
    from fencepost.client.shells.sync import Consumer

POLL_MS = 500


@attrs.frozen
class Portion:
    """The input of one transaction: values, and per partition the offset after the last one taken."""

    values: list[bytes]
    offsets: dict[TopicPartition, int] = attrs.field(kw_only=True)


class Intake:
    """Takes what the consumer fetches, up to fixed ends; the rest of a batch waits for the next portion."""

    def __init__(self, consumer: Consumer, ends: dict[TopicPartition, int]) -> None:
        self._consumer = consumer
        self._ends = ends
        self._waiting: deque[tuple[ConsumedBatch, int]] = deque()

    def take(self, count: int) -> Portion:
        """The next `count` records, fewer at the end; no records when there are no more."""
        values: list[bytes] = []
        offsets: dict[TopicPartition, int] = {}
        while len(values) < count and self._more():
            batch, start = self._waiting.popleft()
            stop = min(len(batch), start + count - len(values))
            values += batch.values[start:stop]
            if stop < len(batch):
                offsets[batch.partition] = batch.offsets[stop]
                self._waiting.appendleft((batch, stop))
            else:
                offsets[batch.partition] = batch.next_offset
        return Portion(values, offsets=offsets)

    def _more(self) -> bool:
        while not self._waiting:
            if all(self._consumer.position(partition) >= end for partition, end in self._ends.items()):
                return False
            self._waiting.extend((batch, 0) for batch in self._consumer.poll(POLL_MS))
        return True
