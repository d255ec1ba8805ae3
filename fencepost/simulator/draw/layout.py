"""Where everything stands in a picture: a row per event, a column per lane.

Each event has a row to itself, so texts about two events never overlap; time is printed, not to scale. Of a
long run only the last part is laid out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

import attrs

from fencepost.protocol.terms import NO_PRODUCER_ID, TopicPartition
from fencepost.simulator.draw.canvas import PALETTE, tag, width_of, words
from fencepost.simulator.draw.fates import DrawnMessage, follow, note, read_logs, sentence
from fencepost.simulator.world.history import Appended, Bounded, Called, Coordinated, Event, History, Sent

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
_LOST_AT = 0.6  # of a message's way: where the cross stands
_UNDER_WAY_AT = 0.45
LOOP = 34  # how far a node's message to itself swings out
_LINE_LENGTH = 120  # characters of running text


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


@attrs.frozen
class MessagePath:
    """The straight line of a message, in pixels."""

    x1: float
    y1: float
    x2: float
    y2: float

    def x_at(self, y: float) -> float:
        """Where the line is at this height; its end when it is beyond."""
        if self.y2 <= self.y1:
            return self.x2
        share = min(max((y - self.y1) / (self.y2 - self.y1), 0.0), 1.0)
        return self.x1 + (self.x2 - self.x1) * share

    def crosses(self, left: float, right: float, *, top: float, low: float) -> bool:
        """Whether the line touches a box."""
        if self.y2 < top or self.y1 > low:
            return False
        ends = sorted((self.x_at(top), self.x_at(low)))
        return ends[0] <= right and ends[1] >= left


class Scene:
    """A run and the places of its parts, in pixels. Events before `first` are not drawn and stand at the top
    edge; what was broken stands between the `last` event and the `bottom`.
    """

    def __init__(self, history: History, *, events_max: int) -> None:
        events = history.events
        self.history = history
        self.messages, self.logs = follow(events), read_logs(events)
        self.batches = {partition: log.batches() for partition, log in self.logs.items()}
        self.lesson = wrap(history.lesson, _LINE_LENGTH)
        self.broken = [line for evidence in history.broken for line in wrap(evidence, _LINE_LENGTH)]
        self.first = max(len(events) - events_max, 0)
        self.top = _HEAD + LESSON_LINE * len(self.lesson)
        self.rows, self.last = _rows(events[self.first :], top=self.top)
        self.bottom = self.last + BROKEN_LINE * len(self.broken)
        x = self.lanes_end = self._place_lanes()
        self.coordinators: dict[str, float] = {}
        for event in events:
            if isinstance(event, Coordinated) and event.transactional_id not in self.coordinators:
                self.coordinators[event.transactional_id] = x
                x += _COORDINATOR_WIDTH
        x += 10
        self.log_lanes: dict[TopicPartition, LogLane] = {}
        for partition in self.logs:
            self.log_lanes[partition] = lane = self._log_lane(partition, x)
            x = lane.at(lane.end) + LOG_WORDS_WIDTH
        widest = max(map(width_of, (*self.lesson, *self.broken)), default=0)
        self.width = max(x, widest + TIME_WIDTH) + 10
        self.paths = {
            number: self._path(message)
            for number, message in self.messages.items()
            if message.ended is None or self.is_drawn(message.ended)
        }
        """Of each message of which something is drawn, by number."""
        ids = dict.fromkeys(event.header.producer_id for event in events if isinstance(event, Appended))
        self.colours = {
            producer_id: place % len(PALETTE)
            for place, producer_id in enumerate(each for each in ids if each != NO_PRODUCER_ID)
        }
        """Places in the palette, in the order in which the producers appear."""

    def _place_lanes(self) -> float:
        """The columns of the participants; returns where they end."""
        drawn = self.history.events[self.first :]
        notes = [width_of(note(event, self.messages)) + 28 for event in drawn if isinstance(event, Sent)]
        # What a process does is written around its lifeline.
        halves = [width_of(event.label) / 2 + 10 for event in drawn if isinstance(event, Called)]
        gap = min(max([*notes, _GAP_MIN]), _GAP_MAX)
        margin = min(max([*halves, _MARGIN_MIN]), _MARGIN_MAX)
        self.lanes = {
            lane: TIME_WIDTH + margin + place * gap for place, lane in enumerate(self.history.participants)
        }
        return max(self.lanes.values(), default=TIME_WIDTH) + max(margin, gap)

    def _log_lane(self, partition: TopicPartition, x: float) -> LogLane:
        """Offsets from the first that the drawn part speaks of to the end of the log."""
        batches = self.batches[partition].values()
        shown = [batch.appended.header for batch in batches if batch.place >= self.first]
        bounds = [bound for place, bound in self.logs[partition].bounds if place >= self.first]
        offsets = [each.base_offset for each in shown] + [bound.last_stable_offset for bound in bounds]
        ends = [each.next_offset for each in shown] + [bound.high_watermark for bound in bounds]
        first, end = min(offsets, default=0), max(ends, default=0)
        cell = min(max(_LOG_CELLS_WIDTH / max(end - first, 1), _CELL_MIN), _CELL_MAX)
        return LogLane(x=x, first=first, end=end, cell=cell)

    def _path(self, message: DrawnMessage) -> MessagePath:
        start, end = self.lanes[message.event.source], self.lanes[message.event.target]
        share = (
            1.0 if message.arrived is not None else _LOST_AT if message.lost is not None else _UNDER_WAY_AT
        )
        reach = (end - start if end != start else LOOP) * share
        return MessagePath(start, self.y(message.sent), start + reach, self.y(message.ended))

    def y(self, place: int | None) -> float:
        """The middle of the row of an event, given by its place in the history; None: the end of the
        picture.
        """
        if place is None:
            return self.bottom
        return self.top if place < self.first else self.rows[place - self.first]

    def drawn(self) -> Iterator[tuple[int, Event]]:
        """The events that have a row, each with its place in the history."""
        return enumerate(self.history.events[self.first :], start=self.first)

    def is_drawn(self, place: int | None) -> bool:
        """Whether an event has a row; None is an event that did not happen yet."""
        return place is not None and place >= self.first

    def title(self, event: Event) -> str:
        """The sentence of one event, which a browser shows under the pointer."""
        return tag("title", words(sentence(event, self.messages)))


def _rows(drawn: Sequence[Event], *, top: float) -> tuple[list[float], float]:
    """The middle of each row, and of the one after the last."""
    rows: list[float] = []
    y = top
    for event in drawn:
        y += _LOW_ROW if isinstance(event, Bounded) else _HIGH_ROW if isinstance(event, Sent) else _ROW
        rows.append(y)
    return rows, y + _ROW
