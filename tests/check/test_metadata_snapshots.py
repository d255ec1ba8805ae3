"""A snapshot in the metadata log is compared with what the records before it say."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import attrs
import pytest

from fencepost.check.directory import check_directory
from fencepost.check.findings import Finding
from fencepost.protocol import messages as m
from fencepost.protocol.batches import covering_batch, read_header
from fencepost.protocol.metadata_log import (
    BrokerRegistered,
    ClusterRecord,
    ClusterSnapshot,
    PartitionCreated,
    ProducerIdsAllocated,
    TopicConfigured,
    TopicCreated,
    cluster_batch,
    read_cluster_records,
)
from fencepost.protocol.terms import ConfigOperation
from tests.broker.story import CLEANED, SCAN_MS, Memory, Story
from tests.check.directories import METADATA_LOG, Directory

Records = list[ClusterRecord]


@cache
def good() -> Directory:
    """A cluster whose metadata has one snapshot, with all that was before it."""
    storage = Memory()
    story = Story(storage=storage, settings=attrs.evolve(CLEANED, metadata_records_between_snapshots=20))
    setting = m.ConfigChange(name="retention.ms", operation=ConfigOperation.SET, value="5000")
    changes = m.TopicConfigChanges(topic="orders", changes=(setting,))
    story.ask(m.IncrementalAlterConfigs(topics=(changes,), validate_only=False))
    story.identity()
    story.create("kept")
    for number in range(30):
        story.create(f"t{number}")
        story.ask(m.DeleteTopics(topics=(f"t{number}",)))
    story.wait(2 * SCAN_MS)
    story.create("late")
    story.restart()
    return Directory(storage)


def findings(change: Callable[[Records], Records], *, is_lost: bool = False) -> tuple[list[Finding], int]:
    """What a check finds in the metadata log if the snapshot has other records, and its offset. `is_lost`:
    the records before it are gone.
    """
    storage = Directory(good())
    batches = storage.batches(METADATA_LOG)
    (number,) = [
        number
        for number, batch in enumerate(batches)
        if isinstance(read_cluster_records(batch, read_header(batch))[0], ClusterSnapshot)
    ]
    header = read_header(batches[number])
    records = change(read_cluster_records(batches[number], header))
    batches[number] = bytes(cluster_batch(records, timestamp=header.max_timestamp))
    if is_lost:
        covering = covering_batch(base_offset=0, next_offset=header.base_offset, leader_epoch=0)
        batches[:number] = [bytes(covering)]
    storage.put_batches(METADATA_LOG, batches)
    found = [each for each in check_directory(storage).found if each.file == METADATA_LOG]
    return found, header.base_offset


def each(kind: type[ClusterRecord], **fields: Any) -> Callable[[Records], Records]:
    """Other fields for the records of a kind."""
    return lambda records: [
        attrs.evolve(record, **fields) if isinstance(record, kind) else record for record in records
    ]


def without(kind: type[ClusterRecord]) -> Callable[[Records], Records]:
    """The records without the last one of a kind."""

    def change(records: Records) -> Records:
        *_, last = [record for record in records if isinstance(record, kind)]
        return [record for record in records if record is not last]

    return change


def test_a_snapshot_that_says_what_the_records_before_it_say_is_right() -> None:
    assert findings(list)[0] == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (each(ClusterSnapshot, offset=5), "offset: 5"),
        (each(ClusterSnapshot, leader_epoch=700), "largest leader epoch of deleted topics: 700"),
        (each(ClusterSnapshot, topic_number=0), "newest topic number: "),
        (each(ProducerIdsAllocated, next_producer_id=0), "next producer id: 0"),
        (each(BrokerRegistered, host="elsewhere"), "node 1: elsewhere"),
        (each(TopicCreated, created_ms=1), "created 1"),
        (each(TopicConfigured, value="6000"), "topic orders: 6000"),
        (without(TopicConfigured), "retention.ms of topic orders: nothing"),
        (each(PartitionCreated, leader_epoch=9), "leader 1, leader epoch 9"),
        (without(PartitionCreated), "kept-0: nothing"),
    ],
)
def test_a_snapshot_that_says_something_else_is_found(
    change: Callable[[Records], Records], what: str
) -> None:
    (found, *_), offset = findings(change)
    assert found.offset == offset
    assert what in found.what


def test_nothing_is_compared_if_the_records_before_it_are_gone() -> None:
    assert findings(each(ProducerIdsAllocated, next_producer_id=5_000), is_lost=True)[0] == []
