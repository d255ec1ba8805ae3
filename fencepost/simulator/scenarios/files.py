"""Scenario files: TOML text to a scenario, and back.

Rule: every key and the order of the tables follow from the classes of `model.py`. What differs from the
default is written, and nothing else. Only rows of `also_with`, which change keys of two tables, and the
choices of a run that a search found have code of their own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

from fencepost.faults.grammar import NUMBER_MAX
from fencepost.simulator.scenarios.codec import (
    TOP,
    BadScenario,
    SourceText,
    Table,
    blocks,
    read_table,
    written,
)
from fencepost.simulator.scenarios.model import ClusterShape, Scenario, ScenarioExpectation, Variant
from fencepost.simulator.scenarios.validation import Inconsistent, check

CHOICES_MAX: Final = 1_000_000


# --- reading ------------------------------------------------------------------------------------------------


def scenario_of(text: str, source: str = "scenario") -> Scenario:
    """The scenario in a TOML text; `source` is the name of the file in errors. BadScenario when there is
    none.
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as problem:  # a number may have more digits than Python reads
        raise BadScenario(f"{source} is not TOML: {problem}") from None
    return scenario_in(values, source, text.splitlines())


def scenario_in(values: dict[str, Any], source: str, lines: Sequence[str] = ()) -> Scenario:
    """The same, from the tables of a file or a builder; `lines` are those of the text."""
    top = Table(TOP, values, SourceText(source, lines))
    expect = top.inner("expect")
    if "expect" in values and all(value in ([], {}) for value in expect.values.values()):
        possible = [field.alias for field in attrs.fields(ScenarioExpectation)]
        because = 'expects nothing: write what must hold, as holds = ["exactly-once"], or leave the table out'
        raise top.wrong("expect", because, possible)
    if "seeded" in values:
        # Such a file has no other cluster and no parts; its faults are added to those of the plan.
        top.refuse_others(("name", "lesson", "fault", "seeded", "expect"))
        expect.refuse_others(("holds", "violates"))
        scenario = attrs.evolve(read_table(Scenario, top), choices=_choices(top.inner("seeded")))
    else:
        cluster = read_table(ClusterShape, top.inner("cluster"))
        # First the cluster: an error about a partition lists those that there are.
        top.source.partitions = cluster.partitions
        scenario = read_table(Scenario, top)
        rows = expect.each("also_with", "[expect] also_with")
        scenario = attrs.evolve(scenario, also_with=tuple(_variant(row, scenario) for row in rows))
    top.finish()
    try:
        check(scenario)
    except Inconsistent as problem:
        place = Table(problem.place, {}, top.source)
        raise place.wrong(problem.key, str(problem), problem.possible) from None
    return scenario


def _variant(row: Table, scenario: Scenario) -> Variant:
    """A row of `also_with`: keys of [cluster] and [expect] side by side."""
    expect = scenario.expect
    if {"holds", "violates"} & row.values.keys():  # a row that names one of them names both
        expect = _without_rules(expect)
    return Variant(
        cluster=read_table(ClusterShape, row, scenario.cluster),
        expect=read_table(ScenarioExpectation, row, expect),
    )


def _without_rules(expect: ScenarioExpectation) -> ScenarioExpectation:
    return attrs.evolve(expect, holds=(), violates=())


def _choices(seeded: Table) -> tuple[int, ...]:
    """The choices of a run that a search found, by their indices; those that are left out are 0."""
    table, chosen = seeded.inner("choices"), dict[int, int]()
    for key, choice in table.values.items():
        table.known[key] = None
        if not key.isdecimal():
            raise table.wrong(key, "is not the index of a choice: a whole number from 0")
        place = int(key) if len(key) <= len(str(CHOICES_MAX)) else CHOICES_MAX
        if place >= CHOICES_MAX:
            raise table.wrong(key, f"is not the index of a choice: the maximum is {CHOICES_MAX - 1}")
        if type(choice) is not int or not 0 <= choice <= NUMBER_MAX:
            raise table.mistyped(key, f"a whole number from 0 to {NUMBER_MAX}")
        chosen[place] = choice
    return tuple(chosen.get(place, 0) for place in range(max(chosen, default=-1) + 1))


# --- writing ------------------------------------------------------------------------------------------------


def text_of(scenario: Scenario) -> str:
    """The TOML text of a story; `found.py` writes what a search found."""
    found = list(blocks(scenario))
    if scenario.also_with:
        if found[-1][0] != "[expect]":
            found.append(["[expect]"])
        rows = (f"  {{ {', '.join(_row(variant, scenario))} }},\n" for variant in scenario.also_with)
        found[-1].append(f"also_with = [\n{''.join(rows)}]")
    return joined(found)


def joined(found: Sequence[Sequence[str]]) -> str:
    """The text of a file of these blocks."""
    return "\n\n".join("\n".join(block) for block in found) + "\n"


def _row(variant: Variant, scenario: Scenario) -> Iterator[str]:
    yield from written(variant.cluster, scenario.cluster)
    expect, usual = variant.expect, scenario.expect
    if (expect.holds, expect.violates) != (usual.holds, usual.violates):
        usual = _without_rules(usual)
        if expect == usual or not (expect.holds or expect.violates):
            yield "holds = []"
    yield from written(expect, usual)
