"""What if: plays a variant of a scenario with faults added, protections and fixes switched off, or in another
transaction version; compares two such runs, and writes one as a scenario of its own.

Rule: what is played passed the checks of a scenario file, and what is written was read back and met its
expectations. Every error is a sentence for the person who asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

import attrs

from fencepost.broker.kafka_fixes import FIX_NAMES, FIXES
from fencepost.broker.settings import PROTECTIONS
from fencepost.faults.grammar import BadPhrase
from fencepost.faults.phrases import FAULTS, Fault
from fencepost.journal.storage import DamagedLog
from fencepost.lab.arguments import Arguments, BadRequest
from fencepost.lab.comparison import compare
from fencepost.lab.document import RunDocument
from fencepost.lab.recordings import record
from fencepost.simulator.run import NOT_LIVE, Run
from fencepost.simulator.scenarios.codec import BadScenario
from fencepost.simulator.scenarios.files import scenario_of, text_of
from fencepost.simulator.scenarios.found import seeded_text
from fencepost.simulator.scenarios.model import (
    RULE_NAMES,
    Brokers,
    Case,
    Scenario,
    ScenarioExpectation,
    Values,
    contradictory,
    variants,
)
from fencepost.simulator.scenarios.runner import finish, run_case, stage
from fencepost.simulator.scenarios.validation import Inconsistent, check
from fencepost.simulator.scenarios.verdicts import log_words

SOURCE: Final = "scenario"  # in errors, where the command line has the name of the file
FAULTS_MAX: Final = 50
POSSIBLE_MAX: Final = 12  # possibilities that an error lists
_SWITCHED_OFF: Final = "changed"


# --- the arguments ------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class PlayArguments:
    """What to play: the `text` of a scenario; which variant, from 1; `faults` to add, in one line each.
    `broken`, `without_fixes` and the others replace what the scenario says; None: as the scenario says.
    `scenario` is the name of a bundled one, whose text the server fills in.
    """

    scenario: str | None = None
    text: str
    variant: int = 1
    faults: tuple[str, ...] = ()
    broken: tuple[str, ...] | None = None
    without_fixes: tuple[str, ...] | None = None
    transaction_version: int | None = None
    partition_verification: bool | None = None


def arguments_of(raw: object) -> PlayArguments:
    """The arguments in a JSON value; BadRequest if it does not describe a run."""
    if not isinstance(raw, dict):
        raise BadRequest("a run is described by a JSON object")
    given = Arguments(cast("dict[str, object]", raw))
    given.refuse_others(attrs.fields_dict(PlayArguments))
    variant = given.value("variant", int)
    arguments = PlayArguments(
        scenario=given.value("scenario", str),
        text=given.value("text", str) or "",
        variant=1 if variant is None else variant,
        faults=given.names("faults") or (),
        broken=given.names("broken"),
        without_fixes=given.names("without_fixes"),
        transaction_version=given.value("transaction_version", int),
        partition_verification=given.value("partition_verification", bool),
    )
    if len(arguments.faults) > FAULTS_MAX:
        raise BadRequest(f"{len(arguments.faults)} faults are too many: the maximum is {FAULTS_MAX}")
    return arguments


# --- the case -----------------------------------------------------------------------------------------------


def case_of(arguments: PlayArguments) -> Case:
    """The requested run; BadScenario if the scenario does not have it."""
    scenario = scenario_of(arguments.text, arguments.scenario or SOURCE)
    every = dict(variants(scenario))
    if arguments.variant not in every:
        raise BadScenario(
            f"{scenario.name} has no variant {arguments.variant}: its variants are 1 to {len(every)}"
        )
    case = every[arguments.variant]
    cluster, seeded = _altered(case.cluster, arguments), scenario.seeded
    if seeded is not None:
        seeded = _altered(seeded, arguments)
    added = tuple(_fault(text) for text in arguments.faults)
    if not added and cluster == case.cluster and seeded == scenario.seeded:
        return case
    changed = attrs.evolve(
        scenario,
        cluster=cluster,
        seeded=seeded,
        faults=(*case.faults, *added),
        expect=case.expect,
        also_with=(),
    )
    _check(changed, arguments.faults, len(case.faults))
    return Case(
        scenario=changed,
        title=", ".join(filter(None, (case.title, _SWITCHED_OFF))),
        cluster=cluster,
        faults=changed.faults,
        expect=case.expect,
    )


BrokersT = TypeVar("BrokersT", bound=Brokers)


def _altered(brokers: BrokersT, arguments: PlayArguments) -> BrokersT:
    given = attrs.asdict(arguments, recurse=False)
    keys = ("broken", "without_fixes", "transaction_version", "partition_verification")
    changes: dict[str, Any] = {key: given[key] for key in keys if given[key] is not None}
    _refuse_unknown("broken", changes.get("broken", ()), sorted(PROTECTIONS))
    _refuse_unknown("without_fixes", changes.get("without_fixes", ()), FIX_NAMES)
    _refuse_unknown("transaction_version", [changes.get("transaction_version", 2)], (0, 1, 2))
    for key in ("broken", "without_fixes"):
        if key in changes:  # a set, which the scenario may write in another order
            is_as_before = set(changes[key]) == set(getattr(brokers, key))
            changes[key] = getattr(brokers, key) if is_as_before else tuple(sorted(set(changes[key])))
    return attrs.evolve(brokers, **changes)


def _refuse_unknown(key: str, given: Sequence[object], possible: Sequence[object]) -> None:
    for name in given:
        if name not in possible:
            raise BadRequest(f"{key}: there is no {name!r:.80} (possible: {', '.join(map(str, possible))})")


def _fault(text: str) -> Fault:
    """The fault of one line, as a scenario has it."""
    try:
        line = FAULTS.read(text)
    except BadPhrase as problem:
        raise BadRequest(f"{problem}{_listed(problem.possible)}") from None
    if line.every:
        raise BadRequest(
            f'"{text}": `every` is for faults in a real broker; here, add a fault for each moment, by its #N'
        )
    return Fault(when=(line.when,), do=line.do, until=line.until)


def _check(scenario: Scenario, added: Sequence[str], told: int) -> None:
    """Refuse what a file could not say. Errors name an added fault by its text, since it is on no line of a
    file.
    """
    try:
        check(scenario)
    except Inconsistent as problem:
        place, number = problem.place, problem.place.removeprefix("[[fault]] ")
        if number.isdecimal() and int(number) > told:
            place = f'"{added[int(number) - told - 1]}"'
        raise BadScenario(f"{place}: {problem}{_listed(problem.possible)}") from None


def _listed(possible: Sequence[str]) -> str:
    if not possible:
        return ""
    more = "; ..." if len(possible) > POSSIBLE_MAX else ""
    return f" (possible: {'; '.join(map(str, possible[:POSSIBLE_MAX]))}{more})"


# --- the result ---------------------------------------------------------------------------------------------


def play(arguments: PlayArguments) -> dict[str, Any]:
    """The document of the run, and all that can be switched off in it."""
    return {"document": _document(arguments), "own_faults": _own_faults(arguments), "switches": switches()}


@lru_cache(maxsize=2)
def _document(arguments: PlayArguments) -> RunDocument:
    """The document of a run; the same arguments give the same one. The scenario as it was is on the left of
    each comparison with it, so it is kept for the next one.
    """
    return record(case_of(arguments))


def _own_faults(arguments: PlayArguments) -> list[str]:
    """The faults of the scenario itself, in one line each."""
    case = case_of(attrs.evolve(arguments, faults=()))
    return [str_of(fault) for fault in case.faults]


def switches() -> dict[str, Any]:
    """What can be switched off in any run: protections by name, and fixes with what they are about."""
    fixes = [{"name": fix.name, "source": fix.source, "on": fix.on, "off": fix.off} for fix in FIXES]
    return {"broken": sorted(PROTECTIONS), "without_fixes": fixes}


def play_both(left: PlayArguments, right: PlayArguments) -> dict[str, Any]:
    """Two runs and where they diverge; what became readable in each, and the rules that only one breaks."""
    runs = [_document(each) for each in (left, right)]
    both: dict[str, Any] = {**compare(*runs)}
    own_faults = _own_faults(right)
    return both | {"changes": changes(*runs), "own_faults": own_faults, "switches": switches()}


def changes(left: RunDocument, right: RunDocument) -> dict[str, Any]:
    """What a change led to: what read_committed returns in the end, and the rules that are now broken, or no
    longer are.
    """
    before, after = visible_in(left), visible_in(right)
    rules_before = {each["rule"]: each["text"] for each in left["broken"]}
    rules_after = {each["rule"]: each["text"] for each in right["broken"]}
    return {
        "visible": [
            {"partition": where, "before": before.get(where, []), "after": after.get(where, [])}
            for where in sorted(before.keys() | after.keys())
            if before.get(where) != after.get(where)
        ],
        "now_broken": [
            {"rule": rule, "text": rules_after[rule]} for rule in rules_after if rule not in rules_before
        ],
        "no_longer_broken": [
            {"rule": rule, "text": rules_before[rule]} for rule in rules_before if rule not in rules_after
        ],
        "still_broken": [rule for rule in rules_after if rule in rules_before],
    }


def visible_in(run: RunDocument) -> dict[str, list[str]]:
    """By partition, the values that a read_committed reader has seen at the end of a run."""
    found: dict[str, list[str]] = {}
    for batch in run["batches"]:
        if batch["kind"] == "data" and batch["result"] in ("committed", "plain") and batch["gone"] is None:
            found.setdefault(batch["partition"], []).extend(batch["values"])
    return found


def str_of(fault: Fault) -> str:
    """A fault in one line; `times` has no words there."""
    until = "" if fault.until is None else f" until {fault.until}"
    return f"when {', '.join(map(str, fault.when))} do {fault.do}{until}"


# --- a scenario of its own ----------------------------------------------------------------------------------


def save(arguments: PlayArguments) -> dict[str, str]:
    """The run as a scenario file whose [expect] says what happened: its text and a name for the file.
    BadScenario if no file can say it.
    """
    case = case_of(arguments)
    run = stage(case)
    result = finish(case, run)
    if case.scenario.seeded is None:
        expect = _expectation(case, run, result.broken)
    else:
        expect = _expectation_of_seed(case, run)
    scenario = attrs.evolve(
        case.scenario,
        name=f"{case.scenario.name}, what if" if case.scenario.name else "what if",
        lesson=_lesson(arguments, case, result.broken),
        cluster=case.cluster,
        faults=case.faults,
        expect=expect,
        also_with=(),
    )
    text = text_of(scenario) if scenario.seeded is None else seeded_text(scenario)
    again = scenario_of(text, SOURCE)
    assert again == scenario, f"what was written is read as another scenario: {again}, not {scenario}"
    (written,) = dict(variants(again)).values()
    report = run_case(written)
    if report.problems:
        raise BadScenario(f"this run cannot be kept as a scenario: {'; '.join(report.problems)}")
    name = arguments.scenario or _file_name(case.scenario.name)
    return {"name": f"{name}_what_if.toml", "text": text}


def _lesson(arguments: PlayArguments, case: Case, broken: Sequence[str]) -> str:
    """What was changed and what came of it, in words; no part of the original lesson, which may be untrue
    now.
    """
    said = [f"{text}." for text in arguments.faults]
    brokers: Brokers = case.scenario.seeded or case.cluster
    said += [f"Switched off: {', '.join(off)}." for off in [(*brokers.broken, *brokers.without_fixes)] if off]
    outcome = f"It violates {', '.join(broken)}." if broken else "It violates no rule."
    return " ".join(("What if:", *said, outcome))


def _file_name(name: str) -> str:
    words = "".join(each if each.isascii() and each.isalnum() else " " for each in name.lower())
    return "_".join(words.split()) or "scenario"


def _expectation(case: Case, run: Run, broken: Sequence[str]) -> ScenarioExpectation:
    """What happened, as far as the scenario spoke of it; and what the last reader saw of each partition."""
    if unexpectable := [rule for rule in broken if rule not in RULE_NAMES]:
        raise BadScenario(
            f"this run cannot be kept as a scenario: it ended early ({', '.join(unexpectable)}), "
            "and a scenario cannot expect that"
        )
    kept = [name for name in case.expect.holds if run.exercised[name]]
    reached = {listener.point for listener in run.reached if listener.is_over}
    visible = run.visible()
    return ScenarioExpectation(
        holds=tuple(name for name in kept if not contradictory((name,), broken)),
        violates=tuple(broken),
        reaches=tuple(point for point in case.expect.reaches if point in reached),
        visible=tuple(
            (where, tuple(value.decode() for value in visible.get(where, ())))
            for where in case.cluster.partitions
        ),
        logs=_logs(case, run),
    )


def _logs(case: Case, run: Run) -> Values:
    """The contents of the logs that the scenario spoke of."""
    try:
        return tuple((where, tuple(log_words(run, where))) for where, _ in case.expect.logs)
    except DamagedLog:
        return ()


def _expectation_of_seed(case: Case, run: Run) -> ScenarioExpectation:
    """The first breach; without one, what the scenario spoke of and the run put to the test."""
    if run.breaches:
        return ScenarioExpectation(violates=(run.breaches[0].rule,))
    kept = [name for name in case.expect.holds if run.exercised[name]]
    return ScenarioExpectation(holds=tuple(dict.fromkeys((*kept, NOT_LIVE))))
