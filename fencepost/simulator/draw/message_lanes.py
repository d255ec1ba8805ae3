"""The left of a picture: a lifeline per client and node, and the messages between them, slanted as they
travelled.

Rule: a late message is the thickest line there is and says LATE where it comes; a lost one is dashed and
ends in a cross; one under way at the end is grey: nothing went wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fencepost.simulator.draw.layout import TIME_WIDTH
from fencepost.simulator.draw.marks import (
    CHARACTER_WIDTH,
    bolt,
    box,
    cross,
    head,
    label,
    line,
    pill,
    tag,
    width_of,
    words,
)
from fencepost.simulator.draw.message_paths import LOOP, Way, crossings, kind_of
from fencepost.simulator.draw.messages import Message
from fencepost.simulator.draw.scene import Scene
from fencepost.simulator.draw.wording import (
    SILENT_FROM,
    SPEAKS_FROM,
    fault_word,
    note,
    overtakers,
    sentence,
    shortened,
)
from fencepost.simulator.world.history import Arrived, Called, Event, Lost, Sent, Struck

_NEAR = 3  # rows: a message that takes no longer needs no label where it comes


def arrows(scene: Scene, lines: dict[int, Way]) -> Iterator[str]:
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


def _loop(way: Way, *, layout_x: float, kind: str) -> tuple[str, str]:
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


def marks(scene: Scene, place: int, event: Event, lines: dict[int, Way]) -> list[str]:
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


def _departure(scene: Scene, message: Message, y: float, lines: dict[int, Way]) -> list[str]:
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


def _arrival(scene: Scene, message: Message, y: float) -> list[str]:
    """The number behind the arrowhead, with the label when it left long ago, and the badge of a late one."""
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


def _loss(scene: Scene, message: Message, way: Way) -> list[str]:
    """A cross where the line ends, and why."""
    side = 1 if way.x2 >= way.x1 else -1
    room = _room(scene, way.x2, side)
    text = shortened(f"{message.number} lost: {message.because}", int(room / CHARACTER_WIDTH))
    return [
        cross(way.x2, way.y2),
        label(way.x2 + 10 * side, way.y2 + 4, text, anchor="start" if side > 0 else "end"),
    ]
