"""How transactions ended if their markers may be lost: the proofs, and what is written in place of markers.

Rule: nothing becomes committed without proof. A transaction without one is aborted, and the report says so.
"""

# Theory of operation
#
# A transaction that is open where a lost range begins may have ended in it. Without its marker, the next
# marker of its producer would decide it. That one may belong to a later transaction, and aborted records
# would become committed. Or there is no later marker, and the last stable offset would never move again. So
# each of these transactions is settled; the first row that applies counts:
#
#     proof                                                            what is done
#     the damage is one batch that is not a marker                     nothing: the transaction continues
#     its coordinator has it open or prepared, and no marker follows   nothing: its coordinator ends it
#     it was decided, and its own batches or its marker follow         nothing: the transaction continues
#     it was decided by the transaction log, or by another partition   its marker takes a lost offset
#     none of these                                                    an ABORT marker takes a lost offset
#
# "Decided" is proof only where each transaction has its own epoch (KIP-890): records of producer epoch 4 end
# with a marker of epoch 5, and no other transaction has records of epoch 4. With transaction versions 0 and 1
# several transactions share an epoch, so a lost range that may hold a marker aborts them.
#
# A lost range has an offset for each marker that it held. If more transactions are in doubt than it has
# offsets, some of them did not end in it, and no intact batch makes room for them:
#
# * In the last lost range, those ended that have no later marker and no coordinator to end them. If they take
#   all its offsets, all others go on.
# * Otherwise the next marker of a transaction without an offset decides it. If that is a COMMIT, and nothing
#   proves that the transaction was committed, it becomes an ABORT. Without a later marker, one is appended.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import attrs

from fencepost.log_model.partitions import PartitionModel
from fencepost.log_model.transactions import Histories, Identity, LoggedState
from fencepost.protocol.batches import Marker, build_marker, place, read_header, read_marker
from fencepost.protocol.terms import DECISIONS, TopicPartition, TransactionResult, TransactionState
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.repair.salvage import IntactBatch, LostRange, SalvagedLog, SalvagedSegment

ABORT: Final = TransactionResult.ABORT
COMMIT: Final = TransactionResult.COMMIT
# The transaction version from which each transaction has an epoch of its own (KIP-890).
_OWN_EPOCHS: Final = 2
_RESULTS: Final[Mapping[TransactionState, TransactionResult]] = {
    **DECISIONS,
    TransactionState.COMPLETE_COMMIT: COMMIT,
    TransactionState.COMPLETE_ABORT: ABORT,
}


class Settled(NamedTuple):
    """A transaction that the repair ended, or that continues after a lost range."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    result: TransactionResult
    is_proven: bool
    marker_epoch: int
    transactional_id: str | None


@attrs.define(eq=False)
class Evidence:
    """What the transaction log and the markers of all partitions prove."""

    decided: dict[Identity, TransactionResult] = attrs.Factory(dict[Identity, TransactionResult])
    """By producer id and the epoch of the records."""
    unended: dict[int, TransactionRecord] = attrs.Factory(dict[int, TransactionRecord])
    """By producer id: what a coordinator has open or prepared, and will end."""
    names: dict[int, str] = attrs.Factory(dict[int, str])

    def learn_histories(self, histories: Histories, stale: set[str]) -> None:
        """Take the transaction log into account. The last state of a `stale` id may be lost."""
        for name, history in histories.items():
            for state in history:
                self._learn_record(name, state)
            last = history[-1].record
            if last is not None and name not in stale and not last.state.is_complete:
                self.unended[last.producer_id] = last

    def _learn_record(self, name: str, state: LoggedState) -> None:
        record = state.record
        if record is None:
            return
        self.names[record.producer_id] = name
        result = _RESULTS.get(record.state)
        if result is not None and record.client_version >= _OWN_EPOCHS:
            self.decided[record.producer_id, record.producer_epoch - 1] = result

    def learn_markers(self, log: SalvagedLog) -> None:
        """A COMMIT of the epoch after that of the records proves itself, if nothing is lost in between."""
        epochs: dict[int, int] = {}  # of the open transactions
        for piece in log.pieces():
            if isinstance(piece, LostRange):
                epochs.clear()
                continue
            header, marker = piece.header, piece.batch.marker
            if marker is None and header.is_transactional and not header.is_control:
                epochs[header.producer_id] = header.producer_epoch
            elif marker is not None:
                epoch = epochs.pop(header.producer_id, None)
                if epoch is None or epoch != header.producer_epoch - 1:
                    continue
                if marker.result is COMMIT:
                    self.decided[header.producer_id, epoch] = COMMIT

    def will_be_ended(self, partition: TopicPartition, producer_id: int, epoch: int) -> bool:
        """Whether a coordinator has exactly this transaction open or prepared, in this partition."""
        record = self.unended.get(producer_id)
        if record is None or partition not in record.partitions or record.client_version < _OWN_EPOCHS:
            return False
        return epoch == record.producer_epoch - record.state.is_prepared

    def settled(self, partition: TopicPartition, producer_id: int, epoch: int, first_offset: int) -> Settled:
        """How a transaction ended: as it was decided, else by an ABORT with the epoch of its records. Such a
        marker fences no one; an administrator's abort has the same form (KIP-664).
        """
        result, name = self.decided.get((producer_id, epoch)), self.names.get(producer_id)
        if result is None:
            return Settled(partition, producer_id, epoch, first_offset, ABORT, False, epoch, name)
        return Settled(partition, producer_id, epoch, first_offset, result, True, epoch + 1, name)


# --- within a log -----------------------------------------------------------------------------------------


def settle_lost(log: SalvagedLog, evidence: Evidence) -> list[Settled]:
    """Decide for each lost range of a log which markers take its first offsets."""
    overturned: list[Settled] = []
    while (settled := _settled_in(log, evidence, overturned)) is None:
        pass
    return settled + overturned


def _settled_in(log: SalvagedLog, evidence: Evidence, overturned: list[Settled]) -> list[Settled] | None:
    """None if a lost range had to grow, which changes what follows it. `overturned`: the transactions whose
    next marker became an ABORT.
    """
    model, settled = PartitionModel(), list[Settled]()
    model.begin_with(log.producers)
    for segment in log.segments:
        for number, piece in enumerate(segment.pieces):
            if isinstance(piece, IntactBatch):
                model.apply(piece.header, piece.batch.marker)
                continue
            ended = list(_ended_in(log, piece, model, evidence))
            if len(ended) > piece.end - piece.start:
                if _grows(log, segment, number, piece):
                    return None
                ended = _fitted(log, piece, ended, evidence, overturned)
            piece.markers = _markers(model, piece, ended)
            settled += ended
    return settled


def _ended_in(
    log: SalvagedLog, lost: LostRange, model: PartitionModel, evidence: Evidence
) -> Iterator[Settled]:
    if not lost.may_hold_markers:
        return
    for producer_id, first_offset in model.open.items():
        epoch = model.producers[producer_id].producer_epoch
        following = _next_of(log, producer_id, lost.end)
        goes_on = following in (None, (epoch, None))
        if goes_on and evidence.will_be_ended(log.partition, producer_id, epoch):
            continue
        settled = evidence.settled(log.partition, producer_id, epoch, first_offset)
        own = ((epoch, None), (settled.marker_epoch, settled.result))
        if not settled.is_proven or following not in own:
            yield settled


def _next_of(log: SalvagedLog, producer_id: int, offset: int) -> tuple[int, TransactionResult | None] | None:
    """Epoch and, for a marker, result of a producer's next transactional batch from an offset on."""
    for piece in log.pieces():
        if isinstance(piece, IntactBatch) and piece.header.base_offset >= offset:
            header, marker = piece.header, piece.batch.marker
            if header.producer_id == producer_id and header.is_transactional:
                return header.producer_epoch, None if marker is None else marker.result
    return None


def _grows(log: SalvagedLog, segment: SalvagedSegment, number: int, lost: LostRange) -> bool:
    """Let a lost range grow over another one, or at the end of the log by an offset; never over a batch."""
    if number + 1 < len(segment.pieces):
        following = segment.pieces[number + 1]
        if isinstance(following, LostRange):
            lost.end, lost.may_hold_markers = following.end, True
            del segment.pieces[number + 1]
        return isinstance(following, LostRange)
    if any(other.base_offset >= segment.end_offset and other.pieces for other in log.segments):
        return False
    lost.end += 1
    segment.end_offset += 1
    return True


def _fitted(
    log: SalvagedLog, lost: LostRange, ended: list[Settled], evidence: Evidence, overturned: list[Settled]
) -> list[Settled]:
    """The transactions whose markers take the offsets of a range that has too few for all; see above."""
    room, is_last = lost.end - lost.start, log.lost()[-1] is lost
    later = {each.producer_id: _next_marker(log, each.producer_id, lost.end) for each in ended}
    sure = [each for each in ended if _has_no_other_end(log, each.producer_id, lost.end, evidence)]
    if is_last and len(sure) == room:
        return sure

    def is_decided_rightly(each: Settled) -> bool:
        found = later[each.producer_id]
        return found is not None and found.result is each.result

    ended.sort(key=is_decided_rightly)
    for each in ended[room:]:
        found = later[each.producer_id]
        if found is None:
            log.left_open.add(each.producer_id)
        elif not is_decided_rightly(each):
            overturned.append(each._replace(result=ABORT, is_proven=each.is_proven and each.result is ABORT))
            if found.result is COMMIT:
                found.overturn()
    return ended[:room]


def _has_no_other_end(log: SalvagedLog, producer_id: int, offset: int, evidence: Evidence) -> bool:
    """Whether no batch of a producer follows, and no coordinator has a transaction of it to end."""
    return _next_of(log, producer_id, offset) is None and producer_id not in evidence.unended


class _LaterMarker(NamedTuple):
    """A marker in a log, and its place there."""

    segment: SalvagedSegment
    number: int
    piece: IntactBatch
    marker: Marker

    @property
    def result(self) -> TransactionResult:
        return self.marker.result

    def overturn(self) -> None:
        """Make it an ABORT."""
        header = self.piece.header
        batch = build_marker(
            ABORT,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            coordinator_epoch=self.marker.coordinator_epoch,
            timestamp=header.max_timestamp,
        )
        placed = place(batch, base_offset=header.base_offset, leader_epoch=header.leader_epoch)
        scanned = self.piece.batch._replace(header=placed, marker=read_marker(batch))
        self.segment.pieces[self.number] = IntactBatch(scanned, bytes(batch))
        self.segment.is_altered = True


def _next_marker(log: SalvagedLog, producer_id: int, offset: int) -> _LaterMarker | None:
    """The next marker of a producer from an offset on."""
    for segment in log.segments:
        for number, piece in enumerate(segment.pieces):
            if isinstance(piece, IntactBatch) and piece.header.base_offset >= offset:
                marker = piece.batch.marker
                if marker is not None and piece.header.producer_id == producer_id:
                    return _LaterMarker(segment, number, piece, marker)
    return None


def _markers(model: PartitionModel, lost: LostRange, ended: list[Settled]) -> list[bytearray]:
    markers: list[bytearray] = []
    for number, each in enumerate(ended):
        markers.append(marker_of(each, model))
        _apply_marker(model, markers[-1], lost.start + number)
    return markers


def _apply_marker(model: PartitionModel, marker: bytearray, offset: int) -> None:
    model.apply(attrs.evolve(read_header(marker), base_offset=offset), read_marker(marker))


def marker_of(settled: Settled, model: PartitionModel) -> bytearray:
    """The marker that ends a transaction. No coordinator of the partition is fenced by it."""
    known = model.producers[settled.producer_id]
    return build_marker(
        settled.result,
        producer_id=settled.producer_id,
        producer_epoch=settled.marker_epoch,
        coordinator_epoch=max(0, known.coordinator_epoch),
        timestamp=max(0, model.newest_timestamp),
    )


# --- at the end of a log ----------------------------------------------------------------------------------


def model_of(log: SalvagedLog) -> PartitionModel:
    """The state of a partition after its repair."""
    model = PartitionModel()
    model.begin_with(log.producers)
    for piece in log.pieces():
        if isinstance(piece, IntactBatch):
            model.apply(piece.header, piece.batch.marker)
            continue
        for number, marker in enumerate(piece.markers):
            _apply_marker(model, marker, piece.start + number)
        model.end_offset = piece.end
    return model


def settle_open(log: SalvagedLog, model: PartitionModel, evidence: Evidence) -> list[Settled]:
    """The open transactions at the end of a log that no coordinator will end."""
    ended: list[Settled] = []
    for producer_id, first_offset in model.open.items():
        record = evidence.unended.get(producer_id)
        has_coordinator = record is not None and log.partition in record.partitions
        if has_coordinator and producer_id not in log.left_open:
            continue
        epoch = model.producers[producer_id].producer_epoch
        ended.append(evidence.settled(log.partition, producer_id, epoch, first_offset))
    return ended
