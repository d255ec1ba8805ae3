"""The requests of consumer groups of the classic protocol, and committed offsets.

Rule: the bytes of members (metadata and assignments) pass unchanged; what they mean is between clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs

from fencepost.kafka_bridge.exchange import (
    NOT_ASKED,
    Answer,
    Exchange,
    Translated,
    Values,
    explained,
    known,
    nested,
    of_each,
    one,
)
from fencepost.kafka_bridge.operations import AuthorizedOperations
from fencepost.kafka_bridge.topic_ids import ById, Replaced, name_of, uuid_of
from fencepost.kafka_bridge.transactions import committed, error_values, offsets_to_commit
from fencepost.kafka_bridge.wire import milliseconds
from fencepost.protocol import messages as m
from fencepost.protocol import refusals
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import NO_GENERATION, NO_RETENTION, GroupState, GroupType, TopicPartition
from fencepost.protocol.wire_protocol import NodeTopics

FIRST_GROUP_ERROR: Final = 2  # OffsetFetch
FIRST_BATCHED_OFFSET_FETCH: Final = 8
FIRST_OFFSETS_BY_ID: Final = 10  # OffsetCommit and OffsetFetch
FIRST_BATCHED_LEAVE_GROUP: Final = 3
FIRST_WITH_MEMBER_ID_REQUIRED: Final = 4  # JoinGroup (KIP-394)
FIRST_WITH_SKIPPED_ASSIGNMENT: Final = 9  # JoinGroup (KIP-814)
FIRST_WITHOUT_PROTOCOL: Final = 7  # JoinGroup: the name of the protocol may be null
FIRST_WITH_NAMED_PROTOCOL: Final = 5  # SyncGroup (KIP-559)
FIRST_UNKNOWN_GROUPS: Final = 6  # DescribeGroups says that a group does not exist
_TYPES: Final = {kind.title.lower(): kind for kind in GroupType}
_STATES: Final = {state.title.lower(): state for state in GroupState}


def _refused_commit(topic: Any) -> Values:
    return {
        "partitions": [
            {"partition_index": part.partition_index, "error_code": ErrorCode.UNKNOWN_TOPIC_ID}
            for part in topic.partitions
        ]
    }


@ById(first=FIRST_OFFSETS_BY_ID, entries="topics", answers="topics", refused=_refused_commit)
def offset_commit(request: Any, _: int) -> Exchange:
    """Commit offsets outside a transaction."""
    offsets = offsets_to_commit(request)
    generation = getattr(
        request, "generation_id_or_member_epoch", getattr(request, "generation_id", NO_GENERATION)
    )
    retention = getattr(request, "retention_time", None)  # versions 2 to 4
    asked = m.OffsetCommit(
        group_id=request.group_id,
        generation_id=generation,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        offsets=offsets,
        retention_ms=NO_RETENTION if retention is None else milliseconds(retention),
    )
    return one(asked, lambda answer: committed(offsets, answer))


def offset_fetch(request: Any, version: int) -> Translated:
    """Read committed offsets; since version 8, of several groups, and since 10, by topic ids."""
    if version < FIRST_OFFSETS_BY_ID:
        return _offset_fetch(request, version)
    return lambda context: _offset_fetch_by_id(request, version, context.topics)


def _offset_fetch_by_id(request: Any, version: int, known: NodeTopics) -> Exchange:
    groups: list[Replaced] = []
    unknown: list[list[Values]] = []
    for group in request.groups:
        named = [(topic, name_of(known, topic.topic_id)) for topic in group.topics or ()]
        topics = [Replaced(topic, name=name) for topic, name in named if name is not None]
        groups.append(Replaced(group, topics=None if group.topics is None else topics))
        unknown.append([_refused_fetch(topic) for topic, name in named if name is None])
    exchange = _offset_fetch(Replaced(request, groups=groups), version)

    def respond(answers: Sequence[Answer]) -> Values:
        values = exchange.respond(answers)
        fetched: list[Values] = []
        for group, refused in zip(values["groups"], unknown, strict=True):
            # The offsets of a deleted topic are left out: it has no id any more (KafkaApis.fetchAllOffsets).
            with_ids = [
                {**topic, "topic_id": uuid_of(topic_id)}
                for topic in group["topics"]
                if (topic_id := known.topic_id(topic["name"])) is not None
            ]
            fetched.append({**group, "topics": [*with_ids, *refused]})
        return {**values, "groups": fetched}

    return attrs.evolve(exchange, respond=respond)


def _refused_fetch(topic: Any) -> Values:
    return {
        "topic_id": topic.topic_id,
        "partitions": [
            _offset_values(
                refusals.offset_not_fetched(TopicPartition("", number), ErrorCode.UNKNOWN_TOPIC_ID)
            )
            for number in topic.partition_indexes
        ],
    }


def _offset_fetch(request: Any, version: int) -> Exchange:
    is_batched = version >= FIRST_BATCHED_OFFSET_FETCH
    groups = request.groups if is_batched else (request,)
    # Before version 7, a client cannot wait for pending offsets (KIP-447), and gets the last committed ones.
    asked = tuple(_offsets_of(group, stable=getattr(request, "require_stable", False)) for group in groups)

    def respond(answers: Sequence[Answer]) -> Values:
        fetched = [_fetched(one, answer, version) for one, answer in zip(asked, answers, strict=True)]
        # Older versions have the fields of their only group at the top (KIP-709).
        return {"throttle_time": 0, "groups": fetched, **({} if is_batched else fetched[0])}

    return Exchange(asked, respond)


def _offsets_of(group: Any, *, stable: bool) -> m.OffsetFetch:
    # Null asks for all offsets of the group.
    parts = (
        None
        if group.topics is None
        else tuple(
            TopicPartition(topic.name, partition)
            for topic in group.topics
            for partition in topic.partition_indexes
        )
    )
    return m.OffsetFetch(
        group_id=group.group_id,
        member_id=getattr(group, "member_id", None),
        member_epoch=getattr(group, "member_epoch", NO_GENERATION),
        require_stable=stable,
        partitions=parts,
    )


def _fetched(asked: m.OffsetFetch, answer: Answer, version: int) -> dict[str, Any]:
    # The first version has no other place for the error of a group.
    refused = (asked.partitions or ()) if version < FIRST_GROUP_ERROR else ()
    offsets = of_each(answer, "offsets", refused, refusals.offset_not_fetched)
    return {"group_id": asked.group_id, "error_code": answer.error, "topics": nested(offsets, _offset_values)}


def _offset_values(found: m.FetchedOffset) -> Values:
    return {
        "partition_index": found.partition,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
        "error_code": found.error,
    }


def join_group(request: Any, version: int) -> Exchange:
    """Join a group, or its next generation."""
    session_timeout = request.session_timeout
    asked = m.JoinGroup(
        group_id=request.group_id,
        session_timeout_ms=milliseconds(session_timeout),
        # Version 0 has one timeout for both.
        rebalance_timeout_ms=milliseconds(getattr(request, "rebalance_timeout", session_timeout)),
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        protocol_type=request.protocol_type,
        protocols=tuple(
            m.GroupProtocol(name=each.name, metadata=each.metadata) for each in request.protocols
        ),
        requires_member_id=version >= FIRST_WITH_MEMBER_ID_REQUIRED,
        can_skip_assignment=version >= FIRST_WITH_SKIPPED_ASSIGNMENT,
    )
    return one(asked, lambda answer: _joined(asked, answer, version))


def _joined(asked: m.JoinGroup, answer: Answer, version: int) -> Values:
    # Most refusals have a body: with MEMBER_ID_REQUIRED it holds the id with which to join again (KIP-394).
    joined = answer.body or m.JoinGroupReply(
        generation_id=NO_GENERATION,
        protocol_type=None,
        protocol_name=None,
        leader="",
        skip_assignment=False,
        member_id=asked.member_id,
        members=(),
    )
    no_protocol = "" if version < FIRST_WITHOUT_PROTOCOL else None
    return {
        "throttle_time": 0,
        "error_code": answer.error,
        "generation_id": joined.generation_id,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol_name or no_protocol,
        "leader": joined.leader,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.group_instance_id,
                "metadata": each.metadata,
            }
            for each in joined.members
        ],
    }


def sync_group(request: Any, version: int) -> Exchange:
    """Get a member's assignment; the leader sends those of all members."""
    asked = m.SyncGroup(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        protocol_type=getattr(request, "protocol_type", None),
        protocol_name=getattr(request, "protocol_name", None),
        assignments=tuple(
            m.MemberAssignment(member_id=each.member_id, assignment=each.assignment)
            for each in request.assignments
        ),
    )

    def respond(answer: Answer) -> Values:
        synced = answer.body or m.SyncGroupReply(protocol_type=None, protocol_name=None, assignment=b"")
        return {
            "throttle_time": 0,
            "error_code": answer.error,
            "protocol_type": synced.protocol_type,
            "protocol_name": synced.protocol_name,
            "assignment": synced.assignment,
        }

    if version >= FIRST_WITH_NAMED_PROTOCOL and None in (asked.protocol_type, asked.protocol_name):
        return known(respond(Answer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None)))
    return one(asked, respond)


def heartbeat(request: Any, _: int) -> Exchange:
    """Keep a membership."""
    asked = m.Heartbeat(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
    )
    return one(asked, lambda answer: {"throttle_time": 0, "error_code": answer.error})


def leave_group(request: Any, version: int) -> Exchange:
    """Leave a group; since version 3, several members."""
    is_batched = version >= FIRST_BATCHED_LEAVE_GROUP
    members = (
        tuple(
            m.LeavingMember(member_id=each.member_id, group_instance_id=each.group_instance_id)
            for each in request.members
        )
        if is_batched
        else (m.LeavingMember(member_id=request.member_id, group_instance_id=None),)
    )

    def respond(answer: Answer) -> Values:
        left = () if answer.body is None else answer.body.members
        # Older versions have no list of members, so the error of their only member is that of the response.
        first = left[0].error if left and not is_batched else answer.error
        return {
            "throttle_time": 0,
            "error_code": first,
            "members": [
                {
                    "member_id": each.member_id,
                    "group_instance_id": each.group_instance_id,
                    "error_code": each.error,
                }
                for each in left
            ],
        }

    return one(m.LeaveGroup(group_id=request.group_id, members=members), respond)


@AuthorizedOperations(
    kind="Group",
    asked="include_authorized_operations",
    field="authorized_operations",
    entries="groups",
    name="group_id",
)
def describe_groups(request: Any, version: int) -> Exchange:
    """Describe groups and their members."""
    names = tuple(request.groups)

    def respond(answer: Answer) -> Values:
        described = of_each(answer, "groups", names, refusals.group_not_described)
        return {"throttle_time": 0, "groups": [_described(_or_unknown(each, version)) for each in described]}

    return one(m.DescribeGroups(groups=names), respond)


def _or_unknown(group: m.DescribedGroup, version: int) -> m.DescribedGroup:
    """A group that does not exist, or is of the consumer protocol, is an error since version 6 (KIP-1043)."""
    is_unknown = group.error is NO_ERROR and group.state is GroupState.DEAD
    if version < FIRST_UNKNOWN_GROUPS or not is_unknown:
        return group
    return attrs.evolve(group, error=ErrorCode.GROUP_ID_NOT_FOUND)


def _described(group: m.DescribedGroup) -> Values:
    return {
        **explained(group.error),
        "group_id": group.group_id,
        # A refusal has no state; a group that does not exist is Dead.
        "group_state": group.state.title if group.error in (NO_ERROR, ErrorCode.GROUP_ID_NOT_FOUND) else "",
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.group_instance_id,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "member_metadata": each.metadata,
                "member_assignment": each.assignment,
            }
            for each in group.members
        ],
        "authorized_operations": NOT_ASKED,
    }


def list_groups(request: Any, _: int) -> Exchange:
    """List the groups of this coordinator; unknown states select none."""
    named = tuple(getattr(request, "states_filter", ()))
    states = tuple(_STATES[name.lower()] for name in named if name.lower() in _STATES)
    named_types = tuple(getattr(request, "types_filter", ()))
    types = tuple(_TYPES[name.lower()] for name in named_types if name.lower() in _TYPES)
    selects_none = bool(named and not states) or bool(named_types and not types)

    def respond(answer: Answer) -> Values:
        listed = () if answer.body is None or selects_none else answer.body.groups
        return {
            "throttle_time": 0,
            "error_code": answer.error,
            "groups": [
                {
                    "group_id": each.group_id,
                    "protocol_type": each.protocol_type,
                    "group_state": each.state.title,
                    "group_type": each.group_type.title.lower(),
                }
                for each in listed
            ],
        }

    return one(m.ListGroups(states=states, types=types), respond)


def delete_groups(request: Any, _: int) -> Exchange:
    """Delete groups that have no members."""
    names = tuple(dict.fromkeys(request.groups_names))  # each once (KafkaApis.handleDeleteGroupsRequest)

    def respond(answer: Answer) -> Values:
        deleted = of_each(answer, "groups", names, refusals.group_not_deleted)
        return {
            "throttle_time": 0,
            "results": [{"group_id": each.group_id, "error_code": each.error} for each in deleted],
        }

    return one(m.DeleteGroups(groups=names), respond)


def offset_delete(request: Any, _: int) -> Exchange:
    """Delete a group's offsets of partitions that no member reads."""
    parts = tuple(
        TopicPartition(topic.name, part.partition_index)
        for topic in request.topics
        for part in topic.partitions
    )

    def respond(answer: Answer) -> Values:
        deleted = () if answer.body is None else answer.body.partitions
        return {"error_code": answer.error, "throttle_time": 0, "topics": nested(deleted, error_values)}

    return one(m.OffsetDelete(group_id=request.group_id, partitions=parts), respond)
