"""A run as slides of 16:9: the rows of the picture, as many on each slide as fit.

A slide is a window on the whole picture, below the names of the lanes and above the legend. What is under way
or in force where one slide ends goes on at the top of the next.

Rule: a slide is as wide as the lanes, so fewer lanes mean larger type. Of a long lesson and a long legend it
shows what fits into a quarter each, so that there is room for rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fencepost.simulator.draw.canvas import label, tag
from fencepost.simulator.draw.layout import EVENTS_MAX, HEAD, LESSON_LINE, Scene
from fencepost.simulator.draw.svg import FEET_HEIGHT, LEGEND_LINE, body, document, lane_names, legend
from fencepost.simulator.world.history import History

WIDTH: Final = 1_920  # pixels
_RATIO: Final = 9 / 16
_WIDTH_MIN: Final = 780  # units: a narrower picture would have larger type than a slide needs
_HEAD: Final = 50  # title and names of the lanes
_BELOW: Final = 10  # what belongs to a row below its middle
_MARGIN: Final = 8


def slides(history: History, *, first: int = 0, scale: float = 1.0) -> list[str]:
    """The slides, each a whole SVG file."""
    scene = Scene(history, first=max(first, len(history.events) - EVENTS_MAX))
    width = max(scene.width, _WIDTH_MIN)
    height = width * _RATIO
    lines = int(height / 4 / LEGEND_LINE)
    signs = [sign for sign in legend(scene, top=0) if sign[0] <= lines]
    scene.lesson = scene.lesson[: int(height / 4 / LESSON_LINE)]
    foot = LEGEND_LINE * (signs[-1][0] if signs else 0) + _MARGIN
    pages = list(_pages(scene, room=height - foot))
    found: list[str] = []
    for number, (head, top, low) in enumerate(pages, start=1):
        scene.window = (top, low)
        place = f" · {number} / {len(pages)}" if len(pages) > 1 else ""
        lesson = scene.lesson if number == 1 else []
        inside = [
            label(12, 22, history.title + place, kind="title"),
            *(label(12, 40 + LESSON_LINE * at, text, kind="lesson") for at, text in enumerate(lesson)),
            *lane_names(scene, y=head - 12),
            _window(scene, head=head, width=width),
            tag("g", *(sign for _, sign in signs), transform=f"translate(0 {height - foot + 14:.1f})"),
        ]
        found.append(document(history, inside, width=width, height=height, scale=scale * WIDTH / width))
    return found


def _window(scene: Scene, *, head: float, width: float) -> str:
    top, low = scene.window
    return tag(
        "svg",
        *body(scene),
        x=0,
        y=head,
        width=width,
        height=low - top,
        viewBox=f"0 {top:.1f} {width:.1f} {low - top:.1f}",
    )


def _pages(scene: Scene, *, room: float) -> Iterator[tuple[float, float, float]]:
    """For each slide the height of its head, and the part of the picture below it. A slide ends after the
    last row that fits; the first has the lesson in its head.
    """
    head = max(_HEAD, HEAD + LESSON_LINE * len(scene.lesson) - 20) if scene.lesson else float(_HEAD)
    ends = [y + _BELOW for y in scene.rows] + [scene.bottom + FEET_HEIGHT - LEGEND_LINE]
    top = scene.top
    while top < ends[-1]:
        fitting = [end for end in ends if top < end <= top + room - head]
        low = fitting[-1] if fitting else top + room - head
        yield head, top, low
        head, top = float(_HEAD), low
