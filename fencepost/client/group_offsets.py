"""Offsets of a consumer group in messages, and the membership under which they are committed.

Rule: a client that is not a member commits with generation -1 and no member id (KIP-447); the coordinator
then cannot distinguish the current reader from one that was replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from fencepost.protocol import messages as m
from fencepost.protocol.consumer_protocol import NO_GENERATION
from fencepost.protocol.terms import NO_LEADER_EPOCH, TopicPartition

NO_MEMBER: Final = ""  # JoinGroupRequest.UNKNOWN_MEMBER_ID


def _is_member(metadata: ConsumerGroupMetadata, _: object, generation_id: int) -> None:
    if generation_id >= 0 and metadata.member_id == NO_MEMBER:
        raise ValueError(f"generation {generation_id} of group {metadata.group_id!r} requires a member_id")


@attrs.frozen(kw_only=True)
class ConsumerGroupMetadata:
    """The membership under which offsets are committed: what `consumer.group_metadata()` returns.

    A transaction that commits offsets with it is rejected once the group is in another generation. So a
    consumer that was replaced while it worked cannot commit the same input a second time (KIP-447).
    """

    group_id: str
    member_id: str = NO_MEMBER
    generation_id: int = attrs.field(default=NO_GENERATION, validator=_is_member)
    group_instance_id: str | None = None


def offsets_to_commit(offsets: Mapping[TopicPartition, int]) -> tuple[m.OffsetToCommit, ...]:
    """Offsets in the form of the messages."""
    return tuple(
        m.OffsetToCommit(
            topic=where.topic,
            partition=where.partition,
            offset=offset,
            leader_epoch=NO_LEADER_EPOCH,
            metadata="",
        )
        for where, offset in sorted(offsets.items())
    )
