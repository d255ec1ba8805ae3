"""Files of recordings are read in full, or refused with the place and the name of what nobody can play."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from fencepost.broker.settings import NodeSettings
from tests.oracle.conversation import (
    RECORDER_SETTINGS,
    Question,
    UnreadableRecording,
    read_conversations,
    settings_for,
    settings_of,
)
from tests.oracle.recordings import ASKED, HERE, OTHER_CLUSTERS, RECORDED, V0_UNVERIFIED, V2_CLIENT_V2
from tests.oracle.speech import KNOWN, NOT_SERVED, SPEECH
from tests.oracle.symbols import STRANGER, STRANGER_ID, NeverBound, Symbols

FIND: Final[dict[str, Any]] = {
    "request": "FindCoordinator",
    "version": 4,
    "args": {"key": "app", "type": "group"},
    "reply": {"error": "NONE"},
}
WITHOUT_ARGS: Final = {"request": "FindCoordinator", "version": 4, "reply": {"error": "NONE"}}


def written(path: Path, *steps: dict[str, Any]) -> Path:
    """A file with one conversation of these steps."""
    conversation = {"name": "talk", "area": "admin", "about": "a test", "steps": steps}
    path.write_text(json.dumps(conversation) + "\n", encoding="utf-8")
    return path


def test_a_conversation_is_read_step_by_step(tmp_path: Path) -> None:
    path = written(tmp_path / "talk.jsonl", {"control": "wait", "ms": 900}, FIND)
    (talk,) = read_conversations(path, KNOWN)
    assert (talk.line, talk.name, talk.area, talk.about) == (1, "talk", "admin", "a test")
    assert [(control.number, control.control, control.args) for control in talk.controls] == [
        (0, "wait", {"ms": 900})
    ]
    assert talk.questions == [
        Question(number=1, request="FindCoordinator", version=4, args=FIND["args"], reply=FIND["reply"])
    ]


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        ({**FIND, "request": "Guess"}, "step 0: the request 'Guess' is unknown here"),
        ({**FIND, "args": {"key": "app", "colour": 1}}, "step 0: FindCoordinator has no colour here"),
        ({"control": "pray"}, "step 0: the control 'pray' is unknown here"),
        ({"control": "wait", "ms": 1, "for": "you"}, "step 0: wait has no for here"),
        ({"note": "nothing"}, "step 0: neither a request with its reply nor a control"),
        (WITHOUT_ARGS, "step 0: neither a request with its reply nor a control"),
    ],
)
def test_a_step_that_nobody_can_play_is_an_error(
    step: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "talk.jsonl", step)
    with pytest.raises(UnreadableRecording) as caught:
        read_conversations(path, KNOWN)
    assert f"{path}:1: talk, {complaint}" in str(caught.value)


@pytest.mark.parametrize("line", ["no JSON", "[]", '{"name": "talk"}'])
def test_a_line_that_is_no_conversation_is_an_error(line: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text("\n" + line)
    with pytest.raises(UnreadableRecording, match=r"talk\.jsonl:2: "):
        read_conversations(path, KNOWN)


def test_the_name_of_a_file_tells_its_generation() -> None:
    newest, oldest = settings_of(V2_CLIENT_V2), settings_of(V0_UNVERIFIED)
    assert newest is not None
    assert oldest is not None
    assert (newest.transaction_version.number, newest.partition_verification) == (2, True)
    assert (oldest.transaction_version.number, oldest.partition_verification) == (0, False)
    assert settings_of(Path("talk.jsonl")) is None


def _topic(**config: Any) -> dict[str, Any]:
    return {"control": "create topic", "topic": "orders", "partitions": 1, "config": config}


def test_what_topics_are_configured_with_becomes_the_brokers_setting(tmp_path: Path) -> None:
    path = written(tmp_path / "talk.jsonl", _topic(**{"max.message.bytes": 1000}))
    (talk,) = read_conversations(path, KNOWN)
    assert settings_for(talk, RECORDER_SETTINGS).message_max_bytes == 1000
    assert RECORDER_SETTINGS.message_max_bytes == NodeSettings().message_max_bytes


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ([_topic(**{"retention.ms": 1})], r"nobody here knows the topic's retention\.ms"),
        ([_topic(**{"max.message.bytes": 1}), _topic()], "topics that are configured differently"),
    ],
)
def test_a_configuration_that_nobody_can_play_is_an_error(
    steps: list[dict[str, Any]], complaint: str, tmp_path: Path
) -> None:
    (talk,) = read_conversations(written(tmp_path / "talk.jsonl", *steps), KNOWN)
    with pytest.raises(UnreadableRecording, match=complaint):
        settings_for(talk, RECORDER_SETTINGS)


def test_every_recording_is_read_to_its_last_step() -> None:
    paths = [*RECORDED, *ASKED, *OTHER_CLUSTERS]
    counted = {path.name: len(read_conversations(path, KNOWN)) for path in paths}
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert counted == lines
    assert sorted(paths) == sorted(HERE.glob("*.jsonl"))
    assert not set(SPEECH) & set(NOT_SERVED)


def test_symbols_are_given_in_the_order_of_appearance() -> None:
    symbols = Symbols()
    assert [symbols.producer(n) for n in (4000, -1, 7, 4000)] == ["P1", None, "P2", "P1"]
    assert [symbols.producer_id(text) for text in ("P2", None)] == [7, -1]
    assert [symbols.coordinator(n) for n in (3, -1, 0, 3)] == ["C1", None, "C2", "C1"]
    with pytest.raises(NeverBound, match="P3"):
        symbols.producer_id("P3")


def test_a_stranger_takes_the_next_symbol_when_an_answer_shows_it() -> None:
    symbols = Symbols()
    assert symbols.producer_id(STRANGER) == STRANGER_ID
    assert [symbols.producer(n) for n in (1, STRANGER_ID)] == ["P1", "P2"]
    assert symbols.producer_id(STRANGER) == symbols.producer_id("P2")


def test_members_go_by_their_newest_name() -> None:
    symbols = Symbols()
    symbols.bind_member("m1", "consumer-1")
    assert (symbols.member_id("m1"), symbols.member_id("stranger")) == ("consumer-1", "stranger")
    assert (symbols.member("consumer-1"), symbols.member("consumer-2")) == ("m1", None)
