"""Compacted logs and their repair: covering batches, thinned ones and tombstones survive it as they are."""

from __future__ import annotations

import random
from functools import cache

import attrs
import pytest

from fencepost.journal.journal import JournalSettings
from fencepost.journal.manifest import CLEAN_FILE
from fencepost.protocol import messages as m
from fencepost.protocol.batches import walk
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.records import build_data_batch
from tests.broker.requests import ABORT, COMMIT, ORDERS, OTHERS, Identity, body_of, produce_batches, produced
from tests.broker.story import CLEANED, SCAN_MS, Memory, Story
from tests.broker.test_every_byte import DamagedStory, contents, disk_with
from tests.repair.judging import Repaired, Seen, repaired, seen_by_readers

ROUNDS = 24
SAMPLE = 60
SMALL = JournalSettings(segment_bytes=1_200)
CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "delete.retention.ms": "100"}


def write(story: Story, me: Identity, number: int) -> None:
    """A transaction with two keys, of which one is written each time, and a tombstone now and then."""
    batch = build_data_batch(
        [None if number % 7 == 6 else b"a%d" % number, b"b%d" % number],
        keys=[b"key %d" % (number % 3), b"key"],
        base_timestamp=story.now,
        producer_id=me.producer_id,
        producer_epoch=me.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    batches = {key: bytearray(batch) for key in ((ORDERS,) if number % 2 else (ORDERS, OTHERS))}
    answers = produced(story.ask(produce_batches(batches, name="pay")))
    assert {answer.error for answer in answers.values()} == {ErrorCode.NONE}
    story.commit_offset(me, "readers", number)


@cache
def files() -> dict[str, bytes]:
    """What a broker left whose topics, data and coordinators', were compacted."""
    storage = Memory()
    settings = attrs.evolve(CLEANED, log_cleaner_delete_retention_ms=100)
    story = Story(storage=storage, settings=settings, journal=SMALL, topics={})
    configs = tuple(m.TopicConfig(name=name, value=value) for name, value in CONFIGS.items())
    wanted = m.CreateTopic(topic="orders", partition_count=2, configs=configs)
    (answer,) = body_of(story.ask(m.CreateTopics(topics=(wanted,))), m.CreateTopicsReply).topics
    assert answer.error is ErrorCode.NONE
    me = story.identity()
    for number in range(ROUNDS):
        write(story, me, number)
        me = story.ended(me, ABORT if number % 5 == 4 else COMMIT)
        story.wait(SCAN_MS)
    story.host.stop()
    return contents(storage)


@cache
def whole() -> Seen:
    return seen_by_readers(DamagedStory.over(disk_with(files())))


def after(**changed: bytes | None) -> Repaired:
    left = {name: data for name, data in {**files(), **changed}.items() if data is not None}
    return repaired(disk_with(left), whole())


def test_the_logs_hold_what_compaction_leaves() -> None:
    headers = [
        header
        for name, data in files().items()
        if name.startswith("orders-") and name.endswith(".log")
        for _, header in walk(data)
    ]
    assert any(header.is_covering for header in headers)
    assert any(0 < header.record_count <= header.last_offset_delta for header in headers), "thinned"
    assert any(header.delete_horizon_ms is not None for header in headers)


def test_a_whole_directory_needs_no_repair() -> None:
    result = after()
    assert not result.plan.is_needed
    assert result.complaints == []


def test_flipped_bytes() -> None:
    chance, wrong = random.Random(1), list[str]()
    places = [(path, at) for path, content in files().items() for at in range(len(content))]
    for path, at in chance.sample(places, SAMPLE):
        flipped = bytearray(files()[path])
        flipped[at] ^= 1 << (bit := chance.randrange(8))
        complaints = after(**{path: bytes(flipped)}).complaints
        wrong += [f"{path} {at} bit {bit}: {complaint}" for complaint in complaints]
    assert wrong == []


def test_removed_files() -> None:
    paths = [path for path in files() if path.endswith(".log") or "/" not in path]
    wrong = [f"{path}: {complaint}" for path in paths for complaint in after(**{path: None}).complaints]
    assert wrong == []


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_topic_that_is_put_back_loses_nothing_to_default_settings(*, is_stopped: bool) -> None:
    """Its own are lost with the metadata. The default retention would delete its older records."""
    lost = {path: None for path in files() if path.startswith("__cluster_metadata")}
    result = after(**lost, **({} if is_stopped else {CLEAN_FILE: None}))
    assert result.complaints == []
    config = result.story.host.node.log_config("orders")
    assert (config.cleanup_policy, config.retention_ms) == (("compact",), -1)
