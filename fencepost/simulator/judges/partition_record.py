"""The judge's own record of one partition: every batch header in order, and what follows from them.

Rule: naive, and made from headers and markers alone; nothing that the broker worked out is believed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

import attrs

from fencepost.broker.host import Host
from fencepost.broker.partitions.partition import Partition
from fencepost.protocol.batches import BatchHeader, Buffer
from fencepost.protocol.terms import INT32_MAX, NO_PRODUCER_ID, TopicPartition, TransactionResult
from fencepost.simulator.judges.anomalies import Looks
from fencepost.simulator.judges.step_rules import BOUNDS, HANGING, MONOTONE, SEEN_IS_SAFE, SEQUENCE_ONCE
from fencepost.simulator.judges.violation import Violation

# The low byte of the type in a marker's key: 61 bytes of header, then length, attributes, two deltas, the
# key's length, its version (2) and its type (2).
_MARKER_TYPE_AT: Final = 69
_RESULTS: Final = {0: TransactionResult.ABORT, 1: TransactionResult.COMMIT}


def marker_result(batch: Buffer) -> TransactionResult:
    """What a marker says, read past the broker's own reader."""
    return _RESULTS[batch[_MARKER_TYPE_AT]]


class Marked(NamedTuple):
    """A producer's last marker in a partition; of repetitions with nothing in between, the first."""

    producer_epoch: int
    offset: int
    result: TransactionResult


class Aborted(NamedTuple):
    """A transaction that readers of committed data leave out; `last_offset` is its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


@attrs.define(eq=False)
class PartitionRecord:
    """What entered a log, as its newest leader (`host`, None when nobody is) decided it; the tail may not be
    written yet.
    """

    key: TopicPartition
    marks: Looks
    host: Host | None = None
    leader_epoch: int = -1
    begun_at: int = 0  # where the log ended when this leader took it over
    taken_over_at: list[int] = attrs.Factory(list[int])  # the same of every leader but the first
    headers: list[BatchHeader] = attrs.Factory(list[BatchHeader])
    results: dict[int, TransactionResult] = attrs.Factory(dict[int, TransactionResult])  # by offset
    log_end_offset: int = 0
    high_watermark: int = 0
    last_stable_offset: int = 0
    sequences: dict[tuple[int, int], int] = attrs.Factory(dict[tuple[int, int], int])
    epochs: dict[int, int] = attrs.Factory(dict[int, int])  # the newest that wrote, by producer id
    marked: dict[int, Marked] = attrs.Factory(dict[int, Marked])
    markers: dict[tuple[int, int], int] = attrs.Factory(
        dict[tuple[int, int], int]
    )  # the first of each identity
    current_txn_first_offset: dict[int, int] = attrs.Factory(dict[int, int])  # first offsets, by producer id
    unreplicated_txns: list[tuple[int, int]] = attrs.Factory(
        list[tuple[int, int]]
    )  # first offsets, and of markers
    aborted: list[Aborted] = attrs.Factory(list[Aborted])

    # --- what enters ----------------------------------------------------------------------------------------

    def judge_sequence(self, header: BatchHeader, *, starts_at_zero: bool) -> None:
        """Before a batch enters: it goes on where its producer ended, in this epoch."""
        if header.base_sequence < 0:
            return
        self.marks[SEQUENCE_ONCE.name] += 1
        last = self.sequences.get((header.producer_id, header.producer_epoch))
        if last is not None:
            expected = 0 if last == INT32_MAX else last + 1
        elif starts_at_zero or header.producer_id in self.epochs:
            expected = 0
        else:
            return  # since KIP-360 a producer that is unknown here may start anywhere
        if header.base_sequence != expected:
            raise Violation(
                SEQUENCE_ONCE.name,
                f"{self.key}: {_name(header)} entered with sequence {header.base_sequence} where {expected} "
                f"was next",
            )

    def judge_behind_marker(self, header: BatchHeader) -> None:
        """Before a batch enters: no marker of a newer epoch is here."""
        marked = self.marked.get(header.producer_id)
        if marked is not None and header.producer_epoch < marked.producer_epoch:
            raise Violation(
                HANGING.name,
                f"{self.key}: a batch of {_name(header)} entered behind the marker of epoch "
                f"{marked.producer_epoch} at {marked.offset}",
            )

    def enter(self, header: BatchHeader, result: TransactionResult | None) -> None:
        """A batch is decided on; `result` is a marker's. Its offset is the next one."""
        if header.base_offset != self.log_end_offset:
            raise Violation(
                BOUNDS.name,
                f"{self.key}: a batch entered at {header.base_offset}, the log ends at {self.log_end_offset}",
            )
        if result is not None:
            self.results[header.base_offset] = result
        self.headers.append(header)
        self.log_end_offset = header.next_offset
        self.count(header, result)

    def count(self, header: BatchHeader, result: TransactionResult | None) -> None:
        """What follows from one batch more, behind all that were counted."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        epoch = header.producer_epoch
        self.epochs[producer_id] = epoch
        if result is not None:
            self.markers.setdefault((producer_id, epoch), header.base_offset)
            first = self.current_txn_first_offset.pop(producer_id, None)
            before = self.marked.get(producer_id)
            is_repeated = first is None and before is not None and before[::2] == (epoch, result)
            if not is_repeated:
                self.marked[producer_id] = Marked(epoch, header.base_offset, result)
            if first is not None:
                self.unreplicated_txns.append((first, header.base_offset))
                if result is TransactionResult.ABORT:
                    self.aborted.append(Aborted(producer_id, first, header.base_offset))
            return
        if header.base_sequence >= 0:
            self.sequences[producer_id, epoch] = header.last_sequence
        if header.is_transactional:
            self.current_txn_first_offset.setdefault(producer_id, header.base_offset)

    # --- what is safe ---------------------------------------------------------------------------------------

    def durable(self, offset: int) -> None:
        """The leader learned that the log is safe up to `offset`."""
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        if offset > self.high_watermark:
            self.high_watermark = offset
            if self.unreplicated_txns:
                self.unreplicated_txns = [ended for ended in self.unreplicated_txns if ended[1] >= offset]

    def judge_replaced(self, offset: int) -> None:
        """A leader that was replaced learned that the log is safe up to `offset`."""
        if offset > self.begun_at:
            raise Violation(
                SEEN_IS_SAFE.name,
                f"{self.key}: a replaced leader takes its log for safe up to {offset}, and leader "
                f"{self.leader_epoch} found {self.begun_at}",
            )

    def first_undecided(self) -> int:
        """Where the last stable offset has to be."""
        stable = self.high_watermark
        for first in self.current_txn_first_offset.values():
            if first < stable:
                stable = first
        for first, _ in self.unreplicated_txns:
            if first < stable:
                stable = first
        return stable

    def judge_bounds(self, state: Partition) -> None:
        """After a step that moved the partition of the newest leader."""
        self.marks[BOUNDS.name] += 1
        stable, high_watermark, end = state.last_stable_offset, state.high_watermark, state.log_end_offset
        if (
            high_watermark != self.high_watermark
            or end != self.log_end_offset
            or stable != self.first_undecided()
            or not state.log_start_offset <= stable <= high_watermark <= end
        ):
            raise Violation(
                BOUNDS.name,
                f"{self.key}: log start {state.log_start_offset}, LSO {stable}, high watermark "
                f"{high_watermark}, end {end}; by the log they are {self.first_undecided()}, "
                f"{self.high_watermark}, {self.log_end_offset}",
            )
        if stable != self.last_stable_offset:
            self.marks[MONOTONE.name] += 1
            if stable < self.last_stable_offset:
                raise Violation(
                    MONOTONE.name, f"{self.key}: the LSO went back from {self.last_stable_offset} to {stable}"
                )
            self.last_stable_offset = stable

    # --- taking over ----------------------------------------------------------------------------------------

    def cut(self, count: int) -> None:
        """Only the first `count` batches are left."""
        self.headers = kept = self.headers[:count]
        self.log_end_offset = end = kept[-1].next_offset if kept else 0
        self.results = {offset: result for offset, result in self.results.items() if offset < end}
        for forgotten in (
            self.sequences,
            self.epochs,
            self.marked,
            self.markers,
            self.current_txn_first_offset,
        ):
            forgotten.clear()
        self.unreplicated_txns, self.aborted = [], []
        for header in kept:
            self.count(header, self.results.get(header.base_offset))

    def as_of(self, offset: int) -> PartitionRecord:
        """The record of the batches before an offset alone."""
        earlier = PartitionRecord(self.key, self.marks)
        for header in self.headers:
            if header.base_offset < offset:
                earlier.count(header, self.results.get(header.base_offset))
        return earlier

    def batch_at(self, offset: int) -> BatchHeader:
        """The batch that holds this offset; LookupError when none does."""
        place = bisect_right(self.headers, offset, key=_base_offset) - 1
        if place < 0 or offset >= self.headers[place].next_offset:
            raise LookupError(f"{self.key} holds no offset {offset}")
        return self.headers[place]

    def taken_over(self, host: Host, leader_epoch: int, *, is_cut: bool) -> None:
        """All that is in the log counts for its next leader."""
        if self.leader_epoch >= 0:
            self.taken_over_at.append(self.log_end_offset)
        self.host, self.leader_epoch, self.begun_at = host, leader_epoch, self.log_end_offset
        if is_cut:
            self.high_watermark = self.last_stable_offset = 0
        self.durable(self.log_end_offset)


def judge_order(state: Partition) -> None:
    """log start <= LSO <= high watermark <= log end: also of a leader who was replaced and does not know."""
    stable = state.last_stable_offset
    if not state.log_start_offset <= stable <= state.high_watermark <= state.log_end_offset:
        raise Violation(
            BOUNDS.name,
            f"{state.key}: log start {state.log_start_offset}, LSO {stable}, high watermark "
            f"{state.high_watermark}, end {state.log_end_offset}",
        )


def _base_offset(header: BatchHeader) -> int:
    return header.base_offset


def _name(header: BatchHeader) -> str:
    return f"producer {header.producer_id} epoch {header.producer_epoch}"
