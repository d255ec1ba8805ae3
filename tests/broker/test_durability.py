"""Rule 1: what was seen is what is safe. Under a policy that syncs, nothing is answered before its sync.

The storage is a simulated one: it loses what was not synced and tears what was being written.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

import attrs
import pytest

from fencepost.broker.controller import METADATA_PARTITION
from fencepost.broker.host import MetadataLost, SyncPolicy
from fencepost.broker.words import ReplyTo
from fencepost.journal.names import directory_name
from fencepost.journal.simulated import APPEND, SYNC, SimulatedStorage
from fencepost.journal.storage import StorageError
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    CreateTopic,
    CreateTopics,
    InitProducerIdReply,
    Metadata,
    OffsetFetch,
    Request,
    TxnOffsetCommitReply,
)
from fencepost.protocol.terms import TopicPartition, TransactionResult, TransactionState
from tests.broker.requests import (
    ABORT,
    COMMIT,
    ORDERS,
    OTHERS,
    UNCOMMITTED,
    Identity,
    body_of,
    end_request,
    fetch_request,
    fetched,
    identity_of,
    init_request,
    offset_request,
    plain_offset_request,
    produce_request,
    produced,
)
from tests.broker.story import SCAN_MS, Story, offsets_log_of, transaction_log_of

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


def simulated(
    policy: SyncPolicy, disk: Disk | None = None, choose: Callable[[int], int] = keeps_nothing
) -> Story:
    storage = SimulatedStorage(choose, breaks=None if disk is None else disk.breaks)
    return Story(policy=policy, storage=storage)


def is_answered(story: Story, to: ReplyTo) -> bool:
    story.run()
    return to in story.replies


# --- nothing before its sync -------------------------------------------------------------------------


def _offsets_fetch(group: str) -> OffsetFetch:
    return OffsetFetch(group_id=group, require_stable=False, partitions=None)


@pytest.mark.parametrize("policy", SYNCING)
def test_no_step_of_a_transaction_is_answered_before_it_is_synced(policy: SyncPolicy) -> None:
    story = simulated(policy)
    story.identity()  # makes the coordinator's log
    for request in (init_request("other"), init_request()):
        to = story.offer(request)
        assert not is_answered(story, to)
        story.settle()
        assert body_of(story.replies[to], InitProducerIdReply)
    me = identity_of(story.replies[to])
    story.produce(me, "a")
    story.commit_offset(me, "readers", 1)
    for request in (
        produce_request(me, {ORDERS: "b"}, sequence=1),
        offset_request(me, "readers", {ORDERS: 2}),
        end_request(me, COMMIT),
    ):
        to = story.offer(request)
        assert not is_answered(story, to)
        story.sync()
        assert is_answered(story, to)
        assert story.replies[to].error is ErrorCode.NONE
        story.settle()


@pytest.mark.parametrize("policy", SYNCING)
def test_a_repetition_waits_as_long_as_what_it_repeats(policy: SyncPolicy) -> None:
    """A duplicate's answer, a repeated end, a look at an offset: each says what must be safe."""
    story = simulated(policy)
    me = story.identity()
    story.produce(me, "a")
    story.commit_offset(me, "readers", 1)
    again = produce_request(me, {ORDERS: "b"}, sequence=1)
    first, second = story.offer(again), story.offer(again)
    assert not is_answered(story, first)
    assert not is_answered(story, second)
    story.settle()
    offsets = [produced(story.replies[to])[ORDERS].base_offset for to in (first, second)]
    assert offsets == [1, 1]
    story.offer(offset_request(me, "readers", {ORDERS: 2}))
    look = story.offer(_offsets_fetch("readers"))
    assert not is_answered(story, look)
    story.settle()
    assert is_answered(story, look)


@pytest.mark.parametrize("policy", SYNCING)
def test_a_repeated_end_waits_for_the_completion_that_it_reports(policy: SyncPolicy) -> None:
    story = simulated(policy)
    me = story.identity()
    story.produce(me, "a")
    story.offer(end_request(me, COMMIT))
    for _ in range(2):  # PREPARE_COMMIT, the marker
        story.run()
        story.sync()
    story.run()
    assert story.states()[-1] is TransactionState.COMPLETE_COMMIT
    repeated = story.offer(end_request(me, COMMIT))
    assert not is_answered(story, repeated)
    story.settle()
    assert story.replies[repeated].error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert identity_of(story.end(me, COMMIT)) == Identity(me.producer_id, me.producer_epoch + 1)


def test_only_all_waits_with_plain_data() -> None:
    for policy, waits in ((SyncPolicy.NONE, False), (SyncPolicy.COMMIT, False), (SyncPolicy.ALL, True)):
        story = simulated(policy)
        for request in (
            produce_request(Identity(), {ORDERS: "a"}, name=None),
            plain_offset_request("readers", {ORDERS: 1}),
        ):
            to = story.offer(request)
            assert is_answered(story, to) is not waits
            story.settle()
            assert to in story.replies


@pytest.mark.parametrize("policy", SYNCING)
def test_a_topic_is_announced_once_it_is_safe(policy: SyncPolicy) -> None:
    story = simulated(policy)
    made = story.offer(CreateTopics(topics=(CreateTopic(topic="late", partition_count=1),)))
    seen = story.offer(Metadata(topics=("late",)))
    assert not is_answered(story, made)
    assert not is_answered(story, seen)
    story.settle()
    assert story.replies.keys() >= {made, seen}


@pytest.mark.parametrize("policy", SYNCING)
def test_readers_do_not_see_what_is_not_safe(policy: SyncPolicy) -> None:
    story = simulated(policy)
    me = story.identity()
    story.produce(me, "a")
    story.offer(produce_request(me, {ORDERS: "b"}, sequence=1))
    look = story.offer(fetch_request(ORDERS, UNCOMMITTED))
    assert is_answered(story, look)
    assert fetched(story.replies[look]).high_watermark == 1
    story.settle()
    assert story.visible(isolation_level=UNCOMMITTED) == "a b"


@pytest.mark.parametrize("policy", SYNCING)
def test_the_last_stable_offset_passes_a_transaction_only_when_its_marker_is_safe(policy: SyncPolicy) -> None:
    story = simulated(policy)
    me = story.identity()
    story.produce(me, "a")
    story.offer(end_request(me, COMMIT))
    story.run()
    story.sync()  # PREPARE_COMMIT
    story.run()
    assert "commit" in story.written()
    state = story.partition()
    assert (state.last_stable_offset, state.high_watermark, state.log_end_offset) == (0, 1, 2)
    story.settle()
    assert story.partition().last_stable_offset == 2


# --- between append and durable ------------------------------------------------------------------------


@pytest.mark.parametrize("policy", SYNCING)
def test_a_transaction_is_busy_until_its_last_step_is_safe(policy: SyncPolicy) -> None:
    story = simulated(policy)
    me = story.identity()
    first = story.offer(produce_request(me, {ORDERS: "a"}))
    others: list[tuple[Request, ErrorCode]] = [
        (init_request(), ErrorCode.CONCURRENT_TRANSACTIONS),
        (end_request(me, COMMIT), ErrorCode.CONCURRENT_TRANSACTIONS),
        (end_request(me, ABORT), ErrorCode.CONCURRENT_TRANSACTIONS),
    ]
    story.run()
    asked = [(story.offer(request), error) for request, error in others]
    offset = story.offer(offset_request(me, "readers", {ORDERS: 1}))
    data = story.offer(produce_request(me, {OTHERS: "a"}))
    story.settle()
    for to, error in asked:
        assert story.replies[to].error is error
    assert body_of(story.replies[offset], TxnOffsetCommitReply).partitions[0].error is (
        ErrorCode.CONCURRENT_TRANSACTIONS
    )
    assert produced(story.replies[data])[OTHERS].error is ErrorCode.NOT_ENOUGH_REPLICAS
    assert produced(story.replies[first])[ORDERS].error is ErrorCode.NONE
    assert story.transaction().state is TransactionState.ONGOING


# --- disks that fail -------------------------------------------------------------------------------------


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
    assert produced(story.replies[to])[ORDERS].error is ErrorCode.KAFKA_STORAGE_ERROR
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


def fail_syncs(story: Story) -> None:
    """One round of syncs as the server's, failures reported."""
    for key in sorted(story.host.unsynced):
        try:
            story.host.synced(key, story.host.directory.journal(key).sync())
        except StorageError as problem:
            story.host.sync_failed(key, problem)


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
    assert any("cannot" in trouble for trouble in story.host.troubles)


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


# --- the loss of power -----------------------------------------------------------------------------------


def acknowledged(story: Story, random_: random.Random) -> list[str]:
    """Transactions until the lights go out somewhere; the words that were acknowledged as committed."""
    committed: list[str] = []
    me = story.identity()
    for number in range(8):
        word = f"w{number}"
        for request in (
            produce_request(me, {ORDERS: word, OTHERS: word}),
            offset_request(me, "readers", {ORDERS: number}),
            end_request(me, COMMIT),
        ):
            to = story.offer(request)
            while to not in story.replies:
                if random_.random() < 0.01:
                    return committed
                if not story.work():
                    story.sync()
        me = identity_of(story.replies[to])
        committed.append(word)
        story.settle()
    return committed


def check_nothing_lost(story: Story, committed: list[str]) -> int:
    """After a restart: all that was acknowledged is there, whole and in order. How many more were decided."""
    story.start()
    story.wait(60_000 + 10 * SCAN_MS)
    seen = story.visible().split()
    assert seen[: len(committed)] == committed
    assert story.visible(OTHERS).split() == seen
    # The transaction under way may have been decided without its client having heard of it.
    assert len(seen) <= len(committed) + 1
    assert story.offset("readers").offset == len(seen) - 1
    for key in (ORDERS, OTHERS):
        assert story.partition(key).last_stable_offset == story.partition(key).log_end_offset
    story.check_recovery()
    return len(seen) - len(committed)


@pytest.mark.parametrize("policy", SYNCING)
def test_no_committed_transaction_is_lost_with_the_power(policy: SyncPolicy) -> None:
    lengths: Counter[int] = Counter()
    unheard = torn = 0
    for seed in range(100):
        random_ = random.Random(seed)
        storage = SimulatedStorage(lambda limit: random_.randint(0, limit))  # noqa: B023 read before it changes
        story = Story(policy=policy, storage=storage)
        committed = acknowledged(story, random_)
        storage.lose_power()
        unheard += check_nothing_lost(story, committed)
        lengths[len(committed)] += 1
        torn += bool(story.host.troubles)
    assert len(lengths) > 5, "the lights went out at too few places"
    assert unheard, "no transaction was decided without its client having heard of it"
    assert torn, "no log was ever torn"


def test_without_syncs_the_power_takes_what_was_acknowledged() -> None:
    """The planted fault beside the test above: its storage does forget."""
    storage = SimulatedStorage(keeps_nothing)
    story = Story(policy=SyncPolicy.NONE, storage=storage)
    me = story.identity()
    story.produce(me, "a")
    story.ended(me, COMMIT)
    storage.lose_power()
    story.start()
    story.settle()
    assert story.host.node.cluster.topics == {}


def test_without_syncs_a_kill_of_the_process_takes_nothing() -> None:
    unheard = 0
    for seed in range(100):
        story = simulated(SyncPolicy.NONE)
        committed = acknowledged(story, random.Random(seed))
        story.kill()
        unheard += check_nothing_lost(story, committed)
    assert unheard, "no transaction was decided without its client having heard of it"
