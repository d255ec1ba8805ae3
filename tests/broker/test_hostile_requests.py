"""Requests that are well-formed and mean harm: the broker answers each, and goes on serving."""

from __future__ import annotations

import attrs
import pytest

from fencepost.broker.notices import NOTICE_INTERVAL_MS, Notices
from fencepost.protocol import frames
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from tests.broker.requests import (
    ABORT,
    COMMIT,
    NOBODY,
    ORDERS,
    UNCOMMITTED,
    Identity,
    body_of,
    fetch_request,
    fetched,
    marker_request,
)
from tests.broker.story import CLIENT, Story
from tests.broker.wire import serving

# --- a Fetch that names a partition twice -----------------------------------------------------------------


def doubled_fetch(*, offset: int = 0) -> m.Fetch:
    """A Fetch that waits for data, and names one partition twice."""
    request = fetch_request(ORDERS, UNCOMMITTED, offset=offset)
    return attrs.evolve(request, partitions=request.partitions * 2, max_wait_ms=500, min_bytes=1)


def test_a_fetch_that_names_a_partition_twice_is_answered_at_its_deadline() -> None:
    story = Story()
    to = story.offer(doubled_fetch())
    story.wait(1_000)
    (part,) = body_of(story.replies[to], m.FetchReply).partitions
    assert (part.error, bytes(part.records)) == (ErrorCode.NONE, b"")


def test_a_fetch_that_names_a_partition_twice_is_answered_when_data_arrive() -> None:
    story = Story()
    to = story.offer(doubled_fetch())
    story.run()
    story.produce(NOBODY, "a", name=None)
    assert fetched(story.replies[to]).records


def test_a_client_that_named_a_partition_twice_may_disconnect() -> None:
    story = Story()
    story.offer(doubled_fetch())
    story.run()
    story.disconnect(CLIENT)
    node = story.host.node
    assert (node.fetches, node.fetches_of, node.readers) == ({}, {}, {})


# --- the same name many times: the answer is no larger than the state -------------------------------------

TIMES = 1_000


def asked_for(request: m.Request) -> object:
    """What the broker answers, on a cluster with a topic, a group, its offset and a transaction."""
    story = Story()
    me = story.identity()
    story.produce(me, "a")
    story.commit_offset(me, "g", 1)
    story.ended(me, COMMIT)
    return story.ask(request).body


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (m.Metadata(topics=("orders",) * TIMES), "topics"),
        (m.DescribeConfigs(topics=("orders",) * TIMES, node_id=None), "topics"),
        (m.DescribeGroups(groups=("g",) * TIMES), "groups"),
        (m.DescribeProducers(partitions=(ORDERS,) * TIMES), "partitions"),
        (m.OffsetFetch(group_id="g", require_stable=False, partitions=(ORDERS,) * TIMES), "offsets"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_name_that_is_given_many_times_is_answered_once(request_: m.Request, field: str) -> None:
    assert len(getattr(asked_for(request_), field)) == 1


def test_a_marker_that_names_a_partition_twice_is_written_once() -> None:
    story = Story()
    me = story.identity()
    story.produce(me, "a")
    me = Identity(me.producer_id, me.producer_epoch + 1)
    reply = story.ask(marker_request(me, ABORT, *(ORDERS,) * TIMES))
    (written,) = body_of(reply, m.WriteTxnMarkersReply).markers
    assert [part.error for part in written.partitions] == [ErrorCode.NONE]
    assert story.written() == f"a | abort {me.producer_id}/{me.producer_epoch}"


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize(
    ("who", "error"),
    [
        (Identity(-1, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (Identity(-5, 3), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (Identity(1 << 40, -1), ErrorCode.INVALID_PRODUCER_EPOCH),
        (Identity(1 << 40, -3), ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_marker_that_names_no_producer_is_not_written(
    who: Identity, error: ErrorCode, version: int
) -> None:
    story = Story()
    reply = story.ask(marker_request(who, ABORT, ORDERS, transaction_version=version))
    (written,) = body_of(reply, m.WriteTxnMarkersReply).markers
    assert [part.error for part in written.partitions] == [error]
    assert story.log() == []


@pytest.mark.trio
async def test_a_reply_larger_than_a_frame_is_an_error_for_its_client_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (_, wires):
        wire = await wires.open()
        await wire.prepare()
        for number in range(30):
            await wire.identity(f"{number:0240}")
        monkeypatch.setattr(frames, "FRAME_SIZE_MAX", 4_096)
        for _ in range(10):
            reply = await wire.ask(m.ListTransactions(states=(), producer_ids=(), duration_ms=-1))
            assert (reply.error, reply.body) == (ErrorCode.INVALID_REQUEST, None)
        assert caplog.text.count("ListTransactionsReply: a message of") == 1
        assert body_of(await wire.ask(m.Metadata(topics=None)), m.MetadataReply).topics


# --- what the broker says about them ----------------------------------------------------------------------


def test_notices_of_one_cause_are_counted_and_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    now = 0
    notices = Notices(lambda: now)
    for number in range(500):
        notices.log("bad frame", f"bad frame {number}")
    notices.log("full disk", "full disk")
    now = NOTICE_INTERVAL_MS
    notices.log("bad frame", "bad frame 500")
    assert caplog.messages == ["bad frame 0", "full disk", "bad frame 500 (499 similar since the last one)"]


def test_notices_remember_a_bounded_number_of_causes(caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices(lambda: 0)
    for number in [*range(Notices.CAUSES_MAX + 1), 0, Notices.CAUSES_MAX]:
        notices.log(f"cause {number}", f"line {number}")
    lines = caplog.messages
    assert len(lines) == Notices.CAUSES_MAX + 2  # the forgotten one is printed again, the last one is not
    assert lines[-1] == "line 0"
