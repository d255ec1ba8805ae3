"""Administration of groups: describe, list, delete, delete offsets.

Rule: only a group without members can be deleted, and only offsets of topics that no member reads.
"""

from __future__ import annotations

from fencepost.broker.contract import Refused, Reply, ReplyTo
from fencepost.broker.groups.consumer_group import ConsumerGroup
from fencepost.broker.groups.group import Group
from fencepost.broker.groups.offsets import NO_GROUP_ID, forget_group, forget_offsets, group_log
from fencepost.broker.groups.state import AnyGroup, Groups, group_ids, offset_keys_of, reads_topic
from fencepost.broker.groups.tables import MEMBERSHIP, GroupInput
from fencepost.broker.leader_log import GroupLog
from fencepost.broker.node import Node
from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.offsets_log import OffsetKey
from fencepost.protocol.terms import CONSUMER_PROTOCOL, GroupState, GroupType, TopicPartition


def describe_groups(node: Node, request: m.DescribeGroups, to: ReplyTo, now: int) -> None:
    """DescribeGroups. Members' metadata is included only while the group is stable, as in Kafka."""
    found = tuple(_described(node, group_id, now) for group_id in dict.fromkeys(request.groups))
    node.after_coordinators(Groups, Reply(to, m.DescribeGroupsReply(groups=found)))


def _described(node: Node, group_id: str, now: int) -> m.DescribedGroup:
    log = group_log(node, group_id)
    group = None if isinstance(log, Refused) else log.coordinator.group(group_id, now=now)
    if group is None:
        # A group that does not exist is described as Dead, which is no error up to DescribeGroups 5
        # (KIP-1043).
        error = log.error if isinstance(log, Refused) else NO_ERROR
        group = Group(group_id=group_id, state=GroupState.DEAD)
    else:
        error = NO_ERROR
    is_stable = group.state is GroupState.STABLE
    return m.DescribedGroup(
        group_id=group_id,
        error=error,
        state=group.state,
        protocol_type=group.protocol_type,
        protocol=(group.protocol_name or "") if is_stable else "",
        members=tuple(
            m.DescribedMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata(group.protocol_name) if is_stable else b"",
                assignment=member.assignment,
            )
            for member in group.members
        ),
    )


def list_groups(node: Node, request: m.ListGroups, to: ReplyTo, now: int) -> None:
    """The groups that this node coordinates, sorted by name."""
    states = [log.coordinator for log in node.coordinator_logs(Groups)]
    found = [
        _listed(group)
        for state in states
        for group_id in group_ids(state)
        if (group := state.any_group(group_id, now=now)) is not None
        and (not request.states or group.state in request.states)
    ]
    wanted = [group for group in found if not request.types or group.group_type in request.types]
    listed = tuple(sorted(wanted, key=_group_id))
    node.after_coordinators(Groups, Reply(to, m.ListGroupsReply(groups=listed)))


def _listed(group: AnyGroup) -> m.ListedGroup:
    is_classic = isinstance(group, Group)
    return m.ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type if is_classic else CONSUMER_PROTOCOL,
        state=group.state,
        group_type=GroupType.CLASSIC if is_classic else GroupType.CONSUMER,
    )


def _group_id(group: m.ListedGroup) -> str:
    return group.group_id


# --- deleting --------------------------------------------------------------------------------------------


def delete_groups(node: Node, request: m.DeleteGroups, to: ReplyTo, now: int) -> None:
    """DeleteGroups. Each group has its own result; its tombstones are one batch, or several if too large."""
    found = tuple(
        m.GroupError(group_id=group_id, error=_delete(node, group_id, now)) for group_id in request.groups
    )
    node.after_coordinators(Groups, Reply(to, m.DeleteGroupsReply(groups=found)))


def _delete(node: Node, group_id: str, now: int) -> ErrorCode:
    log = group_log(node, group_id)
    if isinstance(log, Refused):
        return log.error
    state = log.coordinator
    group = state.any_group(group_id, now=now)
    cell = _cell(group, GroupInput.DELETE)
    if isinstance(cell, ErrorCode):
        return cell
    forget_group(node, log, group_id, now)
    return NO_ERROR


def _cell(group: AnyGroup | None, happened: GroupInput) -> GroupState | ErrorCode:
    """What the table says; with members, groups of the consumer protocol count as stable ones."""
    state = GroupState.DEAD if group is None else group.state
    if isinstance(group, ConsumerGroup) and state is not GroupState.EMPTY:
        state = GroupState.STABLE
    return MEMBERSHIP[state][happened]


def delete_offsets(node: Node, request: m.OffsetDelete, to: ReplyTo, now: int) -> None:
    """OffsetDelete, for topics that no member reads. A missing offset is not an error."""
    log = group_log(node, request.group_id) if request.group_id else NO_GROUP_ID
    if isinstance(log, Refused):
        node.reply(to, log)
        return
    group = log.coordinator.any_group(request.group_id, now=now)
    is_foreign = isinstance(group, Group) and group.protocol_type != CONSUMER_PROTOCOL
    happened = GroupInput.DELETE_FOREIGN_OFFSETS if is_foreign else GroupInput.DELETE_OFFSETS
    cell = _cell(group, happened)
    if group is None or isinstance(cell, ErrorCode):
        node.after(log, (Reply(to, error=ErrorCode(cell.value)),))
        return
    answers = tuple(
        m.PartitionError(key.topic, key.partition, _offset_problem(node, group, key))
        for key in request.partitions
    )
    _forget(node, log, group, [part for part in answers if part.error is NO_ERROR], now)
    node.after(log, (Reply(to, m.OffsetDeleteReply(partitions=answers)),))


def _offset_problem(node: Node, group: AnyGroup, key: TopicPartition) -> ErrorCode:
    if node.cluster.leader(key) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if reads_topic(group, key.topic) else NO_ERROR


def _forget(node: Node, log: GroupLog, group: AnyGroup, parts: list[m.PartitionError], now: int) -> None:
    known = set(offset_keys_of(log.coordinator, group.group_id))
    named = [OffsetKey(group.group_id, part.topic, part.partition) for part in parts]
    keys = [key for key in named if key in known]
    if keys:
        forget_offsets(node, log, keys, now)
