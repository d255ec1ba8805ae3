"""The segments of one log: which of them holds an offset, and reads by offset, time and leader epoch (Kafka:
LogSegments, and the reads of LocalLog).

Rule: the segments lie end to end. Only the last one, the active one, grows; the others never change, and only
compaction and deletion replace or remove them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from fencepost.journal.indexes import AbortedRange, collect_aborted
from fencepost.journal.segments import Segment
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.terms import NO_LEADER_EPOCH


class LogSegments:
    """At least one segment, oldest first in `all`. Only the thread of the journal uses it, except that
    `Journal.sync` in another thread reads `all` and `active`.
    """

    __slots__ = ("_reading", "active", "all", "bases", "end_offset")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.all = list(segments)
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        # Set by `Journal.append` once a whole batch is written; after a failure, the active segment has more.
        self.end_offset = self.active.end_offset
        self._reading: Segment | None = None

    @property
    def oldest_offset(self) -> int:
        """The base offset of the oldest segment."""
        return self.all[0].base_offset

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return sum(segment.size for segment in self.all)

    @property
    def full(self) -> tuple[Segment, ...]:
        """All segments but the active one. They never change; cleaned ones take their place."""
        return tuple(self.all[:-1])

    def add(self, segment: Segment) -> None:
        """Make a new segment the active one."""
        # Listed before it becomes active: `Journal.sync` in a worker thread relies on this order.
        self.all.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment

    def replace(self, first: int, after: int, new: Segment) -> None:
        """Put a cleaned segment in the place of the full ones from index `first` to before `after`."""
        self.all[first:after] = [new]
        self.bases[first:after] = [new.base_offset]
        self._reading = None

    def drop(self, count: int) -> None:
        """Forget the oldest segments."""
        del self.all[:count], self.bases[:count]
        self._reading = None

    def index(self, offset: int) -> int:
        """The index of the segment that holds an offset; the first one for earlier offsets."""
        return max(0, bisect_right(self.bases, offset) - 1)

    def _use_for_reading(self, segment: Segment) -> None:
        """Keep at most one old segment open for reading: a partition costs two descriptors, however long it
        is.
        """
        if segment is not self._reading:
            if self._reading is not None and self._reading is not self.active:
                self._reading.release()
            self._reading = segment

    def batch_start(self, offset: int) -> int:
        """The first offset of the batch that holds `offset`, or `offset` when no batch does."""
        segment = self.all[self.index(offset)]
        self._use_for_reading(segment)
        return segment.batch_start(offset)

    def read(self, offset: int, *, max_bytes: int, before: int) -> bytes:
        """Whole batches of one segment, from the one that holds `offset` on, all below offset `before`.

        Returns at least one batch if there is one, however large, else b"". The caller has checked `offset`.
        """
        for segment in self.all[self.index(offset) :]:
            if segment.base_offset >= before:
                break
            self._use_for_reading(segment)
            data = segment.read(offset, max_bytes=max_bytes, before=before)
            if data:
                return data
        return b""

    def bytes_between(self, offset: int, before: int) -> int | None:
        """The size of the batches from the one that holds `offset` to the last one below offset `before`;
        None if they are in several segments.
        """
        at = self.index(offset)
        if at + 1 < len(self.bases) and self.bases[at + 1] < before:
            return None
        self._use_for_reading(self.all[at])
        return self.all[at].bytes_between(offset, before)

    def batches(self, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """(header, bytes) of each batch, from the one that holds `from_offset` to the current log end."""
        end = self.end_offset
        for segment in self.all[self.index(from_offset) :]:
            if segment.base_offset < end:
                yield from segment.batches(from_offset, before=end)

    def aborted_between(self, fetch_offset: int, *, upper: int) -> list[AbortedRange]:
        """The aborted transactions that overlap [fetch_offset, upper)."""
        segments = self.all[self.index(fetch_offset) :]
        indexes = (segment.transaction_index for segment in segments)
        return collect_aborted(indexes, fetch_offset, upper=upper)

    def fetch_upper_bound(self, offset: int, size: int) -> int:
        """An offset at or after the end of `size` bytes read at `offset`: from the index, else the next
        segment's base, else the log end (LogSegment.fetchUpperBoundOffset)."""
        at = self.index(offset)
        segment = self.all[at]
        self._use_for_reading(segment)
        relative = segment.offset_index.first_offset_from(segment.locate(offset) + size)
        if relative is not None:
            return segment.base_offset + relative
        return self.bases[at + 1] if at + 1 < len(self.bases) else self.end_offset

    def leader_epoch_at(self, offset: int) -> int:
        """The leader epoch of the batch that holds `offset`, which lies before the log end."""
        segment = self.all[self.index(offset)]
        self._use_for_reading(segment)
        return segment.leader_epoch_at(offset)

    def batches_since(self, timestamp: int, *, from_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """The batches that say that they have a record at least as new as `timestamp` (ms), from the one that
        holds an offset on. Markers count as records.
        """
        for segment in self.all:
            if segment.max_timestamp >= timestamp and segment.end_offset > from_offset:
                self._use_for_reading(segment)
                yield from segment.batches_since(timestamp, from_offset=from_offset)

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The largest leader epoch up to this one, and the offset at which the next one begins, or the log
        end (LeaderEpochFileCache.endOffsetFor). Without a batch of such an epoch, the epoch itself.
        """
        newest = NO_LEADER_EPOCH
        for segment in self.all:
            if segment.leader_epoch <= max(leader_epoch, NO_LEADER_EPOCH):
                newest = segment.leader_epoch
            elif segment.size:
                self._use_for_reading(segment)
                last, end = segment.end_of_epoch(leader_epoch)
                return _first_known(last, newest, leader_epoch), end
        return _first_known(newest, leader_epoch), self.end_offset

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp (ms) that a batch claims to have; deleted records count."""
        return max(segment.max_timestamp for segment in self.all)


def _first_known(*leader_epochs: int) -> int:
    return next((each for each in leader_epochs if each != NO_LEADER_EPOCH), NO_LEADER_EPOCH)
