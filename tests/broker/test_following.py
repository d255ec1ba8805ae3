"""How nodes follow the controller: registered again and again, late, cut off, and while it is down."""

from __future__ import annotations

import pytest

from fencepost.broker.contract import Reassign, StorageFailed
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.journal import JournalSettings
from fencepost.journal.memory import MemoryFile
from fencepost.journal.segments import LOG, file_name
from fencepost.journal.storage import directory_name
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import (
    METADATA_PARTITION,
    NO_OFFSET,
    NO_TOPIC_ID,
    TRANSACTION_STATE_TOPIC,
    CoordinatorType,
    TopicPartition,
    TransactionResult,
    TransactionState,
)
from tests.broker.cluster import CONTROLLER, Cluster
from tests.broker.requests import (
    ABORT,
    COMMIT,
    NOBODY,
    ORDERS,
    OTHERS,
    body_of,
    fetch_request,
    fetched,
    plain_offset_request,
)
from tests.broker.story import offsets_log_of, transaction_log_of

PAY = transaction_log_of("pay")
READERS = offsets_log_of("readers")
SPREAD = {PAY: 2, ORDERS: 3, OTHERS: 1, READERS: 3}
LATE = TopicPartition("late", 0)


def delete(cluster: Cluster, topic: str) -> None:
    (answer,) = body_of(cluster.ask(CONTROLLER, m.DeleteTopics(topics=(topic,))), m.DeleteTopicsReply).topics
    assert answer.error is ErrorCode.NONE, answer


def epoch(cluster: Cluster, key: TopicPartition) -> int:
    leader = cluster.hosts[CONTROLLER].node.cluster.leader(key)
    assert leader is not None
    return leader.leader_epoch


# --- nodes that start --------------------------------------------------------------------------------------


@pytest.mark.parametrize("node_id", [1, 2, 3])
@pytest.mark.parametrize("policy", SyncPolicy)
def test_a_node_that_restarts_leads_what_it_led_under_newer_epochs(policy: SyncPolicy, node_id: int) -> None:
    cluster = Cluster(policy=policy, leaders=SPREAD)
    me = cluster.identity()
    cluster.produce(me, "a")
    cluster.produce(me, "b", key=OTHERS)
    before = {key: epoch(cluster, key) for key in SPREAD}
    cluster.restart(node_id)
    cluster.check_leaders()
    for key, leader in SPREAD.items():
        assert epoch(cluster, key) == before[key] + (leader == node_id)
    cluster.produce(me, "c", sequence=1)
    cluster.end(me, COMMIT)
    cluster.wait(200)
    assert (cluster.visible(), cluster.visible(OTHERS)) == ("a c", "b")


def test_metadata_names_the_new_leader_as_soon_as_it_is_elected() -> None:
    """Nodes keep the answer for a topic; it must not outlive the leader that it names."""
    cluster = Cluster(leaders=SPREAD)

    def described() -> tuple[m.PartitionMetadata, ...]:
        (topic,) = body_of(cluster.ask(CONTROLLER, m.Metadata(topics=("orders",))), m.MetadataReply).topics
        return topic.partitions

    before = described()
    assert described() is before
    cluster.move(ORDERS, 1)
    after = described()
    assert [part.leader_id for part in after] == [1, before[1].leader_id]
    assert after[0].leader_epoch == before[0].leader_epoch + 1


def test_a_node_that_starts_without_the_controller_waits_for_it() -> None:
    cluster = Cluster(leaders=SPREAD)
    cluster.produce(NOBODY, "a", name=None)
    cluster.kill(CONTROLLER)
    cluster.restart(3)
    cluster.wait(5_000)
    assert not cluster.hosts[3].node.logs
    assert cluster.produce(NOBODY, "x", name=None, at=3).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.start(CONTROLLER)
    cluster.wait(1_000)
    cluster.check_leaders()
    cluster.produce(NOBODY, "b", name=None)
    assert cluster.visible() == "a b"


def test_a_registration_whose_answer_is_lost_is_made_again() -> None:
    cluster = Cluster(leaders=SPREAD)
    before = epoch(cluster, ORDERS)
    cluster.kill(3)
    cluster.cut.add((CONTROLLER, 3))
    cluster.start(3)
    cluster.run()
    assert epoch(cluster, ORDERS) == before + 1
    cluster.restart(CONTROLLER)
    cluster.heal()
    assert epoch(cluster, ORDERS) == before + 2
    cluster.check_leaders()


# --- the controller ----------------------------------------------------------------------------------------


def test_transactions_go_on_while_the_controller_is_down() -> None:
    cluster = Cluster(leaders=SPREAD)
    me = cluster.identity()
    cluster.kill(CONTROLLER)
    cluster.produce(me, "a", at=3)
    heir = cluster.end(me, COMMIT, at=2)
    assert heir.error is ErrorCode.NONE
    cluster.wait(1_000)
    assert cluster.visible(at=3) == "a"
    found = body_of(
        cluster.ask(2, m.FindCoordinator(kind=CoordinatorType.TRANSACTION, key="pay")), m.FindCoordinatorReply
    )
    assert (found.node_id, found.port) == (2, 2)
    cluster.start(CONTROLLER)
    cluster.wait(1_000)
    cluster.check_leaders()
    assert cluster.leader(ORDERS) == 3


def test_what_the_controller_decided_before_it_died_is_heard_of_after() -> None:
    for place in range(8):
        cluster = Cluster(leaders=SPREAD, policy=SyncPolicy.ALL)
        host = cluster.hosts[CONTROLLER]
        host.offer(Reassign(partition=ORDERS, node_id=2))
        for _ in range(place):
            host.work(cluster.now)
        cluster.restart(CONTROLLER)
        cluster.check_leaders()
        assert cluster.leader(ORDERS) in (2, 3)
        cluster.produce(NOBODY, "a", name=None)
        assert cluster.visible() == "a"


@pytest.mark.parametrize(
    ("key", "node_id", "because"),
    [
        (TopicPartition("ghost", 0), 2, "there is no partition"),
        (TopicPartition("orders", 7), 2, "there is no partition"),
        (ORDERS, 9, "no node 9 is registered"),
    ],
)
def test_a_move_that_cannot_be_is_ignored_with_a_reason(
    key: TopicPartition, node_id: int, because: str
) -> None:
    cluster = Cluster(leaders=SPREAD)
    cluster.move(key, node_id)
    assert [trouble for trouble in cluster.hosts[CONTROLLER].troubles if because in trouble.text]
    cluster.hosts[2].offer(Reassign(partition=ORDERS, node_id=2))
    cluster.run()
    assert [trouble for trouble in cluster.hosts[2].troubles if "only the controller" in trouble.text]
    assert cluster.leader(ORDERS) == 3


@pytest.mark.parametrize("node_id", [1, 2])
@pytest.mark.parametrize(
    "request_", [m.BrokerRegistration(node_id=3, host="here", port=1), m.AllocateProducerIds(node_id=3)]
)
def test_what_only_nodes_may_ask_is_refused_to_clients(node_id: int, request_: m.Request) -> None:
    cluster = Cluster(leaders=SPREAD)
    granted = cluster.hosts[CONTROLLER].node.cluster.next_producer_id
    assert cluster.ask(node_id, request_).error is ErrorCode.INVALID_REQUEST
    assert cluster.leader(ORDERS) == 3
    assert cluster.hosts[CONTROLLER].node.cluster.next_producer_id == granted


def test_a_client_that_asks_for_an_election_changes_no_leader() -> None:
    cluster = Cluster(leaders=SPREAD)
    before = cluster.hosts[CONTROLLER].node.cluster.leader(ORDERS)
    asked = m.ElectLeaders(partitions=(ORDERS, TopicPartition("absent", 0)))
    body = body_of(cluster.ask(CONTROLLER, asked), m.ElectLeadersReply)
    assert [part.error for part in body.partitions] == [
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert cluster.hosts[CONTROLLER].node.cluster.leader(ORDERS) == before


@pytest.mark.parametrize(
    ("node_ids", "error", "leader_id"),
    [
        ((3,), ErrorCode.NONE, 3),
        ((2,), ErrorCode.NONE, 2),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, 3),
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT, 3),
        ((9,), ErrorCode.INVALID_REPLICA_ASSIGNMENT, 3),
        ((2, 3), ErrorCode.INVALID_REPLICA_ASSIGNMENT, 3),
    ],
)
def test_a_client_moves_a_partition(
    node_ids: tuple[int, ...] | None, error: ErrorCode, leader_id: int
) -> None:
    cluster = Cluster(leaders=SPREAD)
    wanted = m.PartitionReassignment(topic="orders", partition=0, node_ids=node_ids)
    epoch = cluster.hosts[CONTROLLER].node.cluster.topics["orders"].leaders[0].leader_epoch
    reply = cluster.ask(CONTROLLER, m.AlterPartitionReassignments(partitions=(wanted, wanted)))
    body = body_of(reply, m.AlterPartitionReassignmentsReply)
    assert [part.error for part in body.partitions] == [error, error]
    cluster.run()
    found = cluster.hosts[CONTROLLER].node.cluster.topics["orders"].leaders[0]
    assert cluster.leader(ORDERS) == found.node_id == leader_id
    assert found.leader_epoch == epoch + (leader_id != 3)


def test_topics_are_made_by_the_controller_alone() -> None:
    cluster = Cluster()
    wanted = m.CreateTopics(topics=(m.CreateTopic(topic="late", partition_count=1),))
    assert cluster.ask(2, wanted).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert cluster.ask(3, m.DeleteTopics(topics=("orders",))).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    internal = m.CreateTopics(topics=(m.CreateTopic(topic=TRANSACTION_STATE_TOPIC, partition_count=1),))
    (answer,) = body_of(cluster.ask(CONTROLLER, internal), m.CreateTopicsReply).topics
    assert answer.error is ErrorCode.TOPIC_ALREADY_EXISTS


# --- nodes that are late -----------------------------------------------------------------------------------


def test_a_node_that_hears_late_of_a_new_partition_leaves_its_heirs_log_alone() -> None:
    cluster = Cluster()
    cluster.cut_off(3)
    for number in range(3):
        cluster.create(f"late{number}")
    late = next(
        key for key in (TopicPartition(f"late{number}", 0) for number in range(3)) if cluster.leader(key) == 3
    )
    cluster.move(late, 1)
    cluster.produce(NOBODY, "a", name=None, key=late)
    cluster.heal()
    assert cluster.visible(late) == "a"
    cluster.check_leaders()


def test_a_node_that_hears_late_of_a_new_partition_alone_does_not_take_its_heirs_log_for_an_old_one() -> None:
    """What it is told had been true when it was sent: that the partition is new, and its own."""
    cluster = Cluster()
    cluster.create("one")
    cluster.create("two")
    cluster.cut.add((CONTROLLER, 3))
    cluster.create("late")
    assert cluster.leader(LATE) == 3
    cluster.move(LATE, 1)
    cluster.produce(NOBODY, "a", name=None, key=LATE)
    cluster.heal()
    assert cluster.visible(LATE) == "a"
    cluster.check_leaders()


def test_a_node_that_led_for_a_moment_and_did_not_hear_of_it_in_time_does_not_begin_to() -> None:
    cluster = Cluster(leaders={ORDERS: 1})
    cluster.cut.add((3, CONTROLLER))
    cluster.create("last")  # that it hears of, and then its next question stays on the way
    cluster.move(ORDERS, 3)
    cluster.move(ORDERS, 1)
    cluster.produce(NOBODY, "a", name=None)
    after = epoch(cluster, ORDERS)
    cluster.heal()
    assert (epoch(cluster, ORDERS), cluster.hosts[3].troubles) == (after, [])
    cluster.check_leaders()


def test_a_node_that_restarts_reads_its_past_piece_by_piece_and_acts_on_none_of_it() -> None:
    cluster = Cluster(leaders=SPREAD, journals=JournalSettings(segment_bytes=1))
    for node_id in (1, 3, 2, 3):
        cluster.move(ORDERS, node_id)
    cluster.create("late", 5)
    delete(cluster, "late")
    cluster.create("late", 5)
    cluster.produce(NOBODY, "a", name=None)
    before = epoch(cluster, ORDERS)
    cluster.restart(3)
    assert (epoch(cluster, ORDERS), cluster.hosts[3].troubles) == (before + 1, [])
    cluster.produce(NOBODY, "b", name=None)
    assert cluster.visible() == "a b"
    cluster.check_leaders()


def test_nobody_leads_by_a_decision_that_is_not_durable() -> None:
    cluster = Cluster(leaders=SPREAD, policy=SyncPolicy.ALL)
    cluster.hosts[CONTROLLER].offer(Reassign(partition=ORDERS, node_id=CONTROLLER))
    cluster.work(CONTROLLER)
    assert cluster.leader(ORDERS) == CONTROLLER
    assert ORDERS not in cluster.hosts[CONTROLLER].node.logs
    assert ORDERS in cluster.hosts[3].node.logs
    cluster.run()
    cluster.check_leaders()


def test_a_leader_that_has_not_heard_of_a_deletion_shows_nothing_of_the_next_topic() -> None:
    cluster = Cluster(leaders=SPREAD)
    cluster.produce(NOBODY, "old", name=None)
    cluster.produce(NOBODY, "older", name=None)
    cluster.cut_off(3)
    delete(cluster, "orders")
    cluster.create("orders", 2)
    cluster.move(ORDERS, 1)
    cluster.produce(NOBODY, "new", name=None)
    part = fetched(cluster.ask(3, fetch_request(ORDERS)))
    assert b"new" not in bytes(part.records)
    assert part.error is ErrorCode.KAFKA_STORAGE_ERROR or b"old" in bytes(part.records)


def test_a_leader_that_has_not_heard_of_a_deletion_cannot_write_into_the_next_topic_of_the_name() -> None:
    for values in ("", "old", "old older"):
        cluster = Cluster(leaders=SPREAD)
        for value in values.split():
            cluster.produce(NOBODY, value, name=None)
        cluster.cut_off(3)
        before = epoch(cluster, ORDERS)
        delete(cluster, "orders")
        cluster.create("orders", 2)
        assert epoch(cluster, ORDERS) > before
        cluster.move(ORDERS, 1)
        cluster.produce(NOBODY, "new", name=None)
        lost = cluster.produce(NOBODY, "lost", name=None, at=3)
        assert lost.error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
        cluster.heal()
        cluster.produce(NOBODY, "newer", name=None)
        assert cluster.visible() == cluster.written().replace(" |", "") == "new newer"
        cluster.check_leaders()


def test_a_deleted_topic_is_gone_everywhere_and_its_transactions_end() -> None:
    cluster = Cluster(leaders=SPREAD)
    cluster.create("late")
    me = cluster.identity()
    cluster.produce(me, "a")
    cluster.produce(me, "b", key=LATE)
    cluster.cut.add((CONTROLLER, 2))  # the coordinator has not heard of it when the transaction ends
    delete(cluster, "late")
    assert cluster.end(me, COMMIT).error is ErrorCode.NONE
    cluster.wait(300)
    cluster.heal()
    assert cluster.records()[-1].state is TransactionState.COMPLETE_COMMIT
    assert LATE not in cluster.directory.partitions()
    assert cluster.visible() == "a"
    cluster.check_leaders()


def test_offsets_of_a_deleted_topic_are_forgotten_by_a_coordinator_elsewhere() -> None:
    cluster = Cluster(leaders=SPREAD)
    for _ in range(2):
        cluster.ask(3, plain_offset_request("readers", {ORDERS: 5}))
        assert cluster.offset("readers") == 5
        cluster.cut_off(3)  # it hears of both in one go
        delete(cluster, "orders")
        cluster.create("orders", 2)
        cluster.heal()
        assert cluster.offset("readers") == NO_OFFSET


@pytest.mark.parametrize("result", [COMMIT, ABORT])
def test_a_coordinator_that_has_lost_sight_of_a_partition_does_not_take_it_for_deleted(
    result: TransactionResult,
) -> None:
    """The metadata log is gone: the coordinator has to begin anew, and knows of no topic at all."""
    cluster = Cluster(leaders=SPREAD)
    me = cluster.identity()
    cluster.produce(me, "a")
    cluster.cut.add((2, 3))
    assert cluster.end(me, result).error is ErrorCode.NONE
    cluster.kill(3)
    cluster.kill(CONTROLLER)
    cluster.directory.delete(METADATA_PARTITION, NO_TOPIC_ID)
    cluster.start(CONTROLLER)
    cluster.wait(2_000)
    assert not cluster.hosts[2].node.cluster.topics
    assert cluster.records()[-1].state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


# --- disks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_controller_down", [False, True])
def test_a_node_whose_disk_failed_leads_again_under_a_new_epoch(is_controller_down: bool) -> None:
    cluster = Cluster(leaders=SPREAD)
    cluster.produce(NOBODY, "a", name=None)
    before = epoch(cluster, ORDERS)
    if is_controller_down:
        cluster.kill(CONTROLLER)
    cluster.hosts[3].offer(StorageFailed(partition=ORDERS))
    cluster.wait(500)
    if is_controller_down:
        assert ORDERS not in cluster.hosts[3].node.logs
        cluster.start(CONTROLLER)
    cluster.wait(1_000)
    assert epoch(cluster, ORDERS) == before + 1
    cluster.produce(NOBODY, "b", name=None)
    assert cluster.visible() == "a b"
    cluster.check_leaders()


def test_a_node_whose_disk_failed_when_it_had_been_replaced_stays_replaced() -> None:
    cluster = Cluster(leaders=SPREAD)
    cluster.cut_off(3)
    cluster.move(ORDERS, 1)
    after = epoch(cluster, ORDERS)
    cluster.hosts[3].lose(ORDERS, OSError("the disk is on fire"))
    cluster.run()
    cluster.heal()
    assert (cluster.leader(ORDERS), epoch(cluster, ORDERS)) == (1, after)
    cluster.produce(NOBODY, "a", name=None)
    assert cluster.visible() == "a"
    cluster.check_leaders()


def damage(cluster: Cluster, key: TopicPartition, at: int) -> None:
    """Flip a bit of a log, and leave its files open as they are."""
    file = cluster.storage.open(f"{directory_name(key)}/{file_name(0, LOG)}")
    assert isinstance(file, MemoryFile)
    file.content[at] ^= 1


def test_a_node_acts_on_no_damaged_record_of_the_controller() -> None:
    cluster = Cluster(leaders=SPREAD)
    cluster.produce(NOBODY, "a", name=None)
    log = cluster.hosts[CONTROLLER].node.logs[METADATA_PARTITION].partition
    whole = len(cluster.storage.read_file(f"{directory_name(METADATA_PARTITION)}/{file_name(0, LOG)}") or b"")
    damage(cluster, METADATA_PARTITION, whole - 2)  # the leader epoch of the last change
    cluster.kill(3)
    cluster.start(3)
    cluster.wait(1_000)
    node = cluster.hosts[3].node
    assert node.following.offset < log.log_end_offset
    assert ORDERS not in node.logs
    assert any(
        "a damaged batch of __cluster_metadata" in trouble.text for trouble in cluster.hosts[3].troubles
    )
    damage(cluster, METADATA_PARTITION, whole - 2)
    cluster.wait(1_000)
    cluster.check_leaders()
    assert cluster.visible() == "a"


def test_a_node_that_refused_a_damaged_log_says_who_leads_it_after_a_move() -> None:
    cluster = Cluster(leaders=SPREAD)
    cluster.produce(NOBODY, "a", name=None)
    cluster.hosts[3].offer(StorageFailed(partition=ORDERS, needs_operator=True))
    cluster.run()
    assert cluster.produce(NOBODY, "b", name=None, at=3).error is ErrorCode.KAFKA_STORAGE_ERROR
    cluster.move(ORDERS, 1)
    assert cluster.produce(NOBODY, "b", name=None, at=3).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.produce(NOBODY, "b", name=None)
    assert cluster.visible() == "a b"


def test_everybody_names_the_same_controller() -> None:
    cluster = Cluster()
    answers = [body_of(cluster.ask(node_id, m.Metadata(topics=())), m.MetadataReply) for node_id in (1, 2, 3)]
    assert [answer.controller_id for answer in answers] == [CONTROLLER] * 3
