"""Offsets that nobody needs any more: when their time begins, what keeps them, and what goes with them."""

from __future__ import annotations

import attrs
import pytest

from fencepost.broker.settings import NodeSettings
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    LeaveGroup,
    LeavingMember,
    ListGroups,
    ListGroupsReply,
    OffsetCommitReply,
)
from fencepost.protocol.offsets_log import OffsetKey, read_offsets
from fencepost.protocol.terms import INT64_MAX, NO_OFFSET, GroupState, TopicPartition, TransactionResult
from tests.broker.group_story import GROUP, GroupStory, join_request, protocols, sync_request
from tests.broker.requests import ABORT, COMMIT, ORDERS, OTHERS, body_of, plain_offset_request
from tests.broker.story import RETRY_MS, SETTINGS, LogEntry, offsets_log_of
from tests.client.members import subscription

MINUTE_MS, SCAN_MS = 60_000, 7_000
LONG_MS = 10_000_000  # a session that does not end here

HURRIED = attrs.evolve(
    SETTINGS,
    offsets_retention_minutes=1,
    offsets_retention_check_interval_ms=SCAN_MS,
    group_max_session_timeout_ms=LONG_MS,
    transaction_max_timeout_ms=LONG_MS,
)


def begun() -> GroupStory:
    story = GroupStory(settings=HURRIED)
    story.create("others")
    return story


def commit(story: GroupStory, *keys: TopicPartition) -> int:
    """Offset 5 in each, by whoever is no member; when that was."""
    answers = body_of(story.ask(plain_offset_request(GROUP, dict.fromkeys(keys, 5))), OffsetCommitReply)
    assert {part.error for part in answers.partitions} == {ErrorCode.NONE}
    return written(story)[-1].header.max_timestamp


def member(story: GroupStory, *topics: str, kind: str = "consumer") -> str:
    """A stable group of one that reads these topics."""
    supports = protocols("range", said=subscription(*topics))
    request = join_request(supports=supports, kind=kind, instance="i", session_ms=LONG_MS)
    found = story.joined(story.starts(request))
    sync = sync_request(found.generation_id, found.member_id, {found.member_id: "all"}, instance="i")
    story.synced(story.starts(attrs.evolve(sync, protocol_type=kind)))
    assert story.state is GroupState.STABLE
    return found.member_id


def leave(story: GroupStory) -> None:
    gone = LeavingMember(member_id="", group_instance_id="i")
    assert story.ask(LeaveGroup(group_id=GROUP, members=(gone,))).error is ErrorCode.NONE


def written(story: GroupStory) -> list[LogEntry]:
    """The group's log without markers."""
    return [batch for batch in story.log(offsets_log_of(GROUP)) if not batch.header.is_control]


def is_kept(story: GroupStory, key: TopicPartition = ORDERS) -> bool:
    entries = [entry for batch in written(story) for entry in read_offsets(batch.batch, batch.header)]
    last = [record for found, record in entries if found == OffsetKey(GROUP, key.topic, key.partition)]
    return last[-1] is not None


def groups(story: GroupStory) -> list[str]:
    return [found.group_id for found in body_of(story.ask(ListGroups(states=())), ListGroupsReply).groups]


def test_the_defaults_are_kafkas() -> None:
    settings = NodeSettings()
    assert settings.offsets_retention_minutes == 7 * 24 * 60
    assert settings.offsets_retention_check_interval_ms == 600_000


def test_an_offset_expires_at_the_first_scan_after_its_time() -> None:
    """Of a simple consumer each offset has its own time, and the group goes with the last of them."""
    story = begun()
    first_ms = commit(story, ORDERS)
    story.wait(MINUTE_MS // 2)
    second_ms = commit(story, OTHERS)
    for key, committed_ms in ((ORDERS, first_ms), (OTHERS, second_ms)):
        scan = -(-(committed_ms + MINUTE_MS) // SCAN_MS) * SCAN_MS  # the first at or after it
        story.wait(scan - 4 * RETRY_MS - story.now)
        assert is_kept(story, key)
        story.wait(4 * RETRY_MS)
        assert not is_kept(story, key)
        assert groups(story) == ([GROUP] if key == ORDERS else [])
    assert story.group_records() == [None]
    story.check_recovery()
    for _ in range(2):
        assert story.offset(GROUP).offset == NO_OFFSET
        assert story.describe().state is GroupState.DEAD
        story.restart()


@pytest.mark.parametrize("retention_ms", [0, -5, MINUTE_MS // 2, 2 * MINUTE_MS])
def test_a_client_may_choose_when_its_offset_expires(retention_ms: int) -> None:
    """OffsetCommit 2 to 4. Apache Kafka 4.3.1 still writes the time into the record."""
    story = begun()
    story.ask(attrs.evolve(plain_offset_request(GROUP, {ORDERS: 5}), retention_ms=retention_ms))
    committed_ms = written(story)[-1].header.max_timestamp
    story.restart()
    scan = -(-(committed_ms + max(retention_ms, 1)) // SCAN_MS) * SCAN_MS
    story.wait(scan - 4 * RETRY_MS - story.now)
    assert is_kept(story)
    story.wait(4 * RETRY_MS)
    assert not is_kept(story)
    story.check_recovery()


@pytest.mark.parametrize("retention_ms", [INT64_MAX, -INT64_MAX])
def test_a_time_of_expiry_that_no_record_can_hold_is_the_nearest_one(retention_ms: int) -> None:
    story = begun()
    story.ask(attrs.evolve(plain_offset_request(GROUP, {ORDERS: 5}), retention_ms=retention_ms))
    story.wait(SCAN_MS)
    assert story.offset(GROUP).offset == (5 if retention_ms > 0 else NO_OFFSET)


def test_whoever_commits_again_keeps_the_offset() -> None:
    story = begun()
    for _ in range(4):
        commit(story, ORDERS)
        story.wait(MINUTE_MS * 3 // 4)
    assert story.offset(GROUP).offset == 5


def test_a_restart_does_not_begin_the_time_anew() -> None:
    story = begun()
    commit(story, ORDERS)
    story.wait(MINUTE_MS * 3 // 4)
    story.restart()
    assert story.offset(GROUP).offset == 5
    story.wait(MINUTE_MS // 2)
    assert groups(story) == []


def test_the_time_of_a_group_that_was_left_begins_when_it_became_empty() -> None:
    story = begun()
    commit(story, ORDERS)
    member(story, "orders")
    story.wait(3 * MINUTE_MS)
    assert is_kept(story), "a member reads it"
    leave(story)
    story.restart()
    story.wait(MINUTE_MS * 3 // 4)
    assert is_kept(story)
    story.wait(MINUTE_MS // 2)
    assert not is_kept(story)
    assert groups(story) == []
    assert story.joined(story.starts(join_request(story.new_id()))).generation_id == 1


def test_members_keep_what_they_read_and_nothing_else() -> None:
    story = begun()
    others = TopicPartition("others", 0)
    commit(story, ORDERS, others)
    member(story, "others")
    story.wait(2 * MINUTE_MS)
    assert (is_kept(story), is_kept(story, others)) == (False, True)
    assert groups(story) == [GROUP]


@pytest.mark.parametrize(("said", "kind"), [("consumer without a word", "consumer"), ("", "connect")])
def test_members_who_do_not_say_what_they_read_keep_everything(said: str, kind: str) -> None:
    story = begun()
    commit(story, ORDERS)
    request = join_request(
        supports=protocols("range", said=said.encode()), kind=kind, instance="i", session_ms=LONG_MS
    )
    found = story.joined(story.starts(request))
    sync = sync_request(found.generation_id, found.member_id, {found.member_id: "all"}, instance="i")
    story.synced(story.starts(attrs.evolve(sync, protocol_type=kind)))
    story.wait(3 * MINUTE_MS)
    assert is_kept(story)


def test_nothing_expires_while_a_group_rebalances() -> None:
    story = begun()
    commit(story, ORDERS)
    member(story, "others")
    story.starts(join_request(instance="j", session_ms=LONG_MS, rebalance_ms=LONG_MS))
    assert story.state is GroupState.PREPARING_REBALANCE
    story.wait(3 * MINUTE_MS)
    assert is_kept(story)


@pytest.mark.parametrize(("result", "offset"), [(COMMIT, 9), (ABORT, 5)])
def test_what_an_open_transaction_moves_is_kept(result: TransactionResult, offset: int) -> None:
    """Until it ends: the time of an offset began when it was sent, not with the transaction's end."""
    story = begun()
    commit(story, ORDERS, OTHERS)
    me = story.identity(timeout_ms=LONG_MS)
    story.commit_offset(me, GROUP, 9)
    story.wait(2 * MINUTE_MS)
    assert (is_kept(story), is_kept(story, OTHERS)) == (True, False)
    story.ended(me, result)
    story.restart()
    assert story.offset(GROUP).offset == offset
    story.wait(SCAN_MS)
    assert groups(story) == []


def test_a_group_that_owns_nothing_goes_at_the_next_scan() -> None:
    """Nobody is in it and it has committed nothing: there is no time that could run. Recorded from Apache
    Kafka 4.3.1, of newcomers that were given an id too.
    """
    story = begun()
    me = story.identity(timeout_ms=LONG_MS)
    story.new_id()
    story.commit_offset(me, "simple", 9)
    assert groups(story) == [GROUP, "simple"]
    story.wait(SCAN_MS)
    assert groups(story) == ["simple"]
    story.ended(me, ABORT)
    story.wait(SCAN_MS)
    assert groups(story) == []
