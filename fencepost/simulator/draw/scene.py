"""All that a picture is drawn from: the run, what became of its messages and logs, and where everything
stands.

Rule: what is drawn of an event is one group, titled with the event's whole sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap

import attrs

from fencepost.protocol.terms import NO_PRODUCER_ID, TopicPartition
from fencepost.simulator.draw.layout import Layout, lay_out
from fencepost.simulator.draw.logs import Log, read_logs
from fencepost.simulator.draw.marks import PALETTE, tag, words
from fencepost.simulator.draw.messages import Message, follow
from fencepost.simulator.draw.wording import sentence
from fencepost.simulator.world.history import Appended, Event, History

_LINE_LENGTH = 120  # characters of running text


@attrs.frozen(kw_only=True)
class Scene:
    """A run and its layout; `colours` are the places in the palette of the producer ids, `lesson` and
    `broken` lines.
    """

    history: History
    messages: Mapping[int, Message]
    logs: Mapping[TopicPartition, Log]
    layout: Layout
    colours: Mapping[int, int]
    lesson: tuple[str, ...]
    broken: tuple[str, ...]

    @classmethod
    def of(cls, history: History, *, events_max: int) -> Scene:
        """Reads the run and lays out its last `events_max` events."""
        messages, logs = follow(history.events), read_logs(history.events)
        lesson = tuple(wrap(history.lesson, _LINE_LENGTH))
        broken = tuple(line for evidence in history.broken for line in wrap(evidence, _LINE_LENGTH))
        layout = lay_out(
            history.events,
            history.participants,
            messages=messages,
            logs=logs,
            lesson=lesson,
            broken=broken,
            events_max=events_max,
        )
        return cls(
            history=history,
            messages=messages,
            logs=logs,
            layout=layout,
            colours=_colours(history),
            lesson=lesson,
            broken=broken,
        )

    def drawn(self) -> Iterator[tuple[int, Event]]:
        """The events that have a row, each with its place in the history."""
        first = self.layout.first
        return enumerate(self.history.events[first:], start=first)

    def is_drawn(self, place: int | None) -> bool:
        """Whether an event has a row; None is an event that did not happen yet."""
        return place is not None and place >= self.layout.first

    def told(self, place: int, *marks: str, kind: str = "event") -> str:
        """The marks of one event, under its sentence."""
        title = tag("title", words(sentence(self.history.events[place], self.messages)))
        return tag("g", title, *marks, class_=kind)


def _colours(history: History) -> dict[int, int]:
    """A colour for each producer id, in the order of appearance."""
    appended = [event for event in history.events if isinstance(event, Appended)]
    ids = dict.fromkeys(event.producer_id for event in appended if event.producer_id != NO_PRODUCER_ID)
    return {producer_id: place % len(PALETTE) for place, producer_id in enumerate(ids)}
