"""What moves committed offsets, plain and transactional.

Rule: a message says what Kafka's message of that name says; what only other clusters need is left out.
"""

from __future__ import annotations

from fencepost.protocol.codec import Int16, Int32, Int64
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages.common import PartitionError, PartitionName
from fencepost.protocol.values import value


@value(kw_only=True)
class OffsetToCommit:
    topic: str
    partition: Int32
    offset: Int64
    leader_epoch: Int32
    metadata: str


@value(kw_only=True)
class OffsetCommit:
    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]


@value(kw_only=True)
class OffsetCommitReply:
    partitions: tuple[PartitionError, ...]


@value(kw_only=True)
class OffsetFetch:
    """Committed offsets; None means every partition of the group. `require_stable` is KIP-447."""

    group_id: str
    require_stable: bool
    partitions: tuple[PartitionName, ...] | None


@value(kw_only=True)
class FetchedOffset:
    """`offset` is -1 when nothing is committed."""

    topic: str
    partition: Int32
    error: ErrorCode
    offset: Int64
    leader_epoch: Int32
    metadata: str


@value(kw_only=True)
class OffsetFetchReply:
    offsets: tuple[FetchedOffset, ...]


@value(kw_only=True)
class TxnOffsetCommit:
    """Offsets that count when the transaction commits; the group coordinator adds its partition to it."""

    transactional_id: str
    group_id: str
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]


@value(kw_only=True)
class TxnOffsetCommitReply:
    partitions: tuple[PartitionError, ...]
