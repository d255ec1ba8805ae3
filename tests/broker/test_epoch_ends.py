"""Where leader epochs end (KIP-320): a reader compares it with its position."""

from __future__ import annotations

import pytest

from fencepost.journal.journal import JournalSettings
from fencepost.journal.segments import LOG, file_name
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import directory_name
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import HIGH_WATERMARK, NO_LEADER_EPOCH, NO_OFFSET, TopicPartition
from tests.broker.disks import keeps_nothing
from tests.broker.requests import NOBODY, ORDERS, body_of
from tests.broker.story import Story

UNKNOWN = (NO_LEADER_EPOCH, NO_OFFSET)


def asked(
    story: Story, leader_epoch: int, *, current: int = NO_LEADER_EPOCH, key: TopicPartition = ORDERS
) -> m.EpochEndOffset:
    part = m.LeaderEpochPartition(
        topic=key.topic, partition=key.partition, current_leader_epoch=current, leader_epoch=leader_epoch
    )
    body = body_of(story.ask(m.OffsetForLeaderEpoch(partitions=(part, part))), m.OffsetForLeaderEpochReply)
    (found,) = body.partitions
    return found


def end_of(story: Story, leader_epoch: int) -> tuple[int, int]:
    found = asked(story, leader_epoch)
    assert found.error is ErrorCode.NONE
    return found.leader_epoch, found.end_offset


def now_led(story: Story) -> int:
    return story.host.node.logs[ORDERS].partition.leader_epoch


@pytest.mark.parametrize(("segment_bytes", "count"), [(1_000_000, 2), (1_000_000, 200), (300, 20)])
def test_each_epoch_ends_where_the_next_one_begins(segment_bytes: int, count: int) -> None:
    story = Story(journal=JournalSettings(segment_bytes=segment_bytes))
    epochs: list[int] = []
    for _ in range(3):
        epochs.append(now_led(story))
        for number in range(count):
            assert story.produce(NOBODY, f"x{number}", name=None).error is ErrorCode.NONE
        story.restart()
        story.restart()  # an epoch without a record
    assert [end_of(story, epoch) for epoch in epochs] == [
        (epoch, number * count) for number, epoch in enumerate(epochs, start=1)
    ]
    assert [end_of(story, epoch + 1) for epoch in epochs] == [
        (epoch, number * count) for number, epoch in enumerate(epochs, start=1)
    ]
    assert end_of(story, now_led(story)) == (now_led(story), 3 * count)
    assert end_of(story, now_led(story) + 1) == UNKNOWN


def test_what_apache_kafka_4_3_1_says_of_an_empty_log() -> None:
    story, current = Story(), 0
    assert now_led(story) == current
    assert [end_of(story, epoch) for epoch in (-1, 0, 1, -2)] == [UNKNOWN, (0, 0), UNKNOWN, (-2, 0)]
    assert asked(story, 0, current=1).error is ErrorCode.UNKNOWN_LEADER_EPOCH
    nowhere = asked(story, 0, key=TopicPartition("nowhere", 0))
    assert nowhere.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (nowhere.leader_epoch, nowhere.end_offset) == UNKNOWN


def test_a_reader_with_an_older_leadership_is_fenced() -> None:
    story = Story()
    story.restart()
    assert asked(story, 0, current=0).error is ErrorCode.FENCED_LEADER_EPOCH


def test_epochs_whose_records_were_deleted_end_where_the_rest_begins() -> None:
    story = Story(journal=JournalSettings(segment_bytes=300))
    for _ in range(2):
        for number in range(10):
            assert story.produce(NOBODY, f"x{number}", name=None).error is ErrorCode.NONE
        story.restart()
    deleted = m.DeleteRecordsPartition(topic=ORDERS.topic, partition=0, offset=HIGH_WATERMARK)
    story.ask(m.DeleteRecords(timeout_ms=0, partitions=(deleted,)))
    story.settle()
    assert end_of(story, 0)[1] >= 10
    assert end_of(story, 1) == (1, 20)


@pytest.mark.parametrize("damaged", [3, 9, 10])
def test_a_damaged_leader_epoch_is_no_end(damaged: int) -> None:
    """No checksum covers it. Believed, it would send readers back over records that they have had."""
    storage = SimulatedStorage(keeps_nothing)
    story = Story(storage=storage)
    path = f"{directory_name(ORDERS)}/{file_name(0, LOG)}"
    places: list[int] = []
    for number in range(11):
        if number == 10:
            story.restart()
        places.append(len(storage.read_file(path) or b""))
        assert story.produce(NOBODY, f"x{number}", name=None).error is ErrorCode.NONE
    assert end_of(story, 0) == (0, 10)
    # A batch has its leader epoch after its base offset and its length: 7 is that of a leader to come.
    storage.overwrite(path, places[damaged] + 12, (7).to_bytes(4, "big"))
    assert asked(story, 0).error is ErrorCode.KAFKA_STORAGE_ERROR
