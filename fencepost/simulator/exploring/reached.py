"""What the steps of a search came through: a world in which nothing can go wrong proves nothing.

Rule: each step between two worlds counts once, however many ways lead to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import EndTxn
from fencepost.protocol.terms import TransactionResult
from fencepost.simulator.exploring.broker import Question
from fencepost.simulator.exploring.changes import of_broker, of_process
from fencepost.simulator.exploring.steps import Steps
from fencepost.simulator.exploring.worlds import BROKER, FIRST_CLIENT, Action, Kind, World
from fencepost.simulator.history import Appended

LATE: Final = "late requests"
LATE_ENDS: Final = "late ends"
LATE_ENDS_REFUSED: Final = "late ends refused"
TOLD: Final = {"commit: ok": "commits", "abort: ok": "aborts"}
MARKERS: Final = {TransactionResult.COMMIT: "commit markers", TransactionResult.ABORT: "abort markers"}
REACHED: Final = (LATE, LATE_ENDS, LATE_ENDS_REFUSED, *TOLD.values(), *MARKERS.values())


Pair = tuple[int, int]
"""Two states of one actor, or a state of the broker and the message that meets it."""
Words = Callable[[int, int], Iterable[str]]


class Reached:
    """How often each of REACHED has happened. What two states differ in is looked at once."""

    __slots__ = ("_appended", "_late", "_told", "counts", "steps")

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.counts = dict.fromkeys(REACHED, 0)
        self._late: dict[Pair, tuple[str, ...]] = {}
        self._appended: dict[Pair, tuple[str, ...]] = {}
        self._told: dict[Pair, tuple[str, ...]] = {}

    def count(self, before: World, action: Action, after: World) -> None:
        """One step more."""
        if action.kind is Kind.STRAY:
            self._add(self._late, (before[BROKER], action.message), self._late_words)
        if before[BROKER] != after[BROKER]:
            self._add(self._appended, (before[BROKER], after[BROKER]), self._marker_words)
        at = FIRST_CLIENT + 2 * action.client
        if action.client >= 0 and before[at] != after[at]:
            self._add(self._told, (before[at], after[at]), self._told_words)

    def _add(self, known: dict[Pair, tuple[str, ...]], pair: Pair, words: Words) -> None:
        names = known.get(pair)
        if names is None:
            names = known[pair] = tuple(words(*pair))
        for name in names:
            self.counts[name] += 1

    def _late_words(self, broker: int, message: int) -> Iterator[str]:
        yield LATE
        arrived = self.steps.messages[message]
        if isinstance(arrived, Question) and isinstance(arrived.request, EndTxn):
            yield LATE_ENDS
            if self.steps.late_answers.get((broker, message), ErrorCode.NONE) is not ErrorCode.NONE:
                yield LATE_ENDS_REFUSED

    def _marker_words(self, before: int, after: int) -> Iterator[str]:
        for change in of_broker(self.steps.brokers[before], self.steps.brokers[after], at=0):
            if isinstance(change, Appended) and change.result is not None:
                yield MARKERS[change.result]

    def _told_words(self, before: int, after: int) -> Iterator[str]:
        words = of_process(self.steps.processes[before], self.steps.processes[after])
        return (TOLD[word] for word in words if word in TOLD)
