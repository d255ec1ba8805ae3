"""The visible batches of one range: with a valid checksum, without markers and aborted records.

Rule: a batch belongs to one producer and at most one transaction, so visibility is decided per batch, from
its header.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple

from fencepost.journal.indexes import AbortedRange, AbortedRanges
from fencepost.journal.layouts import LogLayout
from fencepost.journal.segments import LOG, file_name, walk_batches
from fencepost.journal.storage import RELISTINGS, MissingFile, ReadableFile, directory_name
from fencepost.protocol.batches import HEADER_SIZE, BatchHeader, Buffer, read_header, read_marker
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import IsolationLevel, TransactionResult
from fencepost.spark_bridge.log_offsets import find_log_offsets
from fencepost.spark_bridge.losses import Loss, Report, once
from fencepost.spark_bridge.markers import first_markers, walk_unindexed
from fencepost.spark_bridge.partition_files import (
    CorruptLog,
    DataLoss,
    PartitionFiles,
    Piece,
    index_advice,
    topic_id_of,
    with_listing,
)
from fencepost.spark_bridge.planning import PlannedRange, merge_aborted

CHUNK_BYTES: Final = 8 << 20

VisibleBatch = tuple[BatchHeader, memoryview]


class LocatedBatch(NamedTuple):
    """A batch where it lies: base offset of the segment, byte at which it begins, and what was read of it."""

    base_offset: int
    position: int
    header: BatchHeader
    data: memoryview


class RangeScan:
    """Reads a range of a partition, once: iteration yields the visible batches in offset order, `stored` all.

    Raises CorruptLog for damage and DataLoss for records that are gone; with `report`, it reports these
    losses instead and continues.
    """

    def __init__(
        self,
        layout: LogLayout,
        range_: PlannedRange,
        *,
        isolation_level: IsolationLevel,
        report: Report | None = None,
    ) -> None:
        self.range = range_
        self._layout = layout
        self._storage = layout.storages[range_.home]
        self._committed = isolation_level is IsolationLevel.READ_COMMITTED
        self._report = once(report)
        self._indexed = AbortedRanges(self._aborted_ranges())
        self._opened = {each.producer_id: each.first_offset for each in range_.opened}
        self._unindexed: AbortedRanges | None = None  # found at the first transactional batch
        # By producer, until the marker of its transaction is read: whether the batches so far are aborted.
        self._unended: dict[int, set[bool]] = {}
        self._next_offset = 0
        self._resumed_at = 0  # batches that end here or before were read before the files were listed again
        self._relistings = 0
        self._failure: tuple[int, int] | None = None

    def _aborted_ranges(self) -> Sequence[AbortedRange]:
        if not self.range.is_indexed:
            return self.range.aborted
        start, end = self.range.start, self.range.end
        indexed = with_listing(
            self._layout, self.range.partition, lambda log: log.collect_aborted(start, upper=end)
        )
        return merge_aborted(indexed, self.range.aborted, self.range)[0]

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the transactional batch belongs to an aborted transaction, by the transaction indexes and,
        in segments that may lack theirs, by the markers. The marker that ends it must agree.
        """
        is_aborted = self._indexed.holds(header) or (self._layout.is_sparse and self._is_unindexed(header))
        if header.record_count:  # compaction keeps empty batches of transactions whose marker it removed
            self._unended.setdefault(header.producer_id, set()).add(is_aborted)
        return is_aborted

    def _is_unindexed(self, header: BatchHeader) -> bool:
        if self._unindexed is None:
            start, end = self.range.start, self.range.end
            walked = with_listing(
                self._layout, self.range.partition, lambda log: walk_unindexed(log, start, upper=end)
            )
            self._unindexed = AbortedRanges(walked)
        return self._unindexed.holds(header)

    def transaction_state(self, header: BatchHeader) -> str:
        """How the transaction of a data batch ended: committed, aborted or open; none outside transactions.

        Only for a range whose plan follows transactions.
        """
        if header.is_control or not header.has_transaction or not header.record_count:
            return "none"
        if self.is_aborted(header):
            return "aborted"
        since = self._opened.get(header.producer_id)
        return "open" if since is not None and since <= header.base_offset else "committed"

    def __iter__(self) -> Iterator[VisibleBatch]:
        for _, _, header, batch in self._batches():
            if header.base_offset >= self.range.end:
                break
            if header.next_offset > self.range.start and self._is_visible(header, batch):
                yield header, batch
            if header.next_offset >= self.range.end:
                break
        self._check_later_markers()

    def stored(self) -> Iterator[LocatedBatch]:
        """Yields every batch that ends in the range, visible or not."""
        for batch in self._batches():
            if batch.header.last_offset >= self.range.end:
                return
            if batch.header.last_offset >= self.range.start:
                yield batch
            if batch.header.next_offset >= self.range.end:
                return

    def _is_visible(self, header: BatchHeader, batch: memoryview) -> bool:
        if header.is_control:
            self._check_marker(header, batch)
            return False
        return not self._committed or not header.has_transaction or not self.is_aborted(header)

    def _check_later_markers(self) -> None:
        """Checks the markers after the range that end transactions in it; CorruptLog as below."""
        producers = self._unended.keys() - self._opened.keys()
        start = self.range.end

        def find(log: PartitionFiles) -> list[tuple[BatchHeader, bytes]]:
            return [] if self._is_other_topic(log.topic_id) else first_markers(log, start, producers)

        if producers:
            for header, batch in with_listing(self._layout, self.range.partition, find):
                self._check_marker(header, batch)

    def _check_marker(self, header: BatchHeader, batch: Buffer) -> None:
        """Raises CorruptLog for a marker that contradicts the transaction indexes.

        Without this check, an incomplete index would show aborted records as committed, and that of another
        partition would hide committed records.
        """
        seen = self._unended.pop(header.producer_id, set[bool]())
        # Another task may have read the batches; a commit inside a listed abort contradicts the index, too.
        is_inside = self._indexed.holds(header)
        if not header.record_count or not (seen or is_inside):
            return
        result = read_marker(batch).result
        if result is TransactionResult.ABORT and False in seen:
            did, but = "aborted a transaction", "no transaction index lists all of it"
        elif result is TransactionResult.COMMIT and (True in seen or is_inside):
            did, but = "committed a transaction", "a transaction index lists it as aborted"
        else:
            return
        raise CorruptLog(
            f"producer {header.producer_id} {did} at offset {header.base_offset} of "
            f"{self._storage.location}/{self.range.partition}, but {but}: {index_advice(self._layout)}"
        )

    def _batches(self) -> Iterator[LocatedBatch]:
        """Yields the batches of the pieces."""
        pieces = list(self.range.pieces)
        while pieces:
            piece = pieces.pop(0)
            position = piece.position
            try:
                with closing(self._storage.open(self._path(piece))) as file:
                    # Not before: the id must be that of the directory in which the file was opened.
                    if self._is_other_topic(topic_id_of(self._layout, self.range.partition)):
                        self._report_other_topic()
                        return
                    for at, header, batch in self._walk(file, position, piece.stop):
                        if header.next_offset > self._resumed_at:
                            self._check_order(header)
                            yield LocatedBatch(piece.base_offset, at, header, batch)
                        position = at + header.size
            except (MissingFile, ProtocolViolation) as problem:
                pieces = self._pieces_after(problem, piece, position, pieces)

    def _is_other_topic(self, topic_id: str) -> bool:
        """Whether the topic was created again since the range was planned."""
        return "" not in (topic_id, self.range.topic_id) and topic_id != self.range.topic_id

    def _report_other_topic(self) -> None:
        what = "was deleted since the read began, and another topic has its name now"
        self._report_loss(self.range.end, None, 0, what)

    def _walk(
        self, file: ReadableFile, position: int, stop: int
    ) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Yields position, header and bytes of each batch; ProtocolViolation at the first damaged one."""
        return walk_batches(file, position, stop, chunk_bytes=CHUNK_BYTES)

    def _path(self, piece: Piece) -> str:
        return f"{directory_name(self.range.partition)}/{file_name(piece.base_offset, LOG)}"

    def _check_order(self, header: BatchHeader) -> None:
        if header.base_offset < self._next_offset:
            raise ProtocolViolation(f"offset {header.base_offset} comes after offset {self._next_offset - 1}")
        if header.base_offset > self._next_offset and not self._layout.is_sparse:
            self._unended.clear()  # the markers may be among the batches that are lost
        self._next_offset = header.next_offset

    @property
    def _reached(self) -> int:
        """Everything before this offset was read."""
        return max(self.range.start, self._next_offset)

    def _pieces_after(
        self, problem: MissingFile | ProtocolViolation, piece: Piece, position: int, following: list[Piece]
    ) -> list[Piece]:
        """Returns the pieces to read after a problem at `position` of a piece."""
        failure = piece.base_offset, position
        # A file that is not as planned may have been cleaned or deleted since: then others are in its place.
        # If the same problem is at the same place after a new listing, it is permanent.
        if failure != self._failure and self._relistings < RELISTINGS:
            self._failure = failure
            self._relistings += 1
            self._resumed_at = self._next_offset
            remaining = partial(self._remaining, checks=isinstance(problem, MissingFile))
            return with_listing(self._layout, self.range.partition, remaining)
        if isinstance(problem, MissingFile):
            self._report_loss(
                self._end_of(following), piece, 0, f"keeps disappearing, at or after offset {self._reached}"
            )
            return following
        return self._skip_damage(problem, piece, position, following)

    def _remaining(self, log: PartitionFiles, *, checks: bool) -> list[Piece]:
        """Returns the pieces for the rest of the range in the files as they are now.

        With `checks`, records that are no longer in any file are a loss.
        """
        self._storage = log.storage
        if self._is_other_topic(log.topic_id):
            self._report_other_topic()
            return []
        start, end = self._reached, self.range.end
        if checks:
            offsets = find_log_offsets(log, report=self._report)
            first, last = max(start, offsets.log_start_offset), min(end, offsets.log_end_offset)
            for lost_from, lost_to in ((start, min(first, end)), (max(last, start), end)):
                if lost_from < lost_to:
                    self._report_loss(
                        lost_to,
                        None,
                        0,
                        f"has lost the offsets {lost_from} to {lost_to} since the read began",
                    )
            start, end = first, last
        return list(log.pieces(start, end))

    def _end_of(self, following: list[Piece]) -> int:
        return following[0].base_offset if following else self.range.end

    def _report_loss(
        self, end: int, piece: Piece | None, position: int, what: str, *, advice: str = ""
    ) -> None:
        """Reports offsets that were not reached and do not exist; raises if losses are not reported."""
        self._unended.clear()  # the markers of these transactions may be lost, too
        place = f"{self._storage.location}/{self.range.partition}" + (
            "" if piece is None else f"/{file_name(piece.base_offset, LOG)}"
        )
        if self._report is None:
            kind = DataLoss if piece is None else CorruptLog
            raise kind(f"{place} {what}. {advice}failOnDataLoss=false reads what exists")
        self._report(
            Loss(
                partition=self.range.partition,
                start=self._reached,
                end=end,
                file=place,
                position=position,
                reason=f"{place} {what}",
            )
        )

    def _skip_damage(
        self, problem: ProtocolViolation, piece: Piece, position: int, following: list[Piece]
    ) -> list[Piece]:
        """Returns the pieces to read after damage at `position`; CorruptLog if losses are not allowed."""
        with closing(self._storage.open(self._path(piece))) as file:
            after = _next_batch(file, position, piece.stop, self._next_offset)
        missing = "the rest of this file is" if after is None else "that batch is"
        what = f"is damaged at byte {position}, at or after offset {self._reached}: {problem}"
        if self._report is not None:
            what += f"; {missing} missing from the result"
        command = "check" if self._layout.is_sparse else "repair"
        found = "all that is damaged" if self._layout.is_sparse else "what can be saved"
        advice = f"`fencepost {command} {self._storage.location}` lists {found}; "
        end = self._end_of(following) if after is None else after.base_offset
        self._report_loss(end, piece, position, what, advice=advice)
        return following if after is None else [piece._replace(position=after.position), *following]


class _NextBatch(NamedTuple):
    position: int
    base_offset: int


def _next_batch(file: ReadableFile, position: int, stop: int, next_offset: int) -> _NextBatch | None:
    """Returns the batch after a damaged one, or None if the length field of that one is not plausible.

    The length is plausible if a batch with a later offset starts there.
    """
    try:
        after = position + read_header(file.read(position, HEADER_SIZE)).size
        if after < stop:
            base_offset = read_header(file.read(after, HEADER_SIZE)).base_offset
            return _NextBatch(after, base_offset) if base_offset > next_offset else None
    except ProtocolViolation:
        return None
    return None
