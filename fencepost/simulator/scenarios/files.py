"""Scenario files: TOML text to a scenario, and back.

Rule: the order of the tables is the only thing that is written here; every key follows from the classes of
`model.py`. What differs from the default is written, and nothing else.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import attrs

from fencepost.faults.phrases import Fault
from fencepost.simulator.scenarios.codec import TOP, BadScenario, SourceText, Table, read_table, written
from fencepost.simulator.scenarios.model import PARTS, ClusterShape, Scenario, ScenarioExpectation, Variant
from fencepost.simulator.scenarios.seeded import seeded_scenario
from fencepost.simulator.scenarios.validation import Inconsistent, check

ValueT = TypeVar("ValueT")


# --- reading ------------------------------------------------------------------------------------------------


def scenario_of(text: str, source: str = "scenario") -> Scenario:
    """The scenario in a TOML text; `source` is the name of the file in errors. BadScenario when there is
    none.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise BadScenario(f"{source} is not TOML: {problem}") from None
    return scenario_in(values, source, text.splitlines())


def scenario_in(values: dict[str, Any], source: str, lines: Sequence[str] = ()) -> Scenario:
    """The same, from the tables of a file or a builder; `lines` are those of the text."""
    top = Table(TOP, values, SourceText(source, lines))
    if "seeded" in values:
        return seeded_scenario(top)
    head = read_table(Scenario, top)
    cluster = _whole(ClusterShape, top.inner("cluster"))
    top.source.partitions = cluster.partitions
    expect_table = top.inner("expect")
    expect = read_table(ScenarioExpectation, expect_table)
    scenario = attrs.evolve(
        head,
        cluster=cluster,
        parts=tuple(_whole(kind, table) for key, kind in PARTS.items() for table in top.each(key)),
        faults=tuple(_whole(Fault, table) for table in top.each("fault")),
        expect=expect,
        also_with=tuple(
            _variant(row, cluster, expect) for row in expect_table.each("also_with", "[expect] also_with")
        ),
    )
    expect_table.finish()
    top.finish()
    try:
        check(scenario)
    except Inconsistent as problem:
        place = Table(problem.place, {}, top.source)
        raise place.wrong(problem.key, str(problem), problem.possible) from None
    return scenario


def _whole(kind: type[ValueT], table: Table) -> ValueT:
    made = read_table(kind, table)
    table.finish()
    return made


def _variant(row: Table, cluster: ClusterShape, expect: ScenarioExpectation) -> Variant:
    """A row of `also_with`: keys of [cluster] and [expect] side by side."""
    if {"holds", "violates"} & row.values.keys():  # a row that names one of them names both
        expect = _without_rules(expect)
    made = Variant(
        cluster=read_table(ClusterShape, row, cluster), expect=read_table(ScenarioExpectation, row, expect)
    )
    row.finish()
    return made


def _without_rules(expect: ScenarioExpectation) -> ScenarioExpectation:
    return attrs.evolve(expect, holds=(), violates=())


# --- writing ------------------------------------------------------------------------------------------------


def text_of(scenario: Scenario) -> str:
    """The TOML text of a scenario."""
    names = {kind: key for key, kind in PARTS.items()}
    blocks = [
        list(written(scenario)),
        ["[cluster]", *written(scenario.cluster)],
        *([f"[[{names[type(part)]}]]", *written(part)] for part in scenario.parts),
        *(["[[fault]]", *written(fault)] for fault in scenario.faults),
        ["[expect]", *written(scenario.expect), *_rows(scenario)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if len(block) > 1 or block[0][0] != "[") + "\n"


def _rows(scenario: Scenario) -> Iterator[str]:
    if scenario.also_with:
        rows = (f"  {{ {', '.join(_row(variant, scenario))} }},\n" for variant in scenario.also_with)
        yield f"also_with = [\n{''.join(rows)}]"


def _row(variant: Variant, scenario: Scenario) -> Iterator[str]:
    yield from written(variant.cluster, scenario.cluster)
    expect, usual = variant.expect, scenario.expect
    if (expect.holds, expect.violates) != (usual.holds, usual.violates):
        usual = _without_rules(usual)
        if expect == usual or not (expect.holds or expect.violates):
            yield "holds = []"
    yield from written(expect, usual)
