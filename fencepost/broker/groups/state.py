"""The group coordinator over one partition of `__consumer_offsets`: its groups and their offsets
(OffsetMetadataManager).

Rule: a transactional offset is pending until its producer's marker enters the log. Of two committed offsets
the one that was written later wins. The members (`live`) are notes.
"""

# Theory of operation
#
# "Written later" means the offset of its record, not of the marker: a plain commit that is written after a
# pending one stays when the transaction commits. Otherwise a slow transaction would move a group back.
#
#     record of the log                       committed                pending, by producer
#     20   7 commits offset 5 for orders-0                             7: orders-0 -> 5, written at 20
#     21   plain commit of 6 for orders-0     orders-0 -> 6, at 21     7: orders-0 -> 5, written at 20
#     22   COMMIT marker of 7                 orders-0 -> 6, at 21     -          20 < 21: 5 is dropped
#
# Until the marker, OffsetFetch with require_stable gets UNSTABLE_OFFSET_COMMIT for orders-0, and the offset
# cannot expire: either value may be the one from which the group continues.
#
# The marker reaches this log as it reaches that of any data partition. So offsets and records become visible
# by the same decision, which is what makes consume-transform-produce exactly-once.

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count
from typing import Final, NamedTuple

import attrs

from fencepost.broker.groups.consumer_group import ConsumerGroup, apply_records
from fencepost.broker.groups.deadlines import Deadlines
from fencepost.broker.groups.group import Group, is_subscribed, loaded
from fencepost.broker.groups.pending_offsets import Committed, PendingOffsets
from fencepost.protocol.batches import BatchHeader, Buffer, marker_of
from fencepost.protocol.consumer_group_log import ConsumerEntry
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.fork import Ignored, Note
from fencepost.protocol.messages import (
    FetchedOffset,
    OffsetCommit,
    OffsetFetch,
    OffsetToCommit,
    TxnOffsetCommit,
)
from fencepost.protocol.offsets_log import GroupBatch, GroupRecord, OffsetEntry, OffsetKey, OffsetRecord
from fencepost.protocol.terms import (
    CONSUMER_PROTOCOL,
    INT64_MAX,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_RETENTION,
    NO_TIMESTAMP,
    NO_TOPIC_ID,
    GroupState,
    TopicPartition,
    TransactionResult,
)

# offset.metadata.max.bytes, which Kafka compares with String.length (OffsetMetadataManager.isMetadataInvalid)
OFFSET_METADATA_LENGTH_MAX: Final = 4096


Offsets = dict[TopicPartition, Committed]


AnyGroup = Group | ConsumerGroup


class MemberDeadlines(NamedTuple):
    """When the session of a member ends, and by when it must have revoked what it was asked to."""

    session_ms: int
    revoke_ms: int | None = None

    @property
    def next_ms(self) -> int:
        """The first of them."""
        return self.session_ms if self.revoke_ms is None else min(self.session_ms, self.revoke_ms)


@attrs.define(eq=False)
class Groups:
    """State of one group coordinator. In `records`, None is a group that has only committed offsets.

    A group of the classic protocol is in `records`, one of the consumer protocol in `consumers`. Of the
    latter, only the `deadlines` of the members, by group and member id, are notes.
    """

    committed: dict[str, Offsets] = attrs.Factory(dict[str, Offsets])
    pending: PendingOffsets = attrs.Factory(PendingOffsets)
    records: dict[str, GroupRecord | None] = attrs.Factory(dict[str, GroupRecord | None])
    live: Note[dict[str, Group]] = attrs.Factory(dict[str, Group])
    consumers: dict[str, ConsumerGroup] = attrs.Factory(dict[str, ConsumerGroup])
    deadlines: Note[dict[tuple[str, str], MemberDeadlines]] = attrs.Factory(
        dict[tuple[str, str], MemberDeadlines]
    )
    due_groups: Ignored[Deadlines[str]] = attrs.Factory(Deadlines[str])
    """The groups in `live` by their next deadlines."""
    due_members: Ignored[Deadlines[tuple[str, str]]] = attrs.Factory(Deadlines[tuple[str, str]])
    """The keys of `deadlines` by the first of each."""
    member_ids_given: Note[int] = 0

    def any_group(self, group_id: str, *, now: int) -> AnyGroup | None:
        """The present value of the group, or None if it does not exist."""
        return self.consumers.get(group_id) or self.group(group_id, now=now)

    def group(self, group_id: str, *, now: int) -> Group | None:
        """The present value of the group of the classic protocol, or None if there is none."""
        found = self.live.get(group_id)
        if found is None and group_id in self.records:
            return loaded(group_id, self.records[group_id], now=now)
        return found


def keep_live(state: Groups, group: Group) -> int | None:
    """Make this the value of the group; returns its next deadline."""
    state.live[group.group_id] = group
    due_ms = group.next_due_ms
    state.due_groups.put(group.group_id, due_ms)
    return due_ms


def forget_live(state: Groups, group_id: str) -> None:
    state.live.pop(group_id, None)
    state.due_groups.put(group_id, None)


def keep_deadlines(state: Groups, key: tuple[str, str], deadlines: MemberDeadlines) -> None:
    """Make these the deadlines of a member of the consumer protocol."""
    state.deadlines[key] = deadlines
    state.due_members.put(key, deadlines.next_ms)


def forget_deadlines(state: Groups, key: tuple[str, str]) -> None:
    state.deadlines.pop(key, None)
    state.due_members.put(key, None)


def group_ids(state: Groups) -> list[str]:
    """Every group of this coordinator."""
    return [*state.records, *state.consumers]


def offset_keys(state: Groups) -> list[OffsetKey]:
    """Every offset that is committed or pending, sorted."""
    return sorted({key for key, _ in _offsets(state)})


def offset_keys_of(state: Groups, group_id: str) -> list[OffsetKey]:
    """The same, of one group. It looks at nothing that other groups have committed: a request may delete
    thousands of groups.
    """
    committed = state.committed.get(group_id, {})
    kept = {OffsetKey(group_id, where.topic, where.partition) for where in committed}
    return sorted(kept | state.pending.keys(group_id))


def _offsets(state: Groups) -> Iterator[tuple[OffsetKey, OffsetRecord]]:
    """Every record of an offset, committed or pending; several may have one key."""
    for group_id, offsets in state.committed.items():
        for where, committed in offsets.items():
            yield OffsetKey(group_id, where.topic, where.partition), committed.record
    yield from state.pending.records()


def keys_of_former_topics(state: Groups, is_deleted: Callable[[str, bytes], bool]) -> list[OffsetKey]:
    return sorted({key for key, record in _offsets(state) if is_deleted(key.topic, record.topic_id)})


def entries_of(
    request: OffsetCommit | TxnOffsetCommit,
    good: Iterable[OffsetToCommit],
    topic_id: Callable[[str], bytes | None],
    *,
    now: int,
) -> tuple[OffsetEntry, ...]:
    """The log entries for the offsets of a request that have no problem."""
    retention_ms = request.retention_ms if isinstance(request, OffsetCommit) else NO_RETENTION
    return tuple(
        (
            OffsetKey(request.group_id, offset.topic, offset.partition),
            _record_until(offset, min(now + retention_ms, INT64_MAX), now=now)
            if retention_ms != NO_RETENTION
            else OffsetRecord(
                offset=offset.offset,
                leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                commit_ms=now,
                topic_id=topic_id(offset.topic) or NO_TOPIC_ID,
            ),
        )
        for offset in good
    )


def _record_until(offset: OffsetToCommit, expire_ms: int, *, now: int) -> OffsetRecord:
    """The record of an offset whose client chose when it expires. Its version has no room for a leader epoch
    and a topic id.
    """
    return OffsetRecord(
        offset=offset.offset,
        leader_epoch=NO_LEADER_EPOCH,
        metadata=offset.metadata,
        commit_ms=now,
        expire_ms=max(expire_ms, 0),
    )


def fetch(state: Groups, request: OffsetFetch) -> tuple[FetchedOffset, ...]:
    """Committed offsets. With `require_stable`, a pending offset is answered with UNSTABLE_OFFSET_COMMIT: a
    consumer that starts at the old offset would process records twice (KIP-447).
    """
    committed = state.committed.get(request.group_id, {})
    pending = state.pending.keys(request.group_id)
    unstable = {TopicPartition(key.topic, key.partition) for key in pending}
    if request.partitions is None:
        wanted = sorted(committed)  # partitions with only a pending offset are not listed
    else:
        wanted = list(dict.fromkeys(request.partitions))
    return tuple(
        _fetched(key, committed.get(key), request.require_stable and key in unstable) for key in wanted
    )


def _fetched(key: TopicPartition, found: Committed | None, is_unstable: bool) -> FetchedOffset:
    if found is None or is_unstable:
        error = ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else NO_ERROR
        offset, leader_epoch, metadata = NO_OFFSET, NO_LEADER_EPOCH, ""
    else:
        error = NO_ERROR
        offset, leader_epoch, metadata = found.record.offset, found.record.leader_epoch, found.record.metadata
    return FetchedOffset(
        topic=key.topic, partition=key.partition, error=error, offset=offset, leader_epoch=leader_epoch,
        metadata=metadata,
    )  # fmt: skip


# --- retention: which offsets are too old to keep (KIP-211) ----------------------------------------------


def expired_offsets(state: Groups, group: AnyGroup, *, retention_ms: int, now: int) -> list[OffsetKey]:
    """The offsets that have been kept for `retention_ms`, or until the time that their client chose. Pending
    ones and those of subscribed topics are kept on (OffsetMetadataManager.cleanupExpiredOffsets).
    """
    pending = state.pending.keys(group.group_id)
    found: list[OffsetKey] = []
    for where, committed in sorted(state.committed.get(group.group_id, {}).items()):
        key = OffsetKey(group.group_id, where.topic, where.partition)
        since_ms, expire_ms = _since(group, committed), committed.record.expire_ms
        if since_ms is None or key in pending or reads_topic(group, where.topic):
            continue
        if now >= (since_ms + retention_ms if expire_ms is None else expire_ms):
            found.append(key)
    return found


def reads_topic(group: AnyGroup, topic: str) -> bool:
    return topic in group.subscribed if isinstance(group, ConsumerGroup) else is_subscribed(group, topic)


def _since(group: AnyGroup, committed: Committed) -> int | None:
    """The time from which an offset's retention counts, or None (OffsetExpirationCondition).

    In the consumer protocol and for simple consumers this is the commit. In the classic protocol it is the
    commit in a stable group, and in an empty one the time when the last member left; during a rebalance
    nothing expires.
    """
    commit_ms = committed.record.commit_ms
    if isinstance(group, ConsumerGroup) or not group.protocol_type:
        return commit_ms
    if group.state is GroupState.EMPTY:
        return commit_ms if group.state_since_ms == NO_TIMESTAMP else group.state_since_ms
    is_settled = group.state is GroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL
    return commit_ms if is_settled else None


def is_over(state: Groups, group: AnyGroup, expired: Collection[OffsetKey]) -> bool:
    """Whether the group is empty once these offsets are gone, so that it can be deleted, too
    (GroupCoordinatorShard.cleanupGroupMetadata).
    """
    kept = len(state.committed.get(group.group_id, {})) - len(expired)
    return kept == 0 and group.state is GroupState.EMPTY and not state.pending.keys(group.group_id)


# --- Changing state --------------------------------------------------------------------------------------


def apply(state: Groups, header: BatchHeader, batch: Buffer, entries: GroupBatch) -> None:
    """Apply a batch that the log now holds: offsets, group records, or a marker, which decides its producer's
    pending offsets.
    """
    if header.is_control:
        _decide_pending(state, header.producer_id, marker_of(batch, 0, header).result)
        return
    for delta, (key, record) in zip(entries.deltas or count(), entries.offsets, strict=False):
        if record is None:
            _forget(state, key)
            continue
        if key.group_id not in state.consumers:
            # A group exists from its first offset on, pending or not: it can be listed, described and
            # deleted.
            state.records.setdefault(key.group_id, None)
        if header.is_transactional:
            state.pending.put(header.producer_id, key, Committed(record, header.base_offset + delta))
        else:
            _settle(state, key, Committed(record, header.base_offset + delta))
    for group_id, record in entries.groups:
        if record is None:
            state.records.pop(group_id, None)
        else:
            state.records[group_id] = record
    if entries.consumers:
        _apply_consumers(state, entries.consumers)


def _apply_consumers(state: Groups, entries: tuple[ConsumerEntry, ...]) -> None:
    apply_records(state.consumers, entries)
    for group_id in {key.group_id for key, _ in entries}:
        if group_id in state.consumers:
            # Its offsets may be read before its first record; then it looked like a group of offsets alone.
            state.records.pop(group_id, None)
        elif state.committed.get(group_id) or state.pending.keys(group_id):
            state.records.setdefault(group_id, None)


def _decide_pending(state: Groups, producer_id: int, result: TransactionResult) -> None:
    pending = state.pending.pop(producer_id)
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
    """A tombstone: the offset is gone; pending ones of the same key go too."""
    offsets = state.committed.get(key.group_id, {})
    offsets.pop(TopicPartition(key.topic, key.partition), None)
    if not offsets:
        state.committed.pop(key.group_id, None)
    # Otherwise a later marker would bring back the offset of a deleted topic or group.
    state.pending.discard(key)
