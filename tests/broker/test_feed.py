"""The feed of a broker: what it keeps, what it answers to whom, and that nobody has to read it."""

from __future__ import annotations

from typing import Any

import attrs
import msgpack
import pytest

from fencepost import Admin, Broker, Producer
from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.contract import Append, Input, Outcome, Reply, ReplyTo
from fencepost.broker.feed import BASE_BYTES_MAX, FeedBuffer
from fencepost.broker.limits import FOLLOWED_AT_ONCE, FOLLOWERS
from fencepost.broker.node import Node
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.frames import RequestFrame
from fencepost.testing.topic import create_topic
from tests.broker.wire import Wire, serving


def asked(
    buffer: FeedBuffer, after: int = 0, *, run: str | None = None, bytes_max: int = 1 << 20
) -> m.Follow:
    return m.Follow(run=buffer.run if run is None else run, after=after, bytes_max=bytes_max, wait_ms=0)


def events(reply: m.FollowReply) -> list[bytes]:
    return [step.event for step in reply.steps]


# --- the buffer ---------------------------------------------------------------------------------------------


def test_a_follower_gets_what_it_has_not_passed() -> None:
    buffer = FeedBuffer("a run")
    for number in range(4):
        buffer.add(b"%d" % number, {})
    assert events(buffer.after(asked(buffer, run=""))) == [b"0", b"1", b"2", b"3"]
    reply = buffer.after(asked(buffer, 3))
    assert (reply.first, reply.missed, events(reply)) == (3, 0, [b"3"])
    assert buffer.after(asked(buffer, 4)).steps == ()


def test_another_run_is_read_from_its_beginning() -> None:
    buffer = FeedBuffer("a run")
    buffer.add(b"a", {})
    for request in (asked(buffer, 1, run="another"), asked(buffer, 7)):
        reply = buffer.after(request)
        assert (reply.run, reply.first, events(reply)) == (buffer.run, 0, [b"a"])


def test_the_oldest_steps_go_and_what_they_changed_stays_known() -> None:
    buffer = FeedBuffer("a run", steps_max=2)
    for number, changes in enumerate([{"a": 1, "b": 1}, {"b": None}, {"a": 2, "c": 3}, {}]):
        buffer.add(b"%d" % number, changes)
    reply = buffer.after(asked(buffer, 1))
    assert (reply.first, reply.missed, events(reply)) == (2, 1, [b"2", b"3"])
    assert msgpack.unpackb(reply.base) == {"a": 1}
    assert buffer.after(asked(buffer, 2)).base == b""


def test_a_base_with_a_value_too_large_for_a_reply_is_left_out() -> None:
    buffer = FeedBuffer("a run", steps_max=1)
    buffer.add(b"0", {"small": 1})
    buffer.add(b"1", {"large": "x" * BASE_BYTES_MAX})
    buffer.add(b"2", {})
    assert msgpack.unpackb(buffer.after(asked(buffer)).base) == {}
    buffer.add(b"3", {"small": 2})
    buffer.add(b"4", {})
    assert msgpack.unpackb(buffer.after(asked(buffer)).base) == {"small": 2}


def test_bytes_are_bounded_too() -> None:
    buffer = FeedBuffer("a run", bytes_max=10_000)
    for _ in range(100):
        buffer.add(bytes(1_000), {})
    assert buffer.size <= 10_000
    assert buffer.first == 100 - len(buffer.after(asked(buffer, run="")).steps)
    buffer.add(bytes(20_000), {})  # alone it is too large, and the feed goes on
    assert (buffer.size, buffer.first, buffer.end) == (0, 101, 101)
    buffer.add(b"x", {})
    assert events(buffer.after(asked(buffer, 101))) == [b"x"]


def test_an_answer_is_bounded_and_always_leads_on() -> None:
    buffer = FeedBuffer("a run")
    for _ in range(2_000):
        buffer.add(bytes(1_000), {})
    assert len(buffer.after(asked(buffer, bytes_max=1)).steps) == 1
    reply = buffer.after(asked(buffer, bytes_max=1 << 30))
    assert sum(map(len, events(reply))) < FOLLOWED_AT_ONCE.value
    assert reply.steps


def test_the_state_of_a_large_broker_is_cut() -> None:
    buffer = FeedBuffer("a run", steps_max=1)
    buffer.add(b"", {f"log/{'t' * 200}-{number}": number for number in range(20_000)})
    buffer.add(b"", {})
    base = buffer.after(asked(buffer, run="")).base
    assert 0 < len(base) <= 1 << 19
    assert list(msgpack.unpackb(base).values())[-1] == 19_999


# --- at a broker --------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Appends:
    """A feed of appends alone."""

    buffer: FeedBuffer = attrs.Factory(lambda: FeedBuffer("a run"))

    def started(self, node: Node) -> None: ...
    def killed(self) -> None: ...
    def asked(self, to: ReplyTo, arrived: RequestFrame) -> None: ...
    def answered(self, answer: Reply, lost_because: str | None) -> None: ...
    def struck(self, label: str, to: ReplyTo | None) -> None: ...
    def stepped(self, arrived: Input, outcome: Outcome) -> None: ...

    def appended(self, append: Append) -> None:
        self.buffer.add(str(append.partition).encode(), {})


class Faulty(Appends):
    def appended(self, append: Append) -> None:
        raise RuntimeError("a bug")


FIRST = m.Follow(run="", after=0, bytes_max=1 << 20, wait_ms=1)
TOPIC = m.CreateTopics(topics=(m.CreateTopic(topic="t", partition_count=1),))


async def follow(wire: Wire, **fields: Any) -> m.FollowReply:
    answer = await wire.ask(attrs.evolve(FIRST, **fields))
    assert isinstance(answer.body, m.FollowReply)
    return answer.body


@pytest.mark.trio
async def test_a_broker_is_not_followed_unless_it_was_asked_to() -> None:
    async with serving() as (_, wires):
        reply = await follow(await wires.open())
        assert (reply.run, reply.steps) == ("", ())


@pytest.mark.trio
async def test_a_follower_waits_for_the_next_step() -> None:
    feed = Appends()
    async with serving(BrokerSettings(feed=feed)) as (_, wires):
        wire, app = await wires.open(), await wires.open()
        first = await follow(wire)
        assert first.run == feed.buffer.run
        seen = first.first + len(first.steps)
        (number,) = await wire.send(attrs.evolve(FIRST, run=first.run, after=seen, wait_ms=60_000))
        await app.ask(TOPIC)
        answer = await wire.answer(number)
        assert isinstance(answer.body, m.FollowReply)
        assert (answer.body.first, answer.body.missed) == (seen, 0)
        assert answer.body.steps


@pytest.mark.trio
async def test_nobody_waits_for_ever() -> None:
    async with serving(BrokerSettings(feed=Appends())) as (_, wires):
        wire = await wires.open()
        first = await follow(wire)
        reply = await follow(wire, run=first.run, after=first.first + len(first.steps))
        assert reply.steps == ()


@pytest.mark.trio
async def test_one_request_waits_for_each_connection_and_few_connections_wait() -> None:
    feed = Appends()
    waits = m.Follow(run=feed.buffer.run, after=0, bytes_max=1, wait_ms=60_000)
    async with serving(BrokerSettings(feed=feed)) as (_, wires):
        feed.buffer.add(b"", {})
        waits = attrs.evolve(waits, after=feed.buffer.end)
        wire = await wires.open()
        _, second = await wire.send(waits, waits)
        assert (await wire.answer(second)).error is ErrorCode.INVALID_REQUEST
        others = [await wires.open() for _ in range(FOLLOWERS.value)]
        answers = [await other.send(waits) for other in others]
        assert (await others[-1].answer(answers[-1][0])).error is ErrorCode.POLICY_VIOLATION


def test_a_paused_broker_can_be_looked_at() -> None:
    fault = "when t-0 appends data do pause broker"
    with Broker(feed=Appends(), faults=[fault]) as broker, Producer(broker.address) as producer:
        create_topic(broker, "t")
        sent = producer.send("t", b"a", partition=0)
        broker.faults.list()[0].wait_until_struck()
        with Admin(broker.address) as admin:
            assert admin.follow().steps
            admin.end_fault(1)
        sent.result()


def test_a_bug_in_the_feed_costs_the_feed_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(feed=Faulty()) as broker, Producer(broker.address) as producer:
        create_topic(broker, "t")
        producer.send("t", b"a", partition=0).result()
        producer.send("t", b"b", partition=0).result()
    assert caplog.text.count("followers see no more steps") == 1
