"""What a producer does, line by line: "begin", "send t-0 a", "commit".

Rule: a line is a value; the players of `actors/scripted.py` know how it is done.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import attrs

from fencepost.faults.grammar import Blank, Grammar, Phrase
from fencepost.faults.phrases import BLANKS, POINTS, Point, partition_named
from fencepost.protocol.terms import TopicPartition


class Verb(Enum):
    """What a producer can do."""

    INIT = Phrase("init", "initializes transactions, each time with a new producer")
    BEGIN = Phrase("begin", "begins a transaction")
    SEND = Phrase("send {partition:TOPIC-N} {value:TEXT}", "sends one record")
    SEND_OFFSETS = Phrase(
        "send_offsets {group:GROUP} {partition:TOPIC-N} {offset:OFFSET}", "adds an offset to the transaction"
    )
    COMMIT = Phrase("commit", "commits the transaction")
    ABORT = Phrase("abort", "aborts the transaction")
    FLUSH = Phrase("flush", "waits until every record was acknowledged or has failed")
    PAUSE = Phrase("pause {time_ms:TIME}", "does nothing for a time")
    WAIT = Phrase("wait until {point:POINT}", "waits until a point is reached")


@attrs.frozen(kw_only=True)
class ScriptLine:
    """One line of a script; its verb says which of the other fields count."""

    verb: Verb
    partition: TopicPartition | None = None
    value: str = ""
    group: str = ""
    offset: int = 0
    time_ms: int = 0
    point: Point | None = None

    def __str__(self) -> str:
        return LINES.write(self)


_BLANKS: Final = BLANKS | {
    "TOPIC-N": Blank("a partition of a topic: t-0", read=partition_named),
    "TEXT": Blank("the value of the record", pattern=r"\S.*"),
    "GROUP": Blank("a consumer group"),
    "OFFSET": Blank("an offset", pattern=r"\d+", read=int),
    "POINT": Blank("a protocol point", pattern=".+", read=POINTS.read),
}
LINES: Final = Grammar("a line of a script", Verb, ScriptLine, _BLANKS)
