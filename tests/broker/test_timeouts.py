"""What happens by itself: transactions that take too long, and markers that nobody answered."""

from __future__ import annotations

import pytest

from fencepost.broker.contract import Answered, ResignLeader, StorageFailed, Tick
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.broker.transactions import state as transactions
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import WriteTxnMarkersReply
from fencepost.protocol.terms import LAST_GRANTED_EPOCH, TransactionState
from tests.broker.requests import (
    ABORT,
    COMMIT,
    ORDERS,
    OTHERS,
    Identity,
    add_request,
    end_request,
    identity_of,
    marker_request,
)
from tests.broker.story import SCAN_MS, Story, transaction_log_of

TIMEOUT_MS = 5_000


def opened(story: Story) -> Identity:
    me = story.identity(timeout_ms=TIMEOUT_MS)
    story.produce(me, "a")
    return me


# --- timeouts ----------------------------------------------------------------------------------------------


def test_an_open_transaction_is_aborted_at_the_first_scan_after_its_deadline() -> None:
    story = Story()
    me = opened(story)
    deadline = story.transaction().start_ms + TIMEOUT_MS
    scan = (deadline // SCAN_MS + 1) * SCAN_MS
    for now, state in ((scan - 1, TransactionState.ONGOING), (scan, TransactionState.COMPLETE_ABORT)):
        story.now = now
        story.run()
        assert story.states()[-1] is state
    assert story.states()[-2:] == [TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT]
    assert story.written() == f"a | abort {me.producer_id}/{me.producer_epoch + 1}"
    assert story.visible() == ""


def test_time_counts_from_the_first_partition_not_from_the_last() -> None:
    story = Story()
    me = opened(story)
    for number in range(1, 4):
        story.wait(TIMEOUT_MS // 4)
        story.produce(me, "b", sequence=number)
        story.commit_offset(me, f"g{number}", number)
    story.wait(TIMEOUT_MS // 4 + 2 * SCAN_MS)
    assert story.states()[-1] is TransactionState.COMPLETE_ABORT


def test_the_next_transaction_has_a_time_of_its_own() -> None:
    story = Story()
    me = opened(story)
    story.wait(TIMEOUT_MS - SCAN_MS)
    me = story.ended(me, COMMIT)
    story.produce(me, "b")
    story.wait(TIMEOUT_MS - SCAN_MS)
    assert story.states()[-1] is TransactionState.ONGOING
    story.wait(3 * SCAN_MS)
    assert story.states()[-1] is TransactionState.COMPLETE_ABORT
    assert story.visible() == "a"


def test_a_restart_does_not_set_the_clock_back() -> None:
    story = Story()
    opened(story)
    story.wait(TIMEOUT_MS - SCAN_MS)
    story.restart()
    assert story.states()[-1] is TransactionState.ONGOING
    story.wait(3 * SCAN_MS)
    assert story.states()[-1] is TransactionState.COMPLETE_ABORT


def test_a_transaction_whose_time_passed_while_the_broker_was_down_is_aborted_soon() -> None:
    story = Story()
    opened(story)
    story.kill()
    story.now += 10 * TIMEOUT_MS
    story.start()
    story.wait(2 * SCAN_MS)
    assert story.states()[-1] is TransactionState.COMPLETE_ABORT


def test_the_owner_finds_out_and_may_go_on_after_an_abort() -> None:
    """Recorded of Kafka 4.3.1: its commit is INVALID_TXN_STATE, its abort gives it the next epoch."""
    story = Story()
    me = opened(story)
    story.wait(TIMEOUT_MS + 2 * SCAN_MS)
    assert story.produce(me, "b", sequence=1).error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert story.commit_offset(me, "readers", 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert story.end(me, COMMIT).error is ErrorCode.INVALID_TXN_STATE
    heir = story.ended(me, ABORT)
    assert heir == Identity(me.producer_id, me.producer_epoch + 1)
    assert story.produce(heir, "c").error is ErrorCode.NONE
    story.ended(heir, COMMIT)
    assert story.visible() == "c"


def test_a_timeout_at_the_last_epoch_takes_the_next_producer_id() -> None:
    story = Story()
    story.identity(timeout_ms=TIMEOUT_MS)
    me = story.age(LAST_GRANTED_EPOCH)
    story.produce(me, "a")
    story.wait(TIMEOUT_MS + 2 * SCAN_MS)
    assert story.states()[-1] is TransactionState.COMPLETE_ABORT
    heir = story.ended(me, ABORT)
    assert heir.producer_id > me.producer_id
    story.produce(heir, "b")
    story.ended(heir, COMMIT)
    assert story.visible() == "b"


def test_many_transactions_time_out_each_at_its_time() -> None:
    story = Story()
    names = [f"p{number}" for number in range(10)]
    for number, name in enumerate(names):
        me = story.identity(name, timeout_ms=1_000 * (number + 1))
        story.produce(me, name, name=name)
    for number in range(10):
        states = [story.states(name)[-1] for name in names]
        assert states == [TransactionState.COMPLETE_ABORT] * number + [TransactionState.ONGOING] * (
            10 - number
        )
        story.wait(1_000 + (SCAN_MS if number == 0 else 0))
    assert story.partition().last_stable_offset == story.partition().log_end_offset


def test_an_idle_node_wakes_only_to_look_for_what_expired_or_can_be_cleaned() -> None:
    story = Story()
    me = opened(story)
    assert story.host.wakes_at_ms is not None
    story.ended(me, COMMIT)
    story.wait(2 * TIMEOUT_MS)
    settings = story.settings
    intervals = (settings.producer_id_expiration_check_interval_ms, settings.log_cleaner_backoff_ms)
    assert story.host.wakes_at_ms == min((story.now // interval + 1) * interval for interval in intervals)


def test_a_transaction_may_use_its_time_to_the_last_millisecond() -> None:
    story = Story()
    opened(story)
    deadline = story.transaction().start_ms + TIMEOUT_MS
    assert list(transactions.timed_out(story.coordinator(), now=deadline)) == []
    assert list(transactions.timed_out(story.coordinator(), now=deadline + 1)) == ["pay"]


def test_a_transaction_whose_last_step_is_not_safe_yet_is_for_the_next_scan() -> None:
    story = Story(policy=SyncPolicy.COMMIT)
    me = opened(story)
    story.now += TIMEOUT_MS + 1
    added = story.offer(add_request(me, OTHERS))
    story.run()
    story.host.offer(Tick())
    story.run()
    assert story.states()[-1] is TransactionState.ONGOING
    story.sync()
    story.run()
    assert story.replies[added].error is ErrorCode.NONE
    story.wait(2 * SCAN_MS)
    assert story.states()[-1] is TransactionState.COMPLETE_ABORT
    assert story.written(OTHERS) == f"abort {me.producer_id}/{me.producer_epoch + 1}"


# --- markers ---------------------------------------------------------------------------------------------


def test_markers_are_asked_for_again_while_a_leader_is_missing() -> None:
    story = Story()
    me = opened(story)
    story.produce(me, "b", key=OTHERS)
    story.host.offer(ResignLeader(partition=OTHERS))
    decided = story.offer(end_request(me, COMMIT))
    story.run()
    assert story.replies[decided].error is ErrorCode.NONE  # whatever the markers do
    to = story.offer(end_request(me, COMMIT))
    for _ in range(10):
        story.run()
        story.now += SCAN_MS
    assert story.replies[to].error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert story.states()[-1] is TransactionState.PREPARE_COMMIT
    assert story.partition().last_stable_offset == 2  # the partition that has its marker is done
    assert story.coordinator().pending_markers == {"pay": {OTHERS}}
    story.restart()
    assert story.states()[-1] is TransactionState.COMPLETE_COMMIT
    assert (story.visible(), story.visible(OTHERS)) == ("a", "b")
    assert identity_of(story.end(me, COMMIT)) == Identity(me.producer_id, me.producer_epoch + 1)


def test_markers_whose_answer_was_lost_are_written_again_and_do_no_harm() -> None:
    story = Story()
    me = opened(story)
    story.offer(end_request(me, COMMIT))
    lost = held_answer(story)
    story.host.offer(Answered(token=lost.token, error=ErrorCode.NETWORK_EXCEPTION, body=None))
    story.wait(5 * SCAN_MS)
    assert story.states()[-1] is TransactionState.COMPLETE_COMMIT
    marker = f"commit {me.producer_id}/{me.producer_epoch + 1}"
    assert story.written() == f"a | {marker} | {marker}"
    assert story.visible() == "a"
    assert story.partition().last_stable_offset == 3


def test_an_answer_to_the_markers_of_a_past_transaction_says_nothing_of_this_one() -> None:
    """It came late: the coordinator had lost its log, led it again and finished without that answer."""
    story = Story()
    me = opened(story)
    story.offer(end_request(me, COMMIT))
    late = held_answer(story)
    story.host.offer(StorageFailed(partition=transaction_log_of("pay")))
    story.wait(5 * SCAN_MS)
    assert story.states()[-1] is TransactionState.COMPLETE_COMMIT
    me = Identity(me.producer_id, me.producer_epoch + 1)
    story.produce(me, "b")
    story.offer(end_request(me, COMMIT))
    mine = held_answer(story)
    story.host.offer(late)
    story.run()
    assert story.states()[-1] is TransactionState.PREPARE_COMMIT
    story.host.offer(mine)
    story.settle()
    assert story.states()[-1] is TransactionState.COMPLETE_COMMIT
    assert story.visible() == "a b"


def held_answer(story: Story) -> Answered:
    """The answer to markers that were written, taken from the wire."""
    while True:
        for arrived in story.host.inbox:
            if isinstance(arrived, Answered) and isinstance(arrived.body, WriteTxnMarkersReply):
                story.host.inbox.remove(arrived)
                return arrived
        assert story.work()


def test_a_coordinator_gives_up_when_a_partition_knows_a_newer_owner() -> None:
    """Recorded of Kafka 4.3.1: the transaction is stuck until somebody looks at it."""
    story = Story()
    me = opened(story)
    story.ask(marker_request(Identity(me.producer_id, 9), ABORT, ORDERS, coordinator_epoch=3))
    assert story.end(me, COMMIT).error is ErrorCode.NONE
    story.wait(5 * SCAN_MS)
    assert story.states()[-1] is TransactionState.PREPARE_COMMIT
    assert story.host.node.markers_due == {}
    assert story.end(me, COMMIT).error is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("result", [COMMIT, ABORT])
def test_a_transaction_of_nothing_but_an_added_partition_ends(result: object) -> None:
    """The partition was added and its batch then refused: it gets a marker all the same."""
    story = Story()
    me = story.identity()
    assert story.produce(me, "a", sequence=5).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert story.transaction().partitions == (ORDERS,)
    story.ended(me, COMMIT if result is COMMIT else ABORT)
    state = story.partition()
    assert state.last_stable_offset == state.log_end_offset == 1
    assert story.host.node.markers_due == {}
    assert story.coordinator().pending_markers == {}
