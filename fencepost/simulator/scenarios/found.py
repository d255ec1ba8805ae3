"""A run that a search found, as the text of a scenario: its plan and its choices, with comments for people.

Rule: what `scenario_text` returns was read back and played, and it ends in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from fencepost.simulator.draw.text import ending
from fencepost.simulator.faults.random_faults import StruckFault
from fencepost.simulator.fuzz.shrinking import Failing
from fencepost.simulator.scenarios.codec import blocks
from fencepost.simulator.scenarios.files import joined, scenario_of, text_of
from fencepost.simulator.scenarios.model import Case, Scenario, ScenarioExpectation, cases
from fencepost.simulator.scenarios.runner import record_case, run_case
from fencepost.simulator.world.choices import Note
from fencepost.simulator.world.participants import NS_PER_MS

WIDTH: Final = 108  # a comment has its own two characters
LINES_MAX: Final = 30


def scenario_text(name: str, failing: Failing, found: str) -> str:
    """The TOML that plays this run again, and expects what it breaks. `found` says where it comes from."""
    scenario = Scenario(
        name=name,
        lesson=str(failing.violation),
        expect=ScenarioExpectation(violates=(failing.violation.rule,)),
        seeded=failing.plan,
        choices=failing.choices,
    )
    (case,) = cases(scenario)
    played = record_case(case)
    history = attrs.evolve(played.history, title=name, lesson="", broken=(str(failing.violation),))
    text = seeded_text(
        scenario,
        found=found,
        struck=played.run.random_faults.struck,
        notes=played.choices.notes,
        last_rows=ending(history, width=WIDTH, rows=LINES_MAX),
    )
    _check(text, scenario, failing)
    return text


def case_text(case: Case) -> str:
    """The TOML of a scenario whose only run is this case."""
    scenario = attrs.evolve(
        case.scenario, cluster=case.cluster, faults=case.faults, expect=case.expect, also_with=()
    )
    return text_of(scenario) if scenario.seeded is None else seeded_text(scenario)


def _check(text: str, scenario: Scenario, failing: Failing) -> None:
    """Assert that the text means the same: if it does not, that is our bug, and it must not surprise a
    reader.
    """
    again = scenario_of(text, "what was written")
    assert again == scenario, f"what was written is read as another scenario: {again}, not {scenario}"
    (case,) = cases(again)
    report = run_case(case)
    assert report.passed, f"what was written runs another way: {report.problems}"
    assert report.events == failing.events, f"{report.events} events again, not {failing.events}"


def seeded_text(
    scenario: Scenario,
    *,
    found: str = "",
    struck: Sequence[StruckFault] = (),
    notes: Mapping[int, Note] | None = None,
    last_rows: Sequence[str] = (),
) -> str:
    """The TOML of a scenario with a seeded run. Comments say where the run was found, what struck, what each
    choice decided, and how the run ends.
    """
    head, *tables = blocks(attrs.evolve(scenario, choices=()))
    expect = [table for table in tables if table[0] == "[expect]"]
    seeded = [table for table in tables if table[0] != "[expect]"]
    choices = ["# Every choice that is not listed is 0: no disturbance.", "[seeded.choices]"]
    for place, chosen in enumerate(scenario.choices):
        if chosen:
            line, note = f"{place} = {chosen}", (notes or {}).get(place)
            choices.append(line if note is None else f"{line:<12} # {_ms(note.at)}: {note.about}")
    parts = [
        [*_comments(found.splitlines()), *head],
        *seeded,
        _comments(f"{_ms(each.at)}: {each}" for each in struck),
        choices,
        *expect,
        _comments(["How it ends:", "", *last_rows]) if last_rows else [],
    ]
    return joined([part for part in parts if part])


def _comments(lines: Iterable[str]) -> list[str]:
    return [f"# {line}".rstrip() for line in lines]


def _ms(at: int) -> str:
    return f"{at / NS_PER_MS:.3f} ms"
