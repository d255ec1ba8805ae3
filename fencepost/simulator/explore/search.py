"""`explore`: visits every state of a small world, breadth first, and stops at the first that is wrong.

Rule: no randomness and no clock. A violation is reached by the fewest steps; after a complete search that
found none, there is none within the bounds of the configuration.
"""

# Theory of operation
#
# A world is one broker, a few clients and their connections. Each is the real core (broker/dispatch.py,
# client/producer.py) driven by a fixed script: begin, send one record per partition, commit or abort. The
# explorer takes every step that could come next, from every state:
#
#        p0 ──requests──▶ ┌────────┐ ──to itself──┐     a request or a reply arrives   a client times out
#        p0 ◀──replies─── │ broker │ ◀────────────┘     a broken connection is noticed  a pause is over
#        p1 ──requests──▶ └────────┘                    a request of an old connection arrives, late
#                                                       the broker crashes and restarts
#
# State. A world is a tuple of small integers (worlds.py): the numbers of the broker's state, of each client's
# state and of its connections. A state gets its number by its fingerprint (protocol/fork.py): tickets and
# tokens are ranked, and times are reduced to due or not due. Otherwise no two paths would ever meet.
#
# Interning (steps.py). What an actor does depends on its own state and on what reaches it. So each pair of
# state number and message number runs through the core once and is then looked up. A search with 8,000
# transitions takes about 1,600 steps of a real core.
#
# Symmetry (worlds.py). Clients with the same script are interchangeable: of the worlds that differ only in
# which client is which, one stands for all.
#
# Soundness. Nothing is missed as long as equal fingerprints mean equal futures. This is tested, not assumed:
# the tests step two brokers with equal fingerprints and compare, visit the same worlds in reverse order, and
# search depth first for a shorter way (tests/simulator/test_forking.py, test_exploring.py). What these worlds
# leave out: disk failures, more than one node, and every effect of how long something takes.
#
# Checks. In each world verdicts.py reads the logs and compares them with what the clients were told: G1a,
# lost writes, torn transactions, duplicates, wrong bounds for readers; in a final world, a transaction that
# is still open. A search that meets none of the dangerous steps proves nothing, so trace.py counts
# them.

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import Final

import attrs

from fencepost.simulator.draw.svg import draw
from fencepost.simulator.explore.broker import ExploreConfig, ExploredBroker, ReplyInFlight
from fencepost.simulator.explore.history import PathWatch, history_of
from fencepost.simulator.explore.process import ExploredClient, ScriptStage
from fencepost.simulator.explore.scenario import scenario_of
from fencepost.simulator.explore.steps import LOOPBACK, NOTHING_SENT, Steps
from fencepost.simulator.explore.trace import ExploredCoverage, path_in_words
from fencepost.simulator.explore.verdicts import (
    AnomalyKind,
    DecidedRecords,
    ExploredAnomaly,
    contents_of,
    judge,
    shown_by,
)
from fencepost.simulator.explore.worlds import BROKER, FIRST_CLIENT, Symmetry, Transition, World, Worlds
from fencepost.simulator.failure import failure_of
from fencepost.simulator.scenarios.model import Scenario
from fencepost.simulator.world.history import History

INTRODUCTION_STEPS_MAX: Final = 100


def root(config: ExploreConfig, steps: Steps) -> World:
    """The first world: the cores themselves created the topic and granted producer ids; each script has sent
    its first requests.
    """
    broker = ExploredBroker.started(config)
    world: tuple[int, ...] = ()
    for number in range(config.producers):
        process = ExploredClient.of(f"p{number}", config)
        _introduce(broker, process)
        [process] = process.go_on()
        state, sent = steps.keep_process(process)
        wires = NOTHING_SENT
        for place, message in sent:
            wires = wires.sent(place, message)
        world += (state, steps.wires.number(wires))
    return (steps.keep_broker(broker), steps.wires.number(LOOPBACK), config.crashes, *world)


def _introduce(broker: ExploredBroker, process: ExploredClient) -> None:
    """Deliver messages at once and in order until the client has its producer id."""
    process.start()
    for _ in range(INTRODUCTION_STEPS_MAX):
        if process.stage is not ScriptStage.STARTING:
            return
        if not process.sent:
            process.wake()
            continue
        node, question = process.sent.pop(0)
        for _, reply in broker.settle(broker.receive(question, 1)):
            assert isinstance(reply, ReplyInFlight), "a client is asked nothing"
            process.hear(node, reply)
    raise AssertionError(f"{process.name} got no producer id within {INTRODUCTION_STEPS_MAX} steps")


Report = Callable[[int, int], None]
"""Called now and then with the number of known states, and of those that are not expanded yet."""

REPORT_EVERY: Final = 1_000


@attrs.frozen(kw_only=True)
class Explored:
    """The result of a search. `violation`: the rule that a state broke, or None; `because` says how.
    `states`, `transitions`: how many were checked. `complete`: every reachable state was checked. `config`:
    the bounds of the search.
    """

    violation: str | None
    because: str
    trace: tuple[str, ...] = attrs.field(repr=lambda trace: f"<{len(trace)} steps>")
    """The shortest path to the violation, if one was found: a line for each step."""
    states: int
    transitions: int
    complete: bool
    core_steps: int
    """How many steps a real core took; all others were looked up."""
    ends: int
    """Final worlds: every client is done and no message is in flight."""
    reached: dict[str, int]
    """How many steps there were of each kind: late requests, commits, markers (REACHED)."""
    config: ExploreConfig = attrs.field(repr=False)
    retell: Callable[[PathWatch], History] | None = attrs.field(repr=False, eq=False)
    """Makes the history of the trace, when a violation was found."""

    @property
    def history(self) -> History | None:
        """The trace as pictures show it, when a violation was found."""
        return None if self.retell is None else self.retell(PathWatch())

    @property
    def command(self) -> str:
        """The command that repeats the search."""
        return f"fencepost explore{self.config}"

    def scenario(self) -> Scenario | None:
        """A scenario that violates the same rule. None if nothing was found, or if the trace depends on an
        order of messages that the faults of scenarios cannot bring about.
        """
        if self.history is None or self.violation is None:
            return None
        lesson = f"{self.because}. Found by `{self.command}`, in a trace of {len(self.trace)} steps."
        return scenario_of(self.history, self.config, self.violation, lesson)

    def raise_if_failed(self) -> None:
        """Raises SimulationFailed if a violation was found, or if not every state was checked."""
        if self.violation is not None:
            what = f"{self.violation}: {self.because}, after {len(self.trace)} steps"
            raise failure_of([what], self.history, [f"replay: {self.command} --text"])
        if not self.complete:
            raise failure_of(
                [f"no violation in {self.states:,} states, but the search ended before it checked all"],
                None,
                [f"replay: {self.command}"],
            )

    def _repr_svg_(self) -> str | None:
        """The trace, for notebooks."""
        return None if self.history is None else draw(self.history)


class StateSearch:
    """One search: the worlds that wait to be expanded, and the parent of each that was met."""

    def __init__(self, config: ExploreConfig) -> None:
        self.config = config
        self.steps = Steps()
        self.worlds = Worlds(self.steps, config.producers)
        self.root = root(config, self.steps)
        # With crashes there is no symmetry: a broker that recovers sends in the order of its logs, and mirror
        # images differ in that order.
        is_symmetric = config.symmetry and not config.crashes
        self.symmetry = Symmetry(self.steps, config.producers if is_symmetric else 1, self.root)
        self.waiting: deque[World] = deque()
        self.parents: dict[World, World | None] = {}
        """For every known world, the one that first led to it."""
        self.anomaly: ExploredAnomaly | None = None
        self.wrong_world: World | None = None
        """The world with the anomaly."""
        self.transitions = 0
        self.ends = 0
        self.is_full = False
        """Whether there are more states than `max_states`."""
        self.reached = ExploredCoverage(self.steps)
        self._contents_of = cache(self._read_logs)
        self._read, self._judge = cache(contents_of), cache(judge)
        self._right: set[tuple[int, int]] = set()
        """Pairs of broker state and client state that were checked and found right."""

    def run(self, report: Report | None = None) -> Explored:
        """Search to the end, to the bound, or to the first violation."""
        self._add(self.symmetry.canonical(self.root), None)
        expanded = 0
        while self.anomaly is None and self.waiting:
            self._expand(self.waiting[0])
            if self.is_full:
                break
            self.waiting.popleft()  # only now, so that a search that is interrupted is never complete
            expanded += 1
            if report is not None and expanded % REPORT_EVERY == 0:
                report(len(self.parents), len(self.waiting))
        return self.so_far()

    def so_far(self) -> Explored:
        """The result; of a search that is interrupted, the result up to there."""
        wrong, path = self.anomaly, self._path()
        return Explored(
            violation=None if wrong is None else wrong.violation.value,
            because="" if wrong is None else wrong.because,
            trace=path_in_words(self.worlds, self.root, path),
            config=self.config,
            retell=None if wrong is None else partial(self._history, wrong, path),
            states=len(self.parents),
            transitions=self.transitions,
            complete=wrong is None and not self.waiting,
            core_steps=self.steps.taken,
            ends=self.ends,
            reached=self.reached.counts(),
        )

    def _history(
        self, wrong: ExploredAnomaly, path: list[tuple[Transition, World]], watch: PathWatch
    ) -> History:
        title = f"{wrong.violation.value} in transaction version {self.config.transaction_version}"
        broken = (f"{wrong.violation.value}: {wrong.because}",)
        return history_of(self.worlds, self.root, path, title=title, broken=broken, watch=watch)

    def wrong(self, world: World) -> ExploredAnomaly | None:
        broker = world[BROKER]
        # What one client can observe depends on the broker and on itself, so pairs are judged, and most are
        # known.
        for process in world[FIRST_CLIENT::2]:
            if (broker, process) not in self._right:
                contents = self._contents_of(broker)
                finding = contents.finding or self._judge(contents, self.steps.processes[process].attempts)
                if finding is not None:
                    return finding
                self._right.add((broker, process))
        return None

    def _read_logs(self, broker: int) -> DecidedRecords:
        return self._read(shown_by(self.steps.brokers[broker]))

    def _add(self, world: World, parent: World | None) -> None:
        self.waiting.append(world)
        self.parents[world] = parent
        self._stop_at(self.wrong(world), world)

    def _stop_at(self, anomaly: ExploredAnomaly | None, world: World) -> None:
        if anomaly is not None:
            self.anomaly, self.wrong_world = anomaly, world

    def _expand(self, here: World) -> None:
        """Add every successor of a world, up to the first that is wrong or has no room."""
        before = self.transitions
        for action, way in self.worlds.after(here):
            world = self.symmetry.canonical(way)
            is_new = world not in self.parents
            self.is_full = is_new and len(self.parents) == self.config.max_states
            if self.is_full:
                return
            self.transitions += 1
            self.reached.count(here, action, way)
            if is_new:
                self._add(world, here)
                if self.anomaly is not None:
                    return
        if self.transitions == before:
            self.ends += 1
            if self._contents_of(here[BROKER]).is_open:
                because = "no step is left, and a transaction is still open"
                self._stop_at(ExploredAnomaly(AnomalyKind.HANGING, because), here)

    def _path(self) -> list[tuple[Transition, World]]:
        """The path from the root to the wrong world or to its mirror image; empty if none is wrong. Only
        worlds were kept, so the steps are taken again.
        """
        chain: list[World] = []
        at = self.wrong_world
        while at is not None:
            chain.append(at)
            at = self.parents[at]
        path: list[tuple[Transition, World]] = []
        here = self.root
        for target in reversed(chain[:-1]):
            path.append(next(w for w in self.worlds.after(here) if self.symmetry.canonical(w[1]) == target))
            here = path[-1][1]
        return path


def explore(config: ExploreConfig) -> Explored:
    """Search every world of `config` breadth first, and stop at the first violation."""
    return StateSearch(config).run()
