"""What a log says to a reader of committed records, found by reading all of it: nothing here is shared with
the broker.

Rule: a transactional batch counts when its producer's next marker behind it is a COMMIT.
"""

from __future__ import annotations

from fencepost.protocol.batches import BatchHeader, read_marker
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import TopicPartition, TransactionResult
from fencepost.simulator.world.world import World

Batches = list[tuple[BatchHeader, bytes]]


def read_log(world: World, partition: TopicPartition) -> Batches:
    """Every batch of a partition, in order."""
    journal = world.journals.journal(partition)
    return [(header, bytes(batch)) for header, batch in journal.batches(0)]


def committed(batches: Batches) -> list[bytes | None]:
    """The values of committed and plain records, in offset order."""
    values: list[bytes | None] = []
    for at, (header, batch) in enumerate(batches):
        if not header.is_control and (
            not header.is_transactional or _marker(batches[at + 1 :], header) is TransactionResult.COMMIT
        ):
            values += read_columns(batch, header).values
    return values


def undecided(batches: Batches) -> list[BatchHeader]:
    """Transactional batches that no marker follows."""
    return [
        header
        for at, (header, _) in enumerate(batches)
        if header.is_transactional and not header.is_control and _marker(batches[at + 1 :], header) is None
    ]


def _marker(after: Batches, header: BatchHeader) -> TransactionResult | None:
    for later, batch in after:
        if later.is_control and later.producer_id == header.producer_id:
            return read_marker(batch).result
    return None
