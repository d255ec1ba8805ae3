"""One batch of records for one partition, and the queue of the batches of a partition.

Rule: a batch gets its sequence when it is first sent and keeps it through every retry; only a batch that the
broker has certainly rejected may get another one. Otherwise its records could be stored twice.
"""

# A batch lives through three forms, and holds only one of them at a time to save memory:
#
#     columns     lists of values, keys, timestamps and headers. The last two stay None until a record needs
#                 them, and are then filled with defaults for the records before it.
#     bytes       `data`, built once at the first send (`build`), when the sequence is known.
#     outcome     `base_offset` or `failure`. A record's offset is `base_offset` plus its index, so records
#                 need no objects.
#
# Threads. The hot path appends without a lock while the IO thread may close the batch. `close` first sets
# `is_closed` and then counts; `put` first appends and then reads `is_closed`. So at least one of the two sees
# the other: a record that came too late finds its index at or above `record_count` and goes into the next
# batch.

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, cast

import attrs

from fencepost.client.arguments import check_text
from fencepost.client.errors import ClientError, Failure
from fencepost.protocol.batches import renumber
from fencepost.protocol.compression import Compression
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.fork import Due, Ignored, Pace, constant
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import (
    INT32_MAX,
    INT64_MAX,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TOPIC_ID,
    TopicPartition,
    sequence_after,
)

Headers = Sequence[tuple[str, bytes | None]]

# The bytes of a record besides its key and value: their lengths in msgpack.
RECORD_OVERHEAD: Final = 6
# The `room` that keeps the hot path out: of NO_BATCH, and of batches with headers or timestamps.
NO_ROOM: Final = -1


class RecordMetadata(NamedTuple):
    """Where a record is stored. `offset`: -1 for a duplicate whose offset the broker has forgotten."""

    topic: str
    partition: int
    offset: int


OnDelivery = Callable[[ClientError | None, RecordMetadata], object]
"""Called once when a record is stored or has failed, with its error (or None) and its RecordMetadata."""


class ProducerRecord(NamedTuple):
    """A record as a program sends it, on every path but the hot one."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers | None = None
    on_delivery: OnDelivery | None = None


@attrs.define(eq=False)
class ProducerBatch:
    """Records of one partition: first columns that grow, then bytes that are sent, then an outcome."""

    number: int
    where: TopicPartition
    limit: int = attrs.field(kw_only=True)
    opened_at: Pace[int] = attrs.field(kw_only=True)
    base_timestamp: int = attrs.field(kw_only=True)
    topic: str = attrs.field(init=False)
    partition: int = attrs.field(init=False)
    room: int = attrs.field(init=False)
    """Bytes that the hot path may still append."""
    _rich_size: int = 0
    reserved: int = 0
    values: list[bytes | None] = attrs.field(factory=list)
    keys: list[bytes | None] = attrs.field(factory=list)
    timestamps: list[int] | None = None
    headers: list[Headers | None] | None = None
    callbacks: Ignored[list[tuple[range, OnDelivery]] | None] = None
    """By the indexes of records. Those of a late record, which is not part of the batch, are not called."""
    is_closed: bool = False
    record_count: int = 0
    data: bytearray | None = None
    base_sequence: int = NO_SEQUENCE
    ordinal: int = 0
    """Its number among the numbered batches of its partition."""
    attempts: Pace[int] = 0
    retry_at: Due = 0
    last_error: Ignored[ErrorCode] = NO_ERROR
    in_flight: bool = False
    was_sent: bool = False
    is_refused: bool = False
    """Certainly not in the log; waits for a new identity."""
    is_done: bool = False
    base_offset: int = NO_OFFSET
    failure: Failure | None = None

    def __attrs_post_init__(self) -> None:
        self.topic, self.partition = self.where
        self.room = self.limit

    @property
    def size(self) -> int:
        """About how many bytes its records take."""
        return self._rich_size or self.limit - self.room

    def add(self, record: ProducerRecord) -> int:
        """Appends any record and creates columns that are needed from now on; returns its index."""
        _, value, key, _, timestamp_ms, headers, on_delivery = record
        index = len(self.values)
        try:
            if on_delivery is not None:
                self.call_back(range(index, index + 1), on_delivery)
            size = self.size + record_size(record)
            self.keys.append(key)
            if self.timestamps is not None or timestamp_ms is not None:
                self.timestamps = self.timestamps or [self.base_timestamp] * index
                self.timestamps.append(self.base_timestamp if timestamp_ms is None else timestamp_ms)
            if self.headers is not None or headers is not None:
                each: list[Headers | None] = self.headers or [None] * index
                each.append(None if headers is None else [(name, content) for name, content in headers])
                self.headers = each
            if self.timestamps is None and self.headers is None:
                self.room = self.limit - size
            else:
                self.room, self._rich_size = NO_ROOM, size
            self.values.append(value)
        except BaseException:
            self.drop_half_record()
            raise
        return index

    def drop_half_record(self) -> None:
        """Makes the columns equally long again after Ctrl-C interrupted an append; `values` comes last."""
        count = len(self.values)
        for column in (self.keys, self.timestamps, self.headers):
            if column is not None:
                del column[count:]
        if self.callbacks is not None:
            self.callbacks = [(indexes, call) for indexes, call in self.callbacks if indexes.start < count]

    def call_back(self, indexes: range, on_delivery: OnDelivery) -> None:
        """Has a function called for each record at `indexes` once it is done; to be set before the append."""
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append((indexes, on_delivery))

    def calls(self) -> Iterator[tuple[OnDelivery, int]]:
        """The functions to call once the batch is done, each with the index of its record."""
        for indexes, on_delivery in self.callbacks or ():
            for index in indexes[: max(0, self.record_count - indexes.start)]:
                yield on_delivery, index

    def outcome_of(self, index: int) -> tuple[ClientError | None, RecordMetadata]:
        """The error of a record or None, and its metadata; only when the batch is done."""
        offset = self.base_offset + index if self.base_offset >= 0 else NO_OFFSET
        error = None if self.failure is None else self.failure.exception()
        return error, RecordMetadata(self.topic, self.partition, offset)

    def close(self) -> None:
        """Accepts no more records. The mark is set before the count: see above."""
        self.is_closed = True
        self.record_count = len(self.values)

    def build(
        self, *, producer_id: int, producer_epoch: int, transactional: bool, compression: Compression
    ) -> None:
        """Encodes the batch and drops the columns."""
        base = self.base_timestamp if self.timestamps is None else self.timestamps[0]
        count = self.record_count
        keys = self.keys[:count]
        self.data = build_data_batch(
            # Copies, because the hot path may append a late record even now: it is not part of the batch,
            # and `put` notices that.
            self.values[:count],
            keys=None if keys.count(None) == count else keys,
            timestamp_deltas=None if self.timestamps is None else [time - base for time in self.timestamps],
            headers=self.headers,
            base_timestamp=base,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self.base_sequence,
            transactional=transactional,
            checked=True,
        )
        self.keys, self.timestamps, self.headers = [], None, None
        self.values = [None] * count  # `put` reads the index of a late record from its length


# Far above the broker's message.max.bytes, and far below what a frame may hold.
RECORD_SIZE_MAX: Final = 64 * 1024 * 1024


CONTENTS: Final = frozenset({bytes, type(None)})
"""The types of keys and values."""
HEADER_TYPES: Final = frozenset({(str, bytes), (str, type(None))})


def check_record(record: ProducerRecord) -> None:
    """Rejects a record that no batch can hold: TypeError or ValueError."""
    topic, value, key, partition, timestamp_ms, headers, on_delivery = cast("tuple[object, ...]", record)
    if type(topic) is not str:
        raise TypeError(f"topic must be a string, not {topic!r}")
    check_text("topic", topic)
    if type(value) not in CONTENTS:
        raise _no_content("value", value)
    if type(key) not in CONTENTS:
        raise _no_content("key", key)
    if partition is not None:
        _check_number("partition", partition, INT32_MAX)
    if timestamp_ms is not None:
        _check_number("timestamp_ms", timestamp_ms, INT64_MAX)
    if on_delivery is not None and not callable(on_delivery):
        raise TypeError(
            f"on_delivery must be a function of an error and a RecordMetadata, not {on_delivery!r}"
        )
    if headers is not None and not isinstance(headers, (list, tuple)):
        raise TypeError(f"headers must be a list of pairs (string, bytes or None), not {headers!r}")
    for header in cast("list[object]", headers or ()):
        parts = cast("tuple[object, ...]", header) if isinstance(header, (list, tuple)) else ()
        if tuple(map(type, parts)) not in HEADER_TYPES:
            raise TypeError(f"each of headers must be a pair (string, bytes or None), not {header!r}")
        name, _ = cast("tuple[str, object]", header)
        check_text("each name of headers", name)


def _no_content(name: str, content: object) -> TypeError:
    return TypeError(f"{name} must be bytes or None, not {content!r}: set {name}_serializer")


def _check_number(name: str, number: object, high: int) -> None:
    if type(number) is not int:
        raise TypeError(f"{name} must be a whole number or None, not {number!r}")
    if not 0 <= number <= high:
        raise ValueError(f"{name} must be a whole number from 0 to {high}, not {number!r}")


def record_size(record: ProducerRecord) -> int:
    """About how many bytes a record takes in a batch."""
    size = RECORD_OVERHEAD + len(record.value or b"") + len(record.key or b"")
    if record.headers:
        size += sum(len(name) + len(content or b"") + RECORD_OVERHEAD for name, content in record.headers)
    return size


NO_BATCH: Final = constant(
    ProducerBatch(0, TopicPartition("", -1), limit=NO_ROOM, opened_at=0, base_timestamp=0, is_closed=True)
)
"""Stands where no batch is open, and has no room, so that the hot path needs no extra test."""


@attrs.define(eq=False)
class PartitionQueue:
    """The closed batches of one partition: `ready` wait for a sequence, `unacked` have one, in order."""

    partition: TopicPartition
    ready: deque[ProducerBatch] = attrs.field(factory=deque)
    unacked: list[ProducerBatch] = attrs.field(factory=list)
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    next_sequence: int = 0
    topic_id: bytes = NO_TOPIC_ID
    """Of the topic to which batches are sent."""
    numbered: int = 0
    """Batches that got a sequence since `unacked` was empty."""
    is_broken: bool = False
    """A sequence may be missing from the log: no new batch is sent under this identity (KIP-360)."""

    def next_to_send(self, now: int) -> ProducerBatch | None:
        """The batch that may be sent now: while one waits for its retry, only the lowest sequence."""
        is_lowest = True
        for batch in self.unacked:
            if batch.is_refused:
                continue
            if not batch.in_flight:
                return batch if is_lowest and batch.retry_at <= now else None
            is_lowest = False
        return self.ready[0] if self.ready and not self.is_broken else None

    def retry_at(self) -> int | None:
        """When the batch that waits for its retry may be sent."""
        for batch in self.unacked:
            if not batch.is_refused:
                return None if batch.in_flight else batch.retry_at
        return None

    def switch_to(self, topic_id: bytes) -> bool:
        """Whether batches may be sent to the topic with this id: not while others are in flight to a topic
        that had the name before. That one is gone, so they may be sent again, and must come first.
        """
        if self.topic_id == topic_id:
            return True
        if any(batch.in_flight for batch in self.unacked):
            return False
        self.topic_id = topic_id
        return True

    def adopt(self, producer_id: int, producer_epoch: int) -> None:
        """Adopts a new identity once no batch of the old one can still arrive; renumbers rejected batches."""
        if self.producer_epoch == producer_epoch and self.producer_id == producer_id:
            return
        if not all(batch.is_refused for batch in self.unacked):
            return
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.next_sequence = 0
        self.is_broken = False
        for batch in self.unacked:
            assert batch.data is not None, "a batch that was sent has bytes"
            self._number(batch)
            renumber(
                batch.data,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=batch.base_sequence,
            )
            batch.is_refused = False

    def number_next(self) -> ProducerBatch:
        """Gives the first waiting batch its sequence."""
        batch = self.ready.popleft()
        self._number(batch)
        # Counts from the oldest batch without an acknowledgement: only the difference of two ordinals
        # matters.
        self.numbered = self.numbered + 1 if self.unacked else 1
        batch.ordinal = self.numbered
        self.unacked.append(batch)
        return batch

    @property
    def window(self) -> int:
        """How many batches the broker must remember to recognise a retry of the oldest unacknowledged one;
        later batches that are already acknowledged count too.
        """
        return self.numbered - self.unacked[0].ordinal + 1 if self.unacked else 0

    def _number(self, batch: ProducerBatch) -> None:
        batch.base_sequence = self.next_sequence
        self.next_sequence = sequence_after(self.next_sequence, batch.record_count)

    def discard(self, batch: ProducerBatch) -> None:
        """Removes a batch that is done."""
        if batch in self.unacked:
            self.unacked.remove(batch)
        elif batch in self.ready:
            self.ready.remove(batch)
