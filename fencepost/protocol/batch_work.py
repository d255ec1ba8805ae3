"""What it costs to open a batch, as a number of records: the work that a broker does between two turns.

Rule: who opens the batches of clients counts the work, also in vain, and continues in the next round when
the work of a round is done. A small batch may decompress to a large one.
"""

from __future__ import annotations

from typing import Final

ROUND_WORK_MAX: Final = 1 << 16  # a tenth of a second, or two
REQUEST_WORK_MAX: Final = 1 << 19  # what cannot be put off: half a second
COMPRESSED_RECORDS_MAX: Final = 1 << 18  # of a batch; Kafka's clients pack a tenth of that into a megabyte
BYTES_PER_WORK: Final = 512  # bytes that take as long as a record
# The same for headers, and for a batch that is malformed: three bytes can be an object as costly as a record.
BYTES_PER_OBJECT: Final = 8


def work_of(record_count: int, size: int) -> int:
    """The work of looking at so many records that take `size` bytes when they are decompressed."""
    return record_count + size // BYTES_PER_WORK
