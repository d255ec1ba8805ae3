"""The server-side assignors of the consumer protocol: `uniform` and `range`.

Rule: pure functions of subscriptions, topics and the last target assignment. With `uniform`, members keep
what they have as far as balance allows, so that few partitions move. `range` does not look at what they have:
it gives the partitions with the same number to the same member, as joins need it.
"""

# Kafka's `uniform` looks at topics and members in the order in which their ids hash, this one in their own
# order. Where members subscribe to different topics, Kafka's has an algorithm of its own
# (UniformHeterogeneousAssignmentBuilder). In both cases the result is as balanced here, but may give
# partitions to other members.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from fencepost.protocol.consumer_group_log import Partitions, TopicIdPartition


class AssignmentInput(NamedTuple):
    """What an assignor sees: for each member its topics and its last target, the size of each topic, and the
    instance ids of static members.
    """

    topics: Mapping[str, frozenset[bytes]]
    targets: Mapping[str, Partitions]
    counts: Mapping[bytes, int]
    instances: Mapping[str, str]


Assignor = Callable[[AssignmentInput], dict[str, Partitions]]
Owned = dict[str, set[TopicIdPartition]]


def _partitions_of(given: AssignmentInput, topic_ids: Iterable[bytes]) -> list[TopicIdPartition]:
    ordered = sorted(topic_ids)
    return [TopicIdPartition(each, number) for each in ordered for number in range(given.counts[each])]


def _readers(given: AssignmentInput) -> dict[bytes, list[str]]:
    """The members that have subscribed to each topic, sorted."""
    readers: defaultdict[bytes, list[str]] = defaultdict(list)
    for member in sorted(given.topics):
        for topic_id in given.topics[member]:
            readers[topic_id].append(member)
    return readers


# --- uniform ---------------------------------------------------------------------------------------------


def uniform(given: AssignmentInput) -> dict[str, Partitions]:
    """All members get the same number of partitions, or one more (UniformAssignor)."""
    return _uniform_alike(given) if len(set(given.topics.values())) == 1 else _uniform_mixed(given)


def _uniform_alike(given: AssignmentInput) -> dict[str, Partitions]:
    """All members have subscribed to the same topics (UniformHomogeneousAssignmentBuilder)."""
    members = sorted(given.topics)
    every = _partitions_of(given, given.topics[members[0]])
    known = frozenset(every)
    quota, extra = divmod(len(every), len(members))
    quotas: dict[str, int] = {}
    kept: dict[str, list[TopicIdPartition]] = {}
    for number, member in enumerate(members):
        had = sorted(given.targets[member] & known)
        # One more than the others: those that have one more already, as long as enough others remain.
        has_extra = extra > 0 and (len(had) > quota or len(members) - number <= extra)
        extra -= has_extra
        quotas[member] = quota + has_extra
        kept[member] = had[: quotas[member]]
    taken = {part for parts in kept.values() for part in parts}
    had = {part for target in given.targets.values() for part in target}
    # Partitions without an owner come before those that a member has to give up.
    rest = iter(sorted((part in had, part) for part in every if part not in taken))
    added = {member: islice(rest, quotas[member] - len(kept[member])) for member in members}
    return {member: frozenset([*kept[member], *(part for _, part in added[member])]) for member in members}


def _uniform_mixed(given: AssignmentInput) -> dict[str, Partitions]:
    """Members have subscribed to different topics: in the end no single move evens out two members."""
    readers = _readers(given)
    owned: Owned = {
        member: {
            part
            for part in given.targets[member]
            if part.topic_id in given.topics[member] and part.partition < given.counts.get(part.topic_id, 0)
        }
        for member in sorted(given.topics)
    }
    taken = {part for parts in owned.values() for part in parts}
    # A topic with few readers leaves no choice, so it comes first.
    for topic_id in sorted(readers, key=lambda each: (len(readers[each]), each)):
        free = [part for part in _partitions_of(given, [topic_id]) if part not in taken]
        _deal(free, readers[topic_id], owned)
    moves = 1
    while moves:
        moves = sum([_level(topic_id, readers[topic_id], owned) for topic_id in sorted(readers)])
    return {member: frozenset(parts) for member, parts in owned.items()}


def _deal(free: Iterable[TopicIdPartition], readers: Iterable[str], owned: Owned) -> None:
    """Give each partition to the reader that has the fewest."""
    fewest = [(len(owned[member]), member) for member in readers]
    heapify(fewest)
    for part in free:
        count, member = heappop(fewest)
        owned[member].add(part)
        heappush(fewest, (count + 1, member))


def _level(topic_id: bytes, readers: Iterable[str], owned: Owned) -> int:
    """Move partitions of a topic from readers that have more to those that have fewer. Returns how many."""
    members = sorted(readers, key=lambda member: (len(owned[member]), member))
    parts = {
        member: sorted(part for part in owned[member] if part.topic_id == topic_id) for member in members
    }
    moves = low = 0
    high = len(members) - 1
    while low < high:
        giver, taker = members[high], members[low]
        if not parts[giver]:
            high -= 1
        elif len(owned[giver]) - len(owned[taker]) >= 2:  # one move makes them more alike
            part = parts[giver].pop()
            owned[giver].remove(part)
            owned[taker].add(part)
            moves += 1
            members = sorted(members, key=lambda member: (len(owned[member]), member))
            low, high = 0, len(members) - 1
        else:
            break
    return moves


# --- range -----------------------------------------------------------------------------------------------


def range_(given: AssignmentInput) -> dict[str, Partitions]:
    """Each topic is divided into ranges, and static members come first (RangeAssignor)."""
    instances = given.instances
    ordered = sorted(
        given.topics, key=lambda member: (member not in instances, instances.get(member, member))
    )
    owned: Owned = {member: set() for member in ordered}
    for topic_id, count in given.counts.items():
        readers = [member for member in ordered if topic_id in given.topics[member]]
        parts = iter(range(count))
        for number, member in enumerate(readers):
            size = count // len(readers) + (number < count % len(readers))
            owned[member].update(TopicIdPartition(topic_id, each) for each in islice(parts, size))
    return {member: frozenset(parts) for member, parts in owned.items()}


UNIFORM: Final = "uniform"
ASSIGNORS: Final[Mapping[str, Assignor]] = {UNIFORM: uniform, "range": range_}
"""Those of group.consumer.assignors; the first is the default."""
