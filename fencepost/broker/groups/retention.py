"""Which committed offsets are too old to keep, and which groups are then nothing any more (KIP-211).

Rule: what a member reads, or an open transaction moves, never expires; a group goes when it is empty and
nothing is left of it.
"""

from __future__ import annotations

from collections.abc import Collection

from fencepost.broker.groups.group import Group, is_subscribed
from fencepost.broker.groups.state import Committed, Groups
from fencepost.protocol.offsets_log import OffsetKey
from fencepost.protocol.terms import CONSUMER_PROTOCOL, NO_TIMESTAMP, GroupState


def expired_offsets(state: Groups, group: Group, *, before_ms: int) -> list[OffsetKey]:
    """The offsets of a group whose time began at or before `before_ms`; what a transaction moves and what
    members read stays (OffsetMetadataManager.cleanupExpiredOffsets).
    """
    moved = _moved_by_transactions(state, group.group_id)
    found: list[OffsetKey] = []
    for where, committed in sorted(state.committed.get(group.group_id, {}).items()):
        key = OffsetKey(group.group_id, where.topic, where.partition)
        since_ms = _since(group, committed)
        if since_ms is None or since_ms > before_ms or key in moved or is_subscribed(group, where.topic):
            continue
        found.append(key)
    return found


def _since(group: Group, committed: Committed) -> int | None:
    """When the time of an offset began, None while it does not run (ClassicGroup.offsetExpirationCondition).

    With members it is the commit; a group that was left counts from then; who never had members is a simple
    consumer, which commits as long as it lives.
    """
    commit_ms = committed.record.commit_ms
    if not group.protocol_type:
        return commit_ms
    if group.state is GroupState.EMPTY:
        return commit_ms if group.state_since_ms == NO_TIMESTAMP else group.state_since_ms
    is_settled = group.state is GroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL
    return commit_ms if is_settled else None


def is_over(state: Groups, group: Group, expired: Collection[OffsetKey]) -> bool:
    """Nothing but these offsets is left of a group without members: it goes with them, at once if there
    never were any (GroupCoordinatorShard.cleanupGroupMetadata).
    """
    kept = len(state.committed.get(group.group_id, {})) - len(expired)
    return kept == 0 and group.state is GroupState.EMPTY and not _moved_by_transactions(state, group.group_id)


def _moved_by_transactions(state: Groups, group_id: str) -> set[OffsetKey]:
    return {key for pending in state.pending.values() for key in pending if key.group_id == group_id}
