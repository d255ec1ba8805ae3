"""Questions of and about the members of groups, and their answers as recorded.

Rule: a pair of functions per request: ask_* makes our message, tell_* reads our answer. A member's name is
bound to the id that the answer hands out where Kafka's did.
"""

from __future__ import annotations

from typing import Final

from fencepost.broker.words import Reply
from fencepost.protocol import messages as m
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
        protocol_type=PROTOCOL_TYPE,
        protocols=(m.GroupProtocol(name=args["protocol"], metadata=b""),),
    )


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
        protocol_type=PROTOCOL_TYPE,
        protocol_name=PROTOCOL,
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
    args = asking.args
    member_id = asking.symbols.member_id(args["member"])
    leaving = m.LeavingMember(member_id=member_id, group_instance_id=args.get("instance"))
    return m.LeaveGroup(group_id=args["group"], members=(leaving,))


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
