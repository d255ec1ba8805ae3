"""Requests of every message type with extreme meaning: each is answered once, what is refused changes
nothing, and the log tells the whole state.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any, Final, get_type_hints

import attrs
import pytest

from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.contract import Append, Input, Outcome, Refused, ReplyTo
from fencepost.broker.node import Node
from fencepost.protocol import messages as m
from fencepost.protocol.codec import STRING_LENGTH_MAX, Payload, decode, encode
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import API_BY_REQUEST, APIS
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.actors import extremes as extreme_requests
from fencepost.simulator.actors.extremes import KINDS, Extremes, Names, least_size
from fencepost.simulator.world.choices import Choices
from tests.broker.requests import (
    COMMIT,
    NOBODY,
    NOON,
    OTHERS,
    UNCOMMITTED,
    fetch_request,
    fetched,
    produce_request,
    produced,
)
from tests.broker.story import SETTINGS, Story
from tests.broker.wire import Wire, serving

STRANGE_TOPIC: Final = m.CreateTopic(topic="strange", partition_count=2)
MONTH_MS: Final = 31 * 24 * 3600 * 1000  # longer than 2^31 - 1 ms, the longest wait of a request
REFUSALS: Final = frozenset(
    {
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Errors of whole requests that were not carried out."""


def test_a_request_that_no_frame_can_hold_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lists repeat one object, so it is small until then; one of 23 GB was drawn."""
    drawn: list[m.Request] = [
        m.DescribeGroups(groups=("x" * 32_000,) * 10_000),
        m.DescribeGroups(groups=("x",)),
    ]
    assert least_size(drawn[0]) == 320_000_000
    assert least_size((m.DeleteGroups(groups=("x", "yz")),) * 2) == 6
    encoded: list[m.Request] = []

    def next_drawn(*_: object) -> m.Request:
        return drawn.pop(0)

    def note_request(request: m.Request, **_: int) -> None:
        encoded.append(request)

    monkeypatch.setattr(Extremes, "message", next_drawn)
    monkeypatch.setattr(extreme_requests, "encode_request", note_request)
    assert extremes(1).request() == m.DescribeGroups(groups=("x",))
    assert encoded == [m.DescribeGroups(groups=("x",))]


def extremes(seed: int, story: Story | None = None) -> Extremes:
    names = Names(
        topics=("strange", "orders"),
        groups=("g",),
        transactional_ids=("pay", "stranger"),
        now_ms=lambda: NOON if story is None else story.now,
    )
    return Extremes(Choices(seed), names)


# --- the requests themselves ------------------------------------------------------------------------------


def test_every_message_type_is_drawn_with_every_field() -> None:
    """A message that is added is drawn without a line here, or this test fails at its annotation."""
    assert set(KINDS) == {api.request for api in APIS}
    drawn = extremes(1)
    seen: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for kind in KINDS:
        for _ in range(30):
            note(drawn.message(kind), seen)
    for kind in KINDS:
        for field in get_type_hints(kind):
            assert len(seen[kind.__name__, field]) > 1, f"{kind.__name__}.{field} is always the same"


def note(message: m.Request, seen: defaultdict[tuple[str, str], set[str]]) -> None:
    for field in get_type_hints(type(message)):
        value: object = getattr(message, field)
        shown = f"{value!r:.500}" if sys.getsizeof(value) < 1_000 else "long"
        seen[type(message).__name__, field].add(shown)


def test_drawn_requests_have_a_valid_structure() -> None:
    drawn = extremes(2)
    for _ in range(150):
        request = drawn.request()
        payload: list[Any] = []
        found = decode(type(request), encode(request, payload), Payload(b"".join(map(bytes, payload))))
        assert encode(found, []) == encode(request, [])


# --- in memory ---------------------------------------------------------------------------------------------


class WatchedStory(Story):
    """Keeps what a request appended."""

    appended: tuple[Append, ...] = ()

    def saw(self, arrived: Input, outcome: Outcome) -> None:
        self.appended += tuple(outcome.appends)


def prepared() -> WatchedStory:
    """A broker with a topic, a group with an offset, and a transaction that is over and one that is open."""
    story = WatchedStory()
    story.create("strange", 2)
    me = story.identity()
    story.produce(me, "a")
    story.commit_offset(me, "g", 1)
    me = story.ended(me, COMMIT)
    story.produce(me, "b")
    return story


def states(story: Story) -> dict[TopicPartition, Any]:
    return {key: story.host.node.state_of(key) for key in story.host.node.logs}


def test_extreme_batches_get_past_the_topic_id() -> None:
    story = prepared()
    drawn, errors = extremes(3, story), set[ErrorCode]()
    for _ in range(150):
        to = story.offer(drawn.message(m.Produce))
        story.run()
        reply = story.replies.get(to)
        if reply is not None and isinstance(reply.body, m.ProduceReply):
            errors |= {part.error for part in reply.body.partitions}
    assert {ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_TOPIC_ID} <= errors


@pytest.mark.parametrize("seed", range(8))
def test_each_extreme_request_is_answered_once_and_the_log_tells_all(seed: int) -> None:
    story = prepared()
    drawn, open_ = extremes(seed, story), dict[Any, m.Request]()
    for _ in range(100):
        request = drawn.request()
        before, story.appended = states(story), ()
        story.now += 1
        api = API_BY_REQUEST[type(request)]
        story.versions = {type(request): drawn.choices.one_of(range(api.minimum, api.maximum + 1))}
        to = story.offer(request)
        story.run()  # `Story.work` finds a second answer
        reply = story.replies.get(to)
        if reply is None:
            open_[to] = request
        else:
            assert_can_be_sent(reply.body)
            if reply.error in REFUSALS:
                assert (story.appended, states(story)) == ((), before), (request, reply)
        if not story.appended and not isinstance(request, m.DeleteRecords):  # its result is in a file
            changed = [key for key, state in states(story).items() if before.get(key, state) != state]
            assert changed == [], f"{request!r:.500} changed what is in no log"
    story.check_recovery()
    story.now += MONTH_MS
    story.run()
    story.settle()
    assert [request for to, request in open_.items() if to not in story.replies] == []
    story.restart()


@pytest.mark.parametrize(
    "request_",
    [
        m.DeleteTopics(topics=("x" * STRING_LENGTH_MAX,)),
        m.CreateTopics(
            topics=(
                m.CreateTopic(
                    topic="t",
                    partition_count=1,
                    configs=(m.TopicConfig(name="n", value="v" * STRING_LENGTH_MAX),),
                ),
            )
        ),
    ],
    ids=lambda request_: type(request_).__name__,
)
def test_a_reason_that_quotes_a_long_text_is_no_longer_than_a_text(request_: m.Request) -> None:
    assert_can_be_sent(Story().ask(request_).body)


def assert_can_be_sent(body: m.ReplyBody | None) -> None:
    if body is not None:
        payload: list[Any] = []
        written = encode(body, payload)
        found = decode(type(body), written, Payload(b"".join(map(bytes, payload))))
        assert encode(found, []) == written


# --- over a socket -----------------------------------------------------------------------------------------


@attrs.define
class Canary:
    """A client that goes on with its work: each record that is acknowledged is there, once, in its order."""

    wire: Wire
    written: int = 0

    async def sings(self) -> None:
        values = f"canary-{self.written}"
        request = produce_request(NOBODY, {OTHERS: values}, name=None)
        assert produced(await self.wire.ask(request))[OTHERS].base_offset == self.written
        found = fetched(await self.wire.ask(fetch_request(OTHERS, UNCOMMITTED, offset=self.written)))
        assert values.encode() in bytes(found.records)
        self.written += 1


@pytest.mark.trio
async def test_a_canary_sings_through_extreme_requests(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(BrokerSettings(), contains_failures=True) as (_, wires):
        canary = Canary(await wires.open())
        await canary.wire.prepare()
        drawn = attrs.evolve(extremes(3), names=attrs.evolve(extremes(3).names, topics=("strange",)))
        for number in range(150):
            stranger = await wires.open()  # one that parks a Fetch is not read any further
            await stranger.send(m.CreateTopics(topics=(STRANGE_TOPIC,)), drawn.request())
            if number % 10 == 0:
                await canary.sings()
        await canary.sings()
    assert "a bug in the broker" not in caplog.text


def test_what_a_request_was_refused_for_before_is_not_copied() -> None:
    node = Node(SETTINGS)
    noted = node.outcome.rulings
    for number in range(3):
        node.note_ruling(
            ReplyTo(1, 1), Refused(ErrorCode.INVALID_REQUEST), partition=TopicPartition("none", number)
        )
    assert node.outcome.rulings is noted
    assert [ruling.partition for ruling in noted] == [TopicPartition("none", number) for number in range(3)]
