"""The table of phrases: the moments of the protocol, what a fault does there, and the fault itself.

Rule: a phrase is written once, here. Parser, writer, suggestions, validation and documentation follow from it
(how: `grammar.py`). The simulator refuses what it cannot play in its `scenarios/validation.py`, a real broker
in `broker/faults.py`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import attrs

from fencepost.faults.grammar import (
    NUMBER_MAX,
    BadPhrase,
    Blank,
    Grammar,
    Phrase,
    count,
    duration,
    jump,
    quoted,
    time_text,
    whole_number,
)
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import APIS
from fencepost.protocol.terms import INT32_MAX, INT64_MAX, TopicPartition, TransactionState

LASTS_MS: Final = 300
"""How long a fault without `until` lasts in the simulator; in a real broker, it lasts until it is ended."""

BROKER: Final = "broker"
"""The only node."""

ANYONE: Final = "*"

# The first alternative that fits wins, so the bare name, which fits everything, is last.
_SOMEBODY: Final = r"(?:node \d+|coordinator of [^ #]+|leader of [^ #]+|[^ #]+)"


# Wider than what is valid, so that the error names the limits.
_NUMBER: Final = r"-?\d+(?:\.\d+)?"


class NoPartition(BadPhrase):
    """A text in the place of a partition; only the cluster knows which partitions are possible."""


def partition_named(text: str) -> TopicPartition:
    """The partition that is written "topic-0"."""
    topic, _, number = text.rpartition("-")
    is_number = number.isascii() and number.isdecimal() and len(number) <= len(str(INT32_MAX))
    if not topic or not is_number or int(number) > INT32_MAX:
        raise NoPartition(
            f"{quoted(text)} is not a partition: a topic, a dash and a number from 0 to {INT32_MAX}",
            possible=["t-0"],
        )
    partition = TopicPartition(topic, int(number))
    if str(partition) != text:  # faults compare names: "t-00" would never be reached
        raise NoPartition(f"{quoted(text)} is not a partition; did you mean {quoted(str(partition))}?")
    return partition


def _signed(count_ms: int) -> str:
    return f"{'+' if count_ms >= 0 else ''}{time_text(count_ms)}"


def _offset(text: str) -> int:
    return whole_number(text, least=0, most=INT64_MAX)


def _true(_: str) -> bool:
    return True


# "PREPARE" is either decision and "COMPLETE" either end, for faults that count transactions of any outcome.
_STATES: Final = (*(state.name for state in TransactionState), "PREPARE", "COMPLETE")

BLANKS: Final = {
    "WHO": Blank(
        "a process, a node, or a node by what it leads: p, node 1, coordinator of ID, leader of PARTITION; "
        "`broker` is the only node, and `*` matches any of them. A real broker knows processes by their "
        "client ids",
        pattern=_SOMEBODY,
    ),
    "NODE": Blank(
        "a node: node 1, coordinator of ID, leader of PARTITION; `broker` is the only node", pattern=_SOMEBODY
    ),
    "PROCESS": Blank("a producer, a consumer or a processor, by its name", pattern=_SOMEBODY),
    "PARTITION": Blank("a partition of a topic: t-0"),
    "PARTITION or coordinator of ID": Blank(
        "a partition of a topic, or that of __transaction_state for an id",
        pattern="(?:coordinator of [^ #]+|[^ #]+)",
    ),
    "coordinator of ID": Blank(
        "the node that coordinates a transactional id", pattern="coordinator of [^ #]+"
    ),
    "ID": Blank("a transactional id"),
    "REQUEST": Blank("the name of a request", pattern=r"\w+", words=tuple(api.name for api in APIS)),
    "ERROR": Blank(
        "the name of an error code",
        pattern=r"\w+",
        words=tuple(code.name for code in ErrorCode if code is not NO_ERROR),
    ),
    "STATE": Blank(
        "a state in the transaction log (PREPARE and COMPLETE match either result)",
        pattern=r"\w+",
        words=_STATES,
    ),
    "RESULT": Blank("what a marker says", pattern=r"\w+", words=("COMMIT", "ABORT")),
    "CALL": Blank("a call of a producer", pattern=r"\w+", words=("init", "commit", "abort")),
    "OUTCOME": Blank(
        "how a call ended", pattern=r"\w+", words=("ok", "aborted", "fenced", "failed", "unknown")
    ),
    "VALUE": Blank("the value of a record", pattern=".+?"),
    "TIME": Blank("300 ms, 3 s or 2 min", pattern=".+?", read=duration, write=time_text),
    "JUMP": Blank("a time with its sign: +3 s, -20 ms", pattern="[+-].+", read=jump, write=_signed),
    "N": Blank(f"a whole number from 1 to {NUMBER_MAX}", pattern=_NUMBER, read=count),
    "before": Blank(
        "just before the event instead of just after it",
        pattern="before",
        read=_true,
        write=lambda _: "before",
    ),
}


# --- moments of the protocol --------------------------------------------------------------------------------


def _counted(template: str, meaning: str) -> Phrase:
    return Phrase(template + " [#{number:N}]", meaning)


# The order matters: the first phrase that matches is taken, so a reply stands before the request whose words
# it begins with.
class PointKind(Enum):
    """What can happen."""

    SENDS_REPLY = _counted("{who:WHO} sends {what:REQUEST} reply [to {whom:WHO}]", "a reply leaves")
    SENDS = _counted("{who:WHO} sends {what:REQUEST} [to {whom:WHO}]", "a request leaves")
    RECEIVES_REPLY = _counted(
        "{who:WHO} receives {what:REQUEST} reply [from {whom:WHO}]",
        "a reply has arrived and has not been processed yet",
    )
    RECEIVES = _counted(
        "{who:WHO} receives {what:REQUEST} [from {whom:WHO}]",
        "a request has arrived and has not been processed yet",
    )
    GETS = _counted("{who:WHO} gets {what:ERROR} [from {whom:WHO}]", "a reply with this error arrives")
    ANSWERS = _counted(
        "{who:WHO} answers {what:ERROR} [to {whom:WHO}]",
        "a node refuses a request, even if its caller is no longer waiting",
    )
    DECIDES = _counted(
        "[{is_before:before}] {who:coordinator of ID} appends {what:STATE}",
        "a state of a transaction is written to the transaction log",
    )
    MARKS = _counted(
        "[{is_before:before}] {who:PARTITION} appends {what:RESULT} marker [for {whom:ID}]",
        "a marker is written",
    )
    STORES = _counted(
        "[{is_before:before}] {who:PARTITION} appends data [for {whom:ID}]", "a batch of records is written"
    )
    ENDS_CALL = _counted("{what:CALL} of {who:WHO} is {whom:OUTCOME}", "a call of a producer returns")
    READS = _counted("{who:WHO} reads {what:VALUE}", "a consumer gets a value")
    CRASHES = _counted("{who:WHO} crashes", "a node stops without any cleanup")
    RESTARTS = _counted("{who:WHO} restarts", "a node runs again after a crash")
    PAUSES = _counted("{who:WHO} pauses", "a node or a process is suspended")
    RESUMES = _counted("{who:WHO} resumes", "a node or a process continues")
    STARTS = _counted("{who:WHO} starts", "a process begins")
    ENDS = _counted("{who:WHO} ends", "a process has finished its script")
    DIES = _counted("{who:WHO} dies", "a process is killed")
    AT = Phrase("at {time_ms:TIME}", "a time since the start of the run")
    LATER = Phrase("after {time_ms:TIME}", "a time since the fault struck; only for `until`")


_TIMED: Final = frozenset({PointKind.AT, PointKind.LATER})


@attrs.frozen(kw_only=True)
class Point:
    """One moment: the `number`-th time that `who` does `what`, with, for or of `whom`. `time_ms` belongs to
    the two kinds that are times.
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

    def means(self, what: str) -> bool:
        """Whether the point waits for `what`: "PREPARE" waits for PREPARE_COMMIT and PREPARE_ABORT."""
        # Only states have families. An error or a request is always meant by its whole name.
        is_family = self.kind is PointKind.DECIDES and what.startswith(f"{self.what}_")
        return is_family or self.what in ("", what)

    def __str__(self) -> str:
        return POINTS.write(self)


POINTS: Final = Grammar("a protocol point", PointKind, Point, BLANKS)


# --- what a producer does -----------------------------------------------------------------------------------


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
    FLUSH = Phrase("flush", "waits until every record has been acknowledged or has failed")
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


LINES: Final = Grammar(
    "a line of a script",
    Verb,
    ScriptLine,
    BLANKS
    | {
        "TOPIC-N": Blank("a partition of a topic: t-0", read=partition_named),
        "TEXT": Blank("the value of the record", pattern=r"\S.*"),
        "GROUP": Blank("a consumer group"),
        "OFFSET": Blank("an offset", pattern=_NUMBER, read=_offset),
        "POINT": Blank("a protocol point", pattern=".+", read=POINTS.read),
    },
)


# --- what a fault does --------------------------------------------------------------------------------------


class ActionKind(Enum):
    """What a fault can do."""

    HOLD = Phrase("hold", "the message that `when` names and all later ones on its connection wait")
    DELAY = Phrase(
        "delay", "like `hold`, but the sender gives up on the request and retries it on a new connection"
    )
    LATE = Phrase(
        "delay {amount:TIME}",
        "the message and all later ones on its connection wait until this time has passed",
    )
    DROP = Phrase(
        "drop", "the connection breaks; the message that `when` names and all others on it are lost"
    )
    CLOSE = Phrase(
        "close the connection",
        "the message that `when` names arrives, but nothing after it; the connection is closed",
    )
    TWICE = Phrase("deliver twice", "the request arrives twice; its sender gets only the first reply")
    ANSWER = Phrase("answer {what:ERROR}", "the request is not carried out, and gets this error")
    CRASH = Phrase("crash {who:NODE}", "the node stops at once; what it has written survives")
    CUT_POWER = Phrase("cut power of {who:NODE}", "the node stops at once; unsynced writes may be lost")
    KILL = Phrase(
        "kill {who:PROCESS}",
        "the process dies; when the fault ends, another one takes its place, unless it is a producer",
    )
    PAUSE = Phrase("pause {who:WHO}", "a node or a process is suspended, without noticing it")
    START = Phrase("start {who:PROCESS}", 'a process with starts = "on request" begins')
    MOVE = Phrase(
        "move {who:PARTITION or coordinator of ID} to {whom:NODE}", "the partition gets another leader"
    )
    PARTITION = Phrase(
        "partition {who:WHO} from {whom:WHO}", "no message passes between the two, in either direction"
    )
    BLOCK = Phrase("block {who:WHO} to {whom:WHO}", "messages from the first to the second wait")
    ISOLATE = Phrase("isolate {who:WHO}", "no message reaches it or leaves it")
    CLOCK = Phrase("clock of {who:WHO} {amount:JUMP}", "its clock jumps")
    SLOW_DISK = Phrase("slow disk of {who:NODE} {amount:N} times", "each sync takes N times as long")
    SLOW = Phrase("slow {who:WHO} {amount:N} times", "each message from it takes N times as long")
    FAIL_APPENDS = Phrase("fail appends of {who:PARTITION}", "the disk refuses to append to this log")
    FAIL_SYNCS = Phrase("fail syncs of {who:PARTITION}", "the disk refuses to sync this log")
    FLIP_BIT = Phrase(
        "flip a bit of {who:PARTITION} [at offset {amount:N}]",
        "a synced bit changes: in the records at this offset, or in any file of the log",
    )
    LOSE_SECTOR = Phrase(
        "lose a sector of {who:PARTITION}",
        "a sector of a file becomes zeros, or a copy of the bytes before it",
    )
    MISDIRECT = Phrase("misdirect a read of {who:PARTITION}", "one read returns bytes from another place")
    LOSE_FILE = Phrase("lose a file of {who:PARTITION}", "a file vanishes")
    LOSE_DIRECTORY = Phrase("lose the directory of {who:PARTITION}", "the log vanishes with all its files")


DAMAGES: Final = frozenset(
    {
        ActionKind.FLIP_BIT,
        ActionKind.LOSE_SECTOR,
        ActionKind.MISDIRECT,
        ActionKind.LOSE_FILE,
        ActionKind.LOSE_DIRECTORY,
    }
)
"""What changes or takes away bytes that a disk had promised to keep."""

# A lost message stays lost, and a clock that jumped has jumped: `until` would have nothing to undo.
ENDS_ITSELF: Final = DAMAGES | {
    ActionKind.LATE,
    ActionKind.DROP,
    ActionKind.CLOSE,
    ActionKind.TWICE,
    ActionKind.ANSWER,
    ActionKind.START,
    ActionKind.MOVE,
    ActionKind.CLOCK,
}
"""What is over as soon as it is done; anything else lasts until it is undone."""


@attrs.frozen(kw_only=True)
class Action:
    """One thing that is done to `who`; `whom` is the other side of it, `what` an error, `amount` a factor, an
    offset, or milliseconds.
    """

    kind: ActionKind
    who: str = ""
    whom: str = ""
    what: str = ""
    amount: int = 0

    def __str__(self) -> str:
        return ACTIONS.write(self)


ACTIONS: Final = Grammar("an action of a fault", ActionKind, Action, BLANKS)


# --- the fault ----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Fault:
    """What goes wrong: at the point `when` (several make a run each), `times` times, until `until`."""

    when: tuple[Point, ...]
    do: Action
    until: Point | None = None
    times: int = 1


# --- a fault in one line ------------------------------------------------------------------------------------


class FaultPhrase(Enum):
    """A fault as one text, for the command line."""

    FAULT = Phrase(
        "when {when:POINT} do {do:ACTION} [until {until:POINT}] "
        "[every {every:N} times] [at most {times:N} times]",
        "one fault; `every 3 times` strikes every third time, `at most` limits how often",
    )


@attrs.frozen(kw_only=True)
class FaultLine:
    """A fault that was written in one line. `every` 0 strikes once, at the `when.number`-th such moment.
    `times` limits how often `every` strikes; 0: without end.
    """

    phrase: FaultPhrase = FaultPhrase.FAULT
    when: Point
    do: Action
    until: Point | None = None
    every: int = 0
    times: int = 0

    def __str__(self) -> str:
        return FAULTS.write(self)

    def strikes_at(self, count: int) -> bool:
        """Whether it strikes at the `count`-th moment of its point."""
        if not self.every:
            return count == self.when.number
        return count % self.every == 0 and (not self.times or count <= self.every * self.times)


FAULTS: Final = Grammar(
    "a fault",
    FaultPhrase,
    FaultLine,
    BLANKS
    | {
        "POINT": Blank("a protocol point", pattern=".+?", read=POINTS.read),
        "ACTION": Blank("what the fault does", pattern=".+?", read=ACTIONS.read),
    },
)

FAULTS_HELP: Final = (
    'for example "when broker sends EndTxn reply to * #2 do drop"; '
    "`fencepost help faults` lists the points and actions"
)
"""The next step after an error in a fault of a real broker."""
