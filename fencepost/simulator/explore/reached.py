"""What the steps of a search came through: a world in which nothing can go wrong proves nothing.

Rule: each step between two worlds counts once, however many ways lead to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import EndTxn
from fencepost.protocol.terms import TransactionResult
from fencepost.simulator.explore.broker import Question
from fencepost.simulator.explore.changes import markers, of_process
from fencepost.simulator.explore.steps import Steps
from fencepost.simulator.explore.worlds import BROKER, FIRST_CLIENT, Action, Kind, World

LATE: Final = "late requests"
LATE_ENDS: Final = "late ends"
LATE_ENDS_REFUSED: Final = "late ends refused"
TOLD: Final = {"commit: ok": "commits", "abort: ok": "aborts"}
MARKERS: Final = {TransactionResult.COMMIT: "commit markers", TransactionResult.ABORT: "abort markers"}
REACHED: Final = (LATE, LATE_ENDS, LATE_ENDS_REFUSED, *TOLD.values(), *MARKERS.values())


Words = Callable[[int, int], Iterable[str]]
Times = defaultdict[tuple[int, int], int]
"""How often one actor went from a state to another, or a message met the broker in a state."""


class Reached:
    """How often each of REACHED has happened. What two states differ in is looked at once, at the end."""

    __slots__ = ("_appended", "_late", "_told", "steps")

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self._late: Times = defaultdict(int)
        self._appended: Times = defaultdict(int)
        self._told: Times = defaultdict(int)

    def counts(self) -> dict[str, int]:
        """By name, in the order of REACHED."""
        counts = dict.fromkeys(REACHED, 0)
        words: tuple[tuple[Times, Words], ...] = (
            (self._late, self._late_words),
            (self._appended, self._marker_words),
            (self._told, self._told_words),
        )
        for times, words_of in words:
            for pair, count in times.items():
                for name in words_of(*pair):
                    counts[name] += count
        return counts

    def count(self, before: World, action: Action, after: World) -> None:
        """One step more."""
        if action.kind is Kind.STRAY:
            self._late[before[BROKER], action.message] += 1
        at = FIRST_CLIENT + 2 * action.client
        if before[BROKER] != after[BROKER]:
            self._appended[before[BROKER], after[BROKER]] += 1
        elif action.client >= 0 and before[at] != after[at]:
            self._told[before[at], after[at]] += 1

    def _late_words(self, broker: int, message: int) -> Iterator[str]:
        yield LATE
        arrived = self.steps.messages[message]
        if isinstance(arrived, Question) and isinstance(arrived.request, EndTxn):
            yield LATE_ENDS
            if self.steps.late_answers.get((broker, message), ErrorCode.NONE) is not ErrorCode.NONE:
                yield LATE_ENDS_REFUSED

    def _marker_words(self, before: int, after: int) -> Iterator[str]:
        ends = markers(self.steps.brokers[before], self.steps.brokers[after])
        return (MARKERS[end] for end in ends)

    def _told_words(self, before: int, after: int) -> Iterator[str]:
        words = of_process(self.steps.processes[before], self.steps.processes[after])
        return (TOLD[word] for word in words if word in TOLD)
