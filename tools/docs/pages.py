"""The generated sections of the docs: `python -m tools.docs` writes them, and a test compares them with the
code.

Rule: a section between `<!-- generated: NAME -->` and `<!-- end -->` is never edited by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final

import attrs

from fencepost.broker.groups.tables import MEMBERSHIP
from fencepost.broker.transactions.tables import END_VERSION_0, END_VERSION_2, MOVES
from fencepost.client.group_member import MEMBER_STATES, MemberState
from fencepost.client.producer_states import IDEMPOTENT, TRANSACTIONAL, ProducerState
from fencepost.protocol import tables
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import APIS, Api
from fencepost.protocol.tables import Table
from fencepost.protocol.terms import GroupState, TransactionState
from fencepost.simulator.judges.coverage import UNREACHABLE
from fencepost.simulator.judges.known_anomalies import KNOWN, OLD_BEHAVIOURS
from fencepost.simulator.judges.rules import HISTORY_RULES, STEP_RULES
from tools.docs.fidelity import corrections_table, differences_table, values_table
from tools.docs.slides import SLIDES

DOCS: Final = Path(__file__).resolve().parent.parent.parent / "docs"
_SECTION: Final = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


PLANTED_BUGS: Final = DOCS / "mutations.json"
"""Which seed finds which planted bug; `python -m tests.simulator.find_mutations` writes it."""


@attrs.frozen(kw_only=True)
class PlantedBug:
    """A bug planted in the cores, the first seed of its workload that finds it, and the rule it breaks."""

    mutation: str
    breaks: str
    workload: str
    seed: int
    rule: str

    @property
    def within(self) -> int:
        """How many seeds are enough to find it: the next power of ten, since the very seed moves easily."""
        return 10 ** len(str(self.seed))


def planted_bugs() -> list[PlantedBug]:
    """The result of the last search for planted bugs, in the order of their list."""
    return [PlantedBug(**entry) for entry in json.loads(PLANTED_BUGS.read_text())]


def coordinator_table() -> Table:
    """EndTxn's table and the other moves side by side, as one machine."""
    return {state: {**MOVES[state], **END_VERSION_2[state]} for state in TransactionState}


def _error_table() -> str:
    rows = [
        (
            str(int(code)),
            f"`{code.name}`",
            code.remedy.name.lower(),
            "yes" if code.definite else "no",
            code.meaning,
        )
        for code in sorted(ErrorCode)
    ]
    return tables.markdown_table(("code", "name", "remedy", "definite (no effect)", "meaning"), rows)


def _api_table() -> str:
    rows = [
        (str(api.key), api.name, _versions(api), (api.request.__doc__ or "").split("\n")[0]) for api in APIS
    ]
    return tables.markdown_table(("key", "request", "versions", "purpose"), rows)


def _step_rule_table() -> str:
    rows = [(rule.name, rule.meaning, rule.exercised_by) for rule in STEP_RULES]
    return tables.markdown_table(("rule", "invariant", "exercised by"), rows)


def _anomaly_table() -> str:
    rows = [(f"`{rule.name}`", rule.meaning, rule.exercised_by) for rule in HISTORY_RULES]
    return tables.markdown_table(("rule", "broken when", "exercised by"), rows)


def _known_table() -> str:
    rows = [(entry.name, f"`{entry.rule.name}`", entry.why, entry.needs) for entry in KNOWN]
    return tables.markdown_table(("name", "rule", "why", "evidence in the log"), rows)


def _old_behaviours_table() -> str:
    rows = [(each.name, each.generations, each.why, each.needs, each.cured_by) for each in OLD_BEHAVIOURS]
    return tables.markdown_table(
        ("name", "transaction versions", "why", "evidence in the run", "fixed by"), rows
    )


def _unreachable_table() -> str:
    rows = [
        (str(version), state.title, given.value, why)
        for (version, state, given), why in sorted(
            UNREACHABLE.items(), key=lambda item: (item[0][0], item[0][1].value)
        )
    ]
    return tables.markdown_table(("transaction version", "state", "input", "unreachable because"), rows)


def _planted_bugs_table() -> str:
    rows = [(bug.mutation, bug.breaks, bug.workload, str(bug.within), bug.rule) for bug in planted_bugs()]
    return tables.markdown_table(
        ("planted bug", "broken behaviour", "workload", "within seeds", "found by"), rows
    )


def _versions(api: Api) -> str:
    return str(api.maximum) if api.minimum == api.maximum else f"{api.minimum} to {api.maximum}"


def _diagram(table: Table, start: Enum) -> str:
    return f"```mermaid\n{tables.mermaid(table, start=start)}\n```"


SECTIONS: Final[dict[str, Callable[[], str]]] = {
    "end-table": lambda: tables.markdown(END_VERSION_2),
    "old-end-table": lambda: tables.markdown(END_VERSION_0),
    "moves-table": lambda: tables.markdown(MOVES),
    "group-table": lambda: tables.markdown_turned(MEMBERSHIP),
    "group-diagram": lambda: _diagram(MEMBERSHIP, GroupState.EMPTY),
    "member-table": lambda: tables.markdown_turned(MEMBER_STATES),
    "member-diagram": lambda: _diagram(MEMBER_STATES, MemberState.UNJOINED),
    "coordinator-diagram": lambda: _diagram(coordinator_table(), TransactionState.EMPTY),
    "producer-table": lambda: tables.markdown(TRANSACTIONAL),
    "idempotent-producer-table": lambda: tables.markdown(IDEMPOTENT),
    "producer-diagram": lambda: _diagram(TRANSACTIONAL, ProducerState.UNINITIALIZED),
    "errors": _error_table,
    "apis": _api_table,
    "planted-bugs": _planted_bugs_table,
    "step-rules": _step_rule_table,
    "anomalies": _anomaly_table,
    "known-behaviours": _known_table,
    "old-behaviours": _old_behaviours_table,
    "unreachable-cells": _unreachable_table,
    "older-values": values_table,
    "corrections": corrections_table,
    "differences": differences_table,
    **SLIDES,
}


def refreshed(page: str) -> str:
    """Returns the page with every generated section updated. KeyError for an unknown section."""
    return _SECTION.sub(lambda found: f"{found[1]}{SECTIONS[found[2]]()}\n{found[3]}", page)


def main() -> int:
    """Rewrites every page that is out of date and prints its name."""
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text()
        fresh = refreshed(page)
        if fresh != page:
            path.write_text(fresh)
            print(f"wrote {path.relative_to(DOCS.parent)}")
    return 0
