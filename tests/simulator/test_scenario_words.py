"""Every word that a scenario can be written with: each action is done and undone, each point is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.faults.grammar import BadPhrase, Blank, Grammar
from fencepost.faults.phrases import ACTIONS as ACTION_PHRASES
from fencepost.faults.phrases import LINES as LINE_PHRASES
from fencepost.faults.phrases import POINTS as POINT_PHRASES
from fencepost.faults.phrases import ActionKind, PointKind, Verb
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.scenarios.builder import Builder, scenario
from fencepost.simulator.scenarios.model import cases
from fencepost.simulator.scenarios.runner import record_case
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
    ("p sends Produce", "delay 40 ms"),
    ("* sends EndTxn reply to p", "delay 40 ms"),
    ("p sends EndTxn", "close the connection"),
    ("p sends EndTxn", "deliver twice"),
    ("p sends Produce", "deliver twice"),
    ("node 1 receives EndTxn from p", "answer NOT_COORDINATOR"),
    ("* receives Produce", "answer NOT_LEADER_OR_FOLLOWER"),
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
    recorded = record_case(case)
    report, history = recorded.result, recorded.history
    assert report.problems == ()
    assert f"{what} ({when})" in report.struck
    assert any(isinstance(event, Struck) for event in history.events), "a picture shows it"


DAMAGE = [
    ("at 400 ms", "flip a bit of t-0"),
    ("node 1 restarts", "flip a bit of t-0 at offset 1"),
    ("node 1 restarts", "lose a sector of t-0"),
    ("at 400 ms", "misdirect a read of t-0"),
    ("node 1 crashes", "lose a file of t-0"),
    ("node 1 crashes", "lose the directory of t-0"),
]


@pytest.mark.parametrize(("when", "what"), DAMAGE)
def test_a_damage_is_done_and_stays(when: str, what: str) -> None:
    """A reader gets the beginning of what was written, never anything else; t-1 is whole."""
    story = (
        scenario("damage")
        .producer("p", "send t-0 a", "flush", "send t-0 b", "send t-1 c", "flush")
        .consumer("reader", "t-0")
        .when("at 500 ms")
        .do("crash node 1")
        .when(when)
        .do(what)
        .expect(visible={"t-1": ["c"]})
    )
    (case,) = cases(story.scenario())
    recorded = record_case(case)
    assert f"{what} ({when})" in recorded.result.struck
    labels = [event.label for event in recorded.history.events if isinstance(event, Struck)]
    assert any(label.startswith(what) for label in labels), "a picture shows it"
    assert recorded.result.problems == ()
    seen = [value.decode() for value in recorded.run.visible().get(TopicPartition("t", 0), [])]
    assert ["a", "b"][: len(seen)] == seen


def test_every_action_is_tried() -> None:
    tried = {ACTION_PHRASES.read(what).kind for _, what in (*ACTIONS, *DAMAGE)} | {ActionKind.START}
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
    recorded = record_case(case)
    report = recorded.result
    assert report.problems == ()
    times = {PointKind.AT, PointKind.LATER}
    assert {POINT_PHRASES.read(text).kind for text in POINTS} | times == set(PointKind)


LINES = [str(found) for part in everybody().scenario().parts for found in getattr(part, "script", ())]


GRAMMARS = (LINE_PHRASES, POINT_PHRASES, ACTION_PHRASES)


def phrase_tables() -> str:
    """The tables of scenarios/README.md: every phrase, and every blank in it."""
    titles = ("Script of a producer", "Point", "What a fault does")
    text, used = "", dict[str, Blank]()
    for title, grammar in zip(titles, GRAMMARS, strict=True):
        text += f"| {title} | |\n|---|---|\n"
        for kind in grammar.phrases:
            text += f"| `{kind.value.shown}` | {kind.value.help} |\n"
            used |= {name: grammar.blanks[name] for name in kind.value.blanks.values()}
        text += "\n"
    text += "| Placeholder | |\n|---|---|\n"
    for name, blank in sorted(used.items()):
        listed = f": {', '.join(blank.words)}" if 0 < len(blank.words) < 10 else ""
        text += f"| `{name}` | {blank.help}{listed} |\n"
    return text


def test_every_phrase_is_documented() -> None:
    assert phrase_tables() in (ROOT / "scenarios" / "README.md").read_text()


WORDS = {
    "WHO": st.sampled_from(["p", "node 1", "coordinator of app", "leader of t-0"]),
    "NODE": st.sampled_from(["node 2", "coordinator of app", "leader of t-0"]),
    "PROCESS": st.just("p"),
    "PARTITION": st.just("t-0"),
    "PARTITION or coordinator of ID": st.sampled_from(["t-1", "coordinator of app"]),
    "coordinator of ID": st.just("coordinator of app"),
    "ID": st.just("app"),
    "VALUE": st.sampled_from(["a", "a b"]),
    "TIME": st.sampled_from(["300 ms", "3 s", "2 min"]),
    "JUMP": st.sampled_from(["+3 s", "-20 ms"]),
    "N": st.integers(2, 99).map(str),
    "before": st.just("before"),
    "TOPIC-N": st.just("t-0"),
    "TEXT": st.sampled_from(["a", "a b"]),
    "GROUP": st.just("g"),
    "OFFSET": st.integers(0, 99).map(str),
    "POINT": st.sampled_from(["p ends", "node 1 sends EndTxn reply to p #2"]),
}


@given(st.data())
@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.name)
def test_what_is_written_is_read_again(grammar: Grammar[Any], data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(grammar.phrases)))
    text = "".join(
        part for part, is_optional in kind.value.parts() if not is_optional or data.draw(st.booleans())
    )
    for field, name in kind.value.blanks.items():
        words = grammar.blanks[name].words
        word = data.draw(st.sampled_from(words) if words else WORDS[name])
        text = text.replace(f"{{{field}:{name}}}", word)
    assert str(grammar.read(text)) == text


@given(st.data())
@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.name)
def test_a_misspelled_word_is_answered_by_a_suggestion(grammar: Grammar[Any], data: st.DataObject) -> None:
    phrases = [text for text in [*POINTS, *LINES, *(what for _, what in ACTIONS)] if _is_of(grammar, text)]
    text = data.draw(st.sampled_from(phrases))
    words = text.split(" ")
    at = data.draw(st.sampled_from([at for at, word in enumerate(words) if word in grammar.vocabulary]))
    if len(words[at]) >= 5:
        wrong = " ".join([*words[:at], words[at][:-2] + words[at][-1], *words[at + 1 :]])
        if not _is_of(grammar, wrong):
            with pytest.raises(BadPhrase, match="did you mean") as found:
                grammar.read(wrong)
            assert found.value.possible


def _is_of(grammar: Grammar[Any], text: str) -> bool:
    try:
        grammar.read(text)
    except BadPhrase:
        return False
    return True


def test_a_picture_shows_an_append_before_the_crash_that_waited_for_it() -> None:
    story = everybody().when("t-1 appends data").do("crash leader of t-1").scenario()
    (case,) = cases(story)
    recorded = record_case(case)
    history = recorded.history
    crash = next(at for at, event in enumerate(history.events) if getattr(event, "label", "") == "crash")
    before = history.events[crash - 1]
    assert isinstance(before, Appended)
    assert before.partition == TopicPartition("t", 1)


def test_every_verb_is_spoken() -> None:
    assert {LINE_PHRASES.read(words).verb for words in LINES} == set(Verb)
