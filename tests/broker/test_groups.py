"""Members of a group: joining, sharing out, staying alive, leaving; and what a restart leaves of it."""

from __future__ import annotations

import attrs
import pytest

from fencepost.broker.contract import ResignLeader, Tick
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import GroupState
from tests.broker.group_story import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    GroupStory,
    join_request,
    protocols,
    sync_request,
)
from tests.broker.requests import ORDERS, body_of, plain_offset_request
from tests.broker.story import SETTINGS, offsets_log_of
from tests.python_calls import calls_of

EMPTY, STABLE, DEAD = GroupState.EMPTY, GroupState.STABLE, GroupState.DEAD
PREPARING, COMPLETING = GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE


def refusal(story: GroupStory, request: m.JoinGroup | m.SyncGroup) -> ErrorCode:
    return story.ask(request).error


# --- joining -----------------------------------------------------------------------------------------------


def test_a_newcomer_is_given_an_id_and_finds_or_makes_a_group() -> None:
    story = GroupStory()
    assert story.state is DEAD
    first, second = story.new_id(), story.new_id()
    assert first != second
    assert (story.state, story.generation) == (EMPTY, 0)
    story.restart()
    assert story.state is EMPTY
    assert story.new_id() not in (first, second)
    story.check_recovery()


def test_a_member_alone_leads_at_once() -> None:
    story = GroupStory()
    me = story.new_id()
    reply = story.joined(story.starts(join_request(me)))
    assert (reply.generation_id, reply.leader, reply.protocol_name) == (1, me, "range")
    assert [member.member_id for member in reply.members] == [me]
    assert story.state is COMPLETING


def test_everybody_who_was_given_an_id_is_waited_for() -> None:
    story = GroupStory()
    one, two = story.new_id(), story.new_id()
    early = story.starts(join_request(one))
    # The first rebalance of a group takes its time, which here is none: whoever is there makes it.
    assert not story.waits(early)
    late = story.starts(join_request(two))
    assert story.waits(late)
    again = story.starts(join_request(one))
    assert story.joined(late).leader == story.joined(again).leader == one


def test_a_second_member_makes_the_first_join_again() -> None:
    story = GroupStory()
    (first,) = story.members(1)
    second = story.new_id()
    assert story.beat(1, first) is ErrorCode.NONE
    newcomer = story.starts(join_request(second))
    assert story.waits(newcomer)
    assert story.beat(1, first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert refusal(story, sync_request(1, first)) is ErrorCode.REBALANCE_IN_PROGRESS
    leader = story.joined(story.starts(join_request(first)))
    follower = story.joined(newcomer)
    assert leader.generation_id == follower.generation_id == 2
    assert [member.member_id for member in leader.members] == [first, second]
    assert follower.members == ()
    story.stabilized([first, second])
    assert story.beat(1, first) is ErrorCode.ILLEGAL_GENERATION


def test_who_does_not_join_again_in_time_is_out() -> None:
    story = GroupStory()
    (first,) = story.members(1)
    newcomer = story.starts(join_request(story.new_id()))
    story.wait(REBALANCE_MS)
    reply = story.joined(newcomer)
    assert reply.leader == reply.member_id
    assert story.beat(2, first) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_was_empty_waits_for_more_but_no_longer_than_its_members_do() -> None:
    story = GroupStory(settings=attrs.evolve(SETTINGS, group_initial_rebalance_delay_ms=800))
    waiting = [story.starts(join_request(story.new_id()))]
    for _ in range(4):
        story.wait(500)
        waiting.append(story.starts(join_request(story.new_id())))
    assert not story.waits(waiting[0])
    assert {story.joined(to).generation_id for to in waiting if not story.waits(to)} == {1}
    assert len(story.group.members) >= 4


def test_the_protocol_is_one_that_all_support_and_most_want() -> None:
    story = GroupStory()
    ids = [story.new_id() for _ in range(3)]
    wishes = [protocols("range", "sticky"), protocols("sticky", "range"), protocols("sticky", "range", "x")]
    requests = [join_request(one, supports=wish) for one, wish in zip(ids, wishes, strict=True)]
    waiting = [story.starts(request) for request in requests]
    waiting[0] = story.starts(requests[0])
    assert {story.joined(to).protocol_name for to in waiting} == {"sticky"}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "", "session_timeout_ms": 0}, ErrorCode.INVALID_GROUP_ID),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger", "group_id": "another"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": protocols("sticky")}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "another", "protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "another", "protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_join_that_is_refused_says_why(change: dict[str, object], error: ErrorCode) -> None:
    story = GroupStory()
    story.members(1)
    reply = story.ask(attrs.evolve(join_request(), **change))
    assert reply.error is error
    assert isinstance(reply.body, m.JoinGroupReply)
    assert (reply.body.generation_id, reply.body.member_id) == (-1, change.get("member_id", ""))
    assert story.state is STABLE


def test_an_id_that_is_not_joined_with_in_time_is_forgotten() -> None:
    story = GroupStory()
    me = story.new_id()
    story.wait(SESSION_MS)
    assert refusal(story, join_request(me)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_may_be_full() -> None:
    story = GroupStory(settings=attrs.evolve(SETTINGS, group_max_size=2))
    one, two, three = (story.new_id() for _ in range(3))
    story.joined(story.starts(join_request(one)))
    waiting = [story.starts(join_request(two)), story.starts(join_request(three))]
    # There is room for two of the three, and who comes first is in, whether it was before or not.
    assert refusal(story, join_request(one)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    story.wait(REBALANCE_MS)
    assert [story.joined(to).generation_id for to in waiting] == [2, 2]
    assert refusal(story, join_request()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert story.waits(story.starts(join_request(two, supports=protocols("range", "sticky"))))


def test_an_answer_to_a_join_that_was_lost_is_given_again() -> None:
    story = GroupStory()
    me = story.new_id()
    first = story.joined(story.starts(join_request(me)))
    assert story.joined(story.starts(join_request(me))) == first


# --- sharing out -------------------------------------------------------------------------------------------


def test_members_wait_for_the_leaders_assignment() -> None:
    story = GroupStory()
    one, two = story.members(2)
    for to in story.all_join([one, two]):
        story.joined(to)
    generation = story.generation
    follower = story.starts(sync_request(generation, two))
    assert story.waits(follower)
    assert story.synced(story.starts(sync_request(generation, one, {two: "orders-0"}))) == ""
    assert story.synced(follower) == "orders-0"
    assert story.synced(story.starts(sync_request(generation, two))) == "orders-0"


def test_a_sync_of_the_past_or_of_another_protocol_is_refused() -> None:
    story = GroupStory()
    (me,) = story.members(1)
    assert refusal(story, sync_request(2, me)) is ErrorCode.ILLEGAL_GENERATION
    assert refusal(story, sync_request(1, "stranger")) is ErrorCode.UNKNOWN_MEMBER_ID
    other = attrs.evolve(sync_request(1, me), protocol_name="sticky")
    assert refusal(story, other) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert refusal(story, attrs.evolve(other, group_id="another")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(story, attrs.evolve(other, group_id="")) is ErrorCode.INVALID_GROUP_ID


def test_who_does_not_sync_in_time_is_out_and_the_others_start_over() -> None:
    story = GroupStory()
    one, two = story.members(2)
    for to in story.all_join([one, two]):
        story.joined(to)
    follower = story.starts(sync_request(story.generation, two))
    story.wait(REBALANCE_MS)
    assert story.replies.pop(follower).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert story.state is PREPARING
    assert [member.member_id for member in story.group.members] == [two]
    assert story.joined(story.starts(join_request(two))).leader == two


def test_an_assignment_that_nobody_was_given_is_gone_with_its_generation() -> None:
    story = GroupStory()
    one, two = story.members(2)
    for to in story.all_join([one, two]):
        story.joined(to)
    assert {member.assignment for member in story.describe().members} != {b""}
    waiting = story.starts(sync_request(story.generation, two))
    newcomer = story.starts(join_request(instance="i1"))
    assert story.waits(newcomer)
    assert story.replies.pop(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert {member.assignment for member in story.describe().members} == {b""}


def test_a_stable_group_starts_over_without_those_who_never_took_their_part() -> None:
    story = GroupStory()
    one, two = story.members(2)
    for to in story.all_join([one, two]):
        story.joined(to)
    story.synced(story.starts(sync_request(story.generation, one)))
    assert story.state is STABLE
    story.wait(REBALANCE_MS)
    assert story.state is PREPARING
    assert [member.member_id for member in story.group.members] == [one]


def test_the_assignment_is_safe_before_anybody_hears_of_it() -> None:
    story = GroupStory(policy=SyncPolicy.ALL)
    me = story.new_id()
    story.joined(story.starts(join_request(me)))
    to = story.offer(sync_request(1, me, {me: "orders-0"}))
    story.run()
    assert story.waits(to)
    story.sync()
    story.run()
    assert story.synced(to) == "orders-0"


# --- staying alive and leaving -----------------------------------------------------------------------------


def test_a_member_that_falls_silent_is_out() -> None:
    story = GroupStory()
    one, two = story.members(2)
    story.wait(SESSION_MS - 1_000)
    assert story.beat(story.generation, one) is ErrorCode.NONE
    story.wait(1_000)
    assert story.beat(story.generation, one) is ErrorCode.REBALANCE_IN_PROGRESS
    assert story.beat(story.generation, two) is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.state is PREPARING


def test_the_last_member_leaves_an_empty_group_behind() -> None:
    story = GroupStory()
    (me,) = story.members(1)
    story.wait(SESSION_MS)
    assert (story.state, story.generation, story.leader) == (EMPTY, 2, None)
    record = story.group_records()[-1]
    assert record is not None
    assert (record.generation_id, record.members, record.protocol_type) == (2, (), "consumer")
    assert story.beat(1, me) is ErrorCode.UNKNOWN_MEMBER_ID
    story.restart()
    assert (story.state, story.generation) == (EMPTY, 2)
    assert story.joined(story.starts(join_request(story.new_id()))).generation_id == 3


def test_a_commit_shows_that_a_member_lives() -> None:
    story = GroupStory()
    (me,) = story.members(1)
    request = attrs.evolve(plain_offset_request(GROUP, {ORDERS: 5}), generation_id=1, member_id=me)
    for _ in range(3):
        story.wait(SESSION_MS * 3 // 4)
        (part,) = body_of(story.ask(request), m.OffsetCommitReply).partitions
        assert part.error is ErrorCode.NONE
    assert story.state is STABLE


def test_who_waited_longer_than_its_session_has_a_new_one_once_it_is_answered() -> None:
    story = GroupStory()
    slow_ms = 3 * SESSION_MS
    one, two = story.members(2)
    leader, follower = (story.starts(join_request(each, rebalance_ms=slow_ms)) for each in (one, two))
    assert story.joined(leader).generation_id == story.joined(follower).generation_id
    syncing = story.starts(sync_request(story.generation, two))
    for _ in range(2):
        story.wait(SESSION_MS - 1_000)
        assert story.beat(story.generation, one) is ErrorCode.NONE
    assert story.leave(one) is ErrorCode.NONE
    assert story.replies.pop(syncing).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert story.group.member(two) is not None
    story.wait(SESSION_MS)
    assert story.state is EMPTY


def test_a_rebalance_timeout_of_nothing_does_not_come_round_for_ever() -> None:
    story = GroupStory()
    impatient = join_request(instance="i1")
    first = story.joined(story.starts(impatient)).member_id
    story.synced(story.starts(sync_request(1, first, instance="i1")))
    newcomer = story.starts(join_request(story.new_id()))
    story.starts(join_request(first, instance="i1"))
    second = story.joined(newcomer).member_id
    for member_id, instance in ((second, None), (first, "i1")):
        story.starts(sync_request(2, member_id, instance=instance))
    story.joined(story.starts(attrs.evolve(impatient, rebalance_timeout_ms=0)))
    assert story.leave(second) is ErrorCode.NONE
    story.wait(2 * SESSION_MS)
    assert story.state is EMPTY


def test_the_id_of_a_member_that_is_removed_at_once_is_not_given_again() -> None:
    story = GroupStory()
    impatient = attrs.evolve(join_request(rebalance_ms=-1), requires_member_id=False)
    assert story.joined(story.starts(impatient)).member_id != story.joined(story.starts(impatient)).member_id


def test_whoever_waits_is_alive() -> None:
    story = GroupStory()
    slow_ms = 3 * SESSION_MS
    one = story.new_id()
    story.joined(story.starts(join_request(one, rebalance_ms=slow_ms)))
    story.synced(story.starts(sync_request(1, one)))
    newcomer = story.starts(join_request(story.new_id(), rebalance_ms=slow_ms))
    again = story.starts(join_request(story.new_id(), rebalance_ms=slow_ms))
    story.wait(SESSION_MS - 1_000)
    assert story.beat(1, one) is ErrorCode.REBALANCE_IN_PROGRESS
    story.wait(SESSION_MS - 1_000)
    story.joined(story.starts(join_request(one, rebalance_ms=slow_ms)))
    assert {story.joined(to).generation_id for to in (newcomer, again)} == {2}


def test_a_new_member_whose_join_is_never_answered_is_not_kept_for_ever() -> None:
    settings = attrs.evolve(SETTINGS, group_new_member_join_timeout_ms=1_000)
    story = GroupStory(settings=settings)
    (one,) = story.members(1)
    newcomer = story.starts(join_request(story.new_id()))
    story.wait(1_000)
    refused = story.replies.pop(newcomer)
    assert refused.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.joined(story.starts(join_request(one))).generation_id == 2


def test_members_leave_each_with_an_answer() -> None:
    story = GroupStory()
    one, two = story.members(2)
    pending = story.new_id()
    gone = [m.LeavingMember(member_id=each, group_instance_id=None) for each in (two, "stranger", pending)]
    reply = body_of(story.ask(m.LeaveGroup(group_id=GROUP, members=tuple(gone))), m.LeaveGroupReply)
    assert [member.error for member in reply.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert story.state is PREPARING
    assert story.joined(story.starts(join_request(one))).generation_id == story.generation
    assert story.leave("stranger") is ErrorCode.UNKNOWN_MEMBER_ID
    another = m.LeaveGroup(group_id="another", members=tuple(gone))
    strangers = body_of(story.ask(another), m.LeaveGroupReply).members
    assert {member.error for member in strangers} == {ErrorCode.UNKNOWN_MEMBER_ID}
    assert story.ask(attrs.evolve(another, group_id="")).error is ErrorCode.INVALID_GROUP_ID


def test_whoever_leaves_while_it_waits_is_told() -> None:
    story = GroupStory()
    one, two = story.members(2)
    joining = story.starts(join_request(two, supports=protocols("range", "sticky")))
    assert story.leave(two) is ErrorCode.NONE
    assert story.replies.pop(joining).error is ErrorCode.UNKNOWN_MEMBER_ID
    story.joined(story.starts(join_request(one)))
    three = story.new_id()
    waiting = [story.starts(join_request(each)) for each in (three, one)]
    assert [story.joined(to).generation_id for to in waiting] == [story.generation] * 2
    syncing = story.starts(sync_request(story.generation, three))
    assert story.leave(three) is ErrorCode.NONE
    assert story.replies.pop(syncing).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_tick_looks_at_no_group_that_has_nothing_due() -> None:
    story = GroupStory()
    work: list[int] = []
    for others in (10, 200):
        for number in range(others):
            story.ask(
                join_request(instance=f"i{others}", group=f"other {others} {number}", session_ms=60_000)
            )
        work.append(calls_of(story.run))
        story.host.offer(Tick())
        work.append(calls_of(story.run))
    assert work[:2] == work[2:]


# --- what a restart leaves ---------------------------------------------------------------------------------


def test_a_stable_group_goes_on_after_a_restart() -> None:
    story = GroupStory()
    one, two = story.members(2)
    generation = story.generation
    story.restart()
    assert (story.state, story.generation, story.leader) == (STABLE, generation, one)
    assert story.beat(generation, one) is ErrorCode.NONE
    assert story.synced(story.starts(sync_request(generation, two))) == f"part of {two}"
    assert story.beat(generation, two) is ErrorCode.NONE
    story.check_recovery()


def test_after_a_restart_members_have_a_whole_session_to_come_back() -> None:
    story = GroupStory()
    (me,) = story.members(1)
    story.wait(SESSION_MS - 500)
    story.restart()
    story.wait(SESSION_MS - 500)
    assert story.beat(1, me) is ErrorCode.NONE
    story.restart()
    story.wait(SESSION_MS)
    assert story.state is EMPTY


def test_what_was_under_way_is_forgotten_with_the_coordinator() -> None:
    story = GroupStory()
    (one,) = story.members(1)
    two = story.new_id()
    story.starts(join_request(two))
    story.restart()
    assert (story.state, story.generation) == (STABLE, 1)
    assert refusal(story, join_request(two)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.beat(1, one) is ErrorCode.NONE


def test_whoever_waits_when_the_group_moves_away_is_told() -> None:
    story = GroupStory()
    (one,) = story.members(1)
    joining = story.starts(join_request(story.new_id()))
    story.host.offer(ResignLeader(partition=offsets_log_of(GROUP)))
    story.run()
    assert story.replies.pop(joining).error is ErrorCode.NOT_COORDINATOR
    assert story.beat(1, one) is ErrorCode.NOT_COORDINATOR
    for request in (join_request(one), sync_request(1, one)):
        assert refusal(story, request) is ErrorCode.NOT_COORDINATOR
    assert story.describe().error is ErrorCode.NOT_COORDINATOR
