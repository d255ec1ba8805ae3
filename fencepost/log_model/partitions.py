"""The batches of one partition as a fold: its producers, its markers, its open and aborted transactions.

Rule: feed it every batch from the start of the log, in order.
"""

# Theory of operation
#
# A producer id owns at most one open transaction per partition. The transaction begins with the first
# transactional batch after the producer's last marker and ends with its next marker, whatever epoch the
# marker carries (KIP-890 gives it the next one):
#
#     offset   0       1       2       3        4       5
#              a       x       b       COMMIT   y       ABORT
#     producer 7       8       7       7        8       8
#              └── open ───────────────┘                      committed: a b
#                      └── open ────────────────────────┘     aborted: x y
#     LSO after each   0       0       0        1       1       6
#
# The last stable offset is the first offset of the oldest open transaction, or the end of the log. It cannot
# pass an open transaction, because a reader of committed records must not see a record before it is decided,
# and must not see later ones first. At offset 3 the commit of 7 moves it only to 1, where the transaction of
# 8 begins.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fencepost.protocol.batches import BatchHeader, Marker
from fencepost.protocol.terms import (
    NO_COORDINATOR_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TransactionResult,
    sequence_after,
)

_ABORT = TransactionResult.ABORT


class ModelProducer(NamedTuple):
    """A producer as the log describes it up to some offset: the fields of a producer snapshot."""

    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    first_offset: int
    """Where its open transaction begins, NO_OFFSET when none is open."""


class LoggedMarker(NamedTuple):
    """A marker where it stands."""

    producer_id: int
    producer_epoch: int
    result: TransactionResult
    coordinator_epoch: int
    offset: int
    first_offset: int
    """Where the transaction that it ended begins; NO_OFFSET when it ended none, as a repeated marker."""


class LoggedAbort(NamedTuple):
    """An aborted transaction with the fields of its entry in a transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class PartitionModel:
    """What the batches up to `end_offset` say. Feed every batch of the log to `apply`, in order.

    `is_sparse`: Apache Kafka may have compacted the log. Its LogCleaner may remove a marker and keep the
    emptied header of the transaction's last batch, so such a batch opens nothing.
    """

    __slots__ = (
        "aborted", "end_offset", "first_markers", "is_sparse", "markers", "newest_timestamp", "open",
        "producers",
    )  # fmt: skip

    def __init__(self, *, is_sparse: bool = False) -> None:
        self.is_sparse = is_sparse
        self.end_offset = 0
        self.newest_timestamp = -1
        self.producers: dict[int, ModelProducer] = {}
        self.open: dict[int, int] = {}
        """First offsets by producer id, oldest first: batches come in the order of their offsets."""
        self.markers: dict[int, list[LoggedMarker]] = {}
        """By producer id, in the order of the log."""
        self.first_markers: dict[tuple[int, int], LoggedMarker] = {}
        """By producer id and epoch. Epochs become many with KIP-890, so they are not searched."""
        self.aborted: list[LoggedAbort] = []

    @property
    def last_stable_offset(self) -> int:
        """Where readers of committed records stop while the whole log is replicated."""
        return next(iter(self.open.values()), self.end_offset)

    def begin_with(self, producers: Mapping[int, ModelProducer]) -> None:
        """Begin where older segments were deleted, with the producers in the snapshot there."""
        self.producers.update(producers)
        opened = [(found.first_offset, number) for number, found in producers.items()]
        self.open.update(
            (number, first_offset) for first_offset, number in sorted(opened) if first_offset != NO_OFFSET
        )

    def apply(self, header: BatchHeader, marker: Marker | LoggedMarker | None) -> LoggedMarker | None:
        """Take the next batch; `marker` is what it says if it is a control batch. Returns a marker with its
        place.
        """
        self.end_offset = header.next_offset
        if header.max_timestamp > self.newest_timestamp:
            self.newest_timestamp = header.max_timestamp
        if marker is not None:
            return self._apply_marker(header, marker)
        # A control batch of another kind than a transaction's marker changes nothing.
        if header.producer_id != NO_PRODUCER_ID and not header.is_control:
            self._apply_data(header)
        return None

    def _apply_data(self, header: BatchHeader) -> None:
        producer_id, base_offset = header.producer_id, header.base_offset
        # A batch outside a transaction leaves the open one as it is. No broker should have written it.
        known = self.producers.get(producer_id)
        first_offset = NO_OFFSET
        if header.is_transactional and (header.record_count or not self.is_sparse):
            first_offset = self.open.setdefault(producer_id, base_offset)
        elif known is not None:
            first_offset = known.first_offset
        # Nothing of the batch is compared with what is known: an older epoch or a gap is for the checkers to
        # find.
        self.producers[producer_id] = ModelProducer(
            header.producer_epoch,
            header.last_sequence,
            header.last_offset,
            header.last_offset_delta,
            header.max_timestamp,
            NO_COORDINATOR_EPOCH if known is None else known.coordinator_epoch,
            first_offset,
        )

    def _apply_marker(self, header: BatchHeader, marker: Marker | LoggedMarker) -> LoggedMarker:
        producer_id, epoch, offset = header.producer_id, header.producer_epoch, header.base_offset
        known = self.producers.get(producer_id)
        # The sequences of an epoch end with it: the first batch of the next epoch has sequence 0.
        kept = known if known is not None and known.producer_epoch == epoch else None
        self.producers[producer_id] = ModelProducer(
            epoch,
            NO_SEQUENCE if kept is None else kept.last_sequence,
            NO_OFFSET if kept is None else kept.last_offset,
            0 if kept is None else kept.offset_delta,
            header.max_timestamp,
            marker.coordinator_epoch,
            NO_OFFSET,
        )
        first_offset = self.open.pop(producer_id, NO_OFFSET)
        logged = LoggedMarker(
            producer_id, epoch, marker.result, marker.coordinator_epoch, offset, first_offset
        )
        self.markers.setdefault(producer_id, []).append(logged)
        self.first_markers.setdefault((producer_id, epoch), logged)
        if marker.result is _ABORT and first_offset != NO_OFFSET:
            # Readers look up an aborted transaction as long as they may read one that was open at the same
            # time.
            self.aborted.append(LoggedAbort(producer_id, first_offset, offset, self.last_stable_offset))
        return logged

    # --- questions ------------------------------------------------------------------------------------------

    def expected_sequence(self, producer_id: int, producer_epoch: int) -> int | None:
        """The sequence that continues a producer; None for an unknown producer, which may start anywhere
        (KIP-360).
        """
        known = self.producers.get(producer_id)
        if known is None:
            return None
        # A producer begins an epoch at 0; NO_SEQUENCE + 1 is 0 as well.
        return sequence_after(known.last_sequence, 1) if known.producer_epoch == producer_epoch else 0

    def open_transactions(self) -> list[tuple[int, int]]:
        """(first offset, producer id) of each open transaction, oldest first."""
        return [(first_offset, producer_id) for producer_id, first_offset in self.open.items()]

    def result_of(self, producer_id: int, offset: int) -> TransactionResult | None:
        """How a transactional batch of this producer at `offset` was decided, None while it is open."""
        # A transaction ends with the producer's next marker, whatever its epoch.
        for marker in self.markers.get(producer_id, ()):
            if marker.offset > offset:
                return marker.result
        return None

    def last_marker(self, producer_id: int) -> LoggedMarker | None:
        """The producer's last decision: of a marker and its repetitions (a coordinator that does not know
        whether the first one arrived sends another) the first.
        """
        markers = self.markers.get(producer_id)
        if not markers:
            return None
        last = markers[-1]
        for before in reversed(markers[:-1]):
            is_repeated = last.first_offset == NO_OFFSET
            if not is_repeated or (before.producer_epoch, before.result) != (
                last.producer_epoch,
                last.result,
            ):
                break
            last = before
        return last

    def first_marker(self, producer_id: int, producer_epoch: int) -> LoggedMarker | None:
        """The first marker with exactly this identity."""
        return self.first_markers.get((producer_id, producer_epoch))

    def all_markers(self) -> Iterator[LoggedMarker]:
        """Every marker, by producer."""
        for markers in self.markers.values():
            yield from markers
