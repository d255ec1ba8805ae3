"""Where everything stands in a picture: a row per event, a column per lane.

Each event has a row to itself, so texts about two events never overlap; time is printed, not to scale, and
where much time passes between two rows the axis is broken. Of a long run only the last part is laid out.

Rule: every lane is as wide as its texts need, up to a limit, so that a text is cut only where there is no
room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from textwrap import wrap

import attrs
from rich.cells import cell_len

from fencepost.protocol.terms import NO_PRODUCER_ID, TopicPartition
from fencepost.simulator.draw.canvas import PALETTE, tag, width_of, words
from fencepost.simulator.draw.fates import (
    DrawnBatch,
    DrawnMessage,
    arrival_words,
    batch_words,
    follow,
    loss_words,
    milliseconds,
    note,
    read_logs,
    shortened,
    state_words,
    timed_sentence,
)
from fencepost.simulator.world.history import Appended, Bounded, Called, Coordinated, Event, History, Sent
from fencepost.simulator.world.participants import NS_PER_MS

EVENTS_MAX = 2_000  # as many rows as a browser still scrolls with ease

_TIME_MIN = 80
HEAD = 78  # title, what is left out, and the names of the lanes
LESSON_LINE = 15
BROKEN_LINE = 20
_ROW = 21
_HIGH_ROW = 25  # a departure: its label stands above its line
_LOW_ROW = 15  # a bound that moved: one small number
_BREAK_ROW = 18  # more, where the axis is broken
_JUMP_MIN = 20 * NS_PER_MS  # the shortest time that breaks the axis,
_JUMP_SHARE = 20  # if it is this many times the usual time between two events
_GAP_MIN = 130
_GAP_MAX = 330
_MARGIN_MIN = 70
_MARGIN_MAX = 330
_COORDINATOR_MIN = 110
_LOG_CELLS_WIDTH = 260  # a long log is squeezed into this,
_CELL_MIN = 3.0  # but each offset is at least so wide,
_LOG_WIDTH_MAX = 3_000  # unless the log would be wider than this
_CELL_MAX = 18.0
_LOG_WORDS_MIN = 90  # room for "LSO 12 HW 15" after the last offset
LOG_WORDS_MAX = 40  # characters
_LOST_AT = 0.6  # of a message's way: where the cross stands
_UNDER_WAY_AT = 0.45
LOOP = 34  # how far a node's message to itself swings out
_BADGE_WIDTH = 42  # "LATE" in its box
_NEAR = 3  # rows: a message that takes no longer needs no label where it arrives
_LINE_LENGTH = 120  # characters of running text
_NAME_MAX = 44  # characters at the head of a lane
_NAME_END = 14  # the last ones of these, if a name is longer
_NAME_SCALE = 12 / 11  # a name is larger than other text,
_TITLE_SCALE = 14 / 11  # and the title even larger


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

    def __init__(self, history: History, *, first: int = 0) -> None:
        events = history.events
        self.history = history
        self.messages, self.logs = follow(events), read_logs(events)
        self.batches = {partition: log.batches() for partition, log in self.logs.items()}
        self.heading = shortened(history.title, _LINE_LENGTH)
        self.lesson = wrap(history.lesson, _LINE_LENGTH)
        self.left_out = _left_out(first, of=len(events))
        self.broken = [line for evidence in history.broken for line in wrap(evidence, _LINE_LENGTH)]
        self.first = first
        self.top = HEAD + LESSON_LINE * len(self.lesson)
        self.breaks: dict[int, int] = _breaks(events[first:], first=first)
        """Where the axis is broken: the place of the event after it, and the time that passes."""
        self.rows, self.last = _rows(events[first:], top=self.top, breaks={p - first for p in self.breaks})
        self.bottom = self.last + BROKEN_LINE * len(self.broken)
        self.window = (0.0, self.bottom)
        """The heights between which elements are drawn; a slide has a part of the whole."""
        x = self.lanes_end = self._place_lanes()
        x = self._place_coordinators(x) + 10
        self.log_lanes: dict[TopicPartition, LogLane] = {}
        for partition in self.logs:
            self.log_lanes[partition] = lane = self._log_lane(partition, x)
            words_end = lane.at(lane.end) + self._log_words_width(self.batches[partition].values())
            x = max(words_end, lane.x + _name_width(f"log {partition}") + 20)
        widest = max(map(width_of, (*self.lesson, *self.broken, self.left_out)))
        self.width = max(x, widest + self.time_width, width_of(self.heading) * _TITLE_SCALE + 12) + 10
        self.paths = {
            number: self._path(message)
            for number, message in self.messages.items()
            if message.ended is None or self.is_drawn(message.ended)
        }
        """The path of each message of which something is drawn, by number."""
        ids = dict.fromkeys(event.header.producer_id for event in events if isinstance(event, Appended))
        self.colours = {
            producer_id: place % len(PALETTE)
            for place, producer_id in enumerate(each for each in ids if each != NO_PRODUCER_ID)
        }
        """Places in the palette, in the order in which the producers appear."""

    def _place_lanes(self) -> float:
        """The columns of the participants; returns where they end."""
        drawn, lanes = self.history.events[self.first :], self.history.participants
        self.time_width = max(_TIME_MIN, width_of(f"{milliseconds(self.history.end)} ms") + 12)
        notes = [width_of(note(event, self.messages)) + 28 for event in drawn if isinstance(event, Sent)]
        names = [_name_width(lane) + 8 for lane in lanes]
        gap = min(max([*notes, *names, _GAP_MIN]), _GAP_MAX)
        # What a process does is written around its lifeline.
        halves = [width_of(event.label) / 2 + 10 for event in drawn if isinstance(event, Called)]
        halves += [width / 2 for width in names]
        outside = list(self._outside_the_lanes(gap))
        left, right = (
            min(max([*halves, *(width for at, width in outside if at == side), _MARGIN_MIN]), _MARGIN_MAX)
            for side in (-1, 1)
        )
        self.lanes = {lane: self.time_width + left + place * gap for place, lane in enumerate(lanes)}
        return max(self.lanes.values(), default=self.time_width - right) + right

    def _outside_the_lanes(self, gap: float) -> Iterator[tuple[int, float]]:
        """The widths of texts left of the first lane (-1) and right of the last (1)."""
        lanes = self.history.participants
        for message in self.messages.values():
            source, target = lanes.index(message.event.source), lanes.index(message.event.target)
            side = 1 if source < target else -1
            is_outer = target == (len(lanes) - 1 if side > 0 else 0)
            if source == target == len(lanes) - 1:
                yield 1, width_of(note(message.event, self.messages)) + 28
            if self.is_drawn(message.arrived) and is_outer and source != target:
                text = arrival_words(message, self.messages, is_far=self.is_far(message))
                yield side, width_of(text) + (_BADGE_WIDTH if message.is_late else 0) + 28
            if self.is_drawn(message.lost) and is_outer:
                yield side, width_of(loss_words(message)) + 28 - (1 - _LOST_AT) * gap

    def _place_coordinators(self, x: float) -> float:
        """A bar for each transactional id, with room for the names of its states; returns where they end."""
        widths: dict[str, float] = {}
        for event in self.history.events:
            if isinstance(event, Coordinated):
                name = event.transactional_id
                widest = max(widths.get(name, 0), width_of(state_words(event)) + 36)
                widths[name] = max(widest, _name_width(f"txn {name}") + 20)
        self.coordinators: dict[str, float] = {}
        for transactional_id, width in widths.items():
            self.coordinators[transactional_id] = x
            x += max(width, _COORDINATOR_MIN)
        return x

    def _log_words_width(self, batches: Iterable[DrawnBatch]) -> float:
        """The room for what is written after the last offset of a log."""
        drawn = (batch_words(batch.appended) for batch in batches if batch.place >= self.first)
        return max([width_of(shortened(words, LOG_WORDS_MAX)) + 16 for words in drawn] + [_LOG_WORDS_MIN])

    def is_far(self, message: DrawnMessage) -> bool:
        """Whether a message took so long that its label is repeated where it arrives."""
        return message.arrived is not None and message.arrived - message.sent > _NEAR

    def _log_lane(self, partition: TopicPartition, x: float) -> LogLane:
        """Offsets from the first one in the drawn part to the end of the log."""
        batches = self.batches[partition].values()
        shown = [batch.appended.header for batch in batches if batch.place >= self.first]
        bounds = [bound for place, bound in self.logs[partition].bounds if place >= self.first]
        offsets = [each.base_offset for each in shown] + [bound.last_stable_offset for bound in bounds]
        ends = [each.next_offset for each in shown] + [bound.high_watermark for bound in bounds]
        first, end = min(offsets, default=0), max(ends, default=0)
        count = max(end - first, 1)
        narrowest = min(_CELL_MIN, _LOG_WIDTH_MAX / count)
        cell = min(max(_LOG_CELLS_WIDTH / count, narrowest), _CELL_MAX)
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

    def owner(self, producer_id: int) -> str:
        """The transactional id of a producer, in parentheses, if a coordinator knew it."""
        known = (
            event.transactional_id
            for event in self.history.events
            if isinstance(event, Coordinated) and event.record.producer_id == producer_id
        )
        name = next(known, None)
        return "" if name is None else f" ({name})"

    def shows(self, *heights: float) -> bool:
        """Whether something between these heights is in the window."""
        return max(heights) >= self.window[0] and min(heights) <= self.window[1]

    def is_drawn(self, place: int | None) -> bool:
        """Whether an event has a row; None is an event that did not happen yet."""
        return place is not None and place >= self.first

    def title(self, event: Event) -> str:
        """The sentence of one event, which a browser shows under the pointer."""
        return tag("title", words(timed_sentence(event, self.messages)))


def _left_out(first: int, *, of: int) -> str:
    return f"the last {of - first:,} of {of:,} events: the first {first:,} are not drawn" if first else ""


def name_of(lane: str) -> str:
    """What stands at the head of a lane; of a long name also the end, where ids often differ."""
    if cell_len(lane) <= _NAME_MAX:
        return lane
    end = lane[-_NAME_END:]
    return shortened(lane, _NAME_MAX - cell_len(end)) + end


def _name_width(lane: str) -> float:
    return width_of(name_of(lane)) * _NAME_SCALE


def _breaks(drawn: Sequence[Event], *, first: int) -> dict[int, int]:
    """The places before which far more time passes than usual, with that time."""
    gaps = {
        place: after.at - before.at
        for place, (before, after) in enumerate(pairwise(drawn), start=first + 1)
        if after.at > before.at
    }
    if not gaps:
        return {}
    least = max(_JUMP_MIN, _JUMP_SHARE * median(gaps.values()))
    return {place: gap for place, gap in gaps.items() if gap >= least}


def _rows(drawn: Sequence[Event], *, top: float, breaks: set[int]) -> tuple[list[float], float]:
    """The middle of each row, and of the one after the last."""
    rows: list[float] = []
    y = top
    for place, event in enumerate(drawn):
        y += _LOW_ROW if isinstance(event, Bounded) else _HIGH_ROW if isinstance(event, Sent) else _ROW
        y += _BREAK_ROW if place in breaks else 0
        rows.append(y)
    return rows, y + _ROW
