"""What the editor of scenarios can complete: keys of tables, and the phrases and names that stand under them;
and the workloads that a search can choose.

Rule: it is derived from what reads a scenario or begins a search, so it cannot offer what they refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fencepost.faults.grammar import Grammar
from fencepost.faults.phrases import ACTIONS, FAULTS, LINES, POINTS, Fault
from fencepost.simulator.fuzz.plan import PLANNERS
from fencepost.simulator.scenarios.codec import entries
from fencepost.simulator.scenarios.model import (
    PARTS,
    RULE_NAMES,
    ClusterShape,
    FuzzPlan,
    Scenario,
    ScenarioExpectation,
)

_TABLES: Final[dict[str, type]] = {
    "": Scenario,
    "[cluster]": ClusterShape,
    **{f"[[{key}]]": kind for key, kind in PARTS.kinds.items()},
    "[[fault]]": Fault,
    "[expect]": ScenarioExpectation,
    "[seeded]": FuzzPlan,
}
_GRAMMARS: Final[dict[str, Grammar[Any]]] = {
    "point": POINTS,
    "action": ACTIONS,
    "line": LINES,
    "fault": FAULTS,
}


def vocabulary() -> dict[str, Any]:
    return {
        "tables": {header: list(_keys(kind)) for header, kind in _TABLES.items()},
        "phrases": {
            name: [{"shown": kind.value.shown, "help": kind.value.help} for kind in grammar.phrases]
            for name, grammar in _GRAMMARS.items()
        },
        "blanks": {
            name: {"help": blank.help, "words": list(blank.words)}
            for grammar in _GRAMMARS.values()
            for name, blank in grammar.blanks.items()
        },
        "rules": list(RULE_NAMES),
        "workloads": list(PLANNERS),
    }


def _keys(kind: type) -> Iterator[dict[str, Any]]:
    """The keys of a table, what stands under each, and the values that are possible if they can be listed."""
    for entry in entries(kind):
        if entry.codec is not None and entry.table is None and not entry.within:
            yield {
                "key": entry.key,
                "kind": entry.codec.kind,
                "required": entry.is_required,
                "values": list(entry.codec.possible),
            }
    if kind is ScenarioExpectation:
        yield {"key": "also_with", "kind": "a list of variants", "required": False, "values": []}
