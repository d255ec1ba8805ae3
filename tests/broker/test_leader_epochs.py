"""KIP-320: a reader says which leadership it knows of, and nobody answers it from another one."""

from __future__ import annotations

import pytest

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    FetchReply,
    ListedOffset,
    ListOffsets,
    ListOffsetsPartition,
    ListOffsetsReply,
)
from fencepost.protocol.terms import LATEST_TIMESTAMP, NO_LEADER_EPOCH
from tests.broker.cluster import Cluster
from tests.broker.requests import NOBODY, NOON, ORDERS, UNCOMMITTED, body_of, fetch_request, fetched
from tests.broker.story import Story

OLDER, NEWER = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH


def list_request(leader_epoch: int, timestamp: int = LATEST_TIMESTAMP) -> ListOffsets:
    part = ListOffsetsPartition(
        topic=ORDERS.topic, partition=ORDERS.partition, current_leader_epoch=leader_epoch, timestamp=timestamp
    )
    return ListOffsets(isolation_level=UNCOMMITTED, partitions=(part,))


def listed(story: Story, request: ListOffsets) -> ListedOffset:
    (found,) = body_of(story.ask(request), ListOffsetsReply).partitions
    return found


@pytest.mark.parametrize(
    ("leader_epoch", "error"),
    [(NO_LEADER_EPOCH, ErrorCode.NONE), (0, OLDER), (1, ErrorCode.NONE), (2, NEWER)],
)
def test_a_leader_answers_those_who_know_its_epoch_or_name_none(leader_epoch: int, error: ErrorCode) -> None:
    story = Story()
    story.restart()
    story.produce(NOBODY, "a", name=None)
    assert story.partition().leader_epoch == 1
    part = fetched(story.ask(fetch_request(ORDERS, UNCOMMITTED, leader_epoch=leader_epoch)))
    assert (part.error, bool(part.records)) == (error, error is ErrorCode.NONE)
    for timestamp, offset in ((LATEST_TIMESTAMP, 1), (NOON, 0)):
        found = listed(story, list_request(leader_epoch, timestamp))
        assert (found.error, found.offset) == (error, offset if error is ErrorCode.NONE else -1)


def test_a_leader_that_was_replaced_does_not_judge_a_position_from_its_heir() -> None:
    """Else the reader goes back to the start, or leaps to the end, where nothing was lost."""
    cluster = Cluster(leaders={ORDERS: 3})
    old = cluster.hosts[3].node.logs[ORDERS].partition.leader_epoch
    cluster.cut_off(3)
    cluster.move(ORDERS, 1)
    cluster.produce(NOBODY, "a b", name=None)
    known = fetch_request(ORDERS, UNCOMMITTED, offset=2, leader_epoch=old + 1)
    assert fetched(cluster.ask(3, known)).error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert fetched(cluster.ask(1, known)).error is ErrorCode.NONE
    cluster.heal()
    assert fetched(cluster.ask(3, known)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_reader_that_waits_does_not_wait_into_the_next_leadership() -> None:
    cluster = Cluster(leaders={ORDERS: 3})
    epoch = cluster.hosts[3].node.logs[ORDERS].partition.leader_epoch
    request = fetch_request(ORDERS, UNCOMMITTED, max_wait_ms=60_000, leader_epoch=epoch)
    to = cluster.offer(3, request)
    cluster.run()
    assert to not in cluster.replies
    cluster.move(ORDERS, 3)
    (part,) = body_of(cluster.replies[to], FetchReply).partitions
    assert part.error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
