"""Protocol points: the moments of a run that faults wait for and that a scenario expects to reach.

Rule: a point is a sentence with a few blanks. The same table reads it, writes it, and lists what is
possible.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

import attrs

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import APIS
from fencepost.protocol.terms import TransactionState
from fencepost.simulator.scenarios.wording import (
    BadWords,
    milliseconds,
    phrase_suggestion,
    quoted,
    suggestion,
    time_text,
)


class PointKind(Enum):
    """What can happen; the values are how people write it."""

    SENDS_REPLY = "WHO sends REQUEST reply [to WHO]"
    SENDS = "WHO sends REQUEST [to WHO]"
    RECEIVES_REPLY = "WHO receives REQUEST reply [from WHO]"
    RECEIVES = "WHO receives REQUEST [from WHO]"
    GETS = "WHO gets ERROR [from WHO]"
    ANSWERS = "WHO answers ERROR [to WHO]"
    DECIDES = "[before] coordinator of ID appends STATE"
    MARKS = "[before] PARTITION appends RESULT marker [for ID]"
    STORES = "[before] PARTITION appends data [for ID]"
    ENDS_CALL = "CALL of WHO is OUTCOME"
    READS = "WHO reads VALUE"
    CRASHES = "WHO crashes"
    RESTARTS = "WHO restarts"
    PAUSES = "WHO pauses"
    RESUMES = "WHO resumes"
    STARTS = "WHO starts"
    ENDS = "WHO ends"
    DIES = "WHO dies"
    AT = "at TIME"
    LATER = "after TIME"


REQUESTS: Final = tuple(api.name for api in APIS)
ERRORS: Final = tuple(code.name for code in ErrorCode if code is not ErrorCode.NONE)
STATES: Final = tuple(state.name for state in TransactionState)
RESULTS: Final = ("COMMIT", "ABORT")
CALLS: Final = ("init", "commit", "abort")
OUTCOMES: Final = ("ok", "aborted", "fenced", "failed", "unknown")

_TIMED: Final = frozenset({PointKind.AT, PointKind.LATER})
_APPENDS: Final = frozenset({PointKind.DECIDES, PointKind.MARKS, PointKind.STORES})
_BLANKS: Final[dict[str, tuple[str, ...]]] = {
    "REQUEST": REQUESTS,
    "ERROR": ERRORS,
    "STATE": STATES,
    "RESULT": RESULTS,
    "CALL": CALLS,
    "OUTCOME": OUTCOMES,
}


@attrs.frozen(kw_only=True)
class Point:
    """One moment: the `number`-th time that `who` does `what`, with, for or of `whom`. `time_ms` is for
    times alone.
    """

    kind: PointKind
    who: str = ""
    what: str = ""
    whom: str = ""
    is_before: bool = False
    number: int = 1
    time_ms: int = 0

    @property
    def is_time(self) -> bool:
        return self.kind in _TIMED

    @property
    def is_message(self) -> bool:
        """Whether a message is about to travel or to be taken, so that it can be held or lost."""
        return self.kind in _MESSAGES

    def __str__(self) -> str:
        words = _PLAIN[self.kind].format(
            who=self.who, what=self.what, whom=self.whom, time=time_text(self.time_ms)
        )
        if self.whom and self.kind in _WHOM:
            words += f" {_WHOM[self.kind]} {self.whom}"
        before = "before " if self.is_before else ""
        return f"{before}{words}" + (f" #{self.number}" if self.number != 1 else "")


_MESSAGES: Final = frozenset(
    {PointKind.SENDS, PointKind.SENDS_REPLY, PointKind.RECEIVES, PointKind.RECEIVES_REPLY}
)
_PLAIN: Final = {
    PointKind.SENDS_REPLY: "{who} sends {what} reply",
    PointKind.SENDS: "{who} sends {what}",
    PointKind.RECEIVES_REPLY: "{who} receives {what} reply",
    PointKind.RECEIVES: "{who} receives {what}",
    PointKind.GETS: "{who} gets {what}",
    PointKind.ANSWERS: "{who} answers {what}",
    PointKind.DECIDES: "{who} appends {what}",
    PointKind.MARKS: "{who} appends {what} marker",
    PointKind.STORES: "{who} appends data",
    PointKind.ENDS_CALL: "{what} of {who} is {whom}",
    PointKind.READS: "{who} reads {what}",
    PointKind.CRASHES: "{who} crashes",
    PointKind.RESTARTS: "{who} restarts",
    PointKind.PAUSES: "{who} pauses",
    PointKind.RESUMES: "{who} resumes",
    PointKind.STARTS: "{who} starts",
    PointKind.ENDS: "{who} ends",
    PointKind.DIES: "{who} dies",
    PointKind.AT: "at {time}",
    PointKind.LATER: "after {time}",
}
_WHOM: Final = {
    PointKind.SENDS_REPLY: "to",
    PointKind.SENDS: "to",
    PointKind.RECEIVES_REPLY: "from",
    PointKind.RECEIVES: "from",
    PointKind.GETS: "from",
    PointKind.ANSWERS: "to",
    PointKind.MARKS: "for",
    PointKind.STORES: "for",
}

SOMEBODY: Final = r"(?:node \d+|coordinator of \S+|leader of \S+|[^ #]+)"
_WHO: Final = rf"(?P<who>{SOMEBODY})"
_PATTERNS: Final = {
    PointKind.SENDS_REPLY: rf"{_WHO} sends (?P<what>\w+) reply(?: to (?P<whom>{SOMEBODY}))?",
    PointKind.SENDS: rf"{_WHO} sends (?P<what>\w+)(?: to (?P<whom>{SOMEBODY}))?",
    PointKind.RECEIVES_REPLY: rf"{_WHO} receives (?P<what>\w+) reply(?: from (?P<whom>{SOMEBODY}))?",
    PointKind.RECEIVES: rf"{_WHO} receives (?P<what>\w+)(?: from (?P<whom>{SOMEBODY}))?",
    PointKind.GETS: rf"{_WHO} gets (?P<what>\w+)(?: from (?P<whom>{SOMEBODY}))?",
    PointKind.ANSWERS: rf"{_WHO} answers (?P<what>\w+)(?: to (?P<whom>{SOMEBODY}))?",
    PointKind.MARKS: r"(?P<who>\S+) appends (?P<what>\w+) marker(?: for (?P<whom>\S+))?",
    PointKind.STORES: r"(?P<who>\S+) appends data(?: for (?P<whom>\S+))?",
    PointKind.DECIDES: r"(?P<who>coordinator of \S+) appends (?P<what>\w+)",
    PointKind.ENDS_CALL: r"(?P<what>\w+) of (?P<who>\S+) is (?P<whom>\w+)",
    PointKind.READS: rf"{_WHO} reads (?P<what>.+)",
    PointKind.CRASHES: rf"{_WHO} crashes",
    PointKind.RESTARTS: rf"{_WHO} restarts",
    PointKind.PAUSES: rf"{_WHO} pauses",
    PointKind.RESUMES: rf"{_WHO} resumes",
    PointKind.STARTS: rf"{_WHO} starts",
    PointKind.ENDS: rf"{_WHO} ends",
    PointKind.DIES: rf"{_WHO} dies",
    PointKind.AT: r"at (?P<time>.+)",
    PointKind.LATER: r"after (?P<time>.+)",
}
_COMPILED: Final = {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}
_NUMBER: Final = re.compile(r"^(?P<words>.*?)(?: #(?P<number>[1-9]\d*))?$")

_WHATS: Final = {
    PointKind.SENDS_REPLY: "REQUEST",
    PointKind.SENDS: "REQUEST",
    PointKind.RECEIVES_REPLY: "REQUEST",
    PointKind.RECEIVES: "REQUEST",
    PointKind.GETS: "ERROR",
    PointKind.ANSWERS: "ERROR",
    PointKind.DECIDES: "STATE",
    PointKind.MARKS: "RESULT",
    PointKind.ENDS_CALL: "CALL",
}
_VOCABULARY: Final = tuple(
    sorted(
        {word for kind in PointKind for word in re.findall(r"[a-z]+", kind.value)}.union(*_BLANKS.values())
    )
)


def point(text: str) -> Point:
    """The point that these words name. BadWords with what is possible when they name none."""
    match = _NUMBER.match(text.strip())
    assert match is not None, "the pattern takes any text"
    words, number = match["words"], int(match["number"] or 1)
    is_before = words.startswith("before ")
    words = words.removeprefix("before ")
    for kind, pattern in _COMPILED.items():
        found = pattern.fullmatch(words)
        if found is not None:
            made = _made(kind, found.groupdict(""), is_before=is_before, number=number)
            _check(made, text)
            return made
    raise BadWords(
        f"{quoted(text)} is no protocol point{phrase_suggestion(text, _VOCABULARY, point)}",
        possible=[kind.value for kind in PointKind],
    )


def _made(kind: PointKind, blanks: dict[str, str], *, is_before: bool, number: int) -> Point:
    time = blanks.get("time", "")
    return Point(
        kind=kind,
        who=blanks.get("who", ""),
        what=blanks.get("what", ""),
        whom=blanks.get("whom", ""),
        is_before=is_before,
        number=number,
        time_ms=milliseconds(time) if time else 0,
    )


def _check(made: Point, text: str) -> None:
    """Every blank holds one of the words that it may hold."""
    blank = _WHATS.get(made.kind)
    if blank is not None:
        _one_of(made.what, blank, text)
    if made.kind is PointKind.ENDS_CALL:
        _one_of(made.whom, "OUTCOME", text)
    if made.is_before and made.kind not in _APPENDS:
        raise BadWords(
            f"{quoted(text)}: only an append has a before; whatever waits for a message acts before it "
            "is taken, and for anything else right after it",
            possible=[kind.value for kind in PointKind if kind in _APPENDS],
        )


def _one_of(word: str, blank: str, text: str) -> None:
    possible = _BLANKS[blank]
    if word not in possible:
        raise BadWords(
            f"{quoted(text)}: {quoted(word)} is no {blank}{suggestion(word, possible)}", possible=possible
        )
