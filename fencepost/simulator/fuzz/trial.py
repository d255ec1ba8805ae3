"""One seed on trial: a plan is drawn, its world runs, and every judge looks at it.

Rule: the choices that were taken are the whole trial. Tried again with them, it ends the same way.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import attrs

from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.actors.workloads import INPUT, OUTPUT, transform, without_mark
from fencepost.simulator.fuzz.plan import FuzzPlan, draw
from fencepost.simulator.fuzz.simulation import ALL_PARTITIONS, FINAL_READER, Simulation
from fencepost.simulator.judges.black_box import check, exactly_once
from fencepost.simulator.judges.coverage import Coverage
from fencepost.simulator.judges.known_anomalies import KnownAnomaly, known_kafka
from fencepost.simulator.judges.late_messages import LateMessages
from fencepost.simulator.judges.operations import ClientOperation, Poll
from fencepost.simulator.judges.partition_rules import PartitionRecord
from fencepost.simulator.judges.rules import Violation
from fencepost.simulator.judges.white_box import Invariants
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.world import Disordered, World

Planner = Callable[[Choices], FuzzPlan]
Watch = Callable[[Simulation], None]
CORE_FAILED = "a core failed"
JUDGE_FAILED = "a judge failed"
NOT_LIVE = "liveness"
FAULT = "fault: "  # begins the mark of each kind of fault
ENDED = ("commit: ok", "abort: ok")  # marks of transactions that their process saw the end of


@attrs.frozen(kw_only=True)
class Trial:
    """How a run went. `choices` replay it; `digest` is equal for equal histories, in any process."""

    choices: tuple[int, ...]
    plan: FuzzPlan
    violation: Violation | None
    met: KnownAnomaly | None
    """What brokers of an old generation do by design: where the run met it, it ended."""
    digest: str
    marks: Mapping[str, int]
    transactions: int
    events: int
    elapsed: int
    """Virtual nanoseconds."""
    coverage: Coverage
    """Cells of the coordinator's tables that were hit, by the kinds of fault that struck."""

    @property
    def breach(self) -> Violation | None:
        """What ended the run, be it known of its generation or not."""
        return self.violation or self.met


def try_seed(seed: int, planner: Planner = draw) -> Trial:
    """Run what a seed says."""
    return try_choices(Choices(seed), planner)


def try_choices(choices: Choices, planner: Planner, watch: Watch | None = None) -> Trial:
    """Run what the choices say; whoever watches is given the run before anything has happened in it."""
    plan = planner(choices)
    world = World(plan.world, choices)
    simulation = Simulation(plan, world)
    if watch is not None:
        watch(simulation)
    invariants = Invariants(world)
    if not plan.world.node_settings.generation.renews_identity:
        LateMessages(world, invariants.transactions, invariants.partitions).attach()
    invariants.attach()
    breach = _judge(simulation, invariants)
    met = breach if isinstance(breach, KnownAnomaly) else None
    world.marks.update({f"exercised: {name}": count for name, count in invariants.exercised.items()})
    coverage = Coverage()
    invariants.cover(coverage, [mark.removeprefix(FAULT) for mark in world.marks if mark.startswith(FAULT)])
    return Trial(
        choices=tuple(choices.taken),
        plan=plan,
        violation=None if met is not None else breach,
        met=met,
        digest=digest_of(world),
        marks=world.marks,
        transactions=sum(world.marks[ended] for ended in ENDED),
        events=world.happened,
        elapsed=world.now,
        coverage=coverage,
    )


def _judge(simulation: Simulation, invariants: Invariants) -> Violation | None:
    """Run, and say what was broken first: a rule at some step, progress, or what clients saw."""
    try:
        simulation.run()
        simulation.world.run_until(lambda: invariants.is_settled)
        invariants.judge_end()
        _judge_clients(simulation.operations, invariants.partitions, simulation.world.marks)
    except Violation as violation:
        return violation
    except Disordered as problem:
        return _what_hangs(invariants, problem)
    except Exception as problem:  # noqa: BLE001 - what a core may raise is not known beforehand
        return core_failure(problem)
    return None


def _what_hangs(invariants: Invariants, problem: Disordered) -> Violation:
    """Why a run does not come to its end: by the rule for healed ones, if that sees it."""
    try:
        invariants.judge_end()
    except Violation as violation:
        return Violation(violation.rule, f"{violation.evidence}: {problem}")
    return Violation(NOT_LIVE, str(problem))


def core_failure(problem: Exception) -> Violation:
    """The cores hold their own assumptions by assertion: a broken one is a finding as any other."""
    return Violation(CORE_FAILED, f"{type(problem).__name__} in {_place(problem)}: {problem}")


def judge_failure(problem: Exception) -> Violation:
    """The judges hold theirs, too: what they did not think possible has happened, or they are wrong."""
    return Violation(JUDGE_FAILED, f"{type(problem).__name__} in {_place(problem)}: {problem}")


def digest_of(world: World) -> str:
    """What happened when and by which choices, and what it left in the logs."""
    digest = hashlib.blake2b(world.digest.encode(), digest_size=16)
    for path, content in world.journals.contents():
        digest.update(f"{path} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def _place(problem: BaseException) -> str:
    trace = problem.__traceback__
    assert trace is not None, "what was raised has a traceback"
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return f"{code.co_qualname}, line {trace.tb_lineno}"


def _judge_clients(
    operations: Sequence[ClientOperation],
    partitions: Mapping[TopicPartition, PartitionRecord],
    marks: Counter[str],
) -> None:
    """The black box, and what was copied; what the logs explain is no violation."""
    verdict = check(operations, finally_read=ALL_PARTITIONS)
    marks.update({f"exercised: {name}": count for name, count in verdict.exercised.items()})
    final = _read(operations, FINAL_READER)
    inputs = {where: values for where, values in final.items() if where.topic == INPUT}
    outputs = {
        where: [without_mark(value) for value in values]
        for where, values in final.items()
        if where.topic == OUTPUT
    }
    copied = exactly_once(
        inputs, outputs, lambda where, value: [(TopicPartition(OUTPUT, where.partition), transform(value))]
    )
    marks.update({f"exercised: {name}": count for name, count in copied.exercised.items()})
    for anomaly in (*verdict.violations, *copied.violations):
        excuse = known_kafka(anomaly, partitions)
        if excuse is None:
            raise Violation(anomaly.rule.name, anomaly.text)
        marks[f"known: {excuse.name}"] += 1


def _read(operations: Sequence[ClientOperation], process: str) -> dict[TopicPartition, list[bytes]]:
    values: dict[TopicPartition, list[bytes]] = {}
    for operation in operations:
        if operation.process == process:
            for action in operation.actions:
                if isinstance(action, Poll):
                    values.setdefault(action.partition, []).extend(value for _, value in action.records)
    return values
