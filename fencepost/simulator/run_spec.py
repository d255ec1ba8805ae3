"""What a run is given: its topics, the roles of its client processes, and its faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

import attrs

from fencepost.faults.phrases import DAMAGES as DAMAGING
from fencepost.faults.phrases import ActionKind, Fault, Point
from fencepost.log_model.compaction import CleanupRules
from fencepost.protocol.messages import TopicConfig
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.actors.clients import Actor
from fencepost.simulator.faults.random_faults import DAMAGES, FaultKind, RandomFaultPlan
from fencepost.simulator.world.processes import ClientProcess, Script
from fencepost.simulator.world.world import WorldSettings

if TYPE_CHECKING:
    from fencepost.simulator.run import Run


class Task(Enum):
    """What a role is for, which says when a run is over."""

    WORK = "work"  # ends by itself, and the run waits for that
    COPY = "copy"  # continues until everything is copied
    READ = "read"  # continues as long as the run does


@attrs.frozen(kw_only=True)
class Role:
    """A client process. When it is killed, another process takes the role, unless `is_replaced` is False.

    `group`, `reads` and `writes` are the consumer group, the inputs and the output topic of a COPY.
    """

    name: str
    task: Task
    act: Callable[[Run, ClientProcess], tuple[Actor, Script[None]]]
    transactional_id: str | None = None
    group: str = ""
    reads: tuple[TopicPartition, ...] = ()
    writes: str = ""
    waits_for_fault: bool = False  # a fault starts it
    is_replaced: bool = True


@attrs.frozen(kw_only=True)
class RunSpec:
    """Everything about a run but its choices. `final` reads everything at the end. With `cleanup`, all topics
    are compacted.
    """

    world: WorldSettings
    topics: tuple[tuple[str, int], ...]
    configs: tuple[TopicConfig, ...] = ()  # of all topics
    cleanup: CleanupRules | None = None  # by which records of all topics may be removed
    epochs: Mapping[str, int] = attrs.Factory(dict[str, int])  # that transactional ids have before it begins
    roles: tuple[Role, ...]
    fleeting: frozenset[TopicPartition] = frozenset()  # of topics that are deleted and created again
    final: Role
    random_faults: RandomFaultPlan = attrs.Factory(RandomFaultPlan)
    faults: tuple[Fault, ...] = ()
    reaches: tuple[Point, ...] = ()
    drifts_ppm: tuple[int, ...] = ()
    keeps_going: bool = False  # after a breach
    phase_timeout_ms: int = 0  # of each phase of a run that keeps going

    @property
    def may_be_damaged(self) -> bool:
        """Whether disks may damage synced data."""
        drawn = not DAMAGES.keys().isdisjoint(self.random_faults.kinds)
        return drawn or any(fault.do.kind in DAMAGING for fault in self.faults)

    @property
    def writes_manifests(self) -> bool:
        """Whether nodes write manifests, as a server does: where power is lost, a start asks them what was
        synced, and damage strikes only what they have promised. They cost 7 % of a run, so others do without.
        """
        cut = any(fault.do.kind is ActionKind.CUT_POWER for fault in self.faults)
        return cut or self.may_be_damaged or FaultKind.POWER_LOSS in self.random_faults.kinds

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(topic, number) for topic, count in self.topics for number in range(count))
