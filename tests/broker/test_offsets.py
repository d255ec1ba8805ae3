"""Committed offsets of groups, plain and in transactions: what counts, from when on, and for whom."""

from __future__ import annotations

import attrs
import pytest

from fencepost.broker.contract import ResignLeader
from fencepost.broker.groups.state import (
    OFFSET_METADATA_LENGTH_MAX,
    Groups,
    apply,
    offset_keys,
    offset_keys_of,
)
from fencepost.broker.partitions import checks
from fencepost.broker.partitions.checks import Written
from fencepost.broker.partitions.partition import Partition
from fencepost.broker.partitions.partition import ProducerEntry as PartitionProducer
from fencepost.protocol import messages as m
from fencepost.protocol.batches import place, read_header
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint, fork, log_state
from fencepost.protocol.offsets_log import GroupBatch, OffsetKey, OffsetRecord, group_batch
from fencepost.protocol.terms import NO_OFFSET, TopicPartition
from tests.broker.requests import (
    ABORT,
    COMMIT,
    NOON,
    ORDERS,
    OTHERS,
    Identity,
    body_of,
    marker_request,
    offset_request,
    offset_to_commit,
    plain_offset_request,
)
from tests.broker.story import SETTINGS, Story, offsets_log_of

MISSING = TopicPartition("missing", 0)


def commit(story: Story, offset: int, group: str = "readers") -> ErrorCode:
    request = plain_offset_request(group, {ORDERS: offset})
    (part,) = body_of(story.ask(request), m.OffsetCommitReply).partitions
    return part.error


def everything(
    story: Story, group: str = "readers", *, require_stable: bool = False
) -> list[m.FetchedOffset]:
    request = m.OffsetFetch(group_id=group, require_stable=require_stable, partitions=None)
    return list(body_of(story.ask(request), m.OffsetFetchReply).offsets)


def test_a_group_that_never_was_has_no_offsets_and_that_is_no_error() -> None:
    story = Story()
    found = story.offset("strangers")
    assert (found.error, found.offset, found.metadata) == (ErrorCode.NONE, NO_OFFSET, "")
    assert everything(story, "strangers") == []


def test_a_plain_commit_counts_at_once_and_the_last_one_wins() -> None:
    story = Story()
    assert [commit(story, 7), commit(story, 3)] == [ErrorCode.NONE, ErrorCode.NONE]
    assert story.offset("readers").offset == 3
    story.restart()
    assert story.offset("readers").offset == 3


def test_what_a_commit_says_beside_the_offset_is_kept() -> None:
    story = Story()
    request = plain_offset_request("readers", {ORDERS: 7})
    offset = attrs.evolve(request.offsets[0], metadata="at noon", leader_epoch=4)
    story.ask(attrs.evolve(request, offsets=(offset,)))
    story.restart()
    found = story.offset("readers")
    assert (found.offset, found.metadata, found.leader_epoch) == (7, "at noon", 4)


@pytest.mark.parametrize("transactional", [False, True])
def test_each_offset_has_its_own_answer(transactional: bool) -> None:
    story = Story()
    offsets = (
        offset_to_commit(ORDERS, 1, metadata="ä" * OFFSET_METADATA_LENGTH_MAX),
        offset_to_commit(OTHERS, 2, metadata="😀" * (OFFSET_METADATA_LENGTH_MAX // 2 + 1)),
        offset_to_commit(MISSING, 3),
    )
    if transactional:
        me = story.identity()
        reply = story.ask(attrs.evolve(offset_request(me, "readers", {}), offsets=offsets))
        parts = body_of(reply, m.TxnOffsetCommitReply).partitions
        story.ended(me, COMMIT)
    else:
        reply = story.ask(attrs.evolve(plain_offset_request("readers", {}), offsets=offsets))
        parts = body_of(reply, m.OffsetCommitReply).partitions
    assert [part.error for part in parts] == [
        ErrorCode.NONE,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert [(found.partition, found.offset) for found in everything(story)] == [(0, 1)]


# --- in transactions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [COMMIT, ABORT])
def test_an_offset_in_a_transaction_counts_when_that_commits(result: object) -> None:
    story = Story()
    commit(story, 3)
    me = story.identity()
    assert story.commit_offset(me, "readers", 7) is ErrorCode.NONE
    assert story.offset("readers").offset == 3
    unstable = story.offset("readers", require_stable=True)
    assert (unstable.error, unstable.offset) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, NO_OFFSET)
    story.restart()
    assert story.offset("readers", require_stable=True) == unstable
    story.ended(me, COMMIT if result is COMMIT else ABORT)
    decided = story.offset("readers", require_stable=True)
    assert (decided.error, decided.offset) == (ErrorCode.NONE, 7 if result is COMMIT else 3)


def test_all_offsets_of_a_group_are_those_that_were_ever_committed() -> None:
    """One that a transaction alone has is not listed (OffsetMetadataManager.fetchAllOffsets)."""
    story = Story()
    me = story.identity()
    story.commit_offset(me, "readers", 7)
    assert everything(story) == []
    assert everything(story, require_stable=True) == []
    commit(story, 3)
    assert [found.offset for found in everything(story)] == [3]
    (unstable,) = everything(story, require_stable=True)
    assert unstable.error is ErrorCode.UNSTABLE_OFFSET_COMMIT


@pytest.mark.parametrize(
    ("first", "second", "expected"), [("plain", "transaction", 2), ("transaction", "plain", 2)]
)
def test_the_last_writer_in_the_log_wins_not_the_last_to_decide(
    first: str, second: str, expected: int
) -> None:
    """GroupMetadataTest: a plain commit written after a transaction's beats it, though that commits later."""
    story = Story()
    me = story.identity()
    for offset, kind in ((1, first), (2, second)):
        if kind == "plain":
            commit(story, offset)
        else:
            story.commit_offset(me, "readers", offset)
    story.ended(me, COMMIT)
    assert story.offset("readers").offset == expected
    story.restart()
    assert story.offset("readers").offset == expected


def test_two_producers_move_the_same_offset() -> None:
    story = Story()
    one, two = story.identity("one"), story.identity("two")
    story.commit_offset(one, "readers", 1, "one")
    story.commit_offset(two, "readers", 2, "two")
    story.ended(two, COMMIT, "two")
    assert story.offset("readers").offset == 2
    unstable = story.offset("readers", require_stable=True)
    assert unstable.error is ErrorCode.UNSTABLE_OFFSET_COMMIT  # of the other one still
    story.ended(one, COMMIT, "one")
    assert story.offset("readers", require_stable=True).offset == 2  # written later, decided earlier


def test_one_transaction_moves_several_groups() -> None:
    story = Story()
    me = story.identity()
    for number in range(4):
        assert story.commit_offset(me, f"g{number}", number) is ErrorCode.NONE
    story.ended(me, COMMIT)
    assert [story.offset(f"g{number}").offset for number in range(4)] == [0, 1, 2, 3]


def test_a_former_owners_offsets_are_refused_and_leave_nothing() -> None:
    story = Story()
    old = story.identity()
    new = story.identity()
    assert story.commit_offset(old, "readers", 7) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert story.commit_offset(Identity(old.producer_id + 9, 0), "readers", 7) is (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )
    assert story.offset("readers", require_stable=True).error is ErrorCode.NONE
    assert story.commit_offset(new, "readers", 8) is ErrorCode.NONE
    story.ended(new, COMMIT)
    assert story.offset("readers").offset == 8
    assert story.commit_offset(new, "readers", 9) is ErrorCode.INVALID_PRODUCER_EPOCH


def _always(partition: Partition, written: Written, producer: PartitionProducer, guard: int) -> bool:
    return True


@pytest.mark.parametrize("table", ["BEFORE_ASKING", "OFFSET_CHECKS"])
def test_offsets_in_a_transaction_meet_the_checks_of_the_partition(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that refuse a producer's batch refuse its offsets: one table, also for brokers without it."""
    assert set(checks.OFFSET_CHECKS) < set(checks.CHECKS)
    everything_fails = checks.WriteCheck(
        "is written on a holiday", ErrorCode.INVALID_RECORD, _always, source="nowhere"
    )
    monkeypatch.setattr(checks, table, (everything_fails,))
    story = Story(
        settings=attrs.evolve(SETTINGS)
    )  # settings remember their checks: these look at the new ones
    me = story.identity()
    assert story.commit_offset(me, "readers", 7) is ErrorCode.INVALID_RECORD
    assert story.offset("readers").offset == NO_OFFSET


def test_a_marker_by_hand_decides_too() -> None:
    """KIP-664: what an administrator does to a hanging transaction."""
    story = Story()
    me = story.identity()
    story.commit_offset(me, "readers", 7)
    by_hand = Identity(me.producer_id, me.producer_epoch + 1)
    story.ask(marker_request(by_hand, ABORT, offsets_log_of("readers"), coordinator_epoch=9))
    assert story.offset("readers", require_stable=True).offset == NO_OFFSET
    story.ask(marker_request(by_hand, COMMIT, offsets_log_of("readers"), coordinator_epoch=9))
    assert story.offset("readers", require_stable=True).offset == NO_OFFSET


# --- members (KIP-447) -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "member", "instance", "is_known", "error"),
    [
        (-1, "", None, False, ErrorCode.NONE),
        (-1, "", None, True, ErrorCode.NONE),
        (3, "m", None, False, ErrorCode.GROUP_ID_NOT_FOUND),
        (3, "m", None, True, ErrorCode.UNKNOWN_MEMBER_ID),
        (3, "", "i", True, ErrorCode.UNKNOWN_MEMBER_ID),
        # No generation, no member: what else it says of itself is not looked at (validateOffsetCommit).
        (-1, "m", None, True, ErrorCode.NONE),
        (-1, "", "i", True, ErrorCode.NONE),
    ],
)
def test_a_member_of_a_group_without_members_is_refused(
    generation: int, member: str, instance: str | None, is_known: bool, error: ErrorCode
) -> None:
    story = Story()
    me = story.identity()
    if is_known:
        commit(story, 1)
    who = {"generation_id": generation, "member_id": member, "group_instance_id": instance}
    plain: m.OffsetCommit = attrs.evolve(plain_offset_request("readers", {ORDERS: 5}), **who)
    in_transaction: m.TxnOffsetCommit = attrs.evolve(offset_request(me, "readers", {ORDERS: 6}), **who)
    answer = body_of(story.ask(in_transaction), m.TxnOffsetCommitReply)
    # No version of TxnOffsetCommit knows the other error.
    known = ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.GROUP_ID_NOT_FOUND else error
    assert answer.partitions[0].error is known
    assert body_of(story.ask(plain), m.OffsetCommitReply).partitions[0].error is error


def test_a_node_that_does_not_coordinate_the_group_says_so() -> None:
    story = Story()
    story.host.offer(ResignLeader(partition=offsets_log_of("readers")))
    to = story.offer(plain_offset_request("readers", {ORDERS: 5}))
    fetch = story.offer(m.OffsetFetch(group_id="readers", require_stable=False, partitions=None))
    while to not in story.replies or fetch not in story.replies:
        story.work()
    parts = body_of(story.replies[to], m.OffsetCommitReply).partitions
    assert {parts[0].error, story.replies[fetch].error} == {ErrorCode.NOT_COORDINATOR}


# --- the core alone ----------------------------------------------------------------------------------------


def entry(offset: int | None) -> tuple[OffsetKey, OffsetRecord | None]:
    record = None if offset is None else OffsetRecord(offset, leader_epoch=-1, metadata="", commit_ms=NOON)
    return OffsetKey("readers", ORDERS.topic, ORDERS.partition), record


def write(state: Groups, at: int, offset: int | None, producer_id: int = -1) -> None:
    entries = GroupBatch((entry(offset),))
    batch = group_batch(entries, timestamp=NOON, producer_id=producer_id, transactional=producer_id >= 0)
    place(batch, base_offset=at, leader_epoch=0)
    apply(state, read_header(batch), batch, entries)


def test_a_tombstone_forgets_the_offset_and_what_is_pending_of_it() -> None:
    state = Groups()
    write(state, 0, 5)
    write(state, 1, 6, producer_id=7)
    copied = fork(state)
    write(state, 2, None)
    assert (offset_keys(state), len(offset_keys(copied))) == ([], 1)
    assert state.group("readers", now=NOON) is not None, "the group stays, until it is deleted"
    assert log_state(copied) != log_state(state)
    write(state, 3, 9)
    assert state.committed["readers"][ORDERS].record.offset == 9


def test_a_key_is_pending_until_its_last_producer_is_done() -> None:
    state = Groups()
    write(state, 0, 5, producer_id=7)
    write(state, 1, 6, producer_id=8)
    copied = fork(state)
    (key,) = offset_keys(state)
    assert state.pending.pop(7).keys() == {key} == state.pending.keys("readers")
    assert state.pending.pop(8).keys() == {key}
    assert not state.pending.keys("readers")
    copied.pending.discard(key)
    assert not copied.pending.keys("readers")
    assert (copied.pending.pop(7), copied.pending.pop(8)) == ({}, {})
    assert fingerprint(copied.pending) == fingerprint(state.pending)


def test_a_tombstone_also_drops_the_offsets_that_are_pending_in_two_transactions() -> None:
    state = Groups()
    write(state, 0, 5, producer_id=7)
    write(state, 1, 6, producer_id=8)
    write(state, 2, None)
    assert offset_keys(state) == []
    write(state, 3, 9, producer_id=8)
    assert len(offset_keys_of(state, "readers")) == 1
