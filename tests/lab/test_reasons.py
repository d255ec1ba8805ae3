"""ReasonEntry: every decision in every run of the bundled scenarios has its rule, and the rule is one that
exists.

Rule: a reason is held against the live tables, not against a copy of its words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from fencepost.broker.partitions import checks
from fencepost.broker.partitions.batch_form import FORM_CHECKS
from fencepost.broker.transactions.tables import (
    END_VERSION_0,
    END_VERSION_2,
    MOVES,
    CoordinatorInput,
    EndInput,
    EndTable,
    MoveTable,
)
from fencepost.lab.document import RunDocument, StepEntry
from fencepost.lab.recordings import record, record_result
from fencepost.lab.rules import ReasonEntry
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TransactionState
from fencepost.simulation import read_scenario, simulate
from fencepost.simulator.fuzz.plan import PLANNERS
from fencepost.simulator.scenarios.model import Case, cases
from tests.lab.test_details import every_case

ROWS = {
    name: {row.name for row in getattr(checks, name)}
    for name in ("REQUEST_CHECKS", "BEFORE_ASKING", "CHECKS", "OFFSET_CHECKS", "MARKER_CHECKS")
} | {"FORM_CHECKS": {row.name for row in FORM_CHECKS}}
CELLS: dict[str, EndTable | MoveTable] = {
    "END_VERSION_0": END_VERSION_0,
    "END_VERSION_2": END_VERSION_2,
    "MOVES": MOVES,
}
STATES = {state.title: state for state in TransactionState}
INPUTS = {each.value: each for each in (*EndInput, *CoordinatorInput)}
DECIDED = frozenset({"appended", "coordinated", "bounded", "truncated", "struck", "lost"})
FAILED = re.compile(r"^(init|commit|abort)_transactions?: (?!ok)")
HANDLER = re.compile(r"KafkaApis\.handle\w+Request")
WORDS_MIN = 5


def decided(told: RunDocument) -> Iterator[tuple[StepEntry, ReasonEntry | None]]:
    """The steps that follow from a decision."""
    for step in told["steps"]:
        is_refusal = "refusal" in step.get("flags", ())
        if step["kind"] in DECIDED or is_refusal or FAILED.match(step["note"]):
            yield step, step.get("why")


def check_cell(why: ReasonEntry) -> None:
    """A cell that is named stands in the table that is named."""
    table = why.get("table", "")
    cell = re.fullmatch(r"(\w+) x (.+) -> (\w+)", why["rule"])
    if table in CELLS and cell is not None:
        state, given, then = STATES[cell[1]], INPUTS[cell[2]], cell[3]
        live = CELLS[table][state][given]  # pyright: ignore[reportArgumentType] - the inputs of both tables
        assert then == (live.name if isinstance(live, ErrorCode) else live.title), why


def check(told: RunDocument) -> None:
    for step, why in decided(told):
        assert why is not None, (told["title"], step["text"])
        assert why["source"], (step["text"], why)
        assert why["rule"], (step["text"], why)
        assert len(why["text"].split()) >= WORDS_MIN, why
        assert why["text"].endswith("."), why
        if "refusal" in step.get("flags", ()):
            check_refusal(told, step, why)
        check_cell(why)


def check_refusal(told: RunDocument, step: StepEntry, why: ReasonEntry) -> None:
    """The error is that of the answer, and a row that is named is one of its table."""
    answer = told["messages"][step.get("message", 0) - 1]
    assert answer["error"] is not None
    assert why.get("error") == answer["error"] or answer["error"] in why["text"], (step["text"], why)
    rows = ROWS.get(why.get("table", ""))
    assert rows is None or why["rule"] in rows or why.get("table") == "FORM_CHECKS", why


@pytest.mark.parametrize("case", every_case(), ids=lambda case: case.name)
def test_every_decision_of_a_scenario_has_a_rule(case: Case) -> None:
    told = record(case)
    check(told)
    # Where a refusal says no more, its handler stands for the source: never in a story.
    assert not [why for _, why in decided(told) if why is not None and HANDLER.fullmatch(why["source"])]


@pytest.mark.thorough
@pytest.mark.parametrize("workload", PLANNERS)
@pytest.mark.parametrize("transaction_version", [0, 1, 2])
def test_every_decision_of_a_random_world_has_a_rule(workload: str, transaction_version: int) -> None:
    for seed in range(4):
        check(record_result(simulate(seed, workload=workload, transaction_version=transaction_version)))


def whys(name: str, variant: int = 1) -> list[ReasonEntry]:
    told = record(list(cases(read_scenario(name)))[variant - 1])
    return [step["why"] for step in told["steps"] if "why" in step]


def test_a_duplicate_names_the_batch_that_it_repeats() -> None:
    [found, *again] = [why for why in whys("duplicate_after_lost_ack") if "appends nothing" in why["text"]]
    assert all(why == found for why in again)
    assert found["rule"] == checks.CHECKS[0].name
    assert found["source"] == checks.CHECKS[0].source
    assert "sequences 0 to 0 are at offset 0 already" in found["text"]


def test_a_protection_that_is_off_is_named_where_it_is_missed() -> None:
    told = [
        record(case)
        for case in cases(read_scenario("duplicate_after_lost_ack"))
        if "dedup" in case.cluster.broken
    ]
    assert told
    for each in told:
        found = [why for _, why in decided(each) if why is not None and "is switched off" in why["text"]]
        assert [why["rule"] for why in found] == [checks.CHECKS[0].name]


def test_a_late_commit_is_explained_by_the_cell_that_takes_it() -> None:
    ends = [why for why in whys("late_end_txn") if why.get("table") == "END_VERSION_0"]
    assert [why["rule"] for why in ends][:2] == ["Ongoing x commit -> PrepareCommit"] * 2


def test_a_fault_is_explained_by_its_phrase() -> None:
    case = next(cases(read_scenario("late_end_txn")))
    [fault] = case.faults
    told = record(case)
    struck = [step["why"]["rule"] for step in told["steps"] if step["kind"] == "struck" and "why" in step]
    assert set(struck) == {f"when {fault.when[0]} do {fault.do}"}


def test_an_unknown_outcome_is_explained_in_the_words_of_the_client() -> None:
    found = [why for why in whys("commit_outcome_unknown") if why["rule"] == "CommitOutcomeUnknown"]
    assert found
    assert all("init_transactions()" in why["text"] for why in found)


def test_a_sentence_is_right_for_one_partition_and_for_several() -> None:
    case = next(cases(read_scenario("coordinator_crash_in_commit")))
    told = [step["why"]["text"] for step in record(case)["steps"] if "why" in step]
    of_several = [text for text in told if re.search(r"t-0, t-1", text)]
    assert of_several
    for text in of_several:
        assert not re.search(r"t-\d (is|has) ", text), text
