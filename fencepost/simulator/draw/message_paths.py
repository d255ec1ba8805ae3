"""The line that each message takes through a picture, and what it runs into.

Rule: a line goes straight from where and when the message left to where and when it came; one that never came
breaks off on the way.
"""

from __future__ import annotations

import attrs

from fencepost.simulator.draw.marks import width_of
from fencepost.simulator.draw.messages import Message
from fencepost.simulator.draw.scene import Scene

_LOST_AT = 0.6  # of the way: where the cross stands
_UNDER_WAY_AT = 0.45
LOOP = 34  # how far a node's message to itself swings out


@attrs.frozen
class Way:
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


def ways(scene: Scene) -> dict[int, Way]:
    """The line of each message of which something is drawn, by number."""
    layout = scene.layout
    found: dict[int, Way] = {}
    for message in scene.messages.values():
        if message.ended is not None and not scene.is_drawn(message.ended):
            continue
        start, end = layout.lanes[message.source], layout.lanes[message.target]
        share = (
            1.0 if message.arrived is not None else _LOST_AT if message.lost is not None else _UNDER_WAY_AT
        )
        reach = (end - start if end != start else LOOP) * share
        found[message.number] = Way(start, layout.y(message.sent), start + reach, layout.y(message.ended))
    return found


def kind_of(message: Message) -> str:
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
    scene: Scene, message: Message, x: float, side: int, *, text: str, baseline: float, lines: dict[int, Way]
) -> int:
    """How many other messages and lifelines run through a label's box."""
    ends = sorted((x + 8 * side, x + (8 + width_of(text)) * side))
    top, low = baseline - 9, baseline + 2
    hit = sum(
        number != message.number and way.crosses(ends[0], ends[1], top=top, low=low)
        for number, way in lines.items()
    )
    return hit + sum(ends[0] <= lane <= ends[1] for lane in scene.layout.lanes.values())
