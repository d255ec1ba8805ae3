"""How far a partition can be read: the manifest's last stable offset, carried on by walking the batches
behind it.

Rule: the manifest is a lower bound. At its last stable offset no older transaction is open, so a walk that
begins there, or anywhere before, meets every transaction that matters.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Final

import attrs

from fencepost.journal.indexes import AbortedRange
from fencepost.journal.open_transactions import OpenTransaction, OpenTransactions
from fencepost.journal.segments import walk_batches, walk_headers
from fencepost.journal.storage import StorageFile
from fencepost.protocol.batches import CONTROL_BATCH_SIZE, BatchHeader, Buffer
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import NO_LEADER_EPOCH, IsolationLevel
from fencepost.spark_bridge.partition_log import PartitionLog, SegmentFile, opened
from fencepost.spark_bridge.problems import DataLoss

_RECOVER: Final = (
    "start the broker on this directory once to recover it, or set failOnDataLoss=false to read what is there"
)


@attrs.frozen(kw_only=True)
class Bounds:
    """The readable offsets of a partition.

    `aborted` are transactions whose marker the walk met, indexed already or not.
    """

    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    open_transactions: tuple[OpenTransaction, ...] = ()
    aborted: tuple[AbortedRange, ...] = ()

    def end(self, isolation_level: IsolationLevel) -> int:
        """One past the last offset that a reader of this isolation level may see."""
        committed = isolation_level is IsolationLevel.READ_COMMITTED
        return self.last_stable_offset if committed else self.log_end_offset


def find_bounds(log: PartitionLog, *, fail_on_data_loss: bool = True) -> Bounds:
    """The bounds of the log as its files are now; a torn tail is not there.

    DataLoss when it ends before its manifest says.
    """
    manifest = log.manifest
    start = max(log.log_start_offset, manifest.last_stable_offset if manifest else 0)
    # Without a manifest the full segments are taken to be whole; only the last one was being written.
    promised = manifest.high_watermark if manifest else log.segments[-1].base_offset if log.segments else 0
    walk = _Walk(log, start, promised)
    if walk.end < promised:
        told = f"{walk.where} breaks off at offset {walk.end}, but offsets up to {promised} were written"
        if fail_on_data_loss:
            raise DataLoss(f"{told}: {_RECOVER}")
        warnings.warn(f"{told}: reading what is there", stacklevel=2)
        walk = _Walk(log, log.log_start_offset, 0)
    oldest = walk.transactions.first_offset
    return Bounds(
        log_start_offset=log.log_start_offset,
        last_stable_offset=walk.end if oldest is None else oldest,
        log_end_offset=walk.end,
        open_transactions=tuple(walk.transactions),
        aborted=tuple(walk.aborted),
    )


class _Walk:
    """One pass over the batches from offset `start` on.

    Below `promised` headers will do; behind it every checksum is looked at.
    """

    def __init__(self, log: PartitionLog, start: int, promised: int) -> None:
        self.log = log
        self.start = start
        self.promised = promised
        self.end = log.log_start_offset  # one past the last batch that was seen
        self.leader_epoch = NO_LEADER_EPOCH
        self.transactions = OpenTransactions()
        self.aborted: list[AbortedRange] = []
        self.where = f"{log.storage.location}/{log.partition}"
        self._run()

    def _run(self) -> None:
        """Goes on to the next segment only from a segment that is whole."""
        log = self.log
        for number, segment in enumerate(log.segments[log.segment_index(self.start) :]):
            self.where = log.location(segment)
            position = log.position_before(segment, self.start)
            if number == 0:
                first = log.header_at(segment, position)
                self.end = first.base_offset if first else segment.base_offset
            try:
                with opened(log.storage, log.path(segment)) as file:
                    for header, batch in self._batches(segment, file, position):
                        self._see(header, batch)
            except ProtocolViolation:
                return

    def _batches(
        self, segment: SegmentFile, file: StorageFile, position: int
    ) -> Iterator[tuple[BatchHeader, Buffer]]:
        """The batches of one segment with as many of their bytes as a marker needs.

        ProtocolViolation where they break off.
        """
        if segment.base_offset < self.promised:
            for at, header in walk_headers(file, position, segment.size):
                if header.base_offset >= self.promised:
                    break
                if at + header.size > segment.size:
                    raise ProtocolViolation("the last batch is cut off")
                yield header, file.read(at, CONTROL_BATCH_SIZE) if header.is_control else b""
                position = at + header.size
        for _, header, batch in walk_batches(file, position, segment.size):
            yield header, batch

    def _see(self, header: BatchHeader, batch: Buffer) -> None:
        """Takes a batch as the next of the log, by the rules of recovery."""
        # Below the promise compaction may have left holes; the tail was never compacted.
        follows = header.base_offset == self.end or self.end < header.base_offset <= self.promised
        if not follows or header.leader_epoch < self.leader_epoch:
            raise ProtocolViolation(f"offset {header.base_offset} after {self.end}")
        self.leader_epoch = header.leader_epoch
        self.end = header.next_offset
        ended = self.transactions.see(header, batch)
        if ended is not None:
            self.aborted.append(ended)
