"""A fuzzed world as a value of the run engine: the cast of a plan, its random faults; and seeds that are run.

Rule: the choices that were taken are the whole run. Run again with them, it ends the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fencepost.client.settings import newest_dialect
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.simulator.actors.workloads import (
    INPUT,
    OUTPUT,
    PAYMENTS,
    Membership,
    Runner,
    epoch_bumper,
    group_processor,
    idempotent_writer,
    processor,
    reader,
    txn_writer,
)
from fencepost.simulator.faults.random_faults import (
    ANSWERS,
    GROUP_ANSWERS,
    GROUP_REQUESTS,
    REQUESTS,
    RandomFaultPlan,
)
from fencepost.simulator.fuzz.plan import FEED_PAUSES_MS, LONG_MS, PARTITIONS, FuzzPlan, TxnWriterPlan, draw
from fencepost.simulator.run import Role, Run, RunResult, RunSpec, Task, run_of
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.processes import ClientProcess, Script

Planner = Callable[[Choices], FuzzPlan]
Act = Callable[[Run, Runner], Script[None]]

TOPICS: Final = (PAYMENTS, INPUT, OUTPUT)
PROCESSORS_ID: Final = "copiers"
PROCESSOR_LIVES: Final = 4  # so often a processor takes the id that another one has taken
EPOCH_BUMPERS_ID: Final = "renewers"
FINAL_READER: Final = "final"


def try_seed(seed: int, planner: Planner = draw) -> RunResult:
    """Run the world of a seed."""
    return try_choices(Choices(seed), planner)


def try_choices(choices: Choices, planner: Planner, watch: Callable[[Run], None] | None = None) -> RunResult:
    """Run what the choices say; `watch` gets the run before anything has happened in it."""
    run = run_of(spec_of(planner(choices)), choices, watch)
    run.end_at_first_breach()
    return run.result()


def partitions_of(topic: str) -> tuple[TopicPartition, ...]:
    """All partitions of a topic of a fuzzed world."""
    return tuple(TopicPartition(topic, number) for number in range(PARTITIONS))


ALL_PARTITIONS: Final = tuple(where for topic in TOPICS for where in partitions_of(topic))


def spec_of(plan: FuzzPlan) -> RunSpec:
    """The run of a plan."""
    return RunSpec(
        world=plan.world,
        topics=tuple((name, PARTITIONS) for name in TOPICS),
        roles=tuple(_roles_of(plan)),
        final=_reader(plan, FINAL_READER, IsolationLevel.READ_COMMITTED),
        random_faults=RandomFaultPlan(
            kinds=plan.kinds,
            strikes=plan.strikes,
            pause=plan.pause,
            slow_participants=plan.slow_participants,
            requests=(*REQUESTS, *GROUP_REQUESTS) if plan.members else REQUESTS,
            answers=(*ANSWERS, *GROUP_ANSWERS) if plan.members else ANSWERS,
        ),
        drifts_ppm=plan.drifts_ppm,
    )


def _roles_of(plan: FuzzPlan) -> list[Role]:
    """The cast of a plan."""
    roles = [_txn_writer(plan, txn_writer) for txn_writer in plan.txn_writers]
    if plan.idempotent_writes:
        roles.append(
            _role(
                plan,
                "feeder",
                Task.WORK,
                lambda _, runner: idempotent_writer(
                    runner,
                    partitions_of(INPUT),
                    plan.idempotent_writes,
                    pauses_ms=FEED_PAUSES_MS if plan.members else (),
                ),
            )
        )
    roles += [_processor(plan, name) for name in plan.processors]
    roles += [_member(plan, name, membership) for name, membership in plan.members]
    if plan.epoch_bumps:
        roles.append(
            _role(
                plan,
                "renewer",
                Task.WORK,
                lambda _, runner: epoch_bumper(runner, plan.epoch_bumps),
                transactional_id=EPOCH_BUMPERS_ID,
            )
        )
    roles.append(_reader(plan, "reader", IsolationLevel.READ_COMMITTED))
    if plan.reads_uncommitted:
        roles.append(_reader(plan, "peeker", IsolationLevel.READ_UNCOMMITTED))
    return roles


def _role(
    plan: FuzzPlan,
    name: str,
    task: Task,
    script: Act,
    *,
    transactional_id: str | None = None,
    transaction_timeout_ms: int = LONG_MS,
    reads: tuple[TopicPartition, ...] = (),
    writes: str = "",
) -> Role:
    def act(run: Run, process: ClientProcess) -> tuple[Runner, Script[None]]:
        runner = Runner(
            run.world,
            process,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            transaction_version=newest_dialect(plan.transaction_version),
        )
        return runner, script(run, runner)

    return Role(name=name, task=task, act=act, transactional_id=transactional_id, reads=reads, writes=writes)


def _txn_writer(plan: FuzzPlan, writer: TxnWriterPlan) -> Role:
    return _role(
        plan,
        writer.name,
        Task.WORK,
        lambda _, runner: txn_writer(
            runner,
            partitions_of(PAYMENTS),
            writer.transactions,
            records_max=writer.records_max,
            reads=writer.reads,
        ),
        transactional_id=writer.transactional_id,
        transaction_timeout_ms=writer.transaction_timeout_ms,
    )


def _processor(plan: FuzzPlan, name: str) -> Role:
    return _role(
        plan,
        name,
        Task.COPY,
        lambda run, runner: processor(runner, partitions_of(INPUT), run.settled, lives=PROCESSOR_LIVES),
        transactional_id=PROCESSORS_ID,
        reads=partitions_of(INPUT),
        writes=OUTPUT,
    )


def _member(plan: FuzzPlan, name: str, membership: Membership) -> Role:
    return _role(
        plan,
        name,
        Task.COPY,
        lambda run, runner: group_processor(
            runner, (INPUT,), run.settled, output=OUTPUT, membership=membership
        ),
        transactional_id=name,
        reads=partitions_of(INPUT),
        writes=OUTPUT,
    )


def _reader(plan: FuzzPlan, name: str, isolation_level: IsolationLevel) -> Role:
    """A process that reads everything."""
    return _role(plan, name, Task.READ, lambda _, runner: reader(runner, ALL_PARTITIONS, isolation_level))
