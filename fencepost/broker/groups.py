"""The group coordinator's offsets over one partition of `__consumer_offsets` (OffsetMetadataManager).

Rule: a transactional offset is pending until the marker of its producer arrives; what the log holds last,
in log order, wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import attrs

from fencepost.broker.words import Refused
from fencepost.protocol.batches import BatchHeader, Buffer, read_marker
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import (
    FetchedOffset,
    OffsetCommit,
    OffsetFetch,
    OffsetToCommit,
    TxnOffsetCommit,
)
from fencepost.protocol.stored import OffsetKey, OffsetRecord
from fencepost.protocol.terms import NO_LEADER_EPOCH, NO_OFFSET, TopicPartition, TransactionResult

# offset.metadata.max.bytes
OFFSET_METADATA_BYTES_MAX: Final = 4096


class Committed(NamedTuple):
    """An offset, and where in the log it was written: the later write wins (GroupMetadata,
    OffsetMetadataManager).
    """

    record: OffsetRecord
    written_at: int


Offsets = dict[TopicPartition, Committed]
OffsetEntry = tuple[OffsetKey, OffsetRecord | None]


@attrs.define(eq=False)
class Groups:
    """State of one group coordinator; all of it comes from the log."""

    committed: dict[str, Offsets] = attrs.Factory(dict[str, Offsets])
    pending: dict[int, dict[OffsetKey, Committed]] = attrs.Factory(dict[int, dict[OffsetKey, Committed]])

    def key_of_state(self) -> tuple[Any, ...]:
        """What the log determines: everything."""
        committed = tuple(
            (group, tuple(sorted(offsets.items()))) for group, offsets in sorted(self.committed.items())
        )
        pending = tuple(
            (producer, tuple(sorted(offsets.items()))) for producer, offsets in sorted(self.pending.items())
        )
        return (committed, pending)

    def copy(self) -> Groups:
        """An independent copy; offsets are immutable and shared."""
        return Groups(
            committed={group: dict(offsets) for group, offsets in self.committed.items()},
            pending={producer: dict(offsets) for producer, offsets in self.pending.items()},
        )

    def knows(self, group_id: str) -> bool:
        """Whether any offset of the group is committed or pending."""
        return group_id in self.committed or any(
            key.group_id == group_id for offsets in self.pending.values() for key in offsets
        )


def offset_keys(state: Groups) -> list[OffsetKey]:
    """Every offset that is committed or pending, sorted."""
    committed = {
        OffsetKey(group_id, partition.topic, partition.partition)
        for group_id, offsets in state.committed.items()
        for partition in offsets
    }
    return sorted(committed.union(*state.pending.values()))


def check_member(state: Groups, request: OffsetCommit | TxnOffsetCommit) -> Refused | None:
    """A caller with a member's identity is refused while the group has no members (KIP-447); without one it
    is a simple consumer.
    """
    if request.generation_id < 0 and not request.member_id and request.group_instance_id is None:
        return None
    if not state.knows(request.group_id):
        return Refused(ErrorCode.ILLEGAL_GENERATION, f"group {request.group_id} has no members")
    return Refused(
        ErrorCode.UNKNOWN_MEMBER_ID, f"group {request.group_id} does not know {request.member_id!r}"
    )


def offset_problem(offset: OffsetToCommit) -> ErrorCode:
    """Why this one offset cannot be committed, or NONE."""
    if len(offset.metadata.encode()) > OFFSET_METADATA_BYTES_MAX:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def entries_of(
    request: OffsetCommit | TxnOffsetCommit, good: Iterable[OffsetToCommit], *, now: int
) -> list[OffsetEntry]:
    """The log entries for the offsets of a request that have no problem."""
    return [
        (
            OffsetKey(request.group_id, offset.topic, offset.partition),
            OffsetRecord(
                offset=offset.offset,
                leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                commit_ms=now,
            ),
        )
        for offset in good
    ]


def fetch(state: Groups, request: OffsetFetch) -> tuple[FetchedOffset, ...]:
    """Committed offsets; with `require_stable`, one that an undecided transaction moves is
    UNSTABLE_OFFSET_COMMIT.
    """
    committed = state.committed.get(request.group_id, {})
    unstable = {
        TopicPartition(key.topic, key.partition)
        for offsets in state.pending.values()
        for key in offsets
        if key.group_id == request.group_id
    }
    if request.partitions is None:
        wanted = sorted(committed.keys() | unstable if request.require_stable else committed.keys())
    else:
        wanted = [partition.key for partition in request.partitions]
    return tuple(
        _fetched(key, committed.get(key), request.require_stable and key in unstable) for key in wanted
    )


def _fetched(key: TopicPartition, found: Committed | None, is_unstable: bool) -> FetchedOffset:
    if found is None or is_unstable:
        error = ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else ErrorCode.NONE
        offset, leader_epoch, metadata = NO_OFFSET, NO_LEADER_EPOCH, ""
    else:
        error = ErrorCode.NONE
        offset, leader_epoch, metadata = found.record.offset, found.record.leader_epoch, found.record.metadata
    return FetchedOffset(
        topic=key.topic, partition=key.partition, error=error, offset=offset, leader_epoch=leader_epoch,
        metadata=metadata,
    )  # fmt: skip


# --- Changing state --------------------------------------------------------------------------------------


def apply(state: Groups, header: BatchHeader, batch: Buffer, entries: Iterable[OffsetEntry]) -> None:
    """The batch has entered the log: offsets (`entries`), or the marker that decides a producer's pending
    ones.
    """
    if header.is_control:
        _decide_pending(state, header.producer_id, read_marker(batch).result)
        return
    for delta, (key, record) in enumerate(entries):
        if record is None:
            _forget(state, key)
        elif header.is_transactional:
            pending = state.pending.setdefault(header.producer_id, {})
            pending[key] = Committed(record, header.base_offset + delta)
        else:
            _settle(state, key, Committed(record, header.base_offset + delta))


def _decide_pending(state: Groups, producer_id: int, result: TransactionResult) -> None:
    pending = state.pending.pop(producer_id, {})
    if result is TransactionResult.COMMIT:
        for key, committed in pending.items():
            _settle(state, key, committed)


def _settle(state: Groups, key: OffsetKey, committed: Committed) -> None:
    offsets = state.committed.setdefault(key.group_id, {})
    partition = TopicPartition(key.topic, key.partition)
    known = offsets.get(partition)
    if known is None or known.written_at < committed.written_at:
        offsets[partition] = committed


def _forget(state: Groups, key: OffsetKey) -> None:
    """A tombstone: the offset, and its group with the last one, is gone; pending ones of the same key go
    too.
    """
    offsets = state.committed.get(key.group_id, {})
    offsets.pop(TopicPartition(key.topic, key.partition), None)
    if not offsets:
        state.committed.pop(key.group_id, None)
    for pending in state.pending.values():
        pending.pop(key, None)
