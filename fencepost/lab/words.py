"""Each step as a sentence, in the word order of everyday English.

    p sends EndTxn COMMIT 0/0 to node 1 (message 9)
    node 1 receives EndTxn COMMIT 0/0 from p (message 9), late: after its retry 10
    node 1 answers p with EndTxn NONE (message 11, the reply to 10)
    node 1 appends a of producer 0/0 to t-0 at offset 0

Rule: a sentence says what has happened so far. That a fault strikes a message is said where it strikes.
"""

from __future__ import annotations

from collections.abc import Mapping

from fencepost.simulator.draw.fates import DrawnMessage, content, in_words, offsets, overtakers
from fencepost.simulator.world.history import (
    Appended,
    Arrived,
    Bounded,
    Coordinated,
    Event,
    Lost,
    Sent,
    Truncated,
)
from fencepost.simulator.world.labels import producer


def step_text(event: Event, messages: Mapping[int, DrawnMessage]) -> str:
    """One event as a sentence, without its time."""
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
        case Appended() | Bounded() | Truncated() | Coordinated():
            return _of_logs(event)
        case _:
            return in_words(event, messages)


def _of_logs(event: Appended | Bounded | Truncated | Coordinated) -> str:
    match event:
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
