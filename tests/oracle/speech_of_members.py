"""Questions of and about the members of groups, and their answers as recorded.

Rule: a pair of functions per request: ask_* makes our message, tell_* reads our answer. A member's name is
bound to the id that the answer hands out where Kafka's did.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from fencepost.broker.contract import Reply
from fencepost.protocol import messages as m
from fencepost.protocol.terms import GroupState
from tests.oracle.phrasing import Asking, Telling, Told, body_of, errors_of, names_of, tell_error

PROTOCOL_TYPE: Final = "consumer"
PROTOCOL: Final = "range"  # what the recorder's members agree on
NOT_JOINED: Final[dict[str, Told]] = {
    "generation": -1,
    "protocol": None,
    "leader": None,
    "member": None,
    "members": [],
}


def ask_join(asking: Asking) -> m.Request:
    args = asking.args
    return m.JoinGroup(
        group_id=args["group"],
        session_timeout_ms=args["session_ms"],
        rebalance_timeout_ms=args["rebalance_ms"],
        member_id=asking.symbols.member_id(args.get("member", "")),
        group_instance_id=args.get("instance"),
        protocol_type=args.get("protocol_type", PROTOCOL_TYPE),
        protocols=tuple(
            m.GroupProtocol(name=name, metadata=_subscription(args.get("topics")))
            for name in args.get("protocols", [args.get("protocol")])
        ),
    )


def _subscription(topics: list[str] | None) -> bytes:
    """A consumer's metadata (ConsumerProtocolSubscription, version 0); nothing at all when it names none."""
    if topics is None:
        return b""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def tell_joined(reply: Reply, telling: Telling) -> Told:
    body, symbols = body_of(reply, m.JoinGroupReply), telling.symbols
    if body is None:
        return {"error": reply.error.name, **NOT_JOINED}
    name = telling.question.reply.get("member")
    if name is not None and body.member_id:
        symbols.bind_member(name, body.member_id)
    return {
        "error": reply.error.name,
        "generation": body.generation_id,
        "protocol": body.protocol_name or None,
        "leader": symbols.member(body.leader),
        "member": symbols.member(body.member_id),
        "members": sorted(symbols.member(member.member_id) or "?" for member in body.members),
    }


def ask_sync(asking: Asking) -> m.Request:
    args, symbols = asking.args, asking.symbols
    return m.SyncGroup(
        group_id=args["group"],
        generation_id=args["generation"],
        member_id=symbols.member_id(args["member"]),
        group_instance_id=args.get("instance"),
        protocol_type=args.get("protocol_type", PROTOCOL_TYPE),
        protocol_name=args.get("protocol", PROTOCOL),
        assignments=tuple(
            m.MemberAssignment(member_id=symbols.member_id(name), assignment=text.encode())
            for name, text in args.get("assignments", ())
        ),
    )


def tell_synced(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.SyncGroupReply)
    return {"error": reply.error.name, "assignment": "" if body is None else body.assignment.decode()}


def ask_heartbeat(asking: Asking) -> m.Request:
    args = asking.args
    return m.Heartbeat(
        group_id=args["group"],
        generation_id=args["generation"],
        member_id=asking.symbols.member_id(args["member"]),
        group_instance_id=args.get("instance"),
    )


def ask_leave(asking: Asking) -> m.Request:
    """One member, or several in `members`, each with its id and its instance."""
    args, symbols = asking.args, asking.symbols
    alone: list[list[Any]] = [[args.get("member"), args.get("instance")]]
    leaving: list[list[Any]] = args.get("members", alone)
    members = tuple(
        m.LeavingMember(member_id=symbols.member_id(name), group_instance_id=instance)
        for name, instance in leaving
    )
    return m.LeaveGroup(group_id=args["group"], members=members)


def tell_left(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.LeaveGroupReply)
    members = () if body is None else body.members
    return {"error": reply.error.name, "members": [member.error.name for member in members]}


def ask_describe(asking: Asking) -> m.Request:
    return m.DescribeGroups(groups=(asking.args["group"],))


def tell_described(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.DescribeGroupsReply)
    if body is None:
        return tell_error(reply, telling)
    (group,) = body.groups
    return {
        "error": group.error.name,
        "state": group.state.title,
        "members": len(group.members),
        "protocol": group.protocol or None,
    }


def ask_list(asking: Asking) -> m.Request:
    titles = {state.title: state for state in GroupState}
    return m.ListGroups(states=tuple(titles[title] for title in asking.args.get("states", ())))


def tell_listed(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.ListGroupsReply)
    if body is None:
        return tell_error(reply, telling)
    found = [[group.group_id, group.protocol_type, group.state.title] for group in body.groups]
    return {"error": reply.error.name, "groups": found}


def ask_delete(asking: Asking) -> m.Request:
    return m.DeleteGroups(groups=(asking.args["group"],))


def tell_deleted(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.DeleteGroupsReply)
    return tell_error(reply, telling) if body is None else {"error": body.groups[0].error.name}


def ask_delete_offsets(asking: Asking) -> m.Request:
    return m.OffsetDelete(group_id=asking.args["group"], partitions=names_of(asking.args["partitions"]))


def tell_offsets_deleted(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.OffsetDeleteReply)
    return {"error": reply.error.name, **({} if body is None else errors_of(body.partitions))}
