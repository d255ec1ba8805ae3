"""Where records wait to become batches: one open batch per partition, bounded memory, linger and delivery
deadlines (Kafka's RecordAccumulator).

Rule: the hot path (`SendPath.put`) does nothing per record except append to columns; all other work is per
batch.
"""

# Theory of operation
# -------------------
#
# A record enters the open batch of its partition. A batch leaves that place when it is full, when it has
# lingered, or at a flush, and waits in the queue of its partition until `Delivery` sends it:
#
#     put(), add()            close()                   Delivery                      finish()
#   ---------------> [open] ----------> [queue.ready] ----------> [queue.unacked] -----------> outcome
#                    linger_ms            no sequence yet           sequence, in flight        memory is free
#                    batch_size                                     or waiting for a retry
#
# Memory. `used` counts `batch_size` bytes for an open batch and the real size once it is closed, as Kafka's
# BufferPool reserves whole buffers. So an append inside a batch needs no check of the limit, and only opening
# a batch can raise BufferFull. A record larger than `batch_size` gets a batch of its own.
#
# The hot path. `hot` maps a topic to its `Route`, and a route holds the open batch of each partition. `put`
# looks up both, appends, and returns, without a `threading.Lock` (append_lock.py) and without a call of our
# own code. Everything that it must not do is encoded in the data that it reads anyway:
#
#     sending is not allowed (no transaction)     `hot` is empty: the look-up fails
#     no batch is open                            NO_BATCH takes its place, which has no room
#     the batch has headers or timestamps         its `room` is NO_ROOM
#
# Time. `batches` is ordered by the time at which a batch was opened, so only the oldest ones must be checked
# for the delivery timeout. `lingering` is ordered by the same time, for linger_ms. A batch that lingered
# stays open while an earlier batch of its partition still waits to be sent: closing it would not send it
# sooner, and more records fit in. That is how throughput grows when the broker is slow.
#
# Without linger (`linger_ms` is 0), a part-filled batch also stays open while an earlier batch of its
# partition has no acknowledgement, as a small TCP segment waits (Nagle, RFC 896). Otherwise, records that
# are sent faster than the broker answers would each get a request of their own. A lone record is sent at
# once, and a full batch never waits:
#
#     send a    send b    send c                ack of a              ack of b, c
#     [a] -->   [b]       [b c]                 [b c] -->             nothing is open
#
# Partitions. A record with a key goes to the partition that the partitioner selects (`partitioners`). Records
# without a key go to the sticky partition, which changes with each closed batch (KIP-480), so batches fill
# up. When the number of partitions of a topic changes, a new route replaces the old one, which keeps all its
# slots: the hot path may be using it at this moment. A batch that it finds there is either open in the new
# route, too, or closed, and a record that comes too late for a closed batch is appended again.

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import takewhile

import attrs

from fencepost.client.batch import (
    NO_BATCH,
    RECORD_SIZE_MAX,
    PartitionQueue,
    ProducerBatch,
    ProducerRecord,
    record_size,
)
from fencepost.client.errors import BufferFull, RecordTooLarge
from fencepost.client.partitioners import KeyPartitions
from fencepost.client.settings import ProducerSettings
from fencepost.protocol.fork import Ignored, Ordered, Shared
from fencepost.protocol.terms import TopicPartition

AppendedRecord = tuple[ProducerBatch, int]
"""The batch of a record that was appended, and its index there."""


@attrs.define(eq=False)
class Route:
    """The open batches of one topic by partition, and the partition that records without a key go to now."""

    topic: str
    open: list[ProducerBatch]
    partition_of: Shared[KeyPartitions]
    """By key."""
    sticky: int = 0

    def partition_for(self, key: bytes | None) -> int:
        """The partition of the key; without a key a partition per batch in turn (KIP-480)."""
        return self.sticky if key is None else self.partition_of[key]


@attrs.define(eq=False)
class Accumulator:
    """All records without an outcome, in batches."""

    settings: Shared[ProducerSettings]
    _next: Ignored[int] = 1
    _routes: Ordered[dict[str, Route]] = attrs.field(factory=dict)
    hot: dict[str, Route] = attrs.field(factory=dict)
    """Always the same object; empty while sending is not allowed."""
    _is_hot: bool = False
    batches: Ordered[dict[int, ProducerBatch]] = attrs.field(factory=dict)
    """The batches without an outcome, oldest first."""
    lingering: deque[ProducerBatch] = attrs.field(factory=deque)
    """Oldest first; some have been closed since."""
    queues: Ordered[dict[TopicPartition, PartitionQueue]] = attrs.field(factory=dict)
    active: Ordered[dict[TopicPartition, PartitionQueue]] = attrs.field(factory=dict)
    """The queues with closed batches."""
    used: int = 0
    """Bytes of buffer_memory."""

    def allow(self, is_open: bool) -> None:
        """Opens the hot path (the state allows sending) or closes it."""
        if is_open is self._is_hot:
            return
        self._is_hot = is_open
        self.hot.clear()
        if is_open:
            self.hot.update(self._routes)

    def route(self, topic: str, partition_count: int) -> Route:
        """The route of a topic, with a slot for each partition that it has now."""
        old = self._routes.get(topic)
        slots: list[ProducerBatch] = []
        sticky = 0
        if old is not None:
            if len(old.open) == partition_count:
                return old
            for batch in old.open[partition_count:]:
                if batch is not NO_BATCH:
                    self.close(batch)
            slots, sticky = old.open[:partition_count], old.sticky % partition_count
        slots += [NO_BATCH] * (partition_count - len(slots))
        partitions = KeyPartitions(self.settings.partitioner, partition_count)
        route = self._routes[topic] = Route(topic, slots, partitions, sticky)
        if self._is_hot:
            self.hot[topic] = route
        return route

    def fit_routes(self, partition_counts: Mapping[str, int]) -> None:
        """Gives each route a slot per partition of its topic."""
        for topic in self._routes:
            count = partition_counts.get(topic)
            if count is not None:
                self.route(topic, count)

    def batches_without_partition(self) -> list[ProducerBatch]:
        """The batches of partitions that are gone, except those in flight, which may still be stored."""
        return [
            batch
            for queue in self.active.values()
            if queue.partition.partition >= len(self._routes[queue.partition.topic].open)
            for batch in (*queue.unacked, *queue.ready)
            if not batch.in_flight
        ]

    def add(
        self, route: Route, partition: int, record: ProducerRecord, *, now: int, wall_ms: int
    ) -> AppendedRecord:
        """Appends a record to a batch of `partition`, opening one if needed; BufferFull without room."""
        size = record_size(record)
        if size > min(RECORD_SIZE_MAX, self.settings.buffer_memory):
            raise RecordTooLarge(
                f"a record for topic {route.topic!r} has {size} bytes, more than buffer_memory or "
                "a request can hold"
            )
        batch = route.open[partition]
        if batch is not NO_BATCH and batch.size + size > self.settings.batch_size:
            self.close(batch)
            batch = NO_BATCH
        if batch is NO_BATCH:
            batch = self._open(route, partition, size, now=now, wall_ms=wall_ms)
        return batch, batch.add(record)

    def _open(self, route: Route, partition: int, size: int, *, now: int, wall_ms: int) -> ProducerBatch:
        limit = self.settings.batch_size
        reserved = max(limit, size)
        if self.used and self.used + reserved > self.settings.buffer_memory:
            raise BufferFull(
                f"buffer_memory is full: {self.used} of {self.settings.buffer_memory} bytes are in use"
            )
        where = TopicPartition(route.topic, partition)
        batch = ProducerBatch(self._next, where, limit=limit, opened_at=now, base_timestamp=wall_ms)
        self._next += 1
        batch.reserved = reserved
        self.used += reserved
        self.batches[batch.number] = batch
        self.lingering.append(batch)
        route.open[partition] = batch
        return batch

    def close(self, batch: ProducerBatch) -> None:
        """Closes a batch to further records and queues it for sending."""
        route = self._routes[batch.topic]
        route.open[batch.partition] = NO_BATCH
        if route.sticky == batch.partition:
            route.sticky = (route.sticky + 1) % len(route.open)
        batch.close()
        size = batch.size  # read once: the hot path may still change it in the middle of an append
        self.used += size - batch.reserved
        batch.reserved = size
        queue = self.queue(batch.where)
        queue.ready.append(batch)
        self.active[queue.partition] = queue

    def is_open(self, batch: ProducerBatch) -> bool:
        """Whether the batch accepts records."""
        slots = self._routes[batch.topic].open
        return batch.partition < len(slots) and slots[batch.partition] is batch

    def close_all(self) -> None:
        for batch in self.lingering:
            if self.is_open(batch):
                self.close(batch)
        self.lingering.clear()

    def close_lingered(self, now: int) -> bool:
        """Closes the batches that have been open for `linger_ms`; True if there was one.

        A batch stays open while earlier batches of its partition wait to be sent: closing it would not send
        it sooner. Without linger, it stays open while they wait for their acknowledgement, too.
        """
        if not self.lingering:
            return False
        oldest_allowed = now - self.settings.linger_ms
        kept: list[ProducerBatch] = []
        closed = False
        while self.lingering and self.lingering[0].opened_at <= oldest_allowed:
            batch = self.lingering.popleft()
            if not self.is_open(batch):
                continue
            if self._waits_for_earlier(batch):
                kept.append(batch)
            else:
                self.close(batch)
                closed = True
        self.lingering.extendleft(reversed(kept))
        return closed

    def _waits_for_earlier(self, batch: ProducerBatch) -> bool:
        queue = self.queues.get(batch.where)
        if queue is None:
            return False
        return bool(queue.ready or (queue.unacked and not self.settings.linger_ms))

    def queue(self, partition: TopicPartition) -> PartitionQueue:
        """The queue of a partition, made at first use."""
        found = self.queues.get(partition)
        if found is None:
            found = self.queues[partition] = PartitionQueue(partition)
        return found

    def finish(self, batch: ProducerBatch) -> None:
        """Removes a batch that has its outcome, and releases its memory."""
        if self.is_open(batch):
            self.close(batch)
        queue = self.queue(batch.where)
        queue.discard(batch)
        if not queue.ready and not queue.unacked:
            self.active.pop(queue.partition, None)
        self.used -= batch.reserved
        del self.batches[batch.number]
        batch.is_done = True
        batch.data = None

    def lacks_sequence(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a sequence of this identity is missing, or may be, in some partition."""
        identity = (producer_id, producer_epoch)
        return any(
            queue.is_broken and (queue.producer_id, queue.producer_epoch) == identity
            for queue in self.queues.values()
        )

    def overdue(self, opened_before: float) -> Iterator[ProducerBatch]:
        """The batches that were opened before this time, oldest first."""
        return takewhile(lambda batch: batch.opened_at < opened_before, self.batches.values())

    def expired(self, now: int) -> list[ProducerBatch]:
        """The batches past their delivery timeout; in order of age, so the search ends at the first young
        one.
        """
        return list(self.overdue(now - self.settings.delivery_timeout_ms + 1))

    def wake_at(self, now: int) -> int | None:
        """When the next batch has lingered long enough, may be retried, or expires."""
        if not self.batches:
            return None
        oldest = next(iter(self.batches.values()))
        at = oldest.opened_at + self.settings.delivery_timeout_ms
        for queue in self.active.values():
            retry_at = queue.retry_at()
            if retry_at is not None and now < retry_at < at:
                at = retry_at
        for batch in self.lingering:
            # A batch that is already due waits for the reply to an earlier batch.
            due = batch.opened_at + self.settings.linger_ms
            if due > now and self.is_open(batch):
                return min(at, due)
        return at
