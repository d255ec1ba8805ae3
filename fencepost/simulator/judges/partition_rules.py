"""The white box's own record of each partition, and the rules that a partition alone can break.

The record is a log model (fencepost/log_model) fed with every batch that the partition's newest leader
decides, plus what the log alone does not say: how much of it is replicated, who leads it, and where leaders
changed.

    batches that the newest leader decided  ──▶ headers ──▶ model
    0                                               high_watermark          end_offset
    ├───────────────────────────────────────────────┼───────────────────────┤
    │ replicated: must survive, may be acknowledged │ may still get lost    │

I1 to I4 are judged when a batch enters or a bound moves, I11 when a Fetch is answered. A leader that was
replaced may still decide; its batches never enter the record.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import Final

import attrs

from fencepost.broker.host import Host
from fencepost.broker.partitions.partition import Partition
from fencepost.log_model.partitions import LoggedAbort, LoggedMarker, PartitionModel
from fencepost.protocol.batches import LENGTH_PREFIX_SIZE, BatchHeader, Buffer, Marker, walk
from fencepost.protocol.messages import FetchedPartition
from fencepost.protocol.terms import NO_COORDINATOR_EPOCH, NO_OFFSET, NO_PRODUCER_EPOCH, TopicPartition
from fencepost.simulator.judges import rules
from fencepost.simulator.judges.rules import Exercised

# --- the record ---------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class PartitionRecord:
    """What entered a log, as its newest leader (`host`, None when it has no leader) decided it; the tail may
    not be written yet.
    """

    key: TopicPartition
    exercised: Exercised
    host: Host | None = None
    leader_epoch: int = -1
    is_compacted: bool = False
    begun_at: int = 0  # where the log ended when this leader took it over
    taken_over_at: list[int] = attrs.Factory(list[int])  # the same of every leader but the first
    headers: list[BatchHeader] = attrs.Factory(list[BatchHeader])
    model: PartitionModel = attrs.Factory(PartitionModel)
    high_watermark: int = 0
    last_stable_offset: int = 0
    unreplicated_txns: list[LoggedMarker] = attrs.Factory(list[LoggedMarker])
    """Markers that ended a transaction and are not replicated yet: the transaction still counts as open."""

    @property
    def end_offset(self) -> int:
        """Where the next batch goes."""
        return self.model.end_offset

    def newest_epoch(self, producer_id: int) -> int:
        """The newest epoch of a producer that wrote here; NO_PRODUCER_EPOCH when none did."""
        known = self.model.producers.get(producer_id)
        return NO_PRODUCER_EPOCH if known is None else known.producer_epoch

    def coordinator_epoch(self, producer_id: int) -> int:
        """The coordinator's epoch in the producer's last marker here; NO_COORDINATOR_EPOCH without one."""
        known = self.model.producers.get(producer_id)
        return NO_COORDINATOR_EPOCH if known is None else known.coordinator_epoch

    # --- batches --------------------------------------------------------------------------------------------

    def judge_sequence(self, header: BatchHeader, *, starts_at_zero: bool) -> None:
        """I3, before a batch enters: it continues its producer's sequence in this epoch."""
        # Markers and committed offsets have none: their coordinators write them, and never retry a batch.
        if header.base_sequence < 0:
            return
        self.exercised[rules.UNIQUE_SEQUENCE.name] += 1
        expected = self.model.expected_sequence(header.producer_id, header.producer_epoch)
        if expected is None:
            if not starts_at_zero:
                return  # since KIP-360 a producer that is unknown here may start at any sequence
            expected = 0
        if header.base_sequence != expected:
            raise rules.UNIQUE_SEQUENCE.broken(
                f"{self.key}: {_writer(header)} entered with sequence {header.base_sequence} where "
                f"{expected} was next"
            )

    def judge_after_marker(self, header: BatchHeader) -> None:
        """I4, before a batch enters: no marker of a newer epoch is here."""
        marker = self.model.last_marker(header.producer_id)
        if marker is not None and header.producer_epoch < marker.producer_epoch:
            raise rules.HANGING.broken(
                f"{self.key}: a batch of {_writer(header)} entered after the marker of epoch "
                f"{marker.producer_epoch} at offset {marker.offset}"
            )

    def enter(self, header: BatchHeader, marker: Marker | None) -> None:
        """The leader decided on a batch; `marker` is what it says if it is a control batch."""
        if header.base_offset != self.model.end_offset:
            raise rules.BOUNDS.broken(
                f"{self.key}: a batch entered at {header.base_offset}, the log ends at {self.end_offset}"
            )
        self.headers.append(header)
        logged = self.model.apply(header, marker)
        if logged is not None and logged.first_offset != NO_OFFSET:
            self.unreplicated_txns.append(logged)

    # --- bounds ---------------------------------------------------------------------------------------------

    def durable(self, offset: int) -> None:
        """The leader learned that the log is replicated up to `offset`."""
        if offset > self.model.end_offset:
            offset = self.model.end_offset
        if offset > self.high_watermark:
            self.high_watermark = offset
            # Strictly below the high watermark (ProducerStateManager.onHighWatermarkUpdated): a marker at it
            # is not replicated.
            if self.unreplicated_txns:
                self.unreplicated_txns = [ended for ended in self.unreplicated_txns if ended.offset >= offset]

    def judge_replaced(self, offset: int) -> None:
        """I15: a leader that was replaced learned that the log is replicated up to `offset`."""
        if offset > self.begun_at:
            raise rules.DURABLE_REPLIES.broken(
                f"{self.key}: a replaced leader treats its log as durable up to {offset}, but leader "
                f"{self.leader_epoch} found its end at {self.begun_at}"
            )

    def first_undecided(self) -> int:
        """Where the last stable offset must be."""
        stable = self.high_watermark
        if self.model.open:  # the first of them is the oldest: the model keeps the order of their offsets
            stable = min(stable, self.model.last_stable_offset)
        # A decided transaction counts until its marker is replicated, as for Kafka's firstUnstableOffset: a
        # marker that is lost would leave readers with records that are undecided again.
        for ended in self.unreplicated_txns:
            if ended.first_offset < stable:
                stable = ended.first_offset
        return stable

    def judge_bounds(self, state: Partition) -> None:
        """I2, and then I1, which says exactly where the LSO is, after a step that moved the partition of the
        newest leader.
        """
        self.exercised[rules.BOUNDS.name] += 1
        stable, high_watermark, end = state.last_stable_offset, state.high_watermark, state.log_end_offset
        if stable != self.last_stable_offset:
            self.exercised[rules.MONOTONE.name] += 1
            if stable < self.last_stable_offset:
                raise rules.MONOTONE.broken(
                    f"{self.key}: the LSO went back from {self.last_stable_offset} to {stable}"
                )
            self.last_stable_offset = stable
        # Retention may delete the beginning of an open transaction.
        undecided = max(self.first_undecided(), state.log_start_batch_offset)
        if (
            high_watermark != self.high_watermark
            or end != self.model.end_offset
            or stable != undecided
            or not state.log_start_offset <= stable <= high_watermark <= end
        ):
            raise rules.BOUNDS.broken(
                f"{self.key}: log start {state.log_start_offset}, LSO {stable}, high watermark "
                f"{high_watermark}, end {end}; by the log they are {undecided}, "
                f"{self.high_watermark}, {self.end_offset}"
            )

    # --- taking over ----------------------------------------------------------------------------------------

    def cut(self, count: int) -> None:
        """Only the first `count` batches are left."""
        self.headers = self.headers[:count]
        # All that is left counts as replicated for the leader that found it.
        self.model, self.unreplicated_txns = self._model_of(self.headers), []

    def as_of(self, offset: int) -> PartitionModel:
        """The model of the batches before an offset alone."""
        return self._model_of([header for header in self.headers if header.base_offset < offset])

    def _model_of(self, headers: list[BatchHeader]) -> PartitionModel:
        markers = {marker.offset: marker for marker in self.model.all_markers()}
        model = PartitionModel()
        for header in headers:
            model.apply(header, markers.get(header.base_offset))
        return model

    def batch_at(self, offset: int) -> BatchHeader:
        """The batch that holds this offset; LookupError when none does."""
        place = bisect_right(self.headers, offset, key=_base_offset) - 1
        if place < 0 or offset >= self.headers[place].next_offset:
            raise LookupError(f"{self.key} holds no offset {offset}")
        return self.headers[place]

    def taken_over(self, host: Host, leader_epoch: int, *, is_cut: bool) -> None:
        """A new leader begins; everything in the log counts as replicated for it."""
        if self.leader_epoch >= 0:
            self.taken_over_at.append(self.end_offset)
        self.host, self.leader_epoch, self.begun_at = host, leader_epoch, self.end_offset
        if is_cut:
            # What is lost may lie below the LSO, if the power was lost. Then it may go back (I2).
            self.high_watermark = self.last_stable_offset = 0
        self.durable(self.end_offset)


def judge_order(state: Partition) -> None:
    """I1 of any leader, including one that was replaced and does not know it yet."""
    stable = state.last_stable_offset
    if not state.log_start_offset <= stable <= state.high_watermark <= state.log_end_offset:
        raise rules.BOUNDS.broken(
            f"{state.key}: log start {state.log_start_offset}, LSO {stable}, high watermark "
            f"{state.high_watermark}, end {state.log_end_offset}"
        )


def _base_offset(header: BatchHeader) -> int:
    return header.base_offset


def _writer(header: BatchHeader) -> str:
    return f"producer {header.producer_id} epoch {header.producer_epoch}"


# --- I11: what a fetch holds --------------------------------------------------------------------------------

_START: Final = struct.Struct(">qi")  # base offset, batch length
_DELTA: Final = struct.Struct(">i")  # last offset delta
_DELTA_AT: Final = 23


def judge_fetched(part: FetchedPartition, record: PartitionRecord, exercised: Exercised) -> None:
    """One partition of a Fetch reply that holds records, judged as it leaves the node. The broker's index of
    aborted transactions is not asked.
    """
    # By the headers alone and without objects: this runs for each Fetch that brings records.
    begin, end = _span(part.records)
    if end > record.high_watermark:
        raise rules.DURABLE_REPLIES.broken(
            f"{record.key}: a fetch goes up to {end}, but the log is durable only up to "
            f"{record.high_watermark}"
        )
    # Null at read_uncommitted: only the high watermark bounds such a reader.
    if part.aborted is None:
        return
    exercised[rules.READ_COMMITTED.name] += 1
    if end > record.last_stable_offset:
        raise rules.READ_COMMITTED.broken(
            f"{record.key}: a fetch goes up to {end}, but the LSO is {record.last_stable_offset}"
        )
    named = {(found.producer_id, found.first_offset): None for found in part.aborted}
    aborted = record.model.aborted
    for producer_id, first, last, _ in reversed(aborted):
        # Those that overlap what was returned (TransactionIndex.collectAbortedTxns). The marker of one may
        # lie beyond it: the reader must skip its records even so.
        if last >= begin and first < end and (producer_id, first) not in named:
            if record.is_compacted and not _holds(part.records, producer_id, first, last):
                continue  # none of its records is left
            raise rules.READ_COMMITTED.broken(
                f"{record.key}: a fetch of {begin} to {end} does not name the aborted transaction of "
                f"producer {producer_id} from {first} to {last}"
            )
    if named:
        real = {(each.producer_id, each.first_offset): None for each in aborted}
        for producer_id, first in named:
            # An entry too many would make readers skip records that were committed.
            if (producer_id, first) not in real and not (
                record.is_compacted and _is_inside(aborted, producer_id, first)
            ):
                raise rules.READ_COMMITTED.broken(
                    f"{record.key}: a fetch says that producer {producer_id} aborted from {first} on"
                )


def _is_inside(aborted: list[LoggedAbort], producer_id: int, offset: int) -> bool:
    """Whether an offset is in an aborted transaction, whose first batches compaction may have removed."""
    return any(
        each.producer_id == producer_id and each.first_offset <= offset < each.last_offset for each in aborted
    )


def _holds(records: Buffer, producer_id: int, first: int, last: int) -> bool:
    """Whether records of a transaction are in this run of batches."""
    return any(
        header.producer_id == producer_id
        and header.is_transactional
        and not header.is_control
        and first <= header.base_offset < last
        and header.record_count
        for _, header in walk(records)
    )


def _span(records: Buffer) -> tuple[int, int]:
    """The first offset of a run of whole batches, and the offset after it."""
    begin, length = _START.unpack_from(records)
    at, base, size = 0, begin, len(records)
    while True:
        after = at + LENGTH_PREFIX_SIZE + length
        if after >= size:
            (delta,) = _DELTA.unpack_from(records, at + _DELTA_AT)
            return begin, base + delta + 1
        at = after
        base, length = _START.unpack_from(records, at)
