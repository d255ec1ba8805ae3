"""A member of a consumer group on a connection by hand: it joins, is given what it says, and leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from fencepost.protocol.consumer_protocol import MemberSubscription, encode_assignment, encode_subscription
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    FindCoordinator,
    GroupProtocol,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    SyncGroup,
)
from fencepost.protocol.terms import CoordinatorType, TopicPartition
from tests.broker.wire import Wire, connecting

Story = Callable[[Wire], Awaitable[str]]

SESSION_MS: Final = 60_000  # longer than any test


def subscription(*topics: str) -> bytes:
    return encode_subscription(MemberSubscription(topics=topics))


def assignment(topic: str, partitions: Sequence[int]) -> bytes:
    return encode_assignment(TopicPartition(topic, number) for number in partitions)


def become_member(
    address: str, group_id: str, assigned: bytes, *topics: str, kind: str = "consumer", instance: str = "i"
) -> str:
    """A group of one: joins, and assigns itself what is given; its member id."""

    def join(member_id: str) -> JoinGroup:
        return JoinGroup(
            group_id=group_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=(GroupProtocol(name="range", metadata=subscription(*topics)),),
        )

    async def story(wire: Wire) -> str:
        await wire.ask(FindCoordinator(kind=CoordinatorType.GROUP, key=group_id))
        body = (await wire.ask_until_done(join(""))).body
        assert isinstance(body, JoinGroupReply)
        sync = SyncGroup(
            group_id=group_id,
            generation_id=body.generation_id,
            member_id=body.member_id,
            group_instance_id=instance,
            protocol_type=kind,
            protocol_name="range",
            assignments=(MemberAssignment(member_id=body.member_id, assignment=assigned),),
        )
        assert (await wire.ask(sync)).error is ErrorCode.NONE
        return body.member_id

    return _with_wire(address, story)


def leave(address: str, group_id: str, member_id: str) -> None:
    """The member goes."""
    gone = LeavingMember(member_id=member_id, group_instance_id=None)

    async def story(wire: Wire) -> str:
        assert (await wire.ask(LeaveGroup(group_id=group_id, members=(gone,)))).error is ErrorCode.NONE
        return member_id

    _with_wire(address, story)


def _with_wire(address: str, story: Story) -> str:
    host, _, port = address.rpartition(":")

    async def run() -> str:
        async with connecting((host, int(port))) as wires:
            return await story(await wires.open())

    return trio.run(run)
