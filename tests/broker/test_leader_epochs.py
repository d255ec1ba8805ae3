"""KIP-320: a reader says which leadership it knows of, and nobody answers it from another one."""

from __future__ import annotations

import pytest

from fencepost.journal.memory import MemoryFile
from fencepost.journal.segments import LOG, file_name
from fencepost.journal.storage import directory_name
from fencepost.protocol.batches import MAGIC_AT
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    DeleteRecords,
    DeleteRecordsPartition,
    FetchReply,
    ListedOffset,
    ListOffsets,
    ListOffsetsPartition,
    ListOffsetsReply,
)
from fencepost.protocol.terms import (
    EARLIEST_TIMESTAMP,
    HIGH_WATERMARK,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_OFFSET,
)
from tests.broker.cluster import Cluster
from tests.broker.requests import NOBODY, NOON, ORDERS, UNCOMMITTED, body_of, fetch_request, fetched
from tests.broker.story import Memory, Story

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


def positions(story: Story) -> dict[str, tuple[int, int]]:
    """Offset and leader epoch of what ListOffsets finds."""
    asked = {
        "earliest": EARLIEST_TIMESTAMP,
        "latest": LATEST_TIMESTAMP,
        "newest": MAX_TIMESTAMP,
        "noon": NOON,
    }
    found = {
        name: listed(story, list_request(NO_LEADER_EPOCH, timestamp)) for name, timestamp in asked.items()
    }
    return {name: (each.offset, each.leader_epoch) for name, each in found.items()}


def delete_before(story: Story, offset: int) -> None:
    part = DeleteRecordsPartition(topic=ORDERS.topic, partition=ORDERS.partition, offset=offset)
    story.ask(DeleteRecords(timeout_ms=1_000, partitions=(part,)))


def test_an_offset_comes_with_the_leader_epoch_of_its_record() -> None:
    """The answers of Apache Kafka 4.3.1, whose epochs rise by two at each restart."""
    story, nothing = Story(), (NO_OFFSET, NO_LEADER_EPOCH)
    assert positions(story) == {"earliest": (0, 0), "latest": (0, 0), "newest": nothing, "noon": nothing}
    story.produce(NOBODY, "a b", name=None)
    for epoch in (1, 2):
        story.restart()
        old = {"earliest": (0, 0), "newest": (0, 0), "noon": (0, 0)}
        assert positions(story) == {**old, "latest": (epoch + 1, epoch)}
        story.produce(NOBODY, "c", name=None)
        assert positions(story) == {**old, "latest": (epoch + 2, epoch)}
    delete_before(story, 2)
    assert positions(story) == {"earliest": (2, 1), "latest": (4, 2), "newest": (0, 0), "noon": (2, 1)}
    delete_before(story, HIGH_WATERMARK)
    story.restart()
    assert positions(story) == {"earliest": (4, 3), "latest": (4, 3), "newest": (0, 0), "noon": nothing}


def test_a_damaged_batch_does_not_hide_the_start_of_its_log() -> None:
    """The offset is known without the batch. Its reader learns of the damage from the bytes of a Fetch."""
    storage = Memory()
    story = Story(storage=storage)
    story.produce(NOBODY, "a", name=None)
    file = storage.open(f"{directory_name(ORDERS)}/{file_name(0, LOG)}")
    assert isinstance(file, MemoryFile)
    file.content[MAGIC_AT] ^= 0x80
    found = listed(story, list_request(NO_LEADER_EPOCH, EARLIEST_TIMESTAMP))
    assert (found.error, found.offset, found.leader_epoch) == (ErrorCode.NONE, 0, NO_LEADER_EPOCH)
    assert listed(story, list_request(NO_LEADER_EPOCH, NOON)).error is ErrorCode.KAFKA_STORAGE_ERROR
