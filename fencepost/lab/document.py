"""A run as one JSON value, the run document: its steps in words, its messages, its batches and its outcome.

A step is one event of the history, and its number is its place there. What a history does not hold, the
changes of states and the reasons, comes from `Details`.

Rule: every value in it is plain data and plain text. Keys of a step that would be empty are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NotRequired, TypedDict

import attrs

from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS
from fencepost.lab.details import NO_DETAILS, Details
from fencepost.lab.rules import Reason, ReasonEntry
from fencepost.lab.run_reasons import late_reason, loss_reason, retry_reason
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import NO_PRODUCER_ID, TopicPartition, TransactionResult, TransactionState
from fencepost.simulator.draw.fates import (
    BatchFate,
    DrawnBatch,
    DrawnMessage,
    follow,
    note,
    overtakers,
    read_logs,
    sentence,
)
from fencepost.simulator.judges.rules import HISTORY_RULES, STEP_RULES
from fencepost.simulator.scenarios.model import CONVERGES, HANGING_TRANSACTION
from fencepost.simulator.world.history import (
    Appended,
    Arrived,
    Bounded,
    Called,
    Coordinated,
    Event,
    History,
    Lost,
    Sent,
    Struck,
    Truncated,
)

FORMAT: Final = 1
Json = Any
"""What `json.dumps` takes."""

Arrow = TypedDict("Arrow", {"from": str, "to": str, "input": str})


class StateDiagram(TypedDict):
    """The coordinator's states and transitions; inputs that are refused are left out."""

    states: list[str]
    arrows: list[Arrow]


class ParticipantEntry(TypedDict):
    """A lane. `kind` is "client" or "node"; consumers have an `isolation`."""

    name: str
    kind: str
    isolation: NotRequired[str]


class NamedProducer(TypedDict):
    """A producer id and its transactional id, "" if it has none."""

    id: int
    transactional_id: str


class BrokenRule(TypedDict):
    """A rule that the run broke: what it means, the evidence, and the step where that showed. `batch` holds
    the record that the evidence names, if it names one.
    """

    rule: str
    meaning: str
    text: str
    step: int | None
    batch: NotRequired[int]


class MessageEntry(TypedDict):
    """A message. `sent`, `arrived`, `lost` are steps; `answers`, `overtaken_by`, `repeats` are messages."""

    number: int
    source: str
    target: str
    label: str
    api: str
    sent: int
    arrived: int | None
    lost: int | None
    because: str
    late: str
    answers: int | None
    overtaken_by: list[int]
    repeats: int | None
    struck: bool
    error: str | None
    transactions: list[str]


class BatchEntry(TypedDict):
    """A batch. `appended`, `decided`, `gone` are steps; `kind` is "data", "commit" or "abort"; `result` is
    "committed", "aborted", "open", "plain" or "marker".
    """

    partition: str
    node: str
    first: int
    last: int
    producer: int
    epoch: int
    sequence: int
    kind: str
    values: list[str]
    text: str
    appended: int
    decided: int | None
    result: str
    gone: int | None
    transactions: list[str]


class StepEntry(TypedDict):
    """One event. `lane` is a participant, "" for the network."""

    at: int
    kind: str
    lane: str
    text: str
    note: str
    message: NotRequired[int]
    batch: NotRequired[int]
    transactions: NotRequired[list[str]]
    flags: NotRequired[list[str]]
    why: NotRequired[ReasonEntry]
    point: NotRequired[str]
    changes: NotRequired[dict[str, Json]]


class RunDocument(TypedDict):
    format: int
    title: str
    lesson: str
    source: str
    settings: dict[str, Json]
    passed: bool | None
    expected: list[str]
    problems: list[str]
    broken: list[BrokenRule]
    participants: list[ParticipantEntry]
    producers: list[NamedProducer]
    machine: StateDiagram
    messages: list[MessageEntry]
    batches: list[BatchEntry]
    steps: list[StepEntry]
    end: int


@attrs.frozen(kw_only=True)
class RunFacts:
    """What is known of a run besides its history. `nodes`: the participants that are nodes. `isolation`: the
    isolation level of each consumer. `transactional_ids`: by participant. `broken`: (rule, evidence) each.
    """

    source: str = "simulation"
    settings: Mapping[str, Json] = attrs.Factory(dict[str, Any])
    transaction_version: int = 2
    passed: bool | None = None
    expected: Sequence[str] = ()
    problems: Sequence[str] = ()
    broken: Sequence[tuple[str, str]] = ()
    nodes: frozenset[str] = frozenset()
    isolation: Mapping[str, str] = attrs.Factory(dict[str, str])
    transactional_ids: Mapping[str, str] = attrs.Factory(dict[str, str])


def document(history: History, facts: RunFacts, details: Details = NO_DETAILS) -> RunDocument:
    messages, owners = follow(history.events), _Owners.of(history.events, facts.transactional_ids)
    batches = _batches(history.events, owners, details)
    found = _messages(messages, owners, details)
    broken = [_breach(rule, text, batches, details) for rule, text in facts.broken]
    return {
        "format": FORMAT,
        "title": history.title,
        "lesson": history.lesson,
        "source": facts.source,
        "settings": dict(facts.settings),
        "passed": facts.passed,
        "expected": list(facts.expected),
        "problems": list(facts.problems),
        "broken": broken,
        "participants": [_participant(name, facts) for name in history.participants],
        "producers": owners.producers(),
        "machine": machine(facts.transaction_version),
        "messages": found,
        "batches": batches,
        "steps": _steps(history, owners, messages, found, batches, details, broken),
        "end": history.end,
    }


def machine(transaction_version: int) -> StateDiagram:
    """The coordinator's state machine in one transaction version, from the tables that its code runs."""
    version = TRANSACTION_VERSIONS[transaction_version]
    arrows: list[Arrow] = [
        {"from": state.title, "to": cell.title, "input": given.value}
        for table in (version.end, version.moves)
        for state, row in table.items()
        for given, cell in row.items()
        if isinstance(cell, TransactionState)
    ]
    return {"states": [state.title for state in TransactionState], "arrows": arrows}


def _participant(name: str, facts: RunFacts) -> ParticipantEntry:
    entry: ParticipantEntry = {"name": name, "kind": "node" if name in facts.nodes else "client"}
    if name in facts.isolation:
        entry["isolation"] = facts.isolation[name]
    return entry


# --- transactions: whose is what ----------------------------------------------------------------------------


@attrs.frozen
class _Owners:
    """The transactional id of each producer id, in the order of their first appearance, and of each
    participant.
    """

    of_producer: Mapping[int, str]
    of_participant: Mapping[str, str]

    @classmethod
    def of(cls, events: Iterable[Event], of_participant: Mapping[str, str]) -> _Owners:
        found: dict[int, str] = {}
        for event in events:
            match event:
                case Coordinated(record=record, transactional_id=name):
                    found[record.producer_id] = name
                case Appended(header=header) if header.producer_id != NO_PRODUCER_ID:
                    found.setdefault(header.producer_id, "")
                case _:
                    pass
        return cls(found, of_participant)

    def producers(self) -> list[NamedProducer]:
        return [{"id": number, "transactional_id": name} for number, name in self.of_producer.items()]

    def of_ids(self, producer_ids: Iterable[int]) -> list[str]:
        named = (self.of_producer.get(number, "") for number in producer_ids)
        return list(dict.fromkeys(name for name in named if name))

    def of_lane(self, participant: str) -> list[str]:
        name = self.of_participant.get(participant, "")
        return [name] if name else []


# --- messages -----------------------------------------------------------------------------------------------

_PRODUCER: Final = re.compile(r"(\d+)/-?\d+")


def _messages(messages: Mapping[int, DrawnMessage], owners: _Owners, details: Details) -> list[MessageEntry]:
    found: dict[int, MessageEntry] = {}
    for number, message in messages.items():
        event, seen = message.event, details.messages.get(number)
        asked = None if event.answers is None else found.get(event.answers)
        if asked is not None:
            transactions = asked["transactions"]
        elif seen is not None:
            named = [seen.transactional_id] if seen.transactional_id else []
            transactions = list(dict.fromkeys([*named, *owners.of_ids(seen.producer_ids)]))
        else:
            transactions = _in_label(event, owners)
        api, *words = event.label.split(" ")
        told = (word for word in words if word in _ERRORS and event.answers is not None)
        found[number] = {
            "number": number,
            "source": event.source,
            "target": event.target,
            "label": event.label,
            "api": api,
            "sent": message.sent,
            "arrived": message.arrived,
            "lost": message.lost,
            "because": message.because,
            "late": overtakers(message, messages) if message.is_late else "",
            "answers": event.answers,
            "overtaken_by": list(message.overtaken_by),
            "repeats": message.repeats,
            "struck": message.is_struck,
            "error": next(told, None) if seen is None else seen.error,
            "transactions": transactions,
        }
    return list(found.values())


def _in_label(event: Sent, owners: _Owners) -> list[str]:
    """The transactions of a request of which only the label is known."""
    api, *words = event.label.split(" ")
    if api == "InitProducerId" and words and words[0] in owners.of_producer.values():
        return [words[0]]
    ids = [int(match[1]) for word in words if (match := _PRODUCER.fullmatch(word))]
    return owners.of_ids(ids) or owners.of_lane(event.source)


_ERRORS: Final = frozenset(error.name for error in ErrorCode) - {ErrorCode.NONE.name}


# --- batches ------------------------------------------------------------------------------------------------

_RESULTS: Final = {
    BatchFate.PLAIN: "plain",
    BatchFate.OPEN: "open",
    BatchFate.COMMITTED: "committed",
    BatchFate.ABORTED: "aborted",
    BatchFate.COMMIT_MARKER: "marker",
    BatchFate.ABORT_MARKER: "marker",
}


def _batches(events: Sequence[Event], owners: _Owners, details: Details) -> list[BatchEntry]:
    """Every batch in the order of the appends, of all partitions."""
    drawn = {place: batch for log in read_logs(events).values() for place, batch in log.batches().items()}
    decided, gone = _ends(events)
    return [
        _batch(drawn[place], owners, details, decided=decided.get(place), gone=gone.get(place))
        for place in sorted(drawn)
    ]


def _batch(
    batch: DrawnBatch, owners: _Owners, details: Details, *, decided: int | None, gone: int | None
) -> BatchEntry:
    event, header = batch.appended, batch.appended.header
    values = details.values.get(batch.place)
    if values is None:
        values = tuple(event.label.split(" ")) if event.label else ()
    return {
        "partition": str(event.partition),
        "node": event.node,
        "first": header.base_offset,
        "last": header.last_offset,
        "producer": header.producer_id,
        "epoch": header.producer_epoch,
        "sequence": header.base_sequence,
        "kind": "data" if event.result is None else event.result.name.lower(),
        "values": list(values),
        "text": event.label if event.result is None else event.result.name,
        "appended": batch.place,
        "decided": decided,
        "result": _RESULTS[batch.fate],
        "gone": gone,
        "transactions": owners.of_ids([header.producer_id]),
    }


def _ends(events: Sequence[Event]) -> tuple[dict[int, int], dict[int, int]]:
    """For each batch, by the step of its append: the step of the marker that decided it, and the step of the
    truncation that took it. A marker that is truncated itself has decided nothing.
    """
    decided: dict[int, int] = {}
    gone: dict[int, int] = {}
    logs: dict[TopicPartition, dict[int, Appended]] = {}
    undecided: dict[tuple[TopicPartition, int], list[int]] = {}
    for place, event in enumerate(events):
        match event:
            case Appended(partition=where, header=header):
                logs.setdefault(where, {})[place] = event
                of_producer = undecided.setdefault((where, header.producer_id), [])
                if event.result is not None:
                    decided.update(dict.fromkeys(of_producer, place))
                    of_producer.clear()
                elif header.is_transactional:
                    of_producer.append(place)
            case Truncated(partition=where, next_offset=end):
                log = logs.get(where, {})
                lost = [at for at, batch in log.items() if batch.header.next_offset > end]
                for at in lost:
                    gone[at] = place
                    _undo(log.pop(at), at, decided, undecided, log)
                for (partition, _), waiting in undecided.items():
                    if partition == where:
                        waiting[:] = [at for at in waiting if at not in gone]
            case _:
                pass
    return decided, gone


def _undo(
    event: Appended,
    place: int,
    decided: dict[int, int],
    undecided: dict[tuple[TopicPartition, int], list[int]],
    log: Mapping[int, Appended],
) -> None:
    """A marker is gone: what it had decided, and is still there, is open again."""
    if event.result is not None:
        reopened = [at for at, marker in decided.items() if marker == place and at in log]
        for at in reopened:
            del decided[at]
        undecided.setdefault((event.partition, event.header.producer_id), []).extend(reopened)


# --- broken rules -------------------------------------------------------------------------------------------

_MEANINGS: Final = {
    CONVERGES: "A client never finishes, although all faults are over.",
    HANGING_TRANSACTION: "A transaction is open in a partition, and no coordinator will ever end it.",
    **{rule.name: rule.meaning for rule in (*HISTORY_RULES, *STEP_RULES)},
}

# How evidence names a record: the last offset is that of the record which should not be there.
_EVIDENCE: Final = (
    re.compile(r"at (?P<partition>\S+) offsets? (?:\d+ and )*(?P<offset>\d+)"),
    re.compile(r"^(?P<partition>\S+) offset (?P<offset>\d+)"),
    re.compile(r"^(?P<partition>\S+) has an open transaction of producer \d+ from offset (?P<offset>\d+)"),
)


def _breach(rule: str, text: str, batches: Sequence[BatchEntry], details: Details) -> BrokenRule:
    """A broken rule. Rules about what readers saw are judged when a run is over; the harm was done when the
    record in question was decided or, if it never was, when it was appended.
    """
    found: BrokenRule = {
        "rule": rule,
        "meaning": _MEANINGS.get(rule, ""),
        "text": text,
        "step": details.breaches.get(rule),
    }
    batch = _named(text, batches)
    if batch is not None:
        decided, appended = batches[batch]["decided"], batches[batch]["appended"]
        found["step"], found["batch"] = appended if decided is None else decided, batch
    return found


def _named(text: str, batches: Sequence[BatchEntry]) -> int | None:
    """The batch with the record that the evidence names; of several that were there, the newest."""
    found = next((match for pattern in _EVIDENCE if (match := pattern.search(text))), None)
    if found is None:
        return None
    where, offset = found["partition"], int(found["offset"])
    named = [
        number
        for number, batch in enumerate(batches)
        if batch["partition"] == where and batch["first"] <= offset <= batch["last"]
    ]
    return named[-1] if named else None


# --- steps --------------------------------------------------------------------------------------------------


def _steps(
    history: History,
    owners: _Owners,
    messages: Mapping[int, DrawnMessage],
    found: Sequence[MessageEntry],
    batches: Sequence[BatchEntry],
    details: Details,
    broken: Sequence[BrokenRule],
) -> list[StepEntry]:
    by_number = {message["number"]: message for message in found}
    by_place = {batch["appended"]: number for number, batch in enumerate(batches)}
    wrong = {rule["step"] for rule in broken}
    steps: list[StepEntry] = []
    for place, event in enumerate(history.events):
        number = getattr(event, "number", None)
        message = None if number is None else by_number[number]
        batch = by_place.get(place)
        step: StepEntry = {
            "at": event.at,
            "kind": _KINDS[type(event)],
            "lane": _lane(event, message),
            "text": sentence(event, messages),
            "note": note(event, messages),
        }
        if message is not None:
            step["message"] = message["number"]
        if batch is not None:
            step["batch"] = batch
        transactions = _transactions(event, message, None if batch is None else batches[batch], owners)
        if transactions:
            step["transactions"] = transactions
        flags = [*_flags(event, message, messages), *(["violation"] if place in wrong else [])]
        if flags:
            step["flags"] = flags
        why = details.reasons.get(place) or _why(event, message, messages)
        if why is not None:
            step["why"] = why.as_json()
        if point := details.points.get(place):
            step["point"] = point
        if changes := details.changes.get(place):
            step["changes"] = changes
        steps.append(step)
    return steps


def _why(event: Event, message: MessageEntry | None, messages: Mapping[int, DrawnMessage]) -> Reason | None:
    """A reason that follows from the history alone."""
    if message is None:
        return None
    match event:
        case Lost(because=because):
            return loss_reason(because)
        case Arrived() if message["late"]:
            return late_reason(message["late"])
        case Sent(answers=None) if message["repeats"] is not None:
            first = messages[message["repeats"]]
            return retry_reason(first.event.number, is_broken=first.lost is not None)
        case _:
            return None


_KINDS: Final[dict[type[Event], str]] = {
    kind: kind.__name__.lower()
    for kind in (Sent, Arrived, Lost, Appended, Bounded, Truncated, Coordinated, Called, Struck)
}


def _lane(event: Event, message: MessageEntry | None) -> str:
    match event:
        case Sent(source=lane) | Called(participant=lane) | Struck(participant=lane):
            return lane
        case Arrived():
            return "" if message is None else message["target"]
        case Lost():
            return ""
        case _:
            return event.node


def _transactions(
    event: Event, message: MessageEntry | None, batch: BatchEntry | None, owners: _Owners
) -> list[str]:
    if message is not None:
        return message["transactions"]
    if batch is not None:
        return batch["transactions"]
    match event:
        case Coordinated(transactional_id=name):
            return [name]
        case Called(participant=lane):
            return owners.of_lane(lane)
        case _:
            return []


def _flags(event: Event, message: MessageEntry | None, messages: Mapping[int, DrawnMessage]) -> Iterator[str]:
    match event:
        case Struck():
            yield "fault"
        case Sent() if message is not None:
            if message["error"] is not None:
                yield "refusal"
            if message["repeats"] is not None:
                yield "again"
        case Arrived(number=number) if messages[number].is_late:
            yield "late"
        case Lost():
            yield "lost"
        case Appended(result=TransactionResult()):
            yield "marker"
        case _:
            pass
