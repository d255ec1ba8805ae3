"""What comes of playing files: the answers that are not Kafka's, in words, and the count of all.

Rule: each recorded answer counts once, however often it is played; it agrees only if it agreed every time.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import attrs

from fencepost.broker.settings import NodeSettings
from tests.oracle.conversation import (
    RECORDER_SETTINGS,
    Conversation,
    read_conversations,
    settings_for,
    settings_of,
)
from tests.oracle.in_memory import InMemory
from tests.oracle.over_kafka import OverKafka
from tests.oracle.over_socket import OverSocket, can_be_played
from tests.oracle.playing import Answer, play
from tests.oracle.speech import KNOWN

WIDTH: Final = 160  # of an answer, before it is shortened
SAMPLED_RANDOM: Final = 40  # every so many of the random conversations are played over the socket, too
SAMPLED_PER_AREA: Final = 2


class Place(NamedTuple):
    """Which recorded answer: file, line of the file, step."""

    file: str
    line: int
    step: int


@attrs.frozen(kw_only=True)
class Explanation:
    """A deliberate difference: the answers of this conversation to this request, and why they are another."""

    conversation: str
    request: str
    reason: str

    def covers(self, answer: Answer) -> bool:
        return (self.conversation, self.request) == (answer.conversation.name, answer.question.request)


DELIBERATE: Final[tuple[Explanation, ...]] = ()
"""Where Fencepost answers otherwise on purpose: nowhere so far."""


@attrs.frozen(kw_only=True)
class Difference:
    """An answer that is not Kafka's, and on which stage it was given."""

    place: Place
    answer: Answer
    stage: str
    reason: str | None
    """Why that is meant to be so, or None."""

    @property
    def text(self) -> str:
        """For people."""
        question, conversation = self.answer.question, self.answer.conversation
        lines = [
            f"{self.place.file}: {conversation.name}, step {question.number}, {self.stage}",
            f"  about  {conversation.about}",
            f"  asked  {question.request} {question.version} {_short(dict(question.args))}",
            f"  Kafka  {_short(question.reply)}",
            f"  here   {_short(self.answer.ours)}",
        ]
        return "\n".join(lines if self.reason is None else [*lines, f"  meant  {self.reason}"])


def _short(value: object) -> str:
    return textwrap.shorten(json.dumps(value), WIDTH * 4, placeholder=" ...")


@attrs.frozen(kw_only=True)
class Played:
    """What came of some conversations on one stage."""

    asked: frozenset[Place]
    names: frozenset[str]
    """Of the conversations."""
    differences: tuple[Difference, ...]


def judge(
    path: Path, answers: Iterable[Answer], *, stage: str, deliberate: Sequence[Explanation] = DELIBERATE
) -> Played:
    """Answers of one file, beside Kafka's."""
    asked: set[Place] = set()
    names: set[str] = set()
    differences: list[Difference] = []
    for answer in answers:
        place = Place(str(path), answer.conversation.line, answer.question.number)
        asked.add(place)
        names.add(answer.conversation.name)
        if not answer.agrees:
            reason = next((found.reason for found in deliberate if found.covers(answer)), None)
            differences.append(Difference(place=place, answer=answer, stage=stage, reason=reason))
    return Played(asked=frozenset(asked), names=frozenset(names), differences=tuple(differences))


def cluster_of(path: Path) -> NodeSettings:
    """The recorder's cluster; a file whose name does not tell its generation is played in the newest."""
    return settings_of(path) or RECORDER_SETTINGS


def areas_of(path: Path) -> list[str]:
    """The areas of a file, in its order."""
    return list(dict.fromkeys(conversation.area for conversation in read_conversations(path, KNOWN)))


def play_in_memory(path: Path, area: str, cluster: NodeSettings | None = None) -> Played:
    """All conversations of one area of a file."""
    found = [each for each in read_conversations(path, KNOWN) if each.area == area]
    settings = cluster or cluster_of(path)
    answers = [
        answer
        for conversation in found
        for answer in play(conversation, InMemory(settings_for(conversation, settings)))
    ]
    return judge(path, answers, stage="in memory")


def sample(conversations: Sequence[Conversation]) -> list[Conversation]:
    """The first of each area, every restart, and some of the random ones, as far as one broker can play
    them.
    """
    chosen: list[Conversation] = []
    seen: dict[str, int] = {}
    for conversation in conversations:
        if not can_be_played(conversation):
            continue
        number = seen[conversation.area] = seen.get(conversation.area, 0) + 1
        is_random = conversation.area == "random" and number % SAMPLED_RANDOM == 1
        is_restart = conversation.area == "restart"
        if is_random or is_restart or (number <= SAMPLED_PER_AREA and conversation.area != "random"):
            chosen.append(conversation)
    return chosen


def play_over_socket(
    path: Path, conversations: Iterable[Conversation], kind: type[OverSocket] = OverSocket
) -> Played:
    """Conversations of one file, each with a broker process of its own."""
    answers: list[Answer] = []
    for conversation in conversations:
        with kind(settings_for(conversation, cluster_of(path))) as stage:
            answers += play(conversation, stage)
    return judge(path, answers, stage=kind.name)


def play_over_kafka(path: Path, lines: Sequence[int]) -> Played:
    """The conversations in these lines of a file, in Kafka's own bytes."""
    chosen = [each for each in read_conversations(path, KNOWN) if each.line in lines]
    return play_over_socket(path, chosen, OverKafka)


def count(played: Iterable[Played]) -> dict[str, int]:
    """The last line: one count per recorded answer."""
    everything = list(played)
    asked = frozenset[Place]().union(*(part.asked for part in everything))
    differing = [difference for part in everything for difference in part.differences]
    different = {found.place for found in differing if found.reason is None}
    explained = {found.place for found in differing} - different
    agreed = len(asked) - len(different) - len(explained)
    return {"asked": len(asked), "agreed": agreed, "explained": len(explained), "different": len(different)}
