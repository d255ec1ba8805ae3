"""The middle of a picture: a bar per transactional id that shows the state of its transaction over time.

Rule: each state has its own fill and dash, and its name where it begins.
"""

from __future__ import annotations

from collections.abc import Iterator

from fencepost.protocol.terms import TransactionState
from fencepost.simulator.draw.marks import box, label, line
from fencepost.simulator.draw.scene import Scene
from fencepost.simulator.draw.wording import producer
from fencepost.simulator.world.history import Coordinated

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
                    yield label(x + _BAR + 6, top + 10, _name(event), kind="halo loud")


def marks(scene: Scene, place: int, event: Coordinated) -> list[str]:
    """A line from the node to the bar, and the name of the state."""
    x, y = scene.layout.coordinators[event.transactional_id], scene.layout.y(place)
    node = scene.layout.lanes[event.node]
    return [
        line(node, y, x, y, kind="guide"),
        box(node - 4, y - 4, 8, 8, kind="dot", transform=f"rotate(45 {node:.1f} {y:.1f})"),
        label(x + _BAR + 6, y + 4, _name(event), kind="halo loud"),
    ]


def _name(event: Coordinated) -> str:
    return f"{event.state.title} {producer(event)}"
