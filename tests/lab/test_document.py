"""Run documents of real runs: every event is a step, and what stands in it agrees with the history.

Rule: the runs are those of bundled scenarios and of seeds, so a document that loses something is found here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from fencepost.broker.contract import Append
from fencepost.bundled import bundled_scenarios
from fencepost.lab.details import batch_values
from fencepost.lab.document import RunDocument, machine
from fencepost.lab.recordings import record, record_explored, record_result
from fencepost.protocol.batches import read_header
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import TopicPartition
from fencepost.simulation import explore, read_scenario, run_scenario, scenario, simulate
from fencepost.simulator.draw.fates import DrawnMessage, note
from fencepost.simulator.draw.fates import follow as follow_messages
from fencepost.simulator.scenarios.model import Case, cases
from fencepost.simulator.scenarios.runner import record_case
from fencepost.simulator.world.history import (
    Appended,
    Arrived,
    Bounded,
    Called,
    Coordinated,
    Event,
    Lost,
    Sent,
    Struck,
    Truncated,
)


def names_in(event: Event, messages: Mapping[int, DrawnMessage]) -> list[str]:
    """What no sentence about this event may leave out."""
    match event:
        case Sent() | Arrived() | Lost():
            sent = messages[event.number].event
            return [sent.source, sent.target, sent.label, f"message {event.number}"]
        case Appended():
            return [event.node, str(event.partition), event.label, str(event.header.base_offset)]
        case Coordinated():
            return [event.node, event.transactional_id, event.record.state.title]
        case Bounded():
            return [str(event.partition), str(event.last_stable_offset), str(event.high_watermark)]
        case Truncated():
            return [event.node, str(event.partition), str(event.next_offset)]
        case Called() | Struck():
            return [event.participant, event.label]


def case_of(name: str, variant: int = 1) -> Case:
    return list(cases(read_scenario(name)))[variant - 1]


def first_cases() -> list[Case]:
    return [case_of(name) for name in bundled_scenarios()]


@pytest.mark.parametrize("case", first_cases(), ids=lambda case: case.scenario.name)
def test_every_event_is_a_step_in_words_of_its_own(case: Case) -> None:
    recorded, told = record_case(case), record(case)
    events = recorded.history.events
    messages = follow_messages(events)
    assert [(step["at"], step["note"]) for step in told["steps"]] == [
        (event.at, note(event, messages)) for event in events
    ]
    for event, step in zip(events, told["steps"], strict=True):
        for word in names_in(event, messages):
            assert word in step["text"], (word, step["text"])
    assert told["passed"] is True
    assert told["end"] == recorded.history.end
    assert json.loads(json.dumps(told)) == told
    lanes = {participant["name"] for participant in told["participants"]} | {""}
    assert {step["lane"] for step in told["steps"]} <= lanes


@pytest.mark.parametrize("name", ["late_end_txn", "duplicate_after_lost_ack", "consume_transform_produce"])
def test_messages_and_batches_refer_to_their_steps(name: str) -> None:
    told = record(case_of(name))
    steps = told["steps"]
    for message in told["messages"]:
        assert steps[message["sent"]]["kind"] == "sent"
        assert message["arrived"] is None or steps[message["arrived"]]["kind"] == "arrived"
        assert message["lost"] is None or steps[message["lost"]]["kind"] == "lost"
    for number, batch in enumerate(told["batches"]):
        assert steps[batch["appended"]].get("batch") == number
        if batch["decided"] is not None:
            marker = told["batches"][steps[batch["decided"]].get("batch", -1)]
            assert (marker["producer"], marker["partition"]) == (batch["producer"], batch["partition"])
            assert {"commit": "committed", "abort": "aborted"}[marker["kind"]] == batch["result"]
        else:
            assert batch["result"] in ("open", "plain", "marker")


def test_a_late_commit_that_ends_the_next_transaction() -> None:
    told = record(case_of("late_end_txn"))
    assert told["settings"]["transaction_version"] == 0
    assert [rule["rule"] for rule in told["broken"]] == list(run_scenario("late_end_txn")[0].broken)
    late = [message for message in told["messages"] if message["late"]]
    assert [message["api"] for message in late] == ["EndTxn"]
    assert "late" in told["steps"][late[0]["arrived"] or 0].get("flags", [])
    assert late[0]["transactions"] == [told["producers"][0]["transactional_id"]]


@pytest.mark.parametrize(
    ("name", "variant", "rule", "value", "kind"),
    [
        ("late_end_txn", 1, "G1a", "b", "commit"),  # harm is done by the marker that commits it
        ("duplicate_after_lost_ack", 2, "duplicate", "a", "data"),
        ("hanging_transaction", 1, "hanging-transaction", "a", "data"),
    ],
)
def test_a_broken_rule_names_its_record_and_the_step_of_the_harm(
    name: str, variant: int, rule: str, value: str, kind: str
) -> None:
    told = record(case_of(name, variant))
    [broken] = [found for found in told["broken"] if found["rule"] == rule]
    assert broken["meaning"].endswith(".")
    assert told["batches"][broken.get("batch", -1)]["values"] == [value]
    step = told["steps"][broken["step"] or 0]
    assert "violation" in step.get("flags", [])
    assert told["batches"][step.get("batch", -1)]["kind"] == kind


def test_a_refusal_is_marked_with_its_error() -> None:
    told = record(case_of("zombie_fencing"))
    refused = {message["error"] for message in told["messages"] if message["error"]}
    assert "PRODUCER_FENCED" in refused or "INVALID_PRODUCER_EPOCH" in refused
    for message in told["messages"]:
        assert ("refusal" in told["steps"][message["sent"]].get("flags", ())) == bool(message["error"])


@pytest.mark.parametrize("name", bundled_scenarios())
def test_a_reply_is_labelled_with_its_error(name: str) -> None:
    """Also with one of a part of it, as OffsetForLeaderEpoch has in `flipped_bit`."""
    refused = [each for each in record(case_of(name))["messages"] if each["error"] is not None]
    assert [each["label"] for each in refused if f"{each['error']}" not in each["label"]] == []


def test_a_truncated_marker_has_decided_nothing() -> None:
    """What was cut off by a loss of power is gone from its step on."""
    told = next(
        told
        for seed in range(200)
        if (told := record_result(simulate(seed, workload="power")))
        and any(batch["gone"] is not None for batch in told["batches"])
    )
    for batch in told["batches"]:
        if batch["gone"] is not None:
            assert told["steps"][batch["gone"]]["kind"] == "truncated"
        if batch["decided"] is not None and batch["gone"] is None:
            marker = told["batches"][told["steps"][batch["decided"]].get("batch", -1)]
            assert marker["gone"] is None


def test_seeds_searches_and_seeded_scenarios_have_documents() -> None:
    told = record_result(simulate(7))
    assert len(told["steps"]) == len(simulate(7).history.events)
    found = explore(transaction_version=0, partition_verification=False)
    trace = record_explored(found)
    assert trace is not None
    assert found.history is not None
    assert len(trace["steps"]) == len(found.history.events)
    (broken,) = trace["broken"]
    assert broken["rule"] == found.violation
    assert broken["step"] is not None
    decisive = trace["steps"][broken["step"]]
    assert (decisive["note"], "violation" in decisive.get("flags", ())) == ("[t-0 3 COMMIT] 0/0", True)
    assert record_explored(explore(transactions=1, retries=0)) is None


def test_markup_quotes_and_control_characters_stay_text() -> None:
    value = '<script>alert("x")</script>&\'\u202e\x07\u2028'
    story = (
        scenario("<b>bold</b>", "Says \"hello\" & 'bye'")
        .cluster(topics={"t": 1})
        .producer("p", "init", "begin", f"send t-0 {json.dumps(value)}", "commit", transactional_id="</i>")
        .scenario()
    )
    (case,) = cases(story)
    told = record(case)
    [batch] = [batch for batch in told["batches"] if batch["kind"] == "data"]
    assert batch["transactions"] == ["</i>"]
    assert told["title"] == "<b>bold</b>"
    assert json.loads(json.dumps(told)) == told


def test_the_machine_has_the_arrows_of_the_live_table() -> None:
    first, newest = machine(0), machine(2)
    assert {"from": "Ongoing", "to": "PrepareCommit", "input": "commit"} in first["arrows"]
    assert {"from": "CompleteCommit", "to": "CompleteCommit", "input": "commit retry"} in newest["arrows"]
    assert not [arrow for arrow in first["arrows"] if "retry" in arrow["input"]]
    assert set(first["states"]) >= {arrow[end] for arrow in first["arrows"] for end in ("from", "to")}


def test_consumers_have_their_isolation_level() -> None:
    told: RunDocument = record(case_of("hanging_transaction"))
    kinds = {each["name"]: (each["kind"], each.get("isolation")) for each in told["participants"]}
    case = case_of("hanging_transaction")
    for part in case.scenario.parts:
        expected = getattr(part, "isolation_level", None)
        assert kinds[part.name] == ("client", None if expected is None else expected.name.lower())
    assert attrs.asdict(case.cluster)["nodes"] == sum(kind == "node" for kind, _ in kinds.values())


def test_bytes_that_are_no_text_become_text() -> None:
    batch = build_data_batch([b"\xff\xfe<b>", b"\x00\x1b[31m", b""], base_timestamp=0)
    header = read_header(batch)
    append = Append(TopicPartition("t", 0), header=header, batch=batch, leader_epoch=0)
    values = batch_values(append)
    assert values == ("\ufffd\ufffd<b>", "\x00\x1b[31m", "")
    assert json.loads(json.dumps(values)) == list(values)


@pytest.mark.parametrize(("version", "broken"), [(0, ()), (2, ("dedup",)), (2, ("fencing",))])
def test_an_explored_trace_has_states_and_reasons(version: int, broken: tuple[str, ...]) -> None:
    trace = record_explored(explore(transaction_version=version, broken=broken))
    assert trace is not None
    state: dict[str, object] = {}
    for step in trace["steps"]:
        state |= step.get("changes", {})
        if step["kind"] in ("appended", "coordinated", "bounded"):
            assert "why" in step, step["text"]
            assert step["why"]["source"] != ""
    for batch in trace["batches"]:
        log: Any = state[f"log/{batch['partition']}"]
        assert batch["last"] < log["end"]
    breaks = [step for step in trace["steps"] if "violation" in step.get("flags", [])]
    assert [step["at"] for step in breaks] == [trace["steps"][-1]["at"]], "one of the last action"
    last = [step for step in trace["steps"] if step["kind"] == "coordinated"][-1]
    (name,) = last.get("transactions", [])
    transaction: Any = state[f"txn/{name}"]
    assert transaction["state"] in last["text"]
    data: Any = state["log/t-0"]
    assert data["end"] == data["hw"] > 0
    assert (data["lso"] == data["hw"]) is not bool(broken), "the others end with a transaction open"
    producers: list[Any] = [each for key, each in state.items() if key.startswith("producer/")]
    assert producers
    assert all(isinstance(producer["last_sequence"], int) for producer in producers)
