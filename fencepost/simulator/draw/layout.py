"""Where everything stands in a picture (a row per event, a column per lane), and the scene that it is drawn
from.

Each event has a row to itself, so texts about two events never overlap; time is printed, not to scale. Of a
long run only the last part is laid out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

import attrs

from fencepost.protocol.terms import NO_PRODUCER_ID, TopicPartition
from fencepost.simulator.draw.canvas import PALETTE, tag, width_of, words
from fencepost.simulator.draw.fates import DrawnLog, DrawnMessage, follow, read_logs
from fencepost.simulator.draw.wording import note, sentence
from fencepost.simulator.world.history import Appended, Bounded, Called, Coordinated, Event, History, Sent

# --- rows and columns ---------------------------------------------------------------------------------------

EVENTS_MAX = 2_000  # as many rows as a browser still scrolls with ease

TIME_WIDTH = 80
_HEAD = 78  # title, what is left out, and the names of the lanes
LESSON_LINE = 15
BROKEN_LINE = 20
_ROW = 21
_HIGH_ROW = 25  # a departure: its label stands above its line
_LOW_ROW = 15  # a bound that moved: one small number
_GAP_MIN = 130
_GAP_MAX = 270
_MARGIN_MIN = 70
_MARGIN_MAX = 150
_COORDINATOR_WIDTH = 165
_LOG_CELLS_WIDTH = 260  # what a long log is squeezed into
_CELL_MIN = 3.0
_CELL_MAX = 18.0
LOG_WORDS_WIDTH = 160  # room for "12-15 a b c d 1000/0" after the last offset


@attrs.frozen(kw_only=True)
class LogLane:
    """Offsets from left to right: `first` at `x`, each `cell` pixels wide, up to `end`."""

    x: float
    first: int
    end: int
    cell: float

    def at(self, offset: int) -> float:
        """Where an offset begins; those before the first stand on its edge."""
        return self.x + max(offset - self.first, 0) * self.cell


@attrs.frozen(kw_only=True)
class Layout:
    """Places in pixels. Events before `first` are not drawn and stand at the top edge; what was broken stands
    between the `last` event and the `bottom`.
    """

    first: int
    rows: tuple[float, ...]
    lanes: Mapping[str, float]
    lanes_end: float
    coordinators: Mapping[str, float]
    logs: Mapping[TopicPartition, LogLane]
    top: float
    last: float
    bottom: float
    width: float

    def y(self, place: int | None) -> float:
        """The middle of the row of an event, given by its place in the history; None: the end of the
        picture.
        """
        if place is None:
            return self.bottom
        return self.top if place < self.first else self.rows[place - self.first]


def lay_out(
    events: Sequence[Event],
    lanes: Sequence[str],
    *,
    messages: Mapping[int, DrawnMessage],
    logs: Mapping[TopicPartition, DrawnLog],
    lesson: Sequence[str] = (),
    broken: Sequence[str] = (),
    events_max: int = EVENTS_MAX,
) -> Layout:
    """Rows for the last `events_max` events, columns for all lanes; above and below, lines for the lesson and
    for what was broken.
    """
    first = max(len(events) - events_max, 0)
    drawn = events[first:]
    top = _HEAD + LESSON_LINE * len(lesson)
    rows, last = _rows(drawn, top=top)
    notes = [width_of(note(event, messages)) + 28 for event in drawn if isinstance(event, Sent)]
    gap = min(max([*notes, _GAP_MIN]), _GAP_MAX)
    margin = min(max([*(_half(event) for event in drawn), _MARGIN_MIN]), _MARGIN_MAX)
    columns = {lane: TIME_WIDTH + margin + place * gap for place, lane in enumerate(lanes)}
    lanes_end = max(columns.values(), default=TIME_WIDTH) + max(margin, gap)
    ids = list(dict.fromkeys(event.transactional_id for event in events if isinstance(event, Coordinated)))
    coordinators = {name: lanes_end + place * _COORDINATOR_WIDTH for place, name in enumerate(ids)}
    x = lanes_end + len(ids) * _COORDINATOR_WIDTH + 10
    log_lanes: dict[TopicPartition, LogLane] = {}
    for partition, log in logs.items():
        log_lanes[partition] = lane = _log_lane(log, x=x, first_place=first)
        x = lane.at(lane.end) + LOG_WORDS_WIDTH
    return Layout(
        first=first,
        rows=rows,
        lanes=columns,
        lanes_end=lanes_end,
        coordinators=coordinators,
        logs=log_lanes,
        top=top,
        last=last,
        bottom=last + BROKEN_LINE * len(broken),
        width=max([x, *(width_of(words) + TIME_WIDTH for words in (*lesson, *broken))]) + 10,
    )


def _rows(drawn: Sequence[Event], *, top: float) -> tuple[tuple[float, ...], float]:
    rows: list[float] = []
    y = top
    for event in drawn:
        y += _LOW_ROW if isinstance(event, Bounded) else _HIGH_ROW if isinstance(event, Sent) else _ROW
        rows.append(y)
    return tuple(rows), y + _ROW


def _half(event: Event) -> float:
    """Half the width of what is written around a lifeline."""
    return width_of(event.label) / 2 + 10 if isinstance(event, Called) else 0.0


def _log_lane(log: DrawnLog, *, x: float, first_place: int) -> LogLane:
    """Offsets from the first that the drawn part speaks of to the end of the log."""
    shown = [batch for batch in log.batches.values() if batch.place >= first_place]
    offsets = [batch.appended.base_offset for batch in shown] + [
        bound.last_stable_offset for place, bound in log.bounds if place >= first_place
    ]
    ends = [batch.appended.next_offset for batch in shown] + [
        bound.high_watermark for place, bound in log.bounds if place >= first_place
    ]
    first, end = min(offsets, default=0), max(ends, default=0)
    cell = min(max(_LOG_CELLS_WIDTH / max(end - first, 1), _CELL_MIN), _CELL_MAX)
    return LogLane(x=x, first=first, end=end, cell=cell)


# --- the scene ----------------------------------------------------------------------------------------------

_LINE_LENGTH = 120  # characters of running text


@attrs.frozen(kw_only=True)
class Scene:
    """A run and its layout; `colours` are the places in the palette of the producer ids, `lesson` and
    `broken` lines.
    """

    history: History
    messages: Mapping[int, DrawnMessage]
    logs: Mapping[TopicPartition, DrawnLog]
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
