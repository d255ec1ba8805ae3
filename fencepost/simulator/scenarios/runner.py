"""Runs scenarios: each case goes through the run engine and is compared with what the scenario expects.

Rule: the same case gives the same result, recorded or not. A case with a `[seeded]` table is a world that a
search found: it ends at its first breach, as it did there.
"""

# Theory of operation
#
#     Scenario ── cases ──▶ Case ── stage ──▶ Run (simulator/run.py) ── finish ──▶ RunResult, with `problems`
#
# A story is played with every choice at 0: messages take the same time, and nothing happens but what its
# scripts and faults say. It keeps going after a breach, since it may expect several of them, and then all
# judges look at it. What is expected and missing is a problem, and so is what is there and not expected: a
# scenario about a late EndTxn must not pass because of something else.
#
# A run that a search found has the plan and the choices of that run, and ends at its first breach: all that
# comes after a breach may be its consequence.

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import attrs

from fencepost.simulator.actors.clients import Actor
from fencepost.simulator.actors.processors import group_processor, processor
from fencepost.simulator.actors.scripted import ConsumerPlayer, ProducerPlayer
from fencepost.simulator.actors.workloads import Membership, Runner
from fencepost.simulator.fuzz import worlds
from fencepost.simulator.judges.rules import Violation
from fencepost.simulator.recorded import Watcher
from fencepost.simulator.run import CORE_FAILED, JUDGE_FAILED, NOT_LIVE, Run, blaming, run_of
from fencepost.simulator.run_result import RunObserver, RunResult, unobserved
from fencepost.simulator.run_spec import Role, RunSpec, Task
from fencepost.simulator.scenarios.model import (
    Case,
    ClusterShape,
    ConsumerPart,
    Part,
    ProcessorPart,
    ProducerPart,
    Scenario,
    ScenarioExpectation,
    cases,
)
from fencepost.simulator.scenarios.validation import FINAL_READER
from fencepost.simulator.scenarios.verdicts import hints, judge, problems, problems_of_seed
from fencepost.simulator.world.choices import Choices, NotedChoices
from fencepost.simulator.world.history import History
from fencepost.simulator.world.processes import ClientProcess, Script
from fencepost.simulator.world.world import Disordered

Watch = Callable[[Run], None]
SETTLING_MS: Final = 30_000  # besides the longest transaction timeouts: what everything may take to converge
_TASKS: Final = {ProducerPart: Task.WORK, ConsumerPart: Task.READ, ProcessorPart: Task.COPY}


def run(scenario: Scenario) -> Iterator[RunResult]:
    """The results of a scenario's cases, one after the other."""
    return map(run_case, cases(scenario))


def run_case(case: Case) -> RunResult:
    """Run one case, from the first node's start to the verdict."""
    return finish(case, stage(case))


@attrs.frozen(kw_only=True)
class RecordedRun:
    run: Run
    result: RunResult
    history: History
    choices: NotedChoices


def record_case(case: Case, observer: RunObserver = unobserved) -> RecordedRun:
    """Run one case, and record it; `observer` watches it, too."""
    watcher, choices = Watcher(observer), NotedChoices(case.scenario.choices)

    def watch(run: Run) -> None:
        choices.world = run.world
        watcher.watch(run)

    run = stage(case, watch, choices)
    result = finish(case, run)
    lesson = case.scenario.lesson
    # A found run has its violation as its lesson, which would be printed twice.
    lesson = "" if lesson in result.evidence else lesson
    history = attrs.evolve(watcher.history(case.name, result), lesson=lesson)
    return RecordedRun(run=run, result=result, history=history, choices=choices)


def stage(case: Case, watch: Watch | None = None, choices: Choices | None = None) -> Run:
    """The run of a case before its first event; `watch` may subscribe to its world first of all."""
    seeded = case.scenario.seeded
    spec = spec_of(case) if seeded is None else attrs.evolve(worlds.spec_of(seeded), faults=case.faults)
    return run_of(spec, choices or Choices(recorded=case.scenario.choices), watch)


def finish(case: Case, run: Run) -> RunResult:
    """Play a run to its end and judge it; the result lists every difference from what was expected."""
    if case.scenario.seeded is not None:
        run.end_at_first_breach()
        wrong = problems_of_seed(case, run)
    else:
        wrong = _play_and_judge(case, run)
    strikes = [strike for strike in run.injector.strikes if strike.struck]
    struck = tuple(f"{strike.fault.do} ({strike.fault.when[0]})" for strike in strikes)
    return run.result(
        record=lambda observer: record_case(case, observer).history,
        name=case.name,
        problems=tuple(wrong),
        expected=tuple(_in_words(case.expect)),
        reached=tuple(str(listener.point) for listener in run.reached if listener.is_over),
        struck=(*map(str, run.random_faults.struck), *struck),
    )


def _play_and_judge(case: Case, run: Run) -> list[str]:
    """The problems. A run in which a core fails, or whose cluster is never ready, is not judged."""
    try:
        with blaming(CORE_FAILED):
            run.play()
        with blaming(JUDGE_FAILED):
            judge(run)
            found = problems(case, run)
    except Disordered as problem:
        run.breaches[:] = [Violation(NOT_LIVE, str(problem))]
    except Violation as breach:
        run.breaches[:] = [breach]
    else:
        return [*found, *(hints(case, run) if found else ())]
    return [str(run.breaches[0])]


def _in_words(expect: ScenarioExpectation) -> Iterator[str]:
    yield from (f"holds {name}" for name in expect.holds)
    yield from (f"violates {name}" for name in expect.violates)
    yield from (f"reaches {point}" for point in expect.reaches)
    yield from (f"{where} shows [{', '.join(values)}]" for where, values in expect.visible)
    yield from (f"log of {where} holds [{', '.join(words)}]" for where, words in expect.logs)


# --- a case as a value of the run engine --------------------------------------------------------------------


def spec_of(case: Case) -> RunSpec:
    cluster, parts = case.cluster, case.scenario.parts
    timeouts = [part.transaction_timeout_ms for part in parts if isinstance(part, ProducerPart)]
    return RunSpec(
        world=cluster.world(),
        topics=cluster.topics,
        roles=tuple(_role(cluster, part) for part in parts),
        final=_role(cluster, ConsumerPart(name=FINAL_READER, reads=cluster.partitions)),
        faults=case.faults,
        reaches=case.expect.reaches,
        keeps_going=True,
        phase_timeout_ms=2 * max(timeouts, default=0) + SETTLING_MS,
    )


def _role(cluster: ClusterShape, part: Part) -> Role:
    def act(run: Run, process: ClientProcess) -> tuple[Actor, Script[None]]:
        match part:
            case ProducerPart():
                producer = ProducerPlayer(process, run.protocol_events, cluster.producer_version, part)
                return producer, producer.script()
            case ConsumerPart():
                consumer = ConsumerPlayer(process, part)
                return consumer, consumer.script()
            case ProcessorPart():
                runner = Runner(
                    process,
                    transactional_id=part.transactional_id,
                    transaction_version=cluster.producer_version,
                )
                return runner, _copying(runner, run, part)

    is_processor = isinstance(part, ProcessorPart)
    return Role(
        name=part.name,
        task=_TASKS[type(part)],
        act=act,
        transactional_id=None if isinstance(part, ConsumerPart) else part.transactional_id,
        group=part.group if is_processor else "",
        reads=part.inputs(cluster) if is_processor else (),
        writes=part.writes if is_processor else "",
        waits_for_fault=part.is_called,
        is_replaced=not isinstance(part, ProducerPart),  # a new process does not know how far a script came
    )


def _copying(runner: Runner, run: Run, part: ProcessorPart) -> Script[None]:
    if not part.subscribes:
        return processor(runner, part.reads, run.copies, output=part.writes, group=part.group)
    membership = Membership(group=part.group, assignor=part.assignor)
    return group_processor(runner, part.subscribes, run.copies, output=part.writes, membership=membership)
