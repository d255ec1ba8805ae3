"""The leader of a consumer group: assigns the partitions of a generation, and watches the topics of all
members.

Rule: it sends nothing. It returns the assignments, and later whether the group must rebalance; `GroupMember`
sends the requests.
"""

# The coordinator makes one member of a generation its leader (ConsumerCoordinator.onLeaderElected). There are
# two reasons for which the leader later asks for a rebalance, although no member joins or leaves:
#
# * A topic was created, deleted, or has more partitions. The leader requests the metadata of the topics again
#   after metadata_max_age_ms, since nothing else would show the change.
# * A partition was withheld for its next owner (KIP-429, assignors.py). It gets the partition when the former
#   owner has joined again. A static member that restarts in between never does so: the coordinator gives the
#   new process the assignment of the old one, without a rebalance. A leader that has restarted does not know
#   what was withheld, so it asks for a rebalance in any case.

from __future__ import annotations

from collections.abc import Iterable

import attrs

from fencepost.client.assignors import ASSIGNORS, SubscribedMember, are_cooperative
from fencepost.client.metadata import ClusterMetadata
from fencepost.client.settings import ConsumerSettings
from fencepost.protocol import messages as m
from fencepost.protocol.consumer_protocol import decode_subscription, encode_assignment
from fencepost.protocol.fork import Shared


@attrs.define(eq=False)
class GroupLeader:
    """A leader that has assigned the partitions of its generation."""

    _cluster: ClusterMetadata
    _settings: Shared[ConsumerSettings]
    counts: dict[str, int]
    """The partition counts that it used, by topic; 0 for a topic that cannot be read."""
    _refresh_at: int
    _reassign_at: int | None = None
    """When it asks for a rebalance because it has withheld partitions."""

    def step(self, now: int) -> bool:
        """Does what is due at `now`; returns whether the group must rebalance."""
        if now >= self._refresh_at:
            self._refresh_at = now + self._settings.metadata_max_age_ms
            self._cluster.is_stale = True
        known = self._cluster.partition_counts
        return (self._reassign_at is not None and now >= self._reassign_at) or any(
            known.get(topic, 0) != count for topic, count in self.counts.items()
        )

    @property
    def wake_at(self) -> int:
        """When `step` has something to do, apart from new metadata."""
        return self._refresh_at if self._reassign_at is None else min(self._refresh_at, self._reassign_at)


def assign(
    reply: m.JoinGroupReply, cluster: ClusterMetadata, settings: ConsumerSettings, now: int
) -> tuple[GroupLeader, tuple[m.MemberAssignment, ...]] | None:
    """Assigns the partitions by the subscriptions in the reply to JoinGroup; None until the metadata of all
    topics is known. ProtocolViolation if a subscription is invalid.
    """
    members = _subscribed_members(reply.members)
    topics = {topic for member in members for topic in member.subscription.topics}
    for topic in sorted(topics):
        cluster.want(topic)
    if not topics.issubset({*cluster.partition_counts, *cluster.topic_errors}):
        return None
    counts = {t: n for t, n in sorted(cluster.partition_counts.items()) if t in topics}
    counts |= dict.fromkeys(topics.intersection(cluster.topic_errors), 0)
    assert reply.protocol_name is not None, "a generation has an assignor"
    assignments = ASSIGNORS[reply.protocol_name].assign(members, counts)
    is_withheld = sum(map(len, assignments.values())) < sum(counts.values())
    is_cooperative = are_cooperative(settings.partition_assignment_strategy)
    reassign_at = None
    if is_withheld or (reply.skip_assignment and is_cooperative):
        reassign_at = now + settings.max_poll_interval_ms
    leader = GroupLeader(cluster, settings, counts, now + settings.metadata_max_age_ms, reassign_at)
    if reply.skip_assignment:
        # A static leader returned with a new member id: the assignments stay, but it must watch the topics
        # (KIP-814).
        return leader, ()
    encoded = {member_id: encode_assignment(its) for member_id, its in assignments.items()}
    return leader, tuple(m.MemberAssignment(member_id=each, assignment=its) for each, its in encoded.items())


def _subscribed_members(members: Iterable[m.JoinedMember]) -> list[SubscribedMember]:
    return [
        SubscribedMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            subscription=decode_subscription(member.metadata),
        )
        for member in members
    ]
