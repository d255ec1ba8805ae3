"""A run as one SVG. From left to right it shows:

messages      a lifeline per participant, and the messages between them, slanted as they travelled. A late
              message is the thickest line and says LATE where it arrives; a lost one is dashed and ends
              in a cross; one under way at the end is grey, since nothing went wrong with it
coordinators  a bar per transactional id with the state of its transaction over time
logs          a lane per partition, offsets to the right, time downwards. A batch is in the row of its
              append, at its offsets, and looks as it ended: aborted data is hatched. The ground between
              last stable offset and high watermark is tinted: read_committed readers may not see it yet

Rule: the same history gives the same bytes; nothing outside the file is needed to look at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from fencepost.protocol.terms import TransactionState
from fencepost.simulator.draw.canvas import (
    PALETTE,
    STYLE,
    bolt,
    box,
    cross,
    fitted,
    head,
    label,
    line,
    path,
    pill,
    tag,
    width_of,
    words,
)
from fencepost.simulator.draw.fates import (
    SILENT_FROM,
    SPEAKS_FROM,
    BatchFate,
    DrawnBatch,
    DrawnLog,
    DrawnMessage,
    arrival_words,
    batch_words,
    fault_word,
    loss_words,
    milliseconds,
    note,
    offsets,
    shortened,
    state_words,
)
from fencepost.simulator.draw.layout import (
    BROKEN_LINE,
    EVENTS_MAX,
    LESSON_LINE,
    LOG_WORDS_MAX,
    LOOP,
    LogLane,
    MessagePath,
    Scene,
    name_of,
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
from fencepost.simulator.world.labels import producer

FEET_HEIGHT = 58
LEGEND_LINE = 22
_BREAK_ABOVE = 24  # how far above a row the axis is broken


def draw(history: History, *, first: int = 0, scale: float = 1.0, events_max: int = EVENTS_MAX) -> str:
    """The picture, from the `first` event on; of a run with more than `events_max` events only the last part,
    and the picture says so.
    """
    scene = Scene(history, first=max(first, len(history.events) - events_max))
    signs = list(legend(scene, top=scene.bottom + FEET_HEIGHT))
    height = scene.bottom + FEET_HEIGHT + LEGEND_LINE * (signs[-1][0] if signs else 0)
    inside = (*body(scene), *headings(scene), *(sign for _, sign in signs))
    return document(history, inside, width=scene.width, height=height, scale=scale)


def document(history: History, inside: Iterable[str], *, width: float, height: float, scale: float) -> str:
    """A whole file: its title, its styles, paper, and the elements on it."""
    elements = [
        tag("title", words(history.title)),
        *([tag("desc", words(history.lesson))] if history.lesson else []),
        tag("style", words(STYLE)),
        hatches(),
        box(0, 0, width, height, kind="paper"),
        *inside,
    ]
    return (
        tag(
            "svg",
            "\n",
            *(f"{element}\n" for element in elements),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width:.0f} {height:.0f}",
            width=f"{width * scale:.0f}",
            height=f"{height * scale:.0f}",
            role="img",
        )
        + "\n"
    )


def body(scene: Scene) -> Iterator[str]:
    """Everything below the names of the lanes and above the legend, as far as it is in the window."""
    yield from bands(scene)
    yield from lifelines(scene)
    yield from grounds(scene)
    yield from bars(scene)
    yield from arrows(scene)
    yield from _axis_breaks(scene)
    yield from _rows(scene)
    yield from _broken(scene)
    if scene.shows(scene.bottom):
        yield from feet(scene)


def headings(scene: Scene) -> Iterator[str]:
    """The title, the lesson, what is left out, and the name above each lane."""
    yield label(12, 22, scene.heading, kind="title")
    for place, text in enumerate(scene.lesson):
        yield label(12, 40 + LESSON_LINE * place, text, kind="lesson")
    if scene.left_out:
        yield label(12, scene.top - 38, scene.left_out, kind="loud")
    yield from lane_names(scene, y=scene.top - 12)


def lane_names(scene: Scene, *, y: float) -> Iterator[str]:
    for lane, x in scene.lanes.items():
        yield label(x, y, name_of(lane), kind="halo name", anchor="middle")
    for transactional_id, x in scene.coordinators.items():
        yield label(x, y, name_of(f"txn {transactional_id}"), kind="halo name")
    for partition, lane in scene.log_lanes.items():
        yield label(lane.x, y, name_of(f"log {partition}"), kind="halo name")


def _axis_breaks(scene: Scene) -> Iterator[str]:
    """Where far more time passes than usual: every lifeline is interrupted, and the time is named."""
    for place, gap in scene.breaks.items():
        y = scene.y(place) - _BREAK_ABOVE
        if not scene.shows(y):
            continue
        marks = [
            label(scene.time_width - 10, y + 4, f"+{milliseconds(gap)}", kind="small loud", anchor="end")
        ]
        for x in scene.lanes.values():
            marks.append(box(x - 4, y - 3, 8, 6, kind="paper"))
            marks += [line(x - 6, y + low + 2, x + 6, y + low - 2, kind="cut") for low in (-3, 3)]
        title = tag("title", f"{milliseconds(gap)} ms pass here")
        yield tag("g", title, *marks, class_="axis-break")


def _rows(scene: Scene) -> Iterator[str]:
    """Every event that is drawn, each with its time where that has moved on."""
    before = ""
    for place, event in scene.drawn():
        if not scene.shows(scene.y(place)):
            continue
        time = milliseconds(event.at)
        said = [label(scene.time_width - 10, scene.y(place) + 4, time, kind="small", anchor="end")]
        marks = [*(said if time != before else []), *_marks(scene, place, event)]
        before = time
        kind = f"event of-{type(event).__name__.lower()}"
        yield tag("g", scene.title(event), *marks, class_=kind)
    y = scene.bottom
    if scene.shows(y):
        time = f"{milliseconds(scene.history.end)} ms"
        yield label(scene.time_width - 10, y + 4, time, kind="small", anchor="end")


def _broken(scene: Scene) -> Iterator[str]:
    """What was broken, and how, across the whole picture below the last event."""
    for place, text in enumerate(scene.broken):
        y = scene.last + BROKEN_LINE * place
        if not scene.shows(y):
            continue
        band = box(0, y - BROKEN_LINE / 2, scene.width, BROKEN_LINE, kind="broken-band")
        is_first = place == 0 or any(told.startswith(text) for told in scene.history.broken)
        sign = [cross(scene.time_width - 20, y)] if is_first else []
        yield tag("g", band, *sign, label(scene.time_width - 10, y + 4, text, kind="broken"), class_="breach")


def _marks(scene: Scene, place: int, event: Event) -> list[str]:
    """What stands in the lanes for one event."""
    y = scene.y(place)
    match event:
        case Sent(number=number):
            return _departure(scene, scene.messages[number], y)
        case Arrived(number=number):
            return _arrival(scene, scene.messages[number], y)
        case Lost(number=number):
            return _loss(scene, scene.messages[number], scene.paths[number])
        case Called(participant=lane):
            x = scene.lanes[lane]
            room = 2 * min(x - scene.time_width, scene.lanes_end - x) - 18
            return [pill(x, y, fitted(event.label, room))]
        case Struck():
            return _fault(scene, event, y)
        case Coordinated():
            return _state(scene, event, y)
        case Appended():
            return _append(scene, scene.batches[event.partition][place], y)
        case Bounded():
            text = f"LSO {event.last_stable_offset} HW {event.high_watermark}"
            held = "halo small loud" if event.last_stable_offset < event.high_watermark else "halo small"
            x = scene.log_lanes[event.partition].at(event.high_watermark)
            return [label(x + 7, y + 4, text, kind=held)]
        case Truncated():
            x = scene.log_lanes[event.partition].at(event.next_offset)
            text = f"truncated to {event.next_offset}"
            return [*_origin(scene, y, event.node, end=x), cross(x, y), label(x + 9, y + 4, text)]


def legend(scene: Scene, *, top: float) -> Iterator[tuple[int, str]]:
    """One sample of each sign that occurs, in as many lines as it takes: (number of the line, sign)."""
    x, row = 12.0, 1
    for name, sample in _samples(scene):
        wide = 36 + width_of(name)
        if x + wide > scene.width and x > 12:
            x, row = 12.0, row + 1
        y = top + LEGEND_LINE * (row - 1)
        moved = tag("g", sample, transform=f"translate({x:.1f} {y:.1f})")
        yield row, moved + label(x + 36, y + 4, name, kind="small")
        x += wide + 12


def _samples(scene: Scene) -> Iterator[tuple[str, str]]:
    occur = {kind_of(scene.messages[number]) for number in scene.paths}
    for name, kind in (("message", "message"), ("again", "again"), ("late", "late")):
        if kind in occur:
            yield name, line(0, 0, 30, 0, kind=kind) + head(30, 0, from_x=0, from_y=0, kind=f"head-{kind}")
    if "lost" in occur:
        yield "lost", line(0, 0, 22, 0, kind="lost") + cross(26, 0)
    if "under-way" in occur:
        yield "under way at the end", line(0, 0, 30, 0, kind="under-way")
    yield from _samples_of_logs(scene)
    if scene.coordinators or scene.colours:
        yield "producer id 0, epoch 2", label(4, 4, "0/2", kind="")
    if any("@" in message.event.label for message in scene.messages.values()):
        yield "at offset 0", label(10, 4, "@0", kind="")


def _samples_of_logs(scene: Scene) -> Iterator[tuple[str, str]]:
    batches = [batch for found in scene.batches.values() for batch in found.values()]
    fates, ink = {batch.fate for batch in batches}, PALETTE[0]
    for fate, name, kind, fill in (
        (BatchFate.COMMITTED, "committed", "decided", ink),
        (BatchFate.ABORTED, "aborted", "decided", "url(#hatch-0)"),
        (BatchFate.OPEN, "undecided", "undecided", ink),
        (BatchFate.PLAIN, "no transaction", "outside", ink),
    ):
        if fate in fates:
            yield name, box(8, -7, 22, 14, kind=kind, fill=fill, stroke=ink)
    if len(scene.colours) > 1:
        for producer_id, place in scene.colours.items():
            name = name_of(f"producer {producer_id}{scene.owner(producer_id)}")
            yield name, box(8, -7, 22, 14, kind="decided", fill=PALETTE[place], stroke=PALETTE[place])
    if scene.log_lanes:
        yield "LSO", line(0, 0, 30, 0, kind="lso")
        yield "high watermark", line(0, 0, 30, 0, kind="hw")
    moves = [bound for log in scene.logs.values() for _, bound in log.bounds]
    if any(bound.last_stable_offset < bound.high_watermark for bound in moves):
        yield "held back", box(4, -7, 26, 14, kind="held-back")


# --- participants and messages ------------------------------------------------------------------------------


def kind_of(message: DrawnMessage) -> str:
    """How a message is drawn, by its fate."""
    if message.ended is None:
        return "under-way"
    if message.lost is not None:
        return "lost"
    if message.is_late:
        return "late"
    if message.repeats is not None:
        return "again"
    return "message" if message.event.answers is None else "reply"


def crossings(scene: Scene, message: DrawnMessage, side: int, baseline: float, text: str) -> int:
    """How many other messages and lifelines run through a label's box."""
    x = scene.lanes[message.event.source]
    left, right = sorted((x + 8 * side, x + (8 + width_of(text)) * side))
    hit = sum(
        number != message.event.number and way.crosses(left, right, top=baseline - 9, low=baseline + 2)
        for number, way in scene.paths.items()
    )
    return hit + sum(left <= lane <= right for lane in scene.lanes.values())


def arrows(scene: Scene) -> Iterator[str]:
    """Each message as an arrow, the ordinary ones first, so that the others lie on top."""
    drawn = [number for number, way in scene.paths.items() if scene.shows(way.y1, way.y2)]
    for number in sorted(drawn, key=lambda number: scene.messages[number].is_late):
        message, way = scene.messages[number], scene.paths[number]
        kind = kind_of(message)
        title = scene.title(message.event)
        if message.event.source == message.event.target and message.arrived is not None:
            yield tag("g", title, *_loop(way, lane_x=scene.lanes[message.event.source], kind=kind))
            continue
        marks = [line(way.x1, way.y1, way.x2, way.y2, kind=kind)]
        if message.arrived is not None:
            marks.append(head(way.x2, way.y2, from_x=way.x1, from_y=way.y1, kind=f"head-{kind}"))
        yield tag("g", title, *marks)


def _loop(way: MessagePath, *, lane_x: float, kind: str) -> tuple[str, str]:
    """A node's message to itself: out to the right and back."""
    lane, out = f"{lane_x:.1f}", f"{lane_x + LOOP:.1f}"
    start, end = f"{way.y1:.1f}", f"{way.y2:.1f}"
    curve = f"M{lane} {start}C{out} {start} {out} {end} {lane} {end}"
    return (
        tag("path", d=curve, class_=kind),
        head(lane_x, way.y2, from_x=lane_x + 8, from_y=way.y2 - 2, kind=f"head-{kind}"),
    )


def lifelines(scene: Scene) -> Iterator[str]:
    """Each lane from top to bottom, broken where it is crashed or paused."""
    for lane, x in scene.lanes.items():
        since, is_silent = scene.top, False
        for place, event in enumerate(scene.history.events):
            if not isinstance(event, Struck) or event.participant != lane:
                continue
            word = fault_word(event)
            if word in SILENT_FROM | SPEAKS_FROM:
                yield from _stretch(x, since, scene.y(place), is_silent=is_silent)
                since, is_silent = scene.y(place), word in SILENT_FROM
        yield from _stretch(x, since, scene.bottom, is_silent=is_silent)


def _stretch(x: float, top: float, low: float, *, is_silent: bool) -> Iterator[str]:
    if low > top:
        if is_silent:
            yield box(x - 9, top, 18, low - top, kind="silence")
        yield line(x, top, x, low, kind="silent" if is_silent else "lifeline")


def bands(scene: Scene) -> Iterator[str]:
    """A stripe across the whole picture for each fault and each late arrival: the eye follows it to the
    logs.
    """
    for place, event in scene.drawn():
        if not scene.shows(scene.y(place)):
            continue
        match event:
            case Struck():
                kind = "fault-band"
            case Arrived(number=number) if scene.messages[number].is_late:
                kind = "late-band"
            case _:
                continue
        yield box(0, scene.y(place) - 10, scene.width, 20, kind=kind)


def _fault(scene: Scene, event: Struck, y: float) -> list[str]:
    """A bolt where it struck: at a lane, at a message under way, or at the edge."""
    x = scene.lanes.get(event.participant, scene.time_width + 20)
    if event.number in scene.paths and not event.participant:
        x = scene.paths[event.number].x_at(y)
    text = fitted(note(event, scene.messages), scene.width - x - 30)
    return [pill(x + 14 + width_of(text) / 2, y, text, text_kind="loud"), bolt(x, y)]


def _departure(scene: Scene, message: DrawnMessage, y: float) -> list[str]:
    """A dot and what left, written above the line or, where more lines cross there, on the lane's other
    side.
    """
    x = scene.lanes[message.event.source]
    forward = 1 if scene.lanes[message.event.target] >= x else -1
    text = note(message.event, scene.messages)

    def cost(place: tuple[int, float]) -> tuple[bool, int]:
        return width_of(text) > _room(scene, x, place[0]), crossings(scene, message, *place, text)

    # Above the line on its own side; at mid-row on the other, where no line starts.
    side, baseline = min((forward, y - 4), (-forward, y + 4), key=cost)
    kind = "halo loud" if message.is_struck or message.repeats is not None or message.is_late else "halo"
    return [
        tag("circle", cx=x, cy=y, r=3.2, class_="dot"),
        _beside(scene, x, baseline, side, text, gap=9, kind=kind),
    ]


def _beside(
    scene: Scene, x: float, y: float, side: int, text: str, *, gap: float = 0, kind: str = "halo"
) -> str:
    """Text on one side of `x`, as much of it as has room among the lanes."""
    anchor = "start" if side > 0 else "end"
    return label(x + gap * side, y, fitted(text, _room(scene, x, side)), kind=kind, anchor=anchor)


def _room(scene: Scene, x: float, side: int) -> float:
    """How far a label may reach from a lane before it leaves the lanes."""
    return (scene.lanes_end - x if side > 0 else x - scene.time_width) - 14


def _arrival(scene: Scene, message: DrawnMessage, y: float) -> list[str]:
    """The number after the arrowhead, with the label when it left long ago, and the badge of a late one."""
    x = scene.lanes[message.event.target]
    side = 1 if scene.lanes[message.event.source] < x else -1
    text = arrival_words(message, scene.messages, is_far=scene.is_far(message))
    if not message.is_late:
        return [_beside(scene, x, y + 4, side, text, gap=8)]
    badge = "LATE"
    wide = width_of(badge) + 8
    left = x + 8 if side > 0 else x - 8 - wide
    return [
        box(left, y - 8, wide, 16, kind="badge", rx=3),
        label(left + wide / 2, y + 4, badge, kind="badge-text", anchor="middle"),
        _beside(scene, x + (14 + wide) * side, y + 4, side, text, kind="halo loud"),
    ]


def _loss(scene: Scene, message: DrawnMessage, way: MessagePath) -> list[str]:
    """A cross where the line ends, and why."""
    side = 1 if way.x2 >= way.x1 else -1
    text = _beside(scene, way.x2, way.y2 + 4, side, loss_words(message), gap=10)
    return [cross(way.x2, way.y2), text]


# --- coordinators -------------------------------------------------------------------------------------------

_KINDS = {
    TransactionState.EMPTY: "empty",
    TransactionState.ONGOING: "ongoing",
    TransactionState.PREPARE_COMMIT: "prepare",
    TransactionState.PREPARE_ABORT: "prepare",
    TransactionState.COMPLETE_COMMIT: "complete-commit",
    TransactionState.COMPLETE_ABORT: "complete-abort",
}
_BAR = 10


def bars(scene: Scene) -> Iterator[str]:
    """The stretch of every state that reaches into the drawn part."""
    for transactional_id, x in scene.coordinators.items():
        states = [
            (place, event)
            for place, event in enumerate(scene.history.events)
            if isinstance(event, Coordinated) and event.transactional_id == transactional_id
        ]
        ends = [place for place, _ in states[1:]] + [None]
        for (place, event), end in zip(states, ends, strict=True):
            top, low = scene.y(place), scene.y(end)
            if low > top:
                yield box(x, top, _BAR, low - top, kind=_KINDS[event.record.state])
                if not scene.is_drawn(place):
                    yield label(x + _BAR + 6, top + 10, state_words(event), kind="halo loud")


def _state(scene: Scene, event: Coordinated, y: float) -> list[str]:
    """A line from the node to the bar, and the name of the state."""
    x, node = scene.coordinators[event.transactional_id], scene.lanes.get(event.node)
    name = label(x + _BAR + 6, y + 4, state_words(event), kind="halo loud")
    if node is None:  # its lane is not shown
        return [name]
    return [
        line(node, y, x, y, kind="guide"),
        box(node - 4, y - 4, 8, 8, kind="dot", transform=f"rotate(45 {node:.1f} {y:.1f})"),
        name,
    ]


# --- logs ---------------------------------------------------------------------------------------------------

_BOX = 14
_LETTER_MIN = 9.0  # a narrower cell holds no letter
_WITHOUT_PRODUCER = "#8c959f"  # data without a producer id
_MARKER_SIGNS = {BatchFate.COMMIT_MARKER: ("commit", "C"), BatchFate.ABORT_MARKER: ("abort", "A")}


def hatches() -> str:
    """A hatching in each colour, for data that was aborted."""
    patterns = [
        tag(
            "pattern",
            tag("line", x1=0, y1=0, x2=0, y2=5, stroke=colour, stroke_width="3"),
            id=f"hatch-{place}",
            width=5,
            height=5,
            patternUnits="userSpaceOnUse",
            patternTransform="rotate(45)",
        )
        for place, colour in enumerate(PALETTE)
    ]
    return tag("defs", *patterns)


def grounds(scene: Scene) -> Iterator[str]:
    """What lies under the batches of each lane: the tint between the bounds, and the two bounds as lines."""
    for partition, lane in scene.log_lanes.items():
        log = scene.logs[partition]
        steps = _steps(scene, log, lane)
        yield line(lane.x, scene.top, lane.x, scene.bottom, kind="rule")
        for (top, stable, high), (low, _, _) in pairwise(steps):
            if high > stable and low > top:
                yield box(lane.at(stable), top, lane.at(high) - lane.at(stable), low - top, kind="held-back")
        yield path(_stairs([(y, lane.at(stable)) for y, stable, _ in steps]), kind="lso")
        yield path(_stairs([(y, lane.at(high)) for y, _, high in steps]), kind="hw")


def _steps(scene: Scene, log: DrawnLog, lane: LogLane) -> list[tuple[float, int, int]]:
    """(height, last stable offset, high watermark) from the top of the picture to its end."""
    moves = [(scene.y(place), bound.last_stable_offset, bound.high_watermark) for place, bound in log.bounds]
    above = [move for move in moves if move[0] <= scene.top]
    start = (scene.top, *(above[-1][1:] if above else (lane.first, lane.first)))
    found = [start, *moves[len(above) :]]
    return [*found, (scene.bottom, *found[-1][1:])]


def _stairs(corners: list[tuple[float, float]]) -> list[tuple[float, float]]:
    points = [(corners[0][1], corners[0][0])]
    for y, x in corners[1:]:
        points += [(points[-1][0], y), (x, y)]
    return points


def _append(scene: Scene, batch: DrawnBatch, y: float) -> list[str]:
    """A batch at its offsets, joined to the node that appended it."""
    event, lane = batch.appended, scene.log_lanes[batch.appended.partition]
    text = shortened(batch_words(event), LOG_WORDS_MAX)
    return [
        *_origin(scene, y, event.node, end=lane.at(event.header.base_offset)),
        *_drawn(scene, batch, lane, y),
        label(lane.at(event.header.next_offset) + 7, y + 4, text),
    ]


def _origin(scene: Scene, y: float, node: str, *, end: float) -> list[str]:
    x = scene.lanes.get(node)
    if x is None:  # its lane is not shown
        return []
    return [line(x, y, end, y, kind="guide"), box(x - 4, y - 4, 8, 8, kind="dot")]


def _drawn(scene: Scene, batch: DrawnBatch, lane: LogLane, y: float) -> list[str]:
    """The box of a batch as it ended: filled, hatched, pale or with the letter of its marker."""
    header = batch.appended.header
    x = lane.at(header.base_offset)
    width = lane.at(header.next_offset) - x
    where = (x, y - _BOX / 2, width, _BOX)
    gone = [cross(x + width / 2, y)] if batch.is_gone else []
    if batch.fate in _MARKER_SIGNS:
        kind, letter = _MARKER_SIGNS[batch.fate]
        letters = [label(x + width / 2, y + 4, letter, kind=f"{kind}-letter", anchor="middle")]
        return [box(*where, kind=f"{kind}-marker"), *(letters if width >= _LETTER_MIN else []), *gone]
    place = scene.colours.get(header.producer_id)
    colour = _WITHOUT_PRODUCER if place is None else PALETTE[place]
    more = {"fill": f"url(#hatch-{place})" if batch.fate is BatchFate.ABORTED else colour, "stroke": colour}
    kind = {BatchFate.OPEN: "undecided", BatchFate.PLAIN: "outside"}.get(batch.fate, "decided")
    return [box(*where, kind="paper"), box(*where, kind=kind, **more), *gone]


def feet(scene: Scene) -> Iterator[str]:
    """The whole log of each lane at the end of the run, batch beside batch, below the last row."""
    y = scene.bottom + 24
    for partition, lane in scene.log_lanes.items():
        shown = [
            batch
            for batch in scene.batches[partition].values()
            if not batch.is_gone and batch.appended.header.base_offset >= lane.first
        ]
        inside = [mark for batch in shown for mark in _drawn(scene, batch, lane, y)]
        title = tag("title", f"{partition} at the end: " + ", ".join(_fate(batch) for batch in shown))
        yield tag("g", title, *inside, label(lane.at(lane.end) + 7, y + 4, "at the end", kind="halo small"))


def _fate(batch: DrawnBatch) -> str:
    who = producer(batch.appended.header)
    return f"{offsets(batch.appended)} {batch.fate.value}{f' of {who}' if who else ''}"
