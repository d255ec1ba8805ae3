"""A run that grows: by whatever chunks, it says the same; and what it forgets, it forgets in order."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from fencepost.broker.feed import BASE_KEYS_MAX
from fencepost.faults.phrases import BROKER
from fencepost.lab.feed import START, StepFeed
from fencepost.lab.growing_run import DOWN, LANES_MAX, OTHERS, STEPS_KEPT, GrowingRun, Mark, Observed
from fencepost.lab.observer import RunObserver
from fencepost.lab.wire_steps import NOTHING, About, UnreadableStep, pack, unpack, unpack_changes
from fencepost.simulator.run import Run
from fencepost.simulator.scenarios.runner import record_case
from fencepost.simulator.world.history import Appended, Called, Lost, Sent
from fencepost.simulator.world.recording import Recorder
from tests.lab.test_document import case_of

STORIES = ["late_end_txn", "duplicate_after_lost_ack", "consume_transform_produce"]


def story(name: str) -> list[Observed]:
    """What happens in a scenario, as a broker would tell it."""
    observers: list[RunObserver] = []

    def watch(run: Run, recorder: Recorder) -> None:
        observers.append(RunObserver(run, recorder))
        observers[0].attach()

    history = record_case(case_of(name), watch).history
    observers[0].finish()
    details = observers[0].details
    found: list[Observed] = []
    for step, event in enumerate(history.events):
        about = NOTHING
        if isinstance(event, Sent) and (seen := details.messages.get(event.number)) is not None:
            about = About(**attrs.asdict(seen))
        elif isinstance(event, Appended):
            about = About(values=details.values.get(step), why=details.reasons.get(step))
        found.append(Observed(event, about, details.changes.get(step, {})))
    return found


def grown(observed: list[Observed], size: int, steps_kept: int = STEPS_KEPT) -> GrowingRun:
    run = GrowingRun("a run", steps_kept=steps_kept)
    run.begin_process({})
    for start in range(0, len(observed), size):
        run.grow(observed[start : start + size])
    return run


def state_at_end(document: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for step in document["steps"]:
        for key, value in step.get("changes", {}).items():
            state.pop(key, None)
            if value is not None:
                state[key] = value
    return state


@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize("name", STORIES)
def test_chunks_say_what_the_whole_says(name: str, size: int) -> None:
    observed = story(name)
    at_once, by_chunks = grown(observed, len(observed)).full_document(), grown(observed, size).full_document()
    for key in ("messages", "batches", "participants", "producers", "end"):
        assert by_chunks[key] == at_once[key], key
    # What a step says of its message may be known only later: that it is repeated, or struck.
    for one, other in zip(by_chunks["steps"], at_once["steps"], strict=True):
        assert {**one, "note": "", "text": "", "flags": []} == {**other, "note": "", "text": "", "flags": []}
    assert len(at_once["steps"]) == len(observed)
    assert json.loads(json.dumps(by_chunks)) == by_chunks


@pytest.mark.parametrize("name", STORIES)
def test_a_page_that_gets_every_growth_has_the_whole(name: str) -> None:
    observed = story(name)
    run = grown(observed[:5], 5)
    page, mark = run.full_document(), run.mark
    for start in range(5, len(observed), 7):
        run.grow(observed[start : start + 7])
        growth = run.growth(mark)
        assert growth is not None
        mark = mark._replace(version=run.version)
        page["steps"] += growth["steps"]
        messages = {entry["number"]: entry for entry in [*page["messages"], *growth["messages"]]}
        page["messages"] = list(messages.values())
        for entry in growth["batches"]:
            page["batches"][entry["index"] : entry["index"] + 1] = [entry]
    whole = run.full_document()
    assert page["steps"] == whole["steps"]
    assert page["messages"] == whole["messages"]
    assert [{**entry, "index": 0} for entry in page["batches"]] == [
        {**entry, "index": 0} for entry in whole["batches"]
    ]


def test_the_oldest_steps_go_and_the_state_before_the_others_is_known() -> None:
    observed = story("consume_transform_produce")
    everything, part = grown(observed, 10).full_document(), grown(observed, 10, steps_kept=40)
    document = part.full_document()
    assert 40 <= len(document["steps"]) <= 50
    assert part.end == len(observed)
    assert document["lesson"] == f"{part.first:,} earlier steps are not kept."
    assert state_at_end(document) == state_at_end(everything)
    last = len(document["steps"]) - 1
    for message in document["messages"]:
        assert all(
            0 <= message[key] <= last for key in ("sent", "arrived", "lost") if message[key] is not None
        )
    for step in document["steps"]:
        if "batch" in step:
            assert document["batches"][step["batch"]]["partition"] in step["text"]


def test_what_is_kept_does_not_grow_with_the_readers_that_came_and_went() -> None:
    run, chunk = GrowingRun("a run", steps_kept=100), 100
    run.begin_process({})
    for number in range(2 * BASE_KEYS_MAX // chunk):
        readers = {f"reader/app-{number}-{each}/t-0": number for each in range(chunk)}
        run.grow(
            Observed(Called(number, participant="app", label="reads"), changes={key: value})
            for key, value in readers.items()
        )
    document = run.full_document()
    assert len(document["steps"][0]["changes"]) == BASE_KEYS_MAX + 1
    newest = 2 * BASE_KEYS_MAX // chunk - 1
    assert run.growth(Mark(run.version - 1, run.first, 0)) is not None
    assert run.growth(Mark(run.version - 2, run.first, 0)) is None, (
        "the chunks hold no more steps than the run"
    )
    assert document["steps"][-1]["changes"] == {f"reader/app-{newest}-{chunk - 1}/t-0": newest}


def test_a_page_that_is_too_far_behind_loads_anew() -> None:
    run = grown(story("late_end_txn"), 1)
    assert run.growth(Mark(0, 0, 0)) is not None
    assert run.growth(Mark(run.version + 1, 0, 0)) is None
    assert run.growth(Mark(0, run.first + 1, 0)) is None
    for text in ("", "1", "a.b.c", "-1.0.0", "1.2.3.4", f"{'9' * 40}.0.0"):
        assert Mark.read(text) is None
    assert Mark.read(str(run.mark)) == run.mark


def test_another_process_goes_on_where_the_last_one_was_killed() -> None:
    run = GrowingRun("a run")
    run.begin_process({})
    asked = Sent(10, number=1, source="shop", target=BROKER, label="Produce t-0 a")
    txn = {"txn/pay": {"state": "Ongoing"}}
    run.grow([Observed(Called(5, participant=BROKER, label=START)), Observed(asked, NOTHING, txn)])
    run.begin_process({"txn/pay": {"state": "PrepareAbort"}})
    run.grow([Observed(Called(3, participant=BROKER, label=START)), Observed(attrs.evolve(asked, at=9))])
    document = run.full_document()
    told = [step["text"] for step in document["steps"]]
    assert [DOWN in text for text in told].index(True) == 2
    assert "the broker is gone" in told[3]
    assert "restart" in told[5]
    assert [message["number"] for message in document["messages"]] == [1, 2]
    assert document["messages"][0]["lost"] == 3
    assert document["steps"][2]["changes"]["txn/pay"] is None
    assert state_at_end(document)["txn/pay"] == {"state": "PrepareAbort"}
    times = [step["at"] for step in document["steps"]]
    assert times == sorted(times)


def test_events_of_messages_that_are_not_known_are_left_out_and_their_changes_are_not() -> None:
    run = GrowingRun("a run")
    run.begin_process({})
    lost = Lost(1, number=7, because="its connection breaks")
    run.grow(
        [Observed(lost, NOTHING, {"log/t-0": {"end": 1}}), Observed(Called(2, participant="a", label="b"))]
    )
    (step,) = run.full_document()["steps"]
    assert step["changes"] == {"log/t-0": {"end": 1}}


def test_missing_steps_are_said() -> None:
    run = GrowingRun("a run")
    run.begin_process({})
    run.miss(12_345, {"log/t-0": {"end": 7}})
    (step,) = run.full_document()["steps"]
    assert "12,345 steps are missing" in step["text"]
    assert step["changes"] == {"log/t-0": {"end": 7}}


def test_many_clients_share_the_last_lane() -> None:
    run = GrowingRun("a run")
    run.begin_process({})
    run.grow(Observed(Called(1, participant=f"client {number}", label="reads")) for number in range(1_000))
    names = [each["name"] for each in run.full_document()["participants"]]
    assert len(names) == LANES_MAX + 2
    assert names[-2:] == [OTHERS, BROKER]


def test_every_event_survives_its_way() -> None:
    for name in STORIES:
        for event, about, _ in story(name):
            assert unpack(pack(event, about)) == (event, about)
    with pytest.raises(UnreadableStep, match="cannot be read"):
        unpack(b"\x93\xa4Sent\x01\x02")


@pytest.mark.parametrize("unreadable", [b"\xc1", b"\x93\x01\x02\x03", b"\x81\x01\x02", b"\x81\xa1a"])
def test_a_state_that_cannot_be_read_is_an_error_of_the_broker(unreadable: bytes) -> None:
    assert unpack_changes(b"") == {}
    with pytest.raises(UnreadableStep, match="cannot be read"):
        unpack_changes(unreadable)


def test_a_feed_has_a_run_of_its_own() -> None:
    assert StepFeed().buffer.run != StepFeed().buffer.run
