"""What a fault does, as a phrase with a few blanks.

Rule: the same table reads it, writes it, and lists what is possible; whatever is done can be undone.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

import attrs

from fencepost.simulator.faults.points import SOMEBODY
from fencepost.simulator.scenarios.wording import BadWords, milliseconds, phrase_suggestion, quoted, time_text


class ActionKind(Enum):
    """What can be done; the values are how people write it."""

    HOLD = "hold"
    DELAY = "delay"
    DROP = "drop"
    CRASH = "crash WHO"
    CUT_POWER = "cut power of WHO"
    KILL = "kill WHO"
    PAUSE = "pause WHO"
    START = "start WHO"
    MOVE = "move PARTITION to node N"
    PARTITION = "partition WHO from WHO"
    BLOCK = "block WHO to WHO"
    ISOLATE = "isolate WHO"
    CLOCK = "clock of WHO TIME"
    SLOW_DISK = "slow disk of WHO N times"
    SLOW = "slow WHO N times"
    FAIL_APPENDS = "fail appends of PARTITION"
    FAIL_SYNCS = "fail syncs of PARTITION"


@attrs.frozen(kw_only=True)
class Action:
    """One thing that is done to `who`; `whom` is the other side of it, `amount` milliseconds of a clock's
    jump or the factor of a slowness.
    """

    kind: ActionKind
    who: str = ""
    whom: str = ""
    amount: int = 0

    def __str__(self) -> str:
        sign = "+" if self.amount >= 0 else ""
        return _PLAIN[self.kind].format(
            who=self.who, whom=self.whom, amount=self.amount, time=f"{sign}{time_text(self.amount)}"
        )


ENDS_ITSELF: Final = frozenset({ActionKind.DROP, ActionKind.START, ActionKind.MOVE, ActionKind.CLOCK})
"""What is over as soon as it is done; anything else lasts until it is undone."""

NEEDS_MESSAGE: Final = frozenset({ActionKind.HOLD, ActionKind.DELAY, ActionKind.DROP})

_PLAIN: Final = {
    ActionKind.HOLD: "hold",
    ActionKind.DELAY: "delay",
    ActionKind.DROP: "drop",
    ActionKind.CRASH: "crash {who}",
    ActionKind.CUT_POWER: "cut power of {who}",
    ActionKind.KILL: "kill {who}",
    ActionKind.PAUSE: "pause {who}",
    ActionKind.START: "start {who}",
    ActionKind.MOVE: "move {who} to {whom}",
    ActionKind.PARTITION: "partition {who} from {whom}",
    ActionKind.BLOCK: "block {who} to {whom}",
    ActionKind.ISOLATE: "isolate {who}",
    ActionKind.CLOCK: "clock of {who} {time}",
    ActionKind.SLOW_DISK: "slow disk of {who} {amount} times",
    ActionKind.SLOW: "slow {who} {amount} times",
    ActionKind.FAIL_APPENDS: "fail appends of {who}",
    ActionKind.FAIL_SYNCS: "fail syncs of {who}",
}
_BLANKS: Final = {
    "{whom}": rf"(?P<whom>{SOMEBODY})",
    "{who}": rf"(?P<who>{SOMEBODY})",
    "{amount}": r"(?P<amount>[1-9]\d*)",
    "{time}": r"(?P<time>[+-].+)",
}


def _pattern(plain: str) -> re.Pattern[str]:
    for blank, expression in _BLANKS.items():
        plain = plain.replace(blank, expression)
    return re.compile(plain)


_COMPILED: Final = {kind: _pattern(plain) for kind, plain in _PLAIN.items()}
_VOCABULARY: Final = tuple(sorted({word for kind in ActionKind for word in re.findall("[a-z]+", kind.value)}))


def action(text: str) -> Action:
    """The action that these words name. BadWords with what is possible when they name none."""
    for kind, pattern in _COMPILED.items():
        found = pattern.fullmatch(text.strip())
        if found is not None:
            blanks = found.groupdict("")
            time = blanks.get("time", "")
            return Action(
                kind=kind,
                who=blanks.get("who", ""),
                whom=blanks.get("whom", ""),
                amount=milliseconds(time) if time else int(blanks.get("amount", "0")),
            )
    raise BadWords(
        f"{quoted(text)} is nothing that a fault can do{phrase_suggestion(text, _VOCABULARY, action)}",
        possible=[kind.value for kind in ActionKind],
    )
