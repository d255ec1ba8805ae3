"""Each event of a run as a short note and as a whole sentence: what the table prints and a picture's titles
say.

Rule: the words alone tell the story; colour, dash and place only repeat it.
"""

from __future__ import annotations

from collections.abc import Mapping

from fencepost.protocol.terms import NO_PRODUCER_ID
from fencepost.simulator.draw.fates import DrawnMessage
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

_NETWORK = "the network"

# By the first word of a fault: what a lane does from there on.
SILENT_FROM = frozenset({"crash", "pause"})
SPEAKS_FROM = frozenset({"restart", "resume"})


def milliseconds(at: int) -> str:
    """A time of the world in milliseconds, to the microsecond: "12.345"."""
    return f"{at // 10**6}.{at // 1000 % 1000:03d}"


def shortened(text: str, length: int) -> str:
    """`text`, or as much of it as fits into `length` characters, with an ellipsis."""
    return text if len(text) <= length else text[: max(length - 1, 0)] + "…"


def fault_word(event: Struck) -> str:
    """The first word of a fault, which says what it does."""
    return event.label.split(" ")[0].rstrip(":,")


def offsets(event: Appended) -> str:
    """The offsets of a batch: "5", or "5-7"."""
    last = event.next_offset - 1
    return str(last) if last == event.base_offset else f"{event.base_offset}-{last}"


def content(event: Appended) -> str:
    """What is in a batch: the name of its marker, or its label."""
    return event.label if event.result is None else event.result.name


def producer(event: Appended | Coordinated) -> str:
    """A producer's id and epoch: "7/0"; "" for a batch without a producer."""
    if event.producer_id == NO_PRODUCER_ID:
        return ""
    return f"{event.producer_id}/{event.producer_epoch}"


def overtakers(message: DrawnMessage, messages: Mapping[int, DrawnMessage]) -> str:
    """What came before a late message, its own retry first: "after its retry 6"."""
    retry = next((n for n in message.overtaken_by if messages[n].repeats == message.number), None)
    return f"after {message.overtaken_by[0]}" if retry is None else f"after its retry {retry}"


def note(event: Event, messages: Mapping[int, DrawnMessage]) -> str:
    """One event in the few words that stand beside its place in a lane."""
    match event:
        case Sent(number=number):
            return f"{number} {event.label}{_marks(messages[number])}"
        case Arrived(number=number):
            message = messages[number]
            late = f"LATE ({overtakers(message, messages)}) " if message.is_late else ""
            return f"{late}{number} {message.label}"
        case Lost(number=number, because=because):
            return f"LOST {number} {messages[number].label}: {because}"
        case Appended():
            inside = " ".join(filter(None, (str(event.partition), offsets(event), content(event))))
            return f"[{inside}] {producer(event)}".rstrip()
        case Bounded():
            return f"{event.partition} LSO {event.last_stable_offset} HW {event.high_watermark}"
        case Truncated():
            return f"{event.partition} TRUNCATED to {event.next_offset}"
        case Coordinated():
            return f"{event.transactional_id} {event.state.title} {producer(event)}"
        case Called():
            return event.label
        case Struck(number=number):
            return event.label if number is None else f"{event.label} ({number})"


def _marks(message: DrawnMessage) -> str:
    again = "" if message.repeats is None else f" AGAIN (as {message.repeats})"
    return f"{again} ⚡" if message.is_struck else again


def sentence(event: Event, messages: Mapping[int, DrawnMessage]) -> str:
    """One event as a sentence that stands for itself, with its time."""
    return f"{milliseconds(event.at)} ms: {_told(event, messages)}"


def _told(event: Event, messages: Mapping[int, DrawnMessage]) -> str:
    brief = note(event, messages)
    match event:
        case Sent(source=source, target=target):
            answers = "" if event.answers is None else f", in answer to {event.answers}"
            return f"{source} sends {target} message {brief}{answers}"
        case Arrived(number=number):
            return f"{messages[number].target} gets from {messages[number].source} message {brief}"
        case Lost(number=number):
            return f"from {messages[number].source} to {messages[number].target}: {brief}"
        case Appended(node=node):
            return f"{node} appends {brief}"
        case Bounded():
            return (
                f"{event.partition} has last stable offset {event.last_stable_offset} "
                f"and high watermark {event.high_watermark}"
            )
        case Truncated(node=node):
            return f"{node} has {brief}"
        case Coordinated(node=node):
            return f"{node} takes transaction {brief}"
        case Called(participant=lane):
            return f"{lane}: {brief}"
        case Struck(participant=lane):
            return f"fault at {lane or _NETWORK}: {brief}"
