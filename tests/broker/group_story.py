"""Stories about the members of a group: what they ask, said briefly, and who is still waiting."""

from __future__ import annotations

from typing import Final

from fencepost.broker.contract import ReplyTo
from fencepost.broker.groups.group import Group
from fencepost.broker.groups.state import Groups
from fencepost.broker.settings import NodeSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    DescribedGroup,
    DescribeGroups,
    DescribeGroupsReply,
    GroupProtocol,
    Heartbeat,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
    LeavingMember,
    MemberAssignment,
    SyncGroup,
    SyncGroupReply,
)
from fencepost.protocol.offsets_log import GroupRecord, read_group_batch
from fencepost.protocol.terms import GroupState
from tests.broker.refusals import CarefulStory
from tests.broker.requests import body_of
from tests.broker.story import SETTINGS, offsets_log_of

GROUP: Final = "readers"
SESSION_MS: Final = 10_000
REBALANCE_MS: Final = 2_000


def protocols(*names: str, said: bytes = b"") -> tuple[GroupProtocol, ...]:
    return tuple(GroupProtocol(name=name, metadata=said) for name in names)


RANGE: Final = protocols("range")


def join_request(
    member_id: str = "",
    *,
    instance: str | None = None,
    supports: tuple[GroupProtocol, ...] = RANGE,
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
    group: str = GROUP,
    kind: str = "consumer",
) -> JoinGroup:
    return JoinGroup(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=kind,
        protocols=supports,
    )


def sync_request(
    generation: int, member_id: str, assigned: dict[str, str] | None = None, *, instance: str | None = None
) -> SyncGroup:
    parts = {} if assigned is None else assigned
    return SyncGroup(
        group_id=GROUP,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type="consumer",
        protocol_name=None,
        assignments=tuple(MemberAssignment(member_id=m, assignment=p.encode()) for m, p in parts.items()),
    )


class GroupStory(CarefulStory):
    """A node that coordinates one group, `readers`."""

    def __init__(self, *, settings: NodeSettings = SETTINGS, policy: SyncPolicy = SyncPolicy.NONE) -> None:
        super().__init__(settings=settings, policy=policy)

    # --- waiting

    def starts(self, request: JoinGroup | SyncGroup) -> ReplyTo:
        """Ask, and let everything happen that can happen now."""
        self.now += 1
        to = self.offer(request)
        self.settle()
        return to

    def waits(self, to: ReplyTo) -> bool:
        return to not in self.replies

    def joined(self, to: ReplyTo) -> JoinGroupReply:
        """What the join came to, which went well."""
        reply = self.replies.pop(to)
        assert reply.error is ErrorCode.NONE, reply
        return body_of(reply, JoinGroupReply)

    def synced(self, to: ReplyTo) -> str:
        """The part that somebody was given."""
        reply = self.replies.pop(to)
        assert reply.error is ErrorCode.NONE, reply
        return body_of(reply, SyncGroupReply).assignment.decode()

    # --- asking

    def new_id(self) -> str:
        reply = self.ask(join_request())
        assert reply.error is ErrorCode.MEMBER_ID_REQUIRED, reply
        assert isinstance(reply.body, JoinGroupReply)
        return reply.body.member_id

    def members(self, count: int) -> list[str]:
        """A stable group of so many; the first one leads."""
        ids = [self.new_id() for _ in range(count)]
        for to in self.all_join(ids):
            self.joined(to)
        return self.stabilized(ids)

    def all_join(self, ids: list[str]) -> list[ReplyTo]:
        """Everybody joins. Who makes the first generation alone has to come again for the rest."""
        waiting = [self.starts(join_request(member_id)) for member_id in ids]
        if not self.waits(waiting[0]) and self.waits(waiting[-1]):
            self.joined(waiting[0])
            waiting[0] = self.starts(join_request(ids[0]))
        assert not any(map(self.waits, waiting)), self.group
        return waiting

    def stabilized(self, ids: list[str]) -> list[str]:
        """Whoever leads assigns, and all take their part."""
        assigned = {member_id: f"part of {member_id}" for member_id in ids}
        waiting = [self.starts(sync_request(self.generation, each, assigned)) for each in ids]
        assert [self.synced(to) for to in waiting] == list(assigned.values())
        assert self.state is GroupState.STABLE, self.group
        return ids

    def beat(self, generation: int, member_id: str, *, instance: str | None = None) -> ErrorCode:
        request = Heartbeat(
            group_id=GROUP, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return self.ask(request).error

    def leave(self, member_id: str, *, instance: str | None = None) -> ErrorCode:
        gone = LeavingMember(member_id=member_id, group_instance_id=instance)
        reply = self.ask(LeaveGroup(group_id=GROUP, members=(gone,)))
        return body_of(reply, LeaveGroupReply).members[0].error

    def describe(self, group: str = GROUP) -> DescribedGroup:
        return body_of(self.ask(DescribeGroups(groups=(group,))), DescribeGroupsReply).groups[0]

    # --- looking, without a request

    @property
    def group(self) -> Group:
        """The group as the coordinator keeps it."""
        log = self.host.node.logs[offsets_log_of(GROUP)]
        assert isinstance(log.coordinator, Groups)
        return log.coordinator.group(GROUP, now=self.now) or Group(group_id=GROUP, state=GroupState.DEAD)

    @property
    def state(self) -> GroupState:
        return self.group.state

    @property
    def generation(self) -> int:
        return self.group.generation_id

    @property
    def leader(self) -> str | None:
        return self.group.leader

    def group_records(self) -> list[GroupRecord | None]:
        """What the log says of the group, oldest first."""
        entries = self.log(offsets_log_of(GROUP))
        found = (pair for entry in entries for pair in read_group_batch(entry.batch, entry.header).groups)
        return [record for group_id, record in found if group_id == GROUP]
