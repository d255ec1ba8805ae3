"""Requests that are well-formed and mean harm: the broker answers each, and goes on serving."""

from __future__ import annotations

import attrs

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import Fetch, FetchReply
from tests.broker.requests import NOBODY, ORDERS, UNCOMMITTED, body_of, fetch_request, fetched
from tests.broker.story import CLIENT, Story

# --- a Fetch that names a partition twice -----------------------------------------------------------------


def doubled_fetch(*, offset: int = 0) -> Fetch:
    """A Fetch that waits for data, and names one partition twice."""
    request = fetch_request(ORDERS, UNCOMMITTED, offset=offset)
    return attrs.evolve(request, partitions=request.partitions * 2, max_wait_ms=500, min_bytes=1)


def test_a_fetch_that_names_a_partition_twice_is_answered_at_its_deadline() -> None:
    story = Story()
    to = story.offer(doubled_fetch())
    story.wait(1_000)
    (part,) = body_of(story.replies[to], FetchReply).partitions
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
    assert (story.host.node.fetches, story.host.node.readers) == ({}, {})
