"""Seeds at random: whatever strikes, no judge finds a rule broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import attrs
import pytest

from fencepost.broker.settings import PROTECTIONS
from fencepost.broker.transactions.state import Transactions
from fencepost.broker.transactions.tables import NEWEST
from fencepost.simulator.actors.workloads import PAYMENTS, Runner, txn_writer
from fencepost.simulator.faults.random_faults import FaultKind
from fencepost.simulator.fuzz.plan import draw
from fencepost.simulator.fuzz.worlds import partitions_of, try_choices
from fencepost.simulator.judges.operations import OperationOutcome as Known
from fencepost.simulator.judges.rules import ABORTED_READ
from fencepost.simulator.run import Run
from fencepost.simulator.run_result import RunResult
from fencepost.simulator.scenarios.model import FuzzPlan, TxnWriterPlan
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.events import NodeKilled

PARTS, SEEDS_PER_PART = 6, 20
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


def deaths(killed: NodeKilled) -> Iterator[str]:
    """The state of every transactional id that the node coordinated."""
    for log in killed.host.node.logs.values():
        if isinstance(log.coordinator, Transactions):
            for record in log.coordinator.records.values():
                yield f"died in {record.state.name}"


@attrs.frozen
class Ended:
    """A seed that was tried, and its world as it stands at the end."""

    trial: RunResult
    simulation: Run


def run(seed: int, planner: Callable[[Choices], FuzzPlan], marks: Counter[str] | None = None) -> Ended:
    """Try a seed, and count what it met."""
    begun: list[Run] = []
    met = Counter[str]() if marks is None else marks

    def watch(simulation: Run) -> None:
        begun.append(simulation)
        simulation.world.events.subscribe(NodeKilled, lambda killed: met.update(deaths(killed)))

    trial = try_choices(Choices(seed), planner, watch)
    met.update(trial.marks)
    return Ended(trial, begun[0])


@pytest.mark.parametrize("part", range(PARTS))
def test_rivals_and_a_processor_over_one_node_that_dies_anywhere(part: int) -> None:
    marks: Counter[str] = Counter()
    for seed in range(part * SEEDS_PER_PART, (part + 1) * SEEDS_PER_PART):
        assert run(seed, rivals_and_a_processor, marks).trial.violation is None, f"seed {seed}"
    for reached in (
        "died in ONGOING",
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
        if marks["died in PREPARE_COMMIT"] and marks["died in PREPARE_ABORT"]:
            return
    raise AssertionError(f"none in 60 seeds: {marks}")


@pytest.mark.parametrize("transaction_version", [0, 1, 2])
def test_worlds_of_every_shape_and_generation(transaction_version: int) -> None:
    """Several nodes, moves, power losses, failing disks. Before
    KIP-890 part 2 a late EndTxn may commit what its client takes for aborted (KAFKA-17754).
    """
    for seed in range(25):
        found = run(seed, partial(draw, transaction_version=transaction_version)).trial.violation
        if transaction_version == NEWEST.number:
            assert found is None, f"seed {seed}"
        else:
            assert found is None or found.rule == ABORTED_READ.name, f"seed {seed}"


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
