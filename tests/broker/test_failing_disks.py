"""Disks that fail: who waits learns that the outcome is in doubt, and the log is led again."""

from __future__ import annotations

import pytest

from fencepost.broker.contract import Answered, StorageFailed
from fencepost.broker.host import MetadataLost
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.broker.troubles import TroubleKind
from fencepost.journal.indexes import OFFSET_ENTRY
from fencepost.journal.manifest import MANIFEST_FILE, decode_manifest
from fencepost.journal.segments import INDEX, LOG, file_name
from fencepost.journal.simulated import APPEND, SYNC, SimulatedStorage
from fencepost.journal.storage import NoAccess, StorageError, directory_name
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    CreateTopic,
    CreateTopics,
    CreateTopicsReply,
    DeleteTopics,
    DeleteTopicsReply,
)
from fencepost.protocol.terms import (
    METADATA_PARTITION,
    NO_OFFSET,
    TopicPartition,
    TransactionResult,
    TransactionState,
)
from tests.broker.disks import Disk, fail_syncs, keeps_nothing, simulated, story_of_a_forgotten_topic
from tests.broker.requests import (
    ABORT,
    COMMIT,
    NOBODY,
    ORDERS,
    OTHERS,
    UNCOMMITTED,
    Identity,
    body_of,
    end_request,
    identity_of,
    marker_request,
    offset_request,
    produce_request,
    produced,
)
from tests.broker.story import SCAN_MS, Story, offsets_log_of, transaction_log_of


@pytest.mark.parametrize("operation", [APPEND, SYNC])
def test_who_waits_for_a_log_that_fails_learns_that_the_outcome_is_in_doubt(operation: str) -> None:
    disk = Disk()
    story = simulated(SyncPolicy.ALL, disk)
    story.produce(Identity(), "safe", name=None)
    epoch = story.partition().leader_epoch
    disk.fail(operation, ORDERS)
    to = story.offer(produce_request(Identity(), {ORDERS: "doubtful"}, name=None))
    story.run()
    fail_syncs(story)
    story.run()
    part = produced(story.replies[to])[ORDERS]
    assert (part.error, part.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, NO_OFFSET)
    disk.mend()
    story.settle()
    assert disk.failures == 1
    assert story.partition().leader_epoch == epoch + 1
    story.check_recovery()
    assert story.produce(Identity(), "after", name=None).error is ErrorCode.NONE
    assert story.visible(isolation_level=UNCOMMITTED).split() in (
        ["safe", "after"],
        ["safe", "doubtful", "after"],
    )


@pytest.mark.parametrize("operation", [APPEND, SYNC])
@pytest.mark.parametrize("result", [COMMIT, ABORT])
def test_a_decision_that_a_disk_swallowed_can_be_made_again(
    operation: str, result: TransactionResult
) -> None:
    """The coordinator's own log fails under PREPARE_*: asked again, it decides again."""
    disk = Disk()
    story = simulated(SyncPolicy.COMMIT, disk)
    me = story.identity()
    story.produce(me, "a")
    disk.fail(operation, transaction_log_of("pay"))
    to = story.offer(end_request(me, result))
    story.run()
    fail_syncs(story)
    story.run()
    assert story.replies[to].error is ErrorCode.NOT_COORDINATOR
    disk.mend()
    story.settle()
    again = story.end(me, result)
    assert identity_of(again) == Identity(me.producer_id, me.producer_epoch + 1)
    story.settle()
    assert story.visible() == ("a" if result is COMMIT else "")
    assert story.partition().last_stable_offset == story.partition().log_end_offset
    assert story.coordinator().coordinator_epoch == story.partition(transaction_log_of("pay")).leader_epoch


@pytest.mark.parametrize("operation", [APPEND, SYNC])
def test_markers_are_asked_for_until_the_partition_has_its_disk_again(operation: str) -> None:
    disk = Disk()
    story = simulated(SyncPolicy.COMMIT, disk)
    me = story.identity()
    story.produce(me, "a")
    story.produce(me, "b", key=OTHERS)
    disk.fail(operation, ORDERS)
    to = story.offer(end_request(me, COMMIT))
    for _ in range(20):
        story.run()
        fail_syncs(story)
        story.now += SCAN_MS
    assert story.replies[to].error is ErrorCode.NONE
    assert story.states()[-1] is TransactionState.PREPARE_COMMIT
    assert disk.failures > 1
    assert story.partition(OTHERS).last_stable_offset == 2
    disk.mend()
    story.wait(10 * SCAN_MS)
    assert story.states()[-1] is TransactionState.COMPLETE_COMMIT
    assert (story.visible(), story.visible(OTHERS)) == ("a", "b")
    assert any("cannot" in trouble.text for trouble in story.host.troubles)


def test_the_offsets_of_a_log_that_fails_are_not_taken() -> None:
    disk = Disk()
    story = simulated(SyncPolicy.ALL, disk)
    me = story.identity()
    story.commit_offset(me, "readers", 1)
    disk.fail(SYNC, offsets_log_of("readers"))
    to = story.offer(offset_request(me, "readers", {ORDERS: 2}))
    story.run()
    fail_syncs(story)
    story.run()
    assert story.replies[to].error is ErrorCode.NOT_COORDINATOR
    disk.mend()
    story.settle()
    assert story.commit_offset(me, "readers", 3) is ErrorCode.NONE
    story.ended(me, COMMIT)
    assert story.offset("readers").offset == 3


def test_an_answer_to_a_question_of_an_earlier_leadership_lets_nothing_in() -> None:
    """The log was lost and led again while the coordinator was asked, and a marker came."""
    story = Story()
    me = story.identity()
    late = story.offer(produce_request(me, {ORDERS: "late"}))
    first = _held(story)
    story.host.offer(StorageFailed(partition=ORDERS))
    story.settle()
    story.ask(marker_request(me, ABORT, ORDERS, transaction_version=0))
    again = story.offer(produce_request(me, {ORDERS: "again"}))
    second = _held(story)
    story.host.offer(first)
    story.host.offer(second)
    story.settle()
    assert produced(story.replies[late])[ORDERS].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produced(story.replies[again])[ORDERS].error is ErrorCode.NONE
    assert story.written().endswith("| again")


def _held(story: Story) -> Answered:
    """The coordinator's answer, taken from the wire."""
    while not any(isinstance(arrived, Answered) for arrived in story.host.inbox):
        assert story.work()
    (answer,) = [arrived for arrived in story.host.inbox if isinstance(arrived, Answered)]
    story.host.inbox.remove(answer)
    return answer


@pytest.mark.parametrize("key", [ORDERS, METADATA_PARTITION])
def test_a_manifest_that_cannot_be_written_is_written_later(key: TopicPartition) -> None:
    full = set[str]()
    storage = SimulatedStorage(keeps_nothing, breaks=lambda _operation, path: path in full)
    story = Story(storage=storage)
    story.produce(Identity(), "a", name=None)
    epoch = story.partition(key).leader_epoch
    path = f"{directory_name(key)}/{MANIFEST_FILE}"
    full.add(path)
    story.host.write_manifests()
    assert storage.read_file(path) is None
    assert any("manifest" in trouble.text for trouble in story.host.troubles)
    full.clear()
    story.host.write_manifests()
    manifest = decode_manifest(storage.read_file(path) or b"", directory=directory_name(key))
    assert manifest.high_watermark == story.partition(key).high_watermark > 0
    assert story.partition(key).leader_epoch == epoch
    assert story.visible() == "a"


def test_an_index_that_was_half_written_is_replaced() -> None:
    """A manifest saves the index entries first. Half an entry in the file must not shift those after it."""
    full = set[str]()
    storage = SimulatedStorage(lambda limit: limit // 2 + 1, breaks=lambda _operation, path: path in full)
    story = Story(storage=storage)
    for word in ("x" * 6_000, "y" * 6_000, "z" * 6_000):
        story.produce(Identity(), word, name=None)
    path = f"{directory_name(ORDERS)}/{file_name(0, INDEX)}"
    full.add(path)
    story.host.write_manifests()
    full.clear()
    assert len(storage.read_file(path) or b"") % OFFSET_ENTRY.size, "the fault left half an entry"
    story.host.write_manifests()
    whole = storage.read_file(path)
    (segment,) = story.host.directory.journal(ORDERS).segments.all  # pyright: ignore[reportPrivateUsage] - to see the index in memory
    assert whole == segment.offset_index.encoded()


def test_a_node_without_its_metadata_stops() -> None:
    disk = Disk()
    story = simulated(SyncPolicy.ALL, disk)
    disk.fail(APPEND, METADATA_PARTITION)
    story.offer(CreateTopics(topics=(CreateTopic(topic="late", partition_count=1),)))
    with pytest.raises(MetadataLost, match="metadata"):
        story.run()


def test_a_disk_that_keeps_failing_does_not_keep_the_broker_from_others() -> None:
    disk = Disk()
    story = simulated(SyncPolicy.NONE, disk)
    me = story.identity()
    story.produce(me, "a")
    story.offer(end_request(me, COMMIT))
    while story.states()[-1] is not TransactionState.PREPARE_COMMIT:
        story.work()
    disk.fail(APPEND, transaction_log_of("pay"))  # COMPLETE_COMMIT cannot be written
    for _ in range(20):
        story.run()  # comes to rest
        story.now += SCAN_MS
    assert 1 < disk.failures <= 20
    to = story.offer(produce_request(Identity(), {OTHERS: "b"}, name=None))
    story.run()
    assert produced(story.replies[to])[OTHERS].error is ErrorCode.NONE
    disk.mend()
    story.wait(10 * SCAN_MS)
    assert story.states()[-1] is TransactionState.COMPLETE_COMMIT
    assert story.visible() == "a"


class StuckDisk(SimulatedStorage):
    """A disk on which the directories of partitions cannot be renamed, as if they were mount points."""

    is_stuck = True

    def rename_directory(self, name: str, new_name: str) -> None:
        if self.is_stuck:
            raise StorageError(f"cannot rename {name}: Device or resource busy")
        super().rename_directory(name, new_name)


def test_a_new_topic_never_gets_the_files_of_a_deleted_one_that_cannot_be_deleted() -> None:
    """The name stays taken until a start has deleted them, whatever happens to the broker."""
    disk = StuckDisk(keeps_nothing)
    story = Story(storage=disk)
    story.create("other", 1)
    story.produce(Identity(), "old", name=None)
    reply = body_of(story.ask(DeleteTopics(topics=("orders",))), DeleteTopicsReply)
    assert reply.topics[0].error is ErrorCode.NONE
    (trouble,) = story.host.troubles
    assert trouble.kind is TroubleKind.DISK
    assert trouble.text.startswith("orders-0: cannot rename orders-0: Device or resource busy")
    again = CreateTopics(topics=(CreateTopic(topic="orders", partition_count=2),))
    for is_restarted in (False, True):
        if is_restarted:
            story.restart()
        refused = body_of(story.ask(again), CreateTopicsReply).topics[0]
        assert refused.error is ErrorCode.TOPIC_ALREADY_EXISTS
        assert "files" in refused.because
        other = TopicPartition("other", 0)
        assert story.produce(Identity(), "b", key=other, name=None).error is ErrorCode.NONE
    disk.is_stuck = False
    story.restart()
    assert not disk.files("orders-0")
    assert body_of(story.ask(again), CreateTopicsReply).topics[0].error is ErrorCode.NONE
    assert story.visible(isolation_level=UNCOMMITTED) == ""


def test_a_new_topic_never_gets_the_files_of_one_that_the_metadata_forgot_and_that_cannot_be_moved() -> None:
    """Neither when it is created nor later, and the operator reads once what to do."""
    disk = StuckDisk(keeps_nothing)
    story = story_of_a_forgotten_topic(disk)
    story.create("orders", 2)
    for _ in range(3):
        assert story.fetch(ORDERS, isolation_level=UNCOMMITTED).error is ErrorCode.KAFKA_STORAGE_ERROR
        assert story.produce(NOBODY, "new", name=None).error is ErrorCode.KAFKA_STORAGE_ERROR
        assert story.produce(NOBODY, "new", key=OTHERS, name=None).error is ErrorCode.NONE
        story.wait(10 * SCAN_MS)
    (trouble,) = story.host.troubles
    assert trouble.text.startswith("orders-0: cannot rename orders-0: Device or resource busy")
    assert "move orders-0 out of the data directory" in trouble.text
    assert b"old" in (disk.read_file(log_file := f"orders-0/{file_name(0, LOG)}") or b"")
    story.kill()
    disk.is_stuck = False
    disk.rename_directory("orders-0", "elsewhere")  # as the message says
    story.start()
    story.settle()
    assert story.produce(NOBODY, "new", name=None).base_offset == 0
    assert b"old" not in (disk.read_file(log_file) or b"")


class LockedDisk(SimulatedStorage):
    """A disk with a directory that the broker has no right to read."""

    is_locked = False

    def files(self, directory: str) -> dict[str, int]:
        if self.is_locked and directory == str(ORDERS):
            raise NoAccess(f"cannot list {directory}: Permission denied; change that")
        return super().files(directory)


def test_a_log_that_only_an_operator_can_make_readable_is_not_served_until_the_next_start() -> None:
    """Each election writes to the metadata: a wrong permission must not fill the disk."""
    disk = LockedDisk(keeps_nothing)
    story = Story(storage=disk)
    story.produce(NOBODY, "a", name=None)
    story.host.stop()
    disk.is_locked = True
    story.start()
    story.settle()
    end = story.partition(METADATA_PARTITION).log_end_offset
    story.wait(10 * SCAN_MS)
    assert story.partition(METADATA_PARTITION).log_end_offset == end
    (trouble,) = story.host.troubles
    assert trouble.text.startswith("orders-0: cannot list orders-0: Permission denied; change that, then res")
    assert story.fetch(ORDERS).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert story.produce(NOBODY, "b", key=OTHERS, name=None).error is ErrorCode.NONE
    story.host.stop()
    disk.is_locked = False
    story.start()
    story.settle()
    assert story.visible() == "a"
