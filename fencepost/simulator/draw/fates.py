"""What became of each message and each batch of a run: everything that a picture shows beyond the events.

Messages: when each left and arrived, what overtook it, what it repeats. A connection keeps its order, so a
message that was overtaken travelled on a connection of its own, and is worth a mark.

Batches: the log model says how each was decided. A log that came back shorter is read again without the
batches that it lost; those keep the fate that they had until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import attrs

from fencepost.log_model.partitions import PartitionModel
from fencepost.protocol.batches import CONTROL_BIT, MAGIC_KAFKA, TRANSACTIONAL_BIT, BatchHeader, Marker
from fencepost.protocol.terms import (
    CLUSTER_METADATA_TOPIC,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    TransactionResult,
)
from fencepost.simulator.world.history import Appended, Arrived, Bounded, Event, Lost, Sent, Struck, Truncated

# --- messages -----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class DrawnMessage:
    """One message. `sent`, `arrived`, `lost` are places in the run's events; None: that has not happened.

    `overtaken_by` are the numbers of those that left the same source later and reached the same target first,
    `repeats` is the number of the equal one before it: a request that had no answer by then, or an answer to
    it that did not come; `is_struck`: a fault hit it.
    """

    number: int
    source: str
    target: str
    label: str
    answers: int | None
    sent: int
    arrived: int | None = None
    lost: int | None = None
    because: str = ""
    overtaken_by: tuple[int, ...] = ()
    repeats: int | None = None
    is_struck: bool = False

    @property
    def is_late(self) -> bool:
        """Whether it came, but after something that was sent later."""
        return self.arrived is not None and bool(self.overtaken_by)

    @property
    def ended(self) -> int | None:
        """The place of the event that ended its way; None: it is under way to the last."""
        return self.lost if self.arrived is None else self.arrived


def follow(events: Iterable[Event]) -> dict[int, DrawnMessage]:
    """Every message by its number, in the order of leaving; KeyError when one arrives that never left."""
    found: dict[int, DrawnMessage] = {}
    latest: dict[tuple[str, str, str], int] = {}  # by source, target and label
    under_way: dict[tuple[str, str], list[int]] = {}
    answered: set[int] = set()
    for place, event in enumerate(events):
        match event:
            case Sent(number=number):
                same = (event.source, event.target, event.label)
                earlier = latest.get(same)
                is_again = earlier is not None and (
                    earlier not in answered
                    if event.answers is None
                    else found[earlier].arrived is None and found[event.answers].repeats is not None
                )
                found[number] = _left(event, place=place, repeats=earlier if is_again else None)
                latest[same] = number
                under_way.setdefault((event.source, event.target), []).append(number)
            case Arrived(number=number):
                found[number] = message = attrs.evolve(found[number], arrived=place)
                _overtake(found, message, under_way[message.source, message.target])
                if message.answers is not None:
                    answered.add(message.answers)
            case Lost(number=number, because=because):
                found[number] = message = attrs.evolve(found[number], lost=place, because=because)
                under_way[message.source, message.target].remove(number)
            case Struck(number=int(number)):
                found[number] = attrs.evolve(found[number], is_struck=True)
            case _:
                pass
    return found


def _overtake(found: dict[int, DrawnMessage], message: DrawnMessage, waiting: list[int]) -> None:
    """A message has come: whatever left before it on the same way and has not come is overtaken."""
    for number in waiting[: waiting.index(message.number)]:
        overtaken = found[number]
        found[number] = attrs.evolve(overtaken, overtaken_by=(*overtaken.overtaken_by, message.number))
    waiting.remove(message.number)


def _left(event: Sent, *, place: int, repeats: int | None) -> DrawnMessage:
    return DrawnMessage(
        number=event.number,
        source=event.source,
        target=event.target,
        label=event.label,
        answers=event.answers,
        sent=place,
        repeats=repeats,
    )


# --- batches ------------------------------------------------------------------------------------------------

# Transaction records are drawn as the states of transactions; cluster metadata is not drawn.
_UNDRAWN_TOPICS = frozenset({TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC})


class BatchFate(Enum):
    """What a batch is at the end of the run."""

    PLAIN = "outside of transactions"
    OPEN = "undecided"
    COMMITTED = "committed"
    ABORTED = "aborted"
    COMMIT_MARKER = "a commit marker"
    ABORT_MARKER = "an abort marker"


_MARKERS = {
    TransactionResult.COMMIT: BatchFate.COMMIT_MARKER,
    TransactionResult.ABORT: BatchFate.ABORT_MARKER,
}
_DECIDED = {TransactionResult.COMMIT: BatchFate.COMMITTED, TransactionResult.ABORT: BatchFate.ABORTED}


@attrs.frozen(kw_only=True)
class DrawnBatch:
    """One batch: the place of its append in the run, and its fate; `is_gone` means truncated."""

    place: int
    appended: Appended
    fate: BatchFate
    is_gone: bool = False


@attrs.frozen(kw_only=True)
class DrawnLog:
    """One partition: its batches by their place in the run, and the moves of its bounds, each with its
    place.
    """

    batches: Mapping[int, DrawnBatch]
    bounds: tuple[tuple[int, Bounded], ...]


def has_lane(partition: TopicPartition) -> bool:
    """Whether a partition's log is drawn: those of transaction states and of the cluster's metadata are
    not.
    """
    return partition.topic not in _UNDRAWN_TOPICS


@attrs.define
class _Reading:
    """A log as far as it has been read. `lost` are the batches that a truncation took, with their fates."""

    kept: list[tuple[int, Appended]] = attrs.Factory(list[tuple[int, Appended]])
    lost: list[DrawnBatch] = attrs.Factory(list[DrawnBatch])
    bounds: list[tuple[int, Bounded]] = attrs.Factory(list[tuple[int, Bounded]])
    model: PartitionModel = attrs.Factory(PartitionModel)

    def append(self, place: int, event: Appended) -> None:
        self.kept.append((place, event))
        marker = None if event.result is None else Marker(event.result, coordinator_epoch=0)
        self.model.apply(_header_of(event), marker)

    def truncate(self, next_offset: int) -> None:
        """The log ends earlier now: it is read again without what it lost."""
        kept = self.kept
        for place, event in kept:
            if event.next_offset > next_offset:
                self.lost.append(self._drawn(place, event, is_gone=True))
        self.kept, self.model = [], PartitionModel()
        for place, event in kept:
            if event.next_offset <= next_offset:
                self.append(place, event)

    def drawn(self) -> dict[int, DrawnBatch]:
        """Every batch with its fate, by its place in the run."""
        batches = [*self.lost, *(self._drawn(place, event) for place, event in self.kept)]
        return {batch.place: batch for batch in sorted(batches, key=lambda batch: batch.place)}

    def _drawn(self, place: int, event: Appended, *, is_gone: bool = False) -> DrawnBatch:
        if event.result is not None:
            fate = _MARKERS[event.result]
        elif not event.is_transactional:
            fate = BatchFate.PLAIN
        else:
            result = self.model.result_of(event.producer_id, event.base_offset)
            fate = BatchFate.OPEN if result is None else _DECIDED[result]
        return DrawnBatch(place=place, appended=event, fate=fate, is_gone=is_gone)


def _header_of(event: Appended) -> BatchHeader:
    """As much of the batch's header as its event says: enough for the fate of its transaction."""
    return BatchHeader(
        base_offset=event.base_offset,
        batch_length=0,
        leader_epoch=0,
        magic=MAGIC_KAFKA,
        crc=0,
        attributes=(TRANSACTIONAL_BIT if event.is_transactional else 0)
        | (0 if event.result is None else CONTROL_BIT),
        last_offset_delta=event.next_offset - event.base_offset - 1,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=event.producer_id,
        producer_epoch=event.producer_epoch,
        base_sequence=NO_SEQUENCE,
        record_count=0,
    )


def read_logs(events: Iterable[Event]) -> dict[TopicPartition, DrawnLog]:
    """The logs that are drawn, by partition, sorted by name."""
    logs: dict[TopicPartition, _Reading] = {}
    for place, event in enumerate(events):
        if not isinstance(event, Appended | Bounded | Truncated) or not has_lane(event.partition):
            continue
        log = logs.setdefault(event.partition, _Reading())
        match event:
            case Appended():
                log.append(place, event)
            case Bounded():
                log.bounds.append((place, event))
            case Truncated(next_offset=next_offset):
                log.truncate(next_offset)
    return {
        partition: DrawnLog(batches=log.drawn(), bounds=tuple(log.bounds))
        for partition, log in sorted(logs.items())
    }
