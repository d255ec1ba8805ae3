"""The requests of groups of the consumer protocol (KIP-848).

Rule: topics are passed on by id, as the coordinator knows them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fencepost.kafka_bridge.exchange import (
    NOT_ASKED,
    Answer,
    Exchange,
    Values,
    explained,
    known,
    of_each,
    one,
)
from fencepost.kafka_bridge.operations import AuthorizedOperations
from fencepost.kafka_bridge.topic_ids import uuid_of
from fencepost.kafka_bridge.wire import milliseconds
from fencepost.protocol import messages as m
from fencepost.protocol import refusals
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import NO_TOPIC_ID, is_blank

FIRST_OWN_MEMBER_ID: Final = 1  # ConsumerGroupHeartbeat: the client chooses its id (KIP-1082)
CONSUMER_MEMBER: Final = 1  # ConsumerGroupDescribe: the type of a member of this protocol


def heartbeat(request: Any, version: int) -> Exchange:
    """Join a group, stay in it, or leave it."""
    if version >= FIRST_OWN_MEMBER_ID and is_blank(request.member_id):
        return known(_beat_values(ErrorCode.INVALID_REQUEST))
    # Null in a heartbeat means that nothing has changed since the last one, an empty list that there is none;
    # so null is passed on (KIP-848).
    owned: Any = request.topic_partitions
    asked = m.ConsumerGroupHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        subscribed_topic_names=request.subscribed_topic_names,
        subscribed_topic_regex=getattr(request, "subscribed_topic_regex", None),  # since version 1
        server_assignor=request.server_assignor,
        topic_partitions=None if owned is None else tuple(map(_assigned, owned)),
    )
    return one(asked, lambda answer: _beat_values(answer.error, answer.body))


def _assigned(topic: Any) -> m.AssignedTopic:
    topic_id = NO_TOPIC_ID if topic.topic_id is None else topic.topic_id.bytes
    return m.AssignedTopic(topic_id=topic_id, partitions=topic.partitions)


def _beat_values(error: ErrorCode, body: m.ConsumerGroupHeartbeatReply | None = None) -> Values:
    assignment = None if body is None else body.assignment
    return {
        "throttle_time": 0,
        **explained(error),
        "member_id": None if body is None else body.member_id,
        "member_epoch": 0 if body is None else body.member_epoch,
        "heartbeat_interval": 0 if body is None else body.heartbeat_interval_ms,
        "assignment": None
        if assignment is None
        else {
            "topic_partitions": [
                {"topic_id": uuid_of(topic.topic_id), "partitions": topic.partitions} for topic in assignment
            ]
        },
    }


@AuthorizedOperations(
    kind="Group",
    asked="include_authorized_operations",
    field="authorized_operations",
    entries="groups",
    name="group_id",
)
def describe(request: Any, _: int) -> Exchange:
    """Describe groups and their members."""
    names = tuple(request.group_ids)

    def respond(answer: Answer) -> Values:
        described = of_each(answer, "groups", names, refusals.consumer_group_not_described)
        return {"throttle_time": 0, "groups": [_described(each) for each in described]}

    return one(m.ConsumerGroupDescribe(groups=names), respond)


def _described(group: m.DescribedConsumerGroup) -> Values:
    return {
        **explained(group.error),
        "group_id": group.group_id,
        "group_state": group.state.title if group.error is NO_ERROR else "",
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "rack_id": member.rack_id,
                "member_epoch": member.member_epoch,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "subscribed_topic_names": member.subscribed_topic_names,
                "subscribed_topic_regex": member.subscribed_topic_regex,
                "assignment": _assignment(member.assignment),
                "target_assignment": _assignment(member.target_assignment),
                # KIP-1099: 0 would be a classic member in a group that is on its way to this protocol; there
                # is none.
                "member_type": CONSUMER_MEMBER,
            }
            for member in group.members
        ],
        "authorized_operations": NOT_ASKED,
    }


def _assignment(topics: Iterable[m.NamedTopic]) -> Values:
    return {
        "topic_partitions": [
            {"topic_id": uuid_of(topic.topic_id), "topic_name": topic.topic, "partitions": topic.partitions}
            for topic in topics
        ]
    }
