"""Checks a scenario as a whole: every name exists, and every script and fault is possible.

Rule: a single value is checked when it is read; what depends on other tables is checked here, for files and
for the builder alike. The blank in which a name stands says what it names (`faults/phrases.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Final

import attrs

from fencepost.client.producer_states import TRANSACTIONAL, ProducerInput, ProducerState
from fencepost.faults.grammar import BadPhrase, quoted
from fencepost.faults.phrases import (
    ANYONE,
    BROKER,
    ENDS_ITSELF,
    Action,
    ActionKind,
    Fault,
    Point,
    PointKind,
    ScriptLine,
    Verb,
)
from fencepost.protocol.suggestions import suggestion
from fencepost.protocol.terms import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TopicPartition,
    topic_name_problem,
)
from fencepost.simulator.fuzz import worlds
from fencepost.simulator.scenarios.model import (
    PARTS,
    RULE_NAMES,
    RUNS_MAX,
    ConsumerPart,
    Part,
    ProcessorPart,
    ProducerPart,
    Scenario,
    contradictory,
)

FINAL_READER: Final = "final reader"


class Inconsistent(BadPhrase):
    """Something in a scenario contradicts the rest; `place` is its table, `key` its key."""

    def __init__(self, place: str, key: str, because: str, possible: Iterable[str] = ()) -> None:
        super().__init__(because, possible=possible)
        self.place = place
        self.key = key


def check(scenario: Scenario) -> None:
    """Raise Inconsistent for the first contradiction."""
    for topic, _ in scenario.cluster.topics:
        if problem := topic_name_problem(topic):
            raise Inconsistent("[cluster]", "topics", f"{quoted(topic)} is not a topic: {problem}")
        if topic in INTERNAL_TOPICS:
            because = f"{quoted(topic)} is internal: every cluster has it, and clients write to other topics"
            raise Inconsistent("[cluster]", "topics", because)
    _check_names(scenario)
    _check_members(scenario)
    cast = _cast_of(scenario)
    for place, part in _places(scenario):
        if isinstance(part, ProducerPart):
            _check_script(scenario, cast, place, part)
        else:
            _check_reads(scenario, cast, place, part)
    for number, fault in enumerate(scenario.faults):
        _check_fault(cast, f"[[fault]] {number + 1}", fault)
    _check_runs(scenario)
    _check_starts(scenario, cast)
    _check_expectations(scenario, cast)


# --- names --------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class _Cast:
    """Everything in the world of a scenario that has a name."""

    nodes: int
    processes: tuple[str, ...]
    transactional_ids: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    final_reader: str


def _cast_of(scenario: Scenario) -> _Cast:
    if scenario.seeded is None:
        return _Cast(
            nodes=scenario.cluster.nodes,
            processes=tuple(part.name for part in scenario.parts),
            transactional_ids=scenario.transactional_ids,
            partitions=scenario.cluster.partitions,
            final_reader=FINAL_READER,
        )
    spec = worlds.spec_of(scenario.seeded)
    named = (role.transactional_id for role in spec.roles)
    return _Cast(
        nodes=spec.world.nodes,
        processes=tuple(role.name for role in spec.roles),
        transactional_ids=tuple(dict.fromkeys(name for name in named if name is not None)),
        partitions=spec.partitions,
        final_reader=spec.final.name,
    )


@attrs.frozen
class _Names:
    """Checks names under one key of one table."""

    cast: _Cast
    place: str
    key: str

    def wrong(self, because: str, possible: Iterable[str] = ()) -> Inconsistent:
        """The error for this key."""
        return Inconsistent(self.place, self.key, because, possible)

    def check(self, name: str, possible: Sequence[str], *, made_by: str = "") -> None:
        """Refuse a name that is not possible; `made_by` is the key that would make one if none is."""
        if name in possible:
            return
        because = f"there is no {quoted(name)}"
        if not possible:
            raise self.wrong(f"{because}; add a [[producer]] with {made_by} = {quoted(name)}")
        for kind, names in (
            ("transactional id", self.cast.transactional_ids),
            ("client", self.cast.processes),
        ):
            if name in names:
                raise self.wrong(f"{quoted(name)} is a {kind}, which is not possible here", possible)
        raise self.wrong(because + suggestion(name, possible), possible)

    def check_compared(self, where: TopicPartition) -> None:
        """Refuse a partition of which no values can be expected: an internal one holds none, and no client
        reads it.
        """
        self._check_of_topics(
            where,
            "only partitions of [cluster] topics are compared; write its records as points, as reaches = "
            f'["{CONSUMER_OFFSETS_TOPIC}-0 appends COMMIT marker"]',
        )

    def check_of_clients(self, where: TopicPartition) -> None:
        """Refuse a partition that clients of a scenario neither read nor write: an internal one does not hold
        the values of scripts.
        """
        self._check_of_topics(where, "clients read and write partitions of [cluster] topics only")

    def _check_of_topics(self, where: TopicPartition, because: str) -> None:
        if where.topic in INTERNAL_TOPICS:
            of_topics = map(str, self.cast.partitions)
            raise self.wrong(f"{quoted(str(where))} is internal, and {because}", of_topics)
        self._check_partition(str(where))

    def _check_partition(self, name: str, *internal: str) -> None:
        """Refuse a name that is neither a partition of this cluster nor one of these internal ones."""
        of_topics = [str(each) for each in self.cast.partitions]
        possible = [*of_topics, *internal]
        if name not in possible and not of_topics:
            because = f"there is no {quoted(name)}, and there are no topics"
            raise self.wrong(f"{because}; add one with [cluster] topics = {{ t = 2 }}")
        self.check(name, possible)

    def check_blanks(self, phrase: Point | Action) -> None:
        for field, blank in phrase.kind.value.blanks.items():
            name = getattr(phrase, field)
            if isinstance(name, str) and name:
                self._check_blank(blank, name, is_point=isinstance(phrase, Point))

    def _check_blank(self, blank: str, name: str, *, is_point: bool) -> None:
        cast = self.cast
        nodes = [f"node {number + 1}" for number in range(cast.nodes)]
        nodes += [BROKER] if len(nodes) == 1 else []
        role, _, subject = name.partition(" of ")  # "coordinator of app", "leader of t-0", or only a name
        if blank == "ID" or (subject and role == "coordinator"):
            self.check(subject or name, cast.transactional_ids, made_by="transactional_id")
        elif blank.startswith("PARTITION") or (subject and role == "leader"):
            self._check_partition(subject or name, f"{CONSUMER_OFFSETS_TOPIC}-0")
        elif blank == "NODE":
            self.check(name, nodes)
        elif blank == "PROCESS":
            self.check(name, cast.processes, made_by="name")
        elif blank == "WHO":
            self.check(name, [*cast.processes, *nodes, *([cast.final_reader, ANYONE] if is_point else [])])


# --- who takes part -----------------------------------------------------------------------------------------


def _places(scenario: Scenario) -> Iterator[tuple[str, Part]]:
    """Every part and the name of its table; tables are numbered by their kind."""
    for key, kind in PARTS.kinds.items():
        parts = [part for part in scenario.parts if isinstance(part, kind)]
        for number, part in enumerate(parts):
            yield f"[[{key}]] {number + 1}", part


def _check_names(scenario: Scenario) -> None:
    seen: set[str] = set()
    for place, part in _places(scenario):
        if set(part.name) & set(" #~") or part.name in ("node", BROKER, ANYONE):
            because = f"{quoted(part.name)}: a name is one word without # and ~, and not the name of a node"
            raise Inconsistent(place, "name", because)
        if part.name in seen:
            raise Inconsistent(place, "name", f"two parts have the name {quoted(part.name)}")
        seen.add(part.name)


def _check_members(scenario: Scenario) -> None:
    for number, member in enumerate(() if scenario.seeded is None else scenario.seeded.members):
        if member.heartbeat_interval_ms >= member.session_timeout_ms:
            because = (
                f"is {member.heartbeat_interval_ms}, but must be below session_timeout_ms "
                f"({member.session_timeout_ms})"
            )
            raise Inconsistent(f"[[seeded.member]] {number + 1}", "heartbeat_interval_ms", because)


def _check_reads(scenario: Scenario, cast: _Cast, place: str, part: ConsumerPart | ProcessorPart) -> None:
    inputs = part.reads
    if isinstance(part, ProcessorPart):
        if part.reads and part.subscribes:
            raise Inconsistent(
                place, "subscribes", 'a member of a group reads what it subscribes to; leave out "reads"'
            )
        for topic in part.subscribes:
            _Names(cast, place, "subscribes").check(topic, [name for name, _ in scenario.cluster.topics])
        inputs = part.inputs(scenario.cluster)
    if not inputs:
        raise Inconsistent(place, "reads", "is empty: there is nothing to read")
    for where in inputs:
        _Names(cast, place, "reads").check_of_clients(where)
        if isinstance(part, ProcessorPart) and where.topic == part.writes:
            raise Inconsistent(place, "writes", f'"{part.writes}": it would read its own output forever')
        if isinstance(part, ProcessorPart):
            _Names(cast, place, "writes").check_of_clients(TopicPartition(part.writes, where.partition))


def _check_runs(scenario: Scenario) -> None:
    runs = (1 + len(scenario.also_with)) * prod(len(fault.when) for fault in scenario.faults)
    if runs > RUNS_MAX:
        because = f"makes {runs:,} runs, one per combination of points, and the maximum is {RUNS_MAX:,}"
        raise Inconsistent(f"[[fault]] {len(scenario.faults)}", "when", because)


def _check_starts(scenario: Scenario, cast: _Cast) -> None:
    """Refuse a process that starts on request and that no fault starts, and the reverse."""
    called = [fault.do.who for fault in scenario.faults if fault.do.kind is ActionKind.START]
    if scenario.seeded is not None and called:
        because = f'"start {called[0]}": every process of a [seeded] run starts at once'
        raise _Names(cast, "[[fault]] 1", "do").wrong(because)
    for place, part in _places(scenario):
        if part.is_called and part.name not in called:
            raise Inconsistent(
                place,
                "starts",
                f'is "on request", but no fault starts it; add one with do = "start {part.name}"',
            )
        if not part.is_called and part.name in called:
            because = f'is "at once", but a fault does "start {part.name}"; write starts = "on request"'
            raise Inconsistent(place, "starts", because)


# --- scripts ------------------------------------------------------------------------------------------------

_CALLS: Final = {
    verb: ProducerInput[verb.name]
    for verb in (Verb.BEGIN, Verb.SEND, Verb.SEND_OFFSETS, Verb.COMMIT, Verb.ABORT)
}
_TRANSACTIONAL: Final = frozenset({Verb.INIT, *_CALLS}) - {Verb.SEND}
_ENDED: Final = {
    ProducerState.COMMITTING_TRANSACTION: ProducerState.READY,
    ProducerState.ABORTING_TRANSACTION: ProducerState.READY,
}
_REFUSED_IN: Final = {
    ProducerState.UNINITIALIZED: 'needs an initialized producer; write "init" before it',
    ProducerState.READY: 'needs an open transaction; write "begin" before it',
    ProducerState.IN_TRANSACTION: (
        'is not possible while a transaction is open; write "commit" or "abort" before it'
    ),
}


def _check_script(scenario: Scenario, cast: _Cast, place: str, part: ProducerPart) -> None:
    names = _Names(cast, place, "script")
    # Judges tell records apart by their values, so no two producers may write the same one to a partition.
    sent = {
        (line.partition, line.value): other.name
        for other in scenario.parts[: scenario.parts.index(part)]
        if isinstance(other, ProducerPart)
        for line in other.script
        if line.verb is Verb.SEND
    }
    for line in part.script:
        if part.transactional_id is None and line.verb in _TRANSACTIONAL:
            raise names.wrong(f"{quoted(str(line))} needs a transactional_id")
        if line.point is not None:
            names.check_blanks(line.point)
        if line.partition is not None:
            names.check_of_clients(line.partition)
        if line.verb is Verb.SEND:
            record = (line.partition, line.value)
            if record in sent:
                owner = sent[record]
                raise names.wrong(f"{quoted(str(line))} repeats a value of {owner}; write another value")
            sent[record] = part.name
    refused = None if part.transactional_id is None else _refused_line(part.script)
    if refused is not None:
        raise names.wrong(refused)


def _refused_line(script: Iterable[ScriptLine]) -> str | None:
    """The error of the first line that a transactional producer refuses even if every call before it
    succeeds, and what to write.

    The client's own table decides. A line that it refuses only after a failure is skipped when the script is
    played.
    """
    state = ProducerState.UNINITIALIZED
    for line in script:
        if line.verb is Verb.INIT:  # each time of a new producer, whatever the state of the last one
            state = ProducerState.READY
        elif line.verb in _CALLS:
            call = _CALLS[line.verb]
            cell = TRANSACTIONAL[state][call]
            if not isinstance(cell, ProducerState):
                return f"{quoted(str(line))} {_REFUSED_IN[state]}"
            state = _ENDED.get(cell, cell)
    return None


# --- faults and expectations --------------------------------------------------------------------------------

_SENT: Final = (PointKind.SENDS, PointKind.SENDS_REPLY)
# These act on the message of `when`. At a point that is a time or a crash there is none.
_NEED_MESSAGE: Final = {
    ActionKind.HOLD: ("a message that is being sent", _SENT),
    ActionKind.LATE: ("a message that is being sent", _SENT),
    ActionKind.CLOSE: ("a request that is being sent", (PointKind.SENDS,)),
    ActionKind.TWICE: ("a request that is being sent", (PointKind.SENDS,)),
    ActionKind.ANSWER: ("a request that has arrived", (PointKind.RECEIVES,)),
    ActionKind.DELAY: ("a request that is being sent", (PointKind.SENDS,)),
    ActionKind.DROP: ("a message", (*_SENT, PointKind.RECEIVES, PointKind.RECEIVES_REPLY)),
}


def _check_fault(cast: _Cast, place: str, fault: Fault) -> None:
    when, kind = _Names(cast, place, "when"), fault.do.kind
    if not fault.when:
        raise when.wrong("is empty: a fault needs a point at which it strikes")
    for point in fault.when:
        when.check_blanks(point)
        if point.kind is PointKind.LATER:
            raise when.wrong(f'"{point}" cannot begin a fault; write "at ..."')
        needed, possible = _NEED_MESSAGE.get(kind, ("", (point.kind,)))
        if point.kind not in possible:
            raise when.wrong(f'"{fault.do}" needs {needed}', [each.value.shown for each in possible])
    if fault.until is not None:
        until = _Names(cast, place, "until")
        if kind in ENDS_ITSELF:
            raise until.wrong(f'"{fault.do}" ends by itself; leave out `until`')
        if fault.until.kind is PointKind.AT:
            raise until.wrong(f'is a time of the run; write "{str(fault.until).replace("at", "after", 1)}"')
        until.check_blanks(fault.until)
    do = _Names(cast, place, "do")
    do.check_blanks(fault.do)
    if fault.do.who and fault.do.who == fault.do.whom:
        raise do.wrong(f'"{fault.do}" names one side twice')


def _check_expectations(scenario: Scenario, cast: _Cast) -> None:
    for expect in (scenario.expect, *(variant.expect for variant in scenario.also_with)):
        for name in contradictory(expect.holds, expect.violates):
            because = f"{quoted(name)} is also in violates; remove it from one of the two"
            raise Inconsistent("[expect]", "holds", because)
        if scenario.seeded is None:
            for key, names in (("holds", expect.holds), ("violates", expect.violates)):
                for name in names:
                    _Names(cast, "[expect]", key).check(name, RULE_NAMES)
        reaches = _Names(cast, "[expect]", "reaches")
        for point in expect.reaches:
            if point.is_time:
                raise reaches.wrong(f'"{point}" is a time, which every run reaches; name an event')
            reaches.check_blanks(point)
        for key, values in (("visible", expect.visible), ("logs", expect.logs)):
            for where, _ in values:
                _Names(cast, "[expect]", key).check_compared(where)
