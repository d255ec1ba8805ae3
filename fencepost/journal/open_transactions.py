"""Which transactions a log leaves open, followed batch by batch: what rebuilds a transaction index and bounds
a reader.

Rule: a transaction of a producer begins with its first transactional batch after its last marker; a marker
without one leaves no trace.
"""

# The key is the producer id alone. A marker may carry another epoch than the data: the next one since KIP-890
# part 2, or that of an administrator's abort (KIP-664). It ends the transaction all the same.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fencepost.journal.indexes import AbortedRange, aborted_by
from fencepost.protocol.batches import BatchHeader, Buffer, marker_of
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import TransactionResult


class OpenTransaction(NamedTuple):
    """A transaction without a marker yet."""

    first_offset: int  # first, so that transactions sort by age
    producer_id: int
    producer_epoch: int


class OpenTransactions:
    """The open transactions at one point of a log; start from a snapshot or a manifest and show it every
    batch that follows.

    `is_sparse`: Apache Kafka may have compacted the log (LogLayout). It may remove a marker and keep the
    emptied header of the transaction's last batch, so such a batch opens nothing.
    """

    __slots__ = ("_is_sparse", "_open")

    def __init__(self, transactions: Iterable[OpenTransaction] = (), *, is_sparse: bool = False) -> None:
        self._open = {transaction.producer_id: transaction for transaction in transactions}
        self._is_sparse = is_sparse

    def __iter__(self) -> Iterator[OpenTransaction]:
        return iter(sorted(self._open.values()))

    @property
    def first_offset(self) -> int | None:
        """Where the oldest open transaction begins, None when none is open."""
        return min((transaction.first_offset for transaction in self._open.values()), default=None)

    def update(self, header: BatchHeader, batch: Buffer) -> AbortedRange | None:
        """Take the next batch of the log into account. Returns the transaction that it aborts, or None."""
        if not header.has_transaction:
            return None
        if not header.is_control:
            opens = header.record_count or not self._is_sparse
            if opens and header.producer_id not in self._open:
                self._open[header.producer_id] = OpenTransaction(
                    header.base_offset, header.producer_id, header.producer_epoch
                )
            return None
        return self._end(header, batch)

    def _end(self, header: BatchHeader, batch: Buffer) -> AbortedRange | None:
        try:
            result = marker_of(batch, 0, header).result
        except ProtocolViolation:
            # A control batch that compaction emptied, or one of another kind, ends nothing.
            return None
        ended = self._open.pop(header.producer_id, None)
        if ended is None or result is TransactionResult.COMMIT:
            return None
        return aborted_by(header, ended.first_offset, oldest_open=self.first_offset)
