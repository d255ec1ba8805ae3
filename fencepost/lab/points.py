"""The protocol point of each step: the phrase `when POINT do ...` that strikes exactly there.

Rule: the points are those of the fault injector itself (simulator/faults/protocol_events.py), counted as it
counts them: from the moment at which the faults of a run are planned.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Final

import attrs

from fencepost.faults.grammar import BadPhrase
from fencepost.faults.phrases import POINTS, Point, PointKind
from fencepost.simulator.draw.fates import fault_word
from fencepost.simulator.faults.protocol_events import SAME, Listener, ProtocolEvent, ProtocolEvents
from fencepost.simulator.world.events import Life, LifeChanged, MessageTaken
from fencepost.simulator.world.history import Appended, Called, Coordinated, Sent, Struck
from fencepost.simulator.world.network import Message
from fencepost.simulator.world.recording import Recorder
from fencepost.simulator.world.world import ADMIN, World

_LEAVES: Final = frozenset({PointKind.SENDS, PointKind.SENDS_REPLY, PointKind.ANSWERS})
_ARRIVES: Final = frozenset({PointKind.RECEIVES, PointKind.RECEIVES_REPLY})
_FAULT_WORDS: Final = {
    PointKind.CRASHES: "crash",
    PointKind.DIES: "crash",
    PointKind.RESTARTS: "restart",
    PointKind.PAUSES: "pause",
    PointKind.RESUMES: "resume",
}
"""The first words of the faults that do this."""
_SHOWN_BY: Final = {
    PointKind.DECIDES: Coordinated,
    PointKind.MARKS: Appended,
    PointKind.STORES: Appended,
    PointKind.ENDS_CALL: Called,
    PointKind.READS: Called,
}


def _everybody() -> dict[PointKind, list[Listener]]:
    return {kind: [] for kind in PointKind}


@attrs.define(eq=False)
class StepPoints(ProtocolEvents):
    """Counts every point of a run. `points` are the texts by step."""

    recorder: Recorder = attrs.field(kw_only=True)
    points: dict[int, str] = attrs.field(factory=dict, init=False)
    listeners: dict[PointKind, list[Listener]] = attrs.field(factory=_everybody, init=False)
    counts: Counter[tuple[PointKind, str, str, str]] = attrs.field(factory=Counter, init=False)
    arriving: dict[int, tuple[Message | None, str]] = attrs.field(factory=dict, init=False)
    """The message that arrives and its point, by the identity of the message."""

    @classmethod
    def of(cls, world: World, recorder: Recorder) -> StepPoints:
        """One that does not count yet: attach it after the recorder."""
        return cls(
            world, world.settings.node_settings.transaction_state_log_num_partitions, recorder=recorder
        )

    def attach(self) -> None:
        self.world.events.subscribe(LifeChanged, self._is_ready)
        super().attach()
        self.world.events.subscribe(MessageTaken, self._taken)

    def _is_ready(self, change: LifeChanged) -> None:
        """The faults of a run are planned when its topics exist."""
        if change.participant == ADMIN and change.change is Life.ENDS:
            self.counts.clear()

    def tell(self, event: ProtocolEvent) -> None:
        """Counts the point, and finds its step."""
        who, what, whom = _role(event.who), event.what, _role(event.whom)
        # Without a name on the other side a point means every other side.
        for each in {whom, ""}:
            self.counts[event.kind, who, what, each] += 1
        if not _is_writable(event.kind, who, what, whom):
            return
        number = self.counts[event.kind, who, what, whom]
        point = Point(kind=event.kind, who=who, what=what, whom=whom, number=number)
        if event.kind in _ARRIVES:
            assert event.carried is not None, "what arrives is a message"
            message = event.carried[1]
            self.arriving[id(message)] = (message, str(point))  # kept, so that no other takes its identity
        else:
            step = self._step_of(event)
            if step is not None:
                self.points.setdefault(step, str(point))

    def _step_of(self, event: ProtocolEvent) -> int | None:
        """The newest step that shows this event."""
        events = self.recorder.events
        latest = len(events) - 1
        if latest < 0:
            return None
        shown = events[latest]
        if event.kind in _LEAVES:
            # A reply to a caller that gave up is lost at once, so its loss is the newest step.
            latest -= event.kind is PointKind.ANSWERS and not isinstance(shown, Sent)
            left = events[latest]
            is_it = isinstance(left, Sent) and (left.source, left.target) == (event.who, event.whom)
            return latest if is_it else None
        if event.kind in _FAULT_WORDS:
            return self._strike_of(event.who, _FAULT_WORDS[event.kind])
        kind = _SHOWN_BY.get(event.kind)
        return latest if kind is not None and isinstance(shown, kind) else None

    def _strike_of(self, participant: str, word: str) -> int | None:
        """The newest fault that did this to a participant; what it broke stands after it."""
        events = self.recorder.events
        for place in range(len(events) - 1, -1, -1):
            event = events[place]
            if isinstance(event, Struck) and event.participant == participant:
                return place if fault_word(event) == word else None
        return None

    def _taken(self, taken: MessageTaken) -> None:
        arrived = self.arriving.pop(id(taken.message), None)
        if arrived is not None and id(taken.message) in self.recorder.numbers:
            self.points.setdefault(len(self.recorder.events) - 1, arrived[1])


def _role(name: str) -> str:
    """The name that a fault uses for a participant and for those that replace it."""
    return name.partition(SAME)[0]


@cache
def _is_writable(kind: PointKind, who: str, what: str, whom: str) -> bool:
    """Whether the grammar can write the point: names come from anyone."""
    point = Point(kind=kind, who=who, what=what, whom=whom)
    try:
        return POINTS.read(str(point)) == point
    except BadPhrase:
        return False
