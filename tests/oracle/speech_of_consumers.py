"""Questions of and about the members of the consumer protocol (KIP-848), and their answers as recorded.

Rule: a pair of functions per request: ask_* makes our message, tell_* reads our answer. Members choose their
ids, which are their names in a recording; partitions are named by their topics.
"""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.broker.contract import Reply
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from tests.oracle.phrasing import Asking, Telling, Told, body_of, names_of
from tests.oracle.symbols import Symbols


def ask_heartbeat(asking: Asking) -> m.Request:
    args = asking.args
    subscribed = args.get("topics")
    owned = args.get("owned")
    return m.ConsumerGroupHeartbeat(
        group_id=args["group"],
        member_id=args["member"],
        member_epoch=args["epoch"],
        instance_id=args.get("instance"),
        rack_id=None,
        rebalance_timeout_ms=args.get("rebalance_ms", -1),
        subscribed_topic_names=None if subscribed is None else tuple(subscribed),
        subscribed_topic_regex=None,
        server_assignor=args.get("assignor"),
        topic_partitions=None if owned is None else _owned(owned, asking.symbols),
    )


def _owned(partitions: Iterable[str], symbols: Symbols) -> tuple[m.AssignedTopic, ...]:
    topics: dict[str, list[int]] = {}
    for key in names_of(partitions):
        topics.setdefault(key.topic, []).append(key.partition)
    return tuple(
        m.AssignedTopic(topic_id=symbols.topic_id(topic), partitions=tuple(found))
        for topic, found in topics.items()
    )


def tell_heartbeat(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.ConsumerGroupHeartbeatReply)
    if body is None:
        return {"error": reply.error.name, "epoch": 0, "owned": None}
    owned = None if body.assignment is None else _names(body.assignment, telling.symbols)
    return {"error": reply.error.name, "epoch": body.member_epoch, "owned": owned}


def _names(topics: Iterable[m.AssignedTopic | m.NamedTopic], symbols: Symbols) -> list[str]:
    return sorted(f"{symbols.topic(found.topic_id)}-{n}" for found in topics for n in found.partitions)


def ask_describe(asking: Asking) -> m.Request:
    return m.ConsumerGroupDescribe(groups=(asking.args["group"],))


def tell_described(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.ConsumerGroupDescribeReply)
    if body is None:
        return {"error": reply.error.name}
    (group,) = body.groups
    if group.error is not ErrorCode.NONE:
        return {"error": group.error.name}
    return {
        "error": group.error.name,
        "state": group.state.title,
        "epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor": group.assignor_name,
        "members": sorted(_member(member, telling.symbols) for member in group.members),
    }


def _member(member: m.DescribedConsumer, symbols: Symbols) -> Told:
    return [
        member.member_id,
        member.instance_id,
        member.member_epoch,
        sorted(member.subscribed_topic_names),
        _names(member.assignment, symbols),
        _names(member.target_assignment, symbols),
    ]
