"""The transaction coordinator's state machine as tables, for each `transaction.version`, and the transaction
version that a request implies.

Rule: a cell is the next state or the error that refuses. In a table of ends, the same state means a retry:
answer again.
"""

# Theory of operation (Kafka: TransactionCoordinator, TransactionMetadata, TransactionState)
#
# For each transactional id the coordinator has one record: owner (producer id, epoch), state, partitions.
# Every change is a new record in `__transaction_state`; the last one counts.
#
#            AddPartitions            EndTxn(commit)                  all markers written
#     EMPTY ---------------> ONGOING ----------------> PREPARE_COMMIT --------------------> COMPLETE_COMMIT
#                              |  EndTxn(abort), timeout,
#                              |  InitProducerId                       all markers written
#                              +---------------------> PREPARE_ABORT ---------------------> COMPLETE_ABORT
#
#     COMPLETE_* continues as EMPTY does: AddPartitions opens the next transaction, InitProducerId empties it.
#
# PREPARE_* is the decision. Once this record is durable, the transaction ends this way whatever crashes: a
# new coordinator finds the record and writes the remaining markers (markers.py). Until the record is durable
# the id is *pending*, and other requests for it get CONCURRENT_TRANSACTIONS
# (TransactionMetadata.pendingState).
#
# A transaction has one of three versions. Each is a row of TRANSACTION_VERSIONS, with tables and traits; code
# asks for a trait. Numbers are compared only where a record or a marker is read or written:
#
#     version   epoch changes             who adds partitions   a lost reply to EndTxn
#     0 (1)     when an owner is fenced   the client            a retry looks like a new request
#     2         at every end, too         the partition leader  the retry has the epoch before the end
#
# In versions 0 and 1 all transactions of an owner share one epoch. A retried EndTxn(commit) that arrives when
# the next transaction is ONGOING looks like the end of that one, and commits half of it (KAFKA-17754).
# In version 2 (KIP-890 part 2) PREPARE_* raises the epoch, and the reply tells the producer:
#
#     request            record afterwards        reply
#     EndTxn  epoch 4    PREPARE_COMMIT epoch 5   epoch 5 -- lost
#     EndTxn  epoch 4    COMPLETE_COMMIT epoch 5  epoch 5: 4 = current - 1, a retry of the last end
#     EndTxn  epoch 5    -                        a new end: INVALID_TXN_STATE, no transaction is open
#     EndTxn  epoch 3    -                        PRODUCER_FENCED
#
# So the table of ends of version 2 has two more columns. The raised epoch is also in the markers, and
# partitions then refuse late batches of the ended transaction. Epochs end at 32767; the last granted one is
# 32766, so that the coordinator can always raise it once more to fence. An end at 32766 continues with a new
# producer id, epoch 0.
#
# A request is served in the version that its client implements, which the version of the request says
# (`client_version_of`). The version of the cluster, its finalized feature `transaction.version`, says how
# coordinators end transactions on their own (fences, timeouts), and what the transaction log can store: in a
# cluster of version 0, transactions of version 2 fail because their records cannot be written.

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

import attrs

from fencepost.protocol import messages as m
from fencepost.protocol.errors import NO_ERROR, ErrorCode
from fencepost.protocol.terms import IdentityEnum, TransactionState


class EndInput(IdentityEnum):
    """An EndTxn, by its decision and its epoch: the current one, or the one before the last end (a retry)."""

    COMMIT = "commit"
    ABORT = "abort"
    COMMIT_RETRY = "commit retry"
    ABORT_RETRY = "abort retry"


class CoordinatorInput(IdentityEnum):
    """The other inputs of a transaction."""

    INIT = "InitProducerId"
    ADD = "add a partition"
    TIMEOUT = "timeout"
    MARKERS_WRITTEN = "all markers written"


Cell = TransactionState | ErrorCode
MoveTable = dict[TransactionState, dict[CoordinatorInput, Cell]]

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
_INVALID = ErrorCode.INVALID_TXN_STATE
_FENCED = ErrorCode.PRODUCER_FENCED


class EndTable(dict[TransactionState, dict[EndInput, Cell]]):
    """What EndTxn does in each state, with the name of the table and its place in Kafka."""

    def __init__(
        self, rows: Mapping[TransactionState, dict[EndInput, Cell]], *, name: str, source: str
    ) -> None:
        super().__init__(rows)
        self.name = name
        self.source = source


MOVE_SOURCE: Final = "KIP-98, TransactionMetadata.prepareTransitionTo"

# KIP-890 part 2. An abort without a transaction is an empty abort: it raises the epoch, which fences earlier
# requests that are still on their way (KAFKA-18401, KAFKA-18464).
END_VERSION_2: Final = EndTable(
    {
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
        # Whatever the request is: the rows of COMPLETE_* answer it once the markers are written.
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
    },
    name="END_VERSION_2",
    source="KIP-890, TransactionCoordinator.endTransaction",
)

# Transactions share an epoch here, so retries have no columns of their own: COMPLETE_* answers a repeated
# decision as a success.
END_VERSION_0: Final = EndTable(
    {
        EMPTY: {EndInput.COMMIT: _INVALID, EndInput.ABORT: _INVALID},
        ONGOING: {EndInput.COMMIT: PREPARE_COMMIT, EndInput.ABORT: PREPARE_ABORT},
        PREPARE_COMMIT: {EndInput.COMMIT: BUSY, EndInput.ABORT: BUSY},
        PREPARE_ABORT: {EndInput.COMMIT: BUSY, EndInput.ABORT: BUSY},
        COMPLETE_COMMIT: {EndInput.COMMIT: COMPLETE_COMMIT, EndInput.ABORT: _INVALID},
        COMPLETE_ABORT: {EndInput.COMMIT: _INVALID, EndInput.ABORT: COMPLETE_ABORT},
    },
    name="END_VERSION_0",
    source="KIP-98, TransactionCoordinator.endTransaction",
)

# The same in every version: versions differ in who sends ADD, and in the epoch after an end.
# Kafka fences in two steps, with the state PrepareEpochFence in between. That state is never written, so here
# ONGOING becomes PREPARE_ABORT at once. Inputs that are missing in a row cannot happen: only ONGOING has a
# deadline, and only PREPARE_* has markers.
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
    """One value of the feature `transaction.version`: its tables and its traits."""

    number: int
    # Number and traits suffice for equality; the tables are dictionaries, which cannot be hashed.
    end: EndTable = attrs.field(repr=False, eq=False)
    moves: MoveTable = attrs.field(default=MOVES, repr=False, eq=False)
    client_version: int
    """The number in the records of its clients' transactions, and in their markers."""
    renews_identity: bool
    """Each end raises the epoch and returns it to the producer (KIP-890 part 2)."""
    adds_implicitly: bool
    """Partition leaders add their partition at a transaction's first batch; clients never request it."""
    has_flexible_records: bool
    """The transaction log has records with tagged fields (TransactionLogValue version 1). They store the
    version of the client, and the producer ids before and after a rotation, by which a new coordinator
    recognises the retry of a request whose reply was lost.
    """


TRANSACTION_VERSIONS: Final = {
    0: TransactionVersion(
        number=0,
        end=END_VERSION_0,
        client_version=0,
        renews_identity=False,
        adds_implicitly=False,
        has_flexible_records=False,
    ),
    1: TransactionVersion(  # the flexible log record of KIP-890, and nothing else
        number=1,
        end=END_VERSION_0,
        client_version=0,
        renews_identity=False,
        adds_implicitly=False,
        has_flexible_records=True,
    ),
    2: TransactionVersion(
        number=2,
        end=END_VERSION_2,
        client_version=2,
        renews_identity=True,
        adds_implicitly=True,
        has_flexible_records=True,
    ),
}
OLDEST: Final = TRANSACTION_VERSIONS[0]
NEWEST: Final = TRANSACTION_VERSIONS[2]

# The request versions from which on a client implements transaction version 2 (Kafka's TransactionVersion,
# AddPartitionsToTxnManager). Older clients are served as in version 0, by any cluster.
NEWEST_FROM: Final[dict[type, int]] = {
    m.Produce: 12,
    m.AddPartitionsToTxn: 4,  # from partition leaders; up to 3 from clients themselves
    m.EndTxn: 5,
    m.TxnOffsetCommit: 5,
}


PRODUCE_FIRST_ZSTD: Final = 7  # KIP-110


class ErrorIntroduced(NamedTuple):
    """An error that clients know from a request version on, and the error that older clients get instead."""

    error: ErrorCode
    known_from: int
    instead: ErrorCode


_FENCED_FROM_2: Final = ErrorIntroduced(_FENCED, known_from=2, instead=ErrorCode.INVALID_PRODUCER_EPOCH)

# The request schemas say which version introduced which error (KIP-360, KIP-588, KIP-848, KIP-890); KafkaApis
# and AddPartitionsToTxnManager translate it for older clients.
INTRODUCED_ERRORS: Final[dict[type, ErrorIntroduced]] = {
    m.Produce: ErrorIntroduced(ErrorCode.TRANSACTION_ABORTABLE, known_from=11, instead=_INVALID),
    m.InitProducerId: ErrorIntroduced(_FENCED, known_from=4, instead=ErrorCode.INVALID_PRODUCER_EPOCH),
    m.AddPartitionsToTxn: _FENCED_FROM_2,
    m.AddOffsetsToTxn: _FENCED_FROM_2,
    m.EndTxn: _FENCED_FROM_2,
    # Also tells groups/offsets.py which clients know the consumer protocol (`knows_epochs`).
    m.OffsetCommit: ErrorIntroduced(
        ErrorCode.STALE_MEMBER_EPOCH, known_from=9, instead=ErrorCode.UNSUPPORTED_VERSION
    ),
    m.TxnOffsetCommit: ErrorIntroduced(ErrorCode.TRANSACTION_ABORTABLE, known_from=4, instead=_INVALID),
}


@attrs.frozen
class ClientVersion:
    """The transaction version that a client implements, the error that it does not know yet, and whether it
    knows zstd.
    """

    transaction_version: TransactionVersion
    """OLDEST where the request does not tell."""
    unknown: ErrorCode | None = attrs.field(kw_only=True, default=None)
    instead: ErrorCode = attrs.field(kw_only=True, default=NO_ERROR)
    knows_zstd: bool = attrs.field(kw_only=True, default=True)

    def downgrade(self, error: ErrorCode) -> ErrorCode:
        """The error as this client knows it."""
        return self.instead if error is self.unknown else error


@cache  # one entry for each version of a handful of requests
def client_version_of(request: type, version: int) -> ClientVersion:
    first = NEWEST_FROM.get(request)
    implemented = OLDEST if first is None or version < first else NEWEST
    introduced = INTRODUCED_ERRORS[request]
    knows_zstd = request is not m.Produce or version >= PRODUCE_FIRST_ZSTD
    if version >= introduced.known_from:
        return ClientVersion(implemented, knows_zstd=knows_zstd)
    return ClientVersion(
        implemented, unknown=introduced.error, instead=introduced.instead, knows_zstd=knows_zstd
    )
