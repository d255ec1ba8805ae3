"""Offsets of a consumer group in messages, and the membership under which they are committed.

Rule: a client that is not a member commits with generation -1 and no member id (KIP-447); the coordinator
then cannot distinguish the current reader from one that was replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import attrs

from fencepost.client.arguments import LeaderEpoch, Offset
from fencepost.protocol import messages as m
from fencepost.protocol.terms import NO_GENERATION, NO_LEADER_EPOCH, NO_MEMBER, TopicPartition


def _is_member(metadata: ConsumerGroupMetadata, _: object, generation_id: int) -> None:
    if generation_id >= 0 and metadata.member_id == NO_MEMBER:
        raise ValueError(f"generation {generation_id} of group {metadata.group_id!r} requires a member_id")


@attrs.frozen(kw_only=True)
class ConsumerGroupMetadata:
    """The membership under which offsets are committed: what `consumer.group_metadata()` returns.

    `generation_id`: the generation of the group, or the member's epoch; -1 without a membership. `member_id`:
    the id that the coordinator gave the member. `group_instance_id`: that of a static member. ValueError for
    a generation without a member.

    A transaction that commits offsets with it is rejected once the group is in another generation. So a
    consumer that was replaced while it worked cannot commit the same input a second time (KIP-447).
    """

    group_id: str
    member_id: str = NO_MEMBER
    generation_id: int = attrs.field(default=NO_GENERATION, validator=_is_member)
    group_instance_id: str | None = None


class OffsetAndMetadata(NamedTuple):
    """An offset to commit with a note of the program, which the coordinator keeps.

    `offset`: that of the next record to read. `metadata`: any text. `leader_epoch`: of the last record that
    was read, if the program knows it.
    """

    offset: Offset
    metadata: str = ""
    leader_epoch: LeaderEpoch | None = None


CommittableOffset = Offset | OffsetAndMetadata
"""What a program may commit for a partition."""


def with_metadata(offset: CommittableOffset) -> OffsetAndMetadata:
    """The offset in its long form."""
    return offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)


def offsets_to_commit(offsets: Mapping[TopicPartition, CommittableOffset]) -> tuple[m.OffsetToCommit, ...]:
    """Offsets in the form of the messages."""
    wanted: list[m.OffsetToCommit] = []
    for where, given in sorted(offsets.items()):
        offset = with_metadata(given)
        epoch = NO_LEADER_EPOCH if offset.leader_epoch is None else offset.leader_epoch
        wanted.append(
            m.OffsetToCommit(
                topic=where.topic,
                partition=where.partition,
                offset=offset.offset,
                leader_epoch=epoch,
                metadata=offset.metadata,
            )
        )
    return tuple(wanted)


def commit_request(
    group: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, CommittableOffset]
) -> m.OffsetCommit:
    """Commits offsets outside any transaction, under this membership."""
    return m.OffsetCommit(
        group_id=group.group_id,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        offsets=offsets_to_commit(offsets),
    )


def committed_offsets(
    reply: m.OffsetFetchReply, wanted: list[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    found = {TopicPartition(each.topic, each.partition): each for each in reply.offsets}
    offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for where in wanted:
        each = found.get(where)
        offsets[where] = None
        if each is not None and each.offset >= 0:
            epoch = None if each.leader_epoch == NO_LEADER_EPOCH else each.leader_epoch
            offsets[where] = OffsetAndMetadata(each.offset, each.metadata, epoch)
    return offsets
