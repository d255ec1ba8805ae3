"""A case of a scenario as a value of the run engine: its cluster, its cast, its faults.

Rule: the run is the same every time, whether it is recorded or not.
"""

from __future__ import annotations

from typing import Final

from fencepost.broker.kafka_fixes import KafkaFixes
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS
from fencepost.journal.journal import JournalSettings
from fencepost.simulator.actors.scripted import ConsumerPlayer, ProducerPlayer
from fencepost.simulator.actors.workloads import Membership, Runner, group_processor, processor
from fencepost.simulator.run import Actor, Role, Run, RunSpec, Task
from fencepost.simulator.scenarios.model import (
    Case,
    ClusterShape,
    ConsumerPart,
    Part,
    ProcessorPart,
    ProducerPart,
)
from fencepost.simulator.scenarios.validation import FINAL_READER
from fencepost.simulator.world.processes import ClientProcess, Script
from fencepost.simulator.world.world import WorldSettings

SETTLING_MS: Final = 30_000  # besides the longest transaction timeouts: what everything may take to converge


def spec_of(case: Case) -> RunSpec:
    """The run of a case."""
    cluster, parts = case.cluster, case.scenario.parts
    timeouts = [part.transaction_timeout_ms for part in parts if isinstance(part, ProducerPart)]
    return RunSpec(
        world=world_settings(cluster),
        topics=cluster.topics,
        roles=tuple(_role(cluster, part) for part in parts),
        final=_role(cluster, ConsumerPart(name=FINAL_READER, reads=cluster.partitions)),
        faults=case.faults,
        reaches=case.expect.reaches,
        keeps_going=True,
        patience_ms=2 * max(timeouts, default=0) + SETTLING_MS,
    )


def _role(cluster: ClusterShape, part: Part) -> Role:
    def act(run: Run, process: ClientProcess) -> tuple[Actor, Script[None]]:
        match part:
            case ProducerPart():
                producer = ProducerPlayer(run.world, run.protocol_events, cluster.dialect, part, process)
                return producer, producer.script()
            case ConsumerPart():
                consumer = ConsumerPlayer(run.world, part, process)
                return consumer, consumer.script()
            case ProcessorPart():
                runner = Runner(
                    run.world,
                    process,
                    transactional_id=part.transactional_id,
                    transaction_version=cluster.dialect,
                )
                return runner, _copying(runner, run, part)

    is_processor = isinstance(part, ProcessorPart)
    return Role(
        name=part.name,
        task=_TASKS[type(part)],
        act=act,
        transactional_id=None if isinstance(part, ConsumerPart) else part.transactional_id,
        reads=part.inputs(cluster) if is_processor else (),
        writes=part.writes if is_processor else "",
        waits_for_fault=part.is_called,
        is_replaced=not isinstance(part, ProducerPart),  # a new process does not know how far a script came
    )


def _copying(runner: Runner, run: Run, part: ProcessorPart) -> Script[None]:
    if not part.subscribes:
        return processor(runner, part.reads, run.settled, output=part.writes, group=part.group)
    membership = Membership(group=part.group, assignor=part.assignor)
    return group_processor(runner, part.subscribes, run.settled, output=part.writes, membership=membership)


_TASKS: Final = {ProducerPart: Task.WORK, ConsumerPart: Task.READ, ProcessorPart: Task.COPY}


def world_settings(cluster: ClusterShape) -> WorldSettings:
    """The world that a scenario's cluster stands for."""
    return WorldSettings(
        nodes=cluster.nodes,
        node_settings=NodeSettings(
            transaction_version=TRANSACTION_VERSIONS[cluster.transaction_version],
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
