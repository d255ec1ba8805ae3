"""What became of each message of a run: when it left and came, what overtook it, what it repeats.

Rule: all of it is read off the history; a connection keeps its order, so a message that was overtaken has
travelled on a connection of its own, and is worth a mark.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from fencepost.simulator.history import Arrived, Event, Lost, Sent, Struck


@attrs.frozen(kw_only=True)
class Message:
    """One message. `sent`, `arrived`, `lost` are places in the run's events; None: that has not happened.

    `overtaken_by` are the numbers of those that left the same source later and reached the same target first,
    `repeats` is the number of an equal one that was lost or still under way, `is_struck`: a fault hit it.
    """

    number: int
    source: str
    target: str
    label: str
    answers: int | None
    sent: int
    arrived: int | None = None
    lost: int | None = None
    because: str = ""
    overtaken_by: tuple[int, ...] = ()
    repeats: int | None = None
    is_struck: bool = False

    @property
    def is_late(self) -> bool:
        """Whether it came, but after something that was sent later."""
        return self.arrived is not None and bool(self.overtaken_by)

    @property
    def ended(self) -> int | None:
        """The place of the event that ended its way; None: it is under way to the last."""
        return self.lost if self.arrived is None else self.arrived


def follow(events: Iterable[Event]) -> dict[int, Message]:
    """Every message by its number, in the order of leaving; KeyError when one arrives that never left."""
    found: dict[int, Message] = {}
    under_way: dict[tuple[str, str], list[int]] = {}
    for place, event in enumerate(events):
        match event:
            case Sent(number=number, source=source, target=target):
                found[number] = _left(event, place=place, before=found.values())
                under_way.setdefault((source, target), []).append(number)
            case Arrived(number=number):
                message = attrs.evolve(found[number], arrived=place)
                found[number] = message
                waiting = under_way[message.source, message.target]
                for earlier in waiting[: waiting.index(number)]:
                    overtaken = found[earlier]
                    found[earlier] = attrs.evolve(overtaken, overtaken_by=(*overtaken.overtaken_by, number))
                waiting.remove(number)
            case Lost(number=number, because=because):
                message = attrs.evolve(found[number], lost=place, because=because)
                found[number] = message
                under_way[message.source, message.target].remove(number)
            case Struck(number=int(number)):
                found[number] = attrs.evolve(found[number], is_struck=True)
            case _:
                pass
    return found


def _left(event: Sent, *, place: int, before: Iterable[Message]) -> Message:
    route = (event.source, event.target, event.label)
    repeated = [
        message.number
        for message in before
        if message.arrived is None and (message.source, message.target, message.label) == route
    ]
    return Message(
        number=event.number,
        source=event.source,
        target=event.target,
        label=event.label,
        answers=event.answers,
        sent=place,
        repeats=repeated[-1] if repeated else None,
    )
