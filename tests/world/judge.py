"""What a log says to a reader of committed records, found by reading all of it: nothing here is shared with
the broker.

Rule: a transactional batch counts when its producer's next marker behind it is a COMMIT.
"""

from __future__ import annotations

from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.memory import MemoryStorage
from fencepost.protocol.batches import BatchHeader, read_marker
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import TopicPartition, TransactionResult


def read_log(storage: MemoryStorage, partition: TopicPartition) -> list[tuple[BatchHeader, bytes]]:
    """Every batch of a partition."""
    directory = DataDirectory.open(storage)
    try:
        if partition not in directory.partitions():
            return []
        return [(header, bytes(batch)) for header, batch in directory.journal(partition).batches(0)]
    finally:
        directory.abandon()


def committed(batches: list[tuple[BatchHeader, bytes]]) -> list[bytes | None]:
    """The values of committed and plain records, in offset order."""
    values: list[bytes | None] = []
    for at, (header, batch) in enumerate(batches):
        if not header.is_control and (
            not header.is_transactional or _is_committed(batches[at + 1 :], header)
        ):
            values += read_columns(batch, header).values
    return values


def undecided(batches: list[tuple[BatchHeader, bytes]]) -> list[BatchHeader]:
    """Transactional batches that no marker follows."""
    return [
        header
        for at, (header, _) in enumerate(batches)
        if header.is_transactional and not header.is_control and _marker(batches[at + 1 :], header) is None
    ]


def _is_committed(after: list[tuple[BatchHeader, bytes]], header: BatchHeader) -> bool:
    return _marker(after, header) is TransactionResult.COMMIT


def _marker(after: list[tuple[BatchHeader, bytes]], header: BatchHeader) -> TransactionResult | None:
    for later, batch in after:
        if later.is_control and later.producer_id == header.producer_id:
            return read_marker(batch).result
    return None
