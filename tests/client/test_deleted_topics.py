"""Topics that were deleted: a client asks for their metadata while it uses them, and then no more."""

from __future__ import annotations

from math import inf

import attrs
import pytest

from fencepost.client.batch import ProducerRecord
from fencepost.client.calls import Wait
from fencepost.client.consumer import ConsumerMachine
from fencepost.client.effects import CallAnswered, Effect, SendRequest
from fencepost.client.errors import UnknownTopic
from fencepost.client.producer import ProducerMachine
from fencepost.client.producer_calls import ProducerCalls
from fencepost.client.requests import RequestMachine
from fencepost.client.settings import (
    METADATA_MAX_IDLE_MS,
    RETRY_BACKOFF_MAX_MS,
    ConsumerSettings,
    ProducerSettings,
)
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from tests.client.conversation import PRODUCER_ID, Talk

HERE, ELSEWHERE = TopicPartition("gone", 0), TopicPartition("kept", 0)
MINUTE_MS = 60_000


class Deletions(Talk):
    """A conversation in which the topic `gone` exists until `is_deleted`; it notes what metadata is for."""

    is_deleted = False
    is_silent = False
    """No request is answered."""

    def __init__(self, machine: ProducerMachine | ConsumerMachine) -> None:
        super().__init__(machine)
        self.asked: list[tuple[int, tuple[str, ...]]] = []

    def hear(self, effects: list[Effect]) -> None:
        if self.is_silent:
            self.sent += [effect for effect in effects if isinstance(effect, SendRequest)]
        else:
            super().hear(effects)

    def metadata(self, request: m.Metadata) -> m.MetadataReply:
        reply = super().metadata(request)
        self.asked.append((self.now, request.topics or ()))
        if not self.is_deleted:
            return reply
        gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topics = [
            attrs.evolve(topic, error=gone, partitions=()) if topic.topic == "gone" else topic
            for topic in reply.topics
        ]
        return attrs.evolve(reply, topics=tuple(topics))

    def delete(self) -> None:
        """Deletes the topic; the client looks for a leader again."""
        self.is_deleted = True
        self.machine.cluster.forget_leader(HERE)
        self.hear(self.machine.wake(self.now))

    def asks_for(self, topic: str, during_ms: int) -> int:
        """How often the client asks for a topic in this time, which must be soon again or not at all."""
        self.asked.clear()
        self.after(during_ms)
        return sum(topic in topics for _, topics in self.asked)

    @property
    def producer(self) -> ProducerMachine:
        """The machine."""
        assert isinstance(self.machine, ProducerMachine)
        return self.machine

    def send(self, topic: str) -> None:
        """One record, which is stored if its topic exists."""
        machine = self.producer
        place = machine.append(
            ProducerRecord(topic, b"x", None, 0, None, None, None), now=self.now, wall_ms=0
        )
        self.hear(machine.flush(self.now))
        for send in [send for send in self.sent if isinstance(send.request, m.InitProducerId)]:
            self.reply(send, m.InitProducerIdReply(producer_id=PRODUCER_ID, producer_epoch=0))
        if place is None:
            return
        for send in [send for send in self.sent if isinstance(send.request, m.Produce)]:
            stored = m.ProducedPartition(
                topic=topic, partition=0, error=ErrorCode.NONE, base_offset=0, log_start_offset=0
            )
            self.reply(send, m.ProduceReply(partitions=(stored,)))
        assert place[0].is_done


class Waiting:
    """What a script of a call needs of its driver."""

    wall_ms = 0
    cancelled = ()

    def __init__(self, talk: Deletions) -> None:
        self._talk = talk
        self.resolved, self.answers = talk.resolved, dict[int, CallAnswered]()

    @property
    def now(self) -> int:
        return self._talk.now

    def perform(self, effects: list[Effect]) -> None:
        self._talk.hear(effects)

    def check_running(self) -> None:
        """It always runs."""


def producing() -> Deletions:
    talk = Deletions(ProducerMachine("h:1", ProducerSettings()))
    for topic in ("gone", "kept"):
        talk.send(topic)  # asks for the topic
        talk.send(topic)
    return talk


def reading(*partitions: TopicPartition) -> Deletions:
    machine = ConsumerMachine("h:1", ConsumerSettings())
    talk = Deletions(machine)
    machine.assign(partitions)
    talk.hear(machine.wake(talk.now))
    return talk


def test_a_producer_forgets_a_deleted_topic_five_minutes_after_its_last_record() -> None:
    talk = producing()
    talk.delete()
    assert talk.asks_for("gone", MINUTE_MS) >= MINUTE_MS // RETRY_BACKOFF_MAX_MS - 1
    talk.after(METADATA_MAX_IDLE_MS)
    assert talk.asks_for("gone", 60 * MINUTE_MS) == 0
    assert not talk.asked, "and it asks for nothing else"


def test_a_producer_asks_again_when_it_sends_to_the_topic() -> None:
    talk = producing()
    talk.delete()
    talk.after(2 * METADATA_MAX_IDLE_MS)
    talk.is_deleted = False
    talk.send("gone")
    assert talk.asked[-1][1] == ("gone",)
    talk.send("gone")  # is stored


def test_a_producer_keeps_the_topics_that_it_uses() -> None:
    talk = producing()
    for _ in range(10):
        talk.after(METADATA_MAX_IDLE_MS // 2)
        talk.send("kept")
    talk.delete()
    talk.after(MINUTE_MS)
    assert talk.asked[-1][1] == ("kept",)


def test_a_caller_that_waits_for_a_topic_keeps_it_in_use() -> None:
    """For hours, as a call without a limit does; at first, no broker answers."""
    talk = producing()
    talk.delete()
    talk.after(RETRY_BACKOFF_MAX_MS)
    talk.producer.cluster.drop(["gone"])
    talk.is_silent = True
    script = ProducerCalls(talk.producer, Waiting(talk)).route("gone", inf)
    wait = next(script)
    assert isinstance(wait, Wait)
    for minute in range(60):
        talk.is_silent = minute < 10
        talk.after(MINUTE_MS)
        while wait.until():
            wait = next(script)
            assert isinstance(wait, Wait)
    talk.is_deleted = False
    talk.after(2 * RETRY_BACKOFF_MAX_MS)
    assert wait.until()
    with pytest.raises(StopIteration):
        next(script)


def test_a_consumer_asks_with_backoff_for_a_deleted_topic_while_it_is_assigned() -> None:
    talk = reading(HERE, ELSEWHERE)
    talk.delete()
    asked = talk.asks_for("gone", 10 * MINUTE_MS)
    assert 10 * MINUTE_MS // RETRY_BACKOFF_MAX_MS - 20 <= asked <= 10 * MINUTE_MS // RETRY_BACKOFF_MAX_MS + 20


def test_a_consumer_forgets_a_deleted_topic_that_is_no_longer_assigned() -> None:
    talk = reading(HERE, ELSEWHERE)
    talk.delete()
    assert isinstance(talk.machine, ConsumerMachine)
    talk.after(MINUTE_MS)
    with pytest.raises(UnknownTopic):
        talk.machine.take()
    talk.machine.assign([ELSEWHERE])
    talk.after(2 * RETRY_BACKOFF_MAX_MS)
    assert talk.asks_for("gone", 60 * MINUTE_MS) == 0
    assert not talk.asked, "and it asks for nothing else"


def test_an_admin_forgets_the_topic_of_a_call_that_has_ended() -> None:
    machine = RequestMachine("h:1")
    part = m.ListOffsetsPartition(topic="gone", partition=0, timestamp=-1)
    request = m.ListOffsets(isolation_level=IsolationLevel.READ_UNCOMMITTED, partitions=(part,))
    machine.calls.submit(request, HERE, 5_000)
    missing = m.TopicMetadata(
        topic="gone", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, is_internal=False, partitions=()
    )
    node = m.NodeAddress(node_id=1, host="h", port=1)
    asked: list[int] = []
    for now in range(0, 60_000, 100):
        for effect in machine.wake(now):
            if isinstance(effect, SendRequest) and isinstance(effect.request, m.Metadata):
                topics = (missing,) if "gone" in (effect.request.topics or ()) else ()
                if topics:
                    asked.append(now)
                reply = m.MetadataReply(cluster_id="c", controller_id=1, nodes=(node,), topics=topics)
                assert not [
                    again
                    for again in machine.on_reply(effect.token, ErrorCode.NONE, reply, now)
                    if isinstance(again, SendRequest)
                ]
    assert 3 < len(asked) < 20
    assert asked[-1] < 5_000 + 2 * RETRY_BACKOFF_MAX_MS
