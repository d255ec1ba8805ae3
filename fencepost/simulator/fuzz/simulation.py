"""One whole run of a plan: a cluster starts, processes work, faults strike; then all is healed and must
converge, and everything is judged.

Rule: a run ends well, or with a Violation that says which rule was broken; there is no third way.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

import attrs

from fencepost.client.settings import newest_dialect
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.simulator.actors.workloads import (
    INPUT,
    OUTPUT,
    PAYMENTS,
    Runner,
    epoch_bumper,
    idempotent_writer,
    processor,
    reader,
    txn_writer,
)
from fencepost.simulator.faults.random_faults import Nemesis
from fencepost.simulator.fuzz.plan import LONG_MS, PARTITIONS, FuzzPlan, TxnWriterPlan
from fencepost.simulator.judges.operations import ClientOperation
from fencepost.simulator.world.processes import ClientProcess, Script
from fencepost.simulator.world.topics import create_topics
from fencepost.simulator.world.world import World

TOPICS: Final = (PAYMENTS, INPUT, OUTPUT)
PROCESSORS_ID: Final = "copiers"
PROCESSOR_LIVES: Final = 4  # so often a processor takes the id that another one has taken
EPOCH_BUMPERS_ID: Final = "renewers"
PERIODS: Final = 8  # the pauses of a nemesis within which a lane may become the slowest
SLOWEST: Final = 400  # times the usual latency, whose worst case is 250: everybody overtakes this lane
FINAL_READER: Final = "final"


def partitions_of(topic: str) -> tuple[TopicPartition, ...]:
    """All partitions of a topic of a fuzzed world."""
    return tuple(TopicPartition(topic, number) for number in range(PARTITIONS))


ALL_PARTITIONS: Final = tuple(where for topic in TOPICS for where in partitions_of(topic))


class Part(Enum):
    """What a process is for, which says when a run is over."""

    WORK = "work"  # comes to its end by itself, and the run waits for that
    COPY = "copy"  # goes on until everything is copied
    READ = "read"  # goes on as long as the run does


@attrs.frozen(kw_only=True)
class Role:
    """Who a process is: when it is killed, another one takes the same role."""

    name: str
    part: Part
    script: Callable[[Runner], Script[None]]
    transactional_id: str | None = None
    transaction_timeout_ms: int = LONG_MS


@attrs.define(eq=False)
class Simulation:
    """A run in the making."""

    plan: FuzzPlan
    world: World
    nemesis: Nemesis = attrs.field(init=False)
    cast: list[tuple[Role, Runner]] = attrs.Factory(list[tuple[Role, Runner]])
    working: list[ClientProcess] = attrs.Factory(list[ClientProcess])
    settled: dict[TopicPartition, int] = attrs.Factory(dict[TopicPartition, int])

    def __attrs_post_init__(self) -> None:
        plan = self.plan
        self.nemesis = Nemesis(self.world, plan.kinds, plan.strikes, plan.pause, self._respawn)
        self.nemesis.hunted = self._copying

    # --- phases ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Every phase. What clients saw is then in `operations`, what the logs hold in the world's
        journals.
        """
        world = self.world
        for node, drift_ppm in zip(world.nodes, self.plan.drifts_ppm, strict=False):
            node.clock.drift_ppm = drift_ppm
        world.start()
        create_topics(world, [(name, PARTITIONS) for name in TOPICS])
        for role in roles_of(self.plan, self.settled):
            self._spawn(role)
        self.nemesis.start()
        self._slow_down()
        world.run_until(self._is_spent)
        self.nemesis.heal()
        world.speeds.clear()
        world.run_until(self._is_done)
        self._read_all()

    def _slow_down(self) -> None:
        """Priorities that change a few times (PCT): the slowest lets everybody else overtake it."""
        world = self.world
        for _ in range(self.plan.slow_participants):
            at = world.now + self.plan.pause * world.choices.below(2 * PERIODS) // 2
            world.at(at, self._slow_one)

    def _slow_one(self, _: object) -> None:
        world = self.world
        if self.nemesis.strikes_left:
            participants = [node.participant for node in world.nodes] + [
                process.participant for process in world.processes
            ]
            world.speeds[world.choices.one_of(participants)] = SLOWEST

    def _is_spent(self) -> bool:
        """The fault phase is over when faults are, or work and copies."""
        return self.nemesis.is_over or (self._is_worked() and self._is_copied())

    def _is_worked(self) -> bool:
        working = self.working
        while working and working[-1].is_over:
            working.pop()
        return not working

    def _is_done(self) -> bool:
        """Everything has come to its end: scripts, copies, and every transaction."""
        return self._is_worked() and self._is_copied() and self._is_settled()

    def _copying(self) -> list[ClientProcess]:
        """Who copies now."""
        processors = (runner.process for role, runner in self.cast if role.part is Part.COPY)
        return [process for process in processors if not process.is_over]

    def _is_copied(self) -> bool:
        processors = [(role, runner) for role, runner in self.cast if role.part is Part.COPY]
        if processors and all(runner.process.is_over for _, runner in processors):
            self._spawn(processors[0][0])
            return False
        return not processors or all(
            self.settled.get(where, 0) >= self._end(where) for where in partitions_of(INPUT)
        )

    def _end(self, partition: TopicPartition) -> int:
        return self.world.journals.journal(partition).log_end_offset

    def _is_settled(self) -> bool:
        """Every partition is led, no transaction is open in it, and all that is written may be read."""
        led: set[TopicPartition] = set()
        for node in self.world.nodes:
            if node.host is not None:
                for key, log in node.host.node.logs.items():
                    led.add(key)
                    if log.partition.last_stable_offset != log.partition.log_end_offset:
                        return False
        return all(where in led for topic in TOPICS for where in partitions_of(topic))

    def _read_all(self) -> None:
        """One last reader, from the beginning to the end of everything."""
        final = self._spawn(reader_role(FINAL_READER, IsolationLevel.READ_COMMITTED))
        ends = {where: self._end(where) for where in ALL_PARTITIONS}

        def has_read() -> bool:
            return all((final.readings[where].position or 0) >= end for where, end in ends.items())

        self.world.run_until(has_read)

    # --- who is in it ---------------------------------------------------------------------------------------

    def _spawn(self, role: Role) -> Runner:
        taken = sum(1 for known, _ in self.cast if known.name == role.name)
        process = self.world.process(f"{role.name}~{taken + 1}" if taken else role.name)
        runner = Runner(
            self.world,
            process,
            transactional_id=role.transactional_id,
            transaction_timeout_ms=role.transaction_timeout_ms,
            transaction_version=newest_dialect(self.plan.transaction_version),
        )
        self.cast.append((role, runner))
        if role.part is Part.WORK:
            self.working.append(process)
        process.start(role.script(runner))
        return runner

    def _respawn(self, participant: str) -> None:
        """A process was killed: another one begins where it stood."""
        for role, runner in self.cast:
            if runner.process.participant == participant:
                self._spawn(role)
                return

    @property
    def operations(self) -> list[ClientOperation]:
        """What all clients saw, in the order in which it ended."""
        now = self.world.now
        seen = [operation for _, runner in self.cast for operation in runner.all_operations(now)]
        return sorted(seen, key=lambda operation: operation.completed_at)


def roles_of(plan: FuzzPlan, settled: dict[TopicPartition, int]) -> list[Role]:
    """Everybody in a plan."""
    roles = [_txn_writer_role(txn_writer) for txn_writer in plan.txn_writers]
    if plan.idempotent_writes:
        roles.append(
            Role(
                name="feeder",
                part=Part.WORK,
                script=lambda runner: idempotent_writer(runner, partitions_of(INPUT), plan.idempotent_writes),
            )
        )
    for name in plan.processors:
        roles.append(
            Role(
                name=name,
                part=Part.COPY,
                script=lambda runner: processor(runner, partitions_of(INPUT), settled, lives=PROCESSOR_LIVES),
                transactional_id=PROCESSORS_ID,
            )
        )
    if plan.epoch_bumps:
        roles.append(
            Role(
                name="renewer",
                part=Part.WORK,
                script=lambda runner: epoch_bumper(runner, plan.epoch_bumps),
                transactional_id=EPOCH_BUMPERS_ID,
            )
        )
    roles.append(reader_role("reader", IsolationLevel.READ_COMMITTED))
    if plan.reads_uncommitted:
        roles.append(reader_role("peeker", IsolationLevel.READ_UNCOMMITTED))
    return roles


def _txn_writer_role(plan: TxnWriterPlan) -> Role:
    return Role(
        name=plan.name,
        part=Part.WORK,
        script=lambda runner: txn_writer(
            runner, partitions_of(PAYMENTS), plan.transactions, records_max=plan.records_max, reads=plan.reads
        ),
        transactional_id=plan.transactional_id,
        transaction_timeout_ms=plan.transaction_timeout_ms,
    )


def reader_role(name: str, isolation_level: IsolationLevel) -> Role:
    """Somebody who reads everything."""
    return Role(
        name=name, part=Part.READ, script=lambda runner: reader(runner, ALL_PARTITIONS, isolation_level)
    )
