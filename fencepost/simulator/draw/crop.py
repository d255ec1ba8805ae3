"""A part of a run for a picture: from one step to another, and some of its lanes.

A step is the number of a message, as pictures and tables show it, or a time. What comes after the part has
not happened in the picture: a message that arrives later is under way, and its transaction is undecided.

Rule: messages keep the numbers that they have in the whole run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from fencepost.faults.grammar import UNITS_MS
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
from fencepost.simulator.world.participants import NS_PER_MS

_TIME: Final = re.compile(r"(?P<count>\d+(?:\.\d+)?) ?(?P<unit>ms|s|min)")


class NothingToDraw(ValueError):
    """A crop names a step or a lane that the run does not have."""


@attrs.frozen(kw_only=True)
class Crop:
    """What to draw. `since` and `until` are steps, `only` are lanes by the names at their heads: `p`,
    `node 1`, `txn app`, `log t-0`. Empty means everything.
    """

    since: str = ""
    until: str = ""
    only: tuple[str, ...] = ()

    def of(self, history: History) -> tuple[History, int]:
        """The part, and the place of its first event that gets a row: those before it are only remembered.

        NothingToDraw if the run has no such step or lane.
        """
        events = history.events
        first = self._first(events) if self.since else 0
        end = self._end(events) if self.until else len(events)
        if first >= end:
            between = f"{self.since or 'its start'} and {self.until or 'its end'}"
            raise NothingToDraw(f"the run has nothing between {between}")
        if self.since or self.until:
            history = attrs.evolve(history, lesson="")  # it tells the whole story, and its end
        if end < len(events):
            history = attrs.evolve(history, events=events[:end], end=events[end - 1].at, broken=())
        if not self.only:
            return history, first
        lanes = lanes_of(history)
        if unknown := [lane for lane in self.only if lane not in lanes]:
            raise NothingToDraw(f"the run has no lane {unknown[0]!r}; its lanes are {', '.join(lanes)}")
        kept = list(_kept(history.events, frozenset(self.only)))
        first = sum(place < first for place, _ in kept)
        return attrs.evolve(
            history,
            participants=tuple(lane for lane in history.participants if lane in self.only),
            events=tuple(event for _, event in kept),
        ), first

    def _first(self, events: Sequence[Event]) -> int:
        at = _time(self.since)
        if at is not None:
            return next((place for place, event in enumerate(events) if event.at >= at), len(events))
        number = _number(self.since, events)
        return next(
            place for place, event in enumerate(events) if isinstance(event, Sent) and event.number == number
        )

    def _end(self, events: Sequence[Event]) -> int:
        at = _time(self.until)
        if at is not None:
            return next((place for place, event in enumerate(events) if event.at > at), len(events))
        number = _number(self.until, events)
        ends = (
            place + 1
            for place, event in enumerate(events)
            if isinstance(event, Arrived | Lost) and event.number == number
        )
        return next(ends, len(events))


def lanes_of(history: History) -> list[str]:
    """The lanes of a picture, by the names at their heads."""
    found = dict.fromkeys(history.participants)
    for event in history.events:
        match event:
            case Coordinated():
                found[f"txn {event.transactional_id}"] = None
            case Appended() | Bounded() | Truncated():
                found[f"log {event.partition}"] = None
            case _:
                pass
    return list(found)


def _time(step: str) -> int | None:
    """The time in nanoseconds; None for the number of a message. NothingToDraw if it is neither."""
    if step.isdecimal():
        return None
    match = _TIME.fullmatch(step.strip())
    if match is None:
        raise NothingToDraw(f"{step!r} is not a step: give the number of a message, or a time such as 3.8ms")
    return round(float(match["count"]) * UNITS_MS[match["unit"]] * NS_PER_MS)


def _number(step: str, events: Sequence[Event]) -> int:
    number, last = int(step), max((event.number for event in events if isinstance(event, Sent)), default=0)
    if not 1 <= number <= last:
        raise NothingToDraw(f"the run has no message {number}: its messages are 1 to {last}")
    return number


def _kept(events: Sequence[Event], lanes: frozenset[str]) -> Iterator[tuple[int, Event]]:
    """The events in these lanes, with their places. A message needs both of its ends."""
    hidden: set[int | None] = set()
    for place, event in enumerate(events):
        match event:
            case Sent():
                is_kept = {event.source, event.target} <= lanes
                if not is_kept:
                    hidden.add(event.number)
            case Arrived() | Lost():
                is_kept = event.number not in hidden
            case Struck(participant=""):
                is_kept = event.number not in hidden
            case Struck() | Called():
                is_kept = event.participant in lanes
            case Coordinated():
                is_kept = f"txn {event.transactional_id}" in lanes
            case Appended() | Bounded() | Truncated():
                is_kept = f"log {event.partition}" in lanes
        if is_kept:
            yield place, event
