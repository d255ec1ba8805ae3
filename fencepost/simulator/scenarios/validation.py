"""Whether a scenario makes sense as a whole: who is named is there, and what is to be done can be done.

Rule: what a single phrase cannot tell is checked here, for files and for the builder alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from fencepost.faults.grammar import BadPhrase, quoted, suggestion
from fencepost.faults.phrases import ENDS_ITSELF, NEEDS_MESSAGE, ActionKind, Fault, Point, PointKind
from fencepost.protocol.terms import CONSUMER_OFFSETS_TOPIC, TopicPartition, topic_name_problem
from fencepost.simulator.scenarios.model import ConsumerPart, ProcessorPart, ProducerPart, Scenario
from fencepost.simulator.scenarios.rule_names import contradictory
from fencepost.simulator.scenarios.scripts import Verb
from fencepost.simulator.scenarios.usage import TRANSACTIONAL_VERBS, refused_call

FINAL_READER: Final = "final reader"


class Inconsistent(BadPhrase):
    """Something in a scenario does not fit the rest: in which table, under which key."""

    def __init__(self, place: str, key: str, because: str, possible: Iterable[str] = ()) -> None:
        super().__init__(because, possible=possible)
        self.place = place
        self.key = key


_NODE_ACTIONS: Final = frozenset({ActionKind.CRASH, ActionKind.CUT_POWER, ActionKind.SLOW_DISK})
_PARTITION_ACTIONS: Final = frozenset({ActionKind.FAIL_APPENDS, ActionKind.FAIL_SYNCS})
_PARTITION_POINTS: Final = frozenset({PointKind.MARKS, PointKind.STORES})


def check(scenario: Scenario) -> None:
    """Raises Inconsistent for the first thing that does not fit."""
    _check_cluster(scenario)
    _check_people(scenario)
    for place, part in _places(scenario):
        if isinstance(part, ProducerPart):
            _check_script(scenario, place, part)
        else:
            _check_reads(scenario, place, part)
    for number, fault in enumerate(scenario.faults):
        _check_fault(scenario, f"[[fault]] {number + 1}", fault)
    _check_calls(scenario)
    _check_expectation(scenario)


def _places(scenario: Scenario) -> Iterator[tuple[str, ProducerPart | ConsumerPart | ProcessorPart]]:
    """Every part and the name of its table: people are numbered by what they are."""
    counts: dict[str, int] = {}
    for part in scenario.parts:
        kind = (
            "producer"
            if isinstance(part, ProducerPart)
            else "consumer"
            if isinstance(part, ConsumerPart)
            else "processor"
        )
        counts[kind] = counts.get(kind, 0) + 1
        yield f"[[{kind}]] {counts[kind]}", part


def _check_cluster(scenario: Scenario) -> None:
    for topic, _ in scenario.cluster.topics:
        problem = topic_name_problem(topic)
        if problem:
            raise Inconsistent("[cluster]", "topics", f"{quoted(topic)} is no topic: {problem}")


def _check_people(scenario: Scenario) -> None:
    seen: dict[str, None] = {}
    for place, part in _places(scenario):
        if not part.name or set(part.name) & set(" #~") or part.name == "node":
            raise Inconsistent(place, "name", f"{quoted(part.name)}: a name is one word without # and ~")
        if part.name in seen:
            raise Inconsistent(place, "name", f"there are two who are called {quoted(part.name)}")
        seen[part.name] = None
        if not isinstance(part, ConsumerPart) and part.transactional_id == "":
            raise Inconsistent(place, "transactional_id", 'is "": write a name, or leave it out')


def _check_partition(scenario: Scenario, place: str, key: str, where: TopicPartition) -> None:
    possible = scenario.cluster.partitions
    if where not in possible and where != TopicPartition(CONSUMER_OFFSETS_TOPIC, 0):
        because = f"there is no partition {quoted(str(where))}"
        if not possible:
            because += ", and none at all so far: [cluster] topics = { t = 2 } makes some"
        names = [str(each) for each in possible]
        raise Inconsistent(place, key, because + suggestion(str(where), names), names)


def _check_script(scenario: Scenario, place: str, part: ProducerPart) -> None:
    sent: dict[tuple[TopicPartition, str], str] = _sent_by_others(scenario, part)
    for line in part.script:
        if part.transactional_id is None and line.verb in TRANSACTIONAL_VERBS:
            raise Inconsistent(place, "script", f"{quoted(str(line))} needs a transactional_id")
        if line.point is not None:
            _check_point(scenario, place, "script", line.point)
        if line.partition is None:
            continue
        _check_partition(scenario, place, "script", line.partition)
        if line.verb is Verb.SEND:
            written = (line.partition, line.value)
            if written in sent:
                raise Inconsistent(
                    place,
                    "script",
                    f"{quoted(str(line))} writes what {sent[written]} writes, too: "
                    "nobody could tell whose a record is",
                )
            sent[written] = part.name
    refused = None if part.transactional_id is None else refused_call(part.script)
    if refused is not None:
        raise Inconsistent(place, "script", f"{quoted(str(refused[0]))}: {refused[1]}")


def _sent_by_others(scenario: Scenario, part: ProducerPart) -> dict[tuple[TopicPartition, str], str]:
    """What the producers before this one write, and who."""
    sent: dict[tuple[TopicPartition, str], str] = {}
    for other in scenario.parts:
        if other is part:
            break
        if isinstance(other, ProducerPart):
            for line in other.script:
                if line.verb is Verb.SEND and line.partition is not None:
                    sent[line.partition, line.value] = other.name
    return sent


def _check_reads(scenario: Scenario, place: str, part: ConsumerPart | ProcessorPart) -> None:
    if not part.reads:
        raise Inconsistent(place, "reads", "is empty: there is nothing to read")
    for where in part.reads:
        _check_partition(scenario, place, "reads", where)
        if isinstance(part, ProcessorPart):
            _check_partition(scenario, place, "writes", TopicPartition(part.writes, where.partition))


# --- faults -------------------------------------------------------------------------------------------------


def _check_fault(scenario: Scenario, place: str, fault: Fault) -> None:
    kind = fault.do.kind
    if not fault.when:
        raise Inconsistent(place, "when", "is empty: a fault needs a point at which it strikes")
    for point in fault.when:
        _check_point(scenario, place, "when", point)
        if point.kind is PointKind.LATER:
            raise Inconsistent(place, "when", f'"{point}" is no point to begin at; write "at ..."')
        if kind in NEEDS_MESSAGE and not point.is_message:
            raise Inconsistent(
                place,
                "when",
                f'"{fault.do}" is done to a message, so it needs a point that is one',
                _MESSAGES,
            )
        if kind is ActionKind.HOLD and point.kind not in (PointKind.SENDS, PointKind.SENDS_REPLY):
            raise Inconsistent(place, "when", '"hold" is done to a message when it is sent', _MESSAGES[:2])
        if kind is ActionKind.DELAY and point.kind is not PointKind.SENDS:
            raise Inconsistent(place, "when", '"delay" is done to a request when it is sent', _MESSAGES[:1])
    _check_until(scenario, place, fault)
    _check_action(scenario, place, fault)


_MESSAGES: Final = (
    PointKind.SENDS.value.shown,
    PointKind.SENDS_REPLY.value.shown,
    PointKind.RECEIVES.value.shown,
    PointKind.RECEIVES_REPLY.value.shown,
)


def _check_until(scenario: Scenario, place: str, fault: Fault) -> None:
    if fault.until is None:
        return
    if fault.do.kind in ENDS_ITSELF:
        raise Inconsistent(place, "until", f'"{fault.do}" is over at once; leave `until` out')
    if fault.until.kind is PointKind.AT:
        raise Inconsistent(place, "until", 'a fault lasts until a point, or for a time: "after 300 ms"')
    _check_point(scenario, place, "until", fault.until)


def _check_action(scenario: Scenario, place: str, fault: Fault) -> None:
    do = fault.do
    nodes = _nodes(scenario)
    people = _people(scenario)
    if do.kind in _NODE_ACTIONS:
        _check_somebody(scenario, place, "do", do.who, only=nodes)
    elif do.kind in (ActionKind.KILL, ActionKind.START):
        _check_name(
            place, "do", do.who, people, if_none='nobody at all so far: a [[producer]] with name = "{}"'
        )
    elif do.kind in _PARTITION_ACTIONS:
        _check_partition_name(scenario, place, "do", do.who)
    elif do.kind is ActionKind.MOVE:
        _check_name(place, "do", do.whom, nodes)
        if not do.who.startswith("coordinator of "):
            _check_partition_name(scenario, place, "do", do.who)
    else:
        for name in filter(None, (do.who, do.whom)):
            _check_somebody(scenario, place, "do", name, only=[*people, *nodes])
        if do.who and do.who == do.whom:
            raise Inconsistent(place, "do", f'"{do}": nothing comes between anybody and himself')


def _check_point(scenario: Scenario, place: str, key: str, point: Point) -> None:
    everybody = [*_people(scenario), *_nodes(scenario), FINAL_READER]
    if point.kind in _PARTITION_POINTS:
        _check_partition_name(scenario, place, key, point.who)
        if point.whom:
            _check_transactional_id(scenario, place, key, point.whom)
        return
    for name in (point.who, "" if point.kind is PointKind.ENDS_CALL else point.whom):
        if name:
            _check_somebody(scenario, place, key, name, only=everybody)


def _check_somebody(scenario: Scenario, place: str, key: str, name: str, *, only: Sequence[str]) -> None:
    """A name by itself, or by what somebody leads."""
    kind, of, subject = name.partition(" of ")
    if of and kind == "coordinator":
        _check_transactional_id(scenario, place, key, subject)
    elif of and kind == "leader":
        _check_partition_name(scenario, place, key, subject)
    else:
        _check_name(place, key, name, only)


def _check_partition_name(scenario: Scenario, place: str, key: str, name: str) -> None:
    names = [*(str(each) for each in scenario.cluster.partitions), f"{CONSUMER_OFFSETS_TOPIC}-0"]
    _check_name(place, key, name, names)


def _check_transactional_id(scenario: Scenario, place: str, key: str, name: str) -> None:
    if_none = 'no transactional id at all so far: a [[producer]] with transactional_id = "{}"'
    _check_name(place, key, name, scenario.transactional_ids, if_none=if_none)


def _check_name(place: str, key: str, name: str, possible: Sequence[str], *, if_none: str = "") -> None:
    if name in possible:
        return
    because = f"there is no {quoted(name)}"
    if not possible:
        raise Inconsistent(place, key, f"{because}, and {if_none.format(name)} makes it")
    raise Inconsistent(place, key, because + suggestion(name, possible), possible)


def _people(scenario: Scenario) -> list[str]:
    return [part.name for part in scenario.parts]


def _nodes(scenario: Scenario) -> list[str]:
    return [f"node {number + 1}" for number in range(scenario.cluster.nodes)]


def _check_calls(scenario: Scenario) -> None:
    """Who starts on request must be requested; who is requested must wait for it."""
    called = [fault.do.who for fault in scenario.faults if fault.do.kind is ActionKind.START]
    for place, part in _places(scenario):
        if part.is_called and part.name not in called:
            raise Inconsistent(place, "starts", f'on request, but no fault does "start {part.name}"')
        if not part.is_called and part.name in called:
            raise Inconsistent(
                place, "starts", f'at once, and a fault does "start {part.name}": write starts = "on request"'
            )


def _check_expectation(scenario: Scenario) -> None:
    for expect in (scenario.expect, *(variant.expect for variant in scenario.also_with)):
        for name in contradictory(expect.holds, expect.violates):
            raise Inconsistent("[expect]", "holds", f"{quoted(name)} cannot be kept and be broken, too")
        for point in expect.reaches:
            if point.is_time:
                raise Inconsistent("[expect]", "reaches", f'"{point}" is a time, and times always come')
            _check_point(scenario, "[expect]", "reaches", point)
        for key, values in (("visible", expect.visible), ("logs", expect.logs)):
            for where, _ in values:
                _check_partition(scenario, "[expect]", key, where)
