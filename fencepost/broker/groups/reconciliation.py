"""How a member moves from what it owns to its target: the state machine of a member of the consumer protocol.

Rule: a member first revokes, then gets what is free. A partition never has two owners
(CurrentAssignmentBuilder).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from fencepost.broker.groups.consumer_group import ConsumerGroup, SubscribableTopics, topic_ids
from fencepost.protocol.consumer_group_log import (
    AssignmentState,
    CurrentAssignment,
    PartitionEpochs,
    Partitions,
    TopicIdPartition,
)
from fencepost.protocol.terms import IdentityEnum


class ReconcileInput(IdentityEnum):
    """What the coordinator finds at a heartbeat of a member."""

    AT_TARGET = "is already at the target epoch"
    STILL_OWNS = "still owns what it must revoke"
    MUST_REVOKE = "owns partitions outside its target"
    MUST_WAIT = "others own a part of its target"
    COMPLETE = "owns its whole target"


STABLE, UNREVOKED = AssignmentState.STABLE, AssignmentState.UNREVOKED_PARTITIONS
UNRELEASED = AssignmentState.UNRELEASED_PARTITIONS
_IN = ReconcileInput

RECONCILIATION: Final[Mapping[AssignmentState, Mapping[ReconcileInput, AssignmentState]]] = {
    STABLE: {
        _IN.AT_TARGET: STABLE,
        _IN.MUST_REVOKE: UNREVOKED,
        _IN.MUST_WAIT: UNRELEASED,
        _IN.COMPLETE: STABLE,
    },
    # It keeps its epoch until it has revoked: then it looks at the newest target.
    UNREVOKED: {
        _IN.STILL_OWNS: UNREVOKED,
        _IN.MUST_REVOKE: UNREVOKED,
        _IN.MUST_WAIT: UNRELEASED,
        _IN.COMPLETE: STABLE,
    },
    # It has reached the target epoch, and gets the rest as soon as others have revoked it.
    UNRELEASED: {_IN.MUST_REVOKE: UNREVOKED, _IN.MUST_WAIT: UNRELEASED, _IN.COMPLETE: STABLE},
}


@attrs.frozen(kw_only=True)
class Reconciliation:
    """What decides a member's next assignment. `reported` is what the member says it owns, None if it does
    not say.
    """

    group: ConsumerGroup
    member_id: str
    current: CurrentAssignment
    reported: frozenset[TopicIdPartition] | None
    topics: SubscribableTopics
    has_new_subscription: bool

    def subscribed_ids(self) -> set[bytes]:
        subscription = self.group.subscriptions[self.member_id]
        return topic_ids(self.group.membership.topics_of(subscription), self.topics)

    def still_owns(self, revoked: Mapping[TopicIdPartition, int]) -> bool:
        """Whether the member may still own one of these: silence means that it does."""
        return bool(revoked) and (self.reported is None or not self.reported.isdisjoint(revoked))


def reconciled(given: Reconciliation) -> CurrentAssignment:
    """What the member owns from now on, and must revoke."""
    found, after = _next_step(given)
    return attrs.evolve(after, state=RECONCILIATION[given.current.state][found])


_Step = tuple[ReconcileInput, CurrentAssignment]


def _next_step(given: Reconciliation) -> _Step:
    current = given.current
    if current.state is STABLE and current.epoch == given.group.target_epoch.epoch:
        stays: _Step = (_IN.AT_TARGET, current)
    elif current.state is UNREVOKED and given.still_owns(current.revoking):
        stays = (_IN.STILL_OWNS, current)
    else:
        return _towards_target(given)
    return _within_subscription(given, stays) if given.has_new_subscription else stays


def _within_subscription(given: Reconciliation, stays: _Step) -> _Step:
    """Without topics that the member has unsubscribed from: the target may still have them
    (updateCurrentAssignment).
    """
    current, wanted = given.current, given.subscribed_ids()
    kept = {part: epoch for part, epoch in current.assigned.items() if part.topic_id in wanted}
    if len(kept) == len(current.assigned):
        return stays
    after = attrs.evolve(current, previous_epoch=current.epoch, assigned=kept)
    revoking = current.revoking | {part: at for part, at in current.assigned.items() if part not in kept}
    if not given.still_owns(revoking):
        return stays[0], after
    return _IN.MUST_REVOKE, attrs.evolve(after, revoking=revoking)


def _towards_target(given: Reconciliation) -> _Step:
    """The next step to the target (computeNextAssignment)."""
    current, group = given.current, given.group
    wanted, target = given.subscribed_ids(), group.target(given.member_id)
    target = Partitions(part for part in target if part.topic_id in wanted)
    kept: PartitionEpochs = {part: epoch for part, epoch in current.assigned.items() if part in target}
    revoking = {part: epoch for part, epoch in current.assigned.items() if part not in target}
    if given.still_owns(revoking):
        # It keeps its epoch until it has revoked them.
        after = attrs.evolve(current, previous_epoch=current.epoch, assigned=kept, revoking=revoking)
        return _IN.MUST_REVOKE, after
    missing = target - kept.keys()
    elsewhere = missing & group.owned_by_others(given.member_id) if missing else missing
    epoch = group.target_epoch.epoch
    after = CurrentAssignment(
        epoch=epoch, previous_epoch=current.epoch, assigned=kept | dict.fromkeys(missing - elsewhere, epoch)
    )
    return _IN.MUST_WAIT if elsewhere else _IN.COMPLETE, after
