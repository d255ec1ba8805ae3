"""The state machine of a consumer group as a table: joins, syncs, heartbeats, commits, departures, deletion.

Rule: a cell is the next state, the same state, or the error that refuses (ClassicGroup, ClassicGroupState,
GroupMetadataManager). Member id and generation are checked before the table is read.
"""

from __future__ import annotations

from typing import Final

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import GroupState, IdentityEnum


class GroupInput(IdentityEnum):
    """The inputs of a group, from members, deadlines and administrators."""

    CREATE = "first join of a group"
    JOIN = "a new member joins"
    REJOIN = "member rejoins"
    LEADER_REJOIN = "leader rejoins"
    CHANGED_REJOIN = "member rejoins with changes"
    STATIC_RETURN = "static member rejoins"
    SYNC = "sync"
    LEADER_SYNC = "sync of the leader"
    HEARTBEAT = "heartbeat"
    COMMIT = "OffsetCommit by a member"
    SIMPLE_COMMIT = "OffsetCommit without a member"
    TXN_COMMIT = "TxnOffsetCommit by a member"
    SIMPLE_TXN_COMMIT = "TxnOffsetCommit without a member"
    GONE = "a member leaves"
    JOINED = "join phase ends"
    ABANDONED = "join phase ends without members"
    SYNC_TIMEOUT = "sync timed out"
    DELETE = "delete"
    DELETE_OFFSETS = "delete offsets"
    DELETE_FOREIGN_OFFSETS = "delete offsets, protocol type not consumer"


Cell = GroupState | ErrorCode
GroupTable = dict[GroupState, dict[GroupInput, Cell]]

EMPTY, STABLE, DEAD = GroupState.EMPTY, GroupState.STABLE, GroupState.DEAD
PREPARING, COMPLETING = GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE
_STRANGER = ErrorCode.UNKNOWN_MEMBER_ID
_AGAIN = ErrorCode.REBALANCE_IN_PROGRESS
_BUSY = ErrorCode.NON_EMPTY_GROUP
_IN = GroupInput

MEMBERSHIP: Final[GroupTable] = {
    EMPTY: {
        _IN.JOIN: PREPARING,
        _IN.SIMPLE_COMMIT: EMPTY,
        _IN.SIMPLE_TXN_COMMIT: EMPTY,
        _IN.DELETE: DEAD,
        _IN.DELETE_OFFSETS: EMPTY,
        _IN.DELETE_FOREIGN_OFFSETS: EMPTY,
    },
    PREPARING: {
        _IN.JOIN: PREPARING,
        _IN.REJOIN: PREPARING,
        _IN.LEADER_REJOIN: PREPARING,
        _IN.CHANGED_REJOIN: PREPARING,
        _IN.STATIC_RETURN: PREPARING,
        # The generation of this sync is over; its member has to join the next one.
        _IN.SYNC: _AGAIN,
        _IN.LEADER_SYNC: _AGAIN,
        _IN.HEARTBEAT: _AGAIN,
        # A member learns of the rebalance by its next heartbeat; until then it may commit what it has
        # processed.
        _IN.COMMIT: PREPARING,
        # A consumer that assigns its partitions itself must not overwrite the offsets of a group's members.
        _IN.SIMPLE_COMMIT: _STRANGER,
        _IN.TXN_COMMIT: PREPARING,
        _IN.SIMPLE_TXN_COMMIT: PREPARING,
        _IN.GONE: PREPARING,
        _IN.JOINED: COMPLETING,
        _IN.ABANDONED: EMPTY,
        _IN.DELETE: _BUSY,
        _IN.DELETE_OFFSETS: PREPARING,
        # The topics that its members read are known of consumers alone (ClassicGroup.validateOffsetDelete).
        _IN.DELETE_FOREIGN_OFFSETS: _BUSY,
    },
    COMPLETING: {
        _IN.JOIN: PREPARING,
        # A retry of a join whose reply was lost: the same reply again.
        _IN.REJOIN: COMPLETING,
        _IN.LEADER_REJOIN: COMPLETING,
        _IN.CHANGED_REJOIN: PREPARING,
        # The leader may know only the old member id, and would assign nothing to the new one.
        _IN.STATIC_RETURN: PREPARING,
        _IN.SYNC: COMPLETING,
        _IN.LEADER_SYNC: STABLE,
        # The member has the new generation already, and waits for its assignment.
        _IN.HEARTBEAT: COMPLETING,
        # It has joined the new generation and owns nothing in it yet (ClassicGroup.validateOffsetCommit).
        _IN.COMMIT: _AGAIN,
        _IN.SIMPLE_COMMIT: _STRANGER,
        # Only plain commits are refused during a rebalance: KIP-447 fences by the generation alone.
        _IN.TXN_COMMIT: COMPLETING,
        _IN.SIMPLE_TXN_COMMIT: COMPLETING,
        _IN.GONE: PREPARING,
        _IN.SYNC_TIMEOUT: PREPARING,
        _IN.DELETE: _BUSY,
        _IN.DELETE_OFFSETS: COMPLETING,
        _IN.DELETE_FOREIGN_OFFSETS: _BUSY,
    },
    STABLE: {
        _IN.JOIN: PREPARING,
        _IN.REJOIN: STABLE,
        # The leader knows of changes that no member's metadata shows, such as new partitions.
        _IN.LEADER_REJOIN: PREPARING,
        _IN.CHANGED_REJOIN: PREPARING,
        _IN.STATIC_RETURN: STABLE,
        _IN.SYNC: STABLE,
        _IN.LEADER_SYNC: STABLE,
        _IN.HEARTBEAT: STABLE,
        _IN.COMMIT: STABLE,
        _IN.SIMPLE_COMMIT: _STRANGER,
        _IN.TXN_COMMIT: STABLE,
        # KIP-447 still accepts clients that do not send their identity: it fences no zombie here.
        _IN.SIMPLE_TXN_COMMIT: STABLE,
        _IN.GONE: PREPARING,
        _IN.SYNC_TIMEOUT: PREPARING,
        _IN.DELETE: _BUSY,
        _IN.DELETE_OFFSETS: STABLE,
        _IN.DELETE_FOREIGN_OFFSETS: _BUSY,
    },
    # Dead means that the group does not exist: it was never created, or it was deleted.
    DEAD: {
        _IN.CREATE: EMPTY,
        _IN.REJOIN: _STRANGER,
        _IN.SYNC: _STRANGER,
        _IN.HEARTBEAT: _STRANGER,
        # Clients from before KIP-848 get ILLEGAL_GENERATION.
        _IN.COMMIT: ErrorCode.GROUP_ID_NOT_FOUND,
        _IN.SIMPLE_COMMIT: EMPTY,
        _IN.TXN_COMMIT: ErrorCode.ILLEGAL_GENERATION,
        _IN.SIMPLE_TXN_COMMIT: EMPTY,
        _IN.DELETE: ErrorCode.GROUP_ID_NOT_FOUND,
        _IN.DELETE_OFFSETS: ErrorCode.GROUP_ID_NOT_FOUND,
    },
}  # fmt: skip
