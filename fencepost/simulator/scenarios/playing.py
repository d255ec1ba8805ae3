"""A case of a scenario on stage: its cluster, its people, its faults; then all is healed and must converge.

Rule: the run is the same every time; whoever judges it afterwards finds everything here.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from fencepost.broker.kafka_fixes import KafkaFixes
from fencepost.broker.purgatory import Log
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.state import COMPLETED, PREPARED, Transactions
from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS
from fencepost.journal.journal import JournalSettings
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.actors.scripted import ConsumerPlayer, ProducerPlayer, Stage
from fencepost.simulator.actors.workloads import Runner, processor
from fencepost.simulator.faults.injector import FaultInjector
from fencepost.simulator.faults.protocol_events import SAME, Listener, ProtocolEvent, ProtocolEvents
from fencepost.simulator.judges.operations import ClientOperation
from fencepost.simulator.judges.white_box import Invariants
from fencepost.simulator.scenarios.model import (
    Case,
    ClusterShape,
    ConsumerPart,
    Part,
    ProcessorPart,
    ProducerPart,
)
from fencepost.simulator.scenarios.validation import FINAL_READER
from fencepost.simulator.scenarios.watching import StepJudge
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.clock import NS_PER_MS
from fencepost.simulator.world.events import CallBegan
from fencepost.simulator.world.processes import ClientProcess, Script
from fencepost.simulator.world.topics import create_topics
from fencepost.simulator.world.world import Disordered, World, WorldSettings

SETTLING_MS = 30_000  # how long, besides the longest transaction timeouts, everything may take to converge

Player = ProducerPlayer | ConsumerPlayer | Runner


def world_settings(cluster: ClusterShape) -> WorldSettings:
    """The world that a scenario's cluster stands for."""
    return WorldSettings(
        nodes=cluster.nodes,
        node_settings=NodeSettings(
            generation=TRANSACTION_VERSIONS[cluster.transaction_version],
            partition_verification=cluster.partition_verification,
            broken=frozenset(cluster.broken),
            fixes=KafkaFixes.without(cluster.without_fixes),
            transaction_state_log_num_partitions=cluster.coordinators,
            offsets_topic_num_partitions=1,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=cluster.timeout_scan_ms,
            reelection_backoff_ms=20,
            marker_retry_backoff_ms=10,
        ),
        policy=cluster.sync,
        journals=JournalSettings(segment_bytes=cluster.segment_bytes),
    )


@attrs.define(eq=False)
class Play:
    """A run in the making. `settled` is how far copies are known to be committed, `stuck` what never came to
    its end.
    """

    case: Case
    world: World
    protocol_events: ProtocolEvents
    step_judge: StepJudge
    injector: FaultInjector = attrs.field(init=False)
    cast: list[tuple[Part, ClientProcess, Player]] = attrs.Factory(list[tuple[Part, ClientProcess, Player]])
    settled: dict[TopicPartition, int] = attrs.Factory(dict[TopicPartition, int])
    reached: list[Listener] = attrs.Factory(list[Listener])
    final: ConsumerPlayer | None = None
    stuck: list[str] = attrs.Factory(list[str])

    def __attrs_post_init__(self) -> None:
        self.injector = FaultInjector(self.world, self.protocol_events, self.call, self.replace)

    def run(self) -> None:
        """Every phase, to the last reading."""
        world = self.world
        world.start()
        create_topics(world, self.case.cluster.topics)
        self.reached += [self.protocol_events.listen(point, _heard) for point in self.case.expect.reaches]
        self.injector.plan(self.case.faults)
        for part in self.case.scenario.parts:
            if not part.is_called:
                self.enter(part)
        self._run_until(lambda: self.injector.is_over and self._is_worked(), self._patience_ms)
        self.injector.heal()
        self._run_until(self._is_at_rest, self._patience_ms)
        self._note_what_is_stuck()
        if not self.stuck:
            self.step_judge.end()
        self._read_all()

    @property
    def _patience_ms(self) -> int:
        timeouts = [part.transaction_timeout_ms for part in self._producers]
        return 2 * max(timeouts, default=0) + SETTLING_MS

    @property
    def _producers(self) -> list[ProducerPart]:
        return [part for part in self.case.scenario.parts if isinstance(part, ProducerPart)]

    def _run_until(self, is_over: Callable[[], bool], patience_ms: int) -> None:
        """Until something is true, or patience or what can happen is at its end."""
        world = self.world
        end = world.now + patience_ms * NS_PER_MS
        try:
            world.run_until(lambda: world.now >= end or is_over())
        except Disordered as problem:
            if world.queue:  # without anything left to happen it is at rest, for better or worse
                self.stuck.append(str(problem))

    # --- the cast -------------------------------------------------------------------------------------------

    def enter(self, part: Part) -> None:
        """A process begins its part, or takes it from one that died."""
        name = part.name
        taken = sum(1 for known, _, _ in self.cast if known.name == name)
        process = self.world.process(f"{name}{SAME}{taken + 1}" if taken else name)
        player, script = self._player(part, process)
        self.cast.append((part, process, player))
        if part.is_called:
            self.world.events.publish(CallBegan(process.participant, "starts"))
        process.start(script)

    def _player(self, part: Part, process: ClientProcess) -> tuple[Player, Script[None]]:
        stage = Stage(self.world, self.case.cluster, self.protocol_events)
        if isinstance(part, ProducerPart):
            producer = ProducerPlayer(stage, part, process)
            return producer, producer.script()
        if isinstance(part, ConsumerPart):
            consumer = ConsumerPlayer(stage, part, process)
            return consumer, consumer.script()
        runner = Runner(
            self.world,
            process,
            transactional_id=part.transactional_id,
            transaction_version=stage.cluster.dialect,
        )
        return runner, processor(runner, part.reads, self.settled, output=part.writes, group=part.group)

    def call(self, name: str) -> None:
        """Somebody who starts on request does so now."""
        self.enter(next(part for part in self.case.scenario.parts if part.name == name))

    def replace(self, name: str) -> None:
        """Another one goes on where a dead one stood; nobody goes on with a producer's script."""
        part = next(part for part in self.case.scenario.parts if part.name == name)
        if not isinstance(part, ProducerPart):
            self.enter(part)

    # --- whether it is over ---------------------------------------------------------------------------------

    def _is_worked(self) -> bool:
        """Every script is at its end, and whatever there is to copy is copied."""
        for part, process, _ in self.cast:
            if isinstance(part, ProducerPart) and not process.is_over:
                return False
        return all(self._is_copied(part) for part in self._processors)

    def _is_at_rest(self) -> bool:
        """Nothing is left to do or to wait for."""
        return (
            self._is_worked()
            and all(heard.is_over for heard in self.reached)
            and not self.unsettled()
            and self.step_judge.is_settled
        )

    @property
    def _processors(self) -> list[ProcessorPart]:
        return [part for part in self.case.scenario.parts if isinstance(part, ProcessorPart)]

    def _is_copied(self, part: ProcessorPart) -> bool:
        """Whether its inputs are copied; if nobody is left to do so, somebody begins again."""
        if all(self.settled.get(where, 0) >= self._end(where) for where in part.reads):
            return True
        rivals = [
            process
            for other, process, _ in self.cast
            if isinstance(other, ProcessorPart) and other.transactional_id == part.transactional_id
        ]
        if rivals and all(process.is_over for process in rivals):
            self.enter(part)
        return False

    def _end(self, where: TopicPartition) -> int:
        return self.world.journals.journal(where).log_end_offset

    def unsettled(self) -> list[str]:
        """What keeps the cluster from being at rest, in words."""
        found: list[str] = []
        led: set[TopicPartition] = set()
        for node in self.world.nodes:
            if node.host is None:
                continue
            for where, log in node.host.node.logs.items():
                led.add(where)
                partition = log.partition
                if partition.last_stable_offset != partition.log_end_offset:
                    found.append(
                        f"{where}: nothing from offset {partition.last_stable_offset} on may be read"
                    )
                coordinator = log.coordinator
                if isinstance(coordinator, Transactions):
                    found += [
                        f"{name} is in {record.state.title} for ever"
                        for name, record in coordinator.records.items()
                        if record.state in PREPARED
                    ]
        return [
            *found,
            *(f"{where}: nobody leads" for where in self.case.cluster.partitions if where not in led),
        ]

    def _note_what_is_stuck(self) -> None:
        self.stuck += [
            f"{process.participant} never comes to its end"
            for part, process, _ in self.cast
            if isinstance(part, ProducerPart) and not process.is_over
        ]
        self.stuck += [
            f"{part.name} never processes everything"
            for part in self._processors
            if not self._is_copied(part)
        ]
        self.stuck += self.unsettled()

    # --- the end --------------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        """One last reader, from the beginning to the end of what may be read."""
        part = ConsumerPart(name=FINAL_READER, reads=self.case.cluster.partitions)
        self.enter(part)
        final = self.cast[-1][2]
        assert isinstance(final, ConsumerPlayer), "whoever reads is a consumer"
        self.final = final
        ends = {where: self._stable_end(where) for where in part.reads}

        def has_read() -> bool:
            positions = final.positions()
            return all(positions.get(where, 0) >= end for where, end in ends.items())

        self._run_until(has_read, SETTLING_MS)

    def _stable_end(self, where: TopicPartition) -> int:
        log = self.led(where)
        return 0 if log is None else log.partition.last_stable_offset

    def led(self, where: TopicPartition) -> Log | None:
        """A partition's log at the node that leads it; None while nobody does."""
        leader = self.protocol_events.leaders.get(where)
        return None if leader is None or leader.host is None else leader.host.node.logs.get(where)

    def open_at_coordinators(self) -> set[tuple[int, TopicPartition]]:
        """Producer ids and partitions of the transactions that coordinators know to be open or not yet
        ended.
        """
        return {
            (record.producer_id, where)
            for node in self.world.nodes
            if node.host is not None
            for log in node.host.node.logs.values()
            if isinstance(log.coordinator, Transactions)
            for record in log.coordinator.records.values()
            for where in record.partitions
            if record.state not in COMPLETED
        }

    @property
    def operations(self) -> list[ClientOperation]:
        """What all clients saw, in the order in which it ended."""
        now = self.world.now
        seen: list[ClientOperation] = []
        for _, _, player in self.cast:
            seen += player.all_operations(now)
        return sorted(seen, key=lambda operation: operation.completed_at)


def _heard(_: ProtocolEvent) -> None:
    """A point that is only counted."""


def stage(case: Case, watch: Callable[[World], None] | None = None) -> Play:
    """Everything in its place; nothing has happened yet. `watch` subscribes to the world first of all."""
    world = World(world_settings(case.cluster), Choices(recorded=case.scenario.choices))
    if watch is not None:
        watch(world)
    protocol_events = ProtocolEvents(world, case.cluster.coordinators)
    protocol_events.attach()
    step_judge = StepJudge(Invariants(world))
    step_judge.attach(world)
    for node in world.nodes:
        node.sends_at_once = True
    return Play(case, world, protocol_events, step_judge)
