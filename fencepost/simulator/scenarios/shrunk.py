"""A small failing run as the text of a scenario: what makes it, what struck, what was decided, how it ends.

Rule: the text was read back and played before anybody is given it.
"""

from __future__ import annotations

from typing import Final

import attrs

from fencepost.simulator.draw.text import LEGEND, space_time
from fencepost.simulator.fuzz.shrinking import Failing
from fencepost.simulator.scenarios.files import scenario_of
from fencepost.simulator.scenarios.model import Scenario, ScenarioExpectation, SeededRun, cases
from fencepost.simulator.scenarios.runner import record_case, run_case
from fencepost.simulator.scenarios.seeded import Commentary, seeded_text

WIDTH: Final = 108  # a comment has its own two characters
LINES_MAX: Final = 30


def scenario_text(name: str, failing: Failing, found: str) -> str:
    """The TOML that plays this run again, and expects what it breaks. `found` says where it comes from."""
    scenario = Scenario(
        name=name,
        lesson=str(failing.violation),
        expect=ScenarioExpectation(violates=(failing.violation.rule,)),
        seeded=SeededRun(plan=failing.plan),
        choices=failing.choices,
    )
    (case,) = cases(scenario)
    played = record_case(case)
    history = attrs.evolve(played.history, title=name, lesson="", broken=(str(failing.violation),))
    commentary = Commentary(
        found=found,
        struck=tuple(played.run.random_faults.struck),
        notes=played.choices.notes,
        ending=tuple(_ending(space_time(history, width=WIDTH))),
    )
    text = seeded_text(scenario, commentary)
    _judge(text, scenario, failing)
    return text


def _judge(text: str, scenario: Scenario, failing: Failing) -> None:
    """A text that says something else is our bug, never the reader's surprise."""
    again = scenario_of(text, "what was written")
    assert again == scenario, f"what was written is read as another scenario: {again}, not {scenario}"
    (case,) = cases(again)
    report = run_case(case)
    assert report.passed, f"what was written runs another way: {report.problems}"
    assert report.events == failing.events, f"{report.events} events again, not {failing.events}"


def _ending(table: str) -> list[str]:
    """The last lines above the legend, below the names of the lanes."""
    lines = [line for line in table.splitlines() if line.strip()]
    end = next((at for at, line in enumerate(lines) if line.lstrip().startswith(LEGEND[0])), len(lines))
    head, body = lines[1:2], lines[2:end]
    return [*head, *(["..."] if len(body) > LINES_MAX else []), *body[-LINES_MAX:]]
