"""A fault counts when it strikes: what only lay in wait did nothing, and is gone when all is well again."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from fencepost.broker.host import Held
from fencepost.broker.settings import NodeSettings
from fencepost.protocol.errors import NO_ERROR
from fencepost.protocol.messages import EndTxnReply
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.faults.random_faults import DAMAGES, FaultKind, MessageTrap, RandomFaultPlan
from fencepost.simulator.fuzz.plan import FuzzPlan, draw, draw_damage, draw_identities
from fencepost.simulator.fuzz.worlds import spec_of, try_choices
from fencepost.simulator.run import Run, run_of
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.events import (
    FaultEnded,
    FaultStruck,
    MessageLost,
    MessageSent,
    MessageTaken,
    NodeKilled,
)
from fencepost.simulator.world.network import ReplyMessage, RequestMessage, SimulatedConnection
from fencepost.simulator.world.participants import NS_PER_MS
from fencepost.simulator.world.world import World, WorldSettings

# The labels of what ends at once, and of a killed process, whose successor publishes its own start.
OVER_AT_ONCE = ("drop", "move", "clock of", "crash: killed", "flip", "lose", "misdirect")


@attrs.define(eq=False)
class Lost:
    """Sees the replies that get lost, by the names of their types."""

    answers: Counter[str] = attrs.Factory(Counter[str])

    def hear(self, lost: MessageLost) -> None:
        if isinstance(lost.message, ReplyMessage):
            self.answers[type(lost.message.body).__name__] += 1


DRAWN_BY = {**dict.fromkeys(DAMAGES, draw_damage), FaultKind.LATE_MARKER: draw_identities}


def only(kind: FaultKind) -> FuzzPlan:
    """The first world in which that fault can strike, without any other."""
    for seed in range(100):
        plan = DRAWN_BY.get(kind, draw)(Choices(seed))
        if kind in plan.kinds and len(plan.txn_writers) > 1:
            return attrs.evolve(plan, kinds=(kind,), strikes=16, drifts_ppm=(), slow_participants=0)
    raise AssertionError(f"{kind} is never drawn")


def test_an_answer_gets_lost() -> None:
    lost = Lost()
    begun: list[Run] = []

    def watch(simulation: Run) -> None:
        simulation.world.events.subscribe(MessageLost, lost.hear)
        begun.append(simulation)

    plan = only(FaultKind.LOST_REPLY)
    trials = [try_choices(Choices(seed), lambda _: plan, watch) for seed in range(3)]
    assert [trial.violation for trial in trials] == [None, None, None]
    struck = Counter(each.what.partition(" ")[0] for run in begun for each in run.random_faults.struck)
    assert len(struck) > 1, "of several kinds"
    assert struck <= lost.answers
    assert sum(trial.marks["fault: lost reply"] for trial in trials) == struck.total()


@attrs.define(eq=False)
class Late:
    """Sees the questions that arrive after their caller has given them up, by the names of their kinds."""

    requests: Counter[str] = attrs.Factory(Counter[str])

    def hear(self, taken: MessageTaken) -> None:
        message = taken.message
        if isinstance(message, RequestMessage) and taken.channel.connection.to_caller.is_dead:
            self.requests[type(message.request).__name__] += 1


def test_a_request_arrives_after_its_caller_has_given_it_up() -> None:
    late = Late()
    plan = only(FaultKind.LATE_REQUEST)
    struck = 0
    for seed in range(5):
        trial = try_choices(
            Choices(seed),
            lambda _: plan,
            lambda simulation: simulation.world.events.subscribe(MessageTaken, late.hear),
        )
        assert trial.violation is None
        struck += trial.marks["fault: late request"]
    assert {"EndTxn", "Produce"} <= set(late.requests)
    assert struck > 5


@pytest.mark.parametrize("kind", [FaultKind.LOST_REPLY, FaultKind.LATE_REQUEST, FaultKind.CRASH])
def test_what_lay_in_wait_for_nothing_did_not_strike(kind: FaultKind) -> None:
    plan = attrs.evolve(only(kind), strikes=3, txn_writers=())
    spec = attrs.evolve(
        spec_of(plan),
        world=WorldSettings(node_settings=NodeSettings()),
        random_faults=RandomFaultPlan(kinds=(kind,), strikes=3),
    )
    run = run_of(spec, Choices(0))
    world, faults = run.world, run.random_faults
    world.start()
    world.run_until(lambda: not world.queue or world.now > NS_PER_MS)
    heard = MessageSent in world.events.heard
    faults.start()
    world.run_until(lambda: faults.is_over)
    assert faults.struck == []
    assert world.marks[f"fault: {kind.value}"] == 0
    faults.heal()
    assert (MessageSent in world.events.heard) == heard
    assert [node.death for node in world.nodes] == [None]


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_trap_that_is_removed_does_not_strike(is_removed: bool) -> None:
    """Its message may have been sent already, just before all is healed."""
    world = World(WorldSettings(node_settings=NodeSettings()), Choices(0))
    (node,) = world.nodes
    struck: list[SimulatedConnection] = []
    trap = MessageTrap(world, EndTxnReply, struck.append)
    connection = world.network.connect(node, node)
    world.events.publish(
        MessageSent(
            connection.to_caller, ReplyMessage(1, NO_ERROR, EndTxnReply(producer_id=1, producer_epoch=0))
        )
    )
    if is_removed:
        trap.remove()
    world.run_until(lambda: not world.queue)
    assert struck == ([] if is_removed else [connection])


@pytest.mark.parametrize("kind", [FaultKind.KILL, FaultKind.FAILOVER])
def test_a_fault_is_told_before_what_comes_of_it(kind: FaultKind) -> None:
    """Whoever draws a run writes the fault above all that it leads to."""
    lived: list[bool] = []

    def watch(simulation: Run) -> None:
        def hear(struck: FaultStruck) -> None:
            world = simulation.world
            up = [node.participant for node in world.nodes if node.host is not None]
            up += [process.participant for process in world.processes if not process.is_over]
            lived.append(struck.label.startswith("move") or struck.participant in up)

        simulation.world.events.subscribe(FaultStruck, hear)

    plan = only(kind)
    for seed in range(3):
        assert try_choices(Choices(seed), lambda _: plan, watch).violation is None
    assert len(lived) > 3
    assert all(lived)


@pytest.mark.parametrize("kind", FaultKind)
def test_what_lasts_is_told_when_it_ends(kind: FaultKind) -> None:
    """Once each, after it struck, and at the latest when all is healed."""
    struck, ended = list[FaultStruck](), list[FaultEnded]()

    def watch(simulation: Run) -> None:
        simulation.world.events.subscribe(FaultStruck, struck.append)
        simulation.world.events.subscribe(FaultEnded, ended.append)

    plan = only(kind)
    for seed in range(3):
        struck.clear()
        ended.clear()
        assert try_choices(Choices(seed), lambda _: plan, watch).violation is None
        lasting = [fault.participant for fault in struck if not fault.label.startswith(OVER_AT_ONCE)]
        assert sorted(fault.participant for fault in ended) == sorted(lasting)


@attrs.define(eq=False)
class Deaths:
    """Sees which nodes are killed, and whether a disk still lacked something that was written."""

    participants: list[str] = attrs.Factory(list[str])
    unsynced: int = 0

    def hear(self, killed: NodeKilled) -> None:
        self.participants.append(killed.node.participant)
        self.unsynced += bool(killed.host.unsynced)


def deaths(kind: FaultKind) -> Deaths:
    """Everybody who died in a few seeds, each of them by a strike."""
    plan, seen, struck = only(kind), Deaths(), list[str]()

    def watch(simulation: Run) -> None:
        events = simulation.world.events
        events.subscribe(NodeKilled, seen.hear)
        events.subscribe(FaultStruck, lambda strike: struck.append(strike.participant))

    for seed in range(8):
        assert try_choices(Choices(seed), lambda _: plan, watch).violation is None
    assert seen.participants == struck
    return seen


def test_each_crash_is_a_strike() -> None:
    assert deaths(FaultKind.CRASH).participants


def test_a_loss_of_power_often_meets_writes_that_are_not_synced() -> None:
    """Otherwise no recovery would ever see a torn batch."""
    seen = deaths(FaultKind.POWER_LOSS)
    assert seen.unsynced > 2, f"of {len(seen.participants)}"


def test_a_replaced_leader_opens_no_log_to_sync_it() -> None:
    """Its newer leader found the log damaged and gave it up; opening it again failed the run."""
    world = World(WorldSettings(nodes=2, node_settings=NodeSettings()), Choices(0))
    world.start()
    (replaced, _), orders = world.nodes, TopicPartition("orders", 0)
    host = replaced.host
    assert host is not None
    host.held[orders] = Held(world.journals.journal(orders), 0)
    host.unsynced.add(orders)
    world.journals.give_up(orders)
    replaced.work()
    world.run_until(lambda: orders not in replaced.syncing)
    assert orders not in world.journals.opened
