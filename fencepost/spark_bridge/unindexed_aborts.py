"""Aborted transactions of Kafka's segments that have no transaction index, found in the log itself.

Kafka makes a transaction index with the first aborted transaction whose marker is in the segment, so a
missing file usually means that there is none. A file that was lost looks the same. Only the markers tell
which it is.
"""

from __future__ import annotations

from fencepost.journal.indexes import AbortedRange
from fencepost.journal.open_transactions import OpenTransactions
from fencepost.journal.segments import walk_headers
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import INT64_MAX
from fencepost.spark_bridge.partition_files import PartitionFiles, SegmentFile, opened


def walk_unindexed(log: PartitionFiles, start: int, *, upper: int) -> list[AbortedRange]:
    """Returns the aborted transactions with records in [start, upper) whose marker is in a segment without a
    transaction index. Of each, the first offset is that of its first batch in the range.

    It reads headers and markers from `start` until every transaction with records in the range has ended.
    """
    segments = log.segments[log.segment_index(start) :]
    if log.unindexed.isdisjoint(segment.base_offset for segment in segments):
        return []
    walk = _MarkerWalk(log, start, upper)
    for segment in segments:
        if walk.is_done or (segment.base_offset >= upper and walk.transactions.first_offset is None):
            break
        walk.see(segment)
    return walk.found


class _MarkerWalk:
    """One pass over the headers that a range needs."""

    def __init__(self, log: PartitionFiles, start: int, upper: int) -> None:
        self.log = log
        self.start = start
        self.upper = upper
        self.ceiling = INT64_MAX if log.high_watermark is None else log.high_watermark
        self.transactions = OpenTransactions(is_sparse=log.layout.is_sparse)
        self.found: list[AbortedRange] = []
        self.is_done = False

    def see(self, segment: SegmentFile) -> None:
        """Shows the batches of a segment to `transactions`, up to damage or a torn end: what follows it
        is reported by the scan that reads the batches.
        """
        log = self.log
        with opened(log.storage, log.path(segment)) as file:
            position = log.position_before(segment, self.start)
            try:
                for at, header in walk_headers(file, position, segment.size):
                    if header.next_offset > self.ceiling or (
                        header.base_offset >= self.upper and self.transactions.first_offset is None
                    ):
                        self.is_done = True
                        return
                    is_wanted = header.next_offset > self.start and header.base_offset < self.upper
                    if not (header.is_control or is_wanted):
                        continue
                    batch = file.read(at, header.size) if header.is_control else b""
                    ended = self.transactions.see(header, batch)
                    if ended is not None and segment.base_offset in log.unindexed:
                        self.found.append(ended)
            except ProtocolViolation:
                return
