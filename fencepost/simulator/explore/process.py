"""A client of an explored world: a real producer machine and the script that uses it.

Rule: a step takes one message, one lost connection or one pause, and then runs the script until it has to
wait. Where the script may commit or abort, the step leads to one client state for each.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

import attrs

from fencepost.client.batch import ProducerRecord
from fencepost.client.effects import Effect, Resolve, SendRequest, TransactionCall
from fencepost.client.errors import TransactionAborted
from fencepost.client.producer import ProducerMachine
from fencepost.client.retries import CallNumber
from fencepost.client.settings import RETRY_BACKOFF_MAX_MS, ProducerSettings, newest_producer_version
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import Clock, Shared, fork
from fencepost.protocol.messages import Produce, Request
from fencepost.protocol.terms import TransactionResult
from fencepost.simulator.explore.broker import NOW, TOPIC, ExploreConfig, ReplyInFlight, RequestInFlight

NEVER_MS: Final = 10**12  # delivery timeouts are not among the faults of these worlds
PAUSE_MAX_MS: Final = RETRY_BACKOFF_MAX_MS  # a longer wait is a timeout, not a pause


class TransactionOutcome(Enum):
    """What the client knows about its transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class ScriptStage(Enum):
    STARTING = "starting"
    BETWEEN = "between transactions"
    SENDING = "sending"
    ENDING = "ending"
    OVER = "over"


@attrs.frozen(cache_hash=True)
class ExploredTransaction:
    """One transaction as its client sees it: what it wrote, which result it requested, what it was told."""

    values: tuple[bytes, ...] = ()
    requested: TransactionResult | None = attrs.field(kw_only=True, default=None)
    outcome: TransactionOutcome = attrs.field(kw_only=True, default=TransactionOutcome.OPEN)


class PendingReply(NamedTuple):
    """What a token stands for: the node that was asked, and the slot of the request."""

    node: int
    slot: int


@attrs.define(eq=False)
class ExploredClient:
    """A producer and its script. `sent` holds what the last step sent, with its destination."""

    name: str
    machine: ProducerMachine
    config: Shared[ExploreConfig]
    retries: int
    now: Clock = NOW
    stage: ScriptStage = ScriptStage.STARTING
    attempts: tuple[ExploredTransaction, ...] = ()
    waiting: dict[CallNumber, PendingReply] = attrs.Factory(dict[int, PendingReply])
    sent: list[tuple[int, RequestInFlight]] = attrs.Factory(list[tuple[int, RequestInFlight]])

    @classmethod
    def of(cls, name: str, config: ExploreConfig) -> ExploredClient:
        """A client that has not begun."""
        settings = ProducerSettings(
            transactional_id=name,
            linger_ms=0,
            delivery_timeout_ms=NEVER_MS,
            transaction_version=newest_producer_version(config.transaction_version),
        )
        machine = ProducerMachine("127.0.0.1:1", settings)
        return cls(name=name, machine=machine, config=config, retries=config.retries)

    # --- inputs

    def start(self) -> None:
        """Ask for a producer id and for the leaders of the topic."""
        # Metadata before the search begins: otherwise each world would begin with the same look-ups.
        self.machine.partition_count(TOPIC)
        self._perform(self.machine.init_transactions(self.now))

    def hear(self, node: int, reply: ReplyInFlight) -> list[ExploredClient]:
        """A reply arrives."""
        token = next(token for token, what in self.waiting.items() if what == (node, reply.slot))
        del self.waiting[token]
        self._perform(self.machine.on_reply(token, reply.error, reply.body, self.now))
        return self.go_on()

    def lose(self, node: int) -> list[ExploredClient]:
        """The connection to a node is gone, and with it the replies expected on it."""
        lost = [token for token, what in self.waiting.items() if what.node == node]
        for token in lost:
            del self.waiting[token]
        for token in lost:
            self._perform(self.machine.on_reply(token, ErrorCode.NETWORK_EXCEPTION, None, self.now))
        return self.go_on()

    def wake(self) -> list[ExploredClient]:
        """Every pause ends. Which would end first is not distinguished: durations are not known here."""
        self.now += PAUSE_MAX_MS
        self._perform(self.machine.wake(self.now))
        return self.go_on()

    @property
    def pauses(self) -> bool:
        """Whether the client waits for time alone."""
        times = (self.machine.accumulator.wake_at(self.now), self.machine.calls.wake_at(self.now))
        return any(at is not None and at <= self.now + PAUSE_MAX_MS for at in times)

    def awaits(self, node: int) -> bool:
        """Whether a reply from this node is outstanding."""
        return any(what.node == node for what in self.waiting.values())

    # --- the script

    def go_on(self) -> list[ExploredClient]:
        """Run the script until it has to wait; one client state for each way it can decide."""
        while True:
            if self.machine.is_over:
                self.stage = ScriptStage.OVER
            elif self.stage is ScriptStage.BETWEEN and len(self.attempts) < self.config.transactions:
                self.machine.begin()
                self.attempts = (*self.attempts, ExploredTransaction())
                self.stage = ScriptStage.SENDING
                continue
            elif self.stage is ScriptStage.SENDING and not self.machine.accumulator.batches:
                if self.machine.failure is not None:
                    self._end(TransactionResult.ABORT)
                elif len(self.attempts[-1].values) < self.config.partitions:
                    self._send()
                else:
                    return self._decide()
                continue
            return [self]

    def _send(self) -> None:
        attempt, partition = self.attempts[-1], len(self.attempts[-1].values)
        value = f"{self.name}.{len(self.attempts)}.{partition}".encode()
        place = self.machine.append(
            ProducerRecord(TOPIC, value, partition=partition), now=self.now, wall_ms=NOW
        )
        assert place is not None, "the topic is known from the start"
        self._remember(attrs.evolve(attempt, values=(*attempt.values, value)))
        self._perform(self.machine.wake(self.now))

    def _decide(self) -> list[ExploredClient]:
        ways: list[ExploredClient] = []
        for result in self.config.ends:
            # Both ways from one state: what a script may do is a choice, not a fault.
            twin = fork(self)
            twin._end(result)
            ways += twin.go_on()
        return ways

    def _end(self, result: TransactionResult) -> None:
        self._remember(attrs.evolve(self.attempts[-1], requested=result))
        self.stage = ScriptStage.ENDING
        end = self.machine.commit if result is TransactionResult.COMMIT else self.machine.abort
        self._perform(end(self.now))

    def _remember(self, attempt: ExploredTransaction) -> None:
        self.attempts = (*self.attempts[:-1], attempt)

    # --- what the machine wants

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendRequest():
                    taken = {what.slot for what in self.waiting.values()}
                    slot = next(n for n in range(len(taken) + 1) if n not in taken)
                    self.waiting[effect.token] = PendingReply(effect.node_id, slot)
                    question = RequestInFlight(slot, _frozen(effect.request), effect.version)
                    self.sent.append((effect.node_id, question))
                case Resolve():
                    self._resolved(effect)
                case _:
                    continue

    def _resolved(self, effect: Resolve) -> None:
        match effect.operation, effect.failure:
            case TransactionCall.INIT_TRANSACTIONS, None:
                self.stage = ScriptStage.BETWEEN
            case TransactionCall.COMMIT, None:
                self._ended(TransactionOutcome.COMMITTED)
            case TransactionCall.ABORT, None:
                self._ended(TransactionOutcome.ABORTED)
            case TransactionCall.COMMIT, failure if failure.kind is TransactionAborted:
                self._end(TransactionResult.ABORT)
            case _:
                self._ended(TransactionOutcome.UNKNOWN)

    def _ended(self, outcome: TransactionOutcome) -> None:
        self._remember(attrs.evolve(self.attempts[-1], outcome=outcome))
        self.stage = ScriptStage.BETWEEN


def _frozen(request: Request) -> Request:
    """The request as it travels: with a copy of its batches, which the producer may change later."""
    if not isinstance(request, Produce):
        return request
    parts = tuple(attrs.evolve(part, records=bytes(part.records)) for part in request.partitions)
    return attrs.evolve(request, partitions=parts)
