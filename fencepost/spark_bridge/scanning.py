"""The visible batches of one task: in its range, with a valid checksum, without markers and aborted records.

Rule: a batch belongs to one producer and at most one transaction, so visibility is decided per batch, from
its header.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from fencepost.journal.indexes import AbortedRange
from fencepost.journal.segments import walk_batches
from fencepost.journal.storage import StorageFile, StorageReader
from fencepost.protocol.batches import HEADER_SIZE, BatchHeader, read_header, read_marker
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import IsolationLevel, TransactionResult
from fencepost.spark_bridge.partition_files import CorruptLog, opened
from fencepost.spark_bridge.planning import Piece, ReadTask

CHUNK_BYTES: Final = 8 << 20

VisibleBatch = tuple[BatchHeader, memoryview]


class AbortedRanges:
    """Looks up whether a batch belongs to an aborted transaction."""

    def __init__(self, ranges: Sequence[AbortedRange]) -> None:
        self._by_producer: dict[int, tuple[list[int], list[int]]] = {}
        for aborted in sorted(ranges):
            firsts, lasts = self._by_producer.setdefault(aborted.producer_id, ([], []))
            firsts.append(aborted.first_offset)
            lasts.append(aborted.last_offset)

    def holds(self, header: BatchHeader) -> bool:
        """Whether the transactional batch belongs to an aborted transaction.

        The transactions of one producer never overlap, so one bisection finds the only candidate.
        """
        found = self._by_producer.get(header.producer_id)
        if found is None:
            return False
        at = bisect_right(found[0], header.base_offset) - 1
        return at >= 0 and header.base_offset <= found[1][at]


class TaskScan:
    """Reads the pieces of a task; iteration yields the visible batches in offset order."""

    def __init__(
        self,
        storage: StorageReader,
        task: ReadTask,
        *,
        isolation_level: IsolationLevel,
        fail_on_data_loss: bool,
    ) -> None:
        self._storage = storage
        self._task = task
        self._committed = isolation_level is IsolationLevel.READ_COMMITTED
        self._fail_on_data_loss = fail_on_data_loss
        self._aborted = AbortedRanges(task.aborted)
        self._shown: set[int] = (
            set()
        )  # producers whose transaction has batches that were yielded and no marker yet
        self._next_offset = 0

    def __iter__(self) -> Iterator[VisibleBatch]:
        for piece in self._task.pieces:
            for header, batch in self._batches(piece):
                if header.base_offset >= self._task.end:
                    return
                if header.next_offset > self._task.start and self._is_visible(header, batch):
                    yield header, batch
                if header.next_offset >= self._task.end:
                    return

    def _is_visible(self, header: BatchHeader, batch: memoryview) -> bool:
        if header.is_control:
            self._check_marker(header, batch)
            return False
        if not self._committed or not header.is_transactional:
            return True
        if self._aborted.holds(header):
            return False
        self._shown.add(header.producer_id)
        return True

    def _check_marker(self, header: BatchHeader, batch: memoryview) -> None:
        """Raises CorruptLog for an abort marker of a transaction that the index did not list as aborted.

        Without this check, an incomplete index would show aborted records as committed.
        """
        if header.producer_id not in self._shown:
            return
        self._shown.discard(header.producer_id)
        if header.record_count and read_marker(batch).result is TransactionResult.ABORT:
            raise CorruptLog(
                f"producer {header.producer_id} aborted a transaction at offset {header.base_offset} of "
                f"{self._storage.location}/{self._task.partition}, but no transaction index lists it: "
                "start the broker on this directory once; it rebuilds the index"
            )

    def _batches(self, piece: Piece) -> Iterator[VisibleBatch]:
        """Yields the batches of one file; damage raises CorruptLog, or is skipped if data loss is allowed."""
        with opened(self._storage, piece.path) as file:
            position = piece.position
            while position < piece.stop:
                try:
                    for at, header, batch in walk_batches(
                        file, position, piece.stop, chunk_bytes=CHUNK_BYTES
                    ):
                        self._check_order(header)
                        yield header, batch
                        position = at + header.size
                except ProtocolViolation as problem:
                    position = self._step_over(file, piece, position, problem)

    def _check_order(self, header: BatchHeader) -> None:
        if header.base_offset < self._next_offset:
            raise ProtocolViolation(f"offset {header.base_offset} comes after offset {self._next_offset - 1}")
        self._next_offset = header.next_offset

    def _step_over(self, file: StorageFile, piece: Piece, position: int, problem: ProtocolViolation) -> int:
        """Returns the position at which to continue after damage at `position`."""
        told = (
            f"{self._storage.location}/{piece.path} is damaged at byte {position}, "
            f"at or after offset {max(self._task.start, self._next_offset)}: {problem}"
        )
        if self._fail_on_data_loss:
            raise CorruptLog(
                f"{told}. `fencepost repair {self._storage.location}` lists what can be saved; "
                "failOnDataLoss=false reads around the damage"
            ) from problem
        follower = _follower(file, position, piece.stop, self._next_offset)
        missing = "the rest of this file is" if follower is None else "that batch is"
        warnings.warn(f"{told}; {missing} missing from the result", stacklevel=2)
        return piece.stop if follower is None else follower


def _follower(file: StorageFile, position: int, stop: int, next_offset: int) -> int | None:
    """Returns the position of the batch after a damaged one, or None if its length field is not plausible.

    The length is plausible if a batch with a later offset starts there.
    """
    try:
        after = position + read_header(file.read(position, HEADER_SIZE)).size
        if after < stop:
            following = read_header(file.read(after, HEADER_SIZE))
            return after if following.base_offset > next_offset else None
    except ProtocolViolation:
        return None
    return None
