"""Runs scenarios: each case goes through the run engine and is held against what the scenario expects.

Rule: a result says everything that a reader needs to believe it; the same case gives the same result,
recorded or not. A case with a `[seeded]` table is a world that a search found: it ends at its first
breach, as it did there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from fencepost.simulator.fuzz import worlds
from fencepost.simulator.judges.rules import Violation
from fencepost.simulator.run import NOT_LIVE, Run, RunResult, core_failure, judge_failure, run_of
from fencepost.simulator.scenarios.model import Case, Scenario, ScenarioExpectation, cases
from fencepost.simulator.scenarios.playing import spec_of
from fencepost.simulator.scenarios.verdicts import hints, judge, problems, problems_of_seed
from fencepost.simulator.world.choices import Choices, NotedChoices
from fencepost.simulator.world.history import History
from fencepost.simulator.world.recording import Recorder
from fencepost.simulator.world.world import Disordered

Watch = Callable[[Run], None]


def run(scenario: Scenario) -> Iterator[RunResult]:
    """Every case of a scenario, one after the other."""
    return map(run_case, cases(scenario))


def run_case(case: Case) -> RunResult:
    """One case, from the first node's start to the verdict."""
    return finish(case, stage(case))


@attrs.frozen(kw_only=True)
class RecordedRun:
    """A run with everything that happened, and what each of its choices decided."""

    run: Run
    result: RunResult
    history: History
    choices: NotedChoices


def record_case(case: Case) -> RecordedRun:
    """The same, recorded."""
    recorders: list[Recorder] = []
    choices = NotedChoices(case.scenario.choices)

    def watch(run: Run) -> None:
        choices.clock = run.world
        recorders.append(Recorder(run.world, unseen=("admin", run.spec.final.name)))
        recorders[0].attach()

    run = stage(case, watch, choices)
    result = finish(case, run)
    if result.breach is not None and not run.spec.keeps_going:
        recorders[0].stopped()
    history = recorders[0].history(case.name, run.participants())
    lesson = case.scenario.lesson
    # A lesson that is what broke would be said twice.
    history = attrs.evolve(
        history, lesson="" if lesson in result.evidence else lesson, broken=result.evidence
    )
    return RecordedRun(run=run, result=result, history=history, choices=choices)


def stage(case: Case, watch: Watch | None = None, choices: Choices | None = None) -> Run:
    """The run of a case in which nothing has happened; `watch` may subscribe to its world first of all."""
    seeded = case.scenario.seeded
    spec = spec_of(case) if seeded is None else worlds.spec_of(seeded.plan)
    return run_of(spec, choices or Choices(recorded=case.scenario.choices), watch)


def finish(case: Case, run: Run) -> RunResult:
    """Plays it to its end, judges it, and says in what it was not as expected."""
    if case.scenario.seeded is not None:
        run.end_at_first_breach()
        wrong = problems_of_seed(case, run)
        fired = tuple(map(str, run.random_faults.struck))
    else:
        wrong = _play_and_judge(case, run)
        strikes = [strike for strike in run.injector.strikes if strike.struck]
        fired = tuple(f"{strike.fault.do} ({strike.fault.when[0]})" for strike in strikes)
    return run.result(
        name=case.name,
        problems=tuple(wrong),
        expected=tuple(_in_words(case.expect)),
        reached=tuple(str(listener.point) for listener in run.reached if listener.is_over),
        fired=fired,
    )


def _play_and_judge(case: Case, run: Run) -> list[str]:
    """What is wrong. A core that fails, or a cluster that is never ready, keeps a run from being judged."""
    try:
        run.play()
    except Disordered as problem:
        return _only(run, Violation(NOT_LIVE, str(problem)))
    except Exception as problem:  # noqa: BLE001 - what a core may raise is not known beforehand
        return _only(run, core_failure(problem))
    try:
        judge(case, run)
        found = problems(case, run)
    except Exception as problem:  # noqa: BLE001 - what a judge may stumble over is not known beforehand
        return _only(run, judge_failure(problem))
    return [*found, *(hints(case, run) if found else ())]


def _only(run: Run, failure: Violation) -> list[str]:
    run.breaches[:] = [failure]
    return [str(failure)]


def _in_words(expect: ScenarioExpectation) -> Iterator[str]:
    yield from (f"holds {name}" for name in expect.holds)
    yield from (f"violates {name}" for name in expect.violates)
    yield from (f"reaches {point}" for point in expect.reaches)
    yield from (f"{where} shows [{', '.join(values)}]" for where, values in expect.visible)
    yield from (f"log of {where} holds [{', '.join(words)}]" for where, words in expect.logs)
