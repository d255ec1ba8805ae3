"""A coordinator of groups of the consumer protocol: limits, timeouts, restarts, expressions, offsets."""

from __future__ import annotations

from typing import Final

import attrs
import pytest

from fencepost.broker.contract import Reply, Tick
from fencepost.broker.groups.consumer_group import ConsumerGroup
from fencepost.broker.groups.consumer_heartbeat import REGEX_REFRESH_MS
from fencepost.broker.groups.state import Groups
from fencepost.broker.limits import GROUP_MEMBERS
from fencepost.broker.settings import NodeSettings
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.fork import fingerprint, fork, log_state
from fencepost.protocol.terms import GroupState, GroupType, TopicPartition
from tests.broker.group_story import sync_request
from tests.broker.refusals import CarefulStory
from tests.broker.requests import COMMIT, ORDERS, OTHERS, body_of, offset_request, plain_offset_request
from tests.broker.story import SETTINGS, Story, offsets_log_of
from tests.python_calls import calls_of

GROUP: Final = "readers"
AT_ONCE: Final = attrs.evolve(SETTINGS, group_consumer_assignment_interval_ms=0)
SESSION_MS: Final = AT_ONCE.group_consumer_session_timeout_ms
BEAT_MS: Final = AT_ONCE.group_consumer_heartbeat_interval_ms
UNCHANGED: Final = -1


def story_of(*, topics: dict[str, int] | None = None, settings: NodeSettings = AT_ONCE) -> Story:
    return CarefulStory(settings=settings, topics=topics or {"orders": 2})


def beat_request(
    member: str,
    epoch: int,
    *,
    topics: tuple[str, ...] | None = None,
    regex: str | None = None,
    owned: tuple[TopicPartition, ...] | None = None,
    instance: str | None = None,
    story: Story,
    timeout_ms: int = UNCHANGED,
) -> m.ConsumerGroupHeartbeat:
    known = story.host.node.cluster.topics
    parts = (
        None
        if owned is None
        else tuple(
            m.AssignedTopic(topic_id=known[part.topic].topic_id, partitions=(part.partition,))
            for part in owned
        )
    )
    return m.ConsumerGroupHeartbeat(
        group_id=GROUP,
        member_id=member,
        member_epoch=epoch,
        instance_id=instance,
        rack_id=None,
        rebalance_timeout_ms=timeout_ms,
        subscribed_topic_names=topics,
        subscribed_topic_regex=regex,
        server_assignor=None,
        topic_partitions=parts,
    )


def joins(
    story: Story, member: str, *topics: str, regex: str | None = None, instance: str | None = None
) -> Reply:
    wanted = topics if topics or regex else ("orders",)
    return story.ask(
        beat_request(
            member, 0, topics=wanted, regex=regex, owned=(), instance=instance, story=story, timeout_ms=10_000
        )
    )


def beats(story: Story, member: str, epoch: int, *owned: TopicPartition) -> tuple[int, list[str] | None]:
    """The member's epoch, and what it owns from now on if the answer says so."""
    return told(story, story.ask(beat_request(member, epoch, owned=owned or None, story=story)))


def told(story: Story, reply: Reply) -> tuple[int, list[str] | None]:
    body = body_of(reply, m.ConsumerGroupHeartbeatReply)
    names = story.host.node.cluster.names
    if body.assignment is None:
        return body.member_epoch, None
    parts = [f"{names[topic.topic_id]}-{number}" for topic in body.assignment for number in topic.partitions]
    return body.member_epoch, sorted(parts)


def state_of(story: Story) -> Groups:
    found = story.host.node.logs[offsets_log_of(GROUP)].coordinator
    assert isinstance(found, Groups)
    return found


def group_of(story: Story) -> ConsumerGroup:
    return state_of(story).consumers[GROUP]


def commits(story: Story, member: str, epoch: int, part: TopicPartition, offset: int) -> ErrorCode:
    request = attrs.evolve(plain_offset_request(GROUP, {part: offset}), generation_id=epoch, member_id=member)
    (found,) = body_of(story.ask(request), m.OffsetCommitReply).partitions
    return found.error


# --- time


def test_a_target_is_computed_at_most_once_in_an_interval() -> None:
    """KIP-1263: members that start together cost one assignment."""
    story = story_of(settings=SETTINGS)
    assert told(story, joins(story, "a")) == (2, ["orders-0", "orders-1"])
    assert told(story, joins(story, "b")) == (2, [])
    assert group_of(story).state is GroupState.ASSIGNING
    story.wait(SETTINGS.group_consumer_assignment_interval_ms)
    assert beats(story, "b", 2) == (3, None)
    assert beats(story, "a", 2) == (2, ["orders-0"])


def test_a_member_without_topics_does_not_delay_the_first_target() -> None:
    """The first epoch of a group has an empty target that nobody computed, so no interval begins."""
    story = story_of(settings=SETTINGS)
    idle = beat_request("a", 0, topics=(), owned=(), story=story, timeout_ms=10_000)
    assert told(story, story.ask(idle)) == (1, [])
    assert told(story, joins(story, "b")) == (2, ["orders-0", "orders-1"])


@pytest.mark.parametrize(
    ("preferred", "chosen"),
    [
        ((None, "range"), "range"),
        (("range", "uniform"), "uniform"),
        (("uniform", "range"), "uniform"),
        (("range", "uniform", "range"), "range"),
    ],
)
def test_the_assignor_of_most_members_is_chosen_and_of_two_the_default(
    preferred: tuple[str | None, ...], chosen: str
) -> None:
    story = story_of()
    for number, assignor in enumerate(preferred):
        request = beat_request(f"m{number}", 0, topics=("orders",), owned=(), story=story, timeout_ms=10_000)
        assert story.ask(attrs.evolve(request, server_assignor=assignor)).error is ErrorCode.NONE
    (described,) = body_of(
        story.ask(m.ConsumerGroupDescribe(groups=(GROUP,))), m.ConsumerGroupDescribeReply
    ).groups
    assert described.assignor_name == chosen


def test_members_that_are_silent_leave_the_group() -> None:
    story = story_of()
    joins(story, "a")
    joins(story, "b")
    story.wait(SESSION_MS - BEAT_MS)
    assert beats(story, "b", 3) == (3, None)
    story.wait(BEAT_MS)
    assert list(group_of(story).subscriptions) == ["b"]
    assert beats(story, "b", 3) == (4, ["orders-0", "orders-1"])
    assert story.ask(beat_request("a", 2, story=story)).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_coordinator_gives_each_member_a_new_session() -> None:
    story = story_of()
    joins(story, "a")
    story.wait(SESSION_MS - BEAT_MS)
    story.restart()
    story.wait(SESSION_MS - BEAT_MS)
    assert beats(story, "a", 2) == (2, None)
    story.restart()
    story.wait(SESSION_MS)
    assert group_of(story).state is GroupState.EMPTY


def test_a_new_coordinator_waits_again_for_what_must_be_revoked() -> None:
    story = story_of()
    joins(story, "a")
    joins(story, "b")
    assert beats(story, "a", 2) == (2, ["orders-0"])
    story.restart()
    story.wait(9_000)
    assert beats(story, "a", 2, ORDERS, OTHERS) == (2, None)
    story.wait(1_500)
    assert list(group_of(story).subscriptions) == ["b"]


def test_a_static_member_that_does_not_return_loses_its_partitions() -> None:
    story = story_of()
    joins(story, "a", instance="i")
    joins(story, "b")
    assert story.ask(beat_request("a", -2, instance="i", story=story)).error is ErrorCode.NONE
    story.wait(SESSION_MS - BEAT_MS)
    assert beats(story, "b", 3) == (3, None)
    story.wait(BEAT_MS)
    assert beats(story, "b", 3) == (4, ["orders-0", "orders-1"])


@pytest.mark.parametrize(
    ("member", "instance", "error"),
    [
        ("b", "i", ErrorCode.FENCED_INSTANCE_ID),
        ("", "i", ErrorCode.FENCED_INSTANCE_ID),
        ("b", "j", ErrorCode.UNKNOWN_MEMBER_ID),
        ("b", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", "i", ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_classic_member_learns_who_has_its_instance_id(
    member: str, instance: str | None, error: ErrorCode
) -> None:
    """As Apache Kafka 4.3.1 answered; the member of the consumer protocol does not speak the classic one."""
    story = story_of()
    joins(story, "a", instance="i")
    sync = attrs.evolve(sync_request(1, member, instance=instance), group_id=GROUP)
    beat = m.Heartbeat(group_id=GROUP, generation_id=1, member_id=member, group_instance_id=instance)
    assert [story.ask(request).error for request in (sync, beat)] == [error, error]


@pytest.mark.parametrize("timeout_ms", [0, -7])
def test_a_member_that_allows_itself_no_time_to_revoke_is_removed_at_once(timeout_ms: int) -> None:
    story = story_of()
    assert told(story, joins(story, "a")) == (2, ["orders-0", "orders-1"])
    story.ask(beat_request("a", 2, story=story, timeout_ms=timeout_ms))
    assert told(story, joins(story, "b")) == (3, [])
    assert beats(story, "a", 2) == (2, ["orders-0"])
    assert {member for _, member in state_of(story).deadlines} == {"b"}


def test_a_tick_looks_at_no_member_that_has_nothing_due() -> None:
    story = story_of()
    work: list[int] = []
    for count in (3, 30):
        for number in range(count):
            assert joins(story, f"{count} {number}").error is ErrorCode.NONE
        story.run()
        story.host.offer(Tick())
        work.append(calls_of(story.run))
    assert work[0] == work[1]


# --- topics


def test_a_topic_that_is_made_again_is_another_one() -> None:
    story = story_of()
    joins(story, "a")
    story.ask(m.DeleteTopics(topics=("orders",)))
    story.create("orders", 1)
    assert beats(story, "a", 2) == (2, [])
    known = group_of(story).assignments["a"]
    assert len(known.revoking) == 2  # those of the topic that is gone
    reply = story.ask(attrs.evolve(beat_request("a", 2, story=story), topic_partitions=()))
    assert told(story, reply) == (3, ["orders-0"])


def test_an_expression_finds_new_topics_after_a_while() -> None:
    story = story_of(topics={"orders": 1, "other": 1})
    assert told(story, joins(story, "a", regex="ord.*")) == (2, ["orders-0"])
    story.create("ordinary", 1)
    assert beats(story, "a", 2) == (2, None)
    story.now += REGEX_REFRESH_MS
    assert beats(story, "a", 2) == (3, ["orders-0", "ordinary-0"])
    story.check_recovery()


def test_an_expression_is_not_matched_again_while_there_are_no_new_topics() -> None:
    story = story_of()
    joins(story, "a", regex="ord.*")
    end = story.partition(offsets_log_of(GROUP)).log_end_offset
    story.now += REGEX_REFRESH_MS
    assert beats(story, "a", 2) == (2, None)
    assert story.partition(offsets_log_of(GROUP)).log_end_offset == end


def test_an_expression_that_takes_too_long_for_new_topics_keeps_what_it_matched() -> None:
    """This one has 16,000 instructions: 12,500 characters are as many as they may be compared with."""
    story = story_of(topics={"a" * 100: 1})
    slow = "(a?){1000}" * 8 + "b?"
    assert told(story, joins(story, "a", regex=slow)) == (2, [f"{'a' * 100}-0"])
    for number in range(180, 245):
        story.create("a" * number, 1)
    assert joins(story, "b", regex=slow + "?").error is ErrorCode.INVALID_REGULAR_EXPRESSION
    story.now += REGEX_REFRESH_MS
    assert beats(story, "a", 2) == (2, None)
    assert group_of(story).regexes[slow].topics == ("a" * 100,)
    story.check_recovery()


def test_the_expressions_of_a_group_share_the_time_that_one_may_take() -> None:
    story = story_of(topics={"x" * 249: 1})
    errors = [joins(story, name, regex=f"{name}{'(a?){1000}' * 8}").error for name in map(str, range(60))]
    assert errors[0] is ErrorCode.NONE
    assert errors[-1] is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_an_expression_that_nobody_subscribes_to_is_forgotten() -> None:
    story = story_of()
    joins(story, "a", regex="ord.*")
    joins(story, "b", regex="ord.*")
    story.ask(beat_request("b", -1, story=story))
    assert list(group_of(story).regexes) == ["ord.*"]
    story.ask(beat_request("a", 2, regex="", topics=("orders",), story=story))
    assert not group_of(story).regexes
    story.check_recovery()


@pytest.mark.parametrize("regex", ["(", "(a)\\1", "a(?=b)"])
def test_an_expression_of_another_kind_than_re2_is_refused(regex: str) -> None:
    story = story_of()
    assert joins(story, "a", regex=regex).error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert GROUP not in state_of(story).consumers


# --- limits


def test_a_full_group_takes_no_more_members() -> None:
    story = story_of(settings=attrs.evolve(AT_ONCE, group_consumer_max_size=1))
    joins(story, "a")
    assert joins(story, "b").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert joins(story, "a").error is ErrorCode.NONE


def test_subscriptions_are_limited_in_their_memory() -> None:
    story = story_of()
    names = tuple(f"{number:0200}" for number in range(2_000))
    errors = [joins(story, f"m{number}", *names).error for number in range(GROUP_MEMBERS.value // 400_000)]
    assert errors[0] is ErrorCode.NONE
    assert errors[-1] is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert group_of(story).membership.size <= GROUP_MEMBERS.value
    assert beats(story, "m0", group_of(story).current("m0").epoch)[1] is None  # who is in stays in


def test_members_leave_a_broker_that_allows_only_smaller_batches_than_before() -> None:
    story = story_of()
    for name in "abc":
        joins(story, name)
    story.settings = attrs.evolve(AT_ONCE, message_max_bytes=10)
    story.restart()
    story.wait(SESSION_MS)
    assert not group_of(story).subscriptions
    assert not state_of(story).deadlines
    story.check_recovery()


def test_a_subscription_that_does_not_fit_a_batch_is_refused() -> None:
    story = story_of()
    names = tuple(f"{number:0245}" for number in range(5_000))
    assert joins(story, "a", *names).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert GROUP not in state_of(story).consumers


def test_many_members_whose_sessions_end_together_are_removed_in_several_batches() -> None:
    settings = attrs.evolve(AT_ONCE, message_max_bytes=20_000)
    story = story_of(settings=settings)
    for number in range(40):
        assert joins(story, f"{number:0500}", "absent").error is ErrorCode.NONE
    story.wait(SESSION_MS + BEAT_MS)
    assert group_of(story).state is GroupState.EMPTY
    assert not state_of(story).deadlines
    story.check_recovery()


# --- offsets


def test_an_old_epoch_commits_what_the_member_has_had_since_then() -> None:
    """KIP-1251, and KIP-447 in a transaction."""
    story = story_of()
    joins(story, "a")
    joins(story, "b")
    beats(story, "a", 2)
    assert beats(story, "a", 2, ORDERS) == (3, None)
    assert beats(story, "b", 3) == (3, ["orders-1"])
    producer = story.identity()

    def in_transaction(member: str, epoch: int, part: TopicPartition) -> ErrorCode:
        request = attrs.evolve(
            offset_request(producer, GROUP, {part: 7}), generation_id=epoch, member_id=member
        )
        (found,) = body_of(story.ask(request), m.TxnOffsetCommitReply).partitions
        return found.error

    assert in_transaction("a", 2, ORDERS) is ErrorCode.NONE
    assert in_transaction("a", 2, OTHERS) is ErrorCode.ILLEGAL_GENERATION
    assert in_transaction("a", 4, ORDERS) is ErrorCode.ILLEGAL_GENERATION
    assert in_transaction("c", 3, ORDERS) is ErrorCode.UNKNOWN_MEMBER_ID
    assert in_transaction("", -1, OTHERS) is ErrorCode.NONE  # who does not say is not checked
    story.ended(producer, COMMIT)
    assert story.offset(GROUP).offset == 7
    assert commits(story, "a", 2, OTHERS, 9) is ErrorCode.STALE_MEMBER_EPOCH
    assert commits(story, "a", 2, ORDERS, 9) is ErrorCode.NONE
    story.check_recovery()


def test_offsets_expire_by_their_age_except_those_of_subscribed_topics() -> None:
    story = story_of(
        topics={"orders": 1, "old": 1}, settings=attrs.evolve(AT_ONCE, offsets_retention_minutes=1)
    )
    joins(story, "a")
    assert commits(story, "a", 2, ORDERS, 1) is ErrorCode.NONE
    assert commits(story, "a", 2, TopicPartition("old", 0), 1) is ErrorCode.NONE
    for _ in range(30):
        story.wait(SESSION_MS // 2)
        beats(story, "a", 2)
    assert list(state_of(story).committed[GROUP]) == [ORDERS]
    story.ask(beat_request("a", -1, story=story))
    story.wait(20 * 60_000)
    assert GROUP not in state_of(story).committed
    assert GROUP not in state_of(story).consumers  # without members and offsets the group goes, too
    story.check_recovery()


def test_a_group_of_the_consumer_protocol_is_never_one_of_offsets_alone() -> None:
    story = story_of()
    joins(story, "a")
    commits(story, "a", 2, ORDERS, 1)
    story.restart()
    (listed,) = body_of(story.ask(m.ListGroups(states=())), m.ListGroupsReply).groups
    assert listed.group_type is GroupType.CONSUMER
    assert GROUP not in state_of(story).records
    assert set(state_of(story).committed[GROUP]) == {ORDERS}


# --- the state


def test_the_state_is_part_of_fingerprints_and_forks() -> None:
    story = story_of()
    joins(story, "a")
    state = state_of(story)
    before, logged, copy = fingerprint(state), log_state(state), fork(state)
    story.now += 1_000
    beats(story, "a", 2)  # a note: the session
    assert fingerprint(state) != before
    assert log_state(state) == logged
    joins(story, "b")
    assert log_state(state) != logged
    assert fingerprint(copy) == before
    assert story.check_recovery()
