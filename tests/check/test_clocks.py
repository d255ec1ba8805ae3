"""The clock of the broker's machine is set back: nothing in the files is wrong because of it."""

from __future__ import annotations

from typing import Final

from fencepost.journal.journal import JournalSettings
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import NO_SEQUENCE
from tests.broker.requests import ABORT, COMMIT, NOBODY, ORDERS, Identity, produce_batches, produced
from tests.broker.story import CLEANED, SCAN_MS, Story
from tests.check.test_deletions import told

HOURS: Final = 3 * 3_600_000


def write(story: Story, key: bytes, me: Identity = NOBODY) -> None:
    """A batch that fills a segment, with the time of the clock; in a transaction if `me` is somebody."""
    batch = build_data_batch(
        [b"v" * 300],
        keys=[key],
        base_timestamp=story.now,
        producer_id=me.producer_id,
        producer_epoch=me.producer_epoch,
        base_sequence=NO_SEQUENCE if me is NOBODY else 0,
        transactional=me is not NOBODY,
    )
    part = produced(story.ask(produce_batches({ORDERS: batch}, name=None if me is NOBODY else "pay")))[ORDERS]
    assert part.error is ErrorCode.NONE


def test_a_topic_that_was_created_while_the_clock_was_ahead() -> None:
    """Its decisions look older than the topic, as those about a deleted topic of the same name."""
    story = Story()
    story.now -= HOURS
    me = story.identity()
    story.produce(me, "a")
    story.ended(me, COMMIT)
    story.host.write_manifests()
    assert told(story) == []


def test_a_snapshot_that_remembers_what_compaction_removed() -> None:
    """It has an older time than what is left of the producer before it."""
    story = Story(settings=CLEANED, journal=JournalSettings(segment_bytes=300), topics={})
    configs = (
        m.TopicConfig(name="cleanup.policy", value="compact,delete"),
        m.TopicConfig(name="min.cleanable.dirty.ratio", value="0.1"),
    )
    topic = m.CreateTopic(topic="orders", partition_count=1, configs=configs)
    story.ask(m.CreateTopics(topics=(topic,)))
    me = story.identity()
    write(story, b"1", me)
    me = story.ended(me, COMMIT)
    story.now -= HOURS
    write(story, b"2", me)
    write(story, b"3")  # so much stays before it that the next segment is not merged with the first ones
    write(story, b"4")
    me = story.ended(me, ABORT)
    write(story, b"5", me)
    story.ended(me, COMMIT)
    for number in range(6, 9):
        write(story, b"%d" % number)
    story.restart()  # the deadlines of the former process are hours ahead
    story.wait(10 * SCAN_MS)
    story.host.write_manifests()
    assert told(story) == []
