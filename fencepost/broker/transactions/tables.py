"""The coordinator's machine as tables: what EndTxn and InitProducerId do in each state, one pair per
generation; and which generation a request speaks.

Rule: a cell is the next state, the same state (already done: answer again), or the error that refuses;
nothing else decides. What differs between generations is a row of GENERATIONS, never a test of a version.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import Final, NamedTuple

import attrs

from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.messages import (
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    EndTxn,
    InitProducerId,
    Produce,
    TxnOffsetCommit,
)
from fencepost.protocol.terms import TransactionState


class EndInput(Enum):
    """An EndTxn by its decision and by whose epoch it carries: today's, or the one before the last end (a
    retry).
    """

    __hash__ = object.__hash__  # each is itself alone; Enum's own hashes the name, in Python

    COMMIT = "commit"
    ABORT = "abort"
    COMMIT_RETRY = "commit again"
    ABORT_RETRY = "abort again"


class CoordinatorInput(Enum):
    """What else moves a transaction."""

    __hash__ = object.__hash__  # each is itself alone; Enum's own hashes the name, in Python

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
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
_INVALID = ErrorCode.INVALID_TXN_STATE
_FENCED = ErrorCode.PRODUCER_FENCED

# KIP-890 part 2: an epoch per transaction, so that a retry and a new request differ. Aborting nothing is an
# empty abort: it bumps the epoch, which fences whatever of the past is still on its way (KAFKA-18401,
# KAFKA-18464).
END_VERSION_2: Final[EndTable] = {
    EMPTY: {
        EndInput.COMMIT: _INVALID,
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
    PREPARE_COMMIT: dict.fromkeys(EndInput, BUSY),
    PREPARE_ABORT: dict.fromkeys(EndInput, BUSY),
    COMPLETE_COMMIT: {
        EndInput.COMMIT: _INVALID,
        EndInput.ABORT: PREPARE_ABORT,
        EndInput.COMMIT_RETRY: COMPLETE_COMMIT,
        EndInput.ABORT_RETRY: _INVALID,
    },
    COMPLETE_ABORT: {
        EndInput.COMMIT: _INVALID,
        EndInput.ABORT: PREPARE_ABORT,
        EndInput.COMMIT_RETRY: _INVALID,
        EndInput.ABORT_RETRY: COMPLETE_ABORT,
    },
}

# Before KIP-890 part 2 transactions share an epoch, so nothing tells a retry of an end from a new one: one
# that comes late ends whatever is open by then (KAFKA-17754). Hence no columns for retries.
END_VERSION_0: Final[EndTable] = {
    EMPTY: {EndInput.COMMIT: _INVALID, EndInput.ABORT: _INVALID},
    ONGOING: {EndInput.COMMIT: PREPARE_COMMIT, EndInput.ABORT: PREPARE_ABORT},
    PREPARE_COMMIT: {EndInput.COMMIT: BUSY, EndInput.ABORT: BUSY},
    PREPARE_ABORT: {EndInput.COMMIT: BUSY, EndInput.ABORT: BUSY},
    COMPLETE_COMMIT: {EndInput.COMMIT: COMPLETE_COMMIT, EndInput.ABORT: _INVALID},
    COMPLETE_ABORT: {EndInput.COMMIT: _INVALID, EndInput.ABORT: COMPLETE_ABORT},
}

# The same in every generation: they differ in who sends ADD, and in what an end makes of the epoch.
MOVES: Final[MoveTable] = {
    EMPTY: {CoordinatorInput.INIT: EMPTY, CoordinatorInput.ADD: ONGOING},
    ONGOING: {
        CoordinatorInput.INIT: PREPARE_ABORT,
        CoordinatorInput.ADD: ONGOING,
        CoordinatorInput.TIMEOUT: PREPARE_ABORT,
    },
    PREPARE_COMMIT: {
        CoordinatorInput.INIT: BUSY,
        CoordinatorInput.ADD: BUSY,
        CoordinatorInput.MARKERS_WRITTEN: COMPLETE_COMMIT,
    },
    PREPARE_ABORT: {
        CoordinatorInput.INIT: BUSY,
        CoordinatorInput.ADD: BUSY,
        CoordinatorInput.MARKERS_WRITTEN: COMPLETE_ABORT,
    },
    COMPLETE_COMMIT: {CoordinatorInput.INIT: EMPTY, CoordinatorInput.ADD: ONGOING},
    COMPLETE_ABORT: {CoordinatorInput.INIT: EMPTY, CoordinatorInput.ADD: ONGOING},
}


@attrs.frozen(kw_only=True)
class TransactionVersion:
    """A protocol generation: its number in `transaction.version`, its tables, and what else it brought."""

    number: int
    # Its number and its traits tell it from the others, and can be hashed.
    end: EndTable = attrs.field(repr=False, eq=False)
    moves: MoveTable = attrs.field(default=MOVES, repr=False, eq=False)
    client_version: int
    """What the log says of clients that speak it, and the markers of their transactions carry."""
    renews_identity: bool
    """Each end raises the epoch and tells the producer, so that an end says which transaction it means."""
    adds_implicitly: bool
    """Partition leaders add the partition at a transaction's first batch; clients never ask for it."""
    persists_identity_history: bool
    """The log keeps the producer id before a rotation, so that a lost reply can be told after a failover."""


TRANSACTION_VERSIONS: Final = {
    0: TransactionVersion(
        number=0,
        end=END_VERSION_0,
        client_version=0,
        renews_identity=False,
        adds_implicitly=False,
        persists_identity_history=False,
    ),
    1: TransactionVersion(  # the flexible log record of KIP-890, and nothing else
        number=1,
        end=END_VERSION_0,
        client_version=0,
        renews_identity=False,
        adds_implicitly=False,
        persists_identity_history=True,
    ),
    2: TransactionVersion(
        number=2,
        end=END_VERSION_2,
        client_version=2,
        renews_identity=True,
        adds_implicitly=True,
        persists_identity_history=True,
    ),
}
OLDEST: Final = TRANSACTION_VERSIONS[0]
NEWEST: Final = TRANSACTION_VERSIONS[2]

# The request versions from which on a client speaks the newest generation (TransactionVersion,
# AddPartitionsToTxnManager): an older client is served as ever, by any cluster.
NEWEST_SPOKEN_FROM: Final[dict[type, int]] = {
    Produce: 12,
    AddPartitionsToTxn: 4,  # from partition leaders; up to 3 from clients themselves
    EndTxn: 5,
    TxnOffsetCommit: 5,
}


class ErrorIntroduced(NamedTuple):
    """An error that clients know from a request version on, and what older ones are told instead."""

    error: ErrorCode
    known_from: int
    instead: ErrorCode


_FENCED_FROM_2: Final = ErrorIntroduced(_FENCED, known_from=2, instead=ErrorCode.INVALID_PRODUCER_EPOCH)

# The schemas of the requests say which version brought which error (KIP-360, KIP-588, KIP-890); KafkaApis
# and AddPartitionsToTxnManager put it into older words.
YOUNGER_ERRORS: Final[dict[type, ErrorIntroduced]] = {
    Produce: ErrorIntroduced(ErrorCode.TRANSACTION_ABORTABLE, known_from=11, instead=_INVALID),
    InitProducerId: ErrorIntroduced(_FENCED, known_from=4, instead=ErrorCode.INVALID_PRODUCER_EPOCH),
    AddPartitionsToTxn: _FENCED_FROM_2,
    AddOffsetsToTxn: _FENCED_FROM_2,
    EndTxn: _FENCED_FROM_2,
    TxnOffsetCommit: ErrorIntroduced(ErrorCode.TRANSACTION_ABORTABLE, known_from=4, instead=_INVALID),
}


@attrs.frozen
class ClientVersion:
    """What a request's version says of its client: the generation, and an error that it does not know."""

    transaction_version: TransactionVersion
    """OLDEST, too, where no version says more."""
    unknown: ErrorCode | None = attrs.field(kw_only=True, default=None)
    instead: ErrorCode = attrs.field(kw_only=True, default=NO_ERROR)

    def downgrade(self, error: ErrorCode) -> ErrorCode:
        """The error in words that the client knows."""
        return self.instead if error is self.unknown else error


@cache  # by a handful of requests, and as many versions as there are of each
def spoken(request: type, version: int) -> ClientVersion:
    """What a request of this version says of its client."""
    first = NEWEST_SPOKEN_FROM.get(request)
    generation = OLDEST if first is None or version < first else NEWEST
    younger = YOUNGER_ERRORS[request]
    if version >= younger.known_from:
        return ClientVersion(generation)
    return ClientVersion(generation, unknown=younger.error, instead=younger.instead)


def served(cluster: TransactionVersion, asked: TransactionVersion) -> TransactionVersion:
    """The generation by which a cluster serves one who speaks `asked`: the older of the two."""
    return asked if asked.number < cluster.number else cluster
