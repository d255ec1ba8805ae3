"""What a partition's log means, found by reading all of it each time: the plain model of the partition core.

Rule: nothing is remembered between two questions, and nothing of the broker is used but how a batch is laid
out. The few things that a log cannot tell (restarts, scans for what expired) are in a History.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import attrs

from fencepost.journal.indexes import AbortedRange, ProducerSnapshot
from fencepost.protocol.batches import BatchHeader, Buffer, read_marker
from fencepost.protocol.terms import TransactionResult

ABORT: Final = TransactionResult.ABORT
NONE: Final = -1  # Kafka's word for no epoch, no sequence, no offset and no timestamp alike
SEQUENCES: Final = 2**31  # 0 follows 2,147,483,647
CACHED_MAX: Final = 5


class Line(NamedTuple):
    """One batch of the log: data, or a marker, which has a `result` and its coordinator's epoch."""

    offset: int
    records: int
    producer: int
    epoch: int
    first: int
    timestamp: int
    is_transactional: bool
    result: TransactionResult | None
    coordinator_epoch: int

    @property
    def end(self) -> int:
        return self.offset + self.records

    @property
    def last(self) -> int:
        """The sequence of its last record; offsets of groups are written without sequences."""
        return NONE if self.first == NONE else (self.first + self.records - 1) % SEQUENCES

    @property
    def is_data(self) -> bool:
        return self.result is None


def read(batches: Iterable[tuple[BatchHeader, Buffer]]) -> list[Line]:
    return [line_of(header, batch) for header, batch in batches]


def line_of(header: BatchHeader, batch: Buffer) -> Line:
    marker = read_marker(batch) if header.is_control else None
    return Line(
        header.base_offset,
        header.record_count,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.max_timestamp,
        header.is_transactional,
        None if marker is None else marker.result,
        NONE if marker is None else marker.coordinator_epoch,
    )


# --- transactions ----------------------------------------------------------------------------------------


class Transaction(NamedTuple):
    """From a producer's first transactional batch to its next marker, None while that is not written."""

    producer: int
    first: int
    marker: Line | None

    def is_open_at(self, offset: int) -> bool:
        """Whether somebody who reads up to `offset`, and not further, finds it begun and not ended."""
        return self.first < offset and (self.marker is None or self.marker.offset >= offset)


def transactions(log: list[Line]) -> list[Transaction]:
    """All that have data here; a marker of nothing ends nothing."""
    found: list[Transaction] = []
    for producer in dict.fromkeys(line.producer for line in log if line.is_transactional):
        begun = None
        for line in log:
            if line.producer != producer or (line.is_data and not line.is_transactional):
                continue
            if line.is_data:
                begun = line.offset if begun is None else begun
            elif begun is not None:
                found.append(Transaction(producer, begun, line))
                begun = None
        if begun is not None:
            found.append(Transaction(producer, begun, None))
    return found


def opened_at(log: list[Line], producer: int) -> int:
    """First offset of the producer's open transaction, NONE when none is."""
    return next((t.first for t in transactions(log) if t.producer == producer and t.marker is None), NONE)


def stable_offset(log: list[Line], high_watermark: int, log_start: int = 0) -> int:
    """The first offset of what is undecided below the high watermark; a transaction that began before the
    log start counts from the batch that holds that on.
    """
    firsts = [t.first for t in transactions(log) if t.is_open_at(high_watermark)]
    if not firsts:
        return high_watermark
    first = min(firsts)
    if first < log_start:
        first = next((line.offset for line in log if line.offset <= log_start < line.end), log_start)
    return min(first, high_watermark)


def aborted_ranges(log: list[Line]) -> list[AbortedRange]:
    """Each aborted transaction, and how far everything was decided once its marker stood there."""
    found: list[AbortedRange] = []
    for _, first, marker in (every := transactions(log)):
        if marker is not None and marker.result is ABORT:
            others = [t.first for t in every if t.is_open_at(marker.end)]
            stable = min(others, default=marker.end)
            found.append(AbortedRange(marker.producer, first, marker.offset, stable))
    return sorted(found, key=lambda aborted: aborted.last_offset)


def committed_lines(log: list[Line], before: int) -> list[Line]:
    """What a read_committed reader sees below `before`, the stable offset: no markers, nothing aborted."""
    ranges = aborted_ranges(log)
    return [
        line
        for line in log
        if line.is_data
        and line.end <= before
        and not any(
            line.is_transactional
            and line.producer == r.producer_id
            and r.first_offset <= line.offset < r.last_offset
            for r in ranges
        )
    ]


# --- producers -------------------------------------------------------------------------------------------


class Forgotten(NamedTuple):
    """A scan that forgot every producer with nothing open that wrote nothing since `before_ms`; the log ended
    at `end` then.
    """

    before_ms: int
    end: int


@attrs.frozen
class History:
    """What happened to a leader's memory of a log."""

    restarted_at: int = 0
    """Where the log ended when its leader last came back: one batch per producer is known from before."""
    scans: tuple[Forgotten, ...] = ()


NO_HISTORY: Final = History()


class Known(NamedTuple):
    """What a partition knows of a producer."""

    epoch: int = NONE
    coordinator_epoch: int = NONE
    timestamp: int = NONE
    current_txn_first_offset: int = NONE
    cached: tuple[Line, ...] = ()

    @property
    def last_sequence(self) -> int:
        return self.cached[-1].last if self.cached else NONE


UNKNOWN: Final = Known()


def producers(log: list[Line], history: History = NO_HISTORY) -> dict[int, Known]:
    ids = {line.producer for line in log if line.producer != NONE}
    found = {producer: known_of(log, producer, history) for producer in sorted(ids)}
    return {producer: known for producer, known in found.items() if known != UNKNOWN}


def known_of(log: list[Line], producer: int, history: History = NO_HISTORY) -> Known:
    """UNKNOWN for one who never wrote, or was forgotten."""
    own = [line for line in log if line.producer == producer]
    for scan in history.scans:
        before = [line for line in log if line.offset < scan.end]
        remembered = [line for line in own if line.offset < scan.end]
        if remembered and remembered[-1].timestamp <= scan.before_ms and opened_at(before, producer) == NONE:
            own = [line for line in own if line.offset >= scan.end]
    if not own:
        return UNKNOWN
    markers = [line for line in own if not line.is_data]
    return Known(
        own[-1].epoch,
        markers[-1].coordinator_epoch if markers else NONE,
        own[-1].timestamp,
        opened_at(log, producer),
        _cached(own, history),
    )


def _cached(own: list[Line], history: History) -> tuple[Line, ...]:
    """The last five data batches of the present epoch; before a restart only the last one counts."""
    present: list[Line] = []
    for line in reversed(own):
        if line.epoch != own[-1].epoch:
            break
        if line.is_data:
            present.insert(0, line)
    before = [line for line in present if line.offset < history.restarted_at]
    since = [line for line in present if line.offset >= history.restarted_at]
    return tuple([*before[-1:], *since][-CACHED_MAX:])


def snapshot(known: dict[int, Known]) -> list[ProducerSnapshot]:
    """The same as a `.snapshot` tells it: of each producer the last batch."""
    return [
        ProducerSnapshot(
            producer_id=producer,
            producer_epoch=found.epoch,
            last_sequence=found.last_sequence,
            last_offset=found.cached[-1].end - 1 if found.cached else NONE,
            offset_delta=found.cached[-1].records - 1 if found.cached else 0,
            timestamp=found.timestamp,
            coordinator_epoch=found.coordinator_epoch,
            first_offset=found.current_txn_first_offset,
        )
        for producer, found in sorted(known.items())
    ]
