"""What stands in the lanes of a picture, from left to right:

messages      a lifeline per participant, and the messages between them, slanted as they travelled. A late
              message is the thickest line and says LATE where it arrives; a lost one is dashed and ends
              in a cross; one under way at the end is grey, since nothing went wrong with it
coordinators  a bar per transactional id with the state of its transaction over time
logs          a lane per partition, offsets to the right, time downwards. A batch is in the row of its
              append, at its offsets, and looks as it ended: aborted data is hatched. The ground between
              last stable offset and high watermark is tinted: read_committed readers may not see it yet
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import attrs

from fencepost.protocol.terms import NO_PRODUCER_ID, TransactionState
from fencepost.simulator.draw.canvas import (
    CHARACTER_WIDTH,
    PALETTE,
    bolt,
    box,
    cross,
    head,
    label,
    line,
    path,
    pill,
    tag,
    width_of,
    words,
)
from fencepost.simulator.draw.fates import BatchFate, DrawnBatch, DrawnLog, DrawnMessage, has_lane
from fencepost.simulator.draw.layout import TIME_WIDTH, LogLane, Scene
from fencepost.simulator.draw.wording import (
    SILENT_FROM,
    SPEAKS_FROM,
    content,
    fault_word,
    note,
    offsets,
    overtakers,
    producer,
    sentence,
    shortened,
)
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

# --- the paths of messages ----------------------------------------------------------------------------------

_LOST_AT = 0.6  # of the way: where the cross stands
_UNDER_WAY_AT = 0.45
LOOP = 34  # how far a node's message to itself swings out


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


def paths_of(scene: Scene) -> dict[int, MessagePath]:
    """The line of each message of which something is drawn, by number."""
    layout = scene.layout
    found: dict[int, MessagePath] = {}
    for message in scene.messages.values():
        if message.ended is not None and not scene.is_drawn(message.ended):
            continue
        start, end = layout.lanes[message.source], layout.lanes[message.target]
        share = (
            1.0 if message.arrived is not None else _LOST_AT if message.lost is not None else _UNDER_WAY_AT
        )
        reach = (end - start if end != start else LOOP) * share
        found[message.number] = MessagePath(
            start, layout.y(message.sent), start + reach, layout.y(message.ended)
        )
    return found


def kind_of(message: DrawnMessage) -> str:
    """How a message is drawn, by what became of it."""
    if message.ended is None:
        return "under-way"
    if message.lost is not None:
        return "lost"
    if message.is_late:
        return "late"
    if message.repeats is not None:
        return "again"
    return "message" if message.answers is None else "answer"


def crossings(
    scene: Scene,
    message: DrawnMessage,
    x: float,
    side: int,
    *,
    text: str,
    baseline: float,
    lines: dict[int, MessagePath],
) -> int:
    """How many other messages and lifelines run through a label's box."""
    ends = sorted((x + 8 * side, x + (8 + width_of(text)) * side))
    top, low = baseline - 9, baseline + 2
    hit = sum(
        number != message.number and way.crosses(ends[0], ends[1], top=top, low=low)
        for number, way in lines.items()
    )
    return hit + sum(ends[0] <= lane <= ends[1] for lane in scene.layout.lanes.values())


# --- participants and messages ------------------------------------------------------------------------------

_NEAR = 3  # rows: a message that takes no longer needs no label where it comes


def arrows(scene: Scene, lines: dict[int, MessagePath]) -> Iterator[str]:
    """Each message as an arrow, the ordinary ones first, so that the others lie on top."""
    order = sorted(lines, key=lambda number: scene.messages[number].is_late)
    for number in order:
        message, way = scene.messages[number], lines[number]
        kind = kind_of(message)
        title = tag("title", words(sentence(scene.history.events[message.sent], scene.messages)))
        if message.source == message.target and message.arrived is not None:
            yield tag("g", title, *_loop(way, layout_x=scene.layout.lanes[message.source], kind=kind))
            continue
        marks = [line(way.x1, way.y1, way.x2, way.y2, kind=kind)]
        if message.arrived is not None:
            marks.append(head(way.x2, way.y2, from_x=way.x1, from_y=way.y1, kind=f"head-{kind}"))
        yield tag("g", title, *marks)


def _loop(way: MessagePath, *, layout_x: float, kind: str) -> tuple[str, str]:
    """A node's message to itself: out to the right and back."""
    lane, out = f"{layout_x:.1f}", f"{layout_x + LOOP:.1f}"
    start, end = f"{way.y1:.1f}", f"{way.y2:.1f}"
    curve = f"M{lane} {start}C{out} {start} {out} {end} {lane} {end}"
    return (
        tag("path", d=curve, class_=kind),
        head(layout_x, way.y2, from_x=layout_x + 8, from_y=way.y2 - 2, kind=f"head-{kind}"),
    )


def lifelines(scene: Scene) -> Iterator[str]:
    """Each lane from top to bottom, broken where it is crashed or paused."""
    layout = scene.layout
    for lane, x in layout.lanes.items():
        since, is_silent = layout.top, False
        for place, event in enumerate(scene.history.events):
            if not isinstance(event, Struck) or event.participant != lane:
                continue
            word = fault_word(event)
            if word in SILENT_FROM | SPEAKS_FROM:
                yield from _stretch(x, since, layout.y(place), is_silent=is_silent)
                since, is_silent = layout.y(place), word in SILENT_FROM
        yield from _stretch(x, since, layout.bottom, is_silent=is_silent)


def _stretch(x: float, top: float, low: float, *, is_silent: bool) -> Iterator[str]:
    if low > top:
        if is_silent:
            yield box(x - 9, top, 18, low - top, kind="silence")
        yield line(x, top, x, low, kind="silent" if is_silent else "lifeline")


def bands(scene: Scene) -> Iterator[str]:
    """A stripe across the whole picture for each fault and each late arrival: the eye follows it to the
    logs.
    """
    layout = scene.layout
    for place, event in scene.drawn():
        match event:
            case Struck():
                kind = "fault-band"
            case Arrived(number=number) if scene.messages[number].is_late:
                kind = "late-band"
            case _:
                continue
        yield box(0, layout.y(place) - 10, layout.width, 20, kind=kind)


def message_marks(scene: Scene, place: int, event: Event, lines: dict[int, MessagePath]) -> list[str]:
    """What stands in the lanes for one event; nothing for one that is drawn further right."""
    y = scene.layout.y(place)
    match event:
        case Sent(number=number):
            return _departure(scene, scene.messages[number], y, lines)
        case Arrived(number=number):
            return _arrival(scene, scene.messages[number], y)
        case Lost(number=number):
            return _loss(scene, scene.messages[number], lines[number])
        case Called(participant=lane):
            return [pill(scene.layout.lanes[lane], y, event.label)]
        case Struck(number=number):
            x = scene.layout.lanes.get(event.participant, TIME_WIDTH + 20)
            if number is not None and not event.participant:
                x = lines[number].x_at(y) if number in lines else x
            text = note(event, scene.messages)
            return [pill(x + 14 + width_of(text) / 2, y, text, text_kind="loud"), bolt(x, y)]
        case _:
            return []


def _departure(scene: Scene, message: DrawnMessage, y: float, lines: dict[int, MessagePath]) -> list[str]:
    """A dot and what left, written above the line or, where more lines cross there, on the lane's other
    side.
    """
    x = scene.layout.lanes[message.source]
    forward = 1 if scene.layout.lanes[message.target] >= x else -1
    words_ = note(scene.history.events[message.sent], scene.messages)
    # Above the line on its own side; at mid-row on the other, where no line starts.
    places = [(forward, y - 4), (-forward, y + 4)]
    rooms = [_room(scene, x, side) for side, _ in places]
    costs = [
        (crossings(scene, message, x, side, text=words_, baseline=low, lines=lines), width_of(words_) > room)
        for (side, low), room in zip(places, rooms, strict=True)
    ]
    best = 1 if (costs[1][1], costs[1][0]) < (costs[0][1], costs[0][0]) else 0
    side, baseline = places[best]
    text = shortened(words_, int(rooms[best] / CHARACTER_WIDTH))
    kind = "halo loud" if message.is_struck or message.repeats is not None or message.is_late else "halo"
    return [
        tag("circle", cx=x, cy=y, r=3.2, class_="dot"),
        label(x + 9 * side, baseline, text, kind=kind, anchor="start" if side > 0 else "end"),
    ]


def _room(scene: Scene, x: float, side: int) -> float:
    """How far a label may reach from a lane before it leaves the lanes."""
    return (scene.layout.lanes_end - x if side > 0 else x - TIME_WIDTH) - 14


def _arrival(scene: Scene, message: DrawnMessage, y: float) -> list[str]:
    """The number after the arrowhead, with the label when it left long ago, and the badge of a late one."""
    x = scene.layout.lanes[message.target]
    came_from_left = scene.layout.lanes[message.source] < x
    side = 1 if came_from_left else -1
    place = message.sent if message.arrived is None else message.arrived
    text = f"{message.number}"
    if place - message.sent > _NEAR:
        text = f"{message.number} {message.label}"
    anchor = "start" if side > 0 else "end"
    if message.is_late:
        badge = "LATE"
        wide = width_of(badge) + 8
        left = x + 8 if side > 0 else x - 8 - wide
        text = f"{text}, {overtakers(message, scene.messages)}"
        return [
            box(left, y - 8, wide, 16, kind="badge", rx=3),
            label(left + wide / 2, y + 4, badge, kind="badge-text", anchor="middle"),
            label(x + (14 + wide) * side, y + 4, text, kind="halo loud", anchor=anchor),
        ]
    room = _room(scene, x, side)
    return [label(x + 8 * side, y + 4, shortened(text, int(room / CHARACTER_WIDTH)), anchor=anchor)]


def _loss(scene: Scene, message: DrawnMessage, way: MessagePath) -> list[str]:
    """A cross where the line ends, and why."""
    side = 1 if way.x2 >= way.x1 else -1
    room = _room(scene, way.x2, side)
    text = shortened(f"{message.number} lost: {message.because}", int(room / CHARACTER_WIDTH))
    return [
        cross(way.x2, way.y2),
        label(way.x2 + 10 * side, way.y2 + 4, text, anchor="start" if side > 0 else "end"),
    ]


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
    layout = scene.layout
    for transactional_id, x in layout.coordinators.items():
        states = [
            (place, event)
            for place, event in enumerate(scene.history.events)
            if isinstance(event, Coordinated) and event.transactional_id == transactional_id
        ]
        ends = [place for place, _ in states[1:]] + [None]
        for (place, event), end in zip(states, ends, strict=True):
            top, low = layout.y(place), layout.y(end)
            if low > top:
                yield box(x, top, _BAR, low - top, kind=_KINDS[event.state])
                if not scene.is_drawn(place):
                    yield label(x + _BAR + 6, top + 10, _state_name(event), kind="halo loud")


def coordinator_marks(scene: Scene, place: int, event: Coordinated) -> list[str]:
    """A line from the node to the bar, and the name of the state."""
    x, y = scene.layout.coordinators[event.transactional_id], scene.layout.y(place)
    node = scene.layout.lanes[event.node]
    return [
        line(node, y, x, y, kind="guide"),
        box(node - 4, y - 4, 8, 8, kind="dot", transform=f"rotate(45 {node:.1f} {y:.1f})"),
        label(x + _BAR + 6, y + 4, _state_name(event), kind="halo loud"),
    ]


def _state_name(event: Coordinated) -> str:
    return f"{event.state.title} {producer(event)}"


# --- logs ---------------------------------------------------------------------------------------------------

_BOX = 14
_LETTER_MIN = 9.0  # a narrower cell holds no letter
_WORDS_MAX = 23
_WITHOUT_PRODUCER = "#8c959f"  # data without a producer id
_MARKER_SIGNS = {BatchFate.COMMIT_MARKER: ("commit", "C"), BatchFate.ABORT_MARKER: ("abort", "A")}


def hatches() -> str:
    """A hatching in each colour, for data that was aborted."""
    return tag(
        "defs",
        *(
            tag(
                "pattern",
                line(0, 0, 0, 5, kind="").replace(' class=""', f' stroke="{colour}" stroke-width="3"'),
                id=f"hatch-{place}",
                width=5,
                height=5,
                patternUnits="userSpaceOnUse",
                patternTransform="rotate(45)",
            )
            for place, colour in enumerate(PALETTE)
        ),
    )


def grounds(scene: Scene) -> Iterator[str]:
    """What lies under the batches of each lane: the tint between the bounds, and the two bounds as lines."""
    for partition, lane in scene.layout.logs.items():
        log = scene.logs[partition]
        steps = _steps(scene, log, lane)
        yield line(lane.x, scene.layout.top, lane.x, scene.layout.bottom, kind="rule")
        for (top, stable, high), (low, _, _) in pairwise(steps):
            if high > stable and low > top:
                yield box(lane.at(stable), top, lane.at(high) - lane.at(stable), low - top, kind="held-back")
        yield path(_stairs([(y, lane.at(stable)) for y, stable, _ in steps]), kind="lso")
        yield path(_stairs([(y, lane.at(high)) for y, _, high in steps]), kind="hw")


def _steps(scene: Scene, log: DrawnLog, lane: LogLane) -> list[tuple[float, int, int]]:
    """(height, last stable offset, high watermark) from the top of the picture to its end."""
    layout = scene.layout
    moves = [(layout.y(place), bound.last_stable_offset, bound.high_watermark) for place, bound in log.bounds]
    above = [move for move in moves if move[0] <= layout.top]
    start = (layout.top, *(above[-1][1:] if above else (lane.first, lane.first)))
    found = [start, *moves[len(above) :]]
    return [*found, (layout.bottom, *found[-1][1:])]


def _stairs(corners: list[tuple[float, float]]) -> list[tuple[float, float]]:
    points = [(corners[0][1], corners[0][0])]
    for y, x in corners[1:]:
        points += [(points[-1][0], y), (x, y)]
    return points


def log_marks(scene: Scene, place: int, event: Appended | Bounded | Truncated) -> list[str]:
    """What stands in the lane for one event; an append is joined to the node that made it."""
    y = scene.layout.y(place)
    if not has_lane(event.partition):
        return _elsewhere(scene, y, event)
    lane = scene.layout.logs[event.partition]
    match event:
        case Appended():
            batch = scene.logs[event.partition].batches[place]
            text = " ".join(filter(None, (offsets(event), content(event), producer(event))))
            return [
                *_origin(scene, y, event.node, end=lane.at(event.base_offset)),
                *_drawn(scene, batch, lane, y),
                label(lane.at(event.next_offset) + 7, y + 4, shortened(text, _WORDS_MAX)),
            ]
        case Bounded():
            text = f"LSO {event.last_stable_offset} HW {event.high_watermark}"
            held = "halo small loud" if event.last_stable_offset < event.high_watermark else "halo small"
            return [label(lane.at(event.high_watermark) + 7, y + 4, text, kind=held)]
        case Truncated():
            return [
                *_origin(scene, y, event.node, end=lane.at(event.next_offset)),
                cross(lane.at(event.next_offset), y),
                label(lane.at(event.next_offset) + 9, y + 4, f"truncated to {event.next_offset}"),
            ]


def _elsewhere(scene: Scene, y: float, event: Appended | Bounded | Truncated) -> list[str]:
    """The logs without a lane are named at their node."""
    if isinstance(event, Bounded):
        return []
    x = scene.layout.lanes[event.node]
    text = f"[{event.partition} {offsets(event) if isinstance(event, Appended) else 'truncated'}]"
    return [box(x - 4, y - 4, 8, 8, kind="dot"), label(x + 9, y + 4, text, kind="halo small")]


def _origin(scene: Scene, y: float, node: str, *, end: float) -> list[str]:
    x = scene.layout.lanes[node]
    return [line(x, y, end, y, kind="guide"), box(x - 4, y - 4, 8, 8, kind="dot")]


def _drawn(scene: Scene, batch: DrawnBatch, lane: LogLane, y: float) -> list[str]:
    """The box of a batch as it ended: filled, hatched, pale or with the letter of its marker."""
    event = batch.appended
    x, width = lane.at(event.base_offset), lane.at(event.next_offset) - lane.at(event.base_offset)
    where = (x, y - _BOX / 2, width, _BOX)
    gone = [cross(x + width / 2, y)] if batch.is_gone else []
    if batch.fate in _MARKER_SIGNS:
        kind, letter = _MARKER_SIGNS[batch.fate]
        letters = [label(x + width / 2, y + 4, letter, kind=f"{kind}-letter", anchor="middle")]
        return [box(*where, kind=f"{kind}-marker"), *(letters if width >= _LETTER_MIN else []), *gone]
    place = scene.colours.get(event.producer_id)
    colour = _WITHOUT_PRODUCER if place is None else PALETTE[place]
    more = {"fill": f"url(#hatch-{place})" if batch.fate is BatchFate.ABORTED else colour, "stroke": colour}
    kind = {BatchFate.OPEN: "undecided", BatchFate.PLAIN: "outside"}.get(batch.fate, "decided")
    return [box(*where, kind="paper"), box(*where, kind=kind, **more), *gone]


def feet(scene: Scene) -> Iterator[str]:
    """The whole log of each lane at the end of the run, batch beside batch, below the last row."""
    y = scene.layout.bottom + 24
    for partition, lane in scene.layout.logs.items():
        log = scene.logs[partition]
        shown = [b for b in log.batches.values() if not b.is_gone and b.appended.base_offset >= lane.first]
        inside = [mark for batch in shown for mark in _drawn(scene, batch, lane, y)]
        title = tag("title", f"{partition} at the end: " + ", ".join(_fate(batch) for batch in shown))
        yield tag("g", title, *inside, label(lane.at(lane.end) + 7, y + 4, "at the end", kind="halo small"))


def _fate(batch: DrawnBatch) -> str:
    event = batch.appended
    who = "" if event.producer_id == NO_PRODUCER_ID else f" of {producer(event)}"
    return f"{offsets(event)} {batch.fate.value}{who}"
