"""Rule 1: what was seen is what is safe. Under a policy that syncs, nothing is answered before its sync."""

from __future__ import annotations

import pytest

from fencepost.broker.contract import Durable
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.simulated import SimulatedStorage
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TransactionState
from tests.broker.disks import SYNCING, is_answered, simulated
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
    marker_request,
    offset_request,
    plain_offset_request,
    produce_request,
    produced,
)
from tests.broker.story import Story, offsets_log_of, transaction_log_of

# --- nothing before its sync -------------------------------------------------------------------------


def begun(policy: SyncPolicy) -> tuple[Story, Identity]:
    """A story in which a transaction is open and has written a, and who writes."""
    story = simulated(policy)
    me = story.identity()
    story.produce(me, "a")
    return story, me


def _offsets_fetch(group: str) -> m.OffsetFetch:
    return m.OffsetFetch(group_id=group, require_stable=False, partitions=None)


@pytest.mark.parametrize("policy", SYNCING)
def test_no_step_of_a_transaction_is_answered_before_it_is_synced(policy: SyncPolicy) -> None:
    story = simulated(policy)
    story.identity()  # makes the coordinator's log
    for request in (init_request("other"), init_request()):
        to = story.offer(request)
        assert not is_answered(story, to)
        story.settle()
        assert body_of(story.replies[to], m.InitProducerIdReply)
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
    story, me = begun(policy)
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
    story, me = begun(policy)
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


@pytest.mark.parametrize("policy", SYNCING)
def test_offsets_are_refused_when_the_marker_that_overtook_them_is_safe(policy: SyncPolicy) -> None:
    """The marker of an administrator, which no coordinator has made durable: a crash may take it back."""
    story, me = begun(policy)
    log, log_of_transactions = offsets_log_of("readers"), transaction_log_of("pay")
    to = story.offer(offset_request(me, "readers", {ORDERS: 1}))
    story.run()  # the partition is added, and waits for its sync
    by_hand = Identity(me.producer_id, me.producer_epoch + 1)
    story.offer(marker_request(by_hand, ABORT, log))
    story.run()
    story.host.synced(log_of_transactions, story.host.directory.journal(log_of_transactions).sync())
    assert not is_answered(story, to)
    story.sync()
    assert is_answered(story, to)
    (part,) = body_of(story.replies[to], m.TxnOffsetCommitReply).partitions
    assert part.error is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("policy", SYNCING)
def test_a_zombie_is_refused_when_the_marker_that_fences_it_is_safe(policy: SyncPolicy) -> None:
    story, me = begun(policy)
    story.commit_offset(me, "readers", 1)
    by_hand = Identity(me.producer_id, me.producer_epoch + 1)
    story.offer(marker_request(by_hand, ABORT, ORDERS, offsets_log_of("readers")))
    story.run()
    waiting = [
        story.offer(produce_request(me, {ORDERS: "b"}, sequence=1)),
        story.offer(offset_request(me, "readers", {ORDERS: 2})),
    ]
    story.run()
    assert not story.replies.keys() & set(waiting)
    story.sync()
    story.run()
    assert story.replies.keys() >= set(waiting)
    assert produced(story.replies[waiting[0]])[ORDERS].error is ErrorCode.INVALID_PRODUCER_EPOCH
    (part,) = body_of(story.replies[waiting[1]], m.TxnOffsetCommitReply).partitions
    assert part.error is ErrorCode.INVALID_PRODUCER_EPOCH


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
    made = story.offer(m.CreateTopics(topics=(m.CreateTopic(topic="late", partition_count=1),)))
    seen = story.offer(m.Metadata(topics=("late",)))
    assert not is_answered(story, made)
    assert not is_answered(story, seen)
    story.settle()
    assert story.replies.keys() >= {made, seen}


@pytest.mark.parametrize("policy", SYNCING)
def test_readers_do_not_see_what_is_not_safe(policy: SyncPolicy) -> None:
    story, me = begun(policy)
    story.offer(produce_request(me, {ORDERS: "b"}, sequence=1))
    look = story.offer(fetch_request(ORDERS, UNCOMMITTED))
    assert is_answered(story, look)
    assert fetched(story.replies[look]).high_watermark == 1
    story.settle()
    assert story.visible(isolation_level=UNCOMMITTED) == "a b"


@pytest.mark.parametrize("policy", SYNCING)
def test_the_last_stable_offset_passes_a_transaction_only_when_its_marker_is_safe(policy: SyncPolicy) -> None:
    story, me = begun(policy)
    story.offer(end_request(me, COMMIT))
    story.run()
    story.sync()  # PREPARE_COMMIT
    story.run()
    assert "commit" in story.written()
    state = story.partition()
    assert (state.last_stable_offset, state.high_watermark, state.log_end_offset) == (0, 1, 2)
    story.settle()
    assert story.partition().last_stable_offset == 2


def test_a_plain_batch_behind_a_transactional_one_waits_with_it() -> None:
    """Under `commit`: it says nothing of the log below it that is not so."""
    story, me = begun(SyncPolicy.COMMIT)
    first = story.offer(produce_request(me, {ORDERS: "b"}, sequence=1))
    second = story.offer(produce_request(Identity(), {ORDERS: "plain"}, name=None))
    assert not is_answered(story, first)
    assert not is_answered(story, second)
    assert story.partition().high_watermark == 1
    story.settle()
    assert {first, second} <= story.replies.keys()


def test_a_sync_speaks_of_what_was_there_when_it_began() -> None:
    story = simulated(SyncPolicy.ALL)
    first = story.offer(produce_request(Identity(), {ORDERS: "a"}, name=None))
    story.run()
    offset = story.host.directory.journal(ORDERS).sync()
    second = story.offer(produce_request(Identity(), {ORDERS: "b"}, name=None))
    story.run()
    story.host.synced(ORDERS, offset)
    assert is_answered(story, first)
    assert not is_answered(story, second)
    assert ORDERS in story.host.unsynced
    story.sync()
    assert is_answered(story, second)
    story.host.offer(Durable(partition=ORDERS, offset=offset))  # a late word of the first sync
    story.run()
    assert story.partition().high_watermark == 2


def test_the_end_of_a_sync_is_not_held_up_by_requests() -> None:
    story = simulated(SyncPolicy.ALL)
    waits = story.offer(produce_request(Identity(), {ORDERS: "a"}, name=None))
    story.run()
    later = story.offer(m.Metadata(topics=None))
    story.host.synced(ORDERS, story.host.directory.journal(ORDERS).sync())
    while waits not in story.replies:
        assert story.work()
    assert later not in story.replies


@pytest.mark.parametrize("policy", SYNCING)
def test_what_a_start_shows_to_readers_is_safe_by_then(policy: SyncPolicy) -> None:
    """Killed before its sync; the next process found the bytes, showed them, and lost the power."""
    story, me = begun(policy)
    story.offer(produce_request(me, {ORDERS: "b"}, sequence=1))
    while "b" not in story.written():
        assert story.work()
    story.restart()
    assert story.visible(isolation_level=UNCOMMITTED) == "a b"
    assert isinstance(story.storage, SimulatedStorage)
    story.storage.lose_power()
    story.start()
    story.settle()
    assert story.visible(isolation_level=UNCOMMITTED) == "a b"


# --- between append and durable ------------------------------------------------------------------------


@pytest.mark.parametrize("policy", SYNCING)
def test_a_transaction_is_busy_until_its_last_step_is_safe(policy: SyncPolicy) -> None:
    story = simulated(policy)
    me = story.identity()
    first = story.offer(produce_request(me, {ORDERS: "a"}))
    others: list[tuple[m.Request, ErrorCode]] = [
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
    assert body_of(story.replies[offset], m.TxnOffsetCommitReply).partitions[0].error is (
        ErrorCode.CONCURRENT_TRANSACTIONS
    )
    assert produced(story.replies[data])[OTHERS].error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert produced(story.replies[first])[ORDERS].error is ErrorCode.NONE
    assert story.transaction().state is TransactionState.ONGOING


@pytest.mark.parametrize("policy", SYNCING)
def test_a_description_waits_for_all_that_it_tells(policy: SyncPolicy) -> None:
    """Also one that looks into several logs; what is not led any more is answered all the same."""
    story, me = begun(policy)
    partitions = (ORDERS, OTHERS)
    questions: tuple[m.Request, ...] = (
        m.DescribeTransactions(transactional_ids=("app",)),
        m.ListTransactions(states=(), producer_ids=(), duration_ms=-1),
        m.DescribeProducers(partitions=partitions),
    )
    story.offer(produce_request(me, {ORDERS: "b", OTHERS: "c"}, sequence=1, name="app"))
    story.offer(end_request(me, COMMIT))
    asked = [story.offer(question) for question in questions]
    assert [is_answered(story, to) for to in asked] == [False, False, False]
    story.settle()
    assert [story.replies[to].error for to in asked] == [ErrorCode.NONE] * 3
