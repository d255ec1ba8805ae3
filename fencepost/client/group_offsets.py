"""Offsets of a group as messages carry them, from a client that is no member of the group.

Rule: such a client says so by generation -1 and no member id (KIP-447 calls it the simple consumer).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.protocol import messages as m
from fencepost.protocol.terms import NO_LEADER_EPOCH, TopicPartition

NO_GENERATION: Final = -1


def offsets_to_commit(offsets: Mapping[TopicPartition, int]) -> tuple[m.OffsetToCommit, ...]:
    """Offsets as messages carry them."""
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


def commit_in_transaction(
    offsets: Mapping[TopicPartition, int],
    group_id: str,
    *,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
) -> m.TxnOffsetCommit:
    """A group's offsets that count when the transaction commits."""
    return m.TxnOffsetCommit(
        transactional_id=transactional_id,
        group_id=group_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        generation_id=NO_GENERATION,
        member_id="",
        group_instance_id=None,
        offsets=offsets_to_commit(offsets),
    )
