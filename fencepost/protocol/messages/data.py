"""What moves records: Produce, Fetch, ListOffsets and DeleteRecords.

Rule: a message says what Kafka's message of that name says; what only other clusters need is left out.
"""

from __future__ import annotations

from fencepost.protocol.codec import Int16, Int32, Int64, Records
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import NO_LEADER_EPOCH, IsolationLevel
from fencepost.protocol.values import value


@value(kw_only=True)
class ProducePartition:
    """The batches for one partition; today's clients send exactly one."""

    topic: str
    partition: Int32
    records: Records


@value(kw_only=True)
class Produce:
    """Append batches. `acks` 0 wants no answer, 1 and -1 are the same with one replica."""

    transactional_id: str | None
    acks: Int16
    timeout_ms: Int32
    partitions: tuple[ProducePartition, ...]


@value(kw_only=True)
class ProducedPartition:
    """What became of one partition's batches; a duplicate is answered with the offset it was first given."""

    topic: str
    partition: Int32
    error: ErrorCode
    base_offset: Int64
    log_start_offset: Int64


@value(kw_only=True)
class ProduceReply:
    partitions: tuple[ProducedPartition, ...]


@value(kw_only=True)
class FetchPartition:
    """`current_leader_epoch` is the newest that the reader knows of; -1 is not checked (KIP-320)."""

    topic: str
    partition: Int32
    current_leader_epoch: Int32 = NO_LEADER_EPOCH
    fetch_offset: Int64
    max_bytes: Int32


@value(kw_only=True)
class Fetch:
    """Read batches. With `min_bytes` above 0 waits up to `max_wait_ms` for a byte; one batch comes whole."""

    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32
    isolation_level: IsolationLevel
    partitions: tuple[FetchPartition, ...]


@value(kw_only=True)
class AbortedTransaction:
    """A reader drops this producer's transactional batches from `first_offset` up to its ABORT marker."""

    producer_id: Int64
    first_offset: Int64


@value(kw_only=True)
class FetchedPartition:
    """Batches from one partition, bounded by the isolation level; `aborted` is None for read_uncommitted."""

    topic: str
    partition: Int32
    error: ErrorCode
    high_watermark: Int64
    last_stable_offset: Int64
    log_start_offset: Int64
    aborted: tuple[AbortedTransaction, ...] | None
    records: Records


@value(kw_only=True)
class FetchReply:
    partitions: tuple[FetchedPartition, ...]


@value(kw_only=True)
class ListOffsetsPartition:
    """`timestamp` in milliseconds, or one of the special ones in terms.py; the epoch as in a Fetch."""

    topic: str
    partition: Int32
    current_leader_epoch: Int32 = NO_LEADER_EPOCH
    timestamp: Int64


@value(kw_only=True)
class ListOffsets:
    isolation_level: IsolationLevel
    partitions: tuple[ListOffsetsPartition, ...]


@value(kw_only=True)
class ListedOffset:
    """The first offset at or after the timestamp that the isolation level allows, else -1 and -1."""

    topic: str
    partition: Int32
    error: ErrorCode
    timestamp: Int64
    offset: Int64


@value(kw_only=True)
class ListOffsetsReply:
    partitions: tuple[ListedOffset, ...]


@value(kw_only=True)
class DeleteRecordsPartition:
    """Everything before `offset` goes; -1 means the high watermark."""

    topic: str
    partition: Int32
    offset: Int64


@value(kw_only=True)
class DeleteRecords:
    timeout_ms: Int32
    partitions: tuple[DeleteRecordsPartition, ...]


@value(kw_only=True)
class DeletedRecords:
    """`low_watermark` is where the log starts now, -1 beside an error."""

    topic: str
    partition: Int32
    low_watermark: Int64
    error: ErrorCode


@value(kw_only=True)
class DeleteRecordsReply:
    partitions: tuple[DeletedRecords, ...]
