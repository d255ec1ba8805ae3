"""`explore`: every world that a configuration can come to, breadth first, until one of them is wrong.

Rule: no chance and no clock. What is found first is reached by the fewest steps; what is not found in a
complete search does not exist within the bounds of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

import attrs

from fencepost.simulator.explore.beginning import ExploreConfig, root
from fencepost.simulator.explore.reached import Reached
from fencepost.simulator.explore.steps import Steps
from fencepost.simulator.explore.symmetry import Symmetry
from fencepost.simulator.explore.trace import TraceStep, tell
from fencepost.simulator.explore.verdicts import Contents, Finding, Violation, contents_of, judge, shown_by
from fencepost.simulator.explore.worlds import BROKER, FIRST_CLIENT, Action, World, Worlds
from fencepost.simulator.world.history import History

Report = Callable[[int, int], None]
"""Told from time to time how many states are known, and how many of them are still to be looked at."""

REPORT_EVERY: Final = 1_000
NO_PARENT: Final = -1


@attrs.frozen(kw_only=True)
class Explored:
    """What came of a search."""

    violation: str | None
    because: str
    trace: tuple[TraceStep, ...]
    """The shortest way there, when something was found."""
    history: History
    states: int
    transitions: int
    complete: bool
    core_steps: int
    """How often a real core took a step; all else was looked up."""
    ends: int
    """Worlds in which every client is done and nothing is on its way."""
    reached: dict[str, int]
    """How many of the steps came through what: late requests, commits, markers (REACHED)."""


class Search:
    """One search: the worlds in the order in which they were met, and where each came from."""

    def __init__(self, config: ExploreConfig) -> None:
        self.config = config
        self.steps = Steps()
        self.worlds = Worlds(self.steps, config.producers)
        self.root = root(config, self.steps)
        self.symmetry = Symmetry(self.steps, config.producers if config.symmetry else 1, self.root)
        self.found: list[World] = []
        self.parents: dict[World, int] = {}
        """Of every world that was found, which of them led to it first."""
        self.transitions = 0
        self.ends = 0
        self.reached = Reached(self.steps)
        self._contents: dict[int, Contents] = {}
        self._read, self._judge = cache(contents_of), cache(judge)
        self._right: set[tuple[int, int]] = set()
        """States of the broker and of a process that may be at the same time."""

    def run(self, report: Report | None) -> Explored:
        """All of it, or as far as the bound or something wrong lets it come."""
        at, wrong, wrong_at = 0, self._add(self.symmetry.canonical(self.root), NO_PARENT), 0
        while wrong is None and at < len(self.found) <= self.config.max_states:
            wrong, wrong_at = self._expand(at)
            at += 1
            if report is not None and at % REPORT_EVERY == 0:
                report(len(self.found), len(self.found) - at)
        return self._explored(wrong, wrong_at, complete=wrong is None and at == len(self.found))

    def so_far(self) -> Explored:
        """What there is to tell of a search that was ended from outside, while it ran."""
        return self._explored(None, 0, complete=False)

    def _explored(self, wrong: Finding | None, wrong_at: int, *, complete: bool) -> Explored:
        telling = tell(self.worlds, self.root, [] if wrong is None else self._path(wrong_at))
        return Explored(
            violation=None if wrong is None else wrong.violation.value,
            because="" if wrong is None else wrong.because,
            trace=telling.steps,
            history=telling.history("the shortest way there"),
            states=len(self.found),
            transitions=self.transitions,
            complete=complete,
            core_steps=self.steps.taken,
            ends=self.ends,
            reached=self.reached.counts(),
        )

    def wrong(self, world: World) -> Finding | None:
        """What may not be, in this world alone."""
        broker = world[BROKER]
        for process in world[FIRST_CLIENT::2]:
            if (broker, process) not in self._right:
                contents = self._contents_of(broker)
                finding = contents.finding or self._judge(contents, self.steps.processes[process].attempts)
                if finding is not None:
                    return finding
                self._right.add((broker, process))
        return None

    def _contents_of(self, broker: int) -> Contents:
        if broker not in self._contents:
            self._contents[broker] = self._read(shown_by(self.steps.brokers[broker]))
        return self._contents[broker]

    def _add(self, world: World, parent: int) -> Finding | None:
        self.found.append(world)
        self.parents[world] = parent
        return self.wrong(world)

    def _expand(self, at: int) -> tuple[Finding | None, int]:
        """Every world that this one leads to; what is wrong, and in which."""
        before = self.transitions
        here = self.found[at]
        for action, way in self.worlds.after(here):
            world = self.symmetry.canonical(way)
            self.transitions += 1
            self.reached.count(here, action, way)
            if world not in self.parents:
                wrong = self._add(world, at)
                if wrong is not None:
                    return wrong, len(self.found) - 1
        if self.transitions == before:
            self.ends += 1
            return self._hanging(self.found[at]), at
        return None, at

    def _hanging(self, world: World) -> Finding | None:
        """Nothing can happen any more: no record may be left undecided."""
        if self._contents_of(world[BROKER]).is_open:
            return Finding(Violation.HANGING, "nothing is left to happen, and a transaction is still open")
        return None

    def _path(self, at: int) -> list[tuple[Action, World]]:
        """From the root to this world, or to one of those that count as the same: only worlds were kept, so
        the steps are taken once more.
        """
        chain: list[World] = []
        while (parent := self.parents[self.found[at]]) != NO_PARENT:
            chain.append(self.found[at])
            at = parent
        path: list[tuple[Action, World]] = []
        here = self.root
        for target in reversed(chain):
            path.append(next(w for w in self.worlds.after(here) if self.symmetry.canonical(w[1]) == target))
            here = path[-1][1]
        return path


def explore(config: ExploreConfig, *, report: Report | None = None) -> Explored:
    """Searches every world of `config`, breadth first, and stops at the first that is wrong."""
    return Search(config).run(report)
