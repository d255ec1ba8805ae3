"""What a consumer returns: batches as views over the fetched bytes, and records only on request.

Rule: the filter for aborted transactions is Kafka's (CompletedFetch, KIP-98): a heap of first
offsets and a set of producer ids.
"""

# A fetch with read_committed comes with a list of aborted transactions (producer id, first offset). The
# filter walks the batches in order and keeps the set of producers that are inside an aborted transaction:
#
#     batch at 10, producer 7        7 is added: the list says that 7 aborts from offset 10 on   -> dropped
#     batch at 11, producer 8        not in the set                                              -> returned
#     ABORT marker at 12 of 7        7 is removed: its next transaction may commit               -> not data
#     batch at 13, producer 7        not in the set                                              -> returned
#
# A COMMIT marker needs no action, because a committed transaction is never in the list.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop
from itertools import repeat
from typing import Any, Final, NamedTuple

import attrs

from fencepost.client.serializers import Deserializer
from fencepost.protocol.batches import BatchHeader, check, marker_of, walk
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.fork import Ignored, Shared
from fencepost.protocol.messages import AbortedTransaction
from fencepost.protocol.records import Columns, read_columns
from fencepost.protocol.terms import NO_LEADER_EPOCH, TopicPartition, TransactionResult

Header = tuple[str, bytes | None]

_ABORT: Final = TransactionResult.ABORT


@attrs.define
class Record:  # neither frozen nor with keywords only: a million of them are made at once
    """One record. `timestamp`: milliseconds since 1970. `key`, `value`: what the deserializers return, by
    default bytes or None. `headers`: pairs of a name and bytes or None; None if there are no headers.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: list[Header] | None


@attrs.frozen(kw_only=True)
class RecordDecoder:
    """The deserializers of keys and values; None keeps the bytes."""

    key: Deserializer | None = None
    value: Deserializer | None = None


RAW = RecordDecoder()


@attrs.define(eq=False)
class ConsumedBatch:
    """The records of one batch of a `partition` from `base_offset` on, decoded at first use."""

    partition: TopicPartition
    _data: memoryview = attrs.field(kw_only=True, alias="data")
    _at: int = attrs.field(kw_only=True, alias="at")
    _header: BatchHeader = attrs.field(kw_only=True, alias="header")
    base_offset: int = attrs.field(kw_only=True)
    _decoding: Shared[RecordDecoder] = attrs.field(kw_only=True, alias="decoding")
    _columns: Ignored[Columns | None] = None

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self._header.next_offset

    @property
    def producer_id(self) -> int:
        """The producer id of the batch; -1 for a producer without idempotence."""
        return self._header.producer_id

    @property
    def producer_epoch(self) -> int:
        """The producer epoch of the batch; -1 for a producer without idempotence."""
        return self._header.producer_epoch

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the batch. If an OffsetAndMetadata has it, the reader that begins there notices
        that the log has lost records before the offset.
        """
        return self._header.leader_epoch

    @property
    def is_transactional(self) -> bool:
        """Whether it was written in a transaction."""
        return self._header.is_transactional

    @property
    def columns(self) -> Columns:
        """The raw columns, decoded at first use; ProtocolViolation when the records are malformed."""
        if self._columns is None:
            columns = read_columns(self._data, self._header, self._at)
            skipped = self.base_offset - self._header.base_offset
            self._columns = columns if skipped == 0 else _without_first(columns, skipped)
        return self._columns

    def __len__(self) -> int:
        return len(self.columns.values)

    @property
    def values(self) -> list[Any]:
        """A list with the value of each record."""
        decode = self._decoding.value
        return self.columns.values if decode is None else list(map(decode, self.columns.values))

    @property
    def keys(self) -> list[Any]:
        """A list with the key of each record."""
        keys = self.columns.keys or [None] * len(self)
        decode = self._decoding.key
        return keys if decode is None else list(map(decode, keys))

    @property
    def offsets(self) -> Sequence[int]:
        """The offset of each record."""
        deltas, start = self.columns.offset_deltas, self._header.base_offset
        if deltas is None:
            return range(self.base_offset, self.base_offset + len(self))
        return [start + delta for delta in deltas]

    @property
    def timestamps(self) -> list[int]:
        """The timestamp of each record, milliseconds since 1970."""
        deltas, start = self.columns.timestamp_deltas, self._header.base_timestamp
        return [start] * len(self) if deltas is None else [start + delta for delta in deltas]

    @property
    def headers(self) -> list[list[Header] | None]:
        """The headers of each record, None where it has none."""
        return self.columns.headers or [None] * len(self)

    def records(self) -> list[Record]:
        """An object per record; the columns are several times faster."""
        topic, partition = self.partition
        return list(
            map(
                Record,
                repeat(topic),
                repeat(partition),
                self.offsets,
                self.timestamps,
                self.keys,
                self.values,
                self.headers,
            )
        )

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def __repr__(self) -> str:
        return f"<batch {self.partition} {self.base_offset}..{self.next_offset - 1}>"


def _without_first(columns: Columns, skipped: int) -> Columns:
    """The records from delta `skipped` on: a fetch begins with the batch that holds its offset."""
    deltas = columns.offset_deltas
    count = skipped if deltas is None else sum(1 for delta in deltas if delta < skipped)

    def rest(column: list[Any] | None) -> list[Any] | None:
        return None if column is None else column[count:]

    return Columns(
        offset_deltas=rest(deltas),
        keys=rest(columns.keys),
        values=columns.values[count:],
        timestamp_deltas=rest(columns.timestamp_deltas),
        headers=rest(columns.headers),
    )


class AbortedFilter:
    """Decides which batches of one fetch are aborted; gets every batch of it, in order."""

    __slots__ = ("_aborted", "_coming")

    def __init__(self, aborted: Sequence[AbortedTransaction] | None) -> None:
        self._coming = [(entry.first_offset, entry.producer_id) for entry in aborted or ()]
        heapify(self._coming)
        self._aborted: set[int] = set()

    def drops(self, header: BatchHeader, data: memoryview, at: int) -> bool:
        """Whether read_committed drops this batch; an ABORT marker ends its producer's aborted range."""
        while self._coming and self._coming[0][0] <= header.last_offset:
            self._aborted.add(heappop(self._coming)[1])
        if header.is_control:
            if header.record_count and marker_of(data, at, header).result is _ABORT:
                self._aborted.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._aborted


class Selection(NamedTuple):
    """The batches of a fetch that the application gets, and the next position."""

    batches: list[ConsumedBatch]
    next_offset: int
    damage: str | None = None
    """What is wrong with the batch at the next position, if it is in the fetch and cannot be read."""
    leader_epoch: int = NO_LEADER_EPOCH
    """That of the last batch before the next position, if the position has moved."""


def select(
    partition: TopicPartition,
    data: memoryview,
    *,
    position: int,
    aborted: Sequence[AbortedTransaction] | None,
    decoding: RecordDecoder = RAW,
) -> Selection:
    """The batches at and after `position` that are neither control batches nor aborted, up to the first one
    that is damaged; checksums are checked. The position moves over what is left out too.
    """
    aborted_filter = AbortedFilter(aborted)
    batches: list[ConsumedBatch] = []
    next_offset, leader_epoch = position, NO_LEADER_EPOCH
    try:
        for at, header in walk(data):
            check(data, at, header)
            dropped = aborted_filter.drops(header, data, at)
            if header.next_offset <= position:
                continue
            next_offset, leader_epoch = header.next_offset, header.leader_epoch
            if not dropped and not header.is_control and header.record_count:
                batches.append(
                    ConsumedBatch(
                        partition,
                        data=data,
                        at=at,
                        header=header,
                        base_offset=max(position, header.base_offset),
                        decoding=decoding,
                    )
                )
    except ProtocolViolation as violation:
        return Selection(batches, next_offset, str(violation), leader_epoch)
    return Selection(batches, next_offset, leader_epoch=leader_epoch)
