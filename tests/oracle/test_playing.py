"""The player finds what it is for: an answer that is not Kafka's, a rule of the cores that is not, a question
that cannot be asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.tables import END_VERSION_2, NEWEST, TRANSACTION_VERSIONS, EndInput
from fencepost.protocol.terms import TransactionState
from tests.oracle.__main__ import main
from tests.oracle.conversation import RECORDER_SETTINGS, Control, Conversation, Question, read_conversations
from tests.oracle.in_memory import InMemory
from tests.oracle.playing import Answer, play
from tests.oracle.recordings import V0_VERIFIED, V2_CLIENT_V2
from tests.oracle.report import Explanation, cluster_of, count, judge, play_in_memory
from tests.oracle.speech import KNOWN, NOT_SERVED

INIT: Final = {"transactional_id": "app", "timeout_ms": 60_000}
GRANTED: Final = {"error": "NONE", "producer": "P1", "epoch": 0}


def question(
    request: str, args: dict[str, Any], reply: Any, *, version: int = 5, number: int = 0
) -> Question:
    return Question(number=number, request=request, version=version, args=args, reply=reply)


def talk(*steps: Question | Control) -> Conversation:
    numbered = tuple(attrs.evolve(step, number=number) for number, step in enumerate(steps))
    return Conversation(line=1, name="talk", area="admin", about="a test", steps=numbered)


def recorded(path: Path, name: str) -> Conversation:
    return next(each for each in read_conversations(path, KNOWN) if each.name == name)


def ours(conversation: Conversation, settings: NodeSettings = RECORDER_SETTINGS) -> list[Answer]:
    return play(conversation, InMemory(settings))


# --- an answer that is not Kafka's -----------------------------------------------------------------------


def test_a_changed_answer_is_reported_where_it_stands() -> None:
    path, steps = V2_CLIENT_V2, recorded(V2_CLIENT_V2, "describing").steps
    place = next(n for n, step in enumerate(steps) if isinstance(step, Question) and n > 5)
    changed = steps[place]
    assert isinstance(changed, Question)
    planted = (*steps[:place], attrs.evolve(changed, reply={"error": "PLANTED"}), *steps[place + 1 :])
    conversation = attrs.evolve(recorded(path, "describing"), steps=planted)
    (found,) = judge(path, ours(conversation), stage="in memory").differences
    assert (found.place.file, found.place.step) == (str(path), place)
    lines = found.text.splitlines()
    assert lines[0] == f"{path}: describing, step {place}, in memory"
    assert lines[2].startswith(f"  asked  {changed.request} {changed.version}")
    assert lines[3:] == ['  Kafka  {"error": "PLANTED"}', f"  here   {json.dumps(changed.reply)}"]


def test_a_step_that_is_left_out_is_noticed() -> None:
    held = recorded(V2_CLIENT_V2, "while_commit_is_being_written")
    assert all(answer.agrees for answer in ours(held))
    free = tuple(step for step in held.steps if not (isinstance(step, Control) and step.control == "hold"))
    assert not all(answer.agrees for answer in ours(attrs.evolve(held, steps=free)))


# --- a rule of the cores that is not Kafka's -------------------------------------------------------------

COMPLETE_COMMIT: Final = TransactionState.COMPLETE_COMMIT

PLANTED: Final[dict[str, tuple[Path, str, Callable[[NodeSettings], NodeSettings]]]] = {
    "no fencing": (V2_CLIENT_V2, "produce", lambda s: attrs.evolve(s, broken=frozenset({"fencing"}))),
    "no deduplication": (V2_CLIENT_V2, "produce", lambda s: attrs.evolve(s, broken=frozenset({"dedup"}))),
    "no verification": (V0_VERIFIED, "produce", lambda s: attrs.evolve(s, partition_verification=False)),
    "another generation": (
        V2_CLIENT_V2,
        "end_txn",
        lambda s: attrs.evolve(s, transaction_version=TRANSACTION_VERSIONS[0]),
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_changed_rule_is_found(fault: str) -> None:
    path, area, plant = PLANTED[fault]
    assert not play_in_memory(path, area).differences
    assert play_in_memory(path, area, plant(cluster_of(path))).differences


def test_a_changed_cell_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second commit is a retry of the first, although it has the epoch of the next transaction."""
    monkeypatch.setitem(END_VERSION_2[COMPLETE_COMMIT], EndInput.COMMIT, COMPLETE_COMMIT)
    assert play_in_memory(V2_CLIENT_V2, "end_txn").differences


# --- questions that cannot be asked ----------------------------------------------------------------------


def test_a_question_about_somebody_whom_nobody_has_seen_is_a_difference() -> None:
    stranger = {**INIT, "producer": "P9", "epoch": 0}
    answers = ours(
        talk(question("InitProducerId", stranger, GRANTED), question("InitProducerId", INIT, GRANTED))
    )
    assert [answer.agrees for answer in answers] == [False, True]
    assert answers[0].ours == {"not asked": "nobody was shown as P9 so far"}


def test_what_fencepost_does_not_serve_is_a_difference() -> None:
    for request in NOT_SERVED:
        (answer,) = ours(talk(question(request, {}, {"error": "NONE"})))
        assert answer.ours == {"not asked": f"Fencepost does not serve {request}"}


def test_a_control_that_fails_is_told_by_every_answer_after_it() -> None:
    raising = {"transactional_id": "app", "producer": "P1", "from": 0, "to": 3}
    first = question("InitProducerId", INIT, GRANTED)
    wrong = Control(number=0, control="raise epoch", args={**raising, "from": 2})
    answers = ours(talk(first, wrong, first, Control(number=0, control="settle", args={}), first))
    assert [answer.agrees for answer in answers] == [True, False, False]
    assert "'raise epoch' failed in step 1: epoch 2 is not raised by one" in answers[1].ours["not asked"]


def test_an_epoch_is_raised_step_by_step() -> None:
    raising = {"transactional_id": "app", "producer": "P1", "from": 0, "to": 3}
    first = question("InitProducerId", INIT, GRANTED)
    then = question("InitProducerId", INIT, {**GRANTED, "epoch": 4})
    assert all(
        each.agrees
        for each in ours(talk(first, Control(number=1, control="raise epoch", args=raising), then))
    )


def test_a_node_that_crashes_is_a_difference() -> None:
    settings = attrs.evolve(RECORDER_SETTINGS, transaction_version=attrs.evolve(NEWEST, moves={}))
    first = question("InitProducerId", INIT, GRANTED)
    answers = ours(talk(first, first, first), settings)
    assert [answer.agrees for answer in answers] == [True, False, False]
    assert answers[1].ours["not answered"].startswith("the node crashed: KeyError")
    assert answers[2].ours["not asked"].startswith("no answer in step 1: the node crashed")


# --- counting --------------------------------------------------------------------------------------------


def _three_answers(path: Path) -> list[Answer]:
    wrong = question("InitProducerId", INIT, {**GRANTED, "epoch": 9})
    also_wrong = question(
        "EndTxn", {"transactional_id": "x", "producer": "P?", "epoch": 0, "commit": True}, {}
    )
    return ours(talk(question("InitProducerId", INIT, GRANTED), wrong, also_wrong))


def test_a_deliberate_difference_is_explained() -> None:
    path = Path("talk.jsonl")
    meant = Explanation(conversation="talk", request="EndTxn", reason="to see it here")
    played = judge(path, _three_answers(path), stage="in memory", deliberate=[meant])
    assert count([played]) == {"asked": 3, "agreed": 1, "explained": 1, "different": 1}
    assert [found.text.endswith("  meant  to see it here") for found in played.differences] == [False, True]


def test_an_answer_counts_once_and_agrees_only_if_it_always_did() -> None:
    path = Path("talk.jsonl")
    answers = _three_answers(path)
    all_right = [attrs.evolve(answer, ours=answer.question.reply) for answer in answers]
    stages = [
        judge(path, all_right, stage="in memory"),
        judge(path, answers, stage="over the socket"),
        judge(Path("other.jsonl"), all_right, stage="in memory"),
    ]
    assert count(stages) == {"asked": 6, "agreed": 4, "explained": 0, "different": 2}


# --- the command -----------------------------------------------------------------------------------------


def _one_conversation(path: Path, *, epoch: int) -> str:
    step = {"request": "InitProducerId", "version": 5, "args": INIT, "reply": {**GRANTED, "epoch": epoch}}
    path.write_text(json.dumps({"name": "talk", "area": "admin", "about": "a test", "steps": [step]}))
    return str(path)


@pytest.mark.parametrize(("epoch", "exit_code"), [(0, 0), (1, 1)])
def test_the_last_line_counts(
    epoch: int, exit_code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _one_conversation(tmp_path / "broker-v0-verified.jsonl", epoch=epoch)
    assert main([file, "--memory-only"]) == exit_code
    *before, last = capsys.readouterr().out.splitlines()
    assert json.loads(last) == {"asked": 1, "agreed": 1 - epoch, "explained": 0, "different": epoch}
    assert (f"{file}: talk, step 0, in memory" in before) == bool(epoch)


def test_a_file_without_generation_is_played_in_the_newest_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([_one_conversation(tmp_path / "talk.jsonl", epoch=0), "--memory-only"]) == 0
    assert "talk.jsonl: the name does not tell the generation" in capsys.readouterr().out


def test_a_file_that_nobody_can_play_ends_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text("nonsense")
    assert main([str(path)]) == 2
    assert main([str(tmp_path / "nowhere.jsonl")]) == 2
    assert "talk.jsonl:1: no JSON" in capsys.readouterr().err
