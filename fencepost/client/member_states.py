"""The states of a group member as a table: what each call and each event does in each state (MemberState).

Rule: a cell is the next state; an absent cell cannot happen, or changes nothing. Nothing else moves a member.
"""

from __future__ import annotations

from typing import Final

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import IdentityEnum


class MemberState(IdentityEnum):
    """The states of a member: the circle in group_member.py."""

    UNJOINED = "unjoined"
    REJOINING = "rejoining"
    REVOKING = "revoking"
    JOINING = "joining"
    SYNCING = "syncing"
    SYNCED = "synced"
    ASSIGNING = "assigning"
    STABLE = "stable"
    FENCED = "fenced"
    LEAVING = "leaving"
    LEFT = "left"


class MemberInput(IdentityEnum):
    """Events from the application, the coordinator and the clock."""

    POLL = "poll"
    RETURNED = "callbacks returned"
    JOINED = "joined"
    ID_GIVEN = "member id given"
    SYNCED = "synced"
    REBALANCE = "group rebalances"
    EXPELLED = "expelled"
    FENCED = "instance id taken"
    REFUSED = "refused"
    LEAVE = "leave"


MemberTable = dict[MemberState, dict[MemberInput, MemberState]]
_S, _I = MemberState, MemberInput

_USUAL: Final = {
    _I.REBALANCE: _S.REJOINING,
    _I.EXPELLED: _S.UNJOINED,
    _I.FENCED: _S.FENCED,
    _I.LEAVE: _S.LEAVING,
}
"""What most states do when the group changes, or the application leaves."""

MEMBER_STATES: Final[MemberTable] = {
    _S.UNJOINED: {_I.POLL: _S.REVOKING, _I.LEAVE: _S.LEAVING},
    _S.REJOINING: {**_USUAL, _I.POLL: _S.REVOKING, _I.REFUSED: _S.REJOINING},
    _S.REVOKING: {
        **_USUAL,
        _I.POLL: _S.REVOKING,
        _I.RETURNED: _S.JOINING,
        _I.REBALANCE: _S.REVOKING,
        _I.EXPELLED: _S.REVOKING,  # it joins next, as a new member
        _I.REFUSED: _S.REVOKING,
    },
    _S.JOINING: {
        **_USUAL,
        _I.POLL: _S.JOINING,
        _I.ID_GIVEN: _S.JOINING,
        _I.JOINED: _S.SYNCING,
        _I.REFUSED: _S.UNJOINED,
    },
    _S.SYNCING: {**_USUAL, _I.POLL: _S.SYNCING, _I.SYNCED: _S.SYNCED, _I.REFUSED: _S.UNJOINED},
    # After a rebalance here, the assignment is outdated before the application has seen it.
    _S.SYNCED: {**_USUAL, _I.POLL: _S.ASSIGNING, _I.REFUSED: _S.REJOINING},
    _S.ASSIGNING: {
        **_USUAL,
        _I.POLL: _S.ASSIGNING,
        _I.RETURNED: _S.STABLE,
        _I.REBALANCE: _S.ASSIGNING,  # events during a callback are kept until STABLE
        _I.EXPELLED: _S.ASSIGNING,
        _I.REFUSED: _S.ASSIGNING,
    },
    _S.STABLE: {**_USUAL, _I.POLL: _S.STABLE, _I.REFUSED: _S.STABLE},
    # Another process has the same group_instance_id: joining again would fence it in turn (KIP-345).
    _S.FENCED: {_I.POLL: _S.FENCED, _I.LEAVE: _S.LEAVING},
    _S.LEAVING: {_I.POLL: _S.LEAVING, _I.RETURNED: _S.LEFT, _I.LEAVE: _S.LEAVING},
    _S.LEFT: {_I.POLL: _S.LEFT, _I.LEAVE: _S.LEFT},
}

REFUSALS: Final[dict[ErrorCode, MemberInput]] = {
    ErrorCode.MEMBER_ID_REQUIRED: _I.ID_GIVEN,
    ErrorCode.REBALANCE_IN_PROGRESS: _I.REBALANCE,
    ErrorCode.ILLEGAL_GENERATION: _I.EXPELLED,
    ErrorCode.UNKNOWN_MEMBER_ID: _I.EXPELLED,
    ErrorCode.FENCED_INSTANCE_ID: _I.FENCED,
}
"""The event for an error of the coordinator; any other is REFUSED, and poll() raises it."""

HEARTBEATING: Final = frozenset({_S.REJOINING, _S.REVOKING, _S.SYNCING, _S.SYNCED, _S.ASSIGNING, _S.STABLE})
"""States with heartbeats. The coordinator expects none while a member joins."""
CALLING: Final = frozenset({_S.REVOKING, _S.ASSIGNING, _S.LEAVING})
"""States that wait for a callback."""
COMMITTING: Final = frozenset({_S.STABLE, _S.REJOINING, _S.REVOKING, _S.ASSIGNING, _S.LEAVING})
"""States in which the generation was current at the last heartbeat."""
IN_BETWEEN: Final = frozenset({_S.JOINING, _S.SYNCING, _S.SYNCED})
