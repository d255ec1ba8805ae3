"""What compaction leaves of a log: batches in, batches out, and nothing else.

Rule: a reader of the cleaned log gets the latest committed value of every key, the same producers, the same
open transactions and the same log end as from the whole log, and no record that was not committed.
"""

# Theory of operation (Kafka: LogCleaner, Cleaner, CleanedTransactionMetadata, MemoryRecords.filterTo)
#
#     log start             first dirty offset          end                      last stable offset
#     | clean: one record   | dirty: written since      | not yet: the active    |
#     | per key             |                           | segment, newer ones    |
#     +---------------------+---------------------------+------------------------+---------------
#
# Two passes over [log start, end):
#
#     survey   the latest offset of each key in the dirty part, aborted records left out; where each producer
#              last wrote; which transactions have their marker only after the end
#     clean    each batch: kept, thinned, emptied or removed
#
# What stays, and why:
#
#     the latest record of a key    it is the key's value. Aborted records do not count
#     a tombstone                   until its delete horizon: a reader that has read the older value, and is
#                                   slower than the compaction, must still learn that the key is gone. The
#                                   first cleaning sets the horizon, now + delete.retention.ms (KIP-534)
#     a marker                      while a batch of its transaction remains, or a snapshot in which the
#                                   transaction is open, because a start may begin at that snapshot. Then
#                                   until its own horizon, which the cleaning that removes the last of these
#                                   sets. Kafka sets it one cleaning later, so there a log of short
#                                   transactions takes longer to shrink
#     a producer's last batch       without its records: it holds the last sequence, by which duplicates and
#                                   gaps are recognised
#     a producer's last marker      it holds the newest epoch, which fences older ones. Kafka reads that from
#                                   a snapshot; here some logs are always read from their start
#     the first batch of a          without its records: the marker follows after the end, and the index of
#     transaction without marker    aborted transactions says that its transaction begins here
#
# The end is never beyond the last stable offset, so every transaction that begins before it is decided.
#
# Removed batches leave one empty batch, which covers their offsets (`covering_batch`). So a cleaned log has
# no gaps, and recovery and every read can take a gap for damage. Kafka leaves gaps.
#
# A batch whose records cannot be read stays as it is: compaction removes nothing that it does not understand.
# So does one with more records than a cleaning has room for.
#
# Short keys are kept in memory as they are, long ones as digests. So a limit on the number of keys also
# limits the bytes.

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final

from fencepost.journal.indexes import AbortedRange, AbortedRanges
from fencepost.journal.open_transactions import OpenTransaction, OpenTransactions
from fencepost.protocol.batches import BatchHeader, Buffer, covering_batch, marker_of, read_header
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import INT32_MAX, INT64_MAX
from fencepost.protocol.thinning import emptied, keyed_records, thinned

Batch = tuple[BatchHeader, Buffer]

KEYS_MAX: Final = 1_000_000  # of one cleaning, in memory
KEY_BYTES: Final = 160  # memory for one of them; all: log.cleaner.dedupe.buffer.size in Kafka
_DIGEST_SIZE: Final = 17
_SHORT_MAX: Final = _DIGEST_SIZE - 1  # bytes of a key; a longer one's digest is never equal to a short key


def _shortened(key: bytes) -> bytes:
    return key if len(key) <= _SHORT_MAX else blake2b(key, digest_size=_DIGEST_SIZE).digest()


class Survey:
    """The first pass. Show it the log in order, up to an end that is not beyond the last stable offset."""

    def __init__(
        self,
        *,
        first_dirty: int,
        end: int,
        aborted: Iterable[AbortedRange],
        producers: frozenset[int],
        keys_max: int = KEYS_MAX,
    ) -> None:
        """`producers` are the ids that the log's leader still knows."""
        self.end = end  # batches from here on stay as they are; less than planned when the memory is full
        # The offset of each key's last committed record in the dirty part, by what `_shortened` returns for
        # the key.
        self.latest: dict[bytes, int] = {}
        self.first_dirty = first_dirty
        self._unread: list[int] = []  # base offsets of dirty batches whose keys are not among them
        self._aborted = AbortedRanges(aborted)
        self._producers = producers
        self.keys_max = keys_max
        self._open = OpenTransactions()
        self._last_batches: dict[int, int] = {}  # base offsets by producer id
        self._last_markers: dict[int, int] = {}

    def update(self, batches: Iterable[Batch]) -> None:
        """Take the next piece of the log into account."""
        for header, batch in batches:
            if header.base_offset >= self.end:
                return
            fits = header.record_count <= self.keys_max
            if fits and len(self.latest) + header.record_count > self.keys_max:
                self.end = header.base_offset
                return
            self._open.update(header, batch)
            if header.producer_id in self._producers:
                last = self._last_markers if header.is_control else self._last_batches
                last[header.producer_id] = header.base_offset
            is_dirty = header.base_offset >= self.first_dirty and not header.is_control
            if is_dirty and fits and not _is_aborted(header, self._aborted):
                self._note_keys(header, batch)
            elif is_dirty:
                self._unread.append(header.base_offset)

    def _note_keys(self, header: BatchHeader, batch: Buffer) -> None:
        try:
            latest = {
                _shortened(record.key): record.offset
                for record in keyed_records(batch, header)
                if record.key is not None
            }
        except ProtocolViolation:
            self._unread.append(header.base_offset)
        else:
            self.latest |= latest

    def live_offsets(self) -> list[int]:
        """Offsets in the dirty part, ascending. A batch with none of them loses all its records."""
        return sorted([*self.latest.values(), *self._unread])

    def kept_batches(self) -> frozenset[int]:
        """Base offsets of batches that stay, perhaps without their records."""
        undecided = {transaction.first_offset for transaction in self._open}
        return frozenset(undecided.union(self._last_batches.values()))

    def kept_markers(self) -> frozenset[int]:
        """Offsets of markers that stay whole."""
        return frozenset(self._last_markers.values())


class Cleaner:
    """The second pass. `clean` takes the log in pieces, in order, and follows transactions across them."""

    def __init__(
        self, survey: Survey, *, aborted: Iterable[AbortedRange], now: int, delete_retention_ms: int
    ) -> None:
        """`now` (ms) passes delete horizons, and sets new ones."""
        self._end, self._latest, self._keys_max = survey.end, survey.latest, survey.keys_max
        self._first_dirty, self._live = survey.first_dirty, survey.live_offsets()
        self._kept_batches, self._kept_markers = survey.kept_batches(), survey.kept_markers()
        self._aborted = AbortedRanges(aborted)
        self._now = now
        self._horizon_ms = min(now + delete_retention_ms, INT64_MAX)
        self._with_batches: set[int] = set()  # producers with a batch left since their last marker

    def clean(self, batches: Iterable[Batch], *, opened: Iterable[OpenTransaction] = ()) -> Iterator[Batch]:
        """What is left of a piece of the log, without gaps. `opened` is what the snapshot at its start has
        open: the batches of these transactions may be gone, but the snapshot remembers them.
        """
        self._with_batches.update(transaction.producer_id for transaction in opened)
        start = 0
        gap: BatchHeader | None = None  # the last of the removed batches from offset `start` on
        for header, batch in batches:
            kept = self._kept(header, batch) if header.base_offset < self._end else batch
            is_full = gap is not None and header.last_offset - start > INT32_MAX
            if gap is not None and (kept is not None or is_full):
                yield _covering(start, gap)
                gap = None
            if kept is None:
                start, gap = header.base_offset if gap is None else start, header
            else:
                yield (header if kept is batch else read_header(kept)), kept
        if gap is not None:
            yield _covering(start, gap)

    def _kept(self, header: BatchHeader, batch: Buffer) -> Buffer | None:
        """What is left of a batch; None when nothing is."""
        if header.is_control:
            return self._kept_marker(header, batch)
        kept = None if _is_aborted(header, self._aborted) else self._kept_records(header, batch)
        if kept is None and header.base_offset in self._kept_batches:
            kept = emptied(header) if header.record_count else batch
        if kept is not None and header.is_transactional:
            self._with_batches.add(header.producer_id)
        return kept

    def _kept_marker(self, header: BatchHeader, batch: Buffer) -> Buffer | None:
        try:
            marker_of(batch, 0, header)
        except ProtocolViolation:
            return batch  # a control batch of another kind
        has_batches = header.producer_id in self._with_batches
        self._with_batches.discard(header.producer_id)
        if has_batches or header.base_offset in self._kept_markers:
            return batch
        horizon = header.delete_horizon_ms
        if horizon is None:
            return thinned(batch, header, (0,), delete_horizon_ms=self._horizon_ms)
        return batch if self._now < horizon else None

    def _is_replaced(self, header: BatchHeader) -> bool:
        """Whether the survey says that no record stays, so that none has to be decoded again."""
        if header.base_offset < self._first_dirty:
            return False
        at = bisect_left(self._live, header.base_offset)
        return at == len(self._live) or self._live[at] > header.last_offset

    def _kept_records(self, header: BatchHeader, batch: Buffer) -> Buffer | None:
        if self._is_replaced(header):
            return None
        if header.record_count > self._keys_max:
            return batch
        try:
            return self._thinned(header, batch)
        except ProtocolViolation:
            return batch

    def _thinned(self, header: BatchHeader, batch: Buffer) -> Buffer | None:
        horizon, latest = header.delete_horizon_ms, self._latest
        is_over = horizon is not None and horizon <= self._now
        kept: list[int] = []
        has_tombstone = False
        for at, (offset, key, is_tombstone) in enumerate(keyed_records(batch, header)):
            # A record without a key has no place in a compacted log; the leader refuses it.
            if key is None or (is_tombstone and is_over):
                continue
            if latest.get(_shortened(key), offset) <= offset:
                kept.append(at)
                has_tombstone = has_tombstone or is_tombstone
        if not kept:
            return None
        new_horizon = self._horizon_ms if has_tombstone and horizon is None else None
        if len(kept) == header.record_count and new_horizon is None:
            return batch
        return thinned(batch, header, kept, delete_horizon_ms=horizon if new_horizon is None else new_horizon)


def _is_aborted(header: BatchHeader, aborted: AbortedRanges) -> bool:
    return header.is_transactional and aborted.holds(header)


def _covering(start: int, last: BatchHeader) -> Batch:
    # Leader epochs never fall, and that of the last removed batch is between its neighbours'.
    batch = covering_batch(base_offset=start, next_offset=last.next_offset, leader_epoch=last.leader_epoch)
    return read_header(batch), batch
