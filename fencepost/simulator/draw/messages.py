"""What became of each message of a run: when it left and came, what overtook it, what it repeats.

Rule: all of it is read off the history; a connection keeps its order, so a message that was overtaken has
travelled on a connection of its own, and is worth a mark.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from fencepost.simulator.world.history import Arrived, Event, Lost, Sent, Struck


@attrs.frozen(kw_only=True)
class Message:
    """One message. `sent`, `arrived`, `lost` are places in the run's events; None: that has not happened.

    `overtaken_by` are the numbers of those that left the same source later and reached the same target first,
    `repeats` is the number of the equal one before it: a request that had no answer by then, or an answer to
    it that did not come; `is_struck`: a fault hit it.
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
    latest: dict[tuple[str, str, str], int] = {}  # by source, target and label
    under_way: dict[tuple[str, str], list[int]] = {}
    answered: set[int] = set()
    for place, event in enumerate(events):
        match event:
            case Sent(number=number):
                same = (event.source, event.target, event.label)
                earlier = latest.get(same)
                is_again = earlier is not None and (
                    earlier not in answered
                    if event.answers is None
                    else found[earlier].arrived is None and found[event.answers].repeats is not None
                )
                found[number] = _left(event, place=place, repeats=earlier if is_again else None)
                latest[same] = number
                under_way.setdefault((event.source, event.target), []).append(number)
            case Arrived(number=number):
                found[number] = message = attrs.evolve(found[number], arrived=place)
                _overtake(found, message, under_way[message.source, message.target])
                if message.answers is not None:
                    answered.add(message.answers)
            case Lost(number=number, because=because):
                found[number] = message = attrs.evolve(found[number], lost=place, because=because)
                under_way[message.source, message.target].remove(number)
            case Struck(number=int(number)):
                found[number] = attrs.evolve(found[number], is_struck=True)
            case _:
                pass
    return found


def _overtake(found: dict[int, Message], message: Message, waiting: list[int]) -> None:
    """A message has come: whatever left before it on the same way and has not come is overtaken."""
    for number in waiting[: waiting.index(message.number)]:
        overtaken = found[number]
        found[number] = attrs.evolve(overtaken, overtaken_by=(*overtaken.overtaken_by, message.number))
    waiting.remove(message.number)


def _left(event: Sent, *, place: int, repeats: int | None) -> Message:
    return Message(
        number=event.number,
        source=event.source,
        target=event.target,
        label=event.label,
        answers=event.answers,
        sent=place,
        repeats=repeats,
    )
