"""A group of the consumer protocol (KIP-848) as a frozen value, and the records that keep it.

Rule: the group is the sum of its records. A decision makes the next value; `changes` says which records lead
there, and `apply_records` applies them, live and at recovery alike.
"""

# Theory of operation (Kafka: ConsumerGroup, ConsumerGroupMember, GroupMetadataManager.consumerGroupHeartbeat)
#
# In the classic protocol the members stop together, and one of them assigns. Here the coordinator assigns,
# and each member moves on its own, by one request: ConsumerGroupHeartbeat. Three epochs follow each other:
#
#     group epoch        rises when members, subscriptions or topics change
#       target epoch     the group epoch for which the assignor last computed who should own what
#         member epoch   the target epoch that a member has reached
#
#     a (epoch 2: 0 1 2 3)     coordinator                     b
#                              group epoch 3, target 3    <--  heartbeat, epoch 0
#                              a: 0 1   b: 2 3            -->  epoch 3, nothing yet: a owns 2 and 3
#     heartbeat, epoch 2  -->  UNREVOKED_PARTITIONS
#                         <--  epoch 2: you own 0 1
#     heartbeat, I own 0 1 ->  STABLE, epoch 3
#                              2 and 3 are free           <--  heartbeat, epoch 3
#                                                         -->  epoch 3: you own 2 3
#
# The invariant: a partition is assigned to, or still to be revoked by, at most one member. A member gets a
# partition only when no other member has it, and loses it only when it says so, leaves or is expelled.
#
# The member epoch fences as the generation does: a commit with an old epoch is refused, unless the member
# has owned the partition since then (KIP-1251).
#
# The log has everything but the deadlines. A new coordinator knows all members and their assignments, and
# gives each a new session.

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import groupby
from typing import Any, Final, Protocol

import attrs

from fencepost.protocol.consumer_group_log import (
    NO_PARTITIONS,
    AssignmentState,
    ConsumerEntry,
    ConsumerRecordKey,
    ConsumerRecordKind,
    CurrentAssignment,
    GroupEpoch,
    Partitions,
    ResolvedRegex,
    Subscription,
    TargetEpoch,
    TopicIdPartition,
)
from fencepost.protocol.terms import GroupState

FIRST_GROUP_EPOCH: Final = GroupEpoch(1)
FIRST_TARGET_EPOCH: Final = TargetEpoch(1)  # of an empty target that nobody computed
MEMBER_BYTES: Final = 1_024  # of memory, for a member without its names
NAME_BYTES: Final = 64  # besides the characters of a name
_KIND = ConsumerRecordKind


class SubscribableTopic(Protocol):
    """A topic of the cluster."""

    @property
    def topic_id(self) -> bytes: ...

    @property
    def leaders(self) -> Mapping[int, object]: ...


class SubscribableTopics(Protocol):
    """What a coordinator knows about the topics of the cluster."""

    @property
    def topics(self) -> Mapping[str, SubscribableTopic]: ...

    @property
    def names(self) -> Mapping[bytes, str]: ...

    @property
    def newest_topic_number(self) -> int: ...


@attrs.frozen(kw_only=True)
class ConsumerMembers:
    """The members of a group and the expressions that they subscribe to. A rebalance changes neither, so what
    follows from them is computed once.
    """

    subscriptions: dict[str, Subscription] = attrs.Factory(dict[str, Subscription])
    regexes: dict[str, ResolvedRegex] = attrs.Factory(dict[str, ResolvedRegex])

    @cached_property
    def subscribed(self) -> frozenset[str]:
        return frozenset(name for each in self._different.values() for name in self.topics_of(each))

    @cached_property
    def size(self) -> int:
        """The bytes of memory that the members take, topics that match their expressions included."""
        names = {
            wanted: sum(NAME_BYTES + len(name) for name in self.topics_of(each))
            for wanted, each in self._different.items()
        }
        return sum(
            MEMBER_BYTES
            + len(member_id)
            + len(each.rack_id or "")
            + len(each.regex)
            + names[each.topics, each.regex]
            for member_id, each in self.subscriptions.items()
        )

    @cached_property
    def _different(self) -> dict[tuple[tuple[str, ...], str], Subscription]:
        """One subscription for each set of topics: usually there is only one."""
        return {(each.topics, each.regex): each for each in self.subscriptions.values()}

    def topics_of(self, subscription: Subscription) -> Iterator[str]:
        """The names of the topics that a subscription stands for; some may not exist."""
        yield from subscription.topics
        resolved = self.regexes.get(subscription.regex)
        if resolved is not None:
            yield from resolved.topics


@attrs.frozen(kw_only=True)
class ConsumerGroup:
    """One group of the consumer protocol: its records, by kind and by name."""

    group_id: str
    group_epoch: GroupEpoch = FIRST_GROUP_EPOCH
    target_epoch: TargetEpoch = FIRST_TARGET_EPOCH
    membership: ConsumerMembers = attrs.Factory(ConsumerMembers)
    targets: dict[str, Partitions] = attrs.Factory(dict[str, Partitions])
    assignments: dict[str, CurrentAssignment] = attrs.Factory(dict[str, CurrentAssignment])

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        return self.membership.subscriptions

    @property
    def regexes(self) -> dict[str, ResolvedRegex]:
        return self.membership.regexes

    @property
    def subscribed(self) -> frozenset[str]:
        """The topics that members have subscribed to."""
        return self.membership.subscribed

    @property
    def epoch(self) -> int:
        return self.group_epoch.epoch

    @property
    def state(self) -> GroupState:
        """EMPTY, ASSIGNING, RECONCILING or STABLE (ConsumerGroup.maybeUpdateGroupState)."""
        if not self.subscriptions:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch.epoch:
            return GroupState.ASSIGNING
        for member_id in self.subscriptions:
            current = self.current(member_id)
            if current.state is not AssignmentState.STABLE or current.epoch != self.target_epoch.epoch:
                return GroupState.RECONCILING
        return GroupState.STABLE

    def static_member(self, instance_id: str) -> str | None:
        return next(
            (name for name, each in self.subscriptions.items() if each.instance_id == instance_id), None
        )

    def current(self, member_id: str) -> CurrentAssignment:
        """What a member owns now; nothing, if it has just joined."""
        return self.assignments.get(member_id, _NOTHING)

    def target(self, member_id: str) -> Partitions:
        """What a member should own."""
        return self.targets.get(member_id, NO_PARTITIONS)

    def owned_by_others(self, member_id: str) -> set[TopicIdPartition]:
        """The partitions that other members own, or have not revoked yet."""
        owned: set[TopicIdPartition] = set()
        for name, current in self.assignments.items():
            if name != member_id:
                owned.update(current.assigned, current.revoking)
        return owned


_NOTHING: Final = CurrentAssignment()


def evolved(group: ConsumerGroup, **parts: Any) -> ConsumerGroup:
    """The group with other values of these parts, by the names of its records."""
    of_members = {name: parts.pop(name) for name in ("subscriptions", "regexes") if name in parts}
    if of_members:
        parts["membership"] = attrs.evolve(group.membership, **of_members)
    return attrs.evolve(group, **parts)


# --- members ---------------------------------------------------------------------------------------------


def with_subscription(group: ConsumerGroup, member_id: str, subscription: Subscription) -> ConsumerGroup:
    """The group with this subscription of a member, perhaps a new one."""
    if group.subscriptions.get(member_id) == subscription:
        return group  # as at nearly every heartbeat
    return evolved(group, subscriptions=group.subscriptions | {member_id: subscription})


def with_assignment(group: ConsumerGroup, member_id: str, current: CurrentAssignment) -> ConsumerGroup:
    """The group in which a member owns this."""
    if group.assignments.get(member_id) == current:
        return group
    return attrs.evolve(group, assignments=group.assignments | {member_id: current})


def without_members(group: ConsumerGroup, member_ids: Collection[str]) -> ConsumerGroup:
    """The group without these members, and without expressions that have lost their last subscriber."""
    return without_unused_regexes(
        evolved(
            group,
            subscriptions=_without(group.subscriptions, member_ids),
            targets=_without(group.targets, member_ids),
            assignments=_without(group.assignments, member_ids),
        )
    )


def without_unused_regexes(group: ConsumerGroup) -> ConsumerGroup:
    """The group without the expressions that no member subscribes to."""
    used = {each.regex for each in group.subscriptions.values()}
    unused = group.regexes.keys() - used
    return evolved(group, regexes=_without(group.regexes, unused)) if unused else group


def _without(parts: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if name not in names}


def renamed(group: ConsumerGroup, member_id: str, heir_id: str, current: CurrentAssignment) -> ConsumerGroup:
    """The group in which a static member continues under another id (replaceMember)."""
    rest = without_members(group, {member_id})
    return evolved(
        rest,
        subscriptions=rest.subscriptions | {heir_id: group.subscriptions[member_id]},
        targets=rest.targets | {heir_id: group.target(member_id)},
        assignments=rest.assignments | {heir_id: current},
        regexes=group.regexes,
    )


# --- topics ----------------------------------------------------------------------------------------------


def topic_ids(names: Iterable[str], known: SubscribableTopics) -> set[bytes]:
    """The ids of those topics that exist."""
    return {topic.topic_id for name in names if (topic := known.topics.get(name)) is not None}


def metadata_hash(group: ConsumerGroup, known: SubscribableTopics) -> int:
    """A number that changes with the partitions of the subscribed topics; 0 if none of them exists."""
    digest = 0
    for name in sorted(group.subscribed):
        topic = known.topics.get(name)
        if topic is not None:
            digest = zlib.crc32(topic.topic_id + len(topic.leaders).to_bytes(4, "big"), digest)
            # 0 stands for no topic at all, and is not written (consumer_group_log.py).
            digest = digest or 1
    return digest


# --- records ---------------------------------------------------------------------------------------------

_SINGLES: Final = {
    _KIND.GROUP: ("group_epoch", FIRST_GROUP_EPOCH),
    _KIND.TARGET: ("target_epoch", FIRST_TARGET_EPOCH),
}
"""The kinds of records of which a group has one: the field for it, and the value that stands for none."""

_PARTS: Final = {
    _KIND.MEMBER: "subscriptions",
    _KIND.TARGET_MEMBER: "targets",
    _KIND.CURRENT_ASSIGNMENT: "assignments",
    _KIND.REGULAR_EXPRESSION: "regexes",
}
"""The kinds of records of which a group has several, and where it keeps them."""

# In the order in which Kafka writes them: what a member owns is written last, and its tombstone first.
_WRITTEN: Final = (_KIND.MEMBER, _KIND.REGULAR_EXPRESSION, _KIND.TARGET_MEMBER, _KIND.CURRENT_ASSIGNMENT)


def changes(before: ConsumerGroup | None, after: ConsumerGroup) -> tuple[ConsumerEntry, ...]:
    """The records that lead from one value of a group to the next; None: the group is new."""
    start = before or ConsumerGroup(group_id=after.group_id)
    entries: list[ConsumerEntry] = []
    for kind in reversed(_WRITTEN):
        had, has = _part(start, kind), _part(after, kind)
        if had is not has:
            entries += [(_key(after, kind, name), None) for name in sorted(had.keys() - has.keys())]
    if before is None or after.group_epoch != start.group_epoch:
        entries.append((_key(after, _KIND.GROUP), after.group_epoch))
    for kind in _WRITTEN:
        had, has = _part(start, kind), _part(after, kind)
        if had is not has:
            changed = sorted(name for name, record in has.items() if _differs(had.get(name), record))
            entries += [(_key(after, kind, name), has[name]) for name in changed]
        if kind is _KIND.TARGET_MEMBER and after.target_epoch != start.target_epoch:
            entries.append((_key(after, _KIND.TARGET), after.target_epoch))
    return tuple(entries)


def _differs(old: object, new: object) -> bool:
    """Whether a record changed. Most are the same object: a group may have thousands of members."""
    return old is not new and old != new


def tombstones(group: ConsumerGroup) -> tuple[ConsumerEntry, ...]:
    """The records that remove the group (ConsumerGroup.createGroupTombstoneRecords)."""
    parts = [_key(group, kind, name) for kind in reversed(_WRITTEN) for name in sorted(_part(group, kind))]
    keys = (*parts, _key(group, _KIND.TARGET), _key(group, _KIND.GROUP))
    return tuple((key, None) for key in keys)


def apply_records(groups: dict[str, ConsumerGroup], entries: Iterable[ConsumerEntry]) -> None:
    """Apply records of the log to the groups, in their order."""
    for group_id, its in groupby(entries, lambda entry: entry[0].group_id):
        group = _with_records(groups.get(group_id), group_id, its)
        if group is None:
            groups.pop(group_id, None)
        else:
            groups[group_id] = group


def _with_records(
    group: ConsumerGroup | None, group_id: str, entries: Iterable[ConsumerEntry]
) -> ConsumerGroup | None:
    """The group after these records, None if it is gone."""
    changed: dict[str, Any] = {}
    for key, record in entries:
        if group is None:
            if record is None:
                continue  # of a group that is gone
            group = ConsumerGroup(group_id=group_id)
        if key.kind is _KIND.GROUP and record is None:
            group, changed = None, {}
        elif key.kind in _SINGLES:
            field, none = _SINGLES[key.kind]
            changed[field] = record or none
        else:
            field = _PARTS[key.kind]
            part = changed.setdefault(field, dict(getattr(group, field)))
            if record is None:
                part.pop(key.name, None)
            else:
                part[key.name] = record
    return group and evolved(group, **changed)


def _part(group: ConsumerGroup, kind: ConsumerRecordKind) -> dict[str, Any]:
    return getattr(group, _PARTS[kind])


def _key(group: ConsumerGroup, kind: ConsumerRecordKind, name: str = "") -> ConsumerRecordKey:
    return ConsumerRecordKey(kind, group.group_id, name)
