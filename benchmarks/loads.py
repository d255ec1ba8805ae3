"""The loads, their sizes, and the figures of a run.

Rule: both sides do the same work on the same bytes; everything before the first record is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from itertools import cycle, islice
from typing import Final

import attrs

Work = Callable[[], int | list[float]]
"""The timed part: does one load and returns the number of operations, or the seconds that each took."""

PARTITIONS: Final = 4  # of each topic; librdkafka's mock cluster creates topics with this many
# The mock cluster drops the oldest records of a partition beyond 5 MB, so fetches read many partitions.
BYTES_PER_PARTITION_MAX: Final = 4_000_000
RECORDS_PER_TRANSACTION: Final = 100
VALUE_SIZE: Final = 100
DISTINCT_RECORDS: Final = 1_000

KEYS: Final = [b"key-%04d" % number for number in range(DISTINCT_RECORDS)]
VALUES: Final = [(b"value-%04d-" % number).ljust(VALUE_SIZE, b"x") for number in range(DISTINCT_RECORDS)]


class Load(Enum):
    """A kind of work. The value is its name on the command line and in the table."""

    PRODUCE = "produce"
    SEND_MANY = "send_many"  # of Fencepost; the peer has no such call, and does the same as for produce
    FETCH = "fetch"
    FETCH_VALUES = "fetch values"
    COMMITS = "commits"
    COMMITS_OF_TEN = "commits of 10 producers"
    COMMITS_OF_TEN_SYNCED = "commits of 10 producers, synced"  # by our broker; the peer's has no disk
    LATENCY = "latency of one record"  # with linger 0, each acknowledged before the next is sent


COMMIT_LOADS: Final = {Load.COMMITS: 1, Load.COMMITS_OF_TEN: 10, Load.COMMITS_OF_TEN_SYNCED: 10}
"""The loads of transactions, and how many producers commit them."""


@attrs.frozen(kw_only=True)
class Scale:
    """The size of the loads."""

    records: int = 1_000_000
    transactions: int = 1_000

    def operations(self, load: Load) -> int:
        """The number of records or commits of a load."""
        return self.transactions if load in COMMIT_LOADS or load is Load.LATENCY else self.records

    def keyed_records(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields key and value of each record of a load."""
        return islice(zip(cycle(KEYS), cycle(VALUES), strict=True), self.records)

    @property
    def fetch_topics(self) -> list[str]:
        """The topics that hold the records to fetch, PARTITIONS partitions each."""
        partitions = self.records * (VALUE_SIZE + len(KEYS[0])) // BYTES_PER_PARTITION_MAX + 1
        return [f"fetch-{number}" for number in range(-(-partitions // PARTITIONS))]


@attrs.frozen(kw_only=True)
class Sample:
    """The figures of one run. CPU covers the timed part; memory is the peak of the client. `median_seconds`
    is that of one operation, where each was timed.
    """

    operations: int
    seconds: float
    client_cpu_seconds: float
    broker_cpu_seconds: float | None
    client_bytes: int | None
    median_seconds: float | None = None

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds


@attrs.frozen(kw_only=True)
class Standing:
    """The cost of a broker without load: seconds from spawn to its ready line and to its first response, and
    memory in bytes.
    """

    start_seconds: float
    idle_bytes: int | None
    peak_bytes: int | None
    ready_seconds: float | None = None
