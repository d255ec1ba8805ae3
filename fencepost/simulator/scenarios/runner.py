"""Runs scenarios and reports: what was expected, what was reached, which faults struck, and what is wrong.

Rule: a report says everything that a reader needs to believe it; the same case gives the same report.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from fencepost.simulator.fuzz.trial import NOT_LIVE, core_failure, digest_of, judge_failure
from fencepost.simulator.judges.rules import Violation
from fencepost.simulator.scenarios import seeded_playing
from fencepost.simulator.scenarios.model import Case, ProducerPart, Scenario, ScenarioExpectation, cases
from fencepost.simulator.scenarios.playing import Play, stage
from fencepost.simulator.scenarios.seeded_playing import SeededPlay
from fencepost.simulator.scenarios.validation import FINAL_READER
from fencepost.simulator.scenarios.verdicts import hints, judge, problems
from fencepost.simulator.world.history import History
from fencepost.simulator.world.recording import Recorder
from fencepost.simulator.world.world import Disordered, World


@attrs.frozen(kw_only=True)
class Report:
    """How one case went. `problems` is empty for one that passed; `digest` is equal for equal runs;
    `evidence` says of each rule in `broken` what broke it; `elapsed` is virtual nanoseconds.
    """

    name: str
    problems: tuple[str, ...]
    expected: tuple[str, ...]
    reached: tuple[str, ...]
    fired: tuple[str, ...]
    broken: tuple[str, ...]
    evidence: tuple[str, ...]
    digest: str
    events: int
    elapsed: int

    @property
    def passed(self) -> bool:
        return not self.problems


def run(scenario: Scenario) -> Iterator[Report]:
    """Every case of a scenario, one after the other."""
    return map(run_case, cases(scenario))


def run_case(case: Case) -> Report:
    """One case, from the first node's start to the verdict."""
    if case.scenario.seeded is not None:
        return _report_of_seed(case, seeded_playing.play(case.scenario))
    return finish(stage(case))


def record_case(case: Case) -> tuple[Report, History]:
    """The same, with everything that happened."""
    if case.scenario.seeded is not None:
        seeded = seeded_playing.record(case.scenario)
        report = _report_of_seed(case, seeded)
        return report, _told(case, report, seeded.history(case.name))
    recorders: list[Recorder] = []

    def watch(world: World) -> None:
        recorders.append(Recorder(world, unseen=("admin", FINAL_READER)))
        recorders[0].attach()

    play = stage(case, watch)
    report = finish(play)
    return report, _told(case, report, recorders[0].history(case.name, _participants(play)))


def _told(case: Case, report: Report, history: History) -> History:
    """With what it teaches, unless that is what it broke, and what it broke."""
    lesson = case.scenario.lesson
    return attrs.evolve(history, lesson="" if lesson in report.evidence else lesson, broken=report.evidence)


def _participants(play: Play) -> tuple[str, ...]:
    """Who writes, then the nodes, then who reads."""
    writers = [process.participant for part, process, _ in play.cast if isinstance(part, ProducerPart)]
    readers = [
        process.participant
        for part, process, _ in play.cast
        if not isinstance(part, ProducerPart) and part.name != FINAL_READER
    ]
    return (*writers, *(node.participant for node in play.world.nodes), *readers)


def finish(play: Play) -> Report:
    """Runs what is on stage, and says what it came to."""
    failure = _failure(play)
    if failure is None:
        broken, wrong, evidence = _judged(play)
    else:
        broken, wrong, evidence = (failure.rule,), [str(failure)], (str(failure),)
    case, world = play.case, play.world
    strikes = play.injector.strikes
    return Report(
        name=case.name,
        problems=(*wrong, *(hints(play) if wrong else ())),
        expected=tuple(_in_words(case.expect)),
        reached=tuple(str(heard.point) for heard in play.reached if heard.is_over),
        fired=tuple(f"{strike.fault.do} ({strike.fault.when[0]})" for strike in strikes if strike.struck),
        broken=broken,
        evidence=evidence,
        digest=digest_of(world),
        events=world.happened,
        elapsed=world.now,
    )


def _judged(play: Play) -> tuple[tuple[str, ...], list[str], tuple[str, ...]]:
    """The rules that are broken, what is wrong, and the evidence; a judge that fails has found something."""
    try:
        findings = judge(play)
        evidence = tuple(f"{name}: {findings.evidence(name)}" for name in findings.broken)
        return findings.broken, problems(play, findings), evidence
    except Exception as problem:  # noqa: BLE001 - what a judge may stumble over is not known beforehand
        failure = judge_failure(problem)
        return (failure.rule,), [str(failure)], (str(failure),)


def _failure(play: Play) -> Violation | None:
    """Runs it; what kept it from its end, and from being judged: a core that failed, or a cluster that never
    got ready.
    """
    try:
        play.run()
    except Disordered as problem:
        return Violation(NOT_LIVE, str(problem))
    except Exception as problem:  # noqa: BLE001 - what a core may raise is not known beforehand
        return core_failure(problem)
    return None


def _report_of_seed(case: Case, play: SeededPlay) -> Report:
    trial = play.trial
    return Report(
        name=case.name,
        problems=tuple(play.problems(case.expect)),
        expected=tuple(_in_words(case.expect)),
        reached=(),
        fired=tuple(f"{struck.kind.value}: {struck.whom}" for struck in play.struck),
        broken=() if trial.breach is None else (trial.breach.rule,),
        evidence=() if trial.breach is None else (str(trial.breach),),
        digest=trial.digest,
        events=trial.events,
        elapsed=trial.elapsed,
    )


def _in_words(expect: ScenarioExpectation) -> Iterator[str]:
    yield from (f"holds {name}" for name in expect.holds)
    yield from (f"violates {name}" for name in expect.violates)
    yield from (f"reaches {point}" for point in expect.reaches)
    yield from (f"{where} shows [{', '.join(values)}]" for where, values in expect.visible)
    yield from (f"log of {where} holds [{', '.join(words)}]" for where, words in expect.logs)
