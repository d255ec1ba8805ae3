"""InitProducerId as tables: which identity is granted (KIP-98, KIP-360).

Rule: a cell is the grant, or the error that refuses. Rows are the standing of the transactional id, columns
the identity that the caller expects to have.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from fencepost.broker.checks import Check
from fencepost.broker.transactions.state import Rules
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import InitProducerId
from fencepost.protocol.terms import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class Standing(Enum):
    """The standing of a transactional id that has an owner; an unknown id is granted at once."""

    __hash__ = object.__hash__  # by identity, in C: Enum hashes the member's name, in Python

    SETTLED = "nothing is open"
    USED_UP = "nothing is open, the epochs are used up"
    OPEN = "a transaction is open"


class Expectation(Enum):
    """The identity that the caller expects to have, compared with the owner's."""

    __hash__ = object.__hash__

    NONE = "none"
    CURRENT = "today's"
    LAST = "the one before"
    PAST = "an earlier epoch"
    FOREIGN = "another producer id"


class Grant(Enum):
    """What InitProducerId grants."""

    __hash__ = object.__hash__

    FIRST_EPOCH = "a fresh producer id, epoch 0"
    NEXT_EPOCH = "the next epoch"
    SAME_AGAIN = "the same identity again"
    ABORT_FIRST = "CONCURRENT_TRANSACTIONS, and an abort"


GrantTable = dict[Standing, dict[Expectation, Grant | ErrorCode]]

_FENCED = ErrorCode.PRODUCER_FENCED
_LOST = (
    ErrorCode.UNKNOWN_SERVER_ERROR
)  # a retry after the last epoch: Kafka throws IllegalStateException here

# TransactionCoordinator.prepareInitProducerIdTransit, TransactionMetadata.prepareIncrementProducerEpoch. Only
# the producer id is compared while a transaction is open, so even an old epoch aborts it.
GRANTS: Final[GrantTable] = {
    Standing.SETTLED: {
        Expectation.NONE: Grant.NEXT_EPOCH,
        Expectation.CURRENT: Grant.NEXT_EPOCH,
        Expectation.LAST: Grant.SAME_AGAIN,
        Expectation.PAST: _FENCED,
        Expectation.FOREIGN: _FENCED,
    },
    Standing.USED_UP: {
        Expectation.NONE: Grant.FIRST_EPOCH,
        Expectation.CURRENT: Grant.FIRST_EPOCH,
        Expectation.LAST: _LOST,
        Expectation.PAST: _LOST,
        Expectation.FOREIGN: _FENCED,
    },
    Standing.OPEN: {
        Expectation.NONE: Grant.ABORT_FIRST,
        Expectation.CURRENT: Grant.ABORT_FIRST,
        Expectation.LAST: Grant.ABORT_FIRST,
        Expectation.PAST: Grant.ABORT_FIRST,
        Expectation.FOREIGN: _FENCED,
    },
}


# --- the request, before its id is looked up --------------------------------------------------------------


def _lacks_name(request: InitProducerId, rules: Rules) -> bool:
    return not request.transactional_id


def _expects_half(request: InitProducerId, rules: Rules) -> bool:
    return (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH)


def _asks_for_too_long(request: InitProducerId, rules: Rules) -> bool:
    return not 0 < request.transaction_timeout_ms <= rules.transaction_max_timeout_ms


HALF_AN_IDENTITY: Final = Check(
    "expects a producer id without an epoch, or an epoch without a producer id",
    ErrorCode.INVALID_REQUEST,
    _expects_half,
    source="KafkaApis.handleInitProducerIdRequest",
)
"""Also checked for requests without a transactional id."""

IDENTITY_CHECKS: Final = (
    Check(
        "has an empty transactional id",
        ErrorCode.INVALID_REQUEST,
        _lacks_name,
        source="TransactionCoordinator.handleInitProducerId",
    ),
    HALF_AN_IDENTITY,
    Check(
        "has a transaction.timeout.ms that is not between 1 and transaction.max.timeout.ms",
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        _asks_for_too_long,
        source="TransactionCoordinator.handleInitProducerId",
    ),
)
