"""What steps did: a path through explored worlds in words, and counts of the steps that are dangerous.

Rule: changes are found by comparing the states before and after a step; the cores do not report them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.broker.contract import NODE
from fencepost.protocol.batches import read_header, read_marker
from fencepost.protocol.errors import NO_ERROR
from fencepost.protocol.messages import (
    API_BY_REQUEST,
    AddPartitionsToTxn,
    EndTxn,
    InitProducerId,
    Produce,
    Request,
    WriteTxnMarkers,
)
from fencepost.protocol.terms import TransactionResult
from fencepost.simulator.explore.broker import ExploredBroker, ReplyInFlight, RequestInFlight
from fencepost.simulator.explore.process import ExploredClient, TransactionOutcome
from fencepost.simulator.explore.steps import Steps, TransitionKind, connection_of
from fencepost.simulator.explore.worlds import BROKER, FIRST_CLIENT, Transition, World, Worlds
from fencepost.simulator.world.labels import reply_label, request_label


def markers(before: ExploredBroker, after: ExploredBroker) -> Iterator[TransactionResult]:
    """The markers that a step appended to the topic."""
    for key in after.written_partitions():
        for batch in after.logs[key][len(before.logs.get(key, ())) :]:
            if read_header(batch).is_control:
                yield read_marker(batch).result


def client_changes(before: ExploredClient, after: ExploredClient) -> list[str]:
    """What the script did and learned: "begin", "commit", "commit: ok"."""
    words: list[str] = []
    for number, attempt in enumerate(after.attempts):
        known = before.attempts[number] if number < len(before.attempts) else None
        if known is None:
            words.append("begin")
        if attempt.requested is not None and (known is None or known.requested is not attempt.requested):
            words.append(attempt.requested.name.lower())
        if attempt.outcome is not TransactionOutcome.OPEN and (
            known is None or known.outcome is not attempt.outcome
        ):
            assert attempt.requested is not None, "only what was ended has an outcome"
            told = "unknown" if attempt.outcome is TransactionOutcome.UNKNOWN else "ok"
            words.append(f"{attempt.requested.name.lower()}: {told}")
    if after.machine.is_over and not before.machine.is_over:
        failure = after.machine.failure
        words.append("over" if failure is None else f"over: {failure.kind.__name__}")
    return words


# --- words --------------------------------------------------------------------------------------------------

ORDINALS: Final = ("first", "second", "third", "fourth")


def role_of(request: Request) -> str:
    match request:
        case Produce():
            part = request.partitions[0]
            return f"the leader of {part.topic}-{part.partition}"
        case WriteTxnMarkers():
            return f"the leader of {request.markers[0].partitions[0]}"
        case AddPartitionsToTxn() | EndTxn() | InitProducerId():
            return "the coordinator"
        case _:
            return "the broker"


class Trace:
    """A path in words, a line for each step. A reply is named by the request that it answers."""

    def __init__(self, worlds: Worlds) -> None:
        self.worlds, self.steps = worlds, worlds.steps
        self.lines: list[str] = []
        self._asked: dict[tuple[int, int], type[Request]] = {}
        """By connection and slot."""

    def step(self, before: World, action: Transition, after: World) -> None:
        """Describe one step."""
        words: list[str] = []
        for at in range(FIRST_CLIENT, len(before), 2):
            words += client_changes(self.steps.processes[before[at]], self.steps.processes[after[at]])
        self.lines.append(self._label(before, action) + (f" [{', '.join(words)}]" if words else ""))

    def _label(self, before: World, action: Transition) -> str:
        if action.kind is TransitionKind.CRASH:
            return "the broker dies and starts again"
        if action.client < 0:
            return self._to_self(action)
        at = FIRST_CLIENT + 2 * action.client
        name, wires = self.steps.processes[before[at]].name, self.steps.wires[before[at + 1]]
        if action.kind is TransitionKind.STRAY:
            return f"{self._reaches(action, f' of {name}')} late"
        generation = wires.lines[action.place].generation
        ordinal = f"{ORDINALS[min(generation, len(ORDINALS) - 1)]} connection"
        connection = connection_of(action.client, action.place, generation, self.worlds.clients)
        match action.kind:
            case TransitionKind.REQUEST:
                has_had_more = any(line.generation for line in wires.lines)
                which = f" ({ordinal})" if has_had_more else ""
                return self._reaches(action, f" of {name}", connection) + which
            case TransitionKind.REPLY:
                return f"{name} receives {self._reply(action, connection)}"
            case TransitionKind.BREAK:
                return f"{name} learns that its connection broke"
            case TransitionKind.GIVE_UP:
                return f"{name} stops waiting and gives up its {ordinal}"
            case _:
                return f"a pause of {name} is over"

    def _to_self(self, action: Transition) -> str:
        if action.kind is TransitionKind.REQUEST_TO_SELF:
            return self._reaches(action, "", NODE)
        return f"the reply comes back: {self._reply(action, NODE)}"

    def _reaches(self, action: Transition, of_whom: str, connection: int | None = None) -> str:
        question = self.steps.messages[action.message]
        assert isinstance(question, RequestInFlight), "only requests reach a role of the broker"
        if connection is not None:
            self._asked[connection, question.slot] = type(question.request)
        return f"{request_label(question.request)}{of_whom} reaches {role_of(question.request)}"

    def _reply(self, action: Transition, connection: int) -> str:
        reply = self.steps.messages[action.message]
        assert isinstance(reply, ReplyInFlight), "clients receive only replies"
        return reply_label(API_BY_REQUEST[self._asked[connection, reply.slot]], reply.error, reply.body)


def path_in_words(worlds: Worlds, root: World, path: Iterable[tuple[Transition, World]]) -> tuple[str, ...]:
    trace, here = Trace(worlds), root
    for action, world in path:
        trace.step(here, action, world)
        here = world
    return tuple(trace.lines)


# --- counts -------------------------------------------------------------------------------------------------

LATE: Final = "late requests"
LATE_ENDS: Final = "late EndTxns"
LATE_ENDS_REFUSED: Final = "refused late EndTxns"
TOLD: Final = {"commit: ok": "commits", "abort: ok": "aborts"}
MARKERS: Final = {TransactionResult.COMMIT: "commit markers", TransactionResult.ABORT: "abort markers"}
REACHED: Final = (LATE, LATE_ENDS, LATE_ENDS_REFUSED, *TOLD.values(), *MARKERS.values())

Times = defaultdict[tuple[int, int], int]
"""How often an actor went from one state to another, or a message reached the broker in a state."""


class ExploredCoverage:
    """How often each of REACHED happened. Pairs of states are counted here, and compared once at the end."""

    __slots__ = ("_appended", "_late", "_told", "steps")

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self._late, self._appended, self._told = Times(int), Times(int), Times(int)

    def counts(self) -> dict[str, int]:
        """By name, in the order of REACHED."""
        counts = dict.fromkeys(REACHED, 0)
        for times, words_of in (
            (self._late, self._late_words),
            (self._appended, self._marker_words),
            (self._told, self._told_words),
        ):
            for pair, count in times.items():
                for name in words_of(*pair):
                    counts[name] += count
        return counts

    def count(self, before: World, action: Transition, after: World) -> None:
        if action.kind is TransitionKind.STRAY:
            self._late[before[BROKER], action.message] += 1
        at = FIRST_CLIENT + 2 * action.client
        if before[BROKER] != after[BROKER]:
            self._appended[before[BROKER], after[BROKER]] += 1
        elif action.client >= 0 and before[at] != after[at]:
            self._told[before[at], after[at]] += 1

    def _late_words(self, broker: int, message: int) -> Iterator[str]:
        yield LATE
        arrived = self.steps.messages[message]
        if isinstance(arrived, RequestInFlight) and isinstance(arrived.request, EndTxn):
            yield LATE_ENDS
            if self.steps.late_replies.get((broker, message), NO_ERROR) is not NO_ERROR:
                yield LATE_ENDS_REFUSED

    def _marker_words(self, before: int, after: int) -> Iterator[str]:
        ends = markers(self.steps.brokers[before], self.steps.brokers[after])
        return (MARKERS[end] for end in ends)

    def _told_words(self, before: int, after: int) -> Iterator[str]:
        words = client_changes(self.steps.processes[before], self.steps.processes[after])
        return (TOLD[word] for word in words if word in TOLD)
