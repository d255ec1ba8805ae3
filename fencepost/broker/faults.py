"""Faults of a real broker: which phrases of scenarios it can perform, and when a fault strikes.

Rule: values in, values out. The plan gets each point that the broker reaches, counts it, and names the
faults that strike there; `fault_injector.py` performs them. Without faults none of this code runs.
"""

# Theory of operation
#
#     server --- reach(point) ---> FaultPlan ---> faults that strike now, faults whose `until` has come
#
# A point of a real broker is what its server sees: requests as they arrive, replies as they leave, appends
# before and after they are written. What happens inside a client is not among them, nor are the messages that
# the only node sends to itself. `playable` refuses a fault that names anything else, and suggests the
# closest point.
#
# The plan also remembers which points were reached. A fault that never struck is an error in the test that
# added it, usually a wrong name. `missing` shows similar points that were reached.

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from typing import Final, cast

import attrs

from fencepost.broker.contract import Append
from fencepost.faults.grammar import BadPhrase, quoted
from fencepost.faults.phrases import (
    ACTIONS,
    ANYONE,
    BROKER,
    DAMAGES,
    ENDS_ITSELF,
    FAULTS,
    POINTS,
    Action,
    ActionKind,
    FaultLine,
    Point,
    PointKind,
    partition_named,
)
from fencepost.protocol.batches import read_marker
from fencepost.protocol.errors import NO_ERROR, ErrorCode, FencepostError
from fencepost.protocol.messages import ReplyBody
from fencepost.protocol.suggestions import suggestion
from fencepost.protocol.terms import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.protocol.transaction_log import read_transactions

POINTS_MAX: Final = 1_000  # different ones that are remembered; beyond it, only the known ones are counted
RESEMBLING_MAX: Final = 5
LIKENESS_MIN: Final = 0.6  # of two points as texts, from 0 to 1; points of the same kind are similar
# Each point is compared with every fault, and each text with every phrase: requests must not make that slow.
FAULTS_MAX: Final = 1_000
COMPARED_TOPICS_MAX: Final = 1_000  # with a misspelt one; the broker answers nobody meanwhile
FAULT_LENGTH_MAX: Final = 2_000  # a fault has at most six names, of 249 characters
NOT_YET: Final = ": the application may not be connected to this broker, or may not have done this yet"


class FaultNeverStruck(FencepostError):
    """A fault did not strike; the text says how many times its point was reached, and lists similar ones."""


class NoSuchFault(FencepostError):
    """No fault has this number; it may have been removed."""


UNNAMED: Final = "unnamed"
"""A client without a client id."""


# --- what a broker can play ---------------------------------------------------------------------------------

ARRIVES: Final = frozenset({PointKind.SENDS, PointKind.RECEIVES})
LEAVES: Final = frozenset({PointKind.SENDS_REPLY, PointKind.ANSWERS})
LOGIN: Final = frozenset({"SaslHandshake", "SaslAuthenticate"})

NEEDS: Final = {
    ActionKind.HOLD: ("a message", ARRIVES | LEAVES),
    ActionKind.LATE: ("a message", ARRIVES | LEAVES),
    ActionKind.DROP: ("a message", ARRIVES | LEAVES),
    ActionKind.CLOSE: ("a message", ARRIVES | LEAVES),
    ActionKind.DELAY: ("a request", ARRIVES),
    ActionKind.TWICE: ("a request", ARRIVES),
    ActionKind.ANSWER: ("a request", ARRIVES),
}
"""What an action strikes, and the points that have it. Any other action strikes at every point."""

_NETWORK: Final = "a broker does not control the network; put a fencepost.Proxy in front of it"
_OWN: Final = "clients of a real broker are your own processes; start and kill them yourself"
_DAMAGE: Final = "stop the broker and damage the files of its data directory"
NOT_PLAYED: Final = {
    ActionKind.KILL: _OWN,
    ActionKind.START: _OWN,
    ActionKind.MOVE: "a real broker is the only node",
    ActionKind.PARTITION: _NETWORK,
    ActionKind.BLOCK: _NETWORK,
    ActionKind.ISOLATE: _NETWORK,
    ActionKind.SLOW: _NETWORK,
    **{kind: _DAMAGE for kind in ActionKind if kind in DAMAGES},
}
"""Actions that only the simulator can play, and why."""

_INSIDE: Final = (
    "a broker sees requests and replies, but not what happens inside a client; name a request or a reply"
)
_ITSELF: Final = "the broker does not see its own crash, restart or pause; name a point of the protocol"
NOT_SEEN: Final = {
    PointKind.RECEIVES_REPLY: "a broker does not see what its clients receive; name the reply that it sends",
    PointKind.GETS: "a broker does not see what its clients receive; name the error that it answers",
    PointKind.ENDS_CALL: _INSIDE,
    PointKind.READS: _INSIDE,
    PointKind.STARTS: _INSIDE,
    PointKind.ENDS: _INSIDE,
    PointKind.DIES: _INSIDE,
    PointKind.CRASHES: _ITSELF,
    PointKind.RESTARTS: _ITSELF,
    PointKind.PAUSES: _ITSELF,
    PointKind.RESUMES: _ITSELF,
}
"""Points that only the simulator reaches, and what to name instead."""


BROKER_POINTS: Final = attrs.evolve(POINTS, shown=tuple(kind for kind in PointKind if kind not in NOT_SEEN))
BROKER_ACTIONS: Final = attrs.evolve(
    ACTIONS, shown=tuple(kind for kind in ActionKind if kind not in NOT_PLAYED)
)
BROKER_FAULTS: Final = attrs.evolve(
    FAULTS,
    blanks={
        **FAULTS.blanks,
        "POINT": attrs.evolve(FAULTS.blanks["POINT"], read=BROKER_POINTS.read),
        "ACTION": attrs.evolve(FAULTS.blanks["ACTION"], read=BROKER_ACTIONS.read),
    },
)
"""The grammar of scenarios. It also reads what only the simulator plays, so that `playable` can say why a
broker cannot; errors list only what a broker can play.
"""


@attrs.frozen(kw_only=True)
class Abilities:
    """What differs between brokers: the node's number, whether it syncs logs, and whether that takes time."""

    node_id: int = 1
    syncs: bool = False
    has_disk: bool = True


def playable(text: str, abilities: Abilities) -> FaultLine:
    """The fault of this text. Raises BadPhrase if it is not one, or if this broker cannot play it."""
    if len(text) > FAULT_LENGTH_MAX:
        raise BadPhrase(f"a fault of {len(text)} characters; the limit is {FAULT_LENGTH_MAX}")
    fault = BROKER_FAULTS.read(text)
    when, do, until = fault.when, fault.do, fault.until
    if (because := NOT_PLAYED.get(do.kind)) is not None:
        raise BadPhrase(f"a broker cannot do {quoted(str(do))}: {because}")
    _check_point(when, abilities)
    if when.kind is PointKind.LATER:
        raise BadPhrase(f"{quoted(str(when))} cannot begin a fault", possible=["at TIME"])
    if when.kind is PointKind.AT and fault.every:
        raise BadPhrase(f"{quoted(str(when))} comes once; leave out `every {fault.every} times`")
    if fault.times and not fault.every:
        raise BadPhrase(
            f"{quoted(text)}: `at most` limits `every`", possible=["every N times at most N times"]
        )
    needed, points = NEEDS.get(do.kind, ("", frozenset({when.kind})))
    if when.kind not in points:
        shown = [kind.value.shown for kind in PointKind if kind in points]
        raise BadPhrase(
            f"{quoted(str(do))} needs {needed}, and there is none at {quoted(str(when))}", possible=shown
        )
    _check_action(do, abilities)
    if until is not None:
        if do.kind in ENDS_ITSELF:
            raise BadPhrase(f"{quoted(str(do))} ends by itself; leave out `until {until}`")
        if until.kind is PointKind.AT:
            raise BadPhrase(f"{quoted(str(until))} cannot end a fault", possible=["after TIME"])
        _check_point(until, abilities)
        _check_crash_end(do, until)
    return fault


def _check_point(point: Point, abilities: Abilities) -> None:
    if point.what in LOGIN:
        raise BadPhrase(f"{quoted(str(point))}: faults do not strike the requests of a login")
    if (because := NOT_SEEN.get(point.kind)) is not None:
        raise BadPhrase(f"a broker cannot see {quoted(str(point))}: {because}", possible=_instead(point))
    if point.kind in LEAVES or point.kind is PointKind.RECEIVES:
        _check_broker(point, point.who, abilities)
    elif point.kind is PointKind.SENDS:
        _check_broker(point, point.whom or BROKER, abilities)
        if point.who != ANYONE and _names_broker(point.who):
            because = "a broker sends requests only to itself"
            raise BadPhrase(f"{quoted(str(point))}: {because}", possible=[f"broker sends {point.what} reply"])
    elif point.kind in (PointKind.MARKS, PointKind.STORES) and point.who != ANYONE:
        partition_named(point.who)


def _instead(point: Point) -> list[str]:
    """The point of a broker that comes closest to one of a client."""
    if point.kind is PointKind.RECEIVES_REPLY:
        return [f"broker sends {point.what} reply to {point.who}"]
    return [f"broker answers {point.what} to {point.who}"] if point.kind is PointKind.GETS else []


def _names_broker(name: str) -> bool:
    return name in (BROKER, ANYONE) or name.startswith(("node ", "coordinator of ", "leader of "))


def _check_broker(phrase: Point | Action, name: str, abilities: Abilities) -> None:
    """Refuse any name here but that of this broker."""
    node = f"node {abilities.node_id}"
    if not _names_broker(name):
        because = f"{quoted(name)} is not this broker{suggestion(name, [BROKER, node])}"
        raise BadPhrase(f"{quoted(str(phrase))}: {because}", possible=[BROKER, node])
    if name.startswith("node ") and name != node:
        because = f"there is no {quoted(name)}; this broker is {node}"
        raise BadPhrase(f"{quoted(str(phrase))}: {because}", possible=[BROKER, node])


_OF_BROKER: Final = frozenset(
    {ActionKind.CRASH, ActionKind.CUT_POWER, ActionKind.PAUSE, ActionKind.CLOCK, ActionKind.SLOW_DISK}
)


def _check_action(do: Action, abilities: Abilities) -> None:
    if do.kind in _OF_BROKER:
        _check_broker(do, do.who, abilities)
    if do.kind in (ActionKind.FAIL_APPENDS, ActionKind.FAIL_SYNCS):
        partition_named(do.who)
    if do.kind in (ActionKind.SLOW_DISK, ActionKind.FAIL_SYNCS) and not abilities.syncs:
        raise BadPhrase(
            f'{quoted(str(do))}: this broker never syncs; start it with `--sync commit` or sync="commit"'
        )
    if do.kind is ActionKind.SLOW_DISK and not abilities.has_disk:
        because = "the data is in memory, where a sync takes no time; give the broker a directory"
        raise BadPhrase(f"{quoted(str(do))}: {because}")


def _check_crash_end(do: Action, until: Point) -> None:
    is_crash = do.kind in (ActionKind.CRASH, ActionKind.CUT_POWER)
    if is_crash and until.kind is not PointKind.LATER:
        because = "a broker that is down reaches no point"
        raise BadPhrase(f"{quoted(f'{do} until {until}')}: {because}", possible=["after TIME"])


# --- points -------------------------------------------------------------------------------------------------


def append_points(append: Append, owners: dict[int, str]) -> Iterator[tuple[PointKind, str, str, str]]:
    """What an append means as points: their kind, who, what and whom. `owners` are the transactional ids by
    producer id; the records of the transaction log add to them.
    """
    where = append.partition
    if where.topic == TRANSACTION_STATE_TOPIC:
        for name, record in read_transactions(append.batch, append.header):
            if record is not None:
                owners[record.producer_id] = name
                yield PointKind.DECIDES, f"coordinator of {name}", record.state.name, ""
        return
    owner = owners.get(append.header.producer_id, "")
    if append.header.is_control:
        yield PointKind.MARKS, str(where), read_marker(append.batch).result.name, owner
    elif append.header.is_transactional or where.topic != CONSUMER_OFFSETS_TOPIC:
        yield PointKind.STORES, str(where), "", owner


def every_error(error: ErrorCode, body: ReplyBody | None) -> list[ErrorCode]:
    """All errors in a reply, of the whole reply or of a part of it, once each."""
    return list(dict.fromkeys(code for code in (error, *_errors_of(body)) if code is not NO_ERROR))


def _errors_of(body: object) -> Iterator[ErrorCode]:
    """Every error in the body of a reply, at any depth."""
    if isinstance(body, ErrorCode):
        yield body
    elif isinstance(body, tuple):
        for part in cast("tuple[object, ...]", body):
            yield from _errors_of(part)
    else:
        kind: type[object] = type(body)
        if attrs.has(kind):
            for field in attrs.fields(kind):
                yield from _errors_of(getattr(body, field.name))


def _means(named: str, actual: str) -> bool:
    """Whether a name in a fault means this one. "coordinator of *" means every coordinator."""
    if named in (ANYONE, "", actual):
        return True
    return named.endswith(f" of {ANYONE}") and actual.startswith(named[: -len(ANYONE)])


def _matches(point: Point, reached: Point) -> bool:
    if point.kind is not reached.kind or point.is_before is not reached.is_before:
        return False
    who, whom = point.who, point.whom
    # There is one broker: whatever names it was checked when the fault was added.
    if point.kind in LEAVES or point.kind is PointKind.RECEIVES:
        who = BROKER
    elif point.kind is PointKind.SENDS:
        whom = BROKER
    return point.means(reached.what) and _means(who, reached.who) and _means(whom, reached.whom)


def awaited(when: Point) -> str:
    """The names in a point that only the clients of the broker decide: a typing error in one of them is no
    error, and the fault waits forever. Empty for a time.
    """
    names: list[str] = []
    if when.kind in LEAVES or when.kind in ARRIVES:
        client = when.who if when.kind is PointKind.SENDS else when.whom
        names.append("clients without a client id" if client == UNNAMED else _named("client id", client))
    elif when.kind is PointKind.DECIDES:
        names.append(_named("transactional id", when.who.removeprefix("coordinator of ")))
    elif when.kind in (PointKind.MARKS, PointKind.STORES):
        names.append("any partition" if when.who == ANYONE else f"partition {when.who}")
        names.append(_named("transactional id", when.whom))
    return ", ".join(names)


def _named(noun: str, name: str) -> str:
    if name in ("", ANYONE):
        return "any client" if noun == "client id" else f"any {noun}"
    return f"{noun} {quoted(name)}"


def partitions_of(line: FaultLine) -> list[TopicPartition]:
    """The partitions without which a fault never strikes: that of its point, and that of its action."""
    names = [line.when.who] if line.when.kind in (PointKind.MARKS, PointKind.STORES) else []
    if line.do.kind in (ActionKind.FAIL_APPENDS, ActionKind.FAIL_SYNCS):
        names.append(line.do.who)
    return sorted({partition_named(name) for name in names if name != ANYONE})


def instead_of(absent: TopicPartition, partition_counts: Mapping[str, int]) -> str:
    """What a partition that does not exist was probably meant to be, as the end of a sentence, or empty."""
    if count := partition_counts.get(absent.topic):
        return f"; topic {absent.topic} has {count} partition{'s' if count > 1 else ''}"
    if len(partition_counts) > COMPARED_TOPICS_MAX:
        return ""
    number = absent.partition
    names = [f"{topic}-{number}" for topic, count in partition_counts.items() if number < count]
    return suggestion(str(absent), names)


# --- the plan -----------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class PlannedFault:
    """A fault of this broker: how many times its point was reached, and how many times it struck. `lasting`
    is how many of its effects are not undone yet, and `waiting` how many of its messages are queued after a
    held one.
    """

    number: int
    line: FaultLine
    reached: int = 0
    struck: int = 0
    lasting: int = 0
    waiting: int = 0
    is_removed: bool = False

    @property
    def may_strike(self) -> bool:
        line = self.line
        last = (line.every * line.times or math.inf) if line.every else line.when.number
        return not self.is_removed and self.reached < last

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do for it."""
        return not (self.may_strike or self.lasting or self.waiting)


@attrs.define(eq=False)
class Waiting:
    """What is done at the next occurrence of a point: the end of an effect."""

    point: Point
    do: Callable[[], None]
    seen: int = 0


@attrs.define(eq=False)
class FaultPlan:
    """The faults of one broker by number, the ends that wait for a point, and what was reached so far."""

    faults: dict[int, PlannedFault] = attrs.Factory(dict[int, PlannedFault])
    ends: list[Waiting] = attrs.Factory(list[Waiting])
    watchers: list[Callable[[Point], None]] = attrs.Factory(list[Callable[[Point], None]])
    seen: Counter[Point] = attrs.Factory(Counter[Point])
    added: int = 0

    def add(self, line: FaultLine) -> PlannedFault:
        """Let a fault wait for its point from now on. Raises BadPhrase if there are too many."""
        if len(self.faults) >= FAULTS_MAX:
            raise BadPhrase(f"a broker has at most {FAULTS_MAX} faults; remove some")
        self.added += 1
        planned = self.faults[self.added] = PlannedFault(self.added, line)
        return planned

    @property
    def is_over(self) -> bool:
        """Whether no fault and no watcher needs any further point."""
        return not self.watchers and all(planned.is_over for planned in self.faults.values())

    def named(self, number: int) -> PlannedFault:
        """The fault of this number. Raises NoSuchFault."""
        planned = self.faults.get(number)
        if planned is None:
            raise NoSuchFault(f"there is no fault {number}; it may have been removed")
        return planned

    def reach(self, point: Point) -> list[PlannedFault]:
        """The broker has reached this point: end what waits for it, and return the faults that strike."""
        if point in self.seen or len(self.seen) < POINTS_MAX:
            self.seen[point] += 1
        for hear in self.watchers:
            hear(point)
        for end in [end for end in self.ends if _matches(end.point, point)]:
            end.seen += 1
            if end.seen == end.point.number:
                self.ends.remove(end)
                end.do()
        striking: list[PlannedFault] = []
        for planned in self.faults.values():
            if planned.may_strike and _matches(planned.line.when, point):
                planned.reached += 1
                if planned.line.strikes_at(planned.reached):
                    striking.append(planned)
        return striking

    def missing(self, planned: PlannedFault) -> str:
        """Why a fault has not struck, in one sentence; empty if it has."""
        if planned.struck:
            return ""
        when, times = planned.line.when, planned.reached
        said = f"the fault {quoted(str(planned.line))} never struck: "
        if when.is_time and not times:
            return f"{said}its time has not come yet"
        said += f"its point was reached {_counted(times)}"
        if times and (planned.line.every or times < when.number):
            nth = f"once every {planned.line.every} times" if planned.line.every else f"at #{when.number}"
            return f"{said}, and it strikes {nth}"
        if planned.waiting:
            return f"{said}, and the message that it strikes waits for a held one"
        if times:
            return f"{said}, and there was nothing to strike"
        other_id = self._other_id(when)
        said += other_id
        shown = [
            f"{quoted(str(point))} ({_counted(self.seen[point])}"
            f"{', before the fault was added' if _matches(when, point) else ''})"
            for point in self._resembling(when)
        ]
        if shown:
            return f"{said}. Similar points that were reached: {'; '.join(shown)}"
        none = "No similar point was reached" if self.seen else "No point was reached after it was added"
        return f"{said}. {none}{'' if other_id else NOT_YET}"

    def _other_id(self, when: Point) -> str:
        """What to name instead, if the point names a client by its transactional id where its client id
        belongs, or the reverse.
        """
        if when.kind in ARRIVES | LEAVES:
            client = when.who if when.kind is PointKind.SENDS else when.whom
            is_client = any(
                client in (point.who, point.whom) for point in self.seen if point.kind in ARRIVES | LEAVES
            )
            if not is_client and any(point.who == f"coordinator of {client}" for point in self.seen):
                return f": {quoted(client)} is a transactional id; name the client id"
            return ""
        owner = when.who.removeprefix("coordinator of ") if when.kind is PointKind.DECIDES else when.whom
        is_owner = any(point.who == f"coordinator of {owner}" for point in self.seen)
        if not is_owner and any(point.who == owner and point.kind is PointKind.SENDS for point in self.seen):
            return f": {quoted(owner)} is a client id; name the transactional id"
        return ""

    def _resembling(self, wanted: Point) -> Iterable[Point]:
        text = str(attrs.evolve(wanted, number=1))

        def likeness(point: Point) -> float:
            same_kind = point.kind is wanted.kind
            return SequenceMatcher(None, text, str(point)).ratio() + same_kind

        similar = [point for point in self.seen if likeness(point) >= LIKENESS_MIN]
        return sorted(similar, key=likeness, reverse=True)[:RESEMBLING_MAX]


def _counted(times: int) -> str:
    return "once" if times == 1 else f"{times} times"
