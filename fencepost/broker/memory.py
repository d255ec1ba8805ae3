"""The memory that all connections share: one pool of bytes for requests, another one for replies.

Rule: room is taken before bytes are read or built, and given back when they are gone. A connection needs no
room for its first few KiB, so small requests are served however full the pools are.
"""

# Theory of operation
#
# A connection holds memory in two ways. Its requests take room from the time when they arrive until they are
# answered; its replies take room until the peer has taken them.
#
#     requests   frame arrives ---> decided ---> answered          pool: queued.max.request.bytes
#     replies                    records are read ---> sent        pool: queued.max.response.bytes
#
# * A request of more than its connection's own bytes takes room for all of itself at once, as in Kafka
#   (MemoryPool.tryAllocate), but only after that many bytes have arrived: a length alone takes nothing.
#   Every request whose bytes are being read can therefore be read to its end; nothing can deadlock.
# * If there is no room, the connection is not read from, and waits. The smallest request goes first, since
#   it is the one for which others wait least.
# * A Fetch gets at most a quarter of the room that is free: one reader cannot take it all, and many readers
#   get less each, instead of having to wait. If the first batch is larger than what is free, the Fetch waits.
# * Stored records that Kafka's clients cannot read are encoded first, one batch after another
#   (kafka_bridge/records.py): only then do they take room, and until then they are the reply in progress.
# * Any other reply is sent without asking, because its request was already decided. If the replies are then
#   larger than their pool, the connection with the largest is closed (`ConnectionTable.shrink`).
# * While a request or a reply waits for room, a connection that holds some and makes no progress for a
#   second is closed (`ConnectionTable.relieve`): its client stops in the middle of a request, or takes no
#   replies.
#
# The sum of both pools, of what connections need without asking, of one request and one reply in progress,
# and of one compaction is the bound that `fencepost serve` prints (`MemoryBound`).

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import attrs

from fencepost.broker.settings import QUEUED_BYTES_MIN, ConnectionSettings
from fencepost.journal.compaction import KEY_BYTES, KEYS_MAX
from fencepost.protocol.compression import DECOMPRESSED_SIZE_MAX
from fencepost.protocol.frames import FRAME_SIZE_MAX, REQUEST_HEADER_MAX

KIBIBYTE: Final = 1024
MEBIBYTE: Final = 1024 * 1024

Granted = Callable[[], None]


class MemoryPool:
    """A number of bytes that all connections share (Kafka: MemoryPool)."""

    def __init__(self, limit: int, *, pressed: Granted) -> None:
        """`pressed` is called when a request or a reply must wait."""
        self.limit = limit
        self.taken = 0
        self._pressed = pressed
        self._asked = 0
        # (size, order of arrival, connection, what to call): the smallest first.
        self._waiting: list[tuple[int, int, int, Granted]] = []

    @property
    def free(self) -> int:
        """Bytes that may be taken; below zero after replies that did not ask."""
        return self.limit - self.taken

    @property
    def is_wanted(self) -> bool:
        """Whether a request or a reply waits for room."""
        return bool(self._waiting)

    def take(self, size: int) -> None:
        """Take bytes, whether or not they are free."""
        self.taken += size

    def give(self, size: int) -> None:
        """Give bytes back, and let those continue who now have enough."""
        self.taken -= size
        while self._waiting and self._waiting[0][0] <= self.free:
            heappop(self._waiting)[3]()

    def wait(self, size: int, connection: int, granted: Granted) -> None:
        """Call `granted` when this many bytes are free; `granted` takes them."""
        self._asked += 1
        heappush(self._waiting, (size, self._asked, connection, granted))
        self._pressed()

    def withdraw(self, connection: int) -> None:
        """The connection is closed and no longer waits."""
        if self._waiting:
            self._waiting = [waiting for waiting in self._waiting if waiting[2] != connection]
            heapify(self._waiting)


@attrs.define(eq=False)
class PoolShare:
    """The part of a pool that one connection holds. Only what exceeds its `own` bytes is the pool's."""

    pool: MemoryPool
    connection: int
    own: int
    held: int = 0
    asked: int = 0  # bytes that it waits for

    @property
    def is_from_pool(self) -> bool:
        """Whether it holds more than its own bytes."""
        return self.held > self.own

    def take(self, size: int) -> None:
        """Take bytes, whether or not the pool has them."""
        before = max(self.held, self.own)
        self.held += size
        if self.held > self.own:
            self.pool.take(self.held - before)

    def give(self, size: int) -> None:
        """Give bytes back."""
        before = self.held
        self.held = before - size
        if before > self.own:
            self.pool.give(before - max(self.held, self.own))

    def ask(self, size: int, granted: Granted) -> bool:
        """Take bytes if there is room; else they are taken when there is, before `granted` is called."""
        after = self.held + size
        if after <= self.own:  # nearly always
            self.held = after
            return True
        more = after - max(self.held, self.own)
        if more <= max(0, self.pool.free):
            self.take(size)
            return True

        def grant() -> None:
            self.asked = 0
            self.take(size)
            granted()

        self.asked = size
        self.pool.wait(more, self.connection, grant)
        return False

    def close(self) -> None:
        """Give everything back, and stop waiting."""
        self.asked = 0
        self.pool.withdraw(self.connection)
        self.give(self.held)


# --- the arithmetic -------------------------------------------------------------------------------------

CONNECTIONS_MAX: Final = 10_000  # unless max.connections says otherwise
FRAME_MS: Final = 30_000  # for a frame to arrive, and a second more for each 64 KiB that arrives
REQUEST_OWN_BYTES: Final = 16 * KIBIBYTE  # what a connection's requests may take without asking
READ_SIZE: Final = 16 * KIBIBYTE  # read at a time before a frame has taken room
FETCH_OWN_BYTES: Final = 4 * KIBIBYTE  # what a Fetch may be answered with without asking
FETCHES_MAX: Final = 8  # in progress per connection, more than our client has (client/consumer.py)
REQUEST_BYTES: Final = 1 * KIBIBYTE  # what a request costs besides its bytes, until it is answered
# Decoded, a header takes more memory than on the wire. The shortest entries, partitions of a Fetch, take 25
# bytes for each byte of the header while they wait for data. For an instant, empty arrays take 70.
HEADER_WEIGHT: Final = 25
HEADER_WEIGHT_MAX: Final = 70
CONNECTION_BYTES: Final = 12 * KIBIBYTE  # the task and the objects of a connection that is idle
# What TLS adds: 18 KiB were measured while it is idle; the rest is for records in both directions.
TLS_BYTES: Final = 64 * KIBIBYTE
# The interpreter, the modules, an empty cluster, fetch sessions, and batches that were encoded recently.
PROGRAM_BYTES: Final = 64 * MEBIBYTE
# The keys of one log, and a batch that decompresses to as much as is allowed, with what is left of it.
COMPACTION_BYTES: Final = KEYS_MAX * KEY_BYTES + 3 * DECOMPRESSED_SIZE_MAX
SESSION_PARTITIONS_MAX: Final = 50_000  # of the fetch sessions of all connections: 16 MiB


def request_bytes(size: int, header_size: int) -> int:
    """What a request takes until it is answered: it has `size` bytes, `header_size` of them in its header."""
    # A growing buffer allocates an eighth more than it contains.
    return REQUEST_BYTES + size + size // 8 + HEADER_WEIGHT * header_size


assert request_bytes(FRAME_SIZE_MAX, REQUEST_HEADER_MAX) <= QUEUED_BYTES_MIN


def fetch_share(pool: MemoryPool) -> int:
    """The most bytes of records for one Fetch."""
    return max(FETCH_OWN_BYTES, pool.free // 4)


class MemoryBound(NamedTuple):
    """The most memory that a broker takes for its clients, in bytes; what they have created comes on top."""

    connection_count: int
    program: int
    connections: int
    requests: int
    answers: int
    in_progress: int
    compaction: int
    feed: int = 0

    @property
    def total(self) -> int:
        return sum(size for _, size in self.shares())

    def shares(self) -> list[tuple[str, int]]:
        """What needs how many bytes."""
        shares = [
            ("the program", self.program),
            (f"{self.connection_count:,} connections", self.connections),
            ("requests", self.requests),
            ("replies", self.answers),
            ("the request and the reply in progress", self.in_progress),
            ("the compaction in progress", self.compaction),
        ]
        return [*shares, ("the steps for followers", self.feed)] if self.feed else shares

    @classmethod
    def of(cls, settings: ConnectionSettings, *, connections: int, has_tls: bool = False) -> MemoryBound:
        """The bound for this number of connections."""
        own = CONNECTION_BYTES + READ_SIZE + REQUEST_OWN_BYTES + FETCHES_MAX * FETCH_OWN_BYTES
        if has_tls:
            own += TLS_BYTES
        return cls(
            connection_count=connections,
            program=PROGRAM_BYTES,
            connections=connections * own,
            requests=settings.queued_max_request_bytes,
            answers=settings.queued_max_response_bytes,
            # One header is decoded and one reply is built at a time; with TLS, the reply exists twice.
            in_progress=HEADER_WEIGHT_MAX * REQUEST_HEADER_MAX + (1 + has_tls) * FRAME_SIZE_MAX,
            compaction=COMPACTION_BYTES,
        )
