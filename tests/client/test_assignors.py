"""The assignors: what Kafka's tests expect of them, and what must hold for any group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.client.assignors import ASSIGNORS, Assignments, SubscribedMember, assign_ranges, assign_sticky
from fencepost.protocol.consumer_protocol import MemberSubscription
from fencepost.protocol.terms import TopicPartition

Counts = dict[str, int]


def member(
    member_id: str,
    *topics: str,
    instance: str | None = None,
    owned: Sequence[TopicPartition] = (),
    generation: int = 1,
) -> SubscribedMember:
    subscription = MemberSubscription(topics=topics, owned=tuple(owned), generation_id=generation)
    return SubscribedMember(member_id=member_id, group_instance_id=instance, subscription=subscription)


def brief(assignments: Assignments) -> dict[str, str]:
    """`{"a": "t0 t1"}`."""
    return {
        who: " ".join(f"{p.topic}{p.partition}" for p in assignment)
        for who, assignment in assignments.items()
    }


A, B, C = member("a", "t"), member("b", "t"), member("c", "t")
RANGES: list[tuple[list[SubscribedMember], Counts, dict[str, str]]] = [
    # RangeAssignorTest, by its names
    ([A], {}, {"a": ""}),  # OneConsumerNoTopic
    ([A], {"t": 3}, {"a": "t0 t1 t2"}),  # OneConsumerOneTopic
    ([member("a", "t", "u")], {"t": 1, "u": 2}, {"a": "t0 u0 u1"}),  # OneConsumerMultipleTopics
    ([A, B], {"t": 1}, {"a": "t0", "b": ""}),  # TwoConsumersOneTopicOnePartition
    ([A, B], {"t": 3}, {"a": "t0 t1", "b": "t2"}),
    (  # MultipleConsumersMixedTopics
        [A, member("b", "t", "u"), C],
        {"t": 3, "u": 2},
        {"a": "t0", "b": "t1 u0 u1", "c": "t2"},
    ),
    (  # TwoConsumersTwoTopicsSixPartitions: what is odd always goes to the first
        [member("a", "t", "u"), member("b", "t", "u")],
        {"t": 3, "u": 3},
        {"a": "t0 t1 u0 u1", "b": "t2 u2"},
    ),
    (  # TwoStaticConsumersTwoTopicsSixPartitions: instance ids decide, not member ids
        [member("a", "t", instance="2"), member("b", "t", instance="1")],
        {"t": 3},
        {"b": "t0 t1", "a": "t2"},
    ),
    ([A, member("z", "t", instance="1")], {"t": 3}, {"z": "t0 t1", "a": "t2"}),  # static members first
]


@pytest.mark.parametrize(("members", "counts", "expected"), RANGES)
def test_ranges_are_kafka_s(
    members: list[SubscribedMember], counts: Counts, expected: dict[str, str]
) -> None:
    assert brief(assign_ranges(members, counts)) == expected
    assert brief(assign_ranges(reversed(members), counts)) == expected


T = [TopicPartition("t", number) for number in range(6)]
STICKY: list[tuple[list[SubscribedMember], int, dict[str, str]]] = [
    ([A, B], 4, {"a": "t0 t2", "b": "t1 t3"}),
    # A newcomer gets nothing that is not revoked yet.
    ([member("a", "t", owned=T[:4]), B], 4, {"a": "t0 t1", "b": ""}),
    ([member("a", "t", owned=T[:2]), B], 4, {"a": "t0 t1", "b": "t2 t3"}),
    # What a member that is gone leaves is free at once.
    ([member("a", "t", owned=T[:2]), member("b", "t", owned=T[2:4])], 6, {"a": "t0 t1 t4", "b": "t2 t3 t5"}),
    # A claim from before the last generation does not count, and two equal claims cancel each other.
    (
        [member("a", "t", owned=T[:1], generation=1), member("b", "t", owned=T[:1], generation=2)],
        2,
        {"a": "t1", "b": "t0"},
    ),
    ([member("a", "t", owned=T[:1]), member("b", "t", owned=T[:1])], 2, {"a": "t0", "b": "t1"}),
    # A partition that its owner no longer subscribes to changes hands in two steps, too.
    ([member("a", "u", owned=T[:1]), B], 1, {"a": "", "b": ""}),
]


@pytest.mark.parametrize(("members", "count", "expected"), STICKY)
def test_sticky_assignments(members: list[SubscribedMember], count: int, expected: dict[str, str]) -> None:
    assert brief(assign_sticky(members, {"t": count})) == expected


def test_the_generation_of_an_older_member_is_in_its_user_data() -> None:
    sticky = ASSIGNORS["cooperative-sticky"]
    assert ASSIGNORS["range"].user_data(5) is None
    old, new = (
        SubscribedMember(
            member_id=f"m{generation}",
            subscription=MemberSubscription(
                topics=("t",), owned=(T[0],), user_data=sticky.user_data(generation)
            ),
        )
        for generation in (4, 5)
    )
    assert brief(assign_sticky([old, new], {"t": 2})) == {"m4": "t1", "m5": "t0"}


TOPICS = ("t", "u", "v")


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[SubscribedMember], Counts]:
    counts = {topic: draw(st.integers(0, 7)) for topic in TOPICS}
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1))
    members = [
        member(
            name,
            *draw(st.lists(st.sampled_from(TOPICS), unique=True)),
            instance=draw(st.none() | st.just(f"i{name}")),
            owned=draw(st.lists(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 8)))),
            generation=draw(st.integers(0, 2)),
        )
        for name in names
    ]
    return members, counts


def owned_by(assignments: Assignments) -> dict[TopicPartition, str]:
    found = {where: who for who, assignment in assignments.items() for where in assignment}
    assert len(found) == sum(map(len, assignments.values())), f"a partition was given twice: {assignments}"
    return found


def settled(members: list[SubscribedMember], counts: Counts) -> tuple[list[SubscribedMember], Assignments]:
    """Rebalances as members do: each owns what it was given, until nothing moves any more."""
    assignments: Assignments = {}
    for generation in range(3, 6):
        assignments = assign_sticky(members, counts)
        members = [
            attrs.evolve(
                each,
                subscription=attrs.evolve(
                    each.subscription, owned=tuple(assignments[each.member_id]), generation_id=generation
                ),
            )
            for each in members
        ]
    return members, assignments


def is_balanced(members: list[SubscribedMember], assignments: Assignments) -> bool:
    """Whoever has two fewer than another cannot take any of what that one has (KIP-54)."""
    return all(
        len(assignments[full.member_id]) - len(assignments[slim.member_id]) < 2
        or not {where.topic for where in assignments[full.member_id]}.intersection(slim.subscription.topics)
        for full in members
        for slim in members
    )


def expected_partitions(members: list[SubscribedMember], counts: Mapping[str, int]) -> set[TopicPartition]:
    wanted = {topic for each in members for topic in each.subscription.topics}
    return {TopicPartition(topic, n) for topic in wanted for n in range(counts[topic])}


@given(groups())
def test_every_partition_has_one_reader_who_wants_it(group: tuple[list[SubscribedMember], Counts]) -> None:
    members, counts = group
    by_id = {each.member_id: each for each in members}
    for assignments in (assign_ranges(members, counts), settled(members, counts)[1]):
        owners = owned_by(assignments)
        assert set(owners) == expected_partitions(members, counts)
        assert all(where.topic in by_id[who].subscription.topics for where, who in owners.items())


@given(groups())
def test_sticky_shares_are_balanced_and_then_stay(group: tuple[list[SubscribedMember], Counts]) -> None:
    members, assignments = settled(*group)
    assert is_balanced(members, assignments)
    assert assign_sticky(members, group[1]) == assignments


@given(groups())
def test_nothing_changes_hands_within_one_generation(group: tuple[list[SubscribedMember], Counts]) -> None:
    members, counts = group
    newest = owned_by(settled(members, counts)[1])
    members, _ = settled(members, counts)
    for changed in (members[1:], [*members, member("newcomer", *TOPICS, generation=-1)]):
        owners = owned_by(assign_sticky(changed, counts))
        there = {each.member_id for each in changed}
        assert all(
            newest.get(where) in (who, None) or newest[where] not in there for where, who in owners.items()
        )


@given(groups())
def test_a_newcomer_takes_no_more_than_its_share(group: tuple[list[SubscribedMember], Counts]) -> None:
    """Sticky: whoever stays keeps at least what balance leaves to it."""
    members = [attrs.evolve(each, subscription=MemberSubscription(topics=TOPICS)) for each in group[0]]
    members, before = settled(members, group[1])
    grown, after = settled([*members, member("newcomer", *TOPICS, generation=-1)], group[1])
    least = sum(map(len, before.values())) // len(grown)
    for who, assignment in before.items():
        assert len(set(assignment) & set(after[who])) >= min(len(assignment), least)
