"""Snapshots in the metadata log: what it says is kept, what deleted topics left goes."""

from __future__ import annotations

import random
from typing import Final

import attrs
import pytest

from fencepost.broker.contract import RemoveFailed
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import StorageReader
from fencepost.protocol import messages as m
from fencepost.protocol.batches import HEADER_SIZE, walk
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.metadata_log import ClusterSnapshot, read_cluster_records, topic_number
from fencepost.protocol.terms import (
    METADATA_PARTITION,
    NO_OFFSET,
    ConfigOperation,
    TopicPartition,
    TransactionState,
)
from fencepost.repair.perform import perform
from fencepost.repair.planner import make_plan
from tests.broker.cluster import CONTROLLER, Cluster
from tests.broker.requests import COMMIT, NOBODY, ORDERS, body_of, plain_offset_request
from tests.broker.story import CLEANED, SCAN_MS, Memory, Story, offsets_log_of, transaction_log_of
from tests.broker.test_every_byte import contents

SHORT: Final = attrs.evolve(CLEANED, metadata_records_between_snapshots=20)
LATE: Final = TopicPartition("late", 0)


def delete(story: Story | Cluster, topic: str) -> None:
    request = m.DeleteTopics(topics=(topic,))
    reply = story.ask(request) if isinstance(story, Story) else story.ask(CONTROLLER, request)
    (answer,) = body_of(reply, m.DeleteTopicsReply).topics
    assert answer.error is ErrorCode.NONE, answer


def come_and_go(story: Story | Cluster, count: int, *, first: int = 0) -> None:
    """Topics are created and deleted."""
    for number in range(first, first + count):
        story.create(f"t{number}")
        if isinstance(story, Story):
            story.produce(NOBODY, "a", key=TopicPartition(f"t{number}", 0), name=None)
        delete(story, f"t{number}")


def snapshots(story: Story) -> list[ClusterSnapshot]:
    return [
        record
        for entry in story.log(METADATA_PARTITION)
        for record in read_cluster_records(entry.batch, entry.header)
        if isinstance(record, ClusterSnapshot)
    ]


def check_files(storage: StorageReader) -> None:
    problems = [each for each in check_directory(storage).found if each.severity is Severity.PROBLEM]
    assert problems == []


def test_topics_that_come_and_go_leave_nothing() -> None:
    story = Story(settings=SHORT)
    sizes: list[int] = []
    for round_ in range(10):
        come_and_go(story, 30, first=30 * round_)
        story.wait(2 * SCAN_MS)
        assert len(story.host.node.cluster.removed) <= 10
        assert set(story.host.written) <= set(story.host.node.logs)
        assert len(snapshots(story)) == min(round_ + 1, 2)
        sizes.append(story.host.directory.journal(METADATA_PARTITION).segments.size)
        story.check_recovery()
    assert max(sizes) < 2 * sizes[0]
    story.host.write_manifests()
    check_files(story.storage)


def test_a_snapshot_says_all_that_the_controller_knows() -> None:
    story = Story(settings=SHORT)
    setting = m.ConfigChange(name="retention.ms", operation=ConfigOperation.SET, value="5000")
    change = m.TopicConfigChanges(topic=ORDERS.topic, changes=(setting,))
    story.ask(m.IncrementalAlterConfigs(topics=(change,), validate_only=False))
    story.identity()
    first = story.host.node.cluster
    number, producer_id = first.newest_topic_number, first.next_producer_id
    topics = {name: (topic.topic_id, topic.created_ms, topic.configs) for name, topic in first.topics.items()}
    for round_ in range(3):
        come_and_go(story, 30, first=30 * round_)
        story.wait(2 * SCAN_MS)
    story.restart()
    cluster = story.host.node.cluster
    assert story.log(METADATA_PARTITION)[0].header.is_covering
    assert cluster is not first
    assert cluster.newest_topic_number == number + 90
    assert cluster.next_producer_id >= producer_id
    assert {
        name: (topic.topic_id, topic.created_ms, topic.configs) for name, topic in cluster.topics.items()
    } == topics
    assert cluster.topics[ORDERS.topic].configs == {"retention.ms": "5000"}
    assert cluster.brokers == first.brokers


def test_a_name_whose_topic_is_forgotten_continues_above_its_leader_epochs() -> None:
    story = Story(settings=SHORT)
    story.create("late")
    for _ in range(3):
        story.restart()
    leader = story.host.node.cluster.leader(LATE)
    assert leader is not None
    before = leader.leader_epoch
    delete(story, "late")
    come_and_go(story, 90)
    story.wait(2 * SCAN_MS)
    assert "late" not in story.host.node.cluster.removed
    story.restart()
    story.create("late")
    again = story.host.node.cluster.leader(LATE)
    assert again is not None
    assert again.leader_epoch > before


def test_a_number_is_not_given_again_when_the_newest_topic_is_forgotten() -> None:
    story = Story(settings=SHORT)
    come_and_go(story, 60)
    story.wait(2 * SCAN_MS)
    before = story.host.node.cluster.newest_topic_number
    assert all(topic_number(each) < before for each in story.host.node.cluster.names)
    story.restart()
    story.create("late")
    assert topic_number(story.host.node.cluster.topics["late"].topic_id) == before + 1


def test_a_name_is_remembered_while_its_files_are_still_there() -> None:
    story = Story(settings=SHORT)
    story.create("late")
    delete(story, "late")
    story.host.offer(RemoveFailed(partition=LATE))
    come_and_go(story, 90)
    story.wait(2 * SCAN_MS)
    assert "late" in story.host.node.cluster.removed
    assert snapshots(story) == []
    story.restart()  # it deletes them
    assert len(snapshots(story)) == 1
    assert story.host.node.cluster.removed == {}


def test_a_start_writes_a_snapshot_for_brokers_that_live_shortly() -> None:
    story = Story(settings=attrs.evolve(SHORT, log_cleaner_backoff_ms=1 << 40))
    sizes: list[int] = []
    for round_ in range(12):
        come_and_go(story, 30, first=30 * round_)
        story.restart()
        sizes.append(story.host.directory.journal(METADATA_PARTITION).segments.size)
        story.check_recovery()
    assert max(sizes) < 3 * sizes[0]


@pytest.mark.parametrize("which", [0, 1])
def test_a_damaged_snapshot_costs_a_repair_nothing(which: int) -> None:
    """The older one has what came after it, and the newer one has it all."""
    storage = Memory()
    story = Story(storage=storage, settings=SHORT)
    for round_ in range(3):
        come_and_go(story, 30, first=30 * round_)
        story.create(f"kept{round_}")
        story.wait(2 * SCAN_MS)
    topics = {name: topic.topic_id for name, topic in story.host.node.cluster.topics.items()}
    producer_id = story.host.node.cluster.next_producer_id
    damaged = snapshots(story)[which].offset
    story.host.stop()
    (path, data), *_ = [
        (path, data)
        for path, data in contents(storage).items()
        if path.startswith(str(METADATA_PARTITION))
        and path.endswith(".log")
        and any(header.base_offset == damaged for _, header in walk(data))
    ]
    at = next(at for at, header in walk(data) if header.base_offset == damaged) + HEADER_SIZE + 5
    storage.unlock()
    storage.replace(path, data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :], durable=True)
    assert make_plan(storage).damages
    perform(storage, make_plan(storage))
    check_files(storage)
    story = Story.over(storage)
    cluster = story.host.node.cluster
    assert {name: topic.topic_id for name, topic in cluster.topics.items()} == topics
    assert cluster.next_producer_id >= producer_id
    story.restart()
    story.check_recovery()


def test_a_transaction_in_a_forgotten_topic_ends() -> None:
    story = Story(settings=SHORT)
    story.create("late")
    me = story.identity()
    story.produce(me, "a")
    story.produce(me, "b", key=LATE)
    delete(story, "late")
    come_and_go(story, 60)
    story.wait(2 * SCAN_MS)
    assert "late" not in story.host.node.cluster.removed
    story.ended(me, COMMIT)
    assert story.states()[-1] is TransactionState.COMPLETE_COMMIT
    assert story.visible() == "a"


def test_kills_between_any_two_things_leave_the_same_cluster() -> None:
    """Around the second snapshot, with which older records go."""
    steps, is_over, seen = 0, False, set[int]()
    while not is_over:
        story = Story(settings=SHORT)
        come_and_go(story, 14)
        story.wait(2 * SCAN_MS)
        come_and_go(story, 14, first=14)
        topics = dict(story.host.node.cluster.topics)
        before, number = set(topics), story.host.node.cluster.newest_topic_number
        story.now = (story.now // SCAN_MS + 1) * SCAN_MS
        story.host.tick(story.now)
        for _ in range(steps):
            is_over = not story.work()
            if is_over and story.host.upkeep.is_needed:
                story.host.upkeep.do_some()
                is_over = False
        steps += 1
        story.restart()
        assert set(story.host.node.cluster.topics) == before
        assert story.host.node.cluster.newest_topic_number == number
        seen.add(len(snapshots(story)))
        story.check_recovery()
        check_files(story.storage)
    assert steps > 5
    assert max(seen) >= 2


@pytest.mark.parametrize("policy", SyncPolicy)
def test_a_loss_of_power_takes_no_topic_that_the_policy_promises(policy: SyncPolicy) -> None:
    cleaned = 0
    for seed in range(20):
        chance = random.Random(seed)
        disk = SimulatedStorage(lambda most: chance.randint(0, most))  # noqa: B023 read before it changes
        story = Story(policy=policy, settings=SHORT, storage=disk)
        for number in range(chance.randint(10, 60)):
            come_and_go(story, 1, first=number)
            if chance.random() < 0.1:
                story.create(f"kept{number}")
            if chance.random() < 0.1:
                story.wait(SCAN_MS)
        topics = set(story.host.node.cluster.topics)
        for _ in range(chance.randint(0, 20)):
            story.work()
        cleaned += story.log(METADATA_PARTITION)[0].header.is_covering
        disk.lose_power()
        story.start()
        story.wait(10 * SCAN_MS)
        if policy is SyncPolicy.NONE:
            # A deletion syncs the log, and with it what was created before.
            assert {ORDERS.topic} <= set(story.host.node.cluster.topics)
        else:
            assert set(story.host.node.cluster.topics) == topics
        story.check_recovery()
        story.host.write_manifests()
        check_files(disk)
    assert cleaned > 5


# --- nodes that follow -------------------------------------------------------------------------------------


def shortened(cluster: Cluster) -> bool:
    header, _ = next(cluster.directory.journal(METADATA_PARTITION).segments.batches(0))
    return header.is_covering


def shorten(cluster: Cluster) -> None:
    """Write two snapshots, and let the records before the first go."""
    for round_ in range(3):
        come_and_go(cluster, 30, first=30 * round_)
        cluster.wait(2 * SCAN_MS)
        while cluster.hosts[CONTROLLER].upkeep.is_needed:
            cluster.hosts[CONTROLLER].upkeep.do_some()
    assert shortened(cluster)


READERS: Final = offsets_log_of("readers")
SPREAD: Final = {transaction_log_of("pay"): 2, ORDERS: 3, READERS: 3}


def test_a_node_that_starts_later_learns_all_from_a_snapshot() -> None:
    cluster = Cluster(settings=SHORT, leaders=SPREAD)
    cluster.produce(NOBODY, "a", name=None)
    cluster.kill(3)
    shorten(cluster)
    cluster.start(3)
    cluster.wait(1_000)
    cluster.check_leaders()
    assert cluster.visible() == "a"


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_node_that_misses_records_of_its_own_registers_again(is_created_again: bool) -> None:
    """A topic that it led was deleted in them."""
    cluster = Cluster(settings=SHORT, leaders=SPREAD)
    cluster.create("late")
    cluster.move(LATE, 3)
    cluster.produce(NOBODY, "old", name=None, key=LATE)
    cluster.ask(3, plain_offset_request("readers", {ORDERS: 5, LATE: 1}))
    cluster.cut_off(3)
    come_and_go(cluster, 1, first=1_000)  # the answer to its last fetch is on the way
    delete(cluster, "late")
    shorten(cluster)
    if is_created_again:
        cluster.create("late")
    cluster.heal()
    cluster.check_leaders()
    assert cluster.offset("readers") == 5
    request = m.OffsetFetch(group_id="readers", require_stable=False, partitions=(LATE,))
    (found,) = body_of(cluster.ask(3, request), m.OffsetFetchReply).offsets
    assert found.offset == NO_OFFSET
    assert (LATE in cluster.hosts[3].node.logs) <= is_created_again
    if is_created_again:
        cluster.produce(NOBODY, "new", name=None, key=LATE)
        assert cluster.visible(LATE) == "new"
