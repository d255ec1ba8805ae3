"""A run as a space-time table for a terminal: a column per client and node, time downwards, words at the
right.

Rule: plain text; of names and records, what a terminal would obey is escaped. A message that reaches its
target before anything else happens is one line; any other leaves and arrives in two, which its number joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap

import attrs
from rich.cells import cell_len, chop_cells, set_cell_size

from fencepost.protocol.terms import TransactionResult, escaped
from fencepost.simulator.draw.fates import (
    SILENT_FROM,
    SPEAKS_FROM,
    DrawnMessage,
    fault_word,
    follow,
    milliseconds,
    note,
)
from fencepost.simulator.world.history import (
    Appended,
    Arrived,
    Bounded,
    Called,
    Coordinated,
    Event,
    History,
    Lost,
    Sent,
    Struck,
    Truncated,
)

LEGEND = (
    "●──▶ message",
    "●╌╷ leaves",
    "╌▶ arrives",
    "═▶ arrives LATE",
    "●◀ to itself",
    "╌✗ lost",
    "⚡ fault",
    "» call",
    "■ data",
    "C A markers",
    "LSO last stable offset",
    "HW high watermark",
    "◆ transaction state",
    "/ truncated",
    "✗ broken rule",
    "0/2 producer id 0, epoch 2",
    "@0 at offset 0",
    "NONE success",
)

# For terminals without these signs; a bolt is as wide as two letters.
_ASCII = str.maketrans(dict(zip("●─▶◀╌╷╵═✗»■◆│┼…", "o-><.::=x>#*|+~", strict=True)) | {"⚡": "!!", "×": "x"})

_LANE_MIN = 7  # holds "●123╌╷"
_LANE_MAX = 14
_LEGEND_WIDTH = 80
_WORDS_MIN = 34  # as long as "[t-0 12-15 a b c d] 1000/0" and a bit


def space_time(
    history: History, *, width: int, folds: bool = True, first: int = 0, events_max: int | None = None
) -> str:
    """The whole run, from what it teaches to what it broke and a legend. With `folds`, a row longer than
    `width` cells continues on the next line; without, a row is as long as its words, for programs that read
    it. The table begins with the `first` event, shows the last `events_max` at most, and says what it leaves
    out.
    """
    table = _Table.of(history, width=width, folds=folds)
    count = len(history.events)
    first = first if events_max is None else max(first, count - events_max)
    left_out = f"the last {count - first:,} of {count:,} events: the first {first:,} are not shown"
    lesson = map(escaped, wrap(history.lesson, width))
    lines = [escaped(history.title), *lesson, *([left_out] if first else []), table.head()]
    before = ""
    for event, came_at_once in _joined(history.events[first:]):
        time = milliseconds(event.at)
        lines += table.row("" if time == before else time, event, came_at_once=came_at_once)
        before = time
    lines += [line for broken in history.broken for line in table.broken(broken, width)]
    lines += [table.end(history.end), *_filled(LEGEND, min(width, _LEGEND_WIDTH), between="   ")]
    # If there are more lanes than fit, lines have to be cut.
    return "".join(f"{_fitted(line, width) if folds else line.rstrip()}\n" for line in lines)


def ending(history: History, *, width: int, rows: int, folds: bool = True) -> list[str]:
    """The names of the lanes and the last rows of the table, without its legend."""
    lines = [line for line in space_time(history, width=width, folds=folds).splitlines() if line.strip()]
    end = next((at for at, line in enumerate(lines) if line.lstrip().startswith(LEGEND[0])), len(lines))
    first = 1 + len(wrap(history.lesson, width))
    head, body = lines[first : first + 1], lines[first + 1 : end]
    return [*head, *(["..."] if len(body) > rows else []), *body[-rows:]]


def in_ascii(table: str) -> str:
    """A table with ASCII signs; any other character of its words becomes a question mark."""
    return table.translate(_ASCII).encode("ascii", "replace").decode()


def _joined(events: tuple[Event, ...]) -> Iterator[tuple[Event, bool]]:
    """Each event that has a line, and whether it is a message that the very next event sees arrive."""
    after: tuple[Event | None, ...] = (*events, None)[1:]
    was_joined = False
    for event, following in zip(events, after, strict=True):
        if was_joined:
            was_joined = False
            continue
        match event, following:
            case Sent(number=left), Arrived(number=came) if left == came:
                was_joined = True
            case _:
                pass
        yield event, was_joined


def _filled(parts: Iterable[str], width: int, *, between: str = " ") -> list[str]:
    """The parts in as few lines as `width` allows; what is longer than a line is broken."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}{between}{part}" if lines[-1] else part
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines += chop_cells(part, width)
    return [line for line in lines if line]


def _fitted(line: str, width: int) -> str:
    if cell_len(line) <= width:
        return line.rstrip()
    return set_cell_size(line, width - 1).rstrip() + "…"


@attrs.define
class _Table:
    """The columns, and which lanes are silent at the line that is being written."""

    messages: Mapping[int, DrawnMessage]
    columns: Mapping[str, int]  # lane -> the cell in which its lifeline stands
    lane_width: int
    time_width: int
    words_width: int | None
    """Where rows are folded: the cells that their words may fill."""
    silent: dict[str, bool] = attrs.Factory(dict[str, bool])

    @classmethod
    def of(cls, history: History, *, width: int, folds: bool) -> _Table:
        """Lanes as wide as `width` allows after the words have got their room."""
        time_width = max(len(milliseconds(history.end)), len("ms"))
        room = (width - time_width - _WORDS_MIN) // max(len(history.participants), 1)
        lane_width = min(max(room, _LANE_MIN), _LANE_MAX)
        return cls(
            follow(history.events),
            columns={lane: place * lane_width for place, lane in enumerate(history.participants)},
            lane_width=lane_width,
            time_width=time_width,
            words_width=width - time_width - lane_width * len(history.participants) - 2 if folds else None,
        )

    def head(self) -> str:
        names = "".join(set_cell_size(escaped(lane), self.lane_width - 1) + " " for lane in self.columns)
        return f"{'ms':>{self.time_width}} {names}"

    def row(self, time: str, event: Event, *, came_at_once: bool) -> list[str]:
        """One event: its time, its place among the lanes, its words."""
        if isinstance(event, Struck):
            self._hear(event)
        cells = self._lifelines()
        self._place(cells, event, came_at_once=came_at_once)
        lanes, words = f"{time:>{self.time_width}} {''.join(cells)} ", self._words(event)
        if self.words_width is None:
            return [lanes + words]
        if self.words_width < _WORDS_MIN // 2:  # so many lanes: the words stand below them
            margin = " " * (self.time_width + 1)
            below = self.words_width + self.lane_width * len(self.columns)
            return [lanes, *(margin + part for part in _filled(words.split(" "), below))]
        first, *more = _filled(words.split(" "), self.words_width)
        margin = f"{'':{self.time_width}} {''.join(self._lifelines())} "
        return [lanes + first, *(margin + part for part in more)]

    def _lifelines(self) -> list[str]:
        cells = list(" " * (self.lane_width * len(self.columns)))
        for lane, column in self.columns.items():
            cells[column] = " " if self.silent.get(lane) else "│"
        return cells

    def broken(self, evidence: str, width: int) -> list[str]:
        """The lines of a broken rule, none of which is cut."""
        first = f"{'✗':>{self.time_width}} "
        lines = wrap(evidence, width, initial_indent=first, subsequent_indent=" " * len(first))
        return [escaped(line) for line in lines]

    def end(self, at: int) -> str:
        """The last line: the time, and what is still under way."""
        left = [str(message.event.number) for message in self.messages.values() if message.ended is None]
        under_way = f", messages still under way: {' '.join(left)}" if left else ""
        return f"{milliseconds(at):>{self.time_width}} end{under_way}"

    def _words(self, event: Event) -> str:
        words = note(event, self.messages)
        match event:
            case Called(participant=lane):
                words = f"{lane}: {words}"
            case Struck(participant=lane):
                words = f"⚡ {lane or 'network'}: {words}"
            case _:
                pass
        return escaped(words)

    def _hear(self, event: Struck) -> None:
        word = fault_word(event)
        if word in SILENT_FROM | SPEAKS_FROM:
            self.silent[event.participant] = word in SILENT_FROM

    def _place(self, cells: list[str], event: Event, *, came_at_once: bool) -> None:
        match event:
            case Sent(number=number):
                message = self.messages[number]
                if came_at_once:
                    self._cross(cells, message)
                else:
                    self._leave(cells, message)
            case Arrived(number=number):
                message = self.messages[number]
                self._come(cells, message, line="═" if message.is_late else "╌", heads=("▶", "◀"))
            case Lost(number=number):
                self._come(cells, self.messages[number], line="╌", heads=("✗", "✗"))
            case Appended(node=lane, result=result):
                glyph = "■" if result is None else "C" if result is TransactionResult.COMMIT else "A"
                self._put(cells, lane, glyph)
            case Truncated(node=lane):
                self._put(cells, lane, "/")
            case Coordinated(node=lane):
                self._put(cells, lane, "◆")
            case Called(participant=lane):
                self._put(cells, lane, "»")
            case Struck(participant="", number=int(number)):
                self._put_at(cells, self._way(self.messages[number]), "⚡")
            case Struck(participant=lane):
                self._put(cells, lane, "⚡")
            case Bounded():
                pass

    def _put(self, cells: list[str], lane: str, glyph: str) -> None:
        """A glyph in a lane; what has no lane (the network) is shown by the words alone."""
        if lane in self.columns:
            self._put_at(cells, self.columns[lane], glyph)

    def _put_at(self, cells: list[str], column: int, glyph: str) -> None:
        cells[column : column + cell_len(glyph)] = [glyph, *[""] * (cell_len(glyph) - 1)]

    def _way(self, message: DrawnMessage) -> int:
        """A cell beside the source, on the side of the target."""
        start = self.columns[message.event.source]
        return start + 3 if self.columns[message.event.target] >= start else start - 4

    def _cross(self, cells: list[str], message: DrawnMessage) -> None:
        """The whole arrow, from lane to lane."""
        start, end = self.columns[message.event.source], self.columns[message.event.target]
        if start == end:
            self._write(cells, start, f"●{message.event.number}◀")
            return
        step = 1 if end > start else -1
        for column in range(start + step, end, step):
            cells[column] = "┼" if cells[column] == "│" else "─"
        cells[start] = "●"
        cells[end - step] = "▶" if step > 0 else "◀"
        number = str(message.event.number)
        self._write(cells, start + 1 if step > 0 else start - len(number), number)

    def _leave(self, cells: list[str], message: DrawnMessage) -> None:
        """The end at the source: a dot, the number, and a line that breaks off."""
        start = self.columns[message.event.source]
        if self.columns[message.event.target] >= start:
            self._write(cells, start, f"●{message.event.number}╌╷")
        else:
            text = f"╷╌{message.event.number}●"
            self._write(cells, start - len(text) + 1, text)

    def _come(self, cells: list[str], message: DrawnMessage, *, line: str, heads: tuple[str, str]) -> None:
        """The end at the target: a line from nowhere, the number, and a head for its direction."""
        end = self.columns[message.event.target]
        if self.columns[message.event.source] < end:
            text = f"{line * 2}{message.event.number}{heads[0]}"
            self._write(cells, end - len(text), text)
        else:
            self._write(cells, end + 1, f"{heads[1]}{message.event.number}{line * 2}")

    def _write(self, cells: list[str], column: int, text: str) -> None:
        end = min(column + len(text), len(cells))
        cells[column:end] = text[: end - column]
