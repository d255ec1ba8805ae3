"""The coordinator's machine as tables: what EndTxn and InitProducerId do in each state, one pair per
generation.

Rule: a cell is the next state, the same state (already done: answer again), or the error that refuses;
nothing else decides.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import attrs

from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TransactionState


class EndInput(Enum):
    """An EndTxn by its decision and by whose epoch it carries: today's, or the one before the last end (a
    retry).
    """

    COMMIT = "commit"
    ABORT = "abort"
    COMMIT_RETRY = "commit again"
    ABORT_RETRY = "abort again"


class CoordinatorInput(Enum):
    """What else moves a transaction."""

    INIT = "InitProducerId"
    ADD = "add a partition"
    TIMEOUT = "timeout"
    MARKERS_WRITTEN = "all markers written"


Cell = TransactionState | ErrorCode
EndTable = dict[TransactionState, dict[EndInput, Cell]]
MoveTable = dict[TransactionState, dict[CoordinatorInput, Cell]]

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
_BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
_WRONG = ErrorCode.INVALID_TXN_STATE
_FENCED = ErrorCode.PRODUCER_FENCED

# KIP-890 part 2: an epoch per transaction, so that a retry and a new request differ. Aborting nothing is an
# empty abort: it bumps the epoch, which fences whatever of the past is still on its way (KAFKA-18401,
# KAFKA-18464).
END_VERSION_2: Final[EndTable] = {
    EMPTY: {
        EndInput.COMMIT: _WRONG,
        EndInput.ABORT: PREPARE_ABORT,
        EndInput.COMMIT_RETRY: _FENCED,
        EndInput.ABORT_RETRY: _FENCED,
    },
    ONGOING: {
        EndInput.COMMIT: PREPARE_COMMIT,
        EndInput.ABORT: PREPARE_ABORT,
        EndInput.COMMIT_RETRY: _FENCED,
        EndInput.ABORT_RETRY: _FENCED,
    },
    PREPARE_COMMIT: dict.fromkeys(EndInput, _BUSY),
    PREPARE_ABORT: dict.fromkeys(EndInput, _BUSY),
    COMPLETE_COMMIT: {
        EndInput.COMMIT: _WRONG,
        EndInput.ABORT: PREPARE_ABORT,
        EndInput.COMMIT_RETRY: COMPLETE_COMMIT,
        EndInput.ABORT_RETRY: _WRONG,
    },
    COMPLETE_ABORT: {
        EndInput.COMMIT: _WRONG,
        EndInput.ABORT: PREPARE_ABORT,
        EndInput.COMMIT_RETRY: _WRONG,
        EndInput.ABORT_RETRY: COMPLETE_ABORT,
    },
}

MOVES: Final[MoveTable] = {
    EMPTY: {CoordinatorInput.INIT: EMPTY, CoordinatorInput.ADD: ONGOING},
    ONGOING: {
        CoordinatorInput.INIT: PREPARE_ABORT,
        CoordinatorInput.ADD: ONGOING,
        CoordinatorInput.TIMEOUT: PREPARE_ABORT,
    },
    PREPARE_COMMIT: {
        CoordinatorInput.INIT: _BUSY,
        CoordinatorInput.ADD: _BUSY,
        CoordinatorInput.MARKERS_WRITTEN: COMPLETE_COMMIT,
    },
    PREPARE_ABORT: {
        CoordinatorInput.INIT: _BUSY,
        CoordinatorInput.ADD: _BUSY,
        CoordinatorInput.MARKERS_WRITTEN: COMPLETE_ABORT,
    },
    COMPLETE_COMMIT: {CoordinatorInput.INIT: EMPTY, CoordinatorInput.ADD: ONGOING},
    COMPLETE_ABORT: {CoordinatorInput.INIT: EMPTY, CoordinatorInput.ADD: ONGOING},
}


@attrs.frozen(kw_only=True)
class Generation:
    """A protocol generation: its number in `transaction.version` and its tables."""

    transaction_version: int
    end: EndTable
    moves: MoveTable
    persists_identity_history: bool


# The tables of versions 0 and 1 take their place here.
GENERATIONS: Final = {
    2: Generation(transaction_version=2, end=END_VERSION_2, moves=MOVES, persists_identity_history=True)
}
NEWEST: Final = GENERATIONS[2]
