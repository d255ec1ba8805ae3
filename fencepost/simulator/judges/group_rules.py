"""What members of consumer groups may own: a partition is with one member of a generation at a time (I17).

An expelled member, or a static one that another process has replaced (KIP-345), owns its partitions until it
learns of this; it may even begin to own them later, if the reply to its SyncGroup arrives late. That is not a
violation, because the group refuses its commits (KIP-447). It is a violation if a member begins to own a
partition that another one has not given up, and the group knows both in the same generation: it would accept
the commits of both.
"""

from __future__ import annotations

import attrs

from fencepost.broker.groups.state import Groups
from fencepost.client.group_member import GroupMember
from fencepost.simulator.judges.rules import ONE_OWNER, Exercised
from fencepost.simulator.world.events import PartitionsAdded
from fencepost.simulator.world.processes import ClientProcess
from fencepost.simulator.world.world import World


@attrs.define(eq=False)
class OwnerRule:
    """I17, whenever a group adds partitions to a member. `members` are all that ever got some."""

    world: World
    exercised: Exercised
    members: dict[GroupMember, ClientProcess] = attrs.Factory(dict[GroupMember, ClientProcess])

    def added(self, event: PartitionsAdded) -> None:
        """A member begins to read partitions."""
        member, group_id = event.member, event.member.metadata.group_id
        self.members[member] = event.process
        for other, process in self.members.items():
            if other is member or process.is_over or other.metadata.group_id != group_id:
                continue
            self.exercised[ONE_OWNER.name] += 1
            # A member has given up what it no longer reads, whatever its group thinks.
            both = [where for where in event.partitions if where in other.assigned]
            # A coordinator that loses a generation before it is logged gives the same number to a later one.
            if (
                both
                and other.generation_id == member.generation_id
                and self._knows(group_id, other.member_id)
                and self._knows(group_id, member.member_id)
            ):
                raise ONE_OWNER.broken(
                    f"{process.participant} has not given up {', '.join(map(str, both))}, which "
                    f"{event.process.participant} owns in generation {member.generation_id}"
                )

    def _knows(self, group_id: str, member_id: str) -> bool:
        """Whether this is a member to the newest coordinator of the group."""
        coordinators = (log for _, log in self.world.led_logs() if isinstance(log.coordinator, Groups))
        newest = max(coordinators, key=lambda log: log.partition.leader_epoch, default=None)
        if newest is None or not isinstance(newest.coordinator, Groups):
            return False
        group = newest.coordinator.live.get(group_id)
        return group is not None and group.member(member_id) is not None
