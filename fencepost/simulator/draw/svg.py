"""A run as one SVG: lanes with slanted messages, the states of transactions, the logs with markers and
bounds.

Rule: the same history gives the same bytes; nothing outside the file is needed to look at it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fencepost.simulator.draw.canvas import (
    PALETTE,
    STYLE,
    box,
    cross,
    head,
    label,
    line,
    tag,
    width_of,
    words,
)
from fencepost.simulator.draw.lanes import (
    MessagePath,
    arrows,
    bands,
    bars,
    coordinator_marks,
    feet,
    grounds,
    hatches,
    lifelines,
    log_marks,
    message_marks,
    paths_of,
)
from fencepost.simulator.draw.layout import BROKEN_LINE, EVENTS_MAX, LESSON_LINE, TIME_WIDTH, Scene
from fencepost.simulator.draw.wording import milliseconds
from fencepost.simulator.world.history import Appended, Bounded, Coordinated, Event, History, Truncated

_FEET_HEIGHT = 58
_LEGEND_LINE = 22


def draw(history: History, *, events_max: int = EVENTS_MAX) -> str:
    """The picture; of a run with more than `events_max` events its last part, which the picture then says."""
    scene = Scene.of(history, events_max=events_max)
    layout = scene.layout
    signs = list(_legend(layout.width, top=layout.bottom + _FEET_HEIGHT))
    width, height = layout.width, layout.bottom + _FEET_HEIGHT + _LEGEND_LINE * signs[-1][0]
    lines = paths_of(scene)
    inside = [
        tag("title", words(history.title)),
        *([tag("desc", words(history.lesson))] if history.lesson else []),
        tag("style", words(STYLE)),
        hatches(),
        box(0, 0, width, height, kind="paper"),
        *bands(scene),
        *lifelines(scene),
        *grounds(scene),
        *bars(scene),
        *arrows(scene, lines),
        *_names(scene),
        *_rows(scene, lines),
        *_broken(scene),
        *feet(scene),
        *(sign for _, sign in signs),
    ]
    return (
        tag(
            "svg",
            "\n",
            *(f"{element}\n" for element in inside),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width:.0f} {height:.0f}",
            width=f"{width:.0f}",
            height=f"{height:.0f}",
            role="img",
        )
        + "\n"
    )


def _names(scene: Scene) -> Iterator[str]:
    """The title, what is left out, and the name above each lane."""
    layout = scene.layout
    yield label(12, 22, scene.history.title, kind="title")
    for place, text in enumerate(scene.lesson):
        yield label(12, 40 + LESSON_LINE * place, text, kind="lesson")
    if layout.first:
        count = len(scene.history.events)
        text = (
            f"the last {count - layout.first:,} of {count:,} events: the first {layout.first:,} are not drawn"
        )
        yield label(12, layout.top - 38, text, kind="loud")
    y = layout.top - 12
    for lane, x in layout.lanes.items():
        yield label(x, y, lane, kind="halo name", anchor="middle")
    for transactional_id, x in layout.coordinators.items():
        yield label(x, y, f"txn {transactional_id}", kind="halo name")
    for partition, lane in layout.logs.items():
        yield label(lane.x, y, f"log {partition}", kind="halo name")


def _rows(scene: Scene, lines: dict[int, MessagePath]) -> Iterator[str]:
    """Every event that is drawn, each with its time where that has moved on."""
    before = ""
    for place, event in scene.drawn():
        time = milliseconds(event.at)
        said = (
            [label(TIME_WIDTH - 10, scene.layout.y(place) + 4, time, kind="small", anchor="end")]
            if time != before
            else []
        )
        before = time
        kind = f"event of-{type(event).__name__.lower()}"
        yield scene.told(place, *said, *_marks(scene, place, event, lines), kind=kind)
    y = scene.layout.bottom
    yield label(TIME_WIDTH - 10, y + 4, f"{milliseconds(scene.history.end)} ms", kind="small", anchor="end")


def _broken(scene: Scene) -> Iterator[str]:
    """What was broken, and how, across the whole picture below the last event."""
    for place, text in enumerate(scene.broken):
        y = scene.layout.last + BROKEN_LINE * place
        band = box(0, y - BROKEN_LINE / 2, scene.layout.width, BROKEN_LINE, kind="broken-band")
        is_first = place == 0 or any(told.startswith(text) for told in scene.history.broken)
        sign = [cross(TIME_WIDTH - 20, y)] if is_first else []
        yield tag("g", band, *sign, label(TIME_WIDTH - 10, y + 4, text, kind="broken"), class_="breach")


def _marks(scene: Scene, place: int, event: Event, lines: dict[int, MessagePath]) -> list[str]:
    match event:
        case Appended() | Bounded() | Truncated():
            return log_marks(scene, place, event)
        case Coordinated():
            return coordinator_marks(scene, place, event)
        case _:
            return message_marks(scene, place, event, lines)


def _legend(width: float, *, top: float) -> Iterator[tuple[int, str]]:
    """One sample of each sign at the foot, in as many lines as it takes: (number of the line, sign)."""
    x, row = 12.0, 1
    for name, sample in _samples():
        wide = 36 + width_of(name)
        if x + wide > width and x > 12:
            x, row = 12.0, row + 1
        y = top + _LEGEND_LINE * (row - 1)
        moved = tag("g", sample, transform=f"translate({x:.1f} {y:.1f})")
        yield row, moved + label(x + 36, y + 4, name, kind="small")
        x += wide + 12


def _samples() -> Iterator[tuple[str, str]]:
    for name, kind in (("message", "message"), ("again", "again"), ("late", "late")):
        yield name, line(0, 0, 30, 0, kind=kind) + head(30, 0, from_x=0, from_y=0, kind=f"head-{kind}")
    yield "lost", line(0, 0, 22, 0, kind="lost") + cross(26, 0)
    yield "under way at the end", line(0, 0, 30, 0, kind="under-way")
    ink = PALETTE[0]
    for name, kind, fill in (
        ("committed", "decided", ink),
        ("aborted", "decided", "url(#hatch-0)"),
        ("undecided", "undecided", ink),
        ("no transaction", "outside", ink),
    ):
        yield name, box(8, -7, 22, 14, kind=kind, fill=fill, stroke=ink)
    yield "LSO", line(0, 0, 30, 0, kind="lso")
    yield "high watermark", line(0, 0, 30, 0, kind="hw")
    yield "held back", box(4, -7, 26, 14, kind="held-back")
    yield "producer id 0, epoch 2", label(4, 4, "0/2", kind="")
    yield "at offset 0", label(10, 4, "@0", kind="")
