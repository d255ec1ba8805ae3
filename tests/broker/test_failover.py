"""Leadership moves: transactions are finished by whoever coordinates them, and whoever was replaced is
fenced.
"""

from __future__ import annotations

import pytest

from fencepost.broker.sync_policy import SyncPolicy
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import FetchReply, ProduceReply, TxnOffsetCommitReply
from fencepost.protocol.terms import TopicPartition, TransactionResult, TransactionState
from tests.broker.cluster import CONTROLLER, Cluster
from tests.broker.requests import (
    ABORT,
    COMMIT,
    NOBODY,
    ORDERS,
    OTHERS,
    UNCOMMITTED,
    body_of,
    end_request,
    fetch_request,
    identity_of,
    init_request,
    offset_request,
    produce_request,
    produced,
)
from tests.broker.story import offsets_log_of, transaction_log_of

PAY = transaction_log_of("pay")
READERS = offsets_log_of("readers")
SPREAD = {PAY: 2, ORDERS: 3, OTHERS: 1, READERS: 3}
DONE = {COMMIT: TransactionState.COMPLETE_COMMIT, ABORT: TransactionState.COMPLETE_ABORT}

each_policy = pytest.mark.parametrize("policy", SyncPolicy)
each_result = pytest.mark.parametrize("result", [COMMIT, ABORT])


# --- coordinators ------------------------------------------------------------------------------------------


@each_policy
@each_result
def test_a_coordinator_that_moves_in_the_middle_of_prepare_finishes_elsewhere(
    policy: SyncPolicy, result: TransactionResult
) -> None:
    cluster = Cluster(policy=policy, leaders=SPREAD)
    me = cluster.identity()
    cluster.produce(me, "a")
    cluster.produce(me, "b", key=OTHERS)
    cluster.cut.add((2, 3))  # the marker for orders-0 stays on its way
    assert cluster.end(me, result).error is ErrorCode.NONE
    cluster.wait(500)
    assert cluster.records()[-1].state not in DONE.values()
    cluster.move(PAY, 1)
    cluster.wait(200)
    assert cluster.records()[-1].state is DONE[result]
    expected = "a" if result is COMMIT else ""
    assert cluster.visible() == expected
    before = cluster.written()
    cluster.heal()  # the old coordinator's marker arrives, and is fenced by the epoch that it carries
    assert cluster.written() == before
    assert cluster.visible() == expected
    heir = cluster.identity()
    cluster.produce(heir, "c")
    cluster.end(heir, COMMIT)
    cluster.wait(200)
    assert cluster.visible() == f"{expected} c".strip()
    cluster.check_leaders()


@each_policy
def test_a_coordinator_that_was_replaced_and_does_not_know_it_decides_nothing(policy: SyncPolicy) -> None:
    cluster = Cluster(policy=policy, leaders=SPREAD)
    me = cluster.identity()
    cluster.produce(me, "a")
    cluster.cut_off(2)
    cluster.move(PAY, 1)
    zombie = cluster.hosts[2]
    assert PAY in zombie.node.logs
    before = len(cluster.records())
    assert cluster.end(me, COMMIT, at=2).error is ErrorCode.NOT_COORDINATOR
    assert PAY not in zombie.node.logs
    assert cluster.ask(2, init_request()).error is ErrorCode.NOT_COORDINATOR
    assert len(cluster.records()) == before
    assert cluster.end(me, ABORT).error is ErrorCode.NONE
    cluster.heal()
    assert (cluster.visible(), cluster.records()[-1].state) == ("", TransactionState.COMPLETE_ABORT)
    cluster.check_leaders()


def test_all_who_wait_for_a_replaced_coordinator_are_told() -> None:
    """Two answers wait for the log when it turns out that somebody else leads it."""
    cluster = Cluster(policy=SyncPolicy.ALL, leaders=SPREAD)
    me, you = cluster.identity(), cluster.identity("other")
    assert transaction_log_of("other") == PAY
    cluster.produce(me, "a")
    cluster.produce(you, "b", key=OTHERS, name="other")
    cluster.cut_off(2)
    asked = [cluster.offer(2, end_request(me, COMMIT)), cluster.offer(2, end_request(you, COMMIT, "other"))]
    cluster.move(PAY, 3)
    cluster.wait(100)
    errors = [cluster.replies.pop(to).error for to in asked]
    assert set(errors) <= {ErrorCode.NONE, ErrorCode.NOT_COORDINATOR}
    cluster.heal()
    decided = [cluster.end(me, COMMIT).error, cluster.end(you, COMMIT, "other").error]
    assert decided == [ErrorCode.NONE, ErrorCode.NONE]
    cluster.wait(200)
    assert (cluster.visible(), cluster.visible(OTHERS)) == ("a", "b")


def test_a_transaction_is_timed_out_by_the_new_coordinator() -> None:
    cluster = Cluster(leaders=SPREAD)
    me = identity_of(cluster.ask(2, init_request(timeout_ms=5_000)))
    cluster.produce(me, "a")
    cluster.wait(3_000)
    cluster.kill(2)
    cluster.move(PAY, 3)
    cluster.wait(3_000)
    assert cluster.records()[-1].state is TransactionState.COMPLETE_ABORT
    assert cluster.end(me, COMMIT).error is ErrorCode.INVALID_TXN_STATE
    assert cluster.visible() == ""


@each_result
def test_a_coordinator_killed_before_its_markers_left_finishes_after_its_restart(
    result: TransactionResult,
) -> None:
    for place in range(12):
        cluster = Cluster(leaders=SPREAD)
        me = cluster.identity()
        cluster.produce(me, "a")
        cluster.produce(me, "b", key=OTHERS)
        to = cluster.offer(2, end_request(me, result))
        host = cluster.hosts[2]
        for _ in range(place):
            host.work(cluster.now)
        was_answered = any(reply.to.correlation_id == to[1] for reply in host.answers)
        cluster.restart(2)
        if not was_answered:
            assert cluster.end(me, result).error in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS)
        cluster.wait(500)
        assert cluster.records()[-1].state is DONE[result]
        assert cluster.visible() == ("a" if result is COMMIT else "")
        cluster.check_leaders()


# --- partition leaders -------------------------------------------------------------------------------------


@each_policy
def test_a_leader_that_was_replaced_and_does_not_know_it_writes_nothing(policy: SyncPolicy) -> None:
    cluster = Cluster(policy=policy, leaders=SPREAD)
    cluster.produce(NOBODY, "a", name=None)
    cluster.cut_off(3)
    cluster.move(ORDERS, 1)
    assert cluster.produce(NOBODY, "lost", name=None, at=3).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert cluster.produce(NOBODY, "b", name=None).error is ErrorCode.NONE
    assert cluster.produce(NOBODY, "lost", name=None, at=3).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert cluster.visible() == "a b"
    cluster.heal()
    cluster.move(ORDERS, 3)
    cluster.produce(NOBODY, "c", name=None)
    assert cluster.visible() == "a b c"
    cluster.check_leaders()


def test_a_leader_that_was_replaced_shows_what_was_there_and_no_more() -> None:
    cluster = Cluster(leaders=SPREAD)
    cluster.produce(NOBODY, "a", name=None)
    cluster.cut_off(3)
    cluster.move(ORDERS, 1)
    cluster.produce(NOBODY, "b", name=None)
    assert cluster.visible(at=3) == "a"
    # A sync of the log that both have open says more than the old leader wrote.
    zombie = cluster.hosts[3]
    zombie.synced(ORDERS, cluster.directory.journal(ORDERS).sync())
    cluster.work(3)
    assert zombie.node.logs[ORDERS].partition.high_watermark == 1


def test_a_leader_that_was_replaced_calls_no_offset_of_its_heir_out_of_range() -> None:
    """A reader that was told so would begin anew, and read everything twice."""
    cluster = Cluster(leaders=SPREAD)
    cluster.cut_off(3)
    cluster.move(ORDERS, 1)
    cluster.produce(NOBODY, "a", name=None)
    for offset, error in ((1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (2, ErrorCode.OFFSET_OUT_OF_RANGE)):
        (part,) = body_of(cluster.ask(3, fetch_request(ORDERS, offset=offset)), FetchReply).partitions
        assert part.error is error


def test_a_leader_that_never_wrote_is_fenced_by_one_that_has_not_written_yet() -> None:
    cluster = Cluster(leaders=SPREAD)
    cluster.cut_off(3)
    cluster.move(ORDERS, 1)
    assert cluster.produce(NOBODY, "lost", name=None, at=3).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.produce(NOBODY, "a", name=None)
    assert cluster.written() == "a"


def test_a_replaced_leader_does_not_come_upon_the_log_that_its_dead_heir_left() -> None:
    """The heir led and died without a word in the log: nothing in the log says that there was one."""
    cluster = Cluster(leaders=SPREAD)
    cluster.cut_off(3)
    cluster.move(ORDERS, 2)
    cluster.kill(2)
    lost = cluster.produce(NOBODY, "lost", name=None, at=3)
    assert lost.error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
    assert cluster.written() == ""
    cluster.heal()
    cluster.move(ORDERS, 1)
    cluster.produce(NOBODY, "a", name=None)
    assert cluster.visible() == "a"


@each_policy
def test_a_transaction_goes_on_at_another_leader(policy: SyncPolicy) -> None:
    cluster = Cluster(policy=policy, leaders=SPREAD)
    me = cluster.identity()
    cluster.produce(me, "a")
    cluster.move(ORDERS, 2)
    assert cluster.produce(me, "a").base_offset == 0  # sent again, since the answer might have been lost
    assert cluster.produce(me, "b", sequence=1).error is ErrorCode.NONE
    cluster.move(ORDERS, 1)
    assert cluster.visible() == ""
    cluster.end(me, COMMIT)
    cluster.wait(200)
    assert cluster.visible() == "a b"


def test_a_batch_that_waits_for_the_coordinator_is_refused_when_the_leader_moves() -> None:
    cluster = Cluster(leaders=SPREAD)
    me = cluster.identity()
    cluster.cut.add((2, 3))  # the coordinator's yes stays on its way
    to = cluster.offer(3, produce_request(me, {ORDERS: "a"}))
    cluster.run()
    assert to not in cluster.replies
    cluster.move(ORDERS, 1)
    cluster.heal()
    assert produced(cluster.replies[to])[ORDERS].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.produce(me, "a")
    cluster.end(me, COMMIT)
    cluster.wait(200)
    assert cluster.visible() == "a"


@pytest.mark.parametrize("key", [ORDERS, READERS])
def test_a_question_of_an_earlier_leadership_is_asked_again(key: TopicPartition) -> None:
    """The node leads again when the coordinator's yes arrives: to the producer that is a new leader."""
    cluster = Cluster(leaders=SPREAD)
    me = cluster.identity()
    cluster.cut.add((2, 3))
    request = (
        produce_request(me, {ORDERS: "a"}) if key == ORDERS else offset_request(me, "readers", {ORDERS: 5})
    )
    to = cluster.offer(3, request)
    cluster.run()
    cluster.move(key, 1)
    cluster.move(key, 3)
    cluster.heal()
    body = cluster.replies[to].body
    assert isinstance(body, ProduceReply | TxnOffsetCommitReply)
    assert body.partitions[0].error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR)


def test_a_leader_that_dies_while_its_marker_is_on_the_way_gets_it_again() -> None:
    cluster = Cluster(leaders=SPREAD)
    me = cluster.identity()
    cluster.produce(me, "a")
    cluster.cut.add((2, 3))
    cluster.end(me, COMMIT)
    cluster.kill(3)
    cluster.cut.clear()
    cluster.wait(500)
    assert cluster.records()[-1].state is TransactionState.PREPARE_COMMIT
    cluster.start(3)
    cluster.wait(1_000)
    assert (cluster.visible(), cluster.records()[-1].state) == ("a", TransactionState.COMPLETE_COMMIT)
    cluster.check_leaders()


def test_readers_that_wait_are_told_that_the_leader_moved() -> None:
    cluster = Cluster(leaders=SPREAD)
    to = cluster.offer(3, fetch_request(ORDERS, UNCOMMITTED, max_wait_ms=60_000))
    cluster.run()
    assert to not in cluster.replies
    cluster.move(ORDERS, 1)
    (part,) = body_of(cluster.replies[to], FetchReply).partitions
    assert part.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- group coordinators ------------------------------------------------------------------------------------


@each_result
def test_offsets_of_a_transaction_survive_a_move(result: TransactionResult) -> None:
    cluster = Cluster(leaders=SPREAD)
    me = cluster.identity()
    assert cluster.commit_offset(me, "readers", 5) is ErrorCode.NONE
    cluster.move(READERS, 1)
    assert cluster.commit_offset(me, "readers", 6, at=3) is ErrorCode.NOT_COORDINATOR
    assert cluster.commit_offset(me, "readers", 7) is ErrorCode.NONE
    cluster.end(me, result)
    cluster.wait(200)
    assert cluster.offset("readers") == (7 if result is COMMIT else -1)
    assert cluster.leader(READERS) == CONTROLLER
