"""Where two runs diverge: the same schedule in two generations, and with and without a protection."""

from __future__ import annotations

import attrs

from fencepost.faults.phrases import ACTIONS, POINTS, Fault
from fencepost.lab.comparison import compare
from fencepost.lab.document import StepEntry
from fencepost.lab.recordings import record
from fencepost.simulation import read_scenario
from fencepost.simulator.scenarios.model import Case, cases


def case_of(name: str, **cluster: object) -> Case:
    """The first case of a scenario, in another cluster."""
    case = next(cases(read_scenario(name)))
    return attrs.evolve(case, cluster=attrs.evolve(case.cluster, **cluster))


def happened(step: StepEntry) -> str:
    return step["text"]


def test_a_run_does_not_diverge_from_itself() -> None:
    told = record(case_of("late_end_txn"))
    assert compare(told, record(case_of("late_end_txn")))["divergence"] is None


def test_two_generations_diverge_where_only_the_older_client_adds_its_partition() -> None:
    told = compare(
        record(case_of("late_end_txn", transaction_version=0)),
        record(case_of("late_end_txn", transaction_version=2)),
    )
    assert told["divergence"] is not None
    left, right = told["divergence"]
    assert left == right
    old, new = told["left"]["steps"], told["right"]["steps"]
    assert [*map(happened, old[:left])] == [*map(happened, new[:right])]
    assert "AddPartitionsToTxn" in happened(old[left])
    assert "Produce" in happened(new[right])


def test_without_dedup_a_retry_diverges_where_it_is_appended_again() -> None:
    told = compare(
        record(case_of("duplicate_after_lost_ack", broken=())),
        record(case_of("duplicate_after_lost_ack", broken=("dedup",))),
    )
    assert told["divergence"] is not None
    left, right = told["divergence"]
    assert told["right"]["steps"][right]["kind"] == "appended"
    assert told["left"]["steps"][left]["kind"] != "appended"
    values = [batch["values"] for batch in told["right"]["batches"] if batch["kind"] == "data"]
    assert len(values) > len({tuple(each) for each in values})
    once = [batch["values"] for batch in told["left"]["batches"] if batch["kind"] == "data"]
    assert len(once) == len({tuple(each) for each in once})


def test_a_message_that_a_new_fault_will_hit_is_the_same_until_then() -> None:
    case = case_of("duplicate_after_lost_ack")
    plain = record(case)
    arrived = next(step for step in plain["steps"] if step["kind"] == "arrived" and "point" in step)
    fault = Fault(when=(POINTS.read(arrived.get("point", "")),), do=ACTIONS.read("drop"))
    told = compare(plain, record(attrs.evolve(case, faults=(*case.faults, fault))))
    assert told["divergence"] is not None
    left, right = told["divergence"]
    assert plain["steps"][left] is arrived
    assert told["right"]["steps"][right]["kind"] == "struck"
