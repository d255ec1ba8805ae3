"""What the members of a consumer group ask of its coordinator, and what is asked about groups.

Rule: a message says what Kafka's message of that name says; what only other clusters need is left out.
"""

from __future__ import annotations

from fencepost.protocol.codec import Int32
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages.common import PartitionError, PartitionName
from fencepost.protocol.terms import GroupState
from fencepost.protocol.values import value


@value(kw_only=True)
class GroupProtocol:
    """A way to assign partitions that a member supports, and what it tells the leader for it."""

    name: str
    metadata: bytes


@value(kw_only=True)
class JoinGroup:
    """Become a member, or take part in the next generation. Who has no id yet (`""`) is given one first."""

    group_id: str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32
    member_id: str
    group_instance_id: str | None
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]


@value(kw_only=True)
class JoinedMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@value(kw_only=True)
class JoinGroupReply:
    """The new generation; `members` for the leader alone, which need not assign when `skip_assignment`."""

    generation_id: Int32
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    skip_assignment: bool
    member_id: str
    members: tuple[JoinedMember, ...]


@value(kw_only=True)
class MemberAssignment:
    member_id: str
    assignment: bytes


@value(kw_only=True)
class SyncGroup:
    """Ask for one's part in this generation; the leader brings everybody's."""

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[MemberAssignment, ...]


@value(kw_only=True)
class SyncGroupReply:
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


@value(kw_only=True)
class Heartbeat:
    """A member is alive, and asks whether its generation still holds."""

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None


@value(kw_only=True)
class HeartbeatReply:
    pass


@value(kw_only=True)
class LeavingMember:
    """By member id; a static member may be removed by its instance id alone."""

    member_id: str
    group_instance_id: str | None


@value(kw_only=True)
class LeaveGroup:
    """Members go, or are removed by somebody else."""

    group_id: str
    members: tuple[LeavingMember, ...]


@value(kw_only=True)
class LeftMember:
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


@value(kw_only=True)
class LeaveGroupReply:
    members: tuple[LeftMember, ...]


@value(kw_only=True)
class DescribeGroups:
    """Where these groups stand; one that never was is Dead."""

    groups: tuple[str, ...]


@value(kw_only=True)
class DescribedMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes
    assignment: bytes


@value(kw_only=True)
class DescribedGroup:
    """`protocol` is set in a stable group, and what its members said and got with it."""

    group_id: str
    error: ErrorCode
    state: GroupState
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


@value(kw_only=True)
class DescribeGroupsReply:
    groups: tuple[DescribedGroup, ...]


@value(kw_only=True)
class ListGroups:
    """The groups that this node coordinates, in these states or (none named) in any."""

    states: tuple[GroupState, ...]


@value(kw_only=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    state: GroupState


@value(kw_only=True)
class ListGroupsReply:
    groups: tuple[ListedGroup, ...]


@value(kw_only=True)
class DeleteGroups:
    """Forget groups without members, and their offsets."""

    groups: tuple[str, ...]


@value(kw_only=True)
class GroupError:
    group_id: str
    error: ErrorCode


@value(kw_only=True)
class DeleteGroupsReply:
    groups: tuple[GroupError, ...]


@value(kw_only=True)
class OffsetDelete:
    """Forget a group's offsets of partitions that no member reads."""

    group_id: str
    partitions: tuple[PartitionName, ...]


@value(kw_only=True)
class OffsetDeleteReply:
    partitions: tuple[PartitionError, ...]
