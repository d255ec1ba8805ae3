"""Producers and transactions of one partition, followed batch by batch from the start of its log.

Rule: the naive model. It is written from Kafka's rules (ProducerAppendInfo, ProducerStateManager) and imports
neither the broker's state nor the journal's, so that they can be compared with it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import attrs

from fencepost.check.findings import Findings
from fencepost.check.scan import Placed, ScannedLog
from fencepost.protocol.batches import BatchHeader, Marker
from fencepost.protocol.terms import NO_OFFSET, NO_PRODUCER_ID, NO_SEQUENCE, TransactionResult

SEQUENCES: Final = 2**31  # 0 comes after INT32_MAX
PRODUCER_ID_EXPIRATION_MS: Final = (
    86_400_000  # producer.id.expiration.ms: who is forgotten may start anywhere
)

FENCED: Final = "a writer that had been fenced got through"


class Tracked(NamedTuple):
    """A producer as the log so far describes it: the fields of a snapshot."""

    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    first_offset: int


class Aborted(NamedTuple):
    """An aborted transaction as its index entry must tell it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Ended(NamedTuple):
    """A marker: whose, and what it says."""

    producer_id: int
    producer_epoch: int
    result: TransactionResult
    file: str
    offset: int


@attrs.frozen(kw_only=True)
class Track:
    """What a full scan of a partition says."""

    at: dict[int, dict[int, Tracked]]
    """Producers at each offset that was asked for; no entry for an offset inside a batch."""
    final: dict[int, Tracked]
    aborted: dict[str, list[Aborted]]
    """By log file, in the order of markers."""
    ended: list[Ended]
    newest_timestamp: int

    def stable_at(self, high_watermark: int) -> int | None:
        """The last stable offset at a high watermark; None when it lies inside a batch."""
        producers = self.at.get(high_watermark)
        if producers is None:
            return None
        return min((first for first, _ in opened(producers)), default=high_watermark)


def opened(producers: dict[int, Tracked]) -> list[tuple[int, int]]:
    """(first offset, producer id) of each open transaction, oldest first."""
    return sorted(
        (known.first_offset, producer_id)
        for producer_id, known in producers.items()
        if known.first_offset != NO_OFFSET
    )


def track(log: ScannedLog, offsets: set[int], findings: Findings) -> Track:
    """Follows the producers of a log, and remembers how they stood at these offsets."""
    tracker = _Tracker(findings)
    at: dict[int, dict[int, Tracked]] = {}
    for placed in log.batches():
        if placed.header.base_offset in offsets:
            at[placed.header.base_offset] = dict(tracker.producers)
        tracker.see(placed)
    if log.end_offset in offsets:
        at[log.end_offset] = dict(tracker.producers)
    return Track(
        at=at,
        final=tracker.producers,
        aborted=tracker.aborted,
        ended=tracker.ended,
        newest_timestamp=tracker.newest_timestamp,
    )


class _Tracker:
    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.producers: dict[int, Tracked] = {}
        self.open: dict[int, int] = {}  # first offsets by producer id: few, where producers may be many
        self.aborted: dict[str, list[Aborted]] = {}
        self.ended: list[Ended] = []
        self.newest_timestamp = -1

    def see(self, placed: Placed) -> None:
        """The next batch of the log."""
        header = placed.header
        self.newest_timestamp = max(self.newest_timestamp, header.max_timestamp)
        if placed.marker is not None:
            self._see_marker(placed, placed.marker)
        elif header.producer_id != NO_PRODUCER_ID and not header.is_control:
            self._see_data(placed)

    def _complain(self, placed: Placed, what: str, means: str) -> None:
        header = placed.header
        self.findings.problem(
            placed.file,
            f"producer {header.producer_id} epoch {header.producer_epoch}: {what}",
            offset=header.base_offset,
            means=means,
        )

    def _see_data(self, placed: Placed) -> None:
        header = placed.header
        known = self.producers.get(header.producer_id)
        if known is not None:
            self._judge_data(placed, known)
        first = NO_OFFSET if known is None else known.first_offset
        if header.is_transactional and first == NO_OFFSET:
            first = self.open[header.producer_id] = header.base_offset
        self.producers[header.producer_id] = Tracked(
            producer_epoch=header.producer_epoch,
            last_sequence=last_sequence(header),
            last_offset=header.base_offset + header.last_offset_delta,
            offset_delta=header.last_offset_delta,
            timestamp=header.max_timestamp,
            coordinator_epoch=-1 if known is None else known.coordinator_epoch,
            first_offset=first,
        )

    def _judge_data(self, placed: Placed, known: Tracked) -> None:
        header = placed.header
        if header.producer_epoch < known.producer_epoch:
            self._complain(placed, f"a batch after epoch {known.producer_epoch} was here", FENCED)
        elif header.base_sequence != NO_SEQUENCE:
            self._judge_sequence(placed, known)
        if not header.is_transactional and known.first_offset != NO_OFFSET:
            self._complain(
                placed,
                f"a plain batch inside its transaction, open since offset {known.first_offset}",
                "readers of committed records cannot tell what it belongs to",
            )

    def _judge_sequence(self, placed: Placed, known: Tracked) -> None:
        header = placed.header
        is_fresh = header.producer_epoch > known.producer_epoch or known.last_offset == NO_OFFSET
        expected = 0 if is_fresh else (known.last_sequence + 1) % SEQUENCES
        if header.base_sequence == expected:
            return
        what = f"sequence {header.base_sequence} where {expected} was expected"
        if header.max_timestamp - known.timestamp > PRODUCER_ID_EXPIRATION_MS:
            self.findings.note(
                placed.file,
                f"producer {header.producer_id} epoch {header.producer_epoch}: {what}",
                offset=header.base_offset,
                means="it had been silent for so long that it may have been forgotten",
            )
        else:
            self._complain(placed, what, "records of this producer were lost, doubled or reordered")

    def _see_marker(self, placed: Placed, marker: Marker) -> None:
        header = placed.header
        known = self.producers.get(header.producer_id)
        if known is not None and header.producer_epoch < known.producer_epoch:
            self._complain(placed, f"a marker after epoch {known.producer_epoch} was here", FENCED)
        if known is not None and marker.coordinator_epoch < known.coordinator_epoch:
            self._complain(
                placed,
                f"a marker of coordinator epoch {marker.coordinator_epoch} after one of "
                f"{known.coordinator_epoch}",
                "a coordinator that had been replaced got through",
            )
        keeps = known if known is not None and known.producer_epoch == header.producer_epoch else None
        self.producers[header.producer_id] = Tracked(
            producer_epoch=header.producer_epoch,
            last_sequence=NO_SEQUENCE if keeps is None else keeps.last_sequence,
            last_offset=NO_OFFSET if keeps is None else keeps.last_offset,
            offset_delta=0 if keeps is None else keeps.offset_delta,
            timestamp=header.max_timestamp,
            coordinator_epoch=marker.coordinator_epoch,
            first_offset=NO_OFFSET,
        )
        self.open.pop(header.producer_id, None)
        self.ended.append(
            Ended(header.producer_id, header.producer_epoch, marker.result, placed.file, header.base_offset)
        )
        if marker.result is TransactionResult.ABORT and known is not None and known.first_offset >= 0:
            stable = min(self.open.values(), default=header.next_offset)
            self.aborted.setdefault(placed.file, []).append(
                Aborted(header.producer_id, known.first_offset, header.base_offset, stable)
            )


def last_sequence(header: BatchHeader) -> int:
    """The sequence of a batch's last record."""
    if header.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (header.base_sequence + header.last_offset_delta) % SEQUENCES
