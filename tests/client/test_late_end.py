"""KAFKA-17754 with a whole producer over a whole broker: an EndTxn whose first try is held up in the network
comes when the producer, told of success by its retry, has half of the next transaction written.
"""

from __future__ import annotations

import attrs
import pytest

from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS
from fencepost.client.batch import ProducerRecord
from fencepost.client.effects import Effect, Resolve, SendRequest, TransactionCall
from fencepost.client.errors import Failure
from fencepost.client.producer import ProducerMachine
from fencepost.client.settings import ProducerSettings
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import EndTxn, ReplyBody
from fencepost.protocol.terms import TransactionResult
from tests.broker.requests import ORDERS, OTHERS
from tests.broker.story import SETTINGS, Story

TURNS_MAX = 1_000


class Pair:
    """A producer, its broker, and a network that holds an EndTxn up when it is told to."""

    def __init__(self, version: int) -> None:
        settings = attrs.evolve(SETTINGS, transaction_version=TRANSACTION_VERSIONS[version])
        self.story = Story(settings=settings)
        self.producer = ProducerMachine(
            "h:1", ProducerSettings(transactional_id="pay", transaction_version=version)
        )
        self.holds = False
        self.held: SendRequest | None = None
        self.resolved: dict[TransactionCall, Failure | None] = {}
        self.hear(self.producer.init_transactions(self.story.now))
        self.settle()

    def hear(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendRequest(request=EndTxn()) if self.holds:
                    self.holds, self.held = False, effect
                    timed_out = ErrorCode.REQUEST_TIMED_OUT
                    self.hear(self.producer.on_reply(effect.token, timed_out, None, self.story.now))
                case SendRequest():
                    error, body = self.deliver(effect)
                    self.hear(self.producer.on_reply(effect.token, error, body, self.story.now))
                case Resolve():
                    self.resolved[effect.operation] = effect.failure
                case _:
                    pass

    def deliver(self, send: SendRequest) -> tuple[ErrorCode, ReplyBody | None]:
        self.story.versions = {type(send.request): send.version}
        reply = self.story.ask(send.request)
        return reply.error, reply.body

    def settle(self) -> None:
        """Time passes until the producer has nothing left to wait for."""
        for _ in range(TURNS_MAX):
            if not self.producer.awaits_coordinator and not self.producer.accumulator.batches:
                return
            self.story.wait(10)
            self.hear(self.producer.wake(self.story.now))
        raise AssertionError("the producer waits forever")

    def send(self, value: bytes, partition: int) -> None:
        now = self.story.now
        record = ProducerRecord("orders", value, partition=partition)
        for _ in range(2):  # the topic is unknown at first
            if self.producer.append(record, now=now, wall_ms=now) is not None:
                break
            self.hear(self.producer.wake(now))
        self.hear(self.producer.flush(now))
        self.settle()

    def end(self, result: TransactionResult) -> None:
        call = self.producer.commit if result is TransactionResult.COMMIT else self.producer.abort
        self.hear(call(self.story.now))
        self.settle()
        assert self.resolved[TransactionCall[result.name]] is None


@pytest.mark.parametrize(
    ("version", "late", "seen"),
    [
        (0, ErrorCode.NONE, ("one two", "")),  # half of what was aborted is read
        (2, ErrorCode.PRODUCER_FENCED, ("one", "")),
    ],
)
def test_a_late_commit_ends_the_next_transaction(
    version: int, late: ErrorCode, seen: tuple[str, str]
) -> None:
    pair = Pair(version)
    pair.producer.begin()
    pair.send(b"one", 0)
    pair.holds = True
    pair.end(TransactionResult.COMMIT)
    pair.producer.begin()
    pair.send(b"two", 0)
    assert pair.held is not None
    assert pair.deliver(pair.held)[0] is late
    pair.send(b"more", 1)
    pair.end(TransactionResult.ABORT)
    assert (pair.story.visible(ORDERS), pair.story.visible(OTHERS)) == seen


@pytest.mark.parametrize(
    ("version", "late", "seen"),
    [
        (0, ErrorCode.NONE, ("", "more")),  # half of what was committed is lost
        (2, ErrorCode.PRODUCER_FENCED, ("two", "more")),
    ],
)
def test_a_late_abort_ends_the_next_transaction(version: int, late: ErrorCode, seen: tuple[str, str]) -> None:
    pair = Pair(version)
    pair.producer.begin()
    pair.send(b"one", 0)
    pair.holds = True
    pair.end(TransactionResult.ABORT)
    pair.producer.begin()
    pair.send(b"two", 0)
    assert pair.held is not None
    assert pair.deliver(pair.held)[0] is late
    pair.send(b"more", 1)
    pair.end(TransactionResult.COMMIT)
    assert (pair.story.visible(ORDERS), pair.story.visible(OTHERS)) == seen
