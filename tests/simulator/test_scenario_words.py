"""Every word that a scenario can be written with: each action is done and undone, each point is reached."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.faults.phrases import ACTIONS as ACTION_PHRASES
from fencepost.faults.phrases import POINTS as POINT_PHRASES
from fencepost.faults.phrases import ActionKind, PointKind
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.scenarios.builder import Builder, scenario
from fencepost.simulator.scenarios.model import cases
from fencepost.simulator.scenarios.runner import record_case
from fencepost.simulator.scenarios.scripts import LINES as LINE_PHRASES
from fencepost.simulator.scenarios.scripts import Verb
from fencepost.simulator.world.history import Appended, Struck

ROOT = Path(__file__).resolve().parent.parent.parent


def everybody() -> Builder:
    """A cluster in which everything is done that people can do."""
    return (
        scenario("everybody")
        .cluster(nodes=2, topics={"t": 2, "out": 2}, sync="commit")
        .producer(
            "p",
            "init",
            "begin",
            "send t-0 a",
            "send_offsets g t-0 1",
            "flush",
            "abort",
            "begin",
            "send t-0 b",
            "send t-1 c",
            "flush",
            "pause 2 ms",
            "commit",
            transactional_id="app",
        )
        .producer("called", "wait until commit of p is ok", "send t-1 d", starts="on request")
        .consumer("reader", "t-0", "t-1", isolation="read_uncommitted")
        .processor("processor", "t-0", "t-1", writes="out")
        .when("p sends Produce")
        .do("start called")
        .expect(
            holds=["exactly-once", "converges"],
            visible={"t-0": ["b"], "t-1": ["c", "d"], "out-0": ["B"], "out-1": ["C", "D"]},
        )
    )


# Where each action strikes, and what is done.
ACTIONS = [
    ("p sends EndTxn", "hold"),
    ("p sends EndTxn", "delay"),
    ("coordinator of app sends WriteTxnMarkers", "delay"),
    ("p sends EndTxn", "drop"),
    ("p receives EndTxn reply", "drop"),
    ("t-1 appends data", "crash leader of t-1"),
    ("before coordinator of app appends PREPARE_COMMIT", "cut power of coordinator of app"),
    ("processor receives Produce reply", "kill processor"),
    ("reader reads b", "kill reader"),
    ("p sends Produce #2", "pause p"),
    ("coordinator of app appends PREPARE_COMMIT", "pause coordinator of app"),
    ("t-0 appends data for app", "move t-0 to node 2"),
    ("t-0 appends data for app", "move t-0 to node 2"),
    ("p sends Produce", "partition p from leader of t-0"),
    ("p sends EndTxn", "block node 1 to p"),
    ("p sends EndTxn", "isolate coordinator of app"),
    ("at 2 ms", "clock of p +5 s"),
    ("p sends EndTxn", "clock of node 1 -70 ms"),
    ("p starts", "slow node 1 20 times"),
    ("p starts", "slow disk of node 1 20 times"),
    ("t-0 appends data", "fail appends of t-0"),
    ("before t-1 appends COMMIT marker", "fail syncs of t-1"),
]


@pytest.mark.parametrize(("when", "what"), ACTIONS)
def test_an_action_is_done_and_undone(when: str, what: str) -> None:
    (case,) = cases(everybody().when(when).do(what).scenario())
    report, history = record_case(case)
    assert report.problems == ()
    assert f"{what} ({when})" in report.fired
    assert any(isinstance(event, Struck) for event in history.events), "a picture shows it"


def test_every_action_is_tried() -> None:
    tried = {ACTION_PHRASES.read(what).kind for _, what in ACTIONS} | {ActionKind.START}
    assert tried == set(ActionKind)


POINTS = [
    "p sends EndTxn to coordinator of app",
    "coordinator of app sends EndTxn reply to p #2",
    "leader of t-0 receives Produce from p #2",
    "p receives Produce reply from leader of t-1",
    "p gets NOT_COORDINATOR from node 1",
    "node 1 answers NOT_COORDINATOR to p",
    "before coordinator of app appends COMPLETE_COMMIT",
    "t-1 appends COMMIT marker for app",
    "before __consumer_offsets-0 appends data for processor",
    "abort of p is ok",
    "reader reads a",
    "node 2 crashes",
    "node 2 restarts",
    "reader pauses",
    "reader resumes",
    "called starts",
    "called ends",
    "processor dies",
]


def test_every_point_is_reached() -> None:
    story = (
        everybody()
        .when("t-1 appends COMMIT marker")
        .do("crash node 2", until="after 30 ms")
        .when("reader reads b")
        .do("pause reader", until="p ends")
        .when("processor sends EndTxn")
        .do("kill processor")
        .when("p sends EndTxn")
        .do("move coordinator of app to node 2")
        .expect(reaches=POINTS)
        .scenario()
    )
    (case,) = cases(story)
    report, _ = record_case(case)
    assert report.problems == ()
    times = {PointKind.AT, PointKind.LATER}
    assert {POINT_PHRASES.read(text).kind for text in POINTS} | times == set(PointKind)


LINES = [str(found) for part in everybody().scenario().parts for found in getattr(part, "script", ())]


@pytest.mark.parametrize("words", [*POINTS, "at 2 min", "after 3 s", "before t-0 appends data #7"])
def test_a_point_is_written_as_it_is_read(words: str) -> None:
    assert str(POINT_PHRASES.read(words)) == words


@pytest.mark.parametrize("words", sorted({what for _, what in ACTIONS}))
def test_an_action_is_written_as_it_is_read(words: str) -> None:
    assert str(ACTION_PHRASES.read(words)) == words


@pytest.mark.parametrize("words", sorted(set(LINES)))
def test_a_line_is_written_as_it_is_read(words: str) -> None:
    assert str(LINE_PHRASES.read(words)) == words


def test_a_picture_shows_an_append_before_the_crash_that_waited_for_it() -> None:
    story = everybody().when("t-1 appends data").do("crash leader of t-1").scenario()
    (case,) = cases(story)
    _, history = record_case(case)
    crash = next(at for at, event in enumerate(history.events) if getattr(event, "label", "") == "crash")
    before = history.events[crash - 1]
    assert isinstance(before, Appended)
    assert before.partition == TopicPartition("t", 1)


def test_every_verb_is_spoken() -> None:
    assert {LINE_PHRASES.read(words).verb for words in LINES} == set(Verb)


def test_a_run_does_not_hang_on_how_python_hashes() -> None:
    files = [str(ROOT / "scenarios" / f"{name}.toml") for name in ("zombie_coordinator", "processor_dies")]
    command = [sys.executable, "-m", "fencepost", "run", "--json", *files]
    told = [
        subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True
        ).stdout.splitlines()[:-1]
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
