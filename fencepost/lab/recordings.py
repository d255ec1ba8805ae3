"""Plays runs again and returns their documents: cases of scenarios, results of searches, explored traces.

    record(case)             a scenario's variant, even one with a [seeded] plan
    record_result(result)    a RunResult of simulate(), of a scenario, of a shrunk run
    record_explored(found)   the trace of explore(), if it found a violation

Rule: a run is the same with and without an observer, so a document shows the run that was judged.
"""

from __future__ import annotations

import attrs

from fencepost.broker.settings import NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.lab.document import Json, RunDocument, RunFacts, document
from fencepost.lab.explored import PathObserver
from fencepost.lab.observer import RunObserver, consumer_of
from fencepost.lab.points import StepPoints
from fencepost.simulator.explore import Explored
from fencepost.simulator.explore.history import BROKER_NAME
from fencepost.simulator.run import Run
from fencepost.simulator.run_result import RunResult
from fencepost.simulator.run_spec import Task
from fencepost.simulator.scenarios.model import Case
from fencepost.simulator.scenarios.runner import record_case
from fencepost.simulator.world.history import Appended, Coordinated, History
from fencepost.simulator.world.recording import Recorder


def record(case: Case) -> RunDocument:
    """The document of a scenario's case, which is run for it."""
    watch = _Watch()
    recorded = record_case(case, watch.attach)
    return watch.document(recorded.history, recorded.result)


def record_result(result: RunResult) -> RunDocument:
    """The document of a run that is over; it is run again."""
    watch = _Watch()
    return watch.document(result.record(watch.attach), result)


def record_explored(found: Explored) -> RunDocument | None:
    """The document of the trace to a violation; None if there is none. Each step takes a millisecond."""
    config, observer = found.config, PathObserver()
    if found.retell is None or found.violation is None:
        return None
    history = found.retell(observer)
    observer.details.breaches[found.violation] = _decisive(history)
    clients = [name for name in history.participants if name != BROKER_NAME]
    facts = RunFacts(
        settings=_settings(config.node_settings, nodes=1, policy=SyncPolicy.NONE),
        transaction_version=config.transaction_version,
        passed=False,
        broken=[(found.violation, found.because)],
        nodes=frozenset({BROKER_NAME}),
        transactional_ids=dict(zip(clients, clients, strict=True)),
    )
    return document(history, facts, observer.details)


def _decisive(history: History) -> int:
    """The event that breaks the rule. The search judges every state and stops at the first that is wrong: the
    last action, all of whose events have one time, led to it; if it wrote, by what it wrote.
    """
    last = len(history.events) - 1
    action = [number for number, event in enumerate(history.events) if event.at == history.events[last].at]
    wrote = [number for number in action if isinstance(history.events[number], Appended | Coordinated)]
    return wrote[-1] if wrote else last


@attrs.define(eq=False)
class _Watch:
    """The observers of a run, besides the recorder."""

    run: Run = attrs.field(init=False)
    observer: RunObserver = attrs.field(init=False)
    points: StepPoints = attrs.field(init=False)

    def attach(self, run: Run, recorder: Recorder) -> None:
        """Called before the first event."""
        self.run, self.observer = run, RunObserver(run, recorder)
        self.observer.attach()
        self.points = StepPoints.of(run.world, recorder)
        self.points.attach()

    def document(self, history: History, result: RunResult) -> RunDocument:
        self.observer.finish()
        self.observer.details.points.update(self.points.points)
        return document(history, self._facts(result), self.observer.details)

    def _facts(self, result: RunResult) -> RunFacts:
        run, settings = self.run, self.run.world.settings.node_settings
        of_role = {role.name: role.transactional_id for role in run.spec.roles}
        named = {each.process.participant: of_role.get(each.role.name) for each in run.cast}
        return RunFacts(
            settings=_settings(settings, nodes=len(run.world.nodes), policy=run.world.settings.policy),
            transaction_version=settings.transaction_version.number,
            passed=result.passed,
            expected=result.expected,
            problems=result.problems,
            broken=[(each.rule, each.evidence) for each in result.first_breaches.values()],
            nodes=frozenset(node.participant for node in run.world.nodes),
            isolation=_isolation(run),
            transactional_ids={lane: name for lane, name in named.items() if name is not None},
        )


def _settings(settings: NodeSettings, *, nodes: int, policy: SyncPolicy) -> dict[str, Json]:
    """What a page says about the brokers of a run."""
    return {
        "transaction_version": settings.transaction_version.number,
        "partition_verification": settings.partition_verification,
        "broken": sorted(settings.broken),
        "without_fixes": list(settings.fixes.off),
        "nodes": nodes,
        "sync": policy.value,
    }


def _isolation(run: Run) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in run.cast:
        if each.role.task is not Task.WORK:
            consumer = consumer_of(each.process)
            if consumer is not None:
                found[each.process.participant] = consumer.settings.isolation_level.name.lower()
    return found
