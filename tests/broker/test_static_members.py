"""Static members (KIP-345): who comes back under its instance id is the same member under a new member id."""

from __future__ import annotations

import attrs

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import JoinGroupReply, OffsetCommitReply
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

FENCED = ErrorCode.FENCED_INSTANCE_ID


def stable(story: GroupStory, *instances: str) -> list[str]:
    """A stable group of static members; the first one leads."""
    ids = [story.joined(story.starts(join_request(instance=instances[0]))).member_id]
    for instance in instances[1:]:
        to = story.starts(join_request(instance=instance))
        for member_id, known in zip(ids, instances, strict=False):
            story.starts(join_request(member_id, instance=known))
        ids.append(story.joined(to).member_id)
    story.replies.clear()
    assigned = {member_id: f"part of {member_id}" for member_id in ids}
    for member_id, instance in zip(ids, instances, strict=True):
        story.starts(sync_request(story.generation, member_id, assigned, instance=instance))
    story.replies.clear()
    assert story.state is GroupState.STABLE, story.group
    return ids


def come_back(story: GroupStory, instance: str) -> JoinGroupReply:
    return story.joined(story.starts(join_request(instance=instance)))


def test_a_static_member_needs_no_id_to_join() -> None:
    story = GroupStory()
    assert come_back(story, "i1").generation_id == 1


def test_a_static_member_comes_back_without_a_rebalance_and_its_former_self_is_fenced() -> None:
    story = GroupStory()
    old, other = stable(story, "i1", "i2")
    generation = story.generation
    reply = come_back(story, "i1")
    new = reply.member_id
    assert (reply.generation_id, reply.leader, reply.skip_assignment) == (generation, new, True)
    assert {member.group_instance_id for member in reply.members} == {"i1", "i2"}
    assert story.beat(generation, old, instance="i1") is FENCED
    assert story.beat(generation, new, instance="i1") is ErrorCode.NONE
    assert story.beat(generation, other, instance="i2") is ErrorCode.NONE
    assert story.ask(sync_request(generation, old, instance="i1")).error is FENCED
    mine = story.starts(sync_request(generation, new, instance="i1"))
    assert story.synced(mine) == f"part of {old}"
    commit = attrs.evolve(plain_offset_request(GROUP, {ORDERS: 5}), generation_id=generation)
    for who, error in ((old, FENCED), (new, ErrorCode.NONE)):
        request = attrs.evolve(commit, member_id=who, group_instance_id="i1")
        assert body_of(story.ask(request), OffsetCommitReply).partitions[0].error is error


def test_an_old_leader_that_comes_back_does_not_assign_anew() -> None:
    """It does not know skip_assignment, so it is not told that it leads (KIP-814)."""
    story = GroupStory()
    old, _ = stable(story, "i1", "i2")
    request = attrs.evolve(join_request(instance="i1"), can_skip_assignment=False)
    reply = story.joined(story.starts(request))
    assert (reply.leader, reply.members, reply.skip_assignment) == (old, (), False)
    assert story.group.leader == reply.member_id != old
    mine = story.starts(sync_request(story.generation, reply.member_id, instance="i1"))
    assert story.synced(mine) == f"part of {old}"


def test_a_follower_that_comes_back_is_told_who_leads_and_no_more() -> None:
    story = GroupStory()
    leader, _ = stable(story, "i1", "i2")
    reply = come_back(story, "i2")
    assert (reply.leader, reply.members, reply.skip_assignment) == (leader, (), False)


def test_the_new_id_survives_a_restart() -> None:
    story = GroupStory()
    (old,) = stable(story, "i1")
    new = come_back(story, "i1").member_id
    story.restart()
    assert story.beat(1, new, instance="i1") is ErrorCode.NONE
    assert story.beat(1, old, instance="i1") is FENCED
    story.check_recovery()


def test_a_static_member_that_wants_another_protocol_makes_the_group_start_over() -> None:
    story = GroupStory()
    stable(story, "i1")
    reply = story.joined(story.starts(join_request(instance="i1", supports=protocols("sticky", "range"))))
    assert (reply.generation_id, reply.protocol_name) == (2, "sticky")


def test_whoever_waits_under_the_old_id_is_fenced() -> None:
    story = GroupStory()
    one, two = stable(story, "i1", "i2")
    waiting = story.starts(join_request(one, instance="i1"))
    assert story.waits(waiting)
    heir = story.starts(join_request(instance="i1"))
    assert story.replies.pop(waiting).error is FENCED
    story.starts(join_request(two, instance="i2"))
    generation = story.joined(heir).generation_id
    syncing = story.starts(sync_request(generation, two, instance="i2"))
    assert story.waits(syncing)
    again = story.starts(join_request(instance="i2"))
    assert story.replies.pop(syncing).error is FENCED
    # The leader was told of the old id already: everybody joins again.
    assert story.waits(again)
    assert story.state is GroupState.PREPARING_REBALANCE


def test_a_static_member_that_returns_before_it_has_synced_is_still_missed_under_its_old_id() -> None:
    """Apache Kafka 4.3.1 does the same: the new id syncs, and the rebalance timeout ends the generation."""
    story = GroupStory()
    stable(story, "i1")
    new = story.starts(join_request(instance="i2"))
    leader = story.group.leader
    assert leader is not None
    story.starts(join_request(leader, instance="i1"))
    old = story.joined(new).member_id
    generation = story.generation
    story.starts(sync_request(generation, leader, {leader: "1", old: "2"}, instance="i1"))
    reply = come_back(story, "i2")
    assert reply.generation_id == generation
    mine = story.starts(sync_request(generation, reply.member_id, instance="i2"))
    assert story.synced(mine) == "2"
    assert story.beat(generation, leader, instance="i1") is ErrorCode.NONE
    story.wait(REBALANCE_MS)
    assert story.beat(generation, leader, instance="i1") is ErrorCode.REBALANCE_IN_PROGRESS
    assert {member.instance_id for member in story.group.members} == {"i1", "i2"}


def test_a_static_member_is_missed_until_its_session_ends_and_no_longer() -> None:
    story = GroupStory()
    one, two = stable(story, "i1", "i2")
    waiting = story.starts(join_request(one, instance="i1"))
    story.wait(REBALANCE_MS)
    assert story.joined(waiting).generation_id == story.generation
    assert story.group.member(two) is not None, "it did not join in time, and is still in"
    parts = {one: "", two: "all"}
    story.starts(sync_request(story.generation, one, parts, instance="i1"))
    story.wait(REBALANCE_MS)
    assert story.group.member(two) is None, "but who does not take its part is out"
    story.wait(SESSION_MS + REBALANCE_MS)
    assert story.state is GroupState.EMPTY


def test_an_administrator_removes_a_static_member_by_its_instance() -> None:
    story = GroupStory()
    (me,) = stable(story, "i1")
    assert story.leave("", instance="i2") is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.leave("somebody", instance="i1") is FENCED
    assert story.leave("", instance="i1") is ErrorCode.NONE
    assert story.state is GroupState.EMPTY
    assert story.beat(1, me, instance="i1") is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_was_given_an_id_is_no_static_member() -> None:
    story = GroupStory()
    reply = story.ask(join_request(story.new_id(), instance="i1"))
    assert reply.error is ErrorCode.UNKNOWN_SERVER_ERROR
