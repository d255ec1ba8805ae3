"""docs/course.md: every command runs, and a question stops before its answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from fencepost.cli.application import run

Output = pytest.CaptureFixture[str]

PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "course.md"
LESSONS: Final = re.split(r"\n## \d+\. ", PAGE.read_text(encoding="utf-8"))[1:]
# What each answer shows and its question does not.
REVEALED: Final = (
    "Produce NONE @0 AGAIN",
    "PRODUCER_FENCED",
    "CompleteCommit",
    "CommitOutcomeUnknown",
    "hanging-transaction",
    "LATE (after",
    "TRANSACTION_COORDINATOR_FENCED",
    "first PrepareAbort 1/1",
    "LATE (after",
)


def commands(lesson: str) -> list[str]:
    blocks = re.findall(r"```\n(.*?)```", lesson, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def numbers(lesson: str) -> list[str]:
    """The messages that a question names."""
    named = re.findall(r"messages? (\d+)(?: and (\d+))?", lesson)
    return [number for pair in named for number in pair if number]


def printed(capsys: Output, command: str) -> str:
    name, *arguments = command.split()
    assert name == "fencepost"
    found = run(arguments)
    assert found == (1 if arguments[0] == "explore" else 0), command
    return capsys.readouterr().out


def test_every_lesson_has_an_answer() -> None:
    assert len(LESSONS) == len(REVEALED)


@pytest.mark.parametrize(
    ("lesson", "revealed"), list(zip(LESSONS, REVEALED, strict=True)), ids=lambda text: text.splitlines()[0]
)
def test_a_question_stops_before_its_answer(capsys: Output, lesson: str, revealed: str) -> None:
    *question, answer = commands(lesson)[: 2 if len(commands(lesson)) > 1 else 1]
    for command in question:
        shown = printed(capsys, command)
        assert revealed not in shown
        for number in numbers(lesson):
            assert re.search(rf"[●▶◀═╌]{number}\D|\D{number}[●▶◀═╌]", shown), f"message {number}"
    assert revealed in printed(capsys, answer)
    for command in commands(lesson)[2:]:
        printed(capsys, command)
