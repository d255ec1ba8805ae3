"""The right of a picture: a lane per partition, offsets to the right and time downwards.

Rule: a batch stands in the row of its append, at its offsets, and looks as it ended: aborted data is
hatched. The foot of the lane shows the whole log at the end. Between last stable offset and high watermark
the ground is tinted: data that a read_committed reader may not see yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from fencepost.protocol.terms import NO_PRODUCER_ID
from fencepost.simulator.draw.layout import LogLane
from fencepost.simulator.draw.logs import Batch, Fate, Log, has_lane
from fencepost.simulator.draw.marks import PALETTE, box, cross, label, line, path, tag
from fencepost.simulator.draw.scene import Scene
from fencepost.simulator.draw.wording import content, offsets, producer, shortened
from fencepost.simulator.world.history import Appended, Bounded, Truncated

_BOX = 14
_LETTER_MIN = 9.0  # a narrower cell holds no letter
_WORDS_MAX = 23
_NOBODYS = "#8c959f"  # data without a producer id
_MARKERS = {Fate.COMMIT_MARKER: ("commit", "C"), Fate.ABORT_MARKER: ("abort", "A")}


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


def _steps(scene: Scene, log: Log, lane: LogLane) -> list[tuple[float, int, int]]:
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


def marks(scene: Scene, place: int, event: Appended | Bounded | Truncated) -> list[str]:
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


def _drawn(scene: Scene, batch: Batch, lane: LogLane, y: float) -> list[str]:
    """The box of a batch as it ended: filled, hatched, pale or with the letter of its marker."""
    event = batch.appended
    x, width = lane.at(event.base_offset), lane.at(event.next_offset) - lane.at(event.base_offset)
    where = (x, y - _BOX / 2, width, _BOX)
    gone = [cross(x + width / 2, y)] if batch.is_gone else []
    if batch.fate in _MARKERS:
        kind, letter = _MARKERS[batch.fate]
        letters = [label(x + width / 2, y + 4, letter, kind=f"{kind}-letter", anchor="middle")]
        return [box(*where, kind=f"{kind}-marker"), *(letters if width >= _LETTER_MIN else []), *gone]
    place = scene.colours.get(event.producer_id)
    colour = _NOBODYS if place is None else PALETTE[place]
    more = {"fill": f"url(#hatch-{place})" if batch.fate is Fate.ABORTED else colour, "stroke": colour}
    kind = {Fate.OPEN: "undecided", Fate.PLAIN: "outside"}.get(batch.fate, "decided")
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


def _fate(batch: Batch) -> str:
    event = batch.appended
    who = "" if event.producer_id == NO_PRODUCER_ID else f" of {producer(event)}"
    return f"{offsets(event)} {batch.fate.value}{who}"
