"""Questions about offsets, coordinators and topics, and their answers as recorded.

Rule: a pair of functions per request: ask_* makes our message, tell_* reads our answer.
"""

from __future__ import annotations

from fencepost.broker.contract import Reply
from fencepost.protocol import messages as m
from fencepost.protocol.terms import CoordinatorType
from tests.oracle.conversation import Fields
from tests.oracle.phrasing import (
    Asking,
    Telling,
    Told,
    body_of,
    errors_of,
    names_of,
    partition_of,
    tell_error,
)


def _offsets(args: Fields) -> tuple[m.OffsetToCommit, ...]:
    metadata = "m" * args.get("metadata_size", 0)
    keys = {partition_of(text): offset for text, offset in args["offsets"].items()}
    return tuple(
        m.OffsetToCommit(
            topic=key.topic, partition=key.partition, offset=offset, leader_epoch=-1, metadata=metadata
        )
        for key, offset in keys.items()
    )


def ask_commit(asking: Asking) -> m.Request:
    args = asking.args
    return m.OffsetCommit(
        group_id=args["group"],
        generation_id=args.get("generation", -1),
        member_id=asking.symbols.member_id(args.get("member", "")),
        group_instance_id=args.get("instance"),
        offsets=_offsets(args),
    )


def ask_commit_in_transaction(asking: Asking) -> m.Request:
    args = asking.args
    return m.TxnOffsetCommit(
        transactional_id=args["transactional_id"],
        group_id=args["group"],
        producer_id=asking.symbols.producer_id(args.get("producer")),
        producer_epoch=args["epoch"],
        generation_id=args.get("generation", -1),
        member_id=asking.symbols.member_id(args.get("member", "")),
        group_instance_id=args.get("instance"),
        offsets=_offsets(args),
    )


def tell_committed(reply: Reply, telling: Telling) -> Told:
    body = reply.body
    if isinstance(body, m.OffsetCommitReply | m.TxnOffsetCommitReply):
        return errors_of(body.partitions)
    return dict.fromkeys(telling.args["offsets"], reply.error.name)


def _reader(asking: Asking) -> str | None:
    """Only a member of the consumer protocol says who reads its offsets."""
    return asking.symbols.member_id(asking.args["member"]) if "member" in asking.args else None


def ask_offsets(asking: Asking) -> m.Request:
    return m.OffsetFetch(
        group_id=asking.args["group"],
        member_id=_reader(asking),
        member_epoch=asking.args.get("epoch", -1),
        require_stable=asking.args["require_stable"],
        partitions=names_of(asking.args["partitions"]) if "partitions" in asking.args else None,
    )


def tell_offsets(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.OffsetFetchReply)
    if body is None:
        return tell_error(reply, telling)
    found = {f"{o.topic}-{o.partition}": [o.error.name, o.offset] for o in body.offsets}
    return {"error": reply.error.name, **found}


def ask_find(asking: Asking) -> m.Request:
    kind = asking.args["type"]
    named = CoordinatorType[kind.upper()] if isinstance(kind, str) else kind
    return m.FindCoordinator(kind=named, key=asking.args["key"])


def ask_create_partitions(asking: Asking) -> m.Request:
    wanted = m.NewPartitions(topic=asking.args["topic"], count=asking.args["count"])
    return m.CreatePartitions(topics=(wanted,), validate_only=False)


def tell_partitions_created(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.CreatePartitionsReply)
    return tell_error(reply, telling) if body is None else {"error": body.topics[0].error.name}


def ask_delete_topic(asking: Asking) -> m.Request:
    return m.DeleteTopics(topics=(asking.args["topic"],))


def tell_topic_deleted(reply: Reply, telling: Telling) -> Told:
    body = body_of(reply, m.DeleteTopicsReply)
    return tell_error(reply, telling) if body is None else {"error": body.topics[0].error.name}
