"""Disks of the stories that forget what was not synced, and that fail when they are told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from fencepost.broker.contract import ReplyTo
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.simulated import APPEND, SimulatedStorage
from fencepost.journal.storage import StorageError, directory_name
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import ProduceReply
from fencepost.protocol.terms import TopicPartition
from tests.broker.requests import NOBODY, ORDERS, UNCOMMITTED, Identity, body_of, produce_request
from tests.broker.story import Story

SYNCING: Final = (SyncPolicy.COMMIT, SyncPolicy.ALL)


@attrs.define
class Disk:
    """Which operation on which partition's log fails from now on; nothing at first."""

    operation: str = ""
    directory: str = ""
    failures: int = 0

    def breaks(self, operation: str, path: str) -> bool:
        is_log = path.startswith(f"{self.directory}/") and path.endswith(".log")
        if operation != self.operation or not self.directory or not is_log:
            return False
        self.failures += 1
        return True

    def fail(self, operation: str, key: TopicPartition) -> None:
        self.operation, self.directory = operation, directory_name(key)

    def mend(self) -> None:
        self.directory = ""


def keeps_nothing(_limit: int) -> int:
    return 0


def story_of_a_forgotten_topic(disk: SimulatedStorage) -> Story:
    """The power took the metadata log, which was never synced, and left a partition with one record. The disk
    `keeps_nothing` that is not synced.
    """
    story = Story(storage=disk)
    story.restart()
    story.produce(NOBODY, "old", name=None)
    story.host.directory.journal(ORDERS).sync()
    disk.lose_power()
    story.start()
    story.settle()
    assert ORDERS in story.host.directory.partitions()
    return story


def simulated(
    policy: SyncPolicy, disk: Disk | None = None, choose: Callable[[int], int] = keeps_nothing
) -> Story:
    storage = SimulatedStorage(choose, breaks=None if disk is None else disk.breaks)
    return Story(policy=policy, storage=storage)


def is_answered(story: Story, to: ReplyTo) -> bool:
    story.run()
    return to in story.replies


def fail_syncs(story: Story) -> None:
    """One round of syncs as the server's, failures reported."""
    for key in sorted(story.host.unsynced):
        try:
            story.host.synced(key, story.host.directory.journal(key).sync())
        except StorageError as problem:
            story.host.lose(key, problem)


def test_what_follows_an_append_that_failed_is_not_written_either() -> None:
    disk = Disk()
    story = simulated(SyncPolicy.NONE, disk)
    one = produce_request(Identity(), {ORDERS: "a"}, name=None)
    other = produce_request(Identity(), {ORDERS: "b"}, name=None)
    disk.fail(APPEND, ORDERS)
    to = story.offer(attrs.evolve(one, partitions=one.partitions + other.partitions))
    story.run()
    parts = body_of(story.replies[to], ProduceReply).partitions
    assert [part.error for part in parts] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    disk.mend()
    story.settle()
    assert story.visible(isolation_level=UNCOMMITTED) == ""
    assert story.produce(Identity(), "c", name=None).base_offset == 0
