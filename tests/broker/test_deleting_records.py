"""DeleteRecords: the log start moves, whatever transactions are open, and stays moved."""

from __future__ import annotations

import pytest

from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.journal import JournalSettings
from fencepost.journal.manifest import LOG_START_FILE
from fencepost.journal.memory import MemoryStorage
from fencepost.journal.segments import SNAPSHOT
from fencepost.journal.storage import StorageError
from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    ConfigChange,
    DeletedRecords,
    DeleteRecords,
    DeleteRecordsPartition,
    DeleteRecordsReply,
    FetchReply,
    IncrementalAlterConfigs,
    TopicConfigChanges,
)
from fencepost.protocol.terms import (
    HIGH_WATERMARK,
    METADATA_PARTITION,
    NO_OFFSET,
    ConfigOperation,
    TopicPartition,
)
from tests.broker.requests import (
    ABORT,
    COMMIT,
    NOBODY,
    ORDERS,
    Identity,
    body_of,
    fetch_request,
    visible_values,
)
from tests.broker.story import Memory, Story, transaction_log_of


def request(offset: int, key: TopicPartition = ORDERS) -> DeleteRecords:
    part = DeleteRecordsPartition(topic=key.topic, partition=key.partition, offset=offset)
    return DeleteRecords(timeout_ms=1_000, partitions=(part,))


def deleted(story: Story, offset: int, key: TopicPartition = ORDERS) -> DeletedRecords:
    (part,) = body_of(story.ask(request(offset, key)), DeleteRecordsReply).partitions
    return part


def low_watermark(story: Story, offset: int) -> int:
    part = deleted(story, offset)
    assert part.error is ErrorCode.NONE
    return part.low_watermark


def bounds(story: Story) -> tuple[int, int, int]:
    """Log start, last stable offset, high watermark."""
    part = story.fetch(offset=story.partition().log_end_offset)
    return part.log_start_offset, part.last_stable_offset, part.high_watermark


def one_aborted_one_open(story: Story) -> Identity:
    """`a b c`, its abort at 3, then `d e f` of an open transaction from 4 on, and plain `g h`."""
    mine, other = story.identity("a"), story.identity("b")
    story.produce(mine, "a b c", name="a")
    story.ended(mine, ABORT, "a")
    story.produce(other, "d e f", name="b")
    story.produce(NOBODY, "g h", name=None)
    return other


def test_records_inside_a_batch_go_and_the_batch_stays() -> None:
    story = Story()
    story.produce(NOBODY, "a b c", name=None)
    assert low_watermark(story, 1) == 1
    assert low_watermark(story, 0) == 1  # it never goes back
    assert story.fetch(offset=0).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert visible_values(story.fetch(offset=1)) == ["a", "b", "c"]  # readers drop what they did not ask for
    assert bounds(story) == (1, 3, 3)


def test_the_last_stable_offset_may_lie_below_the_log_start() -> None:
    story = Story()
    one_aborted_one_open(story)
    assert low_watermark(story, 2) == 2
    part = story.fetch(offset=2)
    assert part.aborted is not None
    assert [aborted.first_offset for aborted in part.aborted] == [0]
    assert low_watermark(story, 5) == 5
    assert bounds(story) == (5, 4, 9)  # the first batch that is left begins at 4
    assert story.fetch(offset=5).records == b""


@pytest.mark.parametrize("stops_in_order", [False, True])
def test_a_restart_finds_the_same(*, stops_in_order: bool) -> None:
    story = Story()
    who = one_aborted_one_open(story)
    for offset, expected in ((5, (5, 4, 9)), (HIGH_WATERMARK, (9, 9, 9))):
        assert low_watermark(story, offset) == expected[0]
        for _ in range(2):
            assert bounds(story) == expected
            assert story.check_recovery() > 0
            if stops_in_order:
                story.host.stop()
            story.restart()
    story.ended(who, COMMIT, "b")
    assert bounds(story) == (9, 10, 10)
    assert story.partition().open_transactions == {}


def test_segments_without_records_are_gone_after_a_restart_and_their_producers_known() -> None:
    story = Story(journal=JournalSettings(segment_bytes=1))
    who = one_aborted_one_open(story)
    assert low_watermark(story, 8) == 8
    known = story.partition().producers
    story.restart()
    assert story.host.directory.journal(ORDERS).segments.oldest_offset == 7
    assert story.partition().producers == known
    assert bounds(story) == (8, 7, 9)
    story.ended(who, ABORT, "b")
    assert bounds(story) == (8, 10, 10)


@pytest.mark.parametrize("left", [None, b"damaged"])
def test_it_is_said_that_the_producers_of_deleted_records_are_forgotten(left: bytes | None) -> None:
    """When their segments were deleted, the snapshot that stood for them was synced."""
    story = Story(journal=JournalSettings(segment_bytes=1))
    one_aborted_one_open(story)
    low_watermark(story, 8)
    story.restart()
    story.kill()
    storage = story.storage
    snapshots = [f"orders-0/{name}" for name in storage.files("orders-0") if name.endswith(SNAPSHOT)]
    for path in snapshots:
        storage.remove(path)
        if left is not None:
            storage.replace(path, left, durable=True)
    story.restart()
    told = [
        trouble.text
        for trouble in story.host.troubles
        if "the records before offset 7 were deleted" in trouble.text
    ]
    assert len(told) == 1
    story.produce(NOBODY, "i", name=None)  # a roll writes the next snapshot
    story.restart()
    assert not [trouble for trouble in story.host.troubles if "were deleted" in trouble.text]


@pytest.mark.parametrize(
    ("key", "offset", "error"),
    [
        (ORDERS, 4, ErrorCode.OFFSET_OUT_OF_RANGE),
        (ORDERS, -2, ErrorCode.OFFSET_OUT_OF_RANGE),
        (TopicPartition("ghost", 0), 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (METADATA_PARTITION, 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (transaction_log_of("a"), 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_what_cannot_be_deleted(key: TopicPartition, offset: int, error: ErrorCode) -> None:
    story = Story()
    story.produce(NOBODY, "a b c", name=None)
    part = deleted(story, offset, key)
    assert (part.error, part.low_watermark) == (error, NO_OFFSET)
    assert bounds(story) == (0, 3, 3)


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("compact", ErrorCode.POLICY_VIOLATION),
        ("compact,delete", ErrorCode.NONE),
        ("delete", ErrorCode.NONE),
        ("", ErrorCode.NONE),
    ],
)
def test_a_topic_that_keeps_the_last_value_of_each_key_loses_none(policy: str, error: ErrorCode) -> None:
    story = Story()
    story.produce(NOBODY, "a b c", name=None)
    change = ConfigChange(name="cleanup.policy", operation=ConfigOperation.SET, value=policy)
    wanted = TopicConfigChanges(topic=ORDERS.topic, changes=(change,))
    story.ask(IncrementalAlterConfigs(topics=(wanted,), validate_only=False))
    for offset in (2, 9):  # too high an offset is not looked at
        expected = error if offset == 2 or error is not ErrorCode.NONE else ErrorCode.OFFSET_OUT_OF_RANGE
        assert deleted(story, offset).error is expected


def test_what_is_not_durable_cannot_be_deleted_yet() -> None:
    story = Story(policy=SyncPolicy.ALL)
    to = story.offer(request(HIGH_WATERMARK))
    story.produce(NOBODY, "a b c", name=None)
    (part,) = body_of(story.replies.pop(to), DeleteRecordsReply).partitions
    assert part.low_watermark == 0


def test_a_waiting_reader_learns_that_its_place_is_gone() -> None:
    story = Story()
    one_aborted_one_open(story)
    to = story.offer(fetch_request(ORDERS, offset=4, max_wait_ms=60_000))
    story.run()
    assert to not in story.replies
    assert low_watermark(story, HIGH_WATERMARK) == 9
    (part,) = body_of(story.replies.pop(to), FetchReply).partitions
    assert part.error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_what_was_answered_survives_a_kill_between_any_two_things() -> None:
    answered = 0
    for turns in range(6):
        story = Story()
        story.produce(NOBODY, "a b c", name=None)
        to = story.offer(request(2))
        for _ in range(turns):
            story.work()
        answered += to in story.replies
        story.restart()
        assert bounds(story)[0] in ((2,) if to in story.replies else (0, 2))
    assert 0 < answered < 6


class Full(Memory):
    """No log start can be written."""

    def replace(self, path: str, data: Buffer, *, durable: bool) -> None:
        if path.endswith(LOG_START_FILE):
            raise StorageError("no space is left")
        MemoryStorage.replace(self, path, data, durable=durable)


def test_a_disk_that_fails_deletes_nothing() -> None:
    story = Story(storage=Full())
    story.produce(NOBODY, "a b c", name=None)
    assert deleted(story, 2).error is ErrorCode.KAFKA_STORAGE_ERROR
    story.wait(1_000)
    assert bounds(story) == (0, 3, 3)


def test_an_order_of_the_past_moves_nothing() -> None:
    """The partition went while the order lay in the host's hands."""
    story = Story()
    story.produce(NOBODY, "a b c", name=None)
    to = story.offer(request(2))
    story.work()
    story.host.held.clear()
    story.settle()
    (part,) = body_of(story.replies.pop(to), DeleteRecordsReply).partitions
    assert (part.error, part.low_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, NO_OFFSET)
