"""A client process of an explored world: a real producer machine, and the script that uses it.

Rule: a step takes one message, loss or pause that is over, and everything that the script then does until it
has to wait. Where the script may decide one way or the other, a step leads to several processes.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

import attrs

from fencepost.client.effects import Effect, Operation, Resolve, Send
from fencepost.client.errors import TransactionAborted
from fencepost.client.producer import ProducerMachine
from fencepost.client.retries import CallNumber
from fencepost.client.settings import RETRY_BACKOFF_MAX_MS
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import Produce, Request
from fencepost.protocol.states import Clock, Shared, fork
from fencepost.protocol.terms import TransactionResult
from fencepost.simulator.explore.broker import NOW, Answer, Question

TOPIC: Final = "t"
PAUSE_MAX_MS: Final = (
    RETRY_BACKOFF_MAX_MS  # what a client waits for longer than this is a timeout, not a pause
)


class Outcome(Enum):
    """What the client was told of its transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Stage(Enum):
    """Where a script stands."""

    STARTING = "starting"
    BETWEEN = "between transactions"
    SENDING = "sending"
    ENDING = "ending"
    OVER = "over"


@attrs.frozen(cache_hash=True)
class Attempt:
    """One transaction as its client sees it."""

    values: tuple[bytes, ...] = ()
    wait: TransactionResult | None = attrs.field(kw_only=True, default=None)
    outcome: Outcome = attrs.field(kw_only=True, default=Outcome.OPEN)


@attrs.frozen(kw_only=True)
class Plan:
    """What every script does: so many transactions, each with one value for each partition."""

    transactions: int
    partitions: int
    ends: tuple[TransactionResult, ...] = (TransactionResult.COMMIT, TransactionResult.ABORT)


class Waiting(NamedTuple):
    """What a token stands for: the node that was asked, and the number of the question."""

    node: int
    slot: int


@attrs.define(eq=False)
class Process:
    """A producer and its script. `sent` is what the last step sent, by node."""

    name: str
    machine: ProducerMachine
    plan: Shared[Plan]
    retries: int
    now: Clock = NOW
    stage: Stage = Stage.STARTING
    attempts: tuple[Attempt, ...] = ()
    waiting: dict[CallNumber, Waiting] = attrs.Factory(dict[int, Waiting])
    sent: list[tuple[int, Question]] = attrs.Factory(list[tuple[int, Question]])

    # --- inputs

    def start(self) -> None:
        """Before anything is explored: the identity, and where the topic's partitions are led."""
        self.machine.partition_count(TOPIC)
        self._perform(self.machine.init_transactions(self.now))

    def hear(self, node: int, answer: Answer) -> list[Process]:
        """An answer arrives."""
        token = next(token for token, what in self.waiting.items() if what == (node, answer.slot))
        del self.waiting[token]
        self._perform(self.machine.on_reply(token, answer.error, answer.body, self.now))
        return self.go_on()

    def lose(self, node: int) -> list[Process]:
        """The connection to a node is gone, and with it the answers that were awaited on it."""
        lost = [token for token, what in self.waiting.items() if what.node == node]
        for token in lost:
            del self.waiting[token]
        for token in lost:
            self._perform(self.machine.on_reply(token, ErrorCode.NETWORK_EXCEPTION, None, self.now))
        return self.go_on()

    def wake(self) -> list[Process]:
        """Every pause is over: which ends first is not told apart, for how long they take is not known
        here.
        """
        self.now += PAUSE_MAX_MS
        self._perform(self.machine.wake(self.now))
        return self.go_on()

    @property
    def pauses(self) -> bool:
        """Whether something waits for nothing but time."""
        times = (self.machine.accumulator.wake_at(self.now), self.machine.calls.wake_at(self.now))
        return any(at is not None and at <= self.now + PAUSE_MAX_MS for at in times)

    def awaits(self, node: int) -> bool:
        """Whether an answer of this node is awaited."""
        return any(what.node == node for what in self.waiting.values())

    # --- the script

    def go_on(self) -> list[Process]:
        """Everything that the script does before it has to wait: a process for each way to decide."""
        while True:
            if self.machine.is_over:
                self.stage = Stage.OVER
            elif self.stage is Stage.BETWEEN and len(self.attempts) < self.plan.transactions:
                self.machine.begin()
                self.attempts = (*self.attempts, Attempt())
                self.stage = Stage.SENDING
                continue
            elif self.stage is Stage.SENDING and not self.machine.accumulator.batches:
                if self.machine.failure is not None:
                    self._end(TransactionResult.ABORT)
                elif len(self.attempts[-1].values) < self.plan.partitions:
                    self._send()
                else:
                    return self._decide()
                continue
            return [self]

    def _send(self) -> None:
        attempt, partition = self.attempts[-1], len(self.attempts[-1].values)
        value = f"{self.name}.{len(self.attempts)}.{partition}".encode()
        place = self.machine.append(TOPIC, value, partition=partition, now=self.now, wall_ms=NOW)
        assert place is not None, "the topic is known from the start"
        self._remember(attrs.evolve(attempt, values=(*attempt.values, value)))
        self._perform(self.machine.wake(self.now))

    def _decide(self) -> list[Process]:
        ways: list[Process] = []
        for wait in self.plan.ends:
            twin = fork(self)
            twin._end(wait)
            ways += twin.go_on()
        return ways

    def _end(self, wait: TransactionResult) -> None:
        self._remember(attrs.evolve(self.attempts[-1], wait=wait))
        self.stage = Stage.ENDING
        end = self.machine.commit if wait is TransactionResult.COMMIT else self.machine.abort
        self._perform(end(self.now))

    def _remember(self, attempt: Attempt) -> None:
        self.attempts = (*self.attempts[:-1], attempt)

    # --- what the machine wants

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    taken = {what.slot for what in self.waiting.values()}
                    slot = next(n for n in range(len(taken) + 1) if n not in taken)
                    self.waiting[effect.token] = Waiting(effect.node_id, slot)
                    question = Question(slot, _frozen(effect.request), effect.version)
                    self.sent.append((effect.node_id, question))
                case Resolve():
                    self._resolved(effect)
                case _:
                    continue

    def _resolved(self, effect: Resolve) -> None:
        match effect.operation, effect.failure:
            case Operation.INIT_TRANSACTIONS, None:
                self.stage = Stage.BETWEEN
            case Operation.COMMIT, None:
                self._ended(Outcome.COMMITTED)
            case Operation.ABORT, None:
                self._ended(Outcome.ABORTED)
            case Operation.COMMIT, failure if failure.kind is TransactionAborted:
                self._end(TransactionResult.ABORT)
            case _:
                self._ended(Outcome.UNKNOWN)

    def _ended(self, outcome: Outcome) -> None:
        self._remember(attrs.evolve(self.attempts[-1], outcome=outcome))
        self.stage = Stage.BETWEEN


def _frozen(request: Request) -> Request:
    """The request as it goes over the wire: its batches are the sender's no more."""
    if not isinstance(request, Produce):
        return request
    parts = tuple(attrs.evolve(part, records=bytes(part.records)) for part in request.partitions)
    return attrs.evolve(request, partitions=parts)
