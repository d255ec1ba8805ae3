"""What administrators see of groups and do to them: describe, list, delete, delete offsets."""

from __future__ import annotations

import attrs
import pytest

from fencepost.broker.contract import Reply
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import NO_OFFSET, GroupState, TopicPartition
from tests.broker.group_story import GROUP, GroupStory, join_request, protocols, sync_request
from tests.broker.requests import COMMIT, ORDERS, OTHERS, body_of, plain_offset_request
from tests.client.members import subscription
from tests.python_calls import calls_of, instructions_of


def listed(story: GroupStory, *states: GroupState) -> list[tuple[str, str, GroupState]]:
    found = body_of(story.ask(m.ListGroups(states=states)), m.ListGroupsReply).groups
    return [(group.group_id, group.protocol_type, group.state) for group in found]


def delete(story: GroupStory, *groups: str) -> list[ErrorCode]:
    return [
        group.error for group in body_of(story.ask(m.DeleteGroups(groups=groups)), m.DeleteGroupsReply).groups
    ]


def delete_offsets(story: GroupStory, *keys: TopicPartition) -> Reply:
    return story.ask(m.OffsetDelete(group_id=GROUP, partitions=keys))


def commit(story: GroupStory, group: str = GROUP, offset: int = 5) -> ErrorCode:
    reply = story.ask(plain_offset_request(group, {ORDERS: offset}))
    return body_of(reply, m.OffsetCommitReply).partitions[0].error


def joined_alone(story: GroupStory, said: bytes, kind: str = "consumer") -> str:
    """A stable group of one that says this to its leader."""
    request = join_request(supports=protocols("range", said=said), kind=kind)
    reply = story.joined(story.starts(attrs.evolve(request, group_instance_id="i1")))
    sync = sync_request(reply.generation_id, reply.member_id, {reply.member_id: "all"}, instance="i1")
    story.synced(story.starts(attrs.evolve(sync, protocol_type=kind)))
    return reply.member_id


def test_a_member_is_described_with_its_client_after_a_restart_too() -> None:
    story = GroupStory()
    story.client = ("billing", "/10.0.0.7")
    (me,) = story.members(1)
    assert me.startswith("billing-")
    story.client = ("admin", "/10.0.0.8")
    for _ in range(2):
        (member,) = story.describe().members
        assert (member.member_id, member.client_id, member.client_host) == (me, "billing", "/10.0.0.7")
        story.restart()


def test_a_group_is_described_as_it_stands() -> None:
    story = GroupStory()
    nobody = story.describe()
    assert (nobody.error, nobody.state, nobody.members) == (ErrorCode.NONE, GroupState.DEAD, ())
    me = joined_alone(story, b"topics")
    found = story.describe()
    assert (found.state, found.protocol_type, found.protocol) == (GroupState.STABLE, "consumer", "range")
    (member,) = found.members
    assert (member.member_id, member.group_instance_id) == (me, "i1")
    assert (member.metadata, member.assignment) == (b"topics", b"all")
    story.starts(join_request(instance="i2"))
    moving = story.describe()
    assert (moving.state, moving.protocol) == (GroupState.PREPARING_REBALANCE, "")
    assert {member.metadata for member in moving.members} == {b""}


def test_groups_are_listed_by_state() -> None:
    story = GroupStory()
    commit(story, "a-simple-one")
    story.members(1)
    assert listed(story) == [("a-simple-one", "", GroupState.EMPTY), (GROUP, "consumer", GroupState.STABLE)]
    assert listed(story, GroupState.STABLE) == [(GROUP, "consumer", GroupState.STABLE)]
    story.restart()
    assert [group for group, _, _ in listed(story)] == ["a-simple-one", GROUP]


def test_only_a_group_without_members_is_deleted_and_its_offsets_with_it() -> None:
    story = GroupStory()
    (me,) = story.members(1)
    assert delete(story, GROUP, "another") == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    story.leave(me)
    commit(story)
    producer = story.identity()
    story.commit_offset(producer, GROUP, 9)
    assert delete(story, GROUP) == [ErrorCode.NONE]
    story.check_recovery()
    story.ended(producer, COMMIT)
    for _ in range(2):
        assert story.describe().state is GroupState.DEAD
        assert story.offset(GROUP, require_stable=True).offset == NO_OFFSET
        assert delete(story, GROUP) == [ErrorCode.GROUP_ID_NOT_FOUND]
        story.restart()
    assert story.joined(story.starts(join_request(story.new_id()))).generation_id == 1


def test_a_group_that_only_committed_is_deleted_too() -> None:
    story = GroupStory()
    commit(story)
    assert delete(story, GROUP) == [ErrorCode.NONE]
    story.restart()
    assert listed(story) == []


def calls_beside(others: int, story: GroupStory, request: m.DeleteGroups | m.OffsetDelete) -> int:
    """How many Python functions a deletion calls when so many more groups have committed."""
    for number in range(others):
        assert commit(story, f"other {others} {number}") is ErrorCode.NONE
    assert commit(story) is ErrorCode.NONE
    story.offer(request)
    return calls_of(story.settle)


def test_deleting_a_group_looks_at_no_other_group() -> None:
    story, request = GroupStory(), m.DeleteGroups(groups=(GROUP,))
    few = calls_beside(10, story, request)
    assert story.describe().state is GroupState.DEAD
    many = calls_beside(200, story, request)
    assert story.describe().state is GroupState.DEAD
    assert many <= few


def test_deleting_an_offset_looks_at_no_other_group() -> None:
    story, request = GroupStory(), m.OffsetDelete(group_id=GROUP, partitions=(ORDERS,))
    few = calls_beside(10, story, request)
    assert calls_beside(200, story, request) <= few


@pytest.mark.parametrize(
    "request_of_one_group",
    [
        m.DeleteGroups(groups=(GROUP,)),
        m.OffsetFetch(group_id=GROUP, require_stable=True, partitions=None),
        m.OffsetDelete(group_id=GROUP, partitions=(ORDERS,)),
    ],
    ids=lambda request: type(request).__name__,
)
def test_one_group_is_served_without_a_look_at_the_pending_offsets_of_others(
    request_of_one_group: m.Request,
) -> None:
    story = GroupStory()
    work: list[int] = []
    for others in (10, 200):
        who = story.identity(f"pay {others}")
        for number in range(others):
            answer = story.commit_offset(who, f"other {others} {number}", 1, f"pay {others}")
            assert answer is ErrorCode.NONE
        assert commit(story) is ErrorCode.NONE
        story.offer(request_of_one_group)
        work.append(instructions_of(story.settle))
    assert work[1] - work[0] < 200, "less than one instruction for each other group"


def test_offsets_that_a_member_reads_are_not_deleted() -> None:
    story = GroupStory()
    story.create("others")
    commit(story)
    joined_alone(story, subscription("others", "third"))
    ghost = TopicPartition("ghost", 0)
    answers = body_of(delete_offsets(story, ORDERS, TopicPartition("others", 0), ghost), m.OffsetDeleteReply)
    assert [part.error for part in answers.partitions] == [
        ErrorCode.NONE,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert story.offset(GROUP).offset == NO_OFFSET
    story.restart()
    assert story.offset(GROUP).offset == NO_OFFSET


def test_a_consumer_that_does_not_say_what_it_reads_may_read_anything() -> None:
    story = GroupStory()
    commit(story)
    joined_alone(story, b"")
    answers = body_of(delete_offsets(story, ORDERS), m.OffsetDeleteReply)
    assert answers.partitions[0].error is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_a_group_of_others_than_consumers_keeps_its_offsets_while_it_has_members() -> None:
    story = GroupStory()
    commit(story)
    joined_alone(story, b"", kind="connect")
    assert delete_offsets(story, ORDERS).error is ErrorCode.NON_EMPTY_GROUP
    assert story.leave("", instance="i1") is ErrorCode.NONE
    assert delete_offsets(story, ORDERS, OTHERS).error is ErrorCode.NONE
    assert story.offset(GROUP).offset == NO_OFFSET


def test_a_group_that_is_not_there_has_no_offsets_to_delete() -> None:
    assert delete_offsets(GroupStory(), ORDERS).error is ErrorCode.GROUP_ID_NOT_FOUND
