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

from collections.abc import Callable
from functools import cache
from typing import Final

import attrs

from fencepost.broker.kafka_fixes import ALL_FIXES, KafkaFixes
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS
from fencepost.client.producer import ProducerMachine
from fencepost.client.settings import ProducerSettings, newest_dialect
from fencepost.protocol.terms import TransactionResult
from fencepost.simulator.explore.broker import ExploredBroker, ReplyInFlight
from fencepost.simulator.explore.process import TOPIC, ExploredClient, ScriptPlan, ScriptStage
from fencepost.simulator.explore.steps import LOOPBACK, NOTHING_SENT, Steps
from fencepost.simulator.explore.trace import ExploredCoverage, told
from fencepost.simulator.explore.verdicts import (
    AnomalyKind,
    DecidedRecords,
    ExploredAnomaly,
    contents_of,
    judge,
    shown_by,
)
from fencepost.simulator.explore.worlds import BROKER, FIRST_CLIENT, Symmetry, Transition, World, Worlds
from fencepost.simulator.fuzz.plan import verifies

NEVER_MS: Final = 10**12  # delivery timeouts are not among the faults of these worlds
INTRODUCTION_STEPS_MAX: Final = 100


@attrs.frozen(kw_only=True)
class ExploreConfig:
    """The bounds of a world. `retries` is how often each client may time out and reconnect."""

    producers: int = 1
    transactions: int = 2
    retries: int = 1
    partitions: int = 1
    transaction_version: int = 2
    partition_verification: bool | None = None
    """Whether partition leaders verify older clients' batches with the coordinator (KIP-890 part 1); None: in
    every version but 0, which is KIP-98 as shipped.
    """
    crashes: int = 0
    ends: tuple[TransactionResult, ...] = (TransactionResult.COMMIT, TransactionResult.ABORT)
    broken: frozenset[str] = frozenset()
    fixes: KafkaFixes = ALL_FIXES
    symmetry: bool = True
    """Count worlds that differ only in which producer is which as one."""
    max_states: int = 1_000_000

    @property
    def verifies(self) -> bool:
        """Whether partition leaders verify before they append."""
        return verifies(self.transaction_version, self.partition_verification)


def root(config: ExploreConfig, steps: Steps) -> World:
    """The first world: the cores themselves created the topic and granted producer ids; each script has sent
    its first requests.
    """
    settings = NodeSettings(
        port=1,
        transaction_version=TRANSACTION_VERSIONS[config.transaction_version],
        partition_verification=config.verifies,
        broken=config.broken,
        fixes=config.fixes,
        transaction_state_log_num_partitions=1,
        offsets_topic_num_partitions=1,
    )
    broker = ExploredBroker.started(settings, TOPIC, config.partitions, may_die=config.crashes > 0)
    plan = ScriptPlan(transactions=config.transactions, partitions=config.partitions, ends=config.ends)
    world: tuple[int, ...] = ()
    for number in range(config.producers):
        process = _process(f"p{number}", config, plan)
        _introduce(broker, process)
        [process] = process.go_on()
        state, sent = steps.keep_process(process)
        wires = NOTHING_SENT
        for place, message in sent:
            wires = wires.sent(place, message)
        world += (state, steps.wires.number(wires))
    return (steps.keep_broker(broker), steps.wires.number(LOOPBACK), config.crashes, *world)


def _process(name: str, config: ExploreConfig, plan: ScriptPlan) -> ExploredClient:
    settings = ProducerSettings(
        transactional_id=name,
        linger_ms=0,
        delivery_timeout_ms=NEVER_MS,
        transaction_version=newest_dialect(config.transaction_version),
    )
    machine = ProducerMachine("127.0.0.1:1", settings)
    return ExploredClient(name=name, machine=machine, plan=plan, retries=config.retries)


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
        for _, answer in broker.settle(broker.receive(question, 1)):
            assert isinstance(answer, ReplyInFlight), "a client is asked nothing"
            process.hear(node, answer)
    raise AssertionError(f"{process.name} got no producer id within {INTRODUCTION_STEPS_MAX} steps")


Report = Callable[[int, int], None]
"""Called now and then with the number of known states, and of those that are not expanded yet."""

REPORT_EVERY: Final = 1_000
NO_PARENT: Final = -1


@attrs.frozen(kw_only=True)
class Explored:
    """The result of a search."""

    violation: str | None
    because: str
    trace: tuple[str, ...]
    """The shortest way to the violation, when one was found: a line for each step."""
    states: int
    transitions: int
    complete: bool
    core_steps: int
    """How many steps a real core took; all others were looked up."""
    ends: int
    """Final worlds: every client is done and no message is in flight."""
    reached: dict[str, int]
    """How many steps did what: late requests, commits, markers (REACHED)."""


class StateSearch:
    """One search: the worlds in the order of discovery, and the parent of each."""

    def __init__(self, config: ExploreConfig) -> None:
        self.config = config
        self.steps = Steps()
        self.worlds = Worlds(self.steps, config.producers)
        self.root = root(config, self.steps)
        self.symmetry = Symmetry(self.steps, config.producers if config.symmetry else 1, self.root)
        self.found: list[World] = []
        self.parents: dict[World, int] = {}
        """For every known world, the index of the world that first led to it."""
        self.transitions = 0
        self.ends = 0
        self.reached = ExploredCoverage(self.steps)
        self._contents: dict[int, DecidedRecords] = {}
        self._read, self._judge = cache(contents_of), cache(judge)
        self._right: set[tuple[int, int]] = set()
        """Pairs of broker state and client state that were checked and found right."""

    def run(self, report: Report | None) -> Explored:
        """Search to the end, to the bound, or to the first violation."""
        at, wrong, wrong_at = 0, self._add(self.symmetry.canonical(self.root), NO_PARENT), 0
        while wrong is None and at < len(self.found) <= self.config.max_states:
            wrong, wrong_at = self._expand(at)
            at += 1
            if report is not None and at % REPORT_EVERY == 0:
                report(len(self.found), len(self.found) - at)
        return self._explored(wrong, wrong_at, complete=wrong is None and at == len(self.found))

    def so_far(self) -> Explored:
        """The result so far, for a search that is interrupted."""
        return self._explored(None, 0, complete=False)

    def _explored(self, wrong: ExploredAnomaly | None, wrong_at: int, *, complete: bool) -> Explored:
        return Explored(
            violation=None if wrong is None else wrong.violation.value,
            because="" if wrong is None else wrong.because,
            trace=told(self.worlds, self.root, [] if wrong is None else self._path(wrong_at)),
            states=len(self.found),
            transitions=self.transitions,
            complete=complete,
            core_steps=self.steps.taken,
            ends=self.ends,
            reached=self.reached.counts(),
        )

    def wrong(self, world: World) -> ExploredAnomaly | None:
        """The anomaly in this world, if there is one."""
        broker = world[BROKER]
        for process in world[FIRST_CLIENT::2]:
            if (broker, process) not in self._right:
                contents = self._contents_of(broker)
                finding = contents.finding or self._judge(contents, self.steps.processes[process].attempts)
                if finding is not None:
                    return finding
                self._right.add((broker, process))
        return None

    def _contents_of(self, broker: int) -> DecidedRecords:
        if broker not in self._contents:
            self._contents[broker] = self._read(shown_by(self.steps.brokers[broker]))
        return self._contents[broker]

    def _add(self, world: World, parent: int) -> ExploredAnomaly | None:
        self.found.append(world)
        self.parents[world] = parent
        return self.wrong(world)

    def _expand(self, at: int) -> tuple[ExploredAnomaly | None, int]:
        """Add every successor of a world; the first anomaly and the index of its world."""
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

    def _hanging(self, world: World) -> ExploredAnomaly | None:
        """In a final world no record may be undecided."""
        if self._contents_of(world[BROKER]).is_open:
            return ExploredAnomaly(AnomalyKind.HANGING, "no step is left, and a transaction is still open")
        return None

    def _path(self, at: int) -> list[tuple[Transition, World]]:
        """The path from the root to this world or to its mirror image. Only worlds were kept, so the steps
        are taken again.
        """
        chain: list[World] = []
        while (parent := self.parents[self.found[at]]) != NO_PARENT:
            chain.append(self.found[at])
            at = parent
        path: list[tuple[Transition, World]] = []
        here = self.root
        for target in reversed(chain):
            path.append(next(w for w in self.worlds.after(here) if self.symmetry.canonical(w[1]) == target))
            here = path[-1][1]
        return path


def explore(config: ExploreConfig, *, report: Report | None = None) -> Explored:
    """Search every world of `config` breadth first, and stop at the first violation."""
    return StateSearch(config).run(report)
