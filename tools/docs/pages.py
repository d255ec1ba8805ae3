"""The generated sections of the docs: `python -m tools.docs` writes them, and a test compares them with the
code.

Rule: a section between `<!-- generated: NAME -->` and `<!-- end -->` is never edited by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast

import attrs
from kio.index import UnknownEntity, load_request_schema

from fencepost.broker.access.table import RIGHTS, Filter, Need, Right
from fencepost.broker.broker_configs import CONNECTION_CONFIGS, NODE_CONFIGS, READ_ONLY_CONFIGS
from fencepost.broker.check_tables import Check
from fencepost.broker.config_meanings import MEANINGS
from fencepost.broker.faults import NEEDS, NOT_PLAYED, NOT_SEEN
from fencepost.broker.groups.consumer_heartbeat import HEARTBEAT_CHECKS
from fencepost.broker.groups.reconciliation import RECONCILIATION
from fencepost.broker.groups.tables import MEMBERSHIP
from fencepost.broker.kafka_fixes import FIXES
from fencepost.broker.limits import LIMITS
from fencepost.broker.metrics import METRICS
from fencepost.broker.partitions.batch_form import FORM_CHECKS
from fencepost.broker.partitions.checks import (
    BEFORE_ASKING,
    CHECKS,
    MARKER_CHECKS,
    OFFSET_CHECKS,
    REQUEST_CHECKS,
)
from fencepost.broker.partitions.produce import ADD_ERRORS, VERIFY_ERRORS
from fencepost.broker.settings import ConnectionSettings, NodeSettings
from fencepost.broker.transactions.init_producer_id import GRANTS, INIT_CHECKS, Expectation
from fencepost.broker.transactions.tables import END_VERSION_0, END_VERSION_2, MOVES, CoordinatorInput
from fencepost.cli.serve import SET_OTHERWISE
from fencepost.client.member_states import MEMBER_STATES, MemberState
from fencepost.client.producer_states import IDEMPOTENT, TRANSACTIONAL, ProducerState
from fencepost.faults.phrases import ActionKind, PointKind
from fencepost.kafka_bridge.apis import SERVED
from fencepost.protocol.consumer_group_log import AssignmentState
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import API_BY_REQUEST, APIS, OWN_APIS, Api
from fencepost.protocol.terms import GroupState, TransactionState
from fencepost.simulator.judges.coverage import UNREACHABLE
from fencepost.simulator.judges.known_anomalies import KNOWN, OLD_BEHAVIOURS
from fencepost.simulator.judges.rules import HISTORY_RULES, STEP_RULES
from tools.docs import commands, tables
from tools.docs.fidelity import DIFFERENCES, VALUES
from tools.docs.tables import Table

DOCS: Final = Path(__file__).resolve().parent.parent.parent / "docs"
_SECTION: Final = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


API_VERSIONS_MAX: Final = 64  # more than any request has

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
        """How many seeds are enough to find it: the next power of ten, since the exact seed changes
        easily.
        """
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
            "-" if code is ErrorCode.NONE else "yes" if code.definite else "no",  # success has an effect
            code.meaning,
        )
        for code in sorted(ErrorCode)
    ]
    return tables.markdown_table(("code", "name", "remedy", "definite (no effect)", "meaning"), rows)


def _api_table() -> str:
    rows = [
        (str(api.key), api.name, _versions(api), _first_paragraph(api.request)) for api in (*APIS, *OWN_APIS)
    ]
    return tables.markdown_table(("key", "request", "versions", "purpose"), rows)


def _first_paragraph(documented: type[Any]) -> str:
    return " ".join((documented.__doc__ or "").partition("\n\n")[0].split())


def _step_rule_table() -> str:
    rows = [(rule.name, rule.meaning, rule.exercised_by) for rule in STEP_RULES]
    return tables.markdown_table(("rule", "what must hold", "exercised by"), rows)


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
    return tables.markdown_table(("planted bug", "effect", "workload", "within seeds", "found by"), rows)


def _versions(api: Api) -> str:
    return str(api.maximum) if api.minimum == api.maximum else f"{api.minimum} to {api.maximum}"


def _diagram(table: Table, start: Enum) -> str:
    return f"```mermaid\n{tables.mermaid(table, start=start)}\n```"


def _values_table() -> str:
    """The settings that make a broker or a client behave like an older one."""
    rows = [
        (f"`{row.setting}`", f"{row.value} (default)" if row.is_default else row.value, row.means,
         row.source, row.opens)
        for row in VALUES
    ]  # fmt: skip
    return tables.markdown_table(("setting", "value", "meaning", "source", "anomalies"), rows)


def _corrections_table() -> str:
    """The fixes that Kafka made later."""
    rows = [
        (f"`{knob.name}`", knob.on, knob.off, f"{knob.source}, {knob.since}", knob.opens) for knob in FIXES
    ]
    return tables.markdown_table(
        ("name", "with the fix (default)", "without the fix", "fixed by", "what goes wrong without it"), rows
    )


def _differences_table() -> str:
    """The intended differences from Apache Kafka."""
    rows = [(row.what, row.kafka, row.here, row.because, row.noticed) for row in DIFFERENCES]
    return tables.markdown_table(
        ("subject", "Apache Kafka", "Fencepost", "reason", "how a user notices"), rows
    )


def _coded(error: ErrorCode) -> str:
    return f"`{error.name}`"


def _identity_rules() -> str:
    rows = [(str(number), rule.name, _coded(rule.error)) for number, rule in enumerate(INIT_CHECKS, 1)]
    return tables.markdown_table(("", "the request", "reply"), rows)


def _grants() -> str:
    """Includes the states in which markers are being written: there, every InitProducerId must retry."""
    busy: Table = {
        state: dict.fromkeys(Expectation, cell)
        for state, row in MOVES.items()
        if isinstance(cell := row[CoordinatorInput.INIT], ErrorCode)
    }
    return tables.markdown({**GRANTS, **busy}, corner="state of the id / identity in the request")


def _produce_rules() -> str:
    early = [("a transactional batch", check.name, check.error) for check in BEFORE_ASKING]
    found = [("the request", check.name, check.error) for check in REQUEST_CHECKS] + early
    rows = [(str(number), who, name, _coded(error)) for number, (who, name, error) in enumerate(found, 1)]
    return tables.markdown_table(("", "applies to", "condition", "reply"), rows)


def _add_errors() -> str:
    rows = [
        (_coded(error), _meaning(ADD_ERRORS, error), _meaning(VERIFY_ERRORS, error))
        for error in VERIFY_ERRORS
    ]
    return tables.markdown_table(
        ("the coordinator's error", "reply to Produce 12", "reply to older versions"), rows
    )


def _meaning(meanings: Mapping[ErrorCode, ErrorCode], error: ErrorCode) -> str:
    return _coded(meanings.get(error, error))


def _limits() -> str:
    rows = [
        (
            limit.what,
            f"{limit.value:,} {limit.unit}",
            "-" if limit.error is None else f"`{limit.error.name}`",
            limit.source,
        )
        for limit in LIMITS
    ]
    return tables.markdown_table(["limit of", "value", "error", "Kafka's name, or why"], rows)


def _metrics() -> str:
    rows = [(f"`{row.shown_name}`", row.type_name, ", ".join(row.labels) or "-", row.text) for row in METRICS]
    return tables.markdown_table(["metric", "type", "labels", "what it shows"], rows)


def _rights() -> str:
    rows = [
        (kind.__name__, "; ".join(map(_need, row.needs)) or "-", "; ".join(map(_filter, row.filters)) or "-")
        for kind, row in sorted(RIGHTS.items(), key=lambda found: API_BY_REQUEST[found[0]].key)
    ]
    return tables.markdown_table(["request", "needs", "the reply lists only"], rows)


def _need(need: Need) -> str:
    where = ", ".join(filter(None, [need.when.text, "each" if need.entries else ""]))
    return (f"{where}: " if where else "") + " or ".join(map(_right, need.rights))


def _filter(hidden: Filter) -> str:
    what = f"{hidden.inner} of {hidden.entries}" if hidden.inner else hidden.entries
    if hidden.names is not None:
        (right,) = hidden.rights
        needed = f"**{right.operation.value}** on each {right.resource.value} of their members"
        return f"{what} with {needed}; for each of the others, only an error"
    where = f"for {hidden.when.text}: " if hidden.when.text else ""
    return f"{where}{what} with {' or '.join(map(_right, hidden.rights))}"


def _right(right: Right) -> str:
    some = "at least one " if right.any_name else "every " if right.every_name else ""
    return f"**{right.operation.value}** on {some}{right.resource.value}"


def _heartbeat_checks() -> str:
    rows = [(check.name, _coded(check.error)) for check in HEARTBEAT_CHECKS]
    return tables.markdown_table(("a heartbeat that", "reply"), rows)


def _form_rules() -> str:
    rows = [
        (str(number), check.name, _coded(check.error), check.source)
        for number, check in enumerate(FORM_CHECKS, 1)
    ]
    return tables.markdown_table(("", "a batch that", "reply", "source"), rows)


def _batch_checks() -> str:
    rows = [
        (
            str(number),
            check.name,
            _coded(check.error) if check.error else "its old offset",
            check.protection or "",
            "yes" if check in OFFSET_CHECKS else "",
            _from(check),
        )
        for number, check in enumerate(CHECKS, 1)
    ]
    return tables.markdown_table(
        ("", "a batch that", "reply", "protection", "also for TxnOffsetCommit", "source"), rows
    )


def _marker_checks() -> str:
    rows = [
        (str(number), check.name, _coded(check.error), _from(check))
        for number, check in enumerate(MARKER_CHECKS, 1)
    ]
    return tables.markdown_table(("", "a marker that", "reply", "source"), rows)


def _from(check: Check[*tuple[Any, ...]]) -> str:
    since = f", with `{check.since}`" if check.since else ""
    return check.source + since + (f", until `{check.until}`" if check.until else "")


def _kafka_apis() -> str:
    rows: list[tuple[str, str, str, str]] = []
    for api in sorted(SERVED.values(), key=lambda api: api.key):
        defined = _versions_in_kafka(api.key)
        name = load_request_schema(api.key, api.first).__name__.removesuffix("Request")
        rows.append((name, str(api.key), _range(api.first, api.last), _range(defined[0], defined[-1])))
    return tables.markdown_table(["API", "key", "Fencepost", "Kafka's schemas"], rows)


def _broker_settings() -> str:
    """The settings that `serve --override` takes: their defaults, what they can be, and what they mean."""
    rows = [
        (
            f"`{config.name}`",
            _default(getattr(settings, config.field)),
            config.values,
            MEANINGS[config.name].replace("__", r"\_\_"),
        )
        for configs, settings in ((NODE_CONFIGS, NodeSettings()), (CONNECTION_CONFIGS, ConnectionSettings()))
        for config in configs.values()
        if config.name not in {*SET_OTHERWISE, *READ_ONLY_CONFIGS}
    ]
    return tables.markdown_table(["setting", "default", "values", "meaning"], sorted(rows))


def _default(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case int():
            return f"{value:,}"
        case tuple():
            return ",".join(cast("tuple[str, ...]", value))
        case _:
            return str(value)


def _versions_in_kafka(api_key: int) -> list[int]:
    """The versions of a request for which there is a schema."""
    versions: list[int] = []
    for version in range(API_VERSIONS_MAX):
        with suppress(UnknownEntity):
            load_request_schema(api_key, version)
            versions.append(version)
    return versions


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _fault_points() -> str:
    kinds = [kind for kind in PointKind if kind not in NOT_SEEN]
    rows = [(f"`{kind.value.shown}`", kind.value.help) for kind in kinds]
    return tables.markdown_table(("point", "what it is"), rows)


def _fault_actions() -> str:
    rows = [
        (f"`{kind.value.shown}`", NEEDS[kind][0] if kind in NEEDS else "any point", kind.value.help)
        for kind in ActionKind
        if kind not in NOT_PLAYED
    ]
    return tables.markdown_table(("action", "can strike", "what happens"), rows)


def _faults_not_played() -> str:
    rows = [(f"`{kind.value.shown}`", because) for kind, because in (NOT_SEEN | NOT_PLAYED).items()]
    return tables.markdown_table(("only in the simulator", "with a real broker"), rows)


SECTIONS: Final[dict[str, Callable[[], str]]] = {
    "exit-codes": commands.exit_codes,
    "short-options": commands.short_options,
    "step-keys": commands.step_keys,
    "step-screen": commands.step_screen,
    "page-keys": commands.page_keys,
    "commands": commands.commands,
    "end-table": lambda: tables.markdown(END_VERSION_2),
    "old-end-table": lambda: tables.markdown(END_VERSION_0),
    "moves-table": lambda: tables.markdown(MOVES),
    "group-table": lambda: tables.markdown_turned(MEMBERSHIP),
    "group-diagram": lambda: _diagram(MEMBERSHIP, GroupState.EMPTY),
    "reconciliation-table": lambda: tables.markdown_turned(RECONCILIATION),
    "reconciliation-diagram": lambda: _diagram(RECONCILIATION, AssignmentState.STABLE),
    "heartbeat-checks": _heartbeat_checks,
    "member-table": lambda: tables.markdown_turned(MEMBER_STATES),
    "member-diagram": lambda: _diagram(MEMBER_STATES, MemberState.UNJOINED),
    "coordinator-diagram": lambda: _diagram(coordinator_table(), TransactionState.EMPTY),
    "producer-table": lambda: tables.markdown(TRANSACTIONAL),
    "idempotent-producer-table": lambda: tables.markdown(IDEMPOTENT),
    "producer-diagram": lambda: _diagram(TRANSACTIONAL, ProducerState.UNINITIALIZED),
    "errors": _error_table,
    "apis": _api_table,
    "kafka-apis": _kafka_apis,
    "broker-settings": _broker_settings,
    "planted-bugs": _planted_bugs_table,
    "step-rules": _step_rule_table,
    "anomalies": _anomaly_table,
    "known-behaviours": _known_table,
    "old-behaviours": _old_behaviours_table,
    "unreachable-cells": _unreachable_table,
    "older-values": _values_table,
    "corrections": _corrections_table,
    "differences": _differences_table,
    # The slides: checks of InitProducerId, Produce and markers, in the order in which the broker runs them.
    "identity-rules": _identity_rules,
    "grants-table": _grants,
    "produce-rules": _produce_rules,
    "add-errors": _add_errors,
    "form-rules": _form_rules,
    "limits": _limits,
    "metrics": _metrics,
    "rights": _rights,
    "fault-points": _fault_points,
    "fault-actions": _fault_actions,
    "faults-not-played": _faults_not_played,
    "batch-checks": _batch_checks,
    "marker-checks": _marker_checks,
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
