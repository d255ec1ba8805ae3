"""Seeds at random: whatever strikes, the logs end with exactly-once output, nothing undecided, and no leader
that knows less than the one before it.

Rule: what is looked at here is read from the logs alone, beside the judges that every seed has anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import attrs
import pytest

from fencepost.broker.contract import Append, BecomeLeader
from fencepost.broker.node import Node
from fencepost.broker.settings import PROTECTIONS, NodeSettings
from fencepost.broker.transactions.state import Transactions
from fencepost.broker.transactions.tables import NEWEST
from fencepost.protocol.terms import TopicPartition, TransactionState
from fencepost.simulator.actors.processors import INPUT, OUTPUT, transform
from fencepost.simulator.actors.workloads import PAYMENTS, Runner, txn_writer
from fencepost.simulator.faults.random_faults import FaultKind
from fencepost.simulator.fuzz.plan import draw
from fencepost.simulator.fuzz.worlds import FINAL_READER, TOPICS, partitions_of, try_choices
from fencepost.simulator.judges.operations import OperationOutcome as Known
from fencepost.simulator.judges.operations import Poll
from fencepost.simulator.judges.rules import ABORTED_READ
from fencepost.simulator.run import Run
from fencepost.simulator.run_result import RunResult
from fencepost.simulator.scenarios.model import FuzzPlan, TxnWriterPlan
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.events import NodeKilled
from fencepost.simulator.world.world import World
from tests.simulator.log_reading import committed, read_log, undecided

PARTS, SEEDS_PER_PART = 10, 20
DONE = {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
RIVALS = tuple(
    TxnWriterPlan(name=name, transactional_id="payers", transactions=6, transaction_timeout_ms=timeout_ms)
    for name, timeout_ms in (("left", 60_000), ("right", 400))
)


def rivals_and_a_processor(choices: Choices) -> FuzzPlan:
    """Two writers share a transactional id, beside a processor. The one node has no snapshots: after a start
    it knows only what it reads from its logs.
    """
    plan = draw(choices)
    return attrs.evolve(
        plan,
        nodes=1,
        segment_bytes=1_000_000,
        txn_writers=RIVALS,
        idempotent_writes=8,
        processors=("copier",),
        kinds=(FaultKind.CRASH, FaultKind.KILL, FaultKind.DROP),
        strikes=8,
        pause_ms=plan.pause_ms // 2,
    )


def recovered(world: World, settings: NodeSettings) -> Node:
    """A node that has only the logs to go by, and changes nothing in them."""
    node = Node(settings)
    for key in sorted(world.journals.disks):
        journal = world.journals.journal(key)
        node.rebuild(
            BecomeLeader(partition=key, leader_epoch=journal.leader_epoch, batches=journal.batches(0))
        )
    return node


def states_of(node: Node) -> list[TransactionState]:
    """The state of every transactional id that this node coordinates."""
    return [
        record.state
        for log in node.logs.values()
        if isinstance(log.coordinator, Transactions)
        for record in log.coordinator.records.values()
    ]


@attrs.define
class Deaths:
    """A judge that compares each node that dies with one that reads the same logs."""

    world: World
    marks: Counter[str]

    def hear(self, killed: NodeKilled) -> None:
        """What was decided and not written died with the process; all else is known to whoever reads."""
        node, host = killed.node, killed.host
        unwritten = {act.partition for act in host.to_do if isinstance(act, Append)}
        self.marks["died before an append was written"] += bool(unwritten)
        self.marks.update(f"died in {state.name}" for state in states_of(host.node))
        reader = recovered(self.world, node.settings)
        for key in host.node.logs:
            if key in reader.logs and key not in unwritten:
                assert reader.state_of(key) == host.node.state_of(key), f"{key} recovered to something else"
                self.marks["states compared"] += 1


@attrs.frozen
class Ended:
    """A seed that was tried, and its world as it stands at the end."""

    trial: RunResult
    simulation: Run


def run(seed: int, planner: Callable[[Choices], FuzzPlan], marks: Counter[str] | None = None) -> Ended:
    """Try a seed; whoever counts marks has its deaths looked into."""
    begun: list[Run] = []

    def watch(simulation: Run) -> None:
        begun.append(simulation)
        if marks is not None:
            deaths = Deaths(simulation.world, marks)
            simulation.world.events.subscribe(NodeKilled, deaths.hear)

    trial = try_choices(Choices(seed), planner, watch)
    if marks is not None:
        marks.update(trial.marks)
    return Ended(trial, begun[0])


def check_logs(simulation: Run) -> None:
    """What the logs say at the end, by their own words."""
    world = simulation.world
    logs = {where: read_log(world, where) for topic in TOPICS for where in partitions_of(topic)}
    assert [where for where, log in logs.items() if undecided(log)] == []
    for where in partitions_of(INPUT):
        output = TopicPartition(OUTPUT, where.partition)
        copies = committed(logs[output])
        assert [simulation.copies.plain(output, value or b"") for value in copies] == [
            transform(value or b"") for value in committed(logs[where])
        ], f"{where} was not copied exactly once, in order"
    assert finally_read(simulation) == {
        where: committed(log) for where, log in logs.items() if committed(log)
    }
    assert set(states_of(recovered(world, world.nodes[0].settings))) <= DONE


def finally_read(simulation: Run) -> dict[TopicPartition, list[bytes | None]]:
    """What the last reader of committed records got of each partition."""
    values: dict[TopicPartition, list[bytes | None]] = {}
    for operation in simulation.operations:
        for action in operation.actions:
            if operation.process == FINAL_READER and isinstance(action, Poll):
                values.setdefault(action.partition, []).extend(value for _, value in action.records)
    return values


@pytest.mark.parametrize("part", range(PARTS))
def test_rivals_and_a_processor_over_one_node_that_dies_anywhere(part: int) -> None:
    marks: Counter[str] = Counter()
    for seed in range(part * SEEDS_PER_PART, (part + 1) * SEEDS_PER_PART):
        ended = run(seed, rivals_and_a_processor, marks)
        assert ended.trial.violation is None, f"seed {seed}"
        check_logs(ended.simulation)
    for reached in (
        "died in ONGOING",
        "died before an append was written",
        "states compared",
        "commit: ProducerFenced",
        "commit: ok",
        "abort: ok",
        "fault: kill",
        "fault: drop",
        "fault: crash",
    ):
        assert marks[reached] > 0, f"{reached}: never in {SEEDS_PER_PART} seeds"


def test_a_death_between_prepare_and_complete_is_among_them() -> None:
    marks: Counter[str] = Counter()
    for seed in range(2_000, 2_060):
        assert run(seed, rivals_and_a_processor, marks).trial.violation is None, f"seed {seed}"
    assert marks["died in PREPARE_COMMIT"] > 0
    assert marks["died in PREPARE_ABORT"] > 0


@pytest.mark.parametrize("transaction_version", [0, 1, 2])
def test_worlds_of_every_shape_and_generation(transaction_version: int) -> None:
    """Several nodes, moves, power losses, failing disks: the logs of a healed world say it all. Before
    KIP-890 part 2 a late EndTxn may commit what its client takes for aborted (KAFKA-17754).
    """
    for seed in range(40):
        ended = run(seed, partial(draw, transaction_version=transaction_version))
        found = ended.trial.violation
        if found is None or transaction_version == NEWEST.number:
            assert found is None, f"seed {seed}"
            check_logs(ended.simulation)
        else:
            assert found.rule == ABORTED_READ.name, f"seed {seed}"


def test_whoever_comes_when_all_is_well_knows_how_each_transaction_ended() -> None:
    for seed in range(20):
        world = run(seed, rivals_and_a_processor).simulation.world
        process = world.process("last")
        runner = Runner(process, transactional_id="payers")
        process.start(txn_writer(runner, partitions_of(PAYMENTS), 3, records_max=4))
        world.run_until(lambda process=process: process.is_over)
        assert len(runner.transactions) == 3
        assert Known.INFO not in [transaction.outcome for transaction in runner.transactions], f"seed {seed}"


@pytest.mark.parametrize("protection", sorted(PROTECTIONS))
def test_without_a_protection_some_seed_fails(protection: str) -> None:
    """The judges can fail: a broker without fencing, or without deduplication, is found out."""

    def unprotected(choices: Choices) -> FuzzPlan:
        return attrs.evolve(rivals_and_a_processor(choices), broken=(protection,))

    assert any(run(seed, unprotected).trial.violation is not None for seed in range(100))
