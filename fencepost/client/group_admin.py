"""What an admin asks about consumer groups: where they stand, what they committed, and to forget it.

Rule: as in admin.py, a question is a request, who must answer it, and how to read the reply. Bytes that
members gave each other are read only where the consumer protocol says what they are.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from fencepost.client.admin import Question, nothing
from fencepost.client.retries import BrokerAt, CoordinatorOf
from fencepost.protocol import messages as m
from fencepost.protocol.consumer_protocol import decode_assignment
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import CONSUMER_PROTOCOL, CoordinatorType, GroupState, TopicPartition


@attrs.frozen(kw_only=True)
class GroupListing:
    """A consumer group, and the broker that coordinates it."""

    group_id: str
    coordinator_id: int
    protocol_type: str
    state: GroupState


@attrs.frozen(kw_only=True)
class GroupMember:
    """A member and the partitions that it reads; none while the group rebalances or is not of consumers."""

    member_id: str
    group_instance_id: str | None
    partitions: tuple[TopicPartition, ...]


@attrs.frozen(kw_only=True)
class GroupDescription:
    """Where a group stands: Dead is one that never was. `protocol` is how a stable one assigns partitions."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]


def list_groups(broker_id: int, states: Iterable[GroupState]) -> Question[list[GroupListing]]:
    """The groups that a broker coordinates, in these states or, none named, in any."""

    def read(reply: m.ListGroupsReply) -> list[GroupListing]:
        return [
            GroupListing(
                group_id=listed.group_id,
                coordinator_id=broker_id,
                protocol_type=listed.protocol_type,
                state=listed.state,
            )
            for listed in reply.groups
        ]

    return Question(m.ListGroups(states=tuple(states)), target=BrokerAt(broker_id), read=read)


def describe_group(group_id: str) -> Question[GroupDescription]:
    """One group with its members."""

    def read(reply: m.DescribeGroupsReply) -> GroupDescription:
        (found,) = reply.groups
        return GroupDescription(
            group_id=found.group_id,
            state=found.state,
            protocol_type=found.protocol_type,
            protocol=found.protocol,
            members=tuple(
                GroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    partitions=_assigned(found.protocol_type, member.assignment),
                )
                for member in found.members
            ),
        )

    return Question(m.DescribeGroups(groups=(group_id,)), target=_coordinator(group_id), read=read)


def group_offsets(group_id: str, *, require_stable: bool) -> Question[dict[TopicPartition, int]]:
    """Every committed offset of the group; with `require_stable` asked until no transaction moves one."""

    def read(reply: m.OffsetFetchReply) -> dict[TopicPartition, int]:
        return {TopicPartition(found.topic, found.partition): found.offset for found in reply.offsets}

    request = m.OffsetFetch(group_id=group_id, partitions=None, require_stable=require_stable)
    return Question(request, target=_coordinator(group_id), read=read)


def delete_group(group_id: str) -> Question[None]:
    """Forgets a group without members, and its offsets."""
    return Question(m.DeleteGroups(groups=(group_id,)), target=_coordinator(group_id), read=nothing)


def delete_group_offsets(group_id: str, partitions: Iterable[TopicPartition]) -> Question[None]:
    """Forgets offsets of partitions that no member reads; one that was never committed is no error."""
    names = tuple(m.PartitionName(topic=where.topic, partition=where.partition) for where in partitions)
    request = m.OffsetDelete(group_id=group_id, partitions=names)
    return Question(request, target=_coordinator(group_id), read=nothing)


def _coordinator(group_id: str) -> CoordinatorOf:
    return CoordinatorOf(CoordinatorType.GROUP, group_id)


def _assigned(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...]:
    """The share of a member of the consumer protocol; members of other protocols have none."""
    if protocol_type != CONSUMER_PROTOCOL:
        return ()
    try:
        return decode_assignment(assignment)
    except ProtocolViolation:
        return ()  # the leader may have assigned anything: only members have to understand it
