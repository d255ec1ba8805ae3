"""What it costs to open a batch, as a number of records: the work that a broker does between two turns.

Rule: code that opens batches of clients counts the work, even if it was in vain, and continues in the next
round when the work of this one is used up. A small batch may decompress to a large one.
"""

from __future__ import annotations

from typing import Final

# The times are for batches of ten records or more. Batches of one record take several times as long.
ROUND_WORK_MAX: Final = 1 << 16  # takes 0.1 to 0.4 s
REQUEST_WORK_MAX: Final = 1 << 19  # for what cannot be put off; takes 0.4 to 1.3 s
COMPRESSED_RECORDS_MAX: Final = 1 << 18  # of one batch; Kafka's clients pack a tenth of that into 1 MB
BYTES_PER_WORK: Final = 512  # bytes that take as long as a record
# The same for headers, and for a batch that is malformed: three bytes can be an object as costly as a record.
BYTES_PER_OBJECT: Final = 8


def work_of(record_count: int, size: int) -> int:
    """The work of looking at this many records that take `size` bytes when they are decompressed."""
    return record_count + size // BYTES_PER_WORK


def size_within(work: int, record_count: int) -> int:
    """How many bytes this many records may take if `work_of` is to stay within `work`; none fit if that is 0
    or less.
    """
    return (work - record_count) * BYTES_PER_WORK
