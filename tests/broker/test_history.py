"""Kafka's later corrections one by one: what a broker answers with each, and what without."""

from __future__ import annotations

from typing import Final

import attrs
import pytest

from fencepost.broker.kafka_fixes import ALL_FIXES, FIX_NAMES, FIXES, KafkaFixes
from fencepost.broker.settings import NodeSettings
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import TxnOffsetCommit, TxnOffsetCommitReply, WriteTxnMarkersReply
from fencepost.protocol.terms import INT16_MAX, LAST_GRANTED_EPOCH, TransactionState
from tests.broker.group_story import GROUP, GroupStory
from tests.broker.requests import (
    ABORT,
    COMMIT,
    ORDERS,
    Identity,
    body_of,
    end_request,
    identity_of,
    marker_request,
    offset_request,
)
from tests.broker.story import SCAN_MS, SETTINGS, Story

COMPLETE_ABORT, COMPLETE_COMMIT = TransactionState.COMPLETE_ABORT, TransactionState.COMPLETE_COMMIT
ONGOING, PREPARE_COMMIT = TransactionState.ONGOING, TransactionState.PREPARE_COMMIT
ON_AND_OFF: Final = pytest.mark.parametrize("has_it", [True, False])


def settings(name: str, *, has_it: bool) -> NodeSettings:
    """A broker of today, or one without this."""
    return attrs.evolve(SETTINGS, fixes=ALL_FIXES if has_it else KafkaFixes.without([name]))


def story_of(name: str, *, has_it: bool) -> Story:
    return Story(settings=settings(name, has_it=has_it))


# --- the knobs themselves --------------------------------------------------------------------------------


def test_every_knob_is_described_and_is_on() -> None:
    assert tuple(knob.name for knob in FIXES) == FIX_NAMES
    assert NodeSettings().fixes == ALL_FIXES == KafkaFixes.without([])
    assert ALL_FIXES.off == ()


@pytest.mark.parametrize("name", FIX_NAMES)
def test_one_knob_is_turned_off_by_its_name(name: str) -> None:
    fixes = KafkaFixes.without([name])
    assert fixes.off == (name,)
    assert [other for other in FIX_NAMES if not fixes.has(other)] == [name]


def test_a_knob_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="unknown fix luck; the fixes are group_fencing, require_stable"):
        KafkaFixes.without(["require_stable", "luck"])


# --- groups (KIP-447) ------------------------------------------------------------------------------------


@ON_AND_OFF
def test_a_member_that_lost_its_partitions_commits_in_a_transaction(*, has_it: bool) -> None:
    story = GroupStory(settings=settings("group_fencing", has_it=has_it))
    old, _ = story.members(2)
    lost = story.generation
    story.leave(old)
    me = story.identity()
    late = attrs.evolve(offset_request(me, GROUP, {ORDERS: 6}), generation_id=lost, member_id=old)
    assert txn_commit(story, late) is (ErrorCode.UNKNOWN_MEMBER_ID if has_it else ErrorCode.NONE)
    story.end(me, COMMIT)
    assert story.offset(GROUP).offset == (-1 if has_it else 6)


def txn_commit(story: Story, request: TxnOffsetCommit) -> ErrorCode:
    (part,) = body_of(story.ask(request), TxnOffsetCommitReply).partitions
    return part.error


@ON_AND_OFF
def test_a_reader_asks_for_stable_offsets_before_the_transaction_is_decided(*, has_it: bool) -> None:
    story = story_of("require_stable", has_it=has_it)
    me = story.ended(story.identity(), ABORT)
    assert story.commit_offset(me, GROUP, 5) is ErrorCode.NONE
    me = story.ended(me, COMMIT)
    assert story.commit_offset(me, GROUP, 6) is ErrorCode.NONE
    found = story.offset(GROUP, require_stable=True)
    wanted = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1) if has_it else (ErrorCode.NONE, 5)
    assert (found.error, found.offset) == wanted


# --- partitions ------------------------------------------------------------------------------------------


@ON_AND_OFF
@pytest.mark.parametrize("sequence", [0, 5])
def test_a_partition_has_forgotten_the_producer(sequence: int, *, has_it: bool) -> None:
    story = story_of("unknown_producers_start_anywhere", has_it=has_it)
    part = story.produce(Identity(77, 0), "x", sequence=sequence, name=None)
    is_taken = has_it or sequence == 0
    assert part.error is (ErrorCode.NONE if is_taken else ErrorCode.UNKNOWN_PRODUCER_ID)
    assert story.written() == ("x" if is_taken else "")


@ON_AND_OFF
def test_a_producer_that_is_known_must_go_on_in_order(*, has_it: bool) -> None:
    story = story_of("unknown_producers_start_anywhere", has_it=has_it)
    assert story.produce(Identity(77, 0), "x", name=None).error is ErrorCode.NONE
    late = story.produce(Identity(77, 0), "z", sequence=2, name=None)
    assert late.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def mark(story: Story, who: Identity, *, version: int = 2) -> ErrorCode:
    """A marker of nobody in particular, as one that was long on its way."""
    request = marker_request(who, ABORT, ORDERS, coordinator_epoch=99, transaction_version=version)
    ((part,),) = (marker.partitions for marker in body_of(story.ask(request), WriteTxnMarkersReply).markers)
    return part.error


@ON_AND_OFF
def test_a_marker_comes_again_inside_the_next_transaction(*, has_it: bool) -> None:
    story = story_of("strict_marker_epoch", has_it=has_it)
    me = story.identity()
    story.produce(me, "a")
    me = story.ended(me, ABORT)
    story.produce(me, "b")
    assert mark(story, me) is (ErrorCode.INVALID_PRODUCER_EPOCH if has_it else ErrorCode.NONE)
    marker = f"abort {me.producer_id}/{me.producer_epoch}"
    assert story.written() == f"a | {marker} | b" + ("" if has_it else f" | {marker}")


@pytest.mark.parametrize("name", ["strict_marker_epoch", "idempotent_marker_retry"])
def test_markers_of_older_generations_were_never_strict(name: str) -> None:
    story = story_of(name, has_it=True)
    me = story.identity()
    story.produce(me, "a")
    assert mark(story, me, version=0) is ErrorCode.NONE


@ON_AND_OFF
def test_a_new_coordinator_writes_the_marker_once_more(*, has_it: bool) -> None:
    story = story_of("idempotent_marker_retry", has_it=has_it)
    me = story.identity()
    story.produce(me, "a")
    story.offer(end_request(me, COMMIT))
    while "commit" not in story.written():
        assert story.work()
    assert story.states()[-1] is PREPARE_COMMIT
    story.restart()
    assert story.states()[-1] is (COMPLETE_COMMIT if has_it else PREPARE_COMMIT)
    assert story.init().error is (ErrorCode.NONE if has_it else ErrorCode.CONCURRENT_TRANSACTIONS)


def test_without_strict_epochs_nobody_looks_whether_a_marker_is_a_repetition() -> None:
    names = ["strict_marker_epoch", "idempotent_marker_retry"]
    story = Story(settings=attrs.evolve(SETTINGS, fixes=KafkaFixes.without(names)))
    me = story.identity()
    story.produce(me, "a")
    me = story.ended(me, COMMIT)
    assert mark(story, me) is ErrorCode.NONE


# --- coordinators ----------------------------------------------------------------------------------------


def at_the_last_epoch(story: Story) -> Identity:
    """The owner of an id, which has no epoch left, in the middle of a transaction."""
    story.identity(timeout_ms=1_000)
    me = story.age(LAST_GRANTED_EPOCH)
    assert story.produce(me, "x").error is ErrorCode.NONE
    return me


@ON_AND_OFF
def test_the_last_epoch_is_used_up_by_an_end(*, has_it: bool) -> None:
    story = story_of("tells_next_producer_id", has_it=has_it)
    me = at_the_last_epoch(story)
    told = story.ended(me, COMMIT)
    owner = story.records()[-1]
    assert (owner.producer_epoch, owner.previous_producer_id) == (0, me.producer_id)
    assert told == (Identity(owner.producer_id, 0) if has_it else Identity(me.producer_id, INT16_MAX))
    next_one = story.produce(told, "y")
    assert next_one.error is (ErrorCode.NONE if has_it else ErrorCode.INVALID_PRODUCER_ID_MAPPING)


@ON_AND_OFF
def test_a_fence_raises_the_epoch(*, has_it: bool) -> None:
    story = story_of("fences_once", has_it=has_it)
    me = story.identity()
    story.produce(me, "a")
    assert story.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert story.records()[-1].producer_epoch == me.producer_epoch + (1 if has_it else 2)
    expected = story.init(expected=me).error
    assert expected is (ErrorCode.NONE if has_it else ErrorCode.PRODUCER_FENCED)


@ON_AND_OFF
def test_who_was_timed_out_aborts(*, has_it: bool) -> None:
    story = story_of("fences_once", has_it=has_it)
    me = story.identity(timeout_ms=1_000)
    story.produce(me, "a")
    story.wait(1_000 + SCAN_MS)
    assert story.states()[-1] is COMPLETE_ABORT
    assert story.end(me, ABORT).error is (ErrorCode.NONE if has_it else ErrorCode.PRODUCER_FENCED)


@ON_AND_OFF
def test_a_fence_at_the_last_epoch(*, has_it: bool) -> None:
    """Raised twice it would be negative: the transaction can be ended by its owner alone."""
    story = story_of("fences_once", has_it=has_it)
    me = at_the_last_epoch(story)
    refused = ErrorCode.CONCURRENT_TRANSACTIONS if has_it else ErrorCode.UNKNOWN_SERVER_ERROR
    assert story.init().error is refused
    story.wait(1_000 + SCAN_MS)
    assert story.states()[-1] is (COMPLETE_ABORT if has_it else ONGOING)
    assert story.end(me, COMMIT).error is (ErrorCode.INVALID_TXN_STATE if has_it else ErrorCode.NONE)


@ON_AND_OFF
def test_who_owns_the_id_after_a_fence_at_the_last_epoch(*, has_it: bool) -> None:
    story = story_of("rotates_when_fencing", has_it=has_it)
    me = at_the_last_epoch(story)
    story.wait(1_000 + SCAN_MS)
    owner = story.records()[-1]
    assert owner.state is COMPLETE_ABORT
    assert (owner.producer_id == me.producer_id, owner.producer_epoch) == (
        (False, 0) if has_it else (True, INT16_MAX)
    )
    heir = identity_of(story.init())
    assert heir.producer_id != me.producer_id
    assert heir.producer_epoch == (1 if has_it else 0)


@ON_AND_OFF
def test_a_rotation_outlives_its_coordinator(*, has_it: bool) -> None:
    story = story_of("persists_previous_and_next_producer_id", has_it=has_it)
    me = at_the_last_epoch(story)
    to = story.offer(end_request(me, COMMIT))
    while story.states()[-1] is not PREPARE_COMMIT:
        assert story.work()
    while to not in story.replies:
        assert story.work()
    told = identity_of(story.replies.pop(to))
    assert told.producer_epoch == 0
    story.restart()
    owner = story.records()[-1]
    assert owner.state is COMPLETE_COMMIT
    assert Identity(owner.producer_id, owner.producer_epoch) == (
        told if has_it else Identity(me.producer_id, INT16_MAX)
    )
    assert story.init(expected=told).error is (ErrorCode.NONE if has_it else ErrorCode.PRODUCER_FENCED)
    assert story.check_recovery()


@ON_AND_OFF
def test_while_its_coordinator_lives_a_rotation_is_known(*, has_it: bool) -> None:
    story = story_of("persists_previous_and_next_producer_id", has_it=has_it)
    me = at_the_last_epoch(story)
    told = story.ended(me, COMMIT)
    assert story.ended(me, COMMIT) == told, "the answer was lost, and it asks again"
    assert story.produce(told, "y").error is ErrorCode.NONE
