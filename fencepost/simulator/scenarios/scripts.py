"""What a producer does, line by line: "begin", "send t-0 a", "commit".

Rule: a line is a value; how it is done is the player's business.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

import attrs

from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.faults.points import Point, point
from fencepost.simulator.scenarios.wording import BadWords, milliseconds, phrase_suggestion, quoted, time_text


class Verb(Enum):
    """What can be done; the values are how people write it."""

    INIT = "init"
    BEGIN = "begin"
    SEND = "send PARTITION VALUE"
    SEND_OFFSETS = "send_offsets GROUP PARTITION OFFSET"
    COMMIT = "commit"
    ABORT = "abort"
    FLUSH = "flush"
    PAUSE = "pause TIME"
    WAIT = "wait until POINT"


@attrs.frozen(kw_only=True)
class Line:
    """One line of a script; only those fields count that its verb has blanks for."""

    verb: Verb
    partition: TopicPartition | None = None
    value: str = ""
    group: str = ""
    offset: int = 0
    time_ms: int = 0
    point: Point | None = None

    def __str__(self) -> str:
        match self.verb:
            case Verb.SEND:
                return f"send {self.partition} {self.value}"
            case Verb.SEND_OFFSETS:
                return f"send_offsets {self.group} {self.partition} {self.offset}"
            case Verb.PAUSE:
                return f"pause {time_text(self.time_ms)}"
            case Verb.WAIT:
                return f"wait until {self.point}"
            case _:
                return self.verb.value


_BARE: Final = {verb.value: verb for verb in Verb if verb.value.islower()}
_SEND: Final = re.compile(r"send (\S+) (\S.*)")
_SEND_OFFSETS: Final = re.compile(r"send_offsets (\S+) (\S+) (\d+)")
_VOCABULARY: Final = tuple(sorted({verb.value.split(" ")[0] for verb in Verb}))


def line(text: str) -> Line:
    """The line that these words mean. BadWords with what is possible when they mean none."""
    text = text.strip()
    if text in _BARE:
        return Line(verb=_BARE[text])
    if found := _SEND_OFFSETS.fullmatch(text):
        return Line(
            verb=Verb.SEND_OFFSETS, group=found[1], partition=partition_named(found[2]), offset=int(found[3])
        )
    if found := _SEND.fullmatch(text):
        return Line(verb=Verb.SEND, partition=partition_named(found[1]), value=found[2])
    if text.startswith("pause "):
        return Line(verb=Verb.PAUSE, time_ms=milliseconds(text.removeprefix("pause ")))
    if text.startswith("wait until "):
        return Line(verb=Verb.WAIT, point=point(text.removeprefix("wait until ")))
    raise BadWords(
        f"{quoted(text)} is nothing that a producer can do{phrase_suggestion(text, _VOCABULARY, line)}",
        possible=[verb.value for verb in Verb],
    )


class NoPartition(BadWords):
    """What stands where a partition must; which ones there are only the cluster can say."""


def partition_named(text: str) -> TopicPartition:
    """The partition that is written "topic-0"."""
    topic, dash, number = text.rpartition("-")
    if not dash or not topic or not number.isdecimal():
        raise NoPartition(f"{quoted(text)} is no partition: a topic, a dash and a number", possible=["t-0"])
    return TopicPartition(topic, int(number))
