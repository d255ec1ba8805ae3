"""The fate of each message and each batch of a run, and every event in words.

Messages: when each left and arrived, what overtook it, what it repeats. A connection keeps its order, so a
message that was overtaken travelled on a connection of its own, and is worth a mark.

Batches: the log model says how each was decided. A log that came back shorter is read again without the
batches that it lost; those keep the fate that they had until then.

Rule: the words alone tell the story; colour, dash and place only repeat it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import attrs
from rich.cells import cell_len, set_cell_size

from fencepost.log_model.partitions import PartitionModel
from fencepost.protocol.batches import Marker
from fencepost.protocol.terms import TopicPartition, TransactionResult
from fencepost.simulator.world.history import (
    Appended,
    Arrived,
    Bounded,
    Called,
    Coordinated,
    Event,
    Lost,
    Sent,
    Struck,
    Truncated,
)
from fencepost.simulator.world.labels import producer

# --- messages -----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class DrawnMessage:
    """One message, as it left. `sent`, `arrived`, `lost` are places in the run's events; None: that has not
    happened.

    `overtaken_by` are the numbers of those that left the same source later and reached the same target first,
    `repeats` is the number of the equal message before it: a request that had no reply by then, or a reply to
    it that did not arrive. `is_struck`: a fault hit it.
    """

    event: Sent
    sent: int
    arrived: int | None = None
    lost: int | None = None
    because: str = ""
    overtaken_by: tuple[int, ...] = ()
    repeats: int | None = None
    is_struck: bool = False

    @property
    def is_late(self) -> bool:
        """Whether it arrived after something that was sent later."""
        return self.arrived is not None and bool(self.overtaken_by)

    @property
    def ended(self) -> int | None:
        """The place of the event at which it arrived or was lost; None: it is under way at the end."""
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
                found[number] = DrawnMessage(event=event, sent=place, repeats=earlier if is_again else None)
                latest[same] = number
                under_way.setdefault((event.source, event.target), []).append(number)
            case Arrived(number=number):
                found[number] = message = attrs.evolve(found[number], arrived=place)
                _overtake(found, number, under_way[message.event.source, message.event.target])
                if message.event.answers is not None:
                    answered.add(message.event.answers)
            case Lost(number=number, because=because):
                found[number] = message = attrs.evolve(found[number], lost=place, because=because)
                under_way[message.event.source, message.event.target].remove(number)
            case Struck(number=int(number)):
                found[number] = attrs.evolve(found[number], is_struck=True)
            case _:
                pass
    return found


def _overtake(found: dict[int, DrawnMessage], came: int, waiting: list[int]) -> None:
    """A message has arrived: whatever left before it from the same source to the same target and is still
    under way is overtaken.
    """
    for number in waiting[: waiting.index(came)]:
        found[number] = attrs.evolve(found[number], overtaken_by=(*found[number].overtaken_by, came))
    waiting.remove(came)


# --- batches ------------------------------------------------------------------------------------------------


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
_DECIDED = {
    TransactionResult.COMMIT: BatchFate.COMMITTED,
    TransactionResult.ABORT: BatchFate.ABORTED,
    None: BatchFate.OPEN,
}


@attrs.frozen(kw_only=True)
class DrawnBatch:
    """One batch: the place of its append in the run, and its fate; `is_gone` means truncated."""

    place: int
    appended: Appended
    fate: BatchFate
    is_gone: bool = False


@attrs.define
class DrawnLog:
    """One partition as far as its log has been read: the batches that are in it and those that a truncation
    took, and the moves of its bounds, each with its place in the run.
    """

    kept: list[tuple[int, Appended]] = attrs.Factory(list[tuple[int, Appended]])
    lost: list[DrawnBatch] = attrs.Factory(list[DrawnBatch])
    bounds: list[tuple[int, Bounded]] = attrs.Factory(list[tuple[int, Bounded]])
    model: PartitionModel = attrs.Factory(PartitionModel)

    def append(self, place: int, event: Appended) -> None:
        """A batch entered the log."""
        self.kept.append((place, event))
        marker = None if event.result is None else Marker(event.result, coordinator_epoch=0)
        self.model.apply(event.header, marker)

    def truncate(self, next_offset: int) -> None:
        """The log ends earlier now: it is read again without what it lost."""
        kept = self.kept
        for place, event in kept:
            if event.header.next_offset > next_offset:
                self.lost.append(self._drawn(place, event, is_gone=True))
        self.kept, self.model = [], PartitionModel()
        for place, event in kept:
            if event.header.next_offset <= next_offset:
                self.append(place, event)

    def batches(self) -> dict[int, DrawnBatch]:
        """Every batch with its fate, by its place in the run."""
        batches = [*self.lost, *(self._drawn(place, event) for place, event in self.kept)]
        return {batch.place: batch for batch in sorted(batches, key=lambda batch: batch.place)}

    def _drawn(self, place: int, event: Appended, *, is_gone: bool = False) -> DrawnBatch:
        header = event.header
        if event.result is not None:
            fate = _MARKERS[event.result]
        elif not header.is_transactional:
            fate = BatchFate.PLAIN
        else:
            fate = _DECIDED[self.model.result_of(header.producer_id, header.base_offset)]
        return DrawnBatch(place=place, appended=event, fate=fate, is_gone=is_gone)


def read_logs(events: Iterable[Event]) -> dict[TopicPartition, DrawnLog]:
    logs: dict[TopicPartition, DrawnLog] = {}
    for place, event in enumerate(events):
        match event:
            case Appended():
                logs.setdefault(event.partition, DrawnLog()).append(place, event)
            case Bounded():
                logs.setdefault(event.partition, DrawnLog()).bounds.append((place, event))
            case Truncated():
                logs.setdefault(event.partition, DrawnLog()).truncate(event.next_offset)
            case _:
                pass
    return dict(sorted(logs.items()))


# --- words --------------------------------------------------------------------------------------------------

# By the first word of a fault: what a lane does from there on.
SILENT_FROM = frozenset({"crash", "pause"})
SPEAKS_FROM = frozenset({"restart", "resume"})


def milliseconds(at: int) -> str:
    """A time of the world in milliseconds, to the microsecond: "12.345"."""
    return f"{at // 10**6}.{at // 1000 % 1000:03d}"


def shortened(text: str, length: int) -> str:
    """`text`, or as much of it as has `length` characters and fits into as many cells of a terminal, with an
    ellipsis.
    """
    if max(len(text), cell_len(text)) <= length:
        return text
    room = max(length - 1, 0)
    start = text[:room]  # letters without a width count as well
    return (start if cell_len(start) <= room else set_cell_size(start, room)) + "…"


def fault_word(event: Struck) -> str:
    """The first word of a fault, which says what it does."""
    return event.label.split(" ")[0].rstrip(":,")


def offsets(event: Appended) -> str:
    """The offsets of a batch: "5", or "5-7"."""
    first, last = event.header.base_offset, event.header.last_offset
    return str(last) if last == first else f"{first}-{last}"


def content(event: Appended) -> str:
    """What is in a batch: the name of its marker, or its label."""
    return event.label if event.result is None else event.result.name


def overtakers(message: DrawnMessage, messages: Mapping[int, DrawnMessage]) -> str:
    """What arrived before a late message, its own retry if it did: "after its retry 6", else "after message
    6".
    """
    retry = next((n for n in message.overtaken_by if messages[n].repeats == message.event.number), None)
    return f"after message {message.overtaken_by[0]}" if retry is None else f"after its retry {retry}"


def batch_words(event: Appended) -> str:
    """The text next to a batch in its log: "5-7 a b c 0/2"."""
    return " ".join(filter(None, (offsets(event), content(event), producer(event.header))))


def state_words(event: Coordinated) -> str:
    """The text next to a state of a transaction."""
    return f"{event.record.state.title} {producer(event.record)}"


def arrival_words(message: DrawnMessage, messages: Mapping[int, DrawnMessage], *, is_far: bool) -> str:
    """The text where a message arrives: its number, and what it is if it left long ago."""
    text = f"{message.event.number} {message.event.label}" if is_far else str(message.event.number)
    return f"{text}, {overtakers(message, messages)}" if message.is_late else text


def loss_words(message: DrawnMessage) -> str:
    """The text where a message is lost."""
    return f"{message.event.number} lost: {message.because}"


def note(event: Event, messages: Mapping[int, DrawnMessage]) -> str:
    """One event in the few words that stand beside its place in a lane."""
    match event:
        case Sent(number=number):
            repeats, is_struck = messages[number].repeats, messages[number].is_struck
            again = "" if repeats is None else f" AGAIN (as {repeats})"
            return f"{number} {event.label}{again}{' ⚡' if is_struck else ''}"
        case Arrived(number=number):
            message = messages[number]
            late = f"LATE ({overtakers(message, messages)}) " if message.is_late else ""
            return f"{late}{number} {message.event.label}"
        case Lost(number=number, because=because):
            return f"LOST {number} {messages[number].event.label}: {because}"
        case Appended():
            inside = " ".join(filter(None, (str(event.partition), offsets(event), content(event))))
            return f"[{inside}] {producer(event.header)}".rstrip()
        case Bounded():
            return f"{event.partition} LSO {event.last_stable_offset} HW {event.high_watermark}"
        case Truncated():
            return f"{event.partition} TRUNCATED to {event.next_offset}"
        case Coordinated():
            return f"{event.transactional_id} {state_words(event)}"
        case Called():
            return event.label
        case Struck(number=number):
            return event.label if number is None else f"{event.label} ({number})"


def sentence(event: Event, messages: Mapping[int, DrawnMessage]) -> str:
    """One event as a sentence that needs no context, in the word order of everyday English:

        p sends EndTxn COMMIT 0/0 to node 1 (message 9)
        node 1 receives EndTxn COMMIT 0/0 from p (message 9), late: after its retry 10
        node 1 answers p with EndTxn NONE (message 11, the reply to 10)
        node 1 appends a of producer 0/0 to t-0 at offset 0

    It says what has happened so far: that a fault strikes a message is said where it strikes.
    """
    match event:
        case Sent(source=source, target=target, number=number, label=label):
            repeats = messages[number].repeats
            again = "" if repeats is None else f", which repeats {repeats}"
            if event.answers is not None:
                way = f"message {number}, the reply to {event.answers}"
                return f"{source} answers {target} with {label} ({way}){again}"
            return f"{source} sends {label} to {target} (message {number}){again}"
        case Arrived(number=number):
            message = messages[number]
            sent = message.event
            late = f", late: {overtakers(message, messages)}" if message.is_late else ""
            return f"{sent.target} receives {sent.label} from {sent.source} (message {number}){late}"
        case Lost(number=number, because=because):
            sent = messages[number].event
            way = f"from {sent.source} to {sent.target}"
            return f"{sent.label} {way} is lost (message {number}): {because}"
        case Appended(node=node, partition=where, header=header):
            owner = producer(header)
            of = f" of producer {owner}" if owner else ""
            what = content(event) if event.result is None else f"the {content(event)} marker"
            return f"{node} appends {what or 'a batch'}{of} to {where} at offset {offsets(event)}"
        case Bounded(partition=where):
            return (
                f"{where} has last stable offset {event.last_stable_offset} and high watermark "
                f"{event.high_watermark}"
            )
        case Truncated(node=node, partition=where):
            return f"{node} finds the log of {where} cut off: it ends at offset {event.next_offset} now"
        case Coordinated(node=node, transactional_id=name, record=record):
            return f"{node} moves transaction {name} to {record.state.title}, producer {producer(record)}"
        case Called(participant=lane):
            return f"{lane}: {note(event, messages)}"
        case Struck(participant=lane):
            return f"fault at {lane or 'the network'}: {note(event, messages)}"


def timed_sentence(event: Event, messages: Mapping[int, DrawnMessage]) -> str:
    """The same after its time."""
    return f"{milliseconds(event.at)} ms: {sentence(event, messages)}"
