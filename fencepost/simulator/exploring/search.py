"""`explore`: every world that a configuration can come to, breadth first, until one of them is wrong.

Rule: no chance and no clock. What is found first is reached by the fewest steps; what is not found in a
complete search does not exist within the bounds of the configuration.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

import attrs

from fencepost.broker.settings import NodeSettings
from fencepost.broker.transaction_tables import GENERATIONS
from fencepost.client.dialects import DIALECTS
from fencepost.client.producer import ProducerMachine
from fencepost.client.settings import ProducerSettings
from fencepost.protocol.terms import TransactionResult
from fencepost.simulator.exploring.broker import Answer, Broker
from fencepost.simulator.exploring.process import TOPIC, Plan, Process, Stage
from fencepost.simulator.exploring.steps import Steps
from fencepost.simulator.exploring.trace import TraceStep, tell
from fencepost.simulator.exploring.verdicts import Contents, Finding, Violation, contents_of, judge
from fencepost.simulator.exploring.wires import NO_WIRES, Inner
from fencepost.simulator.exploring.worlds import BROKER, FIRST_CLIENT, Action, World, Worlds
from fencepost.simulator.history import History

Report = Callable[[int, int], None]
"""Told from time to time how many states are known, and how many of them are still to be looked at."""

REPORT_EVERY: Final = 10_000
NEVER_MS: Final = 10**12  # no client ever gives up on a record: that is not among the faults of these worlds
INTRODUCTION_STEPS_MAX: Final = 100


@attrs.frozen(kw_only=True)
class ExploreConfig:
    """The bounds of a world. `retries` is how often each client gives up a connection."""

    producers: int = 1
    transactions: int = 2
    retries: int = 1
    partitions: int = 1
    transaction_version: int = 2
    partition_verification: bool | None = None
    """Whether partition leaders ask the coordinator about older clients' batches (KIP-890 part 1); None:
    not in version 0, as KIP-98 was shipped.
    """
    crashes: int = 0
    ends: tuple[TransactionResult, ...] = (TransactionResult.COMMIT, TransactionResult.ABORT)
    broken: frozenset[str] = frozenset()
    max_states: int = 1_000_000

    @property
    def verifies(self) -> bool:
        """Whether partition leaders ask before they append."""
        return (
            self.transaction_version > 0
            if self.partition_verification is None
            else self.partition_verification
        )


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


class _Search:
    """One search: the worlds in the order in which they were met, and where each came from."""

    def __init__(self, config: ExploreConfig) -> None:
        self.config = config
        self.steps = Steps()
        self.worlds = Worlds(self.steps, config.producers)
        self.numbers: dict[World, int] = {}
        self.found: list[World] = []
        self.parents = array("q")
        self.transitions = 0
        self.ends = 0
        self._contents: list[Contents] = []
        self._verdicts: dict[tuple[int, int], Finding | None] = {}

    def run(self, report: Report | None) -> Explored:
        wrong = self._add(root(self.config, self.steps), -1)
        at = 0
        while wrong is None and at < len(self.found) <= self.config.max_states:
            wrong = self._expand(at)
            at += 1
            if report is not None and at % REPORT_EVERY == 0:
                report(len(self.found), len(self.found) - at)
        path = [] if wrong is None else self._path(len(self.found) - 1)
        telling = tell(self.worlds, self.found[0], path)
        return Explored(
            violation=None if wrong is None else wrong.violation.value,
            because="" if wrong is None else wrong.because,
            trace=telling.steps,
            history=telling.history("the shortest way there"),
            states=len(self.found),
            transitions=self.transitions,
            complete=wrong is None and at == len(self.found),
            core_steps=self.steps.taken,
            ends=self.ends,
        )

    def _expand(self, at: int) -> Finding | None:
        before = self.transitions
        for _, world in self.worlds.after(self.found[at]):
            self.transitions += 1
            if world not in self.numbers:
                wrong = self._add(world, at)
                if wrong is not None:
                    return wrong
        return self._end(self.found[at]) if self.transitions == before else None

    def _add(self, world: World, parent: int) -> Finding | None:
        self.numbers[world] = len(self.found)
        self.found.append(world)
        self.parents.append(parent)
        contents = self._contents_of(world[BROKER])
        if contents.finding is not None:
            return contents.finding
        for at in range(FIRST_CLIENT, len(world), 2):
            key = (world[BROKER], world[at])
            if key not in self._verdicts:
                self._verdicts[key] = judge(contents, self.steps.processes[world[at]].attempts)
            wrong = self._verdicts[key]
            if wrong is not None:
                return wrong
        return None

    def _contents_of(self, broker: int) -> Contents:
        for number in range(len(self._contents), broker + 1):
            self._contents.append(contents_of(self.steps.brokers[number]))
        return self._contents[broker]

    def _end(self, world: World) -> Finding | None:
        """Nothing can happen any more."""
        self.ends += 1
        if self._contents_of(world[BROKER]).is_open:
            return Finding(Violation.HANGING, "nothing is left to happen, and a transaction is still open")
        return None

    def _path(self, at: int) -> list[tuple[Action, World]]:
        """From the first world to this one; the steps are taken once more, for only worlds were kept."""
        path: list[tuple[Action, World]] = []
        while self.parents[at] >= 0:
            ways = self.worlds.after(self.found[self.parents[at]])
            path.append(next(way for way in ways if way[1] == self.found[at]))
            at = self.parents[at]
        return path[::-1]


def explore(config: ExploreConfig, *, report: Report | None = None) -> Explored:
    """Searches every world of `config`, breadth first, and stops at the first that is wrong."""
    return _Search(config).run(report)


# --- where it begins -------------------------------------------------------------------------------------


def root(config: ExploreConfig, steps: Steps) -> World:
    """Every client has its identity and knows whom to ask; nothing is on its way."""
    settings = NodeSettings(
        port=1,
        generation=GENERATIONS[config.transaction_version],
        partition_verification=config.verifies,
        broken=config.broken,
        transaction_state_log_num_partitions=1,
        offsets_topic_num_partitions=1,
    )
    broker = Broker.started(settings, TOPIC, config.partitions)
    plan = Plan(transactions=config.transactions, partitions=config.partitions, ends=config.ends)
    world: tuple[int, ...] = ()
    for number in range(config.producers):
        process = _process(f"p{number}", config, plan)
        _introduce(broker, process)
        [process] = process.go_on()
        wires = NO_WIRES
        state, sent = steps.keep_process(process)
        wires = wires.sent(sent)
        world += (state, steps.wires.number(wires, wires))
    return (steps.keep_broker(broker), steps.inners.number(Inner(), Inner()), config.crashes, *world)


def _process(name: str, config: ExploreConfig, plan: Plan) -> Process:
    # Version 1 changed the log alone: its clients speak as those of version 0 do.
    dialect = max(version for version in DIALECTS if version <= config.transaction_version)
    settings = ProducerSettings(
        transactional_id=name, linger_ms=0, delivery_timeout_ms=NEVER_MS, transaction_version=dialect
    )
    machine = ProducerMachine("127.0.0.1:1", settings)
    return Process(name=name, machine=machine, plan=plan, retries=config.retries)


def _introduce(broker: Broker, process: Process) -> None:
    """Messages are delivered at once, in order, until the client knows all that it needs."""
    process.start()
    for _ in range(INTRODUCTION_STEPS_MAX):
        if process.stage is not Stage.STARTING:
            return
        if not process.sent:
            process.wake()
            continue
        node, question = process.sent.pop(0)
        for _, answer in broker.settle(broker.receive(question, 1)):
            assert isinstance(answer, Answer), "a client is asked nothing"
            process.hear(node, answer)
    raise AssertionError(f"{process.name} never got its identity")
