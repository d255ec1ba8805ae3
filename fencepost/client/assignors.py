"""How the leader of a consumer group distributes partitions: Kafka's range and cooperative-sticky assignors.

Rule: every partition of a subscribed topic is assigned to exactly one member that subscribes to its topic,
or, while it moves between two members, to none.
"""

# The coordinator only collects subscriptions and passes assignments on; one member, the leader, runs an
# assignor over all subscriptions. An assignor is pure: two leaders that see the same subscriptions decide
# alike.
#
# Eager and cooperative. With `range` every member gives up all partitions before it joins, so any new
# assignment is safe. With `cooperative-sticky` (KIP-429) members keep reading during a rebalance, so a
# partition may be given to its next owner only after its present owner has stopped. That takes two
# generations:
#
#     generation 1         A owns 0 1 2 3, B has just joined
#     generation 2         A is given 0 1, B nothing: A revokes 2 and 3 and joins again
#     generation 3         A is given 0 1, B is given 2 3
#
# Without generation 2, B could read partition 2 from the committed offset while A still processes records of
# it, and both would produce output for the same input.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs

from fencepost.protocol.consumer_protocol import MemberSubscription
from fencepost.protocol.primitives import INT32
from fencepost.protocol.terms import NO_GENERATION, TopicPartition


@attrs.frozen(kw_only=True)
class SubscribedMember:
    """One member as the leader sees it."""

    member_id: str
    group_instance_id: str | None = None
    subscription: MemberSubscription

    @property
    def order(self) -> tuple[bool, str]:
        """Static members first, by instance id, which survives a restart (MemberInfo.compareTo)."""
        return (self.group_instance_id is None, self.group_instance_id or self.member_id)


Assignments = dict[str, list[TopicPartition]]
"""The partitions of each member, by member id."""

Assign = Callable[[Iterable[SubscribedMember], Mapping[str, int]], Assignments]


@attrs.frozen(kw_only=True)
class Assignor:
    """A way to distribute partitions. `is_cooperative`: members keep their partitions during a rebalance."""

    name: str
    assign: Assign
    is_cooperative: bool
    sends_generation: bool = False
    """Its user data holds the generation, for leaders older than KIP-792."""

    def user_data(self, generation_id: int) -> bytes | None:
        """The user data of a subscription (CooperativeStickyAssignor.subscriptionUserData)."""
        return INT32.pack(generation_id) if self.sends_generation else None


# --- range ------------------------------------------------------------------------------------------------


def assign_ranges(members: Iterable[SubscribedMember], partition_counts: Mapping[str, int]) -> Assignments:
    """Topic by topic, each member gets consecutive partitions; the first members get one more if needed
    (RangeAssignor). Members that read two topics with equally many partitions get the same partition numbers
    of both.
    """
    in_order = sorted(members, key=lambda member: member.order)
    assignments: Assignments = {member.member_id: [] for member in in_order}
    for topic, count in sorted(partition_counts.items()):
        readers = [member.member_id for member in in_order if topic in member.subscription.topics]
        first = 0
        for rank, member_id in enumerate(readers):
            size = count // len(readers) + (rank < count % len(readers))
            assignments[member_id] += [TopicPartition(topic, number) for number in range(first, first + size)]
            first += size
    return assignments


# --- cooperative-sticky -----------------------------------------------------------------------------------


def assign_sticky(members: Iterable[SubscribedMember], partition_counts: Mapping[str, int]) -> Assignments:
    """Each member keeps its partitions as far as balance allows; a partition that moves stays unassigned
    until its owner has revoked it (CooperativeStickyAssignor.adjustAssignment).
    """
    in_order = sorted(members, key=lambda member: member.order)
    owners = _owners(in_order)
    assignments = _balanced(in_order, partition_counts, owners)
    return {
        member_id: sorted(where for where in assignment if owners.get(where, member_id) == member_id)
        for member_id, assignment in assignments.items()
    }


def _owners(members: list[SubscribedMember]) -> dict[TopicPartition, str]:
    """The owner of each partition. A member that missed a generation still claims partitions that others got
    in it, so the claim of the newest generation wins; two claims of one generation cancel out.
    """
    claims: defaultdict[TopicPartition, list[tuple[int, str]]] = defaultdict(list)
    for member in members:
        for where in member.subscription.owned:
            claims[where].append((_generation_of(member.subscription), member.member_id))
    owners: dict[TopicPartition, str] = {}
    for where, claimed in claims.items():
        newest = max(generation_id for generation_id, _ in claimed)
        claimants = [member_id for generation_id, member_id in claimed if generation_id == newest]
        if len(claimants) == 1:
            owners[where] = claimants[0]
    return owners


def _generation_of(subscription: MemberSubscription) -> int:
    """The generation of a claim; members older than KIP-792 send it in their user data only."""
    if subscription.generation_id != NO_GENERATION or subscription.user_data is None:
        return subscription.generation_id
    data = subscription.user_data[: INT32.size]
    return INT32.unpack(data)[0] if len(data) == INT32.size else NO_GENERATION


def _balanced(
    members: list[SubscribedMember], partition_counts: Mapping[str, int], owners: Mapping[TopicPartition, str]
) -> dict[str, set[TopicPartition]]:
    """Assignments that no single move makes more equal: owned partitions first, then each free one to the
    member with the fewest, then moves from members with more to members with fewer.
    """
    readers = {
        topic: [member.member_id for member in members if topic in member.subscription.topics]
        for topic in sorted(partition_counts)
    }
    assignments: dict[str, set[TopicPartition]] = {member.member_id: set() for member in members}
    free: list[TopicPartition] = []
    for topic, of_topic in readers.items():
        for number in range(partition_counts[topic] if of_topic else 0):
            where = TopicPartition(topic, number)
            owner = owners.get(where)
            if owner in of_topic:
                assignments[owner].add(where)
            else:
                free.append(where)
    # Partitions with few possible readers first: those with many can still balance the rest.
    for where in sorted(free, key=lambda where: (len(readers[where.topic]), where)):
        taker = min(readers[where.topic], key=lambda member_id: len(assignments[member_id]))
        assignments[taker].add(where)
    while (move := _leveling_move(assignments, readers)) is not None:
        where, giver, taker = move
        assignments[giver].remove(where)
        assignments[taker].add(where)
    return assignments


def _leveling_move(
    assignments: Mapping[str, set[TopicPartition]], readers: Mapping[str, list[str]]
) -> tuple[TopicPartition, str, str] | None:
    """A partition, its member, and another member with at least two partitions fewer. Each such move makes
    the assignments more equal, so the moves come to an end.
    """
    for giver, assignment in sorted(assignments.items(), key=lambda entry: -len(entry[1])):
        topics = {where.topic for where in assignment}
        takers = {min(readers[topic], key=lambda taker: len(assignments[taker])) for topic in topics}
        taker = min(takers, key=lambda taker: (len(assignments[taker]), taker), default=giver)
        if len(assignments[giver]) - len(assignments[taker]) >= 2:
            return max(where for where in assignment if taker in readers[where.topic]), giver, taker
    return None


# --- by name ----------------------------------------------------------------------------------------------

ASSIGNORS: Final[dict[str, Assignor]] = {
    assignor.name: assignor
    for assignor in (
        Assignor(name="range", assign=assign_ranges, is_cooperative=False),
        Assignor(name="cooperative-sticky", assign=assign_sticky, is_cooperative=True, sends_generation=True),
    )
}
"""The assignors that `partition_assignment_strategy` can name."""


def are_cooperative(names: Iterable[str]) -> bool:
    """Whether all of these assignors are cooperative: a group may choose any that its members have."""
    return all(ASSIGNORS[name].is_cooperative for name in names)
